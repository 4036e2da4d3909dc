"""Chat completions, as OpenAI defined them and many hosts speak them, and legacy completions, which are shaped like them."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.content import (
    Parts,
    at_home,
    blob,
    bound,
    capless,
    contents,
    definition,
    file,
    first_of,
    hosted,
    largest_cap,
    lenient,
    message_of,
    parsed,
    searching,
    tool_call,
    tool_response,
    words,
)
from ravi_otel._instrumentation.formats.fields import (
    PER_MESSAGE,
    PER_REQUEST,
    as_list,
    as_mapping,
    as_text,
    count,
    get,
    id_of,
    items,
    text,
    tokens_in,
    usage_of,
    weight_of,
)
from ravi_otel._instrumentation.formats.format import HEAVIEST, MOST_TEXT, MOST_USES, Request, Settings, TextCollector, WireFormat
from ravi_otel.hooks._listeners import raise_from_signal
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_SETTINGS: Final = Settings(
    ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "service_tier", "top_k"),
    ("max_tokens", "max_completion_tokens"),
    ("max_tokens", "max_tokens"),
    ("stop_sequences", "stop"),
    ("reasoning_level", "reasoning_effort"),
    ("reasoning_level", "reasoning", "effort"),
    ("output_type", "modalities"),
    ("output_type", "response_format", "type"),
)

_INPUT_FIELDS: Final = frozenset({"messages", "tools", "functions", "response_format"})
"""What of a request counts as input."""

_COMPLETION_FIELDS: Final = ("prompt", "suffix", "messages")
"""The same of a legacy completion. The last is no field of that API, but a server may take a chat there."""

_MOST_CHOICES: Final = 4_096
_MOST_NAME: Final = 1_024
_MOST_MESSAGES: Final = 128
_MOST_CALLS: Final = 128
_MOST_SOUND: Final = 32 * 1024 * 1024

_FAILED: Final = "x_groq_error"
"""The `error.type` of a stream in which groq reports a failure."""

_THOUGHTS: Final = ("reasoning_content", "reasoning", "reasoning_details")
"""Where hosts stream a model's thoughts: DeepSeek and older vLLM, newer vLLM and OpenRouter, OpenRouter's parts."""

_NO_WEIGHT: Final = frozenset({"role"})
_PART_TEXTS: Final = ("text", "summary", "thinking", "data")
_SOUND_TOKEN: Final = 3_200
"""Characters of base64 to a token of sound: 50 ms of 16 bits at 24 kHz, as streams of sound are sent."""

_TOOL_ROLES: Final = frozenset({"tool", "function"})

_PROGRAM_TOOLS: Final = ("function", "custom")
_HIDES: Final = ("web_search_options", "data_sources", "search_parameters", "plugins", "search_settings", "documents")
"""Searches of the provider's, of several vendors."""

_UNCAPPED: Final = ("prediction",)
"""What makes output that no cap counts: what was predicted and not used is billed besides."""

_REASONING_MODELS: Final = ("o1", "o3", "o4", "gpt-5", "gpt-6")
_CAPS: Final = ("max_completion_tokens", "max_tokens")


