"""Ask a person: on the terminal, by a callback, or by a queue that survives a restart."""
