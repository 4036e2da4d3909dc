"""Hand work to other agents: a tool for each, to delegate or to hand over, whose result is how that agent's run ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from ravi_otel._enforcement.ending import Ending
from ravi_otel._runtime.footers import without_footer
from ravi_otel._runtime.scopes import Limits, ScopeHandle, apply_limits, read_limits
from ravi_otel._runtime.scopes import handoff as open_handoff
from ravi_otel._runtime.spawning import spawn
from ravi_otel.agents._results import AgentResult, Delegate, ToolReport, check_delegate, check_timeout
from ravi_otel.agents.toolbox import AgentTool
from ravi_otel.errors import AgentPausedError, BudgetError, SpawnDeniedError
from ravi_otel.hooks._events import HandoffEvent
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import Priority, StopReason

_LONGEST_NAME: Final = 64  # of a tool, where the endpoints are concerned
_LONGEST_TEXT: Final = 1_000  # of an error, to a model


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentConfig:
    """Say how an agent may be delegated to: with which priority, and how many seconds its parent waits for it, None as long as it takes."""

    agent: Delegate = field(kw_only=False)
    priority: Priority = Priority.NORMAL
    ask_timeout: float | None = None

    def __post_init__(self) -> None:
        """Check what cannot be used."""
        check_delegate("SubAgentConfig(agent)", self.agent)
        checks.member("SubAgentConfig(priority)", self.priority, Priority)
        check_timeout("SubAgentConfig(ask_timeout)", self.ask_timeout)


def _tool_name(prefix: str, agent_name: str) -> str:
    """Name the tool that hands over to an agent, in the letters that endpoints allow."""
    return (prefix + re.sub(r"[^A-Za-z0-9_-]", "_", agent_name))[:_LONGEST_NAME]


def delegation_tool(config: SubAgentConfig) -> AgentTool:
    """Make the tool by which a model has a sub-agent work: `delegate_to_NAME(task)`."""
    agent = config.agent
    return _entrusting(
        agent,
        name=_tool_name("delegate_to_", agent.name),
        description=_described(agent, "Have agent {} work on a task, and get its answer. It knows nothing but what the task says."),
        priority=config.priority,
        ask_timeout=config.ask_timeout,
        around=partial(apply_limits, ()),
    )


def handoff(
    agent: Delegate,
    limits: Limits = (),
    *,
    description: str | None = None,
    name: str | None = None,
    priority: Priority = Priority.NORMAL,
    ask_timeout: float | None = None,
) -> AgentTool:
    """Make a tool that hands over to an agent: `ReActAgent("lead", tools=[handoff(researcher, limits=["messages=12"])])`.

    Each time the model calls it, a handoff of the agent's name is opened with these limits, afresh, and the agent runs in it. What ends
    it early, such as one of the limits, is the tool's result, and the `stop_reason` of its row in the trace; the agent that handed over
    goes on. The tool is called `transfer_to_NAME` unless `name` says otherwise, and takes the `task`, which is all that the agent
    knows. Past `ask_timeout` seconds the agent is cancelled. Raises ConfigurationError for limits that cannot be read. Emits HANDOFF.
    """
    check_delegate("handoff(agent)", agent)
    check_timeout("handoff(ask_timeout)", ask_timeout)
    return _entrusting(
        agent,
        name=checks.optional_name("handoff(name)", name) or _tool_name("transfer_to_", agent.name),
        description=description or _described(agent, "Hand over to agent {}, and get its answer. It knows nothing but what the task says."),
        priority=checks.member("handoff(priority)", priority, Priority),
        ask_timeout=ask_timeout,
        around=partial(open_handoff, agent.name, limits=read_limits("handoff(limits)", limits)),
    )


def _described(agent: Delegate, sentence: str) -> str:
    """Describe the tool, with the agent's own description if it has one."""
    own = getattr(agent, "description", None)
    first = sentence.format(repr(agent.name))
    return f"{first} {own}" if isinstance(own, str) and own else first


