"""Find the counters an operator asks for, and write them for people and programs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from ravi_otel.cli.columns import print_columns
from ravi_otel.enforcement.ledger.operators import Counter, Listing, Named, named
from ravi_otel.enforcement.refusal import shown as amount
from ravi_otel.errors import ConfigurationError
from ravi_otel.local.wording import clean, percent
from ravi_otel.policy import checks
from ravi_otel.policy.limits import Limit, ScopeKind, public_amount

_ID: Final = re.compile(r"[0-9a-f]{4,12}")
_SHORT: Final = 40
_NEAR: Final = 0.8
_AGES: Final = ((86_400 * 2, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "m"), (0, 1, "s"))
_UNKNOWN: Final = "?"
_HEADS: Final = ("id", "scope", "limit", "state", "of", "used", "held", "left", "share", "denied", "last")
_RATES: Final = ("id", "scope", "limit", "state", "of", "used", "a second", "share", "used up in", "denied")
_DROPS: Final = ("left", "last", "denied", "held", "id", "share")
_TEXTS: Final = 4


class Shown:
    """Be one counter, with what its key says."""

    __slots__ = ("counter", "named")

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.named: Named | None = named(counter.key)

    @property
    def where(self) -> str:
        """Write the scope for people: `tenant:acme`, `session:chat-7 of acme`."""
        if self.named is None:
            return clean(self.counter.key, _SHORT)
        of = "" if self.named.scope is not ScopeKind.SESSION or self.named.tenant is None else f" of {clean(self.named.tenant, _SHORT)}"
        return f"{self.named.scope}:{clean(self.named.name, _SHORT)}{of}"

    @property
    def label(self) -> str:
        """Write the limit for people, and which of its windows and users this is."""
        if self.named is None:
            return _UNKNOWN
        return clean(" ".join((self.named.label, *self.named.part)), 2 * _SHORT)

    @property
    def kind(self) -> str:
        """Give the kind, for amounts."""
        return "" if self.named is None else self.named.kind

    @property
    def state(self) -> str:
        """Write in a word how it is."""
        counter = self.counter
        if counter.draining:
            return "closed" if counter.value == 0 else "draining"
        return "exceeded" if counter.exceeded else "near" if counter.near else ""

    def belongs_to(self, scope: str, tenant: str | None) -> bool:
        """Tell that it is what an operator calls by `scope`; None of a tenant's means any."""
        if tenant is not None and (self.named is None or self.named.tenant != tenant):
            return False
        kind, colon, name = scope.partition(":")
        if not colon:
            return self.counter.id.startswith(scope)
        return self.named is not None and self.named.scope == kind and self.named.name == name


def chosen(counters: Sequence[Counter], scopes: Sequence[str], tenant: str | None) -> list[Shown]:
    """Find the counters of the scopes, all of them where none is named; an id may be written by its beginning."""
    for scope in scopes:
        _check(scope)
    every = [Shown(counter) for counter in counters]
    found = list[Shown]()
    for scope in scopes:
        exact = [each for each in every if each.belongs_to(scope, tenant)]
        found += exact or _beginning(every, scope, tenant)
    if not scopes:
        return [each for each in every if tenant is None or (each.named is not None and each.named.tenant == tenant)]
    return list({each.counter.key: each for each in found}.values())


def _beginning(every: Sequence[Shown], scope: str, tenant: str | None) -> list[Shown]:
    kind, colon, name = scope.partition(":")
    if not colon or not name:
        return []
    beginning = [each for each in every if each.named is not None and each.named.scope == kind and each.named.name.startswith(name)]
    return [each for each in beginning if each.belongs_to(f"{kind}:{each.named.name}" if each.named else scope, tenant)]


def _check(scope: str) -> None:
    kind, colon, name = scope.partition(":")
    kinds = [each.value for each in ScopeKind]
    if (colon and kind in kinds and name) or (not colon and _ID.fullmatch(scope)):
        return
    close = checks.nearest(kind, kinds) if colon else None
    hint = f"; did you mean {close}:?" if close and close != kind else "."
    raise ConfigurationError(
        f"{checks.show(scope)} names no scope and no counter: write tenant:acme, session:ID or the id of a counter{hint}"
    )


def counts(each: Shown, limit: Limit) -> bool:
    """Tell that a counter counts what a limit of the same words would."""
    name = each.named
    if name is None or (limit.per is not None and limit.per != name.per):
        return False
    return (name.kind, name.detail, name.agent, name.count) == (limit.kind, limit.detail, limit.agent, limit.count)


# -- for people ---------------------------------------------------------------------------------------------------


def print_counters(found: Sequence[Shown], out: Console, now_s: float) -> None:
    """Print counters, a row each."""
    rows = [_cells(each, now_s) for each in found]
    print_columns(out, _HEADS, rows, [_style(each) for each in found], left=_TEXTS, name="scope", drops=_DROPS)


