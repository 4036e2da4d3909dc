"""A coding agent: starts `ravi-otel mcp` as a process, as Claude Code does, and asks it with the official SDK's client."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[1]
SERVER = (sys.executable, "-m", "ravi_otel", "mcp")


class Agent:
    """Ask one server; what a tool answers is given as fields, and `text` is what it said last in words."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client
        self.text = ""

    @property
    def instructions(self) -> str:
        return self._client.instructions or ""

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self._portal.call(self._client.list_tools).tools}

    def __call__(self, tool: str, **arguments: Any) -> Any:
        """Return the fields of an answer, which must be one."""
        result = self._asked(tool, arguments)
        assert not result.is_error, self.text
        return result.structured_content

    def refused(self, tool: str, **arguments: Any) -> str:
        """Return the sentence of what must be refused."""
        assert self._asked(tool, arguments).is_error, self.text
        return self.text

    def _asked(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = self._portal.call(partial(self._client.call_tool, tool, arguments))
        (said,) = result.content
        self.text = said.text
        return result


@contextlib.contextmanager
def asking(*flags: str, command: tuple[str, ...] = SERVER, cwd: Path | None = None, **environ: str) -> Iterator[Agent]:
    """Start a server and give who asks it; it has ended, in order, when this has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    environment = kept | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"} | environ
    started = StdioServerParameters(command=command[0], args=[*command[1:], *flags], env=environment, cwd=cwd)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(stdio_client(started))) as client:
        yield Agent(portal, client)
