"""Turn a refusal into the error its reader needs: one sentence, and the same as fields."""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.claims import claimed
from ravi_otel.enforcement.ledger.contract import Denied
from ravi_otel.errors import (
    AgentPausedError,
    BudgetContendedError,
    BudgetError,
    BudgetExhaustedError,
    CancellationError,
    DeadlineExceededError,
    SpawnDeniedError,
)
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.formula import ALL
from ravi_otel.policy.grammar import format_limit
from ravi_otel.policy.limits import CLOCKS, NANO, SPENDS, Kind, Limit, ScopeKind, public_amount
from ravi_otel.policy.usage import Call
from ravi_otel.policy.windows import same_window

if TYPE_CHECKING:
    from ravi_otel.enforcement.leases import Lease
    from ravi_otel.enforcement.scope import Scope

_TYPED: Final = re.compile(r"[A-Za-z0-9_.:@/-]{1,80}")
"""Names that a command line takes as they are."""
MILLI: Final = NANO // 1_000
_HANDLES: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT, ScopeKind.HANDOFF})
_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT, ScopeKind.PROCESS})
"""Scopes that are joined: a limit declared on them again may have lowered the first."""

_NAMES = {
    Kind.TOKENS: "Token budget",
    Kind.INPUT_TOKENS: "Input token budget",
    Kind.OUTPUT_TOKENS: "Output token budget",
    Kind.COST: "Cost budget",
    Kind.REQUESTS: "Request limit",
    Kind.TURNS: "Turn limit",
    Kind.MESSAGES: "Message limit",
    Kind.TOOL_CALLS: "Tool call limit",
    Kind.AGENTS_TOTAL: "Limit of agents in all",
    Kind.DEPTH: "Depth limit",
    Kind.FAN_OUT: "Fan-out limit",
    Kind.TIME: "Time limit",
    Kind.WORKING: "Working time limit",
}


def shown(kind: str, amount: int) -> str:
    """Write an inner amount for people: `$0.50`, `90 s`, `4200`."""
    if kind == Kind.COST:
        digits = f"{amount / NANO:.9f}".rstrip("0")
        whole, _, part = digits.partition(".")
        return f"${whole}.{part.ljust(2, '0')}"
    if kind in CLOCKS:
        return f"{_rounded(amount)} s"
    return str(amount)


def _rounded(nano: int) -> str:
    """Write seconds with three decimals at most; less than that is not nothing."""
    return f"{nano / NANO:.3f}".rstrip("0").rstrip(".") if nano >= MILLI or nano <= 0 else f"{nano / NANO:.1g}"


def _as_limited(account: Account) -> str:
    """Write a limit's value for people; a time below a second as one writes it, `300ms`."""
    kind, value = account.limit.kind, account.value
    return f"{value / MILLI:g}ms" if kind in CLOCKS and 0 < value < NANO else shown(kind, value)


def named(name: str) -> str:
    """Quote a name that came from outside, with nothing in it that moves a cursor, and short."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")  # noqa: PLR2004 - as wide as a line


def place(facts: ScopeFacts) -> str:
    """Say where: `agent 'researcher' of run 'triage'`."""
    if facts.agent_name and facts.kind == "agent":
        run = facts.run_name or facts.run_id
        return f"agent {named(facts.agent_name)}" + (f" of run {named(run)}" if run else "")
    if facts.kind == "process":
        return "this process" if facts.name is None else f"service {named(facts.name)}"
    name = facts.name or (facts.run_id if facts.kind == "run" else None)
    return f"{facts.kind} {named(name)}" if name else f"this {facts.kind}"


def refused(denied: Denied, agent: ScopeFacts | None = None) -> BudgetError:
    """Write the error of a ledger's refusal; `agent` is who was not let in, where that is what was refused."""
    account, kind = denied.account, denied.account.limit.kind
    title = _title(account)
    limit, used, where = shown(kind, account.value), shown(kind, denied.used), f"{place(account.facts)}{_when(account)}"
    fields = _fields(account, denied.used, denied.held, denied.reason)
    way_out, raised = _way_out(account), _in_force(account)
    if denied.reason == "contended":
        promised = f", {shown(kind, claimed(account))} promised to agents with a weighted share" if account.claims else ""
        return BudgetContendedError(
            f"{title} contended: {shown(kind, denied.held)} of {limit} in {where} is held by calls in flight{promised}, and too little "
            f"came free in time. Lower the concurrency, or raise {raised}.",
            **fields,
        )
    if denied.reason == "closed":
        return BudgetExhaustedError(f"{title}: {where} was closed. Open another one.", **fields)
    if denied.reason == "draining" and not account.value and account.limit.value:
        opened = "`ravi-otel ledger set-limit` opens it again"
        return BudgetExhaustedError(
            f"{title} closed: nothing more may be spent in {where}, as it was closed by an operator; {opened}.", **fields
        )
    if denied.reason == "too_large" and account.nature is not Nature.LEVEL:
        return BudgetExhaustedError(
            f"{title} too small for this call: {used} used + at least {shown(kind, denied.minimum)} needed > "
            f"{_room(account, denied)} in {where}. {'Send' if kind in SPENDS else 'Charge'} less, or raise {raised}.",
            **fields,
        )
    past = f"{used} + {shown(kind, denied.minimum)}" if denied.used <= account.value and denied.minimum else used
    if account.nature is Nature.LEVEL:  # a height, not a sum
        past = shown(kind, denied.minimum)
    if denied.reason == "draining" and denied.used <= account.value:
        spent = f"{used} of {limit} used in {where}, and a call that did not fit was refused before, so nothing more is sent"
        return BudgetExhaustedError(f"{title} exceeded: {spent}. {way_out}", **fields)
    who = "" if agent is None else f", with agent {named(str(agent.agent_id))}"
    return BudgetExhaustedError(f"{title} exceeded: {past} > {_room(account, denied)} in {where}{who}. {way_out}", **fields)


