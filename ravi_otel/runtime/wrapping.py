"""Wrap methods of other people's classes, and put the identical objects back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""What runs instead: the wrapped method, its instance, positional and keyword arguments."""


class Wraps:
    """Remember what was wrapped."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: list[tuple[type, str, Any, Any]] = []

    def wrap(self, owner: type, name: str, wrapper: Wrapper) -> None:
        """Replace the method `name` that `owner` itself defines; KeyError when it defines none."""
        original = owner.__dict__[name]
        replacement = wrapt.FunctionWrapper(original, wrapper)
        setattr(owner, name, replacement)
        self._places.append((owner, name, original, replacement))

    def restore(self) -> None:
        """Put back every method that is still ours; where somebody wrapped over us, ours stays beneath and must be inert."""
        for owner, name, original, replacement in self._places:
            if owner.__dict__.get(name) is replacement:
                setattr(owner, name, original)
        self._places.clear()
