"""Walk one model call through the layers: told, checked, admitted, sent, read, settled, told again.

The only place that puts these in order. `walk` is a flow, so one text serves both colours. The span opens before the
checkpoint, so that a call refused for time or cancellation is seen like any other refusal.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from ravi_otel._flow import Flow, Step, cause, run_sync
from ravi_otel.enforcement import admission, refusal
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.contract import Denied, Reservation, new_op_id
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts, add_usage
from ravi_otel.errors import BudgetContendedError, BudgetError, RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord, RetryRecord, Status
from ravi_otel.policy.limits import NANO, Kind
from ravi_otel.policy.usage import Call, Reply, Usage
from ravi_otel.runtime.state import STATE

LONGEST_WAIT_S = 30.0
"""How long a call waits in line for what others hold, if no deadline comes first."""

REFUSED = "ravi.limit_exceeded"
"""The `error.type` of a call that a limit refused."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Tell how a send failed, in words of no client library.

    `sent` is False when no byte left this process; `billed` False when the provider refused without charging; `usage`
    is what the error itself reports, or what of a stream was received; `reply` is an answer that came all the same.
    """

    error_type: str
    sent: bool = True
    billed: bool = True
    usage: Usage | None = None
    reply: Reply | None = None


class Wire(Protocol):
    """Send one call over somebody's client, and read what comes back."""

    def step(self, live: LiveCall) -> Step:
        """Give the step that sends it."""
        ...

    def watch(self, live: LiveCall, result: Any) -> bool:
        """Arrange for a result that is still open, such as a stream, to end `live` later; False when it is complete."""
        ...

    def reply(self, result: Any) -> Reply:
        """Read a complete result."""
        ...

    def ending(self, live: LiveCall, error: BaseException) -> Ending:
        """Tell how the send failed."""
        ...


