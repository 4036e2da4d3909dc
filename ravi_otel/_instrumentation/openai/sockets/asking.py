"""Read what a program is about to send, in every shape that can leave, without taking anything from it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

_BYTES_PER_TOKEN: Final = 4
_BYTES: Final = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class Unread:
    """Stand for a message that may ask for anything; `size` is about how many tokens it has, 0 where that cannot be told."""

    size: int


def read_message(given: Any) -> Mapping[str, Any] | Unread | None:
    """Read JSON text, whole or in fragments, a mapping or a model; None is for what asks for nothing, or cannot be sent.

    Fragments that an iterator makes can be had only once, and are left to whoever sends them: `Unread`, like text that
    Python takes for no JSON, since the other side may read it differently.
    """
    if isinstance(given, (list, tuple)):
        given = _joined(cast("Sequence[Any]", given))
    if isinstance(given, (str, *_BYTES)):
        return _parsed(cast("str | bytes | bytearray | memoryview[int]", given))
    if not isinstance(given, Mapping) and hasattr(given, "to_dict"):
        try:
            given = given.to_dict()
        except Exception:  # noqa: BLE001 - what its own class cannot write is the client's to refuse
            return None
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    return Unread(0) if isinstance(given, (Iterable, AsyncIterable)) else None


def _joined(parts: Sequence[Any]) -> Any:
    """Give fragments as the one message they are; None when there are none, or of several kinds, which no socket sends."""
    if parts and all(isinstance(part, str) for part in parts):
        return "".join(parts)
    return b"".join(parts) if parts and all(isinstance(part, _BYTES) for part in parts) else None


def _parsed(data: str | bytes | bytearray | memoryview[int]) -> Mapping[str, Any] | Unread | None:
    size = len(data) // _BYTES_PER_TOKEN
    try:
        if isinstance(data, str):
            found = json.loads(data.removeprefix("\ufeff"))
        else:
            found = json.loads(data if isinstance(data, (bytes, bytearray)) else bytes(data))
    except (ValueError, RecursionError):
        return Unread(size)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None
