"""Stand between an agent and what it calls: the pipeline, what passes through it, and ready middlewares."""

from ravi_otel.agents.middleware.contexts import AgentInput, AgentRun, ChatCall, Level, ToolUse
from ravi_otel.agents.middleware.levels import agent_middleware, chat_middleware, levels_of, tool_middleware
from ravi_otel.agents.middleware.pipeline import MiddlewarePipeline

__all__ = [
    "AgentInput",
    "AgentRun",
    "ChatCall",
    "Level",
    "MiddlewarePipeline",
    "ToolUse",
    "agent_middleware",
    "chat_middleware",
    "levels_of",
    "tool_middleware",
]
