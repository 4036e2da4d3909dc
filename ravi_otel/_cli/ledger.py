"""Look at the budgets that processes share, and set or close them."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ravi_otel._cli.frame import print_columns, print_note
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Counter, Listing, Named
from ravi_otel._flow import run_sync
from ravi_otel._local.render import console
from ravi_otel._local.shared_budgets import MOST_NAME, Shown, opened
from ravi_otel._local.wording import clean, percent
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._checks import WINDOWS
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Limit, Outcome, ScopeKind, public_amount, same_window, window_at
from ravi_otel.policy._limits import format_amount as amount
from ravi_otel.supervisor import AuditLog
from ravi_otel.supervisor.approval._queue import current_login

_LEAST_EVERY_S: Final = 0.2
_MOST_EVERY_S: Final = 3600.0
_MOST_PRINTED: Final = 20
F = TypeVar("F", bound=Callable[..., Any])


def _which(command: F) -> F:
    """Add what says which store and whose counters."""
    for option in (
        click.option("--tenant", metavar="ID", help="Only the tenant's own counters, and its sessions'."),
        click.option(
            "--ledger", "url", envvar="RAVI_LEDGER", metavar="URL", help="Such as sqlite:PATH or redis://HOST; otherwise RAVI_LEDGER."
        ),
    ):
        command = option(command)
    return command


@click.group(short_help="Look at shared budgets, and set or close them.")
def ledger() -> None:
    """Look at the budgets that processes share in a ledger, and set or close them.

    SCOPE is a scope and its id, such as tenant:acme, session:chat-7 or service:NAME, or the id of one counter as `show` prints it. For
    `show` and `top` the beginning of an id is enough; what is changed is named in full.

    \b
    Exit status:
      0  done
      1  the store failed, nothing is there, or the question was answered with no
      2  something must be written or set otherwise
    """  # noqa: D301 - click wants the backspace itself


@ledger.command(short_help="List the counters, with what is used and held.")
@click.argument("scopes", nargs=-1, metavar="[SCOPE]...")
@click.option("-n", "--number", type=click.IntRange(1, MOST_LISTED), default=100, show_default=True, help="How many, last used first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_which
def show(*, scopes: tuple[str, ...], number: int, as_json: bool, tenant: str | None, url: str | None) -> None:
    """List the counters, last used first: the limit, what is used, what calls in flight hold, how often it refused.

    Nothing is changed by it, also where the store cannot be written.
    """
    with opened(url) as (store, where):
        listing = run_sync(store.list_accounts())
    found = chosen(listing.counters, scopes, tenant)
    found.sort(key=lambda each: (-(each.counter.used_s or 0.0), each.where, each.label))
    nothing = not found and bool(scopes or tenant is not None)
    with contextlib.suppress(BrokenPipeError):  # the exit status is the answer, whoever reads the rest
        if as_json:
            click.echo(json.dumps(_listing_as_json(listing, found[:number]), indent=2, allow_nan=False))
        elif nothing:
            raise click.ClickException(missing(listing, scopes[0] if scopes else None, tenant, where))
        else:
            _print(listing, found, number, where)
            for scope in scopes:
                if not chosen(listing.counters, (scope,), tenant):
                    print_note(missing(listing, scope, tenant, where))
    sys.exit(1 if nothing else 0)


def _print(listing: Listing, found: Sequence[SharedBudget], number: int, where: str) -> None:
    out = console()
    if not found:
        out.print(f"No counter is in {clean(where)}.", style="dim")
    else:
        print_counters(found[:number], out, time.time())
    left_out = len(found) - number
    if left_out > 0 or listing.left_out:
        at_most = f"At most {MOST_LISTED:,} counters are looked at."
        print_note(f"{left_out:,} more are not shown; -n shows more." if left_out > 0 else at_most)


@ledger.command(short_help="Watch the counters that fill fastest.")
@click.argument("scopes", nargs=-1, metavar="[SCOPE]...")
@click.option(
    "--every", type=click.FloatRange(_LEAST_EVERY_S, _MOST_EVERY_S), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("-n", "--number", type=click.IntRange(1, MOST_LISTED), default=20, show_default=True, help="How many.")
@click.option("--once", is_flag=True, help="Look twice, print once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON a look.")
@_which
def top(*, scopes: tuple[str, ...], every: float, number: int, once: bool, as_json: bool, tenant: str | None, url: str | None) -> None:
    """Watch the counters that fill fastest: how much a second, and when they are used up at that rate. Ctrl-C ends it."""
    if math.isnan(every):
        raise ConfigurationError(f"--every nan is no number of seconds: give {_LEAST_EVERY_S} to {_MOST_EVERY_S:.0f}.")
    if not (once or as_json or sys.stdout.isatty()):
        raise ConfigurationError("ravi-otel ledger top needs a terminal. Use --once or --json where there is none.")
    out, looks = console(), Rates(scopes, tenant)
    with opened(url) as (store, _):
        looks.take(run_sync(store.list_accounts()), time.monotonic())

        def look() -> list[Rate]:
            time.sleep(every)
            return looks.take(run_sync(store.list_accounts()), time.monotonic())[:number]

        if once or as_json:
            _write(look, out, once=once, as_json=as_json)
            return
        with Live(console=out, auto_refresh=False, screen=True) as live:
            while True:
                fastest = look()
                with out.capture() as drawn:
                    print_rates(fastest, out)
                live.update(Text.from_ansi(drawn.get()), refresh=True)


def _write(look: Callable[[], list[Rate]], out: Console, *, once: bool, as_json: bool) -> None:
    while True:
        fastest = look()
        if as_json:
            click.echo(json.dumps([one.as_json() for one in fastest], allow_nan=False))
        else:
            print_rates(fastest, out)
        if once:
            return


@ledger.command("set-limit", short_help="Set another limit on a counter that is there.")
@click.argument("scope")
@click.argument("limit")
@click.option("--audit", type=click.Path(path_type=Path), metavar="DIR", help="Write down in the audit log of DIR what was set, by you.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_which
def set_limit(*, scope: str, limit: str, audit: Path | None, as_json: bool, tenant: str | None, url: str | None) -> None:
    """Set another limit on the counter of SCOPE that counts what LIMIT says, such as `set-limit tenant:acme cost=75usd`.

    Of a limit with windows or `by`, written as `show` prints it, all counters that are there get it. SCOPE is named in full.

    A higher one opens what was closed, and warns again when it comes near. Programs that state their own limit again leave it as it is,
    unless they state less than was ever stated.
    """
    wanted = parse_limit(limit)
    with opened(url) as (store, where):
        listing = run_sync(store.list_accounts())
        found = chosen(listing.counters, (scope,), tenant, whole=True)
        if not found:
            raise click.ClickException(missing(listing, scope, tenant, where))
        settable(found, wanted, scope, limit)
        those = _one_limit(matching(found, wanted), found, scope, limit)
        changed = [now for each in those if (now := run_sync(store.set_limit(each.counter, wanted.value))) is not None]
    if not changed:
        raise click.ClickException("The counter is gone: nobody has used it for long, or the store was emptied.")
    if audit is not None:
        _note(AuditLog(audit), those, [SharedBudget(each) for each in changed])
    if as_json:
        click.echo(json.dumps({"counters": [SharedBudget(each).fields() for each in changed]}, indent=2, allow_nan=False))
    else:
        _print_set(those, [SharedBudget(each) for each in changed])


def _note(log: AuditLog, those: Sequence[SharedBudget], changed: Sequence[SharedBudget]) -> None:
    before = {each.counter.key: each.counter.value for each in those}
    for each in changed:
        was, now = (public_amount(each.kind, value) for value in (before[each.counter.key], each.counter.value))
        each.note(log, was, now, current_login())


def _print_set(those: Sequence[SharedBudget], changed: Sequence[SharedBudget]) -> None:
    before = {each.counter.key: each.counter.value for each in those}
    for each in changed[:_MOST_PRINTED]:
        was, now, used = (amount(each.kind, value) for value in (before[each.counter.key], each.counter.value, each.counter.used))
        click.echo(f"{each.where} {each.label}: {was} before, {now} now; {used} used.")
    if len(changed) > _MOST_PRINTED:
        click.echo(f"And {_counters(len(changed) - _MOST_PRINTED)} more.")
    if any(each.named and each.named.part for each in changed):
        print_note("Windows and users that come later begin with what programs state.")


def _one_limit(limits: Sequence[Sequence[SharedBudget]], found: Sequence[SharedBudget], scope: str, limit: str) -> Sequence[SharedBudget]:
    if len(limits) == 1:
        return limits[0]
    if limits:
        every = [each for one in limits for each in one]
        print_counters(every[:_MOST_PRINTED], console(sys.stderr), time.time())
        raise ConfigurationError(
            f"{len(every)} counters of {checks.show(scope)} count that: name one of them by its id, such as {every[0].counter.id}, "
            "or write the limit as it stands here."
        )
    known = ", ".join(sorted({each.label for each in found})[:5])
    raise ConfigurationError(f"{checks.show(limit)} is counted nowhere in {checks.show(scope)}: there is {known}.")


@ledger.command(short_help="Let nothing more be spent in a scope.")
@click.argument("scope")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; needs --yes.")
@_which
def close(*, scope: str, yes: bool, as_json: bool, tenant: str | None, url: str | None) -> None:
    """Let nothing more be spent on the counters of SCOPE that are there now; calls in flight end as they do at a limit.

    `set-limit` with more than 0 opens a counter again. A window that begins later begins open.
    """
    if as_json and not yes:
        raise ConfigurationError("--json asks nothing: give --yes with it.")
    with opened(url) as (store, where):
        listing = run_sync(store.list_accounts())
        found = chosen(listing.counters, (scope,), tenant, whole=True)
        if not found:
            raise click.ClickException(missing(listing, scope, tenant, where))
        places = sorted({each.where for each in found})
        if len(places) > 1:
            raise ConfigurationError(
                f"{checks.show(scope)} names {len(places)} scopes: {', '.join(places[:5])}. Name one, or its --tenant."
            )
        opens = opening_again(found, time.time())
        if opens:
            print_note(f"Closed is what is there now. {opens}")
        if not yes:
            print_counters(found, console(), time.time())
            click.confirm(f"Close {places[0]}, {_counters(len(found))}?", abort=True)
        closed = run_sync(store.close_scope([each.counter for each in found]))
    click.echo(json.dumps({"closed": closed}) if as_json else f"{places[0]} is closed: {_counters(closed)}.")
    sys.exit(0 if closed else 1)


@ledger.command("accept-loss", short_help="Let counters that were lost begin anew.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_which
def accept_loss(*, yes: bool, tenant: str | None, url: str | None) -> None:
    """Let every counter that processes knew, and that the ledger has forgotten, begin anew from nothing.

    Processes that were refused with the reason store_lost go on with their next call. What was used before is in no counter any more.
    """
    if tenant is not None:
        raise ConfigurationError("accept-loss is for the whole ledger: leave out --tenant.")
    with opened(url, made=print_note) as (store, where):
        if not yes:
            click.confirm(f"Count anew from nothing whatever {where} has forgotten?", abort=True)
        run_sync(store.accept_loss())
    click.echo(f"What {where} has forgotten until now is counted anew from nothing.")


def _counters(number: int) -> str:
    return "1 counter" if number == 1 else f"{number:,} counters"


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


_NEAR: Final = 0.8
_AGES: Final = ((86_400 * 2, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "m"), (0, 1, "s"))
_UNKNOWN: Final = "?"


class SharedBudget(Shown):
    """One counter of the ledger, as an operator names it and sees it."""

    __slots__ = ()

    def is_called(self, kind: str, name: str) -> bool:
        """Whether it is of the scope, or has the id, of just that name."""
        if not kind:
            return self.counter.id == name
        if self.named is None or self.named.scope != kind:
            return False
        return self.named.name == name or (kind == ScopeKind.PROCESS and name in ("", self.named.name.removeprefix(f"{_SERVICE}:")))

    def begins(self, kind: str, name: str) -> bool:
        """Whether the name of its scope, or its id, begins so."""
        if not kind:
            return self.counter.id.startswith(name)
        return self.named is not None and self.named.scope == kind and self.named.name.startswith(name)

    def counts(self, limit: Limit) -> bool:
        """Whether it counts what a limit does."""
        name = self.named
        if name is None or (limit.per is not None and same_window(limit.per) != name.per) or (limit.by is not None and limit.by != name.by):
            return False
        if limit.tz not in ("UTC", name.tz):
            return False
        return (name.kind, name.detail, name.agent, name.count) == (limit.kind, limit.detail, limit.agent, limit.count)

    def cells(self, now_s: float) -> tuple[str, ...]:
        """Return its row."""
        counter = self.counter
        left = max(0, counter.value - counter.used - counter.held)
        amounts = [amount(self.kind, value) for value in (counter.value, counter.used, counter.held, left)]
        return counter.id, self.where, self.label, self.state, *amounts, self.share(), f"{counter.denied:,}", self._age(now_s)

    def style(self) -> str:
        """Return the colour of its row."""
        counter = self.counter
        if counter.exceeded or counter.draining:
            return "red"
        return "yellow" if counter.near or counter.ratio >= _NEAR else ""

    def share(self) -> str:
        """Return how full it is."""
        return "-" if math.isinf(self.counter.ratio) else percent(self.counter.ratio)

    def _age(self, now_s: float) -> str:
        """Return when it was last used."""
        if self.counter.used_s is None or not math.isfinite(self.counter.used_s):
            return _UNKNOWN
        ago = max(0.0, now_s - self.counter.used_s)
        least, unit, letter = next(one for one in _AGES if ago >= one[0])
        return f"{ago // unit:.0f}{letter} ago" if least or ago >= 1 else "now"

    def fields(self) -> dict[str, Any]:
        """Return it for programs; null is what is not known."""
        counter, name = self.counter, self.named
        public = {
            key: public_amount(self.kind, value)
            for key, value in (("limit", counter.value), ("used", counter.used), ("held", counter.held))
        }
        return {
            "id": counter.id,
            "scope": None if name is None else str(name.scope),
            "name": None if name is None else name.name,
            "tenant": None if name is None else name.tenant,
            "counts": None if name is None else name.label,
            "per": None if name is None else name.per,
            "tz": None if name is None else name.tz,
            "by": None if name is None else name.by,
            "part": None if name is None else list(name.part),
            **public,
            "declared": None if counter.declared is None else public_amount(self.kind, counter.declared),
            "denied": counter.denied,
            "ratio": None if math.isinf(counter.ratio) else counter.ratio,
            "near": counter.near,
            "exceeded": counter.exceeded,
            "draining": counter.draining,
            "used_s": counter.used_s,
            "epoch": counter.epoch,
        }


def chosen(counters: Sequence[Counter], scopes: Sequence[str], tenant: str | None, *, whole: bool = False) -> list[SharedBudget]:
    """Find the counters of the scopes, all of them where none is named.

    The beginning of a name or an id will do where nothing is called just so, but not with `whole`: what is changed must be meant.
    """
    wanted = [_parted(scope) for scope in scopes]
    every = [SharedBudget(counter) for counter in counters]
    every = [each for each in every if tenant is None or (each.named is not None and each.named.tenant == tenant)]
    if not scopes:
        return every
    found = list[SharedBudget]()
    for kind, name in wanted:
        exact = [each for each in every if each.is_called(kind, name)]
        found += exact or ([] if whole else [each for each in every if each.begins(kind, name)])
    return list({each.counter.key: each for each in found}.values())


def _parted(scope: str) -> tuple[str, str]:
    """Return the kind and the name of a scope, which are "" and an id for one counter, and `process` and "" for any process."""
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


def missing(listing: Listing, scope: str | None, tenant: str | None, where: str) -> str:
    """Say that nothing is there of that name, in which ledger, and what may have been meant."""
    what = " ".join(([f"of {scope}"] if scope else []) + ([f"of tenant {tenant}"] if tenant is not None else []))
    tenants = (
        [] if tenant is None else [each.named.tenant for each in map(SharedBudget, listing.counters) if each.named and each.named.tenant]
    )
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
    names = {each.named.name for each in map(SharedBudget, counters) if each.named is not None and each.named.scope == kind} - {name}
    beginning = sorted(each for each in names if each.startswith(name))
    close = beginning[0] if beginning else checks.nearest(name, sorted(names)[:_MOST_COMPARED])
    return None if close is None else f"{kind}:{close}"


def settable(found: Sequence[SharedBudget], limit: Limit, scope: str, written: str) -> None:
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


def matching(found: Sequence[SharedBudget], limit: Limit) -> list[list[SharedBudget]]:
    """Return the counters that count what the limit does, in a list each for each limit that has them.

    A limit of the very words goes before one that says more: `requests` is the one without a window, where there is one.
    """
    loose = [each for each in found if each.counts(limit)]
    words = (same_window(limit.per), limit.by, limit.on_exceed is Outcome.OBSERVE)
    exact = [each for each in loose if each.named and (each.named.per, each.named.by, each.named.observes) == words]
    together = dict[object, list[SharedBudget]]()
    for each in exact or loose:
        name = each.named
        if name is not None:
            limit_of = (name.scope, name.place, name.kind, name.detail, name.agent, name.count, name.per, name.tz, name.by, name.observes)
            together.setdefault((limit_of, None if exact else each.counter.key), []).append(each)
    return list(together.values())


class Rates:
    """Compare each listing with the one before."""

    def __init__(self, scopes: Sequence[str], tenant: str | None) -> None:
        self._scopes, self._tenant = scopes, tenant
        self._before: dict[tuple[str, str | None], int] = {}
        self._at_s = 0.0

    def take(self, listing: Listing, now_s: float) -> list[Rate]:
        """Return how fast each counter filled since the look before: by the share of its limit, the fastest first, then the fullest."""
        found = chosen(listing.counters, self._scopes, self._tenant)
        passed_s = now_s - self._at_s
        rates = [self._rate(each, passed_s) for each in found]
        self._before = {(each.counter.key, each.counter.epoch): each.counter.used for each in found}
        self._at_s = now_s
        return sorted(rates, key=lambda one: (one.per_s / max(1, one.shown.counter.value), one.shown.counter.ratio), reverse=True)

    def _rate(self, each: SharedBudget, passed_s: float) -> Rate:
        counter = each.counter
        grown = counter.used - self._before.get((counter.key, counter.epoch), counter.used)
        per_s = max(0, grown) / passed_s if passed_s > 0 else 0.0
        left = max(0, counter.value - counter.used)
        return Rate(each, per_s, left / per_s if per_s else None)


_HEADS: Final = ("id", "scope", "limit", "state", "of", "used", "held", "left", "share", "denied", "last")
_RATES: Final = ("id", "scope", "limit", "state", "of", "used", "a second", "share", "used up in", "denied")
_DROPS: Final = ("left", "last", "denied", "held", "share")
_KEPT: Final = ("id",)
"""Never cut: it is what names the counter to `set-limit`."""
_TEXTS: Final = 4
_MOST_OPENING: Final = 5


# -- for people ---------------------------------------------------------------------------------------------------


def print_counters(found: Sequence[SharedBudget], out: Console, now_s: float) -> None:
    """Print counters, a row each."""
    rows = [each.cells(now_s) for each in found]
    print_columns(out, _HEADS, rows, [each.style() for each in found], left=_TEXTS, name="scope", drops=_DROPS, keeps=_KEPT)


def opening_again(found: Sequence[SharedBudget], now_s: float) -> str:
    """Say what of a scope that is closed begins open later: windows, and users and the like that were not there yet."""
    said = dict[str, str]()
    for each in found:
        name = each.named
        if name is not None and (name.by is not None or name.per in WINDOWS):
            newly = f"for each {clean(name.by, MOST_NAME)} that was not there yet" if name.by is not None else ""
            when = _next_window(name, now_s) if name.per in WINDOWS else ""
            said[clean(name.label, MOST_NAME)] = " and ".join(word for word in (newly, when) if word)
    return "".join(f"{label} is open {what}. " for label, what in list(said.items())[:_MOST_OPENING]).rstrip()


def _next_window(name: Named, now_s: float) -> str:
    try:
        end = window_at(name.per or "", name.tz or "UTC", now_s).end
    except (ValueError, KeyError, OSError):  # the zone is another machine's, or nobody's
        return f"with the next {name.per}"
    return f"from {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M} UTC on"


# -- for programs -------------------------------------------------------------------------------------------------


def _listing_as_json(listing: Listing, found: Sequence[SharedBudget]) -> dict[str, Any]:
    """Return a listing for programs; amounts in the kind's public unit, and as they are kept."""
    return {
        "counters": [each.fields() for each in found],
        "processes": listing.processes,
        "waiting": listing.waiting,
        "left_out": listing.left_out,
    }


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a counter fills: inner units a second, and the seconds until it is used up, None: never at that rate."""

    shown: SharedBudget
    per_s: float
    left_s: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        per_s = public_amount(self.shown.kind, 1) * self.per_s
        return {**self.shown.fields(), "per_s": per_s, "left_s": self.left_s}


def print_rates(found: Sequence[Rate], out: Console) -> None:
    """Print how fast counters fill, a row each."""
    rows = list[tuple[str, ...]]()
    for one in found:
        each, counter = one.shown, one.shown.counter
        until = "" if one.left_s is None else f"{one.left_s:,.0f} s"
        amounts = [amount(each.kind, value) for value in (counter.value, counter.used, round(one.per_s))]
        rows.append((counter.id, each.where, each.label, each.state, *amounts, each.share(), until, f"{counter.denied:,}"))
    print_columns(out, _RATES, rows, [one.shown.style() for one in found], left=_TEXTS, name="scope", drops=_DROPS, keeps=_KEPT)
