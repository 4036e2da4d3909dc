"""The limits of a launched program: checked before it starts, opened around all its processes, and read at its end.

A module of its own, because it imports the engine, which a launch without limits does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.store_ledger import refresh
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._launch.plan import Counters, Plan, places_of, spell
from ravi_otel._local.store import limit_fields
from ravi_otel._runtime.config import Policy
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import HistoryRetention, ScopeFacts

Declared = tuple[Limit, str]
"""A limit, and what its refusals advise to change."""


def of_service(plan: Plan) -> tuple[Declared, ...]:
    """Return the limits that all runs of the service share: those that renew, if the ledger is shared."""
    return tuple(one for one in _declared(plan) if _is_of_service(plan, one[0]))


def run_of(plan: Plan) -> Opening:
    """Return the opening of the run around the whole program; its session, if a limit is for one, has the run's id."""
    declared = [one for one in _declared(plan) if not _is_of_service(plan, one[0])]
    has_session = any(limit.scope is ScopeKind.SESSION for limit, _ in declared)
    return Opening(
        kind=ScopeKind.RUN,
        name=plan.name,
        run_id=plan.run_id,
        session_id=plan.run_id if has_session else None,
        limits=tuple(limit for limit, _ in declared),
        origins={at: origin for at, (_, origin) in enumerate(declared)},
        retention=HistoryRetention.PERMANENT,
        tags=plan.tags,
        surrounding=True,
        started_ns=plan.began_ns,
    )


def _declared(plan: Plan) -> tuple[Declared, ...]:
    return tuple((parse_limit(spec), origin) for spec, origin in plan.limits)


def _is_of_service(plan: Plan, limit: Limit) -> bool:
    return bool(plan.counted_in) and limit.renews and limit.scope is None


# -- scopes of limits ---------------------------------------------------------------------------------------------


class OpenedScopes:
    """A reporter of the first scope that is opened at each place that a limit of the plan is for."""

    def __init__(self, plan: Plan, report: Callable[[str], object]) -> None:
        self._report = report
        self._waiting = {place for limit, _ in _declared(plan) for place in places_of(limit)}

    def __bool__(self) -> bool:
        """Whether any place is still to be reported."""
        return bool(self._waiting)

    def __call__(self, facts: ScopeFacts) -> None:
        """Report a scope if it is the first at its place; if two threads open it at once, both may, which is harmless."""
        for place in ((facts.kind, None), (facts.kind, facts.name)):
            if place in self._waiting:
                self._waiting.discard(place)
                self._report(spell(place))


def check_for_run(policy: Policy) -> None:
    """Check that `ravi-otel run` can apply these limits to a whole program, before anything is started.

    A limit without a scope, or of `run` or `session`, applies to the program; one of `agent.`, `block.` or `handoff.` to
    what it opens inside. Raise ConfigurationError for `tenant.`, and for what this version cannot do.
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
    """Return the final state of the limits.

    Reservations of silent processes count as spent: all of them if the file is the run's own and all processes are `gone`.
    """
    engine = Engine(ledger=ledger, observe=plan.observe)
    root = Scope.of_process(engine, (limit for limit, _ in of_service(plan)), service=service if plan.counted_in else None)
    scope: Scope | None = run_of(plan).open(root)
    found: list[dict[str, Any]] = []
    try:
        ledger.reap(everybody=gone and not plan.counted_in)
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
