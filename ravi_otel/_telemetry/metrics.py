"""Create the instruments, each from its row in the table of names, and hold the attributes that a call's records share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation, UpDownCounter
from opentelemetry.util.types import AttributeValue

from ravi_otel._forksafe import ForkLock, renew_while_alive
from ravi_otel._telemetry import names
from ravi_otel._telemetry.names import METRICS, RELEASED, Convention
from ravi_otel._telemetry.spans import MOST_SERIES, OTHER, CardinalityLimit, optional_text, present, short, text
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Usage

Attributes = dict[str, AttributeValue]
Observe = Callable[[CallbackOptions], Iterable[Observation]]

ESTIMATED: Final = "estimated"
"""What marks tokens that no provider counted; those it did have no mark."""

_MOST_KEPT: Final = 1_024
_MOST_OTHERS: Final = 64
_MOST_KNOWN: Final = MOST_SERIES - _MOST_OTHERS - 1
"""With those of `_other` names, and the two that hold all the rest, a metric has 2,001 at most."""

_STATUSES: Final = range(100, 600)
_MOST_TENANTS: Final = 200
"""Tenants that a sum tells apart; all later ones are `_other`, so that their number does not hide agents and models."""

_UNKNOWN: Final = "unknown"
_NO_INFERENCE: Final = frozenset({names.EMBEDDINGS, names.FETCH_RESPONSE})


class Series:
    """The attributes of one combination of names, once per metric that needs its own, in alphabetical order.

    `tokens` are those without an error's type; the latest convention has none on what counts tokens.
    """

    __slots__ = ("_by_modality", "_estimated", "call", "input", "output", "tokens")

    def __init__(self, call: Attributes) -> None:
        self.call = dict(sorted(call.items()))  # the SDK sorts them at each record, and is faster where they are in order
        self.input: Attributes = dict(sorted({**call, names.TOKEN_TYPE: "input"}.items()))
        self.output: Attributes = dict(sorted({**call, names.TOKEN_TYPE: "output"}.items()))
        self.tokens = self.call
        if names.ERROR_TYPE in call:
            self.tokens = {key: value for key, value in self.call.items() if key != names.ERROR_TYPE}
        self._by_modality: dict[str, Attributes] = {}
        self._estimated: Series | None = None

    def of(self, modality: str) -> Attributes:
        """Return those of tokens of one modality."""
        found = self._by_modality.get(modality)
        if found is None:
            found = self._by_modality.setdefault(modality, {**self.tokens, names.TOKEN_MODALITY: modality})
        return found

    @property
    def estimated(self) -> Series:
        """Return those of tokens that no provider counted: they say so, so that the two are never one sum."""
        if self._estimated is None:
            self._estimated = Series({**self.call, names.USAGE_SOURCE: ESTIMATED})
        return self._estimated


class _Sum:
    """One sum, what it was when it was told last, and the context of the latest call since, for an exemplar."""

    __slots__ = ("attributes", "context", "told", "total")

    def __init__(self, attributes: Attributes) -> None:
        self.attributes = attributes
        self.total: float = 0
        self.told: float = 0
        self.context: Context | None = None


class Sums:
    """Sum up by attribute set what grows as often as there are calls, for an observable counter that tells it in `unit`s.

    A call adds a number under a lock, and nothing is recorded for it.
    """

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self._sums: dict[tuple[tuple[str, AttributeValue], ...], _Sum] = {}
        self._lock = ForkLock()
        renew_while_alive(self, Sums._leave_to_the_parent)

    def observe(self, options: CallbackOptions) -> Iterator[Observation]:  # noqa: ARG002 - the callback's signature
        """Yield every sum there is."""
        for one in list(self._sums.values()):
            one.told, context, one.context = one.total, one.context, None
            if one.told:
                yield Observation(one.told if self._unit == 1 else one.told / self._unit, one.attributes, context)

    def _leave_to_the_parent(self) -> None:
        """Take back, in a forked child, what the parent has not told yet: it will."""
        for one in self._sums.values():
            one.total, one.context = one.told, None


class OverageSums(Sums):
    """Sum up what was spent beyond what was granted, by the kind and the scope of the limit."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[str | None, ScopeKind | None], _Sum] = {}

    def add(self, kind: str | None, scope: ScopeKind | None, amount: float) -> None:
        """Add what one limit was passed by; names come admitted."""
        found = self._kept.get((kind, scope)) or self._keep(kind, scope)
        with self._lock.own:
            found.total += amount

    def _keep(self, kind: str | None, scope: ScopeKind | None) -> _Sum:
        attributes = present({names.LIMIT_KIND: kind, names.LIMIT_SCOPE: None if scope is None else scope.value})
        with self._lock.own:
            found = self._kept[kind, scope] = self._sums.setdefault(tuple(attributes.items()), _Sum(attributes))
        return found


