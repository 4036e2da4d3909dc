"""A stream is asked for its usage, and the program sees nothing of it but the one line in its request."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pydantic
import pytest

import ravi_otel
from ravi_otel._instrumentation.client_profile import asks_usage
from ravi_otel._instrumentation.streams import hide_usage
from ravi_otel.testing import Answer, Capture, Disconnect, Malformed, Raw, Refusal, Text, ToolCalls

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}]}
WORDS = Text("one two three", usage=(10, 6))

Program = Callable[[Any, str], Awaitable[Any]]


@pytest.fixture(autouse=True)
def _the_scripted_server_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_USAGE_HOSTS", "127.0.0.1")


async def awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def shown(chunk: Any) -> Any:
    """Give everything that can be seen of a chunk, of its copy and of what was pickled."""
    if not isinstance(chunk, pydantic.BaseModel):
        return chunk
    twins = [chunk, copy.copy(chunk), copy.deepcopy(chunk), pickle.loads(pickle.dumps(chunk)), chunk.model_copy(update={})]
    return [
        (
            type(one),
            one.model_dump(),
            one.model_dump(exclude_unset=True),
            one.model_dump_json(),
            repr(one),
            sorted(one.model_fields_set),
            vars(one),
        )
        for one in twins
    ]


async def listed(stream: Any) -> list[Any]:
    seen: list[Any] = []
    try:
        if hasattr(stream, "__aiter__"):
            async for chunk in stream:
                seen.append(shown(chunk))  # noqa: PERF401 - what came before an error counts
        else:
            for chunk in stream:
                seen.append(shown(chunk))  # noqa: PERF401 - the same
    except Exception as error:
        seen.append((type(error), str(error)))
    seen.append(stream.response.is_closed)
    return seen


async def chat(client: Any, _: str) -> Any:
    return await listed(await awaited(client.chat.completions.create(**ASK, stream=True)))


async def chat_with_empty_options(client: Any, _: str) -> Any:
    return await listed(await awaited(client.chat.completions.create(**ASK, stream=True, stream_options={})))


async def chat_with_extra_body(client: Any, _: str) -> Any:
    extra = {"stream_options": {"include_obfuscation": False}, "top_k": 3}
    return await listed(await awaited(client.chat.completions.create(**ASK, stream=True, extra_body=extra)))


async def several(client: Any, _: str) -> Any:
    return await listed(await awaited(client.chat.completions.create(**ASK, stream=True, n=2)))


async def legacy(client: Any, _: str) -> Any:
    return await listed(await awaited(client.completions.create(model="gpt-4o-mini", prompt="Count.", stream=True)))


async def helper(client: Any, colour: str) -> Any:
    owner = client.beta.chat if openai.__version__.startswith("1.") else client.chat
    seen: list[Any] = []
    if colour == "sync":
        with owner.completions.stream(**ASK) as stream:
            seen.extend((event.type, event.model_dump_json()) for event in stream)
            return seen, shown(stream.get_final_completion())
    async with owner.completions.stream(**ASK) as stream:
        seen.extend([(event.type, event.model_dump_json()) async for event in stream])
        return seen, shown(await stream.get_final_completion())


async def plain_json(client: Any, colour: str) -> Any:
    kind = openai.Stream if colour == "sync" else openai.AsyncStream
    body = ASK | {"stream": True}
    return await listed(await awaited(client.post("/chat/completions", cast_to=object, body=body, stream=True, stream_cls=kind[object])))


PROGRAMS: list[Program] = [chat, chat_with_empty_options, chat_with_extra_body, several, legacy, helper, plain_json]
ANSWERS: dict[str, Answer] = {
    "words": WORDS,
    "nothing": Text("", usage=(10, 0)),
    "tools": ToolCalls([("look", {"at": "it"})], usage=(10, 6)),
    "a refusal": Refusal("No.", usage=(10, 6)),
    "an empty stream": Raw(b"", content_type="text/event-stream"),
    "an error in it": Malformed('{"error": {"message": "busy"}}', 2, WORDS),
    "no JSON in it": Malformed("{", 2, WORDS),
    "cut off": Disconnect(2, WORDS),
}


ASKED = [
    (program, answer, colour)
    for (at, program), (beside, answer), (side, colour) in itertools.product(*map(enumerate, (PROGRAMS, ANSWERS, ("sync", "async"))))
    if ((at + beside + side) % 2 == 0 or "RAVI_LONG" in os.environ)
    if not (program is legacy and answer in {"tools", "a refusal"})  # the server has no such completions
]
"""Each program meets each answer in one colour or the other."""


@pytest.mark.parametrize(("program", "answer", "colour"), ASKED, ids=lambda each: getattr(each, "__name__", each))
def test_nothing_differs_but_the_one_option_of_the_request(
    program: Program, answer: str, colour: str, stage: Any, clients: Any, capture: Capture
) -> None:
    def seen() -> tuple[Any, list[dict[str, Any]]]:
        client = clients.make(colour, stage.play(ANSWERS[answer]), max_retries=0)

        async def run() -> Any:
            try:
                return await program(client, colour)
            except Exception as error:
                return type(error), str(error)

        return clients.run(colour, run()), [dict(request.body) for request in stage.server.requests]

    without, (plain,) = seen()
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider):
        given, (asked,) = seen()
    assert given == without
    assert asked == plain | {"stream_options": {**(plain.get("stream_options") or {}), "include_usage": True}}


def test_the_usage_that_was_hidden_is_told(colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    clients.run(colour, chat(clients.make(colour, stage.play(WORDS)), colour))
    (span,) = instrumented.spans("chat gpt-4o-mini")
    assert (span.attributes or {})["gen_ai.usage.output_tokens"] == 6
    assert "ravi.usage.source" not in (span.attributes or {})


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("where", ["stream_options", "extra_body"])
def test_what_the_program_asks_for_itself_is_left_alone(
    wanted: bool, where: str, colour: str, stage: Any, clients: Any, instrumented: Capture
) -> None:
    client = clients.make(colour, stage.play(WORDS))
    chosen: dict[str, Any] = {"stream_options": {"include_usage": wanted}}

    async def program() -> int:
        more = chosen if where == "stream_options" else {"extra_body": chosen}
        return len(await listed(await awaited(client.chat.completions.create(**ASK, stream=True, **more))))

    assert clients.run(colour, program()) == 5 + wanted + 1
    assert stage.server.requests[-1].body["stream_options"] == {"include_usage": wanted}


@pytest.mark.parametrize("mode", ["with_raw_response", "with_streaming_response"])
def test_whoever_gets_the_bytes_is_never_asked_for(mode: str, colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def program() -> None:
        made = getattr(client.chat.completions, mode).create(**ASK, stream=True)
        if mode == "with_raw_response":
            await listed(await awaited((await awaited(made)).parse()))
        elif colour == "sync":
            with made as response:
                response.read()
        else:
            async with made as response:
                await response.read()

    clients.run(colour, program())
    assert "stream_options" not in stage.server.requests[-1].body


@pytest.mark.parametrize("more", [{"extra_body": {"data_sources": []}}, {"extra_body": {"stream_options": "odd"}}])
def test_what_cannot_be_asked_is_not(more: dict[str, Any], colour: str, stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make(colour, stage.play(WORDS))

    async def program() -> None:
        await listed(await awaited(client.chat.completions.create(**ASK, stream=True, **more)))

    clients.run(colour, program())
    assert stage.server.requests[-1].body.get("stream_options") == more["extra_body"].get("stream_options")


def test_events_of_a_class_of_the_programs_own_are_left_alone(stage: Any, clients: Any, instrumented: Capture) -> None:
    class Chunk(openai.BaseModel):
        id: str

    client = clients.make("sync", stage.play(WORDS))
    made = client.post("/chat/completions", cast_to=Chunk, body=ASK | {"stream": True}, stream=True, stream_cls=openai.Stream[Chunk])
    assert {chunk.id for chunk in made} == {"chatcmpl-1"}
    assert "stream_options" not in stage.server.requests[-1].body


@pytest.mark.parametrize("names", [{"RAVI_INCLUDE_USAGE": "off"}, {"RAVI_USAGE_HOSTS": "llm.example.com"}])
def test_it_can_be_turned_off(names: dict[str, str], monkeypatch: pytest.MonkeyPatch, stage: Any, clients: Any, capture: Capture) -> None:
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with ravi_otel.instrument(tracer_provider=capture.tracer_provider):
        clients.run("sync", chat(clients.make("sync", stage.play(WORDS)), "sync"))
    assert "stream_options" not in stage.server.requests[-1].body


def test_the_callers_own_options_stay_as_they_are(stage: Any, clients: Any, instrumented: Capture) -> None:
    options = {"include_obfuscation": False}
    client = clients.make("sync", stage.play(WORDS))
    list(client.chat.completions.create(**ASK, stream=True, stream_options=options))
    assert options == {"include_obfuscation": False}
    assert stage.server.requests[-1].body["stream_options"] == {"include_obfuscation": False, "include_usage": True}


@pytest.mark.parametrize(
    ("version", "asked"),
    [("2024-02-01", False), ("2024-08-01-preview", False), ("2024-09-01-preview", True), ("2025-03-01", True), ("preview", True)],
)
def test_azure_is_asked_from_the_version_that_allows_it(version: str, asked: bool) -> None:
    client = openai.AzureOpenAI(api_key="k", api_version=version, azure_endpoint="https://x.openai.azure.com")
    assert asks_usage(client) is asked


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://x.openai.azure.com/openai/v1/", True),
        ("https://api.openai.com.evil.example/v1", False),
        ("https://llm.example.com/v1", False),
    ],
)
def test_only_hosts_known_to_take_it_are_asked(url: str, asked: bool) -> None:
    assert asks_usage(openai.OpenAI(api_key="k", base_url=url)) is asked


@pytest.mark.parametrize("chunk", [None, 3, "text", [], {}, {"usage": 1, "choices": [1]}, object()])
def test_whatever_a_chunk_is_hiding_never_fails(chunk: Any) -> None:
    assert hide_usage(chunk) is False
    assert json.dumps(chunk, default=str) is not None
