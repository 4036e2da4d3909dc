"""What a program does with an HTTP library that few do, and all may: each request is paid for, and each answer is read."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import httpx
import httpx2
import pytest
import requests

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Raw, Text

BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
TOLD: dict[str, Any] = {"model": "gpt-4o-mini", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}}
TWICE = {"content-encoding": "gzip, gzip"}
"""An encoding that HTTP libraries undo, and what follows the bytes as they were sent does not."""


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


@pytest.mark.parametrize("library", [httpx, httpx2, requests], ids=lambda library: library.__name__)
def test_what_the_library_decodes_is_read_decoded(model: Any, library: Any) -> None:
    whole = Raw(gzip.compress(gzip.compress(json.dumps(TOLD).encode())), headers=TWICE)
    with model(whole) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert library.post(asked.url, json=BODY).json() == TOLD
        drain()
        assert (run.stats().output_tokens, run.stats().unreported_calls) == (8, 0)


def test_what_is_read_as_it_was_sent_in_an_encoding_nobody_here_undoes_is_unknown(model: Any) -> None:
    whole = Raw(gzip.compress(gzip.compress(json.dumps(TOLD).encode())), headers=TWICE)
    with model(whole) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert requests.post(asked.url, json=BODY, stream=True).raw.read() == whole.body
        drain()
        assert (run.stats().requests, run.stats().unreported_calls) == (1, 1)


def test_two_libraries_that_send_the_same_body_at_once_send_two_calls(model: Any) -> None:
    waits, goes = threading.Event(), threading.Event()

    def wait(_: httpx.Request) -> None:
        waits.set()
        assert goes.wait(60)

    hooks: dict[str, list[Any]] = {"request": [wait]}
    with model(Text("Oslo.", usage=(12, 8))) as asked, httpx.Client(event_hooks=hooks) as client, ThreadPoolExecutor(1) as pool:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=2"]) as run:
            body = json.dumps(BODY).encode()
            one = pool.submit(copy_context().run, client.post, asked.url, content=body)
            assert waits.wait(60)
            try:
                assert requests.post(asked.url, data=body).ok
                with pytest.raises(ravi_otel.BudgetExhaustedError):
                    requests.post(asked.url, data=body)
            finally:
                goes.set()
            assert one.result().status_code == 200
        assert (run.stats().requests, len(asked.server.requests)) == (2, 2)


def test_a_deadline_ends_a_stream_with_our_error_whichever_library_reads_it(model: Any, stack: Any) -> None:
    slow = Text(" ".join(["word"] * 400), chunks=200, chunk_s=0.05)
    with model(slow) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["time=0.5s"]) as run, pytest.raises(ravi_otel.DeadlineExceededError):
            stack.read(asked.url, {**BODY, "stream": True})
        drain()
        assert (run.stats().errors, 0 < run.stats().output_tokens < 400) == (1, True)
        asked.server.wait_for_hang_ups(1)


def _words(many: int, *last: dict[str, Any]) -> bytes:
    word = {"model": "gpt-4o-mini", "choices": [{"index": 0, "delta": {"content": "word "}}]}
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (*[word] * many, *last))


def test_a_stream_that_is_cut_in_the_middle_of_an_event_is_charged_by_what_came(model: Any, stack: Any) -> None:
    pieces = Raw(_words(4_000), content_type="text/event-stream")
    with model(pieces) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["tokens=300"]) as run, pytest.raises(ravi_otel.BudgetExhaustedError):
            stack.read(asked.url, {**BODY, "stream": True})
        drain()
        assert run.stats().unreported_calls == 0
        assert 100 < run.stats().output_tokens < 1_000


def test_a_stream_whose_rest_was_read_at_once_is_charged_in_full(model: Any) -> None:
    whole = Raw(_words(400, TOLD) + b"data: [DONE]\n\n", content_type="text/event-stream")
    with model(whole) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["tokens=50"]) as run:
            assert requests.post(asked.url, json={**BODY, "stream": True}, stream=True).raw.read() == whole.body
        drain()
        assert (run.stats().errors, run.stats().output_tokens) == (0, 8)
