"""The messages of a conversation: where it may be cut, and how it is kept as bytes and read again exactly.

What a store holds was somebody else's when it comes back, and what a crashed run leaves would be refused by a provider.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, JsonObject, Role

MOST_MESSAGES: Final = 10_000
"""Messages of one append."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one append, and of what one load gives: the newest that fit."""
MOST_APPENDS: Final = 10_000
"""Appends that one load gives."""
MOST_DEPTH: Final = 32
"""Levels of lists and objects in a tool call."""
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXTS: Final = ("content", "name", "tool_call_id")
_FIELDS: Final = frozenset({"role", *_TEXTS, "tool_calls"})
_MOST_INT: Final = 2**63
_HALF: Final = re.compile("[\ud800-\udfff]")
_STANDING: Final = ("system", "developer")
WITHHELD: Final = "The run was stopped here, and what came of this is left out."

Unit = tuple[int, ...]
"""Where the messages of one unit stand: a message, or an assistant's with tool calls and all their results."""


class HistoryError(RaviError):
    """A message cannot be kept, or a history cannot be read or written; nothing was changed."""


# -- where a conversation may be cut --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outline:
    """What a conversation is made of, by the places of its messages.

    `standing` are the system and developer messages, which every window keeps. `turns` are the rest: a turn begins at each user's
    message, also where nobody answered the one before; what precedes the first is a turn too.
    """

    standing: Unit
    turns: tuple[tuple[Unit, ...], ...]


def outline(messages: Sequence[ChatMessage]) -> Outline:
    """Return the outline of a conversation that `sound` has returned."""
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
    """Return the messages without what a provider refuses: tool calls without all their results, and results without their call.

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
            if _is_answered(message, unit[1:]):
                kept.extend(_with_own_ids(unit))
            elif message.content:
                kept.append(ChatMessage("assistant", message.content, message.name))  # what a provider wrote besides belongs to the calls
        elif message.role != "tool":
            kept.append(message)
        at = end
    return kept


def answered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without what was refused after the last answer of the model: kept, it would be refused again in each run to come.

    Tool calls stay, since what they did is done; what they gave does not.
    """
    whole = sound(messages)
    last = next((at for at in range(len(whole) - 1, -1, -1) if whole[at].role == "assistant"), -1)
    results = [replace(message, content=WITHHELD) for message in whole[last + 1 :] if message.role == "tool"]
    return [*whole[: last + 1], *results]


def unfiltered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without the model's last answer, which a provider's filter stopped, and what it would stop again."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), len(messages))
    return answered(messages[:last])


def _end_of_unit(messages: Sequence[ChatMessage], at: int) -> int:
    """Return where the unit that begins at `at` is over."""
    end = at + 1
    if messages[at].role == "assistant" and messages[at].tool_calls:
        while end < len(messages) and messages[end].role == "tool":
            end += 1
    return end


def _is_answered(message: ChatMessage, results: Sequence[ChatMessage]) -> bool:
    """Whether each call has its one result, and nothing else is among them."""
    asked = [_id_of(call) for call in message.tool_calls]
    given = [result.tool_call_id for result in results]
    return None not in asked and sorted(map(str, asked)) == sorted(map(str, given))


