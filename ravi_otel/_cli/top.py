"""Show what runs on this machine now, and steer it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ravi_otel._cli.frame import find_store, print_note, store_option
from ravi_otel._extras import load
from ravi_otel._local import wording
from ravi_otel._local.live.client import DIRECTORY, Row, Watch, Watched, check_directory, entries, rows
from ravi_otel._local.live.protocol import LimitState, LiveError, ScopeState, as_fields
from ravi_otel._local.render import console
from ravi_otel._local.wording import NONE, clean, plain
from ravi_otel.errors import ConfigurationError

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
    root = find_store(place).root
    _may_be_looked_at(root / DIRECTORY)
    if not once and not as_json:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigurationError("ravi-otel top needs a terminal. Use --once or --json where there is none.")
        load("textual")
        load("ravi_otel._cli.top_screen").show(root)
        return
    left = _left_behind(root)
    with closing(Watch(root)) as watch:
        seen = watch.look(_PATIENCE_S)
    if as_json:
        click.echo(json.dumps([_fields(each) for each in seen], indent=2, allow_nan=False))
    elif seen:
        _print(seen)
    if not seen:
        print_note(_nothing(root, left))
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
    """Return what a process said as it said it; null is what is not known, and all of a process that never answered."""
    known = {} if watched.process is None else as_fields(watched.process)
    unknown = {"pid": watched.session.pid, "program": None, "started_unix_s": None, "runs": None, "left_out": None}
    return {**unknown, **known, "answers": watched.trouble is None, "error": watched.trouble}


_LEAST_NAME: Final = 26
_GAP: Final = 2
_BAR: Final = 8
_LONG_BAR: Final = 16
_KIND: Final = 9
_EVENT: Final = 21
_LIMIT: Final = 22
_MOST_NAME: Final = 200
_NESTED_SHARE: Final = 3
_DIGITS: Final = frozenset("0123456789.,")
_PART_OF_A_NUMBER: Final = re.compile(r"[$~\d.,]+\Z")


class _Column(NamedTuple):
    """One column: its head, its width in cells, and whether it is a figure, which stands at the right."""

    head: str
    width: int
    figure: bool = False


_COLUMNS: Final[Mapping[str, _Column]] = {
    "state": _Column("state", 12),
    "priority": _Column("priority", 10),
    "age": _Column("age", 6, figure=True),
    "input": _Column("in", 6, figure=True),
    "output": _Column("out", 6, figure=True),
    "cost": _Column("cost", wording.COST_CELLS, figure=True),
    "rate": _Column("tok/s", 6, figure=True),
    "budget": _Column("fullest limit", _KIND + 1 + _BAR + 1 + 8),
    "share": _Column("full", 8),
    "event": _Column("last event", _EVENT),
}
_WANTED: Final = ("share", "state", "budget", "rate", "event", "cost", "age", "output", "input", "priority")
"""Columns in the order in which they are given room; `budget` is `share` with its bar, and comes in its place."""

_STATES: Final = {"paused": "yellow", "paused above": "yellow", "waiting": "cyan", "cancelled": "red", "closed": "red", "ended": "red"}


_TONES: Final = {"": "", "!": "yellow", "!!": "bold red"}
"""The colours of a limit, by its mark."""


class Layout:
    """Which columns fit into so many cells, and how rows are drawn in them; `ascii_only` for an output that carries no more."""

    def __init__(self, width: int, *, ascii_only: bool = False) -> None:
        self.width = width
        self.ascii_only = ascii_only
        shown: set[str] = set()
        for name in _WANTED:
            more = (shown | {name}) - ({"share"} if name == "budget" else set())
            if width - _block(more) >= _LEAST_NAME:
                shown = more
        self._shown = [name for name in _COLUMNS if name in shown]
        self._room = max(1, width - _block(shown))
        self._blank, self._pass, self._turn, self._end = ("  ", "| ", "|-", "`-") if ascii_only else ("  ", "│ ", "├─", "└─")
        self._deepest = max(1, self._room // _NESTED_SHARE // len(self._blank))

    def heads(self) -> Text:
        """Draw the line of heads."""
        text = Text(" " * self._room, "bold", no_wrap=True, end="")
        for name in self._shown:
            text.append(" " * _GAP + _aligned(_COLUMNS[name].head, _COLUMNS[name]))
        return self._fitting(text)

    def line(self, row: Row) -> Text:
        """Draw one row, exactly as wide as there is room."""
        scope = row.scope
        if scope is None:
            return self._process(row)
        before = self._before(row.guide)
        room = max(1, self._room - cell_len(before))
        name = self._cut(scope_title(scope), room)
        text = Text.assemble((before, "dim"), (set_cell_size(name, room), "bold"), no_wrap=True, end="")
        cells = self._cells(row, scope)
        for column_name in self._shown:
            column = _COLUMNS[column_name]
            cell, style = cells[column_name]
            text.append(" " * _GAP)
            fits = not column.figure or cell_len(cell) <= column.width
            text.append(_aligned(self._cut(cell, column.width) if fits else self._gone, column), style)
        if row.watched.trouble or row.ended:
            text.stylize("dim")
        return self._fitting(text)

    def limits(self, row: Row) -> Iterator[Text]:
        """Draw every limit of a row's scope, the fullest first, one below the other, each in as many lines as it takes."""
        inner = row.guide[: self._deepest]
        before = "".join(self._pass if more else self._blank for more in inner) + self._blank
        for limit in sorted(() if row.scope is None else row.scope.limits, key=attrgetter("urgency"), reverse=True):
            for line in self.limit(limit, self.width - cell_len(before)):
                yield self._fitting(Text.assemble((before, "dim"), line, no_wrap=True, end=""))
        more = 0 if row.scope is None else row.scope.limits_left_out
        if more:
            said = self.sentence(f"and {more:,} more than it tells of", self.width - cell_len(before))
            yield self._fitting(Text.assemble((before, "dim"), said, no_wrap=True, end=""))

    def limit(self, limit: LimitState, room: int) -> list[Text]:
        """Draw one limit with all that is known of it: without its bar where there is little room, and in several lines where less."""
        used, most, held = limit.used_text, limit.amount(limit.limit), limit.amount(limit.held)
        kind = Text(f"{self._cut(clean(limit.kind, _MOST_NAME), min(_LIMIT, max(1, room))):<12}")
        tone, share = _TONES[limit.mark], _share(limit)
        bar = _bar(limit, _LONG_BAR, ascii_only=self.ascii_only)
        amounts = Text(f"{used} of {most}{f', {held} held' if limit.held else ''}")
        for marked in (f"{bar} {share}", share):
            line = Text(" ").join((kind, Text(marked, tone), amounts))
            if line.cell_len <= room:
                return [line]
        kind.rstrip()
        rest = (f"{used} of", most, *((f"and {held}", "held") if limit.held else ()))
        return self._wrapped((kind, Text(share.strip(), tone), *map(Text, rest)), room)

    def _wrapped(self, parts: Iterable[Text], room: int) -> list[Text]:
        lines: list[Text] = []
        for each in parts:
            part = each if each.cell_len <= room else Text(self._gone)
            if lines and lines[-1].cell_len + 1 + part.cell_len <= room:
                lines[-1] = Text(" ").join((lines[-1], part))
            else:
                lines.append(part)
        return lines

    def sentence(self, words: str, room: int | None = None) -> str:
        """Return as many whole words of a sentence as there is room for."""
        most = self.width if room is None else room
        shown = self._carried(words)
        if cell_len(shown) <= most:
            return shown
        kept = ""
        for word in shown.split(" "):
            longer = f"{kept} {word}" if kept else word
            if cell_len(longer) + 1 > most:
                break
            kept = longer
        return f"{kept}{self._gone}" if kept else self._cut(shown, most) if most > 0 else ""

    def _process(self, row: Row) -> Text:
        text = Text.assemble((self._titled(row), "bold underline"), no_wrap=True, end="")
        trouble = self.sentence(f"  {row.trouble}", self.width - text.cell_len) if row.trouble else ""
        text.append(trouble if trouble.strip(f" {self._gone}") else "", "bold yellow")
        for at, fact in enumerate(process_facts(row).split(", ")):
            said = f"{', ' if at else '  '}{fact}"
            if text.cell_len + cell_len(said) > self.width:
                break
            text.append(said)
        return self._fitting(text)

    def _titled(self, row: Row) -> str:
        number = f"pid {row.watched.session.pid}"
        title = self._carried(process_title(row))
        left = self.width - len(f" ({number})")
        if cell_len(title) <= self.width:
            return title
        if left > 1:
            return f"{self._cut(title.removesuffix(f' ({number})'), left)} ({number})"
        return number if len(number) <= self.width else self._gone

    def _cells(self, row: Row, scope: ScopeState) -> dict[str, tuple[str, str]]:
        fullest = max(scope.limits, key=attrgetter("urgency"), default=None)
        tone = "" if fullest is None else _TONES[fullest.mark]
        return {
            "state": (row.state, _STATES.get(row.state, "")),
            "priority": (scope.priority or NONE, ""),
            "age": (wording.age(scope.age_s), ""),
            "input": (wording.short(scope.input_tokens, estimated=scope.estimated > 0), ""),
            "output": (wording.short(scope.output_tokens, estimated=scope.estimated > 0), ""),
            "cost": (wording.short_usd(scope.cost_usd, estimated=scope.is_cost_rough, partly=scope.is_cost_partial), ""),
            "rate": (wording.rate(scope.tokens_per_s), ""),
            "budget": (NONE if fullest is None else self._budget(fullest), tone),
            "share": (NONE if fullest is None else _share(fullest), tone),
            "event": (self._event(scope), ""),
        }

    def _budget(self, limit: LimitState) -> str:
        kind = set_cell_size(self._cut(clean(limit.kind), _KIND), _KIND)
        return f"{kind} {_bar(limit, _BAR, ascii_only=self.ascii_only)} {_share(limit)}"

    def _event(self, scope: ScopeState) -> str:
        if not scope.last_event:
            return NONE
        ago = wording.age(scope.last_event_age_s)
        return f"{self._cut(clean(scope.last_event), _EVENT - len(ago) - 1)} {ago}"

    def _fitting(self, text: Text) -> Text:
        text.truncate(self.width, overflow="crop", pad=True)
        return text

    def _cut(self, text: str, width: int) -> str:
        """Cut a text that is too long, before a number that would be cut."""
        shown = self._carried(text)
        if cell_len(shown) <= width:
            return shown
        kept = set_cell_size(shown, width - 1)
        if shown.startswith(kept) and shown[len(kept)] in _DIGITS:
            kept = _PART_OF_A_NUMBER.sub("", kept)
        return f"{kept}{self._gone}"

    @property
    def _gone(self) -> str:
        return ">" if self.ascii_only else "…"

    def _carried(self, text: str) -> str:
        return plain(text) if self.ascii_only else text

    def _before(self, guide: tuple[bool, ...]) -> str:
        """Draw what stands before a row; from some depth on the depth is written as a number."""
        inner = guide[:-1]
        if len(inner) >= self._deepest:
            return f"{self._blank * (self._deepest - 1)}{len(inner)}: "
        return "".join(self._pass if more else self._blank for more in inner) + (self._turn if guide[-1] else self._end) + " "


