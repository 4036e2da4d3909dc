"""Show what runs on this machine now, and steer it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from ravi_otel._cli.stored import found, say, store_option
from ravi_otel._cli.top_view.drawing import Layout
from ravi_otel._extras import load
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._render import console
from ravi_otel.local._wording import clean
from ravi_otel.local.live._client import DIRECTORY, Watch, Watched, check_directory, entries, rows
from ravi_otel.local.live._protocol import LiveError, as_fields

_PATIENCE_S: Final = 2.0
_MOST_LINES: Final = 2_000
_MOST_NAMED: Final = 5
_MOST_SENTENCE: Final = 400


@click.command(short_help="Watch the agents that run now, and steer them.")
@click.option("--once", is_flag=True, help="Print what runs now, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print what runs now as JSON, and end.")
@store_option
def top(*, once: bool, as_json: bool, place: Path | None) -> None:
    """Watch the programs that run now and keep their runs in the store: agents, state, budgets, tokens per second, last event.

    Keys pause and resume an agent, change its priority, cancel it, and raise a limit; ? shows them.

    \b
    Exit status of --once and --json:
      0  every process that is there answered
      1  nobody listens, or a process did not answer
      2  something must be set otherwise, such as a store that is not there
    """  # noqa: D301 - click wants the backspace itself
    root = found(place).root
    _may_be_looked_at(root / DIRECTORY)
    if not once and not as_json:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigurationError("ravi-otel top needs a terminal. Use --once or --json where there is none.")
        load("textual")
        load("ravi_otel._cli.top_screen.screen").show(root)
        return
    left = _left_behind(root)
    with closing(Watch(root)) as watch:
        seen = watch.look(_PATIENCE_S)
    if as_json:
        click.echo(json.dumps([_fields(each) for each in seen], indent=2, allow_nan=False))
    elif seen:
        _print(seen)
    if not seen:
        say(_nothing(root, left))
    sys.exit(0 if seen and not any(each.trouble for each in seen) else 1)


def _may_be_looked_at(directory: Path) -> None:
    """Raise ConfigurationError where what runs cannot be seen, which is not to say that nothing does."""
    try:
        check_directory(directory)
    except LiveError as error:
        raise ConfigurationError(f"What runs cannot be seen: {clean(str(error), _MOST_SENTENCE)}") from error
    except OSError:
        return  # nobody has listened yet


def _left_behind(root: Path) -> set[int]:
    """List by number the processes that told of a socket, before those are removed at which nobody listens."""
    return {entry.pid for entry in entries(root)}


def _nothing(root: Path, left: set[int]) -> str:
    where = clean(str(root), 200)
    if not left:
        way_out = f"Start a program with `ravi-otel run -- ...`, or with RAVI_STORE={where}, and not with RAVI_LIVE=off."
        return f"Nobody listens in {where}. {way_out}"
    named = ", ".join(str(pid) for pid in sorted(left)[:_MOST_NAMED])
    more = f" and {len(left) - _MOST_NAMED:,} more" if len(left) > _MOST_NAMED else ""
    who = f"process {named}" if len(left) == 1 else f"processes {named}{more}"
    return f"Nobody listens in {where}: not at the {'socket' if len(left) == 1 else 'sockets'} of {who}, either."


def _print(seen: Sequence[Watched]) -> None:
    """Print every row with all of its limits."""
    out = console()
    layout = Layout(out.width, ascii_only=out.options.ascii_only)
    drawn = [line for row in rows(seen) for line in (layout.line(row), *layout.limits(row))]
    for line in (layout.heads(), *drawn[:_MOST_LINES]):
        line.rstrip()
        line.end = "\n"
        out.print(line, crop=False)
    if len(drawn) > _MOST_LINES:
        out.print(f"{len(drawn) - _MOST_LINES:,} lines more are not shown; --json gives them all.", style="dim")


def _fields(watched: Watched) -> dict[str, Any]:
    """Give what a process said as it said it; null is what is not known, and all of a process that never answered."""
    known = {} if watched.process is None else as_fields(watched.process)
    unknown = {"pid": watched.session.pid, "program": None, "started_unix_s": None, "runs": None, "left_out": None}
    return {**unknown, **known, "answers": watched.trouble is None, "error": watched.trouble}
