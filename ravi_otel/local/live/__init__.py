"""Watch the running processes of a store, and steer them: a socket in each, for its owner only.

A process that is watched imports only what it needs for that; what looks at it is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from ravi_otel._extras import load

if TYPE_CHECKING:
    from ravi_otel.local.live import _figures as figures
    from ravi_otel.local.live._polling import ANSWER_S, Watch, Watched
    from ravi_otel.local.live._rows import Row, rows
    from ravi_otel.local.live.client import Session
    from ravi_otel.local.live.protocol import CommandError, LimitState, LiveError, ProcessState, RunState, ScopeState

__all__ = [
    "ANSWER_S",
    "CommandError",
    "LimitState",
    "LiveError",
    "ProcessState",
    "Row",
    "RunState",
    "ScopeState",
    "Session",
    "Watch",
    "Watched",
    "figures",
    "rows",
]

_HOMES = {"Session": "client", "ANSWER_S": "_polling", "Watch": "_polling", "Watched": "_polling", "Row": "_rows", "rows": "_rows"}
"""The module of each name; all others are in `protocol`."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is."""
    if name == "figures":
        return load(f"{__name__}._figures")
    if name in __all__:
        return getattr(load(f"{__name__}.{_HOMES.get(name, 'protocol')}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
