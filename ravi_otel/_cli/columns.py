"""Lay out tables whose figures are never cut: columns go first, in the order in which they are missed least."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel.local._wording import plain

_LEAST_NAME = 8
_GAP = 2


def print_columns(
    out: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str],
    *,
    left: int,
    name: str,
    drops: Sequence[str],
    keeps: Sequence[str] = (),
) -> None:
    """Print a table; the first `left` columns are texts, the others figures.

    Where there is no room, the column `name` is shortened, and where that is not enough, the columns `drops` go, one after the other;
    `name`, when it is among them, is shortened rather than left out. The columns `keeps` stay on one line even then.
    """
    ascii_only = out.options.ascii_only
    columns = {head: [plain(row[at]) if ascii_only else row[at] for row in rows] for at, head in enumerate(heads)}
    _fit(columns, out.width, name, drops)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    texts = heads[:left]
    for head in columns:
        # What still has no room, such as a long id, is folded and not cut.
        table.add_column(
            plain(head) if ascii_only else head, justify="left" if head in texts else "right", overflow="fold", no_wrap=head in keeps
        )
    for cells, style in zip(zip(*columns.values(), strict=True), styles, strict=True):
        table.add_row(*(Text(cell, style) for cell in cells))
    out.print(table)


def _fit(columns: dict[str, list[str]], width: int, name: str, drops: Sequence[str]) -> None:
    for head in (None, *drops):
        widths = {each: max(map(cell_len, (each, *cells))) for each, cells in columns.items()}
        over = sum(widths.values()) + _GAP * len(widths) - 1 - width
        if over <= 0:
            return
        if head in (None, name) and name in columns and (room := widths[name] - over) >= max(_LEAST_NAME, cell_len(name)):
            columns[name] = [_cut(cell, room) for cell in columns[name]]
        elif head is not None:
            columns.pop(head, None)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
