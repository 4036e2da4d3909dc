"""Say what a ledger is: accounts, reservations, and the answers to them.

One verb for one act: `reserve` holds or charges over all accounts of a call at once, root to leaf, all or nothing;
`settle` replaces what was held by what was used; `release` gives everything back because nothing was sent.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Literal, Protocol

from ravi_otel._flow import Flow
from ravi_otel.hooks.records import Phase
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import CLOCKS, SPENDS, Admission, Kind, Limit, Outcome, ScopeKind

Reason = Literal["exhausted", "too_large", "draining", "contended", "closed"]


class Nature(IntEnum):
    """Tell how a kind is counted."""

    COUNTED = 0
    """A sum known beforehand: charged inside `reserve`."""
    HELD = 1
    """A sum known afterwards: held by `reserve`, corrected by `settle`."""
    AFTER = 2
    """A sum known afterwards of which nothing is held: `admission="after"`."""
    LEVEL = 3
    """A height that must not be passed."""
    CLOCK = 4
    """Time since the scope opened; never reserved."""


_operations = itertools.count(1)
_process = f"{os.getpid():x}-{secrets.token_hex(4)}"


def _new_process() -> None:
    global _process  # noqa: PLW0603 - written once in a forked child, before anything runs there
    _process = f"{os.getpid():x}-{secrets.token_hex(4)}"


os.register_at_fork(after_in_child=_new_process)


def new_op_id() -> str:
    """Make up an operation's id, unique over processes."""
    return f"{_process}-{next(_operations):x}"


_DRAINING_KINDS = frozenset({*SPENDS, Kind.REQUESTS, Kind.TURNS})
_DRAINING_SCOPES = frozenset({ScopeKind.PROCESS, ScopeKind.RUN, ScopeKind.BLOCK, ScopeKind.HANDOFF, ScopeKind.AGENT})
_LEVELS = frozenset({Kind.MESSAGES, Kind.DEPTH})
DEFAULT_WARN_AT = 0.8
"""The share of a limit at which it is told to be near, where the limit states none."""


def nature_of(limit: Limit, admission: Admission = Admission.ESTIMATE) -> Nature:
    """Tell how the limit's kind is counted; `admission` is the process's choice, for limits that state none."""
    if limit.kind in SPENDS:
        return Nature.AFTER if (limit.admission or admission) is Admission.AFTER else Nature.HELD
    if limit.kind in CLOCKS:
        return Nature.CLOCK
    return Nature.LEVEL if limit.kind in _LEVELS else Nature.COUNTED


