"""Draw the rows that are in view, and keep one of them selected, whatever comes and goes around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ravi_otel._cli.top_view.drawing import Layout
from ravi_otel.local._render import console
from ravi_otel.local.live._client import Row

_MARK: Final = 2
_SELECTED: Final = Style(reverse=True)
_NOTHING: Final = "Nobody listens here yet. What keeps its runs in this store appears by itself."


class Tree(ScrollView, can_focus=True):
    """Hold the rows; the first line in view is the heads of the columns.

    The selected row is kept by its key. What ends while it is selected stays, marked, until another row is selected: a key must never
    reach a scope that was not chosen.
    """

    DEFAULT_CSS = "Tree { overflow-x: hidden; scrollbar-size: 0 0; }"  # the rows are as wide as the screen, and keys scroll
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    class Selected(Message):
        """Tell that another row is selected, or that it changed."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._ascii_only = ascii_only
        self._layout_of_rows = Layout(80, ascii_only=ascii_only)
        self._drawn_on = console()
        self._rows: Sequence[Row] = ()
        self._at = 0

    @property
    def selected(self) -> Row | None:
        """Give the row that is selected, None where there is none."""
        return self._rows[self._at] if self._rows else None

    def put(self, rows: Sequence[Row]) -> None:
        """Show these rows from now on."""
        selected, places = self.selected, {row.key: at for at, row in enumerate(rows)}
        if selected is None:
            self._at = 0
        elif selected.key in places:
            self._at = places[selected.key]
        else:
            above = (places[row.key] + 1 for row in reversed(self._rows[: self._at]) if row.key in places)
            self._at = next(above, 0)
            rows = [*rows[: self._at], replace(selected, ended=True), *rows[self._at :]]
        self._rows = rows
        self._changed()

    def _changed(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self._in_view()
        self.refresh()
        self.post_message(self.Selected())

    def on_resize(self, event: Resize) -> None:
        """Choose the columns anew."""
        self._layout_of_rows = Layout(max(1, event.size.width - _MARK), ascii_only=self._ascii_only)
        self.virtual_size = Size(event.size.width, len(self._rows) + 1)
        self._in_view()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Select the row so many below."""
        left = self.selected
        self._at = max(0, min(self._at + by, len(self._rows) - 1))
        if left is not None and left.ended and self.selected is not left:
            self._at -= list(self._rows).index(left) < self._at
            self._rows = [row for row in self._rows if row is not left]
        self._changed()

    def action_page(self, by: int) -> None:
        """Select the row a page below, or above."""
        self.action_move(by * max(1, self.size.height - 2))

    def _in_view(self) -> None:
        """Scroll so far that the selected row is below the heads and above the end; the first row leaves nothing above it."""
        height = self.size.height - 1
        first = round(self.scroll_offset.y)
        if self._at < first:
            first = self._at
        elif self._at >= first + height > 0:
            first = self._at - height + 1
        self.scroll_to(y=first, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        """Draw one line of what is in view."""
        at = round(self.scroll_offset.y) + y - 1
        if y == 0:
            return self._strip("  ", self._layout_of_rows.heads())
        if at >= len(self._rows):
            return self._strip("  ", Text(self._empty(at - len(self._rows)), end=""))
        drawn = self._layout_of_rows.line(self._rows[at])
        return self._strip("> ", drawn).apply_style(_SELECTED) if at == self._at else self._strip("  ", drawn)

    def _empty(self, at: int) -> str:
        """Give the line so many below the last row: of the sentence that nothing runs, where nothing does."""
        if at < 1 or not all(row.ended for row in self._rows):
            return ""
        lines = wrap(_NOTHING, max(1, self.size.width - _MARK))
        return lines[at - 1] if at <= len(lines) else ""

    def _strip(self, mark: str, drawn: Text) -> Strip:
        segments = [Segment(mark), *drawn.render(self._drawn_on)]
        # each with a style, without which Textual cannot take the colours away
        return Strip(Segment.apply_style(segments, self.rich_style)).adjust_cell_length(self.size.width, self.rich_style)
