"""An account, which is one limit of one scope: what is allowed, used and held, how its kind is counted, and what its window leaves behind.

A rolling window, as in `tokens=100k:per=90m`, counts what was used in the last 90 minutes. An account with `roll_ns` > 0 keeps what it
has used by when it was charged, in `buckets`: an index to an amount above 0, in ascending order. A bucket is a sixtieth of the window
long, rounded up: `width_ns`, and its index is the store's time divided by that. So an amount leaves at most a sixtieth of the window late,
and never early. Beside them stand `rolled`, the index of the last look, and `told`, the index at which an event was told last, 0 for none.

Every ledger calls `Account.expire` with its own time, under its lock or in its transaction, right before it reads or changes what such an
account has used, by any step: reserve, extend, settle, release, retune, a reading. What was charged since the last look is what
`used` says beyond the sum of the buckets, and it was charged at that look, which each step begins with. The arithmetic, exactly:

1. `index = now_ns // width_ns`. Is that less than `rolled`, the clock was put back: every index, `rolled` and `told` go back by as much.
2. `used - sum(buckets)` above 0 is added to bucket `rolled` (`index`, at the first look); below 0 it is taken from the oldest on.
3. Buckets below `index - 60` are dropped, and their sum is taken off `used`. Then `rolled = index`.
4. With used below the warning level draining ends; where besides nothing was told for longer than the window (`index - told > 60`),
   nearing and exceeded are armed again, and `told = 0`.

What is given back, or corrected downwards, later than a window after it was charged has left before, and is then taken from what others
used, the oldest first: a window should be longer than a lease, which only such calls outlive.

A calendar's window needs none of this: each window is an account of its own (`Account.part`).
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from json import dumps  # as it is now: the program may make tools of that module's functions
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

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

if TYPE_CHECKING:
    from ravi_otel.hooks._events import Phase


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
_SHARED: Final = frozenset({ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION, ScopeKind.RUN})
_LONG: Final = frozenset({ScopeKind.TENANT, ScopeKind.PROCESS})
RUNS_S: Final = 7 * 86_400
"""How long a counter of a run or a session is kept after its last use."""

_NOT_SURE_S: Final = 3_600
"""By how much less a store may have kept it: it renews the time once an hour."""

Beginning = Literal["expired", "open", "accepted"]
"""Why a counter that is gone may begin anew."""

BUCKETS: Final = 60
"""How many parts of a rolling window are told apart; one more is the part that goes on now."""

_MOST_DIGITS: Final = 20
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


def width_ns(roll_ns: int) -> int:
    """Return how long one bucket of a rolling window is."""
    return -(-roll_ns // BUCKETS)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError("a part of a rolling window is no number")
    return int(text)


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


@dataclass(frozen=True, slots=True)
class Crossing:
    """An account passed its warning level or its limit just now; `tracker` is the tracker's parameter that sets its limit, if one does."""

    account: Account
    event: Literal["limit_nearing", "limit_exceeded"]
    phase: Phase
    decision: str
    used: int
    held: int
    tracker: str | None = None


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
    the module says how. `lasts_s` is how long its window lasts at most, 0 without one: a store keeps it for that long or longer.
    `copy` is what a reading was last told of it, which asked at `asked_ns` of the wall clock: see `Copy`.
    `ends_s` is when its window of the calendar ends, in UTC epoch seconds, None without one; `wall_s` reads the clock that windows go by.

    Two numbers say beforehand what needs no closer look. Nothing is crossed while used is below `quiet_until`. An operation is
    granted whole, and crosses nothing, as long as used, held and wanted together make no more than `open_to` (-1: look at each).
    `shared` says whether other processes count in it too, once its ledger was asked; `row` is where a file keeps it.
    `changes` grows whenever its limit or one of its flags is written. `set_by` is the value that was set here last, and by whom.
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
        "set_by",
        "shared",
        "strict",
        "told",
        "twins",
        "used",
        "value",
        "waiters",
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
        self.set_by: tuple[int, str] | None = None
        self.revalue(limit.value)
        self.events: tuple[str, ...] = ()
        self.waiters: list[object] = []  # who waits for it, in their order
        self.row: Any = None
        self.shared: bool | None = None
        self.asked_ns = 0
        self.copy: Copy | None = None
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
            facts, limit = self.facts, self.limit
            own = facts.session_id if facts.kind is ScopeKind.SESSION else facts.tenant_id if facts.kind is ScopeKind.TENANT else None
            place = (facts.scope_id,) if own is None else (facts.tenant_id, own)
            zone = limit.tz if is_calendar(limit.per) else None
            counted = (limit.kind, limit.detail, limit.agent, limit.count)
            self._key = dumps((facts.kind, place, *counted, same_window(limit.per), zone, limit.by, self.observe, *self.part))
        return self._key

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Order accounts of one counter: the first judges for all of them where it is asked once, as the strictest would."""
        return self.nature is not Nature.HELD, not self.kept_back, self.warn_at

    @property
    def free(self) -> int:
        """Return what is left of it if all that is held now came back; nothing below 0."""
        return max(0, self.value - self.kept_back - self.used)

    @property
    def left(self) -> int:
        """Return what anybody may still use of it: nothing of one that drains."""
        return 0 if self.draining else max(0, self.free - self.held)

    @property
    def setter(self) -> str | None:
        """Return who set the value that it has now, None where that was not done here."""
        return None if self.set_by is None or self.set_by[0] != self.newest.value else self.set_by[1]

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
        """Work out `quiet_until` and `open_to` anew, after a change of what they depend on; under the ledger's lock."""
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

    def is_shareable(self) -> bool:
        """Whether a store that processes share counts it, where nothing else is said.

        Those of agents, blocks and handoffs live in one process. Clocks travel as deadlines, and heights such as messages and depth are
        one conversation's.
        """
        return self.facts.kind in _SHARED and self.nature in SUMS

    @property
    def is_closed(self) -> bool:
        """Whether it gives nothing more to what goes on.

        A part of an agent that closed drains and is not drainable: it takes nothing new, and what is open in it goes on.
        """
        return self._draining and self.drainable

    @property
    def amounts(self) -> tuple[str | None, int, int, int, int]:
        """Return what a call writes of it: its epoch, what is used, held and denied, and its limit."""
        return self.epoch, self.used, self.held, self.denied, self.value

    @property
    def newest(self) -> Account:
        """Return what is known of it: its copy, until a call has written the account itself."""
        return self if self.copy is None or self.copy.before != self.amounts else self.copy.account

    @property
    def scope_name(self) -> str:
        """Return which scope it counts for, in words of a warning."""
        facts = self.facts
        own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id, ScopeKind.PROCESS: None}
        name = own.get(facts.kind, facts.run_name or facts.run_id)
        return str(facts.kind) if name is None else f"{facts.kind} {name!r}"

    # -- what is written under its ledger's lock --------------------------------------------------------------------

    def retune(self, value: int | None) -> None:
        """Set another limit; a higher one ends draining and arms the events again. What is claimed of it is split anew."""
        if value is not None:
            if value > self.value:
                self.flag(near=False, exceeded=False, draining=False)
            self.revalue(value)
        else:
            self.tune()
        if self._claims:
            self.split()

    def declare(self, value: int) -> None:
        """Have a limit hold that was declared again, with less than it ever was: what operators set above that is over."""
        self.declared = min(self.declared, value)
        if value < self.value:
            self.retune(value)

    def pass_time(self, elapsed: int, *, refuses: bool) -> list[Crossing]:
        """Write how much time has passed; a clock never goes back. Each look past the limit that `refuses` is a refusal."""
        crossings: list[Crossing] = []
        self.used = max(self.used, elapsed)
        over = self.used >= self.value
        if over and refuses:
            self.denied += 1
        self.cross("timer", "observed" if self.observe else "denied" if over else "admitted", crossings, denied=over)
        return crossings

    def rise(self, used: int) -> Sequence[Crossing]:
        """Write how much is used by now of what no ledger keeps, and return what that crossed: past the limit its user was refused."""
        self.used = used
        over = used > self.value
        self.denied += over
        return self.cross("settle", "denied" if over else "admitted", ())

    def risen(self, actual: Mapping[str, int]) -> int:
        """Return by how much settling changes what holds nothing: a level, or a kind that is counted after."""
        if self.nature is Nature.LEVEL:
            return max(0, actual.get(self.kind, self.used)) - self.used
        return max(0, actual.get(self.kind, 0))

    def cross(self, phase: Phase, decision: str, crossings: Sequence[Crossing], *, denied: bool = False, spent: int = 0) -> list[Crossing]:
        """Add a crossing where it passed its warning level or its limit just now; `Engine.emit_crossings` makes a limit event of each.

        `spent` is what a stream that is cut has used of its hold.
        """
        found = crossings if isinstance(crossings, list) else list(crossings)
        used, held = self.used + spent, self.held - spent
        if not self.near and self.value > 0 and used >= self.warn_value:
            self.near = True
            self._tell("limit_nearing")
            found.append(Crossing(self, "limit_nearing", phase, decision, used, held))
        if not self.exceeded and (denied or used > self.value):
            self.exceeded = True
            self._tell("limit_exceeded")
            found.append(Crossing(self, "limit_exceeded", phase, decision, used, held))
        return found

    def _tell(self, event: Literal["limit_nearing", "limit_exceeded"]) -> None:
        """Write that an event is told of it, for its twins too."""
        self.events = (*self.events, event)
        if self.roll_ns:
            self.told = self.rolled
        for twin in self.twins:
            twin.events, twin.told = self.events, self.told
            twin.flag(near=self.near, exceeded=self.exceeded, draining=twin.draining)

    # -- a store that has forgotten it --------------------------------------------------------------------------------

    def kept_s(self, keep_s: float) -> int:
        """Return for how many seconds after its last use a store keeps it; `keep_s` is said for tenants and processes."""
        long = self.facts.kind in _LONG and self.limit.per is None
        return max(round(keep_s if long else min(keep_s, RUNS_S)), self.lasts_s)

    def may_begin_anew(self, *, seen_ago_s: float, keep_s: float, accepted_ago_s: float | None) -> Beginning | None:
        """Say why a counter that is gone may begin anew, which this process saw so long ago; None where it may not.

        `accepted_ago_s` is how long ago an operator accepted that something was lost; None: nobody did.
        """
        if seen_ago_s >= self.kept_s(keep_s) - _NOT_SURE_S:
            return "expired"
        if self.limit.on_store_failure == "open":
            return "open"
        return "accepted" if accepted_ago_s is not None and accepted_ago_s <= seen_ago_s else None

    def begin_anew(self) -> None:
        """Forget what was known of the counter; under its ledger's lock."""
        self.epoch, self.used, self.held, self.denied, self.events = None, 0, 0, 0, ()
        self.buckets, self.rolled, self.told, self.refused_at = {}, 0, 0, None
        self.flag(near=False, exceeded=False, draining=False)
        self.revalue(self.declared)

    # -- its window -------------------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> None:
        """Drop what was used longer ago than its window, by the store's time; nothing where it does not roll."""
        if not self.roll_ns:
            return
        index = now_ns // width_ns(self.roll_ns)
        if index < self.rolled:
            self._turn_back(self.rolled - index)
        self._book(self.rolled or index)
        gone = [] if index == self.rolled else [at for at in self.buckets if at < index - BUCKETS]
        self.rolled = index
        for at in gone:
            left = self.buckets.pop(at)
            self.used -= left  # read after the call: a signal's handler may come in it, and charge
        if self.used < self.warn_value:
            self._arm(index)

    def leaves_after_ns(self, most: int) -> int | None:
        """Return how long until no more than `most` is used, if nothing is charged meanwhile; None where what leaves when is not known.

        It is at most one bucket too long: the last look does not tell where in its bucket the store's time is.
        """
        if not self.rolled:
            return None
        buckets = dict(self.buckets)
        buckets.setdefault(self.rolled, 0)  # what was charged since the last look is of its part, and leaves last
        left, until = self.used, self.rolled
        for at, amount in sorted(buckets.items()):
            if left <= most:
                break
            left, until = left - amount, at + BUCKETS + 1
        return (until - self.rolled) * width_ns(self.roll_ns)

    def _turn_back(self, by: int) -> None:
        self.buckets = {at - by: amount for at, amount in self.buckets.items()}
        self.rolled -= by
        self.told = max(1, self.told - by) if self.told else 0

    def _book(self, at: int) -> None:
        """Have the buckets sum up to what is used."""
        buckets = self.buckets
        since = self.used - sum(buckets.values())
        if since > 0:
            buckets[at] = buckets.get(at, 0) + since
        for oldest in list(buckets) if since < 0 else ():
            taken = min(buckets[oldest], -since)
            buckets[oldest] -= taken
            since += taken
            if not buckets[oldest]:
                del buckets[oldest]

    def _arm(self, index: int) -> None:
        if not self.told and (self._near or self._exceeded):
            self.told = index  # elsewhere, before a run went on here
        again = bool(self.told) and index - self.told > BUCKETS
        if again:
            self.told = 0
        if again or self._draining:
            self.flag(near=self._near and not again, exceeded=self._exceeded and not again, draining=False)

    def packed_window(self) -> str:
        """Write it as text, for a store: `rolled told index:amount …`; empty where it does not roll."""
        if not self.roll_ns:
            return ""
        return " ".join((f"{self.rolled}", f"{self.told}", *(f"{at}:{amount}" for at, amount in self.buckets.items())))

    def unpack_window(self, text: object) -> None:
        """Read that text in, nothing or None as of one never looked at; any other raises ValueError, and changes nothing."""
        rolled, told, buckets = 0, 0, dict[int, int]()
        words = text.split(" ") if isinstance(text, str) else ["none", "none"]
        if text:
            first, second, *rest = words if len(words) > 1 else (*words, "none")
            rolled, told = _number(first), _number(second)
            if len(rest) > BUCKETS + 2:
                raise ValueError("a rolling window has more parts than there are")
            for one in rest:
                at, _, amount = one.partition(":")
                buckets[_number(at)] = _number(amount)
            if list(buckets) != sorted(buckets) or len(buckets) != len(rest):
                raise ValueError("the parts of a rolling window are in no order")
        self.rolled, self.told, self.buckets = rolled, told, buckets

    def resets_at(self, needed: int | None = None) -> datetime | None:
        """Return when the limit has room again, in UTC: for `needed`, else for as much as leaves it below its warning level. None: never.

        Of a window of the calendar that is its end, and of a rolling one when enough has left it; where its store does not tell what
        leaves when, it is when everything has. A limit that is draining has no room before it is below its warning level, either.
        """
        if self.limit.per is None or (needed or 0) > self.value or not self.value:
            return None
        if self.ends_s is not None:
            return datetime.fromtimestamp(self.ends_s, UTC)
        most = self.warn_value - 1 if needed is None else self.value - needed
        if self.draining:
            most = min(most, self.warn_value - 1)
        after_ns = self.leaves_after_ns(most)
        at = datetime.fromtimestamp(self.wall_s(), UTC)
        return at + timedelta(microseconds=-(-(self.roll_ns if after_ns is None else after_ns) // 1_000))


class Copy:
    """Be an account as its store had it at `at_ns` of the wall clock; `before` is what the account said then, and says until a call."""

    __slots__ = ("account", "at_ns", "before")

    def __init__(self, account: Account, at_ns: int) -> None:
        self.account = copy.copy(account)
        self.account.buckets, self.account.copy = dict(account.buckets), None
        self.at_ns = at_ns
        self.before = account.amounts

    def agree(self, account: Account) -> None:
        """Show the smaller of both limits where `account` has not been told of yet: the store hears of it with the first call."""
        if account.epoch is None and account.value < self.account.value:
            self.account.revalue(account.value)
