"""Say to a model what came of a tool call: text of a bounded size, whatever the tool gave or raised."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from ravi_otel.agents._model import clean

MOST_CHARS: Final = 50_000
"""Characters of one tool result that a model is given."""
_MOST_ERROR: Final = 1_000


def said(result: object) -> str:
    """Write a tool's result: text as it is, anything else as JSON, and what JSON does not know as Python prints it.

    What is longer than 50,000 characters is cut, with a note that says so.
    """
    text = clean(result if isinstance(result, str) else _json(result))
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}\n[Cut: these are the first {MOST_CHARS} of {len(text)} characters. Ask for less at a time.]"


def _json(result: object) -> str:
    try:
        return json.dumps(result, ensure_ascii=False, default=_plain)
    except Exception:  # noqa: BLE001 - a cycle, keys that are no text, or whatever a stranger's value raises
        return _printed(result)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # of whatever
    return _printed(value)


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value that cannot be written must not end the run
        return f"<{type(value).__name__}>"


def error(code: str, message: object, **facts: Any) -> str:
    """Write what went wrong as the result of a tool: a JSON object with `error`, `message` and the facts."""
    return json.dumps({"error": code, "message": clean(_printed(message))[:_MOST_ERROR], **facts}, ensure_ascii=False, default=_printed)
