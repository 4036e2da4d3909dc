"""Look at the budgets that processes share, and set or close them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ravi_otel._cli import ledger_rows as rows
from ravi_otel._cli.ledger_finding import Looks, chosen, matching, missing, settable
from ravi_otel._cli.ledger_rows import Rate
from ravi_otel._cli.stored import say
from ravi_otel._enforcement.ledger.operators import MOST_LISTED, Listing
from ravi_otel._flow import run_sync
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._render import console
from ravi_otel.local._shared_budgets import Shown, opened
from ravi_otel.local._wording import clean
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import format_amount as amount
from ravi_otel.policy._limits import public_amount
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
            click.echo(json.dumps(rows.as_json(listing, found[:number]), indent=2, allow_nan=False))
        elif nothing:
            raise click.ClickException(missing(listing, scopes[0] if scopes else None, tenant, where))
        else:
            _print(listing, found, number, where)
            for scope in scopes:
                if not chosen(listing.counters, (scope,), tenant):
                    say(missing(listing, scope, tenant, where))
    sys.exit(1 if nothing else 0)


def _print(listing: Listing, found: Sequence[Shown], number: int, where: str) -> None:
    out = console()
    if not found:
        out.print(f"No counter is in {clean(where)}.", style="dim")
    else:
        rows.print_counters(found[:number], out, time.time())
    left_out = len(found) - number
    if left_out > 0 or listing.left_out:
        say(f"{left_out:,} more are not shown; -n shows more." if left_out > 0 else f"At most {MOST_LISTED:,} counters are looked at.")


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
    out, looks = console(), Looks(scopes, tenant)
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
                    rows.print_rates(fastest, out)
                live.update(Text.from_ansi(drawn.get()), refresh=True)


def _write(look: Callable[[], list[Rate]], out: Console, *, once: bool, as_json: bool) -> None:
    while True:
        fastest = look()
        if as_json:
            click.echo(json.dumps([one.as_json() for one in fastest], allow_nan=False))
        else:
            rows.print_rates(fastest, out)
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
        _note(AuditLog(audit), those, [Shown(each) for each in changed])
    if as_json:
        click.echo(json.dumps({"counters": [rows.fields(Shown(each)) for each in changed]}, indent=2, allow_nan=False))
    else:
        _print_set(those, [Shown(each) for each in changed])


def _note(log: AuditLog, those: Sequence[Shown], changed: Sequence[Shown]) -> None:
    before = {each.counter.key: each.counter.value for each in those}
    for each in changed:
        was, now = (public_amount(each.kind, value) for value in (before[each.counter.key], each.counter.value))
        each.note(log, was, now, current_login())


def _print_set(those: Sequence[Shown], changed: Sequence[Shown]) -> None:
    before = {each.counter.key: each.counter.value for each in those}
    for each in changed[:_MOST_PRINTED]:
        was, now, used = (amount(each.kind, value) for value in (before[each.counter.key], each.counter.value, each.counter.used))
        click.echo(f"{each.where} {each.label}: {was} before, {now} now; {used} used.")
    if len(changed) > _MOST_PRINTED:
        click.echo(f"And {_counters(len(changed) - _MOST_PRINTED)} more.")
    if any(each.named and each.named.part for each in changed):
        say("Windows and users that come later begin with what programs state.")


def _one_limit(limits: Sequence[Sequence[Shown]], found: Sequence[Shown], scope: str, limit: str) -> Sequence[Shown]:
    if len(limits) == 1:
        return limits[0]
    if limits:
        every = [each for one in limits for each in one]
        rows.print_counters(every[:_MOST_PRINTED], console(sys.stderr), time.time())
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
        opens = rows.opening_again(found, time.time())
        if opens:
            say(f"Closed is what is there now. {opens}")
        if not yes:
            rows.print_counters(found, console(), time.time())
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
    with opened(url, made=say) as (store, where):
        if not yes:
            click.confirm(f"Count anew from nothing whatever {where} has forgotten?", abort=True)
        run_sync(store.accept_loss())
    click.echo(f"What {where} has forgotten until now is counted anew from nothing.")


def _counters(number: int) -> str:
    return "1 counter" if number == 1 else f"{number:,} counters"
