"""Emit the telemetry of model calls: one client span each, its attributes, its metrics, and the event of what it raised.

A call costs one dictionary of attributes at its start, one update at its end, and the records of the convention's histograms over
attribute sets that are made once for each combination of names. What a plain call does not have is looked at by one condition.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from ravi_otel._current import Attachment
from ravi_otel._telemetry import names, spans
from ravi_otel._telemetry.content import Content, Structured, as_text
from ravi_otel._telemetry.metrics import Attributes, CallMetrics, about
from ravi_otel._telemetry.names import Convention
from ravi_otel._telemetry.providers import Pipeline, Signals
from ravi_otel._telemetry.spans import (
    MARK,
    MOST_CHARS,
    SUPPRESSION,
    Open,
    Suppression,
    finite,
    identity,
    integer,
    optional_text,
    present,
    suppression_of,
    text,
    word,
    words,
)
from ravi_otel.hooks._events import CallRecord, RetryRecord
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Asked, Call, Reply, Usage

_CLIENT: Final = SpanKind.CLIENT  # reading a member off its class costs more than all that is done with it here
_TOLD_ELSEWHERE: Final = Suppression.TOLD
_SUPPRESSED: Final = Suppression.SUPPRESSED

_ADMITTED: Final = "admitted"

_UNHEARD: Final = object()
"""The key under which a record keeps the context that a call began in of which nobody would have heard."""

_ASKED: Final = object()
"""The key under which a record keeps what its request said when it was sent."""

PENDING: Final = "pending"
"""The source of usage that a later look will bring."""

UNREAD: Final = "unread"
"""The source of usage that is never known here: of a batch, a training or an assistant's run."""

_Names = dict[str, tuple[str, Callable[[object], AttributeValue | None]]]

_MOST_BEGINNINGS: Final = 1_024
_MOST_CHANGES: Final = 16
_MOST_REASONS: Final = 128
_API_TYPES: Final = {"chat.completions": "chat_completions", "responses": "responses"}
_OPENAI: Final = frozenset({"openai", "azure.ai.openai"})
"""Whose calls have the convention's `openai.*`; a host nobody knows that is asked through that client is taken for the first."""

_REQUEST_IDS: Final = {"anthropic": f"{names.RESPONSE_HEADER}request-id"}
_REQUEST_ID: Final = f"{names.RESPONSE_HEADER}x-request-id"
"""The header by which a provider names a request, and the one by which most do."""

_PARAMETERS: Final[_Names] = {
    "max_tokens": (names.REQUEST_MAX_TOKENS, integer),
    "temperature": (names.REQUEST_TEMPERATURE, finite),
    "top_p": (names.REQUEST_TOP_P, finite),
    "top_k": (names.REQUEST_TOP_K, integer),
    "frequency_penalty": (names.REQUEST_FREQUENCY_PENALTY, finite),
    "presence_penalty": (names.REQUEST_PRESENCE_PENALTY, finite),
    "stop_sequences": (names.REQUEST_STOP_SEQUENCES, words),
    "seed": (names.REQUEST_SEED, integer),
    "reasoning_level": (names.REQUEST_REASONING_LEVEL, word),
    "output_type": (names.OUTPUT_TYPE, word),
    "conversation_id": (names.CONVERSATION_ID, word),
    "service_tier": (names.OWN_REQUEST_TIER, word),
}
"""The neutral names of `Call.parameters`; a value of another type than the convention's is left out."""

_OPENAI_PARAMETERS: Final[_Names] = {**_PARAMETERS, "service_tier": (names.OPENAI_REQUEST_TIER, word)}


# The attributes of a call.


