"""Hear what runs, calls, tools and limits do, without being able to change them."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from ravi_otel.hooks.events import HookContext, HookEvent
    from ravi_otel.hooks.listener import Listener, Listeners
    from ravi_otel.hooks.manager import HookManager, HookStats
    from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, LimitReading, Notice, ScopeView, SpawnEvent, Spend, ToolRecord
    from ravi_otel.hooks.trackers import Cost, CostTracker, Logged, RunLogger

__all__ = [
    "CallRecord",
    "Cost",
    "CostTracker",
    "CountEvent",
    "HookContext",
    "HookEvent",
    "HookManager",
    "HookStats",
    "LimitEvent",
    "LimitReading",
    "Listener",
    "Listeners",
    "Logged",
    "Notice",
    "RunLogger",
    "ScopeView",
    "SpawnEvent",
    "Spend",
    "ToolRecord",
]

_HOMES = {
    **dict.fromkeys(("HookContext", "HookEvent"), "events"),
    **dict.fromkeys(("Listener", "Listeners"), "listener"),
    **dict.fromkeys(("HookManager", "HookStats"), "manager"),
    **dict.fromkeys(("Cost", "CostTracker", "Logged", "RunLogger"), "trackers"),
}
"""The module of each name; all others are in `records`."""


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_importlib.import_module(f"{__name__}.{_HOMES.get(name, 'records')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
