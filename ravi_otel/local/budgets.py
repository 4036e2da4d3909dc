"""Turn the limits of a record into the lines of a budget table, in plain words and figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ravi_otel.hooks._events import LimitReading
from ravi_otel.local.outline import Tone, scope_title
from ravi_otel.local.record import Branch, RunRecord
from ravi_otel.local.wording import UNKNOWN, amount, clean, count, percent
from ravi_otel.policy._limits import ScopeKind

_MOST_LIMITS: Final = 30


def limits(record: RunRecord) -> list[tuple[Branch, LimitReading]]:
    """Give every limit of every scope that was kept, the fullest first."""
    found = [(branch, reading) for branch in record.branches() if branch.view is not None for reading in branch.view.readings()]
    return sorted(found, key=lambda pair: (pair[1].fullness, pair[1].denied), reverse=True)


@dataclass(frozen=True, slots=True)
class Budget:
    """Be one line of the budget table."""

    scope: str
    limit: str
    allowed: str
    used: str
    held: str
    share: str
    events: str
    denied: str
    tone: Tone


def budgets(record: RunRecord) -> tuple[list[Budget], str]:
    """Give the table, worst first, and a sentence for what does not fit into it."""
    found = limits(record)
    rest = found[_MOST_LIMITS:]
    more = f"… {len(rest):,} more limits, none above {percent(rest[0][1].ratio)}" if rest else ""
    return [_budget(branch, reading) for branch, reading in found[:_MOST_LIMITS]], more


def _budget(branch: Branch, reading: LimitReading) -> Budget:
    limit = reading.limit
    exceeded, nearing = "limit_exceeded" in reading.events, "limit_nearing" in reading.events
    # A limit around a launched run stands with the run: its session's, or its service's.
    elsewhere = branch.facts.kind is ScopeKind.RUN and reading.scope in (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION)
    return Budget(
        scope=f"{reading.scope.value} {clean(reading.scope_name, 40)}".rstrip() if elsewhere else scope_title(branch, 40),
        limit=clean(reading.title, 60),
        allowed=amount(limit.kind, limit.amount),
        used=amount(limit.kind, reading.used),
        held=amount(limit.kind, reading.held),
        share=percent(reading.ratio),
        events=", ".join(clean(event.removeprefix("limit_"), 20) for event in dict.fromkeys(reading.events)),
        denied=UNKNOWN if math.isnan(reading.used) and not reading.denied else count(reading.denied),
        tone="refused" if exceeded or reading.denied else "warning" if nearing else "quiet",
    )
