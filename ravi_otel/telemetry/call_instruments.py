"""Hold the instruments of model calls, under the names of the convention that is spoken."""

from __future__ import annotations

from typing import Final, Protocol

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter
from opentelemetry.util.types import AttributeValue

from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Usage
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.catalog import METRICS
from ravi_otel.telemetry.conventions import Convention

Attributes = dict[str, AttributeValue]

ESTIMATED: Final = "estimated"
"""What marks tokens that no provider counted; those it did have no mark."""

_UNKNOWN: Final = "unknown"
_AUDIO: Final = "audio"
_IMAGE: Final = "image"
_NO_INFERENCE: Final = frozenset({semconv.EMBEDDINGS, semconv.FETCH_RESPONSE})


class Series:
    """Hold the attributes of one combination of names, once per metric that needs its own.

    `tokens` are those without an error's type; the latest convention has none on what counts tokens.
    """

    __slots__ = ("_by_modality", "_estimated", "call", "input", "output", "tokens")

    def __init__(self, call: Attributes) -> None:
        self.call = call
        self.input: Attributes = {**call, semconv.TOKEN_TYPE: "input"}
        self.output: Attributes = {**call, semconv.TOKEN_TYPE: "output"}
        self.tokens = call if semconv.ERROR_TYPE not in call else {key: call[key] for key in call if key != semconv.ERROR_TYPE}
        self._by_modality: dict[str, Attributes] = {}
        self._estimated: Series | None = None

    def of(self, modality: str) -> Attributes:
        """Give those of tokens of one modality."""
        found = self._by_modality.get(modality)
        if found is None:
            found = self._by_modality.setdefault(modality, {**self.tokens, semconv.TOKEN_MODALITY: modality})
        return found

    def counted(self, usage: Usage) -> Series:
        """Give those of `usage`: where it is no provider's they say so, so that the two are never one sum."""
        if usage.source == "reported":
            return self
        if self._estimated is None:
            self._estimated = Series({**self.call, semconv.USAGE_SOURCE: ESTIMATED})
        return self._estimated


class CallInstruments(Protocol):
    """Tell a call's metrics; `context` holds its span, for exemplars."""

    def record(self, record: CallRecord, series: Series, context: Context | None) -> None:
        """Tell a call that was sent and is over."""
        ...

    def chunk(self, seconds: float, series: Series, context: Context | None) -> None:
        """Tell the time between two chunks."""
        ...


def make(meter: Meter, convention: Convention) -> CallInstruments:
    """Create the instruments of one convention, or of both."""
    if not convention.latest:
        return _Released(meter)
    latest = _Latest(meter, convention)
    return _Both(_Released(meter), latest) if convention.released else latest


def _counted(record: CallRecord) -> Usage | None:
    """Give what is known of a call's input and output; what was held is no such knowledge, nor is their sum, or a measure of sound."""
    usage = record.usage
    if usage is None or usage.source == "reserved":
        return None
    return usage if usage.input_tokens or usage.output_tokens or not (usage.total_tokens or usage.tokenless) else None


class _Released:
    __slots__ = ("_chunks", "_duration", "_first_chunk", "_tokens")

    def __init__(self, meter: Meter) -> None:
        self._duration = histogram(meter, semconv.CALL_DURATION)
        self._tokens = histogram(meter, semconv.TOKEN_USAGE)
        self._first_chunk = histogram(meter, semconv.FIRST_CHUNK)
        self._chunks = histogram(meter, semconv.EACH_CHUNK)

    def record(self, record: CallRecord, series: Series, context: Context | None) -> None:
        self._duration.record(record.duration_ns / NANO, series.call, context)
        usage = _counted(record)
        if usage is not None:
            counted = series.counted(usage)
            self._tokens.record(usage.input_tokens, counted.input, context)
            if usage.output_tokens or record.call.operation != semconv.EMBEDDINGS:
                self._tokens.record(usage.output_tokens, counted.output, context)
        if record.first_chunk_ns is not None:
            self._first_chunk.record(record.first_chunk_ns / NANO, series.call, context)

    def chunk(self, seconds: float, series: Series, context: Context | None) -> None:
        self._chunks.record(seconds, series.call, context)


