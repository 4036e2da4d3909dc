"""Read what came in: believed when it is signed by a known key, or its peer is trusted, and else as if nothing had come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel._forksafe import ForkLock
from ravi_otel.carrier.configured import Configured, configured
from ravi_otel.carrier.entries import MOST_BYTES, tokens_of
from ravi_otel.carrier.fields import pairs_of
from ravi_otel.carrier.hosts import SERVER
from ravi_otel.carrier.lending import LONGEST_S
from ravi_otel.carrier.standing import now_ms
from ravi_otel.carrier.telling import Reason, rejected
from ravi_otel.carrier.token import Token, read_token
from ravi_otel.carrier.written import MalformedError
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""Header names and values, text or bytes, each as often as it came."""

_BAGGAGE: Final = "baggage"
_TRACE: Final = ("traceparent", "tracestate")
_MOST_TRACE: Final = 2_048
_MOST_SEEN: Final = 100_000
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Once:
    """Know loans that were here already, until each is over: none is good twice."""

    def __init__(self) -> None:
        self.until_ms: dict[str, int] = {}
        self._lock = ForkLock()

    def take(self, loan_id: str, until_ms: int) -> Reason | None:
        """Note that it is here; say what is wrong with that."""
        with self._lock.own:
            if loan_id in self.until_ms:
                return "replayed"
            if len(self.until_ms) >= _MOST_SEEN:
                now = now_ms()
                self.until_ms = {known: until for known, until in self.until_ms.items() if until > now}
                if len(self.until_ms) >= _MOST_SEEN:
                    return "too_many"
            self.until_ms[loan_id] = until_ms
        return None


_read: Final = _Once()
_begun: Final = _Once()


@dataclass(frozen=True, slots=True)
class Inbound:
    """What came in: the token that is believed, or why none is (`rejected`: both None where nothing came and nobody would be believed).

    `trace` are the headers that say which trace it is a part of.
    """

    token: Token | None = None
    rejected: Reason | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    def context(self, current: Context) -> Context:
        """Return `current` with the caller's span in it, if a valid one was named."""
        return _PROPAGATOR.extract(self.trace, current) if self.trace else current


def read(headers: object, *, peer: str | None = None, server: str | None = None) -> Inbound:
    """Read what came in with a request, a task or the environment; never raises, and counts what is not believed, by reason.

    `headers` is a mapping or pairs of names and values, text or bytes; `peer` the address it came from, for `RAVI_CARRY_TRUST`. A loan is
    believed once, and what is for an MCP server by the `server` of that name.
    """
    baggage: list[str] | None = None
    trace: dict[str, str] = {}
    with contextlib.suppress(Exception):  # of whatever stands there in the headers' place: what is not to be read is malformed
        baggage, trace = _found(() if headers is None else headers)
    config = configured()
    if not config.believes:
        reason: Reason | None = "no_keys" if any(tokens_of(header) for header in baggage or ()) else None
        if reason is not None:
            rejected(reason)
        return Inbound(rejected=reason, trace=trace)
    try:
        token, reason = _judged(baggage, config, peer, server)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever serves the request: it is as if nothing had come
        swallow("carrier", error)
        token, reason = None, "malformed"
    if reason is not None:
        rejected(reason)
    return Inbound(token, reason, trace)


def begin(inbound: Inbound) -> None:
    """Note that the loan that came in is used from here on; ConfigurationError where it is already."""
    token = inbound.token
    if token is not None and token.loan is not None and _begun.take(token.loan.id, token.expires_ms) is not None:
        raise ConfigurationError(
            "continue_run(): the loan that came with this request was used before, and is for one run. Call continue_run() once a request, "
            "and enter it once; a decorated function is entered with each call."
        )


def _judged(baggage: list[str] | None, config: Configured, peer: str | None, server: str | None) -> tuple[Token | None, Reason | None]:
    if baggage is None:
        return None, "malformed"
    if sum(map(len, baggage)) > MOST_BYTES:
        return None, "oversized"
    found = [token for header in baggage for token in tokens_of(header)]
    if len(found) != 1:
        return None, "duplicate" if found else "missing"
    try:
        token = read_token(found[0], config.keys, trusted=config.trust.has(peer))
    except MalformedError as error:
        return None, cast("Reason", str(error))  # which is one of four of them
    reason = _flaw(token, config, server)
    return (token, None) if reason is None else (None, reason)


def _flaw(token: Token, config: Configured, server: str | None) -> Reason | None:
    now = now_ms()
    if token.expires_ms <= now:
        return "expired"
    if token.audience.startswith(SERVER):
        named = token.audience.removeprefix(SERVER)
        if server is None or (named != server and named not in config.names.servers):
            return "audience"
    elif config.names.listed and not token.audience.startswith("@"):
        host, _, port = token.audience.rpartition(":")
        if not config.names.has(host or port, int(port) if host and port.isdecimal() and len(port) < 6 else None):  # noqa: PLR2004 - digits of a port
            return "audience"
    if token.loan is None:
        return None
    return "expired" if token.expires_ms > now + LONGEST_S * 2_000 else _read.take(token.loan.id, token.expires_ms)


def _found(headers: object) -> tuple[list[str], dict[str, str]]:
    """Return the values of all `baggage` headers, and the headers of the trace."""
    baggage: list[str] = []
    trace: dict[str, str] = {}
    for name, value in pairs_of(headers):
        if name == _BAGGAGE:
            baggage.append(value)
        elif name in _TRACE and len(value) <= _MOST_TRACE:
            trace[name] = value
    return baggage, trace
