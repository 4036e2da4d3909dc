"""Play WebSocket sessions of the real client against a scripted server: what is told of them, counted and refused."""

from __future__ import annotations

from typing import Any

import pytest
from talking import CREATE, QUIET, SESSION, USER, Talk, answering, got, needs_live, needs_responses, play, spans, until

import ravi_otel
from ravi_otel._runtime.state import STATE, Options
from ravi_otel._runtime.stopping import drain
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._listeners import Listener
from ravi_otel.testing import Capture
from ravi_otel.testing._sockets import ScriptedSocket, realtime_events, responses_events

pytestmark = QUIET


def test_a_session_is_a_span_and_each_response_is_one(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.conversation.item.create(item=USER))
        for _ in range(2):
            await got(connection.response.create())
            await until(connection, "response.done")
        await got(connection.close())

    script = answering(realtime_events("One", response_id="resp_1"), realtime_events("Two", response_id="resp_2", usage=(300, 20)))
    with ScriptedSocket(script, greeting=[SESSION]) as server, ravi_otel.run("r") as run:
        play(clients, colour, server, program)
        first, second = spans(instrumented, "generate_content")
        (session,) = spans(instrumented, "realtime")
        assert (first.attributes["gen_ai.response.id"], second.attributes["gen_ai.response.id"]) == ("resp_1", "resp_2")
        assert (second.attributes["gen_ai.usage.input_tokens"], second.attributes["gen_ai.usage.output_tokens"]) == (300, 20)
        assert session.attributes["gen_ai.conversation.id"] == "sess_1"
        assert "gen_ai.response.id" not in session.attributes
        assert session.name == "realtime gpt-realtime"
        assert session.attributes["server.port"] == int(server.base_url.split(":")[2].partition("/")[0])
        assert (run.stats().requests, run.stats().turns, run.stats().total_tokens) == (2, 2, 520)


def test_audio_text_and_cached_tokens_are_told_apart(instrumented: Capture, clients: Any, colour: str) -> None:
    usage = {
        "input_tokens": 100,
        "output_tokens": 60,
        "input_token_details": {"audio_tokens": 70, "text_tokens": 30, "cached_tokens": 20, "cached_tokens_details": {"text_tokens": 20}},
        "output_token_details": {"audio_tokens": 50, "text_tokens": 10},
    }

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.send(CREATE))
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events(usage=usage))) as server:
        play(clients, colour, server, program)
    (span,) = spans(instrumented, "generate_content")
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 20
    assert span.attributes["gen_ai.usage.input_tokens"] == 100


def test_a_response_beyond_the_limit_is_refused_and_never_sent(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.response.create())
        await until(connection, "response.done")
        with pytest.raises(BudgetExhaustedError):
            await got(connection.response.create())
        with pytest.raises(BudgetExhaustedError):
            await got(connection.input_audio_buffer.append(audio="AAAA"))
        await got(connection.response.cancel())
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server, ravi_otel.run("r", limits=["requests=1"]) as run:
        play(clients, colour, server, program)
        sent = [message.event["type"] for message in server.wait_for(2)]
    assert sent == ["response.create", "response.cancel"]
    assert (run.stats().requests, run.stats().refused) == (1, 2)
    assert [span.attributes.get("error.type") for span in spans(instrumented, "generate_content")] == [None, "ravi.limit_exceeded"]


def test_what_the_server_begins_by_itself_is_charged_and_then_nothing_more_is_sent(
    instrumented: Capture, clients: Any, colour: str
) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.input_audio_buffer.append(audio="AAAA"))
        await got(connection.input_audio_buffer.commit())
        await until(connection, "response.done")
        with pytest.raises(BudgetExhaustedError):
            await got(connection.input_audio_buffer.append(audio="AAAA"))
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events(usage=(500, 600)))) as server, ravi_otel.run("r", limits=["tokens=1000"]) as run:
        play(clients, colour, server, program)
    assert (run.stats().requests, run.stats().total_tokens) == (1, 1100)
    assert run.limits[0].used == 1100
    assert len(spans(instrumented, "generate_content")) == 1


