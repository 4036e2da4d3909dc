"""Assemble an answer from the events of a provider's native stream: its id and model, its text, and the tools that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ravi_otel._instrumentation.formats.content import message_of, parsed, tool_call
from ravi_otel._instrumentation.formats.fields import weight_of
from ravi_otel._instrumentation.formats.format import MOST_TEXT, MOST_USES, TextCollector
from ravi_otel.policy._usage import Call, Message, Part, Reply, ToolUse, Usage

_MOST_CAPTURED: Final = 128
_MOST_PARTS: Final = 1_000
_TOOL: Final = "tool_call"


class AnswerCollector(TextCollector):
    """The answer that a format's `add` assembles from the events of a stream: the last value of each field, all of texts and tool calls.

    The server chooses indexes, names and sizes, so each is bounded here.
    """

    __slots__ = ("_answers", "_captured", "_messages", "_reasons", "_uses", "ended", "error_type", "id", "model", "service_tier", "usage")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.id: str | None = None
        self.model: str | None = None
        self.usage: Usage | None = None
        self.service_tier: str | None = None
        self.error_type: str | None = None
        self.ended = False
        """Whether the provider has sent the last of its events."""
        self._answers = 0
        self._captured = MOST_TEXT if call.content is not None else 0
        self._messages: dict[int, list[Part]] = {}
        self._reasons: dict[int, str] = {}
        self._uses: list[ToolUse] = []

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self.ended

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return tuple(self._uses) if self._call.offers_tools else ()

    def begin(self) -> None:
        """Note that part of an answer has come."""
        self._answers = max(self._answers, 1)

    def say(self, piece: str | None, *, kind: str = "text", index: int = 0) -> bool:
        """Add a piece of the `index`-th answer's text, or of its reasoning; whether no limit needs to be checked for it."""
        if not piece:
            return False
        self.begin()
        self._keep(index, kind, piece)
        return self._add_text(piece, is_text=kind == "text" and index == 0)

    def finish(self, reason: str | None, index: int = 0) -> None:
        """Note why the `index`-th answer ended, in the semantic conventions' term."""
        if reason and (index in self._reasons or len(self._reasons) < _MOST_CAPTURED):
            self._reasons[index] = reason

    def ask(self, call_id: str | None, name: str | None, arguments: Any = "", *, index: int = 0) -> None:
        """Note that a tool is called; `argue` appends to arguments that are text."""
        self.begin()
        if len(self._uses) < MOST_USES:
            self._uses.append(ToolUse(call_id, name))
        self._weight += weight_of(name or "")
        parts = self._room_for(index)
        if parts is not None and len(parts) < _MOST_PARTS:
            parts.append(tool_call(call_id, name, arguments if isinstance(arguments, str) else parsed(arguments)))

    def argue(self, piece: str | None, index: int = 0) -> bool:
        """Add a piece to the arguments of the tool that was called last."""
        if not piece:
            return False
        parts = self._messages.get(index)
        if parts and parts[-1]["type"] == _TOOL and isinstance(said := parts[-1]["arguments"], str) and self._captured > 0:
            parts[-1]["arguments"] = said + piece[: self._captured]
            self._captured -= len(piece)
        return self._add_text(piece, is_text=False)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reply = Reply(
            id=self.id,
            model=self.model,
            usage=self.usage or (self._counted() if self._answers else None),
            finish_reasons=tuple(self._reasons[index] for index in sorted(self._reasons)),
            service_tier=self.service_tier,
            answers=max(self._answers, len(self._reasons)),
            error_type=self.error_type,
            tool_uses=tuple(self.tool_uses),
        )
        if self._call.content is not None:
            reply.output = self._written()
        return reply

    def _keep(self, index: int, kind: str, piece: str) -> None:
        parts = self._room_for(index)
        if parts is None or self._captured <= 0:
            return
        piece = piece[: self._captured]
        self._captured -= len(piece)
        if parts and parts[-1]["type"] == kind:
            parts[-1]["content"] += piece
        elif len(parts) < _MOST_PARTS:
            parts.append({"type": kind, "content": piece})

    def _room_for(self, index: int) -> list[Part] | None:
        """Return the list of an answer's parts; None where no content is captured, or too many answers are."""
        if self._call.content is None:
            return None
        if index not in self._messages and len(self._messages) >= _MOST_CAPTURED:
            return None
        return self._messages.setdefault(index, [])

    def _written(self) -> list[Message]:
        found: list[Message] = []
        for index in sorted(self._messages):
            parts = [
                {**part, "arguments": parsed(part["arguments"] or "{}")} if part["type"] == _TOOL else part
                for part in self._messages[index]
            ]
            found.append(message_of("assistant", parts, self._reasons.get(index)))
        return found
