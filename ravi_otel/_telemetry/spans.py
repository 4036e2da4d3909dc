"""Say on spans and metrics what is known: names that cannot do harm, whose a span is, how it ended, and when there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, StatusCode
from opentelemetry.trace import Status as SpanStatus
from opentelemetry.util import types
from opentelemetry.util.types import AttributeValue

from ravi_otel._forksafe import ForkLock
from ravi_otel._telemetry import names
from ravi_otel.errors import RaviError, StopRun, ToolDeniedError
from ravi_otel.hooks._events import CallRecord, ScopeView, Status, ToolRecord
from ravi_otel.policy._checks import show
from ravi_otel.policy._runs import ScopeFacts, StopReason, family
from ravi_otel.policy._usage import Call

MOST_SERIES: Final = 2_000
MOST_CHARS: Final = 256
OTHER: Final = "_other"
_MOST_ITEMS: Final = 16
_MOST_INT: Final = 2**63 - 1
_MOST_EVENTS: Final = 128


class CardinalityLimit:
    """Admit the first 2,000 combinations of names a metric sees; every later one is `_other` in each of its names.

    One for each metric: combinations are counted, not single names, so two hostile names do not multiply.
    """

    __slots__ = ("_limit", "_lock", "_seen")

    def __init__(self, limit: int = MOST_SERIES) -> None:
        self._limit = limit
        self._seen: set[tuple[str | None, ...]] = set()
        self._lock = ForkLock()

    def admit(self, *names: str | None) -> tuple[str | None, ...]:
        """Return `names`, or `_other` in place of each that is not None."""
        if names in self._seen or self._enter(names):
            return names
        return tuple(None if name is None else OTHER for name in names)

    def _enter(self, names: tuple[str | None, ...]) -> bool:
        with self._lock.own:
            if names not in self._seen:
                if len(self._seen) >= self._limit:
                    return False
                self._seen.add(names)
            return True


def text(value: object) -> str:
    """Write any value as at most 256 characters that every exporter can encode."""
    if type(value) is not str:
        value = _written(value)
    elif len(value) <= MOST_CHARS and value.isascii():
        return value
    if len(value) > MOST_CHARS:
        value = value[:MOST_CHARS]
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def optional_text(value: object) -> str | None:
    """Write any value, None stays None."""
    return None if value is None else text(value)


def short(value: str | None) -> str | None:
    """Return a string as it is while it is short, for use as a key that must not hold much memory."""
    return value if value is None or len(value) <= MOST_CHARS else text(value)


def _written(value: object) -> str:
    try:
        return str.__str__(value) if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - a name whose __str__ raises is still a name, its type's
        return type(value).__name__


def integer(value: object) -> int | None:
    """Return a whole number that fits 64 bits, None for anything else."""
    if type(value) is int:  # as nearly always
        return value if -_MOST_INT <= value <= _MOST_INT else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST_INT <= value <= _MOST_INT:
        return None
    return int(value)


def finite(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if type(value) is float:  # as nearly always
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def figure(value: float) -> float | None:
    """Keep counts whole, turn what neither JSON nor an exporter can carry into None."""
    known = finite(value)
    return value if known is not None and isinstance(value, int) and abs(value) <= _MOST_INT else known


def word(value: object) -> str | None:
    """Return a string, None for anything else or an empty one."""
    return text(value) if isinstance(value, str) and value else None


def words(value: object) -> tuple[str, ...] | None:
    """Return a string or a list of strings as a tuple of at most 16, None for anything else."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list | tuple) or not value:
        return None
    items = tuple(text(item) for item in cast("Sequence[Any]", value)[:_MOST_ITEMS] if isinstance(item, str))
    return items or None