class Account:
    """Keep one limit of one scope: what is allowed, used and held, in the kind's inner integer unit.

    The counters belong to the ledger and change under its lock only; a ledger with a store of its own writes here what
    it last saw. `origin` is the parameter as the user typed it, for the error's sentence.
    """

    __slots__ = (
        "_key",
        "denied",
        "drainable",
        "draining",
        "events",
        "exceeded",
        "facts",
        "held",
        "kind",
        "limit",
        "line",
        "nature",
        "near",
        "observe",
        "origin",
        "row",
        "used",
        "value",
        "warn_value",
    )

    def __init__(
        self,
        limit: Limit,
        facts: ScopeFacts,
        *,
        origin: str,
        used: int = 0,
        observe: bool = False,
        admission: Admission = Admission.ESTIMATE,
    ) -> None:
        self.limit = limit
        self.facts = facts
        self.origin = origin
        self.kind = f"tool.{limit.detail}" if limit.detail is not None else str(limit.kind)  # a plain str is looked up faster
        self.nature = nature_of(limit, admission)
        self.value = limit.value
        warn_at = DEFAULT_WARN_AT if limit.warn_at is None else limit.warn_at
        self.warn_value = -int(-limit.value * warn_at // 1)
        self.observe = observe or limit.on_exceed is Outcome.OBSERVE
        self.drainable = (
            limit.kind in _DRAINING_KINDS and facts.kind in _DRAINING_SCOPES and limit.on_exceed in (Outcome.RAISE, Outcome.STOP)
        )
        self.used = used
        self.held = 0
        self.denied = 0
        self.near = False
        self.exceeded = False
        self.draining = False
        self.events: tuple[str, ...] = ()
        self.line: list[object] = []
        self.row: object = None
        self._key: str | None = None

    @property
    def key(self) -> str:
        """Name the counter in the same words in every process: its scope, and the limit without its value.

        Sessions and tenants are told apart by their own ids, every other scope by its `scope_id`.
        """
        if self._key is None:
            self._key = _name_counter(self.facts, self.limit)
        return self._key

    @property
    def remaining(self) -> int:
        """Give what is neither used nor held."""
        return self.value - self.used - self.held


def _name_counter(facts: ScopeFacts, limit: Limit) -> str:
    own = facts.session_id if facts.kind is ScopeKind.SESSION else facts.tenant_id if facts.kind is ScopeKind.TENANT else None
    place = (facts.scope_id,) if own is None else (facts.tenant_id, own)
    return json.dumps((facts.kind, place, *(getattr(limit, each.name) for each in fields(limit) if each.name != "value")))


@dataclass(slots=True, eq=False)  # not frozen: one is made for each account of each call, and that triples its cost
class Line:
    """Ask one account for `want`, and for no less than `minimum` (both inner integers)."""

    account: Account
    want: int
    minimum: int


@dataclass(slots=True, eq=False)
class Reservation:
    """Ask for everything one operation needs, root to leaf.

    `op_id` makes it idempotent. `floor` is what a dispatched operation costs at least if nothing more is learned, by
    account kind. `owner` identifies the task or thread that asks: it never waits for itself. `patience_s` bounds the
    wait when others hold what is needed; 0 means never wait. `on_stop` takes a function to call, from any thread, when
    waiting has become pointless, and gives one that takes it off again: the wait then ends as contended. `meanwhile` is
    called a few times a second while it waits, to end what nobody else would end. `spent` says that it happened already,
    elsewhere: it is recorded, never refused.
    """

    op_id: str
    lines: Sequence[Line]
    floor: Mapping[str, int]
    owner: object = None
    patience_s: float = 0.0
    spent: bool = False
    on_stop: Callable[[Callable[[], object]], Callable[[], object]] | None = None
    meanwhile: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """Tell that an account passed its warning level or its limit just now."""

    account: Account
    event: Literal["limit_nearing", "limit_exceeded"]
    phase: Phase
    decision: str
    used: int
    held: int


@dataclass(slots=True)
class Grant:
    """Admit an operation. `granted` is the tightest hold of tokens, None without one; `observed` would have refused it."""

    op_id: str
    granted: int | None
    crossings: Sequence[Crossing] = ()
    observed: Account | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Refuse an operation: nothing is held, nothing was charged."""

    account: Account
    reason: Reason
    used: int
    held: int
    minimum: int
    crossings: Sequence[Crossing] = ()


@dataclass(slots=True)
class Settled:
    """Tell what settling brought: `overage` is what passed the grants, by kind."""

    crossings: Sequence[Crossing] = ()
    overage: Sequence[tuple[Account, int]] = ()


class Ledger(Protocol):
    """Keep the accounts of every scope; each method is a flow, so that a store may do I/O in either colour."""

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """Hold or charge everything asked, or nothing; wait in line while others hold it, up to the patience."""
        ...

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """Replace the holds by what was used, by account kind; None, or a kind left out, settles at its grant.

        With `guessed` the amounts are our own count of what could be seen: they settle no lower than their grants.
        """
        ...

    def release(self, op_id: str) -> Flow[None]:
        """Give everything back, counted kinds too, because nothing left this process."""
        ...

    def retune(self, account: Account, value: int) -> Flow[None]:
        """Set another limit on a living account; a higher one ends draining and arms its events again."""
        ...

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: fresh locks, and nothing of the parent's in flight. Runs inside the fork: no I/O."""
        ...

    def clocked(self, account: Account, elapsed: int) -> Flow[Sequence[Crossing]]:
        """Write how much time has passed, in ns, and tell what that crossed."""
        ...
