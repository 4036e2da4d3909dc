"""Snapshots of runs, with which another process can go on: what was used, never what is allowed.

What comes back may have been anywhere since, and is checked like anything from outside. Limits are always the host's: a snapshot
holds none, and nothing in it makes a counter smaller than it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields
from typing import Any, Final, NoReturn, cast

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.series import how_it_renews
from ravi_otel._enforcement.usage_counters import Key, UsageCounters
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ALL, Kind, ScopeKind, formula_of
from ravi_otel.policy._runs import ScopeFacts

VERSION: Final = 1
FORMAT: Final = "ravi-otel.snapshot"
MOST_CHARACTERS: Final = 16 * 1024 * 1024
MOST_ENTRIES: Final = 10_000
"""Counters, kinds and operation ids that one snapshot may hold, each."""

_MOST_PARTS: Final = 3
TALLIED: Final = tuple(name for name in UsageCounters.__slots__ if name not in {"charged", "consumed"})
"""Plain counters of a scope's tally."""

_SCOPES: Final = (ScopeKind.TENANT.value, ScopeKind.SESSION.value, ScopeKind.RUN.value)
SHARED_SCOPES: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})
"""Scopes around a run whose counters are in its snapshot too."""

_AGAIN: Final = "give what snapshot() or to_json() of this release gave, unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """How far one limit's counter had come, in the kind's inner unit (nano-USD, nanoseconds, else a count).

    `used` holds what calls in flight were granted, too. `near`, `exceeded` and `draining` were told or true of a limit of
    `told_at`, which says only whether the host's own limit is higher, and never becomes one. Of a limit that begins anew, or counts by
    somebody, `renews` says how, in its options' words, and `part` which of its counters it is: the window, and whose.
    """

    scope: str
    kind: str
    agent: str | None = None
    used: int
    told_at: int
    near: bool = False
    exceeded: bool = False
    draining: bool = False
    denied: int = 0
    renews: str | None = None
    part: tuple[str, ...] = ()

    @classmethod
    def of(cls, account: Account, elapsed_ns: int) -> Counter:
        """Return a copy of one counter; `elapsed_ns` is how much of it has passed where it is one of time."""
        used = account.held + account.used  # in this order: a call in flight, taken to use all that it was granted, is never missed
        if account.nature is Nature.CLOCK:
            used = max(used, elapsed_ns)
        return cls(
            scope=account.facts.kind.value,
            kind=account.kind,
            agent=account.limit.agent,
            used=max(0, min(used, checks.MAX_NANO)),
            told_at=account.value,
            near=account.near,
            exceeded=account.exceeded,
            draining=account.draining,
            denied=account.denied,
            renews=how_it_renews(account.limit),
            part=account.part,
        )

    def arm(self, account: Account) -> None:
        """Carry over what was told, unless the host allows more now than when it was."""
        account.denied += self.denied
        if account.value > self.told_at:
            return
        account.draining = account.draining or (self.draining and account.drainable)
        for event, told in (("limit_nearing", self.near), ("limit_exceeded", self.exceeded)):
            if told and event not in account.events:
                account.events = (*account.events, event)
        account.near = account.near or self.near
        account.exceeded = account.exceeded or self.exceeded

    def __post_init__(self) -> None:
        """Check every field; ConfigurationError names it."""
        _optional_name("counters.renews", self.renews)
        for word in _collection("counters.part", self.part, tuple, most=_MOST_PARTS):
            if word != "":
                _name("counters.part", word)
        if self.scope not in _SCOPES:
            _wrong("counters.scope", self.scope, f"must be one of {', '.join(_SCOPES)}")
        _name("counters.kind", self.kind)
        _optional_name("counters.agent", self.agent)
        for name in ("used", "told_at", "denied"):
            _number(f"counters.{name}", getattr(self, name))
        for name in ("near", "exceeded", "draining"):
            _flag(f"counters.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a run has used, to go on with it elsewhere: `run(..., resume=snapshot)`, or its `to_json()`.

    Made by `scope.snapshot()`. `elapsed_ns` is how long the run was open, `waited_ns` how much of that were declared waits.
    `tally` and `charged` are what its `stats()` counted, `counters` how far its own limits had come, and those of its session and
    tenant. `op_ids` are the pieces of work that are not charged again. `wrapped` says that its last call was made.
    """

    run_id: str
    session_id: str | None = None
    tenant_id: str | None = None
    elapsed_ns: int = 0
    waited_ns: int = 0
    tally: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    charged: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    counters: tuple[Counter, ...] = ()
    op_ids: tuple[tuple[str, str], ...] = ()
    wrapped: bool = False
    version: int = VERSION

    def __post_init__(self) -> None:
        """Check every field; ConfigurationError names it."""
        if type(self.version) is not int or self.version != VERSION:
            _wrong("version", self.version, f"is not the version that this release reads, {VERSION}: take a new snapshot")
        _name("run_id", self.run_id)
        _optional_name("session_id", self.session_id)
        _optional_name("tenant_id", self.tenant_id)
        _number("elapsed_ns", self.elapsed_ns)
        _number("waited_ns", self.waited_ns)
        if self.waited_ns > self.elapsed_ns:
            _wrong("waited_ns", self.waited_ns, f"is more than elapsed_ns={self.elapsed_ns}: {_AGAIN}")
        _flag("wrapped", self.wrapped)
        for name in ("tally", "charged"):
            for key, amount in _collection(name, getattr(self, name), Mapping).items():
                _name(name, key)
                if name == "tally" and key not in TALLIED:
                    _wrong(name, key, f"is nothing that is counted: {_AGAIN}")
                _number(f"{name}.{key}", amount)
        for counter in _collection("counters", self.counters, tuple):
            if not isinstance(counter, Counter):
                _wrong("counters", counter, "must be a Counter")
        for key in _collection("op_ids", self.op_ids, tuple):
            if len(_collection("op_ids", key, tuple, 2)) != 2:  # noqa: PLR2004 - a kind and an id
                _wrong("op_ids", key, "must be a pair of a kind and an id")
            _name("the kind in op_ids", key[0], "sql_rows")
            _name("the id in op_ids", key[1], "page 7")

    @classmethod
    def of(
        cls,
        facts: ScopeFacts,
        run_id: str,
        usage: UsageCounters,
        *,
        elapsed_ns: int,
        waited_ns: int,
        counters: Iterable[Counter],
        op_ids: tuple[Key, ...],
        wrapped: bool,
    ) -> Snapshot:
        """Write down a run, as it was read in one step."""
        elapsed = max(0, elapsed_ns)
        return cls(
            run_id=run_id,
            session_id=facts.session_id,
            tenant_id=facts.tenant_id,
            elapsed_ns=elapsed,
            waited_ns=max(0, min(elapsed, waited_ns)),
            tally={name: max(0, getattr(usage, name)) for name in TALLIED},
            charged=dict(usage.charged),
            counters=tuple(counters),
            op_ids=op_ids,
            wrapped=wrapped,
        )

    def used_of(self, account: Account) -> int:
        """Return what the run had used of a kind that nothing limited then; 0 where it was not counted, by a formula the most it can be."""
        if account.limit.agent is not None:
            return 0
        tally = self.tally
        if account.limit.count != ALL:
            given, made, cached = (tally.get(f"{name}_tokens", 0) for name in ("input", "output", "cached_input"))
            return min(formula_of(account.limit.count).sum_of(given, made, cached), checks.MAX_NANO)
        known = {
            Kind.TOKENS.value: sum(tally.get(name, 0) for name in ("input_tokens", "output_tokens", "unsplit_tokens")),
            Kind.INPUT_TOKENS.value: tally.get("input_tokens", 0),
            Kind.OUTPUT_TOKENS.value: tally.get("output_tokens", 0),
            Kind.COST.value: tally.get("cost_nano", 0),
            Kind.REQUESTS.value: tally.get("requests", 0),
            Kind.TURNS.value: tally.get("turns", 0),
            Kind.TOOL_CALLS.value: tally.get("tool_calls", 0),
            Kind.AGENTS_TOTAL.value: tally.get("agents", 0),
        }
        return known.get(account.kind, self.charged.get(account.kind, 0))

    def to_json(self) -> str:
        """Write it as one line of JSON."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        content["counters"] = [{each.name: getattr(counter, each.name) for each in fields(counter)} for counter in self.counters]
        return json.dumps({"format": FORMAT, **content}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Read what `to_json` wrote; raises ConfigurationError for anything else, and changes nothing."""
        content = _object("snapshot", _parsed(text), {"format", *(each.name for each in fields(cls))})
        if content.pop("format", None) != FORMAT:
            _wrong("format", None, f"must be {FORMAT!r}: {_AGAIN}")
        known, counters = {each.name for each in fields(Counter)}, list[Counter]()
        for one in _collection("counters", content["counters"], list):
            counter = _object("snapshot: one of its counters", one, known)
            counter["part"] = tuple(_collection("counters.part", counter["part"], list))
            counters.append(Counter(**counter))
        pairs = [tuple(_collection("op_ids", one, list)) for one in _collection("op_ids", content["op_ids"], list)]
        content.update(counters=tuple(counters), op_ids=tuple(pairs))
        return cls(**content)


