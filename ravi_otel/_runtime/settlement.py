"""Settle one model call exactly once, whoever ends it first: what it used, what it cost, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ravi_otel._enforcement.admission import NOTHING
from ravi_otel._enforcement.last_call import Claim
from ravi_otel._enforcement.ledger.contract import Line, new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts, add_total, add_usage
from ravi_otel._flow import run_sync
from ravi_otel._runtime.attempts import charge_rest
from ravi_otel._runtime.awaited import AWAITED, Told, bring, key_of, summed
from ravi_otel._runtime.capping import Capped, learn
from ravi_otel._runtime.charging import is_free, price, spoken, unpriced_of
from ravi_otel._runtime.conversations import CONVERSATIONS
from ravi_otel._runtime.inferring import INFERRING
from ravi_otel.errors import BudgetContendedError, BudgetError, RaviError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord, Status
from ravi_otel.policy.usage import Call, Reply, Usage

REFUSED = "ravi.limit_exceeded"
"""The `error.type` of a call that a limit refused."""

_CHAINED = "responses"
"""The endpoint whose answers a later request can go on with."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Tell how a send failed, in words of no client library.

    `sent` is False when no byte left this process; `billed` False when the provider refused without charging; `usage`
    is what the error itself reports, or what of a stream was received; `reply` is an answer that came all the same.
    With `at_grant` more may have been used than was seen: what was held is charged to the limits. `status` is HTTP's.
    """

    error_type: str
    sent: bool = True
    billed: bool = True
    usage: Usage | None = None
    reply: Reply | None = None
    at_grant: bool = False
    status: int | None = None


class Settlement:
    """Know what one call was granted, and give each way it can end its settlement."""

    __slots__ = (
        "_asked",
        "_between",
        "_credit",
        "_doubtful",
        "_ended_by",
        "_expected",
        "_held",
        "_last_chunk_ns",
        "_lock",
        "_paid_attempt",
        "_sent_before",
        "_settled",
        "_unknown",
        "admitted",
        "built",
        "capped",
        "claim",
        "ended_ns",
        "holds",
        "record",
        "refused",
        "scope",
        "waiting",
    )

    def __init__(self, scope: Scope, call: Call) -> None:
        self.scope = scope
        self.record = CallRecord(call, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns())
        self.admitted = False
        self.built = False
        self.capped: Capped | None = None  # by a strict limit
        self.claim: Claim | None = None  # to what is kept back for a last call
        self._expected = NOTHING
        self.holds: Sequence[tuple[Line, int]] = ()  # what was held, of a call that streams or meets a strict limit
        self._held = False
        self._asked = False  # the ledger may know this operation
        self._settled = False
        self.waiting = False
        self.refused: RaviError | None = None  # what the tools whose results it brings have against it
        self._sent_before = False  # an earlier attempt of this call reached the provider
        self._between = False  # an attempt failed, and the next has not been paid for
        self._doubtful = False  # no answer came to the latest attempt that was sent: it may be billed
        self._credit = False  # an attempt was paid for and never left: the next one is free
        self._paid_attempt: str | None = None  # the operation that paid for the latest retry, not settled yet
        self._ended_by: object = None  # whoever of several came first, and settles it
        self._unknown = 0  # how often it was counted as such while it waited for a look
        self._last_chunk_ns = 0
        self.ended_ns: int | None = None  # when it really ended, on the engine's clock, where that is found out later
        self._lock = threading.RLock()

    def succeed(self, reply: Reply) -> None:
        """Settle with what the provider reported; when it reported nothing, at what was held."""
        me = object()
        try:
            if not self._end(me):
                return
            self._settle_attempt()
            if not self._later(reply, "ok" if reply.error_type is None else "error", reply.error_type):
                self._answered_whole(reply)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)
        finally:
            if self._ended_by is me:  # else `fail` is to come
                self._leave_nothing_held()

    def _answered_whole(self, reply: Reply) -> None:
        call = self.record.call
        spent = spoken(call, self.scope.engine.prices) if reply.usage is None else reply.usage
        if spent is None and self._held and not call.job:  # what a job will use is not what was held of it
            self.record.usage = self._expected.usage()
        else:
            self.record.usage = spent
        self._close("ok" if reply.error_type is None else "error", reply, spent, reply.error_type)

    def _later(self, reply: Reply, status: Status, error_type: str | None) -> bool:
        """Keep what a later look will settle, or settle what an earlier request began; False for any other answer."""
        record, call = self.record, self.record.call
        key = key_of(call, reply.id)
        begun = call.generative and not (reply.awaited and AWAITED.waits(key))
        if reply.pending and begun:
            self._keep(reply, status, error_type)
            return True
        if reply.awaited:
            earlier = None if reply.pending else AWAITED.take(key, reply)
            if earlier is None and call.generative and not reply.pending:
                return False
            if earlier is not None:
                bring(record, earlier.collect(reply, record))
            self._settle_nothing()
        else:
            return False
        record.reply, record.error_type = reply, error_type
        self._told(status)
        return True

    def _keep(self, reply: Reply, status: Status, error_type: str | None) -> None:
        record = self.record
        record.reply, record.error_type = reply, error_type
        key = key_of(record.call, reply.id)
        early = AWAITED.early(key)
        if early is not None:
            self.collect(early, record)
        self._told(status)  # first: from here on a look in another thread may write its usage into the record
        if early is None:
            self._unknown = 1
            add_counts(self.scope.tallies, unreported=1)  # unknown is not 0
            AWAITED.keep(key, self)
        self._settled = True  # not here, and not now

    def _settle_nothing(self) -> None:
        """Charge a request that went on with what another began, and that one pays for, with no more than itself."""
        if self._held:
            self.scope.engine.settle(self.record.op_id, self.scope.plan.amounts(Usage(), 0, None), self.record)
            self._settled = True

    def collect(self, reply: Reply, at: CallRecord | None) -> Told:
        """See `Collected.collect`."""
        record = self.record
        record.usage = reply.usage or (self._expected.usage() if self._held else None)
        cost = self._charge(reply, reply.usage)
        if record.call.endpoint == _CHAINED:
            CONVERSATIONS.heard(record.call, reply.id, reply.answers)
        add_counts(self.scope.tallies, unreported=-self._unknown)
        if self._held:
            messages = None if record.call.messages is None else record.call.messages + reply.answers
            actual = None if reply.usage is None else self.scope.plan.amounts(reply.usage, cost, messages)
            self.scope.engine.settle(record.op_id, actual, at or record)
        return summed(record)

    def fail(self, error: BaseException, ending: Ending, reply: Reply | None = None) -> None:
        """Settle or release what a failed send held."""
        me = object()
        try:
            if not self._end(me):
                return
            self.record.error = error
            if not self.admitted:
                self._refused(error)
            else:
                self._failed(error, ending, reply)
        except Exception as bug:  # noqa: BLE001 - our own bug never hides the user's error
            swallow("settle", bug)
        finally:
            if self._end(me):
                self._leave_nothing_held()

    def _leave_nothing_held(self, *, unsent: bool = False) -> None:
        """End the operation whatever interrupted its settlement: a signal may raise between any two lines."""
        ledger, op_id = self.scope.engine.ledger, self.record.op_id
        try:
            if self._paid_attempt is not None:
                run_sync(ledger.settle(self._paid_attempt, None))
            if self._asked and not self._settled:
                run_sync(ledger.settle(op_id, None) if self.admitted and not unsent else ledger.release(op_id))
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("settle", error)

    def _end(self, me: object) -> bool:
        """Tell whether it is `me` who settles it, however often `me` asks: a signal's exception may cut an answer off."""
        with self._lock:
            if self._ended_by is None:
                self._ended_by = me
        return self._ended_by is me

    def _failed(self, error: BaseException, ending: Ending, reply: Reply | None) -> None:
        status: Status = "error" if isinstance(error, Exception) else "cancelled"
        error_type, self.record.http_status = ending.error_type, ending.status
        if isinstance(error, RaviError):  # a retry that was refused
            self.record.decision, error_type = "denied", REFUSED
        add_counts(self.scope.tallies, errors=int(status == "error"))
        if not ending.sent and self._take_back(status, error_type):
            return
        self._settle_attempt()
        told = reply or ending.reply or Reply()
        if self._later(told, status, error_type):
            return
        self.record.usage = ending.usage
        spent = Usage() if not ending.billed else ending.usage or self._expected.floor()
        self._close(status, told, spent, error_type, at_grant=ending.at_grant, doubted=self._doubted(ending, told))

    def _doubted(self, ending: Ending, told: Reply) -> bool:
        """Tell that more may be billed than was seen, which strict limits are charged for: what came is a lower bound."""
        if self.capped is None:
            return False
        if self._between or not ending.sent:  # nothing was sent since that attempt
            return self._doubtful
        if ending.status is not None or not ending.billed:
            return False
        if ending.usage is None or ending.usage.source != "reported":
            return True
        reasons = told.finish_reasons
        return ending.reply is None and ("error" in reasons or len(reasons) < self.record.call.choices)

    def _take_back(self, status: Status, error_type: str) -> bool:
        """Give back what the last attempt paid, since it never left; True when that was the whole call."""
        ledger, call = self.scope.engine.ledger, self.record.call
        if self._paid_attempt is not None:
            run_sync(ledger.release(self._paid_attempt))
            self._paid_attempt = None
            add_counts(self.scope.tallies, requests=-1)
            self.record.requests -= 1
        if self._sent_before:
            return False
        if self.claim is not None:
            self.claim.give_back()
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
        if self.claim is not None:
            self.claim.give_back()
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
                record.limit_scope = unpriced_of(self.scope, error)
        if not isinstance(error, BudgetContendedError):
            add_counts(self.scope.tallies, refused=1)
        self._told("refused")

    def _close(
        self,
        status: Status,
        reply: Reply,
        spent: Usage | None,
        error_type: str | None,
        *,
        at_grant: bool = False,
        doubted: bool = False,
    ) -> None:
        record, engine, call = self.record, self.scope.engine, self.record.call
        cost = self._charge(reply, spent) if call.generative else None
        if call.endpoint == _CHAINED:
            CONVERSATIONS.heard(call, reply.id, reply.answers)
        if self._held:
            messages = None if call.messages is None else call.messages + reply.answers
            actual = None if spent is None else self.scope.plan.amounts(spent, cost, messages)
            # What a whole answer really used cannot be seen from outside: reasoning is not streamed.
            guessed = at_grant or (status == "ok" and spent is not None and spent.source == "estimated")
            if doubted and actual is not None and not guessed:
                charge_rest(engine, self.holds, actual, record)
            engine.settle(record.op_id, actual, record, guessed=guessed)
            self._settled = True
            if self.capped is not None:
                self.capped.ended(record, reply, engine)
            learn(engine, record, spent)
        record.reply, record.error_type = reply, error_type
        self._told(status)

    def _charge(self, reply: Reply, spent: Usage | None) -> int | None:
        """Add tokens and cost to every tally, or note that nobody told them; give the cost in nano-USD, None unknown."""
        tallies = self.scope.tallies
        if spent is not None and spent.total_only:
            add_total(tallies, spent.total_tokens)
            if self._held:  # what limits of a part of it are charged
                self.record.charged, self.record.charged_nano = self._expected.usage(), self._expected.cost
            spent = None
        if spent is None:
            if is_free(self.record, self.scope.engine.prices, reply):
                add_usage(tallies, Usage(), 0)
                return 0
            add_counts(tallies, unreported=1)
            return None
        if spent.total_tokens == 0 and not spent.tokenless:
            return 0  # the provider refused the call, and billed nothing
        cost = price(self.record, self.scope.engine.prices, reply, spent)
        add_usage(tallies, spent, cost)
        if cost is None:
            self.scope.engine.count("unpriced")
        return cost

    def _told(self, status: Status) -> None:
        record = self.record
        record.status = status
        now = self.scope.engine.clock.monotonic_ns()
        if self.ended_ns is not None:
            record.late_ns, now = now - self.ended_ns, self.ended_ns
        record.duration_ns = now - record.started_ns
        if record.call.offers_tools:
            INFERRING.asked(self.scope, record)
        self.scope.engine.listeners.call_ended(record)

    def _settle_attempt(self) -> None:
        if self._paid_attempt is not None:
            self.scope.engine.settle(self._paid_attempt, None, self.record)
            self._paid_attempt = None  # not before: a signal may raise between any two lines
