"""Calls of the sister clients end at their deadline too, and their time-outs are what is left."""

import asyncio
import threading

import anthropic
import groq
import pytest

import ravi_otel
from ravi_otel import CancellationError, DeadlineExceededError
from ravi_otel.testing import ScriptedLLM, Text

CLIENTS = {"anthropic": (anthropic, anthropic.Anthropic, anthropic.AsyncAnthropic), "groq": (groq, groq.Groq, groq.AsyncGroq)}
ASK = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.fixture
def server():
    with ScriptedLLM(Text("ok")) as server, ravi_otel.instrument():
        server.hold()
        yield server
        server.release()


def create(client):
    return (client.messages if hasattr(client, "messages") else client.chat.completions).create(**ASK)


@pytest.mark.parametrize("package", CLIENTS)
def test_a_blocked_call_ends_at_its_deadline_and_when_it_is_cancelled(server, package):
    _, made, _ = CLIENTS[package]
    with made(base_url=server.url, api_key="k", max_retries=2) as client:
        with ravi_otel.run("late", limits=["time=50ms"]), pytest.raises(DeadlineExceededError):
            create(client)
        sent, hung_up = len(server.requests), server.sent.hang_ups
        with ravi_otel.run("stopped") as run:
            stopping = threading.Thread(target=lambda: (server.wait_for(sent + 1), run.cancel()))
            stopping.start()
            with pytest.raises(CancellationError):
                create(client)
            stopping.join()
        server.wait_for_hang_ups(hung_up + 1)


@pytest.mark.anyio
@pytest.mark.parametrize("package", CLIENTS)
async def test_so_does_an_awaited_one(server, package):
    _, _, made = CLIENTS[package]
    async with made(base_url=server.url, api_key="k", max_retries=2) as client:
        async with ravi_otel.run("late", limits=["time=50ms"]):
            with pytest.raises(DeadlineExceededError):
                await create(client)
        sent, hung_up = len(server.requests), server.sent.hang_ups
        async with ravi_otel.run("stopped") as run:
            call = asyncio.ensure_future(create(client))
            await asyncio.to_thread(server.wait_for, sent + 1)
            run.cancel()
            with pytest.raises(CancellationError):
                await call
        await asyncio.to_thread(server.wait_for_hang_ups, hung_up + 1)


@pytest.mark.parametrize("package", CLIENTS)
def test_what_is_left_is_the_time_out(server, package):
    module, made, _ = CLIENTS[package]
    server.release()
    sent = []
    hooks = {"request": [lambda request: sent.append(request.extensions["timeout"])]}
    with (
        module.DefaultHttpxClient(event_hooks=hooks) as http_client,
        made(base_url=server.url, api_key="k", http_client=http_client) as client,
        ravi_otel.run("r", limits=["time=20s"]),
    ):
        create(client)
    assert 0 < max(sent[0].values()) <= 20
