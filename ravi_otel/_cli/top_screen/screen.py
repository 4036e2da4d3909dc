"""Put the screen together: the tree, what is selected in whole words, and the keys; it asks the processes off its own thread."""

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
from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Static

from ravi_otel._cli.top_screen.dialogs import Confirm, Help, RaiseLimit
from ravi_otel._cli.top_screen.tree import Tree
from ravi_otel._cli.top_view.drawing import Layout, details, process_facts, process_title, scope_title
from ravi_otel._cli.top_view.steering import lets_go_on, raised
from ravi_otel.local._render import console
from ravi_otel.local._wording import clean, plain
from ravi_otel.local.live._client import Row, Session, Watch, Watched, rows
from ravi_otel.local.live._protocol import LimitState, LiveError, ScopeState

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
        """Tell whether there is something to write on still: what was asked may be answered after the screen was left."""
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
        """Give an agent the next priority."""
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
        """Give the limits of a row as its process told them last."""
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
        """Give as much of a sentence as there is room for, in whole words."""
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