def _entrusting(
    agent: Delegate,
    *,
    name: str,
    description: str,
    priority: Priority,
    ask_timeout: float | None,
    around: Callable[[], ScopeHandle],
) -> AgentTool:
    """Make a tool that runs an agent; `around` is opened around each run of it."""

    async def entrust(task: str) -> Any:
        return await _entrust(agent, task, priority, ask_timeout, around)

    entrust.__name__ = entrust.__qualname__ = name
    return AgentTool(entrust, name=name, description=description)


async def _entrust(
    agent: Delegate, task: str, priority: Priority, ask_timeout: float | None, around: Callable[[], ScopeHandle]
) -> ToolReport:
    """Run the agent on a slot of its own, and tell how it ended; past `ask_timeout` it is cancelled, and its slot given back.

    Raises SpawnDeniedError where there is no slot, and passes the program's own cancellation on.
    """
    result: AgentResult | None = None
    late = Ending("stopped", StopReason.ASK_TIMEOUT)
    with anyio.move_on_after(ask_timeout) as patience:
        try:
            with around() as opened:
                opened.scope.when_cancelled = lambda: late if patience.cancel_called else None
                try:
                    async with spawn(str(getattr(agent, "id", agent.name)), priority=priority):
                        if opened.scope.facts.kind is not ScopeKind.HANDOFF:  # which has told it when it was entered
                            opened.scope.engine.listeners.handed_over(HandoffEvent(opened.scope.facts, agent.name, "delegation"))
                        result = await agent.run(task)
                except anyio.get_cancelled_exc_class():
                    opened.close()  # also for what goes on in threads that it has left behind
                    raise
        except SpawnDeniedError:
            raise  # the tool's own refusal: the model is told there is no room
        except Exception as error:  # noqa: BLE001 - whatever a sub-agent dies of is its parent's to know, and nobody's end but its own
            return _crashed(agent.name, error)
    if result is not None:  # also when the time was up just then: a finished result wins
        return reported(result)
    message = f"Agent {agent.name!r} did not answer within {ask_timeout:g} s, and was stopped."
    told = {"agent": agent.name, "status": late.status, "stop_reason": late.stop_reason, "message": message}
    return ToolReport(told, ok=False, stop_reason=late.stop_reason)


def reported(result: AgentResult) -> ToolReport:
    """Tell a parent's model how an agent's run ended: the answer, or why there is none, and what there is."""
    if result.ok:
        return ToolReport({"agent": result.agent_name, "status": "ok", "answer": result.answer})
    told: dict[str, Any] = {"agent": result.agent_name, "status": result.status, "stop_reason": result.stop_reason}
    if result.partial or result.answer:
        told["partial"] = without_footer(result.answer or result.partial, result.error)
    told["message"] = _why(result)
    return ToolReport(told, ok=False, stop_reason=result.stop_reason)


def _why(result: AgentResult) -> str:
    """Say it to a model, which can raise no limit: what was reached, and not what a program could do."""
    error, who = result.error, f"Agent {result.agent_name!r}"
    if isinstance(error, BudgetError) and error.limit_kind is not None:
        used = "" if error.used is None or error.threshold is None else f": {error.used:g} of {error.threshold:g} used"
        return f"{who} was stopped by its limit of {error.limit_kind}{used}."
    if isinstance(error, AgentPausedError) or result.status == "paused":
        return f"{who} was paused: its slot went to more urgent work."
    if error is not None and result.status == "error":
        return f"{who} failed with {_short(error)}."
    return f"{who} was stopped: {result.stop_reason}."


def _crashed(name: str, error: Exception) -> ToolReport:
    """Tell what an agent raised; of our own errors it says what they mean, and whose end they are shows at its parent's next step."""
    ending = Ending.known(error) or Ending("error", StopReason.ERROR)
    return reported(AgentResult.ended(name, "", ending, error=error, partial=getattr(error, "partial", None)))


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
