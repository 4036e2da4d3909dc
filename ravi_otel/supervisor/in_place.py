"""Judge the values of a program that calls its own functions: find the JSON that stands for them, and read nothing that is read once."""

from __future__ import annotations

import collections
import collections.abc as collections_abc
import datetime as dt
import decimal
import fractions
import pathlib
import types
import typing
import uuid
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, cast

from ravi_otel.supervisor.hashing import MOST_DEPTH, MOST_VALUES, NotPlainError, canonical, plain


def _kind(value: object) -> Any:
    return type(value)


_EMPTY: Final[dict[str, str]] = {}
_ONCE: Final = ("__next__", "__anext__", "__await__")
_LISTS: Final[frozenset[Any]] = frozenset(
    {list, tuple, range, collections.deque, _kind(_EMPTY.keys()), _kind(_EMPTY.values()), _kind(_EMPTY.items())}
)
_TABLES: Final[frozenset[Any]] = frozenset(
    {dict, types.MappingProxyType, collections.OrderedDict, collections.defaultdict, collections.Counter}
)
_SETS: Final[frozenset[Any]] = frozenset({set, frozenset})
_DATES: Final[frozenset[Any]] = frozenset({dt.datetime, dt.date, dt.time})
_AS_TEXT: Final[frozenset[Any]] = frozenset(
    {
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        dt.timedelta,
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    }
)
_PLAIN_KINDS: Final = (str, int, float, bytes, dict, list, tuple)
_READ_BY: Final = ("__iter__", "__getitem__", "__len__")


def as_json(value: object, *, anything: bool) -> Any:
    """Give the JSON value that stands for a program's own: a list for a tuple, a set, a range or a view of a dict.

    With `anything`, for a parameter that takes whatever it is given, also text for a date, a Decimal and its like. What it is given as
    is not changed. Raises NotPlainError for what has nothing that stands for it, and for anything that can be read only once.
    """
    if reads_once(value):
        if any(hasattr(_kind(value), name) for name in _ONCE):
            raise NotPlainError("not_json", "can be read only once, which would leave nothing for the tool; give a list.")
        raise NotPlainError(
            "not_json", f"is a {_kind(value).__name__[:60]} with what can be read only once, or with more than is read, in it."
        )
    return plain(_Stand(anything=anything).of(value, 0))


class _Stand:
    def __init__(self, *, anything: bool) -> None:
        self._anything = anything
        self._left = MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        """Give what stands for one value."""
        self._left -= 1
        if self._left < 0:
            raise NotPlainError("too_large", f"is beyond the {MOST_VALUES} values that are read; give less.")
        if depth > MOST_DEPTH:
            raise NotPlainError("too_deep", f"is nested deeper than {MOST_DEPTH} levels; give it flat.")
        kind = _kind(value)
        if kind in _TABLES:
            return {name: self.of(each, depth + 1) for name, each in dict(value).items()}
        if kind in _LISTS or _is_named_tuple(kind):
            return self._list(value, depth)
        if kind in _SETS:
            return sorted(self._list(value, depth), key=canonical)
        return self._scalar(value, kind) if self._anything else value

    def _list(self, values: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        for each in values:  # one by one: a range may be longer than anybody reads
            made.append(self.of(each, depth + 1))  # noqa: PERF401 - `of` counts, and ends it
        return made

    def _scalar(self, value: Any, kind: type[Any]) -> Any:
        if kind in _DATES:
            return value.isoformat()
        if kind in _AS_TEXT:
            return str(value)
        if kind is bytes:
            return _text_of(value)
        return value.value if issubclass(kind, Enum) else value


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _is_named_tuple(kind: type[Any]) -> bool:
    """Tell a plain named tuple, which is read as the tuple it is."""
    return kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not any(name in vars(kind) for name in _READ_BY)


def _pairs(table: Any) -> Any:
    """Read a dict itself, whatever a class derived from it would say."""
    return cast("Any", dict).items(table)


def reads_once(value: object) -> bool:
    """Tell that something in a value is an iterator, a generator or something to await: looking at it would use it up, or never end.

    Of what is too large to be looked through it is said too.
    """
    return _once(value, 0, [MOST_VALUES])


def _once(value: Any, depth: int, left: list[int]) -> bool:
    kind = _kind(value)
    left[0] -= 1
    if left[0] < 0 or any(hasattr(kind, name) for name in _ONCE):
        return True
    if kind is str or kind is bytes or depth > MOST_DEPTH or isinstance(value, (type, types.ModuleType, types.FunctionType, Enum)):
        return False
    if issubclass(kind, dict):
        return any(_once(each, depth + 1, left) for pair in _pairs(value) for each in pair)
    if issubclass(kind, (list, tuple, set, frozenset, collections.deque)):
        return any(_once(each, depth + 1, left) for each in list(cast("Iterable[Any]", value))[: left[0] + 1])
    held = getattr(value, "__dict__", None)
    return isinstance(held, dict) and any(_once(each, depth + 1, left) for each in list(cast("dict[str, Any]", held).values()))


def poses(value: Any, depth: int) -> bool:
    """Tell that something in a program's own value poses as a plain one: a subclass of text, of a number or of a container."""
    kind = cast("Any", type(value))
    if depth > MOST_DEPTH:
        return True
    if kind is dict:
        return any(poses(each, depth + 1) for pair in value.items() for each in pair)
    if kind is list or kind is tuple:
        return any(poses(each, depth + 1) for each in value)
    own = issubclass(kind, Enum) or (issubclass(kind, tuple) and hasattr(cast("Any", kind), "_fields"))  # read by their annotation
    return issubclass(kind, _PLAIN_KINDS) and kind not in (*_PLAIN_KINDS, bool) and not own


# -- annotations ----------------------------------------------------------------------------------------------------


def listed(hint: Any) -> Any:
    """Write an annotation with a list for `Iterable`: pydantic would give the tool an iterator, which only one can read."""
    if hint is collections_abc.Iterable or hint is typing.Iterable:
        return list
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is collections_abc.Iterable:
        return list[listed(args[0])]  # type: ignore[misc]  # it is made while the program runs
    if origin is typing.Annotated:
        return typing.Annotated[(listed(args[0]), *args[1:])]
    return hint


def is_lazy(schema: Any, depth: int = 0) -> bool:
    """Tell that a pydantic schema reads something bit by bit."""
    if depth > MOST_DEPTH:
        return False
    if isinstance(schema, Mapping):
        known = cast("Mapping[str, Any]", schema)
        return known.get("type") == "generator" or any(is_lazy(each, depth + 1) for each in known.values())
    return isinstance(schema, (list, tuple)) and any(is_lazy(each, depth + 1) for each in cast("list[Any]", schema))
