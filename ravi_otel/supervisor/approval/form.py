"""Read from a tool's JSON schema what each of its arguments may be: for a form, and to say what is wrong with an edit before it is sent.

It knows the schemas that signatures give. What it does not know it lets pass: the program that asked holds every edit to its own signature.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject, JsonValue

Kind = Literal["text", "whole", "number", "flag", "choice", "json"]

_KINDS: Final[Mapping[str, Kind]] = {"string": "text", "integer": "whole", "number": "number", "boolean": "flag"}
_WORDS: Final = {
    "text": "text",
    "whole": "whole number",
    "number": "number",
    "flag": "true or false",
    "choice": "one of a few",
    "json": "JSON",
}
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": Sequence,
    "object": Mapping,
    "null": type(None),
}
_SHOWN: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final[tuple[tuple[str, str, Callable[[float, float], bool]], ...]] = (
    ("minimum", "at least", operator.ge),
    ("maximum", "at most", operator.le),
    ("exclusiveMinimum", "more than", operator.gt),
    ("exclusiveMaximum", "less than", operator.lt),
)
_SIZES: Final = (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items"))
_DEEPEST: Final = 12
_MOST_CHOICES: Final = 100
_MOST_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class Field:
    """Be what one argument may be. `above` and `below` are bounds that it may not reach; `choices` are JSON values."""

    name: str
    kind: Kind
    required: bool = True
    nullable: bool = False
    choices: tuple[JsonValue, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    shortest: int | None = None
    longest: int | None = None
    about: str = ""

    @property
    def word(self) -> str:
        """Name its type."""
        return _WORDS[self.kind]

    @property
    def says(self) -> str:
        """Say in a few words what it may be."""
        bounds = (("at least", self.least), ("more than", self.above), ("at most", self.most), ("less than", self.below))
        said = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        if self.shortest or self.longest is not None:
            said.append(f"{self.shortest or 0} to {'any' if self.longest is None else self.longest} characters")
        words = [_WORDS[self.kind] + (" or null" if self.nullable else ""), *said, *([] if self.required else ["may be left out"])]
        return ", ".join(words)


def fields(schema: JsonObject | None) -> dict[str, Field]:
    """Return what each argument of a tool may be, by name; nothing without a schema that can be read."""
    properties = _table((schema or {}).get("properties"))
    return {name: _field(name, _table(each), _table(schema)) for name, each in properties.items()}


def _field(name: str, given: Mapping[str, Any], whole: Mapping[str, Any]) -> Field:
    known, nullable = _inner(given, whole)
    required = name in _list(whole.get("required"))
    about = known.get("description") or given.get("description")
    text = about[:_MOST_TEXT] if isinstance(about, str) else ""
    choices = tuple(_list(known.get("enum")))
    if "const" in known:
        choices = (known["const"],)
    if choices and len(choices) <= _MOST_CHOICES:
        more = (None,) if nullable and None not in choices else ()
        return Field(name, "choice", required, nullable, (*choices, *more), about=text)
    kind = _KINDS.get(known["type"]) if isinstance(known.get("type"), str) else None
    if kind is None:
        return Field(name, "json", required, nullable, about=text)
    numbers = {key: known[key] for key, _, _ in _BOUNDS if _is_number(known.get(key))} if kind in ("whole", "number") else {}
    sizes = {key: known[key] for key in ("minLength", "maxLength") if type(known.get(key)) is int} if kind == "text" else {}
    return Field(
        name,
        kind,
        required,
        nullable,
        least=numbers.get("minimum"),
        most=numbers.get("maximum"),
        above=numbers.get("exclusiveMinimum"),
        below=numbers.get("exclusiveMaximum"),
        shortest=sizes.get("minLength"),
        longest=sizes.get("maxLength"),
        about=text,
    )


def _inner(given: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the schema behind references and "or null", and whether null may be given, too."""
    known, nullable = _resolved(given, whole), False
    for _ in range(_DEEPEST):
        several = _list(known.get("anyOf") or known.get("oneOf"))
        others = [each for each in several if _table(each).get("type") != "null"]
        if len(others) != 1:
            break
        nullable = nullable or len(others) < len(several)
        known = _resolved(_table(others[0]), whole)
    return known, nullable


