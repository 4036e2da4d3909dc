"""Serve the page of `ravi-otel ui`: what runs, what it spends, what waits for a person, and what was decided."""
