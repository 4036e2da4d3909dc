"""Say in one line which limit stopped an answer, for whoever reads as much of it as there is; off unless asked for."""

from __future__ import annotations

from typing import Final, TypeVar

from ravi_otel._enforcement.errors_text import named
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import BudgetError
from ravi_otel.policy._limits import Kind, format_public_amount

ErrorT = TypeVar("ErrorT", bound=BaseException)

_WORDS: Final = {
    Kind.TOKENS.value: "token limit",
    Kind.INPUT_TOKENS.value: "input token limit",
    Kind.OUTPUT_TOKENS.value: "output token limit",
    Kind.COST.value: "cost limit",
    Kind.REQUESTS.value: "request limit",
    Kind.TURNS.value: "turn limit",
    Kind.MESSAGES.value: "message limit",
    Kind.TOOL_CALLS.value: "tool call limit",
    Kind.AGENTS.value: "agent limit",
    Kind.AGENTS_TOTAL.value: "limit of agents in all",
    Kind.DEPTH.value: "depth limit",
    Kind.FAN_OUT.value: "fan-out limit",
    Kind.TIME.value: "time limit",
    Kind.WORKING.value: "working time limit",
}


def footer(error: BaseException) -> str:
    """Write the line that says which limit stopped an answer: `[stopped by the token limit of run 'x': 4200 of 4000]`.

    Empty for an error that is no limit's.
    """
    if not isinstance(error, BudgetError) or error.limit_kind is None:
        return ""
    figures = ""
    if error.used is not None and error.threshold is not None:
        by_us = " by our count" if error.estimated else ""
        figures = (
            f": {format_public_amount(error.limit_kind, error.used)} of {format_public_amount(error.limit_kind, error.threshold)}{by_us}"
        )
    return f"[stopped by the {_what(error.limit_kind)} of {_whose(error)}{figures}]"


def footed(error: ErrorT) -> ErrorT:
    """Put the line under the partial text of a cut stream, once, where footers are on."""
    if isinstance(error, BudgetError):
        error.partial = with_footer(error.partial, error)
    return error


def with_footer(text: str | None, error: BaseException) -> str | None:
    """Return the text that a limit stopped with the line under it, once, where footers are on; there is none under no text."""
    if not STATE.options.footers or not text:
        return text
    line = footer(error)
    return text if not line or text.endswith(line) else f"{text}\n{line}"


def without_footer(text: str | None, error: BaseException | None) -> str | None:
    """Return such a text without the line, for a model that is told in other words what stopped it."""
    line = "" if error is None or not STATE.options.footers else footer(error)
    return text.removesuffix(f"\n{line}") if text and line else text


def _what(kind: str) -> str:
    word = _WORDS.get(kind)
    if word is not None:
        return word
    if kind.startswith("tool."):
        return f"limit of tool {named(kind.removeprefix('tool.'))}"
    plain, _, formula = kind.partition("(")
    return f"{_WORDS[plain]} ({formula}" if formula and plain in _WORDS else f"limit of {named(kind)}"


def _whose(error: BudgetError) -> str:
    name = {"run": error.run_name or error.run_id, "agent": error.agent_name}.get(error.scope or "")
    return f"{error.scope} {named(name)}" if name else f"this {error.scope or 'program'}"
