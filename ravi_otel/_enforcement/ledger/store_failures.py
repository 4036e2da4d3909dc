"""What becomes of calls and counters when a store of counters fails, or has forgotten.

Inside the ledgers it is a StoreError, and to whoever made the call a refusal. A counter that is gone has expired and begins anew, or was
lost: who knew it is refused, since nobody knows what was used, unless its limit says that calls pass when the store fails, or an operator
has accepted the loss since. What cannot be told to a store is owed to it: see `DebtBook`. To pay that, and to give signs of life, is the
work of a thread beside the program.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

from ravi_otel._enforcement.ledger.account import Account, Beginning, Crossing, Nature
from ravi_otel._enforcement.ledger.contract import Counting, new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Operations, Reservation, Settled, settled_together
from ravi_otel._enforcement.ledger.operators import Operated
from ravi_otel._flow import Flow
from ravi_otel._forksafe import without_signals
from ravi_otel.errors import UNCHECKED, BudgetExhaustedError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._limits import public_amount

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

    its_own = False
    """Whether the store answers, takes what else it is asked, and not this."""

    def __init__(self, why: str, reason: Failure = "store_failed") -> None:
        super().__init__(why)
        self.why = why
        self.reason: Failure = reason

    @classmethod
    def of_lost_counter(cls, why: str) -> StoreError:
        """Return the error of a store that is there, and has forgotten a counter that was asked for."""
        error = cls(why, "store_lost")
        error.its_own = True
        return error


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

DAY_S: Final = 86_400
KEEP_S: Final = 400 * DAY_S
"""How long one of a tenant or a process is, where nothing else is set."""

_TELLS_EVERY_S: Final = 60.0
_WHY: Final[dict[Beginning, str]] = {
    "expired": "was used by nobody for as long as it is kept",
    "open": "was lost, and is counted anew from nothing, as its limit says by on_store_failure",
    "accepted": "was lost, and is counted anew from nothing, as an operator has accepted that",
}
_told: dict[Beginning, float] = {}


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
            "ravi-otel: the counter of %s of %s in the shared ledger %s %s%s.", account.origin, account.scope_name, shown, _WHY[why], more
        )


# -- the thread beside the program -----------------------------------------------------------------------------------


class Heartbeat:
    """Run `beat` on a daemon thread for as long as it gives the seconds until the next time; None ends the thread.

    `beating` is held while it runs: `end` comes before it, or after.
    """

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self._asked = False
        self._hurried = False
        self._gate = threading.Lock()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self.beating: Final = threading.Lock()

    def start(self) -> None:
        """Run from now on; nothing happens when it runs already, or when the process can have no more threads."""
        self._asked = True
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is not None:
                return
            thread = self._thread = threading.Thread(target=self._run, name="ravi-ledger", daemon=True)
        try:
            with without_signals():
                contextvars.Context().run(thread.start)  # in nobody's context: it outlives the call that began it
        except RuntimeError:
            self._thread = None

    def hurry(self) -> None:
        """Beat now; also for a signal's handler that came in the middle of this."""
        self._hurried = True
        with contextlib.suppress(RuntimeError):  # it is about to
            self._gate.release()

    def end(self) -> None:
        """Beat no more, until it is started again; what beats now is waited for."""
        self._thread = None
        self.hurry()
        with self.beating:
            pass

    def _run(self) -> None:
        try:
            while (pause := self._beat_once()) is not None:
                self._wait(pause)
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this thread, and nothing else
            self._thread = None
            swallow("ledger", error)

    def _wait(self, pause: float) -> None:
        gate = threading.Lock()  # made here, and not with the rest: gevent may have patched since
        gate.acquire()
        self._gate = gate
        if not self._hurried:
            gate.acquire(timeout=pause)
        self._hurried = False

    def _beat_once(self) -> float | None:
        with self.beating:
            if self._thread is not threading.current_thread():
                return None
            self._asked = False
            pause = self._beat()
        with self._starting:
            if pause is None and self._thread is threading.current_thread():
                self._thread = None  # before it is looked at: who asks from now on starts another
                if self._asked:
                    self._thread = threading.current_thread()
                    return 0.0
        return pause


# -- a store, as those see it who stand before it -----------------------------------------------------------------------


