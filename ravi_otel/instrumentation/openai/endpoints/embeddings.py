"""Read embeddings."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.http.bounds import bound
from ravi_otel.instrumentation.http.contract import Request, Wordless
from ravi_otel.instrumentation.http.fields import get, text, tokens_in, usage_of
from ravi_otel.instrumentation.http.silent import SilentCollector
from ravi_otel.policy.usage import Call, Reply


class Embeddings(Wordless):
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

    def bound(self, request: Request, call: Call) -> None:
        """See `Endpoint.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, None)

    def collector(self, call: Call) -> SilentCollector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return SilentCollector()
