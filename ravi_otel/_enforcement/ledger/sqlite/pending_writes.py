"""Keep what could not be written when it happened, and what its writing crossed, until somebody can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.contract import Crossing, Denied, Grant, Line, Reservation, Settled, new_op_id
from ravi_otel._enforcement.ledger.sqlite.transaction import Transaction
from ravi_otel._enforcement.ledger.store_failures import FORGOTTEN, StoreError, warn_uncounted

_MOST: Final = 100_000

Act = Callable[[Transaction], Settled | None]


class Written(NamedTuple):
    """Be what one step writes of what is owed: handed to `PendingWrites.written` once the step is."""

    acts: int
    begun: tuple[str, ...]
    settled: list[Settled]
    forgotten: bool


class PendingWrites:
    """Be this process's debts to the file; changed under the ledger's lock, except that `add`, `spend` and `charge` may come from anywhere.

    `untold` is what was crossed meanwhile, `spent` are the operations that happened without it and go on. What has ended
    without it is summed up by account, so that a file that fails for long costs neither memory nor time for each call that passes.
    """

    def __init__(self) -> None:
        self._acts: list[Act] = []
        self.spent: dict[str, Reservation] = {}
        self._fresh: deque[tuple[Account, int]] = deque()
        self._charges: dict[Account, int] = {}
        self.untold: list[Settled] = []

    def __bool__(self) -> bool:
        return bool(self._acts or self.spent or self._fresh or self._charges)

    def add(self, act: Act) -> None:
        """Do this with the next step that can be written."""
        self._acts.append(act)

    def spend(self, request: Reservation) -> None:
        """Record, with the next step that can be written, what happened elsewhere; until then `settle` says what it cost."""
        if request.slot or any(line.carved or line.account.nature is Nature.LEVEL for line in request.lines):
            self.add(lambda step: Settled(step.reserve(request, newcomer=False).crossings))
        else:
            self.spent[request.op_id] = request

    def settle(self, request: Reservation, actual: Mapping[str, int], *, guessed: bool) -> None:
        """Owe what an operation that was taken out of `spent` cost; amounts are as those of `Ledger.settle`."""
        for line in request.lines:
            least = 0 if line.account.nature is Nature.AFTER else line.want
            known = None if line.account.nature is Nature.COUNTED else actual.get(line.account.kind)
            amount = least if known is None else max(known, least) if guessed else known
            if amount > 0:
                self._fresh.append((line.account, amount))

    def write(self, step: Transaction) -> Written:
        """Do it all in this step; give what is to be handed to `written` when the step is."""
        settled: list[Settled] = []
        begun, forgotten = tuple(self.spent.items()), False
        for _, request in begun:
            try:
                settled.append(Settled(step.reserve(request, newcomer=False).crossings))
            except StoreError as error:
                forgotten = _is_forgotten(error)
        self._sum_up()
        for account, amount in self._charges.items():
            try:
                settled.append(_charge(step, account, amount))
            except StoreError as error:
                forgotten = _is_forgotten(error)
        acts = self._acts[:]
        settled += [done for done in (act(step) for act in acts) if done is not None]
        return Written(len(acts), tuple(op_id for op_id, _ in begun), settled, forgotten)

    def written(self, done: Written) -> None:
        """Forget what was written, and keep what it crossed for the next answer."""
        del self._acts[: done.acts]
        for op_id in done.begun:
            self.spent.pop(op_id, None)
        self._charges.clear()
        self.untold.extend(done.settled)
        if done.forgotten:
            warn_uncounted(FORGOTTEN)

    def _sum_up(self) -> None:
        while self._fresh:
            account, amount = self._fresh.popleft()
            if account in self._charges or len(self._charges) < _MOST:
                self._charges[account] = self._charges.get(account, 0) + amount
            else:
                warn_uncounted(f"more than {_MOST:,} counters wait for it")

    def uncharged(self) -> Iterator[tuple[Account, int]]:
        """Give what was spent and is in no counter of the file, by account."""
        for request in self.spent.values():
            self.settle(request, {}, guessed=False)
        self._sum_up()
        return iter(self._charges.items())

    def tell(self, answer: Grant | Denied) -> Grant | Denied:
        """Add to an answer what was crossed meanwhile."""
        if not self.untold:
            return answer
        untold, self.untold = self.untold, []
        crossings: list[Crossing] = [crossing for settled in untold for crossing in settled.crossings]
        answer.crossings = (*crossings, *answer.crossings)
        return answer

    def tell_settled(self, settled: Settled) -> Settled:
        """Add to what settling brought what was settled meanwhile."""
        if not self.untold:
            return settled
        untold, self.untold = [*self.untold, settled], []
        return Settled([one for each in untold for one in each.crossings], [one for each in untold for one in each.overage])


def _charge(step: Transaction, account: Account, amount: int) -> Settled:
    """Charge an account what was spent without the file: an operation that begins and ends in this step."""
    op_id = new_op_id()
    crossings = step.reserve(Reservation(op_id, [Line(account, amount, 0)], {}, spent=True), newcomer=False).crossings
    ended = step.end(op_id)
    settled = judge.PLAIN if ended is None else judge.settle(ended, {account.kind: amount}, guessed=False)
    return Settled([*crossings, *settled.crossings], settled.overage)


def _is_forgotten(error: StoreError) -> bool:
    """Tell that the file works and knows nothing of what is owed any more; raises again what else is wrong with it."""
    if error.reason != "store_lost":
        raise error
    return True
