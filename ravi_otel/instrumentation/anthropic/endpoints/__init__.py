"""Read each API in a module of its own."""
