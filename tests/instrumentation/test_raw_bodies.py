"""A body its user reads by themselves is theirs byte for byte, and counted all the same."""

from __future__ import annotations

import gc
import gzip
import json
import time
import weakref
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel._instrumentation import http_library
from ravi_otel._instrumentation.formats.sse import events_of
from ravi_otel.testing import Capture

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}]}
LIMITS = ["tokens=1000000000", "requests=1000000"]
USAGE = {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini"}
ANSWER = json.dumps(
    HEAD | {"choices": [{"index": 0, "message": {"role": "assistant", "content": "été " * 50}, "finish_reason": "stop"}], "usage": USAGE}
).encode()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(HEAD | {"object": "chat.completion.chunk"} | fields, ensure_ascii=False).encode() + b"\n\n"


def said(content: str | None, reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": reason}])


EVENTS = b"".join(
    [said("one "), b": a comment\n\n", said("deux é"), said(None, "stop"), event(choices=[], usage=USAGE), b"data: [DONE]\n\n"]
)


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.compress, "deflate": deflated}


class Cut:
    """Give bytes in pieces of one size, in both colours; then perhaps break."""

    def __init__(self, data: bytes, size: int, broken: Exception | None = None) -> None:
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]
        self._broken = broken

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._broken is not None:
            raise self._broken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def client_of(http: Any, colour: str, data: bytes, headers: dict[str, str], *, size: int = 7, broken: Exception | None = None) -> Any:
    """Make a client whose every request is answered with these bytes."""

    class Body(Cut, http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc]  # the class is the client's own
        pass

    def answer(request: Any) -> Any:
        return http.Response(200, headers=headers, stream=Body(data, size, broken), request=request)

    transport = http.MockTransport(answer)
    if colour == "sync":
        return openai.OpenAI(api_key="k", http_client=http.Client(transport=transport), max_retries=0)
    return openai.AsyncOpenAI(api_key="k", http_client=http.AsyncClient(transport=transport), max_retries=0)


async def drawn(items: Any) -> list[Any]:
    return [item async for item in items] if hasattr(items, "__aiter__") else list(items)


async def awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def by_read(response: Any) -> bytes:
    return await awaited(response.read())  # type: ignore[no-any-return]  # bytes


async def by_bytes(response: Any) -> bytes:
    return b"".join(await drawn(response.iter_bytes()))


async def by_bytes_of_three(response: Any) -> bytes:
    return b"".join(await drawn(response.iter_bytes(3)))


async def by_text(response: Any) -> bytes:
    return "".join(await drawn(response.iter_text())).encode()


async def by_lines(response: Any) -> bytes:
    return "\n".join(await drawn(response.iter_lines())).encode()


async def by_whole_text(response: Any) -> bytes:
    return (await awaited(response.text())).encode()  # type: ignore[no-any-return]  # bytes


READERS = [by_read, by_bytes, by_bytes_of_three, by_text, by_lines, by_whole_text]


async def used(client: Any, colour: str, use: Callable[[Any], Any], **more: Any) -> Any:
    made = client.chat.completions.with_streaming_response.create(**ASK, **more)
    if colour == "sync":
        with made as response:
            return await use(response)
    async with made as response:
        return await use(response)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("reader", READERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "events"])
