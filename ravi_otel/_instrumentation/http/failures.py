"""Tell from a client's exception whether anything was sent, and whether it was billed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ravi_otel._instrumentation.formats.fields import count, get
from ravi_otel._runtime.model_call import Ending
from ravi_otel.policy.usage import Reply

_NEVER_LEFT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""HTTP libraries differ, and these names they share: nothing was sent when one of them was raised."""

_CLIENT_ERRORS: Final = range(400, 500)
_ANSWERED: Final = (("openai", "APIStatusError"), ("anthropic", "APIStatusError"), ("groq", "APIStatusError"))
"""Whose word on the provider's status is believed: the package and the name of an error's class."""

_ANSWERED_ATTEMPT: Final = (*_ANSWERED, ("httpx", "HTTPStatusError"), ("httpx2", "HTTPStatusError"))


@dataclass(frozen=True, slots=True)
class Failed:
    """Describe one failed attempt."""

    status: int | None
    error_type: str | None
    sent: bool


def ending_of(error: BaseException, *, built: object, seen: Reply | None) -> Ending:
    """Tell how a call failed.

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


def retry_of(error: BaseException | None, built: object) -> Failed:
    """Tell how an attempt failed that is about to be retried."""
    if error is None:
        return Failed(None, None, sent=True)
    status = _status(error, _ANSWERED_ATTEMPT)
    told = type(error).__qualname__ if status is None else str(status)  # not the class: what is raised inside a client is its own affair
    return Failed(status, told, sent=not _never_left(error, built))


def _status(error: BaseException, believed: Sequence[tuple[str, str]]) -> int | None:
    if not any((cls.__module__.partition(".")[0], cls.__name__) in believed for cls in type(error).__mro__):
        return None
    return count(get(error, "status_code")) or count(get(get(error, "response"), "status_code"))


def _never_left(error: BaseException, built: object) -> bool:
    """Tell that no connection was had for what was paid for last; one that a redirect asked for, unpaid, comes after an answer."""
    for one in (error, error.__cause__):
        if not _NEVER_LEFT.isdisjoint(cls.__name__ for cls in type(one).__mro__):
            failing = get(one, "request")
            return failing is None or failing is built
    return False
