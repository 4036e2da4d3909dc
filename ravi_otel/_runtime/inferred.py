"""Tell and charge the tools that a request brings results of, where nobody saw them run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._runtime.inferring import INFERRING, Asked
from ravi_otel.errors import BudgetError
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord, ToolRecord
from ravi_otel.policy.usage import Asked as Said
from ravi_otel.policy.usage import Part


def answered(scope: Scope, record: CallRecord) -> BudgetError | None:
    """Tell what ran between an answer and this request, charge it, and give what refuses the request; never raises.

    The tools have run: all of them are counted, also what did not fit. The first that did not refuses the request, and each
    later one that brings its result, until the limit allows for what was used.
    """
    refused: BudgetError | None = None
    left: list[Asked] = []
    try:
        left = INFERRING.take(scope, record.call.tool_results)
        while left:
            found = _charged(scope, record, left[0], refuses=refused is None)
            del left[0]
            refused = refused or found
    except BudgetError as error:  # the limits cannot be kept: nothing more is sent on what nobody could charge
        INFERRING.restore(left)
        refused = refused or error
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
        INFERRING.restore([one for one in left if one is not left[0] or one.owed])
        swallow("inferred", error)
    return refused


def _charged(scope: Scope, by: CallRecord, one: Asked, *, refuses: bool) -> BudgetError | None:
    # A last call, on what is kept back, is made to end the work: nothing that has run stands in its way.
    refuses = refuses and scope.wrapping is None
    if one.passed:
        return _again(scope, one) if scope.wrapping is None else None
    return _owing(scope, one, refuses=refuses) if one.owed else _tell(scope, by, one, refuses=refuses)


def _again(scope: Scope, one: Asked) -> BudgetError | None:
    record = ToolRecord(one.name, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns(), inferred=True)
    refused = scope.charge_done(scope.plan.passed_lines(one.name), record, refuses=True)
    if refused is None:
        INFERRING.release(one)
    return refused


def _owing(scope: Scope, one: Asked, *, refuses: bool) -> BudgetError | None:
    record = ToolRecord(one.name, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns(), inferred=True)
    return _charge(scope, one, record, refuses=refuses)


def _charge(scope: Scope, one: Asked, record: ToolRecord, *, refuses: bool) -> BudgetError | None:
    """Charge one that was told; BudgetError where that cannot be done, and it is owed."""
    one.owed = True
    refused = scope.charge_done(scope.plan.tool_lines(one.name), record, refuses=refuses)
    one.owed = False
    if refused is not None:
        INFERRING.keep(one)
    return refused


def _tell(scope: Scope, by: CallRecord, one: Asked, *, refuses: bool) -> BudgetError | None:
    engine = scope.engine
    record = ToolRecord(one.name, scope.facts, new_op_id(), one.asked_ns, call_id=one.call_id, inferred=True)
    record.began_unix_ns = one.asked_unix_ns
    record.arguments, record.result, record.returned = _said(by.call.content, one.call_id)
    engine.listeners.tool_started(record).leave()
    add_counts(scope.tallies, tool_calls=1)
    try:
        refused = _charge(scope, one, record, refuses=refuses)
        record.decision = record.decision or "admitted"
        if refused is not None:
            _deny(record, refused)
    except BudgetError as error:
        _deny(record, error)
        raise
    finally:
        record.status = "ok"
        record.duration_ns = max(0, by.started_ns - one.asked_ns)
        engine.listeners.tool_ended(record)
    return refused


def _deny(record: ToolRecord, refused: BudgetError) -> None:
    record.decision, record.limit_kind, record.limit_reason = "denied", refused.limit_kind, refused.reason


def _said(content: Said | None, call_id: str | None) -> tuple[dict[str, Any] | None, Any, bool]:
    """Find what it was given and what it gave in what the request says; nothing unless that is captured."""
    if content is None or call_id is None:
        return None, None, False
    parts: Sequence[Part] = [part for message in content.messages for part in message.get("parts", ()) if part.get("id") == call_id]
    given = next((part.get("arguments") for part in parts if part.get("type") == "tool_call"), None)
    gave = [part.get("response") for part in parts if part.get("type") == "tool_call_response"]
    arguments = cast("dict[str, Any]", given) if isinstance(given, dict) else None if given is None else {"arguments": given}
    return arguments, (gave[-1] if gave else None), bool(gave)
