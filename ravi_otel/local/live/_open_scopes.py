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
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.store_ledger import refresh
from ravi_otel._enforcement.scope import Scope
from ravi_otel.errors import RaviError
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
from ravi_otel.local._store import began
from ravi_otel.local.live._protocol import (
    MOST_EVENTS,
    MOST_LIMITS,
    MOST_REFUSALS,
    MOST_RUNS,
    MOST_SCOPES,
    MOST_SENTENCE,
    Happened,
    LimitState,
    LiveEvent,
    ProcessState,
    RunState,
    ScopeState,
    State,
    cut,
    is_number,
)
from ravi_otel.policy._limits import NANO, SPENDS, Kind, ScopeKind, format_public_amount, place_of, public_amount
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Usage

WINDOW_S: Final = 10
_MOST_CALLS: Final = 128
_KINDS: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT, ScopeKind.HANDOFF, ScopeKind.BLOCK})
_SPAWN: Final = {"granted": "spawn_granted", "denied": "spawn_denied", "released": "spawn_released"}


class _Event(NamedTuple):
    """What happened, as little as has to be taken down at once; `LiveEvent` says what it means. Nothing in it refers to a scope."""

    event: str
    at_ns: int
    facts: ScopeFacts | None
    call: tuple[object, ...] = ()
    status: str | None = None
    sentence: object = None
    call_id: str | None = None
    limit_kind: str | None = None
    usage: Usage | None = None
    cost_nano: int | None = None
    duration_ns: int | None = None
    ids: tuple[str | None, str | None, str | None] | None = None
    """Run, scope and agent, of what happened where no facts are known."""

    def told(self) -> LiveEvent:
        """Say it in words and public units."""
        facts, usage = self.facts, self.usage
        run_id, scope_id, agent = self.ids or (None, None, None)
        if facts is not None:
            run_id, scope_id, agent = facts.run_id, facts.scope_id, facts.agent_name
        known = None if usage is None or usage.tokenless or usage.total_only else usage
        return LiveEvent(
            event=self.event,
            at_unix_s=self.at_ns / NANO,
            run_id=run_id,
            scope_id=scope_id,
            agent=cut(agent),
            call=cut(" ".join(str(word) for word in self.call if word is not None)) if self.call else None,
            status=self.status,
            sentence=cut(self.sentence, MOST_SENTENCE),
            call_id=cut(self.call_id),
            limit_kind=cut(self.limit_kind),
            input_tokens=None if known is None else known.input_tokens,
            output_tokens=None if known is None else known.output_tokens,
            cost_usd=None if self.cost_nano is None else self.cost_nano / NANO,
            duration_s=None if self.duration_ns is None else self.duration_ns / NANO,
        )


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

    def take(self) -> Happened | None:
        """Return what happened since this was asked last, None where nothing did."""
        heard, events = self._heard, [self._events.popleft() for _ in range(len(self._events))]
        missed, self._told = heard - self._told - len(events), heard
        if not events:
            return None
        return Happened(tuple(each.told() for each in events), max(0, missed))


