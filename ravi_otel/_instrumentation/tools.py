"""Make tools of a program's functions where they are kept: in a module, a class, a mapping or a list; put the identical ones back.

A `Choice` leaves out some by name, `places_in` finds the others, `Gating` has them pass a gate, `InstrumentedTools` holds what was made.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, cast

from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.gate_review import Parameters
from ravi_otel._runtime.tool_call import GATED, LABEL, MARK, Refused, StandIn, Switch, as_tool, bare
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import Guarded
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import is_generator_function, show
from ravi_otel.policy._contracts import ToolGate

_log = logging.getLogger("ravi_otel")

LEFT_OUT: Final = "left out as asked"


@dataclass(frozen=True, slots=True)
class Choice:
    """Say which names are left as they are: those of `skip`, or all but those of `only`."""

    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def leaves(self, name: str) -> bool:
        """Whether a function is to be left as it is."""
        return name in self.skip or (self.only is not None and name not in self.only)

    def check(self, known: Collection[str]) -> None:
        """Refuse a name that is none of the target's: it would be a tool against the program's word, or none."""
        for parameter, names in (("skip", self.skip), ("only", self.only or ())):
            for name in sorted(names):
                if name not in known:
                    close = checks.nearest(name, known)
                    hint = f", did you mean {close!r}" if close else ""
                    raise ConfigurationError(
                        f"instrument_tools({parameter}=...) names {checks.show(name)}, which there is not{hint}; "
                        f"there are {', '.join(known) or 'none'}."[:600]
                    )


def read_choice(skip: Collection[str], only: Collection[str] | None) -> Choice | None:
    """Accept what is to be left out; None where nothing is."""
    if only is not None and skip:
        raise ConfigurationError("instrument_tools(skip=..., only=...) says it twice; give one of the two.")
    if only is None and not skip:
        return None
    return Choice(_names("skip", skip), None if only is None else _names("only", only))


def _names(parameter: str, names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]  # the caller may not type-check
        raise ConfigurationError(f"instrument_tools({parameter}={checks.show(names)}) takes a list of names.")
    return frozenset(checks.name(f"instrument_tools({parameter})", each) for each in names)


# -- where functions are kept -------------------------------------------------------------------------------------------


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
    """Where one function is kept: what it is called as a tool, how to put another there, and what was there."""

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
    """Return what sort of method a class holds, None for a plain one, and the function in it."""
    kind = next((one for one in _METHODS if isinstance(held, one)), None)
    return kind, held if kind is None else held.__func__


def _in_mapping(mapping: MutableMapping[Any, Any], *, gated: bool) -> Found:
    chain: Any = mapping
    hidden: set[Any] = set()
    for one in chain.maps if type(chain) is _CHAIN else [chain]:  # each is changed where it has the name, not the first alone
        for key, value in list(one.items()):
            if key in hidden:
                continue
            name = key if isinstance(key, str) and key else _name_of(value)
            reason = _left_alone(value, _PLAIN, gated=gated)
            if reason is not None or name is None:
                yield (name or show(key)), reason or "without a name"
            else:
                now = functools.partial(one.get, key)
                yield Place(name, value, value, functools.partial(one.__setitem__, key), now, functools.partial(StandIn, value))
        hidden.update(one)


def _in_list(functions: list[Any], *, gated: bool) -> Found:
    for index, value in enumerate(list(functions)):
        name, reason = _name_of(value), _left_alone(value, _PLAIN, gated=gated)
        if reason is not None or name is None:
            yield (name or f"[{index}]"), reason or "without a name: give a mapping, whose keys name the functions"
        else:
            spot = _Spot(functions, index)
            yield Place(name, value, value, spot.put, spot.now, functools.partial(StandIn, value))


class _Spot:
    """One function's place in a list, which its program may change meanwhile: found again by what was put there."""

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
    """Return why something is no tool; None where it can be made one."""
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


# -- gates --------------------------------------------------------------------------------------------------------------


_MOST_UNGATED: Final = 8
_NO_OBJECT: Final = object()

GateFor = Callable[[Mapping[str, Callable[..., Any]]], ToolGate]
"""Make the gate of the tools of one target, by name."""


