"""What is said over a connection is read from the bytes of its events alone, without any client."""

from __future__ import annotations

import json
from typing import Any

from ravi_otel._instrumentation.formats.format import Host
from ravi_otel._instrumentation.formats.realtime import LIVE, REALTIME, RESPONSES, Conversation, dialect_of

HOST = Host("openai", assumed=False, address="api.openai.com", port=443, base="/v1/")
SENT = [
    (
        b'{"type": "session.update", "session": {"type": "realtime", "instructions": "Be short.", "max_output_tokens": 400,'
        b' "audio": {"input": {"transcription": {"model": "gpt-4o-transcribe"}}}}}'
    ),
    (
        b'{"type": "conversation.item.create", "item": {"type": "message", "role": "user",'
        b' "content": [{"type": "input_text", "text": "What is the weather like?"}]}}'
    ),
    b'{"type": "input_audio_buffer.append", "audio": "' + b"A" * 64_000 + b'"}',
]
ASKS = b'{"type": "response.create", "event_id": "e1"}'
ANSWER = [
    b'{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}',
    b'{"type": "response.output_text.delta", "response_id": "resp_1", "delta": "It is "}',
    b'{"type": "response.output_text.delta", "response_id": "resp_1", "delta": "sunny."}',
]
DONE = (
    b'{"type": "response.done", "response": {"id": "resp_1", "status": "completed", "conversation_id": "conv_1",'
    b' "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is sunny."}]}],'
    b' "usage": {"total_tokens": 62, "input_tokens": 50, "output_tokens": 12, "input_token_details": {"audio_tokens": 20,'
    b' "cached_tokens": 10}, "output_token_details": {"audio_tokens": 4}}}}'
)


def conversation(*, captured: bool = False) -> Conversation:
    told = Conversation(REALTIME, HOST, "gpt-realtime", captured)
    for message in SENT:
        event: dict[str, Any] = json.loads(message)
        told.sent(event["type"], event)
    return told


def test_a_response_is_described_by_what_was_said_before() -> None:
    call = conversation().call(json.loads(ASKS))
    assert (call.operation, call.endpoint, call.provider, call.model) == ("generate_content", "realtime", "openai", "gpt-realtime")
    assert (call.stream, call.output_cap, call.server_address) == (True, 400, "api.openai.com")
    assert 20 < call.input_estimate < 60  # instructions and words, and a second of sound
    assert call.content is None


def test_what_the_provider_tells_at_the_end_is_read() -> None:
    told = conversation(captured=True)
    call = told.call(json.loads(ASKS))
    collector = told.collector(call)
    for event in (*ANSWER, DONE):
        collector.add(json.loads(event))
    reply = collector.reply()
    assert (reply.id, reply.conversation_id, reply.finish_reasons, collector.complete) == ("resp_1", "conv_1", ("stop",), True)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.source) == (50, 12, "reported")
    assert (reply.usage.audio_input_tokens, reply.usage.cached_input_tokens, reply.usage.audio_output_tokens) == (20, 10, 4)
    assert call.content is not None
    assert "What is the weather like?" in str(call.content)
    assert "It is sunny." in str(reply.output)


def test_one_that_is_cut_off_is_estimated_by_what_came() -> None:
    told = conversation()
    collector = told.collector(told.call(json.loads(ASKS)))
    for event in ANSWER:
        collector.add(json.loads(event))
    reply = collector.reply()
    assert (collector.spoke, collector.complete) == (True, False)
    assert reply.usage is not None
    assert (reply.usage.source, reply.usage.output_tokens) == ("estimated", 3)


def test_responses_over_a_connection_are_read_like_those_over_http() -> None:
    told = Conversation(RESPONSES, HOST, None)
    call = told.call({"type": "response.create", "model": "gpt-4o-mini", "input": "hi", "max_output_tokens": 99})
    assert (call.endpoint, call.model, call.output_cap) == ("responses", "gpt-4o-mini", 99)
    collector = told.collector(call)
    done = {"id": "r", "model": "gpt-4o-mini", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
    collector.add({"type": "response.completed", "response": done})
    usage = collector.reply().usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (3, 2)


def test_a_module_says_which_protocol_its_connections_speak() -> None:
    names = ("realtime.realtime", "beta.realtime.realtime", "responses.responses", "live.live", "realtime.translations.translations")
    assert [dialect_of(f"openai.resources.{name}") for name in names] == [
        *(REALTIME, REALTIME, RESPONSES, LIVE, "realtime.translations"),
    ]
