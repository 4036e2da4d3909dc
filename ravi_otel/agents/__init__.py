"""Run small agents over the plain client, with everything this package gives."""

from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.model import OpenAIModel
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.results import AgentResult
from ravi_otel.agents.running import run_agent
from ravi_otel.agents.spawned import SpawnedAgent
from ravi_otel.agents.toolbox import AgentTool

__all__ = ["AgentContext", "AgentResult", "AgentTool", "OpenAIModel", "ReActAgent", "SpawnedAgent", "run_agent"]
