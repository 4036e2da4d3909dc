"""Write names and amounts for people: no name can move a cursor, and what is unknown is shown as unknown."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Final

from ravi_otel.policy._limits import CLOCKS, NANO, Kind

UNKNOWN: Final = "?"
_MOST_READ: Final = 2_000
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?", re.DOTALL
)
_BREAKS: Final = frozenset({"Zl", "Zp", "Zs"})
_STACKED: Final = frozenset({"Mn", "Me"})
_MOST_STACKED: Final = 2


def clean(name: str | None, most: int = 80) -> str:
    """Give a name from outside as one short line of visible characters.

    Escape sequences go whole, line breaks and tabs become spaces, control, bidi and unassigned characters are dropped,
    and more than two combining marks on one character are not piled up.
    """
    if name is None:
        return ""
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
    text = " ".join("".join(kept).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(amount: float | None, *, estimated: bool = False) -> str:
    """Write a count with its thousands apart; None is `?`, an estimate has a `~`, and an estimate of nothing is `?`."""
    if amount is None or (estimated and not amount):
        return UNKNOWN
    return f"{'~' if estimated else ''}{amount:,}"


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
    return f"{value:,}"


def percent(ratio: float) -> str:
    """Write a share, rounded down, so that 80 % is said when 80 % is reached; past a limit of nothing it has no bound."""
    if math.isnan(ratio):
        return UNKNOWN
    return f"{math.floor(ratio * 100 + 1e-9):,} %" if abs(ratio) < 1e7 else "> 1e9 %"  # noqa: PLR2004 - as wide as a column may get


def plain(text: str) -> str:
    """Give text for an output that can only carry ASCII."""
    for char, spelled in (("…", "..."), ("≥", ">="), ("·", "-")):
        text = text.replace(char, spelled)
    return text.encode("ascii", "replace").decode("ascii")
