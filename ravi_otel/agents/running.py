"""Run an agent with limits around it, and choose how its end is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.results import AgentResult
from ravi_otel.policy.contracts import ChatMessage
from ravi_otel.runtime.asking import Limits


@overload
async def run_agent(
    agent: ReActAgent,
    input: str | Sequence[ChatMessage],
    *,
    limits: Limits = (),
    return_limit_error: Literal[True],
    raise_on_limit: bool = False,
) -> tuple[AgentResult, BaseException | None]: ...


@overload
async def run_agent(
    agent: ReActAgent,
    input: str | Sequence[ChatMessage],
    *,
    limits: Limits = (),
    return_limit_error: Literal[False] = False,
    raise_on_limit: bool = False,
) -> AgentResult: ...


async def run_agent(
    agent: ReActAgent,
    input: str | Sequence[ChatMessage],  # noqa: A002 - the contract's own name
    *,
    limits: Limits = (),
    return_limit_error: bool = False,
    raise_on_limit: bool = False,
) -> AgentResult | tuple[AgentResult, BaseException | None]:
    """Run an agent inside `limits`; a breach is in the result, or returned beside it, or raised."""
    raise NotImplementedError
