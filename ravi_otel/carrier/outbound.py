"""Write what leaves with a request: ours to hosts that are listed, and not a byte of it to any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel._flow import run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier import lending
from ravi_otel.carrier.configured import TO, Configured, configured
from ravi_otel.carrier.entries import tokens_of, with_ours, without_ours
from ravi_otel.carrier.hosts import place_of
from ravi_otel.carrier.lending import Lent
from ravi_otel.carrier.standing import now_ms, token_of
from ravi_otel.carrier.telling import rejected, say_once
from ravi_otel.carrier.token import read_token, write_token
from ravi_otel.carrier.written import MalformedError
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._checks import instance, show

EXPIRES_MS: Final = 300_000
"""How long what goes with a request is believed, a loan aside."""

TASK: Final = "@task"
PROCESS: Final = "@process"
"""Who it is for, where that is no host: whoever takes a task from a queue, or a process that is started."""

_TRACE: Final = TraceContextTextMapPropagator()
_BAGGAGE: Final = W3CBaggagePropagator()


def is_listed(url: str, via: str | None = None) -> bool:
    """Whether a request to `url` may carry ours; `via` is the proxy that reads its headers, if one does."""
    to = configured().to
    return bool(to) and to.has_url(url) and (via is None or to.has_url(via))


def headers_for(
    url: str, existing: str | None, via: str | None = None, *, lends: bool = True, taken: Callable[[Lent], object] | None = None
) -> str | None:
    """Return the `baggage` header for a request to `url`, None for none at all; never raises, and does no I/O.

    `existing` is what the request has by now. To a host that is not listed, and through a `via` that is not, every entry of ours is taken
    out. To one that is, the current scope's takes their place, with the loan of the `with lend(...)` around, for the first request
    in it; a loan that `existing` holds already stays. Others' entries stay as they are. Where it does not `lends`, the loan is not this
    request's; `taken` hears of it when it is, and may have it back with `unsend` while nothing has left.
    """
    try:
        if not is_listed(url, via):
            lending.pass_by(url)
            return without_ours(existing)
        config = configured()
        audience = _audience(url)
        if existing is not None and _has_loan(existing, audience, config):
            return existing
        lent = lending.around() if config.keys else None
        return _written(existing, audience, now_ms() + EXPIRES_MS, lent, lends=lends, taken=taken)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the program's request
        swallow("carrier", error)
        return without_ours(existing)


def baggage_for(audience: str, existing: str | None, lent: Lent | None) -> str | None:
    """Return the `baggage` for somebody who is listed, with the current scope's entry and the loan; never raises."""
    try:
        return _written(existing, audience, now_ms() + EXPIRES_MS, lent)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the program's request
        swallow("carrier", error)
        return without_ours(existing)


def audience_of(url: str) -> str:
    """Write for whom a request to `url` is."""
    return _audience(url)


def outbound_headers(url: str, lend: Lent | None = None) -> dict[str, str]:
    """Return the headers that carry this trace, and to a listed host this run, for a request that the program makes by itself.

    `lend` is a loan for this request: `outbound_headers(url, lend=lend(tokens=5_000))`; give the answer's headers to `take_return`.
    Raises ConfigurationError where a loan cannot be sent to `url`, and what holding a loan raises.
    """
    if "://" not in url:
        raise ConfigurationError(f"outbound_headers(url={show(url)}) has no scheme: write it whole, such as https://api.internal/search.")
    headers: dict[str, str] = {}
    _TRACE.inject(headers)
    _BAGGAGE.inject(headers)
    if lend is None:
        _rewrite(headers, headers_for(url, headers.pop("baggage", None)))
        return headers
    instance("outbound_headers(lend)", lend, Lent, "a loan such as lend(tokens=5_000)")
    if not is_listed(url):
        raise ConfigurationError(f"outbound_headers(url={show(url)}, lend=): a loan goes to hosts of {TO} alone. List this one there.")
    lend.check_here()
    try:
        if lend.status == "new":
            run_sync(lend.hold(blocking=True))
        if lend.status != "held":
            raise ConfigurationError(
                "outbound_headers(lend=): this loan was used before, or is over. Give each request a lend() of its own."
            )
        _rewrite(headers, _written(headers.pop("baggage", None), _audience(url), now_ms() + EXPIRES_MS, lend))
    finally:
        run_sync(lend.give_up())  # what did not go is for no other request
    if not lend.is_sent:
        raise ConfigurationError(
            "outbound_headers(lend=): the loan does not fit beside what others have put into the baggage, or had expired, and was given "
            "back. Take some of that baggage out, or lend for longer with lend(expires_s=)."
        )
    return headers


def carried_to(audience: str, expires_s: float) -> dict[str, str]:
    """Return the headers for somebody who is no host: a task, a process. Without a key, which is said once, those of the trace alone."""
    headers: dict[str, str] = {}
    if not configured().keys:
        say_once("unkeyed", "nothing of a run goes along with tasks and processes, its limits included: set RAVI_CARRY_KEYS.")
    _TRACE.inject(headers)
    _BAGGAGE.inject(headers)
    existing = without_ours(headers.pop("baggage", None))
    _rewrite(headers, _written(existing, audience, now_ms() + int(expires_s * 1000), None) if configured().keys else existing)
    return headers


def token_here(audience: str) -> str | None:
    """Write the token of the current scope; None where it would be too long."""
    return write_token(token_of(STATE.locate()[0], audience, now_ms() + EXPIRES_MS), configured().keys)


def _written(
    existing: str | None,
    audience: str,
    expires_ms: int,
    lent: Lent | None,
    *,
    lends: bool = True,
    taken: Callable[[Lent], object] | None = None,
) -> str | None:
    scope, _ = STATE.locate()
    loan = None if lent is None or not lends else lent.send()
    if lent is not None and loan is not None:
        expires_ms = lent.expires_ms
    # A second request in the block of one loan may be the first one again: it has nothing that could be used unseen.
    nothing = lent.limits if lent is not None and loan is None else ()
    token = write_token(token_of(scope, audience, expires_ms, loan, nothing=nothing), configured().keys)
    header = without_ours(existing) if token is None else with_ours(existing, token)
    if token is None or header is None or token not in header:
        rejected("too_long")
        if lent is not None and loan is not None:
            lent.unsend()
    elif lent is not None and loan is not None and taken is not None:
        taken(lent)
    return header


def _has_loan(existing: str, audience: str, config: Configured) -> bool:
    found = tokens_of(existing)
    if len(found) != 1 or not config.keys:
        return False
    try:
        token = read_token(found[0], config.keys, trusted=False)
    except MalformedError:
        return False
    return token.loan is not None and token.audience == audience and token.expires_ms > now_ms()


def _audience(url: str) -> str:
    place = place_of(url)
    if place is None:
        return ""
    host, port = place
    return f"{host}:{port}" if port is not None else host


def _rewrite(headers: dict[str, str], baggage: str | None) -> None:
    if baggage is not None:
        headers["baggage"] = baggage