class CostSums(Sums):
    """Sum up what model calls cost, by agent, model, provider, tenant and tags."""

    def __init__(self) -> None:
        super().__init__(NANO)
        self._kept: dict[tuple[str, str, str | None, bool], tuple[ScopeFacts, _Sum]] = {}
        self._cardinality = CardinalityLimit()
        self._tenants = CardinalityLimit(_MOST_TENANTS)

    def add(self, record: CallRecord, cost_nano: int, context: Context | None) -> None:
        """Add what a call cost; where that is, is found once per scope and model: the guards never change their mind about a name."""
        facts, call = record.facts, record.call
        estimated = record.usage is not None and record.usage.source != "reported"
        kept = self._kept.get((facts.scope_id, call.provider, call.model, estimated))
        found = kept[1] if kept is not None and kept[0] is facts else self._keep(record, estimated=estimated)
        with self._lock.own:
            found.total += cost_nano
            found.context = context

    def _keep(self, record: CallRecord, *, estimated: bool) -> _Sum:
        facts, call = record.facts, record.call
        key = (facts.scope_id, call.provider, short(call.model), estimated)  # by names that are cut: they must not hold much memory
        attributes = self._attributes(record, estimated=estimated)
        with self._lock.own:
            found = self._sums.setdefault(tuple(attributes.items()), _Sum(attributes))
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (facts, found)
        return found

    def _attributes(self, record: CallRecord, *, estimated: bool) -> Attributes:
        facts, call = record.facts, record.call
        (tenant,) = self._tenants.admit(optional_text(facts.tenant_id))
        named = (optional_text(facts.agent_name), optional_text(call.model), tenant, *map(optional_text, facts.tags.values()))
        agent, model, tenant, *values, source = self._cardinality.admit(*named, ESTIMATED if estimated else None)
        known: dict[str, AttributeValue | None] = {
            names.PROVIDER_NAME: text(call.provider),
            names.AGENT_NAME: agent,
            names.REQUEST_MODEL: model,
            names.TENANT_ID: tenant,
            **{f"{names.TAG_PREFIX}{key}": value for key, value in zip(facts.tags, values, strict=True)},
            names.USAGE_SOURCE: None if source is None else ESTIMATED,
        }
        return present(known)


