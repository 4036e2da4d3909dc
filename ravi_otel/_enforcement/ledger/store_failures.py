"""What becomes of calls and counters when a store of counters fails, or has forgotten.

Inside the ledgers it is a StoreError, and to whoever made the call a refusal. A store that does not answer is asked no more for a while.
A counter that is gone has expired and begins anew, or was lost: who knew it is refused, since nobody knows what was used, unless its
limit says that calls pass when the store fails, or an operator has accepted the loss since. What is owed to a store, and the signs of
life that it is given, are the work of a thread beside the program.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

from ravi_otel._enforcement.clock import Clock, SystemClock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._forksafe import without_signals
from ravi_otel.errors import UNCHECKED, BudgetExhaustedError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._limits import ScopeKind, public_amount

_log = logging.getLogger("ravi_otel")

Failure = Literal["store_failed", "store_lost"]
SO: Final = "so nothing is sent: "
"""What stands before the sentence that says which store it is and what is wrong."""

FORGOTTEN: Final = "it has forgotten what was counted in it"
"""Why what is owed to a store is in no counter of it."""

MEANWHILE: Final = " What a limit does meanwhile is said by its on_store_failure=, in words `:store=`."
"""What ends the sentence of a store that fails, where a limit was asked."""


class StoreError(Exception):
    """Why the store cannot be used: `why` is a part of a sentence.

    The reason is "store_lost" where it works and has forgotten what was counted in it, else "store_failed".
    """

    def __init__(self, why: str, reason: Failure = "store_failed") -> None:
        super().__init__(why)
        self.why = why
        self.reason: Failure = reason


def unkept(sentence: str, reason: Failure, account: Account | None) -> BudgetExhaustedError:
    """Write the error of a step that the store could not take; `sentence` says which store it is, what is wrong, and the way out."""
    if account is None:
        return BudgetExhaustedError(f"{sentence[0].upper()}{sentence[1:]}", reason=reason, public_message=UNCHECKED)
    facts = account.facts
    return BudgetExhaustedError(
        f"{account.origin} cannot be kept, {SO}{sentence}{MEANWHILE if reason == 'store_failed' else ''}",
        limit_kind=account.kind,
        threshold=public_amount(account.limit.kind, account.value),
        scope=str(facts.kind),
        agent_name=facts.agent_name,
        run_name=facts.run_name,
        run_id=facts.run_id,
        reason=reason,
        per=account.limit.per,
        public_message=UNCHECKED,
    )


def warn_uncounted(why: str) -> None:
    """Say in the log that something was spent while a store failed, and is in none of its counters."""
    with contextlib.suppress(Exception):  # a broken log handler is the application's
        _log.warning("ravi-otel: what happened while the shared ledger failed is not all counted in it: %s.", why)


# -- counters that are gone ------------------------------------------------------------------------------------------

Beginning = Literal["expired", "open", "accepted"]
"""Why a counter that is gone may begin anew."""

DAY_S: Final = 86_400
RUNS_S: Final = 7 * DAY_S
"""How long a counter of a run or a session is kept after its last use."""

KEEP_S: Final = 400 * DAY_S
"""How long one of a tenant or a process is, where nothing else is set."""

_LONG: Final = frozenset({ScopeKind.TENANT, ScopeKind.PROCESS})
_NOT_SURE_S: Final = 3_600
"""By how much less a store may have kept it: it renews the time once an hour."""

_TELLS_EVERY_S: Final = 60.0
_WHY: Final[dict[Beginning, str]] = {
    "expired": "was used by nobody for as long as it is kept",
    "open": "was lost, and is counted anew from nothing, as its limit says by on_store_failure",
    "accepted": "was lost, and is counted anew from nothing, as an operator has accepted that",
}
_told: dict[Beginning, float] = {}


def kept_s(account: Account, keep_s: float) -> int:
    """Return for how many seconds after its last use a store keeps an account; `keep_s` is said for tenants and processes."""
    long = account.facts.kind in _LONG and account.limit.per is None
    return max(round(keep_s if long else min(keep_s, RUNS_S)), account.lasts_s)


def may_begin_anew(account: Account, *, seen_ago_s: float, keep_s: float, accepted_ago_s: float | None) -> Beginning | None:
    """Say why a counter that is gone may begin anew, which this process saw so long ago; None where it may not.

    `accepted_ago_s` is how long ago an operator accepted that something was lost; None: nobody did.
    """
    if seen_ago_s >= kept_s(account, keep_s) - _NOT_SURE_S:
        return "expired"
    if account.limit.on_store_failure == "open":
        return "open"
    return "accepted" if accepted_ago_s is not None and accepted_ago_s <= seen_ago_s else None


def begin_anew(account: Account) -> None:
    """Forget what was known of a counter; under its ledger's lock."""
    account.epoch, account.used, account.held, account.denied, account.events = None, 0, 0, 0, ()
    account.buckets, account.rolled, account.told, account.refused_at = {}, 0, 0, None
    account.flag(near=False, exceeded=False, draining=False)
    account.revalue(account.declared)


