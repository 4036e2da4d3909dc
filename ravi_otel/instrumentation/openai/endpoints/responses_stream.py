"""Follow a stream of the Responses API: the object it starts with, the text between, the object it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ravi_otel.instrumentation.formats.fields import count, get, items, text, tokens_of_weight, weight_of
from ravi_otel.instrumentation.formats.format import Collector, WireFormat
from ravi_otel.instrumentation.openai.endpoints import responses_content, responses_tools
from ravi_otel.policy.content import Message
from ravi_otel.policy.usage import Call, Reply, ToolUse, Usage
from ravi_otel.runtime.awaited import AWAITED, key_of

_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_TEXT: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})


class ResponsesCollector(Collector):
    """Follow one stream. One made in the background goes on without it: then its usage comes with a later look."""

    __slots__ = (
        *("_begun", "_call", "_chunks", "_error", "_estimate", "_final", "_last"),
        *("_items", "_name", "_reader", "_response", "_texts", "_uses", "_weight"),
    )

    def __init__(self, reader: WireFormat, call: Call, *, name: str | None = None) -> None:
        """Follow a stream that `reader` reads; one with a `name` is a look at what was begun before under it."""
        self._reader = reader
        self._call = call
        self._estimate = call.input_estimate if name is None else None
        self._name = name
        self._response: Any = None
        self._begun = False
        self._last: Any = None
        self._final = False
        self._error: str | None = None
        self._weight = 0
        self._chunks = 0
        self._items: dict[int, Any] | None = {} if call.content is not None else None
        self._texts: dict[int, list[str]] = {}
        self._uses: list[ToolUse] | None = [] if call.offers_tools else None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._final

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._weight > 0

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        # One delta is at least one token; where several are packed together their text tells.
        return max(self._chunks, tokens_of_weight(self._weight))

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        return text(self._last, "delta") or "" if text(self._last, "type") in _TEXT else ""

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`: what it ends with says, or where that is empty, what came before."""
        whole = responses_tools.uses(items(self._response, "output")) if self._final and self._uses is not None else ()
        return whole or tuple(self._uses or ())

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._last = event
        delta = get(event, "delta")
        if isinstance(delta, str):
            self._chunks += bool(delta)
            self._weight += len(delta) * 3 if delta.isascii() else weight_of(delta)
            if self._items is not None:
                self._write(event, delta)
            return
        response = get(event, "response")
        if response is not None:
            self._respond(event, response)
            return
        kind = get(event, "type")
        if kind == "error":
            self._error = text(event, "code") or "error"
        elif kind == "response.output_item.done":
            item = get(event, "item")
            if self._items is not None:
                place = count(get(event, "output_index"))
                self._items[len(self._items) if place is None else place] = item
            if self._uses is not None and len(self._uses) < responses_tools.MOST_USES:
                self._uses.extend(responses_tools.uses((item,)))

    def _respond(self, event: Any, response: Any) -> None:
        self._response = response
        self._final = self._final or get(event, "type") in _TERMINAL
        if not self._begun and self._estimate is not None and get(response, "background") is True:
            self._begun = True
            AWAITED.streams(key_of(self._call, text(response, "id")))

    def _write(self, event: Any, delta: str) -> None:
        if get(event, "type") in _TEXT:
            self._texts.setdefault(count(get(event, "output_index")) or 0, []).append(delta)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        told = self._reader.reply(self._response)
        told.id = told.id or self._name
        told.error_type = told.error_type or self._error
        told.pending = self._pending(told)
        if told.usage is None and not told.pending and self._estimate is not None and self._response is not None:
            told.usage = self._counted(self._estimate)
        if self._begun and not told.pending:
            AWAITED.ended(key_of(self._call, told.id))
        if self._uses is not None:
            told.tool_uses = tuple(self.tool_uses)
        return told if self._items is None else replace(told, output=self._said(told))

    def _pending(self, told: Reply) -> bool:
        if self._final or told.usage is not None:
            return False
        return self._begun or self._estimate is None

    def _counted(self, estimate: int) -> Usage:
        return Usage(input_tokens=estimate, output_tokens=self.produced, source="estimated")

    def _said(self, told: Reply) -> list[Message]:
        """Write the items that are whole, and of the others the text that came."""
        whole = self._items or {}
        if self._final:
            found = items(self._response, "output")
            if found:
                return responses_content.answered(found, told.finish_reasons)
        part = {at: {"type": "message", "content": "".join(texts)} for at, texts in self._texts.items()}
        merged = {**part, **whole}
        return responses_content.answered([merged[at] for at in sorted(merged)], told.finish_reasons)
