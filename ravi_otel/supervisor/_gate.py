"""The gate before every tool call, which reads, reviews and records the call, and has a person approve it where one must."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import Flow, run_async, run_sync
from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.gate_review import is_async
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError, ToolDeniedError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, GateVerdict, ToolGate, ToolOutcome, ToolRequest
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.supervisor._arguments import BadResult, ProgramValues, ToolSignature
from ravi_otel.supervisor._audit import LIMIT_CHANGES
from ravi_otel.supervisor._decisions import NOTHING_DECIDES, AuditSink, GateState, GateTerms, Supervisor
from ravi_otel.supervisor._pending_call import FINAL_ANSWER, MOST_ERROR, GateCall, PendingCall, Refused
from ravi_otel.supervisor._run_state import LoopRules, Loops, RunHistory, RunState, is_reviewing, keeper_for_run, keeper_of
from ravi_otel.supervisor.approval._request import ANYBODY, OTHERS, Approver, Approvers
from ravi_otel.supervisor.rules._kinds import Rule, error_in

_log = logging.getLogger("ravi_otel")
_MOST_NAME: Final = 64


Tools: TypeAlias = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
"""The tools of a gate, by name; without names, each has its function's."""


def read_tools(tools: Tools) -> dict[str, ToolSignature]:
    """Read the signatures of tools; raise ConfigurationError for two of one name and for what cannot be called."""
    if isinstance(tools, Mapping):
        return {name: ToolSignature.of(fn, name) for name, fn in cast("Mapping[str, Callable[..., Any]]", tools).items()}
    given: Any = tools  # the caller may not type-check
    if isinstance(given, str) or not isinstance(given, Iterable):
        shown = f"Gate(tools={checks.show(given)})"
        if callable(given):
            raise ConfigurationError(f"{shown} is one function; give it in a list, tools=[{getattr(given, '__name__', 'tool')}].")
        raise ConfigurationError(f"{shown} holds no functions; give them in a list, or names with functions.")
    signatures: dict[str, ToolSignature] = {}
    for fn in tools:
        if not callable(fn):
            raise ConfigurationError(
                f"Gate(tools) holds {checks.show(fn)}, which cannot be called; give functions, or names with functions."
            )
        signature = ToolSignature.of(fn)
        if signature.name in signatures:
            raise ConfigurationError(
                f"Gate(tools) holds two tools called {signature.name!r}; give them as a mapping of names to functions."
            )
        signatures[signature.name] = signature
    return signatures


def read_names(parameter: str, names: Collection[str]) -> frozenset[str]:
    """Return names of tools as a set; raise ConfigurationError for what is none."""
    if isinstance(names, str):
        raise ConfigurationError(f"{parameter}={checks.show(names)} is one text; give the names in a list.")
    return frozenset(checks.name(parameter, each) for each in names)


def read_ceilings(parameter: str, given: int | Mapping[str, int] | None) -> int | Mapping[str, int] | None:
    """Read how often each tool may run."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {checks.name(parameter, tool): checks.count(f"{parameter}[{tool!r}]", value) for tool, value in given.items()}
    return checks.count(parameter, given)


def check_methods(parameter: str, given: Any, methods: Collection[str], needs: str) -> Any:
    """Return an object with these methods, or None; raise ConfigurationError for anything else."""
    if inspect.isclass(given):
        raise ConfigurationError(f"Gate({parameter}={given.__name__}) is a class; give an instance, {given.__name__}(...).")
    if given is not None and not all(callable(getattr(given, each, None)) for each in methods):
        wrapped = _suggested_wrapper(parameter, given)
        way = "give an object that has" if wrapped is None else f"give {parameter}={wrapped}"
        raise ConfigurationError(f"Gate({parameter}={checks.show(given)}) has no {needs}; {way}.")
    return given


def _suggested_wrapper(parameter: str, given: Any) -> str | None:
    """Return the expression that wraps `given` into what the gate needs, None if nothing does."""
    if parameter == "supervisor" and isinstance(given, (list, tuple, Rule)):
        return "Rules([...])"
    if parameter == "approver" and inspect.isroutine(given):
        return f"CallbackApprover({given.__name__ if given.__name__.isidentifier() else 'function'})"
    return None


def check_audit(given: Any) -> Any:
    """Return an audit sink, or None; raise ConfigurationError for anything else."""
    refuse_async("Gate(audit)", check_methods("audit", given, ("note",), "note(what, ...) method, as AuditLog('audit') has"), ("note",))
    LIMIT_CHANGES.note_in(given)
    return given


def refuse_async(parameter: str, given: object, methods: Collection[str]) -> None:
    """Raise ConfigurationError for async methods: nothing awaits them, so they would do nothing."""
    wrong = next((each for each in methods if is_async(getattr(given, each, None))), None)
    if wrong is not None:
        raise ConfigurationError(f"{parameter}={checks.show(given)} has an async {wrong}(), which nobody awaits; make it a plain def.")


def check_known(parameter: str, names: Iterable[str], tools: Collection[str]) -> None:
    """Raise ConfigurationError for a name that is none of the gate's tools: its setting would have no effect."""
    for name in names:
        if name not in tools:
            close = checks.nearest(name, tools)
            hint = f", did you mean {close!r}" if close else ""
            listed = ", ".join(tools) or "none"
            raise ConfigurationError(
                f"{parameter} names the tool {checks.show(name)}, which there is not{hint}; the tools are {listed}."[:600]
            )


