"""Describe the run around a launched program, the same in all of its processes and in the launcher."""

from __future__ import annotations

from collections.abc import Callable

from ravi_otel._enforcement.opening import Opening
from ravi_otel._launch.places import places_of, spell
from ravi_otel._launch.plan import Plan
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import HistoryRetention, ScopeFacts

Declared = tuple[Limit, str]
"""A limit, and what a refusal tells its reader to change."""


def of_service(plan: Plan) -> tuple[Declared, ...]:
    """Give the limits that all starts of the service have together: those that renew, or count by somebody, where others count, too."""
    return tuple(one for one in _declared(plan) if _is_of_service(plan, one[0]))


def run_of(plan: Plan) -> Opening:
    """Describe the run around the whole program; its session, if a limit asks for one, has the run's id."""
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


# -- what limits wait for -----------------------------------------------------------------------------------------


class Openings:
    """Hear of the scopes that are opened, and tell of the first at each place that a limit of the plan waits for."""

    def __init__(self, plan: Plan, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._waiting = {place for limit, _ in _declared(plan) for place in places_of(limit)}

    def __bool__(self) -> bool:
        """Whether anything is waited for."""
        return bool(self._waiting)

    def __call__(self, facts: ScopeFacts) -> None:
        """Tell of it, if it is the first at its place; twice where two threads open it at once, which changes nothing."""
        for place in ((facts.kind, None), (facts.kind, facts.name)):
            if place in self._waiting:
                self._waiting.discard(place)
                self._tell(spell(place))
