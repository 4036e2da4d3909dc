"""Judge an error: may the same be asked again, how soon, and how often was it asked already."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias, cast

from ravi_otel._enforcement.ending import leaves
from ravi_otel.errors import ConfigurationError, LLMEmpty, LLMTimeout, RaviError
from ravi_otel.policy._checks import show

Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Which errors are meant: a class, several, or a function that tells."""

_MOST_CAUSES: Final = 20
_STATUSES: Final = frozenset({408, 409, 429})
_SERVER: Final = 500
_SPENT: Final = "insufficient_quota"
_UNREACHED: Final = frozenset({"APIConnectionError"})
"""What the openai client and its kin raise when no answer came; told by name, so that none of them is imported for it."""


def read_errors(parameter: str, on: Any) -> Callable[[Exception], bool]:
    """Read which errors are meant; None is `is_passing`."""
    if on is None:
        return is_passing
    kinds: tuple[Any, ...] = on if isinstance(on, tuple) else (on,)  # pyright: ignore[reportUnknownVariableType]  # a tuple of anything
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if len(kinds) == 1 and callable(kinds[0]) and not isinstance(kinds[0], type):
        return cast("Callable[[Exception], bool]", kinds[0])
    raise ConfigurationError(f"{parameter}={show(kinds)} must be an exception class, several in a tuple, or a function of an exception.")


def is_final(error: BaseException) -> bool:
    """Tell what nothing may be tried again after: what we refused or ended, whatever was raised from it, and what is no Exception."""
    return any(not isinstance(leaf, Exception) or _is_ours(leaf) for leaf in leaves(error))


def _is_ours(error: BaseException) -> bool:
    return any(isinstance(each, RaviError) and not isinstance(each, LLMTimeout | LLMEmpty) for each in _chain(error))


def is_passing(error: Exception) -> bool:
    """Tell what may be gone in a moment: no answer, an empty one, a busy server, or one that failed."""
    if isinstance(error, LLMEmpty | TimeoutError | ConnectionError):
        return True
    if any(kind.__name__ in _UNREACHED for kind in type(error).__mro__):
        return True
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or getattr(error, "code", None) == _SPENT:
        return False
    asked = _headers(error, "response").get("x-should-retry")
    return asked == "true" or (asked != "false" and (status in _STATUSES or status >= _SERVER))


def sent_before(error: BaseException) -> int:
    """Tell how many requests the client itself made in vain for the call that ended so: its own retries, and the first.

    The openai client and its kin write the number of the retry into a header of each request.
    """
    for each in _chain(error):
        written = _headers(each, "request").get("x-stainless-retry-count", "")
        if written.isascii() and written.isdigit() and len(written) <= 3:  # noqa: PLR2004 - nobody tries a thousand times
            return 1 + int(written)
    return 1


def retry_after_s(error: BaseException, now: float) -> float | None:
    """Read how long the server asks to wait, in seconds from `now` (epoch); None when it does not say, or nonsense."""
    for each in _chain(error):
        headers = _headers(each, "response")
        found = _seconds(headers.get("retry-after-ms"), 1000)
        if found is None:
            found = _seconds(headers.get("retry-after"))
        if found is None:
            found = _date(headers.get("retry-after"), now)
        if found is not None:
            return found
    return None


def _seconds(text: str | None, parts: int = 1) -> float | None:
    try:
        number = float(text or "nan") / parts
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _date(text: str | None, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
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
