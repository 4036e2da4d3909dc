"""Write names, amounts and times for people, and read what they write: no name can move a cursor, what is unknown is shown as unknown."""

from __future__ import annotations

import math
import re
import time
import unicodedata
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._limits import CLOCKS, NANO, Kind

UNKNOWN: Final = "?"
NONE: Final = "-"
"""What a thing has none of, such as the priority of a run; `UNKNOWN` is what it has and nobody told."""

COST_CELLS: Final = 10
_SHORT_FROM: Final = 10_000
_SIZES: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_READ: Final = 2_000
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?", re.DOTALL
)
_BREAKS: Final = frozenset({"Zl", "Zp", "Zs"})
_STACKED: Final = frozenset({"Mn", "Me"})
_MOST_STACKED: Final = 2


@lru_cache(1_024)
def clean(name: str | None, most: int = 80) -> str:
    """Give a name from outside as one short line of visible characters.

    Escape sequences go whole, line breaks and tabs become spaces, control, bidi and unassigned characters are dropped,
    and more than two combining marks on one character are not piled up.
    """
    if name is None:
        return ""
    if name.isascii() and name.isprintable():  # nearly every one: nothing in it can do harm
        return _cut(" ".join(name[:_MOST_READ].split()), most)
    kept: list[str] = []
    stacked = 0
    for char in _ESCAPES.sub("", name[:_MOST_READ]):
        category = unicodedata.category(char)
        if category in _STACKED:
            stacked += 1
            if stacked > _MOST_STACKED:
                continue
        else:
            stacked = 0
        if char in "\n\r\t\v\f" or category in _BREAKS:
            kept.append(" ")
        elif category[0] != "C":
            kept.append(char)
    return _cut(" ".join("".join(kept).split()), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(amount: float | None, *, estimated: bool = False) -> str:
    """Write a count with its thousands apart; None is `?`, an estimate has a `~`, and an estimate of nothing is `?`."""
    if amount is None or (estimated and not amount):
        return UNKNOWN
    return f"{'~' if estimated else ''}{amount:,}"


def many(number: int, one: str, several: str | None = None) -> str:
    """Write how many there are of a thing: `1 call`, `2 calls`, `2 matches`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def money(nano: int | None, *, estimated: bool = False) -> str:
    """Write nano-USD as dollars, with more decimals for less."""
    if nano is None or (estimated and not nano):
        return UNKNOWN
    if nano == 0:
        return "$0"
    usd = nano / NANO
    mark = "~" if estimated else ""
    if 0 < usd < 0.0000005:  # noqa: PLR2004 - what six decimals would round to nothing
        return f"{mark}<$0.000001"
    digits = 2 if usd >= 10 else 4 if usd >= 0.1 else 6  # noqa: PLR2004 - about four figures that say something
    return f"{mark}${usd:,.{digits}f}"


def milliseconds(ns: int | None) -> str:
    """Write a duration in whole milliseconds, `<1` for less; None is a thing that is not over."""
    if ns is None:
        return UNKNOWN
    return "<1" if ns < 1_000_000 else f"{ns // 1_000_000:,}"  # noqa: PLR2004 - nanoseconds in a millisecond


def amount(kind: str, value: float) -> str:
    """Write an amount of a limit's kind in its public unit: `$0.05`, `1.5 s`, `2,000`."""
    if not math.isfinite(value):
        return UNKNOWN
    if kind == Kind.COST:
        whole, dot, part = money(round(value * NANO)).partition(".")
        return f"{whole}.{part.rstrip('0').ljust(2, '0')}" if dot else whole
    if kind in CLOCKS:
        return f"{value:,.1f}".removesuffix(".0") + " s"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}".removesuffix(".0")


def percent(ratio: float) -> str:
    """Write a share, rounded down, so that 80 % is said when 80 % is reached; past a limit of nothing it has no bound."""
    if math.isnan(ratio):
        return UNKNOWN
    return f"{math.floor(ratio * 100 + 1e-9):,} %" if abs(ratio) < 1e7 else "> 1e9 %"  # noqa: PLR2004 - as wide as a column may get


def short(number: float | None, *, estimated: bool = False) -> str:
    """Write a count in five or six characters, rounded down: `9,999`, `12.3k`, `~450k`."""
    if number is None:
        return UNKNOWN
    if number < _SHORT_FROM:
        return count(int(number), estimated=estimated and number > 0)
    size, unit = next((size, unit) for size, unit in _SIZES if number >= size)
    if estimated and number >= 100 * size:
        return f"~{math.floor(number / size):,}{unit}"
    return f"{'~' if estimated else ''}{math.floor(number / size * 10) / 10:,.1f}{unit}"


