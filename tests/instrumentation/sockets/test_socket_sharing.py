"""Leave open sessions to the process and to the program they belong to: forks, dropped coroutines, errors of the program's own."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from talking import HAS_RESPONSES, QUIET, Talk, answering, got, play, spans, until

import ravi_otel
from ravi_otel._instrumentation.socket_seam import abandon_sessions
from ravi_otel._instrumentation.streams import LONGEST_IDLE_NS, OPEN, abandon_open
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import drain
from ravi_otel.testing import Capture, ManualClock, Text
from ravi_otel.testing._sockets import ScriptedSocket, realtime_events

pytestmark = QUIET


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_forked_child_leaves_a_session_to_its_parent(instrumented: Capture, clients: Any) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        assert len(OPEN) == 1
        pid = os.fork()
        if pid == 0:
            told = len(OPEN)
            abandon_open()
            ravi_otel.flush()
            os._exit(told + len(spans(instrumented, "realtime")))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # noqa: ASYNC222 - a blocking program, written like one that awaits
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server, ravi_otel.run("r", limits=["tokens=9000"]) as run:
        play(clients, "sync", server, program)
    assert [span.attributes.get("error.type") for span in spans(instrumented, "realtime")] == [None]
    assert (run.stats().total_tokens, run.limits[0].held) == (200, 0)


def test_a_close_that_is_dropped_half_way_ends_the_session_later(instrumented: Capture, clients: Any) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await connection.response.create()
        closing = connection.close()
        closing.send(None)
        closing.close()
        assert [span for span in instrumented.spans() if (span.attributes or {}).get("gen_ai.operation.name") == "realtime"] == []
        assert len(spans(instrumented, "realtime")) == 1
        connection._connection.transport.abort()

    with ScriptedSocket() as server, ravi_otel.run("r", limits=["tokens=9000"]) as run:
        play(clients, "async", server, program)
    assert [span.attributes["error.type"] for span in spans(instrumented, "realtime")] == ["abandoned"]
    assert run.limits[0].held == 0


def test_an_error_of_the_programs_own_is_no_failure_of_the_session(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        room = talk.client.realtime if HAS_RESPONSES else talk.client.beta.realtime
        manager = room.connect(model="gpt-realtime")
        if colour == "sync":
            with manager as connection:
                connection.response.create()
                raise KeyError("mine")
        async with manager as connection:
            await connection.response.create()
            raise KeyError("mine")

    with ScriptedSocket() as server, ravi_otel.run("r", limits=["tokens=9000"]) as run, pytest.raises(KeyError, match="mine"):
        play(clients, colour, server, program)
    assert [span.attributes.get("error.type") for span in spans(instrumented, "realtime")] == [None]
    assert [span.attributes.get("error.type") for span in spans(instrumented, "generate_content")] == ["abandoned"]
    assert run.limits[0].held == 0


def test_a_session_that_is_silent_for_long_is_not_given_up(capture: Capture, clients: Any) -> None:
    clock = ManualClock()

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        clock.advance(3 * LONGEST_IDLE_NS / 1_000_000_000)
        drain()
        assert spans(capture, "realtime") == []
        await got(connection.close())

    with ScriptedSocket() as server, ravi_otel.instrument(tracer_provider=capture.tracer_provider), ravi_otel.run("r"):
        STATE.engine.clock = clock
        play(clients, "sync", server, program)
    assert [span.attributes.get("error.type") for span in spans(capture, "realtime")] == [None]


def test_taking_the_wrappers_off_ends_sessions_and_no_stream(instrumented: Capture, clients: Any, stage: Any) -> None:
    chat = clients.make("sync", stage.play(Text("one two three")))
    stream = chat.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Hi"}], stream=True)

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        abandon_sessions()
        assert len(spans(instrumented, "realtime")) == 1
        await got(connection.close())

    with ScriptedSocket() as server:
        play(clients, "sync", server, program)
    assert spans(instrumented, "chat") == []
    stream.close()
    assert len(spans(instrumented, "chat")) == 1
    assert len(spans(instrumented, "realtime")) == 1
