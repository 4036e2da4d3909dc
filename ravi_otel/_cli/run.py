"""Run a program under observation and a hard budget, and say on standard error what it did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ravi_otel._extras import load
from ravi_otel._instrumentation.uncovered_hosts import is_allowed
from ravi_otel._launch.launcher import NOT_IN_FORCE, STOPPED, UNKEPT, Launch, Result
from ravi_otel._launch.plan import MOST_MESSAGES
from ravi_otel._launch.target import NotFoundError
from ravi_otel._local.store import Store
from ravi_otel._local.wording import clean, count
from ravi_otel._runtime.config import effective, read_tags, with_ledger
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._limits import NANO

if TYPE_CHECKING:
    from ravi_otel._local.stored_tree import StoredRecord


@click.command(
    short_help="Run a program under observation and a hard budget.",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.option(
    "--limit", "limits", multiple=True, metavar="KIND=VALUE", help="A limit, such as cost=0.50usd, tokens=20k, requests=10, time=90s."
)
@click.option("--policy", type=click.Path(path_type=Path), help="A policy file, TOML or YAML; flags and RAVI_LIMIT_... go before it.")
@click.option("--profile", metavar="NAME", help="A profile of the policy file.")
@click.option("--name", help="What to call the run; otherwise the program's name.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Put on every span of the run and on the cost metric.")
@click.option("--observe", is_flag=True, help="Refuse nothing, only tell what the limits would have refused.")
@click.option("--admission", metavar="MODE", help="How spend is held before it is known: estimate, strict or after.")
@click.option("--ledger", metavar="URL", help="Where to count: sqlite:PATH or redis://HOST, together with all that name the same.")
@click.option(
    "--after-limit",
    type=click.Choice(["terminate", "refuse"]),
    default="terminate",
    show_default=True,
    help="What becomes of a program that swallows refusals: slowed down and ended, or only refused.",
)
@click.option(
    "--allow-unseen",
    is_flag=True,
    help="Accept calls of models that the limits cannot cover, through other clients or plain HTTP: say so, and keep the program's status.",
)
@click.option("--content", is_flag=True, help="Keep in the store what is said, so that prompts and answers can be read there.")
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="No report, and no word of limits that fill up; only of those that were not in force, or did not cover a call.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as one line of JSON.")
@click.option(
    "--report", "place", type=click.Path(path_type=Path, dir_okay=False), help="A file for the report, instead of standard error."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - one parameter an option
    *,
    limits: tuple[str, ...],
    policy: Path | None,
    profile: str | None,
    name: str | None,
    tags: tuple[str, ...],
    observe: bool,
    admission: str | None,
    ledger: str | None,
    after_limit: str,
    allow_unseen: bool,
    content: bool,
    quiet: bool,
    as_json: bool,
    place: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, observe every call it makes with the `openai`, `anthropic` and `groq` packages, and hold it to limits.

    \b
      ravi-otel run --limit tokens=20000 --limit cost=0.50usd --limit time=90s -- python my_agent.py

    The report goes to standard error. Exit status: the program's own; 2 when something must be written otherwise and
    nothing was started; 4 when a limit ended the program; 5 when limits were given and were not in force, or did not cover
    a call of a model; 6 when the store of the counters could not be used, so that limits refused, or nothing was started.
    """  # noqa: D301 - click wants the backspace itself
    if quiet and (as_json or place is not None):
        raise ConfigurationError("--quiet asks for no report, and --json and --report for one. Leave one of them out.")
    made = effective(flags=limits, file=policy, profile=profile, observe=observe, admission=admission)
    made = replace(made, name=made.name if name is None else checks.name("--name", name), tags={**made.tags, **read_tags(tags)})
    made = with_ledger(made, ledger)
    if made.gate is not None:
        load("ravi_otel.supervisor.rules._kinds").read_rules(made.gate)
    if made.limits:
        load("ravi_otel._launch.limits").check_for_run(made)
    try:
        launch = Launch(
            command,
            made,
            terminate=after_limit == "terminate",
            quiet=quiet or (as_json and place is None),
            allow_unseen=allow_unseen or is_allowed(os.environ),
            content=content,
        )
        result = launch.run(Store.open())
    except NotFoundError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.status)
    except BudgetExhaustedError as error:  # the ledger cannot be used, and a limit would refuse everything
        click.echo(f"Error: {error}", err=True)
        sys.exit(UNKEPT)
    _report(result, quiet=quiet, as_json=as_json, place=place)
    _leave(result.status)


