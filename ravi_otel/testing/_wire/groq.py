"""Answer groq's /openai/v1/chat/completions: OpenAI's shape, and `x_groq` in the first chunk of a stream and the last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ravi_otel.testing._script import Generated, Request
from ravi_otel.testing._wire import chat
from ravi_otel.testing._wire.counts import as_chat, generated
from ravi_otel.testing._wire.payload import Payload, event

_TIMES = {"queue_time": 0.01, "prompt_time": 0.002, "completion_time": 0.02, "total_time": 0.022}


def answer(request: Request, given: Generated) -> Payload:
    """Give the completion, whole or as a stream."""
    payload = chat.answer(request, given)
    if not request.streamed:
        return payload
    return replace(payload, parts=tuple(_marked(payload, f"req_{request.index + 1}", _usage(request, given))))


def _usage(request: Request, given: Generated) -> Mapping[str, Any] | None:
    told = as_chat(generated(request, given))
    return told if told is None or isinstance(given.usage, Mapping) else {**told, **_TIMES}


def _marked(payload: Payload, name: str, usage: Mapping[str, Any] | None) -> Iterator[bytes]:
    for at, part in enumerate(payload.parts):
        data = part.removeprefix(b"data: ").strip()
        chunk: dict[str, Any] = {} if data == b"[DONE]" else json.loads(data)
        if any(choice["finish_reason"] is not None for choice in chunk.get("choices", ())):
            yield event(chunk | {"x_groq": {"id": name} | ({} if usage is None else {"usage": usage})})
        elif at == 0 and chunk:
            yield event(chunk | {"x_groq": {"id": name}})
        else:
            yield part