class LiveCall:
    """Follow one call until it is settled, exactly once, whoever ends it first."""

    __slots__ = ("_expected", "_held", "_lock", "_over", "_unpaid", "admitted", "built", "record", "scope")

    def __init__(self, scope: Scope, call: Call) -> None:
        self.scope = scope
        self.record = CallRecord(call, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns())
        self.admitted = False
        self.built = False
        self._expected = admission.NOTHING
        self._held = False
        self._unpaid = False
        self._over = False
        self._lock = threading.Lock()

    # -- before it is sent ----------------------------------------------------------------------------------------

    def admit(self, *, blocking: bool) -> Flow[None]:
        """Hold what the call may take; raise when a limit, the deadline or a cancellation stands against it."""
        record, scope, engine = self.record, self.scope, self.scope.engine
        call = record.call
        scope.checkpoint(record)
        if call.generative:
            chain = scope.chain
            card = engine.prices.card(call.provider, call.model) if admission.has_cost_limit(chain) else None
            self._expected = admission.estimate(call, card)
            lines = admission.call_lines(scope, call, self._expected)
            if lines:
                patience = _patience(scope, blocking=blocking)
                floor: dict[str, int] = {Kind.TOKENS: self._expected.input_tokens}
                request = Reservation(record.op_id, lines, floor, _owner(), patience)
                answer = yield from engine.ledger.reserve(request)
                engine.tell(answer.crossings, record)
                if isinstance(answer, Denied):
                    record.limit_kind, record.limit_scope = answer.account.kind, answer.account.facts.kind
                    record.limit_reason = answer.reason
                    engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
                    raise owned(refusal.refused(answer), answer.account)
                self._held = True
                record.granted = answer.granted
                if answer.observed is not None:
                    record.decision = "observed"
                    record.limit_kind, record.limit_scope = answer.observed.kind, answer.observed.facts.kind
            add_counts(scope.tallies, requests=1, turns=int(call.turn))
        record.decision = record.decision or "admitted"
        self.admitted = True

    def attempt(self, retries_taken: int) -> None:
        """Pay for one more attempt, right before its request is built; raises when it may not be sent.

        The first is covered by the call's own reservation, and so is one that follows an attempt that never left.
        """
        if retries_taken > 0 and self.record.call.generative:
            self.scope.checkpoint(self.record)
            if self._unpaid:
                self._unpaid = False
                return
            self.scope.reserve_now(admission.attempt_lines(self.scope), self.record)
            add_counts(self.scope.tallies, requests=1)

    def retrying(self, *, status: int | None, wait_s: float | None, error_type: str | None, sent: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._unpaid = not sent
        self.record.retries.append(RetryRecord(len(self.record.retries) + 1, status, wait_s, error_type))

    # -- after ----------------------------------------------------------------------------------------------------

    def chunk(self) -> None:
        """Note that the first chunk of a stream came."""
        if self.record.first_chunk_ns is None:
            self.record.first_chunk_ns = self.scope.engine.clock.monotonic_ns() - self.record.started_ns

    def succeed(self, reply: Reply) -> None:
        """Settle with what the provider reported."""
        if self._end():
            status: Status = "ok" if reply.error_type is None else "error"
            self._close(status, reply, reply.usage, reply.error_type)

    def fail(self, error: BaseException, ending: Ending, reply: Reply | None = None) -> None:
        """Settle or release what a failed send held."""
        if not self._end():
            return
        self.record.error = error
        if not self.admitted:
            self._refused(error)
            return
        status: Status = "error" if isinstance(error, Exception) else "cancelled"
        add_counts(self.scope.tallies, errors=1)
        if not ending.sent and not self.record.retries:
            self._unsent(status, ending)
            return
        usage = Usage() if not ending.billed else ending.usage or _floor(self._expected)
        self._close(status, reply or ending.reply or Reply(), usage, ending.error_type)

    def _end(self) -> bool:
        with self._lock:
            over, self._over = self._over, True
        return not over

    def _refused(self, error: BaseException) -> None:
        record = self.record
        if isinstance(error, RaviError):
            record.decision, record.error_type = "denied", REFUSED
            if isinstance(error, BudgetError):
                record.limit_kind = record.limit_kind or error.limit_kind
                record.limit_reason = record.limit_reason or error.reason
                if error.reason == "unpriced_model":
                    self.scope.engine.count("unpriced")
            if not isinstance(error, BudgetContendedError):
                add_counts(self.scope.tallies, refused=1)
            self._told("refused")
        else:
            record.error_type = type(error).__name__
            self._told("error" if isinstance(error, Exception) else "cancelled")

    def _unsent(self, status: Status, ending: Ending) -> None:
        call = self.record.call
        if self._held:
            run_sync(self.scope.engine.ledger.release(self.record.op_id))
        if call.generative:
            add_counts(self.scope.tallies, requests=-1, turns=-int(call.turn))
        self.record.error_type = ending.error_type
        self._told(status)

    def _close(self, status: Status, reply: Reply, usage: Usage | None, error_type: str | None) -> None:
        record, engine, call = self.record, self.scope.engine, self.record.call
        cost: int | None = None
        if usage is not None and call.generative:
            cost = self._price(reply, usage)
            add_usage(self.scope.tallies, usage, cost)
            if cost is None:
                engine.count("unpriced")
        if self._held:
            messages = None if call.messages is None else call.messages + reply.answers
            actual = None if usage is None else admission.actual_amounts(usage, cost, messages)
            engine.settle(record.op_id, actual, record)
        record.reply, record.usage, record.error_type = reply, usage, error_type
        self._told(status)

    def _price(self, reply: Reply, usage: Usage) -> int | None:
        call = self.record.call
        try:
            cost, source = self.scope.engine.prices.cost(call.provider, reply.model, call.model, usage, reply.service_tier)
        except Exception as error:  # noqa: BLE001 - a price that cannot be had is unknown, and the call goes on
            swallow("pricing", error)
            return None
        self.record.cost_nano = cost
        self.record.cost_source = "assumed" if call.provider_assumed and source not in (None, "override") else source
        return cost

    def _told(self, status: Status) -> None:
        record = self.record
        record.status = status
        record.duration_ns = self.scope.engine.clock.monotonic_ns() - record.started_ns
        self.scope.engine.listeners.call_ended(record)


def walk(call: Call, wire: Wire, *, blocking: bool) -> Flow[Any]:
    """Send one call through every layer; the result or the exception is the client's own, or a refusal of ours."""
    drain_orphans()
    scope, scoped = STATE.locate()
    live = LiveCall(scope, call)
    if not scoped and call.generative:
        scope.engine.count("unscoped")
    entered = scope.engine.listeners.call_started(live.record)
    try:
        yield from live.admit(blocking=blocking)
        result = yield wire.step(live)
    except BaseException as raised:
        error = cause(raised)
        live.fail(error, wire.ending(live, error))
        raise
    finally:
        entered.leave()
    conclude(live, wire, result)
    return result


def conclude(live: LiveCall, wire: Wire, result: Any) -> None:
    """Settle a complete result, or leave an open one to its watcher; a bug in reading it is ours alone."""
    try:
        if wire.watch(live, result):
            return
        reply = wire.reply(result)
    except Exception as error:  # noqa: BLE001 - the result is the user's whatever we make of it
        swallow("read", error)
        reply = Reply()
    live.succeed(reply)


# -- calls nobody will end any more ---------------------------------------------------------------------------------

_orphans: deque[tuple[LiveCall, Reply, Ending, bool]] = deque()


def orphan(live: LiveCall, reply: Reply, ending: Ending, complete: bool) -> None:
    """Queue a call whose stream was dropped, `complete` or not; safe in a finaliser, because it takes no lock."""
    _orphans.append((live, reply, ending, complete))


def drain_orphans() -> None:
    """Settle what finalisers queued; runs at the next call and at exit."""
    while _orphans:
        try:
            live, reply, ending, complete = _orphans.popleft()
        except IndexError:
            return
        if complete:
            live.succeed(reply)
        else:
            live.fail(GeneratorExit("the stream was dropped before its end"), ending, reply)


def _floor(expected: admission.Estimate) -> Usage:
    return Usage(input_tokens=expected.input_tokens, source="estimated")


def _owner() -> object:
    """Identify the task, or else the thread, that asks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else task


def _patience(scope: Scope, *, blocking: bool) -> float:
    """Bound the wait by the time left; synchronous code on a thread that runs an event loop must not wait at all."""
    if blocking:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            return 0.0
    now = scope.engine.clock.monotonic_ns()
    left = [(account.value - (now - since)) / NANO for account, since in scope.clocks if not account.observe]
    return max(0.0, min([LONGEST_WAIT_S, *left]))
