"""Hear what runs, calls, tools and limits do, without being able to change them."""

import typing as _typing

from ravi_otel._lazy import lazy_names as _lazy_names

if _typing.TYPE_CHECKING:
    from ravi_otel.hooks._events import (
        CallRecord,
        CountEvent,
        HookContext,
        HookEvent,
        LimitEvent,
        LimitReading,
        Notice,
        ScopeView,
        SpawnEvent,
        Spend,
        ToolRecord,
    )
    from ravi_otel.hooks._listeners import Listener, Listeners
    from ravi_otel.hooks._manager import HookManager, HookStats
    from ravi_otel.hooks._trackers import Cost, CostTracker, Logged, RunLogger

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
    "_events": (
        "CallRecord",
        "CountEvent",
        "HookContext",
        "HookEvent",
        "LimitEvent",
        "LimitReading",
        "Notice",
        "ScopeView",
        "SpawnEvent",
        "Spend",
        "ToolRecord",
    ),
    "_listeners": ("Listener", "Listeners"),
    "_manager": ("HookManager", "HookStats"),
    "_trackers": ("Cost", "CostTracker", "Logged", "RunLogger"),
}
"""Module → the public names that live in it."""

__getattr__, __dir__ = _lazy_names(__name__, _HOMES)
