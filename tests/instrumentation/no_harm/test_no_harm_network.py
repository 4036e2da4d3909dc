"""With us and without us over real connections: broken lines, time-outs, cancellations, and the stream helpers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

from ravi_otel.testing import Answer, Disconnect, Failure, Malformed, Raw, Refusal, Text, ToolCalls, Vector

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Say hello."}]}
QUICK = {"retry-after-ms": "1"}


class Greeting(pydantic.BaseModel):
    word: str


# -- what a program may do with a client ----------------------------------------------------------------------------


def chat(at: Any, **given: Any) -> Any:
    return at.create(**{**ASK, **given})


def chat_stream(at: Any, **given: Any) -> Any:
    return at.create(**{**ASK, "stream": True, **given})


def chat_parse(at: Any, **given: Any) -> Any:
    return at.parse(**{**ASK, "response_format": Greeting, **given})


def responses(at: Any, **given: Any) -> Any:
    return at.create(**{"model": "gpt-4o-mini", "input": "Say hello.", **given})


def responses_stream(at: Any, **given: Any) -> Any:
    return at.create(**{"model": "gpt-4o-mini", "input": "Say hello.", "stream": True, **given})


def responses_parse(at: Any, **given: Any) -> Any:
    return at.parse(**{"model": "gpt-4o-mini", "input": "Say hello.", "text_format": Greeting, **given})


def embeddings(at: Any, **given: Any) -> Any:
    return at.create(**{"model": "text-embedding-3-small", "input": ["one", "two"], **given})


def completions(at: Any, **given: Any) -> Any:
    return at.create(**{"model": "gpt-3.5-turbo-instruct", "prompt": "Say", **given})


def moderations(at: Any, **given: Any) -> Any:
    return at.create(**{"input": "Hello", **given})


def models(at: Any, **given: Any) -> Any:
    return at.list(**given)


def files(at: Any, **given: Any) -> Any:
    return at.create(**{"file": ("a.txt", b"hello"), "purpose": "assistants", **given})


def speech(at: Any, **given: Any) -> Any:
    return at.create(**{"model": "tts-1", "voice": "alloy", "input": "Hello", **given})


CHATS = "beta.chat.completions" if openai.__version__.startswith("1.") else "chat.completions"
OPERATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "chat": ("chat.completions", chat),
    "chat_stream": ("chat.completions", chat_stream),
    "chat_parse": (CHATS, chat_parse),
    "responses": ("responses", responses),
    "responses_stream": ("responses", responses_stream),
    "responses_parse": ("responses", responses_parse),
    "embeddings": ("embeddings", embeddings),
    "completions": ("completions", completions),
    "moderations": ("moderations", moderations),
    "models": ("models", models),
    "files": ("files", files),
    "speech": ("audio.speech", speech),
}
THOROUGH = {"chat", "chat_stream", "responses", "responses_stream"}
"""These meet every twelfth answer and the others every twenty-fourth, all of them with RAVI_LONG: the others are met without a network."""
MODES = ("plain", "with_raw_response", "with_streaming_response")


def resource(client: Any, path: str, mode: str) -> Any:
    for name in path.split("."):
        client = getattr(client, name)
    return client if mode == "plain" else getattr(client, mode)


def program(operation: str, mode: str, given: Callable[[], dict[str, Any]] = dict) -> Callable[[Any], Any]:
    """Write the program; `given` makes its arguments anew for each run, because generators are used up."""
    path, act = OPERATIONS[operation]

    async def plain(client: Any) -> Any:
        made = act(resource(client, path, mode), **given())
        return await made if hasattr(made, "__await__") else made

    async def streaming(client: Any) -> Any:
        manager = act(resource(client, path, mode), **given())
        if hasattr(manager, "__aenter__"):
            async with manager as response:
                return await client.shown(response)
        with manager as response:
            return await client.shown(response)

    return streaming if mode == "with_streaming_response" else plain


def missing(operation: str, mode: str) -> str | None:
    """Say what this version of the client does not have."""
    path, act = OPERATIONS[operation]
    client = openai.OpenAI(api_key="k")
    wanted = act.__name__.removeprefix("chat_").removeprefix("responses_")
    try:
        at = resource(client, path, mode)
    except AttributeError:
        return f"openai {openai.__version__} has no {mode} on {path}"
    name = "parse" if wanted == "parse" else "list" if operation == "models" else "create"
    return None if hasattr(at, name) else f"openai {openai.__version__} has no {mode}.{name} on {path}"


# -- answers --------------------------------------------------------------------------------------------------------

HOSTILE_USAGE: dict[str, Any] = {
    "nan": {"prompt_tokens": float("nan"), "completion_tokens": float("inf"), "total_tokens": float("-inf")},
    "text": {"prompt_tokens": "12", "completion_tokens": "twelve", "total_tokens": ""},
    "negative": {"prompt_tokens": -5, "completion_tokens": -(2**70), "total_tokens": -1},
    "huge": {"prompt_tokens": 2**63, "completion_tokens": 2**1000, "total_tokens": 1e308},
    "lists": {"prompt_tokens": [1], "completion_tokens": {"a": 1}, "total_tokens": None},
    "empty": {},
    "details": {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": "x", "completion_tokens_details": [1]},
    "booleans": {"prompt_tokens": True, "completion_tokens": False, "total_tokens": True},
}
HOSTILE_NAMES = {
    "_iterator": [1], "response": {"close": 1}, "http_response": {"content": "{}"}, "parse": 3, "http_request": {},
    "__stream__": 1, "__class__": "x", "__dict__": {}, "is_closed": False, "model_fields": 1, "choices": "none",
    "output": {"a": 1}, "error": "text", "status": "failed",
}  # fmt: skip
DEEP = b'{"id":' + b"[" * 400 + b"]" * 400 + b"}"
ANSWERS: dict[str, tuple[Answer, ...]] = {
    "text": (Text('{"word": "hello"}', usage=(12, 7)),),
    "no json in the text": (Text("hello"),),
    "cut by length": (Text('{"word": "hel', finish_reason="length"),),
    "filtered": (Text('{"word": "hel', finish_reason="content_filter"),),
    "failed": (Text("x", finish_reason="failed"),),
    "unknown finish": (Text('{"word": "hello"}', finish_reason="because"),),
    "tool calls": (ToolCalls([("lookup", {"user": 1}), ("broken", '{"a"')], text="Looking"),),
    "refusal": (Refusal("No."),),
    "no usage": (Text("hi", usage="missing"),),
    **{f"usage {name}": (Text('{"word": "hello"}', usage=usage),) for name, usage in HOSTILE_USAGE.items()},
    "hostile names": (Text("hi", extra=HOSTILE_NAMES),),
    "no fields": (Raw(b"{}"),),
    "a list": (Raw(b"[1, 2]"),),
    "null": (Raw(b"null"),),
    "a number": (Raw(b"3"),),
    "a string": (Raw(b'"text"'),),
    "not json": (Raw(b"<html>not json</html>"),),
    "html": (Raw(b"<html>proxy</html>", content_type="text/html"),),
    "not utf-8": (Raw(b'{"id": "\xff\xfe"}'),),
    "deep": (Raw(DEEP),),
    "empty body": (Raw(b""),),
    "no content": (Raw(b"", 204),),
    "many chunks": (Raw(b'{"id": "x", "choices": [], "model": "m", "object": "list", "data": []}', chunks=9),),
    "vector": (Vector(),),
    "events for a plain call": (Raw(b'data: {"choices": []}\n\ndata: [DONE]\n\n', content_type="text/event-stream"),),
    "400": (Failure(400, "Bad", "bad_request", param="model"),),
    "401": (Failure(401, "Incorrect API key"),),
    "404": (Failure(404, "No such model"),),
    "409 twice, then text": (Failure(409, headers=QUICK), Failure(409, headers=QUICK), Text('{"word": "hello"}')),
    "422 in html": (Raw(b"<html>no</html>", 422, content_type="text/html"),),
    "429, then text": (Failure(429, "slow down", retry_after_s=0, headers=QUICK), Text('{"word": "hello"}')),
    "429 for ever": (Failure(429, "slow down", "rate_limit", headers=QUICK),),
    "429 and no retry": (Failure(429, "quota", headers={"x-should-retry": "false"}),),
    "500 three times": (Failure(500, headers=QUICK),),
    "503 in text, then text": (Raw(b"upstream", 503, content_type="text/plain", headers=QUICK), Text('{"word": "hello"}')),
    "redirect": (Raw(b"", 307, headers={"location": "/v1/nowhere"}),),
    "disconnect before any byte": (Disconnect(0),),
    "disconnect, then text": (Disconnect(0), Text('{"word": "hello"}')),
    "disconnect in the middle": (Disconnect(2),),
    "broken event": (Malformed(),),
    "error event": (Malformed('{"error": {"message": "overloaded", "code": "busy", "type": "server_error"}}', 2),),
    "error event of text": (Malformed('{"error": "overloaded"}', 0),),
    "event that is no object": (Malformed("[1, 2]"),),
    "stream without its end": (Malformed("{}", 3, stop=True),),
    "stream that says nothing": (Raw(b"data: [DONE]\n\n", content_type="text/event-stream"),),
    "empty stream": (Raw(b"", content_type="text/event-stream"),),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_the_server_answers_the_program_sees_the_same(operation: str, mode: str, colour: str, compare: Any) -> None:
    reason = missing(operation, mode)
    if reason is not None:
        pytest.skip(reason)
    among = sorted(THOROUGH) if operation in THOROUGH else list(OPERATIONS)
    every = 12 if operation in THOROUGH else 24
    at = (len(MODES) * among.index(operation) + MODES.index(mode)) % every  # the thorough ones meet every answer between them
    names = sorted(ANSWERS) if "RAVI_LONG" in os.environ else sorted(ANSWERS)[at::every]
    compare.all(colour, {name: (program(operation, mode), ANSWERS[name]) for name in names})


HELPERS = ["chat", "responses"]


TOLD = ["text", "tool calls", "refusal", "cut by length", "error event", "disconnect in the middle", "broken event"]
LEFT = [(answer, leave_after) for answer in TOLD for leave_after in (None, 0, 2) if leave_after != 0 or answer in ("text", "broken event")]
"""Who leaves before the first event sees nothing of the answer."""


@pytest.mark.parametrize(("answer", "leave_after"), LEFT)
@pytest.mark.parametrize("kind", HELPERS)
def test_stream_helpers_tell_the_same_events(answer: str, kind: str, leave_after: int | None, colour: str, compare: Any) -> None:
    async def used(client: Any) -> Any:
        if kind == "chat":
            manager = resource(client, CHATS, "plain").stream(**ASK)
        else:
            manager = client.responses.stream(model="gpt-4o-mini", input="Say hello.")
        seen: list[Any] = []
        if hasattr(manager, "__aenter__"):
            async with manager as stream:
                if leave_after == 0:
                    return [type(stream)]
                async for event in stream:
                    seen.append((type(event), event.model_dump(warnings=False)))
                    if len(seen) == leave_after:
                        return [repr(seen), type(stream)]
                final = await (stream.get_final_completion() if kind == "chat" else stream.get_final_response())
        else:
            with manager as stream:
                if leave_after == 0:
                    return [type(stream)]
                for event in stream:
                    seen.append((type(event), event.model_dump(warnings=False)))
                    if len(seen) == leave_after:
                        return [repr(seen), type(stream)]
                final = stream.get_final_completion() if kind == "chat" else stream.get_final_response()
        return [repr(seen), repr(final)]

    compare(colour, used, *ANSWERS[answer])


RAW_CALLS: dict[str, Callable[[Any], Any]] = {
    "dict": lambda client: client.post("/chat/completions", body=ASK, cast_to=dict),
    "object": lambda client: client.post("/chat/completions", body=ASK, cast_to=object),
    "text": lambda client: client.post("/chat/completions", body=ASK, cast_to=str),
    "bytes": lambda client: client.post("/chat/completions", body=ASK, cast_to=bytes),
    "nothing": lambda client: client.post("/chat/completions", body=ASK, cast_to=type(None)),
    "generator in a body": lambda client: client.post("/chat/completions", body={**ASK, "messages": iter(ASK["messages"])}, cast_to=dict),
    "no body": lambda client: client.post("/chat/completions", cast_to=dict),
    "list as body": lambda client: client.post("/chat/completions", body=[1], cast_to=dict),
    "unknown path": lambda client: client.post("/proxy/x1/chat/completions?key=1", body=ASK, cast_to=dict),
    "get": lambda client: client.get("/models", cast_to=dict),
    "delete": lambda client: client.delete("/models/x", cast_to=dict),
    "idempotency": lambda client: client.post(
        "/chat/completions", body=ASK, cast_to=dict, options={"headers": {"Idempotency-Key": "one"}, "idempotency_key": "two"}
    ),
    "no cast": lambda client: client.post("/chat/completions", body=ASK),
    "no options": lambda client: client.request(dict),
    "unsupported cast": lambda client: client.post("/chat/completions", body=ASK, cast_to=set),
    "retry option": lambda client: client.with_options(max_retries=0, timeout=3).chat.completions.create(**ASK),
    "paging": lambda client: client.models.list(),
    "retrieved": lambda client: client.models.retrieve("gpt-4o-mini"),
}  # fmt: skip


@pytest.mark.parametrize("call", RAW_CALLS)
def test_calls_by_hand_give_the_same(call: str, colour: str, compare: Any) -> None:
    async def called(client: Any) -> Any:
        made = RAW_CALLS[call](client)
        return await made if hasattr(made, "__await__") else made

    answers = {"text": (Text("hello"),), "429, then text": (Failure(429, headers=QUICK), Text("hello")), "400": (Failure(400),)}
    compare.all(colour, {name: (called, each) for name, each in answers.items()})


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "strict": lambda: {"_strict_response_validation": True},
    "default headers": lambda: {"default_headers": {"X-Mine": "1", "Content-Type": "application/json"}},
    "default query": lambda: {"default_query": {"v": "2"}},
    "organization": lambda: {"organization": "org", "project": "proj"},
    "no retries": lambda: {"max_retries": 0},
    "its own pool": lambda: {"http_client": None},
    "timeout": lambda: {"timeout": 5.0},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_clients_of_every_setting_see_the_same(settings: str, colour: str, compare: Any) -> None:
    names = ("text", "usage text", "not json", "html", "no content", "429, then text", "400", "disconnect before any byte", "a list")
    programs = {f"{each} {name}": (program(each, "plain"), ANSWERS[name]) for each in ("chat", "chat_stream") for name in names}
    compare.all(colour, programs, **SETTINGS[settings]())


@pytest.mark.parametrize("operation", ["chat", "chat_stream", "responses"])
@pytest.mark.parametrize("mode", MODES)
def test_a_timeout_of_the_client_is_the_same_error(operation: str, mode: str, colour: str, compare: Any, stage: Any, http: Any) -> None:
    async def timed_out(client: Any) -> Any:
        try:
            return await program(operation, mode)(client)
        finally:
            stage.server.wait_for(2)  # a slow machine may note a request after its client has given up

    patience = http.Timeout(20, read=0.05)
    seen = compare(colour, timed_out, Text("late", think_s=30), timeout=patience, max_retries=1)
    assert len(seen["sent"]) == 2
    assert seen["outcome"]["type"] is openai.APITimeoutError


@pytest.mark.parametrize("operation", ["chat", "chat_stream", "responses"])
def test_a_cancelled_call_raises_the_same(operation: str, compare: Any, stage: Any) -> None:
    async def cancelled(client: Any) -> Any:
        task = asyncio.ensure_future(program(operation, "plain")(client))
        await asyncio.to_thread(stage.server.wait_for, 1)
        task.cancel("enough")
        return await task

    seen = compare("async", cancelled, Text("late", think_s=30))
    assert seen["outcome"]["type"] is asyncio.CancelledError


def test_a_connection_refused_is_the_same_error(colour: str, compare: Any) -> None:
    seen = compare(colour, program("chat", "plain"), Text("x"), base_url="http://127.0.0.1:9/v1")
    assert seen["outcome"]["type"] is openai.APIConnectionError
