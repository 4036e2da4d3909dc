"""Each dialect beside OpenAI's and Anthropic's is read from the bytes of a request, an answer and a stream, without a client."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._instrumentation.formats.dialects import Dialect, format_for_request
from ravi_otel._instrumentation.formats.format import Host, Request, WireFormat, read_body, read_events
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Call, Reply, ToolUse, Usage
from ravi_otel.testing._wire.payload import aws_event

Body = dict[str, Any]
HELLO = [{"type": "text", "content": "Hello"}]
THOUGHT = {"type": "reasoning", "content": "Hm."}
SEARCH = [{"type": "tool_call", "id": "t1", "name": "search", "arguments": {"q": 1}}]
SEARCH_USE = (ToolUse("t1", "search"),)
DATA = "QUJD"


@dataclass
class Case:
    """A request's dialect, path and body, what comes back, whole and as a stream, and what is read of each."""

    dialect: Dialect
    path: str
    body: Body
    whole: Body
    events: list[Body] = field(default_factory=list[Body])
    stream_path: str | None = None
    framing: Framing = Framing.SSE
    model: str | None = "m-1"
    operation: str = "chat"
    usage: Usage | None = field(default_factory=lambda: Usage(7, 2))
    says: list[Any] | None = None
    uses: tuple[ToolUse, ...] = ()
    reasons: tuple[str, ...] = ()
    cap: int | None = None
    capped: Body = field(default_factory=dict[str, Any])
    results: tuple[str | None, ...] = ()

    def request(self, *, stream: bool = False) -> tuple[WireFormat, Request]:
        path = self.stream_path or self.path if stream else self.path
        body: Body = json.loads(json.dumps(self.body))
        if stream and self.stream_path is None:
            body["stream"] = True
        elif self.dialect == "ollama":
            body["stream"] = False
        wire_format = format_for_request(self.dialect, "POST", path, body)
        assert wire_format is not None
        return wire_format, Request("POST", path, body, Host("x", assumed=False, address="h", port=443), stream)

    def written(self) -> bytes:
        match self.framing:
            case Framing.SSE:
                return b"".join(b"event: e\ndata: " + json.dumps(one).encode() + b"\n\n" for one in self.events)
            case Framing.NDJSON:
                return b"".join(json.dumps(one).encode() + b"\n" for one in self.events)
            case Framing.JSON_ARRAY:
                return json.dumps(self.events).encode()
            case Framing.EVENT_STREAM:
                return b"".join(aws_event(name, told) for one in self.events for name, told in one.items())


def chunks(events: list[Body]) -> list[Body]:
    """Write events as InvokeModelWithResponseStream does: each inside another, in base 64."""
    return [{"chunk": {"bytes": base64.b64encode(json.dumps(one).encode()).decode()}} for one in events]


METRICS = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 7, "outputTokenCount": 2}}

GOOGLE = "/v1beta/models/m-1:generateContent"
GOOGLE_BODY: Body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": {"maxOutputTokens": 50, "topP": 0.5}}
GOOGLE_USAGE = {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9}
GOOGLE_FULL: Body = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "toolUsePromptTokenCount": 5,
    "totalTokenCount": 155,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 60},
        {"modality": "AUDIO", "tokenCount": 30},
        {"modality": "IMAGE", "tokenCount": 10},
    ],
    "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 36}, {"modality": "IMAGE", "tokenCount": 4}],
}
GOOGLE_TOOLS: Body = {
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "t0", "name": "search", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "t0", "name": "search", "response": {"result": 1}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "search", "parameters": {"type": "OBJECT"}}]}],
}


def candidate(*parts: Body, reason: str | None = None, **more: Any) -> Body:
    told: Body = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {
        "candidates": [told if reason is None else {**told, "finishReason": reason}],
        "responseId": "r1",
        "modelVersion": "m-1-001",
        **more,
    }


