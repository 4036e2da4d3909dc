"""The HTTP libraries that a program asks a model through, each as one way to ask."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture, ScriptedLLM

HI = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": HI}


class Stack:
    """One HTTP library: `ask` returns status and body, `read` the first pieces of a stream, whose rest is closed unread."""

    def __init__(self, ask: Callable[..., Any], pieces: Callable[[str, Any], Any]) -> None:
        self._ask = ask
        self._pieces = pieces

    @property
    def is_httpx(self) -> bool:
        """Whether it follows redirects only where it is told to."""
        return "httpx" in self._ask.__qualname__

    def ask(self, url: str, body: Any = ASK, **more: Any) -> tuple[int, bytes]:
        """Ask for a whole answer."""
        made = self._ask(url, body, **more)
        return asyncio.run(made) if asyncio.iscoroutine(made) else made

    def read(self, url: str, body: Any, most: int | None = None) -> bytes:
        """Read so many pieces of a stream, all of them where nothing is said."""
        source = self._pieces(url, body)
        if hasattr(source, "__anext__"):
            return asyncio.run(_joined(source, most))
        found: list[bytes] = []
        try:
            for piece in source:
                found.append(piece)
                if most is not None and len(found) >= most:
                    break
        finally:
            source.close()
        return b"".join(found)


async def _joined(source: Any, most: int | None) -> bytes:
    found: list[bytes] = []
    try:
        async for piece in source:
            found.append(piece)
            if most is not None and len(found) >= most:
                break
    finally:
        await source.aclose()
    return b"".join(found)


def _httpx(library: Any) -> Stack:
    def ask(url: str, body: Any, **more: Any) -> tuple[int, bytes]:
        found = library.post(url, json=body, **more)
        return found.status_code, found.content

    def pieces(url: str, body: Any) -> Iterator[bytes]:
        with library.stream("POST", url, json=body) as found:
            yield from found.iter_bytes()

    return Stack(ask, pieces)


def _httpx_async(library: Any) -> Stack:
    async def ask(url: str, body: Any, **more: Any) -> tuple[int, bytes]:
        async with library.AsyncClient() as client:
            found = await client.post(url, json=body, **more)
            return found.status_code, found.content

    async def pieces(url: str, body: Any) -> AsyncIterator[bytes]:
        async with library.AsyncClient() as client, client.stream("POST", url, json=body) as found:
            async for piece in found.aiter_bytes():
                yield piece

    return Stack(ask, pieces)


def _requests() -> Stack:
    def ask(url: str, body: Any, **more: Any) -> tuple[int, bytes]:
        found = requests.post(url, json=body, **more)
        return found.status_code, found.content

    def pieces(url: str, body: Any) -> Iterator[bytes]:
        with requests.post(url, json=body, stream=True) as found:
            yield from found.iter_content(chunk_size=None)

    return Stack(ask, pieces)


def _posted(pool: urllib3.PoolManager, url: str, body: Any, **more: Any) -> Any:
    """Post as urllib3 1 can, too."""
    headers = {"content-type": "application/json", **more.pop("headers", {})}
    return pool.request("POST", url, body=json.dumps(body).encode(), headers=headers, **more)


def _urllib3() -> Stack:
    def ask(url: str, body: Any, **more: Any) -> tuple[int, bytes]:
        with urllib3.PoolManager() as pool:
            found = _posted(pool, url, body, **more)
            return found.status, found.data

    def pieces(url: str, body: Any) -> Iterator[bytes]:
        with urllib3.PoolManager() as pool:
            found = _posted(pool, url, body, preload_content=False)
            try:
                if not hasattr(found, "read1"):  # urllib3 1 has none
                    yield from found.stream()
                    return
                while piece := found.read1():
                    yield piece
            finally:
                found.close()

    return Stack(ask, pieces)


def _aiohttp() -> Stack:
    async def ask(url: str, body: Any, **more: Any) -> tuple[int, bytes]:
        async with aiohttp.ClientSession() as session, session.post(url, json=body, **more) as found:
            return found.status, await found.read()

    async def pieces(url: str, body: Any) -> AsyncIterator[bytes]:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as found:
            async for piece in found.content.iter_any():
                yield piece

    return Stack(ask, pieces)


STACKS = {
    "httpx": _httpx(httpx),
    "httpx async": _httpx_async(httpx),
    "httpx2": _httpx(httpx2),
    "httpx2 async": _httpx_async(httpx2),
    "requests": _requests(),
    "urllib3": _urllib3(),
    "aiohttp": _aiohttp(),
}


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    """Give each HTTP library."""
    return STACKS[request.param]


_MODELS = ("chat", "request", "embeddings", "generate_content")


class Model:
    """A scripted model, at a host that only `formats=` names."""

    def __init__(self, server: ScriptedLLM) -> None:
        self.server = server
        self.host = server.base_url.split("/")[2]
        self.url = f"{server.base_url}/chat/completions"
        self.capture = Capture()

    def instrument(self, dialect: str = "openai", **more: Any) -> None:
        """Instrument with this host named."""
        ravi_otel.instrument(
            formats={self.host: dialect},
            tracer_provider=self.capture.tracer_provider,
            meter_provider=self.capture.meter_provider,
            logger_provider=self.capture.logger_provider,
            **more,
        )

    def spans(self) -> list[Any]:
        """Give the spans of calls that have ended."""
        drain()
        return [span for span in self.capture.spans() if (span.attributes or {}).get("gen_ai.operation.name") in _MODELS]

    def bodies(self) -> list[Any]:
        """Give what was asked."""
        return [json.loads(each.raw) for each in self.server.requests]


class _Answering(BaseHTTPRequestHandler):
    """Answer every POST as the class says, whose body has been read by then."""

    protocol_version = "HTTP/1.1"
    answer: Callable[[Any], None]

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        type(self).answer(self)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the class's own name
        """Say nothing."""


@contextmanager
def _serving(answer: Callable[[Any], None]) -> Generator[str]:
    handler = type("Handler", (_Answering,), {"answer": answer})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def serving() -> Callable[[Callable[[Any], None]], Any]:
    """Give what serves an answer to every POST, and gives its host."""
    return _serving


@pytest.fixture
def anything() -> Iterator[str]:
    """Give the host of a server that answers any path with an empty object."""

    def answer(asked: BaseHTTPRequestHandler) -> None:
        asked.send_response(200)
        asked.send_header("content-type", "application/json")
        asked.send_header("content-length", "2")
        asked.end_headers()
        asked.wfile.write(b"{}")

    with _serving(answer) as host:
        yield host


@pytest.fixture
def model() -> Callable[[Any], Any]:
    """Give what plays a script as a model."""
    return _model


@contextmanager
def _model(script: Any) -> Generator[Model]:
    with ScriptedLLM(cast("Any", script) if isinstance(script, list) else lambda _: script) as server:
        yield Model(server)


@pytest.fixture
def unreachable() -> Iterator[str]:
    """Give a host that answers no attempt to connect to it: its queue of those is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"
        for each in waiting:
            each.close()
