"""Name the places in the tree of a program's scopes that its limits wait for, and which of its counters its processes share."""

from __future__ import annotations

from typing import Final

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel.policy._limits import Limit, ScopeKind

Place = tuple[ScopeKind, str | None]
"""A kind of scope that the program opens itself, and of which name: None is any."""
_INSIDE: Final = frozenset({ScopeKind.HANDOFF, ScopeKind.BLOCK, ScopeKind.AGENT})
_SHARED: Final = frozenset({ScopeKind.SESSION, ScopeKind.TENANT})


def is_shared(account: Account) -> bool:
    """Tell that other processes of the program count for the same limit."""
    return account.facts.surrounding or account.facts.kind in _SHARED


def places_of(limit: Limit) -> tuple[Place, ...]:
    """Give the scopes that the program has to open for a limit to hold; none where it holds for the whole program."""
    places: list[Place] = []
    if limit.scope is not None and limit.scope in _INSIDE:
        places.append((limit.scope, limit.scope_name))
    if limit.agent is not None:
        places.append((ScopeKind.AGENT, limit.agent))
    return tuple(places)


def spell(place: Place) -> str:
    """Write a place as one text, `agent researcher`, which no other place is written as."""
    kind, name = place
    return str(kind) if name is None else f"{kind} {name}"