def test_whatever_way_a_body_is_read_it_is_whole_and_counted(
    streamed: bool, reader: Any, encoding: str, colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    data = EVENTS if streamed else ANSWER
    headers = {"content-type": "text/event-stream; charset=utf-8" if streamed else "application/json"}
    if encoding:
        headers["content-encoding"] = encoding
    client = client_of(http, colour, ENCODINGS[encoding](data), headers)
    with ravi_otel.run("r", limits=LIMITS) as run:
        found = clients.run(colour, used(client, colour, reader, stream=streamed))
        settled(run, [None])
        assert run.stats().total_tokens == 16
    assert found.rstrip() == data.rstrip()
    attributes = instrumented.spans("chat gpt-4o-mini")[0].attributes or {}
    assert attributes["gen_ai.usage.output_tokens"] == 6
    assert attributes["gen_ai.response.id"] == "chatcmpl-1"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bytes_as_they_were_sent_are_given_as_they_were_sent(
    encoding: str, colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    sent = ENCODINGS[encoding](EVENTS)
    headers = {"content-type": "text/event-stream"} | ({"content-encoding": encoding} if encoding else {})
    client = client_of(http, colour, sent, headers, size=5)

    async def use(response: Any) -> bytes:
        raw = response.http_response
        return b"".join(await drawn(raw.iter_raw() if colour == "sync" else raw.aiter_raw()))

    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run(colour, used(client, colour, use, stream=True)) == sent
        settled(run, [None])
        assert run.stats().total_tokens == 16


@pytest.mark.parametrize("way", ["json", "parse"])
def test_a_body_that_is_parsed_is_counted(way: str, colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    client = client_of(http, colour, ANSWER, {"content-type": "application/json"})

    async def use(response: Any) -> Any:
        return await awaited(getattr(response, way)())

    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run(colour, used(client, colour, use))
        settled(run, [None])
        assert run.stats().total_tokens == 16


def test_events_parsed_by_the_client_are_counted_once(colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    client = client_of(http, colour, EVENTS, {"content-type": "text/event-stream"})

    async def use(response: Any) -> int:
        return len(await drawn(await awaited(response.parse())))

    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run(colour, used(client, colour, use, stream=True)) == 4
        settled(run, [None])
        assert run.stats().total_tokens == 16


def test_a_stream_of_bytes_left_half_way_is_counted_as_far_as_it_came(
    colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    client = client_of(http, colour, EVENTS, {"content-type": "text/event-stream"}, size=len(said("one ")))

    async def use(response: Any) -> None:
        if colour == "sync":
            next(response.iter_bytes())
        else:
            await response.iter_bytes().__anext__()

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, used(client, colour, use, stream=True))
        settled(run, ["abandoned"])
    attributes = instrumented.spans("chat gpt-4o-mini")[0].attributes or {}
    assert attributes["ravi.usage.source"] == "estimated"
    assert attributes["gen_ai.response.time_to_first_chunk"] > 0  # type: ignore[operator]  # a number


def test_a_body_that_breaks_ends_the_call_with_its_error(colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    client = client_of(http, colour, EVENTS[:300], {"content-type": "text/event-stream"}, broken=http.ReadError("gone"))
    with ravi_otel.run("r", limits=LIMITS) as run:
        with pytest.raises(http.ReadError):
            clients.run(colour, used(client, colour, by_bytes, stream=True))
        settled(run, ["ReadError"])


def test_a_body_that_breaks_while_it_is_read_whole_ends_the_call_with_its_error(
    colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    client = client_of(http, colour, ANSWER[:50], {"content-type": "application/json"}, broken=http.ReadError("gone"))
    with ravi_otel.run("r", limits=LIMITS) as run:
        with pytest.raises(http.ReadError):
            clients.run(colour, used(client, colour, by_read))
        settled(run, ["ReadError"])


def test_a_body_too_large_to_keep_is_whole_for_its_user_and_unknown_to_us(
    monkeypatch: pytest.MonkeyPatch, colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    monkeypatch.setattr(http_library, "MOST_KEPT", 100)
    client = client_of(http, colour, ANSWER, {"content-type": "application/json"})
    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run(colour, used(client, colour, by_bytes)) == ANSWER
        settled(run, [None])
    attributes = instrumented.spans("chat gpt-4o-mini")[0].attributes or {}
    assert attributes["ravi.usage.source"] == "reserved"
    assert "gen_ai.usage.output_tokens" not in attributes


def test_a_small_body_that_grows_without_end_is_not_opened_to_its_end(
    monkeypatch: pytest.MonkeyPatch, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    monkeypatch.setattr(http_library, "MOST_KEPT", 100_000)
    bomb = gzip.compress(b" " * 50_000_000)
    client = client_of(http, "sync", bomb, {"content-type": "application/json", "content-encoding": "gzip"}, size=10_000)

    async def use(response: Any) -> int:
        return sum(len(data) for data in response.http_response.iter_raw())

    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run("sync", used(client, "sync", use)) == len(bomb)
        settled(run, [None])


def test_nothing_is_left_on_a_response_that_was_read(colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    client = client_of(http, colour, ANSWER, {"content-type": "application/json"})
    seen: list[Any] = []

    async def use(response: Any) -> None:
        await by_bytes(response)
        seen.extend(sorted(vars(response.http_response)))
        seen.append(weakref.ref(response.http_response))

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run(colour, used(client, colour, use))
        settled(run, [None])
    gc.collect()
    assert seen.pop()() is None
    assert not {"iter_raw", "aiter_raw", "read", "aread", "close", "aclose"} & set(seen)


def test_reading_twice_fails_as_it_does_without_us(colour: str, clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    client = client_of(http, colour, ANSWER, {"content-type": "application/json"})

    async def use(response: Any) -> str:
        await by_bytes(response)
        with pytest.raises(http.StreamError) as raised:
            await by_bytes(response)
        return type(raised.value).__name__

    with ravi_otel.run("r", limits=LIMITS) as run:
        assert clients.run(colour, used(client, colour, use)) == "StreamConsumed"
        settled(run, [None])


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_events_are_read_whatever_ends_their_lines(ends: bytes) -> None:
    text = ends.join(
        [b"event: x", b'data: {"a":', b"data:1}", b"", b": ping", b"", b'data: {"b": 2}', b"", b"data: [DONE]", b"", b"data: 3", b""]
    )
    assert list(events_of(text + ends)) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    "data", [b"", b"data", b"data: {", b'data: {"a": 1}\n', b"\xff\xfe: x\n\n", b"data: \xff\n\n", b"data: " + b"[" * 100_000 + b"\n\n"]
)
def test_events_that_are_none_are_none(data: bytes) -> None:
    assert list(events_of(data)) == []


def test_an_assistants_event_carries_its_name() -> None:
    (found,) = events_of(b'event: thread.run.created\ndata: {"id": "run_1"}\n\n')
    assert found == {"event": "thread.run.created", "data": {"id": "run_1"}}


def test_of_a_long_stream_of_bytes_the_ends_are_read(clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    pieces = [said("word "), *[b"data: {}\n\n"] * 400_000, said(None, "stop"), event(choices=[], usage=USAGE), b"data: [DONE]\n\n"]
    client = client_of(http, "sync", b"".join(pieces), {"content-type": "text/event-stream"}, size=65_536)
    with ravi_otel.run("r", limits=LIMITS) as run:
        begun = time.process_time()
        clients.run("sync", used(client, "sync", by_bytes, stream=True))
        assert time.process_time() - begun < 1.0  # all of them would take several
        settled(run, [None])
        assert run.stats().total_tokens == 16


def test_the_tokens_of_a_long_stream_without_usage_are_scaled(clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    data = said("word ") * 30_000
    client = client_of(http, "sync", data, {"content-type": "text/event-stream"}, size=65_536)
    with ravi_otel.run("r") as run:
        clients.run("sync", used(client, "sync", by_bytes, stream=True))
        settled(run, [None])
        assert 30_000 < run.stats().total_tokens < 40_000
    attributes = instrumented.spans("chat gpt-4o-mini")[0].attributes or {}
    assert attributes["ravi.usage.source"] == "estimated"


def test_json_that_would_take_long_to_read_is_unknown(clients: Any, http: Any, instrumented: Capture, settled: Any) -> None:
    data = b"[" + b"[]," * 1_000_000 + b"[]]"
    client = client_of(http, "sync", data, {"content-type": "application/json"}, size=65_536)
    with ravi_otel.run("r") as run:
        clients.run("sync", used(client, "sync", by_bytes))
        settled(run, [None])
        assert run.stats().unreported_calls == 1