def _cells(each: Shown, now_s: float) -> tuple[str, ...]:
    counter = each.counter
    left = max(0, counter.value - counter.used - counter.held)
    amounts = [amount(each.kind, value) for value in (counter.value, counter.used, counter.held, left)]
    return counter.id, each.where, each.label, each.state, *amounts, _share(counter), f"{counter.denied:,}", _age(counter, now_s)


def _style(each: Shown) -> str:
    counter = each.counter
    if counter.exceeded or counter.draining:
        return "red"
    return "yellow" if counter.near or counter.ratio >= _NEAR else ""


def _share(counter: Counter) -> str:
    return "-" if math.isinf(counter.ratio) else percent(counter.ratio)


def _age(counter: Counter, now_s: float) -> str:
    if counter.used_s is None or not math.isfinite(counter.used_s):
        return _UNKNOWN
    ago = max(0.0, now_s - counter.used_s)
    least, unit, letter = next(one for one in _AGES if ago >= one[0])
    return f"{ago // unit:.0f}{letter} ago" if least or ago >= 1 else "now"


# -- for programs -------------------------------------------------------------------------------------------------


def as_json(listing: Listing, found: Sequence[Shown]) -> dict[str, Any]:
    """Give a listing for programs; amounts in the kind's public unit, and as they are kept."""
    return {
        "counters": [fields(each) for each in found],
        "processes": listing.processes,
        "waiting": listing.waiting,
        "left_out": listing.left_out,
    }


def fields(each: Shown) -> dict[str, Any]:
    """Give one counter for programs; null is what is not known."""
    counter, name = each.counter, each.named
    public = {
        key: public_amount(each.kind, value) for key, value in (("limit", counter.value), ("used", counter.used), ("held", counter.held))
    }
    return {
        "id": counter.id,
        "scope": None if name is None else str(name.scope),
        "name": None if name is None else name.name,
        "tenant": None if name is None else name.tenant,
        "counts": None if name is None else name.label,
        "part": None if name is None else list(name.part),
        **public,
        "declared": None if counter.declared is None else public_amount(each.kind, counter.declared),
        "denied": counter.denied,
        "ratio": None if math.isinf(counter.ratio) else counter.ratio,
        "near": counter.near,
        "exceeded": counter.exceeded,
        "draining": counter.draining,
        "used_s": counter.used_s,
        "epoch": counter.epoch,
    }


# -- looks after each other ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """Show how fast a counter fills: inner units a second, and the seconds until it is used up, None: never at that rate."""

    shown: Shown
    per_s: float
    left_s: float | None

    def as_json(self) -> dict[str, Any]:
        """Give it for programs."""
        per_s = public_amount(self.shown.kind, 1) * self.per_s
        return {**fields(self.shown), "per_s": per_s, "left_s": self.left_s}


class Looks:
    """Compare each listing with the one before."""

    def __init__(self, scopes: Sequence[str], tenant: str | None) -> None:
        self._scopes, self._tenant = scopes, tenant
        self._before: dict[tuple[str, str | None], int] = {}
        self._at_s = 0.0

    def take(self, listing: Listing, now_s: float) -> list[Rate]:
        """Give how fast each counter filled since the look before: by the share of its limit, the fastest first, then the fullest."""
        found = chosen(listing.counters, self._scopes, self._tenant)
        passed_s = now_s - self._at_s
        rates = [self._rate(each, passed_s) for each in found]
        self._before = {(each.counter.key, each.counter.epoch): each.counter.used for each in found}
        self._at_s = now_s
        return sorted(rates, key=lambda one: (one.per_s / max(1, one.shown.counter.value), one.shown.counter.ratio), reverse=True)

    def _rate(self, each: Shown, passed_s: float) -> Rate:
        counter = each.counter
        grown = counter.used - self._before.get((counter.key, counter.epoch), counter.used)
        per_s = max(0, grown) / passed_s if passed_s > 0 else 0.0
        left = max(0, counter.value - counter.used)
        return Rate(each, per_s, left / per_s if per_s else None)


def print_rates(found: Sequence[Rate], out: Console) -> None:
    """Print how fast counters fill, a row each."""
    rows = list[tuple[str, ...]]()
    for one in found:
        each, counter = one.shown, one.shown.counter
        until = "" if one.left_s is None else f"{one.left_s:,.0f} s"
        amounts = [amount(each.kind, value) for value in (counter.value, counter.used, round(one.per_s))]
        rows.append((counter.id, each.where, each.label, each.state, *amounts, _share(counter), until, f"{counter.denied:,}"))
    print_columns(out, _RATES, rows, [_style(one.shown) for one in found], left=_TEXTS, name="scope", drops=_DROPS)
