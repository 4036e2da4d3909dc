"""Read which tools a response asks the program to run, and whose results a request brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import id_of, items, text
from ravi_otel.policy.usage import ToolUse

MOST_USES: Final = 10_000
_NAMED: Final = frozenset({"function_call", "custom_tool_call"})
_BUILT_IN: Final = {
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
}
"""Tools that the provider defines and the program runs, and what they are called."""

_RESULT: Final = "call_output"


def offered(body: Mapping[str, Any]) -> bool:
    """Tell that a request offers tools; a stored prompt may hold some."""
    return "tools" in body or "prompt" in body


def uses(output: Sequence[Any]) -> tuple[ToolUse, ...]:
    """List what the output asks for; what the provider runs itself is none of it."""
    found: list[ToolUse] = []
    for item in output[:MOST_USES]:
        kind = text(item, "type") or ""
        if kind in _NAMED:
            found.append(ToolUse(id_of(item, "call_id"), text(item, "name")))
        elif kind in _BUILT_IN:
            found.append(ToolUse(id_of(item, "call_id"), _BUILT_IN[kind]))
    return tuple(found)


def results(body: Mapping[str, Any]) -> tuple[str, ...]:
    """List the call ids of the results a request brings; one without an id answers nothing that can be known."""
    found = [id_of(item, "call_id") for item in items(body, "input") if (text(item, "type") or "").endswith(_RESULT)]
    return tuple(call_id for call_id in found if call_id is not None)