class SharedStore(Counting, Operated, Protocol):
    """The accounts that several processes count in: all lines of a request are such accounts.

    Each step is atomic, and counts once by its operation's id. What cannot be done raises StoreError, with reason "store_failed", or
    "store_lost" where the store works and has forgotten what was counted in it. The store keeps nothing of that: a `StoreLedger` stands
    before it, refuses or lets pass, and does later what must not be left out.
    """

    pulse: Heartbeat
    """Runs `beat`; whoever stands before the store gives it this. The store starts it when it holds something first."""

    @property
    def operations(self) -> Operations:
        """What this process holds in it by id, and what it may hold there, since it was asked for and no answer came."""
        ...

    @property
    def in_parts(self) -> bool:
        """Whether a part of it may fail by itself."""
        ...

    def sentence(self, error: StoreError) -> str:
        """Return which store it is, what is wrong, and the way out; no secret is in it."""
        ...

    def read(self, account: Account) -> bool:
        """Write into an account what the store has of it, changing nothing there; return whether it has any."""
        ...

    def beat(self) -> float | None:
        """Give a sign of life, and see to those who wait; return in how many seconds the next one is due, None where nothing is held."""
        ...

    def sign_off(self, *, for_s: float) -> Flow[None]:
        """Have what this process still holds settled at its grant, until it says otherwise; what is late ends with its lease."""
        ...

    def close(self) -> None:
        """Let the store go."""
        ...


# -- what a store is owed ---------------------------------------------------------------------------------------------

_MOST_ENDS: Final = 100_000
_MOST_SUMS: Final = 100_000
_MOST_APART: Final = 1_000
"""How many charges wait to be summed up."""

_MOST_TRIES: Final = 5
_PAYS_FOR_S: Final = 1.0
"""How long somebody is thought to be sending after a debt; a signal may have ended that."""


class Debt:
    """What is owed of one operation: that it began (`request`), how it ended (`actual`), or both; `ends` is by which verb, if it does.

    It counts once however often it is paid, by the operation's id. `tries` is how often the store has taken everything but this.
    """

    __slots__ = ("actual", "ends", "guessed", "op_id", "request", "tries")

    def __init__(
        self,
        op_id: str,
        ends: Literal["settle", "release"] | None,
        actual: Mapping[str, int] | None = None,
        *,
        guessed: bool = False,
        request: Reservation | None = None,
    ) -> None:
        self.op_id = op_id
        self.ends = ends
        self.actual = actual
        self.guessed = guessed
        self.request = request
        self.tries = 0

    @classmethod
    def of_charge(cls, account: Account, amount: int) -> Debt:
        """Return the debt of what was spent of an account: an operation that begins and ends in one."""
        op_id = new_op_id()
        return cls(op_id, "settle", {account.kind: amount}, request=Reservation(op_id, [Line(account, amount, 0)], spent=True))

    def pay(self, store: SharedStore) -> Flow[Settled]:
        """Tell the store, and return what that brought; StoreError where it does not take it."""
        begun: Sequence[Crossing] = ()
        settled = Settled()
        if self.request is not None:
            begun = (yield from store.reserve(self.request)).crossings
        if self.ends == "settle":
            settled = yield from store.settle(self.op_id, self.actual, guessed=self.guessed)
        elif self.ends == "release":
            yield from store.release(self.op_id)
        return Settled([*begun, *settled.crossings], settled.overage, settled.forgotten)


