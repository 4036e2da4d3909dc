"""Record the metrics of a model call, over attributes that are made once per combination of names."""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context

from ravi_otel._forksafe import ForkLock
from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Call
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.call_attributes import about_names
from ravi_otel.telemetry.call_instruments import ESTIMATED, Attributes, Series
from ravi_otel.telemetry.cardinality import MOST_SERIES, OTHER, Guard, optional_text, short, text
from ravi_otel.telemetry.instruments import Instruments

_MOST_OTHERS: Final = 64
_MOST_KNOWN: Final = MOST_SERIES - _MOST_OTHERS - 1
"""With those of `_other` names, and the two that hold all the rest, a metric has 2,001 at most."""

_MOST_KEPT: Final = 1_024
_STATUSES: Final = range(100, 600)


class CallMetrics:
    """Record durations, tokens, first chunks, cost and retries of model calls.

    The table of combinations is the cardinality guard too: once as many are known as may be, new ones are told under `_other`.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], Series] = {}
        self._others: dict[tuple[object, ...], Series] = {}
        self._rest = Series(_attributes(OTHER, OTHER, (OTHER, OTHER, OTHER), None, None))
        self._failed_rest = Series(_attributes(OTHER, OTHER, (OTHER, OTHER, OTHER), None, semconv.ERROR_OTHER))
        self._lock = ForkLock()
        self._costs = Guard()
        self._kept_costs: dict[tuple[str, str, str | None, bool], tuple[ScopeFacts, Attributes]] = {}
        self._retries = Guard()

    def record(self, instruments: Instruments, record: CallRecord, error: str | None, context: Context | None) -> None:
        """Tell one call that was sent; `context` holds its span, for exemplars."""
        series = self._find(record.call, None if record.reply is None else record.reply.model, error)
        instruments.calls.record(record, series, context)
        self.record_own(instruments, record, context)

    def chunk(self, instruments: Instruments, record: CallRecord, since_ns: int, context: Context | None) -> None:
        """Tell the time between two chunks of a call; the model that answers is known at its end, and not yet."""
        instruments.calls.chunk(since_ns / NANO, self._find(record.call, None, None), context)

    def record_own(self, instruments: Instruments, record: CallRecord, context: Context | None) -> None:
        """Tell of a call only what no other instrumentation knows."""
        if record.cost_nano:
            instruments.cost.add(record.cost_nano / NANO, self._cost_attributes(record), context)
        for retry in record.retries:
            instruments.retries.add(1, self._retry_attributes(record.call.provider, retry.status), context)

    def _find(self, call: Call, model: str | None, error: str | None) -> Series:
        key = (call.operation, call.provider, short(call.model), short(call.server_address), call.server_port, short(model), error)
        found = self._series.get(key)
        return found if found is not None else self._enter(key)

    def _enter(self, key: tuple[object, ...]) -> Series:
        operation, provider, requested, address, port, answered, error = key
        names = (optional_text(requested), optional_text(answered), optional_text(address))
        with self._lock.own:
            if len(self._series) < _MOST_KNOWN:
                return self._series.setdefault(key, Series(_attributes(operation, provider, names, port, error)))
            other = (operation, provider, error)
            found = self._others.get(other)
            if found is None:
                hidden = tuple(None if name is None else OTHER for name in names)
                if len(self._others) >= _MOST_OTHERS:
                    return self._failed_rest if error is not None else self._rest
                found = self._others[other] = Series(_attributes(operation, provider, hidden, None, error))
            return found

    def _cost_attributes(self, record: CallRecord) -> Attributes:
        """Give the attributes of its cost, made once per scope and model: the guard never changes its mind about a name."""
        facts, call = record.facts, record.call
        key = (facts.scope_id, call.provider, short(call.model), _is_estimate(record))
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
        estimated = ESTIMATED if _is_estimate(record) else None
        agent, model, _, *values = self._costs.admit(*names[:2], estimated, *names[2:])
        attributes: Attributes = {semconv.PROVIDER_NAME: text(record.call.provider)}
        if agent is not None:
            attributes[semconv.AGENT_NAME] = agent
        if model is not None:
            attributes[semconv.REQUEST_MODEL] = model
        for key, value in zip(tags, values, strict=True):
            if value is not None:
                attributes[f"{semconv.TAG_PREFIX}{key}"] = value
        if estimated is not None:
            attributes[semconv.USAGE_SOURCE] = estimated
        return attributes

    def _retry_attributes(self, provider: str, status: int | None) -> Attributes:
        """Give the attributes of one retry, without a status where no answer came."""
        name, told = self._retries.admit(text(provider), str(status) if status in _STATUSES else None)
        attributes: Attributes = {semconv.PROVIDER_NAME: name or OTHER}
        if status is not None and told not in {None, OTHER}:
            attributes[semconv.HTTP_STATUS] = status
        return attributes


def _is_estimate(record: CallRecord) -> bool:
    """Tell that a cost is of tokens that no provider counted."""
    return record.usage is not None and record.usage.source != "reported"


def _attributes(operation: object, provider: object, names: tuple[str | None, ...], port: object, error: object) -> Attributes:
    requested, answered, address = names
    attributes = about_names(operation, provider, requested, address, port)
    if answered is not None:
        attributes[semconv.RESPONSE_MODEL] = answered
    if error is not None:
        attributes[semconv.ERROR_TYPE] = text(error)
    return attributes
