"""A coding agent: starts `ravi-otel mcp` as a process, as Claude Code does, and asks it with the official SDK's client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import ClientSession, StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[1]
SERVER = (sys.executable, "-m", "ravi_otel", "mcp")


class Agent:
    """Ask one server; what a tool answers is given as fields, and `text` is what it said last in words."""

    def __init__(self, portal: BlockingPortal, session: ClientSession, greeting: Any) -> None:
        self._portal = portal
        self._session = session
        self.greeting = _fields(greeting)
        self.text = ""

    def tools(self) -> dict[str, Any]:
        """Return what each tool says of itself, by its name."""
        return {tool["name"]: tool for tool in _fields(self._portal.call(self._session.list_tools))["tools"]}

    def __call__(self, tool: str, **arguments: Any) -> Any:
        """Return the fields of an answer, which must be one."""
        result = self._asked(tool, arguments)
        assert not result.get("isError"), self.text
        return result["structuredContent"]

    def refused(self, tool: str, **arguments: Any) -> str:
        """Return the sentence of what must be refused."""
        assert self._asked(tool, arguments)["isError"], self.text
        return self.text

    def together(self, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
        """Ask all of these at once, and return their fields."""

        async def ask() -> list[Any]:
            answers = await asyncio.gather(*(self._session.call_tool(tool, arguments) for tool, arguments in asked))
            return [_fields(each)["structuredContent"] for each in answers]

        return self._portal.call(ask)

    def _asked(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = _fields(self._portal.call(partial(self._session.call_tool, tool, arguments)))
        (said,) = result["content"]
        self.text = said["text"]
        return result


def _fields(answer: Any) -> Any:
    """Return an answer as it is on the wire, which 1.x and 2.x name alike."""
    return answer.model_dump(mode="json", by_alias=True)


@contextlib.asynccontextmanager
async def _connected(started: StdioServerParameters) -> AsyncGenerator[tuple[ClientSession, Any]]:
    async with stdio_client(started) as (reads, writes), ClientSession(reads, writes) as session:
        yield session, await session.initialize()


@contextlib.contextmanager
def asking(*flags: str, command: tuple[str, ...] = SERVER, cwd: Path | None = None, **environ: str) -> Iterator[Agent]:
    """Start a server and give who asks it; it has ended, in order, when this has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    environment = kept | {"PYTHONPATH": str(ROOT)} | environ
    started = StdioServerParameters(command=command[0], args=[*command[1:], *flags], env=environment, cwd=cwd)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_connected(started)) as (session, greeting):
        yield Agent(portal, session, greeting)
