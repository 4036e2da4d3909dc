"""Keep and show what happened in this process, without a backend."""

from typing import TYPE_CHECKING, Any

from ravi_otel._extras import load
from ravi_otel.local.export import as_json
from ravi_otel.local.record import RunRecord

if TYPE_CHECKING:
    from ravi_otel.local.report import console, render, render_scopes

__all__ = ["RunRecord", "as_json", "console", "render", "render_scopes"]


def __getattr__(name: str) -> Any:
    """Import what draws on a terminal when it is asked for: a program that only keeps its runs draws nothing."""
    if name in ("console", "render", "render_scopes"):
        return getattr(load("ravi_otel.local.report"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
