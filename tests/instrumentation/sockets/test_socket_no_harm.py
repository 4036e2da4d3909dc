"""Show that a program sees the same connection, events and errors with us and without us."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import pytest
from talking import CREATE, QUIET, Talk, answering, got, manager_class, play, spans, until

import ravi_otel
from ravi_otel._instrumentation.client_packages import SOCKETS
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import ScriptedSocket, realtime_events

pytestmark = QUIET


def test_the_identical_methods_are_put_back(clients: Any) -> None:
    kinds = [manager_class(colour) for colour in ("sync", "async")]
    module = sys.modules[kinds[0].__module__]
    kinds += [module.RealtimeConnection, module.AsyncRealtimeConnection]
    kinds += [base for kind in kinds for base in kind.__mro__[1:-1]]
    before = [dict(vars(kind)) for kind in kinds]
    for module in SOCKETS:
        module.install()
    assert any(vars(kind)[name] is not value for kind, names in zip(kinds, before, strict=True) for name, value in names.items())
    for module in SOCKETS:
        module.remove()
    assert all(vars(kind)[name] is value for kind, names in zip(kinds, before, strict=True) for name, value in names.items())


HOSTILE: list[Any] = [
    *("not JSON", b"\xff\xfe", "[]", "null", '"text"', "1e999", "[" * 3000, "{}"),
    *({"type": 7}, {"type": None}, {"type": "no.such.event", "x": [1]}, {"type": "response.created"}, {"type": "response.done"}),
    *({"type": "response.created", "response": "text"}, {"type": "response.done", "response": {"id": 7, "usage": []}}),
    {
        "type": "response.done",
        "response": {"id": "x", "status": "completed", "output": [None, 7, {"type": []}], "usage": {"input_tokens": float("nan")}},
    },
    {"type": "response.done", "response": {"id": "y", "status": 7, "output": {}, "usage": {"input_tokens": -1, "output_tokens": 10**40}}},
    {"type": "response.output_text.delta", "delta": {"a": 1}},
    {"type": "response.output_audio.delta", "response_id": "nobody", "delta": "AAAA"},
    *({"type": "error"}, {"type": "error", "error": 7}, {"type": "error", "error": {"event_id": [], "code": {}}}),
    {"type": "conversation.item.input_audio_transcription.completed", "usage": {"seconds": float("inf")}},
    {"type": "conversation.item.input_audio_transcription.completed"},
    *({"type": "session.updated", "session": []}, {"type": "session.updated", "session": {"id": 9, "model": {}, "audio": 7}}),
    *({"type": "session.usage.updated", "usage": {"seconds": "x"}}, {"type": "decision.event"}, {"type": "response.event", "event": 4}),
    {"type": "decision.event", "event": {"decision": {"answers": 7, "usage": {"input_tokens": "many"}}}},
]


def _frames(talk: Talk, raw: bool) -> Any:
    async def heard() -> list[Any]:
        connection = await talk.realtime()
        seen: list[Any] = []
        await got(connection.send(CREATE))
        for _ in HOSTILE:
            try:
                event = await got(connection.recv_bytes() if raw else connection.recv())
            except (ValueError, RecursionError) as error:
                event = error
            seen.append((type(event), event if isinstance(event, bytes) else repr(event)))
        with suppress(TypeError):
            await got(connection.send(object()))
        await got(connection.close())
        return seen

    return heard()


@pytest.mark.parametrize("raw", [True, False], ids=["bytes", "events"])
def test_hostile_events_reach_the_program_as_they_are(request: pytest.FixtureRequest, clients: Any, colour: str, raw: bool) -> None:
    with ScriptedSocket(answering(HOSTILE)) as server:
        plain = play(clients, colour, server, lambda talk: _frames(talk, raw))
        request.getfixturevalue("instrumented")
        with ravi_otel.run("r", limits=["tokens=100000", "requests=100"]):
            assert play(clients, colour, server, lambda talk: _frames(talk, raw)) == plain
        sent = [message.raw for message in server.received]
    assert sent[: len(sent) // 2] == sent[len(sent) // 2 :]


def test_the_context_is_the_programs_own_while_a_session_is_open(instrumented: Capture, clients: Any, colour: str) -> None:
    from opentelemetry import trace

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        assert not trace.get_current_span().is_recording()
        await got(connection.response.create())
        assert not trace.get_current_span().is_recording()
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server:
        play(clients, colour, server, program)
    assert json.loads(server.received[0].raw) == CREATE


def test_a_client_that_is_not_watched_is_left_alone(capture: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        await until(connection, "response.done")
        await got(connection.close())

    other = clients.make(colour, "http://127.0.0.1:9/v1", http_client=None)
    with (
        ScriptedSocket(answering(realtime_events())) as server,
        ravi_otel.instrument(client=other, tracer_provider=capture.tracer_provider),
    ):
        play(clients, colour, server, program)
    assert spans(capture, "realtime") == []
