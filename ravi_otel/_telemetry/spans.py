"""A span that is open, and the context it is current in."""

from __future__ import annotations

from typing import Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span


class Open(NamedTuple):
    """An open span with its context."""

    span: Span
    context: Context


class Above:
    """Find the span that new ones stand under: the current one, else that of the run around the whole process."""

    __slots__ = ("surrounding",)

    def __init__(self) -> None:
        self.surrounding: Span | None = None

    def context(self) -> Context:
        """Return the context to start a span in."""
        current = otel_context.get_current()
        if self.surrounding is None or trace.get_current_span(current).get_span_context().is_valid:
            return current
        return trace.set_span_in_context(self.surrounding, current)


MARK: Final = object()
"""The key under which a record's `marks` keep its span."""