def _report(result: Result, *, quiet: bool, as_json: bool, place: Path | None) -> None:
    if quiet:
        if result.outcome in ("unattached", "uncovered"):
            _say(result.said)
        return
    try:
        _write_report(result, as_json=as_json, place=place)
    except Exception as error:  # noqa: BLE001 - the program's exit status is kept whatever we get wrong after it
        _say((*result.said, f"the report could not be written: {error!r}"))


def _say(sentences: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, and the exit status says what became of the program all the same
        for sentence in sentences:
            click.echo(f"ravi-otel: {clean(sentence, 500)}", err=True)


def _leave(status: int) -> None:
    """Exit as the program did: of the same signal, if one ended it."""
    if status >= 0:
        sys.exit(status)
    if -status not in (signal.SIGKILL, signal.SIGSTOP):  # these have no handler to reset
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


_OF_OUTCOME: Final = {"stopped": STOPPED, "store_failed": UNKEPT}


def run_facts(store: Store, record: StoredRecord) -> dict[str, Any]:
    """Return what is known of a run; null is not known.

    `exit_status` is the one `ravi-otel run` ended with, `program_status` the program's own, negative for a signal. `directory` is where
    the processes of a launch keep what they share.
    """
    run, launch = record.head, record.launch or {}
    limits, observe = launch.get("limits"), bool(launch.get("observe"))
    unheld = run.outcome in ("unattached", "uncovered") and bool(limits) and not observe
    return {
        "run_id": run.run,
        "name": run.name,
        "argv": launch.get("argv", []),
        "outcome": run.outcome or run.status,
        "exit_status": _OF_OUTCOME.get(run.outcome or "", NOT_IN_FORCE if unheld else run.exit_status),
        "program_status": run.exit_status,
        "started": run.began / NANO,
        "ended": None if run.ended is None else run.ended / NANO,
        "observe": observe,
        "directory": str(store.launches / run.run) if record.launch is not None else None,
        "uncovered": launch.get("uncovered", []),
        "said": launch.get("notes", []),
        "user": run.user,
        "tenant": run.tenant,
        "session": run.session,
        "tags": dict(run.tags),
        "trace_id": run.trace,
    }


_MOST: Final = 600


def _write_report(result: Result, *, as_json: bool = False, place: Path | None = None) -> None:
    """Write the report to standard error, or to the file `place`; raise OSError when it cannot be written."""
    if place is None:
        if sys.stderr is not None:  # closed before the start: the report is nobody's, and standard output is the program's
            _write(result, sys.stderr, as_json=as_json)
        return
    with place.open("w", encoding="utf-8") as file:
        _write(result, file, as_json=as_json)


def _write(result: Result, to: IO[str], *, as_json: bool) -> None:
    if not (as_json or result.said or result.budgets or result.kept.has_processes() or to.isatty()):
        to.write(f"\n{_headline(result)}\n")  # which needs neither the terminal's library nor what reads a run
        return
    kept, run = result.kept.store, result.kept.launch
    with load("ravi_otel._local.queries").Queries(kept) as queries:
        record = queries.record(run)
    if as_json:
        facts = _facts(result, run_facts(kept, record))
        to.write(json.dumps({**facts, **record.as_json()}, allow_nan=False) + "\n")
        return
    drawing = load("ravi_otel._local.render")
    out = drawing.console(to)
    out.print()
    out.print(_headline(result), style="bold", soft_wrap=True)
    if record.roots and (len(record) > 1 or result.budgets):
        drawing.render(record, out)
    for sentence in result.said:
        out.print(clean(sentence, _MOST), style="red")


def _headline(result: Result) -> str:
    """Name the run, and say how it ended and how to see it again."""
    ended = result.ended
    parts = [f"ravi-otel: {clean(result.name, 60)}", _ending(result)]
    if result.observe:
        parts.append("only observed, nothing was refused")
    if ended.refusals:
        parts.append(f"{'≥' if ended.refusals >= MOST_MESSAGES else ''}{count(ended.refusals)} refused")
    parts.append(f"ravi-otel show {result.kept.launch}")
    return " · ".join(parts)


def _ending(result: Result) -> str:
    if result.ended.status < 0:
        return (
            f"ended by signal {-result.ended.status}, exit status {result.status}"
            if result.status >= 0
            else f"ended by signal {-result.status}"
        )
    if result.status != result.ended.status:
        return f"exit status {result.status} (its own was {result.ended.status})"
    return f"exit status {result.status}"


def _facts(result: Result, known: dict[str, Any]) -> dict[str, Any]:
    return {
        **known,
        "outcome": result.outcome,
        "exit_status": result.status,
        "program_status": result.ended.status,
        "refusals": result.ended.refusals,
        "processes": len(result.ended.working),
        "said": list(result.said),
    }
