"""Hold what programs ask, odd but real: each changes the arguments of an ordinary call."""

# ruff: noqa: E501 - one entry a line, however long

from __future__ import annotations

import io
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import openai

Given = dict[str, Any]
Change = Callable[[Given, str], Given]
"""Gives the changed arguments; the second is the name of the one that holds what is asked."""


class Weird:
    """No JSON can hold it."""

    def __repr__(self) -> str:
        return "Weird()"


class Message(openai.BaseModel):
    role: str
    content: str


def deep(levels: int) -> Any:
    made: Any = {}
    for _ in range(levels):
        made = {"a": made}
    return made


def words(make: Callable[[Any], Any]) -> Change:
    """Change what is asked."""
    return lambda given, name: {**given, name: make(given.get(name))}


def also(**more: Any) -> Change:
    return lambda given, name: {**given, **more}


def user(content: Any) -> Any:
    return lambda was: [{"role": "user", "content": content}]


def absent() -> Any:
    return getattr(openai, "omit", openai.NOT_GIVEN)


def body(make: Callable[[], Given]) -> Change:
    return lambda given, name: {**given, "extra_body": make()}


def headers(make: Callable[[], Given]) -> Change:
    return lambda given, name: {**given, "extra_headers": make()}


def _without(given: Given, name: str) -> Given:
    return {key: value for key, value in given.items() if key != name}


def _loop() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


