"""Read embeddings."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.endpoints.silent import SilentCollector
from ravi_otel.instrumentation.openai.fields import get, text, tokens_in, usage_of
from ravi_otel.policy.usage import Call, Reply


class Embeddings:
    """Read `/embeddings`."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        body, host = request.body, request.host
        return Call(
            operation="embeddings",
            endpoint="embeddings",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream,
            input_estimate=tokens_in(body.get("input")),
            server_address=host.address,
            server_port=host.port,
            parameters={"encoding_format": body["encoding_format"]} if isinstance(body.get("encoding_format"), str) else {},
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        usage = usage_of(get(result, "usage"), inputs="prompt_tokens", outputs=None, input_details="-", output_details="-")
        return Reply(model=text(result, "model"), usage=usage)

    def collector(self, call: Call) -> SilentCollector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return SilentCollector()
