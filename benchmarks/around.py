"""Say what is put around the work: nothing, the floor anybody would write by hand, us, or another instrumentation."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

BARE = "bare client"
FLOOR = "hand-written floor"
OURS = ("no SDK", "no SDK, 1 limit on 4 scopes", "no SDK, 4 kinds of limits", "SDK", "SDK, 1 limit on 4 scopes", "SDK, 4 kinds of limits")
PEERS = {
    "opentelemetry-instrumentation-genai-openai": "opentelemetry.instrumentation.genai.openai",
    "openinference-instrumentation-openai": "openinference.instrumentation.openai",
}


@contextmanager
def bare() -> Iterator[None]:
    """Put nothing around it."""
    yield


class Floor:
    """Write one span with 15 attributes and two histogram records around a call."""

    def __init__(self) -> None:
        self._tracer = TracerProvider().get_tracer("floor")
        meter = MeterProvider([InMemoryMetricReader()]).get_meter("floor")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")

    def sync(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Give the call with the floor around it."""

        def measured() -> Any:
            began = time.perf_counter()
            with self._tracer.start_as_current_span("chat gpt-4o-mini", kind=SpanKind.CLIENT) as span:
                result = call()
                span.set_attributes(_attributes(result))
            self._record(time.perf_counter() - began, result)
            return result

        return measured

    def tasks(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Give the coroutine function with the floor around it."""

        async def measured() -> Any:
            began = time.perf_counter()
            with self._tracer.start_as_current_span("chat gpt-4o-mini", kind=SpanKind.CLIENT) as span:
                result = await call()
                span.set_attributes(_attributes(result))
            self._record(time.perf_counter() - began, result)
            return result

        return measured

    def _record(self, took: float, result: Any) -> None:
        labels = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-4o-mini"}
        self._duration.record(took, labels)
        self._tokens.record(result.usage.total_tokens, labels)


def _attributes(result: Any) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": result.model,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": result.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": result.usage.total_tokens - result.usage.prompt_tokens,
        "server.address": "model.invalid",
        "server.port": 80,
        "session.id": "session",
        "app.feature": "bench",
    }


@contextmanager
def ours(*, sdk: bool, limits: str) -> Iterator[None]:
    """Instrument with us: `limits` is "" for none, "1 limit on 4 scopes" or "4 kinds of limits"."""
    ravi: Any = importlib.import_module("ravi_otel")
    given = {"tracer_provider": TracerProvider(), "meter_provider": MeterProvider([InMemoryMetricReader()])} if sdk else {}
    with ravi.instrument(**given), ExitStack() as scopes:
        if limits == "1 limit on 4 scopes":
            cap = [ravi.token_limit(10**12)]
            for scope in (ravi.run("bench", limits=cap), ravi.apply_limits(cap), ravi.apply_limits(cap), ravi.agent("a", limits=cap)):
                scopes.enter_context(scope)
        elif limits == "4 kinds of limits":
            budget = ravi.ExecutionBudget(max_tokens=10**12, max_turns=10**9)
            scopes.enter_context(ravi.run("bench", limits=[ravi.cost_limit(10**6), ravi.request_limit(10**9)]))
            scopes.enter_context(ravi.agent("a", budget=budget))
        yield


def our_variants() -> dict[str, Callable[[], Any]]:
    """Give what to put around the work, by the name of the row."""
    found: dict[str, Callable[[], Any]] = {}
    for name in OURS:
        sdk, _, limits = name.partition(", ")
        found[f"ravi-otel, {name}"] = partial(ours, sdk=sdk == "SDK", limits=limits)
    return found


@contextmanager
def peer(package: str) -> Iterator[None]:
    """Instrument with another package; it must be installed here."""
    instrumentor: Any = importlib.import_module(PEERS[package]).OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=TracerProvider(), meter_provider=MeterProvider([InMemoryMetricReader()]))
    try:
        yield
    finally:
        instrumentor.uninstrument()
