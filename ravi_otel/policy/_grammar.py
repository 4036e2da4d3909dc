r"""Read limits from one line of text; `limits.format_limit` writes them back.

::

    [scope[.name].]kind[.tool][@agent]=value[unit][:option=value]…

    tokens=500k   cost=2.50usd   time=90s   tool.search=5   handoff.researcher.message=12   tokens@researcher=50k
    session.requests=500:per=day:tz=Europe/Berlin   cost=$2:warn=0.5:on=stop   charge.sql_rows=1000
    tenant.cost=50usd:per=month:by=user   tokens=100k:per=90m
    tokens=500k:count=uncached   tokens=2M:count=input+4*output-cached

A name with other characters than letters, digits, `-` and `_` in it is written in double quotes; `\"` and `\\` inside
them stand for themselves. Reading takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, NoReturn

from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import (
    BY,
    CHARGE,
    CLOCKS,
    COUNT_UNITS,
    DOWNWARDS,
    NANO,
    PREFIXES,
    TOOL,
    TOOL_WORDS,
    WORDED,
    WORDS,
    Kind,
    Limit,
    Option,
    ScopeKind,
    make_limit,
)

MAX_SPEC: Final = 4_096
"""Longest limit that is read: more than every name at its longest, quoted."""

_MAX_DIGITS: Final = 40
_CURRENCIES: Final = " €£¥abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_PER_AGENT: Final = CLOCKS | {Kind.MESSAGES, Kind.AGENTS, Kind.DEPTH}
_TIME_UNITS: Final = {"": NANO, "ms": NANO // 1_000, "s": NANO, "m": 60 * NANO, "h": 3_600 * NANO}
_EXAMPLES: Final[dict[str, str]] = {
    Kind.COST: "cost=2.50usd",
    Kind.TIME: "time=90s",
    Kind.WORKING: "working=90s",
    Kind.MESSAGES: "message=24",
    Kind.REQUESTS: "requests=500",
    Kind.TURNS: "turns=20",
    Kind.TOOL_CALLS: "tool_calls=8",
    Kind.AGENTS: "agents=10",
    Kind.AGENTS_TOTAL: "agents_total=20",
    Kind.DEPTH: "depth=3",
    Kind.FAN_OUT: "fan_out=4",
}


_WINDOWED: Final = frozenset({"per", "tz", "by"})
_PIECE: Final = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"\s*|([^.@=:]*))(.?)""", re.DOTALL)
"""One piece of what stands left of the equals sign, in double quotes or bare, and the mark behind it."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class Word(NamedTuple):
    """Hold one piece of a dotted path; a quoted one is never a keyword."""

    text: str
    quoted: bool


def parse_limit(spec: str) -> Limit:
    """Read one limit; raise LimitSyntaxError naming what was written, what is wrong and a right example."""
    if not isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # files and callers give other things
        raise LimitSyntaxError(f"limit {checks.show(spec)} is not text; write it like tokens=500k.", spec=checks.show(spec))
    return _Reader(spec).limit()


def parse_limits(specs: Iterable[str]) -> tuple[Limit, ...]:
    """Read several limits; two for the same thing are a LimitSyntaxError that names both."""
    if isinstance(specs, str):
        raise LimitSyntaxError(f"limits {checks.show(specs)} is one text; give a list such as ['tokens=500k', 'time=90s'].", spec=specs)
    seen: dict[object, str] = {}
    limits: list[Limit] = []
    for spec in specs:
        limit = parse_limit(spec)
        if limit.target in seen:
            raise LimitSyntaxError(
                f"limit {checks.show(spec)} is there twice: {checks.show(seen[limit.target])} sets the same one; keep one of them.",
                spec=spec,
            )
        seen[limit.target] = spec
        limits.append(limit)
    return tuple(limits)


class NamedKind(NamedTuple):
    """Hold what stands left of a limit's equals sign; `name` is what accounts call its kind: `tokens`, `tool.search`, `sql_rows`."""

    kind: str
    detail: str | None = None
    agent: str | None = None
    scope: str | None = None
    scope_name: str | None = None

    @property
    def name(self) -> str:
        """Return it as accounts name it."""
        return self.kind if self.detail is None else f"{TOOL}.{self.detail}"


