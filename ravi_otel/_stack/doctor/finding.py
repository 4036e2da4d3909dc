"""Be what a check says, and what it is asked with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ravi_otel.local._wording import clean

State = Literal["well", "odd", "broken", "left_out"]
"""`odd` works, and may not be what is wanted; `broken` loses telemetry or leaves a limit unkept; `left_out` was not looked at."""

_MOST_SAID: Final = 800


@dataclass(frozen=True, slots=True)
class Finding:
    """Be one finding: what was looked at, how it is, what was seen, and in one sentence what to do; "" where there is nothing to do."""

    check: str
    state: State
    said: str
    advice: str = ""


def well(check: str, said: str) -> Finding:
    """Say that it is as it should be."""
    return Finding(check, "well", clean(said, _MOST_SAID))


def odd(check: str, said: str, advice: str) -> Finding:
    """Say that it works, and may not be what is wanted."""
    return Finding(check, "odd", clean(said, _MOST_SAID), clean(advice, _MOST_SAID))


def broken(check: str, said: str, advice: str) -> Finding:
    """Say that something does not work."""
    return Finding(check, "broken", clean(said, _MOST_SAID), clean(advice, _MOST_SAID))


def left_out(check: str, said: str, advice: str = "") -> Finding:
    """Say that it was not looked at, and why."""
    return Finding(check, "left_out", clean(said, _MOST_SAID), clean(advice, _MOST_SAID))


@dataclass(frozen=True, slots=True)
class Asked:
    """Be what is looked at, until when on the monotonic clock, and the settings and the files that the stack was started with."""

    environ: Mapping[str, str]
    until_s: float
    ledger: str | None = field(default=None, repr=False)
    policy: Path | None = None
    env_file: Path | None = None
    files: Path | None = None

    def said(self, name: str) -> str:
        """Give a variable without blanks around it, "" where it is not set."""
        return self.environ.get(name, "").strip()

    def left_s(self, most: float = 3_600.0) -> float:
        """Give the seconds that are left, at most `most`, and never none: what is asked too late fails at once."""
        return max(0.01, min(most, self.until_s - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """Tell that no time is left."""
        return time.monotonic() >= self.until_s


Check = Callable[[Asked], Iterable[Finding]]
