"""Account for model calls that no wrapper sends: by a client of the program's own, and those that a server makes unasked on a socket.

Nobody can tell beforehand what a client of the program's own does. Its call is admitted like any other; the first call inside it that is
seen takes its place, so that nothing is counted twice. Whose calls were never seen is told at their beginning, others once that is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.plan import NOTHING
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts, add_request
from ravi_otel._flow import Flow, Step, cause, run_sync
from ravi_otel._runtime.model_call import GIVE_WAY, SENT, ModelCall, SendFailure
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain, later
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import CallRecord, Status
from ravi_otel.hooks._listeners import NOTHING_ENTERED, Guarded, swallow
from ravi_otel.policy._limits import Kind
from ravi_otel.policy._usage import Call, Reply, Usage

_unseen: Final[weakref.WeakSet[type]] = weakref.WeakSet()
"""The classes of clients in whose calls nothing was seen."""


class UnseenCall(ModelCall):
    """Such a call, until one that is seen takes its place."""

    __slots__ = ("begun", "given_way", "turned")

    def __init__(self, call: Call, *, begun: bool) -> None:
        super().__init__(STATE.locate()[0], call)
        self.given_way = False
        self.turned = False
        """That a call inside has asked a model, and may be the answer's."""
        self.begun = begun
        self._entered = NOTHING_ENTERED
        if begun:
            self.begin()

    def give_way(self, call: Call) -> None:
        """Take back what was held and counted for it: `call`, which begins inside it now, is the one; again does nothing."""
        self.turned = self.turned or call.turn
        me = object()
        try:
            if self._is_settler(me):
                self.given_way = True
                self._release_unsent("ok", "")
        except Exception as bug:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("unseen", bug)
        finally:
            if self._settler.get(None) is me:
                self._leave_nothing_held(unsent=True)

    def _emit_ended(self, status: Status) -> None:
        if self.given_way:
            self.record.error_type = None
        if not self.begun:
            if self.given_way:
                return  # of what was never there nobody is told
            self.begin()
            self.leave()
        super()._emit_ended(status)


def is_around() -> bool:
    """Whether the code here runs inside such a call, which is counted and limited whatever goes out from it."""
    return GIVE_WAY.get() is not None


def walk_unseen(kind: type, call: Call, step: Step, read: Callable[[Any], Reply]) -> Flow[Any]:
    """Send one call of a client of that class; the result or the exception is the client's own, or a refusal of ours."""
    drain()
    live = UnseenCall(call, begun=kind in _unseen)
    token = None
    try:
        wait = live.admit(blocking=False)
        if wait is not None:
            yield from wait
        token = GIVE_WAY.set(live.give_way)
        result = yield step
        seen = live.given_way
        if seen and not live.turned:  # by an embedding or the like, on the way to an answer that nobody saw
            live.leave()
            live = UnseenCall(replace(call), begun=True)
            wait = live.admit(blocking=False)
            if wait is not None:
                yield from wait
        live.answered(read(result))
        if not seen:
            _unseen.add(kind)
    except BaseException as raised:
        error = cause(raised)
        fail = partial(live.fail, error, SendFailure(type(error).__qualname__, sent=not isinstance(error, RaviError)))
        if isinstance(error, GeneratorExit):
            later(fail)  # a finaliser may be running, which must not take a lock
        else:
            fail()
        raise
    finally:
        live.leave()
        if token is not None:
            with suppress(ValueError):  # closed in another context than it began in
                GIVE_WAY.reset(token)
        del live
    return result


_SPENT_BY_CALLS: Final = frozenset(
    kind.value for kind in (Kind.TOKENS, Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, Kind.COST, Kind.REQUESTS, Kind.TURNS)
)


class Unasked(ModelCall):
    """Follow a call that the provider began by itself: nobody could refuse it, so it is counted and charged as it happens.

    One that is no request of its own, such as the transcription of what was said, is charged what it used alone.
    """

    __slots__ = ()

    def begin_by_itself(self, *, request: bool) -> None:
        """Open its span, and count it as a request and a turn where it is one; refuses nothing."""
        record, scope = self.record, self.scope
        self.begin()
        self.leave()
        self._stage, self._expected = SENT, NOTHING
        if not request:
            record.requests = 0
            return
        add_request(scope.tallies, turn=record.call.turn)
        with Guarded("unasked"):  # our own bug never reaches whoever receives
            scope.absorb({Kind.REQUESTS.value: 1, Kind.TURNS.value: int(record.call.turn)}, record.call.model)

    def _leave_nothing_held(self, *, unsent: bool = False) -> None:
        """Charge what it used: this runs once, when it is over and its cost is known."""
        super()._leave_nothing_held(unsent=unsent)
        record = self.record
        used = record.usage or record.charged or _sent(record.call)
        cost = record.cost_nano if record.usage is not None else record.charged_nano
        with Guarded("unasked"):  # our own bug never reaches whoever receives
            amounts = self.scope.plan.amounts(used, cost, None)
            if used.total_only:
                amounts = self.scope.plan.amounts(_sent(record.call), None, None) | amounts
            self.scope.absorb(amounts, record.call.model)


def _sent(call: Call) -> Usage:
    return Usage(input_tokens=call.input_estimate, source="estimated")


def begin_unasked(scope: Scope, call: Call, *, request: bool = True) -> Unasked:
    """Follow a call of `scope` that nobody asked for, from now until it is ended like any other."""
    live = Unasked(scope, call)
    live.begin_by_itself(request=request)
    return live


def check_going_on(scope: Scope, at: CallRecord | None) -> None:
    """Raise when no more may be sent to a model: past a deadline, cancelled, closed, or with a limit used up.

    What a model that listens makes of a message cannot be refused any more once it was sent. `at` is the connection it
    would go over, None before there is one: what a limit tells is told there, and so is the latest refusal.
    """
    scope.checkpoint(at)
    for account in scope.plan.accounts(None if at is None else at.call.model):
        if account.used >= account.value and account.limit.kind in _SPENT_BY_CALLS and not account.observe:
            _refuse(scope, account, at)


def _refuse(scope: Scope, account: Account, at: CallRecord | None) -> None:
    """Have the ledger refuse one more of what is used up, so that it counts and tells this like any other refusal."""
    ledger, op_id = scope.engine.ledger, new_op_id()
    answer = run_sync(ledger.reserve(Reservation(op_id, [Line(account, 1, 1)])))
    scope.engine.emit_crossings(answer.crossings, at)
    if not isinstance(answer, Denied):
        run_sync(ledger.release(op_id))  # something was given back just now
        return
    scope.engine.count("denied", account)
    add_counts(scope.tallies, refused=1)
    if at is not None:
        at.decision, at.limit_kind, at.limit_scope, at.limit_reason = "denied", account.kind, account.facts.kind, "exhausted"
    raise owned(errors_text.LimitErrors(account).used_up(), account)
