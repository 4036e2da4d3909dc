"""Look at limits on an agent's tools: one on a name that is nearly a tool's holds for nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TypeVar

from ravi_otel.policy import checks
from ravi_otel.policy.limits import Kind, Limit

_log = logging.getLogger("ravi_otel")


ToolsT = TypeVar("ToolsT", bound=Collection[str])


def tell_misspelt(agent: str, limits: Iterable[Limit], tools: ToolsT) -> ToolsT:
    """Say in the log which limit seems to mean another of the tools; an agent under this one may have one of that name, so it stays."""
    for limit in limits:
        name = limit.detail
        if limit.kind is not Kind.TOOL_CALLS or name is None or name in tools:
            continue
        close = checks.nearest(name, tools)
        if close is not None:
            _log.warning("ravi-otel: agent %s has a limit on tool.%s, and no such tool: did you mean tool.%s?", agent, name, close)
    return tools
