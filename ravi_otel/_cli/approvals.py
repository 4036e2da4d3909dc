"""List the requests that wait for a person, and answer them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import click

from ravi_otel._cli.frame import print_columns, print_line, read_duration
from ravi_otel._local.render import console
from ravi_otel._local.wording import clean
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import JsonObject
from ravi_otel.supervisor import ApprovalAnswer, ApprovalRequest
from ravi_otel.supervisor.approval._queue import (
    QUEUE_VARIABLE,
    RequestStore,
    StoredRequest,
    current_login,
    format_time,
    open_queue,
    queue_place,
    read_queue_place,
    who_may_decide,
)
from ravi_otel.supervisor.approval._request import (
    check_edit,
    copy_arguments,
    describe_arguments,
    edit_arguments,
    escape,
    freeze,
    one_line,
    read_arguments,
)

_HEADS: Final = ("id", "state", "asked", "expires", "agent", "tool", "arguments")
_DROPS: Final = ("agent", "asked", "state", "expires")
_ID: Final = 8
_MOST: Final = 2**31
_MOST_IN_LIST: Final = 200
_STEPS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))
_AT: Final = "name the queue's file with --queue"
_AGAIN: Final = "They are validated and reviewed again before anything runs."

F = TypeVar("F", bound=Callable[..., Any])


@click.group(short_help="List what waits for your approval, and answer it.")
def approvals() -> None:
    """List the tool calls that wait for a person's approval, show one, approve, reject or edit it.

    The program that asked goes on within a second. An ID may be shortened to a beginning that only one request has.
    """


def _queue_option(command: F) -> F:
    elsewhere = f"otherwise {QUEUE_VARIABLE}, else approvals.db in RAVI_STORE, else in .ravi of this directory"
    text = f"The queue: a file, or a Redis's URL; {elsewhere}."
    return click.option("--queue", "where", metavar="PATH|URL", help=text)(command)


def _answer_options(command: F) -> F:
    named = click.option("--as", "who", metavar="NAME", help="Who answers; otherwise your login, which is recorded in any case.")
    why = click.option("--comment", default="", metavar="TEXT", help="Why, in your own words: the model may be told.")
    return named(why(_queue_option(command)))


_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation on a terminal.")


@approvals.command(name="list", short_help="List what waits for an answer, oldest first.")
@click.option("-n", "--number", type=click.IntRange(1, _MOST), default=50, show_default=True, help="How many.")
@click.option("--all", "everything", is_flag=True, help="Also what was answered or has expired, newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_queue_option
def list_(*, number: int, everything: bool, as_json: bool, where: str | None) -> None:
    """List the requests that wait for an answer: id, who asks, the tool, and the arguments as far as there is room."""
    queue = _queue(where)
    rows = queue.retry(partial(queue.all, pending=not everything, most=number)) if queue.exists() else []
    if as_json:
        click.echo(json.dumps([_fields(row) for row in rows], indent=2, allow_nan=False))
    elif not rows:
        click.echo("Nothing waits for an answer." if not everything else "The queue is empty.")
    else:
        print_columns(console(), _HEADS, [_cells(row) for row in rows], [""] * len(rows), left=len(_HEADS), name="arguments", drops=_DROPS)


@approvals.command(short_help="Show one request: exactly the arguments that would run.")
@click.argument("request_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_queue_option
def show(*, request_id: str, as_json: bool, where: str | None) -> None:
    """Show a request: who asks, why, exactly the arguments that would run, and how far it is.

    Everything but plain ASCII is shown as its escape, so that different arguments never look alike.
    """
    queue, stored = _found(where, request_id)
    if as_json:
        click.echo(json.dumps(_fields(stored), indent=2, allow_nan=False))
        return
    _describe(stored)
    for earlier in queue.retry(partial(queue.earlier, stored)):
        print_line(
            f"The same was asked before: {earlier.why_not_pending() if earlier.state != 'pending' else _short(earlier) + ' waits too.'}",
            "yellow",
        )
    if stored.state == "pending" and stored.flaw is None:
        silent = stored.abandoned_note(time.time())
        print_line("It waits for an answer.")
        if silent:
            print_line(silent, "yellow")
    else:
        print_line(stored.why_not_pending())


@approvals.command(short_help="Approve one request, for one execution.")
@click.argument("request_id", metavar="ID")
@_yes_option
@_answer_options
def approve(*, request_id: str, yes: bool, who: str | None, comment: str, where: str | None) -> None:
    """Approve a request: exactly its arguments, once, until it expires.

    On a terminal they are shown and you are asked whether you mean it.
    """
    queue, stored = _pending(where, request_id)
    _describe(stored)
    _confirm("Approve it?", yes=yes)
    _answer(queue, stored, ApprovalAnswer(approved=True, comment=comment, who=who))


@approvals.command(short_help="Reject one request, or take back an approval: the call is not run.")
@click.argument("request_id", metavar="ID")
@_answer_options
def reject(*, request_id: str, who: str | None, comment: str, where: str | None) -> None:
    """Reject a request: the call is not run, and its program is told why.

    One that was approved is rejected too, as long as no call has taken the approval. Nothing takes back a rejection.
    """
    queue, stored = _pending(where, request_id, or_approved=True)
    if stored.state == "approved":
        print_line(f"Takes back the approval of {stored.answered_by()}, given at {format_time(stored.answered_at)}.")
    _answer(queue, stored, ApprovalAnswer(approved=False, comment=comment, who=who))


@approvals.command(short_help="Approve one request with other arguments.")
@click.argument("request_id", metavar="ID")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change one argument, as amount_usd=500 (JSON); repeatable.")
@click.option("--args", "whole", metavar="JSON", help="Put this object in the place of all arguments.")
@_yes_option
@_answer_options
def edit(
    *, request_id: str, changes: tuple[str, ...], whole: str | None, yes: bool, who: str | None, comment: str, where: str | None
) -> None:
    """Approve a request with other arguments: with --set or --args, else in $EDITOR.

    A VALUE is JSON; where the argument was a text, it is that text as it is unless it is in quotes. NAME= leaves an argument out.
    A number stays a number, and so on; only --args takes any object. What you write is validated and reviewed again before anything runs;
    what does not fit the tool is asked about again.
    """
    if changes and whole is not None:
        raise ConfigurationError("--set and --args say two different things: give one of them.")
    queue, stored = _pending(where, request_id)
    asked = stored.request.arguments
    if whole is not None:
        fresh: JsonObject = read_arguments(whole)
    else:
        fresh = edit_arguments(asked, changes) if changes else _edited_by_hand(stored.request)
    if stored.request.schema is not None:
        fresh = check_edit(stored.request, fresh)
    if freeze(fresh) == freeze(asked):
        raise ConfigurationError("Nothing was changed, and nothing is answered: use `ravi-otel approvals approve` to approve it as it is.")
    _describe(stored)
    print_line("Instead it would run with:")
    _lines(fresh)
    print_line(_AGAIN)
    _confirm("Approve these?", yes=yes)
    _answer(queue, stored, ApprovalAnswer(approved=True, comment=comment, who=who, arguments=fresh))


@approvals.command(short_help="Delete old requests that are over.")
@click.option(
    "--older-than", callback=read_duration, required=True, metavar="DURATION", help="Delete what was over before that, such as 30d."
)
@click.option("--dry-run", is_flag=True, help="Only say how many would go.")
@_queue_option
def prune(*, older_than: float, dry_run: bool, where: str | None) -> None:
    """Delete requests that were used, rejected or have expired long ago; nothing else ever deletes one."""
    queue = _existing(where)
    number = queue.retry(partial(queue.prune, older_than, dry_run=dry_run))
    what = "1 request" if number == 1 else f"{number:,} requests"
    print_line(f"{what} would be deleted." if dry_run else f"{what} deleted.")


# -- the queue --------------------------------------------------------------------------------------------------------


def _queue(where: str | None) -> RequestStore:
    if where is None:
        return open_queue(queue_place())
    return open_queue(read_queue_place(where), out=_AT, named="--queue")


def _existing(where: str | None) -> RequestStore:
    queue = _queue(where)
    if not queue.exists():
        raise ConfigurationError(
            f"there is no queue of approvals at {checks.show(queue.shown)}. Name it with --queue, or set {QUEUE_VARIABLE}."
        )
    return queue


def _found(where: str | None, request_id: str) -> tuple[RequestStore, StoredRequest]:
    queue = _existing(where)
    return queue, queue.retry(partial(queue.find, request_id))


def _pending(where: str | None, request_id: str, *, or_approved: bool = False) -> tuple[RequestStore, StoredRequest]:
    queue, stored = _found(where, request_id)
    if stored.state not in ("pending", "approved" if or_approved else "pending") or stored.flaw is not None:
        raise click.ClickException(stored.why_not_pending())
    return queue, stored


def _answer(queue: RequestStore, stored: StoredRequest, answer: ApprovalAnswer) -> None:
    known = current_login()
    who = known if answer.who is None else checks.name("--as", answer.who, "anna")
    done = queue.retry(partial(queue.answer, stored, replace(answer, who=who), login=known))
    what = "approved" if answer.approved else "rejected"
    print_line(f"{what} {_short(done)} by {done.answered_by()}: {escape(done.request.tool)}")


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and sys.stdin.isatty() and sys.stdout.isatty() and not click.confirm(question):
        raise click.ClickException("Nothing was answered.")


def _edited_by_hand(asked: ApprovalRequest) -> JsonObject:
    written = click.edit(json.dumps(copy_arguments(asked.arguments), indent=2, sort_keys=True) + "\n", extension=".json")
    if written is None:
        raise ConfigurationError("Nothing was changed, and nothing is answered: save the file to answer, or give --set NAME=VALUE.")
    return check_edit(asked, read_arguments(written))


# -- what is shown ----------------------------------------------------------------------------------------------------


def _describe(stored: StoredRequest) -> None:
    asked = stored.request
    print_line(f"{clean(stored.id, 64)}  {escape(asked.tool)}  {_state(stored)}", "bold")
    names = (
        *(("agent", asked.agent_name), ("run", asked.run_id), ("session", asked.session_id), ("tenant", asked.tenant_id)),
        *(("user", asked.user_id), ("approvers", who_may_decide(asked))),
    )
    for name, value in (("reason", asked.reason), *names):
        if value:
            print_line(f"{name:<9} {escape(value)}")
    if asked.risk_score is not None:
        print_line(f"risk      {asked.risk_score:g}")
    print_line(
        f"asked     {format_time(asked.requested_at)}, expires {format_time(asked.expires_at) if asked.expires_at is not None else 'never'}"
    )
    print_line(f"sha256    {escape(asked.fingerprint)}")
    print_line("arguments")
    _lines(asked.arguments)
    if stored.edited is not None:
        print_line("edited to")
        _lines(stored.edited)
    if stored.comment:
        print_line(f"comment   {escape(stored.comment)}")


def _lines(arguments: JsonObject) -> None:
    for line in describe_arguments(arguments):
        click.echo(f"  {line}")


def _cells(row: StoredRequest) -> list[str]:
    asked, now = row.request, time.time()
    is_open = row.state in ("pending", "approved")
    expires = "-" if not is_open else "never" if asked.expires_at is None else _span(asked.expires_at - now)
    cells = [_short(row), _state(row), f"{_span(now - asked.requested_at)} ago", expires, clean(asked.agent_name, 30)]
    return [*cells, clean(escape(asked.tool), 40), one_line(asked.arguments, _MOST_IN_LIST)]


def _state(row: StoredRequest) -> str:
    """Say how far a request is, and of a call that was run how it ended."""
    return clean(row.outcome or row.state, 12) if row.flaw is None else "changed"


def _short(row: StoredRequest) -> str:
    return clean(row.id[:_ID], _ID)


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for step, unit in _STEPS:
        if seconds >= step:
            return f"{seconds / step:.0f}{unit}"
    return f"{seconds:.0f}s"


def _fields(row: StoredRequest) -> dict[str, Any]:
    asked = row.request
    return {
        "id": row.id,
        "state": row.state,
        "flaw": row.flaw,
        "tool": asked.tool,
        "arguments": copy_arguments(asked.arguments),
        "reason": asked.reason,
        "risk_score": asked.risk_score,
        "fingerprint": asked.fingerprint,
        "policy_version": asked.policy_version,
        "agent_name": asked.agent_name,
        "run_id": asked.run_id,
        "session_id": asked.session_id,
        "tenant_id": asked.tenant_id,
        "user_id": asked.user_id,
        "approvers": None if asked.approvers is None else list(asked.approvers),
        "requester_may_approve": asked.requester_may_approve,
        "op_id": asked.op_id,
        "requested_at": asked.requested_at,
        "expires_at": asked.expires_at,
        "who": row.who,
        "login": row.login,
        "identity": row.identity,
        "comment": row.comment,
        "answered_at": row.answered_at,
        "edited": None if row.edited is None else copy_arguments(row.edited),
        "taken_at": row.taken_at,
        "taken_by": row.taken_by,
        "outcome": row.outcome,
        "ended_at": row.ended_at,
    }
