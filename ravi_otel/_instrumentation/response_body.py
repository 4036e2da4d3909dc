"""A bounded copy of a body that its user reads without us, which is read when they are done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from ravi_otel._instrumentation.formats.fields import class_of
from ravi_otel._instrumentation.formats.sse import events_of
from ravi_otel.policy._usage import Reply

MOST_KEPT: Final = 16 * 1024 * 1024
"""Bytes of one body, as sent and as decoded; what a longer one used is unknown."""

_MOST_MARKS: Final = 200_000
"""Commas and brackets of what is read at once: each is a value to make, and a program waits for all of them."""

_MOST_EVENTS: Final = 10_000
_MOST_READ: Final = 4 * 1024 * 1024
_HEAD: Final = 64 * 1024
_TAILS: Final = (1024 * 1024, 64 * 1024)
_BLANK: Final = re.compile(rb"\r?\n\r?\n|\r\r")

_PIECE: Final = 512
"""Compressed bytes that are opened at once: a hostile body grows a hundred thousandfold."""

_DESCRIBING: Final = ("content-type", "content-encoding")


class BodyCopy:
    """Collect the bytes of one response as they pass; holds nothing of the response itself.

    `streamed` says that it is made of server-sent events, `ended` that its reader came to its end. Bodies that are neither
    those nor JSON nor text are not kept.

    What is read is bounded to some tens of milliseconds. JSON has at most 200,000 commas and brackets, or is unknown. Of events
    beyond 4 MiB, 10,000 of them, or as many marks, the first 64 KiB and the last MiB are read (64 KiB where that is as heavy):
    usage comes last, and an estimate is scaled by what was left out.
    """

    __slots__ = ("_ends_itself", "_headers", "_kept", "_kind", "_share", "_size", "_stated", "ended", "streamed")

    def __init__(self, response: Any) -> None:
        self._kind = _library_class(response)
        self._headers = {name: value for name in _DESCRIBING if (value := response.headers.get(name)) is not None}
        content_type = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        self.streamed = content_type == "text/event-stream"
        kept = self.streamed or content_type.endswith("json") or content_type.startswith("text/")
        self._kept: list[bytes] | None = [] if kept else None
        self._share = (1, 1)  # what of the events was read
        self._ends_itself = content_type.endswith("json")
        self._stated = response.headers.get("content-length")
        self._size = 0
        self.ended = False

    def put(self, content: bytes) -> BodyCopy:
        """Take the whole content, decoded, as the HTTP library keeps it anyway; returns itself."""
        self._headers.pop("content-encoding", None)
        self._kept = [content]
        self.ended = True
        return self

    @property
    def whole(self) -> bool:
        """Whether nothing of it is missing, or that reading it will show that: half a JSON object is none."""
        return self.ended or self._ends_itself or self._stated == str(self._size)

    def add(self, data: bytes) -> None:
        """Keep what came, unless it grows too large to be kept at all."""
        if self._kept is None:
            return
        self._size += len(data)
        if self._size > MOST_KEPT:
            self._kept = None
        else:
            self._kept.append(data)

    def content(self) -> bytes:
        """Return it decoded; raises where that cannot be, or not all of it was kept, or it would take long to read."""
        found = b"".join(self._decoded())
        if _is_heavy(found):
            raise ValueError("too many values")
        return found

    def events(self) -> Iterator[Any]:
        """Return each event's JSON, up to the first that is none; nothing of a body that was not kept, and the ends of a long one."""
        parts: list[bytes] = []
        with suppress(Exception):  # what could be opened until then came
            parts.extend(self._decoded())
        data = b"".join(parts)
        if len(data) <= _MOST_READ and not _is_heavy(data):
            return events_of(data)
        head, tail = data[:_HEAD], b""
        for size in _TAILS:
            tail = data[max(_HEAD, len(data) - size) :]
            if not _is_heavy(tail):
                break
        begins = _BLANK.search(tail)  # the event that was cut in two is none
        tail = b"" if begins is None else tail[begins.end() :]
        self._share = (len(head) + len(tail), len(data))
        return chain(events_of(head), events_of(tail))

    def scaled(self, reply: Reply) -> Reply:
        """Estimate from what was read of the events how much there was in all of them."""
        usage, (read, size) = reply.usage, self._share
        if usage is None or usage.source != "estimated" or read >= size:
            return reply
        return replace(reply, usage=replace(usage, output_tokens=usage.output_tokens * size // max(1, read)))

    def _decoded(self) -> Iterator[bytes]:
        """Undo the content's encodings by the HTTP library's own means; raises beyond the bound."""
        if self._kept is None:
            raise ValueError("not kept")
        raw = b"".join(self._kept)
        if "content-encoding" not in self._headers:
            yield raw
            return
        size = 0
        # Given as an iterator, so that nothing is opened before it is asked for.
        pieces = (raw[at : at + _PIECE] for at in range(0, len(raw), _PIECE))
        for data in self._kind(200, headers=self._headers, content=pieces).iter_bytes():
            size += len(data)
            if size > MOST_KEPT:
                raise ValueError("too large")
            yield data


def _is_heavy(data: bytes) -> bool:
    if data.count(b"data:") > _MOST_EVENTS:
        return True
    return data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_MARKS


def _library_class(response: Any) -> Any:
    """Return the HTTP library's class of a response: a subclass may be made in other ways."""
    for cls in class_of(response).__mro__:
        if cls.__name__ == "Response" and cls.__module__.startswith("httpx"):
            return cls
    return class_of(response)


def content_of(response: Any) -> BodyCopy | None:
    """Return a body its user has read whole, and the HTTP library keeps; None of one that was not."""
    try:
        return BodyCopy(response).put(response.content)
    except Exception:  # noqa: BLE001 - not read
        return None
