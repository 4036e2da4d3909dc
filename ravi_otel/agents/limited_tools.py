"""Look at limits on an agent's tools: one on a name that is nearly a tool's holds for nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from ravi_otel.policy import checks
from ravi_otel.policy.limits import Kind, Limit

_log = logging.getLogger("ravi_otel")


def tell_misspelt(agent: str, limits: Iterable[Limit], tools: Collection[str]) -> None:
    """Say in the log which limit seems to mean another tool; an agent under this one may have a tool of that name, so it stays."""
    for limit in limits:
        name = limit.detail
        if limit.kind is not Kind.TOOL_CALLS or name is None or name in tools:
            continue
        close = checks.nearest(name, tools)
        if close is not None:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no such tool: did you mean tool.%s?", agent, name, close)
