"""Note which runs, agents and blocks of this process are open, and photograph them when somebody asks.

What they used and may use is read from the scopes at that moment. Noted are only who is open, what was heard of each last, and how
many tokens its calls of the last seconds made. Scopes are held weakly, and at most 2,000 of them.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ravi_otel._enforcement.ledger.front import refresh
from ravi_otel._enforcement.scope import Scope
from ravi_otel.hooks._events import CallRecord, LimitEvent, LimitReading, Notice, RetryRecord, ScopeView, SpawnEvent, ToolRecord, Totals
from ravi_otel.hooks._listeners import Listener, swallow
from ravi_otel.local.live.protocol import (
    KINDS,
    MOST_LIMITS,
    MOST_RUNS,
    MOST_SCOPES,
    MOST_TEXT,
    LimitState,
    ProcessState,
    RunState,
    ScopeState,
    is_number,
)
from ravi_otel.local.store.processes import began
from ravi_otel.policy._limits import NANO, UNITS, ScopeKind

WINDOW_S: Final = 10
_MOST_CALLS: Final = 128


class _Open:
    """Be one open scope: what was heard of it last, its calls in flight, and the ended ones that the rate is made of."""

    __slots__ = ("ended", "flying", "heard", "heard_ns", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = weakref.ref(scope)
        self.heard: tuple[object, ...] = ()
        self.heard_ns = 0
        self.flying: dict[str, None] = {}
        self.ended: deque[tuple[int, int, int]] = deque(maxlen=_MOST_CALLS)  # when, for how long, and output tokens

    def hear(self, *words: object) -> None:
        """Note what happened; it is put into words when somebody asks."""
        self.heard, self.heard_ns = words, time.monotonic_ns()


class Watch(Listener):
    """Listen, and know what is open. Nothing in it takes a lock: each change is one step of a dict or a deque."""

    def __init__(self, begin: Callable[[], object], retire: Callable[[], object]) -> None:
        self._begin: Callable[[], object] | None = begin
        self.retire = retire
        """Have nobody watch any more: for the end of instrumentation."""
        self.renew(begin)

    def renew(self, begin: Callable[[], object]) -> None:
        """Begin with nothing open: at the start, and in a forked child."""
        self._begin = begin
        self._open: dict[str, _Open] = {}
        self._runs: dict[str, str] = {}
        self._left_out = 0

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
        if not isinstance(scope, Scope) or facts.kind.value not in KINDS:
            return
        if len(self._open) >= MOST_SCOPES:
            self._forget_the_gone()
        if len(self._open) >= MOST_SCOPES:
            self._left_out += 1
            return
        self._open[facts.scope_id] = _Open(scope)
        if facts.kind is ScopeKind.RUN:
            self._runs[str(facts.run_id)] = facts.scope_id

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:  # noqa: ARG002 - the listener's signature
        """Forget it; who is around is told how it ended, and keeps its calls of the last seconds."""
        facts = scope.facts
        gone = self._open.pop(facts.scope_id, None)
        if facts.kind is ScopeKind.RUN and self._runs.get(str(facts.run_id)) == facts.scope_id:
            self._runs.pop(str(facts.run_id), None)
        if gone is None:
            self._left_out = max(0, self._left_out - 1)
            return
        for outer in reversed(_payers(scope)[:-1]):
            known = self._open.get(outer.facts.scope_id)
            if known is not None:
                known.ended.extend(gone.ended)
                break
        around = None if scope.parent is None else self._open.get(scope.parent.facts.scope_id)
        if around is not None:
            around.hear(facts.kind.value, facts.name, scope.status)

    def _forget_the_gone(self) -> None:
        for scope_id, known in list(self._open.items()):
            if known.scope() is None:
                self._open.pop(scope_id, None)

    def call_started(self, record: CallRecord) -> None:
        """Note a call in flight."""
        if self._begin is not None:
            self._work_has_begun()
        known = self._open.get(record.facts.scope_id)
        if known is not None:
            known.flying[record.op_id] = None
            known.hear("calls", record.call.model)

    def call_retried(self, record: CallRecord, retry: RetryRecord) -> None:
        """Note a failed attempt."""
        self._hear(record.facts.scope_id, "retry", retry.attempt, retry.error_type)

    def call_ended(self, record: CallRecord) -> None:
        """Note how it ended, and how many tokens came of it in which time."""
        known = self._open.get(record.facts.scope_id)
        if known is None:
            return
        known.flying.pop(record.op_id, None)
        known.hear(record.call.model, record.status)
        if record.usage is not None and record.usage.output_tokens > 0:
            known.ended.append((time.monotonic_ns(), record.duration_ns, record.usage.output_tokens))

    def tool_started(self, record: ToolRecord) -> None:
        """Note a tool at work."""
        self._hear(record.facts.scope_id, "tool", record.name)

    def tool_ended(self, record: ToolRecord) -> None:
        """Note how it ended."""
        self._hear(record.facts.scope_id, "tool", record.name, record.status)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Note it with the limit's scope, and with the one it happened in."""
        for scope_id in {event.scope_id, *(() if at is None else (at.facts.scope_id,))}:
            self._hear(scope_id, event.event, event.tracker or event.limit_kind)

    def spawn_event(self, event: SpawnEvent) -> None:
        """Note it with its run."""
        self._hear(self._runs.get(str(event.run_id)), "slot", event.outcome, event.agent_id)

    def told(self, notice: Notice) -> None:
        """Note what the program, or an operator, says."""
        self._hear(notice.facts.scope_id, notice.text)

    def _hear(self, scope_id: str | None, *words: object) -> None:
        known = None if scope_id is None else self._open.get(scope_id)
        if known is not None:
            known.hear(*words)

    # -- what is asked --------------------------------------------------------------------------------------------

    def find(self, scope_id: str) -> Scope | None:
        """Give an open scope by its id; None when it is not open, or the parent process's."""
        known = self._open.get(scope_id)
        scope = None if known is None else known.scope()
        return None if scope is None or scope.abandoned or scope.clock.ended_ns is not None else scope

    def photograph(self, most: int = MOST_SCOPES) -> ProcessState:
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
        return ProcessState(os.getpid(), _program(), began(os.getpid()) or _LOADED, told, max(0, left_out))

    def _state(self, known: _Open, scope: Scope, rate: float | None) -> ScopeState:
        facts, spend = scope.facts, scope.spend()
        least = None if spend.unreported_calls or spend.unsplit_tokens else 0
        heard, heard_ns = known.heard, known.heard_ns
        place = facts.supervision
        priority = None
        if facts.kind is ScopeKind.AGENT:
            priority = scope.lease.priority if scope.lease is not None else None if place is None else place.priority
        limits, unlisted = _limits(scope)
        return ScopeState(
            scope_id=facts.scope_id,
            parent_id=self._around(scope),
            kind=facts.kind.value,
            name=_cut(facts.name),
            agent_id=_cut(facts.agent_id),
            status=_status(scope),
            priority=None if priority is None else priority.name.lower(),
            depth=0 if place is None else place.depth,
            age_s=spend.duration_s,
            input_tokens=spend.input_tokens or least,
            output_tokens=spend.output_tokens or least,
            cost_usd=spend.cost_usd,
            requests=max(0, spend.requests),
            tool_calls=max(0, spend.tool_calls),
            tokens_per_s=rate,
            last_event=_cut(" ".join(str(word) for word in heard if word is not None)) if heard else None,
            last_event_age_s=(time.monotonic_ns() - heard_ns) / NANO if heard else None,
            limits_left_out=unlisted,
            limits=limits,
        )

    def _around(self, scope: Scope) -> str | None:
        outer = scope.parent
        while outer is not None and outer.facts.scope_id not in self._open:
            outer = outer.parent
        return None if outer is None else outer.facts.scope_id


