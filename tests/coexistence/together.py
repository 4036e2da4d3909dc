"""Run a program with another instrumentation and us, in a given order, and write what was told as JSON.

`python together.py OTHER ORDER`: each pair needs a process of its own, because some never let go of the client.
"""

from __future__ import annotations

import asyncio
import collections
import json
import sys
import warnings
from typing import Any

import openai
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text, Vector

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()
TRACES, METERS = TracerProvider(), MeterProvider([READER])
TRACES.add_span_processor(SimpleSpanProcessor(EXPORTER))


def official() -> None:
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=TRACES, meter_provider=METERS)


def traceloop() -> None:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=TRACES, meter_provider=METERS)


def openinference() -> None:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=TRACES)


def logfire() -> None:
    import logfire as library

    library.configure(
        send_to_logfire=False,
        console=False,
        metrics=False,
        additional_span_processors=[SimpleSpanProcessor(EXPORTER)],
        inspect_arguments=False,
    )
    library.instrument_openai()


def ours() -> None:
    ravi_otel.instrument(tracer_provider=TRACES, meter_provider=METERS)


def nobody() -> None:
    """Be the other instrumentation that is not there."""


OTHERS = {each.__name__: each for each in (nobody, official, traceloop, openinference, logfire)}


def calls(sync: Any, later: Any) -> dict[str, Any]:
    """Name what a program does with the client."""
    return {
        "chat": lambda: sync.chat.completions.create(**ASK),
        "chat stream": lambda: list(sync.chat.completions.create(**ASK, stream=True)),
        "async chat": lambda: asyncio.run(later.chat.completions.create(**ASK)),
        "raw chat": lambda: sync.chat.completions.with_raw_response.create(**ASK).parse(),
        "responses": lambda: sync.responses.create(model="gpt-4o-mini", input="x"),
        "responses stream": lambda: list(sync.responses.create(model="gpt-4o-mini", input="x", stream=True)),
        "embeddings": lambda: sync.embeddings.create(model="text-embedding-3-small", input="x"),
    }


def told() -> list[str]:
    """Give the scopes whose spans ended since the last time."""
    scopes = [span.instrumentation_scope.name for span in EXPORTER.get_finished_spans() if not span.name.startswith("streaming response")]
    EXPORTER.clear()
    return scopes


def durations() -> dict[str, int]:
    """Count the durations each scope has recorded."""
    counted: dict[str, int] = collections.Counter()
    data = READER.get_metrics_data()
    for scope in (each for resource in (data.resource_metrics if data else ()) for each in resource.scope_metrics):
        for metric in scope.metrics:
            if metric.name == "gen_ai.client.operation.duration":
                counted[scope.scope.name] += sum(point.count for point in metric.data.data_points)
    return counted


def main(other: str, order: str) -> None:
    for begin in (ours, OTHERS[other]) if order == "us first" else (OTHERS[other], ours):
        begin()
    seen: dict[str, Any] = {"spans": {}}
    with ScriptedLLM(lambda request: Vector(usage=(3, 0)) if "embed" in request.path else Text("hello there", usage=(9, 4))) as server:
        sync = openai.OpenAI(base_url=server.base_url, api_key="k")
        later = openai.AsyncOpenAI(base_url=server.base_url, api_key="k")
        made = calls(sync, later)
        with ravi_otel.run("r", limits=[f"requests={len(made)}", "tokens=1M"]) as run:
            for name, call in made.items():
                call()
                seen["spans"][name] = told()
            seen["durations"] = durations()
            sent = len(server.requests)
            try:
                sync.chat.completions.create(**ASK)
            except ravi_otel.BudgetExhaustedError:
                seen["refused"] = len(server.requests) == sent
            told()
            seen |= {"requests": run.stats().requests, "turns": run.stats().turns, "tokens": run.stats().total_tokens}
            seen["held"] = sum(reading.held for reading in run.limits)
        told()
        ravi_otel.uninstrument()
        sync.chat.completions.create(**ASK)
        seen["ours after we left"] = told().count("ravi_otel")
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # theirs
    main(sys.argv[1], sys.argv[2])
