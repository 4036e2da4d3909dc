"""Change arguments as a person writes it: NAME=VALUE, the value as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject, JsonValue
from ravi_otel.supervisor.approval import form, frozen
from ravi_otel.supervisor.approval.contract import ApprovalRequest


def changed(arguments: JsonObject, changes: Iterable[str]) -> dict[str, JsonValue]:
    """Give the arguments with each `NAME=VALUE` in its place; `NAME=` leaves one out.

    A value is read as JSON (`500`, `"500"`, `true`, `["a"]`), except where the argument was a text: then only what is in quotes is JSON,
    and the rest is the text as it is. What is no JSON is text too. A new name is added. Raises ConfigurationError for one that looks like a
    mistyped one, for what is to be left out and is not there, and for a value of another kind than it was (null goes with all kinds).
    """
    fresh = frozen.plain(arguments)
    for each in changes:
        name, equals, written = each.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigurationError(f"{checks.show(each)} is no change; write NAME=VALUE, such as amount_usd=500.")
        known = name in fresh
        close = None if known else checks.nearest(name, fresh)
        if close is not None or not (known or written.strip()):
            hint = f"did you mean {close!r}?" if close else f"it has {', '.join(map(checks.show, list(fresh)[:20])) or 'none'}."
            raise ConfigurationError(f"{checks.show(name)} is no argument of this call; {hint}")
        if not written.strip():
            del fresh[name]
        else:
            fresh[name] = _alike(name, fresh.get(name), _value(written.strip(), fresh.get(name)))
    return fresh


def checked(request: ApprovalRequest, fresh: JsonObject) -> JsonObject:
    """Give what a person made of a request's arguments; ConfigurationError for what its tool does not take, as far as can be told here."""
    if request.schema is None:
        return alike(request.arguments, fresh)
    wrong = form.flaw(request.schema, fresh)
    if wrong is not None:
        raise ConfigurationError(wrong)
    numbers = {name for name, each in form.fields(request.schema).items() if each.kind == "number"}
    return {name: _as_float(value) if name in numbers else value for name, value in fresh.items()}


def _as_float(value: JsonValue) -> JsonValue:
    """Write a whole number as the tool will read it, so that the fingerprint is of what would run."""
    exact = isinstance(value, int) and not isinstance(value, bool) and float(value) == value
    return float(cast("int", value)) if exact else value


def alike(before: JsonObject, after: JsonObject) -> JsonObject:
    """Give what a person made of arguments; ConfigurationError where a value is of another kind than it was."""
    for name, value in after.items():
        _alike(name, before.get(name), value)
    return after


def _alike(name: str, before: JsonValue, after: JsonValue) -> JsonValue:
    if before is not None and after is not None and _kind(before) != _kind(after):
        raise ConfigurationError(
            f"{checks.show(name)} was {_kind(before)}, and {checks.show(after)} is {_kind(after)}; give {_kind(before)}, "
            "or all arguments with --args if its tool takes both."
        )
    return after


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list"


def _value(written: str, before: JsonValue) -> JsonValue:
    if isinstance(before, str) and not written.startswith('"'):
        return written
    return frozen.read_value(written)
