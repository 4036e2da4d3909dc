"""Create the instruments, each from its row in the table of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation, UpDownCounter

from ravi_otel.telemetry import semconv

Observe = Callable[[CallbackOptions], Iterable[Observation]]


class Instruments:
    """Hold one instrument per metric; `observe` gives the callbacks of the two gauges, by metric name."""

    __slots__ = (
        "agent_active",
        "agent_duration",
        "agent_inference_calls",
        "agent_paused",
        "agent_tool_calls",
        "call_duration",
        "cost",
        "counted",
        "dropped",
        "first_chunk",
        "limit_events",
        "limit_final_ratio",
        "retries",
        "spawn_events",
        "token_usage",
        "tool_duration",
        "workflow_duration",
    )

    def __init__(self, meter: Meter, observe: dict[str, Observe]) -> None:
        self.call_duration = _histogram(meter, semconv.CALL_DURATION)
        self.token_usage = _histogram(meter, semconv.TOKEN_USAGE)
        self.first_chunk = _histogram(meter, semconv.FIRST_CHUNK)
        self.agent_duration = _histogram(meter, semconv.AGENT_DURATION)
        self.agent_inference_calls = _histogram(meter, semconv.AGENT_INFERENCE_CALLS)
        self.agent_tool_calls = _histogram(meter, semconv.AGENT_TOOL_CALLS)
        self.tool_duration = _histogram(meter, semconv.TOOL_DURATION)
        self.workflow_duration = _histogram(meter, semconv.WORKFLOW_DURATION)
        self.limit_final_ratio = _histogram(meter, semconv.LIMIT_FINAL_RATIO)
        self.cost = _counter(meter, semconv.COST)
        self.limit_events = _counter(meter, semconv.LIMIT_EVENTS)
        self.spawn_events = _counter(meter, semconv.SPAWN_EVENTS)
        self.retries = _counter(meter, semconv.RETRY_COUNT)
        self.dropped = _counter(meter, semconv.DROPPED)
        self.agent_active = _up_down(meter, semconv.AGENT_ACTIVE)
        self.agent_paused = _up_down(meter, semconv.AGENT_PAUSED)
        self.counted: dict[str, Counter] = {
            "denied": _counter(meter, semconv.LIMIT_DENIED),
            "contended": _counter(meter, semconv.LIMIT_CONTENDED),
            "overage": _counter(meter, semconv.LIMIT_OVERAGE),
            "unpriced": _counter(meter, semconv.LIMIT_UNPRICED),
            "unscoped": _counter(meter, semconv.LIMIT_UNSCOPED),
            "store_errors": _counter(meter, semconv.LIMIT_STORE_ERRORS),
        }
        for name, callback in observe.items():
            meter.create_observable_gauge(name, [callback], **_words(semconv.METRICS[name]))


def _words(row: semconv.Name) -> dict[str, Any]:
    return {"unit": row.unit, "description": row.description}


def _histogram(meter: Meter, name: str) -> Histogram:
    row = semconv.METRICS[name]
    return meter.create_histogram(name, explicit_bucket_boundaries_advisory=row.buckets, **_words(row))


def _counter(meter: Meter, name: str) -> Counter:
    return meter.create_counter(name, **_words(semconv.METRICS[name]))


def _up_down(meter: Meter, name: str) -> UpDownCounter:
    return meter.create_up_down_counter(name, **_words(semconv.METRICS[name]))
