"""Ask a person: at the terminal, by a callback, or by a queue that survives a restart."""
