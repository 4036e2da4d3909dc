"""Answer /v1/completions, /v1/moderations and /v1/models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ravi_otel.testing._script import Request, Text
from ravi_otel.testing._wire.counts import as_chat, output_tokens, prompt_tokens, stated
from ravi_otel.testing._wire.payload import Payload, created, event, pieces, plain, stream

_CATEGORIES = ("harassment", "hate", "illicit", "self-harm", "sexual", "violence")


def completion(request: Request, given: Text) -> Payload:
    """Give a legacy completion, `n` for each prompt, whole or as a stream."""
    count = _count(request)
    usage = as_chat(stated(given.usage, lambda: (prompt_tokens(request.body.get("prompt")), output_tokens(given) * count)))
    head: dict[str, Any] = {
        "id": f"cmpl-{request.index + 1}",
        "object": "text_completion",
        "created": created(request.index),
        "model": given.model or request.model,
        **given.extra,
    }
    if request.streamed:
        return stream(_events(request, given, head, count, usage))
    choices = [_choice(index, given.text, given.finish_reason) for index in range(count)]
    return plain(head | {"choices": choices} | ({} if usage is None else {"usage": usage}))


def _count(request: Request) -> int:
    prompt: object = request.body.get("prompt")
    given = cast("list[object]", prompt) if isinstance(prompt, list) else [prompt]
    prompts = 1 if given and isinstance(given[0], int) else len(given)
    n = request.body.get("n")
    return prompts * (n if isinstance(n, int) and n > 0 else 1)


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _events(request: Request, given: Text, head: dict[str, Any], count: int, usage: Any) -> Iterator[bytes]:
    options: Any = request.body.get("stream_options")
    asked = isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True
    nothing: dict[str, Any] = {"usage": None} if asked else {}
    for part in pieces(given.text, given.chunks):
        for index in range(count):
            yield event(head | {"choices": [_choice(index, part, None)]} | nothing)
    for index in range(count):
        yield event(head | {"choices": [_choice(index, "", given.finish_reason)]} | nothing)
    if asked and usage is not None:
        yield event(head | {"choices": [], "usage": usage})
    yield event("[DONE]")


def moderation(request: Request, given: Text) -> Payload:
    """Give one verdict for each input: flagged when the answer's text is "flagged", clean otherwise."""
    inputs: object = request.body.get("input")
    count = len(cast("list[object]", inputs)) if isinstance(inputs, list) else 1
    flagged = given.text == "flagged"
    result: dict[str, Any] = {
        "flagged": flagged,
        "categories": dict.fromkeys(_CATEGORIES, flagged),
        "category_scores": dict.fromkeys(_CATEGORIES, 0.99 if flagged else 0.01),
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
    model = given.model or request.model or "omni-moderation-latest"
    return plain({"id": f"modr-{request.index + 1}", "model": model, "results": [result] * count})


def models(names: tuple[str, ...]) -> Payload:
    """Give the list of models."""
    data = [{"id": name, "object": "model", "created": created(0), "owned_by": "openai"} for name in names]
    return plain({"object": "list", "data": data})
