"""What leaves with a request, a task or a process: our entry goes to hosts that are listed, and not a byte of it to any other.

Where `RAVI_CARRY_BAGGAGE` says so, each scope also puts its entry into OpenTelemetry's own baggage. Other instrumentations then send it
on: HTTP clients that we wrap take it off again where a host is not listed, any other one, such as that of gRPC or of a message broker,
sends it wherever it goes. So it is off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ravi_otel import _current
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._configuration import TO, Configuration, configuration, is_in_otel_baggage, place_of
from ravi_otel.carrier._inbound import count_rejected, warn_once
from ravi_otel.carrier._lending import Lent, current_loan, note_unlisted, seconds
from ravi_otel.carrier._remaining import Remaining, now_ms
from ravi_otel.carrier._token import KEY, MalformedError, is_ours, read_token, tokens_of, with_ours, without_ours, write_token
from ravi_otel.errors import ConfigurationError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._checks import instance, show

EXPIRES_MS: Final = 300_000
"""How long an entry that goes with a request is believed, unless a loan says otherwise."""

DAY_S: Final = 86_400.0
MONTH_S: Final = 31 * DAY_S

_TASK: Final = "@task"
_PROCESS: Final = "@process"
_ANYBODY: Final = "@context"
"""Audiences that are no hosts: whoever takes a task from a queue, a process that is started, and wherever a context goes."""

_TRACE: Final = TraceContextTextMapPropagator()
_BAGGAGE: Final = W3CBaggagePropagator()


def is_listed(url: str, via: str | None = None) -> bool:
    """Whether a request to `url` may carry our entry; `via` is the proxy that reads its headers, if one does."""
    to = configuration().to
    return bool(to) and to.has_url(url) and (via is None or to.has_url(via))


def headers_for(
    url: str, existing: str | None, via: str | None = None, *, lends: bool = True, taken: Callable[[Lent], object] | None = None
) -> str | None:
    """Return the `baggage` header for a request to `url`, None for none at all; never raise, and do no I/O.

    `existing` is the request's own. For a host that is not listed, or a `via` that is not, every entry of ours is taken out. For one that
    is, the current scope's entry takes their place, with the loan of the `with lend(...)` block if this is the first request in it; a loan
    that `existing` holds already stays. Others' entries stay as they are. Without `lends` this request takes no loan along; `taken` is
    called with one that it takes, and may give it back with `unsend` while nothing has left.
    """
    try:
        if not is_listed(url, via):
            note_unlisted(url)
            return without_ours(existing)
        config = configuration()
        audience = audience_of(url)
        if existing is not None and _has_loan(existing, audience, config):
            return existing
        lent = current_loan() if config.keys else None
        return _written(existing, audience, now_ms() + EXPIRES_MS, lent, lends=lends, taken=taken)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the program's request
        swallow("carrier", error)
        return without_ours(existing)


def baggage_for(audience: str, existing: str | None, lent: Lent | None) -> str | None:
    """Return the `baggage` for a listed audience, with the current scope's entry and the loan; never raise."""
    try:
        return _written(existing, audience, now_ms() + EXPIRES_MS, lent)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches the program's request
        swallow("carrier", error)
        return without_ours(existing)


