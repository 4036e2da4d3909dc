"""Run an agent that proposes, and a gate that decides: nothing is done, and nothing is answered, that was not reviewed."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.scopes import Limits
from ravi_otel.agents._model import Api
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.running import work
from ravi_otel.agents.supervised_loop import SupervisedLoop
from ravi_otel.agents.toolbox import ToolLike, read_tools, tell_misspelt
from ravi_otel.hooks._manager import Hooks
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, LLMClient
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ExecutionBudget
from ravi_otel.supervisor import Approver, Budget, GateState, RunState, Supervisor, ToolGateway
from ravi_otel.supervisor._decisions import AuditSink

_CEILING: Final = 2
_PROTOCOL: Final = """\
You work in steps. Answer each time with one JSON object and nothing around it, either of
{"kind": "tool", "name": "NAME", "args": {...}}   to use a tool; what comes of it is told to you
{"kind": "final", "answer": "TEXT"}               when you are done
Every action is reviewed before it is done: it may be changed, refused, or shown to a person first. The tools, as JSON:
"""


class SupervisedAgent(ReActAgent):
    """Be a worker whose every action is reviewed: the model proposes JSON actions, the gate decides; the final answer is reviewed too.

    `supervisor`, `approver`, `policy`, `state`, `audit`, `allow`, `read_only`, `expires_s`, `timeout_s` and `policy_version` are those of
    the gate; without a supervisor every valid action is approved. `state` left out, or a function, gives one state to all that the agent
    does in one run. `budget` is how much one run of it may do; each tool runs `per_tool_limit` times in it. What the gate refuses
    ends the run, with its stop reason, phase and action in the result; with `warn_loops` the first loop is told to the model instead.
    With `wrap_up` the model is asked once more when `max_steps` are used up, for an answer, which is reviewed too; the run is stopped
    all the same.

    The result's `trace` and `history` have one row an action, the final answer's too: see `AgentResult`.
    """

    def __init__(  # noqa: PLR0913 - the front door's documented keywords
        self,
        name: str,
        *,
        supervisor: Supervisor | None = None,
        tools: Iterable[ToolLike] = (),
        allow: Collection[str] | None = None,
        approver: Approver | None = None,
        policy: Any = None,
        state: GateState | Callable[[], GateState] | None = None,
        audit: AuditSink | None = None,
        read_only: Collection[str] = (),
        budget: Budget | None = None,
        per_tool_limit: int | Mapping[str, int] | None = _CEILING,
        read_only_repeat_limit: int = 2,
        expires_s: float | None = 3600,
        timeout_s: float | None = None,
        policy_version: str | None = None,
        warn_loops: bool = False,
        wrap_up: bool = False,
        model: str | LLMClient | None = None,
        instructions: str | None = None,
        execution_budget: ExecutionBudget | ExecutionTracker | None = None,
        limits: Limits = (),
        hooks: Hooks = None,
        middleware: Iterable[Any] = (),
        history: Any = None,
        api: Api = "chat",
        description: str | None = None,
    ) -> None:
        super().__init__(
            name,
            model=model,
            instructions=instructions,
            execution_budget=execution_budget,
            limits=limits,
            hooks=hooks,
            middleware=middleware,
            history=history,
            api=api,
            description=description,
        )
        self.tools = tell_misspelt(self.name, self.limits, read_tools(tools, gated=True))
        self.instructions = _instructed(instructions, self)
        self.warn_loops = checks.flag("SupervisedAgent(warn_loops)", warn_loops)
        self.wrap_up = checks.flag("SupervisedAgent(wrap_up)", wrap_up)
        self._states = _States(state)
        judging = {"supervisor": supervisor, "approver": approver, "policy": policy, "audit": audit, "policy_version": policy_version}
        calling = {"allow": allow, "budget": budget, "per_tool_limit": per_tool_limit, "expires_s": expires_s, "timeout_s": timeout_s}
        reading = {"read_only": read_only, "read_only_repeat_limit": read_only_repeat_limit}
        self._terms: dict[str, Any] = {**judging, **calling, **reading}
        self._open(state)  # what cannot be used is said now, and not in the first run

    async def run(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Work on `input` to the end; see `ReActAgent.run`."""
        done: list[SupervisedLoop] = []

        def begin(ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> SupervisedLoop:
            gateway = self._open(self._states.of(ctx.scope))
            loop = SupervisedLoop(ctx, before, asked, gateway, self._may_lack(), warn_loops=self.warn_loops, wrap_up=self.wrap_up)
            done.append(loop)
            return loop

        try:
            return await work(self, begin, input, session_id)
        finally:
            for each in done:
                each.gateway.close()

    def _may_lack(self) -> Mapping[str, Collection[str]]:
        """List what the supervisor fills in, by tool: a worker may leave it out."""
        ask = cast("Callable[[str], Collection[str]] | None", getattr(self._terms["supervisor"], "may_lack", None))
        return {} if ask is None else {tool: ask(tool) for tool in self.tools}

    def _open(self, state: GateState | Callable[[], GateState] | None) -> ToolGateway:
        return ToolGateway(registry={tool.name: tool.fn for tool in self.tools.values()}, state=state, **self._terms)


class _States:
    """Give the one state of a run, however often, and in whatever thread, an agent works in it: what was done counts in all of it."""

    def __init__(self, given: GateState | Callable[[], GateState] | None) -> None:
        self._given = given
        self._lock = threading.RLock()
        self._made: weakref.WeakKeyDictionary[Scope, GateState] = weakref.WeakKeyDictionary()

    def of(self, scope: Scope) -> GateState:
        """Give the state of the run around a scope: the one that was given, or one made for this run."""
        if self._given is not None and not callable(self._given):
            return self._given
        owner = next((each for each in scope.upwards() if each.facts.kind is ScopeKind.RUN), scope)
        with self._lock:
            known = self._made.get(owner)
            if known is None:
                known = self._made[owner] = RunState() if self._given is None else self._given()
            return known


def _instructed(instructions: str | None, agent: ReActAgent) -> str:
    tools = json.dumps([tool.spec["function"] for tool in agent.tools.values()])
    return "\n\n".join(filter(None, (instructions, _PROTOCOL + tools)))
