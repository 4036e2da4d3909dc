"""Hear what runs, calls, tools and limits do, without being able to change them."""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

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
    "events": ("HookContext", "HookEvent"),
    "listener": ("Listener", "Listeners"),
    "manager": ("HookManager", "HookStats"),
    "records": (
        "CallRecord",
        "CountEvent",
        "LimitEvent",
        "LimitReading",
        "Notice",
        "ScopeView",
        "SpawnEvent",
        "Spend",
        "ToolRecord",
    ),
    "trackers": ("Cost", "CostTracker", "Logged", "RunLogger"),
}
"""Module → the public names that live in it."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
