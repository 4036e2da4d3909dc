"""Give rules what they judge: the arguments of a call and what was done before it, read so that nothing passes for want of a value."""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from json import loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, Protocol, cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.decisions import DecisionKind
from ravi_otel.supervisor.hashing import NotPlainError, canonical, plain

MISSING: Final = object()
NOTHING: Final = Fraction(0)
_LONGEST_TEXT: Final = 1 << 20
_UNSEEN: Final = frozenset("CZM")
_UNSEEN_IN_TEXT: Final = frozenset({"Cf", "Cc", "Mn"})
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")


class PastCall(Protocol):
    """Be a call that was let through before; `status` is "running", "ok", "error" or "cancelled"."""

    @property
    def tool(self) -> str:
        """Name its tool."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Give what it was called with."""
        ...

    @property
    def status(self) -> str:
        """Say how it ended."""
        ...

    @property
    def result(self) -> Any:
        """Give what came of it."""
        ...


@dataclass(frozen=True, slots=True)
class Vote:
    """Be what one rule says of a call; `change` puts a value into a field, of "revise" only."""

    kind: DecisionKind
    reason: str
    change: tuple[str, Any] | None = None


def block(reason: str) -> Vote:
    """Refuse."""
    return Vote(DecisionKind.BLOCK, reason)


class Past(Protocol):
    """Be what was done in a run, as rules ask about it."""

    @property
    def calls(self) -> tuple[PastCall, ...]:
        """List the calls that were let through, the first one first."""
        ...

    def begun(self, tool: str) -> int:
        """Count the calls of a tool that were let through, however they ended."""
        ...

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Add up a field over the calls of a tool, None where one of them has no number there; one below zero adds nothing."""
        ...

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Tell that a call of a tool came to a good end and told of no error, with these `keys` (of `keys_at`) in `fields`."""
        ...


@dataclass(frozen=True, slots=True)
class ListedPast:
    """Be what was done in a run as a list of calls tells it: each question reads the whole list."""

    calls: tuple[PastCall, ...] = ()

    def begun(self, tool: str) -> int:
        """Count the calls of a tool."""
        return sum(call.tool == tool for call in self.calls)

    def spent(self, tool: str, field: str) -> Fraction | None:
        """Add up a field."""
        total = NOTHING
        for call in self.calls:
            if call.tool == tool:
                number = exact(value_at(call.arguments, field))
                if number is None:
                    return None
                total += max(number, NOTHING)  # an amount that was taken back makes no room for another
        return total

    def done_with(self, tool: str, fields: tuple[str, ...], keys: tuple[str | None, ...]) -> bool:
        """Look for a call that ended well."""
        return any(
            call.tool == tool and call.status == "ok" and not told_an_error(call.result) and keys_at(call.arguments, fields) == keys
            for call in self.calls
        )


@dataclass(frozen=True, slots=True)
class Case:
    """Be a call that is judged: its arguments as they are at this point, and what was done before it."""

    tool: str
    arguments: Mapping[str, Any]
    past: Past

    @property
    def calls(self) -> tuple[PastCall, ...]:
        """List the calls before it."""
        return self.past.calls

    def value(self, field: str) -> Any:
        """Give what is in a field, MISSING where nothing is; a dot goes into an object."""
        return value_at(self.arguments, field)

    def number(self, field: str, least: float) -> Fraction | Vote:
        """Give a number exactly, or the refusal of what is none, is not there, or is less than `least`."""
        value = self.value(field)
        if value is MISSING or value is None:
            return block(f"missing_{field}")
        number = exact(value)
        if number is None:
            return block(f"invalid_{field}_type")
        return number if number >= exact_limit(least) else block(f"invalid_{field}")

    def spent(self, tools: Iterable[str], field: str) -> Fraction | None:
        """Add up a field over every call of these tools that was let through; None where one of them has no number there."""
        total = NOTHING
        for tool in set(tools):
            spent = self.past.spent(tool, field)
            if spent is None:
                return None
            total = total + spent if total else spent
        return total

    def begun(self, tools: Iterable[str]) -> int:
        """Count the calls of these tools that were let through, however they ended."""
        return sum(map(self.past.begun, set(tools)))

    def done(self, tool: str, same: Iterable[str] = ()) -> bool:
        """Tell that a call of a tool came to a good end, with the same values in the fields of `same`.

        One that answered with an object with an "error" in it came to none.
        """
        fields = tuple(same)
        keys = keys_at(self.arguments, fields)
        return None not in keys and self.past.done_with(tool, fields, keys)