def _resolved(given: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    known = given
    for _ in range(_DEEPEST):
        reference, both = known.get("$ref"), _list(known.get("allOf"))
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            known = _table(_table(whole.get("$defs")).get(reference.removeprefix("#/$defs/")))
        elif len(both) == 1:
            known = _table(both[0])
        else:
            break
    return known


def flaw(schema: JsonObject, arguments: JsonObject) -> str | None:
    """Say in one sentence why a tool does not take these arguments; None where nothing is known to be wrong."""
    wrong = _wrong(_table(schema), arguments, _table(schema), "", 0)
    return None if wrong is None else f"{wrong}."


def _wrong(given: Mapping[str, Any], value: Any, whole: Mapping[str, Any], name: str, depth: int) -> str | None:
    if depth > _DEEPEST:
        return None
    known = _resolved(given, whole)
    several = _list(known.get("anyOf") or known.get("oneOf"))
    if several:
        found = [_wrong(_table(each), value, whole, name, depth + 1) for each in several]
        if None in found:
            return None
        real = [wrong for each, wrong in zip(several, found, strict=True) if _table(each).get("type") != "null"]
        return real[0] if len(real) == 1 else f"{name} is nothing that its tool takes"
    checks_of_all = (_wrong_type, _wrong_choice, _wrong_bound, _wrong_size)
    wrong = next((said for each in checks_of_all if (said := each(known, value, name or "the arguments")) is not None), None)
    if wrong is None and isinstance(value, Mapping):
        wrong = _wrong_inside(known, cast("Mapping[str, Any]", value), whole, name, depth)
    elif wrong is None and isinstance(value, list) and isinstance(known.get("items"), Mapping):
        items = enumerate(_list(cast("object", value)))
        each_wrong = (_wrong(known["items"], each, whole, f"{name}[{at}]", depth + 1) for at, each in items)
        wrong = next((said for said in each_wrong if said is not None), None)
    return wrong


def _wrong_inside(known: Mapping[str, Any], value: Mapping[str, Any], whole: Mapping[str, Any], name: str, depth: int) -> str | None:
    properties = _table(known.get("properties"))
    prefix = f"{name}." if name else ""
    for each in _list(known.get("required")):
        if each not in value:
            return f"{prefix}{each} is needed"
    for key, inner in value.items():
        if key in properties:
            wrong = _wrong(_table(properties[key]), inner, whole, f"{prefix}{key}", depth + 1)
            if wrong is not None:
                return wrong
        elif known.get("additionalProperties") is False:
            return f"{checks.show(key)} is no argument of its tool, which takes {', '.join(properties) or 'none'}"[:_MOST_TEXT]
    return None


def _wrong_type(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    said = known.get("type")
    types = [said] if isinstance(said, str) else _list(said)
    if not types or any(each not in _TYPES for each in types):
        return None
    if any(_is_of(each, value) for each in types):
        return None
    return f"{name} must be {' or '.join(_SHOWN[each] for each in types)}"


def _is_of(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str):
        return kind == "string"
    return isinstance(value, _TYPES[kind])


def _wrong_choice(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    choices = [known["const"]] if "const" in known else _list(known.get("enum"))
    if not choices or any(type(each) is type(value) and each == value for each in choices):
        return None
    return f"{name} must be one of {', '.join(json.dumps(each) for each in choices[:20])}"[:_MOST_TEXT]


def _wrong_bound(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    if not _is_number(value):
        return None
    for key, word, holds in _BOUNDS:
        if _is_number(known.get(key)) and not holds(value, known[key]):
            return f"{name} must be {word} {known[key]:g}"
    return None


def _wrong_size(known: Mapping[str, Any], value: Any, name: str) -> str | None:
    if not isinstance(value, (str, list)):
        return None
    least, most, what = _SIZES[isinstance(value, list)]
    size = len(cast("Sequence[Any]", value))
    if type(known.get(least)) is int and size < known[least]:
        return f"{name} must have at least {known[least]} {what}"
    if type(known.get(most)) is int and size > known[most]:
        return f"{name} must have at most {known[most]} {what}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []
