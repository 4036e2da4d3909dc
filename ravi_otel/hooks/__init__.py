"""Hear what runs, calls, tools and limits do, without being able to change them."""

from ravi_otel.hooks.cost_tracker import Cost, CostTracker
from ravi_otel.hooks.dispatch import HookManager, HookStats
from ravi_otel.hooks.events import HookContext, HookEvent
from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, LimitReading, Notice, ScopeView, SpawnEvent, Spend, ToolRecord
from ravi_otel.hooks.run_logger import Logged, RunLogger

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
