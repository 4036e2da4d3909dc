"""Count and refuse."""

from ravi_otel.enforcement.retry import RetryPolicy
from ravi_otel.enforcement.spawn import SpawnTracker
from ravi_otel.enforcement.tab import ExecutionTracker
from ravi_otel.policy.meta import CancellationToken

__all__ = ["CancellationToken", "ExecutionTracker", "RetryPolicy", "SpawnTracker"]
