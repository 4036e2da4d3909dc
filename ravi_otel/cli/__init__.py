"""Be the command line; imported by the `ravi-otel` script and `python -m ravi_otel` only."""

from ravi_otel.cli.entry import main

__all__ = ["main"]
