"""Show a record on a terminal: the run as a tree with its figures, and its limits, worst first. The only module here that knows `rich`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import IO, Final

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel._local.tree import Branch, Figures, Line, RunRecord, Tone, left_out, legend, lines, scope_title, tone_of
from ravi_otel._local.wording import UNKNOWN, amount, clean, count, percent, plain
from ravi_otel.hooks._events import LimitReading
from ravi_otel.policy._limits import ScopeKind

_STYLES: Final[dict[Tone, str]] = {
    "scope": "bold",
    "call": "",
    "tool": "cyan",
    "quiet": "dim",
    "warning": "yellow",
    "refused": "red",
    "error": "magenta",
}
_HEADS: Final = ("ms", "tokens in", "tokens out", "cost")
_SHORT_HEADS: Final = ("ms", "in", "out", "cost")
_STILL_HELD: Final = "Held in what was closed: by calls that had not ended then, and were not heard of since."
_LEAST_NAME: Final = 34
_LEAST_TABLE: Final = 72
_COLUMNS: Final = ("scope", "limit", "allowed", "used", "held", "%", "events", "denied")
_EVENTS: Final = _COLUMNS.index("events")
_SHARE: Final = _COLUMNS.index("%")
_AROUND: Final = (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION)
_MOST_LIMITS: Final = 30


class _Console(Console):
    """Be a console whose reader may leave: `BrokenPipeError` reaches the caller, whose exit status may mean more than that."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled, where rich would exit the process."""
        raise  # noqa: PLE0704 - called while the error is handled


