"""Post to an OTLP/HTTP backend, by the protocol's rules on what to try again and when."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ravi_otel._http import Answer, UnansweredError, seconds_until, send
from ravi_otel._version import __version__
from ravi_otel.errors import RaviError
from ravi_otel.local._wording import clean

_AGAIN: Final = frozenset({429, 502, 503, 504})
_MOST_TRIES: Final = 5
_MOST_WAIT_S: Final = 30.0
_TIMEOUT_S: Final = 20.0
_WHOLE_S: Final = 60.0
_MOST_ANSWER: Final = 1024 * 1024
_MOST_QUOTED: Final = 200
_ANSWERS: Final = ("application/x-protobuf", "application/protobuf", "application/json")
_TYPES: Final = {"http/protobuf": "application/x-protobuf", "http/json": "application/json"}
_ADVICE: Final = {
    401: " Give the credentials it wants with --header.",
    403: " Give the credentials it wants with --header.",
    404: " --endpoint is the base, to which /v1/traces, /v1/metrics and /v1/logs are added; --signal leaves out what it does not take.",
    405: " --endpoint is the base, to which /v1/traces, /v1/metrics and /v1/logs are added.",
    415: " Try --protocol http/json, or http/protobuf.",
}


class ReplayError(RaviError):
    """Report a backend that refused or could not be reached; `sent` says what had gone by then, None before the first."""

    sent: Any = None


class Post:
    """Send a body and give the answer's; raises ReplayError.

    What the protocol calls retryable (429, 502, 503, 504, a connection that breaks once one has worked) is tried five
    times within 30 s, after as long as `Retry-After` says. A backend that is not there at the first request is not waited for.
    """

    def __init__(
        self, shown: str, headers: Mapping[str, str], protocol: str, context: ssl.SSLContext, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self._shown = shown
        self._headers = {**headers, "content-type": _TYPES[protocol], "user-agent": f"ravi-otel/{__version__}"}
        self._wait = wait
        self._context = context
        self._worked = False

    def __call__(self, url: str, body: bytes) -> bytes:
        """Post `body` to `url`."""
        waited = 0.0
        for number in range(1, _MOST_TRIES + 1):
            try:
                return self._once(url, body)
            except _Later as later:
                pause = later.after if later.after is not None else 2.0 ** (number - 1) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
                if number == _MOST_TRIES or waited + pause > _MOST_WAIT_S:
                    tries = "once" if number == 1 else f"{number} times"
                    longer = f", and asks to wait {pause:,.0f} s more" if later.after is not None and number < _MOST_TRIES else ""
                    raise ReplayError(f"{later.why} Tried {tries}{longer}.") from None
                waited += pause
                self._wait(pause)
        raise AssertionError

    def _once(self, url: str, body: bytes) -> bytes:
        try:
            answer = send(
                url,
                body,
                headers=self._headers,
                timeout_s=_TIMEOUT_S,
                whole_s=_WHOLE_S,
                most_bytes=_MOST_ANSWER,
                context=self._context,
            )
        except UnansweredError as error:
            why = f"the backend at {self._shown} {'cannot be talked to' if error.invalid else 'cannot be reached'}: {error}."
            if self._worked and not error.invalid:
                raise _Later(why, None) from None
            raise ReplayError(why) from None
        self._worked = True
        kind = answer.headers.get("content-type")
        if answer.status // 100 != 2:  # noqa: PLR2004 - a success
            raise self._refusal(answer)
        if answer.body and not _is_answer(kind):
            what = clean(kind) or "a body of no type"
            raise ReplayError(
                f"the backend at {self._shown} answered {answer.status} with {what}, which is no answer to telemetry."
                " --endpoint is the base of an OTLP/HTTP backend, to which /v1/traces, /v1/metrics and /v1/logs are added."
            )
        return answer.body

    def _refusal(self, answer: Answer) -> Exception:
        why = f"the backend at {self._shown} answered {answer.status}{_quoted(answer)}."
        if answer.status in _AGAIN:
            return _Later(why, _after(answer.headers.get("retry-after")))
        return ReplayError(f"{why}{_ADVICE.get(answer.status, '')}")


class _Later(Exception):  # noqa: N818 - a signal inside this module
    def __init__(self, why: str, after: float | None) -> None:
        super().__init__(why)
        self.why = why
        self.after = after


def _after(value: str | None) -> float | None:
    seconds = seconds_until(value)
    return None if seconds is None else max(0.0, seconds)


def _quoted(answer: Answer) -> str:
    """Quote what a refusal says, when that is a text."""
    if not (answer.headers.get("content-type") or "").lower().startswith(("text/plain", "application/json")):
        return ""
    told = clean(answer.body[:_MOST_QUOTED].decode("utf-8", "replace"), _MOST_QUOTED)
    return f" ({told})" if told else ""


def _is_answer(kind: str | None) -> bool:
    """Tell whether a body of that content type may be a backend's answer, and not the page of something in between."""
    return kind is not None and kind.partition(";")[0].strip().lower() in _ANSWERS
