"""Copy anything that was said into plain JSON values within a bound: texts cut, media hashed, secrets out, and never an error.

What is left out says so where it stood: a text ends with `[truncated from N characters]`, a list with `[N more]`, messages
and parts with one of type `omitted`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, NamedTuple, TypeVar, cast

from ravi_otel._telemetry import content_media as media
from ravi_otel.policy.content import Message, Part

OMITTED: Final = "[omitted]"
UNREADABLE: Final = "[unreadable]"

_DEEPEST: Final = 32
_MARGIN: Final = 1024
"""What a key may be long that the end of what is redacted cuts in two."""
_SPARE: Final = 64
_MOST_INT: Final = 2**63 - 1
_MOST_BITS: Final = 4_096
_FEWEST_TOLD: Final = 10**6
_TRIES: Final = 6
_WORDS: Final = frozenset(
    {"assistant", "blob", "custom", "developer", "document", "error", "file", "function", "image", "audio", "length", "reasoning", "stop"}
    | {"system", "text", "tool", "tool_call", "tool_call_response", "uri", "user", "video", "content_filter", "refusal", "omitted"}
)
"""Words of the convention, which hold no secret."""
_WRITTEN: Final = (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID, pathlib.PurePath)
_MODEL: Final = ("__pydantic_fields_set__", "__fields_set__")
_class_of: Callable[[object], type[object]] = type
_T = TypeVar("_T")


class Bounds(NamedTuple):
    """Hold how long a text and a whole attribute may be, in bytes of UTF-8, and what texts are put through; it never raises."""

    text: int
    whole: int
    redact: Callable[[str], str] | None


def messages(given: Sequence[Message], bounds: Bounds, *, ended: str | None = None) -> list[Message]:
    """Copy messages, the newest first in line for the room there is; each has a `finish_reason` where `ended` is one."""
    return _bounded(lambda writer: writer.messages(given, ended), bounds, [])


def parts(given: Sequence[Part], bounds: Bounds) -> list[Part]:
    """Copy parts, or tool definitions."""
    return _bounded(lambda writer: writer.parts(given), bounds, [])


def value(given: Any, bounds: Bounds) -> Any:
    """Copy any value."""
    return _bounded(lambda writer: writer.value(given), bounds, OMITTED)


def as_json(copied: Any) -> str:
    """Write what was copied."""
    return dumps(copied, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _bounded(write: Callable[[_Writer], _T], bounds: Bounds, nothing: _T) -> _T:
    room = bounds.whole
    for _ in range(_TRIES):
        try:
            found = write(_Writer(bounds, room))
            if len(as_json(found).encode()) <= bounds.whole:
                return found
        except Exception:  # noqa: BLE001 - what was said may be any object, and raise anything
            return nothing
        room //= 2
    return nothing


class _Writer:
    """Copy values while there is room; everything written takes at least two bytes of it, so every walk ends."""

    __slots__ = ("_bounds", "_room")

    def __init__(self, bounds: Bounds, room: int) -> None:
        self._bounds = bounds
        self._room = room - _SPARE

    # -- messages -------------------------------------------------------------------------------------------------

    def messages(self, given: Sequence[Message], ended: str | None) -> list[Message]:
        kept: list[Message] = []
        for message in reversed(given):
            if self._room <= 0:
                self._room -= _SPARE
                kept.append({"role": "omitted", "parts": [{"type": "omitted", "messages": len(given) - len(kept)}]})
                break
            kept.append(self._message(message, ended))
        kept.reverse()
        return kept

    def _message(self, message: Message, ended: str | None) -> Message:
        self._room -= 2
        copied: Message = {}
        for name, found in message.items():
            if name == "parts":
                copied[name] = self.parts(found)
            elif found is not None:
                copied[name] = self.value(found, 1)
            self._room -= len(name) + 4
        if ended is not None and "finish_reason" not in copied:
            copied["finish_reason"] = ended
            self._room -= len(ended) + 20
        return copied

    def parts(self, given: Sequence[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in given:
            if self._room <= 0:
                self._room -= _SPARE
                kept.append({"type": "omitted", "count": len(given) - len(kept)})
                break
            kept.append(self._part(part))
        return kept

    def _part(self, part: Part) -> Part:
        told = _media_of(part)
        copied = part if told is None else told
        self._room -= 2
        return {name: self._field(name, found, 2) for name, found in copied.items() if found is not None}

    def _field(self, name: str, found: Any, depth: int) -> Any:
        self._room -= len(name) + 4
        return self.value(found, depth)

    # -- any value ------------------------------------------------------------------------------------------------

    def value(self, given: Any, depth: int = 0) -> Any:
        try:
            return self._value(given, depth)
        except Exception:  # noqa: BLE001 - the value's own methods may raise anything
            return self._literal(UNREADABLE)

    def _value(self, given: Any, depth: int) -> Any:
        if given is None or given is True or given is False:
            self._room -= 7
            return given
        if isinstance(given, str):
            return self._text(str.__str__(given))
        if isinstance(given, (int, float)):
            return self._number(given)
        if isinstance(given, (bytes, bytearray, memoryview)):
            return self._digest(media.digest(cast("bytes", given)))
        if isinstance(given, _WRITTEN):
            return self._text(str(given))
        return self.value(given.value, depth + 1) if isinstance(given, enum.Enum) and depth <= _DEEPEST else self._structure(given, depth)

    def _structure(self, given: Any, depth: int) -> Any:
        kind = _class_of(given)
        fields = _fields_of(given, kind)
        if fields is None and not isinstance(given, (list, tuple, set, frozenset)):
            return self._literal(f"[{kind.__name__[:100]}]")  # an iterator, an open file, …: the program's to read
        if depth > _DEEPEST:
            return self._literal("[nested too deep]")
        self._room -= 4
        if fields is None:
            return self._list(cast("Sequence[Any]", given), depth)
        told = _media_of(fields)
        return self._mapping(fields if told is None else told, depth)

    def _list(self, given: Sequence[Any], depth: int) -> list[Any]:
        kept: list[Any] = []
        for item in given:
            if self._room <= 0:
                kept.append(self._literal(f"[{len(given) - len(kept)} more]"))
                break
            kept.append(self.value(item, depth + 1))
        return kept

    def _mapping(self, given: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, inner in given.items():
            if self._room <= 0:
                kept[f"[{len(given) - len(kept)} more]"] = self._literal(OMITTED)
                self._room -= 20
                break
            kept[self._key(key, kept)] = self.value(inner, depth + 1)
        return kept

    def _key(self, key: Any, taken: Mapping[str, Any]) -> str:
        name = (
            self._text(str.__str__(key)) if isinstance(key, str) else self._text(str(key) if isinstance(key, (int, float)) else UNREADABLE)
        )
        if name not in taken:
            return name
        number = len(taken) + 1  # two keys that are one without their secret; as many as there are names cannot be taken
        while f"{name} {number}" in taken:
            number += 1
        self._room -= 8
        return f"{name} {number}"

    def _number(self, given: float) -> Any:
        if isinstance(given, float):
            self._room -= 26
            number = float(given)
            return number if math.isfinite(number) else str(number)
        if given.bit_length() > _MOST_BITS:
            return self._literal("[number]")
        number = int(given)
        if abs(number) < _FEWEST_TOLD:
            self._room -= 9
            return number
        redact, plain = self._bounds.redact, str(number)  # a card's number may be given as one
        if abs(number) > _MOST_INT or (redact is not None and redact(plain) != plain):
            return self._text(plain)
        self._room -= 22
        return number

    def _digest(self, told: Mapping[str, Any]) -> dict[str, Any]:
        self._room -= 110
        return dict(told)

    def _literal(self, given: str) -> str:
        self._room -= len(given.encode("utf-8", "replace")) * 2 + 4
        return given.encode("utf-8", "replace").decode()

    # -- texts ----------------------------------------------------------------------------------------------------

    def _text(self, given: str) -> str:
        if given in _WORDS:
            self._room -= len(given) + 4
            return given
        size = len(given)
        if media.is_data_url(given):
            return self._literal(media.written(media.data_url(given)))
        if media.is_encoded(given):
            return self._literal(media.written(media.digest(given)))
        given = media.without_media(given)
        if media.is_address(given):
            given = media.plain_address(given)
        return self._spend(self._cut(self._clean(given), size), size)

    def _clean(self, given: str) -> str:
        redact = self._bounds.redact
        if redact is None:
            given = given[: self._bounds.text + 1]
        window = 2 * self._bounds.text + _MARGIN  # redacting may make it shorter
        whole = len(given) <= window
        if not whole:
            given = given[:window]
        if not given.isascii():
            given = given.encode("utf-8", "replace").decode()
        if redact is None:
            return given
        given = redact(given)
        if not given.isascii():
            given = given.encode("utf-8", "replace").decode()
        return given if whole else given[: max(0, len(given) - _MARGIN)]

    def _cut(self, given: str, size: int, most: int | None = None) -> str:
        most = self._bounds.text if most is None else most
        if len(given) * 4 <= most:
            return given
        encoded = given.encode()
        if len(encoded) <= most and (len(given) == size or size <= most):
            return given
        mark = f" [truncated from {size} characters]"
        return encoded[: max(0, most - len(mark))].decode("utf-8", "ignore") + mark

    def _spend(self, given: str, size: int) -> str:
        cost = len(as_json(given).encode()) + 2
        if cost > self._room:
            if self._room < 2 * _SPARE:
                return self._literal(OMITTED)
            room, self._room = self._room, 0  # the last that is told
            return self._cut(given, size, room // 6)  # what one byte becomes at most: \u0000
        self._room -= cost
        return given


def _fields_of(given: Any, kind: type[object]) -> Mapping[Any, Any] | None:
    if isinstance(given, Mapping):
        return cast("dict[Any, Any]", given)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(given, field.name, None) for field in dataclasses.fields(kind)}
    if any(hasattr(kind, mark) for mark in _MODEL):
        return cast("dict[str, Any]", vars(given))
    return None


def _media_of(part: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Give a part that holds a picture, a sound or a file as what tells it; None for every other."""
    kind = part.get("type")
    if kind == "blob" and isinstance(part.get("content"), (str, bytes, bytearray, memoryview)):
        return {**dict(_without(part, "content")), **media.digest(part["content"])}
    if kind == "uri" and isinstance(part.get("uri"), str) and media.is_data_url(part["uri"]):
        return {**dict(_without(part, "uri")), "type": "blob", **media.data_url(part["uri"])}
    return None


def _without(part: Mapping[Any, Any], name: str) -> Iterator[tuple[Any, Any]]:
    return ((key, inner) for key, inner in part.items() if key != name)
