"""A server of notes by the fastmcp package, over stdio."""

import os
from pathlib import Path

from fastmcp import Context, FastMCP

import ravi_otel

server = FastMCP("notes")


@server.tool
def search(query: str) -> str:
    """Search the notes."""
    with Path(os.environ["RAN"]).open("a") as log:
        log.write(f"search {query}\n")
    return f"notes on {query}"


@server.tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool
async def steps(context: Context) -> dict[str, int]:
    """Tell how far it is."""
    for step in range(3):
        await context.report_progress(step, 3)
    return {"steps": 3}


@server.tool
@ravi_otel.tool
def count(what: str) -> str:
    """Count, as a tool of the program's own."""
    return what


if os.environ.get("INSTRUMENTED"):
    ravi_otel.instrument()
server.run(show_banner=False)
