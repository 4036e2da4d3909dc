"""Count tokens the way `UsageSpec` says, and put counts into an endpoint's own shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from ravi_otel.policy._usage import Usage
from ravi_otel.testing._script import Answer, Generated, Refusal, Request, Text, ToolCalls, UsageSpec

_PER_MESSAGE = 4
_PER_REQUEST = 3
_BYTES = 4


def tokens(text: str) -> int:
    """Count `ceil(bytes / 4)`."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES)


def input_tokens(request: Request) -> int:
    """Count what a chat or Responses request sends."""
    messages = list(_messages(request.body))
    return tokens("".join(_texts(messages))) + _PER_MESSAGE * len(messages) + _PER_REQUEST


def prompt_tokens(value: object) -> int:
    """Count an embedding input or a legacy prompt: a text, token ids, or a list of either."""
    if isinstance(value, str):
        return tokens(value)
    if not isinstance(value, list):
        return 0
    items = cast("list[object]", value)
    return sum(1 if isinstance(item, int) else prompt_tokens(item) for item in items)


def output_tokens(answer: Answer) -> int:
    """Count one choice of an answer."""
    match answer:
        case Text(text=text) | Refusal(text=text):
            return tokens(text)
        case ToolCalls():
            calls = "".join(name + arguments for name, arguments in answer.rendered())
            return tokens((answer.text or "") + calls)
        case _:
            return 0


def generated(request: Request, answer: Generated, choices: int = 1) -> Usage | Mapping[str, Any] | None:
    """Give what a generated answer says it used; None says nothing."""
    return stated(answer.usage, lambda: (input_tokens(request), output_tokens(answer) * choices))


def stated(spec: UsageSpec, count: Callable[[], tuple[int, int]]) -> Usage | Mapping[str, Any] | None:
    """Resolve a `UsageSpec`; `count` gives (input, output) when nothing was given."""
    if spec is None:
        spec = count()
    match spec:
        case "missing":
            return None
        case (int(), int()):
            return Usage(input_tokens=spec[0], output_tokens=spec[1])
        case _:
            return spec


def as_chat(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as chat completions and legacy completions say it."""
    if not isinstance(usage, Usage):
        return usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": usage.audio_input_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": usage.audio_output_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def as_responses(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as the Responses API says it."""
    if not isinstance(usage, Usage):
        return usage
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def as_embeddings(usage: Usage | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Give usage as embeddings say it: input only."""
    if not isinstance(usage, Usage):
        return usage
    return {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens}


def as_messages(request: Request, said: object, system: object = None) -> Request:
    """Give the request of another API as one whose messages can be counted: what is said, and what the model is told to be."""
    messages = cast("list[object]", said) if isinstance(said, list) else [said]
    told = "".join(_texts(system))
    return replace(request, body={"messages": messages, **({"instructions": told} if told else {})})


def _messages(body: Mapping[str, Any]) -> Iterable[Any]:
    if isinstance(body.get("instructions"), str):
        yield body["instructions"]
    for key in ("messages", "input"):
        given: Any = body.get(key)
        if isinstance(given, str):
            yield given
        elif isinstance(given, list):
            yield from given


def _texts(value: object) -> Iterable[str]:
    """Find what a model would read in a message, whatever its shape."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        for key in ("content", "parts", "text", "refusal", "name", "arguments", "output", "function", "tool_calls"):
            yield from _texts(fields.get(key))
