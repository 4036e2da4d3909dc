"""Define what a process and who watches it write to each other: one line of JSON asked, one answered, and of "follow" one after another.

What comes from a socket is hostile, on both sides: each message is read into the dataclasses here, whose annotations say what a field may
be and how long. Texts may hold anything that a model has made up, escape sequences too: whoever shows them on a terminal cleans them.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ravi_otel._local.store import Sums, read_json
from ravi_otel._local.wording import UNKNOWN, amount, clean, percent
from ravi_otel.errors import ConfigurationError, LimitSyntaxError, RaviError
from ravi_otel.hooks._events import LimitReading
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import SPENDS, UNITS, Kind, format_limit
from ravi_otel.policy._runs import Priority

T = TypeVar("T")

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
MOST_REFUSALS: Final = 50
MOST_EVENTS: Final = 250
NEARING: Final = 0.8
SPENT: Final = 1.0
_LIVE: Final = frozenset({Kind.AGENTS, Kind.FAN_OUT, Kind.DEPTH})
_LEAST_URGENT: Final = 2.0
_MOST_SHARE: Final = 10
_MOST_NUMBER: Final = 2.0**63
_KINDS: Final = {"USD": Kind.COST, "s": Kind.TIME}
_EXAMPLES: Final = {"USD": "2.50", "s": "90 or 5m"}
_DECIMAL_COMMA: Final = re.compile(r",(?!\d{3}(?!\d))")

_PROCESS: Final = ("pid", "program", "started_unix_s")
"""What an answer to `state` says of the process itself, beside what is in it."""

PRIORITIES: Final = {each.name.lower(): each for each in Priority}

Text = Annotated[str, MOST_TEXT]
Sentence = Annotated[str, MOST_SENTENCE]
State = Literal["open", "paused", "waiting", "closed", "cancelled"]
Op = Literal["state", "follow", "cancel", "pause", "resume", "reprioritize", "set_limit", "close"]
Urgency = Literal["background", "low", "normal", "high", "critical"]


class LiveError(RaviError):
    """Say that a process cannot be asked: it is gone, does not answer, or answers what makes no sense."""


class CommandError(LiveError):
    """Say, in the words of the process, why it did not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """A copy of a limit; `kind` is the word that `set_limit` takes, and `title` says of which window and whose it is, too.

    Amounts are in the kind's public unit (tokens, USD, seconds, count); `unit` names it as UCUM writes it. `ratio` is used of the limit,
    None where a limit of 0 was passed. `warn_at` is the share at which it is told to be near, `spec` how the limit is written, `source`
    where that was done as far as is known, `declared` what was written there where another amount was set since, `set_by` by whom where
    that is known, `refused` how often it refused. `only_watched` ones refuse nothing. `at_least` says that more is used than is known:
    calls without a price were let through; `estimated`, that some of what is used was counted by us, or priced at an assumed provider's
    rates.
    """

    kind: Text
    used: float
    held: float
    limit: float
    ratio: float | None
    unit: Text
    title: Text | None = None
    warn_at: float | None = None
    only_watched: bool = False
    spec: Text | None = None
    source: Text | None = None
    refused: int = 0
    declared: float | None = None
    set_by: Text | None = None
    at_least: bool = False
    estimated: bool = False

    @classmethod
    def of(cls, reading: LimitReading, *, unpriced: int = 0, estimated: int = 0, assumed: bool = False, **more: Any) -> LimitState:
        """Return the copy of a reading, with what only `more` can say: when it warns, where it was written.

        In its scope so many calls are `unpriced` and so many `estimated`, and some of the cost may be at an `assumed` provider's rates.
        """
        limit = reading.limit
        is_of_cost = limit.kind == Kind.COST
        return cls(
            kind=limit.label[:MOST_TEXT],
            used=reading.used,
            held=reading.held,
            limit=limit.amount,
            ratio=reading.ratio if limit.value else None,
            unit=UNITS.get(limit.kind, "1"),
            title=cut(reading.title),
            spec=cut(format_limit(limit)),
            refused=max(0, reading.denied),
            declared=reading.declared,
            set_by=cut(reading.set_by),
            at_least=is_of_cost and unpriced > 0,
            estimated=limit.kind in SPENDS and (estimated > 0 or (is_of_cost and assumed)),
            **more,
        )

    @classmethod
    def kept(cls, reading: LimitReading, sums: Sums) -> LimitState:
        """Return the copy of a reading that a store keeps, with the marks of what was used in its scope."""
        return cls.of(reading, unpriced=sums.unpriced_calls, estimated=sums.estimated_calls, assumed=sums.assumed_calls > 0)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody knows how much of it is used."""
        return math.isnan(self.used) or (self.ratio is None and self.limit > 0)

    @property
    def fullness(self) -> float:
        """Return used of the limit, 0 where nobody knows; a limit of nothing that was passed is fuller than any."""
        return 0.0 if self.is_unknown else math.inf if self.ratio is None else self.ratio

    @property
    def counts_living(self) -> bool:
        """Whether it counts what is in use only while it lives, such as slots."""
        return self.kind.partition(":")[0] in _LIVE

    @property
    def is_of_living(self) -> bool:
        """Whether it counts what is in use only while it lives, and may well be full."""
        return self.fullness <= SPENT and self.counts_living

    @property
    def urgency(self) -> float:
        """Return the fullness by which it is told first."""
        return self.fullness - _LEAST_URGENT if self.is_of_living else self.fullness

    @property
    def mark(self) -> str:
        """Say without colour how near it is: `!` from 80 % on, `!!` where it is spent."""
        return "" if self.urgency < NEARING else "!" if self.urgency < SPENT else "!!"

    @property
    def nearness(self) -> Literal["run", "unknown", "refused", "near", "ok"]:
        """Return how near it is: "run" where it refuses nothing, or may well be full; "near" from where it warns, too."""
        if self.only_watched:
            return "run"
        if self.is_unknown:
            return "unknown"
        if self.is_of_living:
            return "run"
        if self.at_least and self.fullness < SPENT:
            return "unknown"
        warns = self.warn_at is not None and self.fullness >= self.warn_at
        return "refused" if self.mark == "!!" else "near" if self.mark or warns else "ok"

    @property
    def share(self) -> str:
        """Write how full it is: `80 %`."""
        if self.is_unknown:
            return UNKNOWN
        share = "spent" if self.ratio is None else ">999%" if self.ratio >= _MOST_SHARE else percent(max(0.0, self.ratio))
        return f"≥{share}" if self.at_least and self.fullness < SPENT else share

    @property
    def value(self) -> str:
        """Write its value as it is typed: `20000`, `0.5`."""
        return f"{self.limit:.9f}".rstrip("0").rstrip(".")

    @property
    def text(self) -> str:
        """Write how much of it is used and held: `$0.30 + $0.05 held of $0.50`."""
        held = f" + {self.amount(self.held)} held" if self.held > 0 else ""
        return f"{self.used_text}{held} of {self.amount(self.limit)}"

    @property
    def set_text(self) -> str:
        """Write what it was where it is written, and who set what it is: `$0.40 there, set since by ann`; "" where nobody did."""
        if self.declared is None:
            return ""
        return f"{self.amount(self.declared)} there, set since" + ("" if self.set_by is None else f" by {clean(self.set_by, 60)}")

    @property
    def used_text(self) -> str:
        """Write how much of it is used, with what is to be doubted of it: `≥~$0.30`."""
        return ("≥" if self.at_least else "") + ("~" if self.estimated and self.used > 0 else "") + self.amount(self.used)

    @property
    def left_text(self) -> str:
        """Write what is left of it, with what is to be doubted: `≤~$0.20`, since more may be used than is known."""
        if self.is_unknown:
            return UNKNOWN
        left = max(0.0, self.limit - self.used - self.held)
        doubt = ("≤" if self.at_least else "") + ("~" if self.estimated and self.used > 0 else "")
        return (doubt if left else "") + self.amount(left)

    def amount(self, value: float) -> str:
        """Write an amount of it in its unit: `$0.50`, `90 s`, `2,000`."""
        return amount(_KINDS.get(self.unit, self.kind), value)

    def refuses_at(self, value: float) -> str:
        """Say that with another value it would refuse at once, and why; "" where it would not, or nobody knows."""
        if self.only_watched or self.is_unknown or value > self.used + self.held or value == self.limit:
            return ""
        if self.counts_living:
            return f"{self.used_text} are there now: no other is let in until it is fewer than {self.amount(value)}."
        held = f", and {self.amount(self.held)} held" if self.held > 0 else ""
        return f"{self.used_text} is used already{held}: with {self.amount(value)} every call is refused from now on."

    def read_amount(self, text: str) -> float:
        """Read what was typed as its new value, in its unit; ConfigurationError when it is none."""
        kind = _KINDS.get(self.unit, Kind.REQUESTS)
        spelled = text.strip().replace(" ", "")
        typed = "" if _DECIMAL_COMMA.search(spelled) else spelled.replace(",", "")  # 2,50 is not 250
        with contextlib.suppress(LimitSyntaxError):
            if not {":", "="} & set(typed):
                return parse_limit(f"{kind}={typed}").amount
        example = _EXAMPLES.get(self.unit, "20000, 20k or 1M")
        raise ConfigurationError(f"{clean(text, 40)!r} is no value for {clean(self.kind, 40)}: write a number such as {example}.")


@dataclass(frozen=True, slots=True)
class ScopeState:
    """A copy of an open run, agent, handoff or block.

    `parent_id` is the scope around it in this answer, None for the outermost. Counts follow the rules of charging: an agent's are its own,
    a run's are everybody's in it. `cost_usd` and `tokens_per_s` (output, over the last 10 s, of calls that have ended) are None where
    nobody knows. `last_event` is a few words, None before the first. `depth` is that of agents below the run's first. `limits` are the
    fullest ones, at most 50; `limits_left_out` says how many more there are. What is "closed" or "cancelled" was told to end, and its code
    goes on still. One that is "waiting" `waits_for` what the program calls it, such as "approval". `pauses` says what a pause does: True
    has its next call wait, False ends the agent there; None cannot be paused. `refused` counts calls and tools, and `last_refusal` is the
    sentence of the last one, None once such a call went through again; it `is_raised` where its limit has a higher value since. `uncosted`
    calls are not in `cost_usd`: nobody knows what they cost, or not yet, while they are in flight. `estimated` calls are in the sums as we
    count them, and `assumed` says that some of the cost is at an assumed provider's rates.
    """

    scope_id: Text
    parent_id: Text | None
    kind: Literal["run", "agent", "handoff", "block"]
    name: Text | None
    agent_id: Text | None
    status: State
    priority: Urgency | None
    depth: int
    age_s: float
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    requests: int
    tool_calls: int
    tokens_per_s: float | None
    last_event: Text | None
    last_event_age_s: float | None
    limits_left_out: int = 0
    limits: Annotated[tuple[LimitState, ...], MOST_LIMITS] = ()
    refused: int = 0
    last_refusal: Sentence | None = None
    is_raised: bool = False
    waits_for: Text | None = None
    pauses: bool | None = None
    uncosted: int = 0
    estimated: int = 0
    assumed: bool = False

    @property
    def is_cost_partial(self) -> bool:
        """Whether more was spent than is known."""
        return self.uncosted > 0 and self.cost_usd is not None

    @property
    def is_cost_rough(self) -> bool:
        """Whether some of what was spent was counted by us, or priced at an assumed provider's rates."""
        return bool(self.cost_usd) and (self.estimated > 0 or self.assumed)