class _Open:
    """One open scope: what was heard of it last, its calls in flight, and the ended ones that the rate is made of."""

    __slots__ = ("assumed", "ended", "flying", "heard", "heard_ns", "refusal", "refused_ns", "refused_tool", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = weakref.ref(scope)
        self.heard: tuple[object, ...] = ()
        self.heard_ns = 0
        self.refusal: str | None = None
        """The sentence of the last refusal, until such a call goes through that began after it."""
        self.refused_ns = 0
        self.refused_tool: str | None = None
        self.flying: dict[str, None] = {}
        self.assumed = False
        """Whether something of its cost is by the prices of a provider that is only assumed."""
        self.ended: deque[tuple[int, int, int]] = deque(maxlen=_MOST_CALLS)  # when, for how long, and output tokens

    def hear(self, *words: object) -> None:
        """Note what happened; it is put into words when somebody asks."""
        self.heard, self.heard_ns = words, time.monotonic_ns()

    def refuse(self, sentence: str | None, tool: str | None) -> None:
        """Note the refusal of a tool, None for a call of a model."""
        self.refusal, self.refused_ns, self.refused_tool = sentence, time.monotonic_ns(), tool

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
        if self._begin is not None:
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
        if self._followers:
            self._emit("scope_opened", facts, (facts.kind.value, facts.name))

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
        if self._followers:
            self._emit("scope_closed", facts, (facts.kind.value, facts.name), scope.status, scope.stop_reason)

    def _forget_the_gone(self) -> None:
        for scope_id, known in list(self._open.items()):
            if known.scope() is None:
                self._open.pop(scope_id, None)

    def call_started(self, record: CallRecord) -> None:
        """Note a call in flight."""
        if self._begin is not None:
            self._work_has_begun()
        call = record.call
        known = self._open.get(record.facts.scope_id)
        if known is not None:
            known.flying[record.op_id] = None
            known.hear("calls", call.model)
        if self._followers:
            self._emit("llm_start", record.facts, (call.operation, call.model), None, None, record.op_id)

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Note a failed attempt."""
        self._hear(record.facts.scope_id, "retry", retry.attempt, retry.error_type)
        if self._followers:
            what = (record.call.operation, record.call.model)
            self._emit("retry", record.facts, what, None, f"attempt {retry.attempt} failed: {retry.error_type}", record.op_id)

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
        sentence = self._refused(record, (call.operation, call.model), known) if record.status == "refused" else record.error_type
        if self._followers:
            used = (record.op_id, record.limit_kind, record.usage, record.cost_nano, record.duration_ns)
            self._emit("llm_end", record.facts, (call.operation, call.model), record.status, sentence, *used)

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
        if self._followers:
            self._emit("tool_start", record.facts, (record.name,), None, None, record.op_id)

    def tool_ended(self, record: ToolRecord) -> None:
        """Note how it ended."""
        known = self._hear(record.facts.scope_id, "tool", record.name, record.status)
        if known is not None and known.refusal is not None and record.status == "ok":
            known.let_through(record.name, record.duration_ns)
        sentence = self._refused(record, ("tool", record.name), known) if record.status == "refused" else record.error_type
        if self._followers:
            used = (record.op_id, record.limit_kind, None, None, record.duration_ns)
            self._emit("tool_end", record.facts, (record.name,), record.status, sentence, *used)

    def _refused(self, record: CallRecord | ToolRecord, call: tuple[object, ...], known: _Open | None) -> str | None:
        """Keep a refusal; return its sentence, where it is ours: what others' errors say may quote a prompt."""
        sentence = cut(record.error, MOST_SENTENCE) if isinstance(record.error, RaviError) else record.limit_reason
        if known is not None:
            known.refuse(sentence, record.name if isinstance(record, ToolRecord) else None)
        used = (record.op_id, record.limit_kind, None, None, record.duration_ns)
        self._refusals.append(_Event("refused", time.time_ns(), record.facts, call, "refused", sentence, *used))
        return sentence

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Note it with the limit's scope, and with the one it happened in."""
        what = event.tracker or event.limit_kind
        for scope_id in {event.scope_id, *(() if at is None else (at.facts.scope_id,))}:
            self._hear(scope_id, event.event, what)
        if self._followers:
            agent = event.agent_name if at is None else at.facts.agent_name
            used, of = (format_public_amount(event.limit_kind, each) for each in (event.used, event.threshold))
            sentence = f"{used} of {of} {what} used in {event.scope.value} {event.scope_name or ''}".rstrip()
            run_id = event.run_id or (None if at is None else at.facts.run_id)
            ids = (run_id, event.scope_id, agent)
            op_id = None if at is None else at.op_id
            self._emit(event.event, None, (what,), event.decision, sentence, op_id, event.limit_kind, None, None, None, ids)

    def spawn_event(self, event: SpawnEvent) -> None:
        """Note it with its run."""
        run_id = None if event.run_id is None else str(event.run_id)
        scope_id = self._runs.get(str(run_id))
        self._hear(scope_id, "slot", event.outcome, event.agent_id)
        if self._followers:
            what, ids = _SPAWN.get(event.outcome, event.outcome), (run_id, scope_id, event.agent_name or event.agent_id)
            self._emit(what, None, ("agent", event.agent_id), None, None, None, event.limit_kind, None, None, None, ids)

    def reviewed(self, event: ReviewEvent) -> None:
        """Note what a gate decided."""
        self._hear(event.facts.scope_id, "review", event.tool, event.decision)
        if self._followers:
            self._emit("review", event.facts, (event.tool or "answer",), event.decision, event.reason)

    def told(self, notice: Notice) -> None:
        """Note what the program, or an operator, says."""
        self._hear(notice.facts.scope_id, notice.text)
        if self._followers:
            self._emit(notice.what, notice.facts, (), None, notice.text)

    def _hear(self, scope_id: str | None, *words: object) -> _Open | None:
        known = None if scope_id is None else self._open.get(scope_id)
        if known is not None:
            known.hear(*words)
        return known

    def _emit(self, event: str, facts: ScopeFacts | None, *more: Any) -> None:
        told = _Event(event, time.time_ns(), facts, *more)
        for each in self._followers:
            each.hear(told)

    # -- what is asked --------------------------------------------------------------------------------------------

    def find(self, scope_id: str) -> Scope | None:
        """Return an open scope by its id; None when it is not open, or the parent process's."""
        known = self._open.get(scope_id)
        scope = None if known is None else known.scope()
        return None if scope is None or scope.abandoned or scope.clock.ended_ns is not None else scope

    def state(self, most: int = MOST_SCOPES) -> ProcessState:
        """Read all that is open, at most so many scopes, the oldest first."""
        alive = [(known, scope) for known in list(self._open.values()) if (scope := known.scope()) is not None and not scope.abandoned]
        kept = [(known, scope) for known, scope in alive if scope.clock.ended_ns is None]
        rates = _rates(kept)
        runs: dict[str | None, list[tuple[Scope, ScopeState]]] = {}
        for known, scope in kept[:most]:
            run_id = scope.facts.run_id
            if run_id in runs or len(runs) < MOST_RUNS:
                try:
                    runs.setdefault(run_id, []).append((scope, self._state(known, scope, rates.get(scope.facts.scope_id))))
                except Exception as error:  # noqa: BLE001 - one unreadable scope must not hide the others
                    swallow("live.state", error)
        told = tuple(_run(run_id, members) for run_id, members in runs.items() if members)
        left_out = self._left_out + len(kept) - sum(len(run.scopes) for run in told)
        refusals = tuple(each.told() for each in tuple(self._refusals))
        return ProcessState(os.getpid(), _program(), began(os.getpid()) or _LOADED, told, max(0, left_out), refusals)

    def _state(self, known: _Open, scope: Scope, rate: float | None) -> ScopeState:
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
            waits_for=cut(next(iter(scope.waits_for), None)),
            uncosted=max(0, spend.unpriced_calls + spend.unreported_calls),
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
    is_of_cost = reading.limit.kind == Kind.COST
    return LimitState.of(
        reading,
        warn_at=account.warn_at,
        only_watched=account.observe,
        source=cut(place_of(account.origin) or account.origin) if account.origin else None,
        declared=None if account.value == account.limit.value else public_amount(account.limit.kind, account.limit.value),
        at_least=is_of_cost and spend.unpriced_calls > 0,
        estimated=reading.limit.kind in SPENDS and (spend.estimated_calls > 0 or (is_of_cost and assumed)),
    )


def _program() -> str:
    first = sys.argv[0] if sys.argv else ""
    return cut(Path(first).name if first not in ("", "-c") else "python") or "python"


_LOADED: Final = time.time()
"""When this was imported, for systems that do not say when a process began."""
