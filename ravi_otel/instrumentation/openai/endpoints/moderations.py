"""Read moderations, which judge and are free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ravi_otel.instrumentation.formats.fields import get, items, text
from ravi_otel.instrumentation.formats.format import Collector, Request, WireFormat
from ravi_otel.policy.content import Asked, Part
from ravi_otel.policy.usage import Call, Reply


class Moderations(WireFormat):
    """Read `/moderations`: a request of no tokens, which is never refused for want of a price."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        return Call(
            operation="moderations",
            endpoint="moderations",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            turn=False,
            stream=request.stream,
            server_address=host.address,
            server_port=host.port,
            unread=True,  # it costs nothing
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(id=text(result, "id"), model=text(result, "model"), answers=len(items(result, "results")))

    def bound(self, request: Request, call: Call) -> None:  # noqa: ARG002 - the protocol's
        """See `WireFormat.bound`; nothing is counted."""
        call.output_cap = call.input_bound = 0

    def collector(self, call: Call) -> Collector:  # noqa: ARG002 - the protocol's
        """See `WireFormat.collector`."""
        return Collector()

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        given = request.body.get("input")
        several = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else (given,)
        parts = [part for each in several if (part := _part(each)) is not None]
        return Asked(messages=[{"role": "user", "parts": parts}]) if parts else None


def _part(given: Any) -> Part | None:
    said = given if isinstance(given, str) else text(given, "text")
    if said is not None:
        return {"type": "text", "content": said}
    address = text(get(given, "image_url"), "url")
    return None if address is None else {"type": "uri", "modality": "image", "mime_type": None, "uri": address}
