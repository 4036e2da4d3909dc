"""Find the counters an operator asks for; who changes one names its scope in full."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ravi_otel._cli.ledger_rows import Rate
from ravi_otel._enforcement.ledger.operators import Counter, Listing
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._shared_budgets import Shown
from ravi_otel.local._wording import clean
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import Limit, Outcome, ScopeKind, same_window

_ID: Final = re.compile(r"[0-9a-f]{4,12}")
_SERVICE: Final = "service"
_KINDS: Final = (*(each.value for each in ScopeKind), _SERVICE)
_MOST_COMPARED: Final = 2_000
_LEFT_TO_PROGRAMS: Final = {
    "warn": "warn_at",
    "admission": "admission",
    "unpriced": "on_unpriced",
    "unbounded": "on_unbounded",
    "store": "on_store_failure",
    "suspend": "suspend",
}


def chosen(counters: Sequence[Counter], scopes: Sequence[str], tenant: str | None, *, whole: bool = False) -> list[Shown]:
    """Find the counters of the scopes, all of them where none is named.

    The beginning of a name or an id will do where nothing is called just so, but not with `whole`: what is changed must be meant.
    """
    wanted = [_parted(scope) for scope in scopes]
    every = [Shown(counter) for counter in counters]
    every = [each for each in every if tenant is None or (each.named is not None and each.named.tenant == tenant)]
    if not scopes:
        return every
    found = list[Shown]()
    for kind, name in wanted:
        exact = [each for each in every if _is_called(each, kind, name)]
        found += exact or ([] if whole else [each for each in every if _begins(each, kind, name)])
    return list({each.counter.key: each for each in found}.values())


def _parted(scope: str) -> tuple[str, str]:
    """Take a scope apart: its kind and its name, which are "" and an id for one counter, and `process` and "" for any process."""
    kind, colon, name = scope.partition(":")
    if not colon and _ID.fullmatch(scope):
        return "", scope
    if scope == ScopeKind.PROCESS:
        return scope, ""
    if colon and kind in _KINDS and name:
        return (ScopeKind.PROCESS, f"{_SERVICE}:{name}") if kind == _SERVICE else (kind, name)
    close = checks.nearest(kind, _KINDS) if colon else None
    hint = f"; did you mean {close}:?" if close and close != kind else "."
    raise ConfigurationError(
        f"{checks.show(scope)} names no scope and no counter: write tenant:acme, session:ID, service:NAME (for the limits of a process) or "
        f"the id of a counter{hint}"
    )


def _is_called(each: Shown, kind: str, name: str) -> bool:
    if not kind:
        return each.counter.id == name
    if each.named is None or each.named.scope != kind:
        return False
    return each.named.name == name or (kind == ScopeKind.PROCESS and name in ("", each.named.name.removeprefix(f"{_SERVICE}:")))


def _begins(each: Shown, kind: str, name: str) -> bool:
    if not kind:
        return each.counter.id.startswith(name)
    return each.named is not None and each.named.scope == kind and each.named.name.startswith(name)


def missing(listing: Listing, scope: str | None, tenant: str | None, where: str) -> str:
    """Say that nothing is there of that name, in which ledger, and what may have been meant."""
    what = " ".join(([f"of {scope}"] if scope else []) + ([f"of tenant {tenant}"] if tenant is not None else []))
    tenants = [] if tenant is None else [each.named.tenant for each in map(Shown, listing.counters) if each.named and each.named.tenant]
    close = checks.nearest(tenant, sorted(set(tenants))[:_MOST_COMPARED]) if tenants else None
    if close is None or close == tenant:
        close = None if scope is None else _meant(listing.counters, scope)
    hint = f"; did you mean {close}?" if close else ". `ravi-otel ledger show` lists them."
    looked = " among those that were looked at" if listing.left_out else ""
    return clean(f"No counter {what} is in {where}{looked}{hint}", 1_000)


def _meant(counters: Iterable[Counter], scope: str) -> str | None:
    kind, name = _parted(scope)
    if not kind:
        return None
    names = {each.named.name for each in map(Shown, counters) if each.named is not None and each.named.scope == kind} - {name}
    beginning = sorted(each for each in names if each.startswith(name))
    close = beginning[0] if beginning else checks.nearest(name, sorted(names)[:_MOST_COMPARED])
    return None if close is None else f"{kind}:{close}"


def settable(found: Sequence[Shown], limit: Limit, scope: str, written: str) -> None:
    """Refuse a limit that says what set-limit does not set: it would be lost without a word. ConfigurationError."""
    plain = Limit(kind=limit.kind, value=limit.value)
    named = [word for word, field in _LEFT_TO_PROGRAMS.items() if getattr(limit, field) != getattr(plain, field)]
    if limit.on_exceed not in (plain.on_exceed, Outcome.OBSERVE):
        named.append("on")
    if named:
        raise ConfigurationError(
            f"{checks.show(written)} states {', '.join(named)}, which only the program that declares the limit can: "
            "write its kind and its value alone."
        )
    places = sorted({each.named.scope for each in found if each.named is not None})
    if limit.scope_name is not None or (limit.scope is not None and limit.scope not in places):
        raise ConfigurationError(
            f"{checks.show(written)} names another scope than {checks.show(scope)}: write the limit without one, such as "
            f"`set-limit tenant:acme cost=75usd`."
        )


def matching(found: Sequence[Shown], limit: Limit) -> list[list[Shown]]:
    """Give the counters that count what the limit does, in a list each for each limit that has them.

    A limit of the very words goes before one that says more: `requests` is the one without a window, where there is one.
    """
    loose = [each for each in found if _counts(each, limit)]
    words = (same_window(limit.per), limit.by, limit.on_exceed is Outcome.OBSERVE)
    exact = [each for each in loose if each.named and (each.named.per, each.named.by, each.named.observes) == words]
    together = dict[object, list[Shown]]()
    for each in exact or loose:
        name = each.named
        if name is not None:
            limit_of = (name.scope, name.place, name.kind, name.detail, name.agent, name.count, name.per, name.tz, name.by, name.observes)
            together.setdefault((limit_of, None if exact else each.counter.key), []).append(each)
    return list(together.values())


def _counts(each: Shown, limit: Limit) -> bool:
    name = each.named
    if name is None or (limit.per is not None and same_window(limit.per) != name.per) or (limit.by is not None and limit.by != name.by):
        return False
    if limit.tz not in ("UTC", name.tz):
        return False
    return (name.kind, name.detail, name.agent, name.count) == (limit.kind, limit.detail, limit.agent, limit.count)


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
