"""Serve one ASGI application over real HTTP on 127.0.0.1, from a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_START_S = 10.0
_IDLE_S = 3600
_BACKLOG = 2048


class Loopback:
    """Run `app` on a free port of 127.0.0.1 between `start()` and `stop()`, or inside `with`.

    The HTTP is uvicorn's (the `testing` extra), the event loop and the daemon thread are its own, nothing is logged,
    and Nagle's algorithm is off, so that a small chunk leaves at once. `stop()` cuts whatever is still in flight and
    takes milliseconds. A stopped server can be started again, on another port.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._state: Any = None
        self._port = 0

    @property
    def url(self) -> str:
        """Give `http://127.0.0.1:port`; raises ConfigurationError before the server was started."""
        if self._thread is None:
            msg = f"{type(self).__name__} has no address before it is started: use 'with {type(self).__name__}(...) as server:'."
            raise ConfigurationError(msg)
        return f"http://127.0.0.1:{self._port}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Give the server's event loop while it runs, else None."""
        return self._loop

    def start(self) -> Self:
        """Listen and return when connections are accepted; starting twice is a ConfigurationError."""
        if self._thread is not None:
            msg = f"{type(self).__name__}.start() was called twice: stop() it first, or make another one."
            raise ConfigurationError(msg)
        load("uvicorn")
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=type(self).__name__, daemon=True)
        self._thread.start()
        if not ready.wait(_START_S) or self._loop is None:
            self._thread = None
            msg = f"{type(self).__name__} did not start within {_START_S:g} s on 127.0.0.1; see its thread's traceback."
            raise RuntimeError(msg)
        return self

    def stop(self) -> None:
        """Cut what is in flight, close the port and end the thread; stopping twice does nothing."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop ended by itself in this very moment
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        finally:
            self._loop = None
            self._stopping = None
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        config = load("uvicorn").Config(
            self._app,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            timeout_keep_alive=_IDLE_S,
            proxy_headers=False,
        )
        config.load()
        protocol: Any = load("uvicorn.protocols.http.h11_impl").H11Protocol
        self._state = load("uvicorn.server").ServerState()
        # By host and port, not with a socket of ours: asyncio sets TCP_NODELAY only where the socket's protocol number is
        # TCP's, and socket.create_server() leaves it 0, which costs 40 ms on every answer sent in two writes.
        server = await loop.create_server(lambda: self._quiet(protocol(config, self._state, {})), "127.0.0.1", 0, backlog=_BACKLOG)
        self._port = int(server.sockets[0].getsockname()[1])
        self._stopping = asyncio.Event()
        self._loop = loop
        ready.set()
        await self._stopping.wait()
        server.close()
        await self._cut_all()

    @staticmethod
    def _quiet(protocol: Any) -> Any:
        protocol.access_log = False
        return protocol

    async def _cut_all(self) -> None:
        for protocol in list(self._state.connections):
            protocol.transport.abort()
        await asyncio.sleep(0)  # connection_lost runs here, so that what is cancelled next is known to be cut
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def cut(self, scope: Message, receive: Receive) -> None:
        """Reset the connection of the request `scope`, and return when it is gone."""
        for protocol in list(self._state.connections):
            if protocol.client == scope["client"]:
                protocol.transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def body_of(receive: Receive) -> bytes | None:
    """Read a request's body whole; None when the client left before it was."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def respond(send: Send, status: int, headers: Mapping[str, str], parts: AsyncIterator[tuple[bytes, bool]]) -> None:
    """Send a status, headers and a body of parts, each with whether it is the last; without a last, the body stays open."""
    coded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": coded})
    async for part, last in parts:
        await send({"type": "http.response.body", "body": part, "more_body": not last})
