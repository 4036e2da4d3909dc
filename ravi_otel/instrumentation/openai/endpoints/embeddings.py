"""Read embeddings."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.formats.fields import get, text, tokens_in, usage_of
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.instrumentation.formats.input_bounds import bound
from ravi_otel.policy.usage import Call, Reply


class Embeddings(WireFormat):
    """Read `/embeddings`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
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
        """See `WireFormat.reply`."""
        usage = usage_of(get(result, "usage"), inputs="prompt_tokens", outputs=None, input_details="-", output_details="-")
        return Reply(model=text(result, "model"), usage=usage)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, None)

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return Collector()
