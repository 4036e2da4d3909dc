"""Cut a conversation where it may be cut: between turns, and inside a turn between whole exchanges with tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ravi_otel.policy._contracts import ChatMessage, JsonObject

_STANDING = ("system", "developer")

WITHHELD: Final = "The run was stopped here, and what came of this is left out."

Unit = tuple[int, ...]
"""Where the messages of one unit stand: a message, or an assistant's with tool calls and all their results."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Say what a conversation is made of, by the places of its messages.

    `standing` are the system and developer messages, which every window keeps. `turns` are the rest: a turn begins at each user's
    message, also where nobody answered the one before; what precedes the first is a turn too.
    """

    standing: Unit
    turns: tuple[tuple[Unit, ...], ...]


def outline(messages: Sequence[ChatMessage]) -> Outline:
    """Divide a conversation that `sound` has given."""
    standing: list[int] = []
    turns: list[list[Unit]] = []
    at = 0
    while at < len(messages):
        if messages[at].role in _STANDING:
            standing.append(at)
            at += 1
            continue
        end = _end_of_unit(messages, at)
        if not turns or messages[at].role == "user":
            turns.append([])
        turns[-1].append(tuple(range(at, end)))
        at = end
    return Outline(tuple(standing), tuple(tuple(turn) for turn in turns))


def sound(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leave out what a provider refuses: tool calls without all their results, and results without their call.

    A run that crashed, or a bound that was cut at, leaves such. What an assistant said beside its unanswered calls stays, and so do
    the messages of its own that stand between.
    """
    kept: list[ChatMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        end = _end_of_unit(messages, at)
        unit = messages[at:end]
        if message.tool_calls and message.role == "assistant":
            if _answered(message, unit[1:]):
                kept.extend(_only_requested(unit))
            elif message.content:
                kept.append(ChatMessage("assistant", message.content, message.name))  # what a provider wrote besides belongs to the calls
        elif message.role != "tool":
            kept.append(message)
        at = end
    return kept


def answered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leave out what was refused after the last answer of the model: kept, it would be refused again in each run to come.

    Tool calls stay, since what they did is done; what they gave does not.
    """
    whole = sound(messages)
    last = next((at for at in range(len(whole) - 1, -1, -1) if whole[at].role == "assistant"), -1)
    results = [replace(message, content=WITHHELD) for message in whole[last + 1 :] if message.role == "tool"]
    return [*whole[: last + 1], *results]


def unfiltered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leave out the model's last answer, which a provider's filter stopped, and what that filter would stop again."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), len(messages))
    return answered(messages[:last])


def _end_of_unit(messages: Sequence[ChatMessage], at: int) -> int:
    """Give where the unit that begins at `at` is over."""
    end = at + 1
    if messages[at].role == "assistant" and messages[at].tool_calls:
        while end < len(messages) and messages[end].role == "tool":
            end += 1
    return end


def _answered(message: ChatMessage, results: Sequence[ChatMessage]) -> bool:
    """Tell that each call has its one result, and nothing else is among them."""
    asked = [_id_of(call) for call in message.tool_calls]
    given = [result.tool_call_id for result in results]
    return None not in asked and sorted(map(str, asked)) == sorted(map(str, given))


def _only_requested(unit: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Give calls that a model gave one id ids of their own, in their order, and their results too: what they did is done."""
    message, *results = unit
    ids = [_id_of(call) for call in message.tool_calls]
    if len(set(ids)) == len(ids) or any("call_id" in call for call in message.tool_calls) or type(message) is not ChatMessage:
        return unit
    calls, given = _Renamed(ids), _Renamed(ids)
    renamed = tuple({**call, "id": calls.next(_id_of(call))} for call in message.tool_calls)
    return [replace(message, tool_calls=renamed), *(replace(result, tool_call_id=given.next(result.tool_call_id)) for result in results)]


class _Renamed:
    """Give the first of an id its own name, and each further one a new one, the same for the same place."""

    def __init__(self, taken: Iterable[str | None]) -> None:
        self._taken = set(taken)
        self._seen: Counter[str | None] = Counter()

    def next(self, call_id: str | None) -> str:
        self._seen[call_id] += 1
        number = self._seen[call_id]
        if number == 1:
            return str(call_id)
        name = f"{call_id}_{number}"
        while name in self._taken:
            name += "_"
        return name


def _id_of(call: JsonObject) -> str | None:
    found = call.get("call_id", call.get("id"))  # Responses, chat
    return found if isinstance(found, str) else None
