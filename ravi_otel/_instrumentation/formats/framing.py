"""Cut a stream's bytes into events as they come: four framings, each with a parser that is bounded and never raises.

Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html. Newline-delimited JSON, as Ollama sends it:
https://docs.ollama.com/api/streaming. AWS event streams: https://smithy.io/2.0/aws/amazon-eventstream.html. An array of JSON is what
Google's `streamGenerateContent` sends unless it is asked for `alt=sse`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from binascii import crc32
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from struct import Struct
from typing import Any, Final

MOST_EVENT: Final = 8 * 1024 * 1024
"""The most bytes of one event; a larger one is skipped, and nothing of it is kept."""

_LIGHT: Final = 64 * 1024
_MOST_MARKS: Final = 200_000
"""The most commas and brackets of one event: each makes a value, and the program waits meanwhile."""

_UNREADABLE: Final = object()


class StreamParser(ABC):
    """A parser of one stream into the JSON of its events. Whatever the bytes are, it never raises, and its buffer is bounded.

    `lossy` means that something could not be read: too large an event, invalid JSON, or a wrong checksum.
    """

    __slots__ = ("lossy",)

    def __init__(self) -> None:
        self.lossy = False

    @abstractmethod
    def feed(self, data: bytes) -> list[Any]:
        """Return the events that these bytes complete, however the stream was cut into pieces."""

    def end(self) -> list[Any]:
        """Return the events that the end of the stream completes; call it once."""
        return []

    def _read(self, data: bytes, into: list[Any]) -> None:
        """Add the JSON of one event to the others."""
        found: Any = _UNREADABLE
        if len(data) <= _LIGHT or sum(map(data.count, (b",", b"[", b"{"))) <= _MOST_MARKS:
            with suppress(ValueError, RecursionError):
                found = json.loads(data)
        if found is _UNREADABLE:
            self.lossy = True
        else:
            into.append(found)


class Framing(Enum):
    """A framing, by the content type that it is sent with."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
    EVENT_STREAM = "application/vnd.amazon.eventstream"
    JSON_ARRAY = "application/json"

    def parser(self) -> StreamParser:
        """Return a parser for one stream."""
        return _PARSERS[self]()

    @classmethod
    def of(cls, content_type: str | None) -> Framing | None:
        """Return the framing of a streamed body by its content type; None for any other type."""
        return _BY_TYPE.get((content_type or "").partition(";")[0].strip().lower())


