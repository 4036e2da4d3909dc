"""Name what a program can hear of, and make what it hears read-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any, Final, NoReturn, Self, TypeAlias, cast

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

HookContext: TypeAlias = Mapping[str, Any]
"""What one event says, by name: read-only. Which names an event has is on the page of hooks."""

Callback = Callable[[Any], object]
"""Hear one event: gets its context; what it returns is awaited when it can be, and else ignored."""


class HookEvent(StrEnum):
    """Name what happened. A plain program fires FLOW, RUN, LLM, TOOL, HANDOFF, LIMIT and spawn events by itself.

    FLOW is a `run()`, RUN an `agent()` in it. STEP and GUARDRAIL_TRIP are fired by our agents, REVIEW by the gate, and all three by
    whoever else knows of them, with `HookManager.dispatch` or `emit`.
    """

    RUN_START = "run_start"
    RUN_END = "run_end"
    STEP_START = "step_start"
    STEP_END = "step_end"
    LLM_START = "llm_start"
    LLM_END = "llm_end"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    GUARDRAIL_TRIP = "guardrail_trip"
    HANDOFF = "handoff"
    FLOW_START = "flow_start"
    FLOW_END = "flow_end"
    LIMIT_NEARING = "limit_nearing"
    LIMIT_EXCEEDED = "limit_exceeded"
    SPAWN_DENIED = "spawn_denied"
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    REVIEW = "review"


def read_event(parameter: str, event: object) -> HookEvent:
    """Accept an event or its value; raise ConfigurationError for what is none."""
    if type(event) is HookEvent:
        return event
    try:
        return HookEvent(cast("str", event))
    except ValueError:
        known, close = ", ".join(HookEvent), checks.nearest(event, HookEvent)
        hint = f" Did you mean {close!s}?" if close else ""
        raise ConfigurationError(f"{parameter}={checks.show(event)} is no HookEvent.{hint} Give one of: {known}.") from None


class ReadOnly(dict[str, Any]):
    """What is told to a callback, or to who follows a run: a dict that cannot be changed, and is copied and pickled like any other.

    Its names can be read as attributes, too. `dict(told)` gives a copy that can be changed.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"what is told has no {name!r}; it has {', '.join(map(str, self))}") from None

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise TypeError("what is told is read-only: who hears of a run only observes it. Work on a copy, such as dict(context).")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __setattr__ = _refuse
    __delattr__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]  # takes whatever a dict takes, and refuses it
    update = _refuse  # pyright: ignore[reportAssignmentType]  # the same

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, Any]]]:
        """Be read-only again where it arrives."""
        return type(self), (dict(self),)


_AGAIN: Final = "…"
_DEEPEST: Final = 50
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def read_only(context: HookContext) -> ReadOnly:
    """Copy `context`, with every dict, list and set in it, into what cannot be changed; other objects stay what they are.

    What is inside itself, or deeper than 50 of them in one another, is `…`.
    """
    copied, known = dict(context), cast("dict[int, Any]", {})
    for name, value in copied.items():
        if type(value) not in _PLAIN:
            copied[name] = _frozen(value, known)
    return ReadOnly(copied)


def _frozen(value: Any, known: dict[int, Any], deep: int = 0) -> Any:
    if type(value) in _PLAIN:  # nearly all are: to ask what else they might be takes three times as long
        return value
    if type(value) is dict:  # what else is a Mapping takes long to find out
        made: Any = ReadOnly
    elif isinstance(value, list) or type(value) is tuple:
        made = tuple
    elif isinstance(value, Mapping):
        made = ReadOnly
    elif isinstance(value, AbstractSet):
        return frozenset(cast("Any", value))
    else:
        return value
    found = _AGAIN if deep >= _DEEPEST else known.get(id(cast("object", value)))
    if found is not None:
        return found
    known[id(cast("object", value))] = _AGAIN  # what is inside itself ends here
    if made is tuple:
        frozen: Any = tuple(_frozen(each, known, deep + 1) for each in cast("list[Any]", value))
    else:
        frozen = ReadOnly(
            {
                name: each if type(each) in _PLAIN else _frozen(each, known, deep + 1)
                for name, each in cast("Mapping[str, Any]", value).items()
            }
        )
    known[id(cast("object", value))] = frozen
    return frozen
