"""Write once what goes around a method, whether it blocks or is awaited."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ravi_otel._runtime.patching import Wrapper

Block = AbstractContextManager[Callable[[Any], object]]
"""Goes around one call; entered, it gives what takes the result."""


def ignore(_result: object) -> None:
    """Take a result that says nothing."""


def wrapper_of(block_of: Callable[[Any, tuple[Any, ...], dict[str, Any]], Block | None], *, awaits: bool) -> Wrapper:
    """Return a wrapper that has a method run inside a block; where `block_of` gives none for an instance and arguments, as it is.

    The block of a method that `awaits` is entered once the method's coroutine runs.
    """

    def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        block = block_of(instance, args, kwargs)
        if block is None or not awaits:
            return called_in(block, wrapped, args, kwargs)
        return named_like(awaited_in(block, wrapped, args, kwargs), wrapped)

    return wrapper


def called_in(block: Block | None, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method gives that is called inside the block, if there is one."""
    if block is None:
        return method(*args, **kwargs)
    with block as done:
        result = method(*args, **kwargs)
        done(result)
    return result


async def awaited_in(block: Block | None, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a method gives that is awaited inside the block, if there is one."""
    if block is None:
        return await method(*args, **kwargs)
    with block as done:
        result = await method(*args, **kwargs)
        done(result)
    return result


def named_like(coroutine: Any, wrapped: Callable[..., Any]) -> Any:
    """Return a coroutine under the name of the method it stands for, which is what "never awaited" names."""
    coroutine.__name__, coroutine.__qualname__ = wrapped.__name__, wrapped.__qualname__
    return coroutine
