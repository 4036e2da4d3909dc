"""Set a tracer provider of its own before the first call, and print the names of the spans it got."""

import atexit

import openai
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

client = openai.OpenAI(max_retries=0)
exporter = InMemorySpanExporter()
atexit.register(lambda: print(sorted({span.name.split()[0] for span in exporter.get_finished_spans()} & {"mine"})))
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with trace.get_tracer("app").start_as_current_span("mine"):
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}])
