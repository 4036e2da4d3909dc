"""Know the order of priorities, by the names in which processes tell them, and what comes of giving one."""

from __future__ import annotations

from ravi_otel.policy._runs import Priority


def raised(priority: str | None, by: int) -> str | None:
    """Give the next priority above (1) or below (-1), None where there is none; a thing without one counts as normal."""
    ranks = [rank.name.lower() for rank in sorted(Priority)]
    now = ranks.index(priority) if priority in ranks else ranks.index(Priority.NORMAL.name.lower())
    return ranks[now + by] if 0 <= now + by < len(ranks) else None


def lets_go_on(status: str, priority: str) -> bool:
    """Tell whether another priority lets a paused agent go on, also one that was paused by hand."""
    return status == "paused" and Priority[priority.upper()] >= Priority.NORMAL
