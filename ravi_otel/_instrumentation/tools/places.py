"""Find the functions that a module, a class, a mapping or a list holds, and say why another thing in it is left alone."""

from __future__ import annotations

import functools
import types
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ravi_otel._runtime.tool import GATED, MARK, StandIn
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.checks import is_generator_function, show

_PLAIN: Final = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, StandIn)
"""What can be replaced by a function; another object that can be called may have more to it than its call."""

_METHODS: Final[tuple[Any, ...]] = (classmethod, staticmethod)
_UNNAMED: Final = "<lambda>"
_GENERATOR: Final = "a generator function: give back the whole result, or make a tool of what collects it"
_IS_TOOL: Final = "a tool already"
_IS_GATED: Final = "a tool already, behind a gate of its own"
_MOST_WRAPPERS: Final = 32
_CHAIN: Final[Any] = ChainMap
_ELSEWHERE: Final = "written elsewhere: give the module it is in, or a mapping with it"
_HIDING: Final[tuple[Any, ...]] = (property, functools.cached_property, functools.partialmethod, functools.singledispatchmethod)
_MODELS: Final = frozenset({"pydantic", "pydantic_settings"})
_TAKES: Final = "a module, a class, a mapping of names to functions, or a list of functions"


@dataclass(slots=True)
class Place:
    """Be where one function is kept: what it is called as a tool, how to put another there, and what was there."""

    name: str
    fn: Callable[..., Any]
    held: Any
    put: Callable[[Any], None]
    now: Callable[[], Any]
    rewrap: Callable[[Any], Any]
    method: bool | None = None
    """Whether it is called on an object, None where only the function itself can tell."""


Found = Iterator[Place | tuple[str, str]]
"""Places, and of what is left alone the name with the reason."""


def places_in(target: object, asked: str = "instrument_tools(", *, gated: bool = False) -> Found:
    """Look through `target`; raises ConfigurationError for what holds no functions, or cannot be changed in place.

    `asked` is how the program gave it, up to the target itself. What is a tool already is found too where all are to be `gated`.
    """
    if isinstance(target, types.ModuleType):
        return _in_module(target, gated=gated)
    if isinstance(target, type):
        return _in_class(target, gated=gated)
    given: Any = target
    if isinstance(target, MutableMapping):
        return _in_mapping(given, gated=gated)
    if isinstance(target, list):
        return _in_list(given, gated=gated)
    kind = type(target).__name__
    if isinstance(target, Mapping):
        raise ConfigurationError(f"{asked}{kind}): it cannot be changed in place. Give the dict that your program calls its tools from.")
    if isinstance(target, (tuple, set, frozenset)):
        raise ConfigurationError(f"{asked}{kind}): it cannot be changed in place. Give the list that your program calls its tools from.")
    if callable(target):
        raise ConfigurationError(
            f"{asked}{show(target)}) is one function, which cannot be replaced everywhere. Decorate it with @ravi_otel.tool, "
            "or give the module it is in."
        )
    raise ConfigurationError(f"{asked}{show(target)}) takes {_TAKES}.")


def _in_module(module: types.ModuleType, *, gated: bool) -> Found:
    held: dict[str, Any] = vars(module)
    for name, value in list(held.items()):
        if name.startswith("_") or not callable(value):
            continue
        try:
            if getattr(value, "__module__", None) != module.__name__:
                if gated and type(value) in (types.FunctionType, functools.partial):
                    yield name, _ELSEWHERE
                continue
            reason = _left_alone(value, (types.FunctionType,), gated=gated)
        except Exception as error:  # noqa: BLE001 - a member may raise anything when it is looked at, and is only one of them
            reason = f"it raises {type(error).__name__} when it is looked at"
        if reason is not None:
            yield name, reason
        else:
            yield Place(name, value, value, functools.partial(setattr, module, name), functools.partial(held.get, name), _as_it_is)


def _in_class(owner: type[Any], *, gated: bool) -> Found:
    fields = _fields_of(owner)
    for name, value in list(vars(owner).items()):
        kind, fn = _unbound(value)
        if gated and not name.startswith("_") and name not in fields and isinstance(value, _HIDING):
            yield name, f"a {type(value).__name__}, which runs code that no gate stands before"
        if name.startswith("_") or name in fields or not callable(fn) or getattr(fn, "__isabstractmethod__", False):
            continue
        reason = _left_alone(fn, (types.FunctionType,), gated=gated)
        if reason is not None:
            yield name, reason
        else:
            now = functools.partial(vars(owner).get, name)
            yield Place(name, fn, value, functools.partial(setattr, owner, name), now, kind or _as_it_is, kind is not staticmethod)


