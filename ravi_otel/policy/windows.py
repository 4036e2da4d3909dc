"""Say when a limit's window begins and ends: by the calendar of a time zone, or rolling."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.checks import MAX_WINDOW_DIGITS, SECONDS_OF, WINDOWS

TAG: Final = "tag."
BY: Final = ("user", "model", "tenant")
"""What a limit may count by, beside a tag."""
BY_PATTERN: Final = rf"{'|'.join(BY)}|tag\.[^:\s]{{1,256}}"
WINDOW_PATTERN: Final = rf"{'|'.join(WINDOWS)}|[1-9][0-9]{{0,{MAX_WINDOW_DIGITS - 1}}}[{''.join(SECONDS_OF)}]"

_NANO: Final = 1_000_000_000
_LONGEST: Final = {"minute": 60, "hour": 3_600, "day": 25 * 3_600, "week": 7 * 86_400 + 3_600, "month": 31 * 86_400 + 3_600}
"""Seconds that each calendar window lasts at most: a night on which clocks are put back is an hour longer."""
_USUAL: Final = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
_EARLIEST, _LATEST = 0.0, 250_000_000_000.0  # 1970 to 9892: a clock that shows anything else is wrong, and dates end at 9999


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a calendar: `id` is unique for its length and zone, `start` and `end` are UTC epoch seconds."""

    id: str
    start: float
    end: float

    def holds(self, now_s: float) -> bool:
        """Whether a moment is in it."""
        return self.start <= now_s < self.end


def check_by(parameter: str, value: object) -> str:
    """Accept what a limit has a counter each of: user, model, tenant, or tag.NAME."""
    if isinstance(value, str) and re.fullmatch(BY_PATTERN, value):
        return value
    close = checks.nearest(value, BY)
    hint = f"; did you mean {close!r}?" if close else "."
    raise ConfigurationError(
        f"{parameter}={checks.show(value)} must be one of {', '.join(BY)}, or tag.NAME with a name without spaces and colons{hint}"
    )


def is_calendar(per: str | None) -> bool:
    """Whether a limit begins anew with the calendar, rather than rolling or never."""
    return per in WINDOWS


@lru_cache(maxsize=256)
def roll_ns(per: str | None) -> int:
    """Return how far back a rolling window looks, in nanoseconds; 0 for a calendar's, and for none."""
    if per is None or per in WINDOWS:
        return 0
    return int(per[:-1]) * SECONDS_OF[per[-1]] * _NANO


def longest_s(per: str | None) -> int:
    """Return how long such a window lasts at most, in seconds; 0 for none. A store keeps a counter at least that long."""
    return _LONGEST[per] if per in _LONGEST else roll_ns(per) // _NANO


def usual_s(per: str | None) -> int:
    """Return how long such a window lasts, in seconds, a month 30 days; 0 for none."""
    return _USUAL[per] if per in _USUAL else roll_ns(per) // _NANO


def same_window(per: str | None) -> str | None:
    """Write a window as all who mean the same one write it: "60m" and "3600s" are "1h"."""
    length_s = roll_ns(per) // _NANO
    if not length_s:
        return per
    unit = next(unit for unit in reversed(SECONDS_OF) if length_s % SECONDS_OF[unit] == 0)
    return f"{length_s // SECONDS_OF[unit]}{unit}"


def window_at(per: str, tz: str, now_s: float) -> Window:
    """Return the calendar's window that holds a moment, in UTC epoch seconds."""
    now_s = min(max(now_s, _EARLIEST), _LATEST)
    zone = ZoneInfo(tz)
    here = datetime.fromtimestamp(now_s, zone)
    if per in ("minute", "hour"):
        return _short(per, zone, here, now_s)
    first = here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if per == "week":
        first -= timedelta(days=here.weekday())
        following = first + timedelta(days=7)
    elif per == "month":
        first = first.replace(day=1)
        following = (first + timedelta(days=32)).replace(day=1)
    else:
        following = first + timedelta(days=1)
    year, week, _ = first.isocalendar()
    name = {"day": f"{first:%Y-%m-%d}", "week": f"{year:04}-W{week:02}", "month": f"{first:%Y-%m}"}[per]
    return Window(name, first.timestamp(), following.timestamp())  # a midnight that the clocks skip is the moment they skip at


def _short(per: str, zone: ZoneInfo, here: datetime, now_s: float) -> Window:
    """Return an hour or a minute as clocks show it; one that is shown twice, when they are put back, is two windows."""
    past = here.second + here.microsecond / 1_000_000 + (here.minute * 60 if per == "hour" else 0)
    start = round(now_s - past)
    end = start + _LONGEST[per]
    offset = here.utcoffset()
    name = f"{here:%Y-%m-%dT%H}" if per == "hour" else f"{here:%Y-%m-%dT%H:%M}"
    return Window(
        f"{name}{here:%z}",
        _change(zone, int(now_s), start - 1, offset) + 1 if _offset(zone, start) != offset else start,
        _change(zone, int(now_s), end, offset) if _offset(zone, end - 1) != offset else end,
    )


def _offset(zone: ZoneInfo, at_s: float) -> timedelta | None:
    return datetime.fromtimestamp(at_s, zone).utcoffset()


def _change(zone: ZoneInfo, known: int, other: int, offset: timedelta | None) -> int:
    """Find the first second, going from `known` to `other`, that is not at `offset`, as the one at `known` is."""
    while abs(other - known) > 1:
        middle = (known + other) // 2
        if _offset(zone, middle) == offset:
            known = middle
        else:
            other = middle
    return other
