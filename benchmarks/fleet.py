"""Simulate a fleet: many processes that count in one store, each with the package's own `SlicedLedger`, on a clock moved by hand."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Extended, Grant, Line, Reservation, Settled, new_op_id
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.slices.ledger import SlicedLedger
from ravi_otel._enforcement.ledger.slices.slice import Slice
from ravi_otel._flow import Flow, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, ScopeKind
from ravi_otel.testing import ManualClock

EVERY_S = 4.0
CALL_S = 3.0
TOKENS = 2_000
ANSWER = (400, 2_000)
ZIPF = 1.1
SECONDS = 10.0
COLD = 1.0
"""Calls a second of one process below which no limit is hot: each of them is asked."""

FAR = 10**15


@dataclass(frozen=True)
class Workload:
    """Say how many runs there are at once, in how many processes, for how many tenants."""

    runs: int
    processes: int
    tenants: int

    @property
    def busy(self) -> float:
        """Give the share of the runs that wait for a model at any time."""
        return CALL_S / EVERY_S

    def rates(self) -> list[float]:
        """Give the calls a second of each tenant, the hottest first."""
        weights = [1 / (number + 1) ** ZIPF for number in range(self.tenants)]
        return [self.runs / EVERY_S * weight / sum(weights) for weight in weights]


class Store:
    """Be what several simulated processes count in: one account for each key, shown to whoever asked.

    `asked` counts the round trips for calls, and `chunks` those for chunks of slices.

    What it knows can be photographed, and be put back as it was: so a replica takes over that missed what came after.
    """

    def __init__(self) -> None:
        self._ledger = MemoryLedger()
        self._known: dict[str, Account] = {}
        self.asked = self.chunks = 0
        self._asking: dict[str, Sequence[Line]] = {}
        self.gone = False

    def _own(self, account: Account) -> Account:
        known = self._known.get(account.key)
        if known is None:
            known = self._known[account.key] = Account(account.limit, account.facts, origin=account.origin)
        return known

    def _show(self, lines: Sequence[Line]) -> None:
        for line in lines:
            known = self._own(line.account)
            line.account.used, line.account.held = known.used, known.held
            line.account.flag(near=known.near, exceeded=known.exceeded, draining=known.draining)

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        self._count(request.lines)
        if self.gone:
            raise BudgetExhaustedError("the store has forgotten what was counted in it", reason="store_lost")
        lines = [replace(line, account=self._own(line.account)) for line in request.lines]
        answer = yield from self._ledger.reserve(replace(request, lines=lines, patience_s=0.0))
        self._asking[request.op_id] = request.lines
        self._show(request.lines)
        return answer

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        self._count(self._asking.get(op_id, ()))
        settled = yield from self._ledger.settle(op_id, actual, guessed=guessed)
        self._show(self._asking.pop(op_id, ()))
        return settled

    def _count(self, lines: Sequence[Line]) -> None:
        if any(line.carved for line in lines):
            self.chunks += 1
        else:
            self.asked += 1

    def release(self, op_id: str) -> Flow[None]:
        self.asked += 1
        return self._ledger.release(op_id)

    def extend(self, op_id: str, more: Mapping[str, int]) -> Flow[Extended]:
        self.asked += 1
        return self._ledger.extend(op_id, more)

    def retune(self, account: Account, value: int | None) -> Flow[None]:
        return self._ledger.retune(self._own(account), value)

    def declare(self, account: Account, value: int) -> Flow[None]:
        return self._ledger.declare(self._own(account), value)

    def clocked(self, account: Account, elapsed: int, *, refuses: bool = True) -> Flow[Any]:
        return self._ledger.clocked(self._own(account), elapsed, refuses=refuses)

    def spans(self, account: Account) -> bool:
        return account.facts.kind is ScopeKind.TENANT

    def reset_after_fork(self) -> None:
        self._ledger.reset_after_fork()

    def __len__(self) -> int:
        return len(self._ledger)

    def counted(self, account: Account) -> tuple[int, int]:
        """Give what is used and held of an account, as the store knows it."""
        known = self._own(account)
        return known.used, known.held

    def photograph(self) -> dict[str, tuple[int, int, set[str]]]:
        known = set(self._ledger._operations)  # noqa: SLF001 - what a replica would have
        return {key: (one.used, one.held, known) for key, one in self._known.items()}

    def put_back(self, photograph: dict[str, tuple[int, int, set[str]]]) -> None:
        """Know what was known then: what was settled since is held again, and what was begun since was never heard of."""
        for key, (used, held, operations) in photograph.items():
            self._known[key].used, self._known[key].held = used, held
            live = self._ledger._operations  # noqa: SLF001 - what a replica would not have
            for op_id in set(live) - operations:
                del live[op_id]


class Process:
    """Be one process of the fleet: its ledger, and its own account objects."""

    def __init__(self, store: Store, clock: ManualClock, *, slices: bool = True) -> None:
        self.ledger: Any = SlicedLedger(store, clock=clock, tidies=False) if slices else store
        self._accounts: dict[tuple[int, int], Account] = {}
        self.flying: set[str] = set()

    def account(self, tenant: int, value: int = FAR) -> Account:
        found = self._accounts.get((tenant, value))
        if found is None:
            facts = ScopeFacts(scope_id=f"tenant-{tenant}", kind=ScopeKind.TENANT, tenant_id=f"tenant-{tenant}")
            found = self._accounts[tenant, value] = Account(Limit(kind=Kind.TOKENS, value=value), facts, origin="the limit")
        return found

    def begin(self, account: Account) -> str | None:
        op_id = new_op_id()
        try:
            answer = run_sync(self.ledger.reserve(Reservation(op_id, [Line(account, TOKENS, TOKENS)], {})))
        except BudgetExhaustedError:
            return None
        return op_id if isinstance(answer, Grant) else None

    def end(self, op_id: str, used: int) -> None:
        run_sync(self.ledger.settle(op_id, {Kind.TOKENS: used}))


@dataclass
class Told:
    """Tell what became of a failure, in tokens."""

    calls: int
    out: int
    uncounted: int
    unspent: int


class Crowd:
    """Let processes make calls on one limit, each at a rate of its own, in one order of time."""

    def __init__(self, processes: int, rate: float, seed: int, *, slices: bool, value: int = FAR) -> None:
        self.dice, self.clock, self.store = random.Random(seed), ManualClock(), Store()
        self.processes = [Process(self.store, self.clock, slices=slices) for _ in range(processes)]
        self.accounts = {process: process.account(0, value) for process in self.processes}
        self.rate, self.slices = rate, slices
        self.calls = self.spent = 0
        self._now = 0.0
        self._order = 0
        self._due: list[tuple[float, int, Process, str | None]] = []
        for process in self.processes:
            self._plan(self.dice.expovariate(rate), process, None)

    def _plan(self, at: float, process: Process, op_id: str | None) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, process, op_id))

    def go_on(self, until: float, *, begins: bool = True) -> None:
        """Do what is due until then; without `begins`, only let end what has begun."""
        while self._due and self._due[0][0] <= until:
            at, _, process, op_id = heapq.heappop(self._due)
            if process not in self.accounts:
                continue
            if int(at * 4) > int(self._now * 4) and self.slices:
                for each in self.accounts:
                    each.ledger.tidy()
            self.clock.advance(at - self._now)
            self._now = at
            if op_id is not None:
                self._end(process, op_id)
            elif begins:
                self._begin(process, at)

    def _begin(self, process: Process, at: float) -> None:
        op_id = process.begin(self.accounts[process])
        if op_id is not None:
            self.calls += 1
            process.flying.add(op_id)
            self._plan(at + CALL_S, process, op_id)
        self._plan(at + self.dice.expovariate(self.rate), process, None)

    def _end(self, process: Process, op_id: str) -> None:
        used = self.dice.randint(*ANSWER)
        process.flying.discard(op_id)
        process.end(op_id, used)
        self.spent += used

    def out(self) -> int:
        return sum(process.ledger.out for process in self.processes) if self.slices else 0

    def kill(self, process: Process) -> None:
        """End a process with what it has under way: the store settles that at its grant, the provider what was asked of it."""
        account = self.accounts.pop(process)
        self.spent += sum(self.dice.randint(*ANSWER) for _ in process.flying)
        left = [chunk.op_id for chunk in account.slice.chunks] if isinstance(account.slice, Slice) else []
        for op_id in (*process.flying, *left):
            run_sync(self.store.settle(op_id, None))

    def finish(self) -> int:
        """Let all calls end; tell what the store counted in the end, what it still holds included."""
        self.go_on(self._now + CALL_S + 1.0, begins=False)
        for process in self.accounts:
            if self.slices:
                process.ledger.flush()
        return sum(self.store.counted(self.processes[0].account(0, next(iter(self.accounts.values())).limit.value)))


def trips_of(work: Workload, sample: float) -> list[tuple[float, float]]:
    """Give, for each tenant, the round trips a call that ask for the call itself, and those that take and end chunks of one limit.

    Simulated on a part of the processes, from when calls end as often as they begin.
    """
    processes = max(1, round(work.processes * sample))
    trips: list[tuple[float, float]] = []
    for tenant, rate in enumerate(work.rates()):
        each = rate / work.processes
        if each < COLD:
            trips.append((2.0, 0.0))
            continue
        crowd = Crowd(processes, each, tenant, slices=True)
        crowd.go_on(2 * CALL_S)
        store, calls = crowd.store, crowd.calls
        asked, chunks = store.asked, store.chunks
        crowd.go_on(2 * CALL_S + SECONDS)
        made = max(1, crowd.calls - calls)
        trips.append(((store.asked - asked) / made, (store.chunks - chunks) / made))
    return trips


FAILURES = ("a tenth of the processes is killed", "a replica that missed 100 ms takes over", "the store forgets everything")


def after(failure: str, work: Workload, processes: int, *, slices: bool) -> Told:
    """Let a failure come over the hottest tenant's processes after ten seconds, and tell what it cost."""
    crowd = Crowd(processes, work.rates()[0] / work.processes, 1, slices=slices)
    crowd.go_on(SECONDS - 0.1)
    before = crowd.store.photograph()
    crowd.go_on(SECONDS)
    calls, out = crowd.calls, crowd.out()
    if failure == FAILURES[0]:
        for process in crowd.processes[: max(1, processes // 10)]:
            crowd.kill(process)
    elif failure == FAILURES[1]:
        crowd.store.put_back(before)
    else:
        crowd.store.gone = True
    crowd.go_on(SECONDS + CALL_S)
    if failure == FAILURES[2]:
        return Told(calls, out, (crowd.calls - calls) * TOKENS, 0)
    counted = crowd.finish()
    return Told(calls, out, max(0, crowd.spent - counted), max(0, counted - crowd.spent))
