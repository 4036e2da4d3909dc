"""Shorten a conversation that has outgrown its model's window, and ask again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from ravi_otel.agents.context import AgentContext
from ravi_otel.agents.history._compaction import TokenWindow, tokens_of
from ravi_otel.agents.middleware._pipeline import ChatCall
from ravi_otel.policy._contracts import CallNext, ChatMessage, CompactionStrategy

_OVERFLOW: Final = "context_length_exceeded"
_TIMES: Final = 4


class Truncated:
    """Be the middleware around model calls that shortens what is sent: by a strategy each time, or by half where the model says too long.

    The first message, which is the task, is always kept. What the model took is remembered in the run, so that
    its next call is not refused first.
    """

    level: Final = "chat"

    def __init__(self, strategy: CompactionStrategy | None = None) -> None:
        self._strategy = strategy
        self._most: WeakKeyDictionary[AgentContext, int] = WeakKeyDictionary()  # by run: the agent's others are none of this one's

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """See `Middleware.process`."""
        if self._strategy is not None:
            context.messages = _with_task(context.messages, await self._strategy.compact(context.messages))
            await call_next()
            return
        run = AgentContext.current()
        most = None if run is None else self._most.get(run)
        if most is not None and tokens_of(context.messages) > most:
            context.messages = _cut(context.messages, most)
        for left in reversed(range(_TIMES)):
            try:
                await call_next()
            except Exception as error:
                shorter = _cut(context.messages, tokens_of(context.messages) // 2)
                if not left or getattr(error, "code", None) != _OVERFLOW or len(shorter) >= len(context.messages):
                    raise
                context.messages = shorter
                if run is not None:
                    self._most[run] = tokens_of(shorter)
            else:
                return


def _cut(messages: Sequence[ChatMessage], tokens: int) -> list[ChatMessage]:
    return _with_task(messages, TokenWindow(max(1, tokens)).cut(messages))


def _with_task(messages: Sequence[ChatMessage], kept: Sequence[ChatMessage]) -> list[ChatMessage]:
    task = next((message for message in messages if message.role == "user"), None)
    if task is None or any(message == task for message in kept):
        return list(kept)
    standing = next((at for at, message in enumerate(kept) if message.role not in ("system", "developer")), len(kept))
    return [*kept[:standing], task, *kept[standing:]]
