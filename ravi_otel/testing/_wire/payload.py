"""Hold what goes over the wire, and cut it into events."""

from __future__ import annotations

import json
import re
from binascii import crc32
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ravi_otel.testing._script import Generated, Refusal, Request, Text, ToolCalls

_WORD = re.compile(r"\s*\S+|\s+")
_JSON = "application/json"
_EPOCH_S = 1_767_225_600  # 2026-01-01: ids and times are the same in every run


_SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "application/vnd.amazon.eventstream"
"""What streams are sent as."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Be one HTTP response: `parts` are sent one by one, then the connection is reset if `cut`.

    `events` says that the parts are a stream's although their content type does not.
    """

    parts: Sequence[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"
    cut: bool = False
    events: bool = False

    @property
    def streamed(self) -> bool:
        """Tell whether the parts are the events of a stream."""
        return self.events or self.content_type.partition(";")[0] in (_SSE, NDJSON, EVENT_STREAM)


def plain(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Payload:
    """Give a JSON body."""
    return Payload(parts=(json.dumps(body).encode(),), status=status, headers=headers or {})


def stream(events: Iterable[bytes]) -> Payload:
    """Give server-sent events."""
    return Payload(parts=tuple(events), content_type="text/event-stream; charset=utf-8")


def streamed_array(told: Iterable[Mapping[str, Any]]) -> Payload:
    """Give JSON values as the array that they are one by one."""
    parts = [(b",\r\n" if at else b"[") + json.dumps(one, indent=2).encode() for at, one in enumerate(told)]
    return Payload((*parts, b"]"), content_type=f"{_JSON}; charset=UTF-8", events=True)


def hole(payload: Payload, data: str) -> bytes:
    """Give data as one event of a stream, whatever it is framed in."""
    kind = payload.content_type.partition(";")[0]
    if kind == EVENT_STREAM:
        return aws_message("chunk", data.encode())
    return event(data) if kind == _SSE else data.encode() + b"\n"


def event(data: Mapping[str, Any] | str, name: str | None = None) -> bytes:
    """Give one server-sent event; a string is sent as it is."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def aws_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Give one event of an AWS event stream."""
    return aws_message(name, json.dumps(data, separators=(",", ":")).encode())


def aws_message(name: str, payload: bytes, kind: str = "event") -> bytes:
    """Give one message of an AWS event stream: an "event" or an "exception" of that name, with these bytes."""
    headers = b"".join(
        _header(f":{key}", value) for key, value in ((f"{kind}-type", name), ("content-type", _JSON), ("message-type", kind))
    )
    prelude = (len(headers) + len(payload) + 16).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    whole = prelude + crc32(prelude).to_bytes(4, "big") + headers + payload
    return whole + crc32(whole).to_bytes(4, "big")


def _header(name: str, value: str) -> bytes:
    """Give one header whose value is text, which is type 7."""
    return bytes([len(name)]) + name.encode() + b"\x07" + len(value.encode()).to_bytes(2, "big") + value.encode()


def model_of(request: Request, paths: re.Pattern[str]) -> str | None:
    """Give the model that the path of a request names, where it is one of these paths, whose first group that is."""
    found = paths.fullmatch(request.path)
    return None if found is None else found[1]


def text_of(given: Generated) -> str | None:
    """Give the text of an answer, None of one without."""
    return given.text if isinstance(given, (Text, Refusal, ToolCalls)) else None


def read_arguments(arguments: str) -> Any:
    """Read a tool's arguments; broken JSON goes out as the text it is."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def pieces(text: str, chunks: int | Sequence[str] | None = None) -> Sequence[str]:
    """Cut `text` into so many pieces, into those given, or into words; nothing gives no piece."""
    if chunks is None:
        return _WORD.findall(text)
    if not isinstance(chunks, int):
        return chunks
    size = max(1, -(-len(text) // max(1, chunks)))
    return [text[at : at + size] for at in range(0, len(text), size)]


def created(index: int) -> int:
    """Give the time at which request `index` is said to be answered."""
    return _EPOCH_S + index


def failure(
    status: int,
    message: str,
    *,
    code: str | None = None,
    kind: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Payload:
    """Give an error in OpenAI's shape."""
    error = {"message": message, "type": kind or _kind(status), "param": param, "code": code}
    return plain({"error": error}, status, headers)


def _kind(status: int) -> str:
    if status == 429:  # noqa: PLR2004 - Too Many Requests
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - HTTP's own border
