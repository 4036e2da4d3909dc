"""Open the counters of a launched program: a file of the run's own, or the ledger that `--ledger` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.choosing import Choice, read_choice
from ravi_otel._enforcement.ledger.contract import Ledger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._launch.places import is_shared
from ravi_otel._launch.plan import VARIABLE, Plan
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._grammar import parse_limit


class Counters(Ledger, Protocol):
    """Be a ledger that can also be read and closed."""

    def read(self, account: Account) -> bool:
        """Show in the account what the store says; False when it says nothing."""
        ...

    def reap(self, *, everybody: bool = False) -> int:
        """End what silent processes left behind; tell how many."""
        ...

    def close(self) -> None:
        """Let the store go."""
        ...


def chosen_by(plan: Plan) -> Choice | None:
    """Give the ledger that more than this program counts in, None where the run has a file of its own."""
    return read_choice(VARIABLE, plan.counted_in) if plan.counted_in else None


def open_in_program(plan: Plan, failed: Callable[[], object]) -> Ledger:
    """Open the counters in a process of the program; the launcher made the run's file, so that one that is gone is lost."""
    choice = chosen_by(plan)
    if choice is None:
        return SqliteLedger(plan.ledger, shares=is_shared, lease_s=plan.lease_s, create=False, failed=failed)
    return choice.open(shares=_is_shared, lease_s=plan.lease_s, failed=failed)


def open_in_launcher(plan: Plan) -> Counters:
    """Open the counters, and see that they can be used; BudgetExhaustedError when not, and a limit would refuse everything then."""
    choice = chosen_by(plan)
    if choice is None:
        ledger = SqliteLedger(plan.ledger, shares=is_shared, lease_s=plan.lease_s)
        ledger.prepare()
        return cast("Counters", ledger)  # which passes on to its store what it does not do itself
    opened = cast("Counters", choice.open(shares=_is_shared, lease_s=plan.lease_s))
    try:
        opened.reap()
    except BudgetExhaustedError:
        if not plan.observe and any(parse_limit(spec).on_store_failure in (None, "closed") for spec, _ in plan.limits):
            raise
    return opened


def read_at_end(plan: Plan, ledger: Counters, *, gone: bool) -> None:
    """Have what silent processes hold counted as spent: of the run's own file all of it, once all of them are `gone`."""
    ledger.reap(everybody=gone and not plan.counted_in)


def _is_shared(account: Account) -> bool:
    """Tell that others count in it: everything of the run around the program, and what every shared ledger shares."""
    return is_shared(account) or account.is_shareable()
