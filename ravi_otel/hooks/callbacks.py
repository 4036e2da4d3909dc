"""Check what a program registers as a hook, before an event finds out that it can never run."""

from __future__ import annotations

import inspect
from types import BuiltinMethodType, MethodType, MethodWrapperType
from typing import Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

_LONGEST_NAME: Final = 100
_BUILT_IN: Final = (BuiltinMethodType, MethodWrapperType)
_HOW: Final = "give a function or coroutine function of one argument, the context"


def check_callback(parameter: str, callback: object) -> None:
    """Raise ConfigurationError for what cannot be called with one argument, or would run nothing when it is."""
    if not callable(callback):
        raise ConfigurationError(f"{parameter}={checks.show(callback)} cannot be called: {_HOW}.")
    inner = getattr(callback, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    if checks.is_generator_function(callback) or checks.is_generator_function(inner):
        raise ConfigurationError(
            f"{parameter}={checks.show(callback)} is a generator function, which runs nothing when it is called: {_HOW}."
        )
    try:
        signature = inspect.signature(callback, follow_wrapped=False)  # a wrapper is what is called, not what it wraps
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(f"{parameter}={checks.show(callback)} is called with one argument, the context: {error}.") from None


def place_of(callback: object, event: str) -> str:
    """Name a callback of an event in reports."""
    named = getattr(callback, "__qualname__", None)
    name = named if isinstance(named, str) else type(callback).__qualname__
    return f"{name[:_LONGEST_NAME]!r} of {event}"


def is_same(one: object, other: object) -> bool:
    """Tell that both call the same code on the same object; a bound method is another object each time it is looked up.

    No code of the program's runs for that, as its `__eq__` might.
    """
    if one is other:
        return True
    if type(one) is MethodType and type(other) is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return type(one) is type(other) and type(one) in _BUILT_IN and one == other  # theirs look at who the objects are
