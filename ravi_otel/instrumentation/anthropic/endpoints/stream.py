"""Follow a stream of messages: a start, blocks of content in pieces, why it stopped and what it used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ravi_otel.instrumentation.anthropic.endpoints import content
from ravi_otel.instrumentation.anthropic.endpoints.tools import MOST_USES, uses
from ravi_otel.instrumentation.anthropic.endpoints.usage import finish_reason, usage
from ravi_otel.instrumentation.formats.fields import count, fields_of, get, text, tokens_of_weight, weight_of
from ravi_otel.instrumentation.formats.format import Collector
from ravi_otel.policy.usage import Reply, ToolUse, Usage

_PIECES: Final = {
    "compaction_delta": "content",
    "input_json_delta": "partial_json",
    "text_delta": "text",
    "thinking_delta": "thinking",
}
"""Sorts of delta, and the field that holds the new piece of what the model wrote."""

_FIELDS: Final = {"compaction": "content", "text": "text", "thinking": "thinking"}
"""Sorts of block, and the field their pieces belong to; those of all others are JSON of their input."""

_MOST_BLOCKS: Final = 1_000


class MessagesCollector(Collector):
    """Follow one stream; `captured` keeps what it says, `tools` which tools it asks for."""

    __slots__ = (*("_blocks", "_chunks", "_estimate", "_id", "_last", "_model", "_started", "_stop", "_tier", "_told", "_uses", "_weight"),)

    def __init__(self, input_estimate: int, *, captured: bool = False, tools: bool = False) -> None:
        self._estimate = input_estimate
        self._started: Any = None
        self._told: Any = None
        self._last: Any = None
        self._id: str | None = None
        self._model: str | None = None
        self._tier: str | None = None
        self._stop: str | None = None
        self._weight = 0
        self._chunks = 0
        self._blocks: dict[int, _Block] | None = {} if captured else None
        self._uses: list[ToolUse] | None = [] if tools else None

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
        # One piece is at least one token; where several are packed together their text tells.
        return max(self._chunks, tokens_of_weight(self._weight))

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        known = self._told_first()
        return None if known is None else known.input_tokens

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        delta = get(self._last, "delta")
        return text(delta, "text") or "" if text(delta, "type") == "text_delta" else ""

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return tuple(self._uses or ())

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._last = event
        kind = text(event, "type")
        if kind == "content_block_delta":
            self._piece(event)
        elif kind == "content_block_start":
            self._block(event)
        elif kind == "message_start":
            self._start(get(event, "message"))
        elif kind == "message_delta":
            self._stop = text(get(event, "delta"), "stop_reason") or self._stop
            found = get(event, "usage")
            if found is not None:
                self._told = found

    def _start(self, message: Any) -> None:
        self._id, self._model = text(message, "id"), text(message, "model")
        self._started = get(message, "usage")
        self._tier = text(self._started, "service_tier")
        self._stop = text(message, "stop_reason")

    def _block(self, event: Any) -> None:
        block = get(event, "content_block")
        # What a block starts with is what it holds whole where no pieces follow, a search's results for one.
        for name in ("text", "thinking", "name"):
            self._weight += weight_of(text(block, name) or "")
        if self._blocks is not None and len(self._blocks) < _MOST_BLOCKS:
            self._blocks[count(get(event, "index")) or 0] = _Block(block)
        if self._uses is not None and len(self._uses) < MOST_USES:
            self._uses.extend(uses((block,)))

    def _piece(self, event: Any) -> None:
        delta = get(event, "delta")
        name = _PIECES.get(text(delta, "type") or "")
        piece = None if name is None else text(delta, name)
        if piece:
            self._chunks += 1
            self._weight += weight_of(piece)
            if self._blocks is not None:
                block = self._blocks.get(count(get(event, "index")) or 0)
                if block is not None:
                    block.pieces.append(piece)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reason = finish_reason(self._stop)
        reported = None if self._told is None else usage(self._told, self._started)
        reply = Reply(
            id=self._id,
            model=self._model,
            usage=reported or self._counted(),
            finish_reasons=() if reason is None else (reason,),
            service_tier=self._tier,
            answers=int(self._id is not None),
            tool_uses=tuple(self.tool_uses),
        )
        if self._blocks is not None:
            reply.output = content.answered([self._blocks[at].whole() for at in sorted(self._blocks)], self._stop)
        return reply

    def _told_first(self) -> Usage | None:
        known = None if self._started is None else usage(self._started)
        return None if known is None or known.total_only else known

    def _counted(self) -> Usage | None:
        """Count what came of a stream that did not tell: its input is told at the start, its output is not."""
        if self._id is None and self._started is None and not self._chunks:
            return None
        known = self._told_first() or Usage(input_tokens=self._estimate)
        output = max(known.output_tokens, self.produced)
        return replace(known, output_tokens=output, total_tokens=known.input_tokens + output, source="estimated")


class _Block:
    """Put one block of content together."""

    __slots__ = ("_first", "pieces")

    def __init__(self, first: Any) -> None:
        self._first = first
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        block = fields_of(self._first)
        if not self.pieces:
            return block
        told = "".join(self.pieces)
        name = _FIELDS.get(str(block.get("type")))
        if name is not None:
            first = block.get(name)
            return {**block, name: f"{first}{told}" if isinstance(first, str) else told}
        try:
            return {**block, "input": json.loads(told)}
        except (ValueError, RecursionError):
            return {**block, "input": told}  # cut short, or never JSON
