"""Hear when a refusal that nobody caught ends the program, or one of its threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from ravi_otel.errors import BudgetError

Tell = Callable[[BaseException, bool], object]
_MOST_LINKS: Final = 64


class Uncaught:
    """Stand before the hooks for uncaught exceptions; each calls the one it found, so the program's output stays its own.

    A program may set a hook of its own at any time and forget ours: `watch` stands before that one then.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._main: Callable[..., Any] | None = None
        self._threads: Callable[..., Any] | None = None
        self._told: BaseException | None = None

    def watch(self) -> None:
        """Stand before whatever hooks are set now."""
        if sys.excepthook is not self._main:
            sys.excepthook = self._main = self._before_main(sys.excepthook)
        if threading.excepthook is not self._threads:
            threading.excepthook = self._threads = self._before_threads(threading.excepthook)

    def _before_main(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def heard(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            self._hear(error, thread=False)
            return previous(kind, error, trace)

        return heard

    def _before_threads(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def heard(args: threading.ExceptHookArgs) -> Any:
            if args.exc_value is not None:
                self._hear(args.exc_value, thread=True)
            return previous(args)

        return heard

    def _hear(self, error: BaseException, *, thread: bool) -> None:
        if self._told is not error and ended_by_limit(error):
            self._told = error
            self._tell(error, thread)


def ended_by_limit(error: BaseException) -> bool:
    """Tell that `error` is a refusal, was raised because of one, or is a group that holds one."""
    waiting: list[BaseException] = [error]
    for _ in range(_MOST_LINKS):
        if not waiting:
            return False
        one = waiting.pop()
        if isinstance(one, BudgetError):
            return True
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]  # of whatever type
        behind = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if behind is not None:
            waiting.append(behind)
    return False
