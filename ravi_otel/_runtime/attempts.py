"""Keep strict limits where an attempt was sent and nobody told what it used: it may have been billed whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ravi_otel._enforcement import charges, errors_text
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
        engine.tell(run_sync(engine.ledger.reserve(Reservation(op_id, lines, {}, spent=True))).crossings, record)
        engine.settle(op_id, None, record)


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
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, asked, {})))
    scope.engine.answered(answer, record)
    if isinstance(answer, Denied):
        account, mine = answer.account, own.get(answer.account, 0)
        if answer.reason == "contended" and answer.used + mine + answer.minimum > account.value - account.reserved:
            answer = Denied(account, "too_large", answer.used + mine, answer.held - mine, answer.minimum, answer.crossings)
        scope.engine.count("contended" if answer.reason == "contended" else "denied", account)
        add_counts(scope.tallies, refused=int(answer.reason != "contended"))
        raise owned(errors_text.refused(answer), account)
    if answer.observed is not None:
        charges.observed(scope, answer.observed, record)
    return op_id
