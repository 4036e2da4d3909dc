"""The screen of `ravi-otel top`: the tree, what is selected in whole words, the keys, and what they ask before they act."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from textwrap import wrap
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ravi_otel._cli.top import Layout, details, process_facts, process_title, scope_title
from ravi_otel._local.live.client import Row, Session, Watch, Watched, rows
from ravi_otel._local.live.protocol import LimitState, LiveError, ScopeState
from ravi_otel._local.render import console
from ravi_otel._local.wording import clean, plain
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._runs import Priority


def raised(priority: str | None, by: int) -> str | None:
    """Return the next priority above (1) or below (-1), None where there is none; a thing without one counts as normal."""
    ranks = [rank.name.lower() for rank in sorted(Priority)]
    now = ranks.index(priority) if priority in ranks else ranks.index(Priority.NORMAL.name.lower())
    return ranks[now + by] if 0 <= now + by < len(ranks) else None


def lets_go_on(status: str, priority: str) -> bool:
    """Whether another priority lets a paused agent go on, also one that was paused by hand."""
    return status == "paused" and Priority[priority.upper()] >= Priority.NORMAL


_MARK: Final = 2
_SELECTED: Final = Style(reverse=True)
_NOTHING: Final = "Nobody listens here yet. What keeps its runs in this store appears by itself."


class Tree(ScrollView, can_focus=True):
    """The rows; the first line in view is the heads of the columns.

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
        """Another row is selected, or the selected one changed."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._ascii_only = ascii_only
        self._layout_of_rows = Layout(80, ascii_only=ascii_only)
        self._drawn_on = console()
        self._rows: Sequence[Row] = ()
        self._at = 0

    @property
    def selected(self) -> Row | None:
        """Return the row that is selected, None where there is none."""
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
        """Return the line so many below the last row: of the sentence that nothing runs, where nothing does."""
        if at < 1 or not all(row.ended for row in self._rows):
            return ""
        lines = wrap(_NOTHING, max(1, self.size.width - _MARK))
        return lines[at - 1] if at <= len(lines) else ""

    def _strip(self, mark: str, drawn: Text) -> Strip:
        segments = [Segment(mark), *drawn.render(self._drawn_on)]
        # each with a style, without which Textual cannot take the colours away
        return Strip(Segment.apply_style(segments, self.rich_style)).adjust_cell_length(self.size.width, self.rich_style)


_BOX: Final = """
    align: center middle;
    background: transparent;
    Vertical { width: 90%; max-width: 86; height: auto; max-height: 90%; border: solid $warning; background: $background; padding: 0 1; }
    Static { height: auto; }
"""
_LIST_CELLS: Final = 76
_FRAME_CELLS: Final = 12
_LEAST_CELLS: Final = 8

HELP: Final = """\
up down      select a row; also k and j, page up, page down, home, end
p            pause an agent, or let a paused one go on: what it does next ends it, with what it has
+  -         give an agent the next higher or lower priority; normal or above lets a paused one go on
c            cancel: a run or an agent ends with all that is in it; anything else is closed. Asks first
l            raise a limit: type its new value; up and down choose another limit
?            this help
q            leave; the programs go on

state        open, paused, waiting (for a slot or a declared wait); paused above: an agent around it is, which stops it too;
             cancelled, closed: told to end, and going on still; ended: not there any more, and still selected
in, out      tokens; of an agent its own, of a run everybody's in it
tok/s        tokens of answers a second, over the last ten seconds
!  !!        from 80 % of a limit on; at 100 % and above
-  ?         has none; nobody knows
7:           what stands so deep that there is no room for its lines gives its depth
"""


class Confirm(ModalScreen[bool]):
    """Ask a question, and take only `y` for yes."""

    DEFAULT_CSS = f"Confirm {{{_BOX}}}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,q,escape", "answer(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question and its keys."""
        yield Vertical(Static(Text(self._question)), Static(Text("\ny yes   n no", "bold")))

    def action_answer(self, yes: bool) -> None:
        """End with the answer."""
        self.dismiss(yes)


class Help(ModalScreen[None]):
    """Explain the keys and the columns."""

    DEFAULT_CSS = f"Help {{{_BOX}}}"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,space", "leave", show=False)]

    def compose(self) -> ComposeResult:
        """Show the text."""
        yield Vertical(Static(Text(HELP)), Static(Text("Esc closes this.", "bold")))

    def action_leave(self) -> None:
        """End."""
        self.dismiss(None)


