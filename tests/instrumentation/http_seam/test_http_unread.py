"""What nobody sees a program read has an unknown usage, and not one of 0."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Text

BODY: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**BODY, "stream": True}
ANSWER = Text("It is in Oslo, as far as I know.", usage=(120, 80))


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends
        threading.Event().wait(0.01)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_a_whole_answer_that_is_dropped_unread_has_an_unknown_usage(model: Any, library: Any) -> None:
    with model(ANSWER) as asked, library.Client() as client:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["tokens=100000"]) as run:
            client.send(client.build_request("POST", asked.url, json=BODY), stream=True)
            gc.collect()
            until(lambda: asked.spans() != [])
        stats = run.stats()
        assert (stats.requests, stats.errors, stats.unreported_calls, stats.estimated_calls) == (1, 0, 1, 0)


class Recorded(io.BytesIO):
    """An answer that a recorder of HTTP plays in the place of urllib3's."""

    status, reason, version, version_string, length_remaining = 200, "OK", 11, "HTTP/1.1", None

    def __init__(self) -> None:
        super().__init__(b'{"usage": {"prompt_tokens": 12, "completion_tokens": 8}}')
        self.headers = urllib3.HTTPHeaderDict({"content-type": "application/json"})


class Playing(urllib3.connection.HTTPConnection):
    """A connection of a recorder, which sends nothing."""

    def request(self, *_args: Any, **_kwargs: Any) -> None:
        """Send nothing."""

    def getresponse(self) -> Any:
        """Answer with what was recorded."""
        return Recorded()


def test_what_a_recorder_answers_with_a_response_of_its_own_is_unknown_at_once(model: Any) -> None:
    with model(ANSWER) as asked:
        asked.instrument()
        at = urlsplit(asked.url)
        assert at.hostname
        with urllib3.HTTPConnectionPool(at.hostname, at.port) as pool, ravi_otel.run("nightly") as run:
            pool.ConnectionCls = Playing
            found = pool.urlopen("POST", at.path, body=b"{}", redirect=False, preload_content=False)
            assert b"usage" in found.read()
            assert (run.stats().requests, run.stats().unreported_calls, run.stats().estimated_calls) == (1, 1, 0)


async def _aiohttp(url: str, begun: bool) -> tuple[bytes, bytes]:
    async with aiohttp.ClientSession() as session, session.post(url, json=STREAM) as found:
        first = await found.content.readany() if begun else b""
        ravi_otel.uninstrument()
        return first, await found.content.read()


def _requests(url: str, begun: bool) -> tuple[bytes, bytes]:
    with requests.post(url, json=STREAM, stream=True) as found:
        pieces = found.iter_content(16)
        first = next(pieces) if begun else b""
        ravi_otel.uninstrument()
        return first, b"".join(pieces)


@pytest.mark.parametrize("library", ["requests", "aiohttp"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "unread"])
def test_a_stream_that_is_read_on_after_uninstrument_is_whole_and_its_usage_unknown(model: Any, library: str, begun: bool) -> None:
    slow = Text(" ".join(["word"] * 40), chunks=20, chunk_s=0.01, usage="missing")
    with model(slow) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            first, rest = _requests(asked.url, begun) if library == "requests" else asyncio.run(_aiohttp(asked.url, begun))
            drain()
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert (run.stats().requests, run.stats().unreported_calls, run.stats().estimated_calls) == (1, 1, 0)
