"""Read the headers that came in: believed when a known key signed them or their peer is trusted, and else as if nothing had come."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel._forksafe import ForkLock
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._configuration import SERVER, Configuration, configuration
from ravi_otel.carrier._remaining import now_ms
from ravi_otel.carrier._token import LONGEST_LOAN_S, MOST_BYTES, MalformedError, Token, read_token, tokens_of
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._events import CountEvent
from ravi_otel.hooks._listeners import swallow

_MOST_HEADERS: Final = 10_000
"""The most headers that are read."""


def header_pairs(headers: object) -> Iterator[tuple[str, str]]:
    """Yield each name, in lower case, with each of its values; a value that is neither text nor bytes becomes "".

    Anything that has `items` is asked for them, also a message of `http.server`, which is no mapping.

    Raise ValueError for more headers than anybody sends, and whatever a mapping or an iterable of the program raises.
    """
    given: Any = headers
    pairs: Iterable[Any] = given.items() if callable(getattr(given, "items", None)) else given
    for count, pair in enumerate(pairs):
        if count >= _MOST_HEADERS:
            raise ValueError("headers")
        name = _text(pair[0]).lower()
        value: Any = pair[1]
        for each in cast("Iterable[Any]", value if isinstance(value, (list, tuple)) else (value,)):
            yield name, _text(each)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


Reason = Literal[
    "missing",
    "duplicate",
    "oversized",
    "malformed",
    "version",
    "forged",
    "unsigned",
    "expired",
    "audience",
    "replayed",
    "too_many",
    "unknown_loan",
    "too_long",
    "no_keys",
]
"""Why something was not believed; docs/carriers.md says what each means."""

_DOUBTED: Final = "the limits that came with a request, a task or the environment are not in force here"
_SENTENCES: Final[Mapping[Reason, str]] = {
    "duplicate": f"{_DOUBTED}: there are two of them. Something on the way adds a baggage header to another: have it replace it.",
    "oversized": f"{_DOUBTED}: the baggage is longer than 8,192 bytes. Put less into it.",
    "malformed": f"{_DOUBTED}: they cannot be read. Something on the way changed them.",
    "version": f"{_DOUBTED}: another version of ravi-otel wrote them in a way that this one cannot read. Run the same on both sides.",
    "forged": f"{_DOUBTED}: no key of RAVI_CARRY_KEYS here signed them. Give both sides the same key.",
    "unsigned": f"{_DOUBTED}: nobody signed them, and RAVI_CARRY_TRUST does not list their peer. Set RAVI_CARRY_KEYS on both sides.",
    "expired": f"{_DOUBTED}: they are too old. Compare the clocks of both machines, and how long a task waits with expires_s=.",
    "audience": f"{_DOUBTED}: they are for a host that RAVI_CARRY_AS does not name. Add the name by which callers call this service.",
    "replayed": f"{_DOUBTED}: the loan that came along was here before. Send each request with a lend() of its own.",
    "too_long": "a run is not carried on: what it takes along does not fit into 8,192 bytes of baggage. Put less into the baggage.",
    "no_keys": f"{_DOUBTED}: RAVI_CARRY_KEYS is not set in this process. Give it the key that the others have.",
}
"""The warning for each. Reasons that anybody outside can cause at will without harm, such as sending no limits at all, have none."""

_log = logging.getLogger("ravi_otel")
_warned: set[str] = set()


def count_rejected(reason: Reason) -> None:
    """Count what was not believed, and warn of the first of each reason."""
    STATE.engine.listeners.counted(CountEvent("carrier_rejected", 1, reason=reason))
    sentence = _SENTENCES.get(reason)
    if sentence is not None:
        warn_once(reason, sentence)


def warn_once(what: str, sentence: str) -> None:
    """Warn once per process of something that nobody would notice otherwise."""
    if what not in _warned:
        _warned.add(what)
        _log.warning("ravi-otel: %s", sentence)


Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""Header names and values, text or bytes, each as often as it came."""

_BAGGAGE: Final = "baggage"
_TRACE: Final = ("traceparent", "tracestate")
_MOST_TRACE: Final = 2_048
_MOST_SEEN: Final = 100_000
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Once:
    """The loans that came in already, until each expires: none is good twice."""

    def __init__(self) -> None:
        self.until_ms: dict[str, int] = {}
        self._lock = ForkLock()

    def take(self, loan_id: str, until_ms: int) -> Reason | None:
        """Note a loan; return why it cannot be used, None where it can."""
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
    """What came in: the token that is believed, or the reason why none is.

    Both are None where nothing came and nobody would be believed. `trace` are the headers of the caller's trace.
    """

    token: Token | None = None
    rejected: Reason | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    def context(self, current: Context) -> Context:
        """Return `current` with the caller's span in it, if the headers name a valid one."""
        return _PROPAGATOR.extract(self.trace, current) if self.trace else current


def read(headers: object, *, peer: str | None = None, server: str | None = None) -> Inbound:
    """Return what came in with a request, a task or the environment; never raise, and count what is not believed, by reason.

    `headers` is a mapping or pairs of names and values, text or bytes; `peer` is the address they came from, for `RAVI_CARRY_TRUST`;
    `server` is the name of the MCP server that reads them. A loan is believed once.
    """
    baggage: list[str] | None = None
    trace: dict[str, str] = {}
    with contextlib.suppress(Exception):  # of whatever stands there in the headers' place: what is not to be read is malformed
        baggage, trace = _found(() if headers is None else headers)
    config = configuration()
    if not config.believes:
        reason: Reason | None = "no_keys" if any(tokens_of(header) for header in baggage or ()) else None
        if reason is not None:
            count_rejected(reason)
        return Inbound(rejected=reason, trace=trace)
    try:
        token, reason = _judged(baggage, config, peer, server)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the server: it is as if nothing had come
        swallow("carrier", error)
        token, reason = None, "malformed"
    if reason is not None:
        count_rejected(reason)
    return Inbound(token, reason, trace)


def use_loan(inbound: Inbound) -> None:
    """Note that the loan that came in is in use from now on; raise ConfigurationError if it is in use already."""
    token = inbound.token
    if token is not None and token.loan is not None and _begun.take(token.loan.id, token.expires_ms) is not None:
        raise ConfigurationError(
            "continue_run(): the loan that came with this request was used before, and is for one run. Call continue_run() once a request, "
            "and enter it once; a decorated function is entered with each call."
        )


def _judged(baggage: list[str] | None, config: Configuration, peer: str | None, server: str | None) -> tuple[Token | None, Reason | None]:
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


def _flaw(token: Token, config: Configuration, server: str | None) -> Reason | None:
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
    return "expired" if token.expires_ms > now + LONGEST_LOAN_S * 2_000 else _read.take(token.loan.id, token.expires_ms)


def _found(headers: object) -> tuple[list[str], dict[str, str]]:
    """Return the values of all `baggage` headers, and the headers of the trace."""
    baggage: list[str] = []
    trace: dict[str, str] = {}
    for name, value in header_pairs(headers):
        if name == _BAGGAGE:
            baggage.append(value)
        elif name in _TRACE and len(value) <= _MOST_TRACE:
            trace[name] = value
    return baggage, trace
