"""A stream that was dropped ends by itself, soon, and as of its last chunk."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ravi_otel
from ravi_otel.testing import Capture, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}], "stream": True}
WORDS = Text("one two three four five six", usage=(10, 6))


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Have no collection come by itself, as in a quiet program."""
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*before)


def until(is_so: Callable[[], bool], most_s: float = 20.0) -> float:
    """Wait until it is so; give how long that took. Nothing of ours is called meanwhile."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + most_s
        threading.Event().wait(0.01)
    return time.monotonic() - began


async def opened(client: Any, read: int) -> Any:
    stream = client.chat.completions.create(**ASK)
    if hasattr(stream, "__await__"):
        stream = await stream
    for _ in range(read):
        await anext(stream) if hasattr(stream, "__anext__") else next(stream)
    return stream


def chats(capture: Capture) -> list[Any]:
    return [span for span in capture.spans() if span.name.startswith("chat")]


@pytest.mark.parametrize("read", [0, 2])
@pytest.mark.usefixtures("uncollected")
def test_a_dropped_stream_ends_without_another_call_or_collection(
    read: int, colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        stream = clients.run(colour, opened(client, read))
        threading.Event().wait(0.5)  # it is held, unread, and goes on
        assert chats(instrumented) == []
        last = time.time_ns() - 400_000_000
        del stream
        until(lambda: bool(chats(instrumented)))
        (span,) = chats(instrumented)
        assert span.end_time < last
        until(lambda: run.limits[0].held == 0)


@pytest.mark.usefixtures("uncollected")
def test_a_stream_that_a_task_abandoned_ends(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make("async", stage.play(WORDS))

    async def main() -> None:
        await asyncio.create_task(opened(client, 1))
        await asyncio.to_thread(until, lambda: bool(chats(instrumented)))

    with ravi_otel.run("r", limits=["tokens=100000"]):
        clients.run("async", main())


@pytest.mark.usefixtures("uncollected")
def test_a_stream_that_is_held_by_anything_at_all_goes_on(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def rest(iterator: Any) -> int:
        return sum([1 async for _ in iterator]) if hasattr(iterator, "__anext__") else len(list(iterator))

    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        stream = clients.run(colour, opened(client, 1))
        held = [stream.__aiter__() if colour == "async" else iter(stream)]
        del stream
        threading.Event().wait(1.0)
        assert run.limits[0].held > 0
        assert clients.run(colour, rest(held.pop())) > 3
        assert run.limits[0].held == 0
    assert chats(instrumented)[0].attributes["gen_ai.response.finish_reasons"] == ("stop",)


@pytest.mark.usefixtures("instrumented")
def test_no_thread_stays_when_nothing_is_open(stage: Any, clients: Any) -> None:
    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "ravi-otel-late"]

    client = clients.make("sync", stage.play(WORDS))
    stream = clients.run("sync", opened(client, 1))
    assert len(ours()) == 1
    stream.close()
    until(lambda: ours() == [])


def test_a_response_whose_stream_was_dropped_unread_is_still_followed(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make("sync", stage.play(WORDS))
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        response = client.chat.completions.create(**ASK).response
        threading.Event().wait(1.0)
        assert chats(instrumented) == []
        assert b"[DONE]" in response.read()
        assert run.limits[0].used > 0 == run.limits[0].held
        assert len(chats(instrumented)) == 1
