"""Run the smallest useful agent: ask a model, run the tools that it asks for, and ask again until it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import anyio

from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.scopes import Limits, budget_or_tracker, read_limits
from ravi_otel.agents._model import Api, OpenAIModel
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents.history import AgentMemory, HistoryStore
from ravi_otel.agents.loop import Loop
from ravi_otel.agents.middleware._pipeline import MiddlewarePipeline
from ravi_otel.agents.running import work
from ravi_otel.agents.spawned import OwnId, known
from ravi_otel.agents.toolbox import ToolLike, read_tools, tell_misspelt
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._manager import Hooks, read_hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, LLMClient, ToolGate
from ravi_otel.policy._runs import AgentId, ExecutionBudget
from ravi_otel.supervisor import Supervisor, gate_for


class ReActAgent:
    """Be an agent over one model: it asks, runs the tools that are asked for, and asks again until there is an answer.

    `model` is a name, an LLMClient such as OpenAIModel, or None for the default; `api` is for a name. `execution_budget` is each run's,
    or as an ExecutionTracker the one of all its runs; `limits` are each run's. `hooks` hear this agent's own events. `middleware`
    stands around its runs, its model calls and its tools, the first one outermost. `history` is a HistoryStore or AgentMemory, in which
    sessions are kept. `supervisor` is a Supervisor or a ToolGate, and judges every tool call. `max_steps` is how often the model is asked
    in one run at most; `description` is what an agent that may delegate to it is told. One agent may run often, and at once. Raises
    ConfigurationError.
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
        history: HistoryStore | AgentMemory | None = None,
        supervisor: Supervisor | ToolGate | None = None,
        max_steps: int = 20,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        self.name = checks.name("ReActAgent(name)", name, "researcher")
        self.instructions = _text("instructions", instructions)
        self.description = _text("description", description)
        self.model = _model(model, api)
        self.tools = read_tools(tools, gated=supervisor is not None)
        self.execution_budget = budget_or_tracker("ReActAgent(execution_budget)", execution_budget)
        self.limits = read_limits("ReActAgent(limits)", limits)
        tell_misspelt(self.name, self.limits, self.tools)
        self.hooks = read_hooks("ReActAgent(hooks)", hooks)
        self.pipeline = MiddlewarePipeline.of(f"{type(self).__name__}(middleware)", middleware)
        self.memory = AgentMemory.of(self.name, history)
        self.gate: ToolGate | None = (
            None if supervisor is None else gate_for(supervisor, {tool.name: tool.fn for tool in self.tools.values()})
        )
        self.max_steps = checks.count("ReActAgent(max_steps)", max_steps, least=1, way_out="each is one question to the model")
        if isinstance(self.execution_budget, ExecutionTracker):
            self.execution_budget.own(self, self.name)
        known(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def id(self) -> AgentId:
        """Give the id by which others spawn it: its name."""
        return OwnId.of(self)

    async def run(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Work on `input` to the end; what ends it is in the result, and only the program's own cancellation is raised.

        Inside a run it joins that run as an agent; else it opens one of its own name, of that session. Limits, a pause, a cancellation
        of the run, the gate and the model's failures end it with a `status`, a `stop_reason` and what there is (`partial`). Raises
        ConfigurationError, and what the program's own middleware raises.
        """
        return await work(self, Loop, input, session_id)

    def run_blocking(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Run like `run`, from a thread without an event loop; raises ConfigurationError where one runs."""
        if _on_event_loop():
            raise ConfigurationError("run_blocking() would stop the event loop that runs here: write `await agent.run(...)`.")
        return anyio.run(partial(self.run, input, session_id=session_id))


def _on_event_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True


def _model(given: str | LLMClient | None, api: Api) -> LLMClient:
    if given is None or isinstance(given, str):
        return OpenAIModel(given, api=api)
    return checks.instance("ReActAgent(model)", given, LLMClient, "a model's name, or an LLMClient such as OpenAIModel(client=...)")


def _text(parameter: str, given: str | None) -> str | None:
    if given is not None and not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"ReActAgent({parameter}={checks.show(given)}) must be text, or None.")
    return given
