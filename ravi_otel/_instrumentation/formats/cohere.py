"""Cohere's chat (version 2, and its first), embeddings and reranking.

https://docs.cohere.com/reference/chat, https://docs.cohere.com/reference/chat-stream, https://docs.cohere.com/reference/embed and the
types of the library (https://github.com/cohere-ai/cohere-python). Its usage has `tokens`, which the model saw, and `billed_units`,
which are paid for: the latter count here, as limits are about what is paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ravi_otel._instrumentation.formats.answers import AnswerCollector
from ravi_otel._instrumentation.formats.content import (
    Parts,
    bound,
    capless,
    contents,
    definition,
    first_of,
    largest_cap,
    lowered,
    message_of,
    parsed,
    tool_call,
    tool_response,
    words,
)
from ravi_otel._instrumentation.formats.fields import (
    PER_MESSAGE,
    PER_REQUEST,
    as_mapping,
    as_text,
    count,
    get,
    id_of,
    items,
    text,
    tokens_in,
)
from ravi_otel._instrumentation.formats.format import JOB, MOST_USES, UNREAD, Collector, Request, Settings, WireFormat, below_version
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = ("messages", "tools", "documents", "response_format", "message", "chat_history", "preamble", "tool_results")
_CAP: Final = "max_tokens"
_STOPS: Final[Mapping[str, str]] = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_calls",
    "ERROR": "error",
    "TIMEOUT": "error",
    "ERROR_LIMIT": "length",
    "ERROR_TOXIC": "content_filter",
}
_SETTINGS: Final = Settings(
    ("temperature", "max_tokens", "stop_sequences", "seed", "frequency_penalty", "presence_penalty"),
    ("top_p", "p"),
    ("top_k", "k"),
    ("output_type", "response_format", "type"),
    ("conversation_id", "conversation_id"),
)
_HIDES: Final = ("connectors", "conversation_id", "search_queries_only")
"""The fields of the first version by which input comes from elsewhere, or is stored."""


class Chat(WireFormat):
    """The format of `/v2/chat`, and of `/v1/chat`, which has one message and a history."""

    def framing(self, request: Request) -> Framing:
        """See `WireFormat.framing`; the first version sends lines of JSON."""
        return Framing.NDJSON if "message" in request.body else Framing.SSE

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        size = len(items(body, "messages")) or len(items(body, "chat_history")) + ("message" in body)
        return request.describe(
            "chat",
            size=partial(tokens_in, [body.get(name) for name in _INPUT_FIELDS], size * PER_MESSAGE + PER_REQUEST),
            output_cap=count(body.get(_CAP)),
            messages=size,
            parameters=_SETTINGS.of(body),
            offers_tools=bool(items(body, "tools")),
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        stop = _stop(text(result, "finish_reason"))
        return Reply(
            id=text(result, "id") or text(result, "generation_id"),
            usage=usage(_told(result)),
            finish_reasons=() if stop is None else (stop,),
            answers=int(get(result, "message") is not None or text(result, "text") is not None),
        )

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return ChatCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        body = request.body
        found = Asked(tools=[definition(one) for one in items(body, "tools")])
        found.system = contents(body.get("preamble"))
        found.messages = [_message(one) for one in (*items(body, "messages"), *items(body, "chat_history"))]
        if (said := as_text(body.get("message"))) is not None:
            found.messages.append(message_of("user", [words(said)]))
        return found

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        stop, told = _stop(text(result, "finish_reason")), get(result, "message")
        if told is not None:
            return [_message(told, stop)]
        said = text(result, "text")
        return [] if said is None else [message_of("assistant", [words(said)], stop)]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        body, parts = request.body, Parts()
        parts.hide(first_of(body, _HIDES))
        if not items(body, "messages"):
            parts.hide("message")  # the first version: its history may be kept
        for message in items(body, "messages"):
            given = items(message, "content")  # a document here is text, as are the fields that it has
            parts.take([one for one in given if text(one, "type") != "document"] if given else get(message, "content"))
        call.output_cap = largest_cap(body, (_CAP,))
        bound(request, call, parts.hidden, pictures=parts.pictures, uncapped=capless(body, _CAP))

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`."""
        return lowered(request.body, (_CAP,), cap)

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        calls = items(get(result, "message"), "tool_calls") or items(result, "tool_calls")
        return tuple(ToolUse(id_of(one, "id"), text(get(one, "function"), "name") or text(one, "name")) for one in calls[:MOST_USES])

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        return [id_of(one, "tool_call_id") for one in items(request.body, "messages") if text(one, "role") == "tool"]


def _stop(told: str | None) -> str | None:
    return None if told is None else _STOPS.get(told, told)


def _told(result: Any) -> Any:
    """Return the object with the usage: `usage`, or `meta` of other endpoints and of the first version."""
    used = get(result, "usage")
    return get(result, "meta") if used is None else used


def usage(found: Any) -> Usage | None:
    """Read a usage object by its billed units, else by its tokens; None where it has neither."""
    for name in ("billed_units", "tokens"):
        told = get(found, name)
        given, made = count(get(told, "input_tokens")), count(get(told, "output_tokens"))
        if given is not None or made is not None:
            return Usage(given or 0, made or 0, cached_input_tokens=min(count(get(found, "cached_tokens")) or 0, given or 0))
    return None