def error_in(result: object) -> object:
    """Give the "error" of a result that is an object, or the JSON text of one; None without one."""
    if isinstance(result, str) and len(result) <= _LONGEST_TEXT and '"error"' in result:
        try:
            result = loads(result)
        except (ValueError, RecursionError):
            return None
    return cast("Mapping[str, object]", result).get("error") if isinstance(result, Mapping) else None


def told_an_error(result: object) -> bool:
    """Tell that a result is an object with an "error" in it, or the JSON text of one."""
    return error_in(result) is not None


def value_at(arguments: Mapping[str, Any], field: str) -> Any:
    """Give what is at a dotted path, MISSING where nothing is."""
    here: Any = arguments
    for step in field.split("."):
        if not isinstance(here, Mapping) or step not in here:
            return MISSING
        here = cast("Mapping[str, Any]", here)[step]
    return here


def with_value(arguments: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Copy arguments with another value at a dotted path; objects on the way are made where there are none."""
    step, dot, rest = field.partition(".")
    inner = arguments.get(step)
    if dot:
        value = with_value(cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}, rest, value)
    return {**arguments, step: value}


# -- values -------------------------------------------------------------------------------------------------------


def exact(value: object) -> Fraction | None:
    """Give a number as what it is written as, None for anything else: a truth value, text, NaN, a number's subclass."""
    if type(value) is int:
        return Fraction(value)
    return _as_written(value) if type(value) is float and math.isfinite(value) else None


@functools.lru_cache(maxsize=1024)
def _as_written(value: float) -> Fraction:
    return Fraction(repr(value))


def exact_limit(value: float) -> Fraction:
    """Give a rule's own number, which was checked when it was made."""
    number = exact(value)
    assert number is not None
    return number


def at_most(number: Fraction, like: object) -> int | float:
    """Write a number in the type of `like`, never as more than it is: whole ones are rounded down."""
    if type(like) is int:
        return math.floor(number)
    near = float(number)
    return near if Fraction(repr(near)) <= number else math.nextafter(near, -math.inf)


def key_of(value: object) -> str | None:
    """Give what two equal values have in common, None for none at all: JSON has them apart by type, but 1 and 1.0 are one number."""
    number = exact(value)
    if number is not None:
        return str(number)
    try:
        return None if value is MISSING or value is None else canonical(value)
    except NotPlainError:
        return None


def keys_at(arguments: Mapping[str, Any], fields: Iterable[str]) -> tuple[str | None, ...]:
    """Give the `key_of` what is in each of some fields."""
    return tuple(key_of(value_at(arguments, field)) for field in fields)


def folded(text: str) -> str:
    """Write text as it is looked up in a list: compatible forms, marks, case, invisible characters and white space make no difference."""
    flat = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = (char for char in flat if char.isspace() or unicodedata.category(char) not in _UNSEEN_IN_TEXT)
    return " ".join("".join(kept).split())


def is_blank(value: object) -> bool:
    """Tell that there is nothing, or text with nothing to be seen in it."""
    if value is MISSING or value is None:
        return True
    return type(value) is str and all(unicodedata.category(char)[0] in _UNSEEN or char in _BLANK_LETTERS for char in value)


# -- what a rule is given -----------------------------------------------------------------------------------------


def check_names(parameter: str, given: Any) -> tuple[str, ...]:
    """Accept one name or several of them, each once; raises ConfigurationError."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise ConfigurationError(f"{parameter}={checks.show(given)} must be a name, or a list with at least one name in it.")
    listed = tuple(checks.name(parameter, each, "issue_refund") for each in cast("Iterable[object]", names))
    if len(set(listed)) != len(listed):
        raise ConfigurationError(f"{parameter}={checks.show(given)} has a name twice: keep one.")
    return tuple(sorted(listed)) if isinstance(names, (set, frozenset)) else listed


def check_field(parameter: str, given: object) -> str:
    """Accept the name of a field, with dots where it is inside an object; raises ConfigurationError."""
    named = checks.name(parameter, given, "amount_usd")
    if not all(named.split(".")):
        raise ConfigurationError(f"{parameter}={checks.show(given)} has an empty step in it: write a field such as 'order.amount_usd'.")
    return named


def check_number(parameter: str, given: Any, *, least: float | None = None) -> int | float:
    """Accept a finite number, no truth value; raises ConfigurationError."""
    number = exact(given)
    if number is None or (least is not None and number < exact_limit(least)):
        of = "" if least is None else f" of at least {least}"
        raise ConfigurationError(f"{parameter}={checks.show(given)} must be a number{of}, such as 1000 or 0.5.")
    return cast("int | float", given)


def check_value(parameter: str, given: object) -> Any:
    """Accept a value that JSON has; raises ConfigurationError."""
    try:
        return plain(given)
    except NotPlainError as error:
        raise ConfigurationError(f"{parameter}={checks.show(given)} {error.what}") from None
