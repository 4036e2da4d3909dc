"""Read limits for people, in the units they wrote them in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ravi_otel.enforcement import clocks
from ravi_otel.enforcement.entry import most_children
from ravi_otel.enforcement.ledger.account import Account, Nature
from ravi_otel.enforcement.ledger.memory import MemoryLedger
from ravi_otel.hooks.records import LimitReading
from ravi_otel.policy.limits import Kind, public_amount

if TYPE_CHECKING:
    from ravi_otel.enforcement.scope import Scope


def reading(scope: Scope, account: Account) -> LimitReading:
    """Read one limit of `scope`; a window that rolls here lets go of what is over first."""
    if account.roll_ns and isinstance(scope.engine.ledger, MemoryLedger):
        scope.engine.ledger.read(account)
    kind, used = account.limit.kind, account.used
    if account.nature is Nature.CLOCK:
        end = scope.engine.clock.monotonic_ns() if scope.ended_ns is None else scope.ended_ns
        used = max(used, clocks.elapsed_ns(account, scope, end))
    elif kind == Kind.AGENTS and scope.spawn is not None:
        used = scope.spawn.stats().active
    elif kind == Kind.FAN_OUT:
        used = most_children(scope, account)
    return LimitReading(
        limit=account.limit if account.value == account.limit.value else replace(account.limit, value=account.value),
        scope=scope.facts.kind,
        scope_name=scope.facts.name,
        used=public_amount(kind, used),
        held=public_amount(kind, account.held),
        remaining=public_amount(kind, account.value - used - account.held),
        ratio=used / account.value if account.value else float(used > 0 or account.denied > 0),
        denied=account.denied,
        events=account.events,
        window=account.window,
        counted_for=account.counted_for,
    )
