"""Watch the running processes of a store, and steer them: a socket in each, for its owner only."""

from ravi_otel.local.live.client import Session
from ravi_otel.local.live.protocol import CommandError, LimitState, LiveError, ProcessState, RunState, ScopeState

__all__ = ["CommandError", "LimitState", "LiveError", "ProcessState", "RunState", "ScopeState", "Session"]
