"""Hold what the API ordinarily answers."""

from __future__ import annotations

from typing import Any

Events = list[tuple[str | None, Any]]

USAGE: dict[str, Any] = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0},
}
_HEAD: dict[str, Any] = {"id": "chatcmpl-1", "created": 1700000000, "model": "gpt-4o-mini-2024-07-18", "service_tier": "default"}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"a": 1}'}}
CHAT: dict[str, Any] = {
    **_HEAD,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": '{"word": "hello"}'}, "logprobs": None, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": None, "tool_calls": [_CALL]}, "finish_reason": "tool_calls"},
    ],
    "usage": USAGE,
}


def _chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> tuple[None, dict[str, Any]]:
    choices = [{"index": index, "delta": delta, "finish_reason": reason}]
    return None, {**_HEAD, "object": "chat.completion.chunk", "choices": choices, "usage": None}


CHAT_EVENTS: Events = [
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": '{"word": '}),
    _chunk({"content": '"hällo"}'}),
    _chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": ""}}]}),
    _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
    _chunk({}, "stop"),
    (None, {**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}),
    (None, "[DONE]"),
]
COMPLETION: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1700000000,
    "model": "gpt-3.5-turbo-instruct",
    "choices": [{"text": " hello", "index": 0, "logprobs": None, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
COMPLETION_EVENTS: Events = [(None, {**COMPLETION, "usage": None}), (None, COMPLETION), (None, "[DONE]")]
VECTORS: dict[str, Any] = {
    "object": "list",
    "model": "text-embedding-3-small",
    "data": [
        {"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="},
        {"object": "embedding", "index": 1, "embedding": [0.5, -0.5]},
    ],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": '{"word": "hello"}', "annotations": [], "logprobs": []}],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1700000000,
    "status": "completed",
    "model": "gpt-4o-mini-2024-07-18",
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": []},
        _MESSAGE,
        {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "lookup", "arguments": "{}", "status": "completed"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "service_tier": "default",
    "usage": {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 19,
    },
}
_BEGUN = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
_PLACE: dict[str, Any] = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
_EMPTY = {**_MESSAGE, "content": [], "status": "in_progress"}
RESPONSE_EVENTS: Events = [
    (each["type"], {**each, "sequence_number": at})
    for at, each in enumerate(
        [
            {"type": "response.created", "response": _BEGUN},
            {"type": "response.in_progress", "response": _BEGUN},
            {"type": "response.output_item.added", "output_index": 0, "item": _EMPTY},
            {"type": "response.content_part.added", **_PLACE, "part": {"type": "output_text", "text": "", "annotations": []}},
            {"type": "response.output_text.delta", **_PLACE, "delta": '{"word": ', "logprobs": []},
            {"type": "response.output_text.delta", **_PLACE, "delta": '"hello"}', "logprobs": []},
            {"type": "response.output_text.done", **_PLACE, "text": '{"word": "hello"}', "logprobs": []},
            {"type": "response.output_item.done", "output_index": 0, "item": _MESSAGE},
            {"type": "response.completed", "response": RESPONSE},
        ]
    )
]
_IMAGE_USAGE: dict[str, Any] = {
    "input_tokens": 8,
    "input_tokens_details": {"text_tokens": 8, "image_tokens": 0},
    "output_tokens": 100,
    "total_tokens": 108,
}
IMAGES: dict[str, Any] = {
    "created": 1700000000,
    "data": [{"b64_json": "AAAA"}],
    "size": "1024x1024",
    "quality": "low",
    "usage": _IMAGE_USAGE,
}
_PICTURE: dict[str, Any] = {
    "b64_json": "AAAA",
    "created_at": 1,
    "size": "1024x1024",
    "quality": "low",
    "output_format": "png",
    "background": "auto",
}
IMAGE_EVENTS: Events = [
    ("image_generation.partial_image", {"type": "image_generation.partial_image", "partial_image_index": 0, **_PICTURE}),
    ("image_generation.completed", {"type": "image_generation.completed", "usage": _IMAGE_USAGE, **_PICTURE}),
]
SPEECH_EVENTS: Events = [
    (None, {"type": "speech.audio.delta", "audio": "AAAA"}),
    (None, {"type": "speech.audio.done", "usage": {"input_tokens": 3, "output_tokens": 9, "total_tokens": 12}}),
]
TRANSCRIPT_EVENTS: Events = [
    (None, {"type": "transcript.text.delta", "delta": "Hel"}),
    (None, {"type": "transcript.text.delta", "delta": "lo"}),
    (
        None,
        {
            "type": "transcript.text.done",
            "text": "Hello",
            "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 5, "total_tokens": 19},
        },
    ),
    (None, "[DONE]"),
]
_RUN: dict[str, Any] = {
    "id": "run_1",
    "object": "thread.run",
    "created_at": 1,
    "assistant_id": "asst_1",
    "thread_id": "thread_1",
    "model": "gpt-4o-mini",
    "instructions": "",
    "tools": [],
    "metadata": {},
}
RUN_EVENTS: Events = [
    ("thread.run.created", {**_RUN, "status": "queued", "usage": None}),
    ("thread.run.in_progress", {**_RUN, "status": "in_progress", "usage": None}),
    ("thread.run.completed", {**_RUN, "status": "completed", "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}),
    ("done", "[DONE]"),
]
PAGE: dict[str, Any] = {
    "object": "list",
    "data": [{"id": "item_1", "object": "item"}],
    "first_id": "item_1",
    "last_id": "item_1",
    "has_more": False,
}
NOTHING_SPECIAL: dict[str, Any] = {
    **_RUN,
    "id": "thing_1",
    "object": "thing",
    "status": "completed",
    "progress": 100,
    "text": "Hello",
    "name": "thing",
    "data": [],
    "has_more": False,
    "file_counts": {"completed": 1, "failed": 0, "in_progress": 0, "cancelled": 0, "total": 1},
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
