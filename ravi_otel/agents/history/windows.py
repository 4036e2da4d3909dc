"""Shorten a conversation to its end: by turns, or by tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ravi_otel._instrumentation.formats.fields import tokens_in
from ravi_otel.agents.history.turns import Outline, Unit, outline, sound
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage

_PER_MESSAGE: Final = 4
_PER_REQUEST: Final = 3


def tokens_of(messages: Iterable[ChatMessage]) -> int:
    """Estimate the input tokens of a request with these messages, as the admission of a chat call does; tools on offer are not in it."""
    return _PER_REQUEST + sum(_tokens(message) for message in messages)


class SlidingWindow:
    """Keep the newest `turns` turns, and every system and developer message; a CompactionStrategy.

    A turn begins at each user's message, and has all that follows up to the next one: at most `turns` user messages are kept, however
    many of them stand in a row unanswered. Tool calls and their results are never parted.
    """

    def __init__(self, turns: int) -> None:
        self.turns = checks.count("turns", turns, least=1, way_out="1 keeps the newest turn")

    async def compact(self, raw_history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Give the messages to keep, oldest first."""
        return self.cut(raw_history)

    def cut(self, raw_history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Give the messages to keep, oldest first; without waiting."""
        messages = sound(raw_history)
        found = outline(messages)
        return _picked(messages, found, (unit for turn in found.turns[-self.turns :] for unit in turn))


class TokenWindow:
    """Keep the newest turns that fit into `tokens`, and every system and developer message; a CompactionStrategy.

    Tokens are estimated as the admission of a call does, so leave room for the tools on offer and the answer. Of a newest turn that
    is too large alone, such as a long row of tool calls, its first message and its newest exchanges are kept. The system messages, that
    first message and the newest exchange are kept whatever they take: a prompt without them asks for something else.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = checks.count("tokens", tokens, least=1, way_out="give the tokens of the prompt, such as 8_000")

    async def compact(self, raw_history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Give the messages to keep, oldest first."""
        return self.cut(raw_history)

    def cut(self, raw_history: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Give the messages to keep, oldest first; without waiting."""
        messages = sound(raw_history)
        found = outline(messages)
        sizes = [_tokens(message) for message in messages]
        room = self.tokens - _PER_REQUEST - sum(sizes[at] for at in found.standing)
        kept: list[Unit] = []
        for turn in reversed(found.turns):
            room -= sum(_size(unit, sizes) for unit in turn)
            if room < 0:
                break
            kept.extend(turn)
        if not kept and found.turns:
            newest = found.turns[-1]
            kept = _ends(newest, sizes, room + sum(_size(unit, sizes) for unit in newest))
        return _picked(messages, found, kept)


def _ends(turn: Sequence[Unit], sizes: Sequence[int], room: int) -> list[Unit]:
    """Give a turn's first unit and the newest of the others that fit, the newest one in any case."""
    first, *others = turn
    room -= _size(first, sizes)
    kept = [first]
    for number, unit in enumerate(reversed(others)):
        room -= _size(unit, sizes)
        if room < 0 and number:
            break
        kept.append(unit)
    return kept


def _size(unit: Unit, sizes: Sequence[int]) -> int:
    return sum(sizes[at] for at in unit)


def _tokens(message: ChatMessage) -> int:
    return tokens_in(message.as_json()) + _PER_MESSAGE


def _picked(messages: Sequence[ChatMessage], found: Outline, units: Iterable[Unit]) -> list[ChatMessage]:
    places = {*found.standing, *(at for unit in units for at in unit)}
    return [messages[at] for at in sorted(places)]
