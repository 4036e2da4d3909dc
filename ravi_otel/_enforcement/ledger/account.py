"""An account, which is one limit of one scope: what is allowed, used and held, and how its kind is counted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from enum import IntEnum
from json import dumps  # as it is now: the program may make tools of that module's functions
from operator import attrgetter
from typing import Any, Final

from ravi_otel.policy._limits import (
    CLOCKS,
    SPENDS,
    Admission,
    Kind,
    Limit,
    Outcome,
    ScopeKind,
    is_calendar,
    longest_s,
    roll_ns,
    same_window,
)
from ravi_otel.policy._runs import ScopeFacts


class Nature(IntEnum):
    """How a kind is counted."""

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


_OPEN = frozenset({Nature.COUNTED, Nature.HELD})
SUMS: Final = frozenset({*_OPEN, Nature.AFTER})
"""How a kind is counted whose uses add up, whoever has them."""

_DRAINING_KINDS = frozenset({*SPENDS, Kind.REQUESTS, Kind.TURNS})
_DRAINING_SCOPES = frozenset({ScopeKind.PROCESS, ScopeKind.RUN, ScopeKind.BLOCK, ScopeKind.HANDOFF, ScopeKind.AGENT})
_LEVELS = frozenset({Kind.MESSAGES, Kind.DEPTH, Kind.AGENTS, Kind.FAN_OUT})
_NEVER = float("inf")
DEFAULT_WARN_AT = 0.8
"""The share of a limit at which it is told to be near, where the limit states none."""


def is_strict(limit: Limit, admission: Admission = Admission.ESTIMATE) -> bool:
    """Whether the worst case is held for this limit, so that nothing passes it; `admission` is the process's choice."""
    return limit.kind in SPENDS and (limit.admission or admission) is Admission.STRICT


def nature_of(limit: Limit, admission: Admission = Admission.ESTIMATE) -> Nature:
    """Return how the limit's kind is counted; `admission` is the process's choice, for limits that state none."""
    if limit.kind in SPENDS:
        return Nature.AFTER if (limit.admission or admission) is Admission.AFTER else Nature.HELD
    if limit.kind in CLOCKS:
        return Nature.CLOCK
    return Nature.LEVEL if limit.kind in _LEVELS else Nature.COUNTED


