"""Read limits for people, in the units they wrote them in: those of one scope, all that hold in it, and what they leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ravi_otel._enforcement.ledger.account import Account, Nature
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.refreshing import as_of, is_unknown, newest, refresh
from ravi_otel._enforcement.series import MOST_READ, Series, counters
from ravi_otel._enforcement.spawn.limits import children_of, most_children
from ravi_otel.hooks.records import LimitReading
from ravi_otel.policy.grammar import NamedKind, read_kind
from ravi_otel.policy.limits import CLOCKS, Kind, public_amount

if TYPE_CHECKING:
    from ravi_otel._enforcement.scope import Scope

_WHOLE: Final = {Kind.INPUT_TOKENS.value: Kind.TOKENS.value, Kind.OUTPUT_TOKENS.value: Kind.TOKENS.value}
"""What a kind is a part of: a limit of the whole leaves no more of the part than it has left itself."""


def reading(scope: Scope, account: Account) -> LimitReading:
    """Read one limit of `scope`; a window that rolls here lets go of what is over first."""
    own, account = account, newest(account)
    used = _used(scope, account)
    kind = account.limit.kind
    known = kind == Kind.FAN_OUT or not is_unknown(scope.engine.ledger, own)  # whose children live here this process knows
    return LimitReading(
        limit=account.limit if account.value == account.limit.value else replace(account.limit, value=account.value),
        scope=scope.facts.kind,
        scope_name=scope.facts.name,
        used=public_amount(kind, used) if known else math.nan,
        held=public_amount(kind, account.held) if known else math.nan,
        remaining=public_amount(kind, account.value - used - account.held) if known else math.nan,
        ratio=(used / account.value if account.value else float(used > 0 or account.denied > 0)) if known else math.nan,
        denied=account.denied,
        events=account.events,
        window=account.window,
        counted_for=account.counted_for,
        as_of=as_of(scope.engine.ledger, own),
    )


def _used(scope: Scope, account: Account) -> int:
    """Give what is used of a limit of `scope` by now."""
    if account.roll_ns and isinstance(scope.engine.ledger, MemoryLedger):
        scope.engine.ledger.read(account)
    kind, used = account.limit.kind, account.used
    if account.nature is Nature.CLOCK:
        return max(used, scope.clock.elapsed_ns(account, scope.clock.until_ns))
    if kind == Kind.AGENTS and scope.spawn is not None:
        return scope.spawn.stats().active
    return most_children(scope, account) if kind == Kind.FAN_OUT else used


def readings_around(scope: Scope) -> list[LimitReading]:
    """Read every limit that holds in `scope`: its own first, then those of each scope around it, from the nearest on.

    Of a limit around that counts by somebody it is the counter of whom this scope is for, by model the fullest. A shared ledger is asked,
    once for all of them, where what is known is older than a second.
    """
    renewed = [account for each in tuple(scope.series) for account in each.current()[:MOST_READ] or each.counting(scope.facts)]
    held = [(scope, account) for account in (*scope.accounts, *renewed)]
    held += _around(scope)
    refresh(scope.engine.ledger, (account for _, account in held))
    return [reading(owner, account) for owner, account in held]


def _around(scope: Scope) -> Iterator[tuple[Scope, Account]]:
    held = [(owner, account) for owner, limit in scope.limits_charged() for account in _counting(limit, scope)]
    held += [(owner, account) for owner in scope.upwards()[1:] for account in owner.clock.limits if _binds(account, scope)]
    depth = {id(each): at for at, each in enumerate(scope.upwards())}
    yield from sorted((pair for pair in held if pair[0] is not scope), key=lambda pair: depth.get(id(pair[0]), len(depth)))


def _binds(account: Account, scope: Scope) -> bool:
    return account.limit.agent in (None, scope.facts.agent_name)


def _counting(limit: Account | Series, scope: Scope) -> list[Account]:
    return [limit] if isinstance(limit, Account) else limit.counting(scope.facts)


def remaining(scope: Scope, kind: str) -> float | None:
    """See `Scope.remaining`."""
    asked = read_kind("remaining(kind)", kind)
    if asked.kind in CLOCKS:
        held = [(owner, account) for owner in scope.upwards() for account in tuple(owner.clock.limits) if _binds(account, scope)]
    else:
        held = [(owner, account) for owner, limit in scope.limits_charged() for account in _counting(limit, scope)]
        if asked.agent is not None and asked.agent != scope.facts.agent_name:  # what an agent of that name would have
            held += [(owner, account) for owner in scope.upwards() for account in counters(owner) if account.limit.agent == asked.agent]
    bounds = [(owner, account) for owner, account in held if _limits(account, asked) and not account.observe]
    refresh(scope.engine.ledger, (account for _, account in bounds))
    left = [_left(scope, owner, newest(account)) for owner, account in bounds]
    least = min((amount for amount in left if amount is not None), default=None)
    if least is None or least <= 0:
        return None if least is None else 0
    unknown = any(is_unknown(owner.engine.ledger, account) for owner, account in bounds)
    return math.nan if unknown else public_amount(asked.kind, least)


def _limits(account: Account, asked: NamedKind) -> bool:
    """Tell whether a limit bounds what was asked for: its kind or one that it is part of, and of the scope or agent if one was named."""
    if asked.scope is not None and account.facts.kind != asked.scope:
        return False
    if asked.agent is not None and account.limit.agent != asked.agent:
        return False
    part_of = asked.kind if asked.detail is not None else _WHOLE.get(asked.kind)
    return account.kind in (asked.name, part_of)


def _left(scope: Scope, owner: Scope, account: Account) -> int | None:
    """Give what of a limit is left for what is done in `scope`; None where it does not bound that."""
    kind = account.limit.kind
    if kind == Kind.DEPTH:
        supervision = scope.supervision
        return account.value - (0 if supervision is None else supervision.depth)
    if kind == Kind.FAN_OUT:
        children = children_of(scope, owner)
        return None if children is None else account.value - children
    promised = account.promised(but={meter for each in scope.upwards() for meter, _ in each.rules.metered}) if account.claims else 0
    kept_back = account.reserved if scope.wrapping is None else 0
    return account.value - _used(owner, account) - account.held - promised - kept_back
