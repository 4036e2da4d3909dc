"""Put the screen together: the tree, what is selected in whole words, and the keys; it asks the processes off its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import Static

from ravi_otel.cli.top_screen.dialogs import Confirm, Help, RaiseLimit
from ravi_otel.cli.top_screen.tree import Tree
from ravi_otel.cli.top_view import figures
from ravi_otel.cli.top_view.drawing import Layout, details, process_facts, process_title, scope_title
from ravi_otel.cli.top_view.polling import Watch, Watched
from ravi_otel.cli.top_view.rows import Row, rows
from ravi_otel.cli.top_view.steering import raised
from ravi_otel.local import console
from ravi_otel.local.live import LimitState, LiveError, ScopeState, Session
from ravi_otel.local.wording import clean, plain

EVERY_S: Final = 0.5
PATIENCE_S: Final = 0.4
COMMAND_S: Final = 5.0
REASON: Final = "cancelled in ravi-otel top"

_KEYS: Final = "up/down select  p pause/resume  + - priority  c cancel  l limit  ? help  q quit"
_SHORT_KEYS: Final = "p pause  + - prio  c cancel  l limit  ? help  q quit"
_SELECT_FIRST: Final = "Select a run, an agent or a block first."
_LEAST_HEIGHT: Final = 20
_DETAIL_LINES: Final = 8
_MOST_SENTENCE: Final = 400


class TopScreen(App[None]):
    """Show a store's running processes twice a second until `q`; `watch` is closed by who made it."""

    CSS = f"""
    #head, #message, #keys {{ height: 1; }}
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
            self.run_worker(self._see(), group="look")

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
        self._root("#head").update(self._text(f"ravi-otel top  {counted}  {clean(str(self._store), 200)}"))
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
        if row.scope is None:
            lines = [self._text(process_title(row), "bold"), self._text(row.watched.trouble or process_facts(row))]
        else:
            facts = "  ".join(f"{label} {value}" for label, value in details(row))
            head = Text(self._text(f"{scope_title(row.scope)}  {facts}").plain, overflow="fold")
            head.stylize("bold", 0, len(scope_title(row.scope)))
            lines = [*head.wrap(self.console, self.size.width), *layout.limits(replace(row, guide=()))]
        over = len(lines) - _DETAIL_LINES
        if over > 0:
            lines = [*lines[: _DETAIL_LINES - 1], self._text(f"and {over + 1:,} limits more, none of them fuller; l lists them")]
        for line in lines:
            line.truncate(max(1, self.size.width), overflow="ellipsis")
        return Text("\n").join(lines)

    # -- steering -----------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pause an agent, or let a paused one go on."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        if scope.status == "paused":
            self._do(row, lambda session: session.resume(scope.scope_id), f"{scope_title(scope)} may go on.")
        else:
            self._do(row, lambda session: session.pause(scope.scope_id), f"{scope_title(scope)} is paused.")

    def action_rank(self, by: int) -> None:
        """Give an agent the next priority."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        priority = raised(scope.priority, by)
        if priority is None:
            self._tell(f"{scope_title(scope)} is {scope.priority} already.")
            return
        self._do(row, lambda session: session.reprioritize(scope.scope_id, priority), f"{scope_title(scope)} is {priority} now.")

    def action_cancel(self) -> None:
        """Cancel a run, or close another scope, when that is meant."""
        row, scope = self._chosen()
        if row is None or scope is None:
            return
        title, where = scope_title(scope), process_title(row)
        what = "Cancel" if scope.kind == "run" else "Close"
        question = f"{what} {title} of {where}? All that is in it ends, for good."
        told = f"{title} was told to end."
        self.push_screen(Confirm(self._text(question).plain), partial(self._cancel, row, scope, told))

    def _cancel(self, row: Row, scope: ScopeState, told: str, yes: bool | None) -> None:
        if yes:
            self._do(row, lambda session: session.cancel(scope.scope_id, REASON), told)
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
        dialog = RaiseLimit(self._text(scope_title(scope)).plain, scope.limits, ascii_only=self._ascii_only)
        self.push_screen(dialog, partial(self._limit, row, scope))

    def _limit(self, row: Row, scope: ScopeState, chosen: tuple[LimitState, float] | None) -> None:
        if chosen is None:
            self._tell("No limit was changed.")
            return
        limit, value = chosen
        done = f"{clean(limit.kind, 40)} of {scope_title(scope)} is {figures.amount(limit, value)} now."
        self._do(row, lambda session: session.set_limit(scope.scope_id, limit.kind, value), done)

    def action_help(self) -> None:
        """Explain the keys."""
        self.push_screen(Help())

    def _chosen(self) -> tuple[Row | None, ScopeState | None]:
        row = self._tree.selected
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
            self._root("#message").update(self._text(clean(sentence, _MOST_SENTENCE), style))


def show(store: Path) -> None:
    """Show the screen until it is left."""
    watch = Watch(store)
    try:
        TopScreen(store, watch, ascii_only=console().options.ascii_only).run(mouse=False)
    finally:
        watch.close()
