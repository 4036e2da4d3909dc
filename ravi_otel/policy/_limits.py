"""Hold what the user allows: frozen limits, the constructors that write them, what of its tokens a call counts, and windows."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, get_args
from zoneinfo import ZoneInfo

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import SECONDS_OF, WINDOW_PATTERN, WINDOWS

if TYPE_CHECKING:
    from ravi_otel.policy._usage import Usage

ALL: Final = "all"
"""What a token limit counts unless it says otherwise: input and output together."""

WHOLE: Final = (ALL, "input", "output")
"""Words that are no formula: limits of kinds of their own."""

_COUNTED: Final = {
    "input": ("input_tokens",),
    "output": ("output_tokens",),
    "cached": ("cached_input_tokens",),
    "cache_write": ("cache_write_tokens",),
    "reasoning": ("reasoning_tokens",),
    "audio": ("audio_input_tokens", "audio_output_tokens"),
    "total": ("total_tokens",),
}
TERMS: Final = tuple(_COUNTED)
"""What a formula can count; `cached` and `cache_write` are part of the input, `reasoning` of the output."""

_PRESETS: Final = {"uncached": "total-cached"}
_LONGEST_FORMULA: Final = 200
_MOST_TIMES: Final = 1_000
_PIECE: Final = re.compile(r"\s*([+-]?)\s*(?:(\d{1,9})\s*\*\s*)?([a-z_]+)\s*")
_OF_INPUT: Final = frozenset({"input", "cached", "cache_write", "audio", "total"})
_OF_OUTPUT: Final = frozenset({"output", "reasoning", "audio", "total"})
_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Formula:
    """Count some of a call's tokens: `terms` are names with how often each counts, negative ones taken off.

    `per_input` and `per_output` are the most that one token of the input and of the output can count.
    """

    text: str
    terms: tuple[tuple[str, int], ...]
    per_input: int
    per_output: int

    def of(self, usage: Usage) -> int:
        """Count what a call used; never less than 0."""
        amount: int = sum(times * getattr(usage, name) for term, times in self.terms for name in _COUNTED[term])
        return max(0, amount)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most that so many tokens can count, whatever they are."""
        return self.per_input * input_tokens + self.per_output * output_tokens

    def sum_of(self, input_tokens: int, output_tokens: int, cached_input_tokens: int) -> int:
        """Count many calls of which only these sums are known: exactly where they tell it, else the most that it can be."""
        times = dict.fromkeys(TERMS, 0) | dict(self.terms)
        fresh, made = times["input"] + times["total"], times["output"] + times["total"]
        cached = fresh + times["cached"]
        told = not (times["cache_write"] or times["reasoning"] or times["audio"])
        if not told or min(fresh, made, cached) < 0:  # below 0 one call counts 0, and takes nothing off the others
            return self.most(input_tokens, output_tokens)
        read = min(cached_input_tokens, input_tokens)
        return fresh * (input_tokens - read) + cached * read + made * output_tokens

    def covered(self, amount: int, input_tokens: int) -> int | None:
        """Return how many tokens of output an amount is enough for after so many of input; None when for any number."""
        if self.per_output == 0:
            return None
        return max(0, amount - self.per_input * input_tokens) // self.per_output


@lru_cache(maxsize=_KEPT)
def formula_of(text: str) -> Formula:
    """Read a formula, or the name of one; raises ConfigurationError for anything else."""
    terms = _terms(text, _PRESETS.get(text, text))
    return Formula(text, terms, _weight(terms, _OF_INPUT, "input"), _weight(terms, _OF_OUTPUT, "output"))


def check_count(parameter: str, value: object) -> str:
    """Accept what a token limit may count, and give it without its blanks."""
    if not isinstance(value, str) or len(value) > _LONGEST_FORMULA:
        raise ConfigurationError(_flaw_of_count(parameter, value, "is no formula"))
    text = value.strip()
    if text in WHOLE or text in _PRESETS:
        return text
    try:
        return formula_of(_written(value)).text
    except ConfigurationError as error:
        raise ConfigurationError(_flaw_of_count(parameter, value, str(error))) from None


def _written(value: str) -> str:
    """Write a formula in one way: without blanks, and without a plus in front."""
    _terms(value, value)  # blanks inside a word or a number are not to be closed up
    return "".join(value.split()).removeprefix("+")


