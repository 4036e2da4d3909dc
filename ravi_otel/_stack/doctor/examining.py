"""Make all checks at once, and wait no longer than agreed for any of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ravi_otel._forksafe import without_signals
from ravi_otel._stack.doctor import endpoint, ledger, local_store, own_settings, packages, settings
from ravi_otel._stack.doctor.finding import Asked, Check, Finding, State, broken

GROUPS: Final[Mapping[str, Check]] = {
    "packages": packages.examine,
    "settings": settings.examine,
    "settings.own": own_settings.examine,
    "endpoint": endpoint.examine,
    "ledger": ledger.examine,
    "store": local_store.examine,
}
"""Each group of checks by the word that its findings begin with, in the order in which they are shown."""


def examine(asked: Asked, by_s: float, groups: Mapping[str, Check] = GROUPS) -> list[Finding]:
    """Make every check, each group in a thread of its own, and give the findings in their order; those of a group until `by_s`.

    What a group has found by then is kept, and that it was not done is a finding. A thread that hangs, as in a resolver, is left behind:
    it is a daemon, so that it ends with the process.
    """
    found: dict[str, list[Finding]] = {name: [] for name in groups}
    threads = {
        name: threading.Thread(target=_make, args=(name, check, asked, found[name]), name=f"ravi-doctor-{name}", daemon=True)
        for name, check in groups.items()
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
    """Give the state of the whole: the worst of what was looked at."""
    states: set[State] = {each.state for each in findings}
    return "broken" if "broken" in states else "odd" if "odd" in states else "well"


def _make(name: str, check: Check, asked: Asked, found: list[Finding]) -> None:
    try:
        for finding in check(asked):
            found.append(finding)  # noqa: PERF402 - one by one: what was found is kept when the rest takes too long
    except Exception as error:
        found.append(broken(name, f"the check itself failed: {type(error).__name__}", "Tell us: this is a bug of ravi-otel."))
        if "RAVI_RAISE_BUGS" in os.environ:
            raise
