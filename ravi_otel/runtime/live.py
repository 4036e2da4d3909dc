"""Follow one model call from its admission to its settlement, exactly once, whoever ends it first."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass

from ravi_otel._flow import Flow, is_done, run_sync
from ravi_otel.enforcement import admission, refusal
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.contract import Account, Denied, Grant, Line, Reservation, new_op_id
from ravi_otel.enforcement.line import on_event_loop
from ravi_otel.enforcement.scope import Scope
from ravi_otel.enforcement.tally import add_counts, add_request, add_usage
from ravi_otel.errors import BudgetContendedError, BudgetError, RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord, RetryRecord, Status
from ravi_otel.policy.limits import NANO, Kind
from ravi_otel.policy.usage import Call, Reply, Usage
from ravi_otel.runtime.late import attend

_TOKENS = Kind.TOKENS.value

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


class LiveCall:
    """Hold what one call was granted, and give each way it can end its settlement."""

    __slots__ = (
        "_asked",
        "_credit",
        "_expected",
        "_held",
        "_lock",
        "_over",
        "_paid_attempt",
        "_sent_before",
        "_settled",
        "admitted",
        "built",
        "record",
        "scope",
        "waiting",
    )

    def __init__(self, scope: Scope, call: Call) -> None:
        self.scope = scope
        self.record = CallRecord(call, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns())
        self.admitted = False
        self.built = False
        self._expected = admission.NOTHING
        self._held = False
        self._asked = False  # the ledger may know this operation
        self._settled = False
        self.waiting = False
        self._sent_before = False  # an earlier attempt of this call reached the provider
        self._credit = False  # an attempt was paid for and never left: the next one is free
        self._paid_attempt: str | None = None  # the operation that paid for the latest retry, not settled yet
        self._over = False
        self._lock = threading.Lock()

    # -- before it is sent ----------------------------------------------------------------------------------------

    def admit(self, *, blocking: bool) -> Flow[None]:
        """Hold what the call may take; raise when a limit, the deadline or a cancellation stands against it."""
        record, scope = self.record, self.scope
        scope.checkpoint(record)
        if record.call.generative:
            lines = self._lines()
            if lines:
                floor: dict[str, int] = {_TOKENS: self._expected.input_tokens}
                patience = _patience(scope, blocking=blocking)
                request = Reservation(record.op_id, lines, floor, _owner(), patience, on_stop=scope.on_stop, meanwhile=attend)
                self._asked = True
                answering = scope.engine.ledger.reserve(request)
                if is_done(answering):
                    answer = answering.value
                else:
                    self.waiting = True
                    answer = yield from answering
                    self.waiting = False
                    self._still_wanted(answer)
                self._answered(answer)
            add_request(scope.tallies, turn=record.call.turn)
        record.decision = record.decision or "admitted"
        self.admitted = True

    def _lines(self) -> list[Line]:
        scope, call = self.scope, self.record.call
        card = scope.engine.prices.card(call.provider, call.model) if scope.priced else None
        self._expected = admission.estimate(call, card)
        return admission.call_lines(scope, call, self._expected)

    def _answered(self, answer: Grant | Denied) -> None:
        record, engine = self.record, self.scope.engine
        self._held = not isinstance(answer, Denied)
        if answer.crossings:
            engine.tell(answer.crossings, record)
        if isinstance(answer, Denied):
            self._blame(answer.account, answer.reason)
            engine.count("contended" if answer.reason == "contended" else "denied", answer.account)
            raise owned(refusal.refused(answer), answer.account)
        record.granted = answer.granted
        if answer.observed is not None:
            record.decision = "observed"
            self._blame(answer.observed, "exhausted")

    def _still_wanted(self, answer: Grant | Denied) -> None:
        """Check once more what may have come while the call waited: the end of its run, its time or its slot."""
        try:
            self.scope.checkpoint(self.record)
        except BaseException:
            self.scope.engine.tell(answer.crossings, self.record)
            if isinstance(answer, Grant):
                run_sync(self.scope.engine.ledger.release(self.record.op_id))
            raise

    def _blame(self, account: Account, reason: str) -> None:
        self.record.limit_kind, self.record.limit_scope, self.record.limit_reason = account.kind, account.facts.kind, reason

    def attempt(self, retries_taken: int) -> None:
        """Pay for one more attempt, right before its request is built; raises when it may not be sent.

        The first is covered by the call's own reservation, and so is one that follows an attempt that never left.
        """
        if retries_taken <= 0 or not self.record.call.generative:
            return
        self.scope.checkpoint(self.record)
        if self._credit:
            self._credit = False
            return
        self._settle_attempt()
        self._paid_attempt = self.scope.charge_lines(admission.attempt_lines(self.scope), self.record)
        add_counts(self.scope.tallies, requests=1)
        self.record.requests += 1

    def retrying(self, retry: RetryRecord, *, sent: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._credit = not sent
        self._sent_before = self._sent_before or sent
        self.record.retries.append(retry)

    def _settle_attempt(self) -> None:
        paid, self._paid_attempt = self._paid_attempt, None
        if paid is not None:
            self.scope.engine.settle(paid, None, self.record)

    # -- after ----------------------------------------------------------------------------------------------------

    def chunk(self) -> None:
        """Note that the first chunk of a stream came."""
        if self.record.first_chunk_ns is None:
            self.record.first_chunk_ns = self.scope.engine.clock.monotonic_ns() - self.record.started_ns

    def succeed(self, reply: Reply) -> None:
        """Settle with what the provider reported; when it reported nothing, at what was held."""
        if not self._end():
            return
        try:
            self._settle_attempt()
            if reply.usage is None and self._held:
                self.record.usage = self._expected.usage()
            else:
                self.record.usage = reply.usage
            self._close("ok" if reply.error_type is None else "error", reply, reply.usage, reply.error_type)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)
        finally:
            self._leave_nothing_held()

    def fail(self, error: BaseException, ending: Ending, reply: Reply | None = None) -> None:
        """Settle or release what a failed send held."""
        if not self._end():
            return
        self.record.error = error
        try:
            if not self.admitted:
                self._refused(error)
            else:
                self._failed(error, ending, reply)
        except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
            swallow("settle", bug)
        finally:
            self._leave_nothing_held()

    def _leave_nothing_held(self) -> None:
        """End the operation whatever interrupted its settlement: a signal may raise between any two lines."""
        if not self._asked or self._settled:
            return
        ledger, op_id = self.scope.engine.ledger, self.record.op_id
        try:
            run_sync(ledger.settle(op_id, None) if self.admitted else ledger.release(op_id))
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)

    def _end(self) -> bool:
        with self._lock:
            over, self._over = self._over, True
        return not over

    def _failed(self, error: BaseException, ending: Ending, reply: Reply | None) -> None:
        status: Status = "error" if isinstance(error, Exception) else "cancelled"
        error_type = ending.error_type
        if isinstance(error, RaviError):  # a retry that was refused
            self.record.decision, error_type = "denied", REFUSED
        add_counts(self.scope.tallies, errors=int(status == "error"))
        if not ending.sent and self._take_back(status, error_type):
            return
        self._settle_attempt()
        self.record.usage = ending.usage
        spent = Usage() if not ending.billed else ending.usage or _floor(self._expected)
        self._close(status, reply or ending.reply or Reply(), spent, error_type)

    def _take_back(self, status: Status, error_type: str) -> bool:
        """Give back what the last attempt paid, since it never left; True when that was the whole call."""
        paid, self._paid_attempt = self._paid_attempt, None
        ledger, call = self.scope.engine.ledger, self.record.call
        if paid is not None:
            run_sync(ledger.release(paid))
            add_counts(self.scope.tallies, requests=-1)
            self.record.requests -= 1
        if self._sent_before:
            return False
        if self._held:
            run_sync(ledger.release(self.record.op_id))
            self._settled = True
        if call.generative:
            add_counts(self.scope.tallies, requests=-1, turns=-int(call.turn))
            self.record.requests -= 1
        self.record.error_type = error_type
        self._told(status)
        return True

    def _refused(self, error: BaseException) -> None:
        record = self.record
        record.requests = 0
        if not isinstance(error, RaviError):  # cancelled while it waited in line
            record.error_type = type(error).__name__
            self._told("error" if isinstance(error, Exception) else "cancelled")
            return
        record.decision, record.error_type = "denied", REFUSED
        if isinstance(error, BudgetError):
            record.limit_kind = record.limit_kind or error.limit_kind
            record.limit_reason = record.limit_reason or error.reason
            if error.reason == "unpriced_model":
                self.scope.engine.count("unpriced")
        if not isinstance(error, BudgetContendedError):
            add_counts(self.scope.tallies, refused=1)
        self._told("refused")

    def _close(self, status: Status, reply: Reply, spent: Usage | None, error_type: str | None) -> None:
        record, engine, call = self.record, self.scope.engine, self.record.call
        cost = self._charge(reply, spent) if call.generative else None
        if self._held:
            messages = None if call.messages is None else call.messages + reply.answers
            actual = None if spent is None else admission.actual_amounts(spent, cost, messages)
            # What a whole answer really used cannot be seen from outside: reasoning is not streamed.
            guessed = status == "ok" and spent is not None and spent.source == "estimated"
            engine.settle(record.op_id, actual, record, guessed=guessed)
            self._settled = True
        record.reply, record.error_type = reply, error_type
        self._told(status)

    def _charge(self, reply: Reply, spent: Usage | None) -> int | None:
        """Add tokens and cost to every tally, or note that nobody told them; give the cost in nano-USD, None unknown."""
        tallies = self.scope.tallies
        if spent is None:
            add_counts(tallies, unreported=1)
            return None
        if spent.total_tokens == 0:
            return 0  # the provider refused the call, and billed nothing
        cost = self._price(reply, spent)
        add_usage(tallies, spent, cost)
        if cost is None:
            self.scope.engine.count("unpriced")
        return cost

    def _price(self, reply: Reply, usage: Usage) -> int | None:
        call, prices = self.record.call, self.scope.engine.prices
        try:
            cost, source = prices.cost(call.provider, reply.model, call.model, usage, reply.service_tier)
        except Exception as error:  # noqa: BLE001 - a price that cannot be had is unknown, and the call goes on
            swallow("pricing", error)
            return None
        if self.record.usage is None:  # charged for safety, but what a failed call really cost is not known
            self.record.charged, self.record.charged_nano = usage, cost
            return cost
        self.record.cost_nano = cost
        self.record.cost_source = "assumed" if call.provider_assumed and source not in (None, "override") else source
        return cost

    def _told(self, status: Status) -> None:
        record = self.record
        record.status = status
        record.duration_ns = self.scope.engine.clock.monotonic_ns() - record.started_ns
        self.scope.engine.listeners.call_ended(record)


def _floor(expected: admission.Estimate) -> Usage:
    return Usage(input_tokens=expected.input_tokens, source="estimated")


def _owner() -> object:
    """Identify the task, or else the thread, that asks."""
    task = asyncio.current_task() if on_event_loop() else _trio_task()
    return threading.get_ident() if task is None else task


def _trio_task() -> object:
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    in_task = getattr(trio.lowlevel, "in_trio_task", None)  # newer than the oldest trio; an error costs more than the question
    if in_task is not None and not in_task():
        return None
    try:
        return trio.lowlevel.current_task()
    except RuntimeError:
        return None


def _patience(scope: Scope, *, blocking: bool) -> float:
    """Bound the wait by the time left; synchronous code on a thread that runs an event loop must not wait at all."""
    if blocking and on_event_loop():
        return 0.0
    if not scope.clocks:
        return LONGEST_WAIT_S
    now = scope.engine.clock.monotonic_ns()
    left = [(account.value - (now - since)) / NANO for account, since in scope.clocks if not account.observe]
    return max(0.0, min([LONGEST_WAIT_S, *left]))
