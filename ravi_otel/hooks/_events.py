"""Name what a program can hear of, and carry what happened from the rooms that do it to whoever listens.

What hooks are told of it is each record's `payload(event)`, read-only; where it happened, and under which span, is added to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, Self, TypeAlias

from ravi_otel.policy._limits import NANO, Limit, ScopeKind, format_limit, format_public_amount
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage

HookContext: TypeAlias = Mapping[str, Any]
"""What one event says, by name: read-only. Which names an event has is on the page of hooks."""

Callback = Callable[[Any], object]
"""Hear one event: gets its context; what it returns is awaited when it can be, and else ignored."""


class HookEvent(StrEnum):
    """Name what happened. A plain program fires FLOW, RUN, LLM, TOOL, HANDOFF, LIMIT and spawn events by itself.

    FLOW is a `run()`, RUN an `agent()` in it. STEP and GUARDRAIL_TRIP are fired by our agents, REVIEW by the gate, and all three by
    whoever else knows of them, with `HookManager.dispatch` or `emit`.
    """

    RUN_START = "run_start"
    RUN_END = "run_end"
    STEP_START = "step_start"
    STEP_END = "step_end"
    LLM_START = "llm_start"
    LLM_END = "llm_end"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    GUARDRAIL_TRIP = "guardrail_trip"
    HANDOFF = "handoff"
    FLOW_START = "flow_start"
    FLOW_END = "flow_end"
    LIMIT_NEARING = "limit_nearing"
    LIMIT_EXCEEDED = "limit_exceeded"
    SPAWN_DENIED = "spawn_denied"
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    REVIEW = "review"


class ReadOnly(dict[str, Any]):
    """What is told to a callback, or to who follows a run: a dict that cannot be changed, and is copied and pickled like any other.

    Its names can be read as attributes, too. `dict(told)` gives a copy that can be changed.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"what is told has no {name!r}; it has {', '.join(map(str, self))}") from None

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise TypeError("what is told is read-only: who hears of a run only observes it. Work on a copy, such as dict(context).")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __setattr__ = _refuse
    __delattr__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]  # takes whatever a dict takes, and refuses it
    update = _refuse  # pyright: ignore[reportAssignmentType]  # the same

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, Any]]]:
        """Be read-only again where it arrives."""
        return type(self), (dict(self),)


_AGAIN: Final = "…"
_DEEPEST: Final = 50
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def read_only(context: HookContext) -> ReadOnly:
    """Copy `context`, with every dict, list and set in it, into what cannot be changed; other objects stay what they are.

    What is inside itself, or deeper than 50 of them in one another, is `…`.
    """
    frozen: ReadOnly = _frozen(dict(context), {}, -1)
    return frozen


def _frozen(value: Any, known: dict[int, Any], deep: int) -> Any:
    kind = value.__class__
    if kind in _PLAIN:  # nearly all are: to ask what else they might be takes three times as long
        return value
    in_order = issubclass(kind, list) or kind is tuple
    if not in_order and not issubclass(kind, Mapping):
        return frozenset(value) if issubclass(kind, AbstractSet) else value
    found = _AGAIN if deep >= _DEEPEST else known.get(id(value))
    if found is not None:
        return found
    known[id(value)] = _AGAIN  # what is inside itself ends here
    if in_order:
        frozen: Any = tuple(_frozen(each, known, deep + 1) for each in value)
    else:
        frozen = ReadOnly({name: _frozen(each, known, deep + 1) for name, each in value.items()})
    known[id(value)] = frozen
    return frozen


Status = Literal["open", "ok", "error", "refused", "cancelled", "stopped", "paused"]
ReviewKind = Literal["approve", "revise", "block", "escalate"]
Phase = Literal["admission", "settle", "stream", "timer"]

Payload: TypeAlias = dict[str, Any]
"""What hooks are told of an event, by name."""

_NS_PER_MS: Final = 1_000_000
_TOKENS: Final = ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "cache_write_tokens", "reasoning_tokens")


def _named(*names: str, **renamed: str) -> Callable[[Any, HookEvent], Payload]:
    """Return the `payload` of a record that says the same of each event: these of its attributes, `renamed` ones under another name."""
    read = attrgetter(*renamed.values(), *names)

    def payload(self: Any, event: HookEvent) -> Payload:  # noqa: ARG001 - what every record's takes
        """Say what happened, by name."""
        return dict(zip((*renamed, *names), read(self), strict=True))

    return payload


