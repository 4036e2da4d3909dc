"""Say where in the tree of runs and agents something happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ravi_otel.policy.budgets import Supervision
from ravi_otel.policy.limits import ScopeKind


@dataclass(frozen=True, slots=True)
class ScopeFacts:
    """Identify a scope; everything unknown or not applicable is None.

    Made once when the scope opens, read by telemetry, hooks, events and errors. `scope_id` is unique per opened scope,
    `name` is its own name, `run_name` and `agent_name` are those of the innermost enclosing run and agent. A `surrounding`
    scope is the whole process's: no block of code entered it, and several processes may have the same one. `hooks` are who the
    program wants told of what happens right here, and `run_hooks` those of them that the scopes inside inherit. `attempt` says of an
    agent that is supervised which one of its attempts this is, from 1.
    """

    scope_id: str
    kind: ScopeKind
    name: str | None = None
    run_id: str | None = None
    run_name: str | None = None
    session_id: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    agent_name: str | None = None
    agent_id: str | None = None
    supervision: Supervision | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    surrounding: bool = False
    hooks: tuple[object, ...] = field(default=(), compare=False, repr=False)
    run_hooks: tuple[object, ...] = field(default=(), compare=False, repr=False)
    attempt: int | None = None
