"""Run small agents over the plain client, with everything this package gives.

* `_agent`: one agent, its context, its loop and its run. `_model` is the openai client or one of the program's, `_tools` offers functions
  to the model and runs them, `_cancellation` ends what hangs, `_results` is what a run comes to.
* `_teams`: agents that delegate or hand over to others, one that works until its answer is accepted, and agents in a row; `_spawned`:
  agents in the background.
* `_supervised`: an agent whose every action a gate decides.
* `middleware/` stands between an agent and what it calls, `history/` keeps its sessions.
"""

from ravi_otel.agents._agent import AgentContext, ReActAgent, run_agent
from ravi_otel.agents._model import OpenAIModel
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents._spawned import SpawnedAgent
from ravi_otel.agents._supervised import SupervisedAgent
from ravi_otel.agents._teams import (
    Flow,
    FlowResult,
    OrchestratorAgent,
    SubAgentConfig,
    SubmittingAgent,
    build_supervisor,
    handoff,
)
from ravi_otel.agents._tools import AgentTool

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
