"""Hold a run to its limits of agents: count and tell what they refused, and name them in the refusal.

The slots themselves are the `SpawnTracker`'s. Nothing here is asked before somebody was refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ending import owned
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Denied, Line, Reservation, new_op_id
from ravi_otel.enforcement.refusal import place
from ravi_otel.enforcement.tally import add_counts
from ravi_otel.errors import SpawnDeniedError
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

    def watch(self, scope: Scope) -> None:
        """Count for the run of this scope; its list of accounts is shared, the scope itself is not kept."""
        self._accounts, self._tallies = scope.accounts, scope.tallies

    def hear(self, event: SpawnEvent) -> None:
        """Take a spawn event: a denial is counted, and told as any limit's, before telemetry hears of it."""
        if event.outcome == "denied":
            self._denied(event.active + 1)
            event = replace(event, limit_kind=Kind.AGENTS.value)
        if event.max_agents is not None and event.max_agents >= UNLIMITED_AGENTS.max_agents:
            event = replace(event, max_agents=None)
        self._engine.listeners.spawn_event(event)

    def _denied(self, asked: int) -> None:
        passed = [account for account in self._mine() if asked > account.value]
        if not passed:
            return
        self._live(passed, asked - 1)
        ledger, op_id = self._engine.ledger, new_op_id()
        answer = run_sync(ledger.reserve(Reservation(op_id, [Line(account, asked, asked) for account in passed], {})))
        self._engine.tell(answer.crossings)
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

    def refusal(self, agent_id: str, waited: str, most: int, way_out: str) -> SpawnDeniedError | None:
        """Write the error that names the limit which allows `most` agents; None when it is the run's SpawnBudget that does."""
        account = next((each for each in self._mine() if each.value == most and not each.observe), None)
        if account is None:
            return None
        live = f"{most} of {most} agents are live in {place(account.facts)}, its root included"
        message = f"No slot for agent {agent_id!r}{waited}: {live}. {way_out.format(account.origin)}"
        return owned(SpawnDeniedError(message, agent_id=agent_id, max_agents=most), account)