def outbound_headers(url: str, lend: Lent | None = None) -> dict[str, str]:
    """Return the headers that carry this trace, and to a listed host this run, for a request that the program makes by itself.

    `lend` is a loan for this request: `outbound_headers(url, lend=lend(tokens=5_000))`; give the answer's headers to `take_return`.
    Raise ConfigurationError where a loan cannot be sent to `url`, and whatever holding a loan raises.
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
        _rewrite(headers, _written(headers.pop("baggage", None), audience_of(url), now_ms() + EXPIRES_MS, lend))
    finally:
        run_sync(lend.give_up())  # what did not go is for no other request
    if not lend.is_sent:
        raise ConfigurationError(
            "outbound_headers(lend=): the loan does not fit beside what others have put into the baggage, or had expired, and was given "
            "back. Take some of that baggage out, or lend for longer with lend(expires_s=)."
        )
    return headers


def _headers_to(audience: str, expires_s: float) -> dict[str, str]:
    """Return the headers for a task or a process; without a key, of which a warning tells once, those of the trace alone."""
    headers: dict[str, str] = {}
    if not configuration().keys:
        warn_once("unkeyed", "nothing of a run goes along with tasks and processes, its limits included: set RAVI_CARRY_KEYS.")
    _TRACE.inject(headers)
    _BAGGAGE.inject(headers)
    existing = without_ours(headers.pop("baggage", None))
    _rewrite(headers, _written(existing, audience, now_ms() + int(expires_s * 1000), None) if configuration().keys else existing)
    return headers


def token_here(audience: str) -> str | None:
    """Return the token of the current scope; None where it would be too long."""
    return _token_of(STATE.locate()[0], audience)


def _token_of(scope: Scope, audience: str) -> str | None:
    return write_token(Remaining(scope).as_token(audience, now_ms() + EXPIRES_MS), configuration().keys)


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
    # A second request in the block of one loan may be the first one again, so it takes nothing along that could be used twice.
    nothing = lent.limits if lent is not None and loan is None else ()
    token = write_token(Remaining(scope).as_token(audience, expires_ms, loan, nothing=nothing), configuration().keys)
    header = without_ours(existing) if token is None else with_ours(existing, token)
    if token is None or header is None or token not in header:
        count_rejected("too_long")
        if lent is not None and loan is not None:
            lent.unsend()
    elif lent is not None and loan is not None and taken is not None:
        taken(lent)
    return header


def _has_loan(existing: str, audience: str, config: Configuration) -> bool:
    found = tokens_of(existing)
    if len(found) != 1 or not config.keys:
        return False
    try:
        token = read_token(found[0], config.keys, trusted=False)
    except MalformedError:
        return False
    return token.loan is not None and token.audience == audience and token.expires_ms > now_ms()


def audience_of(url: str) -> str:
    """Return the audience of a request to `url`: its host, and the port where there is one."""
    place = place_of(url)
    if place is None:
        return ""
    host, port = place
    return f"{host}:{port}" if port is not None else host


def _rewrite(headers: dict[str, str], baggage: str | None) -> None:
    if baggage is not None:
        headers["baggage"] = baggage


def task_headers(*, expires_s: float = DAY_S) -> dict[str, str]:
    """Return the headers that carry this run and its trace with a task, such as `task.apply_async(headers=task_headers())` of Celery.

    The worker continues with `continue_run(headers)`; in a Celery task those are `self.request.headers`. They are believed for `expires_s`
    seconds, a day by default, and within the run's deadline. Without `RAVI_CARRY_KEYS` they carry the trace alone.
    """
    return _headers_to(_TASK, seconds("task_headers(expires_s)", expires_s, MONTH_S))


def child_environment(*, expires_s: float = DAY_S) -> dict[str, str]:
    """Return the variables that carry this run and its trace to a process: `Popen(..., env={**os.environ, **child_environment()})`.

    They are `BAGGAGE`, `TRACEPARENT` and `TRACESTATE`. The process continues with `continue_run(os.environ)`. They are believed for
    `expires_s` seconds, a day by default. Without `RAVI_CARRY_KEYS`, which the process needs, too, they carry the trace alone.
    """
    carried = _headers_to(_PROCESS, seconds("child_environment(expires_s)", expires_s, MONTH_S))
    return {name.upper(): value for name, value in carried.items()}


def begin_otel_baggage() -> None:
    """Put our entry into the context of every scope that is entered from now on, if `RAVI_CARRY_BAGGAGE` says so."""
    _current.dress_with(_with_our_baggage if is_in_otel_baggage() and configuration().keys else None)


def end_otel_baggage() -> None:
    """Leave the contexts of scopes as they are from now on."""
    _current.dress_with(None)


def without_our_baggage(context: Context) -> Context:
    """Return `context` without any entry of ours."""
    for name in [name for name in baggage.get_all(context) if is_ours(name)]:
        context = baggage.remove_baggage(name, context)
    return context


def _with_our_baggage(scope: Scope, context: Context) -> Context:
    try:
        token = _token_of(scope, _ANYBODY)
        return without_our_baggage(context) if token is None else baggage.set_baggage(KEY, token, context)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever opens a scope
        swallow("carrier", error)
        return context
