"""Copy what a program or a server gave as plain JSON values: bounded in depth and size, and never a field that is secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.http.fields import class_of

_DEEPEST: Final = 64
_MOST_NODES: Final = 50_000
_MODEL: Final = ("__pydantic_fields_set__", "__fields_set__")
_NOTHING_SECRET: Final = frozenset[str]()


def plain(value: Any, *, without: frozenset[str] = _NOTHING_SECRET) -> Any:
    """Copy a value, the models in it as mappings without what is unset; what is no JSON by the name of its class.

    Iterators and open files are left alone: they are the caller's to read. Fields named in `without`, in lower case, are left out.
    """
    return _copy(value, 0, [_MOST_NODES], without)


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
        extra: dict[Any, Any] = getattr(value, "__pydantic_extra__", None) or {}  # what the model has no name for
        held: dict[Any, Any] = {**cast("dict[Any, Any]", vars(value)), **extra}
        return {key: inner for key, inner in held.items() if inner is not None}
    return None


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(key) if isinstance(key, (int, float)) else f"[{class_of(key).__name__}]"
