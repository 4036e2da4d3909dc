"""Hand over to another agent within limits of its own."""

from __future__ import annotations

from functools import partial

from ravi_otel.agents.delegation import Delegate, check_delegate, check_seconds, described, entrusting, tool_name
from ravi_otel.agents.toolbox import AgentTool
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import Priority
from ravi_otel.runtime.asking import Limits, read_limits
from ravi_otel.runtime.scopes import handoff as open_handoff


def handoff(
    agent: Delegate,
    limits: Limits = (),
    *,
    description: str | None = None,
    name: str | None = None,
    priority: Priority = Priority.NORMAL,
    ask_timeout: float | None = None,
) -> AgentTool:
    """Make a tool that hands over to an agent: `ReActAgent("lead", tools=[handoff(researcher, limits=["message=12"])])`.

    Each time the model calls it, a handoff of the agent's name is opened with these limits, afresh, and the agent runs in it. What ends
    it early, such as one of the limits, is the tool's result, and the `stop_reason` of its row in the trace; the agent that handed over
    goes on. The tool is called `transfer_to_NAME` unless `name` says otherwise, and takes the `task`, which is all that the agent
    knows. Past `ask_timeout` seconds the agent is cancelled. Raises ConfigurationError for limits that cannot be read. Emits HANDOFF.
    """
    check_delegate("handoff(agent)", agent)
    check_seconds("handoff(ask_timeout)", ask_timeout)
    return entrusting(
        agent,
        name=checks.optional_name("handoff(name)", name) or tool_name("transfer_to_", agent.name),
        description=description or described(agent, "Hand over to agent {}, and get its answer. It knows nothing but what the task says."),
        priority=checks.member("handoff(priority)", priority, Priority),
        ask_timeout=ask_timeout,
        around=partial(open_handoff, agent.name, limits=read_limits("handoff(limits)", limits)),
    )
