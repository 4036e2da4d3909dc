"""Ask for the last answer of a run, on as much of its conversation as fits what a limit with `on_exceed="final"` has kept back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ravi_otel._enforcement.plan import Estimate
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.charging import Capped
from ravi_otel._runtime.scopes import apply_limits, current_scope
from ravi_otel.agents import _model
from ravi_otel.agents._model import OpenAIModel, model_name
from ravi_otel.agents.history._compaction import TokenWindow, tokens_of
from ravi_otel.agents.history._messages import sound
from ravi_otel.errors import BudgetError
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._limits import SPENDS, Admission, Limit, Outcome, Unbounded
from ravi_otel.policy._usage import Call

if TYPE_CHECKING:
    from ravi_otel.agents.context import AgentContext

WRAP_UP: Final = ChatMessage(
    "user",
    "A limit of this run is reached: nothing more can be looked up or done. Answer now with what you have, in a few sentences, and say "
    "what is missing.",
)
_ANSWERS: Final = (256, 32)
"""Tokens of answer that room is made for, the first if it can be had; with less than the last there is nothing worth paying for."""
_AROUND: Final = 640
"""Tokens that a request has beside its body at most: what servers put around it, with something to spare."""
_TEXTS: Final = (2_000, 500, 100)
"""Characters that texts are cut to, one after the other, when the newest exchange alone is too long."""

Fits = Callable[[Sequence[ChatMessage]], bool]


async def last_answer(ctx: AgentContext, messages: Sequence[ChatMessage]) -> Generation | None:
    """Ask once more, without tools; None where nothing that is worth asking fits. Raises what a call raises."""
    with ctx.scope.wrap_up(), _within(ctx):
        fitting = _fitting(ctx, sound(messages))
        return None if fitting is None else await ctx.llm([*fitting, WRAP_UP])


def _within(ctx: AgentContext) -> AbstractContextManager[Any]:
    """Hold the call to what is left of each limit, its worst case included; where a client hides that, to what is expected of it."""
    unbounded: Unbounded = "refuse" if isinstance(ctx.agent.model, OpenAIModel) else "admit"
    left: dict[str, int] = {}
    for account in ctx.scope.plan.accounts():
        if account.limit.kind in SPENDS and account.limit.on_exceed is Outcome.FINAL:
            left[account.limit.kind] = min(left.get(account.limit.kind, account.remaining), account.remaining)
    return apply_limits(
        [Limit(kind=kind, value=max(0, room), admission=Admission.STRICT, on_unbounded=unbounded) for kind, room in left.items()]
    )


def _fitting(ctx: AgentContext, messages: Sequence[ChatMessage]) -> list[ChatMessage] | None:
    scope = current_scope()
    for answer in _ANSWERS:

        def fits(shortened: Sequence[ChatMessage], answer: int = answer) -> bool:
            return _fits(scope, ctx, shortened, answer)

        found = _shortened(messages, fits)
        if found is not None:
            return found
    return None


def _shortened(messages: Sequence[ChatMessage], fits: Fits) -> list[ChatMessage] | None:
    """Give the newest of a conversation that fits, with its instructions and its question; None where nothing does."""
    if fits(messages):
        return list(messages)
    newest = TokenWindow(1).cut(messages)
    if not fits(newest):
        cuts = ([_cut(message, most) for message in newest] for most in _TEXTS)
        return next((cut for cut in cuts if fits(cut)), None)
    most, too_many = 1, tokens_of(messages)
    while too_many - most > max(16, most // 8):
        tried = (most + too_many) // 2
        most, too_many = (tried, too_many) if fits(TokenWindow(tried).cut(messages)) else (most, tried)
    return TokenWindow(most).cut(messages)


def _cut(message: ChatMessage, most: int) -> ChatMessage:
    text = message.content
    if text is None or len(text) <= most or message.role in ("system", "developer"):
        return message
    return replace(message, content=f"{text[:most]}\n[Cut: these are the first {most} of {len(text)} characters.]")


def _fits(scope: Scope, ctx: AgentContext, messages: Sequence[ChatMessage], answer: int) -> bool:
    """Tell whether all strict limits have room for these messages and so many tokens of answer; what cannot be told is not in the way."""
    call = Call("chat", "chat.completions", model=model_name(ctx.agent.model), output_cap=answer, messages=len(messages))
    try:
        found = Capped.of(scope, call, _Size(call, _bytes(ctx, [*messages, WRAP_UP])))
        card = scope.engine.prices.card(call.provider, call.model)
        lines = scope.plan.lines(call, Estimate.of(call, card), found.worst)
    except BudgetError:  # no price is known: the call itself is judged by what the limit says of that
        return True
    return all(line.want <= line.account.remaining for line in lines if line.account.strict and not (line.free or line.account.observe))


class _Size:
    """Know how large a request can be at most; a `charging.Sizing`."""

    def __init__(self, call: Call, tokens: int) -> None:
        self._call = call
        self._tokens = tokens

    def bound(self) -> None:
        """See `Sizing.bound`."""
        self._call.input_bound = self._call.input_estimate = self._tokens


def _bytes(ctx: AgentContext, messages: Sequence[ChatMessage]) -> int:
    """Count the bytes of a request, which has no more tokens than that."""
    model, instructions = ctx.agent.model, ctx.system_instructions
    first = [] if instructions is None else [ChatMessage("system", instructions)]
    write = _model.to_responses if isinstance(model, OpenAIModel) and model.api == "responses" else _model.to_chat
    body = {"model": model_name(model), "messages": write([*first, *messages])}
    return len(json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")) + _AROUND