class CallAttributes:
    """The attributes of a call at its start and at its end, under the names of one convention; what is unknown is left out.

    The cost is there under our own name and under the proposed ones; with `langfuse` under the one that it reads, in place of those.
    `full` adds what was held of a limit, and how old the price is.
    """

    __slots__ = ("_full", "_langfuse", "_names")

    def __init__(self, convention: Convention, *, langfuse: bool, full: bool = False) -> None:
        self._names = convention
        self._full = full
        self._langfuse = langfuse

    @staticmethod
    def about(call: Call) -> Attributes:
        """Return what is asked of whom: operation, provider, model and server."""
        return about(call.operation, call.provider, call.model, call.server_address, call.server_port)

    @staticmethod
    def is_genai(call: Call) -> bool:
        """Whether a call's span is one of the GenAI conventions; anything else, such as listing models, is a plain one."""
        return call.generative or call.fetches or call.session

    def named(self, call: Call) -> tuple[str, Attributes]:
        """Return a span's name, and what all spans of the same operation, model and host have."""
        name, attributes = text(call.operation), self.about(call)
        if not self.is_genai(call):
            attributes = {key: attributes[key] for key in (names.SERVER_ADDRESS, names.SERVER_PORT) if key in attributes}
        elif call.model is not None:
            name = f"{name} {text(call.model)}"
        endpoint = call.endpoint if call.provider in _OPENAI else ""
        for shape, kind in _API_TYPES.items():
            if endpoint == shape or endpoint.startswith(f"{shape}."):
                attributes[names.OPENAI_API_TYPE] = kind
        return name, attributes

    def at_start(self, call: Call) -> Attributes:
        """Return what a call's parameters and options add to its span."""
        attributes: Attributes = {}
        if call.parameters:
            known_by = _OPENAI_PARAMETERS if call.provider in _OPENAI else _PARAMETERS
            for neutral, given in call.parameters.items():
                known = known_by.get(neutral)
                if known is not None and (value := known[1](given)) is not None:
                    attributes[known[0]] = value
        if call.stream:
            attributes[names.REQUEST_STREAM] = True
        if call.choices != 1:
            attributes[names.REQUEST_CHOICE_COUNT] = call.choices
        if call.previous_response_id is not None:
            attributes[names.REQUEST_PREVIOUS_RESPONSE] = text(call.previous_response_id)
        if call.changes:
            attributes[names.REQUEST_CHANGES] = self._changes(call)
        return attributes

    def at_end(self, record: CallRecord) -> Attributes:
        """Return what is known once a call is over."""
        call, reply, usage = record.call, record.reply, record.usage
        attributes: Attributes = {}
        if call.fetches:  # some are known as such only by what they bring
            attributes.update(about(call.operation, call.provider, call.model, None, None))
        if reply is not None and (call.generative or self.is_genai(call)):
            self._add_reply(attributes, reply, openai=call.provider in _OPENAI)
        if record.first_chunk_ns is not None:
            _add_first_chunk(attributes, record.first_chunk_ns, record.first_content_ns)
        if usage is None or (not usage.output_tokens and usage.total_only):  # asked only where no answer was counted
            self._add_unknown(attributes, record)
        else:
            self._add_usage(attributes, usage, call.operation)
        if record.requests != 1 or record.retries or record.http_status is not None or not call.generative:
            _add_requests(attributes, record)
        if record.request_id is not None or record.rate_limits:
            _add_headers(attributes, call.provider, record.request_id, record.rate_limits)
        if self._full and record.granted is not None:
            attributes[names.LIMIT_GRANTED] = record.granted
        if call.changes:  # some are made only when it is sent, after the span has begun
            attributes[names.REQUEST_CHANGES] = self._changes(call)
        if record.truncated_by_limit and record.output_cap is not None:
            attributes[names.LIMIT_TRUNCATED] = True
        self._add_cost(attributes, record)
        return attributes

    @staticmethod
    def of_retry(retry: RetryRecord, provider: str) -> Attributes:
        """Return those of the event of one retry."""
        known = {
            names.RETRY_ATTEMPT: retry.attempt,
            names.HTTP_STATUS: retry.status,
            names.RETRY_WAIT: retry.wait_s,
            names.ERROR_TYPE: optional_text(retry.error_type),
        }
        attributes = present(known)
        _add_headers(attributes, provider, retry.request_id, retry.rate_limits)
        return attributes

    @staticmethod
    def _changes(call: Call) -> tuple[str, ...]:
        return tuple(map(text, call.changes[:_MOST_CHANGES]))

    def _add_reply(self, attributes: Attributes, reply: Reply, *, openai: bool) -> None:
        if reply.id is not None:
            attributes[names.RESPONSE_ID] = text(reply.id)
        if reply.model is not None:
            attributes[names.RESPONSE_MODEL] = text(reply.model)
        if reply.finish_reasons:
            attributes[names.RESPONSE_FINISH_REASONS] = tuple(map(text, reply.finish_reasons[:_MOST_REASONS]))
        if reply.service_tier is not None:
            attributes[names.OPENAI_RESPONSE_TIER if openai else names.OWN_RESPONSE_TIER] = text(reply.service_tier)
        if openai and reply.system_fingerprint is not None:
            attributes[names.OPENAI_FINGERPRINT] = text(reply.system_fingerprint)
        if reply.conversation_id is not None:
            attributes[names.CONVERSATION_ID] = text(reply.conversation_id)

    def _add_cost(self, attributes: Attributes, record: CallRecord) -> None:
        if record.cost_nano is not None:
            attributes[names.USAGE_COST] = usd = record.cost_nano / NANO
            if self._langfuse:
                attributes[names.LANGFUSE_COST] = usd
            else:
                attributes[names.COST_AMOUNT] = usd
                attributes[names.COST_CURRENCY] = "USD"
                attributes[names.COST_SOURCE] = "local"
        if record.cost_source is not None:
            attributes[names.USAGE_COST_SOURCE] = record.cost_source
        if self._full and record.price_date is not None:
            attributes[names.USAGE_COST_DATE] = text(record.price_date)

    def _add_usage(self, attributes: Attributes, usage: Usage, operation: str) -> None:
        if usage.source != "reported":
            attributes[names.USAGE_SOURCE] = usage.source
            if usage.source == "reserved":
                _add_charged(attributes, usage, None)
                return  # the grant was charged, nobody knows what was used
        if not usage.total_tokens and usage.tokenless:
            _add_measures(attributes, usage)
            return  # measured in sound or characters: how many tokens that is nobody said
        attributes[names.USAGE_INPUT] = usage.input_tokens
        if usage.output_tokens or operation != names.EMBEDDINGS:
            attributes[names.USAGE_OUTPUT] = usage.output_tokens
        if usage.cached_input_tokens:
            attributes[names.USAGE_CACHE_READ] = usage.cached_input_tokens
        if usage.reasoning_tokens:
            attributes[names.USAGE_REASONING] = usage.reasoning_tokens
        if (
            usage.cache_write_tokens
            or usage.rejected_prediction_tokens
            or usage.audio_input_tokens
            or usage.audio_output_tokens
            or usage.image_input_tokens
            or usage.image_output_tokens
        ):
            self._add_details(attributes, usage)
        if usage.searches or usage.characters or usage.audio_ms:
            _add_measures(attributes, usage)

    def _add_details(self, attributes: Attributes, usage: Usage) -> None:
        if usage.cache_write_tokens and usage.cache_write_1h_tokens:
            attributes[names.USAGE_CACHE_WRITE_1H] = usage.cache_write_1h_tokens
        if usage.rejected_prediction_tokens:
            attributes[names.USAGE_REJECTED] = usage.rejected_prediction_tokens
        cached_image_tokens = usage.cached_image_tokens if usage.image_input_tokens else 0
        for amount, released, latest in (
            (usage.cache_write_tokens, names.USAGE_CACHE_CREATION, names.USAGE_CACHE_WRITE),
            (usage.audio_input_tokens, names.OWN_AUDIO_INPUT, names.USAGE_AUDIO_INPUT),
            (usage.audio_output_tokens, names.OWN_AUDIO_OUTPUT, names.USAGE_AUDIO_OUTPUT),
            (usage.image_input_tokens, names.OWN_IMAGE_INPUT, names.USAGE_IMAGE_INPUT),
            (cached_image_tokens, names.OWN_IMAGE_CACHE_READ, names.USAGE_IMAGE_CACHE_READ),
            (usage.image_output_tokens, names.OWN_IMAGE_OUTPUT, names.USAGE_IMAGE_OUTPUT),
        ):
            if amount and self._names.released:
                attributes[released] = amount
            if amount and self._names.latest:
                attributes[latest] = amount

    def _add_unknown(self, attributes: Attributes, record: CallRecord) -> None:
        """Add what is known where nobody told input and output: their sum, what was charged, or whether a later look brings it."""
        if record.usage is not None:
            attributes[names.USAGE_TOTAL] = record.usage.total_tokens
            _add_measures(attributes, record.usage)
            if record.usage.source != "reported":
                attributes[names.USAGE_SOURCE] = record.usage.source
        if record.charged is not None:
            _add_charged(attributes, record.charged, record.charged_nano)
        elif record.reply is not None and record.reply.pending:
            attributes[names.USAGE_SOURCE] = PENDING
        elif record.call.job and record.status == "ok":
            attributes[names.USAGE_SOURCE] = UNREAD