@dataclass(slots=True, eq=False)
class RetryRecord:
    """Tell one retry: `attempt` counts from 1, `wait_s` is the pause before it, `status` None when no answer came.

    `error_type` is the status as text, or of an attempt without an answer the class of what was raised. `request_id` and
    `rate_limits`, by header name, are what the answer to the failed attempt told.
    """

    attempt: int
    status: int | None
    wait_s: float | None
    error_type: str | None
    request_id: str | None = None
    rate_limits: Mapping[str, str] = field(default_factory=dict[str, str])


def _no_retries() -> list[RetryRecord]:  # three times as fast as calling `list[RetryRecord]`, once for every call
    return []


def _no_marks() -> dict[object, object]:
    return {}


@dataclass(slots=True, eq=False)
class CallRecord:
    """Follow one logical model call from its start to its end.

    Times are readings of the engine's monotonic clock and spans of it in ns. `cost_nano` None is unknown, never free.
    `first_chunk_ns` is the time from before the request to the first chunk, `first_content_ns` to the first of its content.
    `request_id` and `rate_limits`, by header name, are what the last answer told, `http_status` its status where that is why
    the call failed. `price_date` says how old the price is. `decision` is "admitted", "denied" or "observed" (shadow mode let
    through what a limit would have refused). `requests` counts the attempts that were paid for; `charged` is what a failed call
    was charged whose usage nobody told, and what was held of one that told its total only. `output_cap` is what a strict limit capped
    each answer at, None where the request went out as it was; `truncated_by_limit` says that an answer ended there. `late_ns` is how
    long after its end that was found out, as of a stream that was dropped. `expected` is what it was thought to use, once somebody had
    asked, and `reservation` the ledger's answer, whose `holds` say what was held for it. Of a refused one `chain` are the accounts of the
    limits around it, root to leaf, each with what was used, held and denied when it was refused. `span` is its span, `said` what was said
    as far as it is captured. `marks` is for listeners, by their own key.
    """

    call: Call
    facts: ScopeFacts
    op_id: str
    started_ns: int
    status: Status = "open"
    error: BaseException | None = None
    error_type: str | None = None
    reply: Reply | None = None
    usage: Usage | None = None
    cost_nano: int | None = None
    cost_source: str | None = None
    decision: str | None = None
    limit_kind: str | None = None
    limit_scope: ScopeKind | None = None
    limit_reason: str | None = None
    granted: int | None = None
    first_chunk_ns: int | None = None
    duration_ns: int = 0
    request_id: str | None = None
    http_status: int | None = None
    rate_limits: Mapping[str, str] | None = None
    first_content_ns: int | None = None
    price_date: str | None = None
    retries: list[RetryRecord] = field(default_factory=_no_retries)
    requests: int = 1
    charged: Usage | None = None
    charged_nano: int | None = None
    output_cap: int | None = None
    truncated_by_limit: bool = False
    late_ns: int = 0
    expected: Any = None
    reservation: Any = None
    chain: Sequence[tuple[Any, int, int, int]] = ()
    span: Any = None
    said: dict[str, Any] | None = None
    marks: dict[object, object] = field(default_factory=_no_marks)

    def payload(self, event: HookEvent) -> Payload:
        """Say what a model call is, and how it ended; `cost_usd` None is unknown, and `usage` None was not told."""
        call, reply = self.call, self.reply
        payload: Payload = {
            "call_id": self.op_id,
            "operation": call.operation,
            "endpoint": call.endpoint,
            "provider": call.provider,
            "model": call.model,
            "stream": call.stream,
        }
        if event is HookEvent.LLM_END:
            payload.update(
                model=(reply and reply.model) or call.model,
                request_model=call.model,
                status=self.status,
                usage=self._usage(),
                cost_usd=self._cost_usd(),
                error_type=self.error_type,
                finish_reasons=() if reply is None else reply.finish_reasons,
                response_id=None if reply is None else reply.id,
                duration_ms=self.duration_ns / _NS_PER_MS,
                requests=self.requests,
                retries=len(self.retries),
                decision=self.decision,
                limit_kind=self.limit_kind,
            )
        return payload

    def _usage(self) -> Payload | None:
        if self.usage is None:
            return None
        known = ("total_tokens",) if self.usage.total_only else _TOKENS
        return {**dict.fromkeys(_TOKENS), **{name: getattr(self.usage, name) for name in known}, "source": self.usage.source}

    def _cost_usd(self) -> float | None:
        """Return what it cost: nothing where nothing was sent or billed, None where nobody knows."""
        if self.cost_nano is not None:
            return self.cost_nano / NANO
        if self.requests == 0 or (not self.call.generative and self.usage is None):
            return 0.0
        failed = self.status not in ("ok", "open")
        return 0.0 if failed and self.usage is None and self.charged is None else None


