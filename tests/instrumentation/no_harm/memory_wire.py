"""Carry requests to answers without a network: a transport of the client's own HTTP library, and what it was sent."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai

_KIND = next(kind for kind in openai.DefaultHttpxClient.__mro__ if kind.__module__.startswith("httpx"))
HTTP: Any = sys.modules[_KIND.__module__.partition(".")[0]]
"""The HTTP library this version of the client is built on."""

BOUNDARY = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What the client makes up anew for each request: boundaries of parts, keys of idempotency."""

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
FOR_EVER = "for ever"


@dataclass(frozen=True)
class Served:
    """Be one answer: its parts come one by one, and then `fails`, the name of an error of the HTTP library, if any.

    With `refuses`, no answer comes at all but that error, or nothing for ever.
    """

    parts: tuple[bytes, ...] = (b"{}",)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    fails: str | None = None
    refuses: str | None = None


Answers = Callable[[Any], Served]


def error(name: str, request: Any) -> Exception:
    return getattr(HTTP, name)(f"the {name} of this test", request=request)


@dataclass
class Wire:
    """Answer what is played, the last of it for ever, and keep what was sent."""

    answers: list[Served | Answers] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)

    def play(self, *answers: Served | Answers) -> None:
        self.answers = list(answers)
        self.sent = []

    def take(self, request: Any) -> Served:
        headers = sorted(request.headers.items())
        self.sent.append(ADDRESS.sub("0x", BOUNDARY.sub("boundary", repr((request.method, str(request.url), headers, request.content)))))
        chosen = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return chosen if isinstance(chosen, Served) else chosen(request)

    def response(self, served: Served, request: Any, stream: Any) -> Any:
        headers = [*served.headers, ("x-request-id", f"req_{len(self.sent)}")]
        return HTTP.Response(served.status, headers=headers, stream=stream, request=request)


class Parts(HTTP.SyncByteStream):
    def __init__(self, served: Served, request: Any) -> None:
        self._served, self._request = served, request

    def __iter__(self) -> Iterator[bytes]:
        yield from self._served.parts
        if self._served.fails is not None:
            raise error(self._served.fails, self._request)


class AsyncParts(HTTP.AsyncByteStream):
    def __init__(self, served: Served, request: Any) -> None:
        self._served, self._request = served, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._served.parts:
            yield part
        if self._served.fails is not None:
            raise error(self._served.fails, self._request)


class MemoryTransport(HTTP.BaseTransport):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def handle_request(self, request: Any) -> Any:
        request.read()
        served = self._wire.take(request)
        if served.refuses is not None:
            raise error("ReadTimeout" if served.refuses == FOR_EVER else served.refuses, request)
        return self._wire.response(served, request, Parts(served, request))


class AsyncMemoryTransport(HTTP.AsyncBaseTransport):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        served = self._wire.take(request)
        if served.refuses == FOR_EVER:
            await asyncio.Event().wait()
        if served.refuses is not None:
            raise error(served.refuses, request)
        return self._wire.response(served, request, AsyncParts(served, request))