def _add_first_chunk(attributes: Attributes, chunk_ns: int, content_ns: int | None) -> None:
    attributes[names.RESPONSE_FIRST_CHUNK] = chunk_ns / NANO
    if content_ns is not None:
        attributes[names.FIRST_CONTENT] = content_ns / NANO


def _add_requests(attributes: Attributes, record: CallRecord) -> None:
    """Add how many requests a call was, and the status by which it failed."""
    if record.http_status is not None:
        attributes[names.HTTP_STATUS] = record.http_status
    if record.retries:
        attributes[names.RETRY_COUNT] = len(record.retries)
    paid = record.requests if record.call.generative else int(record.reply is not None)
    if paid != 1 and record.status != "refused":
        attributes[names.REQUEST_COUNT] = paid


def _add_measures(attributes: Attributes, usage: Usage) -> None:
    if usage.searches:
        attributes[names.USAGE_SEARCHES] = usage.searches
    if usage.characters:
        attributes[names.USAGE_CHARACTERS] = usage.characters
    if usage.audio_ms:
        attributes[names.USAGE_AUDIO_LENGTH] = usage.audio_ms / 1_000


def _add_charged(attributes: Attributes, charged: Usage, cost_nano: int | None) -> None:
    attributes[names.CHARGED_INPUT] = charged.input_tokens
    attributes[names.CHARGED_OUTPUT] = charged.output_tokens
    if cost_nano is not None:
        attributes[names.CHARGED_COST] = cost_nano / NANO