class Collection:
    """What the metrics of one provider call when they are collected: OpenTelemetry never lets go of a callback, so this one stays.

    `observe` gives the callbacks of the gauges by metric name, of whoever tells now. Its sums go on when another one comes: what only
    grows may not begin again.
    """

    _of: ClassVar[weakref.WeakKeyDictionary[Any, dict[str, Collection]]] = weakref.WeakKeyDictionary()
    _of_global: ClassVar[dict[str, Collection]] = {}

    def __init__(self) -> None:
        self.observe: Mapping[str, Observe] = {}
        self.costs = CostSums()
        self.overages = OverageSums()

    @classmethod
    def of(cls, provider: object, schema_url: str, *, is_global: bool) -> Collection:
        """Return the one of a provider's meter; that of the global one is the same before and after the application sets it."""
        try:
            known = cls._of.get(provider)
            if known is None:
                known = cls._of_global if is_global else cls._of.setdefault(provider, {})
        except TypeError:  # it cannot be remembered
            return cls()
        return known.setdefault(schema_url, cls())

    def read(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        """Return what a gauge shows now; nothing where nobody tells any more."""
        observe = self.observe.get(name)
        return () if observe is None else observe(options)


class Instruments:
    """One instrument per metric of a convention, by its name, each made from its row in the table; gauges ask `collection`."""

    __slots__ = ("costs", "counters", "histograms", "latest", "overages", "released")

    def __init__(self, meter: Meter, collection: Collection, convention: Convention = RELEASED) -> None:
        self.released, self.latest = convention.released, convention.latest
        self.costs, self.overages = collection.costs, collection.overages
        sums: dict[str, Sums] = {names.COST: self.costs, names.LIMIT_OVERAGE: self.overages}
        self.counters: dict[str, Counter | UpDownCounter] = {}
        self.histograms: dict[str, Histogram] = {}
        for row in METRICS.values():
            name, about = row.name, {"unit": row.unit, "description": row.description}
            if name in sums:
                meter.create_observable_counter(name, [sums[name].observe], **about)
            elif row.kind == "gauge":
                if name in collection.observe:
                    meter.create_observable_gauge(name, [partial(collection.read, name)], **about)
            elif row.spoken == "both" or getattr(convention, row.spoken):
                if row.kind == "histogram":
                    self.histograms[name] = meter.create_histogram(name, **about, explicit_bucket_boundaries_advisory=row.buckets)
                else:
                    create = meter.create_counter if row.kind == "counter" else meter.create_up_down_counter
                    self.counters[name] = create(name, **about)


class CallMetrics:
    """Record durations, tokens, first chunks, cost and retries of model calls.

    The table of combinations is the cardinality guard too: once as many are known as may be, new ones are told under `_other`.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], Series] = {}
        self._others: dict[tuple[object, ...], Series] = {}
        self._rest = Series(_series_attributes(OTHER, OTHER, (OTHER, OTHER, OTHER), None, None))
        self._failed_rest = Series(_series_attributes(OTHER, OTHER, (OTHER, OTHER, OTHER), None, names.ERROR_OTHER))
        self._lock = ForkLock()
        self._retries = CardinalityLimit()

    def record(self, instruments: Instruments, record: CallRecord, error: str | None, context: Context | None) -> None:
        """Record one call that was sent and is over; `context` holds its span, for exemplars."""
        call, usage, reply = record.call, record.usage, record.reply
        model = None if reply is None else reply.model
        series = self._series.get((call.operation, call.provider, call.model, call.server_address, call.server_port, model, error))
        if series is None:
            series = self._enter(call, model, error)
        if usage is not None:  # what was held is no knowledge of input and output, nor is their sum, or a measure of sound
            known = usage.input_tokens or usage.output_tokens or not (usage.total_tokens or usage.tokenless)
            usage = usage if known and usage.source != "reserved" else None
        counted = series if usage is None or usage.source == "reported" else series.estimated
        if instruments.released:
            histograms = instruments.histograms
            histograms[names.CALL_DURATION].record(record.duration_ns / NANO, series.call, context)
            if usage is not None:
                histograms[names.TOKEN_USAGE].record(usage.input_tokens, counted.input, context)
                if usage.output_tokens or call.operation != names.EMBEDDINGS:
                    histograms[names.TOKEN_USAGE].record(usage.output_tokens, counted.output, context)
            if record.first_chunk_ns is not None:
                histograms[names.FIRST_CHUNK].record(record.first_chunk_ns / NANO, series.call, context)
        if instruments.latest:
            _record_latest(instruments, record, usage, series, counted, context)

    def record_chunk(self, instruments: Instruments, record: CallRecord, since_ns: int, context: Context | None) -> None:
        """Record the time between two chunks of a call; the model that answers is known at its end, and not yet."""
        series = self._enter(record.call, None, None)
        if instruments.released:
            instruments.histograms[names.EACH_CHUNK].record(since_ns / NANO, series.call, context)
        if instruments.latest:
            instruments.histograms[names.INFERENCE_EACH_CHUNK].record(since_ns / NANO, series.call, context)

    def count_retries(self, instruments: Instruments, record: CallRecord, context: Context | None) -> None:
        """Count the attempts after the first; without a status where no answer came."""
        for retry in record.retries:
            provider, told = self._retries.admit(text(record.call.provider), str(retry.status) if retry.status in _STATUSES else None)
            known = {names.PROVIDER_NAME: provider, names.HTTP_STATUS: None if told in {None, OTHER} else retry.status}
            instruments.counters[names.RETRY_COUNT].add(1, present(known), context)

    def _enter(self, call: Call, answered: str | None, error: str | None) -> Series:
        operation, provider, port, model = call.operation, call.provider, call.server_port, short(answered)
        key = (operation, provider, short(call.model), short(call.server_address), port, model, error)
        named = (optional_text(call.model), optional_text(model), optional_text(call.server_address))
        with self._lock.own:
            known = self._series.get(key)  # by names that are cut: they must not hold much memory
            if known is not None:
                return known
            if len(self._series) < _MOST_KNOWN:
                return self._series.setdefault(key, Series(_series_attributes(operation, provider, named, port, error)))
            other = (operation, provider, error)
            found = self._others.get(other)
            if found is None:
                hidden = tuple(None if name is None else OTHER for name in named)
                if len(self._others) >= _MOST_OTHERS:
                    return self._failed_rest if error is not None else self._rest
                found = self._others[other] = Series(_series_attributes(operation, provider, hidden, None, error))
            return found


def _record_latest(
    instruments: Instruments, record: CallRecord, usage: Usage | None, series: Series, counted: Series, context: Context | None
) -> None:
    """Record what generates as inference, embeddings under their own names, and of the rest how long it took."""
    histograms, operation, seconds = instruments.histograms, record.call.operation, record.duration_ns / NANO
    if operation == names.EMBEDDINGS:
        histograms[names.EMBEDDINGS_DURATION].record(seconds, series.call, context)
        if usage is not None:
            histograms[names.EMBEDDINGS_INPUT].record(usage.input_tokens, counted.tokens, context)
    elif operation in _NO_INFERENCE:
        if not instruments.released:  # with both conventions the release's own duration tells every call: twice would be double
            histograms[names.CALL_DURATION].record(seconds, series.call, context)
        if usage is not None:  # those of an answer that was made in the background, known with this look at it
            _count(instruments, usage, counted, context)
    else:
        histograms[names.INFERENCE_DURATION].record(seconds, series.call, context)
        if record.first_chunk_ns is not None:
            histograms[names.INFERENCE_FIRST_CHUNK].record(record.first_chunk_ns / NANO, series.call, context)
        _count(instruments, usage or Usage(), counted, context)  # a call without usage counts as one all the same
        if usage is not None and series.tokens is series.call:  # the distribution is of calls that succeeded
            histograms[names.INFERENCE_INPUT].record(usage.input_tokens, counted.tokens, context)
            histograms[names.INFERENCE_OUTPUT].record(usage.output_tokens, counted.tokens, context)


def _count(instruments: Instruments, usage: Usage, series: Series, context: Context | None) -> None:
    """Count tokens by modality: what a provider does not tell apart is of an unknown one."""
    audio, image, cached = usage.audio_input_tokens, usage.image_input_tokens, usage.cached_input_tokens
    _spread(instruments.counters[names.INPUT_COUNT], usage.input_tokens, audio, image, series, context)
    _spread(
        instruments.counters[names.OUTPUT_COUNT], usage.output_tokens, usage.audio_output_tokens, usage.image_output_tokens, series, context
    )
    if cached:
        _spread(instruments.counters[names.CACHE_READ_COUNT], cached, 0, usage.cached_image_tokens, series, context)
    if usage.cache_write_tokens:
        instruments.counters[names.CACHE_WRITE_COUNT].add(usage.cache_write_tokens, series.of(_UNKNOWN), context)
    if usage.reasoning_tokens:
        instruments.counters[names.REASONING_COUNT].add(usage.reasoning_tokens, series.of(_UNKNOWN), context)


def _spread(to: Counter | UpDownCounter, total: int, audio: int, image: int, series: Series, context: Context | None) -> None:
    """Add a total in parts; parts that are more than the total are cut to it."""
    audio = min(audio, total)
    image = min(image, total - audio)
    rest = total - audio - image
    for modality, amount in (("audio", audio), ("image", image), (_UNKNOWN, rest)):
        if amount or (modality is _UNKNOWN and not total):
            to.add(amount, series.of(modality), context)


def about(operation: object, provider: object, model: object, address: object, port: object) -> Attributes:
    """Return the attributes of what is asked of whom, of names that may be hidden; there is no port without an address."""
    attributes: Attributes = {names.OPERATION_NAME: text(operation), names.PROVIDER_NAME: text(provider)}
    if model is not None:
        attributes[names.REQUEST_MODEL] = text(model)
    if address is not None:
        attributes[names.SERVER_ADDRESS] = text(address)
        if isinstance(port, int):
            attributes[names.SERVER_PORT] = port
    return attributes


def _series_attributes(operation: object, provider: object, named: tuple[str | None, ...], port: object, error: object) -> Attributes:
    requested, answered, address = named
    more = present({names.RESPONSE_MODEL: answered, names.ERROR_TYPE: optional_text(error)})
    return about(operation, provider, requested, address, port) | more
