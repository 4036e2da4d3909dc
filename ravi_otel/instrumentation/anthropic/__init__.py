"""Know the `anthropic` package: its endpoints, its client classes, and which of the two tells a call."""

from __future__ import annotations

from typing import Final

from ravi_otel.instrumentation.anthropic.endpoints.registry import endpoint_for
from ravi_otel.instrumentation.anthropic.spans import own_span
from ravi_otel.instrumentation.http.vendor import Vendor

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

VENDOR: Final = Vendor(
    package="anthropic",
    provider="anthropic",
    endpoint_for=endpoint_for,
    classes=_CLASSES,
    own_span=own_span,
)