def test_a_transcription_is_charged_by_its_own_usage(instrumented: Capture, clients: Any, colour: str) -> None:
    usage = {"type": "tokens", "input_tokens": 40, "output_tokens": 5, "total_tokens": 45}
    told = {"type": "conversation.item.input_audio_transcription.completed", "event_id": "e", "item_id": "i", "content_index": 0}

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.input_audio_buffer.commit())
        await until(connection, told["type"])  # type: ignore[arg-type]  # a text
        await got(connection.close())

    with (
        ScriptedSocket(answering([{**told, "transcript": "hi", "usage": usage}])) as server,
        ravi_otel.run("r", limits=["tokens=1000"]) as run,
    ):
        play(clients, colour, server, program)
    assert (run.stats().requests, run.stats().total_tokens, run.limits[0].used) == (0, 45, 45)
    assert len(spans(instrumented, "audio.transcriptions")) == 1


@needs_responses
def test_the_responses_api_over_a_socket_is_a_chat_like_over_http(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        connection = await talk.responses()
        await got(connection.response.create(model="gpt-4o-mini", input="hello"))
        await until(connection, "response.completed")
        await got(connection.close())

    with ScriptedSocket(answering(responses_events())) as server, ravi_otel.run("r") as run:
        play(clients, colour, server, program)
    (span,) = spans(instrumented, "chat")
    assert (span.name, span.attributes["openai.api.type"]) == ("chat gpt-4o-mini", "responses")
    assert run.stats().total_tokens == 200
    assert len(spans(instrumented, "responses")) == 1


@needs_responses
def test_responses_in_several_lanes_at_once_are_told_apart(instrumented: Capture, clients: Any, colour: str) -> None:
    left = responses_events("Left side", response_id="resp_l", usage=(1, 2), lane="left")
    right = responses_events("Right side", response_id="resp_r", usage=(3, 4), lane="right")
    mixed = [event for pair in zip(right, left, strict=True) for event in pair]
    played = iter([[], mixed])

    async def program(talk: Talk) -> None:
        connection = await talk.responses()
        for lane, model in (("left", "gpt-4o"), ("right", "gpt-4o-mini")):
            await got(connection.send({**CREATE, "model": model, "input": "hello", "stream_id": lane}))
        await until(connection, "response.completed", 2)
        await got(connection.close())

    with ScriptedSocket(lambda _: next(played)) as server:
        play(clients, colour, server, program)
    told = {
        (span.attributes["gen_ai.request.model"], span.attributes["gen_ai.response.id"], span.attributes["gen_ai.usage.output_tokens"])
        for span in spans(instrumented, "chat")
    }
    assert told == {("gpt-4o", "resp_l", 2), ("gpt-4o-mini", "resp_r", 4)}


@needs_responses
def test_what_a_manager_queues_is_limited_before_it_is_entered(instrumented: Capture, clients: Any, colour: str) -> None:
    async def program(talk: Talk) -> None:
        manager = talk.client.realtime.connect(model="gpt-realtime")
        manager.send(CREATE)
        with pytest.raises(BudgetExhaustedError):
            manager.send(CREATE)
        connection = await got(manager.enter())
        await until(connection, "response.done")
        await got(connection.close())

    with ScriptedSocket(answering(realtime_events())) as server, ravi_otel.run("r", limits=["requests=1"]) as run:
        play(clients, colour, server, program)
        assert len(server.received) == 1
    assert (run.stats().requests, run.stats().total_tokens) == (1, 200)
    assert spans(instrumented, "generate_content")[-1].attributes["gen_ai.response.id"] == "resp_1"


def test_what_is_said_is_written_down_when_content_is_captured(
    instrumented: Capture, clients: Any, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Ear(Listener):
        def call_ended(self, record: Any) -> None:
            told.append((record.call.content, None if record.reply is None else record.reply.output))

    async def program(talk: Talk) -> None:
        connection = await talk.realtime()
        await got(connection.conversation.item.create(item=USER))
        await got(connection.response.create(response={"instructions": "be brief"}))
        await until(connection, "response.done")
        await got(connection.close())

    monkeypatch.setattr(STATE, "options", Options(content=True))
    STATE.engine.listeners.add(Ear())
    with ScriptedSocket(answering(realtime_events("Hi there"))) as server:
        play(clients, colour, server, program)
    asked, said = told[0]
    assert asked.system == [{"type": "text", "content": "be brief"}]
    assert asked.messages == [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    assert said == [{"role": "assistant", "parts": [{"type": "text", "content": "Hi there"}], "finish_reason": "stop"}]


@needs_live
def test_a_live_session_tells_its_backends_responses_its_decisions_and_its_time(instrumented: Capture, clients: Any, colour: str) -> None:
    def nested(events: list[Any]) -> list[Any]:
        return [{"type": "response.event", "event_id": "e", "delegation_id": "d", "event": event} for event in events]

    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    decision = {"type": "decision.completed", "decision": {"id": "dec_1", "model": "gpt-decide", "answers": [], "usage": usage}}
    answers = {
        "response.create": nested(responses_events("Hi you", response_id="resp_l", model="gpt-4o")),
        "decision.create": [{"type": "decision.event", "event_id": "e", "event": decision}],
        "session.close": [{"type": "session.closed", "event_id": "e", "reason": "close_requested", "usage": {"seconds": 2.5}}],
    }

    async def program(talk: Talk) -> None:
        connection = await got(talk.client.live.connect().enter())
        delegation = {"type": "responses", "responses": {"model": "gpt-4o"}}
        await got(connection.session.start(session={"model": "gpt-live-1", "delegation": delegation}))
        await got(connection.response.create())
        await until(connection, "response.event", 4)
        await got(connection.decision.create(event_id="mine"))
        await until(connection, "decision.event")
        await got(connection.session.close())
        await until(connection, "session.closed")
        await got(connection.close())

    with ScriptedSocket(lambda message: answers.get(str(message.event.get("type")), ())) as server, ravi_otel.run("r") as run:
        play(clients, colour, server, program)
    by_operation: dict[str, Any] = {str((span.attributes or {}).get("gen_ai.operation.name")): span for span in instrumented.spans()}
    assert by_operation["generate_content"].attributes["gen_ai.request.model"] == "gpt-4o"
    assert by_operation["generate_content"].attributes["gen_ai.response.id"] == "resp_l"
    assert by_operation["decision"].attributes["gen_ai.usage.output_tokens"] == 3
    assert run.stats().total_tokens == 210
    assert len([span for span in instrumented.spans() if (span.attributes or {}).get("gen_ai.operation.name") == "live"]) == 2


@needs_live
@pytest.mark.parametrize("room", ["realtime.translations", "live.sideband", "live.forks", "beta.responses"])
def test_every_other_connection_has_a_session_span_too(instrumented: Capture, clients: Any, colour: str, room: str) -> None:
    needed = {"realtime.translations": {"model": "gpt-translate"}, "live.sideband": {"session_id": "s"}, "live.forks": {"session_id": "s"}}

    async def program(talk: Talk) -> None:
        at = talk.client
        for name in room.split("."):
            at = getattr(at, name)
        connection = await got(at.connect(**needed.get(room, {})).enter())
        await got(connection.close())

    with ScriptedSocket() as server:
        play(clients, colour, server, program)
    drain()
    (span,) = instrumented.spans()
    dialect = {"live.sideband": "live", "live.forks": "live", "beta.responses": "responses"}.get(room, room)
    assert (span.attributes or {})["gen_ai.operation.name"] == dialect
