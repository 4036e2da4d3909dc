"""What a stream or a call leaves behind when nobody holds it any more, and what it must not do on its way out."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import pickle
import threading
import weakref
from contextlib import suppress
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel._instrumentation.streams import abandon_open
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Capture, Malformed, Text

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}], "stream": True}
WORDS = Text("one two three four five six", usage=(10, 6))
LIMITS = ["tokens=1000000000", "requests=1000000", "turns=1000000"]


def drop(held: list[Any], dropped: threading.Event) -> None:
    held.clear()
    gc.collect()
    dropped.set()


def test_a_finaliser_takes_no_lock(stage: Any, clients: Any, instrumented: Capture, settled: Any) -> None:
    client = clients.make("sync", stage.play(WORDS))
    with ravi_otel.run("r", limits=LIMITS) as run:
        for read in (0, 2, 8):
            stream = client.chat.completions.create(**ASK)
            for _ in range(read):
                next(stream)
            dropped = threading.Event()
            with STATE.engine.ledger._lock, STATE.lock:  # type: ignore[attr-defined]  # as if a collection came in the middle of a step
                threading.Thread(target=drop, args=([stream], dropped)).start()
                del stream
                assert dropped.wait(10)
                gc.collect()
        settled(run, ["abandoned", "abandoned", None])


@pytest.mark.parametrize("cleanup_fails", [False, True])
def test_a_call_that_was_dropped_half_way_takes_no_lock(
    cleanup_fails: bool, clients: Any, http: Any, instrumented: Capture, settled: Any
) -> None:
    class Never(http.AsyncBaseTransport):  # type: ignore[misc,name-defined]  # the class is the client's own
        async def handle_async_request(self, request: Any) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                if cleanup_fails:
                    raise LookupError

    client = openai.AsyncOpenAI(api_key="k", http_client=http.AsyncClient(transport=Never()), max_retries=0)
    client._platform = "Linux"

    async def program() -> None:
        coroutine = client.chat.completions.create(**{**ASK, "stream": False})
        coroutine.send(None)
        with STATE.engine.ledger._lock, suppress(Exception):  # type: ignore[attr-defined]  # as if a collection came in the middle of a step
            coroutine.close()
        await client.close()

    with ravi_otel.run("r", limits=LIMITS) as run:
        clients.run("async", program())
        settled(run, ["GeneratorExit"])
        assert run.stats().requests == 1


def test_a_response_that_was_read_can_be_pickled_again(stage: Any, clients: Any, instrumented: Capture, settled: Any) -> None:
    client = clients.make("sync", stage.play(WORDS))
    with client.chat.completions.with_streaming_response.create(**{**ASK, "stream": False}) as response:
        response.read()
    assert pickle.loads(pickle.dumps(response.http_response)).json()["usage"]["total_tokens"] == 16


def test_an_error_is_freed_with_its_last_reference(stage: Any, clients: Any, instrumented: Capture, settled: Any) -> None:
    client = clients.make("sync", stage.play(Malformed("<no json>")), max_retries=0, base_url="http://127.0.0.1:9/v1")
    gc.collect()
    gc.disable()
    try:
        try:
            client.chat.completions.create(**{**ASK, "stream": False})
        except openai.APIConnectionError as error:
            held = weakref.ref(error)
        assert held() is None
    finally:
        gc.enable()


def test_streams_still_open_at_the_end_of_the_process_are_told(stage: Any, clients: Any, instrumented: Capture, settled: Any) -> None:
    client = clients.make("sync", stage.play(WORDS))
    with ravi_otel.run("r", limits=LIMITS) as run:
        stream = client.chat.completions.create(**ASK)
        next(stream)
        abandon_open()
        settled(run, ["abandoned"])
        assert len(list(stream)) > 0  # it goes on, for whoever reads it


def test_the_log_of_contexts_stays_empty_when_streams_cross_tasks(
    stage: Any, clients: Any, instrumented: Capture, settled: Any, caplog: Any
) -> None:
    client = clients.make("async", stage.play(WORDS))

    async def agen() -> Any:
        with ravi_otel.run("inner"):
            stream = await client.chat.completions.create(**ASK)
            async for item in stream:
                yield item

    async def program() -> None:
        source = agen()
        await asyncio.create_task(source.__anext__(), context=contextvars.Context())
        await source.aclose()

    with caplog.at_level(logging.DEBUG, logger="opentelemetry.context"):
        clients.run("async", program())
    assert [record for record in caplog.records if record.name == "opentelemetry.context"] == []