class RaiseLimit(ModalScreen[tuple[LimitState, float] | None]):
    """Ask for the new value of a limit of a scope, and for which with up and down; a value below the one that counts is asked for twice."""

    DEFAULT_CSS = f"RaiseLimit {{{_BOX} OptionList {{ height: auto; max-height: 10; }} Input {{ height: 3; }} }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
    ]

    def __init__(
        self, title: str, limits: Sequence[LimitState], now: Callable[[], Sequence[LimitState]], width: int, *, ascii_only: bool = False
    ) -> None:
        super().__init__()
        self._title = title
        self._limits = sorted(limits, key=attrgetter("urgency"), reverse=True)
        self._now = now
        self._at = 0
        cells = max(_LEAST_CELLS, min(_LIST_CELLS, width * 9 // 10 - _FRAME_CELLS))
        self._layout_of_limits = Layout(cells, ascii_only=ascii_only)
        self._lowering: float | None = None

    def compose(self) -> ComposeResult:
        """Show the limits, where there are several, and what to type into."""
        layout = self._layout_of_limits
        listed = OptionList(*(Option(Text("\n").join(layout.limit(limit, layout.width))) for limit in self._limits))
        listed.can_focus = False  # what is typed is the value, always
        several = len(self._limits) > 1
        with Vertical():
            yield Static(Text(f"Raise which limit of {self._title}?" if several else f"Raise the limit of {self._title}:"))
            yield listed
            yield Input(self._chosen.value, select_on_focus=True)
            yield Static("", id="flaw")
            yield Static(Text(f"{'up down choose   ' if several else ''}type its value   Enter sets it   Esc leaves it", "bold"))

    def on_mount(self) -> None:
        """Begin with the value of the fullest limit."""
        self.query_one(OptionList).highlighted = 0
        self.query_one(Input).focus()

    @property
    def _chosen(self) -> LimitState:
        return self._limits[self._at]

    def action_choose(self, by: int) -> None:
        """Go to another limit, with the value that counts now to type over."""
        at = max(0, min(self._at + by, len(self._limits) - 1))
        if at == self._at:
            return
        self._at = self.query_one(OptionList).highlighted = at
        self._lowering = None
        self._say("")
        value = self.query_one(Input)
        value.value = self._chosen.value
        value.select_all()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """End with what was typed, or say what is wrong with it."""
        limit = next((each for each in self._now() if each.kind == self._chosen.kind), self._chosen)
        try:
            value = limit.read_amount(event.value)
        except ConfigurationError as error:
            self._say(str(error))
            return
        if value < limit.limit and self._lowering != value:
            self._lowering = value
            self._say(_lowered(limit, value))
            return
        self.dismiss((limit, value))

    def _say(self, sentence: str) -> None:
        self.query_one("#flaw", Static).update(Text(sentence, "yellow"))

    def action_leave(self) -> None:
        """End without a value."""
        self.dismiss(None)


def _lowered(limit: LimitState, value: float) -> str:
    kind, used = clean(limit.kind, 40), limit.amount(limit.used)
    if value < limit.used:
        return (
            f"{used} of it are used already: with less, all that counts as {kind} is refused at once. Enter again lowers it all the same."
        )
    return f"That is less than the {limit.amount(limit.limit)} of now. Enter again lowers {kind}."


EVERY_S: Final = 0.5
PATIENCE_S: Final = 0.4
COMMAND_S: Final = 5.0
REASON: Final = "cancelled in ravi-otel top"

_KEYS: Final = "up/down select  p pause/resume  + - priority  c cancel  l limit  ? help  q quit"
_SHORT_KEYS: Final = "p pause  + - prio  c cancel  l limit  ? help  q quit"
_SELECT_FIRST: Final = "Select a run, an agent or a block first."
_LEAST_HEIGHT: Final = 20
_DETAIL_LINES: Final = 8
_KILLED: Final = 128
_MESSAGE_LINES: Final = 3
_MOST_SENTENCE: Final = 400


class TopScreen(App[None]):
    """Show a store's running processes twice a second until `q`; `watch` is closed by who made it."""

    CSS = f"""
    #head, #keys {{ height: 1; }}
    #message {{ height: auto; min-height: 1; max-height: {_MESSAGE_LINES}; }}
    #head {{ text-style: bold; }}
    #details {{ height: {_DETAIL_LINES + 1}; border-top: solid $primary; }}
    .low #details {{ display: none; }}
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", show=False),
        Binding("plus,equals_sign", "rank(1)", show=False),
        Binding("minus,underscore", "rank(-1)", show=False),
        Binding("c", "cancel", show=False),
        Binding("l", "limit", show=False),
        Binding("question_mark,h", "help", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(self, store: Path, watch: Watch, *, ascii_only: bool = False) -> None:
        super().__init__(ansi_color=True)  # the colours of the terminal itself, none with NO_COLOR
        self.theme = "ansi-dark"
        self._store = store
        self._watch = watch
        self._ascii_only = ascii_only
        self._looking = False

    def compose(self) -> ComposeResult:
        """Put the parts one below the other."""
        yield Static("", id="head")
        yield Tree(ascii_only=self._ascii_only)
        yield Static("", id="details")
        yield Static("", id="message")
        yield Static(_KEYS, id="keys")

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one(Tree).focus()
        if not self.is_headless and hasattr(asyncio.get_running_loop(), "add_signal_handler"):
            for number in (signal.SIGTERM, signal.SIGHUP):  # so that the terminal is given back as it was
                asyncio.get_running_loop().add_signal_handler(number, partial(self.exit, return_code=_KILLED + number))
        self.set_interval(EVERY_S, self._look)
        self._look()

    def on_resize(self, event: Resize) -> None:
        """Leave out what is not needed where the screen is low or narrow."""
        self.screen_stack[0].set_class(event.size.height < _LEAST_HEIGHT, "low")
        self.query_one("#keys", Static).update(_KEYS if event.size.width >= len(_KEYS) else _SHORT_KEYS)

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self._see()

    @work(group="look")  # which makes the coroutine as it begins: a worker that is cancelled first leaves none behind
    async def _see(self) -> None:
        try:
            seen = await asyncio.to_thread(self._watch.look, PATIENCE_S)
        finally:
            self._looking = False
        if self._is_up:
            self._show(seen)

    def _show(self, seen: list[Watched]) -> None:
        shown = rows(seen)
        agents = sum(row.scope is not None and row.scope.kind == "agent" for row in shown)
        counted = f"{len(seen):,} {'process' if len(seen) == 1 else 'processes'}, {agents:,} {'agent' if agents == 1 else 'agents'}"
        head = Layout(self.size.width, ascii_only=self._ascii_only).sentence(f"ravi-otel top  {counted}  {clean(str(self._store), 200)}")
        self._root("#head").update(self._text(head))
        self._tree.put(shown)

    @property
    def _is_up(self) -> bool:
        """Whether there is something to write on still: what was asked may be answered after the screen was left."""
        return bool(self.screen_stack) and bool(self.screen_stack[0].query(Tree))

    @property
    def _tree(self) -> Tree:
        return self.screen_stack[0].query_one(Tree)

    def _root(self, selector: str) -> Static:
        """Find a part of the screen, also while a question is asked above it."""
        return self.screen_stack[0].query_one(selector, Static)

    def _text(self, words: str, style: str = "") -> Text:
        return Text(plain(words) if self._ascii_only else words, style, no_wrap=True, overflow="ellipsis")

    def on_tree_selected(self) -> None:
        """Say all that is known of what is selected."""
        if not self._is_up:
            return
        row = self._tree.selected
        self._root("#details").update(Text("") if row is None else self._described(row))

    def _described(self, row: Row) -> Text:
        layout = Layout(self.size.width, ascii_only=self._ascii_only)
        facts = process_facts(row)
        if row.scope is None:
            lines = [self._text(layout.sentence(each), style) for each, style in ((process_title(row), "bold"), (row.trouble or facts, ""))]
        else:
            title, known = scope_title(row.scope), "  ".join(" ".join(each) for each in details(row))
            head = Text(self._text(f"{title}  {known}").plain, overflow="fold")
            head.stylize("bold", 0, len(title))
            lines = self._with_limits(list(head.wrap(self.console, self.size.width)), replace(row, guide=()), layout)
        for line in lines:
            line.truncate(max(1, self.size.width), overflow="ellipsis")
        return Text("\n").join(lines)

    def _with_limits(self, lines: list[Text], row: Row, layout: Layout) -> list[Text]:
        """Add the limits that there is room for, each whole, and how many more there are."""
        limits = [] if row.scope is None else sorted(row.scope.limits, key=attrgetter("urgency"), reverse=True)
        untold = 0 if row.scope is None else row.scope.limits_left_out
        for at, limit in enumerate(limits):
            drawn = [Text.assemble("  ", line) for line in layout.limit(limit, layout.width - 2)]
            more = len(limits) - at + untold
            if len(lines) + len(drawn) + (more > 1) > _DETAIL_LINES:
                last = f"and {more:,} {'limit' if more == 1 else 'limits'} more; l lists {'the fullest' if untold else 'them'}"
                return [*lines[: _DETAIL_LINES - 1], self._text(layout.sentence(last))]
            lines.extend(drawn)
        return lines

    # -- steering -----------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause an agent, or let a paused one go on."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        if scope.status == "paused":
            above = " But an agent around it is paused, which stops it too." if row.held else ""
            self._do(row, lambda session: session.command("resume", scope.scope_id), f"{scope_title(scope)} may go on.{above}")
        else:
            self._do(row, lambda session: session.command("pause", scope.scope_id), f"{scope_title(scope)} is paused.")

    def action_rank(self, by: int) -> None:
        """Set an agent's priority one step higher or lower."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        priority = raised(scope.priority, by)
        if priority is None:
            self._tell(f"{scope_title(scope)} is {scope.priority} already.")
            return
        goes_on = ", and goes on as soon as there is a slot" if lets_go_on(scope.status, priority) else ""
        done = f"{scope_title(scope)} is {priority} now{goes_on}."
        self._do(row, lambda session: session.command("reprioritize", scope.scope_id, priority=priority), done)

    def action_cancel(self) -> None:
        """Cancel a run or an agent, or close another scope, when that is meant."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        title, where = scope_title(scope), process_title(row)
        what = "Cancel" if scope.kind in ("run", "agent") else "Close"
        question = f"{what} {title} of {where}? All that is in it ends, for good."
        told = f"{title} was told to end."
        self.push_screen(Confirm(self._text(question).plain), partial(self._cancel, row, scope, told))

    def _cancel(self, row: Row, scope: ScopeState, told: str, yes: bool | None) -> None:
        if yes:
            self._do(row, lambda session: session.command("cancel", scope.scope_id, reason=REASON), told)
        else:
            self._tell("Nothing was cancelled.")

    def action_limit(self) -> None:
        """Ask which limit, and for its new value."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        if not scope.limits:
            self._tell(f"{scope_title(scope)} has no limits of its own.")
            return
        title, now = self._text(scope_title(scope)).plain, partial(self._limits_now, row)
        dialog = RaiseLimit(title, scope.limits, now, self.size.width, ascii_only=self._ascii_only)
        self.push_screen(dialog, partial(self._limit, row, scope))

    def _limits_now(self, row: Row) -> Sequence[LimitState]:
        """Return the limits of a row as its process told them last."""
        latest = self._tree.selected
        now = latest if latest is not None and latest.key == row.key else row
        return () if now.scope is None else now.scope.limits

    def _limit(self, row: Row, scope: ScopeState, chosen: tuple[LimitState, float] | None) -> None:
        if chosen is None:
            self._tell("No limit was changed.")
            return
        limit, value = chosen
        done = f"The {clean(limit.kind, 40)} limit of {scope_title(scope)} is {limit.amount(value)} now."
        self._do(row, lambda session: session.command("set_limit", scope.scope_id, kind=limit.kind, value=value), done)

    def action_help(self) -> None:
        """Explain the keys."""
        self.push_screen(Help())

    def _chosen(self) -> tuple[Row | None, ScopeState | None]:
        row = self._tree.selected
        if row is not None and row.ended:
            self._tell(f"{process_title(row) if row.scope is None else scope_title(row.scope)} has ended. Select another row.")
            return None, None
        if row is None or row.scope is None:
            self._tell(_SELECT_FIRST)
            return None, None
        return row, row.scope

    def _do(self, row: Row, command: Callable[[Session], None], done: str) -> None:
        self._tell(f"Telling {process_title(row)} ...")
        self.run_worker(self._done(replace(row.watched.session, timeout_s=COMMAND_S), command, done), group="command")

    async def _done(self, session: Session, command: Callable[[Session], None], done: str) -> None:
        try:
            await asyncio.to_thread(command, session)
        except LiveError as error:
            self._tell(str(error), "red")
        else:
            self._tell(done)
        self._look()

    def _tell(self, sentence: str, style: str = "") -> None:
        if self._is_up:
            self._root("#message").update(Text("\n").join(self._text(line, style) for line in self._lines(clean(sentence, _MOST_SENTENCE))))

    def _lines(self, sentence: str) -> list[str]:
        """Return as much of a sentence as there is room for, in whole words."""
        width = max(1, self.size.width)
        lines = [line.plain for line in Text(sentence).wrap(self.console, width)]
        if len(lines) <= _MESSAGE_LINES:
            return lines
        last = Layout(width, ascii_only=self._ascii_only).sentence(" ".join(lines[_MESSAGE_LINES - 1 :]))
        return [*lines[: _MESSAGE_LINES - 1], last]


def show(store: Path) -> None:
    """Show the screen until it is left."""
    with closing(Watch(store)) as watch:
        screen = TopScreen(store, watch, ascii_only=console().options.ascii_only)
        screen.run(mouse=False)
    if screen.return_code:
        sys.exit(screen.return_code)