def _when(account: Account) -> str:
    """Say of which window it is the limit, and for whom."""
    limit, words = account.limit, ""
    if limit.per is not None:
        words = f", {limit.per} {account.window} in {limit.tz}" if account.window else f", in {limit.per}"
    if limit.by is not None:
        words += f", calls without a {limit.by}" if account.counted_for is None else f", {limit.by} {named(account.counted_for)}"
    return words


def _room(account: Account, denied: Denied) -> str:
    """Say what did not hold it: the limit, or what it leaves to every call but the last."""
    kind, kept = account.limit.kind, account.reserved
    limit = shown(kind, account.value)
    if not kept or denied.used + denied.minimum > account.value:
        return limit
    handle = account.facts.kind if account.facts.kind in _HANDLES else "current_scope()"
    left = shown(kind, account.value - kept)
    return f"{left} ({shown(kind, kept)} of {limit} {'is' if kept == 1 else 'are'} kept back for {handle}.wrap_up())"


def _title(account: Account) -> str:
    """Name the limit: `Token budget`, `Token budget (uncached)`, `Tool call limit of tool 'search'`."""
    kind, limit = account.limit.kind, account.limit
    title = _NAMES.get(Kind(kind), "Budget") if kind in Kind.__members__.values() else f"Budget of {kind}"
    if limit.detail is not None:
        return f"{title} of tool {named(limit.detail)}"
    return title if limit.count == ALL else f"{title} ({limit.count})"


def no_share(account: Account, asking: ScopeFacts, amount: int, reason: str, *, more: bool = False) -> BudgetError:
    """Write the error of a part that is not left to be carved out for an agent, or of `more` for one that it has."""
    kind = account.limit.kind
    left = shown(kind, max(0, account.value - account.used - account.held))
    there = f"{left} of {shown(kind, account.value)} are left in {place(account.facts)}"
    asked = f"{place(asking)} asks for {shown(kind, amount)} {'more ' if more else ''}{kind}, and {there}"
    fields = _fields(account, account.used, account.held, reason)
    if reason == "contended":
        promised = claimed(account)
        why = f", {shown(kind, promised)} of them promised to agents with a weighted share" if promised else " while others hold theirs"
        return BudgetContendedError(
            f"Share contended: {asked}{why}. Wait for one of them to close, ask for less, or raise {_in_force(account)}.",
            **fields,
        )
    return BudgetExhaustedError(f"Share too large: {asked}. Ask for less, or raise {_in_force(account)}.", **fields)


def no_room(denied: Denied, asking: ScopeFacts, parent: ScopeFacts | None) -> SpawnDeniedError:
    """Write the error of an agent that is one too many in all, or under its parent agent."""
    account, most = denied.account, denied.account.value
    if account.limit.kind == Kind.FAN_OUT:
        above = "its parent agent" if parent is None else place(parent)
        there = f"{denied.minimum - 1} of {most} agents live under {above}"
        way_out = f"{_way_out(account).removesuffix('.')}, or end one of them first."
    else:
        whose = f" of name {named(account.limit.agent)}" if account.limit.agent else ""
        first = ", the first one included" if account.facts.kind is ScopeKind.RUN and not whose else ""
        there = f"{denied.used} of {most} agents{whose} were entered in {place(account.facts)}{first}"
        way_out = _way_out(account)
    return SpawnDeniedError(
        f"No room for agent {named(str(asking.agent_id))}: {there}. {way_out}",
        agent_id=asking.agent_id,
        max_agents=most,
        limit_kind=str(account.limit.kind),
    )


