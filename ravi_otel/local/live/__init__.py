"""Watch the running processes of a store, and steer them: a socket in each, for its owner only.

A process that is watched imports only what it needs for that; what looks at it is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from ravi_otel._extras import load

if TYPE_CHECKING:
    from ravi_otel.local.live import _figures as figures
    from ravi_otel.local.live._client import ANSWER_S, DIRECTORY, Following, Session, Watch, Watched, check_directory, entries
    from ravi_otel.local.live._protocol import (
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
    from ravi_otel.local.live._rows import Row, rows

_HOMES = {
    **dict.fromkeys(("ANSWER_S", "DIRECTORY", "Following", "Session", "Watch", "Watched", "check_directory", "entries"), "_client"),
    **dict.fromkeys(("Row", "rows"), "_rows"),
}
"""The module of each name; all others are in `_protocol`."""

__all__ = [
    "ANSWER_S",
    "DIRECTORY",
    "CommandError",
    "Following",
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
    "figures",
    "rows",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is."""
    if name == "figures":
        return load(f"{__name__}._figures")
    if name in __all__:
        return getattr(load(f"{__name__}.{_HOMES.get(name, '_protocol')}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