def _parsed(text: object) -> object:
    if not isinstance(text, (str, bytes)):
        raise ConfigurationError(f"snapshot={checks.show(text)} must be a Snapshot or the text of its to_json().")
    if len(text) > MOST_CHARACTERS:
        raise ConfigurationError(f"snapshot of {len(text)} characters is longer than {MOST_CHARACTERS}: {_AGAIN}.")
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"snapshot={checks.show(text)} is no JSON: {_AGAIN}.") from None


def _no_number(word: str) -> NoReturn:
    raise ConfigurationError(f"snapshot holds {checks.show(word)}, and every amount in it is a whole number: {_AGAIN}.")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ConfigurationError(f"snapshot says something twice, one of {checks.show([key for key, _ in pairs])}: {_AGAIN}.")
    return found


def _wrong(name: str, value: object, what: str) -> NoReturn:
    raise ConfigurationError(f"snapshot: {name}={checks.show(value)} {what}.")


def _object(what: str, value: object, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{what}={checks.show(value)} must be an object: {_AGAIN}.")
    content = cast("dict[str, Any]", value)
    for said, odd in (("has no", known - content.keys()), ("has the unknown", content.keys() - known)):
        if odd:
            some = ", ".join(checks.show(each) for each in sorted(odd)[:5])
            raise ConfigurationError(f"{what} {said} {'fields' if len(odd) > 1 else 'field'} {some}: {_AGAIN}.")
    return content


def _collection(name: str, value: object, of: type, most: int = MOST_ENTRIES) -> Any:
    if not isinstance(value, of) or len(cast("Sized", value)) > most:
        _wrong(name, value, f"must be a {of.__name__.lower()} of at most {most}: {_AGAIN}")
    return value


def _name(name: str, value: object, example: str | None = None) -> None:
    checks.name(f"snapshot: {name}", value, example)


def _optional_name(name: str, value: object) -> None:
    checks.optional_name(f"snapshot: {name}", value)


def _flag(name: str, value: object) -> None:
    if type(value) is not bool:
        _wrong(name, value, "must be true or false")


def _number(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= checks.MAX_NANO:
        _wrong(name, value, "must be a whole number from 0 to 2**63 - 1")