class ChatCollector(AnswerCollector):
    """The collector of a chat's events, of either version."""

    __slots__ = ()

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        kind = text(event, "type")
        if kind is None:
            return self._first_version(event)
        told = get(get(event, "delta"), "message")
        if kind == "content-delta":
            content = get(told, "content")
            return self.say(text(content, "text")) or self.say(text(content, "thinking"), kind="reasoning")
        if kind == "tool-plan-delta":
            return self.say(text(told, "tool_plan"), kind="reasoning")
        if kind == "tool-call-delta":
            return self.argue(text(get(get(told, "tool_calls"), "function"), "arguments"))
        if kind == "tool-call-start":
            call = get(told, "tool_calls")
            function = get(call, "function")
            self.ask(id_of(call, "id"), text(function, "name"), text(function, "arguments") or "")
        elif kind == "message-start":
            self.begin()
            self.id = text(event, "id")
        elif kind == "message-end":
            delta = get(event, "delta")
            self.finish(_stop(text(delta, "finish_reason")))
            self.usage = usage(get(delta, "usage"))
            self.error_type = "error" if text(delta, "error") else self.error_type
            self.ended = True
        return None

    def _first_version(self, event: Any) -> bool | None:
        kind = text(event, "event_type")
        if kind == "text-generation":
            return self.say(text(event, "text"))
        if kind == "stream-start":
            self.begin()
            self.id = text(event, "generation_id")
        elif kind == "tool-calls-generation":
            for call in items(event, "tool_calls")[:MOST_USES]:
                self.ask(None, text(call, "name"), get(call, "parameters"))
        elif kind == "stream-end":
            self.finish(_stop(text(event, "finish_reason")))
            self.usage = usage(get(get(event, "response"), "meta"))
            self.ended = True
        return None


_ROLES: Final = {"CHATBOT": "assistant", "USER": "user", "SYSTEM": "system", "TOOL": "tool"}


def _message(told: Any, reason: str | None = None) -> Message:
    role = text(told, "role") or "user"
    if role == "tool":
        return message_of(role, [tool_response(text(told, "tool_call_id"), get(told, "content"))])
    plan, said = text(told, "tool_plan"), text(told, "message")
    parts: list[Part] = [] if not plan else [{"type": "reasoning", "content": plan}]
    parts += contents(get(told, "content")) if said is None else [words(said)]
    parts += [_call(one) for one in items(told, "tool_calls")[:MOST_USES]]
    return message_of(_ROLES.get(role, role), parts, reason)


def _call(call: Any) -> Part:
    function = get(call, "function")
    return tool_call(id_of(call, "id"), text(function, "name"), parsed(text(function, "arguments")))


class Embed(WireFormat):
    """The format of `/v2/embed` and `/v1/embed`, which generate no tokens."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        given = [request.body.get(name) for name in ("texts", "inputs", "images")]
        return request.describe("embeddings", "embed", turn=False, stream=False, size=partial(tokens_in, given))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`; pictures are billed as tokens of their own."""
        billed = get(get(result, "meta"), "billed_units")
        given, seen = count(get(billed, "input_tokens")), count(get(billed, "image_tokens")) or 0
        used = None if given is None and not seen else Usage((given or 0) + seen, image_input_tokens=seen)
        return Reply(id=text(result, "id"), usage=used)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, first_of(request.body, ("images", "inputs")))


class Rest(WireFormat):
    """The format of all other requests to a model, such as reranking, which is billed by the search and not by tokens."""

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return request.describe(
            self._operation, turn=False, size=partial(tokens_in, request.body), output_cap=count(request.body.get(_CAP))
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(id=text(result, "id"), usage=usage(as_mapping(result).get("meta")))


# -- the paths ----------------------------------------------------------------------------------------------------------

CHAT: Final = Chat()
_EMBED: Final = Embed()
_REST: Final = {name: Rest(name) for name in ("rerank", "generate", "summarize", "classify", "parse")}
_FREE: Final = frozenset({"check-api-key", "connectors", "datasets", "detokenize", "models", "tokenize"})
_JOBS: Final = frozenset({"batches", "embed-jobs", "finetuned-models"})


def known(parts: tuple[str, ...], body: Mapping[str, Any]) -> WireFormat | None:
    """Return the format of a POST below a version of this API; other APIs have paths of that name, but not these fields."""
    if len(parts) < 2 or below_version(parts[-2:]) != parts[-1:]:  # noqa: PLR2004 - a version and a name
        return None
    name = parts[-1]
    if name == "chat":
        return CHAT if "messages" in body or "message" in body else None
    if name == "embed":
        return _EMBED if not body.keys().isdisjoint(("texts", "inputs", "images")) else None
    return _REST["rerank"] if name == "rerank" and "documents" in body else None


def otherwise(parts: tuple[str, ...]) -> WireFormat | None:
    """Return the format of a POST to any other path of Cohere's own: None where it asks no model."""
    if not _FREE.isdisjoint(parts):
        return None
    if not _JOBS.isdisjoint(parts):
        return JOB if parts[-1] in _JOBS else None
    return _REST.get(parts[-1], UNREAD) if parts else UNREAD
