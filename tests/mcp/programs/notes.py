"""A server of notes, written as the SDK's documentation does: over stdio, or over HTTP on a port that it says."""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

import ravi_otel

try:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as FastMCP
except ImportError:  # 1.x
    from mcp.server.fastmcp import Context, FastMCP

NAME = os.environ.get("SERVER_NAME", "notes")
server = FastMCP(NAME)
RAN = os.environ.get("RAN")


def note(line):
    if RAN:
        with Path(RAN).open("a") as log:
            log.write(f"{line}\n")


@server.tool()
def search(query: str, limit: int = 3) -> str:
    """Search the notes."""
    note(f"search {query} {limit}")
    return f"{limit} notes on {query}"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    note("fail")
    raise ValueError(why)


@server.tool()
async def meta(ctx: Context) -> dict[str, str]:
    """Give back what came in `_meta`."""
    note("meta")
    found = ctx.request_context.meta
    given = found if isinstance(found, dict) else {} if found is None else found.model_dump(exclude_none=True)
    return {name: str(value) for name, value in given.items() if not name.startswith("io.")}


@server.tool()
def ask(prompt: str) -> str:
    """Ask a model."""
    import openai

    client = openai.OpenAI(base_url=os.environ["MODEL_URL"], api_key="sk-test", max_retries=0)
    try:
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": prompt}], max_tokens=20)
    except Exception as error:
        note(f"refused {type(error).__name__}")
        raise
    note("asked")
    return answer.choices[0].message.content or ""


@server.tool()
async def sampled(prompt: str, ctx: Context) -> str:
    """Ask the client's model."""
    from mcp import types

    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    answer = await ctx.session.create_message(messages=[message], max_tokens=20)
    note(f"sampled {prompt}")
    return str(getattr(answer.content, "text", answer.content))


@server.tool()
def mark(name: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Note"})]) -> str:
    """Mark a note, whose name is also in a header of the request."""
    note(f"mark {name}")
    return name


@server.tool()
@ravi_otel.tool
def count(what: str) -> str:
    """Count, as a tool of the program's own."""
    note(f"count {what}")
    return what


@server.tool()
async def relay() -> str:
    """Call a tool of a stranger's server, which asks for a model's answer meanwhile."""
    from mcp import ClientSession, StdioServerParameters, types
    from mcp.client.stdio import stdio_client

    async def answer(context, params):
        return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="fine"), model="m")

    env = {"RAN": os.environ["RELAYED"], "SERVER_NAME": "stranger"}
    place = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parent / "recorded_requests.py")], env=env)
    async with stdio_client(place) as (read, write), ClientSession(read, write, sampling_callback=answer) as session:
        await session.initialize()
        return (await session.call_tool("sample", {})).content[0].text


def write_spans(path):
    """Write each span that ends into a file."""
    import json

    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Written(SpanProcessor):
        def on_end(self, span):
            said = {"name": span.name, "trace": f"{span.context.trace_id:032x}", "run": span.attributes.get("ravi.run.id")}
            with Path(path).open("a") as file:
                file.write(json.dumps(said) + "\n")

    provider = TracerProvider()
    provider.add_span_processor(Written())
    trace.set_tracer_provider(provider)


def main():
    if os.environ.get("INSTRUMENTED"):
        if os.environ.get("SPANS"):
            write_spans(os.environ["SPANS"])
        ravi_otel.instrument()
    if sys.argv[1] == "stdio":
        server.run(transport="stdio")
        return
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main()