def scope_of(account: Account) -> str:
    """Return which scope an account counts for, in words of a warning."""
    facts = account.facts
    own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id, ScopeKind.PROCESS: None}
    name = own.get(facts.kind, facts.run_name or facts.run_id)
    return str(facts.kind) if name is None else f"{facts.kind} {name!r}"


def warn_begun_anew(account: Account, why: Beginning, shown: str) -> None:
    """Say that it begins anew in the store that is `shown` so: of one that expired each time, of those that were lost together once."""
    now = time.monotonic()
    if why != "expired":
        if now - _told.get(why, -_TELLS_EVERY_S) < _TELLS_EVERY_S:
            return
        _told[why] = now
    more = "" if why == "expired" else "; others that were lost with it are not told one by one"
    with contextlib.suppress(Exception):  # a broken log handler is the application's
        _log.warning(
            "ravi-otel: the counter of %s of %s in the shared ledger %s %s%s.", account.origin, scope_of(account), shown, _WHY[why], more
        )


# -- a store that does not answer ------------------------------------------------------------------------------------

Verdict = Literal["ask", "refuse", "probe"]

_FAILURES: Final = 3
_FIRST_PAUSE_NS: Final = 250_000_000
_LONGEST_PAUSE_NS: Final = 10_000_000_000


class Breaker:
    """Count failures in a row: after three of them nothing is asked, except for one probe after each pause.

    A pause is a quarter of a second at first, and twice as long after each probe that fails, up to ten seconds. Any answer closes it.
    """

    __slots__ = ("_clock", "_failures", "_lock", "_pause_ns", "_probe_at_ns", "_probing")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.reset()

    def reset(self) -> None:
        """Start anew, as in a forked child."""
        self._lock = threading.RLock()
        self._failures = 0
        self._pause_ns = _FIRST_PAUSE_NS
        self._probe_at_ns = 0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the store is not asked."""
        return self._failures >= _FAILURES

    def look(self) -> Verdict:
        """Say what may be done now; whoever is told to probe says afterwards what came of it, by `succeeded` or `failed`."""
        with self._lock:
            if self._failures < _FAILURES:
                return "ask"
            if self._probing or self._clock.monotonic_ns() < self._probe_at_ns:
                return "refuse"
            self._probing = True
            return "probe"

    def succeeded(self) -> bool:
        """Take note of an answer; True when that is the first after it was open."""
        with self._lock:
            was_open = self.is_open
            self._failures = 0
            self._probing = False
            self._pause_ns = _FIRST_PAUSE_NS
            return was_open

    def failed(self, *, probe: bool = False) -> bool:
        """Take note that there was no answer; True when that opened it. Only a probe's failure makes the pause longer."""
        with self._lock:
            if self.is_open and not probe:
                return False  # asked before it opened
            was_open = self.is_open
            self._failures = _FAILURES if probe else self._failures + 1
            if probe:
                self._probing = False
                self._pause_ns = min(self._pause_ns * 2, _LONGEST_PAUSE_NS)
            if self.is_open:
                self._probe_at_ns = self._clock.monotonic_ns() + self._pause_ns
            return self.is_open and not was_open


# -- the thread beside the program -----------------------------------------------------------------------------------


class Heartbeat:
    """Run `beat` on a daemon thread for as long as it gives the seconds until the next time; None ends the thread."""

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run from now on; nothing happens when it runs already, or when the process can have no more threads."""
        if self._thread is not None:
            return
        thread = self._thread = threading.Thread(target=self._run, name="ravi-ledger", daemon=True)
        try:
            with without_signals():
                contextvars.Context().run(thread.start)  # in nobody's context: it outlives the call that began it
        except RuntimeError:
            self._thread = None

    def hurry(self) -> None:
        """Beat now."""
        self._sooner.set()

    def end(self) -> None:
        """Beat no more, until it is started again."""
        self._thread = None
        self._sooner.set()

    def stopped(self) -> None:
        """Note that the thread is about to end; called by `beat`."""
        self._thread = None

    def _run(self) -> None:
        try:
            while self._thread is threading.current_thread() and (pause := self._beat()) is not None:
                self._sooner.wait(pause)
                self._sooner.clear()
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this thread, and nothing else
            self._thread = None
            swallow("ledger", error)
