"""Read the Messages API, plain and beta, and what a stream of it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.anthropic.endpoints import content, tools
from ravi_otel.instrumentation.anthropic.endpoints.bounds import bound_message
from ravi_otel.instrumentation.anthropic.endpoints.stream import MessagesCollector
from ravi_otel.instrumentation.anthropic.endpoints.usage import finish_reason, usage
from ravi_otel.instrumentation.formats.fields import count, get, items, text, tokens_in
from ravi_otel.instrumentation.formats.format import Request, WireFormat
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, ToolUse

_PER_MESSAGE: Final = 4
_PER_REQUEST: Final = 3
_INPUT_FIELDS: Final = ("messages", "system", "tools", "output_format")
_SAME_NAMES: Final = ("temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "service_tier")
_PLAIN: Final = (str, int, float, list, tuple)


class Messages(WireFormat):
    """Read `/v1/messages`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        messages = body.get("messages")
        known = isinstance(messages, (list, tuple))
        size = len(cast("Sequence[Any]", messages)) if known else 0
        told = isinstance(body.get("system"), (str, list, tuple))
        return Call(
            operation="chat",
            endpoint="messages",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=sum(tokens_in(_given(body, name)) for name in _INPUT_FIELDS) + (size + told) * _PER_MESSAGE + _PER_REQUEST,
            output_cap=count(body.get("max_tokens")),
            messages=size + told if known else None,
            server_address=host.address,
            server_port=host.port,
            parameters=parameters(body),
            offers_tools="tools" in body,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        used, reason = get(result, "usage"), finish_reason(text(result, "stop_reason"))
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            usage=usage(used),
            finish_reasons=() if reason is None else (reason,),
            service_tier=text(used, "service_tier"),
            answers=int(isinstance(get(result, "content"), (list, tuple))),
        )

    def collector(self, call: Call) -> MessagesCollector:
        """See `WireFormat.collector`."""
        return MessagesCollector(call.input_estimate, captured=call.content is not None, tools=call.offers_tools)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return content.asked(request.body)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return content.answered(get(result, "content"), text(result, "stop_reason"))

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        return tools.uses(items(result, "content"))

    def tool_results(self, request: Request) -> tuple[str, ...]:
        """See `WireFormat.tool_results`."""
        return tools.results(request.body)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        bound_message(request, call)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the protocol's
        """See `WireFormat.cap`."""
        return {"max_tokens": cap}


def _given(body: Mapping[str, Any], name: str) -> Any:
    """Give a field; None for the client's marks of what was left out."""
    value: Any = body.get(name)
    return cast("Any", value) if isinstance(value, (str, list, tuple, Mapping)) else None


def parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the request's settings under their neutral names."""
    found = {name: body[name] for name in _SAME_NAMES if isinstance(body.get(name), _PLAIN)}
    config = body.get("output_config")
    effort = text(config, "effort")
    if effort is not None:
        found["reasoning_level"] = effort
    for wanted in (get(config, "format"), body.get("output_format")):
        if text(wanted, "type") == "json_schema":
            found["output_type"] = "json"
    return found