def check_rules(supervisor: object, tools: Mapping[str, ToolSignature], *, part: bool) -> None:
    """Raise ConfigurationError for rules about unknown tools; where `tools` are only a `part` of the rules' tools, log them once."""
    ask = getattr(supervisor, "check_tools", None)
    if callable(ask) and not inspect.isclass(supervisor) and hasattr(supervisor, "shared"):
        ask(tools, part=part)


def warn_about_uncallable(tools: Mapping[str, ToolSignature]) -> None:
    """Warn in the log of tools that no call can satisfy."""
    for tool in tools.values():
        bad = next((each for each in tool.parameters.values() if each.required and not each.can_be_given), None)
        if bad is not None:
            _log.warning(
                "ravi-otel: no call of %s can pass its gate: the argument %s (%s) cannot be judged. Annotate it with a type that pydantic "
                "knows, or put no gate before it: instrument_tools(..., skip=[%r]).",
                tool.name,
                bad.name,
                bad.shown,
                tool.name,
            )


def read_seconds(parameter: str, value: float | None) -> float | None:
    """Return a time in seconds, or None; raise ConfigurationError for anything else."""
    if value is not None:
        checks.nanoseconds(parameter, value)
    return value


def read_approvers(supervisor: Any, given: Any, requester_may_approve: Any) -> Approvers:
    """Return who may approve: the approvers given here, else those of the supervisor's rules."""
    said = getattr(supervisor, "approvers", None)
    known = said if isinstance(said, Approvers) else ANYBODY
    flag = known.requester_may_approve if requester_may_approve is None else requester_may_approve
    checks.flag("Gate(requester_may_approve)", flag)
    return (
        replace(known, requester_may_approve=flag)
        if given is None
        else Approvers.read("Gate(approvers)", given, requester_may_approve=flag)
    )


def state_source(given: GateState | Callable[[], GateState] | None) -> Callable[[], GateState]:
    """Return a function that makes the state of a run."""
    if given is None:
        return RunState
    refuse_async("Gate(state)", given, ("begin", "end"))
    if isinstance(given, GateState) and not inspect.isclass(given):
        shared = given
        return lambda: shared
    if callable(given):
        return given
    raise ConfigurationError(
        f"Gate(state={checks.show(given)}) is no state and makes none; give an object with begin() and end(), or a class."
    )


