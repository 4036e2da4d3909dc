"""Run small agents over the plain client, with everything this package gives."""

from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.delegation import SubAgentConfig, handoff
from ravi_otel.agents.flow import Flow, FlowResult
from ravi_otel.agents.model import OpenAIModel
from ravi_otel.agents.orchestrator import OrchestratorAgent
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.results import AgentResult
from ravi_otel.agents.running import run_agent
from ravi_otel.agents.spawned import SpawnedAgent
from ravi_otel.agents.submitting import SubmittingAgent, build_supervisor
from ravi_otel.agents.supervised import SupervisedAgent
from ravi_otel.agents.toolbox import AgentTool

__all__ = [
    "AgentContext",
    "AgentResult",
    "AgentTool",
    "Flow",
    "FlowResult",
    "OpenAIModel",
    "OrchestratorAgent",
    "ReActAgent",
    "SpawnedAgent",
    "SubAgentConfig",
    "SubmittingAgent",
    "SupervisedAgent",
    "build_supervisor",
    "handoff",
    "run_agent",
]
