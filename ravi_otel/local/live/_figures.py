"""Write what a process said in few characters: shares as bars that are read without colour, large counts short."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Final

from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.local._wording import UNKNOWN, clean, count, money, percent
from ravi_otel.local.live._protocol import LimitState
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, Kind

NONE: Final = "-"
"""What a thing has none of, such as the priority of a run; `UNKNOWN` is what it has and nobody told."""

NEARING: Final = 0.8
SPENT: Final = 1.0

_USD: Final = "USD"
_SECONDS: Final = "s"
_SHORT_FROM: Final = 10_000
COST_CELLS: Final = 9
_UNITS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LIVE: Final = frozenset({Kind.AGENTS, Kind.FAN_OUT, Kind.DEPTH})
_LEAST_URGENT: Final = 2.0
_MOST_SHARE: Final = 10
_READ_AS: Final = {_USD: "cost", _SECONDS: "time"}
_DECIMAL_COMMA: Final = re.compile(r",(?!\d{3}(?!\d))")
_EXAMPLES: Final = {_USD: "2.50", _SECONDS: "90 or 5m"}


def short(number: float | None) -> str:
    """Write a count in five or six characters, rounded down: `9,999`, `12.3k`, `4.5M`."""
    if number is None:
        return UNKNOWN
    if number < _SHORT_FROM:
        return count(int(number))
    size, unit = next((size, unit) for size, unit in _UNITS if number >= size)
    return f"{math.floor(number / size * 10) / 10:,.1f}{unit}"


def rate(per_s: float | None) -> str:
    """Write tokens per second."""
    if per_s is None or per_s < 0:
        return NONE
    return short(per_s) if per_s >= 10 or per_s == int(per_s) else f"{per_s:.1f}"  # noqa: PLR2004 - from there on a decimal says nothing


def usd(amount: float | None) -> str:
    """Write dollars."""
    return money(None if amount is None else round(amount * NANO))


def short_usd(amount: float | None) -> str:
    """Write dollars in nine characters: large ones rounded down, as counts are."""
    text = usd(amount)
    return text if amount is None or len(text) <= COST_CELLS else f"${short(amount)}"


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


def amount(limit: LimitState, value: float) -> str:
    """Write an amount of a limit in its unit: `$0.50`, `90 s`, `2,000`."""
    if limit.unit == _USD:
        return usd(value)
    if limit.unit == _SECONDS:
        return f"{value:,.1f}".removesuffix(".0") + " s"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}".removesuffix(".0")


def fullness(limit: LimitState) -> float:
    """Give used of the limit; a limit of nothing that was passed is fuller than any."""
    return math.inf if limit.ratio is None else limit.ratio


def urgency(limit: LimitState) -> float:
    """Give the fullness by which a limit is told first: what is in use only while it lives, such as slots, may well be full."""
    full = fullness(limit)
    return full - _LEAST_URGENT if full <= SPENT and limit.kind.partition(":")[0] in _LIVE else full


def bar(limit: LimitState, width: int, *, ascii_only: bool = False) -> str:
    """Draw how full a limit is: used, then held, then free."""
    full, half, empty = "#+." if ascii_only else "█▒░"
    filled = width if fullness(limit) >= SPENT else max(0, math.floor(fullness(limit) * width + 1e-9))
    held = 0
    if limit.limit > 0 and limit.held > 0:
        held = min(width - filled, math.ceil(min(limit.held / limit.limit, 1.0) * width))
    return full * filled + half * held + empty * (width - filled - held)


def mark(limit: LimitState) -> str:
    """Say without colour how near a limit is: `!` from 80 % on, `!!` where it is spent."""
    ratio = urgency(limit)
    return "" if ratio < NEARING else "!" if ratio < SPENT else "!!"


def tone(limit: LimitState) -> str:
    """Say the same in colour."""
    return {"": "", "!": "yellow", "!!": "bold red"}[mark(limit)]


def share(limit: LimitState) -> str:
    """Write the share with its mark: ` 80 % !`."""
    ratio = limit.ratio
    written = "spent" if ratio is None else ">999%" if ratio >= _MOST_SHARE else percent(max(0.0, ratio))
    return f"{written:>5} {mark(limit):<2}"


def written(limit: LimitState) -> str:
    """Give a limit's value as it is typed: `20000`, `0.5`."""
    return f"{limit.limit:.9f}".rstrip("0").rstrip(".")


def read_amount(limit: LimitState, text: str) -> float:
    """Read what was typed as a limit's new value, in its unit; ConfigurationError when it is none."""
    kind = _READ_AS.get(limit.unit, "requests")
    spelled = text.strip().replace(" ", "")
    typed = "" if _DECIMAL_COMMA.search(spelled) else spelled.replace(",", "")  # 2,50 is not 250
    with contextlib.suppress(LimitSyntaxError):
        if not {":", "="} & set(typed):
            return parse_limit(f"{kind}={typed}").amount
    example = _EXAMPLES.get(limit.unit, "20000, 20k or 1M")
    raise ConfigurationError(f"{clean(text, 40)!r} is no value for {clean(limit.kind, 40)}: write a number such as {example}.")
