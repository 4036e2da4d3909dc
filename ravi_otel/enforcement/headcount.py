"""Hold a run to its limits of agents: count and tell what they refused, and name them in the refusal.

The slots themselves are the `SpawnTracker`'s. Nothing here is asked before somebody was refused.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ravi_otel._flow import run_sync
from ravi_otel.enforcement import refusal
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.leases import NoSlot
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Denied, Line, Reservation, new_op_id
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import BudgetExhaustedError, SpawnDeniedError
from ravi_otel.hooks.records import SpawnEvent
from ravi_otel.policy.budgets import UNLIMITED_AGENTS
from ravi_otel.policy.limits import Kind

if TYPE_CHECKING:
    from ravi_otel.enforcement.engine import Engine
    from ravi_otel.enforcement.scope import Scope
    from ravi_otel.enforcement.tally import Tallies


class Headcount:
    """Be what the limits of agents of one run say of who got no slot, or in shadow mode would have got none."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._accounts: list[Account] = []
        self._tallies: Tallies = ()
        self._run_id: str | None = None

    def watch(self, scope: Scope) -> None:
        """Count for the run of this scope; its list of accounts is shared, the scope itself is not kept."""
        self._accounts, self._tallies, self._run_id = scope.accounts, scope.tallies, scope.facts.run_id

    def hear(self, event: SpawnEvent) -> None:
        """Take a spawn event: that a limit is near, or has denied one, is counted and told as any limit's, before telemetry hears of it."""
        with suppress(BudgetExhaustedError):  # the store cannot be used: the limits show what they last knew
            self._count(event)
        if event.outcome == "denied":
            event = replace(event, limit_kind=Kind.AGENTS.value)
        if event.max_agents is not None and event.max_agents >= UNLIMITED_AGENTS.max_agents:
            event = replace(event, max_agents=None)
        self._engine.listeners.spawn_event(event)

    def _count(self, event: SpawnEvent) -> None:
        if event.outcome == "denied":
            self._denied(event.active + 1)
        elif event.active > 1:  # the root alone, which nobody can refuse, is near nothing
            near = [each for each in self._mine() if not each.near and each.warn_value <= event.active <= each.value]
            if near:
                self._live(near, event.active)

    def _denied(self, asked: int) -> None:
        passed = [account for account in self._mine() if asked > account.value]
        if not passed:
            return
        self._live(passed, asked - 1)
        ledger, op_id = self._engine.ledger, new_op_id()
        answer = run_sync(ledger.reserve(Reservation(op_id, [Line(account, asked, asked) for account in passed], {})))
        self._engine.answered(answer)
        if isinstance(answer, Denied):
            self._engine.count("denied", answer.account)
            add_counts(self._tallies, refused=1)
            return
        self._engine.settle(op_id, None)
        if answer.observed is not None:
            self._engine.count("denied", answer.observed, observed=True)

    def _live(self, accounts: list[Account], count: int) -> None:
        """Have the limits say how many there are: they are not told of each agent that comes and goes."""
        op_id = new_op_id()
        begun = run_sync(self._engine.ledger.reserve(Reservation(op_id, [Line(each, count, 0) for each in accounts], {}, spent=True)))
        self._engine.tell(begun.crossings)
        self._engine.settle(op_id, None)

    def _mine(self) -> list[Account]:
        return [account for account in tuple(self._accounts) if account.limit.kind == Kind.AGENTS]

    def refusal(self, asking: NoSlot) -> SpawnDeniedError:
        """Write the error of who got no slot, which names the limit that allows so many agents."""
        account = next((each for each in self._mine() if each.value == asking.most and not each.observe), None)
        error = refusal.no_slot(asking, account, self._run_id)
        return error if account is None else owned(error, account)
