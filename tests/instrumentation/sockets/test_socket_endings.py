"""End responses and connections over sockets in every way there is: each is told once, and nothing stays held."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest
from talking import CREATE, QUIET, SESSION, Talk, answering, got, needs_responses, play, spans, until

import ravi_otel
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import Close, ScriptedSocket, realtime_events

pytestmark = QUIET


@pytest.mark.parametrize("status", ["failed", "cancelled", "incomplete"])
def test_a_response_that_did_not_complete_says_so(instrumented: Capture, clients: Any, colour: str, status: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events(status=status))) as server:
        play(clients, colour, server, program)
    (span,) = spans(instrumented, "generate_content")
    expected = {"failed": (("error",), "response_failed"), "cancelled": (("cancelled",), None), "incomplete": (("length",), None)}
    assert (span.attributes["gen_ai.response.finish_reasons"], span.attributes.get("error.type")) == expected[status]


@pytest.mark.parametrize("end", [Close(1000), Close(1011, "broken"), Close(abort=True)], ids=["well", "badly", "cut"])
def test_a_connection_lost_in_between_ends_everything_once(instrumented: Capture, clients: Any, colour: str, end: Close) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        with pytest.raises(Exception, match=r"close|received"):
            await until(connection, "response.done")
        with suppress(Exception):
            await got(connection.close())

    with (
        ScriptedSocket(answering([*realtime_events("One two three")[:3], end])) as server,
        ravi_otel.run("r", limits=["tokens=9000"]) as run,
    ):
        play(clients, colour, server, program)
    (span,) = spans(instrumented, "generate_content")
    assert len(spans(instrumented, "realtime")) == 1
    assert span.attributes["error.type"].startswith("ConnectionClosed")
    assert span.attributes["ravi.usage.source"] == "estimated"
    assert run.limits[0].held == 0
    assert 0 < run.limits[0].used < 100


def test_a_connection_that_is_dropped_ends_by_itself(instrumented: Capture, clients: Any) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        connection._connection.close()

    with ScriptedSocket() as server, ravi_otel.run("r", limits=["tokens=9000"]) as run:
        play(clients, "sync", server, program)
        gc.collect()
        drain()
    assert [span.attributes["error.type"] for span in spans(instrumented, "realtime")] == ["abandoned"]
    assert len(spans(instrumented, "generate_content")) == 1
    assert run.limits[0].held == 0


def test_a_refused_connection_is_a_failed_session(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        with pytest.raises(Exception, match="401"):
            await talk.realtime()

    with ScriptedSocket(refuse=401) as server:
        play(clients, colour, server, program)
    (span,) = spans(instrumented, "realtime")
    assert span.attributes["error.type"] == "InvalidStatus"


def test_an_error_that_names_a_message_ends_its_response_unbilled(instrumented: Capture, clients: Any, colour: str) -> None:
    error = {
        "type": "error",
        "event_id": "e",
        "error": {"type": "invalid_request_error", "code": "bad", "message": "no", "event_id": "mine"},
    }

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.send({**CREATE, "event_id": "mine"}))
        await until(connection, "error")
        await got(connection.close())

    with ScriptedSocket(answering([error])) as server, ravi_otel.run("r", limits=["tokens=9000"]) as run:
        play(clients, colour, server, program)
    assert [span.attributes["error.type"] for span in spans(instrumented, "generate_content")] == ["bad"]
    assert (run.stats().total_tokens, run.limits[0].held, run.limits[0].used) == (0, 0, 0)


@needs_responses
def test_a_session_goes_on_when_the_client_connects_again(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        room = talk.client.realtime
        connection = await got(room.connect(model="gpt-realtime", on_reconnecting=lambda _: None, initial_delay=0.001).enter())
        await got(connection.response.create())
        if colour == "sync":
            for event in connection:
                if event.type == "session.created" and getattr(connection, "seen", False):
                    break
                connection.seen = True
        else:
            async for event in connection:
                if event.type == "session.created" and getattr(connection, "seen", False):
                    break
                connection.seen = True
        await got(connection.response.create())
        await until(connection, "response.done")
        await got(connection.close())

    script = answering([realtime_events("One two")[0], Close(1012)], realtime_events("Again", response_id="resp_2"))
    with ScriptedSocket(script, greeting=[SESSION]) as server, ravi_otel.run("r", limits=["tokens=9000"]) as run:
        play(clients, colour, server, program)
    assert [span.attributes.get("error.type") for span in spans(instrumented, "generate_content")] == ["ConnectionClosedError", None]
    assert [span.attributes.get("error.type") for span in spans(instrumented, "realtime")] == [None]
    assert run.limits[0].held == 0


def test_a_receive_that_is_cancelled_loses_nothing(instrumented: Capture, clients: Any) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.recv(), 0.01)
        await connection.response.create()
        await until(connection, "response.done")
        await connection.close()

    with ScriptedSocket(answering(realtime_events())) as server:
        play(clients, "async", server, program)
    (span,) = spans(instrumented, "generate_content")
    assert span.attributes["gen_ai.usage.output_tokens"] == 80