CONVERSE_BODY: Body = {
    "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
    "system": [{"text": "Be brief."}],
    "inferenceConfig": {"maxTokens": 50, "topP": 0.5},
}
CONVERSE_USAGE: Body = {
    "inputTokens": 7,
    "outputTokens": 2,
    "totalTokens": 15,
    "cacheReadInputTokens": 4,
    "cacheWriteInputTokens": 2,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 2}],
}
CONVERSE_COUNTED = Usage(13, 2, cached_input_tokens=4, cache_write_tokens=2, cache_write_1h_tokens=2)
CONVERSE_TOOLS: Body = {
    "messages": [
        {"role": "user", "content": [{"text": "Hi"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t0", "name": "search", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t0", "content": [{"json": {"a": 1}}]}}]},
    ],
    "toolConfig": {"tools": [{"toolSpec": {"name": "search", "inputSchema": {"json": {"type": "object"}}}}]},
}
CONVERSE_EVENTS: list[Body] = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockDelta": {"delta": {"reasoningContent": {"text": "Hm."}}, "contentBlockIndex": 0}},
    {"contentBlockStop": {"contentBlockIndex": 0}},
    {"contentBlockDelta": {"delta": {"text": "Hel"}, "contentBlockIndex": 1}},
    {"contentBlockDelta": {"delta": {"text": "lo"}, "contentBlockIndex": 1}},
    {"contentBlockStop": {"contentBlockIndex": 1}},
    {"messageStop": {"stopReason": "end_turn"}},
    {"metadata": {"usage": CONVERSE_USAGE, "metrics": {"latencyMs": 1}}},
]
CLAUDE_EVENTS: list[Body] = [
    {"type": "message_start", "message": {"id": "m1", "model": "claude", "usage": {"input_tokens": 7, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop", **METRICS},
]
CLAUDE_WHOLE: Body = {
    "id": "m1",
    "model": "claude",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
CLAUDE_BODY: Body = {"anthropic_version": "x", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
CHAT_WHOLE: Body = {
    "id": "c1",
    "model": "m-1",
    "choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
}
CHAT_EVENTS: list[Body] = [
    {"id": "c1", "model": "m-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
]
MESSAGES: list[Body] = [{"role": "user", "content": "Hi"}]
COHERE_USAGE: Body = {"billed_units": {"input_tokens": 7, "output_tokens": 2}, "tokens": {"input_tokens": 70, "output_tokens": 2}}
INVOKE, INVOKE_STREAM = "/model/m-1/invoke", "/model/m-1/invoke-with-response-stream"
OLLAMA_LAST: Body = {"model": "m-1", "done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 2}
OPEN_TOOL: Body = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def invoked(body: Body, whole: Body, events: list[Body], **more: Any) -> Case:
    """A greeting of a model on Bedrock, in the words of its family."""
    said: Any = {"says": HELLO, "reasons": ("stop",), "cap": 50, **more}
    return Case("bedrock", INVOKE, body, whole, events, INVOKE_STREAM, Framing.EVENT_STREAM, **said)


CASES: Mapping[str, Case] = {
    "google": Case(
        "google",
        GOOGLE,
        GOOGLE_BODY,
        candidate({"text": "Hm.", "thought": True}, {"text": "Hello"}, reason="STOP", usageMetadata=GOOGLE_USAGE),
        [
            candidate({"text": "Hm.", "thought": True}, usageMetadata={"promptTokenCount": 7, "totalTokenCount": 7}),
            candidate({"text": "Hel"}, usageMetadata={"promptTokenCount": 7, "candidatesTokenCount": 1, "totalTokenCount": 8}),
            candidate({"text": "lo"}, reason="STOP", usageMetadata=GOOGLE_USAGE),
        ],
        "/v1beta/models/m-1:streamGenerateContent?alt=sse",
        operation="generate_content",
        says=[THOUGHT, *HELLO],
        reasons=("stop",),
        cap=50,
        capped={"generationConfig": {"maxOutputTokens": 9, "topP": 0.5}},
    ),
    "google as an array, on Vertex AI": Case(
        "google",
        "/v1/projects/p/locations/l/publishers/google/models/m-1:generateContent",
        GOOGLE_TOOLS,
        candidate({"functionCall": {"id": "t1", "name": "search", "args": {"q": 1}}}, reason="STOP", usageMetadata=GOOGLE_FULL),
        [
            candidate({"functionCall": {"id": "t1", "name": "search", "args": {"q": 1}}}),
            candidate({"text": ""}, reason="STOP", usageMetadata=GOOGLE_FULL),
        ],
        "/v1/projects/p/locations/l/publishers/google/models/m-1:streamGenerateContent",
        Framing.JSON_ARRAY,
        operation="generate_content",
        usage=Usage(
            105, 50, cached_input_tokens=40, reasoning_tokens=30, audio_input_tokens=30, image_input_tokens=10, cached_image_tokens=4
        ),
        says=SEARCH,
        uses=SEARCH_USE,
        reasons=("stop",),
        capped={"generationConfig": {"maxOutputTokens": 9}},
        results=("t0",),
    ),
    "google without what it blocked": Case(
        "google",
        GOOGLE,
        {"contents": "Hi", "generation_config": {"max_output_tokens": 50}},
        {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7}},
        operation="generate_content",
        usage=Usage(7, 0),
        reasons=("content_filter",),
        cap=50,
        capped={"generation_config": {"max_output_tokens": 9}},
    ),
    "google's embeddings": Case(
        "google",
        "/v1beta/models/m-1:batchEmbedContents",
        {"requests": [{"model": "models/m-1", "content": {"parts": [{"text": "Hi"}]}}]},
        {"embeddings": [{"values": [1.0], "statistics": {"tokenCount": 7}}]},
        operation="embeddings",
        usage=Usage(7),
    ),
    "Vertex AI's embeddings": Case(
        "google",
        "/v1/projects/p/locations/l/publishers/google/models/text-embedding-1:predict",
        {"instances": [{"content": "Hi"}, {"content": "Ho"}]},
        {"predictions": [{"embeddings": {"statistics": {"token_count": 3}}}, {"embeddings": {"statistics": {"token_count": 4}}}]},
        model="text-embedding-1",
        operation="embeddings",
        usage=Usage(7),
    ),
    "Claude on Vertex AI": Case(
        "google",
        "/v1/projects/p/locations/l/publishers/anthropic/models/m-1:rawPredict",
        CLAUDE_BODY,
        CLAUDE_WHOLE,
        CLAUDE_EVENTS,
        "/v1/projects/p/locations/l/publishers/anthropic/models/m-1:streamRawPredict",
        says=HELLO,
        reasons=("stop",),
        cap=50,
        capped={"max_tokens": 9},
    ),
    "Mistral on Vertex AI": Case(
        "google",
        "/v1/projects/p/locations/l/publishers/mistralai/models/m-1:rawPredict",
        {"model": "other", "messages": MESSAGES, "max_tokens": 50},
        CHAT_WHOLE,
        CHAT_EVENTS,
        "/v1/projects/p/locations/l/publishers/mistralai/models/m-1:streamRawPredict",
        says=HELLO,
        reasons=("stop",),
        cap=50,
        capped={"max_tokens": 9},
    ),
    "Converse": Case(
        "bedrock",
        "/model/m-1/converse",
        CONVERSE_BODY,
        {
            "output": {
                "message": {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Hello"}]}
            },
            "stopReason": "end_turn",
            "usage": CONVERSE_USAGE,
        },
        CONVERSE_EVENTS,
        "/model/m-1/converse-stream",
        Framing.EVENT_STREAM,
        usage=CONVERSE_COUNTED,
        says=[THOUGHT, *HELLO],
        reasons=("stop",),
        cap=50,
        capped={"inferenceConfig": {"maxTokens": 9, "topP": 0.5}},
    ),
    "Converse with tools, by an ARN": Case(
        "bedrock",
        "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.M-1/converse",
        CONVERSE_TOOLS,
        {
            "output": {
                "message": {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "search", "input": {"q": 1}}}]}
            },
            "stopReason": "tool_use",
            "usage": CONVERSE_USAGE,
        },
        [
            {"messageStart": {"role": "assistant"}},
            {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "search"}}, "contentBlockIndex": 0}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"q"'}}, "contentBlockIndex": 0}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": ":1}"}}, "contentBlockIndex": 0}},
            {"messageStop": {"stopReason": "tool_use"}},
            {"metadata": {"usage": CONVERSE_USAGE}},
        ],
        "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.M-1/converse-stream",
        Framing.EVENT_STREAM,
        model="arn:aws:bedrock:us-east-1:1:inference-profile/us.M-1",
        usage=CONVERSE_COUNTED,
        says=SEARCH,
        uses=SEARCH_USE,
        reasons=("tool_calls",),
        capped={"inferenceConfig": {"maxTokens": 9}},
        results=("t0",),
    ),
    "Claude, invoked": invoked(
        CLAUDE_BODY,
        CLAUDE_WHOLE,
        chunks(CLAUDE_EVENTS),
        capped={"max_tokens": 9},
    ),
    "Nova, invoked": invoked(
        {**CONVERSE_BODY, "schemaVersion": "messages-v1", "inferenceConfig": {"max_new_tokens": 50}},
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9, "cacheReadInputTokenCount": 0},
        },
        chunks(
            [
                {"messageStart": {"role": "assistant"}},
                {"contentBlockDelta": {"delta": {"text": "Hello"}, "contentBlockIndex": 0}},
                {"messageStop": {"stopReason": "end_turn"}},
                {"metadata": {"usage": {"inputTokens": 7, "outputTokens": 2}}, **METRICS},
            ]
        ),
        capped={"inferenceConfig": {"max_new_tokens": 9}},
    ),
    "Llama, invoked": invoked(
        {"prompt": "Hi", "max_gen_len": 50},
        {"generation": "Hello", "prompt_token_count": 7, "generation_token_count": 2, "stop_reason": "stop"},
        chunks(
            [
                {"generation": "Hel", "prompt_token_count": 7, "generation_token_count": 1, "stop_reason": None},
                {"generation": "lo", "prompt_token_count": None, "generation_token_count": 2, "stop_reason": "stop", **METRICS},
            ]
        ),
        operation="text_completion",
        capped={"max_gen_len": 9},
    ),
    "Titan, invoked": invoked(
        {"inputText": "Hi", "textGenerationConfig": {"maxTokenCount": 50, "topP": 0.5}},
        {"inputTextTokenCount": 7, "results": [{"tokenCount": 2, "outputText": "Hello", "completionReason": "FINISH"}]},
        chunks(
            [
                {"outputText": "Hel", "index": 0, "totalOutputTextTokenCount": None, "completionReason": None, "inputTextTokenCount": 7},
                {
                    "outputText": "lo",
                    "index": 0,
                    "totalOutputTextTokenCount": 2,
                    "completionReason": "FINISH",
                    "inputTextTokenCount": None,
                    **METRICS,
                },
            ]
        ),
        operation="text_completion",
        capped={"textGenerationConfig": {"maxTokenCount": 9, "topP": 0.5}},
    ),
    "Mistral, invoked, whose whole answer tells no usage": Case(
        "bedrock",
        INVOKE,
        {"prompt": "Hi", "max_tokens": 50},
        {"outputs": [{"text": "Hello", "stop_reason": "stop"}]},
        operation="text_completion",
        usage=None,
        says=HELLO,
        reasons=("stop",),
        cap=50,
        capped={"max_tokens": 9},
    ),
    "Mistral, invoked, as a stream": invoked(
        {"prompt": "Hi", "max_tokens": 50},
        {},
        chunks([{"outputs": [{"text": "Hel", "stop_reason": None}]}, {"outputs": [{"text": "lo", "stop_reason": "stop"}], **METRICS}]),
        operation="text_completion",
    ),
    "a chat, invoked": invoked(
        {"messages": MESSAGES, "max_tokens": 50},
        CHAT_WHOLE,
        chunks(CHAT_EVENTS),
        capped={"max_tokens": 9},
    ),
    "Titan's embeddings": Case(
        "bedrock",
        "/model/amazon.titan-embed-text-v2%3A0/invoke",
        {"inputText": "Hi"},
        {"embedding": [0.5], "inputTextTokenCount": 7},
        model="amazon.titan-embed-text-v2:0",
        operation="embeddings",
        usage=Usage(7),
    ),
    "Cohere": Case(
        "cohere",
        "/v2/chat",
        {"model": "m-1", "messages": MESSAGES, "max_tokens": 50},
        {
            "id": "c1",
            "finish_reason": "COMPLETE",
            "message": {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello"}]},
            "usage": COHERE_USAGE,
        },
        [
            {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}},
            {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "thinking"}}}},
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"thinking": "Hm."}}}},
            {"type": "content-delta", "index": 1, "delta": {"message": {"content": {"text": "Hel"}}}},
            {"type": "content-delta", "index": 1, "delta": {"message": {"content": {"text": "lo"}}}},
            {"type": "content-end", "index": 1},
            {"type": "message-end", "id": "c1", "delta": {"finish_reason": "COMPLETE", "usage": COHERE_USAGE}},
        ],
        says=[THOUGHT, *HELLO],
        reasons=("stop",),
        cap=50,
        capped={"max_tokens": 9},
    ),
    "Cohere with tools": Case(
        "cohere",
        "/v2/chat",
        {
            "model": "m-1",
            "messages": [
                *MESSAGES,
                {"role": "assistant", "tool_calls": [{"id": "t0", "type": "function", "function": {"name": "search", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "t0", "content": "1"},
            ],
            "tools": [OPEN_TOOL],
        },
        {
            "id": "c1",
            "finish_reason": "TOOL_CALL",
            "message": {
                "role": "assistant",
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}}],
            },
            "usage": COHERE_USAGE,
        },
        [
            {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}},
            {
                "type": "tool-call-start",
                "index": 0,
                "delta": {"message": {"tool_calls": {"id": "t1", "type": "function", "function": {"name": "search", "arguments": ""}}}},
            },
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": '{"q"'}}}}},
            {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": ":1}"}}}}},
            {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": COHERE_USAGE}},
        ],
        says=SEARCH,
        uses=SEARCH_USE,
        reasons=("tool_calls",),
        capped={"max_tokens": 9},
        results=("t0",),
    ),
    "Cohere's first version": Case(
        "cohere",
        "/v1/chat",
        {"model": "m-1", "message": "Hi"},
        {"generation_id": "c1", "text": "Hello", "finish_reason": "COMPLETE", "meta": COHERE_USAGE},
        [
            {"event_type": "stream-start", "generation_id": "c1"},
            {"event_type": "text-generation", "text": "Hello"},
            {"event_type": "stream-end", "finish_reason": "COMPLETE", "response": {"text": "Hello", "meta": COHERE_USAGE}},
        ],
        framing=Framing.NDJSON,
        says=HELLO,
        reasons=("stop",),
        capped={"max_tokens": 9},
    ),
    "Cohere's embeddings": Case(
        "cohere",
        "/v2/embed",
        {"model": "m-1", "texts": ["Hi"], "input_type": "search_document", "embedding_types": ["float"]},
        {"id": "e1", "embeddings": {"float": [[0.5]]}, "meta": {"billed_units": {"input_tokens": 7}}},
        operation="embeddings",
        usage=Usage(7),
    ),
    "Ollama": Case(
        "ollama",
        "/api/chat",
        {"model": "m-1", "messages": MESSAGES, "options": {"num_predict": 50, "top_p": 0.5}},
        {**OLLAMA_LAST, "message": {"role": "assistant", "content": "Hello", "thinking": "Hm."}},
        [
            {"model": "m-1", "message": {"role": "assistant", "content": "", "thinking": "Hm."}, "done": False},
            {"model": "m-1", "message": {"role": "assistant", "content": "Hel"}, "done": False},
            {"model": "m-1", "message": {"role": "assistant", "content": "lo"}, "done": False},
            {**OLLAMA_LAST, "message": {"role": "assistant", "content": ""}},
        ],
        framing=Framing.NDJSON,
        says=[THOUGHT, *HELLO],
        reasons=("stop",),
        cap=50,
        capped={"options": {"num_predict": 9, "top_p": 0.5}},
    ),
    "Ollama with tools": Case(
        "ollama",
        "/api/chat",
        {"model": "m-1", "messages": [*MESSAGES, {"role": "tool", "tool_call_id": "t0", "content": "1"}], "tools": [OPEN_TOOL]},
        {
            **OLLAMA_LAST,
            "message": {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "t1", "function": {"name": "search", "arguments": {"q": 1}}}],
            },
        },
        [
            {
                "model": "m-1",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "t1", "function": {"name": "search", "arguments": {"q": 1}}}],
                },
                "done": False,
            },
            {**OLLAMA_LAST, "message": {"role": "assistant", "content": ""}},
        ],
        framing=Framing.NDJSON,
        says=SEARCH,
        uses=SEARCH_USE,
        reasons=("stop",),
        capped={"options": {"num_predict": 9}},
        results=("t0",),
    ),
    "Ollama's completion": Case(
        "ollama",
        "/api/generate",
        {"model": "m-1", "prompt": "Hi"},
        {**OLLAMA_LAST, "response": "Hello"},
        [
            {"model": "m-1", "response": "Hel", "done": False},
            {"model": "m-1", "response": "lo", "done": False},
            {**OLLAMA_LAST, "response": ""},
        ],
        framing=Framing.NDJSON,
        operation="text_completion",
        says=HELLO,
        reasons=("stop",),
        capped={"options": {"num_predict": 9}},
    ),
    "Ollama's embeddings": Case(
        "ollama",
        "/api/embed",
        {"model": "m-1", "input": "Hi"},
        {"model": "m-1", "embeddings": [[0.5]], "prompt_eval_count": 7},
        operation="embeddings",
        usage=Usage(7),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
every_stream = pytest.mark.parametrize(
    "case", [one for one in CASES.values() if one.events], ids=[n for n, one in CASES.items() if one.events]
)


def described(case: Case, *, stream: bool) -> tuple[WireFormat, Call]:
    """Read the request from its bytes, as with content captured."""
    wire_format, request = case.request(stream=stream)
    assert wire_format.streams(request) is stream
    request.stream = stream
    call = wire_format.call(request)
    call.content = wire_format.asked(request) or Asked()
    return wire_format, call


def check(case: Case, call: Call, reply: Reply) -> None:
    assert (call.operation, call.model, call.output_cap, call.generative) == (case.operation, case.model, case.cap, True)
    assert (None if reply.usage is None else asdict(reply.usage)) == (None if case.usage is None else asdict(case.usage))
    if case.says is not None:
        assert [message["parts"] for message in reply.output or ()] == [case.says]
    assert reply.tool_uses == case.uses
    assert reply.finish_reasons == case.reasons


@every_case
def test_an_answer_is_read_from_its_bytes(case: Case) -> None:
    wire_format, call = described(case, stream=False)
    assert call.stream is False
    if case.whole:
        check(case, call, read_body(wire_format, json.dumps(case.whole).encode, call))


@every_stream
@pytest.mark.parametrize("seed", range(5))
def test_a_stream_is_read_from_its_bytes_wherever_it_is_cut(case: Case, seed: int) -> None:
    wire_format, call = described(case, stream=True)
    _, request = case.request(stream=True)
    assert call.stream is True
    assert wire_format.framing(request) is case.framing
    data, collector = case.written(), wire_format.collector(call)
    parser, at, chance = case.framing.parser(), 0, random.Random(seed)
    events: list[Any] = []
    while at < len(data):
        size = chance.randint(1, 40)
        events += parser.feed(data[at : at + size])
        at += size
    for event in events + parser.end():
        collector.add(event)
    assert not parser.lossy
    assert collector.complete
    assert collector.spoke
    check(case, call, read_events(collector, call))


@every_stream
def test_a_stream_that_breaks_off_is_estimated_by_what_came(case: Case) -> None:
    wire_format, call = described(case, stream=True)
    collector = wire_format.collector(call)
    for event in case.events[:-2] or case.events[:1]:
        collector.add(event)
    usage = read_events(collector, call).usage
    assert usage is not None
    assert usage.source == "estimated" or usage.total_tokens > 0


@every_case
def test_a_cap_replaces_the_fields_that_hold_the_output(case: Case) -> None:
    wire_format, request = case.request()
    assert wire_format.cap(request, 9) == case.capped or not case.capped
    capped = {**request.body, **wire_format.cap(request, 9)}
    again = wire_format.call(Request("POST", request.path, capped, request.host, stream=False))
    assert again.output_cap == 9 or not case.capped


@every_case
def test_the_results_of_tools_are_known_by_their_calls(case: Case) -> None:
    wire_format, request = case.request()
    assert tuple(wire_format.tool_results(request)) == case.results


@every_case
def test_a_plain_request_has_a_bound_that_its_input_cannot_pass(case: Case) -> None:
    wire_format, call = described(case, stream=False)
    wire_format.bound(case.request()[1], call)
    if case.capped:
        assert call.unbounded is None or case.path == "/v1/chat"
        assert call.unbounded is not None or (call.input_bound or 0) >= 7


def paths_in(value: Any) -> list[tuple[Any, Any]]:
    """Return every holder and key in a JSON value."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        found += [(value, key), *paths_in(inner)]
    return found


LIES: list[Any] = [None, 3, -1, 1e400, True, "text", [], [None], {}, {"a": {"b": []}}, 2**70, "x" * 3_000]


@every_case
@given(data=st.data())
def test_a_lie_in_any_field_of_a_request_or_an_answer_raises_nothing(case: Case, data: st.DataObject) -> None:
    case = Case(**{**vars(case), **json.loads(json.dumps({name: getattr(case, name) for name in ("body", "whole", "events")}))})
    for told in (case.body, case.whole, *case.events):
        for holder, key in data.draw(st.permutations(paths_in(told)))[:2]:
            holder[key] = data.draw(st.sampled_from(LIES))
    for stream in (False, True):
        path = case.stream_path or case.path if stream else case.path
        found = format_for_request(case.dialect, "POST", path, case.body)
        if found is None:
            continue
        request = Request("POST", path, case.body, Host("x", assumed=False, address="h", port=443), stream)
        call = found.call(request)
        call.content = found.asked(request) or Asked()
        assert isinstance(call.input_estimate, int)
        found.bound(request, call)
        found.cap(request, 9)
        found.tool_results(request)
        read_body(found, json.dumps(case.whole).encode, call)
        collector = found.collector(call)
        for event in case.events:
            collector.add(event)
        collector.produced  # noqa: B018 - it is worked out
        usage = read_events(collector, call).usage
        assert usage is None or 0 <= usage.total_tokens <= 2**53


@pytest.mark.parametrize(
    ("headers", "usage"),
    [
        ({b"X-Amzn-Bedrock-Input-Token-Count": b"7", b"x-amzn-bedrock-output-token-count": b"2"}, Usage(7, 2)),
        (
            {b"x-amzn-bedrock-input-token-count": b"7", b"x-amzn-bedrock-cache-read-input-token-count": b"3"},
            Usage(10, 0, cached_input_tokens=3),
        ),
        ({b"x-amzn-bedrock-input-token-count": b"many"}, None),
        ({b"x-amzn-bedrock-input-token-count": b"9" * 400}, None),
        ({}, None),
    ],
)
def test_headers_tell_what_an_invoked_model_used_whose_body_does_not(headers: dict[bytes, bytes], usage: Usage | None) -> None:
    found = format_for_request("bedrock", "POST", INVOKE, {"prompt": "Hi"})
    assert found is not None
    informed = found.informed(headers.items())
    assert informed.reply({"outputs": [{"text": "Hello"}]}).usage == usage
    assert informed.reply({"generation": "Hello", "prompt_token_count": 70, "generation_token_count": 20}).usage == Usage(70, 20)


@pytest.mark.parametrize(
    ("dialect", "path", "body", "why"),
    [
        ("google", GOOGLE, {"contents": "Hi", "cachedContent": "c1"}, "cachedContent"),
        ("google", GOOGLE, {"contents": "Hi", "tools": [{"googleSearch": {}}]}, "googleSearch"),
        ("google", GOOGLE, {"contents": [{"parts": [{"fileData": {"fileUri": "gs://b"}}]}]}, "fileData"),
        ("google", GOOGLE, {"contents": [{"parts": [{"inlineData": {"mimeType": "application/pdf", "data": DATA}}]}]}, "inline document"),
        ("google", GOOGLE, {"contents": "Hi", "generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ("bedrock", "/model/m/converse", {"messages": [{"content": [{"image": {"source": {"s3Location": {}}}}]}]}, "image"),
        ("bedrock", "/model/m/converse", {"messages": [{"content": [{"document": {}}]}]}, "document"),
        ("bedrock", "/model/m/converse", {"messages": [], "promptVariables": {"a": {"text": "b"}}}, "promptVariables"),
        (
            "bedrock",
            "/model/m/converse",
            {"messages": [], "additionalModelRequestFields": {"max_tokens": 9}},
            "additionalModelRequestFields",
        ),
        ("cohere", "/v1/chat", {"message": "Hi", "connectors": [{"id": "web"}]}, "connectors"),
        ("ollama", "/api/generate", {"model": "m", "prompt": "Hi", "context": [1]}, "context"),
        ("ollama", "/api/chat", {"model": "m", "messages": [], "options": {"num_predict": -1}}, "num_predict"),
    ],
)
def test_what_hides_the_size_of_an_input_is_named(dialect: Dialect, path: str, body: Body, why: str) -> None:
    found = format_for_request(dialect, "POST", path, body)
    assert found is not None
    request = Request("POST", path, body, Host("x", assumed=False, address="h", port=443), stream=False)
    call = found.call(request)
    found.bound(request, call)
    assert why in str(call.unbounded)


def test_a_picture_inside_a_request_counts_as_the_most_any_model_makes_of_one() -> None:
    for dialect, path, body in (
        ("google", GOOGLE, {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": DATA}}]}]}),
        ("bedrock", "/model/m/converse", {"messages": [{"content": [{"image": {"format": "png", "source": {"bytes": DATA}}}]}]}),
        ("ollama", "/api/chat", {"model": "m", "messages": [{"role": "user", "content": "", "images": [DATA]}]}),
    ):
        found = format_for_request(dialect, "POST", path, body)  # type: ignore[arg-type]  # of a table of plain text
        assert found is not None
        request = Request("POST", path, body, Host("x", assumed=False, address="h", port=443), stream=False)  # type: ignore[arg-type]  # the same
        call = found.call(request)
        found.bound(request, call)
        assert (call.input_bound or 0) > 50_000


@pytest.mark.parametrize(
    "path", ["/v1beta/models/m:countTokens", "/v1beta/cachedContents", "/upload/v1beta/files", "/v1/projects/p/locations/l/datasets"]
)
def test_what_google_does_without_a_model_has_no_format(path: str) -> None:
    assert format_for_request("google", "POST", path, {}) is None


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        ("bedrock", "/guardrail/g/version/1/apply"),
        ("bedrock", "/model/m/count-tokens"),
        ("cohere", "/v1/tokenize"),
        ("ollama", "/api/pull"),
    ],
)
def test_what_others_do_without_a_model_has_no_format(dialect: Dialect, path: str) -> None:
    assert format_for_request(dialect, "POST", path, {"model": "m"}) is None


@pytest.mark.parametrize(
    ("dialect", "path"), [("google", "/v1beta/models/m:batchGenerateContent"), ("bedrock", "/async-invoke"), ("cohere", "/v1/embed-jobs")]
)
def test_what_is_paid_for_later_is_a_job(dialect: Dialect, path: str) -> None:
    found = format_for_request(dialect, "POST", path, {})
    assert found is not None
    call = found.call(Request("POST", path, {}, Host("x", assumed=False, address="h", port=443), stream=False))
    assert (call.job, call.unread) == (True, True)


def test_a_failure_in_a_stream_is_told_by_its_name() -> None:
    for case, event, name in (
        (CASES["Converse"], {"throttlingException": {"message": "slow"}}, "throttlingException"),
        (CASES["Claude, invoked"], {"modelStreamErrorException": {"message": "x"}}, "modelStreamErrorException"),
        (CASES["google"], {"error": {"status": "UNAVAILABLE"}}, "UNAVAILABLE"),
        (CASES["Ollama"], {"error": "out of memory"}, "error"),
    ):
        wire_format, call = described(case, stream=True)
        collector = wire_format.collector(call)
        collector.add(event)
        assert read_events(collector, call).error_type == name
