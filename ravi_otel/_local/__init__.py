"""Keep and show what happened on this machine, without a backend."""
