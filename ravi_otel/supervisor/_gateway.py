"""A gateway that calls tools through a gate with a budget; a call that is refused ends the run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import Flow, run_async, run_sync
from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import BudgetError, ConfigurationError, RaviError, StopRun, ToolDeniedError, ToolTimeoutError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import Limit, ScopeKind, tool_call_limit
from ravi_otel.supervisor._decisions import AuditSink, GateState, Supervisor
from ravi_otel.supervisor._gate import Gate, check_known, read_ceilings
from ravi_otel.supervisor._pending_call import GateCall, PendingCall, Refused
from ravi_otel.supervisor._run_state import PER_TOOL
from ravi_otel.supervisor.approval._request import Approver

_NANO: Final = 1_000_000_000
_CEILING: Final = 2
_PHASES: Final = {"supervisor_block": "supervisor", "human_rejected": "human_approval"}


@dataclass(frozen=True, slots=True)
class Budget:
    """How much an agent may do in one run: steps of its loop, tool calls, and seconds from the first of either.

    Declared waits, such as for a person's approval, do not count as seconds.
    """

    max_steps: int = 8
    max_tool_calls: int = 5
    max_seconds: float = 30

    def __post_init__(self) -> None:
        checks.count("Budget(max_steps)", self.max_steps)
        checks.count("Budget(max_tool_calls)", self.max_tool_calls)
        checks.nanoseconds("Budget(max_seconds)", self.max_seconds)


class _RunUsage:
    """What one run has used of a budget; the ledger counts the tool calls, in a scope with this budget's limits only."""

    def __init__(self, run: Scope, limits: tuple[Limit, ...]) -> None:
        self.run = run
        self.scope = Opening(kind=ScopeKind.BLOCK, name="gateway", limits=limits).open(run)
        self.steps = 0
        self._started_ns = self._worked_ns()

    def _worked_ns(self) -> int:
        now = self.run.engine.clock.monotonic_ns()
        return now - self.run.clock.waited_ns(now)

    def seconds(self) -> float:
        """Return the seconds since the first step or call, without the run's declared waits."""
        return (self._worked_ns() - self._started_ns) / _NANO

    def charge(self, tool: str, op_id: str) -> str | None:
        """Charge one call of a tool, and return the operation to settle or release; raise BudgetExhaustedError."""
        own = self.scope.facts
        return self.scope.charge_lines([line for line in self.scope.plan.tool_lines(tool) if line.account.facts is own], None, op_id)

    def close(self) -> None:
        """Close the scope of the limits."""
        self.scope.leave(None)


