"""Turn a refusal into the error its reader needs: one sentence, and the same as fields."""

from __future__ import annotations

from typing import Any

from ravi_otel.enforcement.ledger.contract import Account, Denied, Nature
from ravi_otel.errors import BudgetContendedError, BudgetError, BudgetExhaustedError, DeadlineExceededError
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import CLOCKS, NANO, Kind, public_amount

_NAMES = {
    Kind.TOKENS: "Token budget",
    Kind.INPUT_TOKENS: "Input token budget",
    Kind.OUTPUT_TOKENS: "Output token budget",
    Kind.COST: "Cost budget",
    Kind.REQUESTS: "Request limit",
    Kind.TURNS: "Turn limit",
    Kind.MESSAGES: "Message limit",
    Kind.TOOL_CALLS: "Tool call limit",
    Kind.DEPTH: "Depth limit",
}


def shown(kind: str, amount: int) -> str:
    """Write an inner amount for people: `$0.50`, `90 s`, `4200`."""
    if kind == Kind.COST:
        digits = f"{amount / NANO:.9f}".rstrip("0")
        whole, _, part = digits.partition(".")
        return f"${whole}.{part.ljust(2, '0')}"
    if kind in CLOCKS:
        return f"{amount / NANO:g} s"
    return str(amount)


def named(name: str) -> str:
    """Quote a name that came from outside, with nothing in it that moves a cursor, and short."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")  # noqa: PLR2004 - as wide as a line


def place(facts: ScopeFacts) -> str:
    """Say where: `agent 'researcher' of run 'triage'`."""
    if facts.agent_name and facts.kind == "agent":
        run = facts.run_name or facts.run_id
        return f"agent {named(facts.agent_name)}" + (f" of run {named(run)}" if run else "")
    if facts.kind == "process":
        return "this process"
    name = facts.name or (facts.run_id if facts.kind == "run" else None)
    return f"{facts.kind} {named(name)}" if name else f"this {facts.kind}"


def refused(denied: Denied) -> BudgetError:
    """Write the error of a ledger's refusal."""
    account, kind = denied.account, denied.account.limit.kind
    title = _NAMES.get(Kind(kind), "Budget") if kind in Kind.__members__.values() else f"Budget of {kind}"
    if account.limit.detail is not None:
        title = f"{title} of tool {named(account.limit.detail)}"
    limit, used, where = shown(kind, account.value), shown(kind, denied.used), place(account.facts)
    fields = _fields(account, denied.used, denied.held, denied.reason)
    way_out = _way_out(account)
    if denied.reason == "contended":
        return BudgetContendedError(
            f"{title} contended: {shown(kind, denied.held)} of {limit} in {where} is held by calls in flight, and too little came free "
            f"in time. Lower the concurrency, or raise {account.origin}.",
            **fields,
        )
    if denied.reason == "closed":
        return BudgetExhaustedError(f"{title}: {where} was closed. Open another one.", **fields)
    if denied.reason == "too_large" and account.nature is not Nature.LEVEL:
        return BudgetExhaustedError(
            f"{title} too small for this call: {used} used + at least {shown(kind, denied.minimum)} needed > {limit} in {where}. "
            f"Send less, or raise {account.origin}.",
            **fields,
        )
    past = f"{used} + {shown(kind, denied.minimum)}" if denied.used <= account.value and denied.minimum else used
    if account.nature is Nature.LEVEL:  # a height, not a sum
        past = shown(kind, denied.minimum)
    if denied.reason == "draining" and denied.used <= account.value:
        spent = f"{used} of {limit} used in {where}, and a call that did not fit was refused before, so nothing more is sent"
        return BudgetExhaustedError(f"{title} exceeded: {spent}. {way_out}", **fields)
    return BudgetExhaustedError(f"{title} exceeded: {past} > {limit} in {where}. {way_out}", **fields)


def unpriced(account: Account, provider: str, model: str | None) -> BudgetExhaustedError:
    """Write the error of a cost limit that meets a model without a price."""
    what = "a call without a model" if model is None else f"model {named(model)}"
    return BudgetExhaustedError(
        f"Cost budget cannot be kept: {what} of provider {named(provider)} has no known price in {place(account.facts)}. "
        "Give it one with instrument(prices=...) or under [prices] in a policy file, "
        f'or let it pass with on_unpriced="warn", which is :unpriced=warn in words, on {account.origin}.',
        **_fields(account, account.used, account.held, "unpriced_model"),
    )


def late(account: Account) -> DeadlineExceededError:
    """Write the error of a deadline."""
    elapsed = shown(account.limit.kind, account.used)
    return DeadlineExceededError(
        f"deadline exceeded: {elapsed} > {shown(account.limit.kind, account.value)} in {place(account.facts)}. " + _way_out(account),
        **_fields(account, account.used, 0, "deadline"),
    )


def _way_out(account: Account) -> str:
    instead = "pass None" if account.origin.startswith("Execution") else "leave it out"
    return f"Raise {account.origin} or {instead}."


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