def closed(facts: ScopeFacts) -> BudgetExhaustedError:
    """Write the error of work in a scope that was closed for good."""
    return BudgetExhaustedError(
        f"{place(facts)} was closed. Open another one.", scope=str(facts.kind), run_id=facts.run_id, reason="closed"
    )


def used_up(account: Account) -> BudgetExhaustedError:
    """Write the error of a limit with nothing left, for a message that asks for no amount of it."""
    kind, title = account.limit.kind, _title(account)
    spent = f"{shown(kind, account.used)} of {shown(kind, account.value)} in {place(account.facts)}"
    return BudgetExhaustedError(
        f"{title} used up: {spent}, so nothing more is sent to a model. {_way_out(account)}",
        **_fields(account, account.used, account.held, "exhausted"),
    )


def unpriced(account: Account, provider: str, model: str | None) -> BudgetExhaustedError:
    """Write the error of a cost limit that meets a model without a price."""
    what = "a call without a model" if model is None else f"model {named(model)}"
    return BudgetExhaustedError(
        f"Cost budget cannot be kept: {what} of provider {named(provider)} has no known price in {place(account.facts)}. "
        "Give it one with instrument(prices=...) or under [prices] in a policy file, or let it pass "
        f"{_stated(account, 'on_unpriced', 'warn')}.",
        **_fields(account, account.used, account.held, "unpriced_model"),
    )


def unbounded(account: Account, call: Call) -> BudgetExhaustedError:
    """Write the error of a strict limit that meets a request whose size cannot be told."""
    title, where, held = _title(account), place(account.facts), account.limit.on_unbounded == "window"
    admitted = f"let it pass as an estimate {_stated(account, 'on_unbounded', 'admit')}"
    if not call.least_cap:
        why = f"the output of {call.unbounded} cannot be capped"
        way_out = f"L{admitted.removeprefix('l')}"
    elif held:
        why = f"{call.unbounded} hides the size of the input, and the context window of model {named(str(call.model))} is not known"
        way_out = f"Leave the field out, or {admitted}"
    else:
        why = f"{call.unbounded} in the request hides the size of its input"
        way_out = (
            f"Leave the field out, or hold the model's whole window {_stated(account, 'on_unbounded', 'window')}; "
            '"admit" in place of "window" holds an estimate'
        )
    return BudgetExhaustedError(
        f"{title} cannot be kept strictly: {why}, in {where}. {way_out}.",
        **_fields(account, account.used, account.held, "unbounded_input"),
    )


def cut_short(account: Account, cap: int, partial: str | None) -> BudgetExhaustedError:
    """Write the error of an answer that ended at the cap a strict limit put on it, so that the client could not read it."""
    limit, used = shown(account.limit.kind, account.value), shown(account.limit.kind, account.used)
    return BudgetExhaustedError(
        f"{_title(account)} left room for {cap} output tokens, and the answer ended there unfinished: {used} of {limit} used in "
        f"{place(account.facts)}. {_way_out(account)}",
        **_fields(account, account.used, account.held, "truncated"),
        partial=partial,
    )


def cut(account: Account, reason: str, used: int, held: int, *, counted: bool) -> BudgetError:
    """Write the error of a stream that was cut: `used` with what came of it, `counted` by us, and `held` by other calls."""
    kind, title, where = account.limit.kind, _title(account), place(account.facts)
    spent, limit = shown(kind, used), shown(kind, account.value)
    fields = _fields(account, used, held, reason)
    fields["estimated"] = counted
    by_us = ", by our count" if counted else ""
    others = f", and {shown(kind, held)} held by other calls" if held > 0 else ""
    if reason == "contended":
        return BudgetContendedError(
            f"{title} contended: {spent} of {limit} used in {where}{by_us}{others}, so the stream was cut. "
            f"Lower the concurrency, or raise {_in_force(account)}.",
            **fields,
        )
    if used > account.value:
        return BudgetExhaustedError(
            f"{title} exceeded: {spent} > {limit} in {where}{by_us}, so the stream was cut. {_way_out(account)}", **fields
        )
    return BudgetExhaustedError(
        f"{title} used up: {spent} of {limit} in {where}{by_us}{others}, so the stream was cut. {_way_out(account)}", **fields
    )


def late(account: Account) -> DeadlineExceededError:
    """Write the error of a deadline."""
    title = _NAMES[Kind(account.limit.kind)]
    return DeadlineExceededError(
        f"{title} passed (deadline exceeded): {shown(account.limit.kind, account.used)} > {_as_limited(account)} in "
        f"{place(account.facts)}. {_way_out(account)}",
        **_fields(account, account.used, 0, "deadline"),
    )


