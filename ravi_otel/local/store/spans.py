"""Read spans from OTLP JSON Lines written by anybody: what has another shape is counted and passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ravi_otel._telemetry import names
from ravi_otel.policy._limits import NANO

MOST_LINE: Final = 16 * 1024 * 1024
"""Bytes of a line; what is longer is no span of anybody's."""

_MOST_TEXT: Final = 4_096
_MOST_ITEMS: Final = 128
_MOST_INT: Final = 2**63 - 1
_FAILED: Final = (2, "STATUS_CODE_ERROR")
_CLIENT: Final = (3, "SPAN_KIND_CLIENT")

Value = str | int | float | bool | tuple[Any, ...]
Attributes = dict[str, Value]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Be one event of a span."""

    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """Be one span; `ours` is one that this package made, `parent_id` None at a root. Times are epoch ns, 0 unknown."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    ours: bool
    client: bool
    failed: bool
    message: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: list[SpanEvent]

    @property
    def duration_ns(self) -> int | None:
        """Give how long it took, None when one of its times is unknown, or it ended before it began."""
        return self.end_ns - self.start_ns if 0 < self.start_ns <= self.end_ns else None

    def text(self, key: str) -> str | None:
        """Give a text attribute, None for anything else."""
        return text_of(self.attributes, key)

    def count(self, key: str) -> int | None:
        """Give an attribute that is a whole number of at least 0, None for anything else."""
        value = self.attributes.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_INT else None

    def nano(self, key: str) -> int | None:
        """Give an amount in whole billionths; None for anything else, below 0 or past 64 bits."""
        found = number_of(self.attributes, key)
        inner = None if found is None else round(found * NANO)
        return inner if inner is not None and 0 <= inner < _MOST_INT else None

    def within(self, since_ns: int, until_ns: int) -> Span:
        """Give the same span with its times unknown where one of them lies outside."""
        if since_ns <= self.start_ns <= until_ns and since_ns <= self.end_ns <= until_ns:
            return self
        return replace(self, start_ns=0, end_ns=0)


def text_of(attributes: Attributes, key: str) -> str | None:
    """Give a text attribute, None for anything else."""
    value = attributes.get(key)
    return value if isinstance(value, str) else None


def number_of(attributes: Attributes, key: str) -> float | None:
    """Give a number of at most 64 bits, None for anything else; whole ones stay whole."""
    value = attributes.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -_MOST_INT <= value <= _MOST_INT else None  # no NaN is, and a whole number of many digits is no float


@dataclass(slots=True)
class Unread:
    """Count lines that could not be read, wholly or in part."""

    lines: int = 0
    files: list[str] = field(default_factory=list[str])


def spans_of(path: Path, unread: Unread, told: Callable[[int], object] = lambda _: None) -> Iterator[Span]:
    """Give the spans of one file in its order; `told` hears how many bytes each line had."""
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE):
                told(len(line))
                if not line.endswith(b"\n") and len(line) == MOST_LINE:
                    _skip(file)
                    unread.lines += 1
                elif line.strip():
                    yield from _spans_in(line, unread)
    except OSError:
        unread.files.append(path.name)


def _skip(file: Any) -> None:
    while (rest := file.readline(MOST_LINE)) and not rest.endswith(b"\n"):
        pass


def _spans_in(line: bytes, unread: Unread) -> Iterator[Span]:
    try:
        document: object = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("resourceSpans"), list):  # pyright: ignore[reportUnknownMemberType]  # JSON of anybody's
        unread.lines += 1
        return
    strange = False
    for resource in _dicts(document, "resourceSpans"):  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody's
        for scoped in _dicts(resource, "scopeSpans"):
            scope: Any = scoped.get("scope")
            ours = isinstance(scope, dict) and bool(scope.get("name") == names.SCOPE)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # JSON of anybody's
            for raw in _dicts(scoped, "spans"):
                span = _span(raw, ours=ours)
                if span is None:
                    strange = True
                else:
                    yield span
    unread.lines += strange


def _dicts(holder: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    found = holder.get(key)
    if isinstance(found, list):
        yield from (each for each in found if isinstance(each, dict))  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's


def _span(raw: dict[str, Any], *, ours: bool) -> Span | None:
    trace_id, span_id, parent_id, name = raw.get("traceId"), raw.get("spanId"), raw.get("parentSpanId"), raw.get("name")
    if not isinstance(span_id, str) or not span_id:
        return None
    status = raw.get("status")
    known: dict[str, Any] = status if isinstance(status, dict) else {}  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    message = known.get("message")
    return Span(
        trace_id=trace_id[:64] if isinstance(trace_id, str) else "",
        span_id=span_id[:64],
        parent_id=parent_id[:64] if isinstance(parent_id, str) and parent_id else None,
        name=name[:_MOST_TEXT] if isinstance(name, str) else "",
        ours=ours,
        client=raw.get("kind") in _CLIENT,
        failed=known.get("code") in _FAILED,
        message=message[:_MOST_TEXT] if isinstance(message, str) else "",
        start_ns=_time(raw.get("startTimeUnixNano")),
        end_ns=_time(raw.get("endTimeUnixNano")),
        attributes=_attributes(raw) if ours else {},
        events=[_event(each) for each in _dicts(raw, "events") if _is_told(each)],
    )


def _is_told(raw: dict[str, Any]) -> bool:
    return raw.get("name") in (names.NEARING_EVENT, names.EXCEEDED_EVENT, names.STATE_EVENT)


def _event(raw: dict[str, Any]) -> SpanEvent:
    return SpanEvent(raw["name"], _attributes(raw))


def _time(value: object) -> int:
    found = _whole(value)
    return found if found is not None and 0 <= found <= _MOST_INT else 0


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():  # noqa: PLR2004 - as long as 64 bits get
        return int(value)
    return None


def _attributes(raw: dict[str, Any]) -> Attributes:
    found: Attributes = {}
    for each in _dicts(raw, "attributes"):
        key, holder = each.get("key"), each.get("value")
        if not isinstance(key, str):
            continue
        value: Value | None = holder.get("stringValue") if isinstance(holder, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of anybody's
        if not isinstance(value, str) or len(value) > _MOST_TEXT:
            value = _value(holder)  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody's
        if value is not None:
            found[key] = value
    return found


def _value(holder: object) -> Value | None:  # noqa: PLR0911 - one way out a type
    if not isinstance(holder, dict) or len(holder) != 1:  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody's
        return None
    pair: tuple[object, Any] = next(iter(holder.items()))  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]  # JSON of anybody's
    kind, value = pair
    if kind == "stringValue":
        return value[:_MOST_TEXT] if isinstance(value, str) else None
    if kind == "intValue":
        return _whole(value)
    if kind == "boolValue":
        return value if isinstance(value, bool) else None
    if kind == "doubleValue":
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "arrayValue" and isinstance(value, dict):
        items = [_value(each) for each in list(_dicts(value, "values"))[:_MOST_ITEMS]]  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody's
        return tuple(item for item in items if item is not None)
    return None
