"""Shorten a request's time-outs to the time that is left, and know them again when they have ended a call."""

from __future__ import annotations

from typing import Any, Final, cast

from ravi_otel._enforcement.scope import Scope
from ravi_otel.policy.limits import NANO

TIMEOUT: Final = "timeout"
"""The name of this change to a request, in `Call.changes`."""

EARLY_NS: Final = 5_000_000
"""By how much an HTTP library's clock may be ahead of ours when a time-out that we set comes."""

_SHORTEST_S: Final = 0.001
"""The least that a part of an attempt is given: with 0 a socket does not wait at all, which is no time-out but an error of its own."""

_PARTS: Final = ("connect", "read", "write", "pool")
_TIMED_OUT: Final = frozenset({"APITimeoutError", "TimeoutException"})


def shorten(request: Any, scope: Scope) -> bool:
    """Let no part of an attempt wait longer than the time that is left; True when that was less than the caller's own time-out.

    Nothing that is sent changes. A request without time-outs of its own, made by no client that we know, stays as it is.
    """
    left = scope.left_ns()
    if left is None:
        return False
    own = request.extensions.get(TIMEOUT)
    if not isinstance(own, dict):
        return False
    left_s, parts = max(_SHORTEST_S, left / NANO), cast("dict[str, Any]", own)
    known = {part: parts.get(part) for part in _PARTS}
    if not all(found is None or isinstance(found, (int, float)) for found in known.values()):
        return False  # text, perhaps: what becomes of it is between the caller and the HTTP library
    if all(found is not None and found <= left_s for found in known.values()):
        return False
    shorter = {part: left_s if found is None else min(found, left_s) for part, found in known.items()}
    request.extensions = {**request.extensions, TIMEOUT: {**parts, **shorter}}
    return True


def back_off(wait_s: Any, scope: Scope) -> Any:
    """Give the pause before a retry, no longer than the time that is left: past it the retry will be refused."""
    if not isinstance(wait_s, (int, float)):
        return wait_s
    if scope.is_over():
        return 0.0
    left = scope.left_ns()
    return wait_s if left is None else min(wait_s, (left + EARLY_NS) / NANO)


def timed_out(error: BaseException) -> bool:
    """Tell a time-out of the client's or of its HTTP library's, under whatever name it is raised."""
    return any(cls.__name__ in _TIMED_OUT for cls in type(error).__mro__)
