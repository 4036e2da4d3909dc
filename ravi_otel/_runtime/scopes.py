"""Open runs, agents and blocks: what a program writes, checked word by word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.shares import OWN, Share, check_share
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._enforcement.tracker import ExecutionTracker
from ravi_otel._runtime.asking import Limits, read_kinds, read_limits, scope_name, slots, tab
from ravi_otel._runtime.handles import Agent, Block, Handoff, Run, Suspension, watch_parts
from ravi_otel._runtime.resuming import read_resume
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.manager import Hooks, read_hooks
from ravi_otel.policy import checks
from ravi_otel.policy.budgets import ExecutionBudget, HistoryRetention, Priority, SpawnBudget
from ravi_otel.policy.limits import ScopeKind


def run(  # noqa: PLR0913 - the front door's documented keywords
    name: str | None = None,
    *,
    limits: Limits = (),
    budget: ExecutionBudget | ExecutionTracker | None = None,
    session_id: str | None = None,
    tenant_id: str | None = None,
    user_id: str | None = None,
    run_id: str | None = None,
    spawn_budget: SpawnBudget | None = None,
    priority: Priority = Priority.NORMAL,
    retention: HistoryRetention = HistoryRetention.PERMANENT,
    hooks: Hooks = None,
    tags: Mapping[str, str] | None = None,
    resume: Snapshot | str | bytes | None = None,
) -> Run:
    """Open a run: the outermost span of one piece of work, with limits that hold for everything inside.

    `limits` takes limits or their spelling (`"tokens=500k"`); `budget` an ExecutionBudget, or an ExecutionTracker that
    becomes the run's tab. `session_id` and `tenant_id` open or join those scopes. `user_id` says
    whom it is done for: limits that count by user have a counter for each. `hooks`, a HookManager or several, hear of everything
    inside. `tags` are short strings put on spans
    and on the cost metric. `resume` goes on from a snapshot, or its JSON: with its run id, and with these limits, not the ones of then.
    Use it with `with`, `async with` or as a decorator.
    """
    snapshot = read_resume(resume, run_id=run_id, session_id=session_id, tenant_id=tenant_id)
    ask = Opening(
        kind=ScopeKind.RUN,
        resume=snapshot,
        name=scope_name("run(name)", name),
        limits=read_limits("run(limits)", limits),
        budget=tab("run(budget)", budget),
        run_id=scope_name("run(run_id)", run_id if snapshot is None else snapshot.run_id),
        session_id=scope_name("run(session_id)", session_id),
        tenant_id=scope_name("run(tenant_id)", tenant_id),
        user_id=scope_name("run(user_id)", user_id),
        spawn_budget=slots(spawn_budget),
        priority=checks.member("run(priority)", priority, Priority),
        retention=checks.member("run(retention)", retention, HistoryRetention),
        tags=checks.tags("run(tags)", {} if tags is None else tags),
        hooks=read_hooks("run(hooks)", hooks),
    )
    return Run(ask)


def agent(  # noqa: PLR0913 - the front door's documented keywords
    name: str,
    *,
    agent_id: str | None = None,
    budget: ExecutionBudget | ExecutionTracker | None = None,
    priority: Priority | None = None,
    limits: Limits = (),
    retention: HistoryRetention | None = None,
    share: Share = OWN,
    hooks: Hooks = None,
    when_paused: Literal["end", "wait"] = "end",
) -> Agent:
    """Open an agent: its own span and its own tab; what it spends counts for every enclosing scope but its parent agent's.

    With `share` "pool" it charges its parent agent's tab too; a float above 0 and up to 1 sets that part aside of what is left of
    its parent agent's tokens, cost and turns (of the run's, without a parent agent), a whole number so many tokens: what it used
    is charged there when it closes, and the rest given back. "weighted" promises it its part of that by `priority`, among the agents
    that live with such a share, and charges as it goes. Takes a slot of the run's spawn budget for its time (the run's first
    agent is its root, and is the 1). Raises SpawnDeniedError on entry when no slot is left, BudgetExhaustedError when the share
    is not left, and BudgetContendedError when only others' shares and calls are in its way. `hooks` hear of its own work, and not of
    its child agents' or of runs inside. Without `priority` and `retention` it has those of the `spawn()` around it, else NORMAL and
    RUN. When its slot goes to more urgent work, its next call or tool raises AgentPausedError, or with
    `when_paused="wait"` waits in line for a slot and goes on: a declared wait, within the deadlines around.
    """
    ask = Opening(
        kind=ScopeKind.AGENT,
        name=scope_name("agent(name)", name, required=True),
        agent_id=scope_name("agent(agent_id)", agent_id),
        limits=read_limits("agent(limits)", limits),
        budget=tab("agent(budget)", budget),
        own_priority=None if priority is None else checks.member("agent(priority)", priority, Priority),
        own_retention=None if retention is None else checks.member("agent(retention)", retention, HistoryRetention),
        share=check_share("agent(share)", share),
        hooks=read_hooks("agent(hooks)", hooks),
        waits=checks.choice("agent(when_paused)", when_paused, ("end", "wait")) == "wait",
    )
    if not isinstance(share, str):
        watch_parts()
    return Agent(ask)


def handoff(name: str, *, limits: Limits = ()) -> Handoff:
    """Open the stretch of a run in which another takes over, with limits of its own.

    Limits written for it anywhere around, such as `handoff.researcher.message=12`, apply to each handoff of that name afresh.
    As a tool that hands over to an agent it is another one: `ravi_otel.agents.handoff(agent)`.
    """
    if callable(getattr(name, "run", None)):
        raise ConfigurationError(
            f"handoff(name={checks.show(name)}) takes a name. A tool that hands over is ravi_otel.agents.handoff(agent)."
        )
    ask = Opening(
        kind=ScopeKind.HANDOFF,
        name=scope_name("handoff(name)", name, required=True),
        limits=read_limits("handoff(limits)", limits),
    )
    return Handoff(ask)


def apply_limits(limits: Limits, *, catch: bool = False, name: str | None = None) -> Block:
    """Limit a block of code; with `catch` the block swallows the breach of these limits, and of no others."""
    ask = Opening(kind=ScopeKind.BLOCK, name=scope_name("apply_limits(name)", name), limits=read_limits("apply_limits(limits)", limits))
    return Block(ask, catch=checks.flag("apply_limits(catch)", catch))


def suspend_limits(reason: str, kinds: Iterable[str] | None = None) -> Suspension:
    """Set limits aside for auxiliary work, such as a summary: what is done inside is counted, and they refuse none of it.

    Only limits declared with `suspend="allow"` are set aside, of `kinds` if given (such as ["tokens"]); all others stay in force,
    and clocks do not stop. `reason` is told with the event `ravi.limit.suspended`. Where no limit allows it nothing changes, which
    the log says once.
    """
    ask = Opening(
        kind=ScopeKind.BLOCK,
        suspended=read_kinds("suspend_limits(kinds)", kinds),
        reason=checks.name("suspend_limits(reason)", reason),
    )
    return Suspension(ask)


def remaining(kind: str) -> float | None:
    """Give what is left of `kind` for a call made here: the least that any limit around leaves, None where none limits it.

    USD for "cost", seconds for "time" and "working", else a count: "tokens", "requests", "tool.search", "charge.sql_rows". NaN where a
    shared ledger was not heard from yet: that is unknown. See `Scope.remaining`.

    Raises LimitSyntaxError, a ConfigurationError, for a kind that does not exist.
    """
    return STATE.locate()[0].remaining(kind)


def current_scope() -> Scope:
    """Give the scope that a call made here would be charged to; the process's own outside any run."""
    return STATE.locate()[0]
