"""Be what an agent's own code has in hand while it runs: who it is, its model, and other agents."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from anyio.abc import TaskGroup

from ravi_otel._enforcement.scope import Scope
from ravi_otel.agents._cancellation import only_requested
from ravi_otel.agents._model import OpenAIModel, generate, model_name, takes_model
from ravi_otel.agents.middleware._pipeline import ChatCall
from ravi_otel.agents.spawned import SpawnedAgent, find
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, Generation, JsonObject, LLMClient
from ravi_otel.policy._runs import Priority, RunMeta

if TYPE_CHECKING:
    from ravi_otel.agents._results import AgentResult
    from ravi_otel.agents.react import ReActAgent


@dataclass(eq=False)
class AgentContext:
    """Serve one run of one agent; `scope` is the agent's own, `session_id` None without one."""

    agent: ReActAgent
    scope: Scope
    session_id: str | None = None
    failure: BaseException | None = field(default=None, repr=False)  # the last that the model itself raised
    group: TaskGroup | None = field(default=None, repr=False)  # where the agents at work in the background are

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
        """Ask the agent's model, through its middleware; charged, limited and told like any call.

        The instructions go before the messages. Raises LLMTimeout, LLMEmpty, refusals of limits, MiddlewareTermination, and what the
        client raises; ConfigurationError once the agent's run is over, whose limits would not hold any more.
        """
        self._at_work("llm()")
        call = ChatCall(
            agent_name=self.agent_name,
            run_id=self.run_id,
            session_id=self.session_id,
            tenant_id=self.scope.facts.tenant_id,
            system_instructions=self.system_instructions,
            messages=list(messages),
            tools=list(tools),
            options=dict(options or {}),
            model=model_name(self.agent.model),
            client=None if isinstance(self.agent.model, OpenAIModel) else self.agent.model,  # two clients may call their models the same
        )
        await self.agent.pipeline.run_chat(call, self._generate)
        return cast("Generation", call.response)

    async def _generate(self, call: ChatCall) -> None:
        client: LLMClient = self.agent.model if call.client is None else call.client
        model = call.model
        if client is not self.agent.model and model == model_name(self.agent.model) and not takes_model(client):
            model = None  # a middleware has changed the client alone, which has a model of its own
        first = [] if call.system_instructions is None else [ChatMessage("system", call.system_instructions)]
        try:
            with only_requested("the model"):
                call.response = await generate(client, [*first, *call.messages], call.tools, call.options, model)
        except Exception as error:
            self.failure = error
            raise

    async def spawn(self, agent_id: str, *, boot: str, priority: Priority | None = None) -> SpawnedAgent:
        """Start the agent of that id on `boot`, in the background of this one, on the slot acquired for it, else on one of its own.

        It ends with this agent at the latest. `priority` is that of its slot: NORMAL, or what an acquired one has, unless given.
        Raises SpawnDeniedError where there is no slot, ConfigurationError for an id that no living agent has.
        """
        group = self._at_work("spawn()")
        spawned = SpawnedAgent(
            find(agent_id, self.agent), None if priority is None else checks.member("spawn(priority)", priority, Priority)
        )
        await spawned.start(group, boot)
        return spawned

    def _at_work(self, what: str) -> TaskGroup:
        if self.group is None:
            raise ConfigurationError(f"agent {self.agent_name!r} is not at work: {what} belongs inside its run.")
        return self.group

    async def ask(self, handle: SpawnedAgent, message: str, *, timeout: float | None = None) -> AgentResult:  # noqa: ASYNC109 - the contract's own keyword
        """Send a spawned agent a message, and wait for what it answers: after its boot, and what others have asked it before.

        It knows what was said before. Past `timeout` seconds it stops working on this message, and the result says "ask_timeout".
        """
        return await handle.ask(message, timeout)

    @classmethod
    def current(cls) -> AgentContext | None:
        """Give the context of the agent that the running code works for, in any task or thread that it started; None outside."""
        return _CURRENT.get()

    @contextmanager
    def entered(self) -> Generator[AgentContext, None, None]:
        """Be the current one inside."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[AgentContext | None] = ContextVar("ravi_otel_agent_context", default=None)
