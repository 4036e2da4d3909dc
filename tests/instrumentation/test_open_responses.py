"""An open response is a response like any other: it is copied, pickled and looked at, and left wherever its reader likes."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

import ravi_otel
from ravi_otel._instrumentation.http_library import BodyCopy

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Count."}]}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
EVENTS = [
    b"data: " + json.dumps(HEAD | {"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": None}]}).encode() + b"\n\n",
    b"data: " + json.dumps(HEAD | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode() + b"\n\n",
    b"data: " + json.dumps(HEAD | {"choices": [], "usage": USAGE}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]
SSE = {"content-type": "text/event-stream"}
METHODS = ("iter_raw", "aiter_raw", "read", "aread", "close", "aclose")
LINES = [
    json.dumps({"custom_id": str(number), "response": {"status_code": 200, "body": {"model": "gpt-4o-mini", "usage": USAGE}}}).encode()
    + b"\n"
    for number in range(5)
]


@pytest.fixture
def make(http: Any) -> Callable[..., Any]:
    """Make a client whose every request is answered with these pieces."""

    def made(pieces: list[bytes], headers: dict[str, str], **hooks: Any) -> Any:
        class Pieces(http.SyncByteStream):  # type: ignore[misc]  # the class is the client's own
            def __iter__(self) -> Iterator[bytes]:
                yield from pieces

        def answer(_: Any) -> Any:
            return http.Response(200, headers=headers, stream=Pieces())

        transport = http.MockTransport(answer)
        return openai.OpenAI(api_key="k", max_retries=0, http_client=http.Client(transport=transport, event_hooks=hooks))

    return made


# -- copies ----------------------------------------------------------------------------------------------------------


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, through_pickle])
def test_a_copy_of_an_open_response_is_no_part_of_it(again: Any, make: Any, instrumented: Any) -> None:
    stream = make(EVENTS, SSE).chat.completions.create(**STREAM)
    copied = again(stream.response)
    assert {"__getstate__", *METHODS}.isdisjoint(vars(copied))
    copied.close()
    assert not stream.response.is_closed
    assert len(list(stream)) == 3
    (span,) = instrumented.spans("chat gpt-4o-mini")
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert "error.type" not in span.attributes


def test_a_copy_keeps_what_a_program_put_on_the_response(make: Any, instrumented: Any) -> None:
    def close() -> None:
        closed.append("theirs")

    closed: list[str] = []

    def mark(response: Any) -> None:
        response.close = close
        response.note = None

    stream = make(EVENTS, SSE, response=[mark]).chat.completions.create(**STREAM)
    copied = copy.copy(stream.response)
    assert copied.close is close
    assert vars(copied)["note"] is None
    assert stream.response.close is not close
    stream.response.close()
    assert closed == ["theirs"]
    list(stream)


def test_a_copy_of_an_unparsed_raw_response_parses_itself(make: Any, instrumented: Any) -> None:
    raw = make(EVENTS, SSE).chat.completions.with_raw_response.create(**STREAM)
    copied = copy.copy(raw)
    assert {"__getstate__", "parse"}.isdisjoint(vars(copied))
    assert {"__getstate__", "parse"} < set(vars(raw))
    assert len(list(raw.parse())) == 3
    assert {"__getstate__", "parse"}.isdisjoint(vars(raw))


def test_nothing_of_ours_is_left_on_a_response_that_ended(make: Any, instrumented: Any) -> None:
    stream = make(EVENTS, SSE).chat.completions.create(**STREAM)
    list(stream)
    assert {"__getstate__", *METHODS}.isdisjoint(vars(stream.response))


# -- looks -----------------------------------------------------------------------------------------------------------


def test_what_stands_before_a_method_looks_like_it(make: Any, http: Any, instrumented: Any) -> None:
    raw = make(EVENTS, SSE).chat.completions.with_raw_response.create(**STREAM)
    response, plain = raw.http_response, http.Response(200)
    for name in METHODS:
        ours, theirs = getattr(response, name), getattr(plain, name)
        assert name in vars(response)
        assert (ours.__name__, ours.__qualname__, ours.__doc__) == (theirs.__name__, theirs.__qualname__, theirs.__doc__)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
        assert ours.__self__ is response
    response.close()


def test_only_what_can_be_read_in_its_colour_is_watched_of_a_stream(make: Any, instrumented: Any) -> None:
    response = make(EVENTS, SSE).chat.completions.create(**STREAM).response
    assert set(METHODS) & set(vars(response)) == {"iter_raw", "read", "close"}
    response.close()


def test_a_method_given_too_much_says_so_in_its_own_words(make: Any, http: Any, instrumented: Any) -> None:
    stream = make(EVENTS, SSE).chat.completions.create(**STREAM)
    with pytest.raises(TypeError) as plain:
        http.Response(200).read(1)
    with pytest.raises(TypeError) as ours:
        stream.response.read(1)
    assert str(ours.value) == str(plain.value)
    assert len(list(stream)) == 3


def test_iterators_have_the_names_they_have_without_us(make: Any, instrumented: Any) -> None:
    stream = make(EVENTS, SSE).chat.completions.create(**STREAM)
    assert (stream._iterator.__name__, stream._iterator.__qualname__) == ("__stream__", "Stream.__stream__")
    stream.close()
    with make(EVENTS, SSE).chat.completions.with_streaming_response.create(**STREAM) as raw:
        assert raw.http_response.iter_raw().__qualname__ == "Response.iter_raw"


# -- bodies left before their end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "whole"), [("application/json", True), ("text/plain", False)])
def test_only_json_shows_by_itself_that_a_part_is_missing(kind: str, whole: bool, http: Any) -> None:
    body = BodyCopy(http.Response(200, headers={"content-type": kind}))
    body.add(b"{")
    assert body.whole is whole
    body.ended = True
    assert body.whole


# -- read before we had it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["text", "parse", "drop"])
def test_a_raw_stream_that_a_hook_has_read_is_told_whole(way: str, make: Any, instrumented: Any) -> None:
    client = make(EVENTS, SSE, response=[lambda response: response.read()])
    raw = client.chat.completions.with_raw_response.create(**STREAM)
    assert way != "text" or b"one" in raw.content
    assert way != "parse" or len(list(raw.parse())) == 3
    (span,) = instrumented.spans("chat gpt-4o-mini")
    assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"]) == (7, 3)
    assert "error.type" not in span.attributes


def test_a_raw_stream_that_a_hook_has_closed_unread_is_no_whole_answer(make: Any, instrumented: Any, settled: Any) -> None:
    client = make(EVENTS, SSE, response=[lambda response: response.close()])
    with ravi_otel.run("r") as run:
        client.chat.completions.with_raw_response.create(**STREAM)
        settled(run, ["abandoned"])
