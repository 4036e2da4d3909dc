"""Replace single methods of a response and put them back; find out who still refers to it, and who runs while one is called."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import AsyncGeneratorType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import class_of
from ravi_otel._instrumentation.sync_async import Block, awaited_in, called_in

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_TRAITS: Final = ("__name__", "__qualname__", "__doc__", "__module__")
_STATE: Final = "__getstate__"
_MOST_FRAMES: Final = 100
_LOCKING: Final = (
    *(
        "ravi_otel._enforcement",
        "ravi_otel.hooks",
        "ravi_otel.local",
        "ravi_otel._pricing",
        "ravi_otel._runtime.model_call",
        "ravi_otel._telemetry",
    ),
    *("opentelemetry.context", "opentelemetry.exporter", "opentelemetry.metrics", "opentelemetry.sdk", "opentelemetry.trace"),
)
"""Modules that hold locks while they run, and do not run the user's code meanwhile."""


def replace_method(response: Any, name: str, ours: Any) -> None:
    """Put a function of ours in the place of one method of a response; like the method, it holds the response, and looks like it."""
    own, method = _attributes(response), getattr(response, name)
    ours.ravi_original = own.get(name)
    ours.__self__, ours.__wrapped__ = response, method
    for trait in _TRAITS:
        if isinstance(found := getattr(method, trait, None), str):
            setattr(ours, trait, found)
    setattr(response, name, ours)
    if _STATE not in own:
        setattr(response, _STATE, MethodType(_state, response))


def _state(response: Any) -> Any:
    """Return what a copy or a pickle of it is made of: what replaces its methods is bound to the original, and left out."""
    found: Any = getattr(class_of(response), _STATE, None)  # none of an older Python's objects
    state: Any = dict(_attributes(response)) if found is None else found(response)
    if class_of(state) is tuple:  # with the values of slots
        return tuple(map(_without_us, state))
    return _without_us(state)


def _without_us(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    kept: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", state).items():
        beneath = value
        while _is_ours(beneath):
            beneath = getattr(beneath, "ravi_original", None)
        if beneath is not None or value is None:
            kept[name] = beneath
    return kept


def _is_ours(value: Any) -> bool:
    kind = class_of(value)
    if kind is FunctionType:
        return hasattr(value, "ravi_original")
    return kind is MethodType and value.__func__ is _state


def surround_method(response: Any, name: str, block_of: Callable[[Any, _Args, _Kwargs], Block | None]) -> None:
    """Have one method of a response run inside a block, as `sync_async.wrapper_of` does."""
    method = getattr(response, name)

    def surrounded(*args: Any, **kwargs: Any) -> Any:
        return called_in(block_of(response, args, kwargs), method, args, kwargs)

    async def surrounded_async(*args: Any, **kwargs: Any) -> Any:
        return await awaited_in(block_of(response, args, kwargs), method, args, kwargs)

    replace_method(response, name, surrounded_async if inspect.iscoroutinefunction(method) else surrounded)


def restore_methods(response: Any, *names: str) -> None:
    """Put back what was there, unless somebody has replaced ours by now."""
    own = _attributes(response)
    for name in names:
        ours: Any = own.get(name)
        if _is_ours(ours):
            if ours.ravi_original is None:
                del own[name]
            else:
                own[name] = ours.ravi_original
    if _is_ours(own.get(_STATE)) and sum(map(_is_ours, list(own.values()))) == 1:  # nothing else is ours
        del own[_STATE]


def _attributes(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(value))


def interrupts_lock_holder() -> bool:
    """Whether whoever closes a stream may have come in between somebody who holds a lock that settling needs.

    A finaliser runs wherever the collector happens to start, and only the stack shows what it came upon.
    """
    frame: FrameType | None = inspect.currentframe()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "__del__" or str(frame.f_globals.get("__name__", "")).startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False


def name_like(ours: Any, source: Any) -> Any:
    """Return a generator of ours under the name of the one it reads, which its representation and warnings show."""
    if isinstance(source, (GeneratorType, AsyncGeneratorType)):
        ours.__name__, ours.__qualname__ = source.__name__, source.__qualname__
    return ours


def held_by_others(held: weakref.ref[Any], ours: int) -> bool:
    """Whether anybody besides us and the HTTP library refers to an object, or to a function that we put in the place of one of its methods.

    `ours` is how many references to it came with those functions. One that is held for a moment only is held, too: look again.
    """
    value = held()
    if value is None:
        return False
    before = [weakref.ref(each) for each in _attributes(value).values() if _is_ours(each)]
    if any(_references(each) > 1 for each in before):  # the one is the object's own
        return True
    body = getattr(value, "stream", None)
    inside = ours + (references_from(body, value) if hasattr(body, "__dict__") else 0)
    del value
    return _references(held) > inside


def held_only_by_itself(held: weakref.ref[Any]) -> bool:
    """Whether nothing refers to an object but generators of its own, to which nothing refers but the object and each other."""
    value = held()
    if value is None:
        return True
    found, inside = {id(value): held}, Counter[int]()
    waiting: list[Any] = _of_its_own(_attributes(value).values(), value)
    while waiting:
        one = waiting.pop()
        inside[id(one)] += 1
        if id(one) not in found:
            found[id(one)] = weakref.ref(one)
            parts = gc.get_referents(one)
            inside[id(value)] += sum(part is value for part in parts)
            waiting += _of_its_own(parts, value)
            del parts
        del one
    del value
    return all(_references(each) <= inside[at] for at, each in found.items())


def _of_its_own(parts: Iterable[Any], value: Any) -> list[Any]:
    """Return those of some objects that are generators with this value in their variables, as a method's has its `self`."""
    return [
        part
        for part in parts
        if isinstance(part, (GeneratorType, AsyncGeneratorType)) and any(each is value for each in gc.get_referents(part))
    ]


def references_from(holder: Any, value: Any) -> int:
    """Return how many of an object's attributes are this value."""
    return sum(each is value for each in list(_attributes(holder).values()))


def _references(held: weakref.ref[Any]) -> int:
    return _counted(held) - _OF_COUNTING


def _counted(held: weakref.ref[Any]) -> int:
    value = held()
    return sys.getrefcount(value)


class _Held:
    """An object that can be referred to weakly."""


def _of_counting() -> int:
    """Return how many of the references to an object are there because they are counted: Pythons differ in that."""
    one = [_Held()]
    return _counted(weakref.ref(one[0])) - 1


_OF_COUNTING: Final = _of_counting()


def locals_of(generator: Any) -> dict[str, Any]:
    """Return what a generator has in its variables; nothing of one that is over, or of something else."""
    frame: FrameType | None = getattr(generator, "gi_frame", None) or getattr(generator, "ag_frame", None)
    return {} if frame is None else dict(frame.f_locals)


def is_running(held: weakref.ref[Any] | None) -> bool:
    """Whether a generator is being read at this moment, by whatever thread or task."""
    iterator = None if held is None else held()
    if isinstance(iterator, GeneratorType):
        return iterator.gi_running
    return isinstance(iterator, AsyncGeneratorType) and iterator.ag_running
