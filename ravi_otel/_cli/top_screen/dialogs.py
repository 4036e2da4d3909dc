"""Ask before something is done that cannot be taken back, ask for a limit's new value, and explain the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ravi_otel._cli.top_view.drawing import Layout
from ravi_otel.errors import ConfigurationError
from ravi_otel.local._wording import clean
from ravi_otel.local.live._protocol import LimitState

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
