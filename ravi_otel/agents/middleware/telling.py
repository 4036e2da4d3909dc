"""Tell what a middleware did, on the span of whoever called: an event, since one span may see many."""

from __future__ import annotations

from typing import Literal

from opentelemetry import trace

from ravi_otel._telemetry import names
from ravi_otel.hooks._listeners import swallow

Effect = Literal["cache_hit", "fell_back", "rate_limited", "redacted", "retried"]


def tell(effect: Effect, *, model: str | None = None, instead_of: str | None = None, error: BaseException | None = None) -> None:
    """Put the event `ravi.middleware` on the current span; says what was done, of which model, and after which kind of error."""
    try:
        attributes = {
            names.MIDDLEWARE_EFFECT: effect,
            names.REQUEST_MODEL: model,
            names.MIDDLEWARE_FALLBACK_FROM: instead_of,
            names.ERROR_TYPE: None if error is None else type(error).__name__,
        }
        trace.get_current_span().add_event(names.MIDDLEWARE_EVENT, {name: value for name, value in attributes.items() if value is not None})
    except Exception as problem:  # noqa: BLE001 - a failure to tell is not the program's
        swallow("middleware.tell", problem)
