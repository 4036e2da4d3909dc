"""Read the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.fields import count, get, items, text, tokens_in, tokens_of_weight, usage_of, weight_of
from ravi_otel.policy.usage import Call, Reply, Usage

_PER_ITEM = 4
_PER_REQUEST = 3
_INPUT_FIELDS = ("input", "instructions", "tools", "text")
_SAME_NAMES = ("temperature", "top_p", "service_tier")
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}
_FINISHED = {"completed": "stop", "failed": "error", "cancelled": "error", "incomplete": "length"}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Responses:
    """Read `/responses`."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        body, host = request.body, request.host
        given = body.get("input")
        size = len(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else int(isinstance(given, str))
        return Call(
            operation="chat",
            endpoint="responses",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=sum(tokens_in(body.get(name)) for name in _INPUT_FIELDS) + size * _PER_ITEM + _PER_REQUEST,
            output_cap=count(body.get("max_output_tokens")),
            messages=size + int(isinstance(body.get("instructions"), str)),
            previous_response_id=text(body, "previous_response_id"),
            server_address=host.address,
            server_port=host.port,
            parameters=_parameters(body),
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        status = text(result, "status")
        error = get(result, "error")
        conversation = get(result, "conversation")
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            usage=usage(get(result, "usage")),
            finish_reasons=_finish_reasons(result, status),
            service_tier=text(result, "service_tier"),
            conversation_id=conversation if isinstance(conversation, str) else text(conversation, "id"),
            answers=len(items(result, "output")),
            error_type=(text(error, "code") or "response_failed") if status == "failed" else None,
        )

    def collector(self, call: Call) -> ResponsesCollector:
        """See `Endpoint.collector`."""
        return ResponsesCollector(call.input_estimate, self)


def usage(found: Any) -> Usage | None:
    """Read the usage object of a response."""
    return usage_of(
        found,
        inputs="input_tokens",
        outputs="output_tokens",
        input_details="input_tokens_details",
        output_details="output_tokens_details",
    )


class ResponsesCollector:
    """Follow a Responses stream: the object it starts with, the text between, the object it ends with."""

    __slots__ = ("_chunks", "_endpoint", "_error", "_estimate", "_final", "_response", "_weight")

    def __init__(self, input_estimate: int, endpoint: Responses) -> None:
        self._endpoint = endpoint
        self._estimate = input_estimate
        self._response: Any = None
        self._final = False
        self._error: str | None = None
        self._weight = 0
        self._chunks = 0

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._final

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        delta = get(event, "delta")
        if isinstance(delta, str):
            self._chunks += bool(delta)
            self._weight += len(delta) * 3 if delta.isascii() else weight_of(delta)
            return
        response = get(event, "response")
        if response is not None:
            self._response = response
            self._final = self._final or get(event, "type") in _TERMINAL
        elif get(event, "type") == "error":
            self._error = text(event, "code") or "error"

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        told = self._endpoint.reply(self._response)
        reported = told.usage
        if reported is None and self._response is not None:
            output = max(self._chunks, tokens_of_weight(self._weight))
            reported = Usage(input_tokens=self._estimate, output_tokens=output, source="estimated")
        return Reply(
            id=told.id,
            model=told.model,
            usage=reported,
            finish_reasons=told.finish_reasons,
            service_tier=told.service_tier,
            conversation_id=told.conversation_id,
            answers=told.answers,
            error_type=told.error_type or self._error,
        )


def _finish_reasons(result: Any, status: str | None) -> tuple[str, ...]:
    if status == "incomplete":
        reason = text(get(result, "incomplete_details"), "reason")
        return (("length" if reason == "max_output_tokens" else reason) or "length",)
    if status == "completed" and any(text(item, "type") == "function_call" for item in items(result, "output")):
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
