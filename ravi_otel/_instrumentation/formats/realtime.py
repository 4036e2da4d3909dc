"""Conversations over a connection: the realtime API, live sessions, and the Responses API over WebSockets, as events without a client.

`Conversation` is what a connection was told until now: it describes each response that is asked for on it. Items of the realtime API are
read in the shapes of the Responses API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats import responses
from ravi_otel._instrumentation.formats.fields import count, get, items, text, tokens_in, usage_of
from ravi_otel._instrumentation.formats.format import MOST_TEXT, Collector, Host, Request, TextCollector
from ravi_otel.policy._usage import Asked, Call, Reply, Usage

RESPONSES: Final = "responses"
LIVE: Final = "live"
TRANSLATIONS: Final = "realtime.translations"
REALTIME: Final = "realtime"
DECISION: Final = "decision.create"
CREATES: Final = frozenset({"response.create", DECISION})
LESSENS: Final = frozenset(
    {
        *("response.cancel", "session.close", "input_audio_buffer.clear", "output_audio_buffer.clear"),
        *("conversation.item.delete", "conversation.item.truncate", "conversation.item.retrieve"),
        *("decision.item.delete", "session.input_audio.mute"),
    }
)
"""What stops or takes back; it may always be sent."""

_NOBODY: Final[dict[str, Any]] = {}

TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"})
_TEXT: Final = frozenset(
    {
        *("response.text.delta", "response.output_text.delta"),
        *("response.audio_transcript.delta", "response.output_audio_transcript.delta"),
    }
)
_SOUND: Final = frozenset({"response.audio.delta", "response.output_audio.delta"})
_CALLS: Final = frozenset({"function_call", "mcp_call"})
_MOST_ITEMS: Final = 1_000
_BASE64_PER_SECOND: Final = 64_000
"""A second of 24 kHz PCM16, 48,000 bytes, in base64."""
_TOKENS_PER_SECOND: Final = 20
"""What a model hears takes ten tokens a second, what it says takes twenty; the dearer one, since it is a guess."""


def sound_tokens(encoded: object) -> int:
    """Estimate the tokens of sound that is written in base64."""
    return len(encoded) * _TOKENS_PER_SECOND // _BASE64_PER_SECOND + 1 if isinstance(encoded, str) else 0


def item_tokens(item: Any) -> int:
    """Estimate the tokens of one item of a conversation, its sound by its length."""
    sounds = sum(sound_tokens(get(part, "audio")) for part in items(item, "content")[:_MOST_ITEMS])
    return sounds + tokens_in(_as_responses(item, quiet=True))


def usage(found: Any) -> Usage | None:
    """Read the usage of a realtime response; None when it is missing or no usage."""
    told = usage_of(
        found, inputs="input_tokens", outputs="output_tokens", input_details="input_token_details", output_details="output_token_details"
    )
    if told is not None:
        of_input = get(found, "input_token_details")
        told.image_input_tokens = min(count(get(of_input, "image_tokens")) or 0, told.input_tokens - told.audio_input_tokens)
        cached = count(get(get(of_input, "cached_tokens_details"), "image_tokens")) or 0
        told.cached_image_tokens = min(cached, told.cached_input_tokens, told.image_input_tokens)
    return told


def reply_of(response: Any) -> Reply:
    """Read a realtime response object, finished or not."""
    status, details, output = text(response, "status"), get(response, "status_details"), items(response, "output")
    error, reason = get(details, "error"), text(details, "reason")
    failed, cancelled = status == "failed", status == "cancelled"
    return Reply(
        id=text(response, "id"),
        usage=usage(get(response, "usage")),
        finish_reasons=(reason or "cancelled",) if cancelled else responses.finish_reasons(status, reason, output, _CALLS),
        conversation_id=text(response, "conversation_id"),
        answers=len(output),
        error_type=(text(error, "code") or text(error, "type") or "response_failed") if failed else None,
    )


def asked(instructions: Any, said: Sequence[Any], tools: Any) -> Asked:
    """Write down what a response is made of: the instructions, the items the program sent, the tools."""
    return responses.asked({"instructions": instructions, "input": [_as_responses(item) for item in said], "tools": tools})


def _as_responses(item: Any, *, quiet: bool = False) -> Any:
    if not isinstance(item, Mapping):
        return item
    fields = cast("Mapping[str, Any]", item)
    if not isinstance(fields.get("content"), (list, tuple)):
        return fields
    parts = [part for one in fields["content"][:_MOST_ITEMS] for part in _parts(one, quiet=quiet)]
    return {**fields, "type": "message", "content": parts}


def _parts(part: Any, *, quiet: bool) -> list[Any]:
    kind, transcript, sound = text(part, "type"), text(part, "transcript"), text(part, "audio")
    if kind not in ("input_audio", "audio", "output_audio"):
        return [part]
    found: list[Any] = []
    if sound is not None and not quiet:
        found.append({"type": "input_audio", "input_audio": {"data": sound, "format": "pcm16"}})
    if transcript is not None:
        found.append({"type": "text", "text": transcript})
    return found


class SpokenCollector(TextCollector):
    """Follow one realtime response: the object it ends with, and until then the text and sound that came."""

    __slots__ = ("_complete", "_response", "_sound")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._response: Any = None
        self._sound = 0
        self._complete = False
        if call.content is not None:
            self.keep_text(MOST_TEXT)

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._complete

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._sound > 0 or super().spoke

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        kind, delta, response = text(event, "type"), get(event, "delta"), get(event, "response")
        if isinstance(delta, str) and kind in _SOUND:
            self._sound += len(delta)
        elif isinstance(delta, str):
            self._add_text(delta, is_text=kind in _TEXT)
        if response is not None:
            self._response = response
            self._complete = self._complete or kind in TERMINAL
        return None

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        told = reply_of(self._response)
        if told.usage is None and self.spoke:
            sound = self._sound * _TOKENS_PER_SECOND // _BASE64_PER_SECOND
            estimate, output = self._call.input_estimate, self.produced + sound
            told.usage = Usage(input_tokens=estimate, output_tokens=output, audio_output_tokens=sound, source="estimated")
        if self._call.content is not None:
            whole = items(self._response, "output") if self._complete else ()
            said = [_as_responses(item) for item in whole[:_MOST_ITEMS]] or [{"type": "message", "content": self.text}]
            told.output = responses.answered(said, told.finish_reasons)
        return told


# -- a conversation -----------------------------------------------------------------------------------------------------


def dialect_of(module: str) -> str:
    """Return the protocol of a module's connections."""
    if "translations" in module:
        return TRANSLATIONS
    return next((known for known in (RESPONSES, LIVE) if f".{known}." in f"{module}."), REALTIME)