@dataclass(slots=True, eq=False)
class RemoteTool:
    """Say where a tool runs that is called over MCP: by which server, over what, and as which request.

    `transport` is "pipe" or "tcp", None where nobody knows. Where it is `spanned` the library makes a span of each request that it sends.
    """

    server: str | None = None
    protocol_version: str | None = None
    session_id: str | None = None
    transport: str | None = None
    address: str | None = None
    port: int | None = None
    spanned: bool = False


@dataclass(slots=True, eq=False)
class ToolRecord:
    """Follow one tool call; `status` "refused" means that it was never executed.

    `arguments`, by parameter name, and `result` are what went in and came out, filled only when content is captured;
    `returned` says that there is a result, which may be None. An `inferred` one was not seen to run: a model asked for it, and a
    request brought its result. Its time is the one between, beginning at `began_unix_ns` of the wall clock. An `abandoned` one is
    waited for no longer, and may still run. `remote` says where it runs, None here. `chain`, `span` and `said` are as those of a
    `CallRecord`.
    """

    name: str
    facts: ScopeFacts
    op_id: str
    started_ns: int
    status: Status = "open"
    error: BaseException | None = None
    error_type: str | None = None
    decision: str | None = None
    limit_kind: str | None = None
    limit_scope: ScopeKind | None = None
    limit_reason: str | None = None
    duration_ns: int = 0
    call_id: str | None = None
    arguments: Mapping[str, object] | None = None
    result: object = None
    returned: bool = False
    inferred: bool = False
    began_unix_ns: int | None = None
    abandoned: bool = False
    remote: RemoteTool | None = None
    chain: Sequence[tuple[Any, int, int, int]] = ()
    span: Any = None
    said: dict[str, Any] | None = None
    marks: dict[object, object] = field(default_factory=_no_marks)

    def payload(self, event: HookEvent) -> Payload:
        """Say what a tool call is, and how it ended; "refused" ones never ran."""
        payload: Payload = {"tool_name": self.name, "call_id": self.call_id or self.op_id, "inferred": self.inferred}
        if event is HookEvent.TOOL_END:
            payload.update(
                status=self.status,
                duration_ms=self.duration_ns / _NS_PER_MS,
                error_type=self.error_type,
                decision=self.decision,
                limit_kind=self.limit_kind,
                abandoned=self.abandoned,
            )
        return payload


@dataclass(frozen=True, slots=True, repr=False)
class LimitReading:
    """A copy of one limit of one scope; amounts in the kind's public unit (tokens, USD, seconds, count).

    `events` are the ones this limit has emitted so far in order ("limit_nearing", "limit_exceeded"). A limit that begins anew is read
    as of its `window`, such as "2026-01-02" of per="day", and one that counts by somebody as of whom it was `counted_for`. `scope` and
    `scope_name` say whose limit it is. What a shared ledger counts is read `as_of` a time, in UTC: when it last told this process. It is
    asked where that is more than a second ago, and what is known stands where it does not answer. None where this process counts alone,
    or has heard nothing from the ledger yet: then nobody knows what others used, and `used`, `held`, `remaining` and `ratio` are NaN,
    which is unknown, as in a stored run that nobody saw end. `declared` is the amount that it was given where it was written, None where
    that holds still, and `set_by` who set the one that holds now, where that was done in this process.
    """

    limit: Limit
    scope: ScopeKind
    scope_name: str | None
    used: float
    held: float
    remaining: float
    ratio: float
    denied: int
    events: tuple[str, ...]
    window: str | None = None
    counted_for: str | None = None
    as_of: datetime | None = None
    declared: float | None = None
    set_by: str | None = None

    @property
    def fullness(self) -> float:
        """Return the ratio to rank by: one that is unknown is below every other."""
        return self.ratio if math.isfinite(self.ratio) else -1.0

    def __repr__(self) -> str:
        """Write it in a line, the limit as the grammar does and amounts for people."""
        kind = self.limit.kind
        figures = ", ".join(f"{name}={format_public_amount(kind, getattr(self, name))}" for name in ("used", "held", "remaining"))
        whose = self.scope.value if self.scope_name is None else f"{self.scope.value} {self.scope_name!r}"
        when = "" if self.window is None else f", window={self.window!r}"
        whom = "" if self.counted_for is None else f", counted_for={self.counted_for!r}"
        at = "" if self.as_of is None else f", as of {self.as_of.isoformat(timespec='seconds')}"
        return f"LimitReading({format_limit(self.limit)!r}, {figures}, of {whose}{when}{whom}{at})"

    @property
    def title(self) -> str:
        """Write what is limited: `tokens`, `cost per day 2026-01-02`, `tokens per 90m for user ann`."""
        limit = self.limit
        words = [limit.label]
        if limit.per is not None:
            words += ["per", limit.per, *([] if self.window is None else [self.window])]
        if limit.by is not None:
            words += ["for", limit.by, self.counted_for or "unknown"]
        return " ".join(words)


