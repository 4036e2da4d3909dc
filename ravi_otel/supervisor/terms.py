"""Hold what a gate decides by, read it from what the program gave, and name it so that another value anywhere in it is another version."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import logging
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from json import dumps  # as it is now: the program may make tools of that module's functions
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

from ravi_otel._runtime.gate_review import is_async
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.supervisor.approval.contract import Approver
from ravi_otel.supervisor.decisions import GateState, Supervisor
from ravi_otel.supervisor.signatures import ToolSignature
from ravi_otel.supervisor.state import RunState

_DEEPEST: Final = 3
_MOST_OBJECTS: Final = 500


def unfolded(value: object) -> str:
    """Write a value: of an object of any class its fields, for its own `repr` may tell no more than where it lies.

    Data is written in whole. Of other objects, such as a client with its connections, only those near the value are, and only so many:
    the rest is written as which one it is, and so is a lock, whose state is no value of anything.
    """
    try:
        return dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return dumps(_Unfolding().rows(value))


class _Unfolding:
    """Go through a value by levels, each object once: what is near is written before what is far."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._ahead: deque[tuple[Any, int]] = deque()
        self._alive: list[Any] = []  # whose numbers are no others'
        self._objects = 0

    def rows(self, value: Any) -> list[Any]:
        """Write each object in a row of its own, in which others are named by number."""
        rows = [self._refer(value, 0)]
        while self._ahead:
            given, depth = self._ahead.popleft()
            rows.append(self._row(given, depth))
        return rows

    def _refer(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, (int, float, str, bytes, Enum, type)) or callable(value):
            return [type(value).__qualname__, repr(value)]  # of a method, which is made anew each time, the object's place
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
            self._ahead.append((value, depth))
        return [known]

    def _row(self, given: Any, depth: int) -> Any:
        if isinstance(given, Mapping):
            pairs = cast("Mapping[Any, Any]", given).items()  # type: ignore[redundant-cast]  # pyright knows nothing of what is in it
            return [[self._refer(each, depth) for each in pair] for pair in sorted(pairs, key=lambda pair: _shown(pair[0]))]
        if isinstance(given, (list, tuple)):
            return [self._refer(each, depth) for each in cast("list[Any]", given)]
        if isinstance(given, (set, frozenset)):
            return [self._refer(each, depth) for each in sorted(cast("set[Any]", given), key=_shown)]
        fields = _fields(given)
        if fields and not is_dataclass(given):
            self._objects += 1
            depth += 1
            if depth > _DEEPEST or self._objects > _MOST_OBJECTS:
                return _which(given)
        return [type(given).__qualname__, {name: self._refer(each, depth) for name, each in fields.items()}] if fields else _shown(given)


def _shown(value: object) -> str:
    """Give its own `repr`, if that is about a value."""
    said = repr(value)
    return _which(value) if " at 0x" in said else said


