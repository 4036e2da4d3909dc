"""Write what a function is called with as named arguments, as a gate judges them, and call it with what came of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from json import loads as read_text  # as it is now: the program may make tools of that module's functions
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast

from ravi_otel.errors import ToolDeniedError
from ravi_otel.policy._checks import show

_DEEPEST: Final = 64
_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OWNERS: Final = ("self", "cls")
_HOLDING: Final = frozenset({dict, list, tuple, set})
_NONE: Final[Mapping[str, str]] = MappingProxyType({})

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments, and those by keyword."""


def bad_arguments(tool: str, why: str) -> ToolDeniedError:
    """Return the refusal of arguments that a tool cannot be called with."""
    message = f"tool {show(tool)} was not run: {why}. Call it with the arguments that its signature names."
    return ToolDeniedError(message, tool=tool, reason=why, stop_reason=f"tool_bad_args:{tool}")


class Parameters:
    """Know the signature of one tool; read once, where it becomes a tool.

    Positional arguments go by their parameter's name, `*args` as a list under the name of that parameter, and what `**more` takes beside
    the others, under a name that is nobody else's. Defaults are not filled in: what was asked is what is judged. The object that a
    `method` belongs to is no argument.
    """

    __slots__ = ("_by_name", "_keyworded", "_more", "_named_alone", "_nameless", "_placed", "_required", "_rest", "owned", "tool")

    def __init__(self, fn: Callable[..., Any], tool: str, *, method: bool = False) -> None:
        self.tool = tool
        self.owned = False
        self._more: str | None = None
        self._rest: str | None = None
        self._placed: list[inspect.Parameter] = []
        self._keyworded: list[inspect.Parameter] = []
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):  # a builtin without one: it takes what it is given by name
            self._more = "more"
            signature = inspect.Signature()
        for one in signature.parameters.values():
            if one.kind in _PLACED:
                self._placed.append(one)
            elif one.kind is one.KEYWORD_ONLY:
                self._keyworded.append(one)
            elif one.kind is one.VAR_POSITIONAL:
                self._rest = one.name
            else:
                self._more = one.name
        if method and self._placed and self._placed[0].name in _OWNERS:
            self.owned = True
            del self._placed[0]
        self._by_name = {one.name for one in (*self._placed, *self._keyworded)}
        self._required = {one.name for one in (*self._placed, *self._keyworded) if one.default is one.empty}
        self._nameless = {self._rest, *(one.name for one in self._placed if one.kind is one.POSITIONAL_ONLY)}
        self._named_alone = self._more is None and self._nameless == {None}

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Name what a program calls it with, whether or not it fits; raises TypeError for what has no name, or one twice.

        What `**more` takes under the name of another parameter, as Python allows, is shown as `more_name`: given second are those
        names with what each is really called.
        """
        found = {one.name: value for one, value in zip(self._placed, args, strict=False)}
        left = args[len(self._placed) :]
        if left:
            if self._rest is None:
                raise TypeError(f"{self.tool}() takes {len(self._placed)} positional arguments but {len(args)} were given")
            found[self._rest] = list(left)
        renamed: dict[str, str] = {}
        for name, value in kwargs.items():
            shown = name
            if name in self._nameless and self._more is not None:
                shown = self._apart(name, kwargs)
                renamed[shown] = name
            elif name in self._nameless and name != self._rest:
                raise TypeError(f"{self.tool}() got an argument by name that goes by place only: {name!r}")
            elif name in found:
                raise TypeError(f"{self.tool}() got multiple values for argument {name!r}")
            found[shown] = value
        return found, renamed

    def _apart(self, name: str, kwargs: Mapping[str, Any]) -> str:
        shown = f"{self._more}_{name}"
        while shown in kwargs or shown in self._by_name or shown == self._rest:
            shown = f"{self._more}_{shown}"
        return shown

    def given(self, arguments: Mapping[str, Any], renamed: Mapping[str, str] = _NONE) -> Given:
        """Return what to call it with, what was `renamed` by its real name; raises ToolDeniedError for what its signature does not take."""
        left = dict(arguments)
        if self._named_alone and self._required <= left.keys() <= self._by_name:  # as nearly always: all of it goes by name
            return (), left
        rest = self._taken_rest(left)
        args, kwargs = self._taken_placed(left, all_by_place=bool(rest))
        for one in self._keyworded:
            if one.name in left:
                kwargs[one.name] = left.pop(one.name)
            elif one.default is one.empty:
                raise bad_arguments(self.tool, f"the argument {show(one.name)} is missing")
        if left and self._more is None:
            raise bad_arguments(self.tool, f"it has no argument {show(next(iter(left)))}")
        if any(type(name) is not str for name in left):
            raise bad_arguments(self.tool, "a name among its arguments is no text")
        return (*args, *rest), {**kwargs, **{renamed.get(name, name): value for name, value in left.items()}}

    def _taken_rest(self, left: dict[str, Any]) -> list[Any]:
        if self._rest is None or self._rest not in left:
            return []
        rest = left.pop(self._rest)
        if not isinstance(rest, list | tuple):
            raise bad_arguments(self.tool, f"the argument {show(self._rest)} takes a list")
        return list(cast("list[Any]", rest))

    def _taken_placed(self, left: dict[str, Any], *, all_by_place: bool) -> Given:
        """Take the arguments that may go by place: those that can, by name, unless more follow that have none."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        skipped: list[inspect.Parameter] = []
        for one in self._placed:
            by_place = all_by_place or one.kind is one.POSITIONAL_ONLY
            if one.name not in left:
                if one.default is one.empty:
                    raise bad_arguments(self.tool, f"the argument {show(one.name)} is missing")
                skipped.append(one)
            elif by_place:
                args.extend(each.default for each in skipped if all_by_place or each.kind is each.POSITIONAL_ONLY)
                skipped.clear()
                args.append(left.pop(one.name))
            else:
                kwargs[one.name] = left.pop(one.name)
        if all_by_place:
            args.extend(each.default for each in skipped)
        return tuple(args), kwargs


