"""Note which runs, agents and blocks of this process are open, read them when somebody asks, and pass on what happens to who follows.

What they used and may use is read from the scopes at that moment. Noted are only who is open, what was heard of each last, what was
refused last, and how many tokens the calls of the last seconds made. Scopes are held weakly, and at most 2,000 of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.store_ledger import refresh
from ravi_otel._enforcement.scope import Scope
from ravi_otel._local.live.protocol import (
    MOST_ANSWER,
    MOST_EVENTS,
    MOST_LIMITS,
    MOST_REFUSALS,
    MOST_RUNS,
    MOST_SCOPES,
    MOST_SENTENCE,
    LimitState,
    LiveEvent,
    ProcessState,
    RunState,
    ScopeState,
    State,
    cut,
    is_number,
    state_line,
)
from ravi_otel._local.store import began
from ravi_otel.errors import BudgetError, RaviError
from ravi_otel.hooks._events import (
    CallRecord,
    LimitEvent,
    LimitReading,
    Notice,
    RetryRecord,
    ReviewEvent,
    ScopeView,
    SpawnEvent,
    Spend,
    ToolRecord,
    Totals,
)
from ravi_otel.hooks._listeners import Listener, swallow
from ravi_otel.policy._limits import NANO, ScopeKind, format_public_amount, place_of, public_amount
from ravi_otel.policy._runs import ScopeFacts

WINDOW_S: Final = 10
_MOST_CALLS: Final = 128
_KINDS: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT, ScopeKind.HANDOFF, ScopeKind.BLOCK})
_SPAWN: Final = {"granted": "spawn_granted", "denied": "spawn_denied", "released": "spawn_released"}


_Event = tuple[str, int, ScopeFacts | None, dict[str, Any]]
"""What happened, as little as has to be taken down at once: `_told` says what it means. Nothing in it refers to a scope."""


def _told(event: _Event) -> dict[str, Any]:
    """Say what happened in words and public units, as `LiveEvent` has it; what is not known is left out."""
    name, at_ns, facts, more = event
    known: dict[str, Any] = {"event": name, "at_unix_s": at_ns / NANO}
    if facts is not None:
        known |= {"run_id": facts.run_id, "scope_id": facts.scope_id, "agent": facts.agent_name}
    known |= more
    known["agent"] = cut(known.get("agent"))
    known["call"] = cut(" ".join(str(word) for word in more.get("call", ()) if word is not None)) or None
    known["sentence"] = cut(more.get("sentence"), MOST_SENTENCE)
    usage, cost_nano, duration_ns = (known.pop(each, None) for each in ("usage", "cost_nano", "duration_ns"))
    if usage is not None and not usage.tokenless and not usage.total_only:
        known |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    known["cost_usd"] = None if cost_nano is None else cost_nano / NANO
    known["duration_s"] = None if duration_ns is None else duration_ns / NANO
    known |= {each: cut(known[each]) for each in ("call_id", "limit_kind") if each in known}
    return {each: value for each, value in known.items() if value is not None}


class Follower:
    """What waits for one who follows: the newest events, and whether what is open may have changed."""

    __slots__ = ("_awake", "_events", "_gate", "_heard", "_told")

    def __init__(self) -> None:
        self._events: deque[_Event] = deque(maxlen=MOST_EVENTS)
        self._heard = 0
        self._told = 0
        self._awake = True
        self._gate = threading.Lock()

    def hear(self, event: _Event) -> None:
        """Take an event, the oldest makes room, and wake who sleeps; takes no lock and waits for nothing."""
        self._events.append(event)
        self._heard += 1
        if not self._awake:
            self.wake()

    def wake(self) -> None:
        """Wake who sleeps."""
        self._awake = True
        with suppress(RuntimeError):  # woken already
            self._gate.release()

    def sleep(self, seconds: float) -> None:
        """Sleep until something happens, for so long at most."""
        self._gate.acquire(blocking=False)
        self._awake = False
        if not self._events:
            self._gate.acquire(timeout=max(0.0, seconds))
        self._awake = True

    def take(self) -> tuple[list[dict[str, Any]], int] | None:
        """Return what happened since this was asked last, as `Happened` has it; None where nothing did."""
        heard, events = self._heard, [self._events.popleft() for _ in range(len(self._events))]
        missed, self._told = heard - self._told - len(events), heard
        if not events:
            return None
        return list(map(_told, events)), max(0, missed)


class _Open:
    """One open scope: what was heard of it last, its calls in flight, and the ended ones that the rate is made of."""

    __slots__ = ("assumed", "ended", "flying", "heard", "heard_ns", "refusal", "refused_by", "refused_ns", "refused_tool", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = weakref.ref(scope)
        self.heard: tuple[object, ...] = ()
        self.heard_ns = 0
        self.refusal: str | None = None
        """The sentence of the last refusal, until such a call goes through that began after it."""
        self.refused_ns = 0
        self.refused_tool: str | None = None
        self.refused_by: tuple[object, object, object] | None = None
        """Kind, scope and value of the limit that refused it, where one did."""
        self.flying: dict[str, None] = {}
        self.assumed = False
        """Whether something of its cost is by the prices of a provider that is only assumed."""
        self.ended: deque[tuple[int, int, int]] = deque(maxlen=_MOST_CALLS)  # when, for how long, and output tokens

    def hear(self, *words: object) -> None:
        """Note what happened; it is put into words when somebody asks."""
        self.heard, self.heard_ns = words, time.monotonic_ns()

    def refuse(self, sentence: str | None, tool: str | None, error: BaseException | None) -> None:
        """Note the refusal of a tool, None for a call of a model."""
        self.refusal, self.refused_ns, self.refused_tool = sentence, time.monotonic_ns(), tool
        self.refused_by = (error.limit_kind, error.scope, error.threshold) if isinstance(error, BudgetError) else None

    def is_raised(self, scope: Scope) -> bool:
        """Whether the limit that refused last has a higher value now, which nothing was tried on yet."""
        if self.refusal is None or self.refused_by is None:
            return False
        kind, of, threshold = self.refused_by
        values = (
            public_amount(each.limit.kind, each.value)
            for owner in scope.upwards()
            for each in owner.counters()
            if (each.limit.kind, owner.facts.kind.value) == (kind, of)
        )
        return isinstance(threshold, (int, float)) and max(values, default=threshold) > threshold

    def let_through(self, tool: str | None, duration_ns: int) -> None:
        """Forget the last refusal where what went through is alike and began after it."""
        if self.refused_tool == tool and time.monotonic_ns() - duration_ns > self.refused_ns:
            self.refusal = None


class OpenScopes(Listener):
    """Listen, and know what is open. Nothing in it takes a lock: each change is one step of a dict, a tuple or a deque."""

    def __init__(self, begin: Callable[[], object], retire: Callable[[], object]) -> None:
        self._begin: Callable[[], object] | None = begin
        self.retire = retire
        """Have nobody watch any more: for the end of instrumentation."""
        self.renew(begin)

    def renew(self, begin: Callable[[], object]) -> None:
        """Begin with nothing open and nobody who follows: at the start, and in a forked child."""
        self._begin = begin
        self._open: dict[str, _Open] = {}
        self._runs: dict[str, str] = {}
        self._left_out = 0
        self._refusals: deque[_Event] = deque(maxlen=MOST_REFUSALS)
        self._followers: tuple[Follower, ...] = ()

    def follow(self) -> Follower:
        """Return what hears of all that happens from now on."""
        made = Follower()
        self._followers = (*self._followers, made)
        return made

    def leave(self, follower: Follower) -> None:
        """Tell it nothing any more."""
        self._followers = tuple(each for each in self._followers if each is not follower)

    def wake(self) -> None:
        """Wake all who follow: it may be over."""
        for each in self._followers:
            each.wake()

    def _work_has_begun(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    # -- what is told ---------------------------------------------------------------------------------------------

    def scope_opened(self, scope: ScopeView) -> None:
        """Note a scope."""
        self._work_has_begun()
        facts = scope.facts
        if not isinstance(scope, Scope) or facts.kind not in _KINDS:
            return
        if len(self._open) >= MOST_SCOPES:
            self._forget_the_gone()
        if len(self._open) >= MOST_SCOPES:
            self._left_out += 1
            return
        self._open[facts.scope_id] = _Open(scope)
        if facts.kind is ScopeKind.RUN:
            self._runs[str(facts.run_id)] = facts.scope_id
        self._emit("scope_opened", facts, call=(facts.kind.value, facts.name))

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:  # noqa: ARG002 - the listener's signature
        """Forget it; who is around is told how it ended, and keeps its calls of the last seconds."""
        facts = scope.facts
        gone = self._open.pop(facts.scope_id, None)
        if facts.kind is ScopeKind.RUN and self._runs.get(str(facts.run_id)) == facts.scope_id:
            self._runs.pop(str(facts.run_id), None)
        if gone is None:
            self._left_out = max(0, self._left_out - 1)
            return
        for outer in reversed(scope.charged()[:-1] if isinstance(scope, Scope) else []):
            known = self._open.get(outer.facts.scope_id)
            if known is not None:
                known.ended.extend(gone.ended)
                break
        around = None if scope.parent is None else self._open.get(scope.parent.facts.scope_id)
        if around is not None:
            around.hear(facts.kind.value, facts.name, scope.status)
        self._emit("scope_closed", facts, call=(facts.kind.value, facts.name), status=scope.status, sentence=scope.stop_reason)

    def _forget_the_gone(self) -> None:
        for scope_id, known in list(self._open.items()):
            if known.scope() is None:
                self._open.pop(scope_id, None)

    def call_started(self, record: CallRecord) -> None:
        """Note a call in flight."""
        self._work_has_begun()
        call = record.call
        known = self._open.get(record.facts.scope_id)
        if known is not None:
            if call.generative:
                known.flying[record.op_id] = None
            known.hear("calls", call.model)
        self._emit("llm_start", record.facts, call=(call.operation, call.model), call_id=record.op_id)

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Note a failed attempt."""
        self._hear(record.facts.scope_id, "retry", retry.attempt, retry.error_type)
        what, why = (record.call.operation, record.call.model), f"attempt {retry.attempt} failed: {retry.error_type}"
        self._emit("retry", record.facts, call=what, sentence=why, call_id=record.op_id)

    def call_ended(self, record: CallRecord) -> None:
        """Note how it ended, and how many tokens came of it in which time."""
        known, call = self._open.get(record.facts.scope_id), record.call
        if known is not None:
            known.flying.pop(record.op_id, None)
            known.hear(call.model, record.status)
            if record.usage is not None and record.usage.output_tokens > 0:
                known.ended.append((time.monotonic_ns(), record.duration_ns, record.usage.output_tokens))
            if known.refusal is not None and record.status == "ok":
                known.let_through(None, record.duration_ns)
        if record.cost_source == "assumed" and record.cost_nano:
            self._assume(record.facts, known)
        self._ended("llm_end", record, known, (call.operation, call.model), usage=record.usage, cost_nano=record.cost_nano)

    def _assume(self, facts: ScopeFacts, known: _Open | None) -> None:
        """Note with all that pay for a call that its price is that of an assumed provider; of a late one, with its run alone."""
        scope = None if known is None else known.scope()
        payers = [self._runs.get(str(facts.run_id))] if scope is None else [each.facts.scope_id for each in scope.charged()]
        for scope_id in payers:
            payer = None if scope_id is None else self._open.get(scope_id)
            if payer is not None:
                payer.assumed = True

    def tool_started(self, record: ToolRecord) -> None:
        """Note a tool at work."""
        self._hear(record.facts.scope_id, "tool", record.name)
        self._emit("tool_start", record.facts, call=(record.name,), call_id=record.op_id)

    def tool_ended(self, record: ToolRecord) -> None:
        """Note how it ended."""
        known = self._hear(record.facts.scope_id, "tool", record.name, record.status)
        if known is not None and known.refusal is not None and record.status == "ok":
            known.let_through(record.name, record.duration_ns)
        self._ended("tool_end", record, known, (record.name,))

    def _ended(self, event: str, record: CallRecord | ToolRecord, known: _Open | None, call: tuple[object, ...], **used: Any) -> None:
        """Keep a refusal, with its sentence where that is ours: what others' errors say may quote a prompt; and tell of any end."""
        told: dict[str, Any] = {
            "status": record.status,
            "sentence": record.error_type,
            "call_id": record.op_id,
            "limit_kind": record.limit_kind,
            "duration_ns": record.duration_ns,
        }
        if record.status == "refused":
            told["sentence"] = cut(record.error, MOST_SENTENCE) if isinstance(record.error, RaviError) else record.limit_reason
            tool = record.name if isinstance(record, ToolRecord) else None
            if known is not None:
                known.refuse(told["sentence"], tool, record.error)
            whole = call if tool is None else ("tool", tool)
            self._refusals.append(("refused", time.time_ns(), record.facts, {**told, "call": whole}))
        self._emit(event, record.facts, call=call, **told, **used)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Note it with the limit's scope, and with the one it happened in."""
        what = event.tracker or event.limit_kind
        for scope_id in {event.scope_id, *(() if at is None else (at.facts.scope_id,))}:
            self._hear(scope_id, event.event, what)
        if self._followers:
            agent = event.agent_name if at is None else at.facts.agent_name
            used, of = (format_public_amount(event.limit_kind, each) for each in (event.used, event.threshold))
            sentence = f"{used} of {of} {what} used in {event.scope.value} {event.scope_name or ''}".rstrip()
            ids = {"run_id": event.run_id or (None if at is None else at.facts.run_id), "scope_id": event.scope_id, "agent": agent}
            ids["call_id"] = None if at is None else at.op_id
            self._emit(event.event, None, call=(what,), status=event.decision, sentence=sentence, limit_kind=event.limit_kind, **ids)

    def spawn_event(self, event: SpawnEvent) -> None:
        """Note it with its run."""
        run_id = None if event.run_id is None else str(event.run_id)
        scope_id = self._runs.get(str(run_id))
        self._hear(scope_id, "slot", event.outcome, event.agent_id)
        ids = {"run_id": run_id, "scope_id": scope_id, "agent": event.agent_name or event.agent_id}
        what = _SPAWN.get(event.outcome, event.outcome)
        self._emit(what, None, call=("agent", event.agent_id), limit_kind=event.limit_kind, **ids)

    def reviewed(self, event: ReviewEvent) -> None:
        """Note what a gate decided."""
        self._hear(event.facts.scope_id, "review", event.tool, event.decision)
        self._emit("review", event.facts, call=(event.tool or "answer",), status=event.decision, sentence=event.reason)

    def told(self, notice: Notice) -> None:
        """Note what the program, or an operator, says."""
        self._hear(notice.facts.scope_id, notice.text)
        self._emit(notice.what, notice.facts, sentence=notice.text)

    def _hear(self, scope_id: str | None, *words: object) -> _Open | None:
        known = None if scope_id is None else self._open.get(scope_id)
        if known is not None:
            known.hear(*words)
        return known

    def _emit(self, event: str, facts: ScopeFacts | None, **more: Any) -> None:
        if self._followers:
            told = (event, time.time_ns(), facts, more)
            for each in self._followers:
                each.hear(told)

    # -- what is asked --------------------------------------------------------------------------------------------

    def find(self, scope_id: str) -> Scope | None:
        """Return an open scope by its id; None when it is not open, or the parent process's."""
        known = self._open.get(scope_id)
        scope = None if known is None else known.scope()
        return None if scope is None or scope.abandoned or scope.clock.ended_ns is not None else scope

    def line(self) -> bytes:
        """Return the answer to `state`, of as many scopes as fit into one."""
        most = MOST_SCOPES
        while len(line := state_line(self.state(most))) > MOST_ANSWER and most > 1:
            most //= 2  # names as long as can be, of characters that take six in JSON
        return line

    def state(self, most: int = MOST_SCOPES) -> ProcessState:
        """Read all that is open, at most so many scopes, the oldest first."""
        alive = [(known, scope) for known in list(self._open.values()) if (scope := known.scope()) is not None and not scope.abandoned]
        kept = [(known, scope) for known, scope in alive if scope.clock.ended_ns is None]
        rates, flying = _rates(kept), _flying(kept)
        runs: dict[str | None, list[tuple[Scope, ScopeState]]] = {}
        for known, scope in kept[:most]:
            run_id = scope.facts.run_id
            if run_id in runs or len(runs) < MOST_RUNS:
                try:
                    runs.setdefault(run_id, []).append(
                        (scope, self._state(known, scope, rates.get(scope.facts.scope_id), flying[scope.facts.scope_id]))
                    )
                except Exception as error:  # noqa: BLE001 - one unreadable scope must not hide the others
                    swallow("live.state", error)
        told = tuple(_run(run_id, members) for run_id, members in runs.items() if members)
        left_out = self._left_out + len(kept) - sum(len(run.scopes) for run in told)
        refusals = tuple(LiveEvent(**_told(each)) for each in tuple(self._refusals))
        return ProcessState(os.getpid(), _program(), began(os.getpid()) or _LOADED, told, max(0, left_out), refusals)

    def _state(self, known: _Open, scope: Scope, rate: float | None, flying: int) -> ScopeState:
        facts, spend = scope.facts, scope.spend()
        least = None if spend.unreported_calls or spend.unsplit_tokens else 0
        heard, heard_ns = known.heard, known.heard_ns
        place, lease, priority = facts.supervision, None, None
        if facts.kind is ScopeKind.AGENT:
            lease = scope.lease
            priority = lease.priority if lease is not None else None if place is None else place.priority
        limits, unlisted = _limits(scope, spend, assumed=known.assumed)
        return ScopeState(
            scope_id=facts.scope_id,
            parent_id=self._around(scope),
            kind=cast("Any", facts.kind.value),
            name=cut(facts.name),
            agent_id=cut(facts.agent_id),
            status=_status(scope),
            priority=None if priority is None else cast("Any", priority.name.lower()),
            depth=0 if place is None else place.depth,
            age_s=spend.duration_s,
            input_tokens=spend.input_tokens or least,
            output_tokens=spend.output_tokens or least,
            cost_usd=spend.cost_usd,
            requests=max(0, spend.requests),
            tool_calls=max(0, spend.tool_calls),
            tokens_per_s=rate,
            last_event=cut(" ".join(str(word) for word in heard if word is not None)) if heard else None,
            last_event_age_s=(time.monotonic_ns() - heard_ns) / NANO if heard else None,
            limits_left_out=unlisted,
            limits=limits,
            refused=max(0, spend.refused),
            last_refusal=known.refusal,
            is_raised=known.is_raised(scope),
            waits_for=cut(next(iter(scope.waits_for), None)),
            uncosted=max(0, spend.unpriced_calls + spend.unreported_calls) + flying,
            estimated=max(0, spend.estimated_calls),
            assumed=known.assumed,
            pauses=None if lease is None or lease.is_root else scope.rules.waits,
        )

    def _around(self, scope: Scope) -> str | None:
        outer = scope.parent
        while outer is not None and outer.facts.scope_id not in self._open:
            outer = outer.parent
        return None if outer is None else outer.facts.scope_id