class Consumed(NamedTuple):
    """What a program reported with `ExecutionTracker.consume()`."""

    tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0


_COUNTED: Final = (
    "requests", "turns", "input_tokens", "output_tokens", "cached_input_tokens", "unpriced_calls", "unreported_calls", "estimated_calls",
    "tool_calls", "refused", "errors", "unsplit_tokens",
)  # fmt: skip
"""What a scope's counters and the sums of a stored run have in common."""

_READ_COUNTED: Final = attrgetter(*_COUNTED)


@dataclass(frozen=True, slots=True)
class Spend:
    """A copy of what a scope has used: counts, tokens, and USD.

    `cost_usd` is what is known, None when calls were answered and no price is. `unreported_calls` were answered without
    usage, or are still made in the background: their tokens and cost are not in here, though limits were charged what was
    held. `estimated_calls` are in here by our own count: streams without usage, and calls that failed on the way.
    `unpriced_calls` have tokens and no price. `unsplit_tokens` are those of answers that told their total alone, and what the
    program reported with `consume()`: they are neither in `input_tokens` nor in `output_tokens`, and such a call is an unreported one, too,
    unless its model is free. `charged` are the amounts
    that the program charged itself, by kind. `consumed` is what it reported with `consume()` here, and in no run or agent inside.
    `waited_s` of the `duration_s` was declared as a wait.
    """

    requests: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_usd: float | None = None
    unpriced_calls: int = 0
    unreported_calls: int = 0
    estimated_calls: int = 0
    tool_calls: int = 0
    refused: int = 0
    errors: int = 0
    duration_s: float = 0.0
    charged: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    waited_s: float = 0.0
    unsplit_tokens: int = 0
    consumed: Consumed = field(default_factory=Consumed)

    @classmethod
    def of(cls, counters: Any, duration_s: float, **more: Any) -> Spend:
        """Return a copy of counters of these names; cost is None while calls were made and none of them had a known price."""
        unknown = counters.unpriced_calls + counters.unreported_calls > 0 and counters.priced_calls == 0
        counted = dict(zip(_COUNTED, _READ_COUNTED(counters), strict=True)) | more
        return cls(cost_usd=None if unknown else counters.cost_nano / NANO, duration_s=duration_s, **counted)

    @property
    def total_tokens(self) -> int:
        """Return input, output, and what nobody told apart."""
        return self.input_tokens + self.output_tokens + self.unsplit_tokens


class ScopeView(Protocol):
    """Show a live or closed scope to listeners."""

    @property
    def facts(self) -> ScopeFacts:
        """Say which scope this is."""
        ...

    @property
    def status(self) -> Status:
        """Say how it ended, "open" while it lives."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Return why it stopped, None while open."""
        ...

    @property
    def error(self) -> BaseException | None:
        """Return what its body raised, None on success."""
        ...

    @property
    def parent(self) -> ScopeView | None:
        """Return the enclosing scope, None at the root."""
        ...

    @property
    def parent_id(self) -> str | None:
        """Return the enclosing scope's id, None at the root."""
        ...

    def readings(self) -> Sequence[LimitReading]:
        """Read every limit this scope owns."""
        ...

    def spend(self) -> Spend:
        """Read what was used in it."""
        ...


