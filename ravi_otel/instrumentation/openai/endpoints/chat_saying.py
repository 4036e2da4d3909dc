"""Put together what a stream of a chat says, when content is captured: texts, thoughts, sounds, and tool calls in pieces."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final

from ravi_otel.instrumentation.http.contract import Collector
from ravi_otel.instrumentation.http.fields import count, get, items, text
from ravi_otel.instrumentation.openai.endpoints.chat_content import finished, tool_call
from ravi_otel.policy.content import Message, Part
from ravi_otel.policy.usage import Reply, ToolUse

_MOST_CHOICES: Final = 128
_MOST_CALLS: Final = 128
_MOST_TEXT: Final = 1_000_000
"""Characters of one stream that are kept; what is told of them is cut far shorter."""
_MOST_SOUND: Final = 32 * 1024 * 1024


class Telling:
    """Follow a stream with another collector, and keep what it says besides."""

    __slots__ = ("_collector", "_saying")

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._saying = Saying()

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._collector.complete

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._collector.spoke

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        return self._collector.produced

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        return self._collector.told_input

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        return self._collector.said

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return self._collector.tool_uses

    def add(self, event: Any) -> None:
        """See `Collector.add`."""
        self._collector.add(event)
        self._saying.add(event)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reply = self._collector.reply()
        reply.output = self._saying.messages()
        return reply


class Saying:
    """Gather the pieces of all choices; indexes and sizes are the server's to claim and ours to bound."""

    __slots__ = ("_choices", "_room", "_sound")

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._room = _MOST_TEXT
        self._sound = _MOST_SOUND

    def add(self, event: Any) -> None:
        """Take in one chunk of a chat."""
        for choice in items(event, "choices"):
            known = self._choice(count(get(choice, "index")) or 0)
            if known is None:
                continue
            reason = text(choice, "finish_reason")
            if reason is not None:
                known.reason = reason
            delta = get(choice, "delta")
            if delta is not None:
                self._add(known, delta)

    def _choice(self, index: int) -> _Choice | None:
        known = self._choices.get(index)
        if known is None and len(self._choices) < _MOST_CHOICES:
            known = self._choices[index] = _Choice()
        return known

    def _add(self, known: _Choice, delta: Any) -> None:
        known.role = text(delta, "role") or known.role
        for name, pieces in (
            ("content", known.content),
            ("reasoning_content", known.thought),
            ("reasoning", known.thought),
            ("refusal", known.refusal),
        ):
            said = text(delta, name)
            if said and not (name == "reasoning" and text(delta, "reasoning_content")):
                pieces.append(self._kept(said))
        for call in items(delta, "tool_calls"):
            self._call(known, call)
        legacy = get(delta, "function_call")
        if legacy is not None:
            self._call(known, {"index": 0, "function": legacy})
        audio = get(delta, "audio")
        if audio is not None:
            self._hear(known, audio)

    def _call(self, known: _Choice, call: Any) -> None:
        call_id = text(call, "id")
        at = known.place(count(get(call, "index")), call_id)
        if at is None:
            return
        function = get(call, "function")
        holder = get(call, "custom") if function is None else function
        at.id = at.id or call_id
        at.name += self._kept(text(holder, "name") or "")
        at.custom = at.custom or function is None
        piece = text(holder, "arguments") or text(holder, "input")
        if piece:
            at.arguments.append(self._kept(piece))

    def _hear(self, known: _Choice, audio: Any) -> None:
        said, data = text(audio, "transcript"), text(audio, "data")
        if said:
            known.content.append(self._kept(said))
        if data and len(data) <= self._sound:
            self._sound -= len(data)
            try:
                known.sound += binascii.a2b_base64(data)
            except ValueError:
                known.sound += data.encode("utf-8", "replace")

    def _kept(self, piece: str) -> str:
        kept = piece[: self._room]
        self._room -= len(kept)
        return kept

    def messages(self) -> list[Message]:
        """Give the answer so far, a message for each choice."""
        return [finished(choice.role, choice.parts(), choice.reason) for _, choice in sorted(self._choices.items())]


class _Call:
    __slots__ = ("arguments", "custom", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.custom = False
        self.arguments: list[str] = []

    def part(self) -> Part:
        said = "".join(self.arguments)
        if self.custom:
            return {"type": "tool_call", "id": self.id, "name": self.name, "arguments": said}
        return tool_call(self.id, self.name, said)


class _Choice:
    __slots__ = ("_last", "calls", "content", "reason", "refusal", "role", "sound", "thought")

    def __init__(self) -> None:
        self.role = "assistant"
        self.reason: str | None = None
        self.content: list[str] = []
        self.thought: list[str] = []
        self.refusal: list[str] = []
        self.sound = bytearray()
        self.calls: dict[int, _Call] = {}
        self._last: _Call | None = None

    def place(self, index: int | None, call_id: str | None) -> _Call | None:
        """Find the call a piece belongs to: by its index; without one a new id begins a call, and the last goes on."""
        if index is None:
            if self._last is not None and (call_id is None or call_id == self._last.id):
                return self._last
            index = max(self.calls, default=-1) + 1
        found = self.calls.get(index)
        if found is None:
            if len(self.calls) >= _MOST_CALLS:
                return None
            found = self.calls[index] = _Call()
        self._last = found
        return found

    def parts(self) -> list[Part]:
        found: list[Part] = []
        for kind, pieces in (("reasoning", self.thought), ("text", self.content), ("refusal", self.refusal)):
            if pieces:
                found.append({"type": kind, "content": "".join(pieces)})
        if self.sound:
            found.append({"type": "blob", "modality": "audio", "mime_type": None, "content": bytes(self.sound)})
        return [*found, *(call.part() for _, call in sorted(self.calls.items()))]
