"""Write limits and amounts so that another process reads the very same, and read them as what anybody may have sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Final, cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import SPENDS, Kind, Limit, option_of

_SHORT: Final[Mapping[str, str]] = {
    "kind": "k",
    "value": "v",
    "detail": "d",
    "scope": "s",
    "scope_name": "n",
    "agent": "a",
    "per": "p",
    "tz": "z",
    "warn_at": "w",
    "on_exceed": "x",
    "admission": "m",
    "on_unpriced": "u",
    "on_unbounded": "b",
    "on_store_failure": "f",
    "suspend": "y",
    "count": "c",
    "by": "e",
}
_LONG: Final = {short: name for name, short in _SHORT.items()}
_DEFAULTS: Final[Mapping[str, Any]] = {each.name: None if each.default is MISSING else each.default for each in fields(Limit)}
_NAMES: Final = frozenset({"kind", "detail", "scope_name", "agent"})
MOST_KINDS: Final = 64


class MalformedError(ValueError):
    """Say that what was sent cannot be read; nobody sees it but whoever reads the next entry."""


def write_limit(limit: Limit) -> dict[str, Any]:
    """Write what of a limit is not as everywhere."""
    written: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(limit, name)
        if value != default or name in {"kind", "value"}:
            written[_SHORT.get(name, name)] = value.value if isinstance(value, Enum) else value
    return written


def read_limit(given: object) -> Limit:
    """Read a limit; raises MalformedError for what is none."""
    if type(given) is not dict:
        raise MalformedError("limit")
    written = cast("dict[str, Any]", given)
    found: dict[str, Any] = {}
    for short, value in written.items():
        name = _LONG.get(short, short)
        if name not in _DEFAULTS:
            continue  # a later field that only tells
        if value is None:
            raise MalformedError("limit")
        found[name] = _checked(name, value)
    try:
        return Limit(**found)
    except (ConfigurationError, TypeError) as error:
        raise MalformedError("limit") from error


def _checked(name: str, value: object) -> Any:
    try:
        if name == "value":
            return whole(value)
        return checks.name(name, value) if name in _NAMES else option_of(name).read(value)
    except ConfigurationError as error:
        raise MalformedError(name) from error


def seconds(parameter: str, value: object, most: float) -> float:
    """Read seconds that a program gives; ConfigurationError for what is no such time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ConfigurationError(f"{parameter}={checks.show(value)} must be seconds above 0, up to {most:.0f}, such as 60.")
    return float(value)


def whole(value: object, most: int = checks.MAX_NANO) -> int:
    """Read a whole number from 0; raises MalformedError for any other."""
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedError("number")
    return value


def text(value: object, most: int = checks.MAX_NAME) -> str:
    """Read a name of up to 256 characters; raises MalformedError for any other."""
    if type(value) is not str or len(value) > most or checks.flaw_of_name(value) is not None:
        raise MalformedError("text")
    return value


def optional_text(value: object) -> str | None:
    """Read a name or None."""
    return None if value is None else text(value)


def amounts(value: object, known: frozenset[str] | None = None) -> dict[str, int]:
    """Read amounts by kind, in inner units; raises MalformedError for a kind that is not `known`, or too many."""
    given = cast("dict[str, Any]", value)
    if type(value) is not dict or len(given) > MOST_KINDS:
        raise MalformedError("amounts")
    found = {text(kind): whole(amount, most_of(kind)) for kind, amount in given.items()}
    if known is not None and not known.issuperset(found):
        raise MalformedError("amounts")
    return found


def most_of(kind: str) -> int:
    """Return how much of a kind there may be at most."""
    return checks.MAX_NANO if kind == Kind.COST or kind not in SPENDS else checks.MAX_COUNT