def present(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Return the attributes that have a value."""
    found = dict[str, AttributeValue]()
    for name, value in attributes.items():  # no comprehension: before Python 3.12 that is one more function
        if value is not None:
            found[name] = value
    return found


_MOST_KEPT: Final = 1_024
_kept: dict[str, tuple[ScopeFacts, Mapping[str, AttributeValue]]] = {}


class PendingSpan(Span):
    """Stand for the span that a library makes of a request once it sends it: what is said of the call until then is said on that one.

    Until it is adopted it is the span around, to whoever asks what a new span is inside of. One that is never adopted has `said` for
    another to say.
    """

    def __init__(self, around: Span, record: ToolRecord, attributes: Mapping[str, AttributeValue]) -> None:
        self._around = around
        self._record = record
        self._real: Span | None = None
        self.attributes: dict[str, AttributeValue] = dict(attributes)
        self.events: list[tuple[str, types.Attributes, int]] = []

    @property
    def adopted(self) -> bool:
        """Whether there is a span of the library's."""
        return self._real is not None

    @staticmethod
    def current() -> PendingSpan | None:
        """Return the one that a request which is sent here is to have; None where there is none."""
        return cast("PendingSpan | None", otel_context.get_value(_PENDING))

    def around(self, context: Context) -> Context:
        """Return `context` with this one as the span of what is done in it."""
        return otel_context.set_value(_PENDING, self, trace.set_span_in_context(self, context))

    def adopt(self, span: Span) -> bool:
        """Say all of it on the library's span, once, and from now on whatever is said; False where this is none of its own."""
        own, around = span.get_span_context(), self._around.get_span_context()
        if self._real is not None or span is self or not own.is_valid or own.span_id == around.span_id:
            return False
        add_decision(self.attributes, self._record)
        self._real = span
        self.say_on(span)
        return True

    def say_on(self, span: Span) -> None:
        """Say on another span what was said on this one."""
        if span.is_recording():
            span.set_attributes(self.attributes)
            for name, attributes, at_ns in self.events:
                span.add_event(name, attributes, at_ns)

    def get_span_context(self) -> SpanContext:
        """Return the library's, and the span's around until there is one."""
        return (self._real or self._around).get_span_context()

    def is_recording(self) -> bool:
        """Whether anything that is said reaches a span."""
        return self._real is None or self._real.is_recording()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Say several attributes on the library's span, or keep them for it."""
        if self._real is not None:
            self._real.set_attributes(attributes)
        else:
            self.attributes.update(attributes)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Say one attribute."""
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Say an event on the library's span, or keep it with its time."""
        if self._real is not None:
            self._real.add_event(name, attributes, timestamp)
        elif len(self.events) < _MOST_EVENTS:
            self.events.append((name, attributes, time.time_ns() if timestamp is None else timestamp))

    def set_status(self, status: SpanStatus | StatusCode, description: str | None = None) -> None:
        """Set the status of the library's span; one that is set before there is a span is the library's to set."""
        if self._real is not None:
            self._real.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an exception on the library's span, which records those that end it itself."""
        if self._real is not None:
            self._real.record_exception(exception, attributes, timestamp, escaped)

    def update_name(self, name: str) -> None:
        """Keep the library's name for it."""

    def end(self, end_time: int | None = None) -> None:
        """Leave its end to the library."""


def identity(facts: ScopeFacts) -> Mapping[str, AttributeValue]:
    """Return the attributes every span of a run carries, to read only, made once per scope; what is unknown is left out."""
    found = _kept.get(facts.scope_id)
    if found is not None and found[0] is facts:
        return found[1]
    session, agent_id, agent_name = facts.session_id, facts.agent_id, facts.agent_name
    session = session and text(session)  # ours, and the names that backends group by
    attributes = present(
        {
            names.RUN_ID: facts.run_id and text(facts.run_id),
            names.SESSION_ID: session,
            names.GENERAL_SESSION_ID: session,
            names.CONVERSATION_ID: session,
            names.TENANT_ID: facts.tenant_id and text(facts.tenant_id),
            names.USER_ID: facts.user_id and text(facts.user_id),
            names.AGENT_NAME: agent_name and text(agent_name),
            names.AGENT_ID: agent_id and text(agent_id),
        }
    )
    for key, value in facts.tags.items():
        attributes[f"{names.TAG_PREFIX}{key}"] = text(value)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[facts.scope_id] = (facts, attributes)
    return attributes


# Spans that are open, and why one is not.


class Open(NamedTuple):
    """An open span with its context."""

    span: Span
    context: Context


_PENDING: Final = otel_context.create_key("ravi-otel-pending-span")

MARK: Final = object()
"""The key under which a record's `marks` keep its span."""


_SILENCING: Final = frozenset(
    {"suppress_instrumentation", str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"))}
)
"""Keys of the context by which a program, or an exporter, asks for silence: OpenTelemetry's own, and the plain one."""

_SUPPRESSED: Final = _SILENCING | {"suppress_language_model_instrumentation"}
"""Those, and one for model calls alone."""

_TOLD: Final = frozenset(
    {
        "opentelemetry.genai.client.inference.context",
        "opentelemetry.genai.client.embedding.context",
        "opentelemetry.genai.client.fetch_response.context",
    }
)
"""Keys under which instrumentations of OpenTelemetry's own GenAI family say that they are in the middle of a call."""

_ALL: Final = _SUPPRESSED | _TOLD
_SCOPES: Final = (
    "opentelemetry.instrumentation.openai",
    "opentelemetry.instrumentation.anthropic",
    "opentelemetry.instrumentation.groq",
    "opentelemetry.instrumentation.genai",
    "openinference.instrumentation.openai",
    "openinference.instrumentation.anthropic",
    "openinference.instrumentation.groq",
    "logfire.openai",
    "logfire.anthropic",
)
"""What the scopes of instrumentations begin with that open a span around the very call we see."""


SUPPRESSION: Final = object()
"""The key under which a record's `marks` keep the reason why it has no span of ours."""


class Suppression(Enum):
    """Why a call gets no span of ours."""

    SUPPRESSED = "suppressed"
    """The program asked that nothing be told of it."""
    TOLD = "told"
    """Another instrumentation has a span for it; what only we know is still counted."""
    SPAN = "span"
    """The client makes a span for it by itself, and no metrics."""


def silences_all(context: Context) -> bool:
    """Whether nothing of what is done in `context` is to be told: what an exporter sends, before all."""
    return any(context.get(key) for key in _SILENCING)


def suppression_of(call: Call, context: Context) -> Suppression | None:
    """Return why a call that begins in `context` gets no span of ours; None where it does."""
    if not _ALL.isdisjoint(context):
        if any(context.get(key) for key in _SUPPRESSED):
            return Suppression.SUPPRESSED
        if any(context.get(key) is not None for key in _TOLD):
            return Suppression.TOLD
    if call.told_elsewhere is not None:
        return Suppression.SPAN if call.told_elsewhere == "span" else Suppression.TOLD
    scope = getattr(trace.get_current_span(context), "instrumentation_scope", None)
    name = getattr(scope, "name", None)
    return Suppression.TOLD if isinstance(name, str) and name.startswith(_SCOPES) else None


# How an operation ended.

_ERROR: Final = SpanStatus(StatusCode.ERROR)
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


def error_type(status: Status, stated: str | None, error: BaseException | None) -> str | None:
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
    """Return the `error.type` of a run or agent that failed."""
    return error_type("error", StopReason.ABANDONED if scope.stop_reason == StopReason.ABANDONED else None, scope.error)


class StopReasons:
    """Bound the stop reasons that a metric sees: the known ones without what follows their colon, and a hundred of the program's own."""

    def __init__(self) -> None:
        self._own = CardinalityLimit(_MOST_OWN_REASONS)

    def admit(self, stop_reason: str | None) -> str:
        """Return what may stand on a metric."""
        if stop_reason in _KNOWN_REASONS:
            return str(stop_reason)
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
    if record.status not in {"ok", "open"}:
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
                span.set_status(_ERROR if sentence is None else SpanStatus(StatusCode.ERROR, sentence))
            if attributes:
                span.set_attributes(attributes)
    finally:
        span.end(over_unix_ns)
