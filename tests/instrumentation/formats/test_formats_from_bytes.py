"""Each wire format reads the bytes of a request and of its answer, whole or streamed, without any client."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from ravi_otel._instrumentation.formats import anthropic, openai
from ravi_otel._instrumentation.formats.format import Host, Request, WireFormat, read_body, read_events
from ravi_otel._instrumentation.formats.sse import events_of
from ravi_otel.policy._usage import Asked, Call, Reply, ToolUse

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
HI = [{"role": "user", "content": "Hi"}]
CHAT_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
USAGE = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
HELLO = [{"type": "text", "content": "Hello"}]
SEARCH = [{"type": "tool_call", "id": "t1", "name": "search", "arguments": {"q": 1}}]

Body = dict[str, Any]


def host(provider: str) -> Host:
    return Host(provider, assumed=False, address="api.test", port=443)


@dataclass
class Case:
    """An API's path, a body to send there, what comes back, and what is read of both; `streamed` are the events of a stream."""

    path: str
    body: Body
    whole: Any = None
    streamed: list[Any] = field(default_factory=list[Any])
    operation: str = "chat"
    tokens: tuple[int, int] | None = (7, 2)
    says: list[Any] | None = None
    uses: tuple[ToolUse, ...] = ()
    reasons: tuple[str, ...] = ()
    provider: str = "openai"

    def find(self) -> WireFormat:
        return (anthropic if self.provider == "anthropic" else openai).format_for("POST", self.path, "", self.provider)


def chunk(delta: Body, reason: str | None = None, **more: Any) -> Body:
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def chat_call(name: str | None, arguments: str, call_id: str | None = None) -> Body:
    return {"tool_calls": [{"index": 0, "id": call_id, "function": {"name": name, "arguments": arguments}}]}