def _share(limit: LimitState) -> str:
    """Write how full a limit is, with its mark, in the cells of its column: ` 80 % !`."""
    return f"{limit.share:>5} {limit.mark:<2}"


def _bar(limit: LimitState, width: int, *, ascii_only: bool = False) -> str:
    """Draw how full a limit is: used, then held, then free."""
    full, half, empty = "#+." if ascii_only else "█▒░"
    filled = width if limit.fullness >= 1 else max(0, math.floor(limit.fullness * width + 1e-9))
    held = 0
    if limit.limit > 0 and limit.held > 0:
        held = min(width - filled, math.ceil(min(limit.held / limit.limit, 1.0) * width))
    return full * filled + half * held + empty * (width - filled - held)


def scope_title(scope: ScopeState) -> str:
    """Name a scope: `agent researcher`."""
    name = clean(scope.name, _MOST_NAME) or (clean(scope.scope_id, 8) if scope.kind == "run" else "")
    return f"{scope.kind} {name}".rstrip()


def process_title(row: Row) -> str:
    """Name a process by its program and its number."""
    process, number = row.watched.process, f"pid {row.watched.session.pid}"
    program = "" if process is None else clean(process.program, _MOST_NAME)
    return f"{program} ({number})" if program else number


def process_facts(row: Row) -> str:
    """Say in a few words how many runs a process has, and how many agents."""
    process = row.watched.process
    if process is None or row.ended:
        return ""
    agents = sum(scope.kind == "agent" for run in process.runs for scope in run.scopes)
    runs = sum(run.run_id is not None for run in process.runs)
    facts = f"{runs:,} {'run' if runs == 1 else 'runs'}, {agents:,} {'agent' if agents == 1 else 'agents'}"
    return f"{facts}, and {process.left_out:,} scopes more than it tells of" if process.left_out else facts


