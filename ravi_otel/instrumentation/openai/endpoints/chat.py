"""Read chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ravi_otel.instrumentation.http.contract import Collector, Request, Wordless
from ravi_otel.instrumentation.http.fields import count, get, items, rare, text, tokens_in, usage_of, weight_of
from ravi_otel.instrumentation.openai.endpoints import bounds, chat_content, chat_tools
from ravi_otel.instrumentation.openai.endpoints.chat_saying import Telling
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, ToolUse, Usage

_PER_MESSAGE = 4
_PER_REQUEST = 3
_SAME_NAMES = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "service_tier", "top_k"})
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}
_OTHER_FIELDS = ("tools", "functions", "response_format")
"""What of a request counts as input besides the messages."""
_MOST_CHOICES = 4_096
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details")
"""Where hosts stream a model's thoughts: DeepSeek and older vLLM, newer vLLM and OpenRouter, OpenRouter's parts."""

_PART_TEXTS = ("text", "summary", "thinking", "data")
_SOUND_TOKEN = 3_200
"""Characters of base64 to a token of sound: 50 ms of 16 bits at 24 kHz, as streams of sound are sent."""


class Chat(Wordless):
    """Read `/chat/completions`."""

    @property
    def usage_on_request(self) -> bool:
        """See `Endpoint.usage_on_request`."""
        return True

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
            offers_tools=chat_tools.offered(body),
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

    def collector(self, call: Call) -> Collector:
        """See `Endpoint.collector`."""
        collector = ChatCollector(call.input_estimate, call.choices, calls=chat_tools.Calls() if call.offers_tools else None)
        return collector if call.content is None else Telling(collector)

    def asked(self, request: Request) -> Asked | None:
        """See `Endpoint.asked`."""
        return chat_content.asked(request.body)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `Endpoint.answered`."""
        return chat_content.answered(result)

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `Endpoint.tool_uses`."""
        return chat_tools.uses(result)

    def tool_results(self, request: Request) -> tuple[str, ...]:
        """See `Endpoint.tool_results`."""
        return chat_tools.results(request.body)

    def bound(self, request: Request, call: Call) -> None:
        """See `Endpoint.bound`."""
        bounds.bound_chat(request, call)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:
        """See `Endpoint.cap`."""
        return bounds.cap_chat(request, cap)


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

    __slots__ = (
        *("_asked", "_begun", "_calls", "_chunks", "_estimate", "_finish", "_first", "_named", "_usage", "_weight", "_whole", "said"),
    )

    def __init__(self, input_estimate: int, choices: int = 1, *, calls: chat_tools.Calls | None = None) -> None:
        self._estimate = input_estimate
        self._calls = calls  # the tools it asks for, where it was offered some
        self._asked = choices
        self._begun: set[int] = set()  # those of them that are not finished, besides the first
        self._whole = -1  # what all of it weighed when the last of them finished
        self._first: Any = None
        self._named = False
        self._usage: Any = None
        self._finish: dict[int, str] = {}
        self._weight = 0
        self._chunks = 0
        self.said = ""

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._weight == self._whole  # what comes after the end is no part of it, and has none

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._weight > 0

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        # One chunk is at least one token; where several are packed together their text tells.
        chunks, weighed = self._chunks, (self._weight + 11) // 12  # `tokens_of_weight`, without the call: each chunk asks
        return chunks if chunks > weighed else weighed  # noqa: FURB136 - a call costs three times as much

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        return None

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return () if self._calls is None else self._calls.uses()

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
                and not choice.index
                and choice.finish_reason is None
                and event.usage is None
                and self._named
                and (self._calls is None or not choice.delta.tool_calls)
            ):
                self._chunks += 1
                self._weight += len(content) * 3
                self.said = content
                return
        except Exception:  # noqa: BLE001, S110 - none of those: read with care below
            pass
        self.said = ""
        self._add(event)

    def _add(self, event: Any) -> None:
        if not self._named:
            self._name(event)
        found = get(event, "usage")
        if found is not None:
            self._usage = found
        choices, ends = items(event, "choices"), False
        for choice in choices:
            reason, index = get(choice, "finish_reason"), count(get(choice, "index")) or 0
            if isinstance(reason, str) and reason:
                ends = True
                self._end(index, reason)
            elif index and index not in self._finish and len(self._begun) < _MOST_CHOICES:
                self._begun.add(index)
            self._weigh(choice)
        if ends and self._whole < 0 and not self._begun and len(self._finish) >= self._asked:
            self._whole = self._weight
        if found is None and (ends or not choices):
            self._usage = get(rare(event, "x_groq"), "usage") or self._usage  # groq tells it there, unasked

    def _end(self, index: int, reason: str) -> None:
        if index in self._finish or len(self._finish) < _MOST_CHOICES:
            self._finish[index] = reason
            self._begun.discard(index)

    def _weigh(self, choice: Any) -> None:
        delta = get(choice, "delta")
        content = get(delta, "content")
        if isinstance(content, str) and content:
            self._chunks += 1
            self._weight += weight_of(content)
            self._say(choice, content)
        elif delta is not None:
            self._weight += _other_weight(delta)
        if self._calls is not None:
            self._calls.add(count(get(choice, "index")) or 0, delta)

    def _say(self, choice: Any, content: str) -> None:
        if not count(get(choice, "index")):
            self.said = content

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
            tool_uses=tuple(self.tool_uses),
        )

    def _name(self, event: Any) -> None:
        # A chunk of prompt filter results may come first, whose id and model are empty.
        self._named = bool(text(event, "id"))
        if self._named or self._first is None:
            self._first = event

    def _counted(self) -> Usage | None:
        if self._first is None:
            return None
        return Usage(input_tokens=self._estimate, output_tokens=self.produced, source="estimated")


def _other_weight(delta: Any) -> int:
    size = _text_weight(rare(delta, "refusal")) + _text_weight(get(delta, "content"))
    size += max(_text_weight(rare(delta, name)) for name in _THOUGHTS)  # hosts send the same in two of them
    for call in items(delta, "tool_calls"):
        size += _call_weight(get(call, "function") or get(call, "custom"))
    legacy, audio = rare(delta, "function_call"), rare(delta, "audio")
    if legacy is not None:
        size += _call_weight(legacy)
    if audio is not None:
        size += weight_of(text(audio, "transcript") or "") + (len(text(audio, "data") or "") * 12) // _SOUND_TOKEN
    return size


def _text_weight(said: Any, depth: int = 3) -> int:
    """Weigh text, or a list of parts with text in them, as some hosts send thoughts and content."""
    if isinstance(said, str):
        return weight_of(said)
    if not isinstance(said, (list, tuple)) or not depth:
        return 0
    parts = cast("Sequence[Any]", said)[:_MOST_CHOICES]
    return sum(max(_text_weight(get(part, name), depth - 1) for name in _PART_TEXTS) for part in parts)


def _call_weight(call: Any) -> int:
    return sum(weight_of(text(call, name) or "") for name in ("name", "arguments", "input"))


def parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the request's settings under their neutral names."""
    found = {name: value for name, value in body.items() if name in _SAME_NAMES and value is not None}
    cap = body.get("max_completion_tokens")
    cap = body.get("max_tokens") if cap is None else cap
    if cap is not None:
        found["max_tokens"] = cap
    stop = body.get("stop")
    if stop is not None:
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    level = body.get("reasoning_effort")
    level = text(body["reasoning"], "effort") if level is None and "reasoning" in body else level
    if isinstance(level, str):
        found["reasoning_level"] = level
    kind = _output_type(body)
    if kind is not None:
        found["output_type"] = kind
    return found


def _output_type(body: Mapping[str, Any]) -> str | None:
    if "modalities" in body and "audio" in items(body, "modalities"):
        return "speech"
    kind = text(body["response_format"], "type") if "response_format" in body else None
    return None if kind is None else _OUTPUT_TYPES.get(kind)
