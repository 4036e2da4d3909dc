"""Write messages as bytes, and read them again exactly: what a store holds was somebody else's when it comes back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.agents.history.contract import MOST_APPENDS, MOST_BYTES, MOST_DEPTH, MOST_MESSAGES, HistoryError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import ChatMessage, JsonObject, Role

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXTS: Final = ("content", "name", "tool_call_id")
_FIELDS: Final = frozenset({"role", *_TEXTS, "tool_calls"})
_MOST_INT: Final = 2**63
_HALF: Final = re.compile("[\ud800-\udfff]")


def written(messages: Sequence[ChatMessage]) -> bytes:
    """Write an append's messages; raises HistoryError for what is too large, too deep, or no message.

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
    """Read an append again; raises ValueError with a part of a sentence for what `written` has not written."""
    try:
        found: Any = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(found, list) or len(cast("Sequence[object]", found)) > MOST_MESSAGES:
        raise ValueError("it is no list of messages")
    return tuple(_message(each) for each in cast("Sequence[object]", found))


def assembled(newest_first: Iterable[tuple[str | None, object]]) -> tuple[ChatMessage, ...]:
    """Put appends (run id and bytes) together, oldest first: each run's stay together, where the first of them came.

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
    """Give the message as it can be sent: with U+FFFD for each half character, which no request can carry."""
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
    """Copy a JSON value; the bounds are those that every reader of JSON keeps."""
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
