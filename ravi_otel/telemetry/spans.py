"""Keep a span that is open, and the context it is current in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span


@dataclass(frozen=True, slots=True)
class Open:
    """Hold a span with its context."""

    span: Span
    context: Context


MARK: Final = object()
"""The key under which a record's `marks` keep its span."""
