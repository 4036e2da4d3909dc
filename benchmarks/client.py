"""Give the real client without a network beneath it, and the work to do."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai

MODEL = "gpt-4o-mini"
MESSAGES: Any = [
    {"role": "system", "content": "You are a helpful assistant that answers in one short sentence."},
    {"role": "user", "content": "Say hello to the people who read this, and tell them what the time is in Reykjavik."},
]
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
_NAMED = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o-mini-2024-07-18"}
_ANSWER = {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "finish_reason": "stop"}
_VECTOR = base64.b64encode(struct.pack("<64f", *(index / 64 for index in range(64)))).decode()
_CHAT = json.dumps({**_NAMED, "object": "chat.completion", "choices": [_ANSWER], "usage": USAGE}).encode()
_EMBEDDINGS = json.dumps(
    {
        "object": "list",
        "model": "text-embedding-3-small",
        "data": [{"object": "embedding", "index": 0, "embedding": _VECTOR}],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
).encode()


def _chunk(delta: dict[str, str], finish: str | None = None, **more: object) -> dict[str, object]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {**_NAMED, "object": "chat.completion.chunk", "choices": choices, **more}


_EVENTS = (
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": " hello"}),
    _chunk({}, "stop"),
    {**_NAMED, "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
)
_STREAM = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in _EVENTS) + b"data: [DONE]\n\n"


def _http() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ImportError:
        return importlib.import_module("httpx")


def _answer(request: Any) -> Any:
    if request.url.path.endswith("/embeddings"):
        content, kind = _EMBEDDINGS, "application/json"
    elif b'"stream":true' in request.content.replace(b" ", b""):
        content, kind = _STREAM, "text/event-stream"
    else:
        content, kind = _CHAT, "application/json"
    return _http().Response(200, content=content, headers={"content-type": kind}, request=request)


def sync_client() -> openai.OpenAI:
    """Give a client whose HTTP library answers at once: building requests and parsing answers stays the client's own work."""

    class Instant(_http().Client):  # type: ignore[misc]  # whichever HTTP library the client came with
        def send(self, request: Any, **_: Any) -> Any:
            return _answer(request)

    return openai.OpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=Instant())


def async_client() -> openai.AsyncOpenAI:
    """Give one for tasks."""

    class Instant(_http().AsyncClient):  # type: ignore[misc]  # whichever HTTP library the client came with
        async def send(self, request: Any, **_: Any) -> Any:
            return _answer(request)

    return openai.AsyncOpenAI(api_key="none", base_url="http://model.invalid/v1", http_client=Instant())


def chat(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one chat completion."""
    return lambda: bot.chat.completions.create(model=MODEL, messages=MESSAGES)


def embedding(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one embedding."""
    return lambda: bot.embeddings.create(model="text-embedding-3-small", input="hello world")


def stream(bot: openai.OpenAI) -> Callable[[], Any]:
    """Give one stream, read to its end; how many chunks it has `prepared_stream` says."""

    def read() -> None:
        for _ in bot.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pass

    return read


@contextmanager
def prepared_stream(texts: int) -> Iterator[None]:
    """Have every stream yield chunks that were parsed before: parsing takes a hundred times what is measured here."""
    first, text, *last = list(sync_client().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
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


class Gathered:
    """Make 100 calls at once, in one loop that stays."""

    CALLS = 100

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bot = async_client()

    async def once(self) -> Any:
        """Make one call."""
        return await self.bot.chat.completions.create(model=MODEL, messages=MESSAGES)

    def work(self, once: Callable[[], Any]) -> Callable[[], object]:
        """Give the piece of work: `once`, a hundred times at once."""

        async def together() -> None:
            await asyncio.gather(*(once() for _ in range(self.CALLS)))

        return lambda: self.loop.run_until_complete(together())