def _terms(shown: str, text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or (at and not piece[1]):
            raise ConfigurationError(f"cannot be read from {checks.show(text[at:].strip() or shown)} on")
        sign, times, name = piece.groups()
        if name not in TERMS:
            close = checks.nearest(name, TERMS)
            raise ConfigurationError(
                f"names {checks.show(name)}" + (f", did you mean {close}" if close else ", which is no sort of tokens")
            )
        if times is not None and int(times) > _MOST_TIMES:
            raise ConfigurationError(f"takes {name} {times} times, and at most {_MOST_TIMES} are allowed")
        found[name] = found.get(name, 0) + (-1 if sign == "-" else 1) * int(times or 1)
        at = piece.end()
    if not any(times > 0 for times in found.values()):
        raise ConfigurationError("counts nothing")
    return tuple((name, times) for name, times in found.items() if times)


def _weight(terms: tuple[tuple[str, int], ...], parts: frozenset[str], whole: str) -> int:
    """Add up what one token can count as: as the whole, as all that it can be besides, and never less than nothing.

    A total less the whole of its input counts no input; what a part takes off is left on, for nobody knows how many are such.
    """
    plain = sum(times for name, times in terms if name in (whole, "total"))
    return max(0, plain) + sum(times for name, times in terms if name in parts and name not in (whole, "total") and times > 0)


def _flaw_of_count(parameter: str, value: object, what: str) -> str:
    return (
        f"{parameter}={checks.show(value)} {what}: give {', '.join(repr(word) for word in (*WHOLE, *_PRESETS))} or a sum such as "
        f"'input + 4*output - cached' of {', '.join(TERMS)}, each with a whole number from 0 to {_MOST_TIMES}."
    )


TAG: Final = "tag."
BY: Final = ("user", "model", "tenant")
"""What a limit may count by, beside a tag."""
BY_PATTERN: Final = rf"{'|'.join(BY)}|tag\.[^:\s]{{1,256}}"

_LONGEST: Final = {"minute": 60, "hour": 3_600, "day": 25 * 3_600, "week": 7 * 86_400 + 3_600, "month": 31 * 86_400 + 3_600}
"""Seconds that each calendar window lasts at most: a night on which clocks are put back is an hour longer."""
_USUAL: Final = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
_EARLIEST, _LATEST = 0.0, 250_000_000_000.0  # 1970 to 9892: a clock that shows anything else is wrong, and dates end at 9999


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a calendar: `id` is unique for its length and zone, `start` and `end` are UTC epoch seconds."""

    id: str
    start: float
    end: float

    def holds(self, now_s: float) -> bool:
        """Whether a moment is in it."""
        return self.start <= now_s < self.end


def check_by(parameter: str, value: object) -> str:
    """Accept what a limit has a counter each of: user, model, tenant, or tag.NAME."""
    if isinstance(value, str) and re.fullmatch(BY_PATTERN, value):
        return value
    way_out = f"must be one of {', '.join(BY)}, or tag.NAME with a name without spaces and colons"
    raise ConfigurationError(f"{parameter}={checks.show(value)} {way_out}{checks.meant(value, BY)}")


def is_calendar(per: str | None) -> bool:
    """Whether a limit begins anew with the calendar, rather than rolling or never."""
    return per in WINDOWS


@lru_cache(maxsize=256)
def roll_ns(per: str | None) -> int:
    """Return how far back a rolling window looks, in nanoseconds; 0 for a calendar's, and for none."""
    if per is None or per in WINDOWS:
        return 0
    return int(per[:-1]) * SECONDS_OF[per[-1]] * NANO


def longest_s(per: str | None) -> int:
    """Return how long such a window lasts at most, in seconds; 0 for none. A store keeps a counter at least that long."""
    return _LONGEST[per] if per in _LONGEST else roll_ns(per) // NANO


def usual_s(per: str | None) -> int:
    """Return how long such a window lasts, in seconds, a month 30 days; 0 for none."""
    return _USUAL[per] if per in _USUAL else roll_ns(per) // NANO


def same_window(per: str | None) -> str | None:
    """Write a window as all who mean the same one write it: "60m" and "3600s" are "1h"."""
    length_s = roll_ns(per) // NANO
    if not length_s:
        return per
    unit = next(unit for unit in reversed(SECONDS_OF) if length_s % SECONDS_OF[unit] == 0)
    return f"{length_s // SECONDS_OF[unit]}{unit}"


def window_at(per: str, tz: str, now_s: float) -> Window:
    """Return the calendar's window that holds a moment, in UTC epoch seconds."""
    now_s = min(max(now_s, _EARLIEST), _LATEST)
    zone = ZoneInfo(tz)
    here = datetime.fromtimestamp(now_s, zone)
    if per in ("minute", "hour"):
        return _short(per, zone, here, now_s)
    first = here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if per == "week":
        first -= timedelta(days=here.weekday())
        following = first + timedelta(days=7)
    elif per == "month":
        first = first.replace(day=1)
        following = (first + timedelta(days=32)).replace(day=1)
    else:
        following = first + timedelta(days=1)
    year, week, _ = first.isocalendar()
    name = {"day": f"{first:%Y-%m-%d}", "week": f"{year:04}-W{week:02}", "month": f"{first:%Y-%m}"}[per]
    return Window(name, first.timestamp(), following.timestamp())  # a midnight that the clocks skip is the moment they skip at


def _short(per: str, zone: ZoneInfo, here: datetime, now_s: float) -> Window:
    """Return an hour or a minute as clocks show it; one that is shown twice, when they are put back, is two windows."""
    past = here.second + here.microsecond / 1_000_000 + (here.minute * 60 if per == "hour" else 0)
    start = round(now_s - past)
    end = start + _LONGEST[per]
    offset = here.utcoffset()
    name = f"{here:%Y-%m-%dT%H}" if per == "hour" else f"{here:%Y-%m-%dT%H:%M}"
    return Window(
        f"{name}{here:%z}",
        _change(zone, int(now_s), start - 1, offset) + 1 if _offset(zone, start) != offset else start,
        _change(zone, int(now_s), end, offset) if _offset(zone, end - 1) != offset else end,
    )


def _offset(zone: ZoneInfo, at_s: float) -> timedelta | None:
    return datetime.fromtimestamp(at_s, zone).utcoffset()


def _change(zone: ZoneInfo, known: int, other: int, offset: timedelta | None) -> int:
    """Find the first second, going from `known` to `other`, that is not at `offset`, as the one at `known` is."""
    while abs(other - known) > 1:
        middle = (known + other) // 2
        if _offset(zone, middle) == offset:
            known = middle
        else:
            other = middle
    return other


EVERY_KIND: Final = "*"
"""What stands for all kinds where limits are set aside."""
NANO: Final = 1_000_000_000
"""Nano-USD in a USD, nanoseconds in a second: amounts are integers inside."""


class Outcome(StrEnum):
    """Name what happens when a limit is exceeded."""

    RAISE = "raise"
    STOP = "stop"
    FINAL = "final"
    DENY_TOOL = "deny_tool"
    PAUSE = "pause"
    ASK = "ask"
    OBSERVE = "observe"


class Admission(StrEnum):
    """Name how a call's spend is held before it is known."""

    ESTIMATE = "estimate"
    STRICT = "strict"
    AFTER = "after"


class ScopeKind(StrEnum):
    """Name the scopes a limit can belong to, root to leaf."""

    PROCESS = "process"
    TENANT = "tenant"
    SESSION = "session"
    RUN = "run"
    HANDOFF = "handoff"
    BLOCK = "block"
    AGENT = "agent"


class Kind(StrEnum):
    """Name what is counted; any other name is charged by the program itself."""

    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    COST = "cost"
    REQUESTS = "requests"
    TURNS = "turns"
    MESSAGES = "messages"
    TOOL_CALLS = "tool_calls"
    AGENTS = "agents"
    AGENTS_TOTAL = "agents_total"
    DEPTH = "depth"
    FAN_OUT = "fan_out"
    TIME = "time"
    WORKING = "working"


CLOCKS: Final = frozenset({Kind.TIME, Kind.WORKING})
SPENDS: Final = frozenset({Kind.TOKENS, Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, Kind.COST})
"""Kinds whose amount is known only after the call: held before, settled after."""

UNITS: Final[dict[str, str]] = {
    Kind.TOKENS: "{token}",
    Kind.INPUT_TOKENS: "{token}",
    Kind.OUTPUT_TOKENS: "{token}",
    Kind.COST: "USD",
    Kind.REQUESTS: "{request}",
    Kind.TURNS: "{turn}",
    Kind.MESSAGES: "{message}",
    Kind.TOOL_CALLS: "{call}",
    Kind.AGENTS: "{agent}",
    Kind.AGENTS_TOTAL: "{agent}",
    Kind.DEPTH: "{level}",
    Kind.FAN_OUT: "{agent}",
    Kind.TIME: "s",
    Kind.WORKING: "s",
}
"""UCUM units of the built-in kinds."""

DOWNWARDS: Final = frozenset({ScopeKind.HANDOFF, ScopeKind.BLOCK, ScopeKind.AGENT})
"""Scopes a limit can be a template for, by name."""

PREFIXES: Final = tuple(kind.value for kind in ScopeKind if kind is not ScopeKind.PROCESS)
"""Scopes a limit can name; the process's own limits are those given to `instrument()`."""

Choice = Literal["refuse", "warn"]
Unbounded = Literal["refuse", "window", "admit"]
StoreFailure = Literal["closed", "open"]
Suspension = Literal["refuse", "allow"]


def is_built_in(name: str) -> bool:
    """Whether a kind of this name is counted by itself: `tokens`, and by a formula `tokens(uncached)`."""
    return name.partition("(")[0].strip() in Kind.__members__.values()


class LimitOptions(TypedDict, total=False):
    """List the keywords every limit constructor takes.

    `scope` and `name` say where the limit belongs: "run", "session" or "tenant" around it, or, as a template, every
    "agent", "block" or "handoff" inside of that name. `warn_at` is the share at which it is told to be near (0.8).
    `on_exceed` is "raise", "stop" (the scope that owns the limit ends quietly) or "observe" (told, never refused);
    "final" acts as "stop" and "deny_tool" as "raise" where the program drives its own loop. `admission` "after" only
    counts what came back, "strict" holds the worst case and caps the answer, so that nothing passes the limit; `on_unbounded`
    says what becomes of a request then whose size cannot be known: "refuse", "window" (held at the model's window) or "admit".
    `on_unpriced` "warn" lets a model without a price pass a cost limit. `suspend` "allow" lets `suspend_limits()` set the limit
    aside for auxiliary work. `per` lets it begin anew each "minute", "hour", "day", "week" or "month" of the time zone `tz`, or
    counts what was used within a time before, such as "90m". `by` gives each "user", "model", "tenant" or value of a tag ("tag.NAME")
    a counter of its own. `on_store_failure` says what becomes of a call while the shared ledger fails: "closed" (refused, the
    default) or "open" (passes, and is charged afterwards).
    """

    scope: str | None
    name: str | None
    warn_at: float | None
    on_exceed: str
    per: str | None
    tz: str
    by: str | None
    admission: str | None
    on_unpriced: Choice
    on_unbounded: Unbounded
    on_store_failure: StoreFailure | None
    suspend: Suspension


Check = Callable[[str, object], Any]
"""Accept a value that was given for a parameter, and return it as a limit holds it; raise ConfigurationError for any other."""


@dataclass(frozen=True, slots=True)
class Option:
    """What a limit may be given besides its kind, its value and whose it is: the metadata of the `Limit` field that holds it.

    `keyword` is what constructors and policy files call it, `word` what a limit in words does, "" where it has none. `choices`
    are the words it is one of, `pattern` what other text must look like; `number` says that it is a number. `counter` says that it
    decides which counter is used or what is counted; what does not is each program's own affair.
    """

    check: Check
    word: str = ""
    keyword: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    number: bool = False
    counter: bool = False
    field: str = ""
    default: Any = None

    def read(self, given: object, parameter: str | None = None) -> Any:
        """Check a value; an error calls it by `parameter`, or else by its keyword. Where the default is None, None is taken."""
        return None if given is None and self.default is None else self.check(parameter or self.keyword, given)


def _option(option: Option) -> dict[str, Option]:
    return {"option": option}


def _scope(parameter: str, value: object) -> ScopeKind:
    return ScopeKind(checks.choice(parameter, value, PREFIXES))


def _one_of(word: str, kind: type[StrEnum] | tuple[str, ...], *, counter: bool = False) -> dict[str, Option]:
    """Describe an option that is one of a few words."""
    if isinstance(kind, tuple):
        return _option(Option(lambda parameter, value: checks.choice(parameter, value, kind), word, choices=kind, counter=counter))
    choices = tuple(each.value for each in kind)
    return _option(Option(lambda parameter, value: checks.member(parameter, value, kind), word, choices=choices, counter=counter))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Limit:
    """Allow `value` of `kind`, and say what happens past it.

    `value` is an integer in the kind's inner unit: tokens, nano-USD for cost, nanoseconds for time, else a count;
    0 allows nothing. `scope` and `scope_name` say where it belongs (None: where it is declared; downwards they are a
    template for every such scope opened inside), `agent` sums all instances of one agent name. `warn_at` None takes
    the process's setting (0.8). `detail` is the tool of a `tool.NAME` limit. `count` is what of its tokens a call is counted
    with, of kind "tokens" alone: "all", or a formula (`policy.formula`). `per`, `tz` and `by` are those of `LimitOptions`.

    The fields that carry an `Option` are the table of options: constructors, words, policy files, their JSON schema and the
    command line read it. A new one is a line here, and one in `LimitOptions` for type checkers.
    """

    kind: str
    value: int
    detail: str | None = None
    scope: ScopeKind | None = field(default=None, metadata=_option(Option(_scope, choices=PREFIXES)))
    scope_name: str | None = field(default=None, metadata=_option(Option(checks.name, keyword="name")))
    agent: str | None = None
    warn_at: float | None = field(default=None, metadata=_option(Option(checks.share, "warn", number=True)))
    on_exceed: Outcome = field(default=Outcome.RAISE, metadata=_one_of("on", Outcome, counter=True))
    per: str | None = field(default=None, metadata=_option(Option(checks.window, "per", pattern=WINDOW_PATTERN, counter=True)))
    tz: str = field(default="UTC", metadata=_option(Option(checks.zone, "tz", pattern=r"[^:\s][^:]*", counter=True)))
    by: str | None = field(default=None, metadata=_option(Option(check_by, "by", pattern=BY_PATTERN, counter=True)))
    admission: Admission | None = field(default=None, metadata=_one_of("admission", Admission))
    on_unpriced: Choice = field(default="refuse", metadata=_one_of("unpriced", get_args(Choice)))
    on_unbounded: Unbounded = field(default="refuse", metadata=_one_of("unbounded", get_args(Unbounded)))
    on_store_failure: StoreFailure | None = field(default=None, metadata=_one_of("store", get_args(StoreFailure)))
    suspend: Suspension = field(default="refuse", metadata=_one_of("suspend", get_args(Suspension)))
    count: str = field(default=ALL, metadata=_option(Option(check_count, "count", pattern="[^:]+", counter=True)))

    def __post_init__(self) -> None:
        """Check what a program that builds a Limit by hand can get wrong."""
        object.__setattr__(self, "kind", str(checks.name("Limit(kind)", self.kind)))  # a Kind too: one type, wherever it was written
        if "(" in self.kind and is_built_in(self.kind):
            raise ConfigurationError(f"Limit(kind)={checks.show(self.kind)} is a built-in kind: write Limit(kind='tokens', count=...).")
        most = checks.MAX_NANO if self.kind == Kind.COST or self.kind in CLOCKS else checks.MAX_COUNT
        checks.count("Limit(value)", self.value, most=most)
        if self.count != ALL and self.kind != Kind.TOKENS:
            raise ConfigurationError(f"Limit(count)={checks.show(self.count)} goes with kind 'tokens', not with {checks.show(self.kind)}.")
        if self.renews:
            flaw = _flaw_of_window(self)
            if flaw is not None:
                raise ConfigurationError(flaw)

    def __repr__(self) -> str:
        """Write it as `parse_limit` reads it: `Limit('cost=0.01usd')`."""
        return f"Limit({format_limit(self)!r})"

    @property
    def renews(self) -> bool:
        """Whether it has more than one counter: one for each window, user or the like."""
        return self.per is not None or self.by is not None

    @property
    def counted(self) -> str:
        """Return what is counted in one word, the key of its amounts: `tokens`, `tool.search`, `tokens(uncached)`."""
        if self.detail is not None:
            return f"tool.{self.detail}"
        return str(self.kind) if self.count == ALL else f"{self.kind}({self.count})"

    @property
    def target(self) -> tuple[object, ...]:
        """Return what two limits must share to be the same limit, written twice."""
        return self.scope, self.scope_name, self.counted, self.agent, same_window(self.per), self.by

    @property
    def label(self) -> str:
        """Return the kind as the grammar writes it: `tokens`, `tool.search`, `tokens@researcher`; a formula in brackets."""
        return f"{self.counted}@{self.agent}" if self.agent else self.counted

    def may_be_set_aside(self, kind: str, kinds: AbstractSet[str]) -> bool:
        """Return whether it allows to be set aside, and what it counts, in one word `kind`, is of one of `kinds`."""
        return self.suspend == "allow" and any(each in kinds for each in (EVERY_KIND, kind, self.kind, self.label))

    @property
    def amount(self) -> float:
        """Return the value in the kind's public unit (USD, seconds, or a count)."""
        return public_amount(self.kind, self.value)


OPTIONS: Final[Mapping[str, Option]] = {
    option.keyword: option
    for each in fields(Limit)
    if "option" in each.metadata
    for given in [each.metadata["option"]]
    for option in [replace(given, keyword=given.keyword or each.name, field=each.name, default=each.default)]
}
"""Every option of a limit, by its keyword."""
WORDED: Final[Mapping[str, Option]] = {option.word: option for option in OPTIONS.values() if option.word}
"""Those that a limit in words can have behind its value, by their word."""


def public_amount(kind: str, value: int) -> float:
    """Convert an inner integer to the kind's public unit: USD and seconds as float, counts as int."""
    if kind == Kind.COST or kind in CLOCKS:
        return value / NANO
    return value


def token_limit(n: int, count: str = ALL, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `n` tokens, input and output together.

    `count` says which: "all", "input", "output", "uncached" (all but what was read from a cache), or a sum such as
    "input + 4*output - cached" of input, output, cached, cache_write, reasoning, audio and total, never less than 0.
    """
    return make_limit(Kind.TOKENS, checks.count("token_limit(n)", n, way_out=_in_words("tokens=50k")), {**options, "count": count})


def cost_limit(usd: float | Decimal | str, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `usd` US dollars; kept as nano-USD, so text and Decimal have at most 9 decimals."""
    return make_limit(Kind.COST, checks.nano_usd("cost_limit(usd)", usd, way_out=_in_words("cost=0.50usd")), options)


def turn_limit(n: int, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `n` model generations, whatever the attempts each of them takes."""
    return make_limit(Kind.TURNS, checks.count("turn_limit(n)", n), options)


def message_limit(n: int, **options: Unpack[LimitOptions]) -> Limit:
    """Allow a conversation of `n` messages, input items and answers together."""
    return make_limit(Kind.MESSAGES, checks.count("message_limit(n)", n), options)


def tool_call_limit(n: int, tool: str | None = None, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `n` starts of tools, or of the one named `tool`."""
    return make_limit(Kind.TOOL_CALLS, checks.count("tool_call_limit(n)", n), options, detail=checks.optional_name("tool", tool))


def request_limit(n: int, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `n` requests to generative endpoints, retries included."""
    return make_limit(Kind.REQUESTS, checks.count("request_limit(n)", n), options)


def time_limit(s: float, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `s` seconds of wall time from the moment the scope opens."""
    return make_limit(Kind.TIME, checks.nanoseconds("time_limit(s)", s, way_out=_in_words("time=90s")), options)


def working_limit(s: float, **options: Unpack[LimitOptions]) -> Limit:
    """Allow `s` seconds of wall time, declared waits not counted."""
    return make_limit(Kind.WORKING, checks.nanoseconds("working_limit(s)", s, way_out=_in_words("working=90s")), options)


def _in_words(example: str) -> str:
    return f"0 allows nothing; with a unit it is parse_limit('{example}')"


def make_limit(kind: str, value: int, options: Mapping[str, Any], *, detail: str | None = None, agent: str | None = None) -> Limit:
    """Build a limit from a checked value and the unchecked keywords; raise ConfigurationError for a wrong one."""
    given: dict[str, Any] = {}
    for keyword, stated in options.items():
        option = option_of(keyword)
        given[option.field] = option.read(stated)
    kind = _counting(kind, given)
    limit = Limit(kind=kind, value=value, detail=detail, agent=agent, **given)
    flaw = _flaw(limit, given)
    if flaw is not None:
        raise ConfigurationError(flaw)
    return limit


def _flaw(limit: Limit, given: Mapping[str, object]) -> str | None:
    """Return what of a limit could not be kept, or would change nothing."""
    if limit.scope_name is not None and limit.scope not in DOWNWARDS:
        return (
            f"name={checks.show(limit.scope_name)} names a handoff, block or agent: give scope='handoff', 'block' or 'agent' with it, "
            "or leave it out."
        )
    if limit.detail is not None and "*" in limit.detail:
        return f"tool {checks.show(limit.detail)} is a pattern, and none are known: name each tool in full."
    if limit.admission is not None and limit.kind not in SPENDS:
        return f"admission={limit.admission.value} concerns limits of tokens and cost, not one of {limit.counted}: leave it out."
    if limit.on_exceed is Outcome.FINAL and limit.kind not in _KEEPS_BACK:
        return f"on_exceed=final keeps some back for a last call, and of {limit.counted} nothing can be: write stop instead."
    if "tz" in given and not is_calendar(limit.per):
        return f"tz={checks.show(given['tz'])} says when a window begins: give per='day', or another window of the calendar, with it."
    return None


def _flaw_of_window(limit: Limit) -> str | None:
    """Return what of a limit cannot begin anew, or cannot be counted by what it is to be counted by."""
    if limit.per is not None:
        checks.window("per", limit.per)
        checks.zone("tz", limit.tz)
    if limit.by is not None:
        check_by("by", limit.by)
    given = f"per={limit.per}" if limit.per is not None else f"by={limit.by}"
    if limit.kind in Kind.__members__.values() and limit.kind not in _RENEWING:
        return (
            f"{given} goes with what is counted up, such as tokens, cost, requests or tool calls, not with {limit.counted}: leave it out."
        )
    if limit.on_exceed is Outcome.FINAL:
        return f"on_exceed=final keeps some back for the last call of a run, and a limit with {given} has none: write stop instead."
    if limit.by == "model" and limit.kind not in _KEEPS_BACK:
        return f"by=model goes with what a call of a model uses, tokens, cost, requests or turns, not with {limit.counted}: leave it out."
    return None


def _counting(kind: str, given: dict[str, Any]) -> str:
    """Return the kind that counts what `count` asks for, which stays among what is given only where it is a formula."""
    asked = given.pop("count", ALL)
    if asked == ALL:
        return kind
    if kind != Kind.TOKENS:
        raise ConfigurationError(f"count={checks.show(asked)} goes with a limit of tokens, not with one of {kind}: leave it out.")
    if asked in _KINDS_COUNTED:
        return _KINDS_COUNTED[asked]
    given["count"] = asked
    return kind


def option_of(keyword: str) -> Option:
    """Return the option of a limit that has this keyword; raise ConfigurationError naming the one that is meant."""
    option = OPTIONS.get(keyword)
    if option is None:
        close = checks.nearest(keyword, OPTIONS)
        hint = f"; did you mean {close}=?" if close else "."
        raise ConfigurationError(f"{checks.show(keyword)} is no keyword of a limit{hint} It takes {', '.join(OPTIONS)}.")
    return option


_KEEPS_BACK: Final = SPENDS | {Kind.REQUESTS, Kind.TURNS}
_RENEWING: Final = _KEEPS_BACK | {Kind.TOOL_CALLS}

_KINDS_COUNTED: Final = {"input": Kind.INPUT_TOKENS, "output": Kind.OUTPUT_TOKENS}
# -- how limits are written ---------------------------------------------------------------------------------------------

CHARGE: Final = "charge"
"""What stands before the name of a kind that the program counts itself."""
TOOL: Final = "tool"
TOOL_WORDS: Final = frozenset({TOOL, "tool_call", "tool_calls"})
WORDS: Final[dict[str, Kind]] = {str(kind): kind for kind in Kind} | {kind.removesuffix("s"): kind for kind in Kind if kind.endswith("s")}
"""The words for each kind, in the plural and the singular."""
COUNT_UNITS: Final = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}

_RESERVED: Final = frozenset({*WORDS, *PREFIXES, TOOL, CHARGE})


def format_limit(limit: Limit) -> str:
    """Write a limit so that `parse_limit` reads the same one back: `session.cost=2.5usd:per=day`."""
    scope = "" if limit.scope is None else f"{limit.scope}."
    if limit.scope_name is not None:
        scope += f"{_quote(limit.scope_name)}."
    agent = "" if limit.agent is None else f"@{_quote(limit.agent)}"
    return f"{scope}{_format_kind(limit)}{agent}={_format_value(limit.kind, limit.value)}{_format_options(limit)}"


def _format_kind(limit: Limit) -> str:
    if limit.detail is not None:
        return f"{TOOL}.{_quote(limit.detail)}"
    return str(limit.kind) if limit.kind in WORDS else f"{CHARGE}.{_quote(limit.kind)}"


def _quote(text: str) -> str:
    if text not in _RESERVED and all(char.isalnum() or char in "-_" for char in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _format_value(kind: str, value: int) -> str:
    if kind == Kind.COST:
        return f"{_decimal(value)}usd"
    if kind in CLOCKS:
        return f"{_decimal(value)}s"
    for unit in ("M", "k"):
        if value and value % COUNT_UNITS[unit] == 0:
            return f"{value // COUNT_UNITS[unit]}{unit}"
    return str(value)


def _decimal(nano: int) -> str:
    whole, rest = divmod(nano, NANO)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def _format_options(limit: Limit) -> str:
    stated = ((option, getattr(limit, option.field)) for option in WORDED.values())
    return "".join(f":{option.word}={value}" for option, value in stated if value != option.default)


def format_amount(kind: str, amount: int) -> str:
    """Write an inner amount for people: `$0.50`, `90 s`, `4200`."""
    if kind == Kind.COST:
        digits = f"{amount / NANO:.9f}".rstrip("0")
        whole, _, part = digits.partition(".")
        return f"${whole}.{part.ljust(2, '0')}"
    return f"{_seconds(amount)} s" if kind in CLOCKS else str(amount)


def format_public_amount(kind: str, amount: float) -> str:
    """Write an amount in the kind's public unit for people; what is no number is unknown."""
    inner = amount * NANO if kind == Kind.COST or kind in CLOCKS else amount
    return format_amount(kind, round(inner)) if isfinite(inner) else "unknown"


def _seconds(nano: int) -> str:
    """Write seconds with three decimals at most; less than that is not nothing."""
    return f"{nano / NANO:.3f}".rstrip("0").rstrip(".") if nano >= NANO // 1_000 or nano <= 0 else f"{nano / NANO:.1g}"


# -- where a limit was written ----------------------------------------------------------------------------------------

WRITTEN_AS_OPTION: Final = "--limit"
WRITTEN_AS_VARIABLE: Final = "RAVI_LIMIT_"


_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
NOWHERE: Final[Mapping[int, str]] = MappingProxyType({})
"""What `stated` says of no limits."""


class Stated(str):
    """A limit as its user wrote it in a program, and the `place` of that: a file and a line."""

    __slots__ = ("place",)
    place: str


def stated(limits: Sequence[Limit]) -> Mapping[int, str]:
    """Return for each limit by its index what a refusal calls it, with the line outside of this package that gave it."""
    frame = sys._getframe(1) if limits else None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]  # documented, and much faster than `inspect`
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return NOWHERE
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    found: dict[int, str] = {}
    for at, limit in enumerate(limits):
        found[at] = known = Stated(format_limit(limit))
        known.place = place
    return found


def place_of(origin: str) -> str | None:
    """Return where a limit was written, from what a refusal calls it: a line of a file, an option, a variable; None for others."""
    if isinstance(origin, Stated):
        return origin.place
    if origin.startswith(f"{WRITTEN_AS_OPTION} "):
        return WRITTEN_AS_OPTION
    if origin.startswith(WRITTEN_AS_VARIABLE):
        return origin.partition("=")[0]
    return origin.rpartition(" in ")[2] if " in " in origin else None