class Totals(NamedTuple):
    """What a scope had used, and where each limit that it owns stood, when it was closed: all that tell of its end tell this."""

    spend: Spend
    readings: Sequence[LimitReading]
    shared: Sequence[LimitReading] = ()
    """Of a run: where the limits stood that it shared with others, its session's, its tenant's and its process's."""


def scope_payload(event: HookEvent, scope: ScopeView, totals: Totals | None = None) -> Payload:
    """Say which run or agent begins, or how it ended and what was used in it."""
    facts = scope.facts
    payload: Payload = {"flow_name": facts.name} if event in {HookEvent.FLOW_START, HookEvent.FLOW_END} else {}
    if event is HookEvent.RUN_START and facts.supervision is not None:
        payload.update(
            depth=facts.supervision.depth,
            parent_id=facts.supervision.parent_id,
            priority=facts.supervision.priority.name.lower(),
            attempt=facts.attempt,
        )
    if totals is None:
        return payload
    spend, error = totals.spend, scope.error
    least = None if spend.unsplit_tokens else 0
    payload.update(
        status=scope.status,
        stop_reason=None if scope.stop_reason is None else str(scope.stop_reason),
        error_type=None if error is None else type(error).__name__,
        duration_ms=spend.duration_s * 1_000,
        usage={
            "input_tokens": spend.input_tokens or least,
            "output_tokens": spend.output_tokens or least,
            "total_tokens": spend.total_tokens,
        },
        cost_usd=spend.cost_usd,
        unpriced_calls=spend.unpriced_calls,
        unreported_calls=spend.unreported_calls,
        requests=spend.requests,
        turns=spend.turns,
        tool_calls=spend.tool_calls,
        attempt=facts.attempt,
    )
    return payload


@dataclass(frozen=True, slots=True)
class LimitEvent:
    """Tell that a limit is near or exceeded; amounts in the kind's public unit.

    `scope_id` names the scope that owns the limit; trace ids are the sink's to add, from the operation it is told with.
    `run_name` and `tenant_id` are those of that scope, None where it belongs to none. `hooks` are who the program wants told of it.
    `per` and `by` are the limit's, `window` the one it is told of, once each, and `counted_for` whose part is near or used up.
    `resets_at` is when it is below its warning level again if nothing more is used, in UTC: the end of its window, or when enough has
    left a rolling one; None of a limit without a window. `requested` is how much more than `used` was asked for at least by what was
    refused, None where nothing was: `exceeded_by` is what that would have been beyond the limit, else what is. `tracker` is the parameter
    of an `ExecutionTracker` that a program feeds itself, such as "ExecutionTracker.max_tokens", where the limit is that tracker's: the
    scope is then where `consume()` was called. It has no such limit, and no call is refused for it.
    """

    event: Literal["limit_nearing", "limit_exceeded"]
    limit_kind: str
    scope: ScopeKind
    scope_id: str
    scope_name: str | None
    agent_name: str | None
    agent_id: str | None
    run_id: str | None
    session_id: str | None
    threshold: float
    used: float
    held: float
    remaining: float
    exceeded_by: float
    ratio: float
    phase: Phase
    decision: str
    enforcement: str = "process"
    run_name: str | None = None
    tenant_id: str | None = None
    hooks: tuple[object, ...] = field(default=(), compare=False, repr=False)
    per: str | None = None
    window: str | None = None
    by: str | None = None
    counted_for: str | None = None
    resets_at: datetime | None = None
    requested: float | None = None
    tracker: str | None = None

    payload = _named(
        *("agent_name", "agent_id", "run_id", "run_name", "session_id", "tenant_id", "scope_name", "scope_id", "limit_kind"),
        *("threshold", "used", "held", "remaining", "exceeded_by", "requested", "ratio", "phase", "enforcement", "decision"),
        *("per", "window", "by", "counted_for", "resets_at", "tracker"),
        scope="scope.value",
    )


@dataclass(frozen=True, slots=True)
class SpawnEvent:
    """What became of a request for a slot; `active` and `paused` are the counts after it.

    `agent_name` is the agent's, None where it has none yet: several agents of one id may have different names. `max_agents` is how many
    agents may be live, None where that has no limit. `limit_kind` says of a denial which limit refused: "agents", "agents_total" or
    "fan_out"; it is None of anything else.
    """

    outcome: Literal["granted", "denied", "preempted", "resumed", "released"]
    agent_id: str
    priority: str
    run_id: str | None
    active: int
    paused: int
    max_agents: int | None
    limit_kind: str | None = None
    agent_name: str | None = None

    payload = _named("agent_name", "agent_id", "run_id", "priority", "active", "paused", "max_agents", "limit_kind")


