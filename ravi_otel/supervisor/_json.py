"""Write JSON values in one way only, so that what a person approved can be told from all else; and read a model's JSON text strictly.

Reading is bounded, and takes each key once. What Python's reader lets pass is kept, so that it can be refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from json import JSONDecodeError, loads  # as it is now: the program may make tools of that module's functions
from types import MappingProxyType
from typing import Any, Final, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks

MOST_DEPTH: Final = 32
"""Deepest nesting of lists and objects in arguments."""
MOST_VALUES: Final = 20_000
"""Most values in arguments, those in lists and objects counted too."""
MOST_CHARS: Final = 1 << 20
"""Most characters in the texts and keys of arguments, together."""
MOST_INT: Final = 2**64 - 1
"""Largest whole number, of either sign."""

_DISPLAYED: Final = 12
_MOST_FLAT: Final = 64
_FORMAT: Final = "ravi-approval-1"


encode_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
"""Write a value that `plain` gave, or that is as plain, as `canonical` does: it is not looked at again."""


class NotPlainError(RaviError, ValueError):
    """A value that JSON does not have, or that is too large.

    `code` is not_json (of another type), not_finite, too_large, too_deep, half_character (a lone surrogate) or bad_key; `path` says where.
    """

    def __init__(self, code: str, what: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"{'.'.join(map(str, path))[:200]!r} {what}" if path else f"It {what}")
        self.code = code
        self.what = what
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the error with its fields, for pickle."""
        return (type(self), (self.code, self.what, self.path))


def plain(value: object) -> Any:
    """Copy what JSON has: None, bool, int, float, str, list and dict, of just these types; raise NotPlainError for anything else.

    A subclass is something else: it may compare, print or count as it likes. A mapping proxy is copied into a dict. The copy shares
    nothing with `value`.
    """
    given: Any = value
    if type(given) is dict:
        table = flat_copy({**given})
        if table is not None:
            return table
    elif is_scalar(given):
        return given
    return _Copier().copy(value, (), 0)


def is_json_value(value: object) -> bool:
    """Whether `plain` accepts a value."""
    try:
        plain(value)
    except NotPlainError:
        return False
    return True


def canonical(arguments: object) -> str:
    """Write plain values as the one JSON text that is theirs: keys sorted, compact, ASCII; raise NotPlainError.

    Two values have the same text only if they are the same: 1, 1.0 and True are three, and so are 0.0 and -0.0 two.
    """
    return encode_canonical(plain(arguments))


def args_hash(arguments: object) -> str:
    """Return 12 hex digits by which to recognise arguments on a page: white space inside texts makes no difference.

    For display: it binds nothing. What JSON does not have counts as the name of its type, and JSON text that nobody read as that text.
    """
    return hashlib.sha256(encode_canonical(_display(arguments, [MOST_VALUES], 0)).encode("ascii")).hexdigest()[:_DISPLAYED]


