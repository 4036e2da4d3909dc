"""What goes wrong on a loan's way costs the program no connection, and a loan only where something has left."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import trio
import urllib3
from http_stacks import Ask
from openai import AsyncOpenAI
from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from served_apps import ASK, model
from wire_recorder import Recorder

import ravi_otel
from ravi_otel._flow import Step
from ravi_otel.carrier import _clients
from ravi_otel.testing import OtlpReceiver

LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


@pytest.fixture(autouse=True)
def _instrumented() -> None:
    ravi_otel.instrument()


def one_at_a_time(library: Any, client: str) -> Any:
    limits, waits = library.Limits(max_connections=1), library.Timeout(10, pool=2)
    return getattr(library, client)(limits=limits, timeout=waits, trust_env=False)


class SlowStore:
    """Take what comes back of a loan as a store that is slow does; `entered` and `go_on` are events of the loop."""

    def __init__(self, entered: Any, go_on: Any) -> None:
        self.entered, self.go_on, self.taken = entered, go_on, 0

    def returned(self, url: str, value: str) -> Iterator[Step]:
        yield Step(lambda: None, self._wait)
        self.taken += 1

    async def _wait(self) -> None:
        self.entered.set()
        await self.go_on.wait()


@LIBRARIES
def test_a_request_that_is_cancelled_while_a_loan_comes_back_frees_its_connection(
    library: Any, listed: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> tuple[int, int]:
        store = SlowStore(asyncio.Event(), asyncio.Event())
        monkeypatch.setattr(_clients, "returned", store.returned)
        listed.tell(b"ravi-spent: x")
        async with one_at_a_time(library, "AsyncClient") as client:
            first = asyncio.ensure_future(client.get(listed.url))
            await asyncio.wait_for(store.entered.wait(), 10)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            status = (await client.get(listed.url)).status_code
        store.go_on.set()
        await asyncio.wait_for(asyncio.gather(*_clients._TAKING), 10)
        return status, store.taken

    assert asyncio.run(asked()) == (200, 1)


def test_a_request_of_aiohttp_that_is_cancelled_then_frees_its_connection(listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> tuple[int, int]:
        store = SlowStore(asyncio.Event(), asyncio.Event())
        monkeypatch.setattr(_clients, "returned", store.returned)
        listed.tell(b"ravi-spent: x")
        waits = aiohttp.ClientTimeout(total=10, connect=2)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), timeout=waits) as session:
            first = asyncio.ensure_future(session.get(listed.url))
            await asyncio.wait_for(store.entered.wait(), 10)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            async with session.get(listed.url) as reply:
                status = reply.status
        store.go_on.set()
        await asyncio.wait_for(asyncio.gather(*_clients._TAKING), 10)
        return status, store.taken

    assert asyncio.run(asked()) == (200, 1)


@LIBRARIES
def test_under_trio_what_comes_back_is_taken_before_a_cancellation(library: Any, listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked() -> tuple[int, int]:
        store = SlowStore(trio.Event(), trio.Event())
        monkeypatch.setattr(_clients, "returned", store.returned)
        listed.tell(b"ravi-spent: x")
        async with one_at_a_time(library, "AsyncClient") as client, trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def first() -> None:
                with scope:
                    await client.get(listed.url)

            nursery.start_soon(first)
            with trio.fail_after(10):
                await store.entered.wait()
                scope.cancel()
                store.go_on.set()
                return (await client.get(listed.url)).status_code, store.taken

    assert trio.run(asked) == (200, 1)


@LIBRARIES
def test_a_signal_while_a_loan_comes_back_frees_the_connection(library: Any, listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str, value: str) -> Iterator[Step]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(_clients, "returned", interrupted)
    listed.tell(b"ravi-spent: x")
    with one_at_a_time(library, "Client") as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(listed.url)
        assert client.get(listed.url).status_code == 200


def test_a_signal_while_a_loan_comes_back_closes_a_plain_connection(listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(url: str, value: str) -> Iterator[Step]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(_clients, "returned", interrupted)
    listed.answers.append(b"HTTP/1.1 200 OK\r\nravi-spent: x\r\nContent-Length: 2\r\n\r\nok")
    connection = http.client.HTTPConnection("127.0.0.1", listed.port, timeout=10)
    connection.request("GET", "/")
    with pytest.raises(KeyboardInterrupt):
        connection.getresponse()
    assert connection.sock is None


def _plain(url: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/")
    finally:
        connection.close()


ASKS: dict[str, Callable[[str], Any]] = {
    "requests": lambda url: requests.get(url, timeout=10, proxies={"http": None}),
    "urllib3": lambda url: urllib3.PoolManager().request("GET", url, retries=False),
    "http.client": _plain,
    "httpx": lambda url: httpx.get(url, trust_env=False),
}


@pytest.mark.parametrize("name", sorted(ASKS))
def test_a_loan_stays_where_there_is_no_connection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:a secret that is long enough")
    monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
    with socket.socket() as nobody, ravi_otel.run("r", limits=["tokens=100"]) as run:
        nobody.bind(("127.0.0.1", 0))  # and listens not
        with ravi_otel.lend(tokens=100) as loan:
            with pytest.raises(Exception, match=r"refused|denied"):
                ASKS[name](f"http://127.0.0.1:{nobody.getsockname()[1]}")
            assert loan.status == "held"
        assert (loan.status, run.limits[0].held) == ("released", 0)


def test_a_loan_that_left_is_not_had_back(listed: Recorder) -> None:
    listed.answers.append(b"HTTP/1.1 nonsense")
    with ravi_otel.run("r", limits=["tokens=100"]), ravi_otel.lend(tokens=100) as loan:
        with pytest.raises(http.client.HTTPException):
            _plain_answered(listed.port)
        assert loan.status == "sent"


def _plain_answered(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    finally:
        connection.close()


SILENCES = {"plain": "suppress_instrumentation", "own": otel_context._SUPPRESS_INSTRUMENTATION_KEY}
"""How an exporter asks for silence; OpenTelemetry's own key is another one in each process."""