def read_kind(parameter: str, written: object, *, own: bool = False) -> NamedKind:
    """Read a kind as limits spell it, without a value: `tokens`, `request`, `tool.search`, `charge.sql_rows`, `tokens@researcher`.

    With `own`, a word that is none of these is a kind of the program's own, without `charge.` in front. Raises LimitSyntaxError, a
    ConfigurationError, which lists the kinds and names the one that is meant.
    """
    word = checks.name(parameter, written, "tokens")
    return _Reader(word, parameter).kind(own=own)


class _Reader:
    """Read one limit, and know what to say when it is wrong."""

    def __init__(self, spec: str, parameter: str | None = None) -> None:
        self._spec = spec
        self._parameter = parameter
        self._example = "tokens=500k"

    def limit(self) -> Limit:
        """Read it all."""
        if len(self._spec) > MAX_SPEC:
            self._refuse(f"it is longer than {MAX_SPEC} characters")
        written = self._spec.partition("=")[0].strip()
        if written in WORDS:  # without a value there is no telling what comes before it
            self._example = _EXAMPLES.get(WORDS[written], f"{written}=500k")
        path, at = self._path(self._spec)
        target = self._target(path)
        if target.kind in WORDS:
            self._example = _EXAMPLES.get(target.kind, f"{target.kind}=500k")
        value, *options = self._spec[at:].split(":")
        *number, last = value.replace("/", " ").split() or [""]
        if number and last in checks.WINDOWS:
            self._refuse(f"the window is an option: write {checks.show(f'{number[0]}:per={last}')}")
        amount = self._value(target.kind, value.strip())
        fields = self._options(options)
        fields |= {name: given for name, given in (("scope", target.scope), ("name", target.scope_name)) if given is not None}
        try:
            return make_limit(target.kind, amount, fields, detail=target.detail, agent=target.agent)
        except ConfigurationError as error:
            self._refuse(str(error).removesuffix("."))

    def kind(self, *, own: bool) -> NamedKind:
        """Read what stands left of the equals sign, where nothing else stands."""
        path, end = self._path(f"{self._spec}=")
        if end <= len(self._spec):
            self._refuse("a value goes with a limit, and here stands a kind alone")
        plain = self._spec.partition("@")[0]
        words = [word for word in (path[: path.index(None)] if None in path else path) if word is not None]
        if own and _kind_starts(words) is None and not any(word.quoted for word in words):
            agent = self._spec.partition("@")[2]
            return NamedKind(plain, agent=agent or None)
        return self._target(path)

    def _refuse(self, what: str) -> NoReturn:
        """Raise what says of the text what is wrong with it, and what would be right."""
        if self._parameter is not None:
            raise LimitSyntaxError(f"{self._parameter}={checks.show(self._spec)}: {what}.", spec=self._spec) from None
        end = "" if what.endswith("?") else "."
        raise LimitSyntaxError(f"limit {checks.show(self._spec)}: {what}{end} For example: {self._example}", spec=self._spec) from None

    def _path(self, spec: str) -> tuple[list[Word | None], int]:
        """Cut what is left of the first unquoted `=` into words; return them, None for an `@`, and where the value begins."""
        path: list[Word | None] = []
        at = 0
        while True:
            piece = _PIECE.match(spec, at)
            assert piece is not None
            quoted, bare, mark = piece.groups()
            if quoted is None and bare.startswith('"'):
                self._refuse("a closing quote is missing")
            path.append(Word(bare.rstrip(), quoted=False) if quoted is None else Word(_ESCAPED.sub(r"\1", quoted), quoted=True))
            at = piece.end()
            if mark == "=":
                return path, at
            if mark == "@" and None not in path:
                path.append(None)
            elif mark == "@":
                self._refuse("@ is there twice")
            elif mark == ":":
                self._refuse(self._colon(path, at))
            elif mark != ".":
                self._refuse(f"{mark!r} stands before the value" if mark else "'=' and a value are missing")

    def _colon(self, path: list[Word | None], at: int) -> str:
        """Return what to write where a colon stands left of the equals sign."""
        before = self._spec[: at - 1].rstrip()
        head, name = path[-1], self._spec[at:].partition("=")[0].strip()
        named = head is not None and not head.quoted and (head.text in TOOL_WORDS or head.text == CHARGE)
        if named and name and name not in WORDED:
            return f"a dot stands before a name, no colon: write {checks.show(f'{before}.{name}')}"
        if self._parameter is not None:
            return f"a kind stands alone here, without options: write {checks.show(before)}"
        return "':' stands before the value; options come behind it"

    def _target(self, path: list[Word | None]) -> NamedKind:
        """Read the dotted path; None in it stands for the `@` before the agent."""
        split = path.index(None) if None in path else len(path)
        words = [word for word in path[:split] if word is not None]
        agent_words = [word for word in path[split + 1 :] if word is not None]
        agent = self._name("the agent after @", agent_words) if split < len(path) else None
        scope = words[0].text if len(words) > 1 and not words[0].quoted and words[0].text in PREFIXES else None
        rest = words if scope is None else words[1:]
        start = _kind_starts(rest)
        if start is None or (start and scope is None):
            self._refuse(_unknown(rest, start, scope))
        scope_name = self._name(f"the {scope}", rest[:start]) if start else None
        if scope_name is not None and scope not in DOWNWARDS:
            self._refuse(f"{scope} takes no name, so leave {checks.show(scope_name)} out")
        target = self._kind(rest[start:])._replace(agent=agent, scope=scope, scope_name=scope_name)
        if agent is not None and (target.kind in _NOT_PER_AGENT or scope == ScopeKind.AGENT):
            self._refuse(f"@ sums what all agents of a name spend, which {scope or target.kind} cannot be; {self._instead(target)}")
        return target

    def _instead(self, target: NamedKind) -> str:
        """Return how to limit agents of a name where `@` cannot."""
        self._example = "agent.researcher.message=12"
        if target.scope == ScopeKind.AGENT:
            return "leave the @ and what follows it out"
        if target.kind not in {Kind.AGENTS, Kind.DEPTH}:
            return "write agent.NAME. in front"
        self._example = "fan_out@researcher=4"
        return "fan_out@NAME limits the live agents under each of them, agents_total@NAME how many of them are entered"

    def _kind(self, words: list[Word]) -> NamedKind:
        head = words[0].text
        if head in TOOL_WORDS and len(words) > 1:
            return NamedKind(Kind.TOOL_CALLS, detail=self._name("the tool", words[1:]))
        if head == CHARGE:
            own = self._name("the kind", words[1:])
            if own in WORDS:
                self._refuse(f"{own!r} is built in, so write it without {CHARGE}")
            return NamedKind(own)
        return NamedKind(WORDS[head])

    def _name(self, whose: str, words: list[Word]) -> str:
        text = ".".join(word.text for word in words)
        flaw = checks.flaw_of_name(text)
        if flaw is not None or not all(word.text for word in words):
            self._refuse(f"the name of {whose} {flaw or 'has an empty part'}")
        return text

    def _value(self, kind: str, text: str) -> int:
        if not text:
            self._refuse("the value after = is missing")
        if text.startswith("-"):
            self._refuse(f"{checks.show(text)} is negative; 0 allows nothing, and no limit at all is unlimited")
        if kind == Kind.COST:
            bare = text.removeprefix("$")
            bare = bare[:-3] if bare[-3:].lower() == "usd" else bare
            if bare and not _is_number(bare.strip()) and _is_number(bare.strip(_CURRENCIES)):
                self._refuse(f"value {checks.show(text)} has another unit than usd, which is the only one known")
            return self._scaled(bare.strip(), NANO, text, checks.MAX_NANO)
        units = _TIME_UNITS if kind in CLOCKS else COUNT_UNITS
        if text[:1].isalpha():
            self._refuse(f"value {checks.show(text)} is not a number")
        bare = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        unit = text[len(bare) :]
        if unit not in units:
            self._refuse(f"unit {checks.show(unit)} is unknown here; use {', '.join(known for known in units if known)} or none")
        value = self._scaled(bare.strip(), units[unit], text, checks.MAX_NANO if kind in CLOCKS else checks.MAX_COUNT)
        if kind == Kind.AGENTS and value == 0:
            self._refuse("agents must be at least 1, because the root agent counts as 1")
        return value

    def _scaled(self, number: str, unit: int, written: str, most: int) -> int:
        """Multiply in whole numbers: nothing is rounded, and no decimal context of the program matters."""
        if not _is_number(number):
            self._refuse(f"value {checks.show(written)} is not a number")
        whole, _, part = number.partition(".")
        parts: int = 10 ** len(part)
        value, rest = divmod(int(whole + part) * unit, parts)
        if rest:
            self._refuse(f"value {checks.show(written)} is a fraction of what can be counted; round it")
        if value > most:
            self._refuse(f"value {checks.show(written)} is too large; leave the limit out to allow as much as that")
        return value

    def _options(self, parts: list[str]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for part in parts:
            word, equals, value = (piece.strip() for piece in part.partition("="))
            option = WORDED.get(word)
            if option is None or not equals or not value:
                close = checks.nearest(word, WORDED)
                hint = f", did you mean {close}=…" if close and close != word else ""
                self._refuse(f"option {checks.show(part)} is unknown{hint}; write one of {', '.join(f'{known}=…' for known in WORDED)}")
            if option.keyword in given:
                self._refuse(f"option {word} is there twice")
            given[option.keyword] = self._option(option, value)
        return given

    def _option(self, option: Option, value: str) -> Any:
        word = option.word
        if word in _WINDOWED:
            self._example = "requests=500:per=day:tz=Europe/Berlin:by=user"
        first, comma, rest = value.partition(",")
        if comma and rest.partition("=")[0].strip() in WORDED:
            self._refuse(f"a colon stands before each option: write {word}={first}:{rest.strip()}")
        try:
            return option.read(float(value) if option.number and _is_number(value) else value, word)
        except ConfigurationError as error:
            self._refuse(str(error).removesuffix("."))


def _is_number(text: str) -> bool:
    digits = text.replace(".", "", 1)
    return len(text) <= _MAX_DIGITS and digits.isascii() and digits.isdigit()


def _kind_starts(words: list[Word]) -> int | None:
    """Find the first place from which the words are a kind: `tokens`, `tool.NAME` or `charge.NAME`."""
    for at, word in enumerate(words):
        last = at == len(words) - 1
        if word.quoted:
            continue
        if (word.text in WORDS) if last else (word.text == CHARGE or word.text in TOOL_WORDS):
            return at
    return None


def _unknown(words: list[Word], start: int | None, scope: str | None) -> str:
    if start is not None:
        name = words[0].text
        close = checks.nearest(name, PREFIXES)
        hint = f", did you mean {close!r}" if close else f", for an agent write agent.{checks.show(name)[1:-1]}."
        hint = f", for each {name} write :by={name} behind the value" if name in BY else hint
        return f"{checks.show(name)} is no scope{hint}; the scopes are {', '.join(PREFIXES)}"
    word = words[-1].text
    if not word:
        return "the kind is missing"
    if word in {TOOL, CHARGE}:
        return f"{word} needs a name, such as {word}.search"
    close = checks.nearest(word, (*WORDS, *PREFIXES) if scope is None and len(words) > 1 else WORDS)
    before = checks.nearest(words[-2].text, (TOOL, CHARGE)) if len(words) > 1 and not words[-2].quoted else None
    close = f"{before}.{word}" if before else close
    hint = f", did you mean {checks.show(close)}" if close else ""
    return (
        f"kind {checks.show(word)} is unknown{hint}; the kinds are {', '.join(Kind)}, and {CHARGE}.NAME is one your program charges itself"
    )
