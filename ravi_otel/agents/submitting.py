"""Run a loop that ends when its model submits an answer, and not before."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeAlias, cast

from ravi_otel._enforcement.ending import Ending
from ravi_otel.agents._results import AgentResult, ToolReport
from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.loop import Loop
from ravi_otel.agents.react import ReActAgent
from ravi_otel.agents.running import work
from ravi_otel.agents.tool_calls import Used, ends_run
from ravi_otel.agents.toolbox import ToolLike
from ravi_otel.agents.truncating import Truncated
from ravi_otel.errors import AgentPausedError, BudgetError, ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, CompactionStrategy, LLMClient
from ravi_otel.policy._runs import StopReason

Check: TypeAlias = "Callable[[str], bool | str | Awaitable[bool | str]]"
"""Look at a submission: True accepts it; False, or the reason as text, does not."""
Truncation: TypeAlias = "Literal['auto', 'disabled'] | CompactionStrategy"

_OUTDONE: Final = (BudgetError, AgentPausedError)
"""What a finished answer wins over: that more could not be done beside it. What somebody has forbidden it does not."""
_ELSEWHERE: Final = {
    "limits": "limits go to run_agent(limits=...) or handoff(limits=...)",
    "max_steps": "it works until it submits, so a limit ends it: run_agent(limits=[turn_limit(20)])",
    "instructions": "the prompt is its instructions, so give that",
}
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
        self._broken: Exception | None = None
        self._uses: Sequence[Used] = ()

    async def run(self) -> Ending:
        token = _OPEN.set(self)
        try:
            return await super().run()
        finally:
            _OPEN.reset(token)

    async def _go(self, number: int) -> Ending | None:
        self._uses = ()
        try:
            ended = await super()._go(number)
        except RaviError as error:
            self._win_over(error)
            ended = None
        if self._broken is not None:
            raise self._broken
        if self._accepted is not None:
            self.answer = self._accepted
            return Ending("ok", StopReason.SUCCESS, "finalize")
        if self._left == 0:
            self.partial = self.ctx.scope.partial = self._refused
            return Ending("stopped", StopReason.NOT_ACCEPTED, "finalize")
        if ended is None or ended.status != "ok":
            return ended
        self.answer = None  # it has only said something, and is told what ends its work
        self.new.append(ChatMessage("user", _GO_ON))
        return None

    def _note(self, uses: Sequence[Used]) -> None:
        super()._note(uses)
        self._uses = uses

    def _win_over(self, error: RaviError) -> None:
        """Let an accepted answer win over what ended the call of a tool beside it; raises what it does not win over."""
        if self._accepted is None:
            raise error
        for used in self._uses:
            if used.ends is not None and not isinstance(used.ends, _OUTDONE):
                self._not_let_through(used)
                raise used.ends
        if not isinstance(error, _OUTDONE):
            raise error

    async def judge(self, answer: str) -> ToolReport:
        """Take one submission; without a check the first one is the answer."""
        if self._accepted is not None or self._left == 0:
            return ToolReport({"accepted": False, "reason": "Another answer was submitted already."}, ok=False)
        verdict = await self._verdict(answer)
        if self._accepted is not None:  # another one, while this was looked at
            return ToolReport({"accepted": False, "reason": "Another answer was submitted already."}, ok=False)
        if verdict is True:
            self._accepted = answer
            return ToolReport({"accepted": True})
        self._left -= 1
        self._refused = answer
        reason = verdict if isinstance(verdict, str) and verdict else _AGAIN
        return ToolReport(
            {"accepted": False, "reason": reason, "attempts_left": self._left}, ok=False, stop_reason=StopReason.NOT_ACCEPTED.value
        )

    async def _verdict(self, answer: str) -> bool | str:
        """Ask the check; what it raises, and what is no verdict, is the program's to know, and not the model's: the run ends with it."""
        if self._check is None:
            return True
        try:
            verdict: object = self._check(answer)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            if not isinstance(verdict, (bool, str)):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
                raise ConfigurationError(  # noqa: TRY301 - it is one of the check's own mistakes
                    f"build_supervisor(check=) gave {checks.show(verdict)}. Give True, or False, or as text why the answer is not accepted."
                )
        except Exception as error:
            if not ends_run(self.ctx, error):
                self._broken = self._broken or error
                self.partial = self.ctx.scope.partial = answer
            raise
        return verdict


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
    submit `attempts` times in all; without it the first submission is the answer. What `check` raises, the run raises. `truncation`
    "auto" shortens the conversation when the model says that it is too long, a CompactionStrategy before each call; the task is always
    kept. `more` are ReActAgent's keywords, without `instructions`, `limits` and `max_steps`. Raises ConfigurationError.
    """
    if not isinstance(prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(
            f"build_supervisor(prompt={checks.show(prompt)}) must be text: what the agent is to do. Tools go to tools=."
        )
    _known(more)
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


def _known(more: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword that is none of ours, with where it belongs."""
    taken = {*inspect.signature(ReActAgent).parameters} - {"name", "tools", "model", *_ELSEWHERE}
    for keyword in more:
        if keyword in _ELSEWHERE:
            raise ConfigurationError(f"build_supervisor({keyword}=) is not taken: {_ELSEWHERE[keyword]}.")
        if keyword not in taken:
            raise ConfigurationError(
                f"build_supervisor({keyword}=) is not known. Besides its own keywords it takes {', '.join(sorted(taken))}."
            )
