"""Server-sent events, read out of bytes as the generated clients do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

_NAMED: Final = "thread."
"""Events of Assistants do not name themselves in their data: a client wraps them, with the name of the event."""


def events_of(data: bytes) -> Iterator[Any]:
    """Return the JSON of each whole event, up to `[DONE]` or data that is no JSON, where the client's own stream would end."""
    lines: list[bytes] = []
    name = b""
    for line in data.splitlines():
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value
            continue
        if lines:
            text = b"\n".join(lines)
            if text.startswith(b"[DONE]"):
                return
            try:
                found: Any = json.loads(text)
            except (ValueError, RecursionError):
                return
            told = name.decode("utf-8", "replace")
            yield {"event": told, "data": found} if told.startswith(_NAMED) else found
        lines, name = [], b""