def _rates(kept: Iterable[tuple[_Open, Scope]]) -> dict[str, float]:
    """Return the output tokens a second of the last 10 s by scope, as what calls cost is charged; none where nobody knows yet.

    A call that has ended made its tokens evenly over its time. One in flight tells nothing before its end.
    """
    now = time.monotonic_ns()
    since = now - WINDOW_S * NANO
    made: dict[str, float] = {}
    silent: set[str] = set()
    for known, scope in kept:
        mine = sum(_share(call, since) for call in tuple(known.ended))
        for payer in scope.charged():
            scope_id = payer.facts.scope_id
            made[scope_id] = made.get(scope_id, 0.0) + mine
            if known.flying:
                silent.add(scope_id)
    return {scope_id: tokens / WINDOW_S for scope_id, tokens in made.items() if tokens or scope_id not in silent}


def _flying(kept: Iterable[tuple[_Open, Scope]]) -> Counter[str]:
    """Count the calls in flight by scope, as what they cost is charged."""
    found = Counter[str]()
    for known, scope in kept:
        number = len(known.flying)
        found.update({payer.facts.scope_id: number for payer in scope.charged()} if number else {})
    return found


def _share(call: tuple[int, int, int], since_ns: int) -> float:
    ended_ns, took_ns, tokens = call
    inside = ended_ns - max(since_ns, ended_ns - took_ns)
    if inside <= 0:
        return float(tokens) if took_ns <= 0 and ended_ns >= since_ns else 0.0
    return tokens * inside / took_ns