def rate(per_s: float | None) -> str:
    """Write tokens per second."""
    if per_s is None or per_s < 0:
        return NONE
    return short(per_s) if per_s >= 10 or per_s == int(per_s) else f"{per_s:.1f}"  # noqa: PLR2004 - from there on a decimal says nothing


def usd(amount: float | None, *, estimated: bool = False, partly: bool = False) -> str:
    """Write dollars; `partly` when more was spent than is known, which is all that is known of nothing."""
    if partly and not amount:
        return UNKNOWN
    return ("≥" if partly else "") + money(None if amount is None else round(amount * NANO), estimated=estimated)


def short_usd(amount: float | None, *, estimated: bool = False, partly: bool = False) -> str:
    """Write dollars in ten characters: large ones rounded down, as counts are, and small ones to four decimals."""
    text = usd(amount, estimated=estimated, partly=partly)
    if amount is None or len(text) <= COST_CELLS:
        return text
    marks = ("≥" if partly else "") + ("~" if estimated else "")
    return f"{marks}${short(amount)}" if amount >= 1 else f"{marks}${math.floor(amount * 10_000) / 10_000:.4f}"


def age(seconds: float | None) -> str:
    """Write how long ago, in two units at most: `59s`, `3m05`, `2h10`, `3d04`; from 1,000 days on in days alone."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, int(seconds))
    if whole >= 1_000 * 86_400:
        return f"{short(whole // 86_400)}d"
    for size, unit, inner in ((86_400, "d", 3_600), (3_600, "h", 60), (60, "m", 1)):
        if whole >= size:
            return f"{whole // size:,}{unit}{whole % size // inner:02d}"
    return f"{whole}s"


def plain(text: str) -> str:
    """Give text for an output that can only carry ASCII."""
    for char, spelled in (("…", "..."), ("≥", ">="), ("·", "-")):
        text = text.replace(char, spelled)
    return text.encode("ascii", "replace").decode("ascii")


# -- times and words ----------------------------------------------------------------------------------------------

_AGO: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_EPOCH: Final = re.compile(r"\d{9,11}(?:\.\d{1,9})?", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}:\d{2})?)?", re.ASCII)
_WORD: Final = re.compile(r'"([^"]*)"|(\S+)')
_MOST_WORDS: Final = 32
_MOST_TEXT: Final = 1_000


def moment(parameter: str, written: str, *, now: float | None = None) -> int:
    """Read a time: `yesterday`, `7d` (ago), `2026-11-28`, `2026-11-28T14:00`, with `Z` or `+01:00`; local time where no zone is said.

    Raises ConfigurationError naming `parameter`.
    """
    text, clock = written.strip(), time.time() if now is None else now
    today = datetime.fromtimestamp(clock).replace(hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006 - local on purpose
    named = {"now": clock, "today": today.timestamp(), "yesterday": (today - timedelta(days=1)).timestamp()}
    ago = _AGO.fullmatch(text)
    try:
        if text.lower() in named:
            return round(named[text.lower()] * NANO)
        if ago is not None:
            return max(0, round((clock - float(ago[1]) * _UNITS[ago[2]]) * NANO))
        if _EPOCH.fullmatch(text):
            return round(float(text) * NANO)
        if _DATE.fullmatch(text):
            return round(datetime.fromisoformat(text).timestamp() * NANO)
    except (ValueError, OverflowError, OSError):
        pass  # a thirtieth of February
    raise ConfigurationError(
        f"{parameter} {clean(written, 40)!r} is no time. Write now, today, yesterday, how long ago such as 7d, 24h or 90m, "
        "or a date such as 2026-11-28 or 2026-11-28T14:00."
    )


def matching(text: str) -> str:
    """Write what is looked for as the full-text index wants it: every word, and "several in quotes" as they stand."""
    found = [(quoted or word).replace('"', " ").replace("\0", " ") for quoted, word in _WORD.findall(text[:_MOST_TEXT])]
    words = [f'"{each}"' for each in found if any(char.isalnum() for char in each)]
    return " ".join(words[:_MOST_WORDS]) or '""'


def like(text: str) -> str | None:
    """Write what a name has to have in it; None where nothing is looked for."""
    wanted = re.sub(r"([\\%_])", r"\\\1", text[:_MOST_TEXT].replace("\0", ""))
    return f"%{wanted}%" if wanted else None