class DebtBook:
    """What a store is owed: what ended, and what was spent, while it was away. It is in memory alone, and bounded.

    What was spent is summed up by account, so that a store which is away for long costs neither memory nor time for each call that
    passes. A sum is sealed before it is sent first: it is sent again as it was, and counts once. `untold` is what was crossed, for the
    next caller to tell. `lost` counts what was given up, of which the first is told in the log. `open` says that something is owed or
    untold. Anybody may add, a signal's handler in the middle of a payment too: whoever adds waits for no lock.
    """

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._ends: dict[Debt, None] = {}
        self._fresh: deque[tuple[Account, int]] = deque()
        self._sums: dict[Account, int] = {}
        self._summed: object = None
        self._summing = threading.Lock()
        self._sealed: dict[Debt, None] = {}
        self._paying_until = 0.0
        self.untold = Settled()
        self.lost = 0
        self.open = False

    def __len__(self) -> int:
        """Count what is owed."""
        return len(self._ends) + len(self._sealed) + len(self._sums) + len(self._fresh)

    def add(self, debt: Debt) -> None:
        """Owe this; what is too much is given up, oldest first."""
        self._ends[debt] = None
        self.open = True
        if len(self._ends) > _MOST_ENDS:
            self._give_up(next(iter(self._ends)), f"more than {_MOST_ENDS:,} of them wait for the store")

    def charge(self, amounts: Iterable[tuple[Account, int]]) -> None:
        """Owe what was spent of these accounts."""
        self._fresh.extend(amounts)
        self.open = True
        if len(self._fresh) > _MOST_APART:
            self._sum_up()

    def _give_up(self, debt: Debt, why: str) -> None:
        if self.drop(debt):
            self._store.operations.pop(debt.op_id, None)
            self.give_up(why)

    def give_up(self, why: str) -> None:
        """Count one as lost, and say so of the first."""
        self.lost += 1
        if self.lost == 1:
            warn_uncounted(why)

    def uncharged(self) -> Mapping[Account, int]:
        """Return what was spent and is in no counter of the store, by account, if it counts at its grant what it knows to be held."""
        self._sum_up()
        charges = Counter(self._sums)
        for debt in self._ends:
            operation = self._store.operations.get(debt.op_id) if debt.ends == "settle" else None
            for line, hold in operation.holds if operation is not None else ():
                account = line.account
                beyond = (debt.actual or {}).get(account.kind, hold) - hold
                if beyond > 0 and (line.carved or account.nature in (Nature.HELD, Nature.AFTER)):
                    charges[account] += beyond
        for debt in self._sealed:
            for line in debt.request.lines if debt.request is not None else ():
                charges[line.account] += line.want
        return charges

    def pay(self, *, for_s: float, most: int | None = None) -> Flow[None]:
        """Pay in order what can be paid in `for_s` seconds; of a caller's time `most` debts, and nothing while another does so.

        StoreError where the store is still not there, or takes nothing now: a file that is gone may come back. What only this debt meets is
        its own: that is given up.
        """
        now = time.monotonic()
        if most is not None and now < self._paying_until:
            return
        until, paid = now + for_s, 0
        try:
            while now < until and (most is None or paid < most) and (debt := self._next()) is not None:
                self._paying_until = now + _PAYS_FOR_S
                yield from self._pay_one(debt)
                now, paid = time.monotonic(), paid + 1
        finally:
            self._paying_until = 0.0

    def _next(self) -> Debt | None:
        """Return what to pay now: how operations ended, oldest first, then sums."""
        try:
            return next(iter(self._ends or self._sealed or self._seal()), None)
        except RuntimeError:  # another thread has changed it just now
            return None

    def _pay_one(self, debt: Debt) -> Flow[None]:
        try:
            settled = yield from debt.pay(self._store)
        except StoreError as error:
            if not error.its_own:
                raise
            is_lost = error.reason == "store_lost"
            debt.tries += 1  # what is refused each time must not stand in the way of all the rest
            if is_lost or debt.tries >= _MOST_TRIES:
                self._give_up(debt, FORGOTTEN if is_lost else f"it does not take one, {error.why}")
            return
        if not self.drop(debt):
            if debt.ends is None:  # it ended before it was known to have begun, and was charged
                self.add(Debt(debt.op_id, "release"))
            return
        if settled.forgotten:
            self.give_up(FORGOTTEN)
        if settled.crossings or settled.overage:
            self.untold = settled_together(self.untold, settled)

    def take_untold(self) -> Settled:
        """Return what was crossed meanwhile, to be told now."""
        untold, self.untold = self.untold, Settled()
        self.open = False
        self.open = len(self) > 0
        return untold

    def drop(self, debt: Debt) -> bool:
        """Take one out, as it was paid or given up; return whether it was still owed."""
        owed = debt in self._ends or debt in self._sealed
        self._ends.pop(debt, None)
        self._sealed.pop(debt, None)
        return owed

    def _sum_up(self) -> None:
        """Add up by account; nothing where somebody does it already."""
        if not self._summing.acquire(blocking=False):
            return
        try:
            while self._fresh:
                entry = self._fresh[0]
                account, amount = entry
                known = self._sums.get(account, 0)
                if entry is self._summed:  # a signal's exception came before it was taken out
                    pass
                elif known or len(self._sums) < _MOST_SUMS:
                    self._sums[account], self._summed = known + amount, entry
                else:
                    self.give_up(f"more than {_MOST_SUMS:,} counters wait for the store")
                self._fresh.popleft()
        finally:
            self._summing.release()

    def _seal(self) -> Mapping[Debt, None]:
        """Give each sum the operation's id under which it is sent from now on, and return these; the last ones are paid."""
        self._sum_up()
        if self._sums and self._summing.acquire(blocking=False):
            try:
                if not self._sealed:  # nor by another thread just now
                    sealed = dict.fromkeys(Debt.of_charge(account, amount) for account, amount in self._sums.items())
                    self._sealed, self._sums = sealed, {}
            finally:
                self._summing.release()
        return self._sealed
