"""What an operator may see and change in a store that processes share, whatever the store is.

An operator has no scope open: it looks at the counters as they are kept, and names them by what their keys say. Everything a store
gives is checked here before it is believed: others write there, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from json import loads  # as it is now: the program may make tools of that module's functions
from typing import Any, Final, Protocol

from ravi_otel._flow import Flow
from ravi_otel.policy._checks import WINDOWS
from ravi_otel.policy._limits import ALL, ScopeKind

MOST_LISTED: Final = 10_000
"""How many counters one listing has at most."""

_LONGEST_KEY: Final = 8_192
_ID_DIGITS: Final = 12
_FIELDS: Final = ("kind", "detail", "agent", "count", "per", "tz", "by", "observes")
"""What a key says of the limit, in its order: after the scope and its place, and before the part."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Show one account of a store, in its kind's inner integer unit.

    `at` is where the store keeps it: opaque, given back to it and shown to nobody. `key` is `Account.key`. `declared` is the smallest
    limit that a program stated for it, `value` the one in force. `used_s` is when it was last used, in seconds since 1970, None when
    the store cannot say; `epoch` what the store calls its life.
    """

    at: str
    key: str
    value: int
    used: int
    held: int
    denied: int = 0
    near: bool = False
    exceeded: bool = False
    draining: bool = False
    declared: int | None = None
    used_s: float | None = None
    epoch: str | None = None

    @property
    def id(self) -> str:
        """Return a short name that is the same in every store: 12 hexadecimal digits."""
        return hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]

    @property
    def ratio(self) -> float:
        """Return how much of it is used: 1.0 is all of it, infinity where nothing was allowed and something was used."""
        return self.used / self.value if self.value else (math.inf if self.used else 0.0)


@dataclass(frozen=True, slots=True)
class Listing:
    """Show a store's counters; `left_out` says that there are more. `processes` live, `waiting` stand in line, None: unknown."""

    counters: Sequence[Counter]
    left_out: bool = False
    processes: int | None = None
    waiting: int | None = None


class Operated(Protocol):
    """A store that an operator can look at; a store itself raises StoreError, and the ledger before it BudgetExhaustedError."""

    def list_accounts(self, *, most: int = MOST_LISTED) -> Flow[Listing]:
        """Show at most so many counters, in any order, changing nothing: no lease, no reaping, no counter made."""
        ...

    def set_limit(self, counter: Counter, value: int) -> Flow[Counter | None]:
        """Set another limit on a counter that is there, as `Ledger.retune` does; return it as it is now, None when it is gone.

        A higher one ends draining and arms its events again. `declared` stays as it is: a program that states again what it stated
        before changes nothing. None, too, when the counter's `epoch` is another by now. Whoever stands in line is judged again at the
        next look.
        """
        ...

    def accept_loss(self) -> Flow[None]:
        """Have every process that knew a counter which is gone count it anew from nothing: what it saw before this is given up."""
        ...

    def reap(self, *, everybody: bool = False) -> int:
        """End what processes left behind whose lease ran out; with `everybody`, what any other process holds. Return how many."""
        ...

    def close_scope(self, counters: Sequence[Counter]) -> Flow[int]:
        """Let nothing more be spent on these counters; return how many of them were there.

        Each gets `value` 0 and is `draining`, with `near` and `exceeded` set, so that nothing is told as if a program had reached its
        limit. What is held stays held until it is settled. A higher limit opens it again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """Say which limit of which scope a key counts: all of it text from outside, to be cleaned before it is shown."""

    scope: ScopeKind
    place: tuple[str | None, ...]
    kind: str
    detail: str | None
    agent: str | None
    per: str | None
    by: str | None
    count: str
    part: tuple[str, ...]
    tz: str | None = None
    observes: bool = False

    @property
    def name(self) -> str:
        """Return the scope's own id: the session's, the tenant's, or the scope's."""
        return self.place[-1] or ""

    @property
    def label(self) -> str:
        """Write the limit as the grammar does, without its value: `cost:per=day:tz=Europe/Berlin`, `tool.search`, `tokens@researcher`."""
        counted = f"tool.{self.detail}" if self.detail is not None else self.kind if self.count == ALL else f"{self.kind}({self.count})"
        agent = f"@{self.agent}" if self.agent else ""
        zone = f":tz={self.tz}" if self.per in WINDOWS and self.tz and self.tz != "UTC" else ""
        observes = ":on=observe" if self.observes else ""
        return f"{counted}{agent}{f':per={self.per}' if self.per else ''}{zone}{f':by={self.by}' if self.by else ''}{observes}"

    @property
    def tenant(self) -> str | None:
        """Return the tenant's id where the key has one: those of tenants and sessions do."""
        return self.place[0] if len(self.place) > 1 else None


def named(key: str) -> Named | None:
    """Read what a key counts; None for a key that no account of this version has."""
    try:
        return _named(loads(key)) if len(key) <= _LONGEST_KEY else None
    except (ValueError, RecursionError, TypeError):
        return None


def _named(found: Any) -> Named | None:
    scope, place, *rest = found
    limit, part = dict(zip(_FIELDS, rest, strict=False)), rest[len(_FIELDS) :]
    if type(limit.get("observes")) is not bool:
        return None
    must = [limit.get("kind"), limit.get("count"), *part]
    may = [*place, *(limit.get(name) for name in ("detail", "agent", "per", "by", "tz"))]
    if not place or not all(isinstance(each, str) for each in must) or not all(each is None or isinstance(each, str) for each in may):
        return None
    return Named(
        scope=ScopeKind(scope),
        place=tuple(place),
        kind=limit["kind"],
        detail=limit["detail"],
        agent=limit["agent"],
        per=limit["per"],
        by=limit["by"],
        count=limit["count"],
        part=tuple(part),
        tz=limit["tz"],
        observes=limit["observes"],
    )
