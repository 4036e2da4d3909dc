"""Be what an agent's own code has in hand while it runs: who it is, its model, and other agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ravi_otel.enforcement.scope import Scope
from ravi_otel.policy.budgets import Priority
from ravi_otel.policy.contracts import ChatMessage, Generation, JsonObject
from ravi_otel.policy.meta import RunMeta

if TYPE_CHECKING:
    from ravi_otel.agents.react import ReActAgent
    from ravi_otel.agents.results import AgentResult
    from ravi_otel.agents.spawned import SpawnedAgent


@dataclass(eq=False)
class AgentContext:
    """Serve one run of one agent; `scope` is the agent's own, `session_id` None without one."""

    agent: ReActAgent
    scope: Scope
    session_id: str | None = None

    @property
    def agent_name(self) -> str:
        """Name the agent."""
        return self.agent.name

    @property
    def run_id(self) -> str:
        """Identify the run."""
        return str(self.scope.facts.run_id)

    @property
    def meta(self) -> RunMeta:
        """Give what identifies the run to whoever works for it."""
        return self.scope.meta

    @property
    def system_instructions(self) -> str | None:
        """Give the instructions the model is called with, None without any."""
        return self.agent.instructions

    def check(self) -> None:
        """Raise what stands against going on: CancellationError, DeadlineExceededError, AgentPausedError."""
        self.scope.checkpoint()

    async def llm(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[JsonObject] = (), options: Mapping[str, Any] | None = None
    ) -> Generation:
        """Ask the agent's model, through its middleware; charged, limited and told like any call."""
        raise NotImplementedError

    async def spawn(self, agent_id: str, *, boot: str, priority: Priority = Priority.NORMAL) -> SpawnedAgent:
        """Start the agent of that id on `boot`, in the background of this one."""
        raise NotImplementedError

    async def ask(self, handle: SpawnedAgent, message: str, *, timeout: float | None = None) -> AgentResult:  # noqa: ASYNC109 - the contract's own keyword
        """Send a spawned agent a message, and wait for what it answers."""
        raise NotImplementedError

    @classmethod
    def current(cls) -> AgentContext | None:
        """Give the context of the agent that the running code works for, in any task or thread that it started; None outside."""
        return _CURRENT.get()

    @contextmanager
    def entered(self) -> Iterator[AgentContext]:
        """Be the current one inside."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[AgentContext | None] = ContextVar("ravi_otel_agent_context", default=None)
