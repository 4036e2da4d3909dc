"""Run several agents as one flow: one after the other, or side by side, in one run that is told as FLOW_START and FLOW_END."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, cast

import anyio
import anyio.lowlevel

from ravi_otel._enforcement.ending import COMPLETED, Ending
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.scopes import Limits, read_limits, run, slots
from ravi_otel.agents._cancellation import ScopeGuard
from ravi_otel.agents._results import AgentResult, AgentStatus, Delegate, check_delegate
from ravi_otel.errors import CancellationError, ConfigurationError, RaviError
from ravi_otel.hooks._events import Spend
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._runs import SpawnBudget, StopReason

Step: TypeAlias = "Delegate | Sequence[Delegate]"
"""One agent, or several that work side by side on the same input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """Be what a flow came to: `status`, `stop_reason` and `error` are those of the first agent that did not come to its end.

    `answer` is that of the last step, None when the flow ended before it; of agents side by side it is each one's, under its name.
    `results` are those of all agents that ran, in the order of the steps. `usage` is what the whole run has spent.
    """

    name: str
    run_id: str
    status: AgentStatus
    stop_reason: str
    answer: str | None = None
    results: tuple[AgentResult, ...] = ()
    usage: Spend = field(default_factory=Spend)
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Tell whether every agent came to its end."""
        return self.status == "ok"


class Flow:
    """Be agents in a row: `Flow("report", [researcher, (critic, checker), writer])`, each given what the step before answered.

    `run()` opens a run of the flow's name, which `limits` and `spawn_budget` hold for and `hooks` hear of: FLOW_START, then what the
    agents do, then FLOW_END. The flow ends with the first step of which an agent did not come to its end; an agent that hangs when the
    run is over is cut off. One Flow may run often, and at once. Raises ConfigurationError without steps, and for what is no agent.
    """

    def __init__(
        self,
        name: str,
        steps: Iterable[Step],
        *,
        limits: Limits = (),
        hooks: Hooks = None,
        spawn_budget: SpawnBudget | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.name = checks.name("Flow(name)", name, "report")
        self.steps = tuple(_side_by_side(step) for step in _all(steps))
        if not self.steps:
            raise ConfigurationError(f"Flow({name!r}, steps=[]) has nobody to run. Give it agents.")
        self.limits = read_limits("Flow(limits)", limits)
        self.spawn_budget = slots(spawn_budget, "Flow(spawn_budget)")
        self.tags = tags
        read_hooks("Flow(hooks)", hooks)
        self.hooks = hooks

    async def run(self, input: str, *, session_id: str | None = None) -> FlowResult:  # noqa: A002 - the contract's own name
        """Run the steps in their order; what ends the flow is in the result, and only the program's own cancellation is raised."""
        around = run(self.name, limits=self.limits, hooks=self.hooks, spawn_budget=self.spawn_budget, session_id=session_id, tags=self.tags)
        results: list[AgentResult] = []
        told, failed = input, cast("AgentResult | None", None)
        async with around:
            around.scope.when_cancelled = partial(_over, around.scope)  # else the program has cancelled it
            for step in self.steps:
                latest = await _together(around.scope, step, told)
                results += latest
                failed = next((each for each in latest if not each.ok), None)
                if failed is not None:
                    break
                told = _joined(latest)
            ending = COMPLETED if failed is None else failed.ending
            around.scope.conclude(ending)
        return FlowResult(
            name=self.name,
            run_id=around.id,
            status="ok" if failed is None else failed.status,
            stop_reason=ending.stop_reason,
            answer=told if failed is None else None,
            results=tuple(results),
            usage=around.stats(),
            error=None if failed is None else failed.error,
        )

    def run_blocking(self, input: str, *, session_id: str | None = None) -> FlowResult:  # noqa: A002 - the contract's own name
        """Run like `run`, from a thread without an event loop."""
        return anyio.run(partial(self.run, input, session_id=session_id))


async def _together(scope: Scope, step: tuple[Delegate, ...], told: str) -> list[AgentResult]:
    """Run agents side by side, each to a result; one that crashes or is stopped keeps none of the others from its end."""
    results: dict[int, AgentResult] = {}
    signals: list[BaseException] = []

    async with ScopeGuard(scope).cancelling(), anyio.create_task_group() as group:

        async def one(place: int, agent: Delegate) -> None:
            try:
                results[place] = await _run(scope, agent, told)
            except anyio.get_cancelled_exc_class():
                await anyio.lowlevel.checkpoint_if_cancelled()  # that goes on; else something in it was cancelled, and nobody else
            except BaseException as signal:  # noqa: BLE001 - raised again outside, where no group is made of it
                signals.append(signal)
                group.cancel_scope.cancel()

        for place, agent in enumerate(step):
            group.start_soon(one, place, agent)
    if signals:
        raise signals[0]
    return [results.get(place) or _cut_off(scope, agent) for place, agent in enumerate(step)]


async def _run(scope: Scope, agent: Delegate, told: str) -> AgentResult:
    try:
        scope.checkpoint()  # an agent that is not ours may look at nothing
        return await agent.run(told)
    except Exception as error:  # noqa: BLE001 - what an agent dies of ends the flow, and is in its result
        return _failed(scope, agent, error)


def _cut_off(scope: Scope, agent: Delegate) -> AgentResult:
    """Give the result of an agent that has none: it was cut when the run was over, or something in it cancelled it."""
    try:
        scope.checkpoint()
    except RaviError as over:
        return _failed(scope, agent, over)
    return _failed(scope, agent, CancellationError(f"agent {agent.name!r} was cancelled by what it ran, and not by its run"))


def _failed(scope: Scope, agent: Delegate, error: Exception) -> AgentResult:
    known = Ending.known(error)
    result = AgentResult.ended(agent.name, str(scope.facts.run_id), known or Ending("error", StopReason.ERROR), error=error)
    return result if known is not None else replace(result, phase=None)


def _over(scope: Scope) -> Ending | None:
    """Read how an agent ended that was cut because the run is over, which is what its result says; None while the run goes on."""
    try:
        scope.checkpoint()
    except RaviError as over:
        return Ending.known(over)
    return None


def _joined(results: list[AgentResult]) -> str:
    """Give the answer of one agent, or the answers of several, each under its name."""
    if len(results) == 1:
        return results[0].answer or ""
    return "\n\n".join(f"{result.agent_name}:\n{result.answer or ''}" for result in results)


def _all(steps: Iterable[Step]) -> list[Step]:
    if isinstance(steps, (str, Mapping)) or not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        shown = checks.show(cast("object", steps))
        raise ConfigurationError(f"Flow(steps)={shown} must be a list of agents, such as [researcher, writer].")
    return list(steps)


def _side_by_side(step: Step) -> tuple[Delegate, ...]:
    if isinstance(step, Delegate):
        return (step,)
    agents = [] if isinstance(step, str) or not isinstance(step, Sequence) else list(step)  # pyright: ignore[reportUnnecessaryIsInstance]  # the same
    if not agents:
        shown = checks.show(cast("object", step))
        raise ConfigurationError(f"Flow(steps) holds {shown}. Give an agent, or a tuple of agents that work side by side.")
    for agent in agents:
        check_delegate("Flow(steps)", agent)
    return tuple(agents)
