"""Go round one agent's loop: ask, run the tools that are asked for, and ask again until there is an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from anyio.lowlevel import checkpoint

from ravi_otel._enforcement.ending import COMPLETED, Ending
from ravi_otel._enforcement.errors_text import limit_of
from ravi_otel._runtime.charging import CUT_SHORT
from ravi_otel.agents._results import AgentResult
from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.last_answer import last_answer
from ravi_otel.agents.tool_calls import Faults, Used, asked_for, refuse_all, use_all
from ravi_otel.errors import BudgetError, RaviError, StopRun
from ravi_otel.hooks._events import StepEvent
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.policy._limits import Outcome
from ravi_otel.policy._runs import StopReason

_UNFINISHED: Final = {
    "refusal": StopReason.LLM_REFUSAL,
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded", "context_length"),
        StopReason.LLM_LENGTH,
    ),
    **dict.fromkeys(
        ("content_filter", "content_filtered", "safety", "recitation", "blocklist", "prohibited_content", "spii", "guardrail_intervened"),
        StopReason.LLM_CONTENT_FILTER,
    ),
    **dict.fromkeys(
        ("error", "abort", "aborted", "cancelled", "timeout", "insufficient_system_resource", "malformed_function_call"),
        StopReason.LLM_BROKEN_OFF,
    ),
}
"""What an answer's finish reason makes of it, as chat and the servers that resemble it spell them; anything else is an answer."""
_CUT: Final = "The answer that asked for this was cut off, so it was not run. Ask again, for less at a time."


class Loop:
    """Be one run of an agent: `messages` are those of the conversation from the session's beginning, `new` those of this run."""

    def __init__(self, ctx: AgentContext, before: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> None:
        self.ctx = ctx
        self._before = list(before)
        self.new = list(asked)
        self.trace: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.partial: str | None = None
        self.action: Mapping[str, Any] | None = None
        self.raw_action: str | None = None
        self._limit: BudgetError | None = None
        self._faults = Faults()

    async def run(self) -> Ending:
        """Go round until there is an answer, or the steps are used up; raises what ends it otherwise."""
        try:
            for step in range(1, self.ctx.agent.max_steps + 1):
                ended = await self._step(step)
                if ended is not None:
                    return ended
        except BudgetError as error:
            ended = await self._wrapped_up(error)
            if ended is None:
                raise
            return ended
        return Ending("stopped", StopReason.MAX_STEPS)

    def told(self, result: AgentResult) -> AgentResult:
        """Add to the result what only this loop knows: the call that was not let through, or the limit behind a last answer."""
        return result if result.ok else replace(result, action=self.action, raw_action=self.raw_action, error=result.error or self._limit)

    async def _step(self, number: int) -> Ending | None:
        """Go round once, told as a step; the end, or None to go on."""
        listeners, facts = self.ctx.scope.engine.listeners, self.ctx.scope.facts
        listeners.stepped(StepEvent("start", facts, number))
        status: Any = "error"
        try:
            ended = await self._go(number)
            status = "ok" if ended is None else ended.status
        except BaseException as error:
            ended = Ending.known(error) if isinstance(error, Exception) else None
            status = "stopped" if ended is None else ended.status
            raise
        finally:
            listeners.stepped(StepEvent("end", facts, number, status))
        return ended

    async def _go(self, number: int) -> Ending | None:
        agent = self.ctx.agent
        await checkpoint()  # a step whose answers are all at hand waits for nothing, and must keep nobody waiting
        self.ctx.check()
        CUT_SHORT.set(None)
        generation = await self.ctx.llm([*self._before, *self.new], tools=[tool.spec for tool in agent.tools.values()])
        message, calls = generation.message, generation.message.tool_calls
        self.new.append(message)
        self._keep(message.content)
        unfinished = _UNFINISHED.get((generation.finish_reason or "").lower())
        if unfinished is not None:
            return self._unfinished(message, unfinished, number)
        if not calls:
            self.answer = message.content
            return COMPLETED
        uses = asked_for(calls)
        try:
            await use_all(self.ctx, uses, number)
        finally:  # also of what was cut off there is a row, and an answer to the model's call
            self._note(uses)
        last = next((used for used in uses if used.ends is not None), None)
        if last is not None and last.ends is not None:
            self._not_let_through(last)
            raise last.ends
        stuck = self._faults.look(uses)
        return None if stuck is None else Ending("stopped", stuck, "execution")

    def _not_let_through(self, used: Used) -> None:
        """Keep the call at which the gate ended the run."""
        if not isinstance(used.ends, StopRun) or self.ctx.agent.gate is None:
            return
        if used.arguments is None:
            self.raw_action = used.given
        else:
            self.action = {"kind": "tool", "name": used.tool, "args": used.arguments}

    def _note(self, uses: Sequence[Used]) -> None:
        self.new += [used.message() for used in uses]
        self.trace += [used.row for used in uses]

    def _unfinished(self, message: ChatMessage, reason: str, number: int) -> Ending:
        """End with an answer that was cut off: what it asks for may be half of what it meant, and is not run."""
        self._note(refuse_all(self.ctx, message.tool_calls, number, _CUT))
        ours = CUT_SHORT.get()
        if ours is None or reason != StopReason.LLM_LENGTH:
            return Ending("stopped", reason)
        ours.partial = message.content
        raise ours

    def _keep(self, text: str | None) -> None:
        """Note what there is so far, for whoever stops it."""
        if text:
            self.partial = self.ctx.scope.partial = text

    # -- the last call ----------------------------------------------------------------------------------------------------

    async def _wrapped_up(self, error: BudgetError) -> Ending | None:
        """Make the one call that a limit with `on_exceed="final"` has kept room for; None where there is none, or it does not fit."""
        limit = limit_of(error)
        ended = Ending.known(error)
        if limit is None or limit.on_exceed is not Outcome.FINAL or ended is None:
            return None
        try:
            generation = await last_answer(self.ctx, [*self._before, *self.new])
        except Exception as failed:
            if isinstance(failed, RaviError) or failed is self.ctx.failure:
                return None
            raise
        if generation is None:
            return None
        if generation.message.content:
            self.answer = self.partial = generation.message.content
            self.new.append(ChatMessage("assistant", generation.message.content))
        self._limit = error
        return replace(ended, phase="finalize")
