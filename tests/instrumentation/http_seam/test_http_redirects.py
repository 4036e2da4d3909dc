"""A request to a model is counted and refused where another host, which is no model's, has redirected to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
import urllib3

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Text

ANSWER = Text("It is in Oslo, as far as I know.", usage=(120, 80))
STREAM = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    ravi_otel.uninstrument()


@pytest.fixture
def moved(serving: Any) -> Any:
    """Give what serves redirects to a URL."""

    def to(url: str) -> Any:
        def answer(asked: Any) -> None:
            asked.send_response(307)
            asked.send_header("location", url)
            asked.send_header("content-length", "0")
            asked.end_headers()

        return serving(answer)

    return to


def _following(stack: Any) -> dict[str, Any]:
    return {"follow_redirects": True} if stack.is_httpx else {}


def test_a_redirect_to_a_model_is_one_call_with_its_usage(model: Any, stack: Any, moved: Any) -> None:
    with model(ANSWER) as asked, moved(asked.url) as host:
        without = stack.ask(f"http://{host}/go", **_following(stack))
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            status, body = stack.ask(f"http://{host}/go", **_following(stack))
        drain()
        assert (status, len(body)) == (without[0], len(without[1]))
        stats = run.stats()
        assert (stats.requests, stats.input_tokens, stats.output_tokens) == (1, 120, 80)
        (span,) = asked.spans()
        assert span.attributes["server.port"] == int(asked.host.partition(":")[2])


def test_a_redirect_to_a_model_is_refused_before_it_leaves(model: Any, stack: Any, moved: Any) -> None:
    with model(ANSWER) as asked, moved(asked.url) as host:
        asked.instrument()
        with ravi_otel.run("nightly", limits=["requests=1"]):
            assert stack.ask(f"http://{host}/go", **_following(stack))[0] == 200
            with pytest.raises(BudgetExhaustedError, match="1 of 1 request used"):
                stack.ask(f"http://{host}/go", **_following(stack))
        assert len(asked.server.requests) == 1


@pytest.mark.parametrize("library", ["httpx", "httpx async", "aiohttp"])
def test_a_stream_behind_a_redirect_is_cut_where_its_limit_is_used_up(model: Any, moved: Any, library: str) -> None:
    long = Text(" ".join(["word"] * 4_000), chunks=1_000, usage="missing", chunk_s=0.001)

    def read(url: str) -> None:
        with httpx.stream("POST", url, json=STREAM, follow_redirects=True) as found:
            list(found.iter_lines())

    async def read_async(url: str) -> None:
        async with httpx.AsyncClient(follow_redirects=True) as client, client.stream("POST", url, json=STREAM) as found:
            _ = [line async for line in found.aiter_lines()]

    async def read_aiohttp(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=STREAM) as found:
            await found.read()

    readers: dict[str, Callable[[str], None]] = {
        "httpx": read,
        "httpx async": lambda url: asyncio.run(read_async(url)),
        "aiohttp": lambda url: asyncio.run(read_aiohttp(url)),
    }
    with model(long) as asked, moved(asked.url) as host:
        asked.instrument()
        url = f"http://{host}/go"
        with ravi_otel.run("nightly", limits=["tokens=300"]) as run, pytest.raises(BudgetExhaustedError):
            readers[library](url)
        drain()
        assert run.stats().output_tokens < 1_000
        asked.server.wait_for_hang_ups(1)


def test_a_redirect_that_a_program_follows_itself_is_one_call(model: Any, moved: Any) -> None:
    with model(ANSWER) as asked, moved(asked.url) as host, httpx.Client() as client:
        asked.instrument()
        with ravi_otel.run("nightly") as run:
            found = client.post(f"http://{host}/go", json={**STREAM, "stream": False})
            assert found.next_request is not None
            assert client.send(found.next_request).status_code == 200
        assert (run.stats().requests, run.stats().output_tokens) == (1, 80)


def test_a_redirect_that_nobody_can_write_to_is_refused_by_a_strict_limit(model: Any, moved: Any) -> None:
    async def ask(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=STREAM) as found:
            await found.read()

    with model(ANSWER) as asked, moved(asked.url) as host:
        asked.instrument()
        with ravi_otel.run("strict", limits=["tokens=5000:admission=strict"]), pytest.raises(BudgetExhaustedError, match="redirected"):
            asyncio.run(ask(f"http://{host}/go"))
        assert not asked.server.requests


def test_from_one_model_to_another_is_one_call_with_two_requests(model: Any, stack: Any, moved: Any) -> None:
    with model(ANSWER) as asked, moved(asked.url) as host:
        ravi_otel.instrument(formats={asked.host: "openai", host: "openai"})
        with ravi_otel.run("nightly") as run:
            assert stack.ask(f"http://{host}/v1/chat/completions", **_following(stack))[0] == 200
        assert (run.stats().requests, run.stats().output_tokens) == (2, 80)


async def _post(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(url, json=STREAM):
        pass


def _pooled(url: str) -> None:
    at = urlsplit(url)
    with urllib3.HTTPConnectionPool(at.hostname or "", at.port) as pool:
        pool.urlopen("POST", at.path, body=b"{}")


@pytest.mark.parametrize("ask", [lambda url: asyncio.run(_post(url)), _pooled], ids=["aiohttp", "urllib3"])
@pytest.mark.parametrize("leads_to", ["http://127.0.0.1:1/", "http://[::1/"], ids=["nobody", "no URL"])
def test_a_request_is_paid_for_that_a_redirect_answers_which_leads_nowhere(moved: Any, ask: Callable[[str], None], leads_to: str) -> None:
    with moved(leads_to) as host:
        url = f"http://{host}/v1/chat/completions"
        with pytest.raises(Exception) as without:
            ask(url)
        ravi_otel.instrument(formats={host: "openai"})
        with ravi_otel.run("nightly", limits=["requests=1"]):
            with pytest.raises(type(without.value)):
                ask(url)
            with pytest.raises(BudgetExhaustedError):
                ask(url)
