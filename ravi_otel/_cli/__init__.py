"""The command line; imported by the `ravi-otel` script and `python -m ravi_otel` only."""

import sys
from typing import Final

from ravi_otel._extras import load

__all__ = ["main"]

_INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line and exit; whoever interrupts it, also while it is imported, is not answered with a traceback."""
    try:
        load("ravi_otel._cli.entry").main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
