"""Put the run and agent on every span started inside them, other libraries' spans too."""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from ravi_otel import _current
from ravi_otel._telemetry import names
from ravi_otel._telemetry.spans import identity

_log = logging.getLogger("ravi_otel")
_MARK = "_ravi_otel_context_processor"
_OURS = "ravi."


class ContextProcessor(SpanProcessor):
    """Read the leaf scope from the context a span starts in; `active=False` makes it inert.

    Our own spans carry the same attributes from their start, so they are left alone. Never raises: what a processor
    raises would reach the application.
    """

    def __init__(self) -> None:
        self.active = True

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Add the attributes of the innermost run and agent, if there is one."""
        if not self.active:
            return
        try:
            scope = span.instrumentation_scope
            if scope is not None and scope.name == names.SCOPE:
                return
            leaf = _current.leaf(parent_context)
            if leaf is not None:
                kept, known = identity(leaf.facts), span.attributes
                if known:  # what a span says of itself by a name that is not ours alone, such as its user or session, stays
                    kept = {name: value for name, value in kept.items() if name not in known or name.startswith(_OURS)}
                span.set_attributes(kept)
        except Exception as error:  # noqa: BLE001 - a span of the application must start whatever we get wrong
            _log.debug("the run's attributes could not be added to a span: %r", error)


def install(provider: Any) -> ContextProcessor:
    """Add the processor to an SDK tracer provider, or wake the one it has."""
    found = getattr(provider, _MARK, None)
    if isinstance(found, ContextProcessor):
        found.active = True
        return found
    processor = ContextProcessor()
    setattr(provider, _MARK, processor)
    provider.add_span_processor(processor)
    return processor
