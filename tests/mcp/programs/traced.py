"""Call tools of a server under a tracer provider, the global one or one of our own, and print what spans there were."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ravi_otel

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
if sys.argv[1] == "global":
    trace.set_tracer_provider(provider)
    ravi_otel.instrument()
else:
    ravi_otel.instrument(tracer_provider=provider)


async def main():
    notes = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parent / "notes.py"), "stdio"])
    async with stdio_client(notes) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        with ravi_otel.run("desk", limits=["tool_calls=2"]), ravi_otel.agent("clerk"):
            await session.call_tool("search", {"query": "q"})
            await session.call_tool("fail", {"why": "w"})
            with contextlib.suppress(ravi_otel.BudgetExhaustedError):
                await session.call_tool("search", {"query": "q"})


asyncio.run(main())
spans = exporter.get_finished_spans()
names = {span.context.span_id: span.name for span in spans}
print(
    json.dumps(
        [
            {
                "name": span.name,
                "kind": span.kind.name,
                "status": span.status.status_code.name,
                "parent": span.parent and names.get(span.parent.span_id),
                "attributes": dict(span.attributes),
                "events": [event.name for event in span.events],
            }
            for span in spans
        ]
    )
)