def args_sha256(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256, 64 hex digits, of a tool's name and its canonical arguments; raise NotPlainError."""
    return text_sha256(tool, canonical(arguments))


def text_sha256(tool: str, text: str) -> str:
    """Return the `args_sha256` of arguments whose canonical text is `text`."""
    return hashlib.sha256(f"[{encode_canonical(tool)},{text}]".encode("ascii")).hexdigest()


def fingerprint(tool: str, arguments: Mapping[str, Any], scope: str, policy_version: str) -> str:
    """Return the SHA-256, 64 hex digits, that an approval is bound to; raise NotPlainError for what cannot be written in one way only."""
    return _sha256([_FORMAT, tool, arguments, scope, policy_version])


def _sha256(parts: list[Any]) -> str:
    return hashlib.sha256(canonical(parts).encode("ascii")).hexdigest()


def flat_copy(table: dict[Any, Any]) -> dict[str, Any] | None:
    """Return a table, which is nobody else's, of texts and numbers that are surely plain; None where one must look closer.

    It is what arguments are most of the time, and saves them the longer way, which says what is wrong and where.
    """
    if len(table) > _MOST_FLAT:
        return None
    chars = 0
    for key, value in table.items():
        if type(key) is not str or not key.isascii():
            return None
        chars += len(key)
        if type(value) is str:
            if not value.isascii():
                return None
            chars += len(value)
        elif type(value) is int:
            if not -MOST_INT <= value <= MOST_INT:
                return None
        elif value is not None and type(value) is not bool and not is_scalar(value):
            return None
    return table if chars <= MOST_CHARS else None


def is_scalar(value: Any) -> bool:
    """Whether a value is surely plain: None, a truth value, a number within bounds, or ASCII text of no more than a call may have."""
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is int:
        return -MOST_INT <= value <= MOST_INT
    if type(value) is str:
        return len(value) <= MOST_CHARS and value.isascii()
    return value is None or type(value) is bool


class _Copier:
    def __init__(self) -> None:
        self.values = 0
        self.chars = 0

    def copy(self, value: object, path: tuple[str | int, ...], depth: int) -> Any:
        """Copy one value and what is in it, and count."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise NotPlainError("too_large", f"is beyond the {MOST_VALUES} values that are read; send less.", path)
        kind = type(value)
        if kind is dict or kind is MappingProxyType or kind is list:
            if depth >= MOST_DEPTH:
                raise NotPlainError("too_deep", f"is nested deeper than {MOST_DEPTH} levels; send it flat.", path)
            if kind is list:
                return [self.copy(each, (*path, index), depth + 1) for index, each in enumerate(cast("list[object]", value))]
            return self._table(cast("Mapping[object, object]", value), path, depth)
        return self._scalar(value, path)

    def _table(self, table: Mapping[object, object], path: tuple[str | int, ...], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, each in dict(table).items():
            if type(key) is not str:
                raise NotPlainError("bad_key", f"has the key {checks.show(key)}, which is no text.", path)
            self._measure(key, path)
            made[key] = self.copy(each, (*path, key), depth + 1)
        return made

    def _scalar(self, value: object, path: tuple[str | int, ...]) -> Any:
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            self._measure(value, path)
            return value
        if type(value) is int:
            if abs(value) > MOST_INT:
                raise NotPlainError("too_large", "is a whole number of more than 64 bits; send it as text.", path)
            return value
        if type(value) is float:
            if not math.isfinite(value):
                raise NotPlainError("not_finite", f"is {value!r}, which is no number that JSON has.", path)
            return value
        raise NotPlainError("not_json", f"is of type {type(value).__name__[:60]!r}, which JSON does not have.", path)

    def _measure(self, text: str, path: tuple[str | int, ...]) -> None:
        self.chars += len(text)
        if self.chars > MOST_CHARS:
            raise NotPlainError("too_large", f"is beyond the {MOST_CHARS} characters that are read; send less.", path)
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise NotPlainError("half_character", "has half a character (a lone surrogate) in it; send whole text.", path) from None


def _display(value: object, left: list[int], depth: int) -> Any:
    """Return anything as plain values of bounded size, for a hash that is only shown."""
    left[0] -= 1
    if left[0] < 0 or depth > MOST_DEPTH:
        return "..."
    if isinstance(value, str):
        return " ".join(str.__str__(value)[:MOST_CHARS].split())
    if type(value) in (dict, MappingProxyType):
        table = dict(cast("Mapping[object, object]", value))
        return {_display_key(key): _display(each, left, depth + 1) for key, each in table.items()}
    if type(value) is list:
        return [_display(each, left, depth + 1) for each in cast("list[object]", value)]
    try:
        return _Copier().copy(value, (), 0)
    except NotPlainError:
        return type(value).__name__


def _display_key(key: object) -> str:
    return str.__str__(key) if isinstance(key, str) else type(key).__name__


_TOO_LARGE: Final = 10**40
_MOST_DIGITS: Final = 40


class NotJsonError(RaviError, ValueError):
    """Text that is no unambiguous JSON: `code` is non_json, duplicate_key, too_deep or too_large."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the error with its code, for pickle."""
        return (type(self), (self.code, str(self)))


def read_json(text: str) -> Any:
    """Read JSON text; raise NotJsonError, whose message goes behind "The arguments of T".

    NaN, Infinity and 1e400 are read as what they are, and a number of too many digits as one beyond every bound, so that whoever looks at
    the values can say which of them it was.
    """
    if len(text) > MOST_CHARS:
        raise NotJsonError("too_large", f"are JSON text of more than {MOST_CHARS} characters; send less.")
    try:
        return loads(text, object_pairs_hook=_refuse_doubles, parse_int=_read_whole_number)
    except NotJsonError:
        raise
    except RecursionError:
        raise NotJsonError("too_deep", "are nested too deep; send them flat.") from None
    except ValueError as error:
        said = error.msg if isinstance(error, JSONDecodeError) else "it cannot be read"
        at = f" at character {error.pos}" if isinstance(error, JSONDecodeError) else ""
        raise NotJsonError("non_json", f"are no JSON text: {said}{at}.") from None


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # it remembers
        raise NotJsonError("duplicate_key", f"have the key {checks.show(twice)} twice; which one counts is not to be guessed.")
    return made


def _read_whole_number(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else _TOO_LARGE
