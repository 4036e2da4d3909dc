"""Check the limits of a run before anything is started, and read at its end where they stand.

Apart from the launcher, because it takes the engine: a run without limits starts and ends without it.
"""

from __future__ import annotations

from typing import Any

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.store_ledger import refresh
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._launch.around import of_service, run_of
from ravi_otel._launch.counting import Counters, read_at_end
from ravi_otel._launch.plan import Plan
from ravi_otel._runtime.config import Policy
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.local._store import limit_fields
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import ScopeKind


def check_for_run(policy: Policy) -> None:
    """Check that `ravi-otel run` can hold a whole program to these limits, before anything is started.

    A limit without a scope, or of `run` or `session`, is the program's own; `agent.`, `block.` and `handoff.` are for
    what it opens inside. Raises ConfigurationError for `tenant.`, and for what this version cannot do.
    """
    engine = Engine()
    root = Scope.of_process(engine)
    for each in policy.limits:
        if each.limit.scope is ScopeKind.TENANT:
            raise ConfigurationError(
                f"limit {checks.show(each.spec)} of {each.source} belongs to a tenant, and a program that is run has none: "
                "write session. in front, or leave the prefix out."
            )
        try:
            ask = Opening(kind=ScopeKind.RUN, name="run", session_id="run", limits=(each.limit,))
            ask.open(root).leave(None)
        except ConfigurationError as error:
            raise ConfigurationError(f"{each.source}: {error}") from None


def read_budgets(plan: Plan, ledger: Counters, service: str, said: list[str], *, gone: bool) -> tuple[dict[str, Any], ...]:
    """Read the final state of the limits; what processes held that are all `gone` was spent, as far as anybody knows."""
    engine = Engine(ledger=ledger, observe=plan.observe)
    root = Scope.of_process(engine, (limit for limit, _ in of_service(plan)), service=service if plan.counted_in else None)
    scope: Scope | None = run_of(plan).open(root)
    found: list[dict[str, Any]] = []
    try:
        read_at_end(plan, ledger, gone=gone)
        while scope is not None:
            counted = scope.counters()
            for account in counted:
                ledger.read(account)
            refresh(ledger, counted)
            found.extend(limit_fields(scope.facts, reading) for reading in scope.readings())
            scope = scope.parent
    except (RaviError, OSError) as error:
        said.append(f"What was used of the limits cannot be read: {error}")
        return ()
    finally:
        ledger.close()
    return tuple(found)