REQUESTS: dict[str, Change] = {
    "as it is": also(),
    "generator": words(lambda was: (each for each in (was if isinstance(was, list) else [was]))),
    "iterator": words(lambda was: iter(was if isinstance(was, list) else [was])),
    "tuple": words(lambda was: tuple(was) if isinstance(was, list) else (was,)),
    "list of it": words(lambda was: [was]),
    "map": words(lambda was: map(str, was if isinstance(was, list) else [was])),
    "set": words(lambda was: {"a"}),
    "models": words(lambda was: [Message(role="user", content="Hi")]),
    "an answer of before": words(lambda was: [openai.types.chat.ChatCompletionMessage(role="assistant", content="Hi")]),
    "generator in content": words(lambda was: [{"role": "user", "content": ({"type": "text", "text": each} for each in "ab")}]),
    "parts": words(user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}])),
    "parts of no kind": words(user([{"text": "a"}, 3, None, {"type": 7}, [], "x"])),
    "tool result": words(lambda was: [{"role": "tool", "tool_call_id": "1", "content": None}, {"role": "assistant", "tool_calls": [{}]}]),
    "broken tool calls": words(lambda was: [{"role": "assistant", "tool_calls": "no"}, {"role": "assistant", "tool_calls": [3, {"function": 4}]}]),
    "other mapping": words(lambda was: [OrderedDict(role="user", content="Hi"), UserDict(role="user", content="x")]),
    "nothing": words(lambda was: None),
    "empty text": words(lambda was: ""),
    "empty list": words(lambda was: []),
    "empty mapping": words(lambda was: {}),
    "number": words(lambda was: 7),
    "huge number": words(lambda was: 2**200),
    "true": words(lambda was: True),
    "nan": words(lambda was: float("nan")),
    "bytes": words(lambda was: b"bytes"),
    "broken bytes": words(lambda was: b"\xff\xfe"),
    "memory": words(lambda was: bytearray(b"bytes")),
    "open file": words(lambda was: io.BytesIO(b"file")),
    "named bytes": words(lambda was: ("a.bin", b"file", "application/x-odd", {"X-Part": "1"})),
    "object": words(lambda was: Weird()),
    "list of odd things": words(lambda was: [3, None, "x", b"y", 1.5, [], {}]),
    "lone surrogate": words(lambda was: "\ud800 alone"),
    "nul and controls": words(lambda was: "a\x00b\r\n\x1b[31m\u2028"),
    "every script": words(lambda was: "häßlich 漢字 \U0001f600 \u202e"),
    "slash and dots": words(lambda was: "../../a/b?c=d#e"),
    "long text": words(lambda was: "word " * 20_000),
    "many": words(lambda was: [{"role": "user", "content": "x"}] * 300),

    "deep": words(lambda was: deep(60)),
    "endless": words(lambda was: _loop()),
    "left out": _without,
    "not given": words(lambda was: openai.NOT_GIVEN),
    "omitted": words(lambda was: absent()),
    "model of another type": also(model=7),
    "no model": also(model=""),
    "model nobody knows": also(model="ft:gpt-4o-mini:org::a/b c"),
    "model is null": also(model=None),
    "model is a list": also(model=["gpt-4o"]),
    "nulls": also(temperature=None, user=None, n=None),
    "huge numbers": also(max_tokens=2**70, n=3, seed=-(2**100), temperature=1e308, max_output_tokens=2**66, dimensions=2**65),
    "negative numbers": also(max_tokens=-1, n=-5, max_output_tokens=-(2**64)),
    "not numbers": also(temperature=float("nan"), top_p=float("inf"), max_tokens="12", n="2", max_output_tokens=[1]),
    "no numbers at all": also(n=True, max_tokens=1.5, stop=()),
    "user and metadata": also(user="someone", metadata={"a": "b"}),
    "deep metadata": also(metadata=deep(200)),
    "tools that are none": also(tools="all", tool_choice=3),
    "tools from a generator": lambda given, name: {**given, "tools": ({"type": "function", "function": {"name": each}} for each in "ab")},
    "stream as text": also(stream="yes"),
    "stream is null": also(stream=None),
    "stream not given": also(stream=openai.NOT_GIVEN),
    "stream is false": also(stream=False),
    "stream options odd": also(stream_options={"include_usage": "maybe", "x": 1}),
    "stream options off": also(stream_options={"include_usage": False}),
    "service tier": also(service_tier="flex", store=True),
    "extra body": body(lambda: {"messages": [{"role": "user", "content": "Other"}], "model": "gpt-4o", "x": [1]}),
    "extra body is null": also(extra_body=None),
    "extra body is text": also(extra_body="text"),
    "extra body is a list": also(extra_body=[1]),
    "extra body streams": body(lambda: {"stream": True}),
    "extra body does not stream": body(lambda: {"stream": False}),
    "extra body with odd keys": body(lambda: {1: 2, None: 3}),
    "extra body not writable": body(lambda: {"x": Weird()}),
    "extra body keys of tuples": body(lambda: {(3, 4): 5}),
    "extra headers": headers(lambda: {"X-A": "1", "Authorization": "Bearer other", "X-Stainless-Arch": openai.NOT_GIVEN}),
    "extra headers null": also(extra_headers=None),
    "extra headers of numbers": headers(lambda: {"X-N": 3}),
    "extra headers not latin": headers(lambda: {"X-N": "漢"}),
    "extra headers with a break": headers(lambda: {"X-N": "a\r\nb"}),
    "raw asked by header": headers(lambda: {"X-Stainless-Raw-Response": "true"}),
    "streaming asked by header": headers(lambda: {"X-Stainless-Raw-Response": "stream"}),
    "gzip asked": headers(lambda: {"Accept-Encoding": "gzip", "Accept": "text/event-stream"}),
    "idempotency": headers(lambda: {"Idempotency-Key": "one"}),
    "extra query": also(extra_query={"a": "b c", "list": [1, 2], "deep": {"x": None}}),
    "extra query odd": also(extra_query={"a": Weird()}),
    "all extras": also(extra_headers={"X-A": "1"}, extra_query={"q": 1}, extra_body={"z": None}, timeout=7),
    "timeout object": also(timeout=openai.Timeout(10, connect=2)),
    "no timeout": also(timeout=None),
    "no time": also(timeout=0),
    "bad timeout": also(timeout="soon"),
    "wrong keyword": also(mesages=[]),
    "response format": also(response_format={"type": "json_object"}),
    "a class as format": also(response_format=Message),
    "format of no kind": also(response_format=Weird()),
}  # fmt: skip
