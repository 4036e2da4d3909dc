"""How an operation ended: the status of its span and its `error.type`."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from ravi_otel._telemetry import names
from ravi_otel._telemetry.attributes import OTHER, CardinalityLimit, text
from ravi_otel.errors import RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks.records import CallRecord, ScopeView, ToolRecord
from ravi_otel.hooks.records import Status as Ending
from ravi_otel.policy.checks import show
from ravi_otel.policy.stops import StopReason, family

_ERROR: Final = Status(StatusCode.ERROR)
_MOST_SENTENCE: Final = 1_000
_MOST_OWN_REASONS: Final = 100
_KNOWN_REASONS: Final = frozenset(map(str, StopReason))
_WITHOUT_ERROR: Final = {
    "refused": names.ERROR_LIMIT,
    "stopped": names.ERROR_LIMIT,
    "paused": names.ERROR_PAUSED,
    "cancelled": names.ERROR_CANCELLED,
}
"""Endings that are no success though nothing may have been raised."""


def error_type(status: Ending, stated: str | None, error: BaseException | None) -> str | None:
    """Return the low-cardinality `error.type`, None for a success: the stated one, else the error's class.

    What was abandoned or failed inside a 200 states one although nothing was raised.
    """
    if status == "refused":
        return names.ERROR_DENIED if stated == names.ERROR_DENIED else names.ERROR_LIMIT
    if stated:
        return text(stated)
    if status in {"ok", "open"}:
        return None
    found = _WITHOUT_ERROR.get(status)
    if found is not None:
        return found
    return names.ERROR_OTHER if error is None else text(type(error).__qualname__)


def scope_error(scope: ScopeView) -> str | None:
    """Return the `error.type` of a run or agent: of an error alone, since one that was stopped, paused or cancelled did not fail."""
    stated = StopReason.ABANDONED if scope.stop_reason == StopReason.ABANDONED else None
    return error_type("error", stated, scope.error) if scope.status == "error" else None


class StopReasons:
    """Bound the stop reasons that a metric sees: the known ones without what follows their colon, and a hundred of the program's own."""

    def __init__(self) -> None:
        self._own = CardinalityLimit(_MOST_OWN_REASONS)

    def admit(self, stop_reason: str | None) -> str:
        """Return what may stand on a metric."""
        found = text(family(stop_reason or OTHER))
        return found if found in _KNOWN_REASONS else self._own.admit(found)[0] or OTHER


def error_type_of(status: str) -> str:
    """Return the `error.type` of an ending of which no error is known."""
    return _WITHOUT_ERROR.get(status, names.ERROR_OTHER)


def error_of(record: CallRecord) -> str | None:
    """Return the `error.type` of a call, None for a success: what was stated of it, or by its answer."""
    stated = record.error_type or (None if record.reply is None else record.reply.error_type)
    return None if stated is None and record.status == "ok" else error_type(record.status, stated, record.error)


def add_decision(attributes: dict[str, AttributeValue], record: CallRecord | ToolRecord) -> None:
    """Add what enforcement decided about an operation, and how that ended where it is no success."""
    if record.status != "ok":
        attributes[names.STATUS] = record.status
    by_gate = record.error_type == names.ERROR_DENIED
    decision = record.decision or ("denied" if record.status == "refused" and not by_gate else None)
    if decision is not None:
        attributes[names.LIMIT_DECISION] = decision
    if record.limit_kind is not None:
        attributes[names.LIMIT_KIND] = text(record.limit_kind)
    if record.limit_scope is not None:
        attributes[names.LIMIT_SCOPE] = record.limit_scope.value
    if record.limit_reason is not None:
        attributes[names.LIMIT_REASON] = text(record.limit_reason)


def sentence(record: CallRecord | ToolRecord) -> str | None:
    """Return our own sentence about a refusal; what others' errors say may quote a prompt or a key and stays out."""
    if record.status != "refused" or not isinstance(record.error, RaviError):
        return None
    return _said(record, record.error)[:_MOST_SENTENCE].encode("utf-8", "replace").decode()


def _said(record: CallRecord | ToolRecord, error: RaviError) -> str:
    """Return its sentence; what a gate says may quote a model or a person, and stays out where content is not captured."""
    if not isinstance(error, ToolDeniedError | StopRun) or (isinstance(record, ToolRecord) and record.arguments is not None):
        return str(error)
    reason = error.stop_reason if isinstance(error, ToolDeniedError) else error.reason
    return f"tool {show(error.tool)} was not run ({reason})." if error.tool is not None else str(reason)


def end(
    span: Span, attributes: dict[str, AttributeValue], error: str | None, sentence: str | None = None, over_unix_ns: int | None = None
) -> None:
    """Set the last attributes and end the span, now unless it was over before; its status stays unset on success, and says `sentence`."""
    try:
        if span.is_recording():
            if error is not None:
                attributes[names.ERROR_TYPE] = error
                span.set_status(_ERROR if sentence is None else Status(StatusCode.ERROR, sentence))
            if attributes:
                span.set_attributes(attributes)
    finally:
        span.end(over_unix_ns)