def _unbound(held: Any) -> tuple[Any, Any]:
    """Give what sort of method a class holds, None for a plain one, and the function in it."""
    kind = next((one for one in _METHODS if isinstance(held, one)), None)
    return kind, held if kind is None else held.__func__


def _in_mapping(mapping: MutableMapping[Any, Any], *, gated: bool) -> Found:
    chain: Any = mapping
    if type(chain) is _CHAIN:
        seen: set[Any] = set()
        for one in chain.maps:  # each is changed where it has the name: the first would get what another holds
            yield from _in_one_mapping(one, seen, gated=gated)
            seen.update(one)
    else:
        yield from _in_one_mapping(mapping, (), gated=gated)


def _in_one_mapping(mapping: MutableMapping[Any, Any], hidden: Collection[Any], *, gated: bool) -> Found:
    for key, value in list(mapping.items()):
        if key in hidden:
            continue
        name = key if isinstance(key, str) and key else _name_of(value)
        reason = _left_alone(value, _PLAIN, gated=gated)
        if reason is not None or name is None:
            yield (name or show(key)), reason or "without a name"
        else:
            now = functools.partial(mapping.get, key)
            yield Place(name, value, value, functools.partial(mapping.__setitem__, key), now, functools.partial(StandIn, value))


def _in_list(functions: list[Any], *, gated: bool) -> Found:
    for index, value in enumerate(list(functions)):
        name, reason = _name_of(value), _left_alone(value, _PLAIN, gated=gated)
        if reason is not None or name is None:
            yield (name or f"[{index}]"), reason or "without a name: give a mapping, whose keys name the functions"
        else:
            spot = _Spot(functions, index)
            yield Place(name, value, value, spot.put, spot.now, functools.partial(StandIn, value))


class _Spot:
    """Be one function's place in a list, which its program may change meanwhile: found again by what was put there."""

    def __init__(self, functions: list[Any], index: int) -> None:
        self._functions = functions
        self._index = index
        self._held: Any = functions[index]

    def _at(self) -> int | None:
        if self._index < len(self._functions) and self._functions[self._index] is self._held:
            return self._index
        return next((at for at, each in enumerate(self._functions) if each is self._held), None)

    def now(self) -> Any:
        at = self._at()
        return None if at is None else self._functions[at]

    def put(self, value: Any) -> None:
        at = self._at()
        if at is not None:
            self._functions[at] = self._held = value


def _as_it_is(fn: Any) -> Any:
    return fn


def _left_alone(value: Any, kinds: tuple[type[Any], ...], *, gated: bool) -> str | None:
    """Say why something is no tool; None where it can be made one."""
    if isinstance(value, type):
        return "a class: give it by itself, for its methods"
    if not callable(value):
        return f"not a function, but {type(cast('object', value)).__name__}"
    if _is_tool(value) and (not gated or _has_gate(value)):
        return _IS_GATED if gated else _IS_TOOL
    if type(value) not in kinds:
        return f"an object of class {type(value).__name__}, not a function: decorate the function in it"
    if is_generator_function(value):
        return _GENERATOR
    return None


def _is_tool(value: Any) -> bool:
    """Tell what is observed already, also below other wrappers and below arguments that were given beforehand."""
    return any(_is_on(one) for one in _below(value))


def _has_gate(value: Any) -> bool:
    return any(_is_on(one) and hasattr(getattr(one, "_self_called", one), GATED) for one in _below(value))


def _is_on(value: Any) -> bool:
    return bool(getattr(getattr(value, MARK, None), "on", False))


def _below(value: Any) -> Iterator[Any]:
    for _ in range(_MOST_WRAPPERS):
        if value is None:
            return
        yield value
        value = value.func if isinstance(value, functools.partial) else getattr(value, "__wrapped__", None)


def _name_of(value: Any) -> str | None:
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) and name and name != _UNNAMED else None


def _fields_of(owner: type[Any]) -> frozenset[str]:
    """Name what of a dataclass is a field's default, and of a pydantic model what it calls itself: decorated, or by its name."""
    found: set[str] = set(getattr(owner, "__dataclass_fields__", None) or ())
    for base in owner.__mro__[1:]:
        if base.__module__.partition(".")[0] in _MODELS:
            found.update(vars(base))
    decorators = getattr(owner, "__pydantic_decorators__", None)
    for group in cast("dict[str, Any]", getattr(decorators, "__dict__", None) or _slots_of(decorators)).values():
        if isinstance(group, dict):
            found.update(cast("dict[str, Any]", group))
    return frozenset(found)


def _slots_of(value: Any) -> dict[str, Any]:
    kind = cast("type[object]", type(value))
    return {name: getattr(value, name, None) for name in getattr(kind, "__slots__", ())}
