"""Run an agent whose model hands work to sub-agents, several at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.scopes import Limits, Run, apply_limits, current_scope, run, slots
from ravi_otel.agents._model import Api
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents.delegation import SubAgentConfig, delegation_tool
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.toolbox import ToolLike
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._manager import Hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, LLMClient
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ExecutionBudget, SpawnBudget


class OrchestratorAgent(ReActAgent):
    """Be an agent that can delegate: its model has a tool `delegate_to_NAME(task)` for each sub-agent, besides its own tools.

    What is delegated in one answer is worked on side by side. However a sub-agent ends, by a limit, denied a slot, out of time, paused
    or crashed, its parent's model is told so as the tool's result, and its siblings go on. `spawn_budget` is how many agents may
    live at once in the run that `run()` opens, 50 unless given; inside a run that is open already its own slots hold, and
    `spawn_budget` besides for the agents right under this one.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        sub_agents: Iterable[SubAgentConfig] = (),
        spawn_budget: SpawnBudget | None = None,
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
        self.sub_agents = _read(sub_agents)
        self.spawn_budget = slots(spawn_budget, "OrchestratorAgent(spawn_budget)") or SpawnBudget()
        super().__init__(
            name,
            model=model,
            instructions=instructions,
            tools=[*tools, *(delegation_tool(config) for config in self.sub_agents)],
            execution_budget=execution_budget,
            limits=limits,
            hooks=hooks,
            middleware=middleware,
            history=history,
            supervisor=supervisor,
            max_steps=max_steps,
            api=api,
            description=description,
        )

    async def run(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Work on `input` to the end, with sub-agents; see `ReActAgent.run`."""
        with self._slots(session_id) as opened:
            result = await super().run(input, session_id=session_id)
            if isinstance(opened, Run):
                opened.scope.conclude(result.ending)
            return result

    def _slots(self, session_id: str | None) -> AbstractContextManager[Any]:
        """Open the run that the slots are of; inside a run, hold the agents right under this one to as many."""
        around = current_scope()
        if not any(scope.facts.kind is ScopeKind.RUN and not scope.facts.surrounding for scope in around.upwards()):
            return run(self.name, spawn_budget=self.spawn_budget, session_id=session_id)
        most = self.spawn_budget.max_agents
        if around.supervision is not None and around.supervision.spawn_budget.max_agents <= most:
            return nullcontext()  # the slots of the run are no more than these
        fan_out = Limit(kind=Kind.FAN_OUT, value=most - 1, scope=ScopeKind.AGENT, scope_name=self.name)
        return apply_limits([fan_out])


def _read(sub_agents: Iterable[SubAgentConfig]) -> tuple[SubAgentConfig, ...]:
    configs = tuple(sub_agents)
    names: set[str] = set()
    for config in configs:
        if not isinstance(config, SubAgentConfig):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
            raise ConfigurationError(
                f"OrchestratorAgent(sub_agents) holds {checks.show(config)}. Write SubAgentConfig(agent=...) around each agent."
            )
        tool = delegation_tool(config).name or ""
        if tool in names:
            raise ConfigurationError(
                f"OrchestratorAgent(sub_agents) has two agents for the tool {tool!r}: a model could not tell them apart. Rename one."
            )
        names.add(tool)
    return configs
