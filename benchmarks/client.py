"""Give the real client with its HTTP and JSON work taken out, and the work to do with it.

The client's own code runs from the method that a program calls to the object that it gets back. What is taken out is what costs most of
a call and concerns nobody here: walking the parameters through their types, writing the request, parsing the answer. What is left of
it is measured as the bare client, and subtracted.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import importlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai

MODEL = "gpt-4o-mini"
MESSAGES: Any = [
    {"role": "system", "content": "You are a helpful assistant that answers in one short sentence."},
    {"role": "user", "content": "Say hello to the people who read this, and tell them what the time is in Reykjavik."},
]
NINE_TOKENS = "The quick brown fox jumps over the lazy dog"
"""What is embedded: as many tokens as the answer tells, so that no limit is passed by more than was asked for."""
_NAMED = {"id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT", "created": 1, "model": "gpt-4o-mini-2024-07-18"}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
_VECTOR = base64.b64encode(struct.pack("<64f", *(index / 64 for index in range(64)))).decode()
_TOLD = {"type": "message", "id": "msg_67ccd2bf17f0819081ff3bb2cf6508e60bb6a6b452d3795b", "role": "assistant", "status": "completed"}
_ANSWERS: dict[str, dict[str, Any]] = {
    "chat/completions": {**_NAMED, "object": "chat.completion", "choices": [_CHOICE], "usage": _USAGE},
    "embeddings": {
        "object": "list",
        "model": "text-embedding-3-small",
        "data": [{"object": "embedding", "index": 0, "embedding": _VECTOR}],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    },
    "responses": {
        "id": "resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-4o-mini-2024-07-18",
        "output": [{**_TOLD, "content": [{"type": "output_text", "text": "Hello!", "annotations": []}]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    },
}
_RAW = "x-stainless-raw-response"


def _chunk(delta: dict[str, str], finish: str | None = None, **more: object) -> dict[str, object]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {**_NAMED, "object": "chat.completion.chunk", "choices": choices, **more}


_EVENTS = (
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": " hello"}),
    _chunk({}, "stop"),
    {**_NAMED, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE},
)


# -- the client ---------------------------------------------------------------------------------------------------


def _http() -> Any:
    """Return the HTTP library that the client came with."""
    try:
        return importlib.import_module("httpx2")
    except ImportError:
        return importlib.import_module("httpx")


class _Told(_http().Response):  # type: ignore[misc]  # whichever HTTP library the client came with
    """Be an answer that was parsed before."""

    told: Any = None

    def json(self, **_: Any) -> Any:
        return self.told


class _Prepared:
    """Hold a request and an answer for each path, made once."""

    def __init__(self, base: str) -> None:
        request, headers = _http().Request, {"content-type": "application/json"}
        self._requests = {f"{base}/{path}": request("POST", f"{base}/{path}", json={}) for path in _ANSWERS}
        self._answers: dict[str, Any] = {}
        for path, told in _ANSWERS.items():
            answer = _Told(200, content=b"{}", headers=headers)
            answer.told = told
            self._answers[f"{base}/{path}"] = answer

    def request(self, url: Any, given: dict[str, Any]) -> Any:
        """Return a request of its own; None for one that only its own headers make: the raw answer is asked for."""
        known = self._requests.get(str(url))
        if known is None or any(name.lower() == _RAW for name, _ in given["headers"]):
            return None
        request = copy.copy(known)
        request.extensions = {"timeout": {}}
        request.streamed = b'"stream":true' in (given.get("content") or b"").replace(b" ", b"")
        return request

    def answer(self, request: Any) -> Any:
        """Return the answer; that of a stream is empty, since its events were made before."""
        streamed = getattr(request, "streamed", False)
        answer = _Told(200, content=b"", headers={"content-type": "text/event-stream"}) if streamed else self._answers[str(request.url)]
        answer.request = request
        return answer


_BASE = "http://model.invalid/v1"


def sync_client() -> openai.OpenAI:
    """Give a client whose HTTP library answers at once."""
    prepared = _Prepared(_BASE)

    class Instant(_http().Client):  # type: ignore[misc]  # whichever HTTP library the client came with
        def build_request(self, method: str, url: Any, **given: Any) -> Any:
            return prepared.request(url, given) or super().build_request(method, url, **given)

        def send(self, request: Any, **_: Any) -> Any:
            return prepared.answer(request)

    return openai.OpenAI(api_key="none", base_url=_BASE, http_client=Instant())


def async_client() -> openai.AsyncOpenAI:
    """Give one for tasks."""
    prepared = _Prepared(_BASE)

    class Instant(_http().AsyncClient):  # type: ignore[misc]  # whichever HTTP library the client came with
        def build_request(self, method: str, url: Any, **given: Any) -> Any:
            return prepared.request(url, given) or super().build_request(method, url, **given)

        async def send(self, request: Any, **_: Any) -> Any:
            return prepared.answer(request)

    return openai.AsyncOpenAI(api_key="none", base_url=_BASE, http_client=Instant())


def take_parameters_as_they_are() -> None:
    """Have the client's methods send their parameters without walking them through their types, for the rest of this process.

    A client of another make keeps its walk, which is subtracted like the rest.
    """

    def given(data: Any, *_: Any, **__: Any) -> Any:
        return {name: value for name, value in data.items() if type(value) not in left_out} if isinstance(data, dict) else data

    async def given_later(data: Any, *_: Any, **__: Any) -> Any:
        return given(data)

    left_out = {getattr(openai, name) for name in ("NotGiven", "Omit") if hasattr(openai, name)}
    for name in ("chat.completions.completions", "embeddings", "responses.responses"):
        module: Any = importlib.import_module(f"openai.resources.{name}")
        for transform, instead in (("maybe_transform", given), ("async_maybe_transform", given_later)):
            if hasattr(module, transform):
                setattr(module, transform, instead)


@contextlib.contextmanager
def prepared_stream(texts: int) -> Iterator[None]:
    """Have every stream yield so many chunks of text, and four others, which were parsed before."""
    cast: Any = importlib.import_module("openai.types.chat").ChatCompletionChunk.model_validate
    first, text, *last = map(cast, _EVENTS)
    events = [first, *[text] * texts, *last]

    def prepared(self: Any) -> Iterator[Any]:
        try:
            yield from events
        finally:
            self.response.close()

    kind: Any = openai.Stream
    genuine = kind.__stream__
    kind.__stream__ = prepared
    try:
        yield
    finally:
        kind.__stream__ = genuine


# -- the work -----------------------------------------------------------------------------------------------------


def chat(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one chat completion."""
    return lambda: bot.chat.completions.create(model=MODEL, messages=MESSAGES)


def response(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one response."""
    return lambda: bot.responses.create(model=MODEL, input="Say hello to the people who read this.")


def embedding(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one embedding."""
    return lambda: bot.embeddings.create(model="text-embedding-3-small", input=NINE_TOKENS)


def stream(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one stream, read to its end; how many chunks it has `prepared_stream` says. It returns the last one, which has the usage."""

    def read() -> Any:
        (last,) = deque(bot.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True), maxlen=1)
        return last

    return read


class Gathered:
    """Make 100 calls at once, in one loop that stays."""

    CALLS = 100

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._bot = async_client()

    async def once(self) -> Any:
        """Make one call."""
        return await self._bot.chat.completions.create(model=MODEL, messages=MESSAGES)

    def work(self, once: Callable[[], Awaitable[Any]]) -> Callable[[], object]:
        """Give the piece of work: `once`, a hundred times at once."""

        async def together() -> None:
            await asyncio.gather(*(once() for _ in range(self.CALLS)))

        return lambda: self._loop.run_until_complete(together())
