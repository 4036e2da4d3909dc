"""Read requests and answers that may hold anything: pydantic models, dicts, text, or lies.

`as_mapping` takes an answer apart into plain data once; what reads single fields of anything (`get` and those on it) never raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.hooks._listeners import raise_from_signal, swallow
from ravi_otel.policy._usage import Usage

MOST = 2**53
"""A count beyond what JSON numbers hold exactly is no count."""

PER_MESSAGE, PER_REQUEST = 4, 3
"""Tokens that are put around each message and around the whole, by what OpenAI documents; others differ little."""

_MOST_NODES = 100_000
_MEDIA_TOKENS = 1_000
"""What an inline image or recording is taken for: its bytes are no text."""
_MEDIA_KEYS = frozenset({"data", "file_data", "b64_json"})

class_of: Callable[[object], type[object]] = type
"""`type` itself, for values of which nothing is known."""

_NOTHING: Mapping[str, Any] = {}
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
"""What hosts with an API of this shape call it, in the details or beside them."""

_BESIDE = frozenset({*_CACHED, *_WRITTEN, "reasoning_tokens", "cost"})

_MOST_USD = 1_000_000

_OF_INPUT = (("cached_input_tokens", "cached_tokens"), ("audio_input_tokens", "audio_tokens"), ("image_input_tokens", "image_tokens"))
_OF_OUTPUT = (
    ("reasoning_tokens", "reasoning_tokens"),
    ("audio_output_tokens", "audio_tokens"),
    ("image_output_tokens", "image_tokens"),
    ("rejected_prediction_tokens", "rejected_prediction_tokens"),
)
"""Our names of a usage's details, and theirs."""

_PARTS = frozenset({"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"})
"""What the two parts of a total are called, whoever tells them."""

_FEW = 32
_MOST_CLASSES = 256
_objects: set[type] = set()
"""Classes known to be no mappings: asking an abstract class costs as much as all the rest of reading a field."""


def get(value: Any, name: str) -> Any:
    """Read a field of a model or a mapping; None when it is not there or cannot be read."""
    kind = class_of(value)
    if kind is dict or (kind not in _objects and _is_mapping(value, kind)):
        return value.get(name)
    try:
        return getattr(value, name, None)
    except Exception as error:  # noqa: BLE001 - a property of somebody's object may raise anything
        raise_from_signal(error)
        return None


