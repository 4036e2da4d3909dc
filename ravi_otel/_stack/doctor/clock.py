"""Compare our clock with another's, by the dates of its answers: they have whole seconds, and take time to come."""

from __future__ import annotations

import email.utils
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ravi_otel._stack.doctor.finding import Finding, broken, left_out, odd, well

ODD_S: Final = 5.0
BROKEN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Be one answer: what time it said, in seconds since 1970, exact to `step_s`, and our time before and after."""

    said_s: float
    before_s: float
    after_s: float
    step_s: float = 1.0

    @property
    def least_s(self) -> float:
        """Give the least by which that clock can be ahead of ours; negative: behind."""
        return self.said_s - self.after_s

    @property
    def most_s(self) -> float:
        """Give the most."""
        return self.said_s + self.step_s - self.before_s


def sample(date: str | None, before_s: float, after_s: float) -> Sample | None:
    """Read a Date header; None for none, or for what is no date."""
    if not date:
        return None
    try:
        return Sample(email.utils.parsedate_to_datetime(date).timestamp(), before_s, after_s)
    except (ValueError, TypeError, OverflowError):
        return None


def skew_s(samples: Sequence[Sample]) -> float:
    """Give by how much that clock is ahead of ours for certain: what all answers agree on, 0 where they may be the same.

    Where answers contradict each other, as when a clock was set meanwhile, the quickest one counts.
    """
    least, most = max(each.least_s for each in samples), min(each.most_s for each in samples)
    if least > most:
        quickest = min(samples, key=lambda each: each.after_s - each.before_s)
        least, most = quickest.least_s, quickest.most_s
    return least if least > 0 else min(most, 0.0)


def judged(check: str, whose: str, samples: Sequence[Sample]) -> Finding:
    """Say how far the clock of `whose` is from ours."""
    if not samples:
        return left_out(check, f"{whose} did not say what time it is")
    ahead_s = skew_s(samples)
    if abs(ahead_s) <= ODD_S:
        slack_s = max(0.01, min(each.most_s for each in samples) - max(each.least_s for each in samples))
        return well(check, f"our clock and that of {whose} agree, as far as {len(samples)} answers tell (within {slack_s:.1f} s)")
    said = f"our clock is {abs(ahead_s):,.0f} s {'behind' if ahead_s > 0 else 'ahead of'} that of {whose}"
    advice = "Have both machines set their clocks by NTP; windows, leases and alerts go by them."
    return (broken if abs(ahead_s) > BROKEN_S else odd)(check, said, advice)
