"""Let one model call wrap the work up with what limits with `on_exceed="final"` have kept back for it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ravi_otel import _current
from ravi_otel._enforcement import errors_text
from ravi_otel._enforcement.errors_text import owned
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks.listener import Entered
from ravi_otel.policy.limits import Outcome, ScopeKind

if TYPE_CHECKING:
    from ravi_otel._enforcement.ledger.account import Account
    from ravi_otel._enforcement.scope import Scope


class WrapUp:
    """Open the block in which one model call may use what is kept back; `with` and `async with`.

    Tools are refused inside, and so is a second call, wherever below it is made, and also from another block: what is kept back is
    kept for one. A call that was not sent leaves it to the next. What a block left running has nothing of it once it is over.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._inner: Scope | None = None
        self._last: LastCall | None = None
        self._attachment: _current.Attachment | None = None
        self._entered: Entered | None = None

    def __enter__(self) -> Self:
        scope = self._scope
        if self._attachment is not None:
            raise ConfigurationError("wrap_up() is already open. Give each with block a wrap_up() of its own.")
        finals = _finals(scope)
        if not finals:
            raise ConfigurationError(
                f"wrap_up(): no limit of {errors_text.place(scope.facts)}, or around it, keeps anything back for a last call. "
                'Give one on_exceed="final".'
            )
        leaf: Any = _current.leaf()
        base: Scope = scope if leaf is None or scope not in leaf.upwards() else leaf
        facts = replace(base.facts, scope_id=uuid.uuid4().hex, kind=ScopeKind.BLOCK, name="wrap_up")
        self._inner = base.block(facts)
        self._last = self._inner.wrapping = LastCall(finals, base.wrapping)
        self._attachment = _current.Attachment(_current.with_leaf(self._inner))
        self._attachment.__enter__()
        self._entered = scope.engine.listeners.scope_opened(self._inner)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        attachment, self._attachment, inner = self._attachment, None, self._inner
        if self._last is not None:
            self._last.over = True
        if attachment is None or inner is None:
            return
        if self._entered is not None:
            self._entered.leave()
        attachment.restore()
        inner.end(error)
        inner.engine.listeners.scope_closed(inner)
        inner.error = None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class LastCall:
    """Be what one open block gives: one call in all, made in the block or anywhere below it, and no tool.

    `finals` are the limits, with the scope of each, that the block was opened for; `around` is the block it was opened in.
    """

    __slots__ = ("_around", "_finals", "made", "over")

    def __init__(self, finals: list[tuple[Scope, Account]], around: LastCall | None) -> None:
        self._finals = finals
        self._around = around
        self.made = False
        self.over = False

    def _open(self) -> list[LastCall]:
        """List the blocks that are open yet, from this one outwards: what outlived a block is in those around it only."""
        blocks: list[LastCall] = []
        block: LastCall | None = self
        while block is not None:
            if not block.over:
                blocks.append(block)
            block = block._around  # noqa: SLF001 - another block of this class
        return blocks

    def claim(self, scope: Scope) -> Claim | None:
        """Take what is kept back for the call that is about to be made in `scope`; raises when another has taken it.

        Gives None once the block is over: it is a call like any other then.
        """
        blocks = self._open()
        if not blocks:
            return None
        finals = [*(each for block in blocks for each in block._finals), *_finals(scope)]  # noqa: SLF001 - blocks of this class
        claim = Claim(scope, tuple(dict.fromkeys(owner for owner, _ in finals)), tuple(blocks))
        if not claim.take() and not scope.engine.observe:
            owner, account = next((each for each in finals if each[0].wrapped), finals[0])
            scope.engine.count("denied", account)
            raise owned(errors_text.wrapped(account, owner.facts), account)
        return claim

    def refuse_tool(self, scope: Scope, name: str) -> None:
        """Raise: in the last call's block no tool runs; in shadow mode it does, and after the block."""
        blocks = self._open()
        if not blocks or scope.engine.observe:
            return
        owner, account = blocks[0]._finals[0]  # noqa: SLF001 - a block of this class
        scope.engine.count("denied", account)
        raise owned(errors_text.wrapping_up(account, owner.facts, name), account)


class Claim:
    """Be one call's right to what is kept back, until it is clear whether the call was sent."""

    __slots__ = ("_blocks", "_owners", "_scope", "_taken")

    def __init__(self, scope: Scope, owners: tuple[Scope, ...], blocks: tuple[LastCall, ...]) -> None:
        self._scope = scope
        self._owners = owners
        self._blocks = blocks
        self._taken = False

    def take(self) -> bool:
        """Take it in every block, and every scope that keeps something back; False when one of them has given it away already."""
        with self._scope.engine.lock:
            if not any(block.made for block in self._blocks) and not any(owner.wrapped for owner in self._owners):
                self._taken = True
                self._mark(made=True)
            return self._taken

    def give_back(self) -> None:
        """Leave it to the next call, because this one was not sent."""
        with self._scope.engine.lock:
            if self._taken:
                self._taken = False
                self._mark(made=False)

    def _mark(self, *, made: bool) -> None:
        for block in self._blocks:
            block.made = made
        for owner in self._owners:
            owner.wrapped = made


def wrapped_up(scope: Scope) -> Account | None:
    """Give the limit that ended a scope which then made its last call; None when none did."""
    if not scope.wrapped:
        return None
    return next((account for account in scope.accounts if account.limit.on_exceed is Outcome.FINAL and account.denied > 0), None)


def _finals(scope: Scope) -> list[tuple[Scope, Account]]:
    """List, root to leaf, the limits that keep something back for a call made in `scope`, with the scope of each."""
    return [
        (owner, account)
        for owner in scope.charged()
        for account in tuple(owner.accounts)
        if account.limit.on_exceed is Outcome.FINAL and account.limit.agent in (None, scope.facts.agent_name)
    ]
