"""Know the `anthropic` package: its client classes, and which of the two tells a call."""

from __future__ import annotations

import copy
from typing import Any, Final

from opentelemetry import trace

from ravi_otel._instrumentation.client_profile import ClientProfile
from ravi_otel._instrumentation.formats.anthropic import format_for
from ravi_otel._instrumentation.formats.fields import get

_CLASSES: Final = {
    name: provider
    for kind, provider in (
        ("AnthropicBedrock", "aws.bedrock"),
        ("AnthropicBedrockMantle", "aws.bedrock"),
        ("AnthropicVertex", "gcp.vertex_ai"),
        ("AnthropicFoundry", "azure.ai.inference"),
        ("AnthropicAWS", "anthropic"),
        ("AnthropicGoogleCloud", "anthropic"),
    )
    for name in (kind, f"Async{kind}")
}
"""The last two reach Anthropic's own platform through an account with somebody else."""


def own_span(client: Any, options: Any) -> tuple[Any, bool]:
    """Return the options to send, and whether the client makes a span for the call.

    It does where the program has set tracing up, for this client or for the whole process: that span stays, and the call has
    none of ours. Anywhere else it would make none without us, and none must come of our being here: one that only passes
    ours on would add headers to the request.
    """
    if not get(options, "span_name"):
        return options, False
    chosen = getattr(client, "_open_telemetry", None)
    traces = get(chosen, "traces")
    if get(traces, "enabled") is False:
        return options, False
    if _is_set_up(chosen):
        return options, True
    silent = copy.copy(options)
    silent.span_name = None
    return silent, False


def _is_set_up(chosen: Any) -> bool:
    if get(chosen, "tracer_provider") is not None:
        return True
    return not isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


PROFILE: Final = ClientProfile(
    package="anthropic",
    provider="anthropic",
    format_for=format_for,
    classes=_CLASSES,
    own_span=own_span,
)