def _is_mapping(value: Any, kind: type) -> bool:
    if kind is dict or isinstance(value, Mapping):
        return True
    if len(_objects) < _MOST_CLASSES and value.__class__ is kind:  # a proxy takes the class of what it stands for
        _objects.add(kind)
    return False


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return all fields of a model or a mapping, also those that the model's class does not know; none of anything else."""
    kind = class_of(value)
    if kind is dict or (kind not in _objects and _is_mapping(value, kind)):
        return cast("Mapping[str, Any]", value)
    try:
        own: dict[str, Any] = value.__dict__
    except Exception as error:  # noqa: BLE001 - nothing that holds fields
        raise_from_signal(error)
        return _NOTHING
    if not isinstance(own, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  # somebody's own attribute of that name
        return _NOTHING
    try:
        extra = value.__pydantic_extra__
    except Exception as error:  # noqa: BLE001 - no such model
        raise_from_signal(error)
        return own
    return {**own, **cast("dict[str, Any]", extra)} if extra and isinstance(extra, dict) else own


def as_text(value: Any) -> str | None:
    """Return what should be text; None for anything else."""
    return value if isinstance(value, str) else None


def as_list(value: Any) -> Sequence[Any]:
    """Return what should be a list; empty for anything else."""
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()


def text(value: Any, name: str) -> str | None:
    """Read a field that should be text; None for anything else."""
    found = get(value, name)
    return found if isinstance(found, str) else None


def id_of(value: Any, name: str) -> str | None:
    """Read a field that should be an id: text, or a whole number as some hosts give; None for anything else, and for none."""
    found = get(value, name)
    if type(found) is int and abs(found) <= MOST:
        return str(found)
    return found if isinstance(found, str) and found else None


def items(value: Any, name: str) -> Sequence[Any]:
    """Read a field that should be a list; empty for anything else."""
    return as_list(get(value, name))


def count(value: Any) -> int | None:
    """Take a non-negative whole number up to 2^53; None for NaN, text, booleans and every other claim."""
    if type(value) is int:  # what it nearly always is
        return value if 0 <= value <= MOST else None
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= MOST else None


def usage_of(usage: Any, inputs: str, outputs: str | None, input_details: str, output_details: str) -> Usage | None:
    """Read a usage object; None when it is missing or its counts are none. One that it lacks is what its total leaves.

    One that lacks both tells its total only (`Usage.total_only`).
    """
    if usage is None:
        return None
    told = as_mapping(usage)
    given: Any = told.get(inputs)
    made: Any = 0 if outputs is None else told.get(outputs)
    if type(given) is not int or type(made) is not int or not (0 <= given <= MOST and 0 <= made <= MOST):  # hardly ever
        given, made = count(given), count(made)
        if told.get(inputs) is None:
            given = _left(told, made)
        elif outputs is not None and told.get(outputs) is None:
            made = _left(told, given)
        if given is None or made is None:
            return total_only(told, told.get(input_details), told.get(output_details))
    of_input, of_output = told.get(input_details), told.get(output_details)
    if of_input is not None:
        of_input = as_mapping(of_input)
    if of_output is not None:
        of_output = as_mapping(of_output)
    detailed = (of_input and any(of_input.values())) or (of_output and any(of_output.values()))
    if not detailed and _BESIDE.isdisjoint(told):
        return Usage(given, made)
    of_input, of_output = of_input or _NOTHING, of_output or _NOTHING
    found: dict[str, Any] = _details(of_input, given, of_output, made)
    cached = found["cached_input_tokens"] = found.get("cached_input_tokens") or _first(told, _CACHED, given)
    written = _first(of_input, _WRITTEN, given) or _first(told, _WRITTEN, given)
    found["reasoning_tokens"] = found.get("reasoning_tokens") or _first(told, ("reasoning_tokens",), made)
    cost = _told_nano(told)
    return Usage(input_tokens=given, output_tokens=made, cache_write_tokens=min(written, given - cached), told_nano=cost, **found)


def _told_nano(told: Mapping[str, Any]) -> int:
    """Return what a usage object says that it cost, in nano-USD: OpenRouter's `cost`, with the vendor's own where the key is one's own."""
    parts = [told.get("cost")]
    if told.get("is_byok") is True:
        parts.append(get(told.get("cost_details"), "upstream_inference_cost"))
    known = [part for part in parts if isinstance(part, (int, float)) and not isinstance(part, bool) and 0 <= part <= _MOST_USD]
    return round(sum(known) * 1_000_000_000) if len(known) == len(parts) else 0


def _details(of_input: Mapping[str, Any], given: int, of_output: Mapping[str, Any], made: int) -> dict[str, int]:
    """Return the details under our names, none larger than its total; what is not told, or 0, is left out."""
    found: dict[str, int] = {}
    for details, names, most in ((of_input, _OF_INPUT, given), (of_output, _OF_OUTPUT, made)):
        if details:
            for field, name in names:
                part = details.get(name)
                if part:
                    found[field] = min(count(part) or 0, most)
    return found


def _left(told: Mapping[str, Any], part: int | None) -> int | None:
    """Return what a told total leaves beside one part of it; None where either is unknown, or nothing is left: unknown is not 0."""
    total = count(told.get("total_tokens"))
    return None if total is None or part is None or part >= total else total - part


def total_only(found: Any, *more: Any) -> Usage | None:
    """Read the total of a usage object that tells it alone; None where it is no count.

    It is not believed where the object, or one of `more` that tells of the same, tells a part of it under any name: a part that could
    not be read, or a larger detail.
    """
    told = as_mapping(found)
    total = count(told.get("total_tokens"))
    if not total or any(told.get(name) is not None for name in _PARTS):
        return None
    for other in more:
        for name, part in as_mapping(other).items():
            if part is not None and (name in _PARTS or (count(part) or 0) > total):
                return None
    return Usage(total_tokens=total)


def _first(found: Mapping[str, Any], names: Sequence[str], most: int) -> int:
    """Return the first of these counts that is told and not 0, no larger than its total; else 0."""
    for name in names:
        part = found.get(name)
        if part and (known := count(part)):
            return min(known, most)
    return 0


TOKEN: Final = 12
"""What a token weighs."""


def weight_of(value: str) -> int:
    """Weigh a piece of text in twelfths of a token: a quarter token for a byte of ASCII, a third for one of any other UTF-8."""
    return len(value) * 3 if value.isascii() else len(value.encode("utf-8", "surrogatepass")) * 4


def tokens_of_weight(weight: int) -> int:
    """Estimate the tokens of everything that was weighed, rounded up once."""
    return (weight + TOKEN - 1) // TOKEN


def _tokens_in_text(value: str) -> int:
    return _MEDIA_TOKENS if value.startswith("data:") else tokens_of_weight(weight_of(value))


def tokens_in(value: Any, more: int = 0) -> int:  # noqa: C901, PLR0912 - one loop for every sort of node, without a call for each
    """Estimate tokens of a JSON value, and `more`: its texts and its keys; media inline count as a fixed amount each.

    Iterators are left alone: they are the caller's to read. A value that cannot be read is taken to be that small.
    """
    total, seen = more, 0
    stack: list[Any] = [value]
    try:
        while stack and seen < _MOST_NODES:
            node = stack.pop()
            seen += 1
            kind = class_of(node)
            if kind is dict and len(node) <= _FEW and _MEDIA_KEYS.isdisjoint(node):
                # A message, nearly always: its texts are weighed where they stand.
                seen += len(node)
                total += len(node)
                for inner in node.values():
                    if type(inner) is not str:
                        stack.append(inner)
                    elif inner.isascii() and inner[:5] != "data:":  # `_tokens_in_text`, without the calls
                        total += (len(inner) + 3) // 4
                    else:
                        total += _tokens_in_text(inner)
            elif kind is list or kind is tuple:
                stack.extend(node)
            elif node is None:  # before the questions below, which cost more than a message
                continue
            elif isinstance(node, str):
                total += _tokens_in_text(node)
            elif isinstance(node, Mapping):
                for key, inner in cast("dict[Any, Any]", node).items():
                    if key in _MEDIA_KEYS and isinstance(inner, str):
                        total += _MEDIA_TOKENS
                    else:
                        total += 1
                        stack.append(inner)
            elif isinstance(node, (list, tuple)):
                stack.extend(cast("Sequence[Any]", node))
            elif hasattr(kind, "__pydantic_fields_set__") or hasattr(kind, "__fields_set__"):
                stack.append(vars(node))  # a model, which some clients take where others take a mapping
            else:
                total += 1
    except Exception as bug:  # noqa: BLE001 - it is asked long after the request was read, where nobody expects an error
        swallow("estimate", bug)
        return more
    return total


def body_of(json_data: Any, extra: Any, content: Any) -> Mapping[str, Any]:
    """Return the JSON object a request will carry, as the client merges it; empty when it is no object."""
    kind = class_of(json_data)
    if kind is dict and extra is None:
        plain: dict[str, Any] = json_data
        return plain  # nothing to merge, and nobody writes to it
    given = content if json_data is None else json_data
    if isinstance(given, (bytes, bytearray, str)):
        try:
            json_data = json.loads(given)
        except (ValueError, RecursionError):
            json_data = None
    merged: dict[str, Any] = {}
    for one in (json_data, extra):
        if isinstance(one, Mapping):
            merged.update(cast("Mapping[str, Any]", one))
    return merged


# -- copies ----------------------------------------------------------------------------------------------------

_DEEPEST: Final = 64
_MOST_COPIED: Final = 50_000
_MODEL: Final = ("__pydantic_fields_set__", "__fields_set__")
_NOTHING_SECRET: Final = frozenset[str]()


def plain(value: Any, *, without: frozenset[str] = _NOTHING_SECRET) -> Any:
    """Copy a value, the models in it as mappings without what is unset; what is no JSON by the name of its class.

    Iterators and open files are left alone: they are the caller's to read. Fields named in `without`, in lower case, are left out.
    """
    return _copy(value, 0, [_MOST_COPIED], without)


def fields_of(value: Any, *, without: frozenset[str] = _NOTHING_SECRET) -> dict[str, Any]:
    """Copy the fields of a mapping or a model; none of anything else."""
    found = plain(value, without=without)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _copy(value: Any, depth: int, left: list[int], without: frozenset[str]) -> Any:
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    kind = class_of(value)
    left[0] -= 1
    if depth > _DEEPEST or left[0] <= 0:  # the budget is for the whole: a value that holds itself twice grows with each level
        return f"[{kind.__name__}]"
    if isinstance(value, (list, tuple)):
        return [_copy(inner, depth + 1, left, without) for inner in cast("Sequence[Any]", value)]
    fields = _fields(value, kind)
    if fields is None:
        return f"[{kind.__name__}]"
    named = ((_name(key), inner) for key, inner in fields.items())
    return {name: _copy(inner, depth + 1, left, without) for name, inner in named if name.lower() not in without}


def _fields(value: Any, kind: type[object]) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", cast("object", value))
    if any(hasattr(kind, mark) for mark in _MODEL):
        return {key: inner for key, inner in as_mapping(value).items() if inner is not None}
    return None


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(key) if isinstance(key, (int, float)) else f"[{class_of(key).__name__}]"
