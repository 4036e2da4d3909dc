"""Hold an agent that another one has started in its background."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ravi_otel.agents.delegation import check_seconds
from ravi_otel.agents.results import ASK_TIMEOUT, AgentResult
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import Priority
from ravi_otel.policy.contracts import ChatMessage
from ravi_otel.policy.ids import AgentId
from ravi_otel.runtime.spawning import spawn

if TYPE_CHECKING:
    from ravi_otel.agents.react import ReActAgent

_LIVING: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


class OwnId(AgentId):
    """Be the id of one agent object, which it leads to; to everybody else it is the text that it is."""

    __slots__ = ("agent",)

    agent: ReActAgent

    @classmethod
    def of(cls, agent: ReActAgent) -> OwnId:
        """Give the id of an agent."""
        own = cls(agent.name)
        own.agent = agent
        return own


def known(agent: ReActAgent) -> None:
    """Have an agent be found by its id from now on, as long as the program has it."""
    _LIVING.add(agent)


def find(agent_id: str, asking: ReActAgent) -> ReActAgent:
    """Find the agent of an id: the very one whose `agent.id` it is; of mere text among those the asking one may delegate to, then all."""
    if isinstance(agent_id, OwnId):
        return agent_id.agent
    team = [each.agent for each in getattr(asking, "sub_agents", ())]
    for among in (team, list(_LIVING)):
        found = [each for each in among if getattr(each, "id", None) == agent_id]
        if len(found) > 1:
            raise ConfigurationError(f"spawn({checks.show(agent_id)}): {len(found)} agents have this id. Give each a name of its own.")
        if found:
            agent: ReActAgent = found[0]
            return agent
    raise ConfigurationError(f"spawn({checks.show(agent_id)}): no agent has this id. Give agent.id of an agent that the program has made.")


class _Asked:
    """Be one message to a spawned agent, and what came of it."""

    __slots__ = ("done", "error", "message", "result", "scope")

    def __init__(self, message: str) -> None:
        self.message = message
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.result: AgentResult | None = None
        self.error: Exception | None = None


class SpawnedAgent:
    """Be an agent at work in the background of another, on a slot of its own; `AgentContext.ask` talks to it.

    It takes one message at a time, in their order. `result` is what its latest message came to, None before it booted.
    """

    def __init__(self, agent: ReActAgent, priority: Priority) -> None:
        self.agent = agent
        self.priority = priority
        self.result: AgentResult | None = None
        self._said: tuple[ChatMessage, ...] = ()
        self._to, self._from = anyio.create_memory_object_stream[_Asked](math.inf)

    def __repr__(self) -> str:
        return f"<SpawnedAgent {self.agent_id!r} {'at work' if self.result is None else self.result.stop_reason}>"

    @property
    def agent_id(self) -> str:
        """Give its id."""
        return str(self.agent.id)

    async def start(self, group: TaskGroup, boot: str) -> None:
        """Take the slot, and begin with `boot`; for `AgentContext.spawn`."""
        self._to.send_nowait(_Asked(boot))
        await group.start(self._live)

    async def _live(self, *, task_status: TaskStatus[None]) -> None:
        with self._to, self._from:
            async with spawn(self.agent_id, priority=self.priority):
                task_status.started()
                async for asked in self._from:
                    await self._work(asked)

    async def _work(self, asked: _Asked) -> None:
        try:
            with asked.scope:
                asked.result = self.result = await self.agent.run([*self._said, ChatMessage("user", asked.message)])
                self._said = tuple(each for each in self.result.history if isinstance(each, ChatMessage))
        except Exception as error:  # noqa: BLE001 - it is raised where somebody asked, and ends nobody else
            asked.error = error
        finally:
            asked.done.set()

    async def ask(self, message: str, timeout_s: float | None = None) -> AgentResult:
        """Have it work on another message; see `AgentContext.ask`."""
        check_seconds("ask(timeout)", timeout_s)
        asked = _Asked(message)
        try:
            self._to.send_nowait(asked)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ConfigurationError(f"agent {self.agent_id!r} has ended, with the agent that spawned it or by leave().") from None
        try:
            with anyio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            if not asked.done.is_set():
                asked.scope.cancel()
        if asked.error is not None:
            raise asked.error
        return asked.result or self._unanswered()

    def _unanswered(self) -> AgentResult:
        run_id = "" if self.result is None else self.result.run_id
        return AgentResult(
            agent_name=self.agent.name, run_id=run_id, status="stopped", stop_reason=ASK_TIMEOUT, history=self._said, phase="worker"
        )

    def leave(self) -> None:
        """Have it end when it has worked on what it was asked; its slot is given back then."""
        self._to.close()
