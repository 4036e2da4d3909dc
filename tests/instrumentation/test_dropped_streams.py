"""A stream that was dropped ends by itself, soon, and as of its last chunk."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import anthropic.lib.streaming._messages as message_helpers
import openai.lib.streaming.chat._completions as chat_helpers
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


async def opened_raw(client: Any, how: str) -> Any:
    """Open a stream in one of the ways that leave reading it to the program."""
    chats, plain = client.chat.completions, {key: value for key, value in ASK.items() if key != "stream"}
    if "streaming" in how:
        manager = chats.with_streaming_response.create(**(plain if "bytes" in how else ASK))
        return await manager.__aenter__() if hasattr(manager, "__aenter__") else manager.__enter__()
    raw = chats.with_raw_response.create(**ASK)
    raw = await raw if hasattr(raw, "__await__") else raw
    return raw.parse() if "parsed" in how else raw


@pytest.mark.usefixtures("uncollected")
def test_a_dropped_stream_ends_without_another_call_or_collection(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        streams = [clients.run(colour, opened(client, read)) for read in (0, 2)]
        threading.Event().wait(0.5)  # they are held, unread, and go on
        assert chats(instrumented) == []
        last = time.time_ns() - 400_000_000
        streams.clear()
        until(lambda: len(chats(instrumented)) == 2)
        assert all(span.end_time < last for span in chats(instrumented))
        until(lambda: run.limits[0].held == 0)


@pytest.mark.usefixtures("uncollected")
def test_a_dropped_raw_response_ends_without_another_call_or_collection(
    colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    ways = ["raw", "raw, parsed", "streaming", "streaming, bytes"]
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        held = [clients.run(colour, opened_raw(client, how)) for how in ways]
        threading.Event().wait(1.0)
        assert chats(instrumented) == []
        held.clear()
        until(lambda: len(chats(instrumented)) == len(ways))
        until(lambda: run.limits[0].held == 0)


async def entered(client: Any, kind: str, read: int) -> Any:
    """Enter a helper of the client's that reads a stream for the program, and read some of it."""
    ask = {"model": ASK["model"], "messages": ASK["messages"]}
    if kind == "responses":
        manager = client.responses.stream(model=ASK["model"], input="Count.")
    elif kind == "chat":
        manager = chat_of(client).stream(**ask)
    else:
        manager = client.messages.stream(**ask, max_tokens=50)
    helper = await manager.__aenter__() if hasattr(manager, "__aenter__") else manager.__enter__()
    reader = helper.text_stream if kind == "messages, by text" else helper
    for _ in range(read):
        await anext(reader) if hasattr(reader, "__anext__") else next(reader)
    return helper


def chat_of(client: Any) -> Any:
    """Return the chats whose helper this version of the client has: once it was a beta."""
    return client.chat.completions if hasattr(client.chat.completions, "stream") else client.beta.chat.completions


def maker(clients: Any, colour: str, kind: str, url: str) -> Any:
    if not kind.startswith("messages"):
        return clients.make(colour, url)
    made = anthropic.Anthropic if colour == "sync" else anthropic.AsyncAnthropic
    return made(api_key="k", base_url=url.removesuffix("/v1"), max_retries=0)


def of_calls(capture: Capture) -> list[Any]:
    return [span for span in capture.spans() if (span.attributes or {}).get("gen_ai.request.model") == ASK["model"]]


@pytest.mark.usefixtures("uncollected")
def test_a_dropped_helper_ends_without_another_call_or_collection(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    kinds = ["chat", "responses", "messages", "messages, by text"]
    url = stage.play(WORDS)
    made = {kind: maker(clients, colour, kind, url) for kind in kinds}
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        helpers = [clients.run(colour, entered(made[kind], kind, read)) for kind in kinds for read in (0, 2)]
        threading.Event().wait(0.9)  # they are held, unread, and go on
        assert of_calls(instrumented) == []
        helpers.clear()
        until(lambda: len(of_calls(instrumented)) == 2 * len(kinds))
        until(lambda: run.limits[0].held == 0)
    for kind in kinds[2:]:
        clients.run(colour, closing(made[kind]))


async def closing(client: Any) -> None:
    closed = client.close()
    if hasattr(closed, "__await__"):
        await closed


@pytest.mark.usefixtures("uncollected")
def test_what_is_kept_of_a_helper_is_still_followed(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = maker(clients, "sync", "messages", stage.play(WORDS))
    parts: list[tuple[str, Any]] = []
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        for part, read in itertools.product(["text_stream", "iterator", "get_final_text", "response"], [0, 2]):
            helper = clients.run("sync", entered(client, "messages", 0 if part == "response" else read))
            parts.append((part, iter(helper) if part == "iterator" else getattr(helper, part)))
            del helper
        threading.Event().wait(0.9)
        assert of_calls(instrumented) == []
        for part, held in parts:
            assert held.read() if part == "response" else held() if part == "get_final_text" else list(held), part
        assert run.limits[0].used > 0 == run.limits[0].held
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in of_calls(instrumented)] == [("stop",)] * len(parts)
    client.close()


def test_the_clients_helpers_are_as_they_were_once_we_are_gone(capture: Capture) -> None:
    kinds = (chat_helpers.ChatCompletionStream, message_helpers.MessageStream, message_helpers.AsyncMessageStream)
    before = [vars(kind)["__init__"] for kind in kinds]
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider):
        assert all(vars(kind)["__init__"] is not one for kind, one in zip(kinds, before, strict=True))
    assert [vars(kind)["__init__"] for kind in kinds] == before


@pytest.mark.usefixtures("uncollected")
def test_nothing_of_ours_collects_garbage_for_a_stream_that_was_dropped_unread(
    colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    collections: list[str] = []

    def note(phase: str, _: object) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        stream = clients.run(colour, opened(client, 0))
        del stream
        until(lambda: bool(chats(instrumented)))
    finally:
        gc.callbacks.remove(note)
    assert collections == []


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


def test_what_is_kept_of_a_stream_that_was_dropped_unread_is_still_followed(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make("sync", stage.play(WORDS))
    parts: list[tuple[str, Any]] = []
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        for part in ("response", "read", "iter_lines", "lines"):
            held = client.chat.completions.create(**ASK).response
            if part != "response":
                held = held.iter_lines() if part == "lines" else getattr(held, part)
            parts.append((part, held))
            del held
        threading.Event().wait(1.0)
        assert chats(instrumented) == []
        for part, held in parts:
            read = held.read() if part == "response" else held if part == "lines" else held()
            assert "[DONE]" in str(read if isinstance(read, bytes) else list(read)), part
        assert run.limits[0].used > 0 == run.limits[0].held
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in chats(instrumented)] == [("stop",)] * len(parts)


def test_what_is_kept_of_a_raw_response_is_still_followed(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make("sync", stage.play(WORDS))
    with ravi_otel.run("r", limits=["tokens=100000"]) as run:
        raw = client.chat.completions.with_raw_response.create(**ASK)
        parse = client.chat.completions.with_raw_response.create(**ASK).parse
        threading.Event().wait(1.0)
        assert chats(instrumented) == []
        assert [len(list(held())) > 3 for held in (raw.parse, parse)] == [True, True]
        assert run.limits[0].used > 0 == run.limits[0].held
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in chats(instrumented)] == [("stop",)] * 2