def wrapped(account: Account, owner: ScopeFacts) -> BudgetExhaustedError:
    """Write the error of a second last call."""
    return BudgetExhaustedError(
        f"{place(owner)} has made its last call already, and keeps nothing back for another. End here, or raise {_in_force(account)}.",
        **_fields(account, account.used, account.held, "wrapping_up"),
    )


def wrapping_up(account: Account, owner: ScopeFacts, tool: str) -> BudgetExhaustedError:
    """Write the error of a tool in the block of the last call."""
    return BudgetExhaustedError(
        f"tool {named(tool)} is not run while {place(owner)} wraps up: answer with what is there, or end here.",
        **_fields(account, account.used, account.held, "wrapping_up"),
    )


def cancelled(scope: Scope) -> CancellationError:
    """Write the error of work in a run that was cancelled: the outermost one."""
    around = reversed(scope.upwards())
    owner = next((one for one in around if one.cancellation is not None and one.cancellation.cancelled), scope)
    token = owner.cancellation
    reason = None if token is None else token.reason
    return CancellationError(f"{place(owner.facts)} was cancelled" + (f": {reason}" if reason else ""), reason=reason)


def paused(lease: Lease, partial: str | None = None, way_out: str | None = None) -> AgentPausedError:
    """Write the error of work of an agent that has no slot any more: more urgent work has it, or an operator stopped it."""
    agent_id = lease.agent_id
    why, by_itself = "its slot went to more urgent work", "End it with what it has, or raise SpawnBudget.max_agents."
    if lease.on_hold:
        why, by_itself = "an operator stopped it", f"End it with what it has; SpawnTracker.resume({named(agent_id)}) lets it go on."
    return AgentPausedError(f"agent {named(agent_id)} is paused: {why}. {way_out or by_itself}", agent_id=agent_id, partial=partial)


def _way_out(account: Account) -> str:
    if account.named_store and account.epoch is not None and account.facts.kind in _SHARED:
        return f"All that count in this ledger are held to {_in_force(account)}: raise it by `{_command(account)}`, for example."
    if account.value != account.limit.value:
        return f"Raise {_in_force(account)}."
    instead = "pass None" if account.origin.startswith("Execution") else "leave it out"
    return f"Raise {account.origin} or {instead}."


def _command(account: Account) -> str:
    """Write how to raise a limit that others count in too: what a program states of it only ever makes it smaller."""
    facts, limit = account.facts, account.limit
    own = {ScopeKind.SESSION: facts.session_id, ScopeKind.TENANT: facts.tenant_id}.get(facts.kind) or facts.scope_id
    if not _TYPED.fullmatch(own):
        return "ravi-otel ledger set-limit"
    more = limit.value if limit.value > account.value else 2 * account.value or 1
    plain = Limit(
        kind=limit.kind,
        value=more,
        detail=limit.detail,
        agent=limit.agent,
        count=limit.count,
        per=same_window(limit.per),
        tz=limit.tz,
        by=limit.by,
    )
    return f"ravi-otel ledger set-limit {facts.kind}:{own} {quote(format_limit(plain))}"


def _in_force(account: Account) -> str:
    """Name the limit as its user wrote it, or what it is by now."""
    if account.value == account.limit.value:
        return account.origin
    since = "in force now" if account.facts.kind in _SHARED else "set by set_limit()"
    return f"{format_limit(replace(account.limit, value=account.value))} ({since}, instead of {account.origin})"


def _stated(account: Account, option: str, value: str) -> str:
    """Write where an option of a limit is stated: where the limit was, or beside what takes none, a budget or a share."""
    if account.origin.startswith("Execution"):
        stated: dict[str, Any] = {"value": account.value, option: value}
        return f"with limits=[{format_limit(replace(account.limit, **stated))!r}] in place of {account.origin}"
    where = f"the limit that {account.origin} is a part of" if account.origin.startswith("agent(share") else _in_force(account)
    return f'with {option}="{value}", which is :{option.removeprefix("on_")}={value} in words, on {where}'


def _fields(account: Account, used: int, held: int, reason: str) -> dict[str, Any]:
    facts, kind = account.facts, account.limit.kind
    return {
        "limit_kind": account.kind,
        "threshold": public_amount(kind, account.value),
        "used": public_amount(kind, used),
        "held": public_amount(kind, held),
        "remaining": public_amount(kind, account.value - used - held),
        "scope": str(facts.kind),
        "agent_name": facts.agent_name,
        "run_name": facts.run_name,
        "run_id": facts.run_id,
        "reason": reason,
    }
