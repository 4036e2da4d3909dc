"""Send one request of our own over HTTP: bounded in time and size, never redirected, and unseen by whoever instruments HTTP clients.

What leaves by OTLP goes through the exporters; this is for the rest: a stored run that is sent again, and questions to the servers of
the stack.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.request import HTTPErrorProcessor, HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, UnknownHandler

from opentelemetry import context as otel_context

_LONGEST_REASON: Final = 200
UNSEEN: Final = otel_context.Context(
    dict.fromkeys(
        (
            "suppress_instrumentation",
            str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")),
            str(getattr(otel_context, "_SUPPRESS_HTTP_INSTRUMENTATION_KEY", "suppress_http_instrumentation")),
        ),
        True,
    )
)
"""A context in which nobody makes a span of the request, or puts a header of a trace on it."""


class UnansweredError(Exception):
    """Say in a clause why there is no answer; `invalid` where the request or its answer is no HTTP, so that asking again is no use."""

    def __init__(self, why: str, *, invalid: bool = False) -> None:
        super().__init__(why)
        self.invalid = invalid


class Answer(NamedTuple):
    """What a server answered, of whatever status: `whole` is False where there is more of its body than was asked for."""

    status: int
    headers: HTTPMessage
    body: bytes
    whole: bool


def send(
    url: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    whole_s: float | None = None,
    most_bytes: int,
    direct: bool = False,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """POST a body, or GET without one, and return the answer; raise UnansweredError.

    No step of it waits longer than `timeout_s`, and all of it takes `whole_s` at most (`timeout_s` unless given), however slowly a server
    drips. A redirection is an answer like any other: whoever is named there gets neither the body nor the headers, which may hold
    credentials. Proxies of the environment are used unless `direct`.
    """
    clock = _Clock(timeout_s if whole_s is None else whole_s)
    opener = OpenerDirector()
    handlers = (_Http(clock), _Https(clock, context), _AsItIs(), UnknownHandler(), *(() if direct else (ProxyHandler(),)))
    for handler in handlers:
        opener.add_handler(handler)
    token = otel_context.attach(UNSEEN)
    try:
        with clock, opener.open(Request(url, body, dict(headers or {})), timeout=timeout_s) as response:  # noqa: S310 - no handler for other schemes
            said = _read(response, most_bytes + 1)
            clock.check()
            return Answer(response.status, response.headers, said[:most_bytes], len(said) <= most_bytes)
    except ValueError:  # its text may hold a header of ours
        raise UnansweredError("the request or its answer is no valid HTTP", invalid=True) from None
    except (OSError, HTTPException) as error:
        waited = f"within {clock.seconds if clock.over else timeout_s:g} s"
        raise UnansweredError(f"no answer {waited}" if clock.over else reason(error, waited)) from None
    finally:
        otel_context.detach(token)


def seconds_until(value: str | None) -> float | None:
    """Return the seconds from now that a Retry-After names, as a number or a date, negative for the past; None for no time at all."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) else None


def reason(error: BaseException, waited: str = "in time") -> str:
    """Say in a clause of visible characters what went wrong with a connection; `waited` is how long an answer was waited for."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, BaseException) else error
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(cause, TimeoutError):
        return f"no answer {waited}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({_visible(cause.verify_message)})"
    if isinstance(cause, socket.gaierror):
        return "the name has no address"
    if isinstance(cause, OSError) and not isinstance(cause, ConnectionError):
        return _visible(cause.strerror or str(cause)) or type(cause).__name__
    return "it broke off, or what it said is no HTTP"


def _read(response: HTTPResponse, most: int) -> bytes:
    """Return the body; that of a refusal which cannot be read is nothing, for its status says enough."""
    try:
        return response.read(most)
    except (OSError, HTTPException, ValueError):
        if response.status < 300:  # noqa: PLR2004 - a success
            raise
        return b""


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST_REASON].rstrip(". ")


class _Clock:
    """Break a request off when its time is over; `over` says that it is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = False
        self._sock: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def connected(self, sock: socket.socket) -> None:
        """Take what is to be broken off."""
        self._sock = sock
        self.check()

    def check(self) -> None:
        """Raise TimeoutError when time is over: what was read by then may be half an answer."""
        if self.over:
            raise TimeoutError

    def _end(self) -> None:
        self.over = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # the plain one: that of TLS would take its state away from the reader


class _Connection(HTTPConnection):
    """A connection that a clock breaks off."""

    def __init__(self, *args: Any, clock: _Clock, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock

    def connect(self) -> None:
        super().connect()
        self._clock.connected(self.sock)


class _SecureConnection(_Connection, HTTPSConnection):
    """One over TLS."""


class _Http(HTTPHandler):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_Connection, clock=self._clock), req)


class _Https(HTTPSHandler):
    def __init__(self, clock: _Clock, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._clock = clock
        self._given = context

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_SecureConnection, clock=self._clock, context=self._given), req)


class _AsItIs(HTTPErrorProcessor):
    """Take every status for an answer."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:  # noqa: ARG002 - urllib's signature
        return response

    https_response = http_response
