"""A stream ends in many ways; each ends its span once, settles its hold once, and says nothing about it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel.testing import Capture, Disconnect, Malformed, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}], "stream": True}
WORDS = Text("one two three four five six", usage=(10, 6))
MANY = 10_000 if "RAVI_LONG" in os.environ else 40
LIMITS = ["tokens=1000000000", "requests=1000000", "turns=1000000"]

Ending = Callable[[Any], Awaitable[str | None]]


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let no context be detached wrongly, no error be swallowed, and no finaliser complain."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name.startswith(("opentelemetry", "ravi_otel", "asyncio"))] == []


async def pulled(stream: Any, most: int = 10_000) -> list[Any]:
    seen: list[Any] = []
    if hasattr(stream, "__anext__"):
        while len(seen) < most:
            try:
                seen.append(await stream.__anext__())
            except StopAsyncIteration:
                break
    else:
        for item in stream:
            seen.append(item)
            if len(seen) >= most:
                break
    return seen


async def closed(stream: Any) -> None:
    done = stream.close()
    if done is not None:
        await done


# -- the endings: each gives the expected `error.type`, None for a whole stream --------------------------------------


async def exhausted(stream: Any) -> str | None:
    await pulled(stream)
    return None


async def closed_early(stream: Any) -> str | None:
    await pulled(stream, 2)
    await closed(stream)
    return "abandoned"


async def closed_twice(stream: Any) -> str | None:
    await closed(stream)
    await closed(stream)
    return "abandoned"


async def closed_after_the_end(stream: Any) -> str | None:
    await pulled(stream)
    await closed(stream)
    await pulled(stream)
    return None


async def left_by_with(stream: Any) -> str | None:
    if hasattr(stream, "__aenter__"):
        async with stream:
            await pulled(stream, 1)
    else:
        with stream:
            await pulled(stream, 1)
    return "abandoned"


async def raised_in_with(stream: Any) -> str | None:
    try:
        if hasattr(stream, "__aenter__"):
            async with stream:
                raise LookupError
        with stream:
            raise LookupError
    except LookupError:
        return "abandoned"


async def never_iterated(_: Any) -> str | None:
    return "abandoned"


async def broken_out_of(stream: Any) -> str | None:
    if hasattr(stream, "__aiter__"):
        async for _ in stream:
            break
    else:
        for _ in stream:
            break
    return "abandoned"


async def response_closed(stream: Any) -> str | None:
    await pulled(stream, 1)
    if hasattr(stream, "__aiter__"):
        await stream.response.aclose()
    else:
        stream.response.close()
    return "abandoned"


async def iterator_closed(stream: Any) -> str | None:
    await pulled(stream, 1)
    if hasattr(stream, "__aiter__"):
        await stream._iterator.aclose()
    else:
        stream._iterator.close()
    return "abandoned"


async def finished_but_never_closed(stream: Any) -> str | None:
    await pulled(stream, 8)  # the role, six words, the finish reason; the end of the stream was not read
    return None


async def read_elsewhere(stream: Any) -> str | None:
    if hasattr(stream, "__aiter__"):
        await asyncio.create_task(pulled(stream), context=contextvars.Context())
        return None
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    thread.join()
    return None


async def begun_here_ended_elsewhere(stream: Any) -> str | None:
    await pulled(stream, 2)
    return await read_elsewhere(stream)


ENDINGS: list[Ending] = [
    exhausted, closed_early, closed_twice, closed_after_the_end, left_by_with, raised_in_with, never_iterated, broken_out_of,
    response_closed, iterator_closed, finished_but_never_closed, read_elsewhere, begun_here_ended_elsewhere,
]  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("quiet")
def test_each_ending_ends_the_span_once_and_settles_once(
    ending: Ending, colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def program() -> str | None:
        made = client.chat.completions.create(**ASK)
        stream = await made if colour == "async" else made
        assert type(stream) is (openai.AsyncStream if colour == "async" else openai.Stream)
        expected = await ending(stream)
        del stream, made
        gc.collect()
        if colour == "async":
            await asyncio.sleep(0)  # the loop closes what was dropped
        return expected

    with ravi_otel.run("r", limits=LIMITS) as run:
        expected = clients.run(colour, program())
        settled(run, [expected])
        spent = run.stats()
    assert spent.requests == 1
    assert spent.input_tokens > 0


@pytest.mark.parametrize("answer", [Malformed(), Malformed('{"error": {"message": "busy"}}', 2), Disconnect(3), Malformed("[1]", 1)])
@pytest.mark.usefixtures("quiet")
def test_an_error_in_the_stream_ends_it_with_that_error(
    answer: Any, colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    client = clients.make(colour, stage.play(answer))

    async def program() -> str | None:
        made = client.chat.completions.create(**ASK)
        stream = await made if colour == "async" else made
        try:
            await pulled(stream)
        except Exception as error:
            return type(error).__name__
        return None

    with ravi_otel.run("r", limits=LIMITS) as run:
        expected = clients.run(colour, program())
        settled(run, [expected])


@pytest.mark.usefixtures("quiet")
def test_cancelling_the_task_that_reads_ends_it_as_cancelled(stage: Any, clients: Any, instrumented: Capture, settled: Any) -> None:
    client = clients.make("async", stage.play(Text("a b c", chunk_s=30)))

    async def program() -> None:
        stream, came = await client.chat.completions.create(**ASK), asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                came.set()

        task = asyncio.create_task(read())
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run("async", program())
        settled(run, ["CancelledError"])


@pytest.mark.parametrize("used", ["fully", "early", "never"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.usefixtures("quiet")
def test_stream_helpers_end_the_span_once(
    used: str, api: str, colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    chat = client.beta.chat if openai.__version__.startswith("1.") else client.chat
    ask = {key: value for key, value in ASK.items() if key != "stream"}

    async def program() -> None:
        manager = chat.completions.stream(**ask) if api == "chat" else client.responses.stream(model="gpt-4o-mini", input="x")
        if colour == "async":
            async with manager as stream:
                if used == "never":
                    return
                async for _ in stream:
                    if used == "early":
                        return
        else:
            with manager as stream:
                if used == "never":
                    return
                for _ in stream:
                    if used == "early":
                        return

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, program())
        settled(run, [None if used == "fully" else "abandoned"])


@pytest.mark.parametrize("mode", ["with_raw_response", "with_streaming_response"])
@pytest.mark.parametrize("part", ["parsed", "parsed and dropped early", "lines", "never", "json"])
@pytest.mark.usefixtures("quiet")
def test_raw_responses_end_the_span_once(  # noqa: C901 - the parts of a raw response, one branch each
    mode: str, part: str, colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    ask = {**ASK, "stream": part != "json"}

    async def use(response: Any) -> None:
        if part.startswith("parsed"):
            parsed = response.parse()
            stream = await parsed if hasattr(parsed, "__await__") else parsed
            del response
            gc.collect()  # the response is gone, the stream goes on
            await pulled(stream, 2 if part.endswith("early") else 10_000)
        elif part == "lines":
            lines = response.http_response.aiter_lines() if colour == "async" else response.http_response.iter_lines()
            if colour == "async":
                assert len([line async for line in lines]) > 5
            else:
                assert len(list(lines)) > 5
        elif part == "json":
            text = response.http_response.aread() if colour == "async" else response.http_response.read()
            assert await text if colour == "async" else text

    async def program() -> None:
        made = getattr(client.chat.completions, mode).create(**ask)
        if mode == "with_raw_response":
            await use(await made if colour == "async" else made)
        elif colour == "async":
            async with made as response:
                await use(response)
        else:
            with made as response:
                await use(response)
        del made
        gc.collect()
        if colour == "async":
            await asyncio.sleep(0)

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, program())
        settled(run, [None if part in {"parsed", "lines", "json"} else "abandoned"])
        if part == "json":
            assert run.stats().total_tokens == 16
            assert instrumented.spans("chat gpt-4o-mini")[0].attributes["gen_ai.usage.input_tokens"] == 10


@pytest.mark.usefixtures("quiet")
def test_a_streaming_response_that_is_parsed_tells_its_usage(
    colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def program() -> None:
        made = client.chat.completions.with_streaming_response.create(**{**ASK, "stream": False})
        if colour == "async":
            async with made as response:
                assert (await response.parse()).usage.total_tokens == 16
        else:
            with made as response:
                assert response.parse().usage.total_tokens == 16

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, program())
        settled(run, [None])
        assert run.stats().total_tokens == 16


@pytest.mark.parametrize("ending", [exhausted, closed_early, never_iterated, broken_out_of, left_by_with], ids=lambda each: each.__name__)
@pytest.mark.timeout(1_200)
@pytest.mark.usefixtures("quiet")
def test_many_streams_leave_nothing_behind(
    ending: Ending, colour: str, stage: Any, clients: Any, instrumented: Capture, settled: Any
) -> None:
    url = stage.play(Text("one two"))
    kept: weakref.WeakSet[Any] = weakref.WeakSet()

    async def some(number: int) -> list[str | None]:
        # A client of its own: connections whose stream was never read or closed stay taken, with us and without us.
        client = clients.make(colour, url, http_client=pool(colour))
        expected: list[str | None] = []
        for _ in range(number):
            made = client.chat.completions.create(**ASK)
            stream = await made if colour == "async" else made
            kept.add(stream)
            expected.append(await ending(stream))
            del stream, made
        gc.collect()
        await closed(client)
        return expected

    async def program() -> list[str | None]:
        return [each for _ in range(0, MANY, 100) for each in await some(min(MANY, 100))]

    # A collection in the middle of a request would hang older HTTP libraries, with us and without us.
    gc.disable()
    try:
        with ravi_otel.run("r", limits=LIMITS) as run:
            expected = clients.run(colour, program())
            settled(run, expected)
            assert run.stats().requests == MANY
    finally:
        gc.enable()
    assert len(kept) == 0


def pool(colour: str) -> Any:
    limits: dict[str, Any] = {"limits": openai.DEFAULT_CONNECTION_LIMITS}
    return openai.DefaultHttpxClient(**limits) if colour == "sync" else openai.DefaultAsyncHttpxClient(**limits)