def _add_headers(attributes: Attributes, provider: str, request_id: str | None, limits: Mapping[str, str] | None) -> None:
    """Add what an answer's headers told: lists, as the HTTP convention has them."""
    if request_id is not None:
        attributes[_REQUEST_IDS.get(provider, _REQUEST_ID)] = (text(request_id),)
    if limits:
        for name, value in limits.items():
            attributes[f"{names.RESPONSE_HEADER}{name}"] = (text(value),)


# The listener.


class _Beginning:
    """What all spans of one (operation, model, host) in one scope begin with, and the latest context in which such a span was wanted."""

    __slots__ = ("attributes", "facts", "name", "wanted_in")

    def __init__(self, facts: ScopeFacts, name: str, attributes: Attributes) -> None:
        self.facts = facts
        self.name = name
        self.attributes = attributes
        self.wanted_in: Callable[[], Context | None] = _nowhere  # weak: a context keeps its scope


def _nowhere() -> None:
    return None


def _weakly(context: Context) -> Callable[[], Context | None]:
    try:
        return weakref.ref(context)
    except TypeError:  # a plain mapping, which somebody made current
        return _nowhere


class ModelCallTelemetry(Listener):
    """Open a span per logical call, keep it with the record, end it when the call or its stream is over; add the content."""

    def __init__(self, pipeline: Pipeline, content: Content) -> None:
        self._pipeline = pipeline
        self._content = content
        self._metrics = CallMetrics()
        self._attributes = CallAttributes(pipeline.convention, langfuse=names.goes_to_langfuse(), full=pipeline.full)
        self._beginnings: dict[tuple[object, ...], _Beginning] = {}

    def call_started(self, record: CallRecord) -> AbstractContextManager[object] | None:
        """Start the span and make it current."""
        call, facts, pipeline = record.call, record.facts, self._pipeline
        current = otel_context.get_current()
        parent = current if pipeline.surrounding is None else pipeline.parent()
        signals = pipeline.settled
        if signals is None and call.content is None and pipeline.unheard:
            record.marks[_UNHEARD] = parent
            return None
        scope_id, operation, provider, model = facts.scope_id, call.operation, call.provider, call.model
        key = (scope_id, operation, provider, model, call.server_address, call.server_port, call.endpoint, call.session)
        beginning = self._beginnings.get(key)
        if beginning is not None and beginning.facts is not facts:
            beginning = None
        if beginning is None or call.told_elsewhere is not None or beginning.wanted_in() is not parent:
            told = suppression_of(call, parent)
            if told is not None:
                record.marks[SUPPRESSION] = told
                return None
        span, attachment = None, None
        tracer = (signals or pipeline.signals()).tracer
        if tracer is not None:
            if beginning is None:
                beginning = self._begin(key, call, facts)
            if beginning.wanted_in() is not parent:
                beginning.wanted_in = _weakly(parent)
            attributes = {**beginning.attributes, **self._attributes.at_start(call)}
            span = tracer.start_span(beginning.name, parent, _CLIENT, attributes)
            context = trace.set_span_in_context(span, parent)
            record.marks[MARK] = Open(span, context)
            record.span = span
            attachment = Attachment(context, current)
        if call.content is not None and self._content.captured:
            self._add_asked(record, call.content, span)
        return attachment

    def chunk_came(self, record: CallRecord, since_ns: int) -> None:
        """Record the time from one chunk to the next, where each is timed and the call is ours to tell."""
        marks = record.marks
        untold = SUPPRESSION in marks or _UNHEARD in marks
        if not untold and record.call.generative and not record.call.session and self._pipeline.metered:
            mark = marks.get(MARK)
            context = mark.context if isinstance(mark, Open) else None
            self._metrics.record_chunk(self._pipeline.signals().instruments, record, since_ns, context)

    def call_ended(self, record: CallRecord) -> None:
        """End the span and record the metrics; what another instrumentation tells too is told by that, but for costs and retries."""
        marks, call, pipeline = record.marks, record.call, self._pipeline
        signals, succeeded = pipeline.settled, record.status == "ok"
        began_unheard = marks.pop(_UNHEARD, None)
        if began_unheard is not None and succeeded and signals is None and pipeline.unheard:
            return
        told = marks.pop(SUPPRESSION, None) if began_unheard is None else suppression_of(call, cast("Context", began_unheard))
        if told is _SUPPRESSED:
            return
        mark = marks.pop(MARK, None)
        span, context = mark if isinstance(mark, Open) else (None, None)
        plain = succeeded and record.error_type is None and (record.reply is None or record.reply.error_type is None)
        error = None if plain else spans.error_of(record)
        try:
            if told is not _TOLD_ELSEWHERE:
                self._finish(span, context, record, error, said=told is None and call.content is not None)
        finally:
            heard = signals is not None
            if signals is None:
                signals = pipeline.signals()
                heard = pipeline.settled is not None or pipeline.metered
            if heard and (call.generative or call.fetches) and not call.session and record.status != "refused":  # which was never sent
                if record.cost_nano:
                    signals.instruments.costs.add(record, record.cost_nano, context)
                if record.retries:
                    self._metrics.count_retries(signals.instruments, record, context)
                if told is not _TOLD_ELSEWHERE:
                    self._metrics.record(signals.instruments, record, error, context)
            if record.error is not None and told is not _TOLD_ELSEWHERE:
                self._emit_error(signals, record, error, context)

    def _emit_error(self, signals: Signals, record: CallRecord, error: str | None, context: Context | None) -> None:
        """Emit the event of what a failed call raised."""
        call = record.call
        if record.status == "error" and record.error is not None and self._attributes.is_genai(call):
            raised = {names.EXCEPTION_TYPE: _raised(record.error), **self._attributes.about(call), names.ERROR_TYPE: error}
            signals.emit(names.EXCEPTION_EVENT, "WARN", present(raised), context)

    def _begin(self, key: tuple[object, ...], call: Call, facts: ScopeFacts) -> _Beginning:
        name, attributes = self._attributes.named(call)
        found = _Beginning(facts, name, {**attributes, **identity(facts)})
        if len(call.model or "") <= MOST_CHARS and len(call.server_address or "") <= MOST_CHARS:  # it must not hold much memory
            if len(self._beginnings) >= _MOST_BEGINNINGS:
                self._beginnings.clear()
            self._beginnings[key] = found
        return found

    def _finish(self, span: Span | None, context: Context | None, record: CallRecord, error: str | None, *, said: bool) -> None:
        attributes: Attributes = {}
        try:
            if span is not None and span.is_recording():
                for retry in record.retries:
                    span.add_event(names.RETRY_EVENT, self._attributes.of_retry(retry, record.call.provider))
                attributes = self._attributes.at_end(record)
                if error is None and record.decision == _ADMITTED and record.limit_kind is None:
                    attributes[names.LIMIT_DECISION] = _ADMITTED
                else:
                    spans.add_decision(attributes, record)
                if error is not None and record.call.stream and record.status != "refused":
                    attributes.setdefault(names.RESPONSE_FINISH_REASONS, ("error",))
            if said and record.status != "refused" and self._content.captured:
                self._add_answered(record, error, span, context)
        finally:
            if span is not None:
                over = time.time_ns() - record.late_ns if record.late_ns else None
                spans.end(span, attributes, error, None if error is None else spans.sentence(record), over)

    def _add_asked(self, record: CallRecord, asked: Asked, span: Span | None) -> None:
        """Copy what is asked before the program can change it."""
        span = self._span_for_content(span)
        if span is not None or self._content.on_events or self._content.in_store:
            copied = self._content.asked(asked)
            if self._content.in_store:
                record.said = copied
            if span is not None:
                span.set_attributes(as_text(copied))
            if self._content.on_events:
                record.marks[_ASKED] = copied

    def _add_answered(self, record: CallRecord, error: str | None, span: Span | None, context: Context | None) -> None:
        """Add the answer, and emit the event of both."""
        output = None if record.reply is None else record.reply.output
        copied = cast("Structured | None", record.marks.pop(_ASKED, None))
        span = self._span_for_content(span)
        if span is None and copied is None and record.said is None:
            return
        said = self._content.answered(output, ended="stop" if record.status == "ok" else "error")
        if record.said is not None:
            record.said = {**record.said, **said}
        if span is not None:
            span.set_attributes(as_text(said))
        if copied is not None:
            at_end = {name: found for name, found in self._attributes.at_end(record).items() if name.startswith(names.GEN_AI)}
            attributes: Structured = {
                **self._attributes.about(record.call),
                **self._attributes.at_start(record.call),
                **at_end,
                **copied,
                **said,
            }
            if error is not None:
                attributes[names.ERROR_TYPE] = error
            self._pipeline.signals().emit(names.DETAILS_EVENT, "INFO", attributes, context)

    def _span_for_content(self, span: Span | None) -> Span | None:
        return span if span is not None and span.is_recording() and self._content.on_spans else None


def _raised(error: BaseException) -> str:
    """Name what was raised; its message and stack stay out, they may quote the prompt or a key."""
    kind = type(error)
    return text(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