def console(stream: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Make a console for `stream` (standard output unless given): colours on a terminal only, and none with NO_COLOR."""
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def render(record: RunRecord, to: Console) -> None:
    """Print the tree, the table of limits, and what did not fit."""
    _print_tree(to, list(lines(record)))
    limits = record.limits()
    if limits:
        to.print()
        _print_limits(to, limits, observed=record.observed)
        if any(reading.held > 0 and branch.status != "open" for branch, reading in limits):
            _print(to, Text(_STILL_HELD, "dim"), wrap=True)
    missing = left_out(record)
    if missing:
        to.print()
        _print(to, Text(missing, "yellow"), wrap=True)


def _print_tree(to: Console, lines: list[Line]) -> None:
    if not lines:
        _print(to, Text("Nothing was recorded.", "dim"))
        return
    _Tree(to, lines).print()
    marks = legend(lines)
    if marks:
        _print(to, Text(marks, "dim"), wrap=True)


def _print(to: Console, text: Text, *, wrap: bool = False) -> None:
    ascii_only = to.options.ascii_only
    if ascii_only:
        text.plain = plain(text.plain)
    to.print(text, no_wrap=not wrap, overflow="fold" if wrap else "crop" if ascii_only else "ellipsis")


# -- the tree -----------------------------------------------------------------------------------------------------


class _Tree:
    """Lay lines out: names at the left, figures in columns at the right, or below the name where there is no room."""

    def __init__(self, to: Console, lines: list[Line]) -> None:
        self._to = to
        self._lines = lines
        self._blank, self._pass, self._turn, self._end = (
            ("   ", "|  ", "|- ", "`- ") if to.options.ascii_only else ("   ", "│  ", "├─ ", "└─ ")
        )
        self._heads, self._widths = self._columns(_HEADS)
        if to.width - self._block < _LEAST_NAME:
            self._heads, self._widths = self._columns(_SHORT_HEADS)
        self._wide = to.width - self._block >= _LEAST_NAME
        room = to.width - (self._block if self._wide else 0)
        self._deepest = max(1, room // 2 // len(self._blank))

    def _columns(self, heads: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        cells = [astuple(line.figures) for line in self._lines]
        self._widths = tuple(max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads))
        return heads, self._widths

    @property
    def _block(self) -> int:
        return sum(self._widths) + 2 * len(self._widths)

    def print(self) -> None:
        if self._wide:
            _print(self._to, Text(" " * (self._to.width - self._block) + self._figures(self._heads), "dim"))
        for line in self._lines:
            for text in self._texts(line):
                _print(self._to, text)

    def _texts(self, line: Line) -> Iterator[Text]:
        before, below = self._guides(line.guide)
        room = self._to.width - (self._block if self._wide else 0) - cell_len(before)
        yield self._title(line, before, room)
        if not self._wide:
            yield from self._below(below, " ", _short(line.figures), "dim")
        if line.remark and not self._fits(line, room):
            yield from self._below(below, " ", line.remark, _STYLES[line.remark_tone])
        for tone, note in line.notes:
            yield from self._below(below, " ! " if tone == "warning" else " x ", note, _STYLES[tone])

    def _title(self, line: Line, before: str, room: int) -> Text:
        title = _cut(line.title, room)
        remark = f"  {line.remark}" if line.remark and self._fits(line, room) else ""
        text = Text.assemble((before, "dim"), (title, _STYLES[line.tone]), (remark, _STYLES[line.remark_tone]))
        if self._wide:
            text.append(" " * (room - cell_len(title) - cell_len(remark)))
            text.append(self._figures(astuple(line.figures)), "dim" if line.tone == "quiet" else "")
        text.rstrip()
        return text

    @staticmethod
    def _fits(line: Line, room: int) -> bool:
        return cell_len(line.title) + 2 + cell_len(line.remark) <= room

    def _figures(self, cells: tuple[str, ...]) -> str:
        return "".join(f"  {cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True))

    def _below(self, below: str, mark: str, words: str, style: str) -> Iterator[Text]:
        room = max(10, self._to.width - cell_len(below) - len(mark))
        for at, part in enumerate(Text(words).wrap(self._to, room) if words else ()):
            yield Text.assemble((below, "dim"), (f"{mark if at == 0 else ' ' * len(mark)}{part.plain.rstrip()}", style))

    def _guides(self, guide: tuple[bool, ...]) -> tuple[str, str]:
        """Give what stands before a line, and before what is below it."""
        if len(guide) == 1:
            return "", ""
        inner, more = guide[1:-1], guide[-1]
        if len(inner) >= self._deepest:
            flat = f"{self._blank * self._deepest}{len(guide) - 1}: "
            return flat, " " * len(flat)
        around = "".join(self._pass if goes_on else self._blank for goes_on in inner)
        return around + (self._turn if more else self._end), around + (self._pass if more else self._blank)


def _short(figures: Figures) -> str:
    """Write the figures as one phrase: `12 ms · 210 in · 80 out · $0.0002`."""
    named = ((figures.ms, "{} ms"), (figures.tokens_in, "{} in"), (figures.tokens_out, "{} out"), (figures.cost, "{}"))
    return " · ".join(form.format(shown) for shown, form in named if shown)


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 1 else ""


# -- the limits ---------------------------------------------------------------------------------------------------


def _print_limits(to: Console, limits: Sequence[tuple[Branch, LimitReading]], *, observed: bool) -> None:
    """Print the fullest as a table, or where that is too wide as two lines each, and how many more there are."""
    rows = [(_cells(branch, reading), _STYLES[tone_of(reading)]) for branch, reading in limits[:_MOST_LIMITS]]
    if to.width < _LEAST_TABLE:
        for (scope, limit, allowed, used, held, share, events, denied), style in rows:
            told = (f"{used} of {allowed}", share, f"{held} held", events, f"{denied} {'would be denied' if observed else 'denied'}")
            _print(to, Text(f"{scope}: {limit}", style), wrap=True)
            _print(to, Text("  " + " · ".join(filter(None, told))), wrap=True)
    else:
        to.print(_table(to, rows, observed=observed))
    if observed:
        _print(to, Text("Only observed: what the last column counts was let through.", "yellow"), wrap=True)
    rest = limits[_MOST_LIMITS:]
    if rest:
        _print(to, Text(f"… {len(rest):,} more limits, none above {percent(rest[0][1].ratio)}", "dim"))


def _cells(branch: Branch, reading: LimitReading) -> tuple[str, ...]:
    """Return what the columns say of one limit."""
    limit, scope = reading.limit, scope_title(branch, 40)
    if branch.facts.kind is ScopeKind.RUN and reading.scope in _AROUND:  # it stands with the run that it is around
        scope = f"{reading.scope.value} {clean(reading.scope_name, 40)}".rstrip()
    events = [clean(event.removeprefix("limit_"), 20) for event in dict.fromkeys(reading.events)]
    if reading.declared is not None:  # another value was set than the one that is written
        events.append(f"set by {clean(reading.set_by, 20)}" if reading.set_by else "set anew")
    amounts = (amount(limit.kind, each) for each in (limit.amount, reading.used, reading.held))
    denied = UNKNOWN if math.isnan(reading.used) and not reading.denied else count(reading.denied)
    return scope, clean(reading.title, 60), *amounts, percent(reading.ratio), ", ".join(events), denied


def _table(to: Console, limits: Sequence[tuple[tuple[str, ...], str]], *, observed: bool) -> Table:
    columns = (*_COLUMNS[:-1], "would be denied") if observed else _COLUMNS
    rows = [tuple(cell.removesuffix(" %") if at == _SHARE else cell for at, cell in enumerate(cells)) for cells, _ in limits]
    if to.options.ascii_only:
        rows = [tuple(map(plain, cells)) for cells in rows]
    widths = [max(cell_len(head), *(cell_len(row[at]) for row in rows)) for at, head in enumerate(columns)]
    spare = to.width - sum(widths) - 2 * len(widths)
    if spare < 0:
        short = max(widths[_EVENTS] // 2 + 1, len(_COLUMNS[_EVENTS]))  # two of them, one below the other
        spare += widths[_EVENTS] - short
        widths[_EVENTS] = short
    widths[0] = max(10, widths[0] + min(spare, 0))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for at, (head, width) in enumerate(zip(columns, widths, strict=True)):
        names = at in (0, 1, _EVENTS)
        table.add_column(head, width=width, justify="left" if names else "right", no_wrap=at != _EVENTS, overflow="ellipsis")
    for (scope, *rest), (_, style) in zip(rows, limits, strict=True):
        loud = "" if style == _STYLES["quiet"] else style
        table.add_row(*(Text(cell, loud) for cell in (_cut(scope, widths[0]), *rest)))
    return table