class _BudgetedGate(Gate):
    """A gate that also counts each call against the budget of its run."""

    def __init__(self, budget: Budget, ceilings: int | Mapping[str, int] | None, **more: Any) -> None:
        super().__init__(**more)
        check_known("per_tool_limit", ceilings if isinstance(ceilings, Mapping) else (), self._signatures)
        self._budget = budget
        totals = [tool_call_limit(budget.max_tool_calls)]
        by_tool = {tool: ceilings.get(tool) if isinstance(ceilings, Mapping) else ceilings for tool in self._signatures}
        self._limits = (*totals, *(tool_call_limit(most, tool=tool) for tool, most in by_tool.items() if most is not None))
        self._tabs: dict[str, _RunUsage] = {}
        self._given_up: weakref.WeakSet[Scope] = weakref.WeakSet()

    def tab(self) -> _RunUsage:
        """Return what the innermost current run has used; forget the runs that have ended."""
        scope, _ = STATE.locate()
        around = scope.upwards()
        run = next((each for each in around if each.facts.kind is ScopeKind.RUN), around[-1])
        with self._lock.own:
            if run in self._given_up:
                raise ConfigurationError(
                    "the ToolGateway was closed in this run, and what it has counted is given up. Close it when the run is over; a gateway "
                    "of its own has a budget of its own."
                )
            known = self._tabs.get(run.facts.scope_id)
            if known is None:
                self.close(ended=True)
                known = self._tabs[run.facts.scope_id] = _RunUsage(run, self._limits)
            return known

    def close(self, *, ended: bool = False) -> None:
        """Close the counters of all runs, or only of those that have `ended`."""
        for key, tab in list(self._tabs.items()):
            if not ended or tab.run.status != "open":
                self._tabs.pop(key, None)
                tab.close()
                if tab.run.status == "open" and tab.run.facts.kind is ScopeKind.RUN:
                    self._given_up.add(tab.run)  # its budget is one for the whole run

    def step(self) -> int:
        """Count one step of the agent's loop."""
        tab = self.tab()
        _refuse_when_late(tab, self._budget)
        with self._lock.own:
            if tab.steps >= self._budget.max_steps:
                raise Refused("max_steps", f"It took {tab.steps} steps, and {self._budget.max_steps} are allowed.", ends_run=True)
            tab.steps += 1
            return tab.steps

    def _refuse_unknown(self, call: PendingCall) -> None:
        _refuse_when_late(self.tab(), self._budget)
        super()._refuse_unknown(call)

    def _count(self, call: PendingCall) -> None:
        tab = self.tab()
        _refuse_when_late(tab, self._budget)
        op_id = new_op_id()  # made before the charge, so that an interrupted one can be released
        try:
            try:
                paid = tab.charge(call.tool, op_id)
            except BudgetError as spent:
                if spent.limit_kind == f"tool.{call.tool}":
                    raise call.loop_refusal(PER_TOOL) from spent
                raise Refused("max_tool_calls", str(spent), ends_run=True) from spent
            super()._count(call)
            if paid is not None:
                tab.scope.engine.settle(paid, None)
        except BaseException:
            run_sync(tab.scope.engine.ledger.release(op_id))
            raise

    def _time_left(self) -> float | None:
        left = max(0.001, self._budget.max_seconds - self.tab().seconds())
        return left if self._timeout_s is None else min(left, self._timeout_s)


def _refuse_when_late(tab: _RunUsage, budget: Budget) -> None:
    if tab.seconds() >= budget.max_seconds:
        raise Refused("max_seconds", f"It took {tab.seconds():.1f} s, and {budget.max_seconds:g} s are allowed.", ends_run=True)


