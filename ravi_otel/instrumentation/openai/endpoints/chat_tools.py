"""Read which tools a chat's answer asks the program to run, whole or in pieces, and whose results a request brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.instrumentation.http.fields import count, get, id_of, items, rare, text
from ravi_otel.policy.usage import ToolUse

_MOST_USES: Final = 10_000
_MOST_NAME: Final = 1_024


def offered(body: Mapping[str, Any]) -> bool:
    """Tell that a request offers tools, in either form."""
    return "tools" in body or "functions" in body


def uses(result: Any) -> tuple[ToolUse, ...]:
    """List what a complete answer asks for, in each of its choices."""
    found: list[tuple[int, ToolUse]] = []
    for choice, each in enumerate(items(result, "choices")):
        message = get(each, "message")
        found += [(choice, ToolUse(id_of(call, "id"), text(_holder(call), "name"))) for call in items(message, "tool_calls")]
        legacy = rare(message, "function_call")
        if legacy is not None:
            found.append((choice, ToolUse(None, text(legacy, "name"))))
        if len(found) >= _MOST_USES:
            break
    return _of_choices(found[:_MOST_USES])


def _of_choices(found: Sequence[tuple[int, ToolUse]]) -> tuple[ToolUse, ...]:
    """List what several choices ask for: one of them is gone on with, so what they number alike is one call."""
    first: dict[str | None, int] = {}
    return tuple(use for choice, use in found if first.setdefault(use.call_id or use.name, choice) == choice)


def results(body: Mapping[str, Any]) -> tuple[ToolUse, ...]:
    """List the results a request brings; of those without an id only what answers the last message of the model.

    Such a one is named by itself, or by its place: the calls it answers are said again in that message.
    """
    found: list[ToolUse] = []
    unnamed: list[int] | None = []  # where those are, the last first, until the message that they answer
    fresh = 0
    for message in reversed(items(body, "messages")):
        role = text(message, "role")
        if role == "assistant":
            if unnamed:
                _name(found, unnamed, fresh, items(message, "tool_calls"))
            unnamed = None
        elif role in ("tool", "function"):
            call_id = id_of(message, "tool_call_id") if role == "tool" else None
            name = text(message, "name") or None
            if unnamed is not None:
                fresh += 1
                if call_id is None and name is None:
                    unnamed.append(len(found))
            if call_id is not None or unnamed is not None:
                found.append(ToolUse(call_id, name, unnamed is not None))
    found.reverse()
    return tuple(found)


def _name(found: list[ToolUse], unnamed: Sequence[int], fresh: int, calls: Sequence[Any]) -> None:
    """Name results by their places, which are counted from the end, by the calls in the message before them."""
    for at in unnamed:
        place = fresh - 1 - at
        if place < len(calls):
            found[at] = ToolUse(None, text(_holder(calls[place]), "name"))


def _holder(call: Any) -> Any:
    function = get(call, "function")
    return get(call, "custom") if function is None else function


class Calls:
    """Put the names and ids of a stream's tool calls together; indexes and sizes are the server's to claim and ours to bound."""

    __slots__ = ("_found", "_last")

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], list[str]] = {}
        self._last: dict[int, tuple[int, int]] = {}  # of each choice, the call that came last

    def add(self, choice: int, delta: Any) -> None:
        """Take in what one chunk says of a choice."""
        for call in items(delta, "tool_calls"):
            self._piece(choice, count(get(call, "index")), id_of(call, "id") or "", text(_holder(call), "name") or "")
        legacy = rare(delta, "function_call")
        if legacy is not None:
            self._piece(choice, 0, "", text(legacy, "name") or "")

    def _piece(self, choice: int, index: int | None, call_id: str, name: str) -> None:
        place = self._place(choice, index, call_id)
        known = self._found.get(place)
        if known is None:
            if len(self._found) >= _MOST_USES:
                return
            known = self._found[place] = ["", ""]
        self._last[choice] = place
        known[0] = known[0] or call_id
        if name and known[1] != name:  # some hosts say the whole name with every piece
            known[1] = (known[1] + name)[:_MOST_NAME]

    def _place(self, choice: int, index: int | None, call_id: str) -> tuple[int, int]:
        """Find the call a piece belongs to: by its index; without one a new id begins a call, and the last goes on."""
        if index is not None:
            return choice, index
        last = self._last.get(choice)
        if last is not None and (not call_id or self._found[last][0] == call_id):
            return last
        return choice, (-1 if last is None else last[1]) + 1

    def uses(self) -> tuple[ToolUse, ...]:
        """List what was asked for until now."""
        found = list(self._found.items())  # at once: another thread may be reading the stream
        return _of_choices([(choice, ToolUse(call_id or None, name)) for (choice, _), (call_id, name) in found])
