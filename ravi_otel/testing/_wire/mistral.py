"""Answer Mistral's /mistral/v1/chat/completions and what lies beside it: OpenAI's shape, and the usage in the last chunk, unasked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ravi_otel.testing._script import Generated, Request
from ravi_otel.testing._wire import chat
from ravi_otel.testing._wire.counts import as_chat, generated
from ravi_otel.testing._wire.payload import Payload, event


def answer(request: Request, given: Generated) -> Payload:
    """Give the completion, whole or as a stream."""
    payload = chat.answer(request, given)
    if not request.streamed:
        return payload
    told = as_chat(generated(request, given))
    *parts, last, done = payload.parts
    chunk: dict[str, Any] = json.loads(last.removeprefix(b"data: "))
    return replace(payload, parts=(*parts, event(chunk | ({} if told is None else {"usage": told})), done))
