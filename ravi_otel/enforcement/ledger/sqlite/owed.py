"""Keep what could not be written when it happened, and what its writing crossed, until somebody can be told."""

from __future__ import annotations

from collections.abc import Callable

from ravi_otel.enforcement.ledger.contract import Crossing, Denied, Grant, Settled
from ravi_otel.enforcement.ledger.sqlite.page import Page

Act = Callable[[Page], Settled | None]


class Owed:
    """Be this process's debts to the file; changed under the ledger's lock, except that `add` may come from anywhere.

    `ends` are the operations whose end is among them.
    """

    def __init__(self) -> None:
        self._acts: list[Act] = []
        self.ends: set[str] = set()
        self._untold: list[Settled] = []

    def __bool__(self) -> bool:
        return bool(self._acts)

    @property
    def untold(self) -> bool:
        """Tell that something was crossed of which nobody was told."""
        return bool(self._untold)

    def add(self, act: Act) -> None:
        """Do this with the next step that can be written."""
        self._acts.append(act)

    def write(self, page: Page) -> tuple[int, list[Settled]]:
        """Do it all in this step; give what is to be handed to `written` when the step is."""
        acts = self._acts[:]
        return len(acts), [settled for settled in (act(page) for act in acts) if settled is not None]

    def written(self, count: int, settled: list[Settled]) -> None:
        """Forget what was written, and keep what it crossed for the next answer."""
        del self._acts[:count]
        if not self._acts:
            self.ends.clear()
        self._untold.extend(settled)

    def tell(self, answer: Grant | Denied) -> Grant | Denied:
        """Add to an answer what was crossed meanwhile."""
        if not self._untold:
            return answer
        untold, self._untold = self._untold, []
        crossings: list[Crossing] = [crossing for settled in untold for crossing in settled.crossings]
        answer.crossings = (*crossings, *answer.crossings)
        return answer

    def tell_settled(self, settled: Settled) -> Settled:
        """Add to what settling brought what was settled meanwhile."""
        if not self._untold:
            return settled
        untold, self._untold = [*self._untold, settled], []
        return Settled([one for each in untold for one in each.crossings], [one for each in untold for one in each.overage])
