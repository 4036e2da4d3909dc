"""Stand between an agent and what it calls: the chain, and ready-made middlewares.

`_pipeline` is the chain and what passes through it; the ready ones are in `_cache`, `_guardrails` (with redaction and the
audit trail), `_rate_limits` and `_retry` (with the fallback to another model).
"""

from ravi_otel.agents.middleware._cache import Cache, CacheStore, MemoryCache, SqliteCache
from ravi_otel.agents.middleware._guardrails import AuditTrail, InputGuardrail, OutputGuardrail, Redaction
from ravi_otel.agents.middleware._pipeline import (
    AgentInput,
    AgentRun,
    ChatCall,
    Level,
    MiddlewarePipeline,
    ToolUse,
    agent_middleware,
    chat_middleware,
    levels_of,
    tool_middleware,
)
from ravi_otel.agents.middleware._rate_limits import RateLimiter
from ravi_otel.agents.middleware._retry import ModelFallback, Retry
from ravi_otel.policy._contracts import CallNext, ChatMessage, Generation

__all__ = [
    "AgentInput",
    "AgentRun",
    "AuditTrail",
    "Cache",
    "CacheStore",
    "CallNext",
    "ChatCall",
    "ChatMessage",
    "Generation",
    "InputGuardrail",
    "Level",
    "MemoryCache",
    "MiddlewarePipeline",
    "ModelFallback",
    "OutputGuardrail",
    "RateLimiter",
    "Redaction",
    "Retry",
    "SqliteCache",
    "ToolUse",
    "agent_middleware",
    "chat_middleware",
    "levels_of",
    "tool_middleware",
]