def amount_kept_back(limit: Limit, value: int) -> int:
    """Return what a limit of `value` with `on_exceed="final"` keeps for one last call: a tenth, or one request or turn."""
    if limit.on_exceed is not Outcome.FINAL:
        return 0
    if limit.kind in SPENDS:
        return -(-value // 10)
    return int(limit.kind in _DRAINING_KINDS and value > 1)


_STATE = ("value", "used", "held", "denied", "_near", "_exceeded", "_draining", "events", "epoch", "rolled", "told", "buckets")
state_of: Final = attrgetter(*_STATE)
"""Return what an account says of what is counted, for `Account.restore`."""


class ShareClaim:
    """A promise of `granted` to whoever is counted by `meter`, from when that stood at `base`; nothing before the first `Account.split`.

    A claim keeps for each of several agents what is its own of a limit they share, without holding it: of what was left when the agents
    that have one last changed, each may still use its part by weight. Whoever asks is refused what others claim, and never what it claims
    itself. What an agent uses is taken off its claim first, so that the claims of all together are never more than what is left. What is
    promised changes under the ledger's lock only; who has a claim comes and goes without it. Claims are known to this process alone.
    """

    __slots__ = ("base", "granted", "meter", "weight")

    def __init__(self, meter: Account, weight: int) -> None:
        self.meter = meter
        self.weight = weight
        self.granted = 0
        self.base = 0

    @property
    def left(self) -> int:
        """Return what of it is not used and not held by now."""
        return max(0, self.granted - (self.meter.used + self.meter.held - self.base))


class Drains:
    """How often an account was found to drain: whoever watches many checks each only where this has changed."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


DRAINS: Final = Drains()


class Account:
    """One limit of one scope: what is allowed, used and held, in the kind's inner integer unit.

    The counters belong to the ledger and change under its lock only; a ledger with a store of its own writes here what
    it last saw. `kept_back` is for a last call that wraps up, and refused to any other. `origin` is the parameter as the
    user typed it, for the error's sentence. `part` tells apart the counters of one limit that has several: a window's, a user's.
    `named_store` says that its ledger is one that operators can name, and others count in.
    `twins` are other accounts of the same counter, where this process alone keeps it: what one of them tells is told for all.
    `epoch` is what a store of its own calls this counter's life, once it was seen there, or before that by whoever has passed the
    scope on: a store that knows another, or none, has forgotten it. `refused_at` was its value when it last refused a call of this
    process for good. `roll_ns` above 0 is how far back a rolling window looks; `buckets`, `rolled` and `told` are that window's, and
    `ledger.windows` says how. `lasts_s` is how long its window lasts at most, 0 without one: a store keeps it for that long or longer.
    `copy` is what a reading was last told of it, which asked at `asked_ns` of the wall clock: see `ledger.front`.
    `ends_s` is when its window of the calendar ends, in UTC epoch seconds, None without one; `wall_s` reads the clock that windows go by.

    Two numbers say beforehand what needs no closer look. Nothing is crossed while used is below `quiet_until`. An operation is
    granted whole, and crosses nothing, as long as used, held and wanted together make no more than `open_to` (-1: look at each).
    `shared` says whether other processes count in it too, once its ledger was asked; `row` is where a file keeps it.
    `changes` grows whenever its limit or one of its flags is written.
    """

    __slots__ = (
        "_claims",
        "_draining",
        "_exceeded",
        "_key",
        "_near",
        "_part",
        "asked_ns",
        "buckets",
        "changes",
        "copy",
        "declared",
        "denied",
        "drainable",
        "ends_s",
        "epoch",
        "events",
        "facts",
        "held",
        "kept_back",
        "kind",
        "limit",
        "line",
        "named_store",
        "nature",
        "observe",
        "open_to",
        "origin",
        "quiet_until",
        "refused_at",
        "roll_ns",
        "rolled",
        "row",
        "shared",
        "strict",
        "told",
        "twins",
        "used",
        "value",
        "wall_s",
        "warn_at",
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
        warn_at: float = DEFAULT_WARN_AT,
        part: tuple[str, ...] = (),
    ) -> None:
        self.limit = limit
        self.facts = facts
        self.origin = origin
        self.kind = sys.intern(limit.counted)  # a plain str is looked up faster, and two of the same are one
        self.nature = nature_of(limit, admission)
        self.strict = is_strict(limit, admission)
        self.warn_at = warn_at if limit.warn_at is None else limit.warn_at
        self.observe = observe or limit.on_exceed is Outcome.OBSERVE
        self.drainable = (
            limit.kind in _DRAINING_KINDS and facts.kind in _DRAINING_SCOPES and limit.on_exceed in (Outcome.RAISE, Outcome.STOP)
        )
        self.used = used
        self.held = 0
        self.denied = 0
        self.changes = 0
        self.refused_at: int | None = None
        self._near = self._exceeded = self._draining = False
        self._claims: dict[ShareClaim, None] = {}
        self.roll_ns = 0 if limit.per is None else roll_ns(limit.per)
        self.buckets: dict[int, int] = {}
        self.rolled = self.told = 0
        self.declared = limit.value  # the smallest value that it came with, whatever was set since
        self.revalue(limit.value)
        self.events: tuple[str, ...] = ()
        self.line: list[object] = []
        self.row: Any = None
        self.shared: bool | None = None
        self.asked_ns = 0
        self.copy: object = None
        self.epoch: str | None = None
        self.twins: tuple[Account, ...] = ()
        self.named_store = False
        self.ends_s: float | None = None
        self.wall_s: Callable[[], float] = time.time
        self._key: str | None = None
        self._part = part

    @property
    def key(self) -> str:
        """Name the counter in the same words in every process, by what it counts, for whom, and in which window.

        Sessions and tenants are told apart by their own ids, every other scope by its `scope_id`. What happens at a limit is no part of
        it: with another warning level, outcome or admission it is the same limit, declared again. What only observes counts apart, so
        that it tightens nothing.
        """
        if self._key is None:
            self._key = _name_counter(self)
        return self._key

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Order accounts of one counter: the first judges for all of them where it is asked once, as the strictest would."""
        return self.nature is not Nature.HELD, not self.kept_back, self.warn_at

    def revalue(self, value: int) -> None:
        """Write the limit, and what goes with it: the warning level, and what is kept back."""
        self.value = value
        self.kept_back = amount_kept_back(self.limit, value)
        self.warn_value = -int(-value * self.warn_at // 1)
        self.tune()

    def flag(self, *, near: bool, exceeded: bool, draining: bool) -> None:
        """Write what was told, and whether it drains."""
        self._near, self._exceeded, self._draining = near, exceeded, draining
        self.tune()

    def restore(self, state: tuple[Any, ...]) -> None:
        """Write what `state_of` returned of it, or of another account of the same counter."""
        for name, value in zip(_STATE, state, strict=True):
            setattr(self, name, value)
        self.buckets = dict(self.buckets)
        self.revalue(self.value)
        self.flag(near=self._near, exceeded=self._exceeded, draining=self._draining)

    @property
    def claims(self) -> tuple[ShareClaim, ...]:
        """Return what of it is promised to whom: a snapshot."""
        return tuple(self._claims)

    def admit(self, claim: ShareClaim) -> None:
        """Add a claim, of which nothing is promised before the next `split`.

        No lock is needed: each change is one step, whichever thread or signal's handler comes in between.
        """
        self._claims[claim] = None

    def forgo(self, meter: Account) -> bool:
        """Remove every claim that is counted by `meter`; return whether there was one. No lock is needed, as in `admit`."""
        gone = [claim for claim in self.claims if claim.meter is meter]
        for claim in gone:
            self._claims.pop(claim, None)
        return bool(gone)

    def split(self) -> None:
        """Promise what is left anew to those who have a claim, by their weights; of what drains nothing is. Under the ledger's lock."""
        left = 0 if self.draining else max(0, self.remaining - self.kept_back)
        claims = self.claims  # once: another may come or go meanwhile, and has all split anew afterwards
        total = sum(claim.weight for claim in claims)
        for claim in claims:
            claim.granted = left * claim.weight // total
            claim.base = claim.meter.used + claim.meter.held

    def promised(self, *, to: Collection[Account] | None = None, but: Collection[Account] = ()) -> int:
        """Return what of it is promised and not used yet: to those whom a meter of `to` counts, or to all but those of `but`."""
        return sum(claim.left for claim in self.claims if (claim.meter not in but if to is None else claim.meter in to))

    @property
    def near(self) -> bool:
        """Whether its being near was told since it was armed."""
        return self._near

    @near.setter
    def near(self, near: bool) -> None:
        self._near = near
        self.tune()

    @property
    def exceeded(self) -> bool:
        """Whether its being exceeded was told since it was armed."""
        return self._exceeded

    @exceeded.setter
    def exceeded(self, exceeded: bool) -> None:
        self._exceeded = exceeded
        self.tune()

    @property
    def draining(self) -> bool:
        """Whether an exhausted refusal closed it to all that comes after."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self.tune()

    def tune(self) -> None:
        """Write what a quick look goes by; under the ledger's lock."""
        self.changes += 1
        if self._draining:
            DRAINS.count += 1
        if self.value > 0 and not self._near:
            self.quiet_until: float = self.warn_value
        else:
            self.quiet_until = _NEVER if self._exceeded else self.value + 1
        plain = self.nature in _OPEN and not (self.observe or self._draining or self._claims or self.roll_ns)
        self.open_to = min(self.value - self.kept_back, self.quiet_until - 1) if plain else -1

    @property
    def part(self) -> tuple[str, ...]:
        """Return which of its limit's counters it is: the window, what it counts by, and whose; empty where there is one alone."""
        return self._part

    @property
    def window(self) -> str | None:
        """Name the calendar's window that it counts, such as "2026-01-02"; None where it counts no such window."""
        return (self._part[0] or None) if self._part else None

    @property
    def counted_for(self) -> str | None:
        """Return whose part of a limit with `by` it counts; None for those of whom nothing is known, and for everybody."""
        return (self._part[-1] or None) if len(self._part) > 1 else None

    @property
    def lasts_s(self) -> int:
        """Return how long its window lasts at most, in seconds; 0 without one."""
        return longest_s(self.limit.per)

    @property
    def remaining(self) -> int:
        """Return what is neither used nor held, what is kept back included."""
        return self.value - self.used - self.held


def _name_counter(account: Account) -> str:
    facts, limit = account.facts, account.limit
    own = facts.session_id if facts.kind is ScopeKind.SESSION else facts.tenant_id if facts.kind is ScopeKind.TENANT else None
    place = (facts.scope_id,) if own is None else (facts.tenant_id, own)
    zone = limit.tz if is_calendar(limit.per) else None
    counted = (limit.kind, limit.detail, limit.agent, limit.count)
    return dumps((facts.kind, place, *counted, same_window(limit.per), zone, limit.by, account.observe, *account.part))
