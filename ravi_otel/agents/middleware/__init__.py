"""Stand between an agent and what it calls.

Where what is:

* the pipeline: `pipeline` runs a chain, `contexts` is what passes through it, `levels` says what a middleware stands around.
* ready ones: `audit_trail`, `cache`, `fallback`, `guardrails`, `rates`, `redaction`, `retry`.
* of the cache: `cache_entries` says which calls are the same and which answers may be kept, `cache_stores` keep them.
* of several: `failures` judges errors, `resting` waits no longer than the run allows, `telling` tells what was done, `texts` reads out all
  that is said.
"""

from ravi_otel.agents.middleware.audit_trail import AuditTrail
from ravi_otel.agents.middleware.cache import Cache
from ravi_otel.agents.middleware.cache_stores import CacheStore, MemoryCache, SqliteCache
from ravi_otel.agents.middleware.contexts import AgentInput, AgentRun, ChatCall, Level, ToolUse
from ravi_otel.agents.middleware.fallback import ModelFallback
from ravi_otel.agents.middleware.guardrails import InputGuardrail, OutputGuardrail
from ravi_otel.agents.middleware.levels import agent_middleware, chat_middleware, levels_of, tool_middleware
from ravi_otel.agents.middleware.pipeline import MiddlewarePipeline
from ravi_otel.agents.middleware.rates import RateLimiter
from ravi_otel.agents.middleware.redaction import Redaction
from ravi_otel.agents.middleware.retry import Retry
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