class Gate:
    """A `ToolGate` over a supervisor, an approver and a state; without a supervisor every valid call is approved.

    `allow` are the tools that may be called, by default all of `tools`. The supervisor reviews with `policy` and the run's state.
    `state` is one state for all calls of this gate, or a function that makes one for each run; by default each run has a `RunState`.
    `read_only` tools change nothing: an identical call of one runs `read_only_repeat_limit` times in a run, of any other tool once.
    `per_tool_limit` is how often a tool runs in a run at all. Without `loops`, neither limit applies. With `part`, `tools` are only some of
    the rules' tools: rules about others are logged once, instead of refused. An approval is valid for `expires_s` seconds, and a call
    times out after `timeout_s`. `policy_version` names the rules in force; by default it is computed from the supervisor's `version` and
    the values of `policy`. `audit` records each step, and a call that it cannot record is not executed.

    `approvers` are the names of those whose approval counts, for all tools or by tool (`"*"` for the others); with
    `requester_may_approve=False` the run's user may not approve. The defaults are those of the supervisor's rules, else anybody may.

    A refusal is a verdict, never an error. What ends the run while a person is asked is raised, and so is what the approver raises, as
    the cause of a ToolDeniedError (`supervisor_block:not_decided`).
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        supervisor: Supervisor | None = None,
        *,
        tools: Tools,
        allow: Collection[str] | None = None,
        approver: Approver | None = None,
        policy: Any = None,
        state: GateState | Callable[[], GateState] | None = None,
        audit: AuditSink | None = None,
        read_only: Collection[str] = (),
        expires_s: float | None = 3600,
        timeout_s: float | None = None,
        per_tool_limit: int | Mapping[str, int] | None = None,
        read_only_repeat_limit: int = 2,
        policy_version: str | None = None,
        loops: bool = True,
        part: bool = False,
        approvers: Collection[str] | Mapping[str, Collection[str]] | None = None,
        requester_may_approve: bool | None = None,
    ) -> None:
        self._signatures = read_tools(tools)
        if policy_version is None and supervisor is None and policy is None:
            policy_version = NOTHING_DECIDES
        self._allow = frozenset(self._signatures) if allow is None else read_names("Gate(allow)", allow)
        self._terms = GateTerms(
            supervisor=check_methods("supervisor", supervisor, ("review",), "review(action, state, policy) method"),
            approver=check_methods("approver", approver, ("ask", "executed"), "ask(request) and executed(request, status) methods"),
            policy=policy,
            audit=check_audit(audit),
            read_only=read_names("Gate(read_only)", read_only),
            expires_s=read_seconds("Gate(expires_s)", expires_s),
            policy_version=policy_version,
            approvers=read_approvers(supervisor, approvers, requester_may_approve),
        )
        self._timeout_s = read_seconds("Gate(timeout_s)", timeout_s)
        checks.count("Gate(read_only_repeat_limit)", read_only_repeat_limit, least=1)
        rules = LoopRules(self._terms.read_only, read_only_repeat_limit, read_ceilings("Gate(per_tool_limit)", per_tool_limit))
        self._check(rules, part=part)
        self._rules = rules if loops else None
        self._state = state_source(state)
        self._shared = keeper_of(self._state()) if isinstance(state, GateState) and not inspect.isclass(state) else None
        self._histories: weakref.WeakKeyDictionary[Scope, RunHistory] = weakref.WeakKeyDictionary()
        self._calls: dict[str, PendingCall] = {}
        self._lock = ForkLock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._signatures)} tools>"

    @property
    def signatures(self) -> Mapping[str, ToolSignature]:
        """Return what the tools take, by name."""
        return dict(self._signatures)

    @property
    def state(self) -> GateState:
        """Return the state of the current run."""
        return self._history(STATE.locate()[0]).keeper.state

    @property
    def calls(self) -> tuple[GateCall, ...]:
        """Return the calls that were judged in the current run, oldest first; of very many, the last thousand."""
        return tuple(self._history(STATE.locate()[0]).judged)

    # -- a tool's call ------------------------------------------------------------------------------------------------

    def before(self, request: ToolRequest) -> Coloured[GateVerdict]:
        """Review a call, with a person's approval where it needs one: the verdict has the effective arguments, or is a refusal."""
        raw = request.arguments if isinstance(request.arguments, str) else dict(request.arguments)
        scope, _ = STATE.locate()
        own: ProgramValues | None = {} if request.in_place else None
        history = self._history(scope)
        call = PendingCall(
            self._terms, request.op_id, request.call_id, request.tool, scope, request.facts, history, raw, program_values=own
        )
        with self._lock.own:
            if request.op_id in self._calls:
                raise ConfigurationError(
                    f"ToolRequest(op_id={checks.show(request.op_id)}) is on its way already; give each call an id of its own."
                )
            self._calls[request.op_id] = call
        flow = self._judge(call)
        return run_async(flow) if request.awaited else run_sync(flow)

    def admit(self, request: ToolRequest, arguments: Mapping[str, Any]) -> GateVerdict:
        """Check that the call about to run is the one that was let through, runs only once, and is no loop."""
        with self._lock.own:
            call = self._calls.get(request.op_id)
            if call is None or not call.begun or call.admitted:
                return _NOT_LET_THROUGH.verdict()
            call.admitted = True
        try:
            call.admit(arguments)
            self._count(call)
        except Refused as refused:
            return call.refused(refused)
        return GateVerdict(allowed=True, arguments=arguments, executed_from=call.executed_from, timeout_s=self._time_left())

    def after(self, request: ToolRequest, result: Any) -> GateVerdict:
        """Check the tool's result against its annotation; a result with an `error` counts as an error of the tool."""
        call = self._calls.get(request.op_id)
        if call is None or call.signature is None:
            return _NOT_LET_THROUGH.verdict()
        try:
            call.signature.read_result(result)
            said = error_in(result)
            if said:
                call.count_error(str(said)[:MOST_ERROR])
        except BadResult as bad:
            return call.refused(Refused(f"tool_bad_result:{call.tool}", bad.message))
        except Refused as refused:
            return call.refused(refused)
        return GateVerdict(allowed=True, executed_from=call.executed_from)

    def audit(self, request: ToolRequest, outcome: ToolOutcome) -> Coloured[None]:
        """Record how the call ended in the audit log, the state and the approver."""
        with self._lock.own:
            call = self._calls.pop(request.op_id, None)
        flow = _nothing_to_end() if call is None else call.end(outcome)
        return run_async(flow) if request.awaited else run_sync(flow)

    # -- an agent's answer ------------------------------------------------------------------------------------------

    async def review_final(self, answer: str) -> GateVerdict:
        """Review an agent's final answer: the verdict's `arguments["answer"]` is the text to answer with, or it is a refusal."""
        return await run_async(self._final(answer))

    def review_final_blocking(self, answer: str) -> GateVerdict:
        """Review a final answer, from synchronous code."""
        return run_sync(self._final(answer))

    def _final(self, answer: str) -> Flow[GateVerdict]:
        scope, _ = STATE.locate()
        history, raw = self._history(scope), {"answer": answer}
        call = PendingCall(self._terms, new_op_id(), None, FINAL_ANSWER, scope, scope.facts, history, raw)
        call.signature, call.phase = _FINAL_SIGNATURE, "finalize"
        try:
            verdict = yield from self._judge(call)
        except ToolDeniedError as denied:  # the approver failed, which is recorded already
            return Refused(denied.stop_reason or "supervisor_block:not_decided", str(denied.reason)).verdict()
        yield from call.conclude("ok" if verdict.allowed else "refused", None)
        return verdict

    # -- inside -----------------------------------------------------------------------------------------------------

    def _check(self, rules: LoopRules, *, part: bool) -> None:
        """Raise ConfigurationError for names of unknown tools, and warn of tools that can never be called."""
        check_known("allow", self._allow, self._signatures)
        check_known("read_only", rules.read_only, self._signatures)
        if not part:
            check_known("approvers", self._terms.approvers.tools, self._signatures)
        check_known("per_tool_limit", rules.per_tool_limit if isinstance(rules.per_tool_limit, Mapping) else (), self._signatures)
        check_rules(self._terms.supervisor, self._signatures, part=part)
        warn_about_uncallable(self._signatures)

    def _judge(self, call: PendingCall) -> Flow[GateVerdict]:
        """Judge one call; an exception on the way ends it, so that it cannot run later."""
        try:
            try:
                self._refuse_unknown(call)
                call.read()
                decision = yield from call.let_through()
                arguments = call.values()
            except Refused as refused:
                call.spent.update(request.id for request, answer in call.answers if answer.arguments is not None)
                return call.refused(refused)
        except BaseException as error:
            with self._lock.own:
                self._calls.pop(call.op_id, None)
            yield from call.abandon(error)
            raise
        return GateVerdict(
            allowed=True, arguments=arguments, executed_from=call.executed_from, reason=decision.reason, timeout_s=self._time_left()
        )

    def _refuse_unknown(self, call: PendingCall) -> None:
        """Raise Refused for a tool that is unknown or not allowed; a gate with a budget of its own refuses here, too."""
        tool = call.tool
        supervisor = self._terms.supervisor
        if supervisor is not None and tool not in self._terms.read_only and is_reviewing(supervisor):
            raise Refused("supervisor_block:called_in_review", "The supervisor calls it while it reviews, and would have to judge that.")
        if call.signature is None:
            if tool not in self._signatures:
                close = checks.nearest(tool, self._allow)
                hint = f", did you mean {close!r}" if close else ""
                raise Refused(f"tool_missing:{_shown_name(tool)}", f"There is no tool {checks.show(tool)}{hint}.")
            if tool not in self._allow:
                raise Refused(f"tool_denied:{_shown_name(tool)}", f"The tool {checks.show(tool)} is not allowed here.")
            call.signature = self._signatures[tool]

    def _count(self, call: PendingCall) -> None:
        """Count the call that is about to run; raise Refused for a loop."""
        loops = call.history.loops
        found = None if loops is None else loops.enter(call.tool, call.arguments.canonical)
        if found is not None:
            raise call.loop_refusal(found)

    def _time_left(self) -> float | None:
        """Return the seconds for which a call may run, None for no limit."""
        return self._timeout_s

    def _history(self, scope: Scope) -> RunHistory:
        """Return the history of the innermost run around `scope`, or of the process outside any run."""
        owner = scope.innermost(ScopeKind.RUN) or scope.upwards()[-1]
        known = self._histories.get(owner)
        if known is None:
            keeper = self._shared or keeper_for_run(owner, self._terms.supervisor, self._state)
            made = RunHistory(keeper, None if self._rules is None else Loops(self._rules))
            with self._lock.own:
                known = self._histories.setdefault(owner, made)
        return known