def _with_own_ids(unit: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the unit in which calls of one id have ids of their own, in their order, and their results too: what they did is done."""
    message, *results = unit
    ids = [_id_of(call) for call in message.tool_calls]
    if len(set(ids)) == len(ids) or any("call_id" in call for call in message.tool_calls) or type(message) is not ChatMessage:
        return unit
    calls, given = _Ids(ids), _Ids(ids)
    renamed = tuple({**call, "id": calls.next(_id_of(call))} for call in message.tool_calls)
    return [replace(message, tool_calls=renamed), *(replace(result, tool_call_id=given.next(result.tool_call_id)) for result in results)]


class _Ids:
    """Names for the calls of one answer: the first of an id keeps it, each further one gets a new one, the same for the same place."""

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


# -- as bytes -------------------------------------------------------------------------------------------------------


def write(messages: Sequence[ChatMessage]) -> bytes:
    """Return an append's messages as bytes; raise HistoryError for what is too large, too deep, or no message.

    A message is written by the fields of ChatMessage: what a subclass of it holds besides is of one provider, and of one conversation
    with it. Half characters (lone surrogates) are kept as they came: a model may answer with one, and what it said is not ours to change.
    """
    if isinstance(messages, (str, bytes)) or len(messages) > MOST_MESSAGES:
        raise HistoryError(f"messages={checks.show(messages)} must be at most {MOST_MESSAGES} messages; append them in several parts.")
    bodies = [_body(number, message) for number, message in enumerate(messages)]
    data = json.dumps(bodies, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(data) > MOST_BYTES:
        raise HistoryError(f"messages take {len(data)} bytes, and one append holds {MOST_BYTES}; shorten the tool results in them.")
    return data


def read(data: bytes) -> tuple[ChatMessage, ...]:
    """Return the messages of an append; raise ValueError with a part of a sentence for what `write` has not written."""
    try:
        found: Any = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(found, list) or len(cast("Sequence[object]", found)) > MOST_MESSAGES:
        raise ValueError("it is no list of messages")
    return tuple(_message(each) for each in cast("Sequence[object]", found))


def assemble(newest_first: Iterable[tuple[str | None, object]]) -> tuple[ChatMessage, ...]:
    """Return the messages of appends (run id and bytes), oldest first: each run's stay together, where the first of them came.

    Takes the newest until 16 MiB are full, or 10,000 of them are taken. Raises ValueError for what cannot be read.
    """
    runs: dict[object, list[tuple[ChatMessage, ...]]] = {}
    room = MOST_BYTES
    taken: list[tuple[object, bytes]] = []
    for number, (run_id, data) in enumerate(newest_first):
        if not isinstance(data, bytes) or len(data) > MOST_BYTES:
            raise ValueError("it is no text of ours")
        room -= len(data)
        if room < 0 or number == MOST_APPENDS:
            break
        taken.append((number if run_id is None else run_id, data))
    for run, data in reversed(taken):
        runs.setdefault(run, []).append(read(data))
    return tuple(message for appends in runs.values() for messages in appends for message in messages)


def sendable(message: ChatMessage) -> ChatMessage:
    """Return the message as it can be sent: with U+FFFD for each half character, which no request can carry."""
    texts = (message.content, message.name, message.tool_call_id)
    if message.tool_calls or any(text is not None and _HALF.search(text) for text in texts):
        content, name, call = (None if text is None else _HALF.sub("\ufffd", text) for text in texts)
        return ChatMessage(message.role, content, name, call, tuple(_whole(each) for each in message.tool_calls))
    return message


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_HALF.sub("\ufffd", key): _whole(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence):
        return [_whole(inner) for inner in cast("Sequence[object]", value)]
    return value


def _body(number: int, message: object) -> dict[str, Any]:
    place = f"messages[{number}]"
    if not isinstance(message, ChatMessage):
        raise HistoryError(f"{place}={checks.show(message)} is no ChatMessage; give ChatMessage('user', 'text').")
    if message.role not in _ROLES:
        raise HistoryError(f"{place}.role={checks.show(message.role)} must be one of {', '.join(_ROLES)}.")
    body: dict[str, Any] = {"role": str(message.role)}
    for field in _TEXTS:
        value: object = getattr(message, field)
        if value is not None:
            body[field] = _text(f"{place}.{field}", value)
    if message.tool_calls:
        body["tool_calls"] = [_value(f"{place}.tool_calls", call, 0) for call in _calls(place, message.tool_calls)]
    return body


def _calls(place: str, calls: object) -> Sequence[object]:
    shown = checks.show(calls)
    found = cast("Sequence[object]", calls) if isinstance(calls, (tuple, list)) else ()
    if found and all(isinstance(call, Mapping) for call in found):
        return found
    raise HistoryError(f"{place}.tool_calls={shown} must be JSON objects, as the provider wrote them.")


def _text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise HistoryError(f"{place}={checks.show(value)} must be text or None.")
    return str.__str__(value)


def _value(place: str, value: object, depth: int) -> Any:
    """Return a copy of a JSON value; the bounds are those that every reader of JSON keeps."""
    if depth > MOST_DEPTH:
        raise HistoryError(f"{place} is nested deeper than {MOST_DEPTH} levels; give the arguments as one text.")
    if isinstance(value, str):
        return _text(place, value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _number(place, value)
    if isinstance(value, Mapping):
        return {
            _text(f"a key of {place}", key): _value(place, inner, depth + 1)
            for key, inner in cast("Mapping[object, object]", value).items()
        }
    if isinstance(value, (list, tuple)):
        return [_value(place, inner, depth + 1) for inner in cast("Sequence[object]", value)]
    raise HistoryError(f"{place} has {checks.show(value)} in it, which is no JSON.")


def _number(place: str, value: float) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise HistoryError(f"{place} has {value} in it, which JSON cannot write.")
    if isinstance(value, int) and abs(value) >= _MOST_INT:
        raise HistoryError(f"{place} has a number beyond 64 bits in it; give it as text.")
    return value


def _message(found: object) -> ChatMessage:
    if not isinstance(found, dict):
        raise ValueError("one of its messages is no object")  # noqa: TRY004 - what a file holds is a value, whatever its type
    body = cast("dict[str, Any]", found)
    calls = body.get("tool_calls", [])
    if (
        not body.keys() <= _FIELDS
        or body.get("role") not in _ROLES
        or not all(isinstance(body.get(field), (str, type(None))) for field in _TEXTS)
        or not isinstance(calls, list)
        or not all(isinstance(call, dict) for call in cast("Sequence[object]", calls))
    ):
        raise ValueError("one of its messages has another shape")
    role = cast("Role", body["role"])
    return ChatMessage(role, body.get("content"), body.get("name"), body.get("tool_call_id"), tuple(cast("Sequence[JsonObject]", calls)))
