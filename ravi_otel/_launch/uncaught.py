"""Tell when a refusal that nobody caught ended the program, or one of its threads.

What ended the program Python keeps in `sys.last_value`, so its excepthook is left alone. What ended a thread it keeps
nowhere. Some frameworks catch every error, and raise one of their own that only says what the first one said: a refusal is known by
its sentence then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ravi_otel.errors import BudgetError

_MOST_LINKS: Final = 64


class Threads:
    """Stand before the hook for exceptions in threads, and call it; from the first refusal on, and not before.

    A program may set a hook of its own at any time and forget ours: `watch` stands before that one then. `said` is asked each time.
    """

    def __init__(self, tell: Callable[[BaseException], object], said: Iterable[str] = ()) -> None:
        self._tell = tell
        self._said = said
        self._hook: Callable[..., Any] | None = None
        self._told: BaseException | None = None

    def watch(self) -> None:
        """Stand before whatever hook is set now."""
        if threading.excepthook is not self._hook:
            threading.excepthook = self._hook = self._before(threading.excepthook)

    def _before(self, previous: Callable[..., Any]) -> Callable[..., Any]:
        def heard(args: threading.ExceptHookArgs) -> Any:
            error = args.exc_value
            if error is not None and self._told is not error and ended_by_limit(error, self._said):
                self._told = error
                self._tell(error)
            return previous(args)

        return heard


def ended_by_limit(error: BaseException, said: Iterable[str] = ()) -> bool:
    """Tell that `error` is a refusal, was raised because of one, is a group that holds one, or says one of the sentences `said`."""
    return refusal_in(error, said) is not None


def refusal_in(error: BaseException, said: Iterable[str] = ()) -> BaseException | None:
    """Give the refusal in it, or what says one of the sentences."""
    sentences = tuple(said)  # at once: other threads may be refused meanwhile
    waiting: list[BaseException] = [error]
    for _ in range(_MOST_LINKS):
        if not waiting:
            return None
        one = waiting.pop()
        if isinstance(one, BudgetError) or says(one, sentences):
            return one
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]  # of whatever type
        behind = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if behind is not None:
            waiting.append(behind)
    return None


def says(error: BaseException, sentences: Sequence[str]) -> bool:
    """Tell that the text of an error has one of these sentences in it."""
    try:
        text = str(error) if sentences else ""
    except Exception:  # noqa: BLE001 - the program's own class, and our only question
        return False
    return any(sentence in text for sentence in sentences)