@dataclass(slots=True, eq=False)
class Conversation:
    """Remember what a connection was told that its responses are made with; every field is the other side's word.

    What is said on it is kept where it is `captured`.
    """

    dialect: str
    host: Host
    model: str | None
    captured: bool = False
    backend: str | None = None
    transcriber: str | None = None
    instructions: Any = None
    tools: Any = None
    cap: int | None = None
    context: int = 0
    said: list[Any] = field(default_factory=list[Any])

    def adopt(self, session: Any) -> None:
        """Take over a session's configuration, as it was asked for or answered."""
        self.model = text(session, "model") or self.model
        sound = get(get(session, "audio"), "input")
        transcription = get(sound, "transcription") or get(session, "input_audio_transcription")
        self.transcriber = text(transcription, "model") or self.transcriber
        backend = get(get(session, "delegation"), "responses")
        self.backend = text(backend, "model") or self.backend
        self.instructions = text(session, "instructions") or self.instructions
        self.tools = get(backend if backend is not None else session, "tools") or self.tools
        cap = get(session, "max_output_tokens") or get(session, "max_response_output_tokens")
        self.cap = count(cap) if cap is not None else self.cap

    def sent(self, kind: str | None, event: Mapping[str, Any]) -> None:
        """Note what a message that was sent adds to the conversation."""
        item = event.get("item")
        if kind == "conversation.item.create" and item is not None:
            self.context += item_tokens(item)
            if self.captured and len(self.said) < _MOST_ITEMS:
                self.said.append(item)
        elif kind in ("input_audio_buffer.append", "session.input_audio.append"):
            self.context += sound_tokens(event.get("audio"))
        elif kind in ("session.update", "session.start"):
            self.adopt(event.get("session"))

    def call(self, event: Mapping[str, Any], *, decides: bool = False) -> Call:
        """Describe the response that a message asks for; an empty one is what the provider began by itself."""
        if self.dialect == RESPONSES:
            return self._responses(event)
        given = event.get("response")
        body = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else _NOBODY
        inputs = body.get("input")
        instructions, tools = body.get("instructions") or self.instructions, body.get("tools") or self.tools
        cap = body.get("max_output_tokens") or body.get("max_response_output_tokens")
        said = self.context if inputs is None else sum(item_tokens(item) for item in items(body, "input")[:_MOST_ITEMS])
        size = tokens_in(instructions) + tokens_in(tools) + said
        call = self._describe(
            "decision" if decides else "generate_content",
            f"{self.dialect}.decisions" if decides else self.dialect,
            text(body, "model") or (self.backend if self.dialect == LIVE else self.model),
            turn=True,
            stream=not decides,
            size=size,
            output_cap=count(cap) or self.cap,
            parameters={"temperature": body["temperature"]} if body.get("temperature") is not None else {},
        )
        if self.captured and not decides:
            spoken = items(body, "input")[:_MOST_ITEMS] if inputs is not None else list(self.said)
            call.content = asked(instructions, spoken, tools)
        return call

    def _responses(self, event: Mapping[str, Any]) -> Call:
        request = Request("POST", "/responses", event, self.host, stream=True)
        call = responses.RESPONSES.call(request)
        call.model = call.model or self.model
        if self.captured:
            call.content = responses.RESPONSES.asked(request)
        return call

    def collector(self, call: Call) -> Collector:
        """Begin to follow a response."""
        if self.dialect in (RESPONSES, LIVE):
            return responses.RESPONSES.collector(call)
        return SpokenCollector(call)

    def whole(self) -> Call:
        """Describe the session as a whole: it asks no model by itself."""
        return self._describe(self.dialect, f"{self.dialect}.connect", self.model, generative=False, session=True)

    def besides(self, operation: str, model: str | None) -> Call:
        """Describe what was billed besides the responses: a transcription, or the time of a live session."""
        return self._describe(operation, operation, model)

    def _describe(self, operation: str, endpoint: str, model: str | None, **known: Any) -> Call:
        request = Request("", "", {}, self.host, stream=False)
        return request.describe(operation, endpoint, model=model, **{"turn": False, **known})
