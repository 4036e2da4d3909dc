"""Answer the openai client's WebSocket connections on 127.0.0.1 with what a script says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, cast

from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError

_START_S: Final = 10.0

Frame = Mapping[str, Any] | str | bytes
"""What is sent: a mapping becomes JSON, text and bytes go as they are, JSON or not."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a code, 1000 for a good end; `abort` cuts it without a word."""

    code: int = 1000
    reason: str = ""
    abort: bool = False


@dataclass(frozen=True, slots=True)
class Incoming:
    """Be one message of a client: its `event` (empty when it is no JSON object), and as it was sent.

    `connection` counts from 0, `index` counts the messages of that connection from 0, `path` is what was asked for, with its query.
    """

    connection: int
    index: int
    path: str
    event: Mapping[str, Any]
    raw: str | bytes


Played = Iterable[Frame | Close]
Socket = Callable[[Incoming], Played]


@dataclass(slots=True)
class _Counts:
    connections: int = 0
    paths: list[str] = field(default_factory=list[str])
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    received: list[Incoming] = field(default_factory=list[Incoming])


class ScriptedSocket:
    """Be a server for `client.realtime.connect()`, `client.responses.connect()` and their like, whose events are a script.

    `script` is called with every message that comes, on the server's thread (it must not block), and gives the events to
    send back: mappings, raw text or bytes, or a `Close`. `greeting` is sent when a connection opens; `refuse` is the HTTP
    status that refuses every connection. `realtime_events()` and `responses_events()` write whole answers.

    Give the client its address: `OpenAI(base_url=server.base_url, api_key="any")`. Needs `websockets` (the `testing` extra).
    """

    def __init__(self, script: Socket = lambda _: (), *, greeting: Played = (), refuse: int | None = None) -> None:
        self._script = script
        self._greeting = tuple(greeting)
        self._refuse = refuse
        self._changed = threading.Condition()
        self._counts = _Counts()
        self._open: set[Any] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """Give what the client is told; raises ConfigurationError before the server was started."""
        if self._thread is None:
            raise ConfigurationError("ScriptedSocket has no address before it is started: use 'with ScriptedSocket(...) as server:'.")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def received(self) -> tuple[Incoming, ...]:
        """Give every message so far, in order of arrival."""
        with self._changed:
            return tuple(self._counts.received)

    @property
    def paths(self) -> tuple[str, ...]:
        """Give what each connection asked for, with its query."""
        with self._changed:
            return tuple(self._counts.paths)

    @property
    def headers(self) -> tuple[Mapping[str, str], ...]:
        """Give each connection's headers."""
        with self._changed:
            return tuple(self._counts.headers)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> tuple[Incoming, ...]:
        """Block until `count` messages have come and give all; raises TimeoutError with the number that did."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._counts.received) >= count, timeout_s):
                raise TimeoutError(f"{len(self._counts.received)} of {count} messages came within timeout_s={timeout_s:g}.")
        return self.received

    def push(self, *frames: Frame | Close) -> None:
        """Send these on every open connection, without having been asked; returns when they were sent."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._push(frames), self._loop).result(_START_S)

    def start(self) -> Self:
        """Listen, and return when connections are accepted."""
        if self._thread is not None:
            raise ConfigurationError("ScriptedSocket.start() was called twice: stop() it first, or make another one.")
        load("websockets.asyncio.server")
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="ScriptedSocket", daemon=True)
        self._thread.start()
        if not ready.wait(_START_S):
            raise RuntimeError(f"ScriptedSocket did not start within {_START_S:g} s on 127.0.0.1; see its thread's traceback.")
        return self

    def stop(self) -> None:
        """Cut what is open, and end the thread; what was received stays readable."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        self._thread = self._loop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        serve: Any = load("websockets.asyncio.server").serve
        async with serve(self._handle, "127.0.0.1", 0, process_request=self._judge, max_size=None, compression=None) as server:
            self._port = int(server.sockets[0].getsockname()[1])
            ready.set()
            await self._stopping.wait()
            for connection in list(self._open):
                connection.transport.abort()

    def _judge(self, connection: Any, request: Any) -> Any:
        with self._changed:
            self._counts.paths.append(str(request.path))
            self._counts.headers.append(dict(request.headers.raw_items()))
        return None if self._refuse is None else connection.respond(self._refuse, "refused by the script\n")

    async def _handle(self, connection: Any) -> None:
        with self._changed:
            number = self._counts.connections
            self._counts.connections += 1
        closed: type[BaseException] = load("websockets.exceptions").ConnectionClosed
        self._open.add(connection)
        try:
            await _play(connection, self._greeting)
            async for incoming in self._incoming(connection, number):
                await _play(connection, self._script(incoming))
        except closed:
            return
        finally:
            self._open.discard(connection)

    async def _incoming(self, connection: Any, number: int) -> AsyncIterator[Incoming]:
        index = 0
        async for raw in connection:
            incoming = Incoming(number, index, str(connection.request.path), _object(raw), raw)
            with self._changed:
                self._counts.received.append(incoming)
                self._changed.notify_all()
            yield incoming
            index += 1

    async def _push(self, frames: Sequence[Frame | Close]) -> None:
        for connection in list(self._open):
            await _play(connection, frames)


async def _play(connection: Any, frames: Played) -> None:
    send: Callable[[str | bytes], Awaitable[None]] = connection.send
    for frame in frames:
        if isinstance(frame, Close):
            if frame.abort:
                connection.transport.abort()
            else:
                await connection.close(frame.code, frame.reason)
        else:
            await send(frame if isinstance(frame, (str, bytes)) else json.dumps(frame))


def _object(raw: str | bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _usage(given: int, made: int, *, realtime: bool) -> dict[str, Any]:
    total = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    if not realtime:
        return {**total, "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    details = {"cached_tokens": 0, "text_tokens": given, "audio_tokens": 0}
    return {**total, "input_token_details": details, "output_token_details": {"text_tokens": made, "audio_tokens": 0}}


def realtime_events(
    said: str = "Hello!",
    *,
    response_id: str = "resp_1",
    usage: tuple[int, int] | Mapping[str, Any] | None = (120, 80),
    status: str = "completed",
) -> list[dict[str, Any]]:
    """Write a realtime response as its events: created, one text delta a word, done; `usage` is (input, output) or the object."""
    start: dict[str, Any] = {
        "id": response_id,
        "object": "realtime.response",
        "status": "in_progress",
        "output": [],
        "conversation_id": "conv_1",
    }
    item: dict[str, Any] = {"id": "item_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": said}]}
    spent = _usage(*usage, realtime=True) if isinstance(usage, tuple) else usage
    end: dict[str, Any] = {**start, "status": status, "output": [item], "usage": spent}
    deltas = [
        {"type": "response.output_text.delta", "event_id": f"event_{at}", "response_id": response_id, "item_id": "item_1", "delta": word}
        for at, word in enumerate(_words(said))
    ]
    return [
        {"type": "response.created", "event_id": "event_a", "response": start},
        *deltas,
        {"type": "response.done", "event_id": "event_z", "response": end},
    ]


def responses_events(
    said: str = "Hello!",
    *,
    response_id: str = "resp_1",
    model: str = "gpt-4o-mini",
    usage: tuple[int, int] | Mapping[str, Any] | None = (120, 80),
    status: str = "completed",
    lane: str | None = None,
) -> list[dict[str, Any]]:
    """Write a response of the Responses API as its events: created, one text delta a word, the end; `lane` is its `stream_id`."""
    start: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "status": "in_progress",
        "model": model,
        "output": [],
        "created_at": 1,
    }
    item: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": said, "annotations": []}],
    }
    spent = _usage(*usage, realtime=False) if isinstance(usage, tuple) else usage
    end: dict[str, Any] = {**start, "status": status, "output": [item], "usage": spent}
    deltas = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word}
        for word in _words(said)
    ]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": start},
        *deltas,
        {"type": f"response.{status}", "response": end},
    ]
    told = [{**event, "sequence_number": at} for at, event in enumerate(events)]
    return told if lane is None else [{**event, "stream_id": lane} for event in told]


def _words(said: str) -> list[str]:
    words = said.split(" ")
    return [word if at == len(words) - 1 else f"{word} " for at, word in enumerate(words)]
