"""Tell from a client's exception whether anything was sent, and whether it was billed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ravi_otel.instrumentation.openai.fields import count, get
from ravi_otel.policy.usage import Reply
from ravi_otel.runtime.live import Ending

_NEVER_LEFT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""HTTP libraries differ, and these names they share: nothing was sent when one of them was raised."""

_CLIENT_ERRORS: Final = range(400, 500)


@dataclass(frozen=True, slots=True)
class Failed:
    """Describe one failed attempt."""

    status: int | None
    error_type: str | None
    sent: bool


def ending_of(error: BaseException, *, built: bool, seen: Reply | None) -> Ending:
    """Tell how a call failed; `seen` is its answer when one came and was then judged unfit by a parser."""
    status = _status(error)
    return Ending(
        error_type=type(error).__qualname__,
        sent=built and not _never_left(error),
        billed=status not in _CLIENT_ERRORS if status is not None else True,
        usage=None if seen is None else seen.usage,
        reply=seen,
    )


def retry_of(error: BaseException | None) -> Failed:
    """Tell how an attempt failed that is about to be retried."""
    if error is None:
        return Failed(None, None, sent=True)
    return Failed(_status(error), type(error).__qualname__, sent=not _never_left(error))


def _status(error: BaseException) -> int | None:
    return count(get(error, "status_code")) or count(get(get(error, "response"), "status_code"))


def _never_left(error: BaseException) -> bool:
    names = {cls.__name__ for one in (error, error.__cause__) for cls in type(one).__mro__}
    return not _NEVER_LEFT.isdisjoint(names)
