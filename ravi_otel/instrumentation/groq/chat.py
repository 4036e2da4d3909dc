"""Read groq's chat completions: usage comes unasked under `x_groq` in the last chunk, thoughts under `reasoning`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ravi_otel.instrumentation.groq.below import Below
from ravi_otel.instrumentation.http.contract import Collector
from ravi_otel.instrumentation.http.fields import get, items, text, tokens_of_weight, weight_of
from ravi_otel.instrumentation.openai.endpoints.chat import usage
from ravi_otel.policy.usage import Call, Reply, ToolUse, Usage

FAILED = "x_groq_error"
"""The `error.type` of a stream whose chunk reports a failure, which the client does not raise."""


class GroqChat(Below):
    """Read `/openai/v1/chat/completions`."""

    __slots__ = ()

    def collector(self, call: Call) -> GroqCollector:
        """See `Endpoint.collector`."""
        return GroqCollector(super().collector(call))


class GroqCollector:
    """Follow a chat stream, and what groq adds to it."""

    __slots__ = ("_error", "_inner", "_thought", "_usage")

    def __init__(self, inner: Collector) -> None:
        self._inner = inner
        self._usage: Any = None
        self._error = False
        self._thought = 0

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._inner.complete

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._thought > 0 or self._inner.spoke

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        return self._inner.produced + tokens_of_weight(self._thought)

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        return self._inner.told_input

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        return self._inner.said

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return self._inner.tool_uses

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._inner.add(event)
        told = get(event, "x_groq")
        if told is not None:
            self._usage = get(told, "usage") or self._usage
            self._error = self._error or bool(text(told, "error"))
        for choice in items(event, "choices"):
            thought = text(get(choice, "delta"), "reasoning")
            if thought:
                self._thought += weight_of(thought)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reply = self._inner.reply()
        known = reply.usage
        if known is None or known.source != "reported":
            reply.usage = usage(self._usage) or self._with_thoughts(known)
        if self._error:
            reply.error_type = FAILED
        return reply

    def _with_thoughts(self, counted: Usage | None) -> Usage | None:
        if counted is None or not self._thought:
            return counted
        output = counted.output_tokens + tokens_of_weight(self._thought)
        return replace(counted, output_tokens=output, total_tokens=counted.input_tokens + output)
