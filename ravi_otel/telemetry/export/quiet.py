"""Keep what we ask of other libraries out of the program's own telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import context as otel_context

SILENT: Final = otel_context.Context(
    dict.fromkeys(
        (
            "suppress_instrumentation",
            str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")),
            str(getattr(otel_context, "_SUPPRESS_HTTP_INSTRUMENTATION_KEY", "suppress_http_instrumentation")),
        ),
        True,
    )
)
"""The context that asks every instrumentation to be silent."""


@contextmanager
def untold() -> Iterator[None]:
    """Ask every instrumentation to be silent about what is done within, whatever thread of the program it is done in."""
    token = otel_context.attach(SILENT)
    try:
        yield
    finally:
        otel_context.detach(token)
