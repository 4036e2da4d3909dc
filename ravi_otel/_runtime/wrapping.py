"""Wrap methods of other people's classes, and put the identical objects back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""What runs instead: the wrapped method, its instance, positional and keyword arguments."""

_DEEPEST: Final = 32


@dataclass(frozen=True, slots=True)
class _Place:
    """Remember one method, and what stands for it."""

    owner: type
    name: str
    original: Any
    replacement: Any


class _Bound(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]  # generic only in newer ones, and only for checkers
    """Be a wrapped method that was looked up: copied and pickled as the method itself would be, by who has it and its name."""

    def _looked_up(self) -> tuple[Any, str]:
        wrapper: _Wrapper = self._self_parent
        owner, name = wrapper.place()
        instance: Any = getattr(cast("Any", self).__wrapped__, "__self__", None)
        return (owner if instance is None else instance), name

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        holder, name = self._looked_up()
        return getattr(copy.deepcopy(holder, memo), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self._looked_up()

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class _Wrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # generic only in newer ones, and only for checkers
    """Be a wrapped method as its class holds it; a function is never copied, and pickled by its name."""

    __bound_function_wrapper__ = _Bound

    def __init__(self, wrapped: Any, wrapper: Wrapper, owner: type, name: str) -> None:
        cast("Any", super()).__init__(wrapped, wrapper)
        self._self_place = (owner, name)

    def place(self) -> tuple[type, str]:
        """Give the class that holds it, and its name there."""
        return self._self_place

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.place()

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class Wraps:
    """Remember what was wrapped, also after it was put back: somebody who wrapped over us still holds it."""

    __slots__ = ("_made", "_places")

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._made: dict[tuple[type, str], _Place] = {}

    def wrap(self, owner: type, name: str, wrapper: Wrapper) -> None:
        """Replace the method `name` that `owner` itself defines; KeyError when it defines none.

        Wrapped again, with the same wrapper as before, a method gets the same replacement, and none over one that is still beneath.
        """
        current = owner.__dict__[name]
        place = self._made.get((owner, name))
        if place is None or place.original is not current:
            if place is not None and _lies_beneath(place.replacement, current):
                return
            place = _Place(owner, name, current, _Wrapper(current, wrapper, owner, name))
            self._made[owner, name] = place
        setattr(owner, name, place.replacement)
        self._places.append(place)

    def restore(self) -> None:
        """Put back every method that is still ours; where somebody wrapped over us, ours stays beneath and must be inert."""
        for place in self._places:
            if place.owner.__dict__.get(place.name) is place.replacement:
                setattr(place.owner, place.name, place.original)
        self._places.clear()


def _lies_beneath(ours: Any, current: Any) -> bool:
    for _ in range(_DEEPEST):
        if current is None or current is ours:
            return current is ours
        current = getattr(current, "__wrapped__", None)
    return False
