"""Keep every account in this process, under one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from ravi_otel._flow import Done, Flow, run_sync
from ravi_otel.enforcement.ledger.contract import (
    Account,
    Crossing,
    Denied,
    Grant,
    Line,
    Nature,
    Reason,
    Reservation,
    Settled,
)
from ravi_otel.enforcement.ledger.line import Waiter
from ravi_otel.hooks.records import Phase
from ravi_otel.policy.limits import Kind, ScopeKind

_SHARED_SCOPES = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})
_NOTHING = Settled()


class _Operation:
    """Remember what one operation holds, how many of its lines were taken, and how many were ended.

    A signal handler may raise between two lines of ours. So an operation is known before the first account changes, each
    change is noted right beside it, and whoever ends the operation again goes on where the first attempt stopped.
    """

    __slots__ = ("ended", "grant", "holds", "owner", "taken")

    def __init__(self, owner: object, holds: list[tuple[Line, int]]) -> None:
        self.owner = owner
        self.holds = holds
        self.taken = 0
        self.ended = 0
        self.grant: Grant | None = None


class MemoryLedger:
    """Count for one process; every step is a few integer operations under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[str, _Operation] = {}
        self._dropped: deque[Waiter] = deque()

    def __len__(self) -> int:
        """Count the operations that still hold something."""
        return len(self._operations)

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: a fresh lock, and nothing of the parent's in flight."""
        self._lock = threading.Lock()
        self._operations = {}
        self._dropped.clear()

    # -- the contract ---------------------------------------------------------------------------------------------

    def reserve(self, request: Reservation) -> Flow[Grant | Denied]:
        """See `Ledger.reserve`."""
        if self._dropped:
            self._sweep()
        with self._lock:
            answer = self._judge(request, newcomer=True)
        if request.patience_s <= 0 or not _contended(answer):
            return cast("Flow[Grant | Denied]", Done(answer))
        return self._wait(request)

    def settle(self, op_id: str, actual: Mapping[str, int] | None, *, guessed: bool = False) -> Flow[Settled]:
        """See `Ledger.settle`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            settled = _NOTHING if operation is None else self._settle(operation, actual or {}, woken, guessed=guessed)
            self._operations.pop(op_id, None)
        self._wake(woken)
        return cast("Flow[Settled]", Done(settled))

    def release(self, op_id: str) -> Flow[None]:
        """See `Ledger.release`."""
        if self._dropped:
            self._sweep()
        woken: list[Waiter] = []
        with self._lock:
            operation = self._operations.get(op_id)
            if operation is not None:
                self._release(operation, woken)
                del self._operations[op_id]
        self._wake(woken)
        return cast("Flow[None]", Done(None))

    def retune(self, account: Account, value: int) -> Flow[None]:
        """See `Ledger.retune`."""
        woken: list[Waiter] = []
        with self._lock:
            if value > account.value:
                account.near = account.exceeded = account.draining = False
            warn_at = 0.8 if account.limit.warn_at is None else account.limit.warn_at
            account.value = value
            account.warn_value = -int(-value * warn_at // 1)
            self._rejudge(account, woken)
        self._wake(woken)
        return cast("Flow[None]", Done(None))

    def clocked(self, account: Account, elapsed: int) -> Flow[Sequence[Crossing]]:
        """See `Ledger.clocked`."""
        crossings: list[Crossing] = []
        with self._lock:
            account.used = max(account.used, elapsed)
            over = account.used >= account.value
            if over:
                account.denied += 1
            _cross(account, "timer", "observed" if account.observe else "denied" if over else "admitted", crossings, denied=over)
        return cast("Flow[Sequence[Crossing]]", Done(crossings))

    # -- judging, under the lock ----------------------------------------------------------------------------------

    def _judge(self, request: Reservation, *, newcomer: bool) -> Grant | Denied:
        known = self._operations.get(request.op_id)
        if known is not None and known.grant is not None:
            return known.grant  # a repeated message: the same answer, nothing twice
        observed: Account | None = None
        for line in () if request.spent else request.lines:
            reason = _refusal(line, newcomer=newcomer)
            if reason is None:
                continue
            if line.account.observe:
                observed = observed or line.account
                continue
            return _deny(line, reason)
        return self._admit(request, observed)

    def _admit(self, request: Reservation, observed: Account | None) -> Grant:
        crossings: list[Crossing] = []
        decision = "admitted" if observed is None else "observed"
        holds = [(line, _hold(line)) for line in request.lines]
        operation = self._operations[request.op_id] = _Operation(request.owner, holds)
        for line, hold in holds:
            account = line.account
            denied = account.observe and _over(line)
            # One statement: an account changes together with the note that it did.
            if account.nature is Nature.COUNTED:
                account.used, operation.taken = account.used + line.want, operation.taken + 1
            elif account.nature is Nature.LEVEL:
                account.used, operation.taken = line.want, operation.taken + 1
            else:
                account.held, operation.taken = account.held + hold, operation.taken + 1
            _cross(account, "admission", decision, crossings, denied=denied)
        if observed is not None:
            observed.denied += 1
        granted = min((hold for line, hold in holds if line.account.kind == Kind.TOKENS and not line.account.observe), default=None)
        operation.grant = grant = Grant(request.op_id, granted, crossings, observed)
        return grant

    def _settle(self, operation: _Operation, actual: Mapping[str, int], woken: list[Waiter], *, guessed: bool) -> Settled:
        crossings: list[Crossing] = []
        overage: list[tuple[Account, int]] = []
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            if account.nature is Nature.COUNTED:
                operation.ended += 1
                continue
            amount = max(hold if guessed else 0, actual.get(account.limit.kind, hold))
            if account.nature is Nature.LEVEL:
                account.used, operation.ended = actual.get(account.limit.kind, account.used), operation.ended + 1
            else:
                account.held, account.used, operation.ended = account.held - hold, account.used + amount, operation.ended + 1
                if amount > hold and account.nature is Nature.HELD:
                    overage.append((account, amount - hold))
            _cross(account, "settle", "observed" if account.observe else "admitted", crossings)
        self._let_in(operation, woken)
        return Settled(crossings, overage)

    def _release(self, operation: _Operation, woken: list[Waiter]) -> None:
        for line, hold in operation.holds[operation.ended : operation.taken]:
            account = line.account
            back = line.want if account.nature is Nature.COUNTED else 0
            account.held, account.used, operation.ended = account.held - hold, account.used - back, operation.ended + 1
            if back and account.used < account.warn_value:
                account.draining = False
        self._let_in(operation, woken)

    # -- the line -------------------------------------------------------------------------------------------------

    def _wait(self, request: Reservation) -> Flow[Grant | Denied]:
        waiter = Waiter(request)
        with self._lock:
            answer = self._judge(request, newcomer=True)  # again, now that it can be woken: nothing freed since is missed
            if not _contended(answer):
                return answer
            account = cast("Denied", answer).account
            if any(op.owner is not None and op.owner == request.owner and _holds(op, account) for op in self._operations.values()):
                return answer  # its own chain holds what stands in the way: waiting would never end
            account.line.append(waiter)
        forget = None if request.on_stop is None else request.on_stop(waiter.wake)
        try:
            yield waiter.step()
        except GeneratorExit:
            self._dropped.append(waiter)  # perhaps by a finaliser, which must not take the lock
            raise
        except BaseException:
            self._give_up(waiter, account)
            raise
        finally:
            if forget is not None:
                forget()
        return self._leave(waiter, account)

    def _give_up(self, waiter: Waiter, account: Account) -> None:
        if isinstance(self._leave(waiter, account), Grant):
            run_sync(self.release(waiter.request.op_id))

    def _sweep(self) -> None:
        """Take those out of line whose coroutine was dropped."""
        while self._dropped:
            try:
                waiter = self._dropped.popleft()
            except IndexError:
                return
            self._give_up(waiter, waiter.request.lines[0].account)

    def _leave(self, waiter: Waiter, account: Account) -> Grant | Denied:
        woken: list[Waiter] = []
        with self._lock:
            answer = waiter.answer
            if answer is None:
                for line in waiter.request.lines:
                    if waiter in line.account.line:
                        line.account.line.remove(waiter)
                        self._rejudge(line.account, woken)  # whoever stood behind may fit where this one did not
                answer = _deny(Line(account, 0, 0), "contended")
        self._wake(woken)
        return answer

    def _wake(self, woken: list[Waiter]) -> None:
        """Wake them, without the lock; what was granted to a task whose event loop is gone is given back."""
        for waiter in woken:
            if not waiter.wake() and isinstance(waiter.answer, Grant):
                run_sync(self.release(waiter.request.op_id))

    def _let_in(self, operation: _Operation, woken: list[Waiter]) -> None:
        """Judge again those who wait for what the operation gave back; only once all of it is back."""
        for line, _ in operation.holds:
            if line.account.line:
                self._rejudge(line.account, woken)

    def _rejudge(self, account: Account, woken: list[Waiter]) -> None:
        """Answer those in line, first come first served, until one has to go on waiting."""
        while account.line:
            waiter = cast("Waiter", account.line[0])
            answer = self._judge(waiter.request, newcomer=False)
            if isinstance(answer, Denied) and answer.reason == "contended":
                if answer.account is account:
                    return
                account.line.pop(0)
                answer.account.line.append(waiter)  # now another account stands in the way
                continue
            account.line.pop(0)
            waiter.answer = answer
            woken.append(waiter)


def _refusal(line: Line, *, newcomer: bool) -> Reason | None:
    account = line.account
    if account.draining:
        return "draining"
    if _over(line):
        return "exhausted"
    if account.nature is not Nature.HELD:
        return None
    contended = account.remaining < line.minimum or (newcomer and account.line)
    return "contended" if contended else None


def _over(line: Line) -> bool:
    """Tell that what is used, whatever is held, leaves no room for the least the line needs."""
    account, nature = line.account, line.account.nature
    if nature is Nature.HELD:
        return account.used + line.minimum > account.value
    if nature is Nature.COUNTED:
        return account.used + line.want > account.value
    if nature is Nature.AFTER:
        return account.used >= account.value
    return line.want > account.value


def _hold(line: Line) -> int:
    account = line.account
    if account.nature is not Nature.HELD:
        return 0
    return line.want if account.observe else max(0, min(line.want, account.remaining))


def _deny(line: Line, reason: Reason) -> Denied:
    account = line.account
    if reason == "contended":
        return Denied(account, reason, account.used, account.held, line.minimum)
    account.denied += 1
    crossings: list[Crossing] = []
    if reason == "exhausted":
        shared = account.facts.kind in _SHARED_SCOPES
        if account.used < account.value and (shared or account.used < account.warn_value):
            return Denied(account, "too_large", account.used, account.held, line.minimum)
        account.draining = account.drainable
        _cross(account, "admission", "denied", crossings, denied=True)
    return Denied(account, reason, account.used, account.held, line.minimum, crossings)


def _cross(account: Account, phase: Phase, decision: str, crossings: list[Crossing], *, denied: bool = False) -> None:
    used, held = account.used, account.held
    if not account.near and account.value > 0 and used >= account.warn_value:
        account.near = True
        _note(account, "limit_nearing", phase, decision, crossings, used, held)
    if not account.exceeded and (denied or used > account.value):
        account.exceeded = True
        _note(account, "limit_exceeded", phase, decision, crossings, used, held)


def _note(
    account: Account,
    event: Literal["limit_nearing", "limit_exceeded"],
    phase: Phase,
    decision: str,
    crossings: list[Crossing],
    used: int,
    held: int,
) -> None:
    account.events = (*account.events, event)
    crossings.append(Crossing(account, event, phase, decision, used, held))


def _contended(answer: Grant | Denied) -> bool:
    return isinstance(answer, Denied) and answer.reason == "contended"


def _holds(operation: _Operation, account: Account) -> bool:
    return any(line.account is account and hold > 0 for line, hold in operation.holds)
