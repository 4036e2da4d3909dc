"""Check what a user wrote, and say in one sentence what is wrong with it and what would be right."""

from __future__ import annotations

import difflib
import inspect
import logging
import operator
import os
import re
import unicodedata
import zoneinfo
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeVar, cast

from ravi_otel.errors import ConfigurationError

MAX_COUNT: Final = 2**53
"""Largest count: what every store and every JSON reader holds exactly."""
MAX_NANO: Final = 2**63 - 1
"""Largest amount of nano-USD or nanoseconds: about 9.2 billion USD, 292 years."""
MAX_NAME: Final = 256
LEAST_SHARE: Final = 0.001
MOST_TAGS: Final = 8
TAG: Final = re.compile(r"[a-z][a-z0-9_.]{0,39}")
"""What the key of a tag looks like."""
WINDOWS: Final = ("minute", "hour", "day", "week", "month")
SECONDS_OF: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
WINDOW_PATTERN: Final = rf"{'|'.join(WINDOWS)}|[1-9][0-9]{{0,6}}[{''.join(SECONDS_OF)}]"
"""What the window of a limit looks like: of the calendar, or rolling."""
_NANO: Final = 1_000_000_000
_SHOWN: Final = 60
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})

_log = logging.getLogger("ravi_otel")
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"0", "false", "no", "off"})
_told: set[tuple[str, str]] = set()

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=Enum)


def show(value: object) -> str:
    """Write a value for an error's sentence: short, on one line, whatever its own `repr` does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot be written must not hide what is wrong with it
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def is_generator_function(fn: object) -> bool:
    """Whether a call of `fn` runs nothing of it, because `fn` is a sync or async generator function."""
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known spelling closest to `word`, None when none is close."""
    if not isinstance(word, str) or len(word) > _SHOWN:
        return None
    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return close[0] if close else None


