"""Read a policy file: the limits, names, tags and prices in it, each checked where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import format_limit, parse_limit
from ravi_otel.policy.limits import CLOCKS, Admission, Kind, Limit, LimitOptions, make_limit
from ravi_otel.pricing.overrides import Overrides, PriceMap
from ravi_otel.runtime.config.document import Document, load_document
from ravi_otel.runtime.config.sources import Sourced, located
from ravi_otel.runtime.config.tags import check_tags

MODES: Final = ("enforce", "observe")
MOST_LIMITS: Final = 1_000

_OPTIONS: Final = tuple(LimitOptions.__annotations__)
_LIMIT_KEYS: Final = ("kind", "value", "tool", "agent", *_OPTIONS)
_WORD: Final = re.compile(r"[A-Za-z_]+(\.[\w-]+)*")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """Be what a policy file says; None is what it does not say."""

    shown: str
    limits: tuple[Sourced, ...] = ()
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    prices: PriceMap | None = None
    enforcement: str | None = None
    admission: Admission | None = None


def read_file(path: Path) -> PolicyFile:
    """Read a policy file; raises ConfigurationError naming the file, the key, the value and the way out."""
    document = load_document(path)
    _only(document.shown, document.content, tuple(_READERS), "a policy file")
    fields = {key: _READERS[key](document, value) for key, value in document.content.items() if value is not None}
    return PolicyFile(document.shown, **fields)


def _only(place: str, given: Mapping[str, object], known: tuple[str, ...], whose: str) -> None:
    for key in given:
        if key not in known:
            close = checks.nearest(key, known)
            hint = f", did you mean {close!r}" if close else ""
            raise ConfigurationError(f"{place}: {checks.show(key)} is no key of {whose}{hint}; the keys are {', '.join(known)}.")


# -- limits -------------------------------------------------------------------------------------------------------


def _limits(document: Document, given: object) -> tuple[Sourced, ...]:
    if not isinstance(given, list):
        raise ConfigurationError(f'{document.shown}: limits is {checks.show(given)}, which is no list: write limits = ["tokens=500k"].')
    listed = cast("list[object]", given)
    if len(listed) > MOST_LIMITS:
        raise ConfigurationError(f"{document.shown}: limits has {len(listed)} entries, and at most {MOST_LIMITS} are taken.")
    return tuple(_limit(document, index, each) for index, each in enumerate(listed))


def _limit(document: Document, index: int, given: object) -> Sourced:
    line = document.lines[index] if index < len(document.lines) else None
    place = f"{document.shown} limits[{index}]" if line is None else f"{document.shown}:{line}"
    if isinstance(given, str):
        return Sourced(located(place, given), given.strip(), place)
    if not isinstance(given, dict):
        raise ConfigurationError(
            f'{place}: limits[{index}] is {checks.show(given)}: write text such as "tokens=500k", or a table with kind and value.'
        )
    limit = _from_table(place, cast("dict[str, Any]", given))
    return Sourced(limit, format_limit(limit), place)


def _from_table(place: str, table: dict[str, Any]) -> Limit:
    _only(place, table, _LIMIT_KEYS, "a limit")
    for needed in ("kind", "value"):
        if needed not in table:
            raise ConfigurationError(f'{place}: the limit has no {needed}; a table says at least kind = "tokens" and value = 500_000.')
    try:
        return parse_limit(format_limit(_made(table)))  # what the grammar refuses, a table cannot say either
    except ConfigurationError as error:
        spec = error.spec if isinstance(error, LimitSyntaxError) else checks.show(table)
        raise LimitSyntaxError(f"{place}: {error}", spec=spec) from None


def _made(table: dict[str, Any]) -> Limit:
    shape = _kind(table["kind"])
    tool = checks.optional_name("tool", table.get("tool"))
    if tool is not None and (shape.kind != Kind.TOOL_CALLS or shape.detail is not None):
        raise ConfigurationError(f'tool={checks.show(tool)} goes with kind = "tool_calls", not with {checks.show(table["kind"])}.')
    agent = checks.optional_name("agent", table.get("agent"))
    options = {key: table[key] for key in _OPTIONS if key in table}
    return make_limit(shape.kind, _amount(shape, table["value"]), options, detail=tool or shape.detail, agent=agent)


def _kind(word: object) -> Limit:
    """Read `tokens`, `tool.search` or `charge.sql_rows`, as a limit of 1."""
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise ConfigurationError(f"kind={checks.show(word)} is no kind of limit; the kinds are {', '.join(Kind)}.")
    shape = parse_limit(f"{word}=1")
    if shape.scope is not None:
        raise ConfigurationError(f"kind={checks.show(word)} has a scope in it; write scope = {str(shape.scope)!r} beside it.")
    return shape


def _amount(shape: Limit, value: object) -> int:
    """Read a number in the kind's public unit (USD, seconds, a count), or text with a unit: `"500k"`, `"90s"`."""
    if isinstance(value, str):
        if ":" in value:
            raise ConfigurationError(
                f"value={checks.show(value)} has an option behind it; write it as a key of its own, such as warn_at = 0.5."
            )
        return parse_limit(f"{_spelled(shape)}={value}").value
    if shape.kind == Kind.COST:
        return checks.nano_usd("value", value)
    if shape.kind in CLOCKS:
        return checks.nanoseconds("value", value)
    return checks.count("value", value)


def _spelled(shape: Limit) -> str:
    return format_limit(shape).rpartition("=")[0]


# -- the rest -----------------------------------------------------------------------------------------------------


def _checked(key: str, check: Callable[[str, Any], Any]) -> Callable[[Document, Any], Any]:
    def read(document: Document, given: object) -> Any:
        try:
            return check(key, given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{document.shown}: {error}") from None

    return read


def check_mode(parameter: str, value: object) -> str:
    """Accept "enforce" or "observe"."""
    return checks.choice(parameter, value, MODES)


def _admission(parameter: str, value: object) -> Admission:
    mode = checks.member(parameter, value, Admission)
    if mode is Admission.STRICT:
        raise ConfigurationError(f'{parameter}="strict" is not in this version; use "estimate" or "after".')
    return mode


def _prices(_: str, value: Any) -> Any:
    Overrides(value)
    return value


def _keys() -> Iterable[tuple[str, Callable[[Document, Any], Any]]]:
    yield "limits", _limits
    yield "name", _checked("name", checks.name)
    yield "tags", _checked("tags", check_tags)
    yield "prices", _checked("prices", _prices)
    yield "enforcement", _checked("enforcement", check_mode)
    yield "admission", _checked("admission", _admission)


_READERS: Final = dict(_keys())
