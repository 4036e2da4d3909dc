"""Run the smallest useful agent: ask a model, run the tools that it asks for, and ask again until it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ravi_otel.agents.model import Api
from ravi_otel.agents.results import AgentResult
from ravi_otel.agents.toolbox import ToolLike
from ravi_otel.enforcement.tab import ExecutionTracker
from ravi_otel.hooks.dispatch import Hooks
from ravi_otel.policy.budgets import ExecutionBudget
from ravi_otel.policy.contracts import ChatMessage, LLMClient
from ravi_otel.policy.ids import AgentId
from ravi_otel.runtime.asking import Limits


class ReActAgent:
    """Be an agent over one model: it asks, runs the tools that are asked for, and asks again until there is an answer.

    `model` is a name, an LLMClient, or None for the default. `supervisor` is a Supervisor or a ToolGate, and judges every tool call.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        model: str | LLMClient | None = None,
        instructions: str | None = None,
        tools: Iterable[ToolLike] = (),
        execution_budget: ExecutionBudget | ExecutionTracker | None = None,
        limits: Limits = (),
        hooks: Hooks = None,
        middleware: Iterable[Any] = (),
        history: Any = None,
        supervisor: Any = None,
        max_steps: int = 20,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        self.name = name
        self.instructions = instructions
        self.description = description
        self.max_steps = max_steps

    @property
    def id(self) -> AgentId:
        """Give the id by which others spawn it: its name."""
        return AgentId(self.name)

    async def run(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Work on `input` to the end; what ends it is in the result, and only the program's own cancellation is raised."""
        raise NotImplementedError

    def run_blocking(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run like `run`, from a thread without an event loop."""
        raise NotImplementedError
