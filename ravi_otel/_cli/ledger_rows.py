"""Write the counters of a shared ledger for people and programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console

from ravi_otel._cli.columns import print_columns
from ravi_otel._enforcement.ledger.operators import Counter, Listing, Named
from ravi_otel.local._shared_budgets import MOST_NAME, Shown
from ravi_otel.local._wording import clean, percent
from ravi_otel.policy._checks import WINDOWS
from ravi_otel.policy._limits import format_amount as amount
from ravi_otel.policy._limits import public_amount, window_at

_NEAR: Final = 0.8
_AGES: Final = ((86_400 * 2, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "m"), (0, 1, "s"))
_UNKNOWN: Final = "?"
_HEADS: Final = ("id", "scope", "limit", "state", "of", "used", "held", "left", "share", "denied", "last")
_RATES: Final = ("id", "scope", "limit", "state", "of", "used", "a second", "share", "used up in", "denied")
_DROPS: Final = ("left", "last", "denied", "held", "share")
_KEPT: Final = ("id",)
"""Never cut: it is what names the counter to `set-limit`."""
_TEXTS: Final = 4
_MOST_OPENING: Final = 5


# -- for people ---------------------------------------------------------------------------------------------------


def print_counters(found: Sequence[Shown], out: Console, now_s: float) -> None:
    """Print counters, a row each."""
    rows = [_cells(each, now_s) for each in found]
    print_columns(out, _HEADS, rows, [_style(each) for each in found], left=_TEXTS, name="scope", drops=_DROPS, keeps=_KEPT)


def _cells(each: Shown, now_s: float) -> tuple[str, ...]:
    counter = each.counter
    left = max(0, counter.value - counter.used - counter.held)
    amounts = [amount(each.kind, value) for value in (counter.value, counter.used, counter.held, left)]
    return counter.id, each.where, each.label, each.state, *amounts, _share(counter), f"{counter.denied:,}", _age(counter, now_s)


def _style(each: Shown) -> str:
    counter = each.counter
    if counter.exceeded or counter.draining:
        return "red"
    return "yellow" if counter.near or counter.ratio >= _NEAR else ""


def _share(counter: Counter) -> str:
    return "-" if math.isinf(counter.ratio) else percent(counter.ratio)


def _age(counter: Counter, now_s: float) -> str:
    if counter.used_s is None or not math.isfinite(counter.used_s):
        return _UNKNOWN
    ago = max(0.0, now_s - counter.used_s)
    least, unit, letter = next(one for one in _AGES if ago >= one[0])
    return f"{ago // unit:.0f}{letter} ago" if least or ago >= 1 else "now"


def opening_again(found: Sequence[Shown], now_s: float) -> str:
    """Say what of a scope that is closed begins open later: windows, and users and the like that were not there yet."""
    said = dict[str, str]()
    for each in found:
        name = each.named
        if name is not None and (name.by is not None or name.per in WINDOWS):
            newly = f"for each {clean(name.by, MOST_NAME)} that was not there yet" if name.by is not None else ""
            when = _next_window(name, now_s) if name.per in WINDOWS else ""
            said[clean(name.label, MOST_NAME)] = " and ".join(word for word in (newly, when) if word)
    return "".join(f"{label} is open {what}. " for label, what in list(said.items())[:_MOST_OPENING]).rstrip()


def _next_window(name: Named, now_s: float) -> str:
    try:
        end = window_at(name.per or "", name.tz or "UTC", now_s).end
    except (ValueError, KeyError, OSError):  # the zone is another machine's, or nobody's
        return f"with the next {name.per}"
    return f"from {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M} UTC on"


# -- for programs -------------------------------------------------------------------------------------------------


def as_json(listing: Listing, found: Sequence[Shown]) -> dict[str, Any]:
    """Give a listing for programs; amounts in the kind's public unit, and as they are kept."""
    return {
        "counters": [fields(each) for each in found],
        "processes": listing.processes,
        "waiting": listing.waiting,
        "left_out": listing.left_out,
    }


def fields(each: Shown) -> dict[str, Any]:
    """Give one counter for programs; null is what is not known."""
    counter, name = each.counter, each.named
    public = {
        key: public_amount(each.kind, value) for key, value in (("limit", counter.value), ("used", counter.used), ("held", counter.held))
    }
    return {
        "id": counter.id,
        "scope": None if name is None else str(name.scope),
        "name": None if name is None else name.name,
        "tenant": None if name is None else name.tenant,
        "counts": None if name is None else name.label,
        "per": None if name is None else name.per,
        "tz": None if name is None else name.tz,
        "by": None if name is None else name.by,
        "part": None if name is None else list(name.part),
        **public,
        "declared": None if counter.declared is None else public_amount(each.kind, counter.declared),
        "denied": counter.denied,
        "ratio": None if math.isinf(counter.ratio) else counter.ratio,
        "near": counter.near,
        "exceeded": counter.exceeded,
        "draining": counter.draining,
        "used_s": counter.used_s,
        "epoch": counter.epoch,
    }


@dataclass(frozen=True, slots=True)
class Rate:
    """Show how fast a counter fills: inner units a second, and the seconds until it is used up, None: never at that rate."""

    shown: Shown
    per_s: float
    left_s: float | None

    def as_json(self) -> dict[str, Any]:
        """Give it for programs."""
        per_s = public_amount(self.shown.kind, 1) * self.per_s
        return {**fields(self.shown), "per_s": per_s, "left_s": self.left_s}


def print_rates(found: Sequence[Rate], out: Console) -> None:
    """Print how fast counters fill, a row each."""
    rows = list[tuple[str, ...]]()
    for one in found:
        each, counter = one.shown, one.shown.counter
        until = "" if one.left_s is None else f"{one.left_s:,.0f} s"
        amounts = [amount(each.kind, value) for value in (counter.value, counter.used, round(one.per_s))]
        rows.append((counter.id, each.where, each.label, each.state, *amounts, _share(counter), until, f"{counter.denied:,}"))
    print_columns(out, _RATES, rows, [_style(one.shown) for one in found], left=_TEXTS, name="scope", drops=_DROPS, keeps=_KEPT)