class ChatCompletions(WireFormat):
    """Read `/chat/completions`."""

    usage_on_request = True

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body, host = request.body, request.host
        model, messages = body.get("model"), body.get("messages")
        known = isinstance(messages, (list, tuple))
        size = len(cast("Sequence[Any]", messages)) if known else 0
        cap = None
        for name in _CAPS:
            if cap is None and name in body:
                cap = count(body[name])
        given = [*map(body.get, filter(_INPUT_FIELDS.__contains__, body))]
        # Nearly every call is one of these: it is made without `describe`, and by place, since fields by name cost as much again.
        call = Call(
            "chat",
            "chat.completions",
            host.provider,
            host.assumed,
            model if isinstance(model, str) else None,
            True,  # noqa: FBT003 - generative
            True,  # noqa: FBT003 - a turn
            request.stream,
            partial(tokens_in, given, size * PER_MESSAGE + PER_REQUEST),
            cap,
            max(1, count(body["n"]) or 1) if "n" in body else 1,
            size if known else None,
            None,
            host.address,
            host.port,
            _SETTINGS.of(body),
        )
        call.seller = host.seller
        if "tools" in body:
            call.offers_tools = True
        return call

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = as_mapping(result)
        found = told.get("choices")
        choices = cast("Sequence[Any]", found) if isinstance(found, (list, tuple)) else ()
        reasons: list[str] = []
        for choice in choices:
            reason = get(choice, "finish_reason")
            if isinstance(reason, str):
                reasons.append(reason)
        known, model, tier, fingerprint = told.get("id"), told.get("model"), told.get("service_tier"), told.get("system_fingerprint")
        return Reply(
            known if isinstance(known, str) else None,
            model if isinstance(model, str) else None,
            usage_of(told.get("usage"), *_USAGE),
            tuple(reasons),
            tier if isinstance(tier, str) else None,
            fingerprint if isinstance(fingerprint, str) else None,
            None,
            len(choices),
        )

    def collector(self, call: Call) -> ChatCollector:
        """See `WireFormat.collector`."""
        return ChatCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        body = request.body
        defined = [definition(one) for one in (*items(body, "tools"), *items(body, "functions"))]
        return Asked(messages=[_message(one) for one in items(body, "messages")], tools=defined)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`; a message for each choice."""
        return [_choice(choice) for choice in items(result, "choices")]

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`; of each of the choices."""
        calls = (call for choice in items(result, "choices") for call in items(get(choice, "message"), "tool_calls"))
        return tuple(ToolUse(id_of(call, "id"), text(_holder(call), "name")) for call in islice(calls, MOST_USES))

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        return [id_of(message, "tool_call_id") for message in items(request.body, "messages") if text(message, "role") == "tool"]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        body, parts = request.body, Parts()
        parts.hide(first_of(body, _HIDES) or hosted(body, _PROGRAM_TOOLS) or searching(body))
        if not isinstance(body.get("messages"), (list, tuple)):
            parts.hide("messages")
        call.output_cap = largest_cap(body, _CAPS)
        call.choices, unread = _choices(body)
        uncapped = first_of(body, _UNCAPPED) or capless(body, *_CAPS) or unread
        for message in items(body, "messages"):
            parts.take(get(message, "content"))
            if get(message, "audio") is not None:
                parts.hide("audio")  # of an earlier answer, which the provider keeps
        bound(request, call, parts.hidden, pictures=parts.pictures, uncapped=uncapped)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:
        """Cap by the fields the caller used, none above what it says; else by the one that the server is sure to know.

        OpenAI's reasoning models know no `max_tokens`; servers with an API like it all know that one, and not all know the other.
        """
        body = request.body
        used = {name: min(cap, lenient(body[name]) or cap) for name in _CAPS if body.get(name) is not None}
        if used:
            return used
        model = (text(body, "model") or "").rpartition("/")[2]
        return {"max_completion_tokens" if at_home(request) or model.startswith(_REASONING_MODELS) else "max_tokens": cap}


CHAT: Final = ChatCompletions()


class Completions(WireFormat):
    """Read `/completions`, charged like chats; their words are not captured, and no strict limit can bound them."""

    usage_on_request = True

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        call, body = CHAT.call(request), request.body
        call.operation, call.endpoint, call.messages, call.offers_tools = "text_completion", "completions", None, False
        call.input_estimate = tokens_in(tuple(map(body.get, _COMPLETION_FIELDS)), 1)
        call.choices = max(call.choices, count(body.get("best_of")) or 1) * _prompts(body.get("prompt"))
        return call

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return CHAT.reply(result)

    def collector(self, call: Call) -> CompletionsCollector:
        """See `WireFormat.collector`."""
        return CompletionsCollector(call)


def _prompts(prompt: Any) -> int:
    """Count the prompts: a list of texts or of token lists holds many, a list of tokens is one."""
    if not isinstance(prompt, (list, tuple)):
        return 1
    many = cast("Sequence[Any]", prompt)
    return len(many) if many and isinstance(many[0], (str, list, tuple)) else 1


def _choices(body: Mapping[str, Any]) -> tuple[int, str | None]:
    """Count the answers that any server may take a request to ask for, and give what no number can be read from."""
    choices, unread = 1, None
    for name in ("n", "best_of"):
        if body.get(name) is not None:
            number = lenient(body[name])
            if number is None:
                unread = unread or f"an {name} that is no number"
            choices = max(choices, number or 1)
    return choices, unread


_USAGE: Final = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
"""What a usage object calls its input, its output and the details of both."""


def usage(told: Any) -> Usage | None:
    """Read the usage object of a chat completion."""
    return usage_of(told, *_USAGE)


# -- streams ------------------------------------------------------------------------------------------------------------


class ChatCollector(TextCollector):
    """Follow a chat stream: what names it, why it ended, how much came.

    And what it says where the call is captured, and which tools it asks for where the call offers some.
    """

    __slots__ = ("_assembly", "_begun", "_captured", "_failed", "_finish", "_first", "_named", "_numbered", "_usage", "_whole")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._captured = call.content is not None
        self._assembly = _Assembly(captured=self._captured) if call.offers_tools or self._captured else None
        self._begun: set[int] = set()  # those of them that are not finished, besides the first
        self._whole: int = -1  # what all of it weighed when the last of them finished
        self._first: Mapping[str, Any] | None = None
        self._named = False
        self._numbered = call.choices > 1
        self._usage: Any = None
        self._failed = False  # as groq says it, which its client does not raise
        self._finish: dict[int, str] = {}

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        self._count_pieces()
        return self._weight == self._whole  # what comes after the end is no part of it, and has none

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return self._assembly.uses() if self._assembly is not None and self._call.offers_tools else ()

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        # One more piece of plain text is what nearly all chunks are; it stands between the network and the user.
        # Fields are read from the models' dictionaries, since a model's class is slow to give an attribute.
        try:
            told = event.__dict__
            (choice,) = told["choices"]
            ended = choice.__dict__
            delta = ended["delta"]
            said = delta.__dict__
            content = said["content"]
            if (
                type(content) is str
                and content
                and ended["finish_reason"] is None
                and told["usage"] is None
                and not (self._numbered and ended["index"])
                and not (said["tool_calls"] or said["function_call"] or said["refusal"])
                and not ((besides := delta.__pydantic_extra__) and any(besides.values()))  # such as thoughts
            ):
                heaviest = len(content) * HEAVIEST
                if heaviest <= self._may_wait:
                    self._may_wait -= heaviest
                    self._pieces.append(content)
                    return True
                if self._waits:
                    return self._wait(content) or self._add_text(content)
        except Exception as error:  # noqa: BLE001 - none of those: read with care below
            raise_from_signal(error)
        self._add(as_mapping(event))
        return None

    def _add(self, event: Mapping[str, Any]) -> None:
        self._count_pieces()
        self._may_wait = 0  # until it is worked out again: what else an event brings weighs, too
        if not self._named:
            # A chunk of prompt filter results may come first, whose id and model are empty.
            self._named = bool(as_text(event.get("id")))
            self._waits = self._named and not self._captured
            if self._named or self._first is None:
                self._first = event
        used = event.get("usage")
        if used is not None:
            self._usage = used
        choices, ends = as_list(event.get("choices")), False
        for each in choices:
            choice = as_mapping(each)
            reason, index = choice.get("finish_reason"), count(choice.get("index")) or 0
            if isinstance(reason, str) and reason:
                ends = True
                if index in self._finish or len(self._finish) < _MOST_CHOICES:
                    self._finish[index] = reason
                    self._begun.discard(index)
            elif index and self._numbered and index not in self._finish and len(self._begun) < _MOST_CHOICES:
                self._begun.add(index)
            self._read(index, choice)
        if ends and self._whole < 0 and not self._begun and len(self._finish) >= self._call.choices:
            self._whole = self._weight
        besides = event.get("x_groq")
        if besides is not None:  # where groq tells it, unasked
            self._usage = get(besides, "usage") or self._usage
            self._failed = self._failed or bool(text(besides, "error"))

    def _read(self, index: int, choice: Mapping[str, Any]) -> None:
        delta = as_mapping(choice.get("delta"))
        content = delta.get("content")
        if isinstance(content, str) and content:
            self._add_text(content, is_text=not (self._numbered and index))
            self._weight += _other_weight({**delta, "content": None})
        elif delta:
            self._weight += _other_weight(delta)
        if self._assembly is not None:
            self._assembly.add(index, as_text(choice.get("finish_reason")), delta)

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        first: Mapping[str, Any] = self._first or {}
        reply = Reply(
            id=as_text(first.get("id")) or None,
            model=as_text(first.get("model")) or None,
            usage=usage(self._usage) or (None if self._first is None else self._counted()),
            finish_reasons=tuple(self._finish[index] for index in sorted(self._finish)),
            service_tier=as_text(first.get("service_tier")),
            system_fingerprint=as_text(first.get("system_fingerprint")),
            answers=max(1, len(self._finish)) if self._first is not None else 0,
            error_type=_FAILED if self._failed else None,
            tool_uses=tuple(self.tool_uses),
        )
        if self._assembly is not None and self._captured:
            reply.output = CHAT.answered(self._assembly.whole())
        return reply


class CompletionsCollector(ChatCollector):
    """Follow a completions stream, whose chunks are whole answers with a little text each."""

    __slots__ = ()

    def _read(self, index: int, choice: Mapping[str, Any]) -> None:
        content = choice.get("text")
        if isinstance(content, str) and content:
            self._add_text(content, is_text=not (self._numbered and index))


def _other_weight(delta: Mapping[str, Any]) -> int:
    if not any(map(delta.get, delta.keys() - _NO_WEIGHT)):  # as in nearly every chunk without text
        return 0
    size = _text_weight(delta.get("refusal")) + _text_weight(delta.get("content"))
    size += max([_text_weight(delta.get(name)) for name in _THOUGHTS])  # hosts send the same in two of them
    for each in as_list(delta.get("tool_calls")):
        call = as_mapping(each)
        size += _call_weight(call.get("function") or call.get("custom"))
    legacy, audio = delta.get("function_call"), delta.get("audio")
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
    return sum(max(_text_weight(part.get(name), depth - 1) for name in _PART_TEXTS) for part in map(as_mapping, parts))


def _call_weight(call: Any) -> int:
    told = as_mapping(call)
    return sum([weight_of(said) for name in ("name", "arguments", "input") if isinstance(said := told.get(name), str)])


class _Assembly:
    """Put the pieces of a stream together as the whole answer that they are of.

    Indexes and sizes are the server's to claim and ours to bound. Texts and arguments are kept where the call is `captured`.
    """

    __slots__ = ("_calls", "_captured", "_choices", "_room", "_sound")

    def __init__(self, *, captured: bool) -> None:
        self._captured = captured
        self._choices: dict[int, _Choice] = {}
        self._calls: dict[tuple[int, int], _Call] = {}  # by choice and index, in the order in which they began
        self._room = MOST_TEXT
        self._sound = _MOST_SOUND

    def add(self, index: int, reason: str | None, delta: Mapping[str, Any]) -> None:
        """Take in what one chunk says of a choice."""
        choice = self._choices.get(index)
        if choice is None:
            if len(self._choices) >= _MOST_CHOICES:
                return
            choice = self._choices[index] = _Choice()
        for call in as_list(delta.get("tool_calls")):
            self._call(index, choice, as_mapping(call))
        if self._captured:
            self._keep(choice, reason, delta)

    def _call(self, index: int, choice: _Choice, told: Mapping[str, Any]) -> None:
        """Find the call a piece belongs to: by its index; without one a new id begins a call, and the last goes on."""
        place, call_id = count(told.get("index")), id_of(told, "id")
        if place is None:
            goes_on = choice.last is not None and (call_id is None or choice.last.id == call_id)
            place = choice.top + (not goes_on)
        known = self._calls.get((index, place))
        if known is None:
            if len(self._calls) >= MOST_USES:
                return
            known = self._calls[index, place] = _Call()
        choice.last, choice.top = known, place
        known.id = known.id or call_id
        known.custom = known.custom or told.get("function") is None
        self._extend(known, as_mapping(_holder(told)))

    def _extend(self, known: _Call, told: Mapping[str, Any]) -> None:
        name = as_text(told.get("name"))
        if name and known.name != name:  # some hosts say the whole name with every piece
            known.name = (known.name + name)[:_MOST_NAME]
        said = as_text(told.get("arguments")) or as_text(told.get("input"))
        if said and self._captured:
            known.said.append(self._kept(said))

    def _keep(self, choice: _Choice, reason: str | None, delta: Mapping[str, Any]) -> None:
        choice.role = as_text(delta.get("role")) or choice.role
        choice.reason = choice.reason if reason is None else reason
        thought = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        for pieces, said in ((choice.thought, thought), (choice.content, delta.get("content")), (choice.refusal, delta.get("refusal"))):
            if isinstance(said, str) and said:
                pieces.append(self._kept(said))
        if delta.get("function_call") is not None:
            choice.legacy = choice.legacy or _Call()
            self._extend(choice.legacy, as_mapping(delta["function_call"]))
        if delta.get("audio") is not None:
            self._hear(choice, as_mapping(delta["audio"]))

    def _hear(self, choice: _Choice, audio: Mapping[str, Any]) -> None:
        said, data = as_text(audio.get("transcript")), as_text(audio.get("data"))
        if said:
            choice.content.append(self._kept(said))
        if data and len(data) <= self._sound:
            self._sound -= len(data)
            try:
                choice.sound += binascii.a2b_base64(data)
            except ValueError:
                choice.sound += data.encode("utf-8", "replace")

    def _kept(self, piece: str) -> str:
        kept = piece[: self._room]
        self._room -= len(kept)
        return kept

    def uses(self) -> tuple[ToolUse, ...]:
        """Return the tools that were asked for until now."""
        found = list(self._calls.values())  # at once: another thread may be reading the stream
        return tuple(ToolUse(call.id, call.name) for call in found)

    def whole(self) -> dict[str, Any]:
        """Return the answer so far in the shape of one that came whole."""
        calls: dict[int, list[dict[str, Any]]] = {}
        for (index, _), call in sorted(self._calls.items(), key=lambda entry: entry[0]):
            asked = calls.setdefault(index, [])
            if len(asked) < _MOST_CALLS:
                asked.append(call.whole())
        first = sorted(islice(self._choices.items(), _MOST_MESSAGES), key=lambda entry: entry[0])
        return {"choices": [choice.whole(calls.get(index, [])) for index, choice in first]}


class _Call:
    __slots__ = ("custom", "id", "name", "said")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.custom = False
        self.said: list[str] = []

    def whole(self) -> dict[str, Any]:
        said = "".join(self.said)
        if self.custom:
            return {"type": "custom", "id": self.id, "custom": {"name": self.name, "input": said}}
        return {"id": self.id, "function": {"name": self.name, "arguments": said}}


class _Choice:
    __slots__ = ("content", "last", "legacy", "reason", "refusal", "role", "sound", "thought", "top")

    def __init__(self) -> None:
        self.role = "assistant"
        self.reason: str | None = None
        self.content: list[str] = []
        self.thought: list[str] = []
        self.refusal: list[str] = []
        self.sound = bytearray()
        self.legacy: _Call | None = None
        self.last: _Call | None = None
        self.top = -1  # the index of the call that came last

    def whole(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message = {
            "role": self.role,
            "reasoning_content": "".join(self.thought),
            "content": "".join(self.content),
            "refusal": "".join(self.refusal),
            "audio": {"data": bytes(self.sound)} if self.sound else None,
            "tool_calls": calls,
            "function_call": None if self.legacy is None else self.legacy.whole()["function"],
        }
        return {"message": message, "finish_reason": self.reason}


# -- what messages say ----------------------------------------------------------------------------------------------------


def _message(told: Any) -> Message:
    role, name = text(told, "role") or "user", text(told, "name")
    if role in _TOOL_ROLES:
        written = message_of("tool", [tool_response(text(told, "tool_call_id") or name, get(told, "content"))])
    else:
        written = message_of(role, _said(told))
    return written if name is None else {**written, "name": name}


def _choice(choice: Any) -> Message:
    told = get(choice, "message")
    return message_of(text(told, "role") or "assistant", _said(told), text(choice, "finish_reason"))


def _said(told: Any) -> list[Part]:
    thought = next((found for name in _THOUGHTS if (found := text(told, name))), None)
    parts: list[Part] = [] if thought is None else [{"type": "reasoning", "content": thought}]
    parts.extend(contents(get(told, "content")))
    refusal, audio, legacy = text(told, "refusal"), get(told, "audio"), get(told, "function_call")
    if refusal:
        parts.append({"type": "refusal", "content": refusal})
    if audio is not None:
        parts.extend(_sound(audio))
    parts.extend(_call(call) for call in items(told, "tool_calls"))
    if legacy is not None:
        parts.append(_call({"function": legacy}))
    return parts


def _holder(call: Any) -> Any:
    function = get(call, "function")
    return get(call, "custom") if function is None else function


def _call(call: Any) -> Part:
    custom = get(call, "custom") if get(call, "function") is None else None
    held, call_id = _holder(call), text(call, "id")
    return tool_call(call_id, text(held, "name"), text(held, "input") if custom is not None else parsed(text(held, "arguments")))


def _sound(audio: Any) -> list[Part]:
    data, transcript, known = get(audio, "data"), text(audio, "transcript"), text(audio, "id")
    parts: list[Part] = []
    if isinstance(data, (str, bytes)):
        parts.append(blob("audio", None, data))
    elif known:
        parts.append(file("audio", known))
    return [*parts, words(transcript)] if transcript else parts
