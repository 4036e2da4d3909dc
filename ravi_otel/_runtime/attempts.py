"""Pay for the attempts after the first one, and keep strict limits where nobody told what an attempt used: it may be billed whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.contract import Denied, Line, Reservation, new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import run_sync
from ravi_otel.hooks.records import CallRecord

Holds = Sequence[tuple[Line, int]]


def _strict(holds: Holds) -> list[tuple[Line, int]]:
    return [(line, held) for line, held in holds if line.account.strict and not line.free]


def charge_rest(engine: Engine, holds: Holds, actual: Mapping[str, int], record: CallRecord) -> None:
    """Charge strict accounts what was held beyond what was seen of a call; right before its holds end, so that nobody gets it."""
    lines: list[Line] = []
    for line, held in _strict(holds):
        rest = held - actual.get(line.account.kind, held)
        if rest > 0:
            lines.append(Line(line.account, rest, rest, free=True))  # free: never less than that, whatever is left
    if lines:
        op_id = new_op_id()
        engine.tell(run_sync(engine.ledger.reserve(Reservation(op_id, lines, spent=True))).crossings, record)
        engine.settle(op_id, None, record)


class Attempts:
    """What became of the attempts of one call, from the first that failed on, and what the latest of them is paid with."""

    __slots__ = ("_credit", "_paid", "_record", "_scope", "_sent_before", "between", "doubtful")

    def __init__(self, scope: Scope, record: CallRecord) -> None:
        self._scope = scope
        self._record = record
        self._sent_before = False  # an earlier attempt reached the provider
        self._credit = False  # an attempt was paid for and never left: the next one is free
        self._paid: str | None = None  # the operation that paid for the latest retry, not settled yet
        self.between = False  # an attempt failed, and the next has not been paid for
        self.doubtful = False  # no answer came to the latest attempt that was sent: it may be billed

    def failed(self, *, sent: bool, answered: bool) -> None:
        """Note that an attempt failed and another will follow."""
        self._credit = not sent
        self._sent_before = self._sent_before or sent
        self.between = True
        if sent:
            self.doubtful = not answered

    def pay(self, holds: Holds | None) -> None:
        """Pay for one more; raise when it may not be sent.

        One that follows an attempt that never left is free. After one that no answer came to, which may be billed, strict limits are
        asked for the whole worst case again: `holds` is what such a call holds, None where no limit is strict.
        """
        if self._credit:
            self._credit = self.between = False
            return
        self.settle()
        scope, record = self._scope, self._record
        lines = scope.plan.attempt_lines(record.call.model)
        op_id = new_op_id()
        try:
            if self.doubtful and holds is not None:
                self._paid = pay_again(scope, lines, holds, record, op_id)
            else:
                self._paid = scope.charge_lines(lines, record, op_id)
        except BaseException:
            self._paid = None
            run_sync(scope.engine.ledger.release(op_id))  # it is not sent
            raise
        self.between = False
        add_counts(scope.tallies, requests=1)
        record.requests += 1

    def settle(self) -> None:
        """Settle what paid for the latest one: it was sent."""
        if self._paid is not None:
            self._scope.engine.settle(self._paid, None, self._record)
            self._paid = None  # not before: a signal may raise between any two lines

    def take_back(self) -> bool:
        """Give back what paid for the latest one, which never left; return whether an earlier one reached the provider."""
        if self._paid is not None:
            run_sync(self._scope.engine.ledger.release(self._paid))
            self._paid = None
            add_counts(self._scope.tallies, requests=-1)
            self._record.requests -= 1
        return self._sent_before

    def leave_nothing_held(self) -> None:
        """End what paid for the latest one, whatever interrupted that."""
        if self._paid is not None:
            run_sync(self._scope.engine.ledger.settle(self._paid, None))


def pay_again(scope: Scope, lines: Sequence[Line], holds: Holds, record: CallRecord, op_id: str) -> str | None:
    """Hold the worst case once more, beside `lines`, for an attempt after one that may have been billed; give `op_id`, or None.

    Raises BudgetExhaustedError where nothing but the call's own hold stands in the way, BudgetContendedError where others hold it:
    a retry never waits in line.
    """
    own = {line.account: held for line, held in _strict(holds)}
    asked = [*lines, *(Line(account, held, held) for account, held in own.items() if held)]
    if not asked:
        return None
    plan = scope.plan
    for line in asked:
        line.free = plan.sets_aside(line.account)
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, asked)))
    scope.engine.answered(answer, record)
    if isinstance(answer, Denied):
        account, mine = answer.account, own.get(answer.account, 0)
        if answer.reason == "contended" and answer.used + mine + answer.minimum > account.value - account.reserved:
            answer = Denied(account, "too_large", answer.used + mine, answer.held - mine, answer.minimum, answer.crossings)
        scope.engine.count("contended" if answer.reason == "contended" else "denied", account)
        add_counts(scope.tallies, refused=int(answer.reason != "contended"))
        raise owned(errors_text.refused(answer), account)
    if answer.observed is not None:
        scope.engine.observed(answer.observed, record)
    return op_id
