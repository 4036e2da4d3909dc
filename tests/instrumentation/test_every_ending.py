"""Streams of every kind end in every way, many times: each span once, each hold once, and nobody complains.

`RAVI_LONG=1` ends 10,000 streams in each way, `RAVI_LONG=50000` as many as it says; the table is printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

import ravi_otel
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import ManualClock

_ASKED = os.environ.get("RAVI_LONG", "")
MANY = (int(_ASKED) if _ASKED.isdigit() and int(_ASKED) > 1 else 10_000) if _ASKED else 30
BATCH = 100
LIMITS = ["tokens=1000000000000", "requests=1000000000"]
MESSAGES = [{"role": "user", "content": "Count."}]
KINDS = ["chat", "responses", "raw"]
TABLE: list[str] = []


def sse(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return sse(id="c1", object="chat.completion.chunk", created=1, model="m", choices=[choice])


CHAT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "one "}),
    chunk({"content": "two"}),
    chunk({}, "stop"),
    b"data: [DONE]\n\n",
]
ANSWER = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": [], "tools": []}
DELTA = {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "logprobs": []}
USED = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
RESPONSES = [
    sse(type="response.created", sequence_number=0, response=ANSWER),
    sse(**DELTA, sequence_number=1, delta="one "),
    sse(**DELTA, sequence_number=2, delta="two"),
    sse(type="response.completed", sequence_number=3, response=ANSWER | {"status": "completed", "usage": USED}),
]


class Wire:
    """Answer in memory: after `breaks` pieces the line goes dead, after `hangs` it falls silent."""

    def __init__(self, http: Any) -> None:
        self.breaks: int | None = None
        self.hangs: int | None = None
        wire = self

        class Body(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc]  # the class is the client's own
            def __init__(self, pieces: list[bytes]) -> None:
                self.pieces = pieces

            def __iter__(self) -> Iterator[bytes]:
                for number, piece in enumerate(self.pieces):
                    if number == wire.breaks:
                        raise http.ReadError("gone")
                    yield piece

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for number, piece in enumerate(self.pieces):
                    if number == wire.breaks:
                        raise http.ReadError("gone")
                    if number == wire.hangs:
                        await asyncio.get_running_loop().create_future()
                    yield piece

        def answer(request: Any) -> Any:
            pieces = RESPONSES if request.url.path.endswith("/responses") else CHAT
            return http.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(pieces), request=request)

        self._http, self._transport = http, http.MockTransport(answer)

    def client(self, colour: str) -> Any:
        if colour == "sync":
            return openai.OpenAI(
                api_key="k", base_url="http://llm/v1", http_client=self._http.Client(transport=self._transport), max_retries=0
            )
        pool = self._http.AsyncClient(transport=self._transport)
        return openai.AsyncOpenAI(api_key="k", base_url="http://llm/v1", http_client=pool, max_retries=0)


class Reader:
    """Read one open result of whatever kind and colour."""

    def __init__(self, made: Any, kind: str, colour: str) -> None:
        self._made = made.http_response if kind == "raw" else made
        self.is_async = colour == "async"
        if kind == "raw":
            self._items = self._made.aiter_bytes() if self.is_async else self._made.iter_bytes()
        else:
            self._items = made

    async def pull(self, most: int = 1_000) -> None:
        for _ in range(most):
            try:
                if self.is_async:
                    await self._items.__anext__()
                else:
                    next(self._items)
            except (StopIteration, StopAsyncIteration):
                return

    async def close(self) -> None:
        if self.is_async:
            await (self._made.aclose() if hasattr(self._made, "aclose") else self._made.close())
        else:
            self._made.close()

    async def inside(self) -> None:
        """Enter and leave a `with` block, where there is one."""
        if not hasattr(type(self._made), "__enter__") and not hasattr(type(self._made), "__aenter__"):
            await self.pull(1)
            await self.close()
        elif self.is_async:
            async with self._made:
                await self.pull(1)
        else:
            with self._made:
                await self.pull(1)


# -- the endings ----------------------------------------------------------------------------------------------------


async def exhausted(reader: Reader, _: Wire) -> None:
    await reader.pull()


async def closed(reader: Reader, _: Wire) -> None:
    await reader.pull(2)
    await reader.close()


async def left_by_with(reader: Reader, _: Wire) -> None:
    await reader.inside()


async def cancelled(reader: Reader, wire: Wire) -> None:
    if not reader.is_async:
        return await broken_by_error(reader, wire)
    wire.hangs = 1
    task = asyncio.create_task(reader.pull())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return None


async def collected(reader: Reader, _: Wire) -> None:
    await reader.pull(2)


async def closed_elsewhere(reader: Reader, _: Wire) -> None:
    await reader.pull(1)
    if reader.is_async:
        await asyncio.create_task(reader.close())
    else:
        thread = threading.Thread(target=reader._made.close)
        thread.start()
        thread.join()


async def broken_by_error(reader: Reader, wire: Wire) -> None:
    wire.breaks = 2
    with suppress(Exception):
        await reader.pull()


async def idle(reader: Reader, _: Wire) -> None:
    await reader.pull(1)
    STATE.engine.clock.advance(301)  # type: ignore[attr-defined]  # the clock of this test
    drain()


async def never_iterated(_reader: Reader, _: Wire) -> None:
    pass


async def broken_out_of(reader: Reader, _: Wire) -> None:
    if reader.is_async:
        async for _item in reader._items:
            break
    else:
        for _item in reader._items:
            break


Ending = Callable[[Reader, Wire], Awaitable[None]]
ENDINGS: list[Ending] = [
    exhausted, closed, left_by_with, cancelled, collected, closed_elsewhere, broken_by_error, idle, never_iterated, broken_out_of,
]  # fmt: skip


class Counted(SpanProcessor):
    """Count what begins and ends."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.ended: list[int] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if span.name.startswith("chat"):
            self.begun.add(span.context.span_id)

    def on_end(self, span: ReadableSpan) -> None:
        if span.name.startswith("chat") and span.context:
            self.ended.append(span.context.span_id)