def _which(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {id(value)}"


def _fields(given: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in type(given).__mro__:
        slots: Any = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else list(slots):
            if name not in ("__dict__", "__weakref__") and hasattr(given, name):
                found[name] = getattr(given, name)
    return found | dict(getattr(given, "__dict__", {}))


_log = logging.getLogger("ravi_otel")

Tools: TypeAlias = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
"""The tools of a gate, by name; without names they are called what their functions are."""


class Noting(Protocol):
    """Write down what happens at the gate; whatever it raises lets nothing through."""

    def note(
        self,
        what: Any,
        *,
        run_id: str | None,
        agent_name: str | None,
        tool: str,
        op_id: str,
        arguments: Mapping[str, Any] | str | None,
        **facts: Any,
    ) -> None:
        """Write one entry; `facts` are the audit log's own, each by its name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Be what a gate decides by."""

    supervisor: Supervisor | None
    approver: Approver | None
    policy: Any
    audit: Noting | None
    read_only: frozenset[str]
    expires_s: float | None
    policy_version: str | None

    def version(self) -> str:
        """Name what is decided by, as it is at this moment: an approval of another version is none."""
        if self.policy_version is not None:
            return self.policy_version
        policy = "null" if self.policy is None else unfolded(self.policy)
        return _hash_of("none" if self.supervisor is None else _version_of(self.supervisor), policy)

    def policy_now(self) -> Any:
        """Copy the policy as it is at this moment: one that is changed during a review, and back, was not judged by in between.

        What cannot be copied is given as it is.
        """
        if self.policy is None:
            return None
        try:
            return copy.deepcopy(self.policy)
        except Exception:  # noqa: BLE001 - a lock or a connection in it; whatever a copy of the program's own raises
            return self.policy

    def may_lack(self, tool: str) -> Collection[str]:
        """List what the supervisor fills in when it is missing."""
        ask = getattr(self.supervisor, "may_lack", None)
        return cast("Collection[str]", ask(tool)) if callable(ask) else ()


def read_tools(tools: Tools) -> dict[str, ToolSignature]:
    """Read the signatures of tools; raises ConfigurationError for two of one name and for what cannot be called."""
    if isinstance(tools, Mapping):
        return {name: ToolSignature.of(fn, name) for name, fn in cast("Mapping[str, Callable[..., Any]]", tools).items()}
    signatures: dict[str, ToolSignature] = {}
    for fn in tools:
        if not callable(fn):
            raise ConfigurationError(
                f"Gate(tools) holds {checks.show(fn)}, which cannot be called; give functions, or names with functions."
            )
        signature = ToolSignature.of(fn)
        if signature.name in signatures:
            raise ConfigurationError(
                f"Gate(tools) holds two tools called {signature.name!r}; give them as a mapping of names to functions."
            )
        signatures[signature.name] = signature
    return signatures


def read_names(parameter: str, names: Collection[str]) -> frozenset[str]:
    """Read names of tools."""
    if isinstance(names, str):
        raise ConfigurationError(f"{parameter}={checks.show(names)} is one text; give the names in a list.")
    return frozenset(checks.name(parameter, each) for each in names)


def read_ceilings(parameter: str, given: int | Mapping[str, int] | None) -> int | Mapping[str, int] | None:
    """Read how often each tool may run."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {checks.name(parameter, tool): checks.count(f"{parameter}[{tool!r}]", value) for tool, value in given.items()}
    return checks.count(parameter, given)


def checked(parameter: str, given: Any, methods: Collection[str], needs: str) -> Any:
    """Accept an object with the methods of a protocol, or None."""
    if inspect.isclass(given):
        raise ConfigurationError(f"Gate({parameter}={given.__name__}) is a class; give an instance, {given.__name__}(...).")
    if given is not None and not all(callable(getattr(given, each, None)) for each in methods):
        raise ConfigurationError(f"Gate({parameter}={checks.show(given)}) has no {needs}; give an object that has.")
    return given


def checked_audit(given: Any) -> Any:
    """Accept what writes down what happens, or None."""
    refuse_async("Gate(audit)", checked("audit", given, ("note",), "note(what, ...) method, as AuditLog('audit') has"), ("note",))
    return given


def refuse_async(parameter: str, given: object, methods: Collection[str]) -> None:
    """Refuse what would have to be awaited where nothing is: called and dropped it would do nothing."""
    wrong = next((each for each in methods if is_async(getattr(given, each, None))), None)
    if wrong is not None:
        raise ConfigurationError(f"{parameter}={checks.show(given)} has an async {wrong}(), which nobody awaits; make it a plain def.")


def check_known(parameter: str, names: Iterable[str], tools: Collection[str]) -> None:
    """Refuse a name that is none of the gate's tools: what is said of it would hold for nothing."""
    for name in names:
        if name not in tools:
            close = checks.nearest(name, tools)
            hint = f", did you mean {close!r}" if close else ""
            listed = ", ".join(tools) or "none"
            raise ConfigurationError(
                f"{parameter} names the tool {checks.show(name)}, which there is not{hint}; the tools are {listed}."[:600]
            )


def check_rules(supervisor: object, tools: Mapping[str, ToolSignature], *, part: bool) -> None:
    """Have rules about tools that there are not refused; where `tools` are only a `part` of what the rules are for, said once."""
    ask = getattr(supervisor, "check_tools", None)
    if callable(ask) and not inspect.isclass(supervisor) and hasattr(supervisor, "shared"):
        ask(tools, part=part)


def tell_uncallable(tools: Mapping[str, ToolSignature]) -> None:
    """Say in the log which tools no call can fit."""
    for tool in tools.values():
        bad = next((each for each in tool.parameters.values() if each.required and not each.can_be_given), None)
        if bad is not None:
            _log.warning(
                "ravi-otel: no call of %s can pass its gate: the argument %s (%s) cannot be judged. Annotate it with a type that pydantic "
                "knows, or put no gate before it: instrument_tools(..., skip=[%r]).",
                tool.name,
                bad.name,
                bad.shown,
                tool.name,
            )


def read_seconds(parameter: str, value: float | None) -> float | None:
    """Read a time in seconds, None for none."""
    if value is not None:
        checks.nanoseconds(parameter, value)
    return value


def told_of(error: BaseException) -> str:
    """Say of an error of the program's where it was raised: its text, and the lines around, may hold what is nobody else's."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    return f"{type(error).__name__}{at}"


def state_source(given: GateState | Callable[[], GateState] | None) -> Callable[[], GateState]:
    """Give what makes the state of a run."""
    if given is None:
        return RunState
    refuse_async("Gate(state)", given, ("begin", "end"))
    if isinstance(given, GateState) and not inspect.isclass(given):
        shared = given
        return lambda: shared
    if callable(given):
        return given
    raise ConfigurationError(
        f"Gate(state={checks.show(given)}) is no state and makes none; give an object with begin() and end(), or a class."
    )


@functools.lru_cache(maxsize=64)
def _hash_of(*said: str) -> str:
    return hashlib.sha256(dumps(said).encode()).hexdigest()


def _version_of(supervisor: object) -> str:
    own = getattr(supervisor, "version", None)
    name = f"{type(supervisor).__module__}.{type(supervisor).__qualname__}"
    if own is None or callable(own):
        return name
    if isinstance(own, str):
        return f"{name} {own}"
    return f"{name} {unfolded(own)}"
