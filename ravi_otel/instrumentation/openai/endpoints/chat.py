"""Read chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ravi_otel.instrumentation.openai.endpoints.contract import Request
from ravi_otel.instrumentation.openai.fields import count, get, items, text, tokens_in, tokens_of_weight, usage_of, weight_of
from ravi_otel.policy.usage import Call, Reply, Usage

_PER_MESSAGE = 4
_PER_REQUEST = 3
_SAME_NAMES = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "service_tier"})
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}
_OTHER_FIELDS = ("tools", "functions", "response_format")
"""What of a request counts as input besides the messages."""


class Chat:
    """Read `/chat/completions`."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        body, host = request.body, request.host
        messages = body.get("messages")
        known = isinstance(messages, (list, tuple))
        size = len(cast("Sequence[Any]", messages)) if known else 0
        cap = count(body.get("max_completion_tokens"))
        estimate = tokens_in(messages)
        for name in _OTHER_FIELDS:
            if name in body:
                estimate += tokens_in(body[name])
        return Call(
            operation="chat",
            endpoint="chat.completions",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=estimate + size * _PER_MESSAGE + _PER_REQUEST,
            output_cap=count(body.get("max_tokens")) if cap is None else cap,
            choices=max(1, count(body.get("n")) or 1),
            messages=size if known else None,
            server_address=host.address,
            server_port=host.port,
            parameters=parameters(body),
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        choices = items(result, "choices")
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            usage=usage(get(result, "usage")),
            finish_reasons=tuple(reason for choice in choices if (reason := text(choice, "finish_reason")) is not None),
            service_tier=text(result, "service_tier"),
            system_fingerprint=text(result, "system_fingerprint"),
            answers=len(choices),
        )

    def collector(self, call: Call) -> ChatCollector:
        """See `Endpoint.collector`."""
        return ChatCollector(call.input_estimate)


def usage(found: Any) -> Usage | None:
    """Read the usage object of a chat completion."""
    return usage_of(
        found,
        inputs="prompt_tokens",
        outputs="completion_tokens",
        input_details="prompt_tokens_details",
        output_details="completion_tokens_details",
    )


class ChatCollector:
    """Follow a chat stream: what names it, why it ended, and how much text came."""

    __slots__ = ("_chunks", "_estimate", "_finish", "_first", "_named", "_usage", "_weight")

    def __init__(self, input_estimate: int) -> None:
        self._estimate = input_estimate
        self._first: Any = None
        self._named = False
        self._usage: Any = None
        self._finish: dict[int, str] = {}
        self._weight = 0
        self._chunks = 0

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return bool(self._finish)

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        # One more piece of plain text is what nearly all chunks are; it stands between the network and the user.
        try:
            (choice,) = event.choices
            content = choice.delta.content
            if (
                type(content) is str
                and content.isascii()
                and content
                and choice.finish_reason is None
                and event.usage is None
                and self._named
            ):
                self._chunks += 1
                self._weight += len(content) * 3
                return
        except Exception:  # noqa: BLE001, S110 - none of those: read with care below
            pass
        self._add(event)

    def _add(self, event: Any) -> None:
        if not self._named:
            self._name(event)
        found = get(event, "usage")
        if found is not None:
            self._usage = found
        for choice in items(event, "choices"):
            reason = get(choice, "finish_reason")
            if isinstance(reason, str):
                self._finish[count(get(choice, "index")) or 0] = reason
            self._weigh(choice)

    def _weigh(self, choice: Any) -> None:
        delta = get(choice, "delta")
        content = get(delta, "content")
        if isinstance(content, str):
            self._chunks += bool(content)
            self._weight += weight_of(content)
        elif delta is not None:
            self._weight += _other_weight(delta)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        first = self._first
        return Reply(
            id=text(first, "id") or None,
            model=text(first, "model") or None,
            usage=usage(self._usage) or self._counted(),
            finish_reasons=tuple(self._finish[index] for index in sorted(self._finish)),
            service_tier=text(first, "service_tier"),
            system_fingerprint=text(first, "system_fingerprint"),
            answers=max(1, len(self._finish)) if first is not None else 0,
        )

    def _name(self, event: Any) -> None:
        # A chunk of prompt filter results may come first, whose id and model are empty.
        self._named = bool(text(event, "id"))
        if self._named or self._first is None:
            self._first = event

    def _counted(self) -> Usage | None:
        if self._first is None:
            return None
        # One chunk is at least one token; where several are packed together their text tells.
        output = max(self._chunks, tokens_of_weight(self._weight))
        return Usage(input_tokens=self._estimate, output_tokens=output, source="estimated")


def _other_weight(delta: Any) -> int:
    size = weight_of(text(delta, "refusal") or "") + weight_of(text(delta, "reasoning_content") or "")
    for call in items(delta, "tool_calls"):
        function = get(call, "function")
        size += weight_of(text(function, "name") or "") + weight_of(text(function, "arguments") or "")
    return size


def parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the request's settings under their neutral names."""
    found = {name: value for name, value in body.items() if name in _SAME_NAMES and value is not None}
    cap = body.get("max_completion_tokens", body.get("max_tokens"))
    if cap is not None:
        found["max_tokens"] = cap
    stop = body.get("stop")
    if stop is not None:
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if isinstance(body.get("reasoning_effort"), str):
        found["reasoning_level"] = body["reasoning_effort"]
    kind = text(body["response_format"], "type") if "response_format" in body else None
    if kind in _OUTPUT_TYPES:
        found["output_type"] = _OUTPUT_TYPES[kind]
    return found
