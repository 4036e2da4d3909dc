"""What is done after a model or a tool has failed: ask again, or ask another model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeAlias, cast

from ravi_otel import _extras
from ravi_otel._enforcement.ending import leaves
from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents._cancellation import bounded_wait
from ravi_otel.agents._model import model_name
from ravi_otel.agents.middleware._pipeline import ChatCall, Level, ToolUse, emit_effect
from ravi_otel.errors import ConfigurationError, LLMEmpty, LLMTimeout, RaviError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import CallNext, LLMClient
from ravi_otel.policy._limits import NANO

Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Which errors are meant: a class, several, or a function that says."""

_MOST_ATTEMPTS: Final = 100
_MOST_CAUSES: Final = 20
_STATUSES: Final = frozenset({408, 409, 429})
_SERVER: Final = 500
_SPENT: Final = "insufficient_quota"
_UNREACHED: Final = frozenset({"APIConnectionError"})
"""What the openai client and its kin raise when no answer came; told by name, so that none of them is imported for it."""

# -- errors -----------------------------------------------------------------------------------------------------------


class _Failure:
    """An error of a call, read: may the same be asked again, how soon, and how often was it asked already."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def is_final(self) -> bool:
        """Whether nothing may be tried again: we refused or ended the call, whatever was raised from that."""
        return any(
            isinstance(each, RaviError) and not isinstance(each, LLMTimeout | LLMEmpty)
            for leaf in leaves(self.error)
            for each in _causes(leaf)
        )

    def may_pass(self) -> bool:
        """Whether it may be gone in a moment: no answer, an empty one, a busy server, or one that failed."""
        error = self.error
        if isinstance(error, LLMEmpty | TimeoutError | ConnectionError):
            return True
        if any(kind.__name__ in _UNREACHED for kind in type(error).__mro__):
            return True
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or getattr(error, "code", None) == _SPENT:
            return False
        asked = _headers(error, "response").get("x-should-retry")
        return asked == "true" or (asked != "false" and (status in _STATUSES or status >= _SERVER))

    def requests(self) -> int:
        """Return how many requests the client itself made in vain for the call: its own retries, and the first.

        The openai client and its kin write the number of the retry into a header of each request.
        """
        for each in _causes(self.error):
            written = _headers(each, "request").get("x-stainless-retry-count", "")
            if written.isascii() and written.isdigit() and len(written) <= 3:  # noqa: PLR2004 - nobody tries a thousand times
                return 1 + int(written)
        return 1

    def retry_after_s(self, now: float) -> float | None:
        """Return how long the server asks to wait, in seconds from `now` (epoch); None when it does not say, or nonsense."""
        for each in _causes(self.error):
            headers = _headers(each, "response")
            found = _seconds(headers.get("retry-after-ms"), 1000)
            if found is None:
                found = _seconds(headers.get("retry-after"))
            if found is None:
                found = _until_date(headers.get("retry-after"), now)
            if found is not None:
                return found
        return None


def _seconds(text: str | None, parts: int = 1) -> float | None:
    try:
        number = float(text or "nan") / parts
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until_date(text: str | None, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


def _headers(error: BaseException, of: str) -> Mapping[str, str]:
    try:  # httpx raises where an error has no request
        found = getattr(getattr(error, of, None), "headers", None)
    except RuntimeError:
        return {}
    return cast("Mapping[str, str]", found) if isinstance(found, Mapping) else {}


def _read_errors(parameter: str, on: Any) -> Callable[[Exception], bool]:
    """Return whether an error is one of those that are meant; None are those that may be gone in a moment."""
    if on is None:
        return lambda error: _Failure(error).may_pass()
    kinds: tuple[Any, ...] = on if isinstance(on, tuple) else (on,)  # pyright: ignore[reportUnknownVariableType]  # a tuple of anything
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if len(kinds) == 1 and callable(kinds[0]) and not isinstance(kinds[0], type):
        return cast("Callable[[Exception], bool]", kinds[0])
    raise ConfigurationError(
        f"{parameter}={checks.show(kinds)} must be an exception class, several in a tuple, or a function of an exception."
    )


async def _failure_of(call_next: CallNext) -> Exception | None:
    try:
        await call_next()
    except Exception as error:  # noqa: BLE001 - it is raised again, or tried again
        return error
    return None


# -- the same again ---------------------------------------------------------------------------------------------------


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
        self._on = _read_errors("Retry(on)", on)
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
        attempts = _Attempts(self._attempts, self._on, self._longest_s, current_scope())
        tries: Any = aiter(self._stamina.retry_context(on=attempts, attempts=self._attempts, timeout=None, **self._pauses))
        attempt = await anext(tries)
        while True:
            failed = await _failure_of(call_next)
            if failed is None:
                return
            if not attempts.allow_another(failed):
                raise failed
            attempt = await self._next(attempt, tries, failed)
            if attempt is None:
                raise failed
            emit_effect("retried", model=getattr(context, "model", None), error=failed)

    @staticmethod
    async def _next(attempt: Any, tries: Any, failed: Exception) -> Any:
        """Have the library wait before the next attempt, which is declared, and ended with the run around; None where it gives none."""
        failure = _AttemptError(type(failed).__name__)
        try:
            with attempt:
                raise failure
            return await bounded_wait(lambda: anext(tries), reason="retry")
        except _AttemptError:  # the program has told the library to try nothing again
            return None


class _AttemptError(Exception):
    """The error of an attempt as the library sees it, which logs it: what a server said belongs in no log."""


class _Attempts:
    """The attempts that are left of one call; the library asks it how long to wait after an error that was allowed."""

    def __init__(self, attempts: int, on: Callable[[Exception], bool], longest_s: float, scope: Scope) -> None:
        self._left = attempts
        self._on = on
        self._longest_s = longest_s
        self._scope = scope
        self._asked_s: float | None = None

    def allow_another(self, error: Exception) -> bool:
        """Return whether there may be another attempt after this error."""
        failure = _Failure(error)
        if failure.is_final or not self._on(error):
            return False
        sent = failure.requests()
        self._left -= sent
        if self._left < sent:  # the next call may take as many
            return False
        self._asked_s = failure.retry_after_s(time.time())
        if self._asked_s is None:
            return True
        left = self._scope.left_ns()
        return self._asked_s <= self._longest_s and (left is None or self._asked_s < max(0, left) / NANO)

    def __call__(self, _error: Exception) -> bool | float:
        """Return how many seconds the server asks to wait, else True: as long as the library likes."""
        return True if self._asked_s is None else self._asked_s


# -- another model ----------------------------------------------------------------------------------------------------


class ModelFallback:
    """Ask the next of `models` when a model call fails: names, for the same client, or LLMClients.

    A name is refused with ConfigurationError when it would be asked of a client whose generate() takes no `model`.

    `on` says after which errors, by default those that may be gone in a moment (as of Retry). Never after a refusal of a limit, a
    cancellation, a pause, StopRun or MiddlewareTermination. Each model that is asked is a call like any other: charged, told, and
    refused by limits. `context.fallback_from` names the model that was asked first when another one answered, and the event
    `ravi.middleware` "fell_back" tells of each that failed. Raises the error of the last.
    """

    level: Level = "chat"

    def __init__(self, *models: str | LLMClient, on: Errors | None = None) -> None:
        if not models:
            raise ConfigurationError('ModelFallback() needs the models to fall back to, such as ModelFallback("gpt-4o-mini").')
        for model in models:
            if isinstance(model, str):
                checks.name("ModelFallback(models)", model, "gpt-4o-mini")
            else:
                checks.instance("ModelFallback(models)", model, LLMClient, "names of models, or clients with generate()")
        self._models = models
        self._on = _read_errors("ModelFallback(on)", on)

    def __repr__(self) -> str:
        return f"ModelFallback({', '.join(_name(model) for model in self._models)})"

    async def process(self, context: ChatCall, call_next: CallNext) -> None:
        """Await the rest of the chain with one model after the other."""
        first = asked = context.model or (None if context.client is None else _name(context.client)) or "the agent's model"
        failed = await _failure_of(call_next)
        for model in self._models:
            if failed is None:
                return
            if _Failure(failed).is_final or not self._on(failed):
                raise failed
            if isinstance(model, str):
                context.model = model
            else:
                context.client, context.model = model, model_name(model)
            emit_effect("fell_back", model=_name(model), instead_of=asked, error=failed)
            asked = _name(model)
            failed = await _failure_of(call_next)
            if failed is None:
                context.fallback_from = first
        if failed is not None:
            raise failed


def _name(model: str | LLMClient) -> str:
    return model if isinstance(model, str) else model_name(model) or type(model).__name__
