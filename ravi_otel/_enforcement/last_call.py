"""The last call: one model call that wraps the work up with what limits with `on_exceed="final"` keep back for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import owned
from ravi_otel._enforcement.ledger.account import Account


@dataclass(slots=True, eq=False)
class LastCallState:
    """Whether the last call of one scope, on what its limits keep back, was taken."""

    taken: bool = False


Finals = list[tuple[LastCallState, Account]]
"""Limits that keep something back, root to leaf, each with what says whether that was taken."""


class LastCall:
    """What one open block gives: one call in all, made in the block or anywhere below it, and no tool.

    `finals` are the limits that the block was opened for; `around` is the block it was opened in.
    """

    __slots__ = ("_around", "_finals", "made", "over")

    def __init__(self, finals: Finals, around: LastCall | None) -> None:
        self._finals = finals
        self._around = around
        self.made = False
        self.over = False

    def _open(self) -> list[LastCall]:
        """Return the blocks that are open yet, from this one outwards: what outlived a block is in those around it only."""
        blocks: list[LastCall] = []
        block: LastCall | None = self
        while block is not None:
            if not block.over:
                blocks.append(block)
            block = block._around  # noqa: SLF001 - another block of this class
        return blocks

    def claim(self, engine: Engine, here: Finals) -> LastCallClaim | None:
        """Take what is kept back for the call that is about to be made, `here` too; raises when another has taken it.

        None once the block is over: it is a call like any other then.
        """
        blocks = self._open()
        if not blocks:
            return None
        finals = [*(each for block in blocks for each in block._finals), *here]  # noqa: SLF001 - blocks of this class
        claim = LastCallClaim(engine.lock, tuple(dict.fromkeys(kept for kept, _ in finals)), tuple(blocks))
        if not claim.take() and not engine.observe:
            _, account = next((each for each in finals if each[0].taken), finals[0])
            engine.count("denied", account)
            raise owned(errors_text.wrapped(account, account.facts), account)
        return claim

    def refuse_tool(self, engine: Engine, name: str) -> None:
        """Raise: in the last call's block no tool runs; in shadow mode it does, and after the block."""
        blocks = self._open()
        if not blocks or engine.observe:
            return
        _, account = blocks[0]._finals[0]  # noqa: SLF001 - a block of this class
        engine.count("denied", account)
        raise owned(errors_text.wrapping_up(account, account.facts, name), account)


class LastCallClaim:
    """One call's right to what is kept back, until it is clear whether the call was sent."""

    __slots__ = ("_blocks", "_kept", "_lock", "_taken")

    def __init__(self, lock: AbstractContextManager[bool], kept: tuple[LastCallState, ...], blocks: tuple[LastCall, ...]) -> None:
        self._lock = lock
        self._kept = kept
        self._blocks = blocks
        self._taken = False

    def take(self) -> bool:
        """Take it in every block, and every scope that keeps something back; False when one of them has given it away already."""
        with self._lock:
            if not any(block.made for block in self._blocks) and not any(kept.taken for kept in self._kept):
                self._taken = True
                self._mark(made=True)
            return self._taken

    def give_back(self) -> None:
        """Leave it to the next call, because this one was not sent."""
        with self._lock:
            if self._taken:
                self._taken = False
                self._mark(made=False)

    def _mark(self, *, made: bool) -> None:
        for block in self._blocks:
            block.made = made
        for kept in self._kept:
            kept.taken = made
