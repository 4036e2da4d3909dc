"""Run small agents over the plain client, with everything this package gives.

Where what is:

* one agent: `react` is the agent, `running` runs it once, in the run around or one of its own, and makes a result of however it ends;
  `loop` goes round: ask, run tools, ask again; `last_answer` asks once more within what a limit kept back; `context` is what an agent's
  own code has in hand.
* its model: `model` is the openai client, `wire` writes messages for it and reads its answers, `metering` asks any client, and counts
  those that nobody else sees.
* its tools: `toolbox` offers functions as tools, `tool_calls` runs those that one answer asks for, `tool_results` says to the model what
  came of them.
* its end: `results` is what a run comes to, also by an error; `hanging` cuts what is at work when its time is up.
* several agents: `delegation` makes tools of agents, to delegate or to hand over, `orchestrator` is an agent that has them, `spawned` are
  agents in the background, `flow` is agents in a row.
* other loops: `supervised` is an agent whose every action a gate decides, `supervised_loop` its loop; `submitting` one that works until an
  answer is accepted, `truncating` shortens its conversation.
* around and beside: `middleware/` stands between an agent and what it calls, `history/` keeps its sessions.
"""

from ravi_otel.agents._model import OpenAIModel
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.delegation import SubAgentConfig, handoff
from ravi_otel.agents.flow import Flow, FlowResult
from ravi_otel.agents.orchestrator import OrchestratorAgent
from ravi_otel.agents.react import ReActAgent
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
