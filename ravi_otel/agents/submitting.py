"""Run a loop that ends when its model submits an answer, and not before."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeAlias, cast

from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.endings import Ended
from ravi_otel.agents.loop import Loop
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.results import AgentResult, ToolReport
from ravi_otel.agents.running import work
from ravi_otel.agents.toolbox import ToolLike
from ravi_otel.agents.truncating import Truncated
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import checks
from ravi_otel.policy.contracts import ChatMessage, CompactionStrategy, LLMClient

Check: TypeAlias = "Callable[[str], bool | str | Awaitable[bool | str]]"
"""Look at a submission: True accepts it; False, or the reason as text, does not."""
Truncation: TypeAlias = "Literal['auto', 'disabled'] | CompactionStrategy"

NOT_ACCEPTED: Final = "not_accepted"
"""The stop reason when the last attempt was not accepted."""
_PROMPT: Final = "Work step by step. When you are done, call the tool submit with your answer: nothing else ends your work."
_GO_ON: Final = "Go on with the next step. When you are done, call the tool submit with your answer."
_AGAIN: Final = "It is not right. Go on, and submit another answer."


class SubmittingAgent(ReActAgent):
    """Be an agent whose run ends with an answer that its model submits; made by `build_supervisor`."""

    def __init__(self, name: str, *, attempts: int = 1, check: Check | None = None, tools: Iterable[ToolLike] = (), **more: Any) -> None:
        self.attempts = checks.count("build_supervisor(attempts)", attempts, least=1, way_out="1 takes the first submission")
        if check is not None and not callable(check):
            raise ConfigurationError(f"build_supervisor(check={checks.show(check)}) must be a function of the answer, or None.")
        self.check = check
        super().__init__(name, tools=[*tools, submit], max_steps=checks.MAX_COUNT, **more)

    async def run(self, input: str | Sequence[ChatMessage], *, session_id: str | None = None) -> AgentResult:  # noqa: A002 - the contract's own name
        """Work on `input` until an answer is submitted; see `ReActAgent.run`. `stop_reason` "not_accepted" goes with `partial`."""
        return await work(self, _Submissions, input, session_id)


class _Submissions(Loop):
    """Be one run: go round until a submission is accepted, or was the last that may be made."""

    def __init__(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> None:
        super().__init__(ctx, before, asked)
        agent = cast("SubmittingAgent", ctx.agent)
        self._check = agent.check
        self._left = agent.attempts
        self._accepted: str | None = None
        self._refused: str | None = None

    async def run(self) -> Ended:
        token = _OPEN.set(self)
        try:
            return await super().run()
        finally:
            _OPEN.reset(token)

    async def _go(self, number: int) -> Ended | None:
        try:
            ended = await super()._go(number)
        except RaviError:
            if self._accepted is None:
                raise
            ended = None  # what was submitted beside it is the answer: a finished result wins
        if self._accepted is not None:
            self.answer = self._accepted
            return "ok", "success", "finalize"
        if self._left == 0:
            self.partial = self.ctx.scope.partial = self._refused
            return "stopped", NOT_ACCEPTED, "finalize"
        if ended is None or ended[0] != "ok":
            return ended
        self.answer = None  # it has only said something, and is told what ends its work
        self.new.append(ChatMessage("user", _GO_ON))
        return None

    async def judge(self, answer: str) -> ToolReport:
        """Take one submission; without a check the first one is the answer."""
        if self._accepted is not None or self._left == 0:
            return ToolReport({"accepted": False, "reason": "Another answer was submitted already."}, ok=False)
        verdict = True if self._check is None else self._check(answer)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if verdict is True:
            self._accepted = answer
            return ToolReport({"accepted": True})
        self._left -= 1
        self._refused = answer
        reason = verdict if isinstance(verdict, str) and verdict else _AGAIN
        return ToolReport({"accepted": False, "reason": reason, "attempts_left": self._left}, ok=False, stop_reason=NOT_ACCEPTED)


_OPEN: ContextVar[_Submissions | None] = ContextVar("ravi_otel_submissions", default=None)


async def submit(answer: str) -> Any:
    """Submit your answer, which ends your work when it is accepted."""
    run = _OPEN.get()
    if run is None:
        raise ConfigurationError("submit() belongs to an agent of build_supervisor(), and none is at work here.")
    return await run.judge(answer)


def build_supervisor(
    prompt: str,
    tools: Iterable[ToolLike] = (),
    attempts: int = 1,
    model: str | LLMClient | None = None,
    truncation: Truncation = "disabled",
    *,
    check: Check | None = None,
    name: str = "supervisor",
    **more: Any,
) -> ReActAgent:
    """Make an agent that works until it submits an answer with its tool `submit`, and has no limits of its own.

    Limits belong around it, `run_agent(supervisor, input, limits=[time_limit(90)])`, and around those it hands over to,
    `tools=[handoff(researcher, limits=[message_limit(12)])]`. An answer without a tool call is only a turn: the model is told to go on.
    `check` looks at a submission, and may be a coroutine function: True accepts it, False or a reason does not, and the model may
    submit `attempts` times in all; without it the first submission is the answer. `truncation` "auto" shortens the conversation when the
    model says that it is too long, a CompactionStrategy before each call; the task is always kept. `more` are ReActAgent's
    keywords, without `limits` and `max_steps`. Raises ConfigurationError.
    """
    unknown = sorted({"limits", "max_steps", "instructions"} & more.keys())
    if unknown:
        raise ConfigurationError(
            f"build_supervisor({unknown[0]}=) is not taken: limits go to run_agent(limits=...) or handoff(limits=...)."
        )
    if truncation not in ("auto", "disabled") and not isinstance(truncation, CompactionStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f'build_supervisor(truncation={checks.show(truncation)}) must be "auto", "disabled" or a CompactionStrategy.'
        )
    middleware = [*more.pop("middleware", ())]
    if truncation != "disabled":
        middleware.append(Truncated(None if truncation == "auto" else truncation))
    return SubmittingAgent(
        name, attempts=attempts, check=check, tools=tools, model=model, instructions=f"{prompt}\n\n{_PROMPT}", middleware=middleware, **more
    )