def is_owned(fn: object, by: object) -> bool:
    """Whether an object, or a class, is one of the very class that a function was written in: its own, and no argument."""
    inside, _, _ = str(getattr(fn, "__qualname__", "")).rpartition(".")
    kind = cast("type[object]", by if isinstance(by, type) else type(by))
    module = getattr(fn, "__module__", None)
    return any(each.__qualname__ == inside and each.__module__ == module for each in kind.__mro__)


def read(tool: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Read the arguments that a model wrote, or copy those it gave; raises ToolDeniedError for what is no object with distinct names."""
    if not isinstance(arguments, str):
        return copied(tool, arguments)
    try:
        found: Any = read_text(arguments, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise bad_arguments(tool, "its arguments are no JSON object with distinct names") from None
    if type(found) is not dict:
        raise bad_arguments(tool, "its arguments are no JSON object")
    return copied(tool, cast("dict[str, Any]", found))


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(word)


def copied(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arguments with every dict, list, tuple and set in them: what is judged is nobody's to change until it is executed."""
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # it comes from a gate, or a model
        raise bad_arguments(tool, "its arguments are no mapping")
    found = dict(arguments)
    for name, value in found.items():
        if type(value) in _HOLDING:
            found[name] = _copied(tool, value, 1)
    return found


def is_flat(arguments: Mapping[str, Any]) -> bool:
    """Whether nothing in arguments holds anything else, so that a copy of them is no other."""
    return _HOLDING.isdisjoint(map(type, arguments.values()))


def _copied(tool: str, value: Any, deep: int) -> Any:
    kind = cast("type[object]", type(value))
    if kind is set:
        return set(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    if deep >= _DEEPEST:
        raise bad_arguments(tool, f"its arguments are nested deeper than {_DEEPEST}")
    if kind is dict:
        return {name: _copied(tool, each, deep + 1) for name, each in value.items()}
    items = [_copied(tool, each, deep + 1) for each in value]
    return items if kind is list else tuple(items)