Counted = Literal[
    "denied",
    "contended",
    "overage",
    "unpriced",
    "unscoped",
    "store_errors",
    "suspended",
    "truncated",
    "hook_errors",
    "restarted",
    "carrier_rejected",
]
"""What is only counted.

Refusals, waits given up, spend beyond a grant, calls without a price or a scope, failures of the store of counters, blocks in which
limits are set aside, answers cut short, faults of hooks, agents that crashed and are started again, what came from other processes and
was not believed.
"""


@dataclass(frozen=True, slots=True)
class CountEvent:
    """Tell one thing that is only counted; `limit_kind` is None where no limit is concerned.

    `amount` is how often, and of "overage" how much, in the kind's public unit (tokens or USD). An `observed` refusal was let
    through, in shadow mode. Limits are "suspended" for a `reason`, in the scope of that `scope_id`; the `reason` of "hook_errors" is
    the fault, and of "carrier_rejected" what was wrong with it. An agent is "restarted" in the scope of that `scope_id`, and
    `retry` says which restart it is, and after what.
    """

    what: Counted
    amount: float
    limit_kind: str | None = None
    scope: ScopeKind | None = None
    observed: bool = False
    reason: str | None = None
    scope_id: str | None = None
    retry: RetryRecord | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """What somebody says of a scope: the program a "report", an operator from outside a "command"."""

    what: Literal["report", "command"]
    facts: ScopeFacts
    text: str
    data: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Tell that a limit of an open scope has another value; amounts are in the public unit of `kind`, and `limit` is how it is labelled.

    `before` is None where it was none. `by` is the person who set it, None where the program's own code did; `login` is the user of
    the system who asked for that person.
    """

    facts: ScopeFacts
    kind: str
    limit: str
    before: float | None
    now: float
    by: str | None = None
    login: str | None = None


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Tell that an agent's loop begins or ends its step number `step`, which counts from 1; `status` is None at its beginning."""

    what: Literal["start", "end"]
    facts: ScopeFacts
    step: int
    status: Literal["ok", "error", "stopped", "paused"] | None = None

    def payload(self, event: HookEvent) -> Payload:
        """Say which step of an agent's loop it is, and how it ended."""
        return {"step": self.step} if event is HookEvent.STEP_START else {"step": self.step, "status": self.status}


@dataclass(frozen=True, slots=True)
class HandoffEvent:
    """Tell that the agent of `facts` has handed work to the agent `to`: in a `handoff()`, or as an orchestrator that delegates."""

    facts: ScopeFacts
    to: str
    mode: Literal["handoff", "delegation"]

    payload = _named("to", "mode")


@dataclass(frozen=True, slots=True)
class ReviewEvent:
    """What the gate decided about one proposed action; told once a decision, so a revised action is told of again.

    `tool` is the tool that was proposed, and `op_id` the id of its call, None of a final answer. `args_sha256` is the full hash of what was
    judged. `executed_from` and `human_approved` are filled in when that is known, which is with the decision that lets the action through
    or refuses it for good (`final`). `arguments` are what was judged, filled in only when content is captured.
    """

    facts: ScopeFacts
    decision: ReviewKind
    reason: str
    tool: str | None
    args_sha256: str
    final: bool = False
    executed_from: str | None = None
    human_approved: bool | None = None
    risk_score: float | None = None
    arguments: Mapping[str, object] | None = field(default=None, repr=False)
    op_id: str | None = None

    payload = _named("decision", "reason", "args_sha256", "final", "executed_from", "human_approved", "risk_score", tool_name="tool")


@dataclass(frozen=True, slots=True)
class GuardrailEvent:
    """Tell that a guardrail stopped something: `guardrail` is its name, `level` what it stood before or after, `reason` its own words."""

    facts: ScopeFacts
    guardrail: str
    level: Literal["agent", "chat", "tool"]
    stage: Literal["input", "output"]
    reason: str | None = None

    payload = _named("guardrail", "level", "stage", "reason")
