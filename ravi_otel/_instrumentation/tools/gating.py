"""Put a gate before functions that a program keeps, and say of which it stands before none."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from ravi_otel._instrumentation.tools.choosing import LEFT_OUT
from ravi_otel._instrumentation.tools.places import Place
from ravi_otel._runtime.parameters import Parameters
from ravi_otel._runtime.tool import LABEL, Refused, Switch, as_tool, bare
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.checks import show
from ravi_otel.policy.contracts import ToolGate

_log = logging.getLogger("ravi_otel")
_SAID: Final = 8
_NO_OBJECT: Final = object()

GateFor = Callable[[Mapping[str, Callable[..., Any]]], ToolGate]
"""Make the gate of the tools of one target, by name."""


class Gating:
    """Know which gate is to stand before tools, and what becomes of what it refuses."""

    def __init__(self, gate_for: GateFor, refused: Refused = "raise") -> None:
        self._gate_for = gate_for
        self._refused: Refused = refused

    def guard(self, places: Iterable[Place], switch: Switch) -> Iterator[tuple[Place, Any]]:
        """Give for each place the function that passes the gate; nothing is put anywhere before the gate of all of them is there."""
        found: dict[str, tuple[Place, Callable[..., Any]]] = {}
        for place in places:
            place.name, fn = _itself(place)
            if place.name in found:
                raise ConfigurationError(
                    f"instrument_tools(supervisor=...) found two tools called {show(place.name)}, which a gate cannot tell apart. "
                    "Give a mapping, whose keys name them."
                )
            found[place.name] = (place, fn)
        _tell_aliases(found)
        if found:
            gate = self._gate_for({name: _unowned(fn, name, place.method) for name, (place, fn) in found.items()})
            for name, (place, fn) in found.items():
                yield place, as_tool(fn, name, switch, gate, refused=self._refused, method=place.method)

    def tell_ungated(self, target: object, skipped: Mapping[str, str]) -> None:
        """Say in the log what the program may still call without this gate."""
        left = [f"{name} is {reason}" for name, reason in skipped.items() if reason != LEFT_OUT]
        if left:
            more = "" if len(left) <= _SAID else f"; and {len(left) - _SAID} more"
            _log.warning(
                "ravi-otel: instrument_tools(%s, supervisor=...) puts no gate before: %s%s.", show(target), "; ".join(left[:_SAID]), more
            )


def _tell_aliases(found: Mapping[str, tuple[Place, Callable[..., Any]]]) -> None:
    """Say which names are of one function: what a supervisor knows of one of them does not hold for the other."""
    first: dict[int, str] = {}
    for name, (_, fn) in found.items():
        other = first.setdefault(id(fn), name)
        if other != name:
            _log.warning("ravi-otel: %s and %s are one function, and two tools to a gate: rules are needed for both.", other, name)


def _itself(place: Place) -> tuple[str, Callable[..., Any]]:
    """Give the name and the function of what may be a tool already: it is told, counted and judged once."""
    fn = bare(place.fn)
    if fn is None:
        raise ConfigurationError(
            f"instrument_tools(supervisor=...) cannot put a gate before {show(place.name)}: it is a tool already, with another decorator "
            "around it. Write @ravi_otel.tool(gate=...) there instead."
        )
    return (place.name if fn is place.fn else getattr(place.fn, LABEL, place.name)), fn


def _unowned(fn: Callable[..., Any], name: str, method: bool | None) -> Callable[..., Any]:
    """Give of a method what a gate reads: the signature without the object it belongs to, or with it where it may be an argument, too."""
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
