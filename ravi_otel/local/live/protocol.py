"""Say what a process and who watches it write to each other: one line of JSON asked, one answered.

What comes from a socket is hostile, on both sides: each field is checked, and each text, number and list has a most. Texts may
hold anything that a model has made up, escape sequences too: whoever shows them on a terminal cleans them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from ravi_otel.errors import RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._runs import Priority

VERSION: Final = 1
MOST_REQUEST: Final = 64 * 1024
"""Bytes of a request, its line break included."""

MOST_ANSWER: Final = 8 * 1024 * 1024
MOST_TEXT: Final = 256
"""Characters of any text in an answer; what is longer is cut by who writes it, and refused by who reads it."""

MOST_SENTENCE: Final = 1_000
MOST_RUNS: Final = 500
MOST_SCOPES: Final = 2_000
"""Scopes of one answer, all runs together."""

MOST_LIMITS: Final = 50
_MOST_NUMBER: Final = 2.0**63

OPS: Final = ("state", "cancel", "pause", "resume", "reprioritize", "set_limit")
PRIORITIES: Final = {each.name.lower(): each for each in Priority}
KINDS: Final = ("run", "agent", "handoff", "block")
STATES: Final = ("open", "paused", "waiting", "closed", "cancelled")


class LiveError(RaviError):
    """Say that a process cannot be asked: it is gone, does not answer, or answers what makes no sense."""


class CommandError(LiveError):
    """Say, in the words of the process, why it did not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """Photograph a limit; `kind` is the word that `set_limit` takes.

    Amounts are in the kind's public unit (tokens, USD, seconds, count); `unit` names it as UCUM writes it. `ratio` is used of the
    limit, None where a limit of 0 was passed.
    """

    kind: str
    used: float
    held: float
    limit: float
    ratio: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class ScopeState:
    """Photograph an open run, agent, handoff or block.

    `parent_id` is the scope around it in this answer, None for the outermost. Counts follow the rules of charging: an agent's are
    its own, a run's are everybody's in it. `cost_usd` and `tokens_per_s` (output, over the last 10 s, of calls that have ended) are
    None where nobody knows. `last_event` is a few words, None before the first. `depth` is that of agents below the run's first.
    `limits` are the fullest ones, at most 50; `limits_left_out` says how many more there are. `status` is one of STATES: what is
    "closed" or "cancelled" was told to end, and its code goes on still.
    """

    scope_id: str
    parent_id: str | None
    kind: str
    name: str | None
    agent_id: str | None
    status: str
    priority: str | None
    depth: int
    age_s: float
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    requests: int
    tool_calls: int
    tokens_per_s: float | None
    last_event: str | None
    last_event_age_s: float | None
    limits_left_out: int = 0
    limits: tuple[LimitState, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """Photograph a run with its open scopes, outer ones first, itself the first of them.

    `run_id` None gathers agents and blocks outside any run. `status` is "open", "cancelled" (it was told to end, and its code goes
    on still) or "closed" (the same, by `close()`). An inner run is one of its own; its first scope's parent is in the outer one.
    """

    run_id: str | None
    name: str | None
    status: str
    age_s: float
    scopes: tuple[ScopeState, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Photograph what a process has open; `left_out` scopes more were open than it keeps count of."""

    pid: int
    program: str
    started_unix_s: float
    runs: tuple[RunState, ...] = ()
    left_out: int = 0


# -- checking -----------------------------------------------------------------------------------------------------

Check = Callable[[object], bool]


def is_text(value: object, most: int = MOST_TEXT) -> bool:
    """Tell whether it is a text of at most so many characters."""
    return isinstance(value, str) and len(value) <= most


def is_count(value: object) -> bool:
    """Tell whether it is a whole number from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER


def is_number(value: object) -> bool:
    """Tell whether it is a number, neither infinite nor none, of a size that makes sense."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST_NUMBER and math.isfinite(value)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


_LIMIT: Final[Mapping[str, Check]] = {
    "kind": is_text,
    "used": is_number,
    "held": is_number,
    "limit": is_number,
    "ratio": _or_none(is_number),
    "unit": is_text,
}
_SCOPE: Final[Mapping[str, Check]] = {
    "scope_id": is_text,
    "parent_id": _or_none(is_text),
    "kind": _one_of(*KINDS),
    "name": _or_none(is_text),
    "agent_id": _or_none(is_text),
    "status": _one_of(*STATES),
    "priority": _or_none(_one_of(*PRIORITIES)),
    "depth": is_count,
    "age_s": is_number,
    "input_tokens": _or_none(is_count),
    "output_tokens": _or_none(is_count),
    "cost_usd": _or_none(is_number),
    "requests": is_count,
    "tool_calls": is_count,
    "tokens_per_s": _or_none(is_number),
    "last_event": _or_none(is_text),
    "last_event_age_s": _or_none(is_number),
    "limits_left_out": is_count,
}
_RUN: Final[Mapping[str, Check]] = {
    "run_id": _or_none(is_text),
    "name": _or_none(is_text),
    "status": _one_of("open", "cancelled", "closed"),
    "age_s": is_number,
}
_PROCESS: Final[Mapping[str, Check]] = {"pid": is_count, "program": is_text, "started_unix_s": is_number}


def read_line(line: bytes) -> dict[str, Any]:
    """Read one line of JSON; LiveError for what is no object of version 1."""
    try:
        said = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise LiveError("what was sent is not a line of JSON.") from error
    if not isinstance(said, dict):
        raise LiveError("what was sent is not a JSON object.")
    known: dict[str, Any] = said  # pyright: ignore[reportUnknownVariableType]  # its keys are texts, as JSON has no others
    version = known.get("v")
    if isinstance(version, bool) or version != VERSION:
        raise LiveError(f"v={checks.show(version)} is another version of the protocol than {VERSION}. Use the ravi-otel of the process.")
    return known


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def write_line(said: Mapping[str, Any]) -> bytes:
    """Write one line of JSON, in ASCII."""
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def read_state(answer: Mapping[str, Any]) -> ProcessState:
    """Read an answer to `state`; LiveError names the field that makes no sense."""
    process = _checked("process", answer.get("process"), _PROCESS)
    left_out = answer.get("left_out", 0)
    if not is_count(left_out):
        raise _nonsense("left_out", left_out)
    room = MOST_SCOPES
    runs: list[RunState] = []
    for at, given in enumerate(_listed("runs", answer.get("runs"), MOST_RUNS)):
        place = f"runs[{at}]"
        run = _checked(place, given, _RUN)
        listed = _listed(f"{place}.scopes", given.get("scopes"), room)
        room -= len(listed)
        runs.append(RunState(**run, scopes=tuple(_scope(f"{place}.scopes[{number}]", each) for number, each in enumerate(listed))))
    return ProcessState(**process, runs=tuple(runs), left_out=left_out)


def _scope(place: str, given: Any) -> ScopeState:
    known = _checked(place, given, _SCOPE)
    limits = _listed(f"{place}.limits", given.get("limits"), MOST_LIMITS)
    return ScopeState(
        **known, limits=tuple(LimitState(**_checked(f"{place}.limits[{at}]", each, _LIMIT)) for at, each in enumerate(limits))
    )


def _checked(place: str, given: object, wanted: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _nonsense(place, given)
    known: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType]  # its keys are texts, as JSON has no others
    for name, check in wanted.items():
        if name not in known or not check(known[name]):
            raise _nonsense(f"{place}.{name}", known.get(name))
    return {name: known[name] for name in wanted}  # what a later version adds is left out


def _listed(place: str, given: Any, most: int) -> list[Any]:
    known: list[Any] = given if isinstance(given, list) else []  # pyright: ignore[reportUnknownVariableType]  # JSON of anybody's
    if not isinstance(given, list) or len(known) > most:
        raise _nonsense(place, cast("object", given))
    return known


def _nonsense(place: str, value: object) -> LiveError:
    return LiveError(f"the process answered {place}={checks.show(value)}, which makes no sense. Is another program listening there?")


def as_fields(state: LimitState | ScopeState | RunState | ProcessState) -> dict[str, Any]:
    """Give what the line of JSON says of it, as deep as it goes."""
    return {each.name: _plain(getattr(state, each.name)) for each in fields(state)}


def _plain(value: Any) -> Any:
    return [as_fields(each) for each in value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # of states only