@dataclass(frozen=True, slots=True)
class RunState:
    """A copy of a run with its open scopes, outer ones first, itself the first of them.

    `run_id` None gathers agents and blocks outside any run. `status` is "open", "cancelled" (it was told to end, and its code goes
    on still) or "closed" (the same, by `close()`). An inner run is one of its own; its first scope's parent is in the outer one.
    """

    run_id: Text | None
    name: Text | None
    status: Literal["open", "cancelled", "closed"]
    age_s: float
    scopes: Annotated[tuple[ScopeState, ...], MOST_SCOPES] = ()
    user: Text | None = None
    tenant: Text | None = None
    session: Text | None = None
    trace_id: Text | None = None


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """One thing that happened: `event` is one of `ProgressEvent`'s, or "review" for what a gate decided.

    `call` is what it happened to, such as "chat gpt-4.1", a tool's name or a limit's; `sentence` what is to be said of it, such as a
    refusal's own words. `at_unix_s` is in UTC. What is not known, or has no such figure, is None.
    """

    event: Text
    at_unix_s: float
    run_id: Text | None = None
    scope_id: Text | None = None
    agent: Text | None = None
    call: Text | None = None
    status: Text | None = None
    sentence: Sentence | None = None
    call_id: Text | None = None
    limit_kind: Text | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A copy of what a process has open; `left_out` scopes more were open than it keeps count of.

    `refusals` are the last calls and tools that a limit refused, the newest last.
    """

    pid: int
    program: Text
    started_unix_s: float
    runs: Annotated[tuple[RunState, ...], MOST_RUNS] = ()
    left_out: int = 0
    refusals: Annotated[tuple[LiveEvent, ...], MOST_REFUSALS] = ()


@dataclass(frozen=True, slots=True)
class Happened:
    """What happened since the last of these, the oldest first; `missed` events before them had to make room."""

    events: Annotated[tuple[LiveEvent, ...], MOST_EVENTS] = ()
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a process; `by` is for whom, as whoever asks says: who that is the system tells."""

    op: Op
    scope_id: Text | None = None
    reason: Sentence | None = None
    priority: Urgency | None = None
    kind: Text | None = None
    value: float | None = None
    by: Text | None = None


