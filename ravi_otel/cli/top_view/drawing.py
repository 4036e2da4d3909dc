"""Draw rows in columns that fit: the name is cut first, then columns go, those first that are missed least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ravi_otel.cli.top_view import figures
from ravi_otel.cli.top_view.figures import NONE
from ravi_otel.cli.top_view.rows import Row
from ravi_otel.local.live import LimitState, ScopeState
from ravi_otel.local.wording import clean, plain

_LEAST_NAME: Final = 28
_GAP: Final = 2
_BAR: Final = 8
_LONG_BAR: Final = 16
_KIND: Final = 9
_EVENT: Final = 22
_LIMIT: Final = 22
_MOST_NAME: Final = 200
_NESTED_SHARE: Final = 3


class _Column(NamedTuple):
    """Be one column: its head, its width in cells, and whether it is a figure, which stands at the right."""

    head: str
    width: int
    figure: bool = False


_COLUMNS: Final[Mapping[str, _Column]] = {
    "state": _Column("state", 9),
    "priority": _Column("priority", 10),
    "age": _Column("age", 6, figure=True),
    "input": _Column("in", 6, figure=True),
    "output": _Column("out", 6, figure=True),
    "cost": _Column("cost", 9, figure=True),
    "rate": _Column("tok/s", 6, figure=True),
    "budget": _Column("fullest limit", _KIND + 1 + _BAR + 1 + 8),
    "share": _Column("full", 8),
    "event": _Column("last event", _EVENT),
}
_WANTED: Final = ("share", "state", "budget", "rate", "event", "cost", "age", "output", "input", "priority")
"""Columns in the order in which they are given room; `budget` is `share` with its bar, and comes in its place."""

_STATES: Final = {"paused": "yellow", "waiting": "cyan", "cancelled": "red", "closed": "red"}


class Layout:
    """Know which columns fit into so many cells, and draw rows in them; `ascii_only` for an output that carries no more."""

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
            text.append(_aligned(self._cut(cell, column.width), column), style)
        if row.watched.trouble:
            text.stylize("dim")
        return self._fitting(text)

    def limits(self, row: Row) -> Iterator[Text]:
        """Draw every limit of a row's scope, the fullest first, one below the other."""
        inner = row.guide[: self._deepest]
        before = "".join(self._pass if more else self._blank for more in inner) + self._blank
        for limit in sorted(() if row.scope is None else row.scope.limits, key=figures.fullness, reverse=True):
            text = Text.assemble((before, "dim"), self.limit(limit), no_wrap=True, end="")
            yield self._fitting(text)

    def limit(self, limit: LimitState) -> Text:
        """Draw one limit with all that is known of it."""
        used, most, held = (figures.amount(limit, value) for value in (limit.used, limit.limit, limit.held))
        text = Text(f"{self._cut(clean(limit.kind, _MOST_NAME), _LIMIT):<12} ", no_wrap=True)
        text.append(f"{figures.bar(limit, _LONG_BAR, ascii_only=self.ascii_only)} {figures.share(limit)}", figures.tone(limit))
        text.append(f" {used} of {most}{f', {held} held' if limit.held else ''}")
        return text

    def _process(self, row: Row) -> Text:
        trouble = row.watched.trouble
        text = Text.assemble((self._carried(process_title(row)), "bold underline"), no_wrap=True, end="")
        if trouble:
            text.append(self._carried(f"  {trouble}"), "bold yellow")
        return self._fitting(text.append(f"  {process_facts(row)}"))

    def _cells(self, row: Row, scope: ScopeState) -> dict[str, tuple[str, str]]:
        fullest = max(scope.limits, key=figures.fullness, default=None)
        tone = "" if fullest is None else figures.tone(fullest)
        return {
            "state": (row.state, _STATES.get(row.state, "")),
            "priority": (scope.priority or NONE, ""),
            "age": (figures.age(scope.age_s), ""),
            "input": (figures.short(scope.input_tokens), ""),
            "output": (figures.short(scope.output_tokens), ""),
            "cost": (figures.usd(scope.cost_usd), ""),
            "rate": (figures.rate(scope.tokens_per_s), ""),
            "budget": (NONE if fullest is None else self._budget(fullest), tone),
            "share": (NONE if fullest is None else figures.share(fullest), tone),
            "event": (self._event(scope), ""),
        }

    def _budget(self, limit: LimitState) -> str:
        kind = set_cell_size(self._cut(clean(limit.kind), _KIND), _KIND)
        return f"{kind} {figures.bar(limit, _BAR, ascii_only=self.ascii_only)} {figures.share(limit)}"

    def _event(self, scope: ScopeState) -> str:
        if not scope.last_event:
            return NONE
        ago = figures.age(scope.last_event_age_s)
        return f"{self._cut(clean(scope.last_event), _EVENT - len(ago) - 1)} {ago}"

    def _fitting(self, text: Text) -> Text:
        text.truncate(self.width, overflow="crop", pad=True)
        return text

    def _cut(self, text: str, width: int) -> str:
        shown = self._carried(text)
        return shown if cell_len(shown) <= width else f"{set_cell_size(shown, width - 1)}{'>' if self.ascii_only else '…'}"

    def _carried(self, text: str) -> str:
        return plain(text) if self.ascii_only else text

    def _before(self, guide: tuple[bool, ...]) -> str:
        """Draw what stands before a row; from some depth on the depth is written as a number."""
        inner = guide[:-1]
        if len(inner) >= self._deepest:
            return f"{self._blank * (self._deepest - 1)}{len(inner)}: "
        return "".join(self._pass if more else self._blank for more in inner) + (self._turn if guide[-1] else self._end) + " "


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
    if process is None:
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
        ("open for", figures.age(scope.age_s)),
        ("tokens in", figures.short(scope.input_tokens)),
        ("out", figures.short(scope.output_tokens)),
        ("cost", figures.usd(scope.cost_usd)),
        ("requests", figures.short(scope.requests)),
        ("tool calls", figures.short(scope.tool_calls)),
        ("tok/s", figures.rate(scope.tokens_per_s)),
        ("last event", NONE if not scope.last_event else f"{clean(scope.last_event)}, {figures.age(scope.last_event_age_s)} ago"),
        ("agent id", clean(scope.agent_id) or NONE),
        ("scope", clean(scope.scope_id)),
    ]


def _block(shown: Iterable[str]) -> int:
    return sum(_COLUMNS[name].width + _GAP for name in shown)


def _aligned(text: str, column: _Column) -> str:
    missing = " " * max(0, column.width - cell_len(text))
    return missing + text if column.figure else text + missing
