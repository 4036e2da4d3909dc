"""Know how long a scope has been at it, what of that was a declared wait, and how much time is left.

A clock limit binds everything inside its scope, an agent's children too. `time` is all that passes; `working` leaves out the
time in which somebody inside has declared to wait for a person or another system.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ravi_otel._enforcement import charges, errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._flow import run_sync
from ravi_otel._forksafe import ForkLock
from ravi_otel.policy.limits import Kind

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope
    from ravi_otel.errors import DeadlineExceededError
    from ravi_otel.hooks.records import CallRecord, ToolRecord

Waits = tuple[int, int, int]
"""How many waits are open, since when on the monotonic clock in ns, and what the ones before took; replaced as one."""

NO_WAITS: Waits = (0, 0, 0)

_WORKING = Kind.WORKING.value
_lock: Final = ForkLock()
"""One that may be taken twice by one thread: a signal may begin a wait while another is begun."""


class Timer(Protocol):
    """Look at clocks when they are due, though nobody calls anything, and end what a stopped scope has in flight."""

    def watch(self, scope: Scope, account: Account) -> None:
        """Look at this clock when it is due next; called again whenever that has moved."""
        ...

    def forget(self, scope: Scope) -> None:
        """Look at no clock of the scope any more."""
        ...

    def stopped(self) -> None:
        """End the calls and streams in flight that must not go on; something was closed or cancelled."""
        ...


def elapsed_ns(account: Account, owner: Scope, now: int) -> int:
    """Tell how much of a clock limit has passed."""
    passed = now - owner.started_ns
    return passed if account.kind != _WORKING else passed - waited_ns(owner, now)


def is_waiting(account: Account, owner: Scope) -> bool:
    """Tell that this clock stands still, because a wait is declared."""
    return account.kind == _WORKING and owner.waits[0] > 0


def waited_ns(scope: Scope, now: int) -> int:
    """Tell for how long a declared wait was open inside the scope; waits at the same time count once."""
    count, since, total = scope.waits
    return total + (now - since if count else 0)


def left_ns(scope: Scope) -> int | None:
    """Tell how much time is left before the first enclosing clock runs out, not above 0 past it; None without a clock.

    Limits that only observe, and clocks that stand still, leave all the time there is.
    """
    clocks = scope.plan.clocks
    if not clocks:
        return None
    now = scope.engine.clock.monotonic_ns()
    left = [
        account.value - elapsed_ns(account, owner, now)
        for account, owner in clocks
        if not account.observe and not is_waiting(account, owner)
    ]
    return min(left) if left else None


def is_over(scope: Scope) -> bool:
    """Tell that what is in flight in `scope` must end: it was cancelled or closed, or its time is up."""
    token = scope.cancellation
    if token is not None and token.cancelled:
        return True
    if any(outer.closed for outer in scope.upwards()):
        return True
    left = left_ns(scope)
    return left is not None and left <= 0


def overdue(scope: Scope, at: CallRecord | ToolRecord | None, slack_ns: int = 0) -> DeadlineExceededError | None:
    """Give the error of the outermost clock that has run out, or will in `slack_ns`; emits the limit events of all of them."""
    engine = scope.engine
    now = engine.clock.monotonic_ns()
    for account, owner in scope.plan.clocks:
        elapsed = elapsed_ns(account, owner, now)
        over = elapsed + slack_ns >= account.value
        if over:
            elapsed = max(elapsed, account.value)
        elif elapsed < account.warn_value:
            continue
        engine.tell(run_sync(engine.ledger.clocked(account, elapsed)), at)
        if not over:
            continue
        if not account.observe:
            engine.count("denied", account)
            return owned(errors_text.late(account), account)
        charges.observed(scope, account, at, "deadline")
    return None


def arm(scope: Scope, account: Account) -> None:
    """Have a scope's own clock looked at when it is due; for any other kind of limit this is nothing."""
    timer = scope.engine.timer
    if timer is not None and account.nature is Nature.CLOCK:
        timer.watch(scope, account)


def conclude(scope: Scope, ended_ns: int) -> None:
    """Write how far the scope's own clocks had come when it ended, and have them looked at no more."""
    clocked = False
    for account in scope.accounts:
        if account.nature is Nature.CLOCK:
            account.used, clocked = max(account.used, elapsed_ns(account, scope, ended_ns)), True
    if clocked:
        disarm(scope)


def disarm(scope: Scope) -> None:
    """Have the scope's clocks looked at no more."""
    if scope.engine.timer is not None:
        scope.engine.timer.forget(scope)


def begin_wait(scope: Scope) -> None:
    """Stop the `working` clocks of the scope and of every one around it; each is to be ended by one `end_wait`."""
    now = scope.engine.clock.monotonic_ns()
    begun: list[Scope] = []
    try:
        with _lock.own:
            for one in scope.upwards():
                count, since, total = one.waits
                begun.append(one)
                one.waits = (count + 1, since if count else now, total)
        _rearm(scope)
    except BaseException:  # a signal: nobody will end what was not begun
        _end(begun, now)
        _rearm(scope)
        raise


def end_wait(scope: Scope, ended_ns: int | None = None) -> None:
    """Let the `working` clocks go on that no other wait keeps; `ended_ns` is when it was over, on the monotonic clock."""
    _end(scope.upwards(), scope.engine.clock.monotonic_ns() if ended_ns is None else ended_ns)
    _rearm(scope)


def _end(scopes: Sequence[Scope], now: int) -> None:
    with _lock.own:
        for one in scopes:
            count, since, total = one.waits
            one.waits = (count - 1, since, total) if count > 1 else (0, 0, total + (max(0, now - since) if count else 0))


def _rearm(scope: Scope) -> None:
    for one in scope.upwards():
        if one.ended_ns is None:
            for account in tuple(one.accounts):
                if account.kind == _WORKING:
                    arm(one, account)
