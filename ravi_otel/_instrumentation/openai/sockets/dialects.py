"""Tell the protocols apart that are spoken over sockets: which messages ask a model, and what for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import count, get, items, text, tokens_in
from ravi_otel._instrumentation.formats.format import Collector, Host, Request
from ravi_otel._instrumentation.formats.responses import Responses
from ravi_otel._instrumentation.openai.sockets.words import SpokenCollector, asked, item_tokens, sound_tokens
from ravi_otel._runtime.state import STATE
from ravi_otel.policy.usage import Call

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

_MOST_ITEMS: Final = 1_000
_RESPONSES: Final = Responses()
_NOBODY: Final[dict[str, Any]] = {}


def dialect_of(module: str) -> str:
    """Give the protocol of a module's connections."""
    if "translations" in module:
        return TRANSLATIONS
    return next((known for known in (RESPONSES, LIVE) if f".{known}." in f"{module}."), REALTIME)


@dataclass(slots=True, eq=False)
class Setting:
    """Remember what a connection was told that its responses are made with; every field is the other side's word."""

    dialect: str
    host: Host
    model: str | None
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
            if STATE.options.content and len(self.said) < _MOST_ITEMS:
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
        size = tokens_in(instructions) + tokens_in(tools) + (self.context if inputs is None else _size(body))
        call = Call(
            operation="decision" if decides else "generate_content",
            endpoint=f"{self.dialect}.decisions" if decides else self.dialect,
            provider=self.host.provider,
            provider_assumed=self.host.assumed,
            model=text(body, "model") or (self.backend if self.dialect == LIVE else self.model),
            stream=not decides,
            size=size,
            output_cap=count(cap) or self.cap,
            server_address=self.host.address,
            server_port=self.host.port,
            parameters={"temperature": body["temperature"]} if body.get("temperature") is not None else {},
        )
        if STATE.options.content and not decides:
            said = items(body, "input")[:_MOST_ITEMS] if inputs is not None else list(self.said)
            call.content = asked(instructions, said, tools)
        return call

    def _responses(self, event: Mapping[str, Any]) -> Call:
        request = Request("POST", "/responses", event, self.host, stream=True)
        call = _RESPONSES.call(request)
        call.model = call.model or self.model
        if STATE.options.content:
            call.content = _RESPONSES.asked(request)
        return call

    def collector(self, call: Call) -> Collector:
        """Begin to follow a response."""
        if self.dialect in (RESPONSES, LIVE):
            return _RESPONSES.collector(call)
        return SpokenCollector(call.input_estimate, writes=call.content is not None)

    def whole(self) -> Call:
        """Describe the session as a whole: it asks no model by itself."""
        host = self.host
        return Call(
            operation=self.dialect,
            endpoint=f"{self.dialect}.connect",
            provider=host.provider,
            provider_assumed=host.assumed,
            model=self.model,
            generative=False,
            turn=False,
            server_address=host.address,
            server_port=host.port,
            session=True,
        )

    def besides(self, operation: str, model: str | None) -> Call:
        """Describe what was billed besides the responses: a transcription, or the time of a live session."""
        host = self.host
        return Call(
            operation=operation,
            endpoint=operation,
            provider=host.provider,
            provider_assumed=host.assumed,
            model=model,
            turn=False,
            server_address=host.address,
            server_port=host.port,
        )


def _size(body: Mapping[str, Any]) -> int:
    return sum(item_tokens(item) for item in items(body, "input")[:_MOST_ITEMS])
