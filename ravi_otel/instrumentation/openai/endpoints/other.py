"""Read whatever has no module of its own: a plain span, and a request counted when a model is asked."""

from __future__ import annotations

from typing import Any

from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.endpoints.silent import SilentCollector
from ravi_otel.instrumentation.openai.fields import text, tokens_in
from ravi_otel.policy.usage import Call, Reply

_MOST_SEGMENTS = 4


class Other:
    """Read any other path. A POST that names a model is generative: it counts as a request; what it used is unknown."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        host, model = request.host, text(request.body, "model")
        generative = request.method == "POST" and model is not None
        shape = path_shape(request.path)
        return Call(
            operation=shape if generative else f"{request.method} {shape}",
            endpoint=shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=model,
            generative=generative,
            turn=shape == "completions",
            stream=request.stream,
            input_estimate=tokens_in(request.body) if generative else 0,
            server_address=host.address,
            server_port=host.port,
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return Reply(id=None, model=text(result, "model"))

    def collector(self, call: Call) -> SilentCollector:  # noqa: ARG002 - the protocol's
        """See `Endpoint.collector`."""
        return SilentCollector()


def path_shape(path: str) -> str:
    """Give a path without its ids, so that few distinct ones exist: `/files/file-9x1/content` is `files.content`."""
    segments = [part for part in path.partition("?")[0].split("/") if part]
    named = [part for part in segments if part.replace("_", "").isalpha() and part.islower()]
    return ".".join(named[:_MOST_SEGMENTS]) or "request"
