"""Read what model APIs send and receive, one module per wire format; none of them knows a client or an HTTP library."""
