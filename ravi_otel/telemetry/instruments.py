"""Create the instruments, each from its row in the table of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Counter, Meter, Observation, UpDownCounter

from ravi_otel.telemetry import call_instruments, semconv
from ravi_otel.telemetry.call_instruments import counter, histogram
from ravi_otel.telemetry.catalog import METRICS, Name
from ravi_otel.telemetry.conventions import RELEASED, Convention

Observe = Callable[[CallbackOptions], Iterable[Observation]]


class Instruments:
    """Hold one instrument per metric; `observe` gives the callbacks of the two gauges, by metric name."""

    __slots__ = (
        "agent_active",
        "agent_duration",
        "agent_ends",
        "agent_inference_calls",
        "agent_paused",
        "agent_tool_calls",
        "calls",
        "cost",
        "counted",
        "dropped",
        "guardrails",
        "handoffs",
        "limit_events",
        "limit_final_ratio",
        "retries",
        "review_decisions",
        "run_ends",
        "spawn_events",
        "steps",
        "tool_duration",
        "workflow_duration",
    )

    def __init__(self, meter: Meter, observe: dict[str, Observe], convention: Convention = RELEASED) -> None:
        self.calls = call_instruments.make(meter, convention)
        self.agent_duration = histogram(meter, semconv.AGENT_DURATION)
        self.agent_inference_calls = histogram(meter, semconv.AGENT_INFERENCE_CALLS)
        self.agent_tool_calls = histogram(meter, semconv.AGENT_TOOL_CALLS)
        self.tool_duration = histogram(meter, semconv.TOOL_DURATION)
        self.workflow_duration = histogram(meter, semconv.WORKFLOW_DURATION)
        self.limit_final_ratio = histogram(meter, semconv.LIMIT_FINAL_RATIO)
        self.cost = counter(meter, semconv.COST)
        self.limit_events = counter(meter, semconv.LIMIT_EVENTS)
        self.spawn_events = counter(meter, semconv.SPAWN_EVENTS)
        self.review_decisions = counter(meter, semconv.REVIEW_DECISIONS)
        self.run_ends = counter(meter, semconv.RUN_ENDS)
        self.agent_ends = counter(meter, semconv.AGENT_ENDS)
        self.handoffs = counter(meter, semconv.HANDOFF_COUNT)
        self.guardrails = counter(meter, semconv.GUARDRAIL_COUNT)
        self.steps = counter(meter, semconv.STEP_COUNT)
        self.retries = counter(meter, semconv.RETRY_COUNT)
        self.dropped = counter(meter, semconv.DROPPED)
        self.agent_active = _up_down(meter, semconv.AGENT_ACTIVE)
        self.agent_paused = _up_down(meter, semconv.AGENT_PAUSED)
        self.counted: dict[str, Counter] = {
            "denied": counter(meter, semconv.LIMIT_DENIED),
            "contended": counter(meter, semconv.LIMIT_CONTENDED),
            "overage": counter(meter, semconv.LIMIT_OVERAGE),
            "unpriced": counter(meter, semconv.LIMIT_UNPRICED),
            "truncated": counter(meter, semconv.LIMIT_TRUNCATED),
            "unscoped": counter(meter, semconv.LIMIT_UNSCOPED),
            "suspended": counter(meter, semconv.LIMIT_SUSPENDED),
            "store_errors": counter(meter, semconv.LIMIT_STORE_ERRORS),
            "hook_errors": counter(meter, semconv.HOOK_ERRORS),
            "restarted": self.retries,
            "carrier_rejected": counter(meter, semconv.CARRIER_REJECTED),
        }
        for name, callback in observe.items():
            meter.create_observable_gauge(name, [callback], **_words(METRICS[name]))


def _words(row: Name) -> dict[str, Any]:
    return {"unit": row.unit, "description": row.description}


def _up_down(meter: Meter, name: str) -> UpDownCounter:
    return meter.create_up_down_counter(name, **_words(METRICS[name]))
