"""Programs with Anthropic's and groq's clients see and send the same with us and without us."""

from __future__ import annotations

import os
from typing import Any

import anthropic
import pydantic
import pytest
from opentelemetry import trace

from ravi_otel.testing import Answer, Disconnect, Failure, Malformed, Raw, Refusal, Text, ToolCalls

MODELS = {"anthropic": "claude-opus-4-8", "groq": "llama-3.3-70b-versatile"}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64}
QUICK = {"retry-after-ms": "1"}
HOSTILE = {"input_tokens": -1, "output_tokens": "many", "prompt_tokens": 1e400, "cache_read_input_tokens": [1], "iterations": "x"}


class Greeting(pydantic.BaseModel):
    word: str


def resource(client: Any) -> Any:
    return client.chat.completions if "groq" in type(client).__module__ else client.messages


def ask(client: Any, at: Any = None, **given: Any) -> Any:
    model = MODELS[type(client).__module__.partition(".")[0]]
    return (resource(client) if at is None else at).create(**{"model": model, **ASKED, **given})


async def got(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def plain(client: Any) -> Any:
    return await got(ask(client))


async def stream(client: Any) -> Any:
    return await got(ask(client, stream=True))


async def raw(client: Any) -> Any:
    return await got(ask(client, resource(client).with_raw_response))


async def raw_stream(client: Any) -> Any:
    return await got(ask(client, resource(client).with_raw_response, stream=True))


async def streaming(client: Any) -> Any:
    manager = ask(client, resource(client).with_streaming_response, stream=True)
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            return [line async for line in response.iter_lines()]
    with manager as response:
        return list(response.iter_lines())


async def left_early(client: Any) -> Any:
    made = await got(ask(client, stream=True))
    if hasattr(made, "__anext__"):
        async with made:
            return [repr(await anext(made)), made.response.is_closed]
    with made:
        return [repr(next(made)), made.response.is_closed]


async def posted(client: Any) -> Any:
    name = "/openai/v1/chat/completions" if "groq" in type(client).__module__ else "/v1/messages"
    return await got(client.post(name, cast_to=object, body={"model": "m", **ASKED}))


async def with_options(client: Any) -> Any:
    return await got(ask(client.with_options(max_retries=1, timeout=5.0)))


PROGRAMS = (plain, stream, raw, raw_stream, streaming, left_early, posted, with_options)
ANSWERS: dict[str, tuple[Answer, ...]] = {
    "text": (Text("hello there, you"),),
    "tools": (ToolCalls([("look", {"at": "x"}), ("look", "{broken")]),),
    "refusal": (Refusal("no"),),
    "hostile usage": (Text("hello", usage=HOSTILE),),
    "no usage": (Text("hello", usage="missing"),),
    "unknown reason": (Text("hello", finish_reason="bored", extra={"id": 7, "model": None}),),
    "retried": (Failure(429, headers=QUICK), Failure(500, headers=QUICK), Text("hello")),
    "overloaded": (Failure(529, headers=QUICK),),
    "refused": (Failure(400, "no such model"),),
    "malformed": (Malformed('{"type": "content_block_delta", "index": ', 2),),
    "failed on the way": (Malformed('{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}', 3),),
    "wrong shapes": (Malformed('{"type": "message_delta", "delta": 1, "usage": [], "choices": {"a": 1}}', 2),),
    "cut off": (Disconnect(3),),
    "never begun": (Disconnect(0),),
    "no json": (Raw(b"<html>", content_type="text/html"),),
    "a list": (Raw(b"[1, 2]"),),
    "nothing": (Raw(b"", 204),),
}


COLOURS = ("sync", "async")


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("package", ["anthropic", "groq"])
def test_programs_of_a_sister_client_see_and_send_the_same(sisters: Any, package: str, name: str, colour: str):
    """Each program meets each answer in one colour or the other; with RAVI_LONG in both."""
    half = (list(ANSWERS).index(name) + COLOURS.index(colour)) % 2
    programs = PROGRAMS if "RAVI_LONG" in os.environ else PROGRAMS[half::2]
    sisters.compare(package, colour, *programs, answers=ANSWERS[name])


async def helper(client: Any) -> Any:
    manager = client.messages.stream(model=MODELS["anthropic"], **ASKED)
    if hasattr(manager, "__aenter__"):
        async with manager as events:
            kinds = [event.type async for event in events]
            return kinds, repr(await events.get_final_message())
    with manager as events:
        kinds = [event.type for event in events]
        return kinds, repr(events.get_final_message())


async def parsed(client: Any) -> Any:
    return await got(client.messages.parse(model=MODELS["anthropic"], output_format=Greeting, **ASKED))


async def beta(client: Any) -> Any:
    return await got(client.beta.messages.create(model=MODELS["anthropic"], betas=["b"], **ASKED))


async def tokens(client: Any) -> Any:
    return await got(client.messages.count_tokens(model=MODELS["anthropic"], messages=ASKED["messages"]))


async def too_long(client: Any) -> Any:
    return await got(ask(client, max_tokens=100_000))


async def cancelled(client: Any) -> Any:
    return await got(client.messages.batches.cancel("msgbatch_1"))


async def odd_messages(client: Any) -> Any:
    earlier = anthropic.types.TextBlock(type="text", text="hm")
    told = [{"role": "user", "content": (part for part in [{"type": "text", "text": "a"}])}, {"role": "assistant", "content": [earlier]}]
    return await got(ask(client, messages=told, system=[{"type": "text", "text": "s"}], temperature=float("nan"), tools=[]))


async def generated(client: Any) -> Any:
    return await got(ask(client, messages=(message for message in ASKED["messages"])))


SPECIAL = (helper, parsed, beta, tokens, too_long, cancelled, odd_messages, generated)


@pytest.mark.parametrize(
    "name", ["text", "tools", "retried", "malformed", "failed on the way", "cut off", "hostile usage", "wrong shapes", "no json"]
)
def test_what_only_anthropic_has_is_left_alone(sisters: Any, name: str, colour: str):
    sisters.compare("anthropic", colour, *SPECIAL, answers=ANSWERS[name])


@pytest.mark.parametrize("name", ["text", "tools", "hostile usage", "wrong shapes"])
def test_nothing_differs_while_content_is_captured(sisters: Any, name: str, colour: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    sisters.compare("anthropic", colour, *PROGRAMS, *SPECIAL, answers=ANSWERS[name])
    sisters.compare("groq", colour, *PROGRAMS, answers=ANSWERS[name])


def test_the_guard_against_long_calls_still_raises(sisters: Any, colour: str):
    kind, *_ = sisters.compare("anthropic", colour, too_long, answers=(Text("x"),))["too_long"]["outcome"]

    assert kind is ValueError


def test_no_trace_header_is_added_to_a_request_while_a_span_of_ours_is_current(sisters: Any, colour: str):
    sent = sisters.compare("anthropic", colour, plain, answers=(Text("x"),))["plain"]["sent"]

    assert "traceparent" not in sent[0]
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def test_the_methods_of_sister_clients_are_put_back(sisters: Any):
    ours = anthropic._base_client
    before = [vars(owner)[name] for owner in (ours.SyncAPIClient, ours.AsyncAPIClient) for name in ("request", "_process_response")]
    with sisters.instrumented():
        pass

    assert before == [vars(owner)[name] for owner in (ours.SyncAPIClient, ours.AsyncAPIClient) for name in ("request", "_process_response")]
