"""A call that ends at any of its await points, in any way, leaves nothing held, nobody in line and no call untold.

A program is driven by hand to its k-th suspension, for every k there is, and ended there, in every other way (the short form) or in
each of them: `RAVI_LONG=10000` ends so many. How many were ended is printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

import ravi_otel
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.hooks._events import CallRecord, ToolRecord
from ravi_otel.hooks._listeners import Listener, Listeners

LONG = os.environ.get("RAVI_LONG", "")
MANY = int(LONG) if LONG.isdigit() and int(LONG) > 1 else 10_000 if LONG else 0
TURNS = 12
LIMITS = ["tokens=2000", "requests=1000", "turns=1000"]
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 100}


# -- a provider in memory, which suspends wherever a real one could ----------------------------------------------------


async def turn() -> None:
    """Suspend on a future that the loop fulfils at its next turn."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(lambda: future.done() or future.set_result(None))
    await future


def _answer(content: str) -> bytes:
    message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [message], "usage": usage}).encode()


def _chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return (
        b"data: "
        + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}).encode()
        + b"\n\n"
    )


CHUNKS = [
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": "one "}),
    _chunk({"content": "two"}),
    _chunk({}, "stop"),
    b"data: [DONE]\n\n",
]


class Provider:
    """Answer in memory; the first `failing` requests fail with a status that is tried again."""

    def __init__(self, http: Any) -> None:
        self.failing = self.sent = 0
        provider = self

        class Body(http.AsyncByteStream):  # type: ignore[misc]  # the class is the client's own
            def __init__(self, pieces: list[bytes]) -> None:
                self.pieces = pieces

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for piece in self.pieces:
                    await turn()
                    yield piece

        class Wire(http.AsyncBaseTransport):  # type: ignore[misc]  # the same
            async def handle_async_request(self, request: Any) -> Any:
                provider.sent += 1
                asked = json.loads(request.content)
                await turn()
                if provider.failing:
                    provider.failing -= 1
                    return http.Response(500, stream=Body([b"{}"]), request=request)
                if asked.get("stream"):
                    return http.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(CHUNKS), request=request)
                content = '{"number": 3}' if "response_format" in asked else "one two"
                return http.Response(200, headers={"content-type": "application/json"}, stream=Body([_answer(content)]), request=request)

        self.pool = http.AsyncClient(transport=Wire())
        self.client = openai.AsyncOpenAI(api_key="k", base_url="http://llm/v1", http_client=self.pool, max_retries=2)
        self.client._platform = "Linux"  # else the client asks a thread for it, once


# -- what is ended --------------------------------------------------------------------------------------------------


class Shape(pydantic.BaseModel):
    number: int


async def chat(provider: Provider) -> None:
    await provider.client.chat.completions.create(**ASK)


async def retried(provider: Provider) -> None:
    provider.failing = 2
    await provider.client.chat.completions.create(**ASK)


async def parsed(provider: Provider) -> None:
    chat = provider.client.chat.completions
    parse = chat.parse if hasattr(chat, "parse") else provider.client.beta.chat.completions.parse
    await parse(**ASK, response_format=Shape)


async def streamed(provider: Provider) -> None:
    async for _ in await provider.client.chat.completions.create(**ASK, stream=True):
        pass


async def streamed_in_a_block(provider: Provider) -> None:
    async with await provider.client.chat.completions.create(**ASK, stream=True) as stream:
        async for _ in stream:
            await turn()


async def streamed_raw(provider: Provider) -> None:
    async with provider.client.chat.completions.with_streaming_response.create(**ASK) as response:
        await turn()
        await response.read()


async def in_line(provider: Provider) -> None:
    """Wait for what another task holds, which lets go one turn later."""
    await provider.client.chat.completions.create(**{**ASK, "max_tokens": 1_900})


async def in_a_tool(provider: Provider) -> None:
    @ravi_otel.tool
    async def look_up() -> None:
        await turn()
        await chat(provider)

    await look_up()


async def in_nested_agents(provider: Provider) -> None:
    async with ravi_otel.agent("outer"):
        await chat(provider)
        async with ravi_otel.agent("inner", limits=["tokens=500"]):
            await streamed(provider)


async def in_a_task_group(provider: Provider) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(chat(provider))
        group.create_task(streamed(provider))


Program = Callable[[Provider], Awaitable[None]]
PROGRAMS: list[Program] = [
    chat, retried, parsed, streamed, streamed_in_a_block, streamed_raw, in_line, in_a_tool, in_nested_agents, in_a_task_group,
]  # fmt: skip


# -- how it is ended ------------------------------------------------------------------------------------------------

WAYS = ["cancelled", "cancelled as it woke", "cancelled twice", "thrown into", "closed", "dropped"]


class Thrown(BaseException):
    """Be what no client catches, as KeyboardInterrupt is."""


class Driver:
    """Run a coroutine to its suspension number `at`, and end it there; without `at`, count its suspensions."""

    def __init__(self, program: Any, at: int | None = None, way: str = "") -> None:
        self._program, self._at, self._way = program, at, way
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, None]:
        act: Callable[[], Any] = partial(self._program.send, None)
        with suppress(StopIteration):
            while True:
                waits = act()
                self.suspended += 1
                if self.suspended == self._at and self._way in ("closed", "dropped"):
                    act = waits = None  # type: ignore[assignment]  # the last references but our own
                    return self._leave()
                if self.suspended == self._at and self._way == "thrown into":
                    act = partial(self._program.throw, Thrown())
                    continue
                self._interrupt(waits)
                try:
                    value = yield waits
                except BaseException as error:  # whatever the loop throws goes on
                    act = partial(self._program.throw, error)
                else:
                    act = partial(self._program.send, value)
        return None

    def _interrupt(self, waits: Any) -> None:
        if self._at is None or self.suspended not in (self._at, self._at + 1):
            return
        task = asyncio.current_task()
        assert task is not None
        if self.suspended == self._at + 1:
            if self._way == "cancelled twice":
                task.cancel()
        elif self._way == "cancelled as it woke" and waits is not None:
            waits.add_done_callback(lambda _: task.cancel())  # before the task's own: it wakes up to be cancelled
        else:
            task.cancel()

    def _leave(self) -> None:
        program, self._program = self._program, None
        if self._way == "closed":
            with suppress(RuntimeError):  # a client that awaits in its cleanup "ignored GeneratorExit"
                program.close()
            return
        del program
        gc.collect()