@pytest.mark.parametrize("silence", sorted(SILENCES))
def test_what_asks_for_silence_takes_no_loan(silence: str, ask: Ask, listed: Recorder) -> None:
    with ravi_otel.run("r", limits=["tokens=100"]), ravi_otel.lend(tokens=100) as loan:
        token = otel_context.attach(otel_context.set_value(SILENCES[silence], True))
        try:
            ask(listed.url, {})
        finally:
            otel_context.detach(token)
        assert loan.status == "held"
        ask(listed.url, {})
        assert loan.status == "sent"


def test_an_exporter_of_spans_takes_no_loan(listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=receiver.url + "/v1/traces")))
        with ravi_otel.run("r", limits=["tokens=100"]), ravi_otel.lend(tokens=100) as loan:
            provider.get_tracer("t").start_span("prepare").end()
            assert loan.status == "held"
        provider.shutdown()
        assert [span.name for span in receiver.spans] == ["prepare"]


def test_a_listed_host_of_another_script_is_carried_to_by_aiohttp(listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_CARRY_TO", "xn--bcher-kva.localhost")

    class Here(aiohttp.abc.AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
            return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

        async def close(self) -> None:
            """Have nothing."""

    async def asked() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Here())) as session:
            for host in ("xn--bcher-kva.localhost", "bücher.localhost", "other.localhost"):
                async with session.get(f"http://{host}:{listed.port}/") as reply:
                    await reply.read()

    with ravi_otel.run("r", limits=["tokens=100"]):
        asyncio.run(asked())
    assert ["ravi.carry" in "".join(listed.headers("baggage", at)) for at in range(3)] == [True, True, False]


def test_a_task_that_was_started_in_a_model_call_carries_when_that_is_over(listed: Recorder) -> None:
    async def asked() -> None:
        over = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def worker() -> None:
            await over.wait()
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(listed.url)

        async def hook(request: Any) -> None:
            tasks.append(asyncio.create_task(worker()))

        direct = httpx.AsyncClient(event_hooks={"request": [hook]}, trust_env=False)
        with model() as server, ravi_otel.run("r", limits=["tokens=10k"]):
            async with AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=direct) as client:
                await client.chat.completions.create(**ASK)
            over.set()
            await asyncio.gather(*tasks)

    asyncio.run(asked())
    assert ["ravi.carry" in sent for sent in listed.headers("baggage")] == [True]
