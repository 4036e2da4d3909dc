"""Read what a server says about when to try again."""

from __future__ import annotations

import email.utils
import math
import time


def seconds_until(value: str | None) -> float | None:
    """Give the seconds from now that a Retry-After names, as a number or a date, negative for the past; None for no time at all."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) else None