async def opened(client: Any, kind: str, colour: str) -> Reader:
    if kind == "responses":
        made = client.responses.create(model="m", input="Count.", stream=True)
    else:
        chat = client.chat.completions
        made = (chat.with_raw_response if kind == "raw" else chat).create(model="m", messages=MESSAGES, stream=True)
    return Reader(await made if colour == "async" else made, kind, colour)


async def batch(ending: Ending, wire: Wire, client: Any, kind: str, colour: str, number: int) -> None:
    for _ in range(number):
        wire.breaks = wire.hangs = None
        reader = await opened(client, kind, colour)
        await ending(reader, wire)
        del reader
    gc.collect()
    if colour == "async":
        for _ in range(10):  # the loop closes what was dropped, one generator within another at a turn
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def wire(http: Any) -> Wire:
    return Wire(http)


@pytest.fixture(scope="module")
def made(wire: Wire, clients: Any) -> Iterator[dict[str, Any]]:
    """Give one client of each colour."""
    made = {colour: wire.client(colour) for colour in ("sync", "async")}
    yield made
    made["sync"].close()
    clients.run("async", made["async"].close())


HEARD = ("opentelemetry.context", "ravi_otel", "asyncio")
"""Who complains of what is wrong with a stream of this test. Providers of earlier tests complain of spans that end after them."""


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda each: each.__name__)
@pytest.mark.timeout(3_600)
def test_each_of_many_streams_ends_once(
    ending: Ending, clients: Any, wire: Wire, made: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, provider = Counted(), TracerProvider()
    provider.add_span_processor(counted)
    share = -(-MANY // (2 * len(KINDS)))
    gc.disable()  # a collection in the middle of a request would hang older HTTP libraries, with us and without us
    try:
        with caplog.at_level(logging.DEBUG, "opentelemetry.context"), ravi_otel.instrument(tracer_provider=provider):
            monkeypatch.setattr(STATE.engine, "clock", ManualClock())
            with ravi_otel.run("r", limits=LIMITS) as run:
                for kind in KINDS:
                    for colour in ("sync", "async"):
                        for at in range(0, share, BATCH):
                            clients.run(colour, batch(ending, wire, made[colour], kind, colour, min(BATCH, share - at)))
                gc.collect()
                drain()
                holds = len(STATE.engine.ledger)  # type: ignore[arg-type]  # the ledger of one process knows its length
                held = sum(reading.held for reading in run.limits)
                requests = run.stats().requests
    finally:
        gc.enable()
    errors = [record for record in caplog.records if record.name.startswith(HEARD)]
    number, leaked = share * 2 * len(KINDS), len(counted.begun - set(counted.ended))
    doubled = len(counted.ended) - len(set(counted.ended))
    TABLE.append(f"{ending.__name__} | {number} | {leaked} leaked | {doubled} doubled | {holds} open holds | {len(errors)} detach errors")
    print(TABLE[-1])
    assert (len(counted.begun), requests) == (number, number)
    assert (leaked, doubled, holds, held, [record.getMessage() for record in errors]) == (0, 0, 0, 0, [])


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_stream_is_charged_its_grant_and_goes_on_for_its_reader(
    kind: str, colour: str, clients: Any, http: Any, monkeypatch: pytest.MonkeyPatch, instrumented: Any
) -> None:
    monkeypatch.setattr(STATE.engine, "clock", ManualClock())
    clock: Any = STATE.engine.clock
    client = Wire(http).client(colour)

    async def program(run: Any) -> None:
        reader = await opened(client, kind, colour)
        await reader.pull(1)
        (before,) = (reading for reading in run.limits if reading.limit.kind == "tokens")
        clock.advance(299)
        drain()
        assert instrumented.spans("chat m") == []
        await reader.pull(1)
        clock.advance(299)
        drain()
        assert instrumented.spans("chat m") == []
        clock.advance(1)
        drain()
        (span,) = instrumented.spans("chat m")
        assert span.attributes["error.type"] == "idle"
        (after,) = (reading for reading in run.limits if reading.limit.kind == "tokens")
        assert (after.used, after.held) == (before.held, 0)
        await reader.pull()
        assert len(instrumented.spans("chat m")) == 1

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, program(run))


def test_a_stream_that_waits_for_its_next_event_is_not_idle(
    clients: Any, http: Any, monkeypatch: pytest.MonkeyPatch, instrumented: Any
) -> None:
    monkeypatch.setattr(STATE.engine, "clock", ManualClock())
    clock: Any = STATE.engine.clock
    wire = Wire(http)
    wire.hangs = 1
    client = wire.client("async")

    async def program() -> None:
        reader = await opened(client, "chat", "async")
        task = asyncio.create_task(reader.pull())
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(1_000)
        drain()
        assert instrumented.spans("chat m") == []
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    clients.run("async", program())
    (span,) = instrumented.spans("chat m")
    assert span.attributes["error.type"] == "CancelledError"


def test_times_to_the_first_chunk_and_content_count_from_before_the_request(
    colour: str, clients: Any, http: Any, monkeypatch: pytest.MonkeyPatch, instrumented: Any
) -> None:
    monkeypatch.setattr(STATE.engine, "clock", ManualClock())
    clock: Any = STATE.engine.clock
    client = Wire(http).client(colour)
    send = client._client.send

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.advance(2)
        return send(*args, **kwargs)

    monkeypatch.setattr(client._client, "send", slow)

    async def program() -> None:
        reader = await opened(client, "chat", colour)
        clock.advance(1)
        await reader.pull(1)
        clock.advance(4)
        await reader.pull()

    clients.run(colour, program())
    (span,) = instrumented.spans("chat m")
    assert span.attributes["gen_ai.response.time_to_first_chunk"] == 3.0
    found = {name: value for name, value in span.attributes.items() if "first_content" in name}
    assert list(found.values()) in ([], [7.0])