def _run(run_id: str | None, members: list[tuple[Scope, ScopeState]]) -> RunState:
    top, first = next((each for each in members if each[0].facts.kind is ScopeKind.RUN), members[0])
    cancelled = run_id is not None and top.cancellation is not None and top.cancellation.cancelled
    status: Any = "cancelled" if cancelled else "closed" if run_id is not None and top.closed else "open"
    about = (cut(each) for each in (top.facts.user_id, top.facts.tenant_id, top.facts.session_id, top.trace_id))
    return RunState(run_id, cut(top.facts.run_name), status, first.age_s, tuple(state for _, state in members), *about)


def _status(scope: Scope) -> State:
    if scope.closed:
        return "closed"
    if scope.lease is not None and scope.lease.paused:
        return "paused"
    if scope.clock.waits[0] > 0:
        return "waiting"
    token = scope.cancellation if scope.facts.kind is ScopeKind.AGENT else None  # a run's is told of the whole run
    return "cancelled" if token is not None and token.cancelled else "open"


def _limits(scope: Scope, spend: Spend, *, assumed: bool) -> tuple[tuple[LimitState, ...], int]:
    """Return the fullest limits of a scope, as many as an answer takes, and how many more there are, or nobody knows how full."""
    refresh(scope.engine.ledger, scope.accounts)  # who watches before the first call wants to know what others have used, too
    accounts = scope.counters()
    readings = sorted(((scope.reading(each), each) for each in accounts), key=lambda pair: -pair[0].fullness)
    limits = [state for reading, account in readings if (state := _limit(reading, account, spend, assumed=assumed)) is not None]
    return tuple(limits[:MOST_LIMITS]), len(accounts) - len(limits[:MOST_LIMITS])


def _limit(reading: LimitReading, account: Account, spend: Spend, *, assumed: bool) -> LimitState | None:
    if not all(is_number(each) for each in (reading.used, reading.held, reading.limit.amount, reading.ratio if reading.limit.value else 0)):
        return None
    return LimitState.of(
        reading,
        unpriced=spend.unpriced_calls,
        estimated=spend.estimated_calls,
        assumed=assumed,
        warn_at=account.warn_at,
        only_watched=account.observe,
        source=cut(place_of(account.origin) or account.origin) if account.origin else None,
    )


def _program() -> str:
    first = sys.argv[0] if sys.argv else ""
    return cut(Path(first).name if first not in ("", "-c") else "python") or "python"


_LOADED: Final = time.time()
"""When this was imported, for systems that do not say when a process began."""
