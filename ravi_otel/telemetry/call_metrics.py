"""Record the metrics of a model call, over attributes that are made once per combination of names."""

from __future__ import annotations

import threading
from typing import Final

from opentelemetry.context import Context
from opentelemetry.util.types import AttributeValue

from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Call
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.cardinality import MOST_SERIES, OTHER, Guard, optional_text, short, text
from ravi_otel.telemetry.instruments import Instruments

_MOST_OTHERS: Final = 64
_MOST_KEPT: Final = 1_024

Attributes = dict[str, AttributeValue]


class _Series:
    """Hold the attributes of one combination, once per metric that needs its own."""

    __slots__ = ("call", "input", "output")

    def __init__(self, call: Attributes) -> None:
        self.call = call
        self.input: Attributes = {**call, semconv.TOKEN_TYPE: "input"}
        self.output: Attributes = {**call, semconv.TOKEN_TYPE: "output"}


class CallMetrics:
    """Record durations, tokens, first chunks, cost and retries of model calls.

    The table of combinations is the cardinality guard too: once 2,000 are known, new ones are told under `_other`.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], _Series] = {}
        self._others: dict[tuple[object, ...], _Series] = {}
        self._lock = threading.Lock()
        self._costs = Guard()
        self._kept_costs: dict[tuple[str, str, str | None], tuple[ScopeFacts, Attributes]] = {}

    def record(self, instruments: Instruments, record: CallRecord, error: str | None, context: Context | None) -> None:
        """Tell one call that was sent; `context` holds its span, for exemplars."""
        series = self._find(record.call, None if record.reply is None else record.reply.model, error)
        instruments.call_duration.record(record.duration_ns / NANO, series.call, context)
        usage = record.usage
        if usage is not None and usage.source != "reserved":
            instruments.token_usage.record(usage.input_tokens, series.input, context)
            if usage.output_tokens or record.call.operation != "embeddings":
                instruments.token_usage.record(usage.output_tokens, series.output, context)
        if record.first_chunk_ns is not None:
            instruments.first_chunk.record(record.first_chunk_ns / NANO, series.call, context)
        if record.cost_nano:
            instruments.cost.add(record.cost_nano / NANO, self._cost_attributes(record), context)
        if record.retries:
            instruments.retries.add(len(record.retries), None, context)

    def _find(self, call: Call, model: str | None, error: str | None) -> _Series:
        key = (call.operation, call.provider, short(call.model), short(call.server_address), call.server_port, short(model), error)
        found = self._series.get(key)
        return found if found is not None else self._enter(key)

    def _enter(self, key: tuple[object, ...]) -> _Series:
        operation, provider, requested, address, port, answered, error = key
        names = (optional_text(requested), optional_text(answered), optional_text(address))
        with self._lock:
            if len(self._series) < MOST_SERIES:
                return self._series.setdefault(key, _Series(_attributes(operation, provider, names, port, error)))
            other = (operation, provider, error)
            found = self._others.get(other)
            if found is None:
                hidden = tuple(None if name is None else OTHER for name in names)
                found = _Series(_attributes(operation, provider, hidden, None, error))
                if len(self._others) < _MOST_OTHERS:
                    self._others[other] = found
                else:
                    found = _Series(_attributes(OTHER, OTHER, hidden, None, error and semconv.ERROR_OTHER))
            return found

    def _cost_attributes(self, record: CallRecord) -> Attributes:
        """Give the attributes of its cost, made once per scope and model: the guard never changes its mind about a name."""
        facts, call = record.facts, record.call
        key = (facts.scope_id, call.provider, short(call.model))
        found = self._kept_costs.get(key)
        if found is not None and found[0] is facts:
            return found[1]
        made = self._make_cost_attributes(record)
        if len(self._kept_costs) >= _MOST_KEPT:
            self._kept_costs.clear()
        self._kept_costs[key] = (facts, made)
        return made

    def _make_cost_attributes(self, record: CallRecord) -> Attributes:
        tags = record.facts.tags
        names = (optional_text(record.facts.agent_name), optional_text(record.call.model), *map(optional_text, tags.values()))
        agent, model, *values = self._costs.admit(*names)
        attributes: Attributes = {semconv.PROVIDER_NAME: text(record.call.provider)}
        if agent is not None:
            attributes[semconv.AGENT_NAME] = agent
        if model is not None:
            attributes[semconv.REQUEST_MODEL] = model
        for key, value in zip(tags, values, strict=True):
            if value is not None:
                attributes[f"{semconv.TAG_PREFIX}{key}"] = value
        return attributes


def _attributes(operation: object, provider: object, names: tuple[str | None, ...], port: object, error: object) -> Attributes:
    attributes: Attributes = {semconv.OPERATION_NAME: text(operation), semconv.PROVIDER_NAME: text(provider)}
    for name, value in zip((semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL, semconv.SERVER_ADDRESS), names, strict=True):
        if value is not None:
            attributes[name] = value
    if isinstance(port, int) and names[2] is not None:
        attributes[semconv.SERVER_PORT] = port
    if error is not None:
        attributes[semconv.ERROR_TYPE] = text(error)
    return attributes