class ToolGateway:
    """A way to call tools by name, each call through the gateway's gate; a refusal raises StopRun.

    `registry` are the tools by name, `allow` those that may be called, by default all. `budget` applies to each run, and each tool runs
    `per_tool_limit` times in it, a number for each or by name, None without a ceiling. The rest is as for `Gate`. A run's counters are in
    the ledger and emit limit events; the limits of the caller's own scopes apply as well.

    `StopRun.reason` is `max_steps`, `max_tool_calls`, `max_seconds`, `human_rejected`, or begins with `supervisor_block:`, `tool_denied:`,
    `tool_missing:`, `tool_bad_args:`, `tool_error:`, `tool_bad_result:` or `loop_detected:`; its `__cause__` is what a tool raised.
    Limits of the program and cancellation raise their own errors.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        registry: Mapping[str, Callable[..., Any]],
        *,
        allow: Collection[str] | None = None,
        budget: Budget | None = None,
        per_tool_limit: int | Mapping[str, int] | None = _CEILING,
        read_only_repeat_limit: int = 2,
        supervisor: Supervisor | None = None,
        approver: Approver | None = None,
        policy: Any = None,
        state: GateState | Callable[[], GateState] | None = None,
        audit: AuditSink | None = None,
        read_only: Collection[str] = (),
        expires_s: float | None = 3600,
        timeout_s: float | None = None,
        policy_version: str | None = None,
        approvers: Collection[str] | Mapping[str, Collection[str]] | None = None,
        requester_may_approve: bool | None = None,
    ) -> None:
        if not isinstance(registry, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(f"ToolGateway(registry={checks.show(registry)}) must be a mapping of names to functions.")
        self._registry = dict(registry)
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise ConfigurationError(f"ToolGateway(budget={checks.show(budget)}) is no Budget: write budget=Budget(max_tool_calls=5).")
        self.budget = Budget() if budget is None else budget
        self.gate = _BudgetedGate(
            self.budget,
            read_ceilings("ToolGateway(per_tool_limit)", per_tool_limit),
            supervisor=supervisor,
            tools=self._registry,
            allow=allow,
            approver=approver,
            policy=policy,
            state=state,
            audit=audit,
            read_only=read_only,
            expires_s=expires_s,
            timeout_s=timeout_s,
            read_only_repeat_limit=read_only_repeat_limit,
            policy_version=policy_version,
            approvers=approvers,
            requester_may_approve=requester_may_approve,
        )
        self._closing = ForkLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def trace(self) -> list[dict[str, Any]]:
        """Return a row for each call of this run.

        *Shape*: `step, tool, args_hash, supervisor_decision, executed_from, ok[, human_approved, stop_reason, risk_score]`.
        """
        return [call.row(step) for step, call in enumerate(self.calls, 1)]

    @property
    def calls(self) -> tuple[GateCall, ...]:
        """List the calls of this run with everything that was decided about them."""
        return self.gate.calls

    @property
    def state(self) -> GateState:
        """Return the state of this run."""
        return self.gate.state

    def step(self) -> int:
        """Count one step of the agent's loop, from 1; StopRun("max_steps") past the budget, StopRun("max_seconds") past its time."""
        try:
            return self.gate.step()
        except Refused as refused:
            raise StopRun(refused.stop_reason, str(refused), phase="worker") from None

    def call(self, name: str, args: Mapping[str, Any] | str) -> Any:
        """Call a tool from synchronous code: its result, or StopRun."""
        return run_sync(self._called(name, args, awaited=False))

    async def call_async(self, name: str, args: Mapping[str, Any] | str) -> Any:
        """Call a tool from a coroutine, be it a coroutine function or a plain one: its result, or StopRun."""
        return await run_async(self._called(name, args, awaited=True))

    def close(self) -> None:
        """Give up the counters of this gateway: in a run that goes on it calls nothing more, and in the next one it begins afresh."""
        with self._closing.own:
            self.gate.close()

    def _called(self, name: str, args: Mapping[str, Any] | str, *, awaited: bool) -> Flow[Any]:
        label = checks.show(name) if type(name) is not str or checks.flaw_of_name(name) is not None else name
        fn = self._registry.get(label)
        fn = _no_tool if fn is None else fn
        one = ToolCall(label, fn, args, self.gate)
        try:
            return (yield from one.flow(awaited=awaited))
        except ToolDeniedError as denied:
            if one.raised_by_tool:  # another tool's refusal: this one ran
                self._stop(label, denied, f"tool_error:{label}")
            reason = denied.stop_reason or f"tool_denied:{label}"
            phase = _PHASES.get(reason.partition(":")[0], "execution")
            raise StopRun(reason, str(denied), tool=label, phase=phase) from denied
        except ToolTimeoutError as late:
            self._stop(label, late, "max_seconds" if self._is_over() else f"tool_error:{label}")
        except RaviError:
            raise
        except Exception as error:  # noqa: BLE001 - raised outside of the group, as it is
            self._stop(label, error, f"tool_error:{label}")

    def _is_over(self) -> bool:
        return self.gate.tab().seconds() >= self.budget.max_seconds

    def _stop(self, tool: str, error: Exception, reason: str) -> NoReturn:
        said = f"tool {checks.show(tool)} failed with {type(error).__name__}: {checks.show(str(error))} ({reason})."
        raise StopRun(reason, said, tool=tool, phase="execution") from error


def _no_tool(**arguments: Any) -> NoReturn:
    """Stand for a tool that is not there, which no gate lets through."""
    raise AssertionError(f"a tool that is not in the registry was let through with {checks.show(arguments)}")
