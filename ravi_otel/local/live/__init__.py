"""Watch the running processes of a store, and steer them: a socket in each, for its owner only.

In the program `OpenScopes` hears what happens, and `Server` writes it to who follows and does what they command. Elsewhere, in
`ravi-otel top` or the page, `Watch` follows every process of the store, and a `Session` gives one of them commands. A program
imports its own end alone; the other is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from ravi_otel._extras import load

if TYPE_CHECKING:
    from ravi_otel.local.live._client import DIRECTORY, Row, Session, Watch, Watched, check_directory, entries, rows
    from ravi_otel.local.live._protocol import (
        MOST_REFUSALS,
        CommandError,
        Happened,
        LimitState,
        LiveError,
        LiveEvent,
        ProcessState,
        RunState,
        ScopeState,
        as_fields,
    )

_CLIENT = ("DIRECTORY", "Row", "Session", "Watch", "Watched", "check_directory", "entries", "rows")
"""The names that are in `_client`; all others are in `_protocol`."""

__all__ = [
    "DIRECTORY",
    "MOST_REFUSALS",
    "CommandError",
    "Happened",
    "LimitState",
    "LiveError",
    "LiveEvent",
    "ProcessState",
    "Row",
    "RunState",
    "ScopeState",
    "Session",
    "Watch",
    "Watched",
    "as_fields",
    "check_directory",
    "entries",
    "rows",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is."""
    if name in __all__:
        return getattr(load(f"{__name__}.{'_client' if name in _CLIENT else '_protocol'}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
