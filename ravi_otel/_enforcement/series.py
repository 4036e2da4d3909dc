"""Limits with several counters: those that renew, or count by user, model, tenant or tag, and the counter that a call goes to now.

Each window of a calendar is a counter of its own, and so is each user: a call is held against the one of the moment and of whom it is
for, and settles there, however late. What a rolling window keeps inside its one counter is said in `ledger.account`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account, is_strict, nature_of
from ravi_otel._enforcement.ledger.store_ledger import store_id
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import TAG, Limit, Window, is_calendar, same_window, window_at
from ravi_otel.policy._runs import ScopeFacts

MOST_COUNTERS: Final = 10_000
"""How many values of one limit, in one window, have a counter each; all others share one more, so that nobody's is ever forgotten."""
MOST_READ: Final = 20
"""How many counters of one limit are read for people, those who are nearest to it first."""
_WINDOWS_KEPT: Final = 3
_CLEARED_FOR_NS: Final = 10_000_000_000
_LONGEST_VALUE: Final = 256
_REST: Final = ("", "others")
_NEVER: Final = Window("", float("-inf"), float("inf"))
_NOT_YET: Final = Window("", 0.0, 0.0)

Counters = dict[tuple[str, ...], Account]


class Series:
    """One declared limit that has several counters, for those who look at limits rather than at what is counted.

    `value` is what counters are made with from now on, `declared` the smallest it came with, whatever was set since. Nothing here
    locks: a counter is made in one step, whoever comes first.
    """

    __slots__ = (
        "_by",
        "_calendar",
        "_cleared_ns",
        "_counters",
        "_engine",
        "_kin",
        "_window",
        "declared",
        "facts",
        "kind",
        "limit",
        "nature",
        "observe",
        "origin",
        "set_by",
        "strict",
        "value",
    )

    def __init__(self, engine: Engine, limit: Limit, facts: ScopeFacts, origin: str, *, observe: bool) -> None:
        self.limit = limit
        self.facts = facts
        self.origin = origin
        self.observe = observe
        self.kind = sys.intern(limit.counted)
        self.nature = nature_of(limit, engine.admission)
        self.strict = is_strict(limit, engine.admission)
        self.value = self.declared = limit.value
        self.set_by: tuple[int, str] | None = None
        self._engine = engine
        self._by = limit.by
        self._calendar = is_calendar(limit.per)
        self._window = _NOT_YET if self._calendar else _NEVER
        self._counters: dict[str, Counters] = {}
        self._kin: tuple[Series, ...] = ()
        self._cleared_ns = -_CLEARED_FOR_NS

    def begin_at(self, kin: Iterable[Series]) -> None:
        """Have the counters begin at what those of other limits on the same thing, in the same windows, have counted."""
        self._kin = tuple(each for each in kin if each.renews_as(self))

    def renews_as(self, other: Series) -> bool:
        """Whether both are limits on the same thing, in the same windows."""
        return _renews(self.limit) == _renews(other.limit)

    def agree(self) -> None:
        """Have the smallest value in force for all that are this very limit with other options, or what was set since."""
        same = [one for one in self._kin if one.observe == self.observe]
        declare_series_again(same, self.declared)
        self.value = min((one.value for one in same), default=self.value)

    def at(self, whom: ScopeFacts, model: str | None = None) -> Account:
        """Return the counter of this moment for a call that is made in the scope of `whom`, to `model`."""
        window = self._window
        if self._calendar:
            now_s = self._engine.wall_s()
            if not window.start <= now_s < window.end:
                window = self._window = window_at(str(self.limit.per), self.limit.tz, now_s)
        counters = self._counters.get(window.id)
        if counters is None:
            counters = self._begin(window.id)
        part = (window.id,) if self._by is None else (window.id, self._value(whom, model))
        account = counters.get(part)
        return self._make(counters, part, window) if account is None else account

    def current(self) -> list[Account]:
        """Return the counters of this moment that somebody has counted in, the fullest first."""
        if self._by is None:
            return [self.at(self.facts)]
        counted = [one for one in list(self._counters.get(self._now().id, {}).values()) if one.used or one.held or one.denied]
        return sorted(counted, key=lambda one: one.remaining / max(1, one.value))

    def counting(self, whom: ScopeFacts) -> list[Account]:
        """Return the counters of this moment that a call made in the scope of `whom` may go to: one, or by model those that were asked."""
        return self.current() if self._by == "model" else [self.at(whom)]

    def counter(self, part: tuple[str, ...]) -> Account | None:
        """Return the counter that has this name in another process; None where its window is not that of this moment."""
        window = self._now()
        if part[:1] != (window.id,) or len(part) != (1 if self._by is None else 2):
            return None
        counters = self._begin(part[0])
        return counters.get(part) or self._make(counters, part, window)

    def _now(self) -> Window:
        return window_at(str(self.limit.per), self.limit.tz, self._engine.wall_s()) if self._calendar else _NEVER

    def living(self) -> list[Account]:
        """Return all counters that are kept, also of windows that are over."""
        return [account for counters in tuple(self._counters.values()) for account in tuple(counters.values())]

    def retune(self, value: int, by: str) -> None:
        """Set another limit, on every counter that is kept and on those to come; `by` is whose doing it is."""
        self.value, self.set_by = value, (value, by)
        for account in self.living():
            run_sync(self._engine.ledger.retune(account, value))
            account.set_by = self.set_by

    def declare(self, value: int) -> None:
        """Have a smaller limit that was declared again hold, as `retune` does, unless a store was told of less before."""
        self.declared, self.value = value, min(self.value, value)
        for account in self.living():
            run_sync(self._engine.ledger.declare(account, value))

    # -- one counter ------------------------------------------------------------------------------------------------

    def _begin(self, window: str) -> Counters:
        """Begin a window. A few that are over stay: a clock that is put back finds what was counted then."""
        counters = self._counters.setdefault(window, {})
        for over in list(self._counters)[:-_WINDOWS_KEPT]:
            self._counters.pop(over, None)
        return counters

    def _value(self, whom: ScopeFacts, model: str | None) -> str:
        by = self._by
        if by == "user":
            value = whom.user_id
        elif by == "tenant":
            value = whom.tenant_id
        elif by == "model":
            value = model
        else:
            value = whom.tags.get(str(by).removeprefix(TAG))
        return (value or "")[:_LONGEST_VALUE]

    def _make(self, counters: Counters, part: tuple[str, ...], window: Window) -> Account:
        engine = self._engine
        if len(counters) >= MOST_COUNTERS:
            self._clear(counters)
        if len(counters) >= MOST_COUNTERS:
            part = (part[0], *_REST)
            if part in counters:
                return counters[part]
        known = [account for each in self._kin for account in each.living() if account.part == part]
        made = Account(
            self.limit,
            self.facts,
            origin=self.origin,
            observe=self.observe,
            admission=engine.admission,
            warn_at=engine.warn_at,
            part=part,
        )
        if self.value != made.value:
            made.revalue(self.value)
        made.declared, made.set_by = self.declared, self.set_by
        made.named_store = store_id(engine.ledger) is not None
        made.ends_s, made.wall_s = (window.end if self._calendar else None), engine.wall_s
        engine.begin_at(made, known)
        return counters.setdefault(part, made)

    def _clear(self, counters: Counters) -> None:
        """Let go of counters that say nothing, or that the store remembers; nothing of what is counted here alone is forgotten."""
        spans, now = self._engine.ledger.spans, self._engine.clock.monotonic_ns()
        if now - self._cleared_ns < _CLEARED_FOR_NS:
            return
        self._cleared_ns = now
        for part, account in list(counters.items()):
            said = account.used or account.denied
            if not account.held and not account.waiters and (not said or spans(account)):
                counters.pop(part, None)


def _renews(limit: Limit) -> tuple[object, ...]:
    return limit.counted, limit.agent, same_window(limit.per), limit.tz, limit.by


def how_it_renews(limit: Limit) -> str | None:
    """Write how a limit begins anew, and what it counts by, in one word; None of one that does neither."""
    return f"per={same_window(limit.per)} tz={limit.tz} by={limit.by}" if limit.renews else None


def declare_series_again(same: Sequence[Series], value: int) -> None:
    """Have all that are one limit hold what it was declared with again, where that is less than it ever was."""
    if same and value < min(one.declared for one in same):
        for one in same:
            one.declare(value)
