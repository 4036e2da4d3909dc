"""Read which tools a chat's answer asks the program to run, whole or in pieces, and whose results a request brings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from ravi_otel.instrumentation.http.fields import count, get, id_of, items, text
from ravi_otel.policy.usage import ToolUse

_MOST_USES: Final = 10_000
_MOST_NAME: Final = 1_024


def offered(body: Mapping[str, Any]) -> bool:
    """Tell that a request offers tools."""
    return "tools" in body


def uses(result: Any) -> tuple[ToolUse, ...]:
    """List what a complete answer asks for, in each of its choices."""
    calls = (call for choice in items(result, "choices") for call in items(get(choice, "message"), "tool_calls"))
    return tuple(ToolUse(id_of(call, "id"), text(_holder(call), "name")) for call in islice(calls, _MOST_USES))


def results(body: Mapping[str, Any]) -> tuple[str, ...]:
    """List the call ids of the results a request brings; one without an id answers nothing that can be known."""
    found = [id_of(message, "tool_call_id") for message in items(body, "messages") if text(message, "role") == "tool"]
    return tuple(call_id for call_id in found if call_id is not None)


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
        found = list(self._found.values())  # at once: another thread may be reading the stream
        return tuple(ToolUse(call_id or None, name) for call_id, name in found)