# -- the tests ------------------------------------------------------------------------------------------------------


class Heard(Listener):
    """Count calls and tools that began and ended."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.calls = 0

    def call_started(self, record: CallRecord) -> None:
        self.calls += 1
        self.open.add(id(record))

    def call_ended(self, record: CallRecord) -> None:
        self.open.remove(id(record))

    def tool_started(self, record: ToolRecord) -> None:
        self.open.add(id(record))

    def tool_ended(self, record: ToolRecord) -> None:
        self.open.remove(id(record))


@dataclass
class Ended:
    """Run a program in a run of its own, end it at one of its await points, and see what is left."""

    provider: Provider
    heard: Heard

    async def __call__(self, program: Program, at: int | None = None, way: str = "") -> int:
        """Give how often it was suspended."""
        self.provider.failing, before, calls = 0, self.provider.sent, self.heard.calls
        with ravi_otel.run("ended", limits=LIMITS) as run:
            holder = await asyncio.create_task(self._hold()) if program is in_line else None
            driver = Driver(program(self.provider), at, way)
            task = asyncio.create_task(self._drive(driver))
            if holder is not None:
                await asyncio.create_task(holder.close())
            with suppress(asyncio.CancelledError, Thrown, BaseExceptionGroup, openai.OpenAIError):
                await task
            del task, holder
            for number in count():  # the loop closes what was dropped, one generator within another at a turn
                await asyncio.sleep(0)
                if number >= TURNS and (not self.heard.open or number >= 20 * TURNS):
                    break  # tasks that a group left behind take longer
            self._look(run, self.provider.sent - before, self.heard.calls - calls)
        return driver.suspended

    async def _hold(self) -> Any:
        return await self.provider.client.chat.completions.create(**{**ASK, "max_tokens": 1_999}, stream=True)

    @staticmethod
    async def _drive(driver: Driver) -> None:
        await driver

    def _look(self, run: Any, sent: int, calls: int) -> None:
        drain()
        if self.heard.open:
            gc.collect()  # a stream nobody closed
            drain()
        ledger: Any = STATE.engine.ledger
        assert (len(ledger), len(self.heard.open)) == (0, 0)
        assert [reading.held for reading in run.limits] == [0] * len(LIMITS)
        assert all(account.waiters == [] for account in run.scope.accounts)
        assert sent <= run.stats().requests <= sent + calls
        tokens = next(reading.used for reading in run.limits if reading.limit.kind == "tokens")
        assert (tokens > 0) == (run.stats().requests > 0)


@pytest.fixture(params=["memory", "sqlite"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Heard]:
    """Install a ledger of each kind, and somebody who listens."""
    heard, ledger = Heard(), MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.db")
    with ravi_otel.instrument():
        STATE.install(Engine(ledger=ledger, listeners=Listeners([heard])), ())
        yield heard
    if isinstance(ledger, SqliteLedger):
        ledger.close()


DROPPED = ("ignored GeneratorExit", "different task than it was entered in", "generator is already running", "Not currently running on any")


@pytest.fixture(autouse=True)
def _cleanup_that_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bear with what a client that awaits in its cleanup has Python say when its coroutine is dropped, without us too."""
    told = sys.unraisablehook
    heed = lambda of: None if any(text in str(of.exc_value) for text in DROPPED) else told(of)  # noqa: E731 - one line says it
    monkeypatch.setattr(sys, "unraisablehook", heed)


@pytest.fixture
def provider(http: Any, clients: Any) -> Iterator[Provider]:
    provider = Provider(http)
    yield provider
    clients.run("async", provider.client.close())


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_call_ended_at_any_await_point_leaves_nothing_behind(program: Program, heard: Heard, provider: Provider, clients: Any) -> None:
    ended, share = Ended(provider, heard), -(-MANY // (2 * len(PROGRAMS)))

    async def everything() -> tuple[int, int]:
        points, number = await ended(program), 0
        assert points > 0
        while not number or number < share:
            for at in range(1, points + 1):
                for way in WAYS if MANY else WAYS[at % 2 :: 2]:  # the short form takes turns
                    await ended(program, at, way)
                    number += 1
        return points, number

    points, number = clients.run("async", everything())
    print(f"{program.__name__} | {type(STATE.engine.ledger).__name__} | {points} await points | {number} ended | 0 leaked")


@pytest.mark.parametrize("block", [False, True], ids=["bare", "with"])
def test_an_exception_of_the_consumer_at_any_chunk_leaves_nothing_behind(
    block: bool, heard: Heard, provider: Provider, clients: Any
) -> None:
    ended = Ended(provider, heard)

    async def consume(at: int, provider: Provider) -> None:
        stream = await provider.client.chat.completions.create(**ASK, stream=True)
        if block:
            async with stream:
                await fail(at, stream)
        else:
            await fail(at, stream)

    async def fail(at: int, stream: Any) -> None:
        numbers = count()
        async for _ in stream:
            if next(numbers) == at:
                raise Thrown

    async def everything() -> None:
        for at in range(len(CHUNKS)):
            await ended(partial(consume, at))

    clients.run("async", everything())
