"""Ask again after an error that may be gone in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

from ravi_otel import _extras
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.scopes import current_scope
from ravi_otel._runtime.waiting import Waiting
from ravi_otel.agents.middleware.contexts import ChatCall, Level, ToolUse
from ravi_otel.agents.middleware.failures import Errors, is_final, read_errors, retry_after_s, sent_before
from ravi_otel.agents.middleware.resting import left_s, within
from ravi_otel.agents.middleware.telling import tell
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext
from ravi_otel.policy._limits import NANO

_MOST_ATTEMPTS: Final = 100


class Retry:
    """Try a model call again that failed, up to `attempts` requests in all, with a growing pause between them.

    `attempts` counts requests, those that the client makes by its own retries among them: a client that tried three times has used
    three, and no further call is made that could pass the number. `on` says after which errors; by default those that may be gone
    in a moment: no connection, no answer in time, an empty answer, and the statuses 408, 409, 429 (but a spent quota) and from 500.
    Never tried again, whatever `on` says: refusals of limits, cancellation, pauses, denied tools, StopRun, MiddlewareTermination.

    The pause begins with `wait_s` seconds, doubles up to `longest_wait_s`, and is made uneven by up to `jitter_s`. Where the server says
    how long to wait, that is how long; longer than `longest_retry_after_s`, or than the time left, and the error is final. A pause
    is declared as a wait, and ends with the run around. Each attempt is a call like any other: charged, told, and refused by limits.

    `level="tool"` tries tools again, for which `on` must be given: a tool may have done its work before it failed.
    Needs the extra `agents`. Raises the last error when there is no further attempt; emits `ravi.middleware` "retried".
    """

    def __init__(
        self,
        attempts: int = 3,
        *,
        on: Errors | None = None,
        wait_s: float = 0.5,
        longest_wait_s: float = 20.0,
        jitter_s: float = 0.5,
        longest_retry_after_s: float = 60.0,
        level: Literal["chat", "tool"] = "chat",
    ) -> None:
        self.level: Level = cast("Level", checks.choice("Retry(level)", level, ("chat", "tool")))
        if self.level == "tool" and on is None:
            raise ConfigurationError('Retry(level="tool") needs on=, the errors after which the tool may be called a second time.')
        self._attempts = checks.count("Retry(attempts)", attempts, least=1, most=_MOST_ATTEMPTS, way_out="1 tries once")
        self._on = read_errors("Retry(on)", on)
        self._pauses: Mapping[str, float] = {
            "wait_initial": checks.nanoseconds("Retry(wait_s)", wait_s) / NANO,
            "wait_max": checks.nanoseconds("Retry(longest_wait_s)", longest_wait_s) / NANO,
            "wait_jitter": checks.nanoseconds("Retry(jitter_s)", jitter_s) / NANO,
        }
        self._longest_s = checks.nanoseconds("Retry(longest_retry_after_s)", longest_retry_after_s) / NANO
        self._stamina = _extras.load("stamina")

    def __repr__(self) -> str:
        return f"Retry({self._attempts}, level={self.level!r})"

    async def process(self, context: ChatCall | ToolUse, call_next: CallNext) -> None:
        """Await the rest of the chain until it succeeds, or fails for good."""
        scope = current_scope()
        judge = _Judge(self._attempts, self._on, self._longest_s, scope)
        tries: Any = aiter(self._stamina.retry_context(on=judge, attempts=self._attempts, timeout=None, **self._pauses))
        attempt = await anext(tries)
        while True:
            failed = await _failure(call_next)
            if failed is None:
                return
            if not judge.allows(failed):
                raise failed
            attempt = await self._again(scope, attempt, tries, failed)
            if attempt is None:
                raise failed
            tell("retried", model=getattr(context, "model", None), error=failed)

    @staticmethod
    async def _again(scope: Scope, attempt: Any, tries: Any, failed: Exception) -> Any:
        """Let the library wait before the next attempt, which is declared, and ended with the run around; None where it gives none."""
        failure = _AttemptError(type(failed).__name__)
        try:
            with attempt:
                raise failure
            with Waiting("retry", scope):
                return await within(scope, lambda: anext(tries))
        except _AttemptError:  # the program has told the library to try nothing again
            return None


class _AttemptError(Exception):
    """Stand for the error of an attempt in the library, which logs it: what a server said belongs in no log."""


async def _failure(call_next: CallNext) -> Exception | None:
    try:
        await call_next()
    except Exception as error:  # noqa: BLE001 - it is raised again, or tried again
        return error
    return None


class _Judge:
    """Decide about the errors of one call; called by the library for how long to wait after one that was allowed."""

    def __init__(self, attempts: int, on: Callable[[Exception], bool], longest_s: float, scope: Scope) -> None:
        self._left = attempts
        self._on = on
        self._longest_s = longest_s
        self._scope = scope
        self._asked_s: float | None = None

    def allows(self, error: Exception) -> bool:
        """Tell whether there may be another attempt after this error."""
        if is_final(error) or not self._on(error):
            return False
        sent = sent_before(error)
        self._left -= sent
        if self._left < sent:  # the next call may take as many
            return False
        self._asked_s = retry_after_s(error, time.time())
        if self._asked_s is None:
            return True
        left = left_s(self._scope)
        return self._asked_s <= self._longest_s and (left is None or self._asked_s < left)

    def __call__(self, _error: Exception) -> bool | float:
        """Give how many seconds the server asks to wait, else True: as long as the library likes."""
        return True if self._asked_s is None else self._asked_s
