"""Checks of what telemetry and limits need, with findings that say what is wrong and what to do about it.

There is one module for each subject. Its `examine` functions yield findings within the time that is left, and change no settings or files.
The command decides which of them run, and in which order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ravi_otel._forksafe import without_signals
from ravi_otel._local.wording import clean

State = Literal["well", "odd", "broken", "left_out"]
"""`odd` works, but may not be intended; `broken` loses telemetry or a limit is not enforced; `left_out` was not examined."""

_MOST_SAID: Final = 800


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: what was examined, its state, what was seen, and in one sentence what to do about it ("" for nothing)."""

    check: str
    state: State
    said: str
    advice: str = ""


def well(check: str, said: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return _finding(check, "well", said)


def odd(check: str, said: str, advice: str) -> Finding:
    """Return a finding of something that works, and may not be what is wanted."""
    return _finding(check, "odd", said, advice)


def broken(check: str, said: str, advice: str) -> Finding:
    """Return a finding of something that does not work."""
    return _finding(check, "broken", said, advice)


def left_out(check: str, said: str, advice: str = "") -> Finding:
    """Return a finding that something was not examined, and why."""
    return _finding(check, "left_out", said, advice)


def _finding(check: str, state: State, said: str, advice: str = "") -> Finding:
    return Finding(check, state, clean(said, _MOST_SAID), clean(advice, _MOST_SAID))


@dataclass(frozen=True, slots=True)
class Inputs:
    """What to examine, until when on the monotonic clock, and the settings and files that the stack was started with."""

    environ: Mapping[str, str]
    until_s: float
    ledger: str | None = field(default=None, repr=False)
    policy: Path | None = None
    env_file: Path | None = None
    files: Path | None = None

    def value(self, name: str) -> str:
        """Return a variable without surrounding blanks, "" where it is not set."""
        return self.environ.get(name, "").strip()

    def seconds_left(self, most: float = 3_600.0) -> float:
        """Return the seconds that are left, at most `most`, and never 0: a check that starts too late fails at once."""
        return max(0.01, min(most, self.until_s - time.monotonic()))


Check = Callable[[Inputs], Iterable[Finding]]


def examine(inputs: Inputs, by_s: float, groups: Mapping[str, Check]) -> list[Finding]:
    """Run each group of checks in a thread of its own, and return the findings of all until `by_s`, in the order of the groups.

    A group that is not done by then has its findings so far, and one more that says so. A thread that hangs, as in a resolver, is left
    behind: it is a daemon, so it ends with the process.
    """
    found: dict[str, list[Finding]] = {name: [] for name in groups}

    def run(name: str, check: Check) -> None:
        try:
            for finding in check(inputs):
                found[name].append(finding)  # one by one, so that a slow group has its findings so far
        except Exception as error:
            found[name].append(broken(name, f"the check itself failed: {type(error).__name__}", "Tell us: this is a bug of ravi-otel."))
            if "RAVI_RAISE_BUGS" in os.environ:
                raise

    threads = {
        name: threading.Thread(target=run, args=(name, check), name=f"ravi-doctor-{name}", daemon=True) for name, check in groups.items()
    }
    with without_signals():
        for thread in threads.values():
            thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, by_s - time.monotonic()))
        if thread.is_alive():
            late = broken(name, "not all of it was looked at: something does not answer in time", "Try again with a longer --timeout.")
            found[name] = [*found[name], late]
    return [finding for name in groups for finding in found[name]]


def worst(findings: Sequence[Finding]) -> State:
    """Return the worst state among what was examined."""
    states = {each.state for each in findings}
    return "broken" if "broken" in states else "odd" if "odd" in states else "well"
