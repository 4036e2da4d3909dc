"""Ollama's own API: `/api/chat`, `/api/generate`, `/api/embed` and the older `/api/embeddings`.

https://docs.ollama.com/api and the types of the library (https://github.com/ollama/ollama-python). A chat streams unless the request says
not to, as lines of JSON, the last of which has the usage. `num_predict` below 1 is no cap. A request without messages or a prompt
only loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ravi_otel._instrumentation.formats.answers import AnswerCollector
from ravi_otel._instrumentation.formats.content import (
    MOST_ITEMS,
    PICTURE,
    Parts,
    blob,
    bound,
    capless,
    definition,
    first_of,
    largest_cap,
    lowered,
    message_of,
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
    plain,
    text,
    tokens_in,
)
from ravi_otel._instrumentation.formats.format import MOST_USES, UNREAD, Collector, Request, Settings, WireFormat
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = ("messages", "tools", "format", "prompt", "system", "suffix", "template")
_CAP: Final = "num_predict"
_OPTIONS: Final = Settings(
    ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"),
    ("max_tokens", _CAP),
    ("stop_sequences", "stop"),
)
_HIDES: Final = ("context",)
_STOPS: Final = {"load": "stop", "unload": "stop"}


class _Generated(WireFormat):
    """The base of chat and completion: the model's options, and the usage in an answer."""

    def streams(self, request: Request) -> bool:
        """See `WireFormat.streams`; true unless `stream` is false."""
        return request.body.get("stream") is not False

    def framing(self, request: Request) -> Framing:  # noqa: ARG002 - the protocol's
        """See `WireFormat.framing`."""
        return Framing.NDJSON

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        reason = text(result, "done_reason")
        return Reply(
            model=text(result, "model"),
            usage=usage(result),
            finish_reasons=() if reason is None else (_STOPS.get(reason, reason),),
            answers=int(get(result, "message") is not None or text(result, "response") is not None),
            error_type="error" if text(result, "error") else None,
        )

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return LinesCollector(call)

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`."""
        options = as_mapping(request.body.get("options"))
        return {"options": {**options, **lowered(options, (_CAP,), cap)}}

    def _described(self, request: Request, operation: str, endpoint: str, messages: int | None) -> Call:
        body = request.body
        size = (1 if messages is None else messages) * PER_MESSAGE + PER_REQUEST
        options = as_mapping(body.get("options"))
        parameters = _OPTIONS.of(options)
        if body.get("format") is not None and body.get("format") != "":
            parameters["output_type"] = "json"
        if isinstance(thinks := body.get("think"), str):
            parameters["reasoning_level"] = thinks
        return request.describe(
            operation,
            endpoint,
            stream=self.streams(request),
            size=partial(tokens_in, [body.get(name) for name in _INPUT_FIELDS], size),
            output_cap=count(options.get(_CAP)) or None,
            messages=messages,
            parameters=parameters,
            offers_tools=bool(items(body, "tools")),
        )

    def _bound(self, request: Request, call: Call, pictures: Sequence[Any]) -> None:
        body, parts, more = request.body, Parts(), 0
        parts.hide(first_of(body, _HIDES))
        for one in pictures:
            if isinstance(one, str):
                more += PICTURE - len(one)
            else:
                parts.hide("images")
        options = as_mapping(body.get("options"))
        call.output_cap = largest_cap(options, (_CAP,))
        bound(request, call, parts.hidden, pictures=more, uncapped=capless(options, _CAP))


class Chat(_Generated):
    """The format of `/api/chat`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return self._described(request, "chat", "chat", len(items(request.body, "messages")))

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return Asked(
            messages=[_message(one) for one in items(request.body, "messages")],
            tools=[definition(one) for one in items(request.body, "tools")],
        )

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        told = get(result, "message")
        return [] if told is None else [_message(told, text(result, "done_reason"))]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        self._bound(request, call, [one for message in items(request.body, "messages") for one in items(message, "images")])

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`; most versions give a call no id."""
        calls = items(get(result, "message"), "tool_calls")[:MOST_USES]
        return tuple(ToolUse(id_of(one, "id"), text(get(one, "function"), "name")) for one in calls)

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        return [id_of(one, "tool_call_id") for one in items(request.body, "messages") if text(one, "role") == "tool"]


class Generate(_Generated):
    """The format of `/api/generate`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return self._described(request, "text_completion", "generate", None)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        body = request.body
        said, system = as_text(body.get("prompt")), as_text(body.get("system"))
        parts = [words(said)] if said else []
        parts += [_picture(one) for one in items(body, "images")[:MOST_ITEMS]]
        return Asked(system=[words(system)] if system else [], messages=[message_of("user", parts)])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        said, thought = text(result, "response"), text(result, "thinking")
        parts: list[Part] = [{"type": "reasoning", "content": thought}] if thought else []
        return [] if said is None else [message_of("assistant", [*parts, words(said)], text(result, "done_reason"))]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`."""
        self._bound(request, call, items(request.body, "images"))


class Embed(WireFormat):
    """The format of `/api/embed`, and of `/api/embeddings`, which reports no usage; neither generates tokens."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        given = [request.body.get(name) for name in ("input", "prompt")]
        return request.describe("embeddings", "embed", turn=False, stream=False, size=partial(tokens_in, given))

    def streams(self, request: Request) -> bool:  # noqa: ARG002 - the protocol's
        """See `WireFormat.streams`."""
        return False

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = count(get(result, "prompt_eval_count"))
        return Reply(model=text(result, "model"), usage=None if told is None else Usage(told))

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, None)


def usage(told: Any) -> Usage | None:
    """Read the counts of a last line; None where one is missing, as older versions leave out that of a cached prompt."""
    given, made = count(get(told, "prompt_eval_count")), count(get(told, "eval_count"))
    return None if given is None or made is None else Usage(given, made)


class LinesCollector(AnswerCollector):
    """The collector of a chat's or a completion's lines, each with a further piece of the answer."""

    __slots__ = ()

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        if text(event, "error"):
            self.error_type = "error"
            return None
        self.begin()
        self.model = self.model or text(event, "model")
        told = get(event, "message")
        quiet = self.say(text(event, "thinking") if told is None else text(told, "thinking"), kind="reasoning")
        quiet = self.say(text(event, "response") if told is None else text(told, "content")) or quiet
        for call in items(told, "tool_calls")[:MOST_USES]:
            function = get(call, "function")
            self.ask(id_of(call, "id"), text(function, "name"), get(function, "arguments"))
            self._weight += tokens_in(get(function, "arguments")) * 12
            quiet = False
        if get(event, "done") is True:
            reason = text(event, "done_reason")
            self.finish(None if reason is None else _STOPS.get(reason, reason))
            made = count(get(event, "eval_count"))
            self.usage, self.ended, quiet = usage(event), True, False
            if self.usage is None and made is not None:
                self.usage = Usage(self._call.input_estimate, made, source="estimated")
        return quiet


def _message(told: Any, reason: str | None = None) -> Message:
    role, said, thought = text(told, "role") or "user", text(told, "content"), text(told, "thinking")
    if role == "tool":
        return message_of(role, [tool_response(text(told, "tool_call_id") or text(told, "tool_name"), said)])
    parts: list[Part] = [{"type": "reasoning", "content": thought}] if thought else []
    parts += [words(said)] if said else []
    parts += [_picture(one) for one in items(told, "images")[:MOST_ITEMS]]
    for call in items(told, "tool_calls")[:MOST_USES]:
        function = get(call, "function")
        parts.append(tool_call(id_of(call, "id"), text(function, "name"), plain(get(function, "arguments"))))
    return message_of(role, parts, reason)


def _picture(given: Any) -> Part:
    return blob("image", None, given if isinstance(given, (str, bytes)) else "")


# -- the paths ----------------------------------------------------------------------------------------------------------

CHAT: Final = Chat()
GENERATE: Final = Generate()
_EMBED: Final = Embed()
_NAMES: Final[Mapping[str, tuple[WireFormat, str]]] = {
    "chat": (CHAT, "messages"),
    "generate": (GENERATE, "model"),
    "embed": (_EMBED, "input"),
    "embeddings": (_EMBED, "prompt"),
}
"""The last segment of each path, and a field that its bodies have."""

_FREE: Final = frozenset(
    "blobs copy create delete me ps pull push show signout tags version web_fetch web_search".split()  # noqa: SIM905 - words read better as text
)


def known(parts: tuple[str, ...], body: Mapping[str, Any]) -> WireFormat | None:
    """Return the format of a POST below `/api`; other APIs have paths of that name, but not these fields."""
    found, field = _NAMES.get(parts[-1], (None, "")) if parts[-2:-1] == ("api",) else (None, "")
    return found if field in body and as_text(body.get("model")) is not None else None


def otherwise(parts: tuple[str, ...]) -> WireFormat | None:
    """Return the format of a POST to any other path of Ollama's own: None where it asks no model."""
    return None if not _FREE.isdisjoint(parts) else UNREAD