def _payers(scope: ScopeView) -> list[Scope]:
    return scope.charged() if isinstance(scope, Scope) else []


def _rates(kept: Iterable[tuple[_Open, Scope]]) -> dict[str, float]:
    """Give the output tokens a second of the last 10 s by scope, as what calls cost is charged; none where nobody knows yet.

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
    status = "open"
    if run_id is not None:
        cancelled = top.cancellation is not None and top.cancellation.cancelled
        status = "cancelled" if cancelled else "closed" if top.closed else "open"
    return RunState(run_id, _cut(top.facts.run_name), status, first.age_s, tuple(state for _, state in members))


def _status(scope: Scope) -> str:
    if scope.closed:
        return "closed"
    if scope.lease is not None and scope.lease.paused:
        return "paused"
    if scope.clock.waits[0] > 0:
        return "waiting"
    token = scope.cancellation if scope.facts.kind is ScopeKind.AGENT else None  # a run's is told of the whole run
    return "cancelled" if token is not None and token.cancelled else "open"


def _limits(scope: Scope) -> tuple[tuple[LimitState, ...], int]:
    """Give the limits of a scope, the fullest first, as many as an answer takes, and how many more there are, or nobody knows how full."""
    refresh(scope.engine.ledger, scope.accounts)  # who watches before the first call wants to know what others have used, too
    readings = sorted(scope.readings(), key=lambda reading: -reading.fullness)
    limits = [state for state in map(_limit, readings) if state is not None]
    return tuple(limits[:MOST_LIMITS]), len(readings) - len(limits[:MOST_LIMITS])


def _limit(reading: LimitReading) -> LimitState | None:
    limit = reading.limit
    if not (is_number(reading.used) and is_number(reading.held) and is_number(limit.amount)):
        return None
    ratio = reading.ratio if limit.value and is_number(reading.ratio) else None
    return LimitState(limit.label[:MOST_TEXT], reading.used, reading.held, limit.amount, ratio, UNITS.get(limit.kind, "1"))


def _cut(text: object) -> str | None:
    if text is None:
        return None
    written = str(text)
    return written if len(written) <= MOST_TEXT else f"{written[: MOST_TEXT - 1]}…"


def _program() -> str:
    first = sys.argv[0] if sys.argv else ""
    return _cut(Path(first).name if first not in ("", "-c") else "python") or "python"


_LOADED: Final = time.time()
"""When this was imported, for systems that do not say when a process began."""
