"""Tell when a refusal that nobody caught ended the program, or one of its threads.

What ended the program Python keeps in `sys.last_value`, so its excepthook is left alone. What ended a thread it keeps
nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from ravi_otel.errors import BudgetError

_MOST_LINKS: Final = 64


class Threads:
    """Stand before the hook for exceptions in threads, and call it; from the first refusal on, and not before.

    A program may set a hook of its own at any time and forget ours: `watch` stands before that one then.
    """

    def __init__(self, tell: Callable[[BaseException], object]) -> None:
        self._tell = tell
        self._hook: Callable[..., Any] | None = None
        self._told: BaseException | None = None

    def watch(self) -> None:
        """Stand before whatever hook is set now."""
        if threading.excepthook is not self._hook:
            threading.excepthook = self._hook = self._before(threading.excepthook)

    def _before(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def heard(args: threading.ExceptHookArgs) -> Any:
            error = args.exc_value
            if error is not None and self._told is not error and ended_by_limit(error):
                self._told = error
                self._tell(error)
            return previous(args)

        return heard


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
