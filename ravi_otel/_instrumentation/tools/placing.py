"""Put observed functions in the place of a program's own, and the identical objects back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, cast

from ravi_otel._forksafe import ForkLock
from ravi_otel._instrumentation.tools.choosing import LEFT_OUT, Choice
from ravi_otel._instrumentation.tools.gating import Gating
from ravi_otel._instrumentation.tools.places import Place, places_in
from ravi_otel._runtime.tool import Switch, as_tool
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.guard import swallow
from ravi_otel.policy.checks import show

_log = logging.getLogger("ravi_otel")
_SAID: Final = 3
_lock: Final = ForkLock()
_live: Final[list[InstrumentedTools]] = []


class InstrumentedTools:
    """Hold what `instrument_tools()` has made tools of; as a context manager it ends with the block.

    `names` are the tools, `skipped` says of what was left alone why: generator functions, classes, objects that are more than a
    function, what is a tool already. Private names, properties, inherited methods and what a module imported are not in it.
    """

    def __init__(self, target: object, gating: Gating | None = None, choice: Choice | None = None) -> None:
        self._switch = Switch()
        self._placed: list[tuple[Place, Any]] = []
        skipped: dict[str, str] = {}
        self.skipped: Mapping[str, str] = MappingProxyType(skipped)
        try:
            found: Iterable[Place] = self._found(target, skipped, gated=gating is not None)
            if choice is not None:
                found = _chosen(list(found), skipped, choice)
            for place, called in gating.guard(list(found), self._switch) if gating is not None else self._observe(found):
                replacement: Any = place.rewrap(called)
                place.put(replacement)
                self._placed.append((place, replacement))
        except ConfigurationError:
            self.remove()
            raise
        except Exception as error:
            self.remove()
            raise ConfigurationError(
                f"instrument_tools({show(target)}) cannot be changed in place ({type(error).__name__}). Decorate its functions with "
                "@ravi_otel.tool."
            ) from error

    def _found(self, target: object, skipped: dict[str, str], *, gated: bool) -> Iterator[Place]:
        for found in places_in(target, gated=gated):
            if isinstance(found, tuple):
                skipped[found[0]] = found[1]
            else:
                yield found

    def _observe(self, places: Iterable[Place]) -> Iterator[tuple[Place, Any]]:
        for place in places:
            yield place, as_tool(place.fn, place.name, self._switch)

    @property
    def names(self) -> tuple[str, ...]:
        """Name the tools, as spans and limits do."""
        return tuple(place.name for place, _ in self._placed)

    def remove(self) -> None:
        """Put back the identical functions; what somebody else has put there since is left, and what they hold of ours does nothing."""
        self._switch.on = False
        with _lock.own:
            if self in _live:
                _live.remove(self)
            placed = list(reversed(self._placed))
            self._placed.clear()
        for place, replacement in placed:
            try:
                if place.now() is replacement:
                    place.put(place.held)
            except Exception as error:  # noqa: BLE001 - the program's own mapping; the others are still to be put back
                swallow("tools", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def _chosen(found: list[Place], skipped: dict[str, str], choice: Choice) -> list[Place]:
    choice.check([*(place.name for place in found), *skipped])
    for name in [*(place.name for place in found), *skipped]:
        if choice.leaves(name):
            skipped[name] = LEFT_OUT
    return [place for place in found if not choice.leaves(place.name)]


def instrument_tools(target: object, gating: Gating | None = None, choice: Choice | None = None) -> InstrumentedTools:
    """Make each public function of a module, class, mapping or list a counted, limited and observed tool call, in its place.

    Of a module the functions that are written in it, by their names; of a class the methods it defines itself, static and class
    methods too; of a mapping its values, under their keys; of a list its functions. Sync or async; signature, result and exceptions
    stay the function's own. The handle's `remove()`, the end of its `with` block, or `uninstrument()` puts the identical objects
    back. Called again it skips what is a tool already. Where it finds no function at all it says so in the log.

    Raises ConfigurationError for what cannot be changed in place: a tuple, a read-only mapping, one function.
    """
    made = InstrumentedTools(target, gating, choice)  # under no lock: it may run code of the program's, as a mapping of its own
    with _lock.own:
        _live.append(made)
    if gating is not None:
        gating.tell_ungated(target, made.skipped)
    elif not made.names and not {"a tool already", LEFT_OUT} & {*made.skipped.values()}:  # called again it finds nothing left to do
        why = "; ".join(f"{name} is {reason}" for name, reason in islice(made.skipped.items(), _SAID))
        _log.warning("ravi-otel: instrument_tools(%s) found no function to make a tool of%s.", show(target), f": {why}" if why else "")
    return made


def targets_of(tools: object) -> tuple[object, ...]:
    """Accept what `instrument(tools=...)` is given: one target, or a tuple of several; raises ConfigurationError for another thing."""
    many = cast("tuple[object, ...]", tools) if isinstance(tools, tuple) else (tools,)
    for target in many:
        places_in(target, "instrument(tools=")
    return many


def instrument_all(targets: Iterable[object]) -> tuple[InstrumentedTools, ...]:
    """Make tools of what each target holds, or of none; give what was made."""
    made: list[InstrumentedTools] = []
    try:
        for target in targets:
            made.append(instrument_tools(target))  # noqa: PERF401 - those made so far are taken back where one cannot be
    except ConfigurationError:
        for one in reversed(made):
            one.remove()
        raise
    return tuple(made)


def remove_tools() -> None:
    """Put back whatever was made a tool, the latest first."""
    with _lock.own:
        live = list(reversed(_live))
    for made in live:
        made.remove()
