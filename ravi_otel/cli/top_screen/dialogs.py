"""Ask before something is done that cannot be taken back, ask for a limit's new value, and explain the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ravi_otel.cli.top_view import figures
from ravi_otel.cli.top_view.drawing import Layout
from ravi_otel.errors import ConfigurationError
from ravi_otel.local.live import LimitState
from ravi_otel.local.wording import clean

_BOX: Final = """
    align: center middle;
    background: transparent;
    Vertical { width: 90%; max-width: 86; height: auto; max-height: 90%; border: solid $warning; background: $background; padding: 0 1; }
    Static { height: auto; }
"""
_LIST_WIDTH: Final = 76

HELP: Final = """\
up down      select a row; also k and j, page up, page down, home, end
p            pause an agent, or let a paused one go on: what it does next ends it, with what it has
+  -         give an agent the next higher or lower priority
c            cancel: a run ends with all that is in it; anything else is closed. Asks first
l            raise a limit: choose which, then type its new value
?            this help
q            leave; the programs go on

state        open, paused, waiting (for a slot or a declared wait); cancelled, closed: told to end, and going on still
in, out      tokens; of an agent its own, of a run everybody's in it
tok/s        tokens of answers a second, over the last ten seconds
!  !!        from 80 % of a limit on; at 100 % and above
-  ?         has none; nobody knows
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
    """Ask which limit of a scope, and for its new value; a value below the one that counts now is asked for twice."""

    DEFAULT_CSS = f"RaiseLimit {{{_BOX} OptionList {{ height: auto; max-height: 10; }} Input {{ height: 3; }} }}"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def __init__(self, title: str, limits: Sequence[LimitState], *, ascii_only: bool = False) -> None:
        super().__init__()
        self._title = title
        self._limits = sorted(limits, key=figures.fullness, reverse=True)
        self._layout_of_limits = Layout(_LIST_WIDTH, ascii_only=ascii_only)
        self._lowering: float | None = None

    def compose(self) -> ComposeResult:
        """Show the limits, where there are several, and what to type into."""
        options = [Option(self._layout_of_limits.limit(limit)) for limit in self._limits]
        chosen = self._limits[0]
        with Vertical():
            yield Static(Text(f"Raise which limit of {self._title}?" if len(options) > 1 else f"Raise the limit of {self._title}:"))
            yield OptionList(*options)
            yield Input(figures.written(chosen), select_on_focus=True)
            yield Static("", id="flaw")
            yield Static(Text("up down choose   Enter sets   Esc leaves it", "bold"))

    def on_mount(self) -> None:
        """Begin where there is something to choose."""
        self.query_one(OptionList).highlighted = 0
        self.query_one(OptionList if len(self._limits) > 1 else Input).focus()

    @property
    def _chosen(self) -> LimitState:
        return self._limits[self.query_one(OptionList).highlighted or 0]

    def on_option_list_option_highlighted(self) -> None:
        """Fill in the value that counts now."""
        self.query_one(Input).value = figures.written(self._chosen)
        self._lowering = None

    def on_option_list_option_selected(self) -> None:
        """Go on to the value."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """End with what was typed, or say what is wrong with it."""
        limit = self._chosen
        try:
            value = figures.read_amount(limit, event.value)
        except ConfigurationError as error:
            self._say(str(error))
            return
        if value < limit.limit and self._lowering != value:
            self._lowering = value
            self._say(f"That is less than the {figures.amount(limit, limit.limit)} of now. Enter again lowers {clean(limit.kind, 40)}.")
            return
        self.dismiss((limit, value))

    def _say(self, sentence: str) -> None:
        self.query_one("#flaw", Static).update(Text(sentence, "yellow"))

    def action_leave(self) -> None:
        """End without a value."""
        self.dismiss(None)
