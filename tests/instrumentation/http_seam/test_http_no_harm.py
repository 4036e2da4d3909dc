"""A program over plain HTTP sees the same with us as without, whatever it does with an answer."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import trio
import urllib3

import ravi_otel
from ravi_otel import CancellationError, DeadlineExceededError
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Text

STREAM = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True}
LONG = Text(" ".join(["word"] * 200), chunks=100, chunk_s=0.05, usage=(120, 80))


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


def events() -> bytes:
    """Give a stream of a chat as bytes."""
    whose = {"id": "c", "model": "gpt-4o-mini"}
    chunks: list[dict[str, Any]] = [
        {**whose, "choices": [{"index": 0, "delta": {"content": f"{n} é "}, "finish_reason": None}]} for n in range(50)
    ]
    last: dict[str, Any] = {**whose, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    used: dict[str, Any] = {**whose, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 150}}
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (*chunks, last, used)) + b"data: [DONE]\n\n"


def streamed(asked: BaseHTTPRequestHandler) -> None:
    """Answer with those events, compressed or with their length where the path asks for it."""
    body = events()
    asked.send_response(200)
    asked.send_header("content-type", "text/event-stream; charset=utf-8")
    if "zipped" in asked.path:
        body = gzip.compress(body, mtime=0)
        asked.send_header("content-encoding", "gzip")
    if "sized" in asked.path:
        asked.send_header("content-length", str(len(body)))
        asked.end_headers()
        asked.wfile.write(body)
        return
    asked.send_header("transfer-encoding", "chunked")
    asked.end_headers()
    for at in range(0, len(body), 97):
        piece = body[at : at + 97]
        asked.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    asked.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def host(serving: Any) -> Iterator[str]:
    """Serve such streams."""
    with serving(streamed) as found:
        yield found


async def _aiohttp(url: str, read: Callable[[aiohttp.ClientResponse], Any]) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url, json=STREAM) as found:
        return await read(found)


async def _lines(found: aiohttp.ClientResponse) -> Any:
    return [line async for line in found.content]


async def _chunks(found: aiohttp.ClientResponse) -> Any:
    return b"".join([chunk async for chunk, _ in found.content.iter_chunks()])


async def _fixed(found: aiohttp.ClientResponse) -> Any:
    return b"".join([chunk async for chunk in found.content.iter_chunked(11)])


def _posted(url: str, pool: urllib3.PoolManager | None = None, body: Any = STREAM, **more: Any) -> Any:
    """Post as urllib3 1 can, too."""
    return (pool or urllib3.PoolManager()).request("POST", url, body=json.dumps(body).encode(), **more)


def _urllib3_by(read: Callable[[Any], Any], **more: Any) -> Callable[[str], Any]:
    def ask(url: str) -> Any:
        with urllib3.PoolManager() as pool:
            headers = {"accept-encoding": "gzip"}
            return read(_posted(url, pool, headers=headers, preload_content=False, **more))

    return ask


def _requests_by(read: Callable[[Any], Any], *, stream: bool = True) -> Callable[[str], Any]:
    def ask(url: str) -> Any:
        with requests.post(url, json=STREAM, stream=stream) as found:
            return read(found)

    return ask


def _httpx_by(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    def ask(url: str) -> Any:
        with httpx.stream("POST", url, json=STREAM) as found:
            return read(found)

    return ask


def _pieces(found: Any) -> bytes:
    pieces: list[bytes] = []
    while (piece := found.read(13)) or not found.isclosed():  # urllib3 1 returns nothing where it has decoded nothing yet
        pieces.append(piece)
    return b"".join(pieces)


def _into(found: Any) -> bytes:
    room, pieces = bytearray(64), list[bytes]()
    while size := found.readinto(room):
        pieces.append(bytes(room[:size]))
    return b"".join(pieces)


READERS: dict[str, Callable[[str], Any]] = {
    "httpx whole": lambda url: httpx.post(url, json=STREAM).content,
    "httpx lines": _httpx_by(lambda found: list(found.iter_lines())),
    "httpx bytes": _httpx_by(lambda found: b"".join(found.iter_bytes(7))),
    "httpx raw": _httpx_by(lambda found: b"".join(found.iter_raw())),
    "httpx read": _httpx_by(lambda found: found.read()),
    "requests whole": _requests_by(lambda found: found.content, stream=False),
    "requests lines": _requests_by(lambda found: list(found.iter_lines())),
    "requests pieces": _requests_by(lambda found: list(found.iter_content(5))),
    "requests raw": _requests_by(lambda found: found.raw.read()),
    "requests raw decoded": _requests_by(lambda found: found.raw.read(decode_content=True)),
    "urllib3 preloaded": lambda url: _posted(url, headers={"accept-encoding": "gzip"}).data,
    "urllib3 data": _urllib3_by(lambda found: found.data),
    "urllib3 read": _urllib3_by(_pieces),
    "urllib3 readinto": _urllib3_by(_into),
    "urllib3 stream": _urllib3_by(lambda found: b"".join(found.stream(9))),
    "urllib3 undecoded": _urllib3_by(lambda found: b"".join(found.stream(9)), decode_content=False),
    "urllib3 lines": _urllib3_by(list),
    "aiohttp whole": lambda url: asyncio.run(_aiohttp(url, lambda found: found.read())),
    "aiohttp text": lambda url: asyncio.run(_aiohttp(url, lambda found: found.text())),
    "aiohttp lines": lambda url: asyncio.run(_aiohttp(url, _lines)),
    "aiohttp chunks": lambda url: asyncio.run(_aiohttp(url, _chunks)),
    "aiohttp fixed": lambda url: asyncio.run(_aiohttp(url, _fixed)),
}


@pytest.mark.parametrize("path", ["sized", "chunked", "zipped", "zipped-sized"])
@pytest.mark.parametrize("reader", READERS)
def test_however_a_stream_is_read_it_is_the_same_and_its_usage_is_known(host: str, reader: str, path: str) -> None:
    url = f"http://{host}/{path}/v1/chat/completions"
    without = READERS[reader](url)
    ravi_otel.instrument(formats={host: "openai"})
    with ravi_otel.run("nightly", limits=["tokens=100000"]) as run:
        assert READERS[reader](url) == without
    drain()
    stats = run.stats()
    assert (stats.requests, stats.input_tokens, stats.output_tokens) == (1, 7, 150)


def test_an_answer_that_is_dropped_unread_is_settled(model: Any) -> None:
    with model(LONG) as asked:
        asked.instrument()
        drops: list[Callable[[], Any]] = [
            lambda: requests.post(asked.url, json=STREAM, stream=True),
            lambda: _posted(asked.url, preload_content=False),
        ]
        with ravi_otel.run("nightly") as run:
            for drop in drops:
                drop()
                gc.collect()
                drain()
        assert (run.stats().requests, len(asked.spans())) == (2, 2)


@pytest.mark.parametrize("library", ["httpx async", "aiohttp"])
def test_a_task_that_is_cancelled_stays_cancelled_and_its_call_is_settled(model: Any, library: str) -> None:
    async def ask(url: str) -> None:
        if library == "aiohttp":
            async with aiohttp.ClientSession() as session, session.post(url, json=STREAM) as found:
                await found.read()
        else:
            async with httpx.AsyncClient() as client, client.stream("POST", url, json=STREAM) as found:
                await found.aread()

    async def main(asked: Any) -> None:
        task = asyncio.create_task(ask(asked.url))
        await asyncio.to_thread(asked.server.wait_for, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with model(LONG) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            asyncio.run(main(asked))
        drain()
        assert (run.stats().requests, len(asked.spans())) == (1, 1)


@pytest.mark.parametrize("library", ["httpx", "requests", "urllib3", "httpx async", "aiohttp"])
@pytest.mark.parametrize("whole", [True, False], ids=["waiting for the answer", "reading the stream"])
def test_a_run_that_is_cancelled_ends_its_call(model: Any, library: str, whole: bool) -> None:
    script = Text("never", think_s=30) if whole else Text(" ".join(["word"] * 2000), chunks=1000, chunk_s=0.05)
    with model(script) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:

            def cancel() -> None:
                asked.server.wait_for(1)
                run.cancel("enough")

            thread = threading.Thread(target=cancel)
            thread.start()
            began = time.monotonic()
            with pytest.raises(CancellationError):
                _read_by(library, asked.url, {**STREAM, "stream": not whole})
            thread.join()
        assert time.monotonic() - began < 15


def _read_by(library: str, url: str, body: Any) -> None:
    async def awaited() -> None:
        if library == "aiohttp":
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as found:
                async for _ in found.content.iter_any():
                    pass
        else:
            async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=body) as found:
                async for _ in found.aiter_bytes():
                    pass

    if library in ("aiohttp", "httpx async"):
        asyncio.run(awaited())
    elif library == "httpx":
        with httpx.stream("POST", url, json=body, timeout=60) as found:
            list(found.iter_bytes())
    elif library == "requests":
        list(requests.post(url, json=body, stream=True).iter_content(None))
    else:
        list(_posted(url, body=body, preload_content=False, retries=False).stream())


@pytest.mark.parametrize("library", ["httpx", "requests", "urllib3", "httpx async", "aiohttp"])
def test_time_that_runs_out_ends_a_call(model: Any, library: str) -> None:
    with model(Text("never", think_s=30)) as asked:
        asked.instrument()
        began = time.monotonic()
        with ravi_otel.run("nightly", limits=["time=1s"]), pytest.raises(DeadlineExceededError):
            _read_by(library, asked.url, {**STREAM, "stream": False})
        assert time.monotonic() - began < 15


def test_trio_is_as_without_us(model: Any) -> None:
    async def ask(url: str) -> bytes:
        async with httpx.AsyncClient() as client, client.stream("POST", url, json=STREAM) as found:
            return await found.aread()

    with model(Text("hello", usage=(12, 3))) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            trio.run(ask, asked.url)
        drain()
        assert (run.stats().requests, run.stats().output_tokens > 0) == (1, True)


def test_a_mocked_transport_is_asked_once_and_counts_as_a_call() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={"id": "c", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})

    ravi_otel.instrument()
    with ravi_otel.run("nightly") as run, httpx.Client(transport=httpx.MockTransport(answer)) as client:
        given = client.build_request("POST", "https://api.mistral.ai/v1/chat/completions", json=STREAM)
        found = client.send(given)
    assert (asked, found.request) == ([given], given)
    assert (run.stats().requests, run.stats().output_tokens) == (1, 4)


def test_the_programs_request_is_its_own_where_a_cap_is_written(model: Any) -> None:
    with model(Text("hello", usage=(12, 3))) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["tokens=5000:admission=strict"]), httpx.Client() as client:
            given = client.build_request("POST", asked.url, json={**STREAM, "stream": False})
            before = given.content, dict(given.headers)
            found = client.send(given)
            assert found.request is given
            assert (given.content, dict(given.headers)) == before
        assert "max" in str(asked.bodies())
