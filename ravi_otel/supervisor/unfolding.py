"""Write what a program decides by as text, so that another value anywhere in it is written otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from json import dumps  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, cast

_DEEPEST: Final = 3
_MOST_OBJECTS: Final = 500


def unfolded(value: object) -> str:
    """Write a value: of an object of any class its fields, for its own `repr` may tell no more than where it lies.

    Data is written in whole. Of other objects, such as a client with its connections, only those near the value are, and only so many:
    the rest is written as which one it is, and so is a lock, whose state is no value of anything.
    """
    if value is None:
        return "null"  # of a gate without a policy
    try:
        return dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return dumps(_Unfolding().rows(value))


class _Unfolding:
    """Go through a value by levels, each object once: what is near is written before what is far."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._ahead: deque[tuple[Any, int]] = deque()
        self._alive: list[Any] = []  # whose numbers are no others'
        self._objects = 0

    def rows(self, value: Any) -> list[Any]:
        """Write each object in a row of its own, in which others are named by number."""
        rows = [self._refer(value, 0)]
        while self._ahead:
            given, depth = self._ahead.popleft()
            rows.append(self._row(given, depth))
        return rows

    def _refer(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, (int, float, str, bytes, Enum, type)) or callable(value):
            return [type(value).__qualname__, repr(value)]  # of a method, which is made anew each time, the object's place
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._ahead.append((value, depth))
        return [known]

    def _row(self, given: Any, depth: int) -> Any:
        if isinstance(given, Mapping):
            pairs = cast("Mapping[Any, Any]", given).items()  # type: ignore[redundant-cast]  # pyright knows nothing of what is in it
            return [[self._refer(each, depth) for each in pair] for pair in sorted(pairs, key=lambda pair: _shown(pair[0]))]
        if isinstance(given, (list, tuple)):
            return [self._refer(each, depth) for each in cast("list[Any]", given)]
        if isinstance(given, (set, frozenset)):
            return [self._refer(each, depth) for each in sorted(cast("set[Any]", given), key=_shown)]
        fields = _fields(given)
        if fields and not is_dataclass(given):
            self._objects += 1
            depth += 1
            if depth > _DEEPEST or self._objects > _MOST_OBJECTS:
                return _which(given)
        return [type(given).__qualname__, {name: self._refer(each, depth) for name, each in fields.items()}] if fields else _shown(given)


def _shown(value: object) -> str:
    """Give its own `repr`, if that is about a value."""
    said = repr(value)
    return _which(value) if " at 0x" in said else said


def _which(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {id(value)}"


def _fields(given: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in type(given).__mro__:
        slots: Any = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else list(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(given, name):
                found[name] = getattr(given, name)
    return found | dict(getattr(given, "__dict__", {}))