class Gating:
    """Know which gate is to stand before tools, and what becomes of what it refuses."""

    def __init__(self, gate_for: GateFor, refused: Refused = "raise") -> None:
        self._gate_for = gate_for
        self._refused: Refused = refused

    def guard(self, places: Iterable[Place], switch: Switch) -> Iterator[tuple[Place, Any]]:
        """Yield for each place the function that passes the gate; nothing is put anywhere before the gate of all of them is there."""
        found: dict[str, tuple[Place, Callable[..., Any]]] = {}
        for place in places:
            place.name, fn = _itself(place)
            if place.name in found:
                raise ConfigurationError(
                    f"instrument_tools(supervisor=...) found two tools called {show(place.name)}, which a gate cannot tell apart. "
                    "Give a mapping, whose keys name them."
                )
            found[place.name] = (place, fn)
        first: dict[int, str] = {}
        for name, (_, fn) in found.items():
            other = first.setdefault(id(fn), name)
            if other != name:  # what a supervisor knows of one of them does not hold for the other
                _log.warning("ravi-otel: %s and %s are one function, and two tools to a gate: rules are needed for both.", other, name)
        if found:
            gate = self._gate_for({name: _unowned(fn, name, place.method) for name, (place, fn) in found.items()})
            for name, (place, fn) in found.items():
                yield place, as_tool(fn, name, switch, gate, refused=self._refused, method=place.method)

    def tell_ungated(self, target: object, skipped: Mapping[str, str]) -> None:
        """Say in the log what the program may still call without this gate."""
        left = [f"{name} is {reason}" for name, reason in skipped.items() if reason != LEFT_OUT]
        if left:
            more = "" if len(left) <= _MOST_UNGATED else f"; and {len(left) - _MOST_UNGATED} more"
            _log.warning(
                "ravi-otel: instrument_tools(%s, supervisor=...) puts no gate before: %s%s.",
                show(target),
                "; ".join(left[:_MOST_UNGATED]),
                more,
            )


def _itself(place: Place) -> tuple[str, Callable[..., Any]]:
    """Return the name and the function of what may be a tool already: it is told, counted and judged once."""
    fn = bare(place.fn)
    if fn is None:
        raise ConfigurationError(
            f"instrument_tools(supervisor=...) cannot put a gate before {show(place.name)}: it is a tool already, with another decorator "
            "around it. Write @ravi_otel.tool(gate=...) there instead."
        )
    return (place.name if fn is place.fn else getattr(place.fn, LABEL, place.name)), fn


def _unowned(fn: Callable[..., Any], name: str, method: bool | None) -> Callable[..., Any]:
    """Return of a method what a gate reads: the signature without the object it belongs to, or with it where it may be an argument, too."""
    if method is False or not Parameters(fn, name, method=True).owned:
        return fn
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def shown(*_: Any, **__: Any) -> Any:  # never called: it is the gate's to look at
        raise TypeError(f"{name} is called on its object")

    first, *others = signature.parameters.values()
    if method is None:  # kept as a function it is called on an object of its class, or with whatever it is given
        at = next((at for at, each in enumerate(others) if each.kind is each.VAR_KEYWORD), len(others))
        others.insert(at, first.replace(kind=first.KEYWORD_ONLY, default=_NO_OBJECT))
    shown.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # what `inspect.signature` looks for first
    return shown


# -- putting tools in place ---------------------------------------------------------------------------------------------


_MOST_SKIPPED: Final = 3
_lock: Final = ForkLock()
_live: Final[list[InstrumentedTools]] = []


class InstrumentedTools:
    """What `instrument_tools()` has made tools of; as a context manager it ends with the block.

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
            observed = ((place, as_tool(place.fn, place.name, self._switch)) for place in found)
            for place, called in observed if gating is None else gating.guard(list(found), self._switch):
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
            with Guarded("tools"):  # the program's own mapping; the others are still to be put back
                if place.now() is replacement:
                    place.put(place.held)

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
        why = "; ".join(f"{name} is {reason}" for name, reason in islice(made.skipped.items(), _MOST_SKIPPED))
        _log.warning("ravi-otel: instrument_tools(%s) found no function to make a tool of%s.", show(target), f": {why}" if why else "")
    return made


def targets_of(tools: object) -> tuple[object, ...]:
    """Accept what `instrument(tools=...)` is given: one target, or a tuple of several; raises ConfigurationError for another thing."""
    many = cast("tuple[object, ...]", tools) if isinstance(tools, tuple) else (tools,)
    for target in many:
        places_in(target, "instrument(tools=")
    return many


def instrument_all(targets: Iterable[object]) -> tuple[InstrumentedTools, ...]:
    """Make tools of what each target holds, or of none; return what was made."""
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
