"""Ask one group of checks, and find one finding."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ravi_otel._stack.doctor import Check, Finding, Inputs


def ask(
    group: Check, *, within_s: float = 20.0, ledger: str | None = None, policy: Path | None = None, env_file: Path | None = None
) -> list[Finding]:
    return list(group(Inputs(dict(os.environ), time.monotonic() + within_s, ledger, policy, env_file)))


def states(findings: list[Finding]) -> dict[str, set[str]]:
    """Give the states of each check."""
    found: dict[str, set[str]] = {}
    for each in findings:
        found.setdefault(each.check, set()).add(each.state)
    return found


def the(findings: list[Finding], check: str) -> Finding:
    """Give the one finding of a check."""
    found = [each for each in findings if each.check == check]
    assert len(found) == 1, (check, findings)
    return found[0]


def not_well(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.state in ("odd", "broken")]
