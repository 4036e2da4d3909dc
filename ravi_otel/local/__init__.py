"""Keep what runs did in one SQLite file of this machine, and show it in a terminal; no backend is needed.

`_recorder` hears what happens, and `_writer` has it in the file of `_store` a tenth of a second later. `_queries` answers the commands and
the page. `_prune` removes what is old, and erases what is of one person. `_otlp` keeps telemetry, and `_replay` sends it later.

`_record` is the tree of a run, as it is while it runs or, by `_stored_tree`, from the file; `_render` draws it. `live` shows and steers
what runs now.
"""

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
