"""Read the Responses API: what asks a model for a response, and the response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel.instrumentation.formats.fields import count, get, items, text, tokens_in, usage_of
from ravi_otel.instrumentation.formats.format import Request, WireFormat
from ravi_otel.instrumentation.openai.endpoints import bounds, responses_content, responses_tools
from ravi_otel.instrumentation.openai.endpoints.responses_stream import ResponsesCollector
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, ToolUse, Usage
from ravi_otel.runtime.awaited import key_of
from ravi_otel.runtime.conversations import CONVERSATIONS

_PER_ITEM = 4
_PER_REQUEST = 3
_INPUT_FIELDS = ("input", "instructions", "tools", "text")
_SAME_NAMES = ("temperature", "top_p", "service_tier")
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}
_FINISHED = {"completed": "stop", "failed": "error", "cancelled": "error", "incomplete": "length"}
_AT_WORK: Final = frozenset({"queued", "in_progress"})
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_MOST_ITEMS: Final = 10_000


class Responses(WireFormat):
    """Read `/responses`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        instructed = int(isinstance(body.get("instructions"), str))
        given = body.get("input")
        size = len(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else int(isinstance(given, str))
        call = Call(
            operation="chat",
            endpoint="responses",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=sum(tokens_in(body.get(name)) for name in _INPUT_FIELDS) + size * _PER_ITEM + _PER_REQUEST,
            output_cap=count(body.get("max_output_tokens")),
            messages=size + instructed,
            unchained=instructed,
            previous_response_id=text(body, "previous_response_id"),
            server_address=host.address,
            server_port=host.port,
            parameters=_parameters(body),
            offers_tools=responses_tools.offered(body),
        )
        goes_on = call.previous_response_id or call.parameters.get("conversation_id")
        if goes_on is not None:
            call.messages = size + instructed + CONVERSATIONS.before(key_of(call, goes_on))
        return call

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`; an answer that is still being made, in the background, has no usage yet."""
        status = text(result, "status")
        error = get(result, "error")
        conversation = get(result, "conversation")
        output = items(result, "output")
        reported = usage(get(result, "usage"))
        if reported is not None:
            reported.searches = _searches(result, output)
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            usage=reported,
            finish_reasons=_finish_reasons(result, status),
            service_tier=text(result, "service_tier"),
            conversation_id=conversation if isinstance(conversation, str) else text(conversation, "id"),
            answers=len(output),
            error_type=(text(error, "code") or "response_failed") if status == "failed" else None,
            pending=status in _AT_WORK and reported is None,
        )

    def collector(self, call: Call) -> ResponsesCollector:
        """See `WireFormat.collector`."""
        return ResponsesCollector(self, call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return responses_content.asked(request.body)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return responses_content.answered(items(result, "output"), _finish_reasons(result, text(result, "status")))

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        return responses_tools.uses(items(result, "output"))

    def tool_results(self, request: Request) -> tuple[str, ...]:
        """See `WireFormat.tool_results`."""
        return responses_tools.results(request.body)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        bounds.bound_response(request, call)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the protocol's
        """See `WireFormat.cap`."""
        return {"max_output_tokens": cap}


class Compact(Responses):
    """Read `/responses/compact`, where a model shortens a conversation: it is asked, and that is no turn."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        call = super().call(request)
        call.operation = call.endpoint = "responses.compact"
        call.turn = False
        return call

    def bound(self, request: Request, call: Call) -> None:  # noqa: ARG002 - the protocol's
        """See `WireFormat.bound`; what it answers cannot be capped."""
        call.unbounded, call.least_cap = call.endpoint, 0


def usage(found: Any) -> Usage | None:
    """Read the usage object of a response."""
    return usage_of(
        found,
        inputs="input_tokens",
        outputs="output_tokens",
        input_details="input_tokens_details",
        output_details="output_tokens_details",
    )


def _searches(result: Any, output: Sequence[Any]) -> int:
    """Count the searches that are billed: as the answer says, or else those among its items; opening a page is none."""
    told = count(get(get(get(result, "tool_usage"), "web_search"), "num_requests"))
    return told if told is not None else sum(_is_search(item) for item in output[:_MOST_ITEMS])


def _is_search(item: Any) -> bool:
    if text(item, "type") != "web_search_call" or text(item, "status") == "failed":
        return False
    return text(get(item, "action"), "type") in ("search", None)


def _finish_reasons(result: Any, status: str | None) -> tuple[str, ...]:
    if status == "incomplete":
        reason = text(get(result, "incomplete_details"), "reason")
        return (("length" if reason == "max_output_tokens" else reason) or "length",)
    if status == "completed" and any(text(item, "type") in _CALLS for item in items(result, "output")[:_MOST_ITEMS]):
        return ("tool_calls",)
    found = _FINISHED.get(status or "")
    return () if found is None else (found,)


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: body[name] for name in _SAME_NAMES if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        found["max_tokens"] = body["max_output_tokens"]
    effort = text(body.get("reasoning"), "effort")
    if effort is not None:
        found["reasoning_level"] = effort
    kind = text(get(body.get("text"), "format"), "type")
    if kind in _OUTPUT_TYPES:
        found["output_type"] = _OUTPUT_TYPES[kind]
    conversation = body.get("conversation")
    named = conversation if isinstance(conversation, str) else text(conversation, "id")
    if named is not None:
        found["conversation_id"] = named
    return found
