"""Whether another library emits a model call's telemetry, or nobody must: no call gets two spans."""

from __future__ import annotations

from enum import Enum
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from ravi_otel.policy.usage import Call

_SILENCING: Final = frozenset(
    {"suppress_instrumentation", str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"))}
)
"""Keys of the context by which a program, or an exporter, asks for silence: OpenTelemetry's own, and the plain one."""

_SUPPRESSED: Final = _SILENCING | {"suppress_language_model_instrumentation"}
"""Those, and one for model calls alone."""

_TOLD: Final = frozenset(
    {
        "opentelemetry.genai.client.inference.context",
        "opentelemetry.genai.client.embedding.context",
        "opentelemetry.genai.client.fetch_response.context",
    }
)
"""Keys under which instrumentations of OpenTelemetry's own GenAI family say that they are in the middle of a call."""

_ALL: Final = _SUPPRESSED | _TOLD
_SCOPES: Final = (
    "opentelemetry.instrumentation.openai",
    "opentelemetry.instrumentation.anthropic",
    "opentelemetry.instrumentation.groq",
    "opentelemetry.instrumentation.genai",
    "openinference.instrumentation.openai",
    "openinference.instrumentation.anthropic",
    "openinference.instrumentation.groq",
    "logfire.openai",
    "logfire.anthropic",
)
"""What the scopes of instrumentations begin with that open a span around the very call we see."""


SUPPRESSION: Final = object()
"""The key under which a record's `marks` keep the reason why it has no span of ours."""


class Suppression(Enum):
    """Why a call gets no span of ours."""

    SUPPRESSED = "suppressed"
    """The program asked that nothing be told of it."""
    TOLD = "told"
    """Another instrumentation has a span for it; what only we know is still counted."""
    SPAN = "span"
    """The client makes a span for it by itself, and no metrics."""


def silences_all(context: Context) -> bool:
    """Whether nothing of what is done in `context` is to be told: what an exporter sends, before all."""
    return any(context.get(key) for key in _SILENCING)


def suppression_of(call: Call, context: Context) -> Suppression | None:
    """Return why a call that begins in `context` gets no span of ours; None where it does."""
    if not _ALL.isdisjoint(context):
        if any(context.get(key) for key in _SUPPRESSED):
            return Suppression.SUPPRESSED
        if any(context.get(key) is not None for key in _TOLD):
            return Suppression.TOLD
    if call.told_elsewhere is not None:
        return Suppression.SPAN if call.told_elsewhere == "span" else Suppression.TOLD
    scope = getattr(trace.get_current_span(context), "instrumentation_scope", None)
    name = getattr(scope, "name", None)
    return Suppression.TOLD if isinstance(name, str) and name.startswith(_SCOPES) else None
