"""Read legacy text completions, which tell no usage; clients have them up to 1.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ravi_otel.instrumentation.anthropic.endpoints.usage import finish_reason
from ravi_otel.instrumentation.http.bounds import bound, capless
from ravi_otel.instrumentation.http.contract import Quiet, Request, Wordless
from ravi_otel.instrumentation.http.fields import count, text, tokens_in, tokens_of_weight, weight_of
from ravi_otel.policy.usage import Call, Reply, Usage

_SAME_NAMES = ("temperature", "top_p", "top_k", "stop_sequences")


class Completions(Wordless):
    """Read `/v1/complete`."""

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        body, host = request.body, request.host
        cap = count(body.get("max_tokens_to_sample"))
        found = {name: body[name] for name in _SAME_NAMES if isinstance(body.get(name), (int, float, list, tuple))}
        return Call(
            operation="text_completion",
            endpoint="complete",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=text(body, "model"),
            stream=request.stream,
            input_estimate=tokens_in(body.get("prompt")) + 1,
            output_cap=cap,
            server_address=host.address,
            server_port=host.port,
            parameters=found if cap is None else {**found, "max_tokens": cap},
        )

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        reason = finish_reason(text(result, "stop_reason"))
        return Reply(
            id=text(result, "id"),
            model=text(result, "model"),
            finish_reasons=() if reason is None else (reason,),
            answers=int(text(result, "completion") is not None),
        )

    def collector(self, call: Call) -> CompletionsCollector:
        """See `Endpoint.collector`."""
        return CompletionsCollector(call.input_estimate)

    def bound(self, request: Request, call: Call) -> None:
        """See `Endpoint.bound`."""
        bound(request, call, capless(request.body, "max_tokens_to_sample"))

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.cap`."""
        return {"max_tokens_to_sample": cap}


class CompletionsCollector(Quiet):
    """Follow a stream of whole answers with a little text each."""

    __slots__ = ("_chunks", "_estimate", "_last", "_stop", "_weight")

    def __init__(self, input_estimate: int) -> None:
        self._estimate = input_estimate
        self._last: Any = None
        self._stop: str | None = None
        self._chunks = 0
        self._weight = 0

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._stop is not None

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._weight > 0

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        # One event is at least one token; where several are packed together their text tells.
        return max(self._chunks, tokens_of_weight(self._weight))

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        return text(self._last, "completion") or ""

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._last = event
        self._stop = text(event, "stop_reason") or self._stop
        piece = text(event, "completion")
        if piece:
            self._chunks += 1
            self._weight += weight_of(piece)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        if self._last is None:
            return Reply()
        reason = finish_reason(self._stop)
        return Reply(
            id=text(self._last, "id"),
            model=text(self._last, "model"),
            usage=Usage(input_tokens=self._estimate, output_tokens=self.produced, source="estimated"),
            finish_reasons=() if reason is None else (reason,),
            answers=1,
        )
