"""Put ours into OpenTelemetry's own baggage at the entry of each scope, where somebody has asked for that.

Other instrumentations then send it along: those of HTTP clients that we wrap lose it again where a host is not listed; any other one,
such as that of gRPC or of a message broker, sends it wherever it goes. So it is off unless `RAVI_CARRY_BAGGAGE` says on.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import baggage
from opentelemetry.context import Context

from ravi_otel import _current
from ravi_otel._enforcement.scope import Scope
from ravi_otel.carrier.configured import configured, in_context
from ravi_otel.carrier.entries import KEY, is_ours
from ravi_otel.carrier.outbound import EXPIRES_MS
from ravi_otel.carrier.standing import now_ms, token_of
from ravi_otel.carrier.token import write_token
from ravi_otel.hooks._listeners import swallow

ANYBODY: Final = "@context"
"""Who an entry is for that goes wherever the context goes."""


def begin() -> None:
    """Dress every scope that is entered from now on, if that was asked for."""
    _current.dress_with(_dressed if in_context() and configured().keys else None)


def end() -> None:
    """Leave the contexts of scopes as they are from now on."""
    _current.dress_with(None)


def undressed(context: Context) -> Context:
    """Return `context` without any entry of ours, for a call that must not carry them."""
    for name in [name for name in baggage.get_all(context) if is_ours(name)]:
        context = baggage.remove_baggage(name, context)
    return context


def _dressed(scope: Scope, context: Context) -> Context:
    try:
        token = write_token(token_of(scope, ANYBODY, now_ms() + EXPIRES_MS), configured().keys)
        return undressed(context) if token is None else baggage.set_baggage(KEY, token, context)
    except Exception as error:  # noqa: BLE001 - our own bug never reaches whoever opens a scope
        swallow("carrier", error)
        return context
