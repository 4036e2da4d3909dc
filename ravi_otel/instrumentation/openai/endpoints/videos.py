"""Read videos: work that is begun with a POST, looked at until it is done, and fetched."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import get, text, tokens_in
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.instrumentation.openai.endpoints.attachments import attached, part_of
from ravi_otel.policy.content import Asked, Part
from ravi_otel.policy.usage import Call, Reply

_FAILED: Final = "failed"


class Videos(WireFormat):
    """Read a POST to `/videos`, or one that changes or lengthens a video, by its path's shape.

    Videos are sold by the second and told in no tokens: their usage and their price are unknown, and a cost limit
    refuses them unless it is told to let the unpriced through. Looks at one and its download ask no model.
    """

    def __init__(self, shape: str) -> None:
        self._shape = shape

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        return Call(
            operation=self._shape,
            endpoint=self._shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream,
            input_estimate=tokens_in(body.get("prompt")),
            server_address=host.address,
            server_port=host.port,
            parameters={"output_type": "video"},
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        failed = text(result, "status") == _FAILED
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            answers=1,
            error_type=(text(get(result, "error"), "code") or "video_failed") if failed else None,
        )

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return Collector()

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        prompt = text(request.body, "prompt")
        parts: list[Part] = [] if prompt is None else [{"type": "text", "content": prompt}]
        parts.extend(part_of(file, "image") for name, file in attached(request.files) if name == "input_reference")
        return Asked(messages=[{"role": "user", "parts": parts}]) if parts else None
