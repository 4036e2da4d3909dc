"""Servers as processes of their own, over stdio and over HTTP, and sessions with them; the same for mcp 1.x and 2.x."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client import streamable_http
from mcp.client.stdio import stdio_client

import ravi_otel

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True)
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["stdio", "http"])
def transport(request):
    return request.param


class Servers:
    """Start servers of one transport, and connect to them."""

    def __init__(self, transport, ran):
        self.transport = transport
        self.ran = ran
        self.urls = {}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {"RAN": str(ran)}

    @contextlib.asynccontextmanager
    async def connect(self, *, program="notes.py", url=None, client=ClientSession, **more):
        """Open a session, `client` with `more`, with a server of its own, or with the one at `url`."""
        env = {**self.env, **more.pop("env", {})}
        async with contextlib.AsyncExitStack() as stack:
            if self.transport == "stdio":
                place = StdioServerParameters(command=sys.executable, args=[str(PROGRAMS / program), "stdio"], env=env)
                read, write, *_ = await stack.enter_async_context(stdio_client(place))
            else:
                url = url or stack.enter_context(self.serving(program, env))
                connect = getattr(streamable_http, "streamable_http_client", None) or streamable_http.streamablehttp_client
                read, write, *_ = await stack.enter_async_context(connect(url))
            session = await stack.enter_async_context(client(read, write, **more))
            await session.initialize()
            yield session

    @contextlib.contextmanager
    def serving(self, program="notes.py", env=None):
        """Serve over HTTP until the block ends, at the URL that it is given."""
        command = [sys.executable, str(PROGRAMS / program), "http"]
        with subprocess.Popen(command, env=env or self.env, stdout=subprocess.PIPE, text=True) as server:
            try:
                yield f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
            finally:
                server.terminate()

    @property
    def log(self):
        """List what the servers' tools did."""
        return self.ran.read_text().splitlines() if self.ran.exists() else []


@pytest.fixture
def servers(transport, tmp_path):
    return Servers(transport, tmp_path / "ran")


@pytest.fixture
def instrumented():
    ravi_otel.instrument()
    yield
    ravi_otel.uninstrument()


def text_of(result):
    return result.content[0].text


@pytest.fixture
def said():
    """Return the text of a result."""
    return text_of


@pytest.fixture
def meta_of():
    """Return what a server saw in `_meta`."""
    return lambda result: json.loads(text_of(result))
