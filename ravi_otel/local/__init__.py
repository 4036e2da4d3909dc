"""Keep and show what happened in this process, without a backend."""

from typing import TYPE_CHECKING, Any

from ravi_otel._extras import load

if TYPE_CHECKING:
    from ravi_otel.local._record import RunRecord, as_json
    from ravi_otel.local._render import console, render, render_scopes

__all__ = ["RunRecord", "as_json", "console", "render", "render_scopes"]

_HOMES = {"RunRecord": "_record", "as_json": "_record"}
"""The module of each name; all others, which draw on a terminal, are in `_render`."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: a program that only keeps its runs draws nothing."""
    if name in __all__:
        return getattr(load(f"{__name__}.{_HOMES.get(name, '_render')}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