class NonsenseError(LiveError):
    """Name a value that may not stand in its place."""

    def __init__(self, place: str, value: object) -> None:
        super().__init__(f"{place}={checks.show(value)} makes no sense")
        self.place = place
        self.value = value


def read(kind: type[T], given: object) -> T:
    """Read a dataclass of this module from what JSON gave; NonsenseError names what may not be there.

    What a later version adds is left out.
    """
    return cast("T", _read(kind, given, ""))


def _read(hint: Any, given: Any, place: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return None if given is None else _read(get_args(hint)[0], given, place)
    kind, most = get_args(hint) if get_origin(hint) is Annotated else (hint, 0)
    if is_dataclass(kind) and isinstance(given, dict):
        return _record(kind, cast("dict[str, Any]", given), place)
    if get_origin(kind) is tuple and isinstance(given, list):
        if len(given) <= most:  # pyright: ignore[reportUnknownArgumentType]  # JSON of anybody's
            return tuple(_read(get_args(kind)[0], each, f"{place}[{at}]") for at, each in enumerate(given))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # the same
    elif _may_be(kind, given, most):
        return given
    raise NonsenseError(place, cast("object", given))


def _record(kind: Any, given: dict[str, Any], place: str) -> Any:
    hints, around = _hints(kind), f"{place}." if place else ""
    told = {each.name: given.get(each.name) for each in fields(kind) if each.name in given or each.default is MISSING}
    return kind(**{name: _read(hints[name], value, around + name) for name, value in told.items()})


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _may_be(kind: Any, given: Any, most: int) -> bool:
    """Whether a value may stand where the annotation is `kind`: a number is finite and of a size that makes sense, an int from 0 up."""
    if kind is str:
        return isinstance(given, str) and len(given) <= most
    if kind is float:
        return is_number(given)
    if kind is int:
        return is_number(given) and isinstance(given, int) and given >= 0
    return isinstance(given, bool) if kind is bool else isinstance(given, str) and given in get_args(kind)


def is_number(value: object) -> bool:
    """Whether it is a number, neither infinite nor none, of a size that makes sense."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST_NUMBER


def cut(text: object, most: int = MOST_TEXT) -> str | None:
    """Write something as a text that is not longer than it may be."""
    if text is None:
        return None
    written = str(text)
    return written if len(written) <= most else f"{written[: most - 1]}…"


def read_line(line: bytes) -> dict[str, Any]:
    """Read one line of JSON; LiveError for what is no object of version 1."""
    try:
        said = read_json(line.decode(), _refuse)
    except (ValueError, RecursionError) as error:
        raise LiveError("what was sent is not a line of JSON.") from error
    if not isinstance(said, dict):
        raise LiveError("what was sent is not a JSON object.")
    known = cast("dict[str, Any]", said)
    version = known.get("v")
    if isinstance(version, bool) or version != VERSION:
        raise LiveError(f"v={checks.show(version)} is another version of the protocol than {VERSION}. Use the ravi-otel of the process.")
    return known


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def write_line(said: Mapping[str, Any]) -> bytes:
    """Write one line of JSON, in ASCII; dataclasses of this module may be in it."""
    return json.dumps(said, separators=(",", ":"), allow_nan=False, default=_shallow).encode("ascii") + b"\n"


def as_fields(state: Any) -> dict[str, Any]:
    """Return what the line of JSON says of a dataclass of this module, as deep as it goes."""
    return cast("dict[str, Any]", json.loads(json.dumps(state, default=_shallow)))


def _shallow(state: Any) -> dict[str, Any]:
    names, read = _READ[type(state).__name__]
    return dict(zip(names, read(state), strict=True))


_READ: Final = {
    kind.__name__: (names := tuple(each.name for each in fields(kind)), attrgetter(*names))
    for kind in (LimitState, ScopeState, RunState, LiveEvent, ProcessState, Happened)
}


def state_line(state: ProcessState) -> bytes:
    """Write the answer to `state`."""
    known = _shallow(state)
    return write_line({"v": VERSION, "ok": True, "process": {name: known.pop(name) for name in _PROCESS}, **known})


def read_state(answer: Mapping[str, Any]) -> ProcessState:
    """Read an answer to `state`; LiveError names the field that makes no sense."""
    try:
        process = answer.get("process")
        about = cast("dict[str, Any]", process) if isinstance(process, dict) else _nonsense("process", process)
        state = read(ProcessState, {**answer, **{name: about.get(name) for name in _PROCESS}})
        return state if sum(len(run.scopes) for run in state.runs) <= MOST_SCOPES else _nonsense("runs", answer["runs"])
    except NonsenseError as error:
        raise LiveError(
            f"the process answered {error.place}={checks.show(error.value)}, which makes no sense. Is another program listening there?"
        ) from None


def _nonsense(place: str, value: object) -> NoReturn:
    raise NonsenseError(place, value)
