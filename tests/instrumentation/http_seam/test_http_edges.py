"""What a program does with an HTTP library that few do, and all may: each request is paid for, and each answer is read."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import httpx
import httpx2
import pytest
import requests
import urllib3

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Raw, Text

BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}
TOLD: dict[str, Any] = {"model": "gpt-4o-mini", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}}
TWICE = {"content-encoding": "gzip, gzip"}
"""An encoding that HTTP libraries undo, and Python has nothing for."""


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


def _raw_of(library: Any, url: str, body: Any) -> bytes:
    """Read an answer as it was sent."""
    if library is requests:
        return requests.post(url, json=body, stream=True).raw.read()
    with library.stream("POST", url, json=body) as found:
        return b"".join(found.iter_raw())


@pytest.mark.parametrize("library", [httpx, httpx2, requests], ids=lambda library: library.__name__)
def test_what_the_library_decodes_is_read_decoded(model: Any, library: Any) -> None:
    whole = Raw(gzip.compress(gzip.compress(json.dumps(TOLD).encode())), headers=TWICE)
    with model(whole) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert library.post(asked.url, json=BODY).json() == TOLD
        drain()
        assert (run.stats().output_tokens, run.stats().unreported_calls) == (8, 0)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("library", [httpx, httpx2, requests], ids=lambda library: library.__name__)
def test_what_is_read_as_it_was_sent_is_read_by_what_the_library_decodes_it_with(model: Any, library: Any, streamed: bool) -> None:
    plain = _words(40, TOLD) + b"data: [DONE]\n\n" if streamed else json.dumps(TOLD).encode()
    sort = "text/event-stream" if streamed else "application/json"
    answer = Raw(gzip.compress(gzip.compress(plain)), headers=TWICE, content_type=sort)
    with model(answer) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert _raw_of(library, asked.url, {**BODY, "stream": streamed}) == answer.body
        drain()
        assert (run.stats().requests, run.stats().output_tokens, run.stats().unreported_calls) == (1, 8, 0)


@pytest.mark.parametrize("encoding", ["compress", "gzip, gzip"])
@pytest.mark.parametrize("library", [httpx, httpx2, requests], ids=lambda library: library.__name__)
def test_what_is_encoded_in_a_way_that_nobody_undoes_is_unknown(model: Any, library: Any, encoding: str) -> None:
    with model(Raw(b"\x1f\x9d nothing of the kind", headers={"content-encoding": encoding})) as asked:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            assert _raw_of(library, asked.url, BODY)
        drain()
        assert (run.stats().requests, run.stats().unreported_calls) == (1, 1)


class Elsewhere(httpx.BaseTransport):
    """Have another library send each request, in another thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "application/json"}
        sent = self._pool.submit(requests.post, str(request.url), data=request.read(), headers=headers)
        found = sent.result(60)
        return httpx.Response(found.status_code, content=found.content, headers={"content-type": "application/json"})


def test_a_transport_that_hands_on_to_another_library_in_another_thread_sends_one_call(model: Any) -> None:
    with model(Text("Oslo.", usage=(12, 8))) as asked, ThreadPoolExecutor(1) as pool, httpx.Client(transport=Elsewhere(pool)) as client:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=2"]) as run:
            assert client.post(asked.url, json=BODY).status_code == 200
            assert client.post(asked.url, json=BODY).status_code == 200
            with pytest.raises(ravi_otel.BudgetExhaustedError):
                client.post(asked.url, json=BODY)
        assert (run.stats().requests, run.stats().output_tokens, len(asked.server.requests), len(asked.spans())) == (2, 16, 2, 3)


def test_two_threads_whose_requests_a_mocked_transport_answers_make_a_call_each() -> None:
    together = threading.Barrier(2)

    def answer(_: httpx.Request) -> httpx.Response:
        together.wait(60)
        return httpx.Response(200, json=TOLD)

    ravi_otel.instrument()
    with httpx.Client(transport=httpx.MockTransport(answer)) as client, ThreadPoolExecutor(2) as pool, ravi_otel.run("nightly") as run:
        url = "https://api.mistral.ai/v1/chat/completions"
        sent = [pool.submit(copy_context().run, lambda: client.post(url, json=BODY)) for _ in range(2)]
        assert [each.result().status_code for each in sent] == [200, 200]
    assert (run.stats().requests, run.stats().turns, run.stats().output_tokens) == (2, 2, 16)


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
    slow = Text(" ".join(["word"] * 4_000), chunks=2_000, chunk_s=0.05)
    with model(slow) as asked:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["time=3s"]) as run, pytest.raises(ravi_otel.DeadlineExceededError):
            stack.read(asked.url, {**BODY, "stream": True})
        drain()
        assert (run.stats().errors, 0 < run.stats().output_tokens < 4_000) == (1, True)
        asked.server.wait_for_hang_ups(1)


@pytest.mark.parametrize("library", [httpx, httpx2, requests, urllib3], ids=lambda library: library.__name__)
def test_a_deadline_ends_the_attempt_to_connect(unreachable: str, library: Any) -> None:
    ravi_otel.instrument(formats={unreachable: "openai"})

    def post(url: str) -> None:
        if library is urllib3:
            urllib3.PoolManager().request("POST", url, body=json.dumps(BODY).encode(), timeout=60, retries=False)
        else:
            library.post(url, json=BODY, timeout=60)

    began = time.monotonic()
    with ravi_otel.run("nightly", limits=["time=0.5s"]) as run, pytest.raises(ravi_otel.DeadlineExceededError):
        post(f"http://{unreachable}/v1/chat/completions")
    assert time.monotonic() - began < 20
    assert (run.stats().requests, run.stats().input_tokens) == (0, 0)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_a_time_out_of_the_programs_own_stays_its_own_and_so_does_its_request(model: Any, library: Any) -> None:
    with model(Text("never", think_s=5)) as asked, library.Client(timeout=0.2) as client:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["time=60s"]), pytest.raises(library.ReadTimeout) as without:
            client.post(asked.url, json=BODY)
        assert without.value.request.extensions["timeout"]["read"] == 0.2
        given = client.build_request("POST", asked.url, json=BODY, timeout=90)
        before = given.extensions
        with ravi_otel.run("nightly", limits=["time=0.5s"]), pytest.raises(ravi_otel.DeadlineExceededError):
            client.send(given)
        assert given.extensions is before


@pytest.mark.parametrize("limit", ["tokens=300", "time=3s"])
@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_a_limit_ends_a_stream_that_is_read_whole(model: Any, library: Any, limit: str) -> None:
    long = Text(" ".join(["word"] * 4_000), chunks=1_000, usage="missing", chunk_s=0.05)
    with model(long) as asked:
        asked.instrument()
        with (
            ravi_otel.run("nightly", limits=[limit]) as run,
            library.stream("POST", asked.url, json={**BODY, "stream": True}) as found,
            pytest.raises(ravi_otel.BudgetExhaustedError),
        ):
            found.read()
        drain()
        assert 0 < run.stats().output_tokens < 2_000
        asked.server.wait_for_hang_ups(1)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_a_request_that_a_hook_of_the_programs_keeps_back_has_used_nothing(model: Any, library: Any) -> None:
    def keep_back(_: Any) -> None:
        raise ValueError("not today")

    hooks: dict[str, list[Any]] = {"request": [keep_back]}
    with model(Text("never")) as asked, library.Client(event_hooks=hooks) as client:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=1"]) as run:
            for _ in range(2):
                with pytest.raises(ValueError, match="not today"):
                    client.post(asked.url, json=BODY)
        assert (run.stats().requests, run.stats().input_tokens) == (0, 0)


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
