"""What became of an attempt: what the client's exception says was sent and billed, and what the headers of an answer say.

Of an answer's headers the few are read that say which request it was and how much is left; of a request's, none. Whoever answers may send
anything, a key it was sent among it: a value passes by its shape alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._runtime.model_call import Ending
from ravi_otel.policy._usage import Reply

_NEVER_LEFT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""HTTP libraries differ, and these names they share: nothing was sent when one of them was raised."""

_TIMED_OUT: Final = frozenset({"APITimeoutError", "TimeoutException"})
_CLIENT_ERRORS: Final = range(400, 500)
_ANSWERED: Final = (("openai", "APIStatusError"), ("anthropic", "APIStatusError"), ("groq", "APIStatusError"))
"""Whose word on the provider's status is believed: the package and the name of an error's class."""

_ANSWERED_ATTEMPT: Final = (*_ANSWERED, ("httpx", "HTTPStatusError"), ("httpx2", "HTTPStatusError"))


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Describe one failed attempt."""

    status: int | None
    error_type: str | None
    sent: bool


def ending_of(error: BaseException, *, built: object, seen: Reply | None) -> Ending:
    """Return how a call failed.

    `built` is the last request the client built, None when there was none; `seen` is the answer when one came and was
    then judged unfit by a parser, which may raise anything: that answer was billed.
    """
    status = None if seen is not None else _status(error, _ANSWERED)
    return Ending(
        error_type=type(error).__qualname__,
        sent=built is not None and (seen is not None or not _never_left(error, built)),
        billed=status not in _CLIENT_ERRORS if status is not None else True,
        usage=None if seen is None else seen.usage,
        reply=seen,
        status=status,
    )


def failed_attempt(error: BaseException | None, built: object) -> FailedAttempt:
    """Return how an attempt failed that is about to be retried."""
    if error is None:
        return FailedAttempt(None, None, sent=True)
    status = _status(error, _ANSWERED_ATTEMPT)
    name = type(error).__qualname__ if status is None else str(status)  # not the class: what is raised inside a client is its own affair
    return FailedAttempt(status, name, sent=not _never_left(error, built))


def is_timeout(error: BaseException) -> bool:
    """Whether it is a time-out of the client's or of its HTTP library's, under whatever name it is raised."""
    return any(cls.__name__ in _TIMED_OUT for cls in type(error).__mro__)


def _status(error: BaseException, believed: Sequence[tuple[str, str]]) -> int | None:
    if not any((cls.__module__.partition(".")[0], cls.__name__) in believed for cls in type(error).__mro__):
        return None
    return count(get(error, "status_code")) or count(get(get(error, "response"), "status_code"))


def _never_left(error: BaseException, built: object) -> bool:
    """Whether no connection was had for what was paid for last; one that a redirect asked for, unpaid, comes after an answer."""
    for one in (error, error.__cause__):
        if not _NEVER_LEFT.isdisjoint(cls.__name__ for cls in type(one).__mro__):
            failing = get(one, "request")
            return failing is None or failing is built
    return False


# -- headers ------------------------------------------------------------------------------------------------------------

_MOST_BYTES: Final = 80
_MOST_DIGITS: Final = 15
_ID: Final = re.compile(
    rb"req_[0-9A-Za-z_]{1,64}"
    rb"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    rb"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"  # a random one without dashes; other 32 digits are some hosts' keys
    rb"|[0-7][0-9A-HJKMNP-TV-Z]{25}"  # a ULID
)
_AMOUNT: Final = re.compile(
    rb"\d{1,15}(?:\.\d{1,9})?"
    rb"|(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|ns|d|h|m|s)){1,5}"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
    rb"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} \d\d:\d\d:\d\d GMT"
)
_REQUEST_ID: Final = ""
_READ: Final = dict.fromkeys((b"x-request-id", b"request-id", b"apim-request-id", b"x-amzn-requestid"), _REQUEST_ID) | {
    name.encode(): name
    for name in (
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
        *(
            f"anthropic-ratelimit-{of}-{what}"
            for what in ("limit", "remaining", "reset")
            for of in ("requests", "tokens", "input-tokens", "output-tokens")
        ),
        "retry-after",
        "retry-after-ms",
    )
}
"""The headers that are read, and the names of the amounts among them."""


def headers_of_error(error: BaseException | None) -> tuple[str | None, dict[str, str]]:
    """Return what the answer behind a client's error says, if there was one."""
    response = get(error, "response")
    headers = get(response, "headers")
    return (None, {}) if getattr(headers, "raw", None) is None else read_headers(headers)


def read_headers(headers: Any) -> tuple[str | None, dict[str, str]]:
    """Return the provider's id of a request, and what it says of rate limits by header name; a value of another shape is left out."""
    found: bytes | None = None
    limits: dict[str, str] = {}
    for raw_name, raw_value in headers.raw:
        limit = _READ.get(raw_name.lower())
        if limit is None:
            continue
        value = raw_value.strip()
        if len(value) > _MOST_BYTES:
            continue
        if limit:
            if (value.isdigit() and len(value) <= _MOST_DIGITS) or _AMOUNT.fullmatch(value):
                limits[limit] = value.decode("ascii")
        elif found is None and _ID.fullmatch(value):
            found = value
    return None if found is None else found.decode("ascii"), limits