class _Latest:
    """Tell what generates as inference, embeddings under their own names, and of the rest how long it took."""

    __slots__ = (
        "_cache_read", "_cache_write", "_chunks", "_duration", "_embedded", "_embedding", "_first_chunk",
        "_input", "_inputs", "_other", "_output", "_outputs", "_reasoning",
    )  # fmt: skip

    def __init__(self, meter: Meter, convention: Convention) -> None:
        # With both conventions the release's own instrument of this name tells every call: twice would be double.
        self._other = None if convention.released else histogram(meter, semconv.CALL_DURATION)
        self._duration = histogram(meter, semconv.INFERENCE_DURATION)
        self._first_chunk = histogram(meter, semconv.INFERENCE_FIRST_CHUNK)
        self._chunks = histogram(meter, semconv.INFERENCE_EACH_CHUNK)
        self._embedding = histogram(meter, semconv.EMBEDDINGS_DURATION)
        self._embedded = histogram(meter, semconv.EMBEDDINGS_INPUT)
        self._inputs = histogram(meter, semconv.INFERENCE_INPUT)
        self._outputs = histogram(meter, semconv.INFERENCE_OUTPUT)
        self._input = counter(meter, semconv.INPUT_COUNT)
        self._output = counter(meter, semconv.OUTPUT_COUNT)
        self._cache_read = counter(meter, semconv.CACHE_READ_COUNT)
        self._cache_write = counter(meter, semconv.CACHE_WRITE_COUNT)
        self._reasoning = counter(meter, semconv.REASONING_COUNT)

    def record(self, record: CallRecord, series: Series, context: Context | None) -> None:
        operation, usage, seconds = record.call.operation, _counted(record), record.duration_ns / NANO
        if operation in _NO_INFERENCE:
            self._no_inference(operation, usage, seconds, series, context)
            return
        self._duration.record(seconds, series.call, context)
        if record.first_chunk_ns is not None:
            self._first_chunk.record(record.first_chunk_ns / NANO, series.call, context)
        if usage is None:  # a call without usage counts as one all the same
            self._input.add(0, series.of(_UNKNOWN), context)
            self._output.add(0, series.of(_UNKNOWN), context)
            return
        counted = series.counted(usage)
        self._count(usage, counted, context)
        if series.tokens is series.call:  # the distribution is of calls that succeeded
            self._inputs.record(usage.input_tokens, counted.tokens, context)
            self._outputs.record(usage.output_tokens, counted.tokens, context)

    def chunk(self, seconds: float, series: Series, context: Context | None) -> None:
        self._chunks.record(seconds, series.call, context)

    def _no_inference(self, operation: str, usage: Usage | None, seconds: float, series: Series, context: Context | None) -> None:
        if operation == semconv.EMBEDDINGS:
            self._embedding.record(seconds, series.call, context)
            if usage is not None:
                self._embedded.record(usage.input_tokens, series.counted(usage).tokens, context)
            return
        if self._other is not None:
            self._other.record(seconds, series.call, context)
        if usage is not None:  # those of an answer that was made in the background, known with this look at it
            self._count(usage, series.counted(usage), context)

    def _count(self, usage: Usage, series: Series, context: Context | None) -> None:
        """Count tokens by modality: what a provider does not tell apart is of an unknown one."""
        _spread(self._input, usage.input_tokens, usage.audio_input_tokens, usage.image_input_tokens, series, context)
        _spread(self._output, usage.output_tokens, usage.audio_output_tokens, usage.image_output_tokens, series, context)
        if usage.cached_input_tokens:
            _spread(self._cache_read, usage.cached_input_tokens, 0, usage.cached_image_tokens, series, context)
        if usage.cache_write_tokens:
            self._cache_write.add(usage.cache_write_tokens, series.of(_UNKNOWN), context)
        if usage.reasoning_tokens:
            self._reasoning.add(usage.reasoning_tokens, series.of(_UNKNOWN), context)


def _spread(to: Counter, total: int, audio: int, image: int, series: Series, context: Context | None) -> None:
    """Add a total in parts; parts that are more than the total are cut to it."""
    audio = min(audio, total)
    image = min(image, total - audio)
    if audio:
        to.add(audio, series.of(_AUDIO), context)
    if image:
        to.add(image, series.of(_IMAGE), context)
    rest = total - audio - image
    if rest or not total:
        to.add(rest, series.of(_UNKNOWN), context)


class _Both:
    __slots__ = ("_latest", "_released")

    def __init__(self, released: _Released, latest: _Latest) -> None:
        self._released = released
        self._latest = latest

    def record(self, record: CallRecord, series: Series, context: Context | None) -> None:
        self._released.record(record, series, context)
        self._latest.record(record, series, context)

    def chunk(self, seconds: float, series: Series, context: Context | None) -> None:
        self._released.chunk(seconds, series, context)
        self._latest.chunk(seconds, series, context)


def histogram(meter: Meter, name: str) -> Histogram:
    """Create a histogram from its row in the table of names."""
    row = METRICS[name]
    return meter.create_histogram(name, unit=row.unit, description=row.description, explicit_bucket_boundaries_advisory=row.buckets)


def counter(meter: Meter, name: str) -> Counter:
    """Create a counter from its row in the table of names."""
    row = METRICS[name]
    return meter.create_counter(name, unit=row.unit, description=row.description)
