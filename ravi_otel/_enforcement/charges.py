"""Charge what is known beforehand: tool calls, attempts, and the kinds that a program counts itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Denied, Grant, Line, Reservation, new_op_id
from ravi_otel._enforcement.usage_counters import add_charged, add_counts, whole
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetError, ConfigurationError
from ravi_otel.hooks.records import CallRecord, ToolRecord
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Kind, is_built_in

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

_TOOL: Final = "tool."
_CHARGE: Final = "charge."


def own_kind(kind: object) -> str:
    """Accept the name of a kind that the program counts itself; ConfigurationError for one that is counted from its calls."""
    name = checks.name("charge(kind)", kind.removeprefix(_CHARGE) if isinstance(kind, str) else kind, "sql_rows")
    if is_built_in(name) or name.startswith(_TOOL):
        by = "@ravi_otel.tool functions" if name.startswith(_TOOL) or name == Kind.TOOL_CALLS else "model calls, agents and the clock"
        raise ConfigurationError(
            f"charge(kind={checks.show(name)}) is a built-in kind, which is counted from {by}: charge a name of your own, such as "
            "'sql_rows', or report tokens, cost and turns spent elsewhere with ExecutionTracker.consume(..., external=True)."
        )
    return name


def charge(scope: Scope, kind: str, amount: int, op_id: str | None) -> None:
    """See `Scope.charge`."""
    kind = own_kind(kind)
    amount = checks.count("charge(amount)", amount, way_out="spend is never taken back")
    scope.refuse_closed()
    key = None if op_id is None else (kind, checks.name("charge(op_id)", op_id))
    memory = None if key is None else scope.remembered
    lines = [Line(account, amount, amount) for account in scope.plan.accounts() if account.kind == kind]
    op = new_op_id()
    try:
        with whole():  # no charge is a model call's
            if memory is not None and key in memory:
                return
            answer = _ask(scope, lines, op)
            if not isinstance(answer, Denied):
                add_charged(scope.tallies, kind, amount)
                if memory is not None and key is not None:
                    memory.add(key)  # last: what is remembered was counted, whatever interrupts this
        if _answered(scope, answer, None) is not None:
            scope.engine.settle(op, None)
    except BaseException as error:
        _end(scope, op, error, keeps=memory is None or key in memory)
        raise


def charge_lines(scope: Scope, lines: Sequence[Line], at: CallRecord | ToolRecord | None, op_id: str | None) -> str | None:
    """See `Scope.charge_lines`."""
    op_id = op_id or new_op_id()
    try:
        return _answered(scope, _ask(scope, lines, op_id), at)
    except BaseException as error:
        _end(scope, op_id, error)
        raise


def charge_now(scope: Scope, lines: Sequence[Line], at: CallRecord | ToolRecord | None) -> None:
    """See `Scope.reserve_now`."""
    op_id = new_op_id()
    try:
        if _answered(scope, _ask(scope, lines, op_id), at) is not None:
            scope.engine.settle(op_id, None, at)
    except BaseException as error:
        _end(scope, op_id, error)
        raise


def _end(scope: Scope, op_id: str, error: BaseException, *, keeps: bool = False) -> None:
    """End what a signal's exception has cut off: nobody else knows of it. What was refused, or is over, has nothing to end.

    With `keeps` it stays charged: what it stands for may have happened.
    """
    if isinstance(error, BudgetError):
        return
    ledger = scope.engine.ledger
    with suppress(Exception):  # what goes to the caller is what interrupted him
        run_sync(ledger.settle(op_id, None)) if keeps else run_sync(ledger.release(op_id))


def _ask(scope: Scope, lines: Sequence[Line], op_id: str) -> Grant | Denied | None:
    plan = scope.plan
    if plan.suspended:
        for line in lines:
            line.free = plan.sets_aside(line.account)
    return run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines, {}))) if lines else None


def _answered(scope: Scope, answer: Grant | Denied | None, at: CallRecord | ToolRecord | None) -> str | None:
    if answer is None:
        return None
    scope.engine.answered(answer, at)
    if isinstance(answer, Denied):
        scope.engine.count("denied", answer.account)
        add_counts(scope.tallies, refused=1)
        raise owned(errors_text.refused(answer), answer.account)
    if answer.observed is not None:
        observed(scope, answer.observed, at)
    return answer.op_id


def charge_done(scope: Scope, lines: Sequence[Line], at: ToolRecord, *, refuses: bool) -> BudgetError | None:
    """Charge counted kinds for what has happened already; give the refusal of what did not fit, which is charged all the same.

    With `refuses` False it is charged unasked, and None is given.
    """
    if not lines:
        return None
    op_id = new_op_id()
    try:
        answer = _ask(scope, lines, op_id) if refuses else None
        if isinstance(answer, Grant):
            if _answered(scope, answer, at) is not None:
                scope.engine.settle(op_id, None, at)
            return None
        if answer is not None:
            scope.engine.answered(answer, at)
            scope.engine.count("denied", answer.account)
            op_id = new_op_id()
        scope.engine.tell(run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines, {}, spent=True))).crossings, at)
        scope.engine.settle(op_id, None, at)
    except BaseException as error:
        _end(scope, op_id, error, keeps=True)
        raise
    return None if answer is None else owned(errors_text.refused(answer), answer.account)


def observed(scope: Scope, account: Account, at: CallRecord | ToolRecord | None, reason: str = "exhausted") -> None:
    """Tell what shadow mode let through although `account` would have refused it."""
    scope.engine.count("denied", account, observed=True)
    if at is not None:
        at.decision, at.limit_kind, at.limit_scope, at.limit_reason = "observed", account.kind, account.facts.kind, reason


def absorb(scope: Scope, amounts: Mapping[str, int], model: str | None = None) -> Callable[[], None]:
    """See `Scope.absorb`; give what is left to do then: to tell what was crossed."""
    lines = [
        Line(account, amounts[account.kind] if account.nature is Nature.COUNTED else 0, 0)
        for account in scope.plan.accounts(model)
        if amounts.get(account.kind)
    ]
    op_id, engine = new_op_id(), scope.engine
    try:
        begun = run_sync(engine.ledger.reserve(Reservation(op_id, lines, {}, spent=True)))
        settled = run_sync(engine.ledger.settle(op_id, amounts))
    except BaseException:  # a signal's: what was begun is ended, once, as what it was
        with suppress(Exception):  # what goes to the caller is what interrupted him
            run_sync(engine.ledger.settle(op_id, amounts))
        raise

    def tell() -> None:
        engine.tell(begun.crossings)
        engine.settled(settled)

    return tell


def observed_unpriced(scope: Scope, record: CallRecord) -> None:
    """Tell, in shadow mode, that a cost limit would refuse a call whose price nobody knows."""
    for account in scope.plan.accounts():
        if account.kind == Kind.COST and account.observe and account.limit.on_unpriced != "warn" and not record.call.unread:
            observed(scope, account, record, "unpriced_model")
            return