CHAT_STREAM: list[Body] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}),
    chunk({}, "stop"),
    {"id": "c1", "choices": [], "usage": CHAT_USAGE},
]
CASES = {
    "chat": Case(
        "/v1/chat/completions",
        {"model": "m", "messages": HI},
        {
            "id": "c1",
            "model": "m-1",
            "choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
            "usage": CHAT_USAGE,
        },
        CHAT_STREAM,
        says=HELLO,
        reasons=("stop",),
    ),
    "chat with a tool": Case(
        "/v1/chat/completions",
        {"model": "m", "messages": HI, "tools": [TOOL]},
        {
            "id": "c1",
            "choices": [
                {
                    "message": {
                        "content": None,
                        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}}],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": CHAT_USAGE,
        },
        [
            chunk(chat_call("search", "", "t1")),
            chunk(chat_call(None, '{"q"')),
            chunk(chat_call(None, ":1}")),
            chunk({}, "tool_calls", usage=CHAT_USAGE),
        ],
        says=SEARCH,
        uses=(ToolUse("t1", "search"),),
        reasons=("tool_calls",),
    ),
    "groq": Case(
        "/openai/v1/chat/completions",
        {"model": "m", "messages": HI},
        streamed=[*CHAT_STREAM[:3], chunk({}, "stop", x_groq={"usage": CHAT_USAGE})],
        says=HELLO,
        reasons=("stop",),
        provider="groq",
    ),
    "completions": Case(
        "/v1/completions",
        {"model": "m", "prompt": "Hi"},
        {"id": "c1", "choices": [{"text": "Hello", "finish_reason": "stop"}], "usage": CHAT_USAGE},
        [{"id": "c1", "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}], "usage": CHAT_USAGE}],
        operation="text_completion",
        reasons=("stop",),
    ),
    "responses": Case(
        "/v1/responses",
        {"model": "m", "input": "Hi"},
        {
            "id": "r1",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}],
            "usage": USAGE,
        },
        [
            {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"},
            {"type": "response.completed", "response": {"id": "r1", "status": "completed", "output": [], "usage": USAGE}},
        ],
        says=HELLO,
        reasons=("stop",),
    ),
    "responses with a tool": Case(
        "/v1/responses",
        {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "search"}]},
        {
            "id": "r1",
            "status": "completed",
            "output": [{"type": "function_call", "call_id": "t1", "name": "search", "arguments": '{"q":1}'}],
            "usage": USAGE,
        },
        [
            {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"q":1}'},
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {"type": "function_call", "call_id": "t1", "name": "search", "arguments": '{"q":1}'},
            },
            {"type": "response.completed", "response": {"id": "r1", "status": "completed", "usage": USAGE}},
        ],
        says=SEARCH,
        uses=(ToolUse("t1", "search"),),
    ),
    "messages": Case(
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": HI},
        {
            "id": "m1",
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 2},
        },
        [
            {"type": "message_start", "message": {"id": "m1", "model": "m-1", "usage": {"input_tokens": 7, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        ],
        says=HELLO,
        reasons=("stop",),
        provider="anthropic",
    ),
    "messages with a tool": Case(
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": HI, "tools": [{"name": "search", "input_schema": {}}]},
        {
            "id": "m1",
            "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {"q": 1}}],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 2},
        },
        [
            {
                "type": "message_start",
                "message": {"id": "m1", "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}},
            },
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t1", "name": "search", "input": {}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"q":1}'}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
        ],
        says=SEARCH,
        uses=(ToolUse("t1", "search"),),
        reasons=("tool_calls",),
        provider="anthropic",
    ),
    "embeddings": Case(
        "/v1/embeddings",
        {"model": "m", "input": "Hi"},
        {"model": "m", "data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}},
        operation="embeddings",
        tokens=(7, 0),
    ),
    "moderations": Case("/v1/moderations", {"input": "Hi"}, {"id": "m1", "results": [{}]}, operation="moderations", tokens=None),
    "images": Case(
        "/v1/images/generations",
        {"model": "m", "prompt": "a cat", "size": "1024x1024"},
        {"data": [{"b64_json": "AAAA"}], "output_format": "png", "usage": USAGE},
        [
            {"type": "image_generation.partial_image", "b64_json": "AA"},
            {"type": "image_generation.completed", "b64_json": "AAAA", "output_format": "png", "usage": USAGE},
        ],
        operation="images.generations",
        says=[{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"}],
    ),
    "speech": Case(
        "/v1/audio/speech",
        {"model": "m", "input": "Hi", "voice": "alloy", "stream_format": "sse"},
        streamed=[{"type": "speech.audio.delta", "audio": "AAAA"}, {"type": "speech.audio.done", "usage": USAGE}],
        operation="audio.speech",
    ),
    "transcriptions": Case(
        "/v1/audio/transcriptions",
        {"model": "m"},
        {"text": "Hello", "usage": {"type": "tokens", **USAGE}},
        [{"type": "transcript.text.delta", "delta": "Hello"}, {"type": "transcript.text.done", "text": "Hello", "usage": USAGE}],
        operation="audio.transcriptions",
        says=HELLO,
    ),
    "videos": Case("/v1/videos", {"model": "m", "prompt": "a cat"}, {"id": "v1", "status": "queued"}, operation="videos", tokens=None),
    "a path nobody knows": Case(
        "/v1/rerank",
        {"model": "m", "query": "Hi"},
        {"model": "m-1", "usage": CHAT_USAGE},
        [{"usage": USAGE}],
        operation="request",
    ),
    "another path of Anthropic's": Case(
        "/v1/complete", {"model": "m", "prompt": "Hi"}, {"usage": USAGE}, operation="request", provider="anthropic"
    ),
    "a batch": Case("/v1/batches", {"endpoint": "/v1/chat/completions"}, {"id": "b1", "usage": None}, operation="batches", tokens=None),
}


def described(case: Case, *, stream: bool) -> tuple[WireFormat, Call]:
    """Read the request from its bytes, as with content captured."""
    wire_format = case.find()
    request = Request("POST", case.path, json.loads(json.dumps(case.body)), host(case.provider), stream)
    call = wire_format.call(request)
    call.content = wire_format.asked(request) or Asked()
    return wire_format, call


def check(case: Case, call: Call, reply: Reply) -> None:
    used = reply.usage
    assert call.operation == case.operation
    assert (None if used is None else (used.input_tokens, used.output_tokens, used.source)) == (
        None if case.tokens is None else (*case.tokens, "reported")
    )
    if case.says is not None:
        assert [message["parts"] for message in reply.output or ()] == [case.says]
    assert reply.tool_uses == case.uses
    assert reply.finish_reasons == case.reasons or not case.reasons


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.whole], ids=[name for name, case in CASES.items() if case.whole])
def test_an_answer_is_read_from_its_bytes(case: Case) -> None:
    wire_format, call = described(case, stream=False)
    check(case, call, read_body(wire_format, json.dumps(case.whole).encode, call))


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.streamed], ids=[n for n, case in CASES.items() if case.streamed])
def test_a_stream_is_read_from_its_bytes(case: Case) -> None:
    wire_format, call = described(case, stream=True)
    collector = wire_format.collector(call)
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in case.streamed)
    for event in events_of(data + b"data: [DONE]\n\n"):
        collector.add(event)
    assert collector.complete
    assert collector.spoke
    check(case, call, read_events(collector, call))


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("lie", [None, 3, "text", [], [None], {"usage": 4, "choices": 1, "output": [3], "content": [None], "data": "x"}])
def test_nonsense_is_unknown_and_never_raises(case: Case, lie: Any) -> None:
    wire_format, call = described(case, stream=True)
    collector = wire_format.collector(call)
    collector.add(lie)
    for reply in (read_body(wire_format, json.dumps(lie).encode, call), read_events(collector, call)):
        assert reply.usage is None or reply.usage.source == "estimated"


def test_the_thoughts_of_a_stream_of_groq_that_tells_no_usage_count_once() -> None:
    wire_format, call = described(CASES["groq"], stream=True)
    collector = wire_format.collector(call)
    for _ in range(10):
        collector.add(chunk({"reasoning": "some words which are tokens "}))
    assert collector.produced == 70


def test_a_name_that_a_host_repeats_with_each_piece_is_captured_once() -> None:
    wire_format, call = described(CASES["chat with a tool"], stream=True)
    collector = wire_format.collector(call)
    for piece in ('{"q"', ":1}"):
        collector.add(chunk(chat_call("search", piece, "t1")))
    assert [message["parts"] for message in collector.reply().output or ()] == [SEARCH]
