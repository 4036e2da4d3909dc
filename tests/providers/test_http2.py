"""A model that is asked over HTTP/2, where many calls share a connection, and in encodings that need more than Python has."""

import asyncio
import json
import os
import socket
import threading
import time
import zlib
from contextlib import contextmanager

import pytest

if not os.environ.get("RAVI_TEST_PROVIDERS"):
    pytest.skip("make providers runs these, in an environment of their own", allow_module_level=True)

import brotli
import httpx
import httpx2
import requests
import urllib3
import zstandard
from hypercorn.asyncio import serve
from hypercorn.config import Config

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.errors import BudgetExhaustedError, DeadlineExceededError

pytestmark = pytest.mark.timeout(120)
ASKED = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
USED = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
ENCODERS = {"br": brotli.compress, "zstd": zstandard.ZstdCompressor().compress, "deflate": zlib.compress}
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
EVENTS = 400
"""They take a second or more."""


def event(**told):
    return b"data: " + json.dumps({"model": "gpt-4o-mini", **told}).encode() + b"\n\n"


WORDS = [event(choices=[{"index": 0, "delta": {"content": "some more words "}}])] * EVENTS
LAST = [event(choices=[], usage=USED), b"data: [DONE]\n\n"]
WHOLE = json.dumps({"model": "gpt-4o-mini", "choices": [], "usage": USED}).encode()


class Model:
    """An application that answers as a chat does; how, its path says."""

    def __init__(self):
        self.asked = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body = b""
        while True:
            told = await receive()
            body += told.get("body", b"")
            if not told.get("more_body"):
                break
        self.asked += 1
        path, encoding = scope["path"], next((name for name in ENCODERS if name in scope["path"].split("/")), None)
        streams = json.loads(body).get("stream") is True
        headers = [(b"content-type", b"text/event-stream" if streams else b"application/json"), (b"x-http", scope["http_version"].encode())]
        if encoding is not None:
            headers.append((b"content-encoding", encoding.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        parts = [*WORDS, *LAST] if streams else [WHOLE]
        if encoding is not None:
            data = ENCODERS[encoding](b"".join(parts))
            parts = [data[at : at + 97] for at in range(0, len(data), 97)]
        hang_up = asyncio.ensure_future(receive())
        for at, part in enumerate(parts):
            if "stalled" in path and at == 2:
                await asyncio.wait([hang_up], timeout=2)
            if hang_up.done():
                return
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if encoding is None and streams:
                await asyncio.sleep(0.002)
        hang_up.cancel()
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def serving():
    """Serve the model over HTTP/1.1 and HTTP/2; give it and its host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{taken.getsockname()[1]}"
    model, config, loop, over = Model(), Config(), asyncio.new_event_loop(), asyncio.Event()
    config.bind, config.errorlog = [host], None

    async def main():
        await serve(model, config, shutdown_trigger=over.wait)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", int(host.split(":")[1]))) == 0:
                break
    try:
        yield model, host
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()


@pytest.fixture
def served():
    with serving() as found:
        ravi_otel.instrument(formats={found[1]: "openai"})
        yield found
        ravi_otel.uninstrument()


def client_of(library, **more):
    return library.Client(http1=False, http2=True, **more)


def stream(client, host, path="", **more):
    return client.stream("POST", f"http://{host}{path}/v1/chat/completions", json={**ASKED, "stream": True}, **more)


@LIBRARIES
def test_whole_answers_and_streams_over_one_connection_are_calls(served, library):
    _, host = served
    with ravi_otel.run("nightly") as run, client_of(library) as client:
        found = client.post(f"http://{host}/v1/chat/completions", json=ASKED)
        assert (found.headers["x-http"], found.content) == ("2", WHOLE)
        with stream(client, host) as found:
            assert b"".join(found.iter_bytes()) == b"".join([*WORDS, *LAST])
    drain()
    assert (run.stats().requests, run.stats().input_tokens, run.stats().output_tokens) == (2, 24, 16)


@LIBRARIES
def test_32_at_once_over_one_connection_send_what_a_limit_allows(served, library):
    model, host = served

    async def ask(client):
        try:
            return (await client.post(f"http://{host}/v1/chat/completions", json=ASKED)).status_code
        except BudgetExhaustedError:
            return None

    async def program():
        async with library.AsyncClient(http1=False, http2=True) as client:
            return await asyncio.gather(*(ask(client) for _ in range(32)))

    with ravi_otel.run("crowd", limits=["requests=5"]) as run:
        found = asyncio.run(program())
    assert (found.count(200), model.asked, run.stats().requests) == (5, 5, 5)


@LIBRARIES
def test_a_stream_that_is_cut_leaves_the_other_streams_of_its_connection_alone(served, library):
    _, host = served
    with client_of(library) as client, stream(client, host) as beside:
        source = beside.iter_bytes()
        first = next(source)
        with ravi_otel.run("nightly", limits=["tokens=200"]) as run, stream(client, host) as found:
            pieces = found.iter_bytes()
            with pytest.raises(BudgetExhaustedError):
                list(pieces)
        assert first + b"".join(source) == b"".join([*WORDS, *LAST])
    drain()
    assert 0 < run.stats().output_tokens < 4 * EVENTS


@LIBRARIES
def test_a_deadline_ends_a_stream_at_its_next_piece_and_no_other_of_its_connection(served, library):
    _, host = served
    with client_of(library, timeout=90) as client, stream(client, host) as beside:
        source = beside.iter_bytes()
        first = next(source)
        with ravi_otel.run("nightly", limits=["time=0.5s"]), stream(client, host, "/stalled") as found:
            pieces = found.iter_bytes()
            with pytest.raises(DeadlineExceededError):
                list(pieces)
        assert first + b"".join(source) == b"".join([*WORDS, *LAST])


def raw_by_urllib3(url, body):
    found = urllib3.PoolManager().request("POST", url, body=json.dumps(body), preload_content=False, decode_content=False)
    return b"".join(found.stream(31, decode_content=False))


def raw_by_requests(url, body):
    return requests.post(url, json=body, stream=True, timeout=30).raw.read()


def raw_by(library):
    def read(url, body):
        with library.stream("POST", url, json=body) as found:
            return b"".join(found.iter_raw())

    return read


READERS = {"httpx": raw_by(httpx), "httpx2": raw_by(httpx2), "urllib3": raw_by_urllib3, "requests": raw_by_requests}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_as_it_was_sent_is_known(served, reader, encoding, streams):
    _, host = served
    url = f"http://{host}/{encoding}/v1/chat/completions"
    plain = b"".join([*WORDS, *LAST]) if streams else WHOLE
    with ravi_otel.run("nightly", limits=["tokens=100000"]) as run:
        assert READERS[reader](url, {**ASKED, "stream": streams}) == ENCODERS[encoding](plain)
    drain()
    assert (run.stats().requests, run.stats().output_tokens, run.stats().unreported_calls) == (1, 8, 0)