def gate_for(
    supervisor: Supervisor | ToolGate | None,
    functions: Mapping[str, Callable[..., Any]],
    approver: Approver | None = None,
    *,
    approvers: Collection[str] | Mapping[str, Collection[str]] | None = None,
    requester_may_approve: bool | None = None,
    part: bool = False,
    are_all: bool = False,
) -> ToolGate:
    """Return a gate for the named functions of a program; return a given gate as it is.

    It has no loop rules, as a program may repeat a call on purpose; a `Gate` has them. `part` is as for `Gate`. If the functions `are_all`
    that the caller names `approvers` for, an approver's entry for any other tool raises ConfigurationError even so.
    """
    people: dict[str, Any] = {"approver": approver, "approvers": approvers, "requester_may_approve": requester_may_approve}
    if isinstance(supervisor, ToolGate):
        given = next((name for name, each in people.items() if each is not None), None)
        if given is not None:
            raise ConfigurationError(f"{given}= goes with a supervisor, and a gate was given: write Gate(supervisor, {given}={given}).")
        return supervisor
    read_only = [name for name in getattr(supervisor, "read_only", ()) if name in functions]
    gate = Gate(supervisor, tools=functions, read_only=read_only, loops=False, part=part, **people)
    if are_all and isinstance(approvers, Mapping):
        check_known("approvers", (name for name in approvers if name != OTHERS), functions)
    return gate


def _nothing_to_end() -> Flow[None]:
    yield from ()


def _final_answer(answer: str) -> str:
    """Stand for an agent's answer, which is judged as a tool with one argument is."""
    return answer


_NOT_LET_THROUGH: Final = Refused("supervisor_block:not_let_through", "The gate let no such call through.")
_FINAL_SIGNATURE: Final = ToolSignature.of(_final_answer, FINAL_ANSWER)


def _shown_name(tool: str) -> str:
    """Return a name that a model made up, short and printable."""
    return "".join(char if char.isprintable() else "?" for char in str(tool)[:_MOST_NAME]) or "?"