class _Lines(StreamParser):
    """A parser by lines, which buffers the one line that has no end yet."""

    __slots__ = ("_after_return", "_size", "_skips", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []
        self._size = 0
        self._skips = False  # whether the rest of the line is skipped: it is too long
        self._after_return = False

    def _lines(self, data: bytes) -> list[bytes]:
        if self._after_return and data:
            self._after_return = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._after_return = data.endswith(b"\r")
        whole: list[bytes] = []
        pieces = data.splitlines(keepends=True)
        last = pieces.pop() if pieces and not pieces[-1].endswith((b"\n", b"\r")) else b""
        for piece in pieces:
            self._keep(piece.rstrip(b"\r\n"))
            if not self._skips:
                whole.append(b"".join(self._waiting))
            self._waiting, self._size, self._skips = [], 0, False
        self._keep(last)
        return whole

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MOST_EVENT:
            self._waiting, self._skips, self.lossy = [], True, True
        elif piece and not self._skips:
            self._waiting.append(piece)

    def _rest(self) -> bytes:
        return b"".join(self._waiting)


class _ServerSentEvents(_Lines):
    """Events up to `[DONE]`. One with a name that begins with `thread.` is wrapped with it, as clients do: its data lacks it."""

    __slots__ = ("_data", "_done", "_heavy", "_name", "_so_far")

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []
        self._name = b""
        self._so_far = 0
        self._heavy = False
        self._done = False

    def feed(self, data: bytes) -> list[Any]:
        found: list[Any] = []
        if not self._done:
            for line in self._lines(data):
                if not self._done:
                    self._line(line, found)
        return found

    def end(self) -> list[Any]:
        found: list[Any] = []
        if not self._done:
            rest = self._rest()
            for line in (rest, b""):
                self._line(line, found)
        return found

    def _line(self, line: bytes, into: list[Any]) -> None:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._so_far += len(value) + 1
                if self._so_far > MOST_EVENT:
                    self._data, self._heavy = [], True
                else:
                    self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ")[:256]
            return
        data, name = b"\n".join(self._data), self._name
        heavy, self._heavy = self._heavy, False
        self._data, self._name, self._so_far = [], b"", 0
        if heavy:
            self.lossy = True
        elif data.startswith(b"[DONE]"):
            self._done = True
        elif data:
            at = len(into)
            self._read(data, into)
            if name.startswith(_NAMED):
                into[at:] = [{"event": name.decode("utf-8", "replace"), "data": one} for one in into[at:]]


_NAMED: Final = b"thread."
"""The start of the names of Assistants' events, which their data lacks."""


class _JsonLines(_Lines):
    __slots__ = ()

    def feed(self, data: bytes) -> list[Any]:
        found: list[Any] = []
        for line in self._lines(data):
            if line.strip():
                self._read(line, found)
        return found

    def end(self) -> list[Any]:
        found: list[Any] = []
        if (rest := self._rest()).strip():
            self._read(rest, found)
        return found


class _JsonArray(StreamParser):
    """The elements of an array as they come; a body that is a single object is one event."""

    __slots__ = ("_begun", "_depth", "_element", "_escaped", "_in_array", "_in_text", "_size")

    def __init__(self) -> None:
        super().__init__()
        self._element: list[bytes] = []
        self._size = 0
        self._depth = 0  # of brackets within the element
        self._begun = False
        self._in_array = False
        self._in_text = False
        self._escaped = False

    def feed(self, data: bytes) -> list[Any]:
        found: list[Any] = []
        at = 0 if self._begun else self._begin(data)
        start = at
        while at < len(data):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            mark = (_IN_TEXT if self._in_text else _OUTSIDE).search(data, at)
            if mark is None:
                break
            at = mark.end()
            if self._separates(mark.group()):
                self._keep(data[start : at - 1])
                self._whole(found)
                start = at
        self._keep(data[start:])
        return found

    def _begin(self, data: bytes) -> int:
        """Return where the first element begins: after the bracket of an array."""
        at = len(data) - len(data.lstrip(_BLANKS))
        self._begun = at < len(data)
        self._in_array = data.startswith(b"[", at)
        return at + self._in_array

    def _separates(self, mark: bytes) -> bool:
        """Read a quote, backslash, bracket or comma; whether it ends an element."""
        if self._in_text:
            self._in_text = mark != b'"'
            self._escaped = mark == b"\\"
        elif mark == b'"':
            self._in_text = True
        elif mark in b"{[":
            self._depth += 1
        elif mark in b"]}" and self._depth:
            self._depth -= 1
        else:
            return self._in_array and not self._depth
        return False

    def end(self) -> list[Any]:
        found: list[Any] = []
        self._whole(found)
        return found

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MOST_EVENT:
            self._element = []
        elif piece:
            self._element.append(piece)

    def _whole(self, into: list[Any]) -> None:
        element, size = b"".join(self._element), self._size
        self._element, self._size = [], 0
        if size > MOST_EVENT:
            self.lossy = True
        elif element.strip(_BLANKS):
            self._read(element, into)


_BLANKS: Final = b" \t\r\n"
_IN_TEXT: Final = re.compile(rb'["\\]')
_OUTSIDE: Final = re.compile(rb'["{}\[\],]')


class _AwsEventStream(StreamParser):
    """Messages as `{name of the event or exception: its JSON}`.

    After a wrong checksum or length the messages cannot be separated, and nothing more is read. Too large a message is skipped.
    """

    __slots__ = ("_broken", "_prelude", "_size", "_skips", "_waiting", "_wanted")

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []
        self._size = 0
        self._wanted = _PRELUDE.size
        self._prelude: tuple[int, int] | None = None
        self._skips = 0
        self._broken = False

    def feed(self, data: bytes) -> list[Any]:
        found: list[Any] = []
        view = memoryview(data)
        while view and not self._broken:
            if self._skips:
                passed = min(self._skips, len(view))
                self._skips -= passed
                view = view[passed:]
                continue
            piece = view[: self._wanted - self._size]
            self._waiting.append(bytes(piece))
            self._size += len(piece)
            view = view[len(piece) :]
            if self._size == self._wanted:
                self._next(found)
        return found

    def end(self) -> list[Any]:
        if self._size or self._skips:
            self.lossy = True
        return []

    def _next(self, into: list[Any]) -> None:
        data = b"".join(self._waiting)
        if self._prelude is None:
            self._begin(data)
            return
        _, header_size = self._prelude
        self._waiting, self._size, self._wanted, self._prelude = [], 0, _PRELUDE.size, None
        if crc32(data[:-_CRC]) != int.from_bytes(data[-_CRC:], "big"):
            self._break()
            return
        payload_at = _PRELUDE.size + header_size
        headers = _headers(data[_PRELUDE.size : payload_at])
        name = headers.get(_EVENT) or headers.get(_EXCEPTION) or headers.get(_ERROR)
        if name is None:
            self.lossy = True
            return
        payload = data[payload_at:-_CRC]
        told: list[Any] = []
        if payload.strip():
            self._read(payload, told)
        into.append({name: told[0] if told else {}})

    def _begin(self, data: bytes) -> None:
        size, header_size, checksum = _PRELUDE.unpack(data)
        if crc32(data[:-_CRC]) != checksum or size < _PRELUDE.size + header_size + _CRC:
            self._break()
        elif size > MOST_EVENT:
            self.lossy = True
            self._waiting, self._size = [], 0
            self._skips = size - _PRELUDE.size
        else:
            self._prelude, self._wanted = (size, header_size), size

    def _break(self) -> None:
        self._broken = self.lossy = True
        self._waiting, self._size = [], 0


_PRELUDE: Final = Struct("!III")
"""The length of the message, that of its headers, and the checksum of both."""

_CRC: Final = 4
_EVENT, _EXCEPTION, _ERROR = ":event-type", ":exception-type", ":error-code"
_TEXT: Final = 7
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type: true, false, numbers, a time, a UUID. Bytes and text have a length of their own."""

_COUNTED: Final = frozenset({6, _TEXT})


def _headers(data: bytes) -> Mapping[str, str]:
    """Return the headers that are text, up to the first that is of no known type."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_ends = at + 1 + data[at]
        name = data[at + 1 : name_ends].decode("utf-8", "replace")
        kind = data[name_ends] if name_ends < len(data) else -1
        begins = name_ends + 1
        if kind in _COUNTED:
            size = int.from_bytes(data[begins : begins + 2], "big")
            begins += 2
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            break
        at = begins + size
        if kind == _TEXT and at <= len(data):
            found[name] = data[begins:at].decode("utf-8", "replace")
    return found


_PARSERS: Final[Mapping[Framing, type[StreamParser]]] = {
    Framing.SSE: _ServerSentEvents,
    Framing.NDJSON: _JsonLines,
    Framing.EVENT_STREAM: _AwsEventStream,
    Framing.JSON_ARRAY: _JsonArray,
}
_BY_TYPE: Final[Mapping[str, Framing]] = {
    **{one.value: one for one in Framing},
    "application/jsonl": Framing.NDJSON,
    "application/x-jsonlines": Framing.NDJSON,
    "application/stream+json": Framing.NDJSON,
}