def meant(word: object, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: which one may be meant, or a full stop."""
    close = nearest(word, known)
    return f"; did you mean {close!r}?" if close else "."


def flaw_of_name(value: str) -> str | None:
    """Return what is wrong with a name, None when nothing is."""
    if not value or value.isspace():
        return "is empty"
    if len(value) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not value.isprintable() and any(unicodedata.category(char) in _UNPRINTABLE for char in value):
        return "has a control character, a line break or half a character in it"
    return None


def name(parameter: str, value: object, example: str | None = None) -> str:
    """Accept a name: text of 1 to 256 characters without control characters; `example` is a right one."""
    if isinstance(value, str) and value.isprintable() and not value.isspace() and 0 < len(value) <= MAX_NAME:  # nearly always
        return value
    if not isinstance(value, str):
        such = "" if example is None else f" such as {example!r}"
        raise ConfigurationError(f"{parameter}={show(value)} is not text; give 1 to {MAX_NAME} printable characters{such}.")
    flaw = flaw_of_name(value)
    if flaw:
        raise ConfigurationError(f"{parameter}={show(value)} {flaw}; give 1 to {MAX_NAME} printable characters.")
    return value


def optional_name(parameter: str, value: object) -> str | None:
    """Accept a name or None."""
    return None if value is None else name(parameter, value)


def count(parameter: str, value: object, *, least: int = 0, most: int = MAX_COUNT, way_out: str = "0 allows nothing") -> int:
    """Accept a whole number from `least` to `most`, 2**53 unless given; a bool is not a number here."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(cast("SupportsIndex", value))
        except Exception:  # noqa: BLE001 - a stranger's __index__ may raise anything; either way it is no whole number
            number = None
    if number is None or not least <= number <= most:
        top = "2**53" if most == MAX_COUNT else most
        raise ConfigurationError(f"{parameter}={show(value)} must be a whole number from {least} to {top} ({way_out}).")
    return number


def nano_usd(parameter: str, value: object, *, way_out: str = "0 allows nothing") -> int:
    """Turn USD into whole nano-USD, exactly.

    Text and Decimal must have at most 9 decimals; the noise a float carries past them (0.1 + 0.2) is rounded off. A
    positive amount is never turned into 0.
    """
    amount = _decimal(value) if isinstance(value, (int, float, str, Decimal)) and not isinstance(value, bool) else None
    if amount is None or not 0 <= amount <= MAX_NANO // _NANO:
        raise ConfigurationError(f"{parameter}={show(value)} must be an amount of USD such as 2.50, from 0 to 9 billion ({way_out}).")
    nano, exact = _nano(amount)
    if not (exact or isinstance(value, float)) or (nano == 0 and amount != 0):
        raise ConfigurationError(f"{parameter}={show(value)} is too fine: the smallest step is 0.000000001 USD, so round it to 9 decimals.")
    return nano


def nanoseconds(parameter: str, value: object, *, way_out: str = "0 is no time at all") -> int:
    """Turn seconds into whole nanoseconds; a positive time is at least one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_NANO // _NANO:
        raise ConfigurationError(f"{parameter}={show(value)} must be a number of seconds such as 90 or 0.5, from 0 ({way_out}).")
    return value * _NANO if isinstance(value, int) else _nano(Decimal(str(value)))[0] or int(value > 0)


def _decimal(value: float | str | Decimal) -> Decimal | None:
    try:
        text = "" if isinstance(value, Decimal) else str(value)
        amount = value if isinstance(value, Decimal) else Decimal(text)
    except (ValueError, InvalidOperation):
        return None
    if len(text) > _SHOWN or not amount.is_finite():
        return None
    if not amount:
        return Decimal(0)
    return amount if abs(amount.adjusted()) < _SHOWN else None


def _nano(amount: Decimal) -> tuple[int, bool]:
    """Multiply by 10**9 in whole numbers, which no decimal context of the program can round; return whether it was exact."""
    if amount.adjusted() < -_SHOWN:
        return 0, False
    numerator, denominator = amount.as_integer_ratio()
    return (2 * numerator * _NANO + denominator) // (2 * denominator), numerator * _NANO % denominator == 0


def share(parameter: str, value: object) -> float:
    """Accept a share of a limit, from 0.001 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST_SHARE <= value <= 1:
        raise ConfigurationError(f"{parameter}={show(value)} must be a share of the limit from {LEAST_SHARE} to 1, such as 0.8.")
    return float(value)


def window(parameter: str, value: object) -> str:
    """Accept a calendar window (minute, hour, day, week, month) or a rolling one such as "15m"."""
    if not isinstance(value, str) or not re.fullmatch(WINDOW_PATTERN, value):
        way_out = f"must be one of {', '.join(WINDOWS)}, or a duration such as '15m' (s, m, h, d)"
        raise ConfigurationError(f"{parameter}={show(value)} {way_out}{meant(value, WINDOWS)}")
    return value


def zone(parameter: str, value: object) -> str:
    """Accept the name of a time zone this machine knows."""
    if value == "UTC":
        return "UTC"
    try:
        if isinstance(value, str) and value:
            zoneinfo.ZoneInfo(value)
            return value
    except (ValueError, KeyError, OSError):
        pass
    raise ConfigurationError(f"{parameter}={show(value)} is no time zone of this machine; give a name such as 'UTC' or 'Europe/Berlin'.")


def tags(parameter: str, given: object) -> dict[str, str]:
    """Accept a few short texts by short keys, as `run(tags=...)` does."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'{parameter}={show(given)} must be a dict of short texts, such as {{"team": "search"}}.')
    texts: Mapping[Any, Any] = given  # pyright: ignore[reportUnknownVariableType]  # its keys and values are looked at below
    if len(texts) > MOST_TAGS:
        raise ConfigurationError(f"{parameter} has {len(texts)} keys: each is a metric's label, so at most {MOST_TAGS} are taken.")
    for key in texts:
        if not isinstance(key, str) or not TAG.fullmatch(key):
            raise ConfigurationError(
                f'{parameter} key {show(key)} must be lower-case letters, digits, "_" or ".", at most 40, such as "team".'
            )
    return {key: name(f"{parameter}.{key}", value, "search") for key, value in texts.items()}


def flag(parameter: str, value: object) -> bool:
    """Accept True or False and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{parameter}={show(value)} must be True or False.")
    return value


def member(parameter: str, value: object, kind: type[EnumT]) -> EnumT:
    """Accept a member of an enum, or its value."""
    if isinstance(value, kind):
        return value
    if type(value) in (str, int) and value in [known.value for known in kind]:
        return kind(value)
    if all(isinstance(known.value, str) for known in kind):
        raise ConfigurationError(unknown_choice(parameter, value, [known.value for known in kind]))
    raise ConfigurationError(_unknown_member(parameter, value, kind))


def _unknown_member(parameter: str, value: object, kind: type[Enum]) -> str:
    """Write the sentence for what is no member of an enum of numbers, which is named by its members."""
    members = {known.name.lower(): f"{kind.__name__}.{known.name}" for known in kind}
    close = nearest(value, members)
    hint = f"; did you mean {members[close]}?" if close else "."
    return f"{parameter}={show(value)} is unknown: give one of {', '.join(members.values())}{hint}"


def instance(parameter: str, value: T, kind: type[Any], example: str) -> T:
    """Accept an object of a class, or one that has what a protocol asks for; a class in its place has that too, and is none."""
    if isinstance(value, type):
        raise ConfigurationError(f"{parameter}={value.__name__} is a class; give an instance of it, {value.__name__}(...).")
    if isinstance(value, kind):
        return value
    raise ConfigurationError(f"{parameter}={show(value)} is no {kind.__name__}; give {example}.")


def file_path(parameter: str, value: object, example: str) -> Path:
    """Accept the path of a file, there or not, in a folder that is there; return it so that it stays wherever the program goes."""
    try:
        text: object = os.fspath(cast("str", value))
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{parameter}={show(value)} is no path of a file; give one such as {example!r}.")
    path = Path(text).absolute()
    if os.path.isdir(path):  # noqa: PTH112 - pathlib's raises where a folder may not be looked into
        raise ConfigurationError(f"{parameter}={show(text)} is a folder; give a file in it, such as {example!r}.")
    if not os.path.isdir(path.parent):  # noqa: PTH112 - the same
        raise ConfigurationError(
            f"{parameter}={show(text)}: there is no folder {str(Path(text).parent)!r}; make it first, or give another."
        )
    return path


def choice(parameter: str, value: object, known: tuple[str, ...]) -> str:
    """Accept one of a few words."""
    if isinstance(value, str) and value in known:
        return value
    raise ConfigurationError(unknown_choice(parameter, value, known))


def unknown_choice(parameter: str, value: object, known: Iterable[object]) -> str:
    """Write the sentence for a word that is none of the known ones."""
    words = [word for word in known if isinstance(word, str)]
    return f"{parameter}={show(value)} is unknown: give one of {', '.join(repr(word) for word in known)}{meant(value, words)}"


# -- switches in the environment: on, off, or a warning and the safe one -----------------------------------------------


def environ_choice(environ: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return the one of `words` that `name` says: the first when it is not set, or says another, which is warned of once."""
    stated = environ.get(name, "").strip()
    word = stated.lower() or words[0]
    if word in words:
        return word
    _warn(name, stated, f"none of {', '.join(words)}", words[0])
    return words[0]


def switch(environ: Mapping[str, str], name: str, *, default: bool, safe: bool) -> bool:
    """Whether `name` is switched on: `default` when it is not set, `safe` when it says neither on nor off, warned of once."""
    stated = environ.get(name, "").strip()
    word = stated.lower()
    if not word:
        return default
    if word in _ON or word in _OFF:
        return word in _ON
    _warn(name, stated, "neither on nor off", "on" if safe else "off")
    return safe


def _warn(name: str, stated: str, what: str, taken_for: str) -> None:
    """Say once what of the environment is read as something else."""
    if (name, stated) not in _told:
        _told.add((name, stated))
        _log.warning("ravi-otel: %s=%s is %s, and is taken for %s.", name, show(stated), what, taken_for)
