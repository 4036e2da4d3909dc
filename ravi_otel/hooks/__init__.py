"""Hear what runs, calls, tools and limits do, without being able to change them."""

from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.hooks.records import CallRecord, CountEvent, LimitEvent, LimitReading, Notice, ScopeView, SpawnEvent, Spend, ToolRecord

__all__ = [
    "CallRecord",
    "CountEvent",
    "LimitEvent",
    "LimitReading",
    "Listener",
    "Listeners",
    "Notice",
    "ScopeView",
    "SpawnEvent",
    "Spend",
    "ToolRecord",
]
