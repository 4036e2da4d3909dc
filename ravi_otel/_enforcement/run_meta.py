"""Say to whoever works for a run which run it is, when it must end, and who may stop it."""

from __future__ import annotations

import math
import time
import uuid
from typing import TYPE_CHECKING, Final

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy.limits import NANO, Kind, ScopeKind
from ravi_otel.policy.meta import CancellationToken, Deadline, RunMeta

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

_FAR_S: Final = 100 * 365 * 24 * 3600
"""A deadline so far away is none."""


def meta_of(scope: Scope) -> RunMeta:
    """Make the meta of what is done in `scope`; ConfigurationError outside any run and agent."""
    facts, supervision = scope.facts, scope.facts.supervision
    if supervision is None:
        raise ConfigurationError("meta needs a run or an agent around it: open one with ravi_otel.run(), or take RunMeta.standalone().")
    limit = _deadline(scope)
    left = None if limit is None else limit.allowed_s - limit.passed_s
    meta = RunMeta(
        run_id=facts.run_id or supervision.run_id,
        cancellation=CancellationToken() if scope.cancellation is None else scope.cancellation,
        supervision=supervision,
        deadline=None if left is None else max(0.0, time.time() + left),
        trace_id=_trace_id(scope),
        tenant_id=facts.tenant_id,
    )
    return meta if limit is None else meta.held_to(limit)


def _deadline(scope: Scope) -> Deadline | None:
    """Give the tightest deadline around, as its scope has it; `working` limits have none, since waits put them off."""
    now = scope.engine.clock.monotonic_ns()
    found = [
        (account.value - passed, passed, account, account.facts)
        for account, clock in scope.plan.clocks
        if account.kind == Kind.TIME and not account.observe
        for passed in [clock.elapsed_ns(account, now)]
    ]
    left, passed, account, facts = min(found, key=lambda each: each[0], default=(math.inf, 0, None, None))
    if account is None or facts is None or left > _FAR_S * NANO:
        return None
    fields = {"scope": str(facts.kind), "agent_name": facts.agent_name, "run_name": facts.run_name, "run_id": facts.run_id}
    return Deadline(account.value / NANO, passed / NANO, errors_text.place(facts), fields)


def _trace_id(scope: Scope) -> str:
    """Give the trace of the innermost span that a scope here opened, else the current one, else one made up once for the run."""
    known = next((one.trace_id for one in scope.upwards() if one.trace_id is not None), None) or _current.trace_id()
    if known is None:
        known = uuid.uuid4().hex
        owner = next((one for one in scope.upwards() if one.facts.kind is ScopeKind.RUN), scope)
        owner.trace_id = known
    return known