def details(row: Row) -> list[tuple[str, str]]:
    """Say in whole words what a scope is and did, as labels with their values."""
    scope = row.scope
    if scope is None:
        return []
    return [
        ("state", row.state),
        ("priority", scope.priority or NONE),
        ("open for", wording.age(scope.age_s)),
        ("tokens in", wording.short(scope.input_tokens, estimated=scope.estimated > 0)),
        ("out", wording.short(scope.output_tokens, estimated=scope.estimated > 0)),
        ("cost", wording.usd(scope.cost_usd, estimated=scope.is_cost_rough, partly=scope.is_cost_partial)),
        ("requests", wording.short(scope.requests)),
        ("tool calls", wording.short(scope.tool_calls)),
        ("tok/s", wording.rate(scope.tokens_per_s)),
        ("last event", NONE if not scope.last_event else f"{clean(scope.last_event)}, {wording.age(scope.last_event_age_s)} ago"),
        ("agent id", clean(scope.agent_id) or NONE),
        ("scope", clean(scope.scope_id)),
    ]


def _block(shown: Iterable[str]) -> int:
    return sum(_COLUMNS[name].width + _GAP for name in shown)


def _aligned(text: str, column: _Column) -> str:
    missing = " " * max(0, column.width - cell_len(text))
    return missing + text if column.figure else text + missing
