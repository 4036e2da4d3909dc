"""Set another value on the limits of a scope that is open.

A raise arms the limit's events again and ends draining; whoever waits in line is judged again either way. A value below what
is used refuses from now on and tells nothing by itself: the first refusal, or the first settle, tells that the limit is
exceeded, once, as for any other limit. What an agent's part is raised by is held where the part came from, and refused where it is
not left; a part that is lowered keeps what it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ravi_otel._flow import run_sync
from ravi_otel.enforcement import clocks, refusal
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.sharing import Part
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.grammar import read_kind
from ravi_otel.policy.limits import CLOCKS, Kind, Limit, ScopeKind

if TYPE_CHECKING:
    from ravi_otel.enforcement.scope import Scope
    from ravi_otel.enforcement.series import Series

    CountingT = TypeVar("CountingT", Account, Series)


def set_limit(scope: Scope, kind: str, value: float) -> None:
    """See `Scope.set_limit`."""
    asked = read_kind("set_limit(kind)", kind, own=True)
    name = asked.name
    found = _named(scope.accounts, name, asked.agent) if asked.scope is None else []
    series = _named(scope.series, name, asked.agent) if asked.scope is None else []
    slots = name == Kind.AGENTS and asked.agent is None and scope.facts.kind is ScopeKind.RUN
    if not found and not slots and not series:
        have = (
            ", ".join(sorted({limit.label for limit in (*(one.limit for one in scope.accounts), *(one.limit for one in scope.series))}))
            or "none"
        )
        raise ConfigurationError(
            f"set_limit({kind!r}, …): {refusal.place(scope.facts)} has no such limit; it has {have}. "
            "Declare it where the scope is opened, with limits=[...]."
        )
    inner = _inner_amount(name, value)
    if name == Kind.AGENTS and inner < 1:
        raise ConfigurationError(f"set_limit('agents', {value!r}): agents must be at least 1, because the root agent counts as 1.")
    for account in found:
        if isinstance(account, Part):
            account.carved.grow(scope, account.kind, inner)
    if slots and scope.spawn is not None:
        if not found:
            scope.allow(Account(Limit(kind=name, value=inner), scope.facts, origin=f"set_limit({kind!r})", observe=scope.observes))
        scope.spawn.resize(inner)
    for account in found:
        if account.reserved and inner > account.value:
            scope.wrapped = False  # what is kept back is kept for a last call again
        run_sync(scope.engine.ledger.retune(account, inner))
        clocks.arm(scope, account)
    for each in series:
        each.retune(inner)


def _inner_amount(kind: str, value: object) -> int:
    """Convert a limit's public value to the kind's inner integer."""
    if kind == Kind.COST:
        return checks.nano_usd("set_limit(value)", value)
    if kind in CLOCKS:
        return checks.nanoseconds("set_limit(value)", value)
    return checks.count("set_limit(value)", value)


def _named(declared: list[CountingT], name: str, agent: str | None) -> list[CountingT]:
    own = [each for each in declared if each.limit.agent == agent]
    exact = [each for each in own if each.kind == name]
    return exact or [each for each in own if each.limit.kind == name and each.limit.detail is None]
