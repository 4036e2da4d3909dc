"""Amazon Bedrock: Converse, ConverseStream, and InvokeModel with or without a stream, for the families whose bodies are public.

Operations, paths and shapes: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html and the service model
`bedrock-runtime` in botocore (https://github.com/boto/botocore). Bodies of InvokeModel, by family:
https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html. The path names the model: an id, a profile or an ARN.
`inputTokens` are fresh input; tokens read from the cache, or written to it, are reported separately, and are added.
"""

from __future__ import annotations

import json
from binascii import Error, a2b_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from ravi_otel._instrumentation.formats import anthropic, chat
from ravi_otel._instrumentation.formats.answers import AnswerCollector
from ravi_otel._instrumentation.formats.content import (
    MOST_ITEMS,
    PICTURE,
    Parts,
    blob,
    bound,
    capless,
    first_of,
    largest_cap,
    link,
    lowered,
    message_of,
    own_fields,
    tool_call,
    words,
)
from ravi_otel._instrumentation.formats.fields import (
    MOST,
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
    total_only,
)
from ravi_otel._instrumentation.formats.format import JOB, MOST_USES, UNREAD, Collector, Hosted, Request, Settings, WireFormat
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = ("messages", "system", "toolConfig")
_MOST_CHUNK: Final = 8 * 1024 * 1024

_STOPS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
    # of InvokeModel: Titan, and the families with OpenAI's reasons
    "FINISH": "stop",
    "FINISHED": "stop",
    "LENGTH": "length",
    "STOP_CRITERIA_MET": "stop",
    "CONTENT_FILTERED": "content_filter",
    "RAG_QUERY_WHEN_RAG_DISABLED": "error",
    "COMPLETE": "stop",
    "MAX_TOKENS": "length",
}
_EXCEPTION: Final = "Exception"
"""The endings of the names of events by which a stream reports an error."""


class _OfBedrock(WireFormat):
    """The base of Bedrock's formats: the path decides whether they stream, and their streams are AWS event streams."""

    def streams(self, request: Request) -> bool:
        """See `WireFormat.streams`."""
        return _action_of(request.path).endswith("-stream")

    def framing(self, request: Request) -> Framing:  # noqa: ARG002 - the protocol's
        """See `WireFormat.framing`."""
        return Framing.EVENT_STREAM


def _action_of(path: str) -> str:
    return path.partition("?")[0].rstrip("/").rpartition("/")[2].lower()


def model_in(path: str) -> str | None:
    """Return the model between `/model/` and the action; an ARN may have slashes of its own."""
    _, marked, rest = path.partition("?")[0].rstrip("/").rpartition("/model/")
    return unquote(rest.rpartition("/")[0]) or None if marked else None


# -- Converse -----------------------------------------------------------------------------------------------------------


class Converse(_OfBedrock):
    """The format of `/model/{id}/converse` and `/model/{id}/converse-stream`, and of Nova's bodies, which are alike."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        messages = items(body, "messages")
        given: list[Any] = [value for name in _INPUT_FIELDS if isinstance(value := body.get(name), (list, tuple, Mapping))]
        size = len(messages) + bool(body.get("system"))
        config = body.get("inferenceConfig")
        parameters = _SETTINGS.of(as_mapping(config))
        if (tier := text(body.get("serviceTier"), "type")) is not None:
            parameters["service_tier"] = tier
        return request.describe(
            "chat",
            "converse",
            model=model_in(request.path),
            stream=self.streams(request),
            size=partial(tokens_in, given, size * PER_MESSAGE + PER_REQUEST),
            output_cap=next((cap for name in _CAPS if (cap := count(get(config, name))) is not None), None),
            messages=size,
            parameters=parameters,
            offers_tools=bool(items(body.get("toolConfig"), "tools")),
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        stop = _stop(text(result, "stopReason"))
        return Reply(
            model=_routed(result),
            usage=usage(get(result, "usage")),
            finish_reasons=() if stop is None else (stop,),
            service_tier=text(get(result, "serviceTier"), "type"),
            answers=int(get(get(result, "output"), "message") is not None),
        )

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return ConverseCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        body = request.body
        return Asked(
            system=[_part(one) for one in items(body, "system")],
            messages=[_message(one) for one in items(body, "messages")],
            tools=[_definition(one) for one in items(body.get("toolConfig"), "tools") if get(one, "cachePoint") is None],
        )

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        told = get(get(result, "output"), "message")
        return [] if told is None else [_message(told, _stop(text(result, "stopReason")))]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; a prompt that Bedrock stores has none, nor have documents, videos, sounds and tools that it runs."""
        body, parts = request.body, Parts()
        parts.hide(first_of(body, _HIDES))
        tools = items(body.get("toolConfig"), "tools")
        parts.hide(next(("systemTool" for tool in tools if get(tool, "systemTool") is not None), None))
        pictures = sum(_bounded(one, parts) for message in items(body, "messages") for one in _blocks(message))
        config = as_mapping(body.get("inferenceConfig"))
        call.output_cap = largest_cap(config, _CAPS)
        uncapped = first_of(body, ("additionalModelRequestFields",)) or capless(config, *_CAPS)
        bound(request, call, parts.hidden, pictures=pictures, tools=_WITH_TOOLS * bool(tools), uncapped=uncapped)

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`."""
        config = as_mapping(request.body.get("inferenceConfig"))
        return {"inferenceConfig": {**config, **lowered(config, _CAPS, cap)}}

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        calls = [get(one, "toolUse") for one in _blocks(get(get(result, "output"), "message"))]
        return tuple(ToolUse(id_of(call, "toolUseId"), text(call, "name")) for call in calls if _is_programs(call))[:MOST_USES]

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        found = (get(one, "toolResult") for message in items(request.body, "messages") for one in _blocks(message))
        return [id_of(one, "toolUseId") for one in found if one is not None]


_WITH_TOOLS: Final = 1_024
_CAPS: Final = ("maxTokens", "max_new_tokens")
"""The cap's name in Converse, and the other that Nova's own bodies may use."""

_HIDES: Final = ("promptVariables",)
_SETTINGS: Final = Settings(
    ("temperature", "top_p", "top_k"),
    ("max_tokens", "maxTokens"),
    ("max_tokens", "max_new_tokens"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("stop_sequences", "stopSequences"),
)


def _stop(told: str | None) -> str | None:
    return None if told is None else _STOPS.get(told, told)


def _routed(told: Any) -> str | None:
    """Return the model that a prompt router chose."""
    return text(get(get(told, "trace"), "promptRouter"), "invokedModelId")


def usage(found: Any) -> Usage | None:
    """Read a `usage` object of Converse or of Nova; None where it has no input or no output."""
    if found is None:
        return None
    fresh, made = count(get(found, "inputTokens")), count(get(found, "outputTokens"))
    if fresh is None or made is None:
        return total_only({"total_tokens": get(found, "totalTokens")})
    cached = _first(found, "cacheReadInputTokens", "cacheReadInputTokenCount")
    written = _first(found, "cacheWriteInputTokens", "cacheWriteInputTokenCount")
    hour = sum(count(get(one, "inputTokens")) or 0 for one in items(found, "cacheDetails") if get(one, "ttl") == "1h")
    given = fresh + cached + written
    if given > MOST:
        return None
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(hour, written),
    )


def _first(found: Any, *names: str) -> int:
    return next((told for name in names if (told := count(get(found, name)))), 0)


class ConverseCollector(AnswerCollector):
    """The collector of ConverseStream's events, each an object with the event's name as its only field."""

    __slots__ = ()

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        for name, told in list(as_mapping(event).items())[:8]:
            if name == "contentBlockDelta":
                return self._delta(get(told, "delta"))
            if name == "contentBlockStart":
                self._start(get(told, "start"))
            elif name == "messageStart":
                self.begin()
            elif name == "messageStop":
                self.finish(_stop(text(told, "stopReason")))
            elif name == "metadata":
                self.usage = usage(get(told, "usage")) or self.usage
                self.model = _routed(told) or self.model
                self.service_tier = text(get(told, "serviceTier"), "type") or self.service_tier
                self.ended = True
            elif name.endswith(_EXCEPTION):
                self.error_type = name
        return None

    def _start(self, start: Any) -> None:
        call = get(start, "toolUse")
        if _is_programs(call):
            self.ask(id_of(call, "toolUseId"), text(call, "name"))

    def _delta(self, delta: Any) -> bool:
        if (said := text(delta, "text")) is not None:
            return self.say(said)
        if (call := get(delta, "toolUse")) is not None:
            return self.argue(text(call, "input"))
        return self.say(text(get(delta, "reasoningContent"), "text"), kind="reasoning")


def _is_programs(call: Any) -> bool:
    """Whether the program is to run a tool call; Bedrock itself runs those of `server_tool_use`."""
    return call is not None and text(call, "type") is None


# -- messages -----------------------------------------------------------------------------------------------------------


def _blocks(message: Any) -> Sequence[Any]:
    return items(message, "content")[:MOST_ITEMS]


def _message(told: Any, reason: str | None = None) -> Message:
    parts = [_part(one) for one in _blocks(told)]
    answers_tools = bool(parts) and all(part["type"] == "tool_call_response" for part in parts)
    return message_of("tool" if answers_tools else text(told, "role") or "user", parts, reason)


def _part(block: Any) -> Part:
    for name, read in _READ_AS.items():
        if (held := get(block, name)) is not None and (found := read(held)) is not None:
            return found
    kind = next(iter(as_mapping(block)), None)
    return own_fields(block, kind if isinstance(kind, str) else "unknown")


def _answer(held: Any) -> Part:
    return {"type": "tool_call_response", "id": id_of(held, "toolUseId"), "response": [_part(one) for one in _blocks(held)]}


def _medium(modality: str, held: Any) -> Part | None:
    source, form = get(held, "source"), text(held, "format")
    data, uri = get(source, "bytes"), text(get(source, "s3Location"), "uri")
    mime = None if form is None or modality == "document" else f"{modality}/{form}"
    if isinstance(data, (str, bytes)):
        return blob(modality, mime, data)
    return None if uri is None else link(modality, mime, uri)


_READ_AS: Final[Mapping[str, Callable[[Any], Part | None]]] = {
    "text": lambda held: words(held) if isinstance(held, str) else None,
    "toolUse": lambda held: tool_call(id_of(held, "toolUseId"), text(held, "name"), plain(get(held, "input"))),
    "toolResult": _answer,
    "reasoningContent": lambda held: {"type": "reasoning", "content": text(get(held, "reasoningText"), "text") or ""},
    **{name: partial(_medium, name) for name in ("image", "audio", "video", "document")},
    "citationsContent": lambda held: words("".join(text(one, "text") or "" for one in _blocks(held))),
}
"""The readers of a block, by the field that it has."""


def _definition(tool: Any) -> dict[str, Any]:
    spec = get(tool, "toolSpec")
    if spec is None:
        return own_fields(get(tool, "systemTool"), "systemTool")
    written = {"type": "function", "name": text(spec, "name") or "", "description": text(spec, "description") or ""}
    schema = get(get(spec, "inputSchema"), "json")
    return written if schema is None else {**written, "parameters": plain(schema)}


_SHEER: Final = frozenset({"text", "toolUse", "toolResult", "reasoningContent", "cachePoint", "guardContent", "json", "searchResult"})


def _bounded(block: Any, parts: Parts) -> int:
    """Return by how much a block's tokens can exceed its bytes; a block without a bound is marked as hidden."""
    image = get(block, "image")
    if image is not None:
        data = get(get(image, "source"), "bytes")
        if not isinstance(data, (str, bytes)):
            parts.hide("image")
            return 0
        return PICTURE - len(data)
    answer = get(block, "toolResult")
    if answer is not None:
        return sum(_bounded(one, parts) for one in _blocks(answer))
    if _SHEER.isdisjoint(as_mapping(block)):
        parts.hide(str(next(iter(as_mapping(block)), "a block without fields")))
    return 0


# -- InvokeModel --------------------------------------------------------------------------------------------------------


class Invoked(Hosted, _OfBedrock):
    """The format of `/model/{id}/invoke` and `/model/{id}/invoke-with-response-stream`, whose bodies are those of the model's family.

    Each event of a stream wraps one of the family's events, in base 64; the last of these has the usage.
    """

    def model_in(self, path: str) -> str | None:
        """See `Hosted.model_in`."""
        return model_in(path)

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return InvokedCollector(self.inner.collector(call))

    def informed(self, headers: Iterable[tuple[bytes, bytes]]) -> WireFormat:
        """See `WireFormat.informed`; some families report their usage in headers only."""
        told = {name: _number(value) for raw, value in headers if (name := raw.lower()).startswith(_COUNTED)}
        given, made = told.get(_COUNTED + b"input-token-count"), told.get(_COUNTED + b"output-token-count")
        if given is None:
            return self
        cached, written = (told.get(_COUNTED + name + b"-input-token-count") or 0 for name in (b"cache-read", b"cache-write"))
        if given + cached + written > MOST:
            return self
        return _Informed(self.inner, Usage(given + cached + written, made or 0, cached_input_tokens=cached, cache_write_tokens=written))


_COUNTED: Final = b"x-amzn-bedrock-"


def _number(told: bytes) -> int | None:
    return int(told) if told.isdigit() and len(told) < 16 else None  # noqa: PLR2004 - digits of 2^53


class _Informed(Invoked):
    """The format of an answer with its usage in headers; usage in the body takes precedence."""

    def __init__(self, inner: WireFormat, told: Usage) -> None:
        super().__init__(inner)
        self._told = told

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        reply = super().reply(result)
        reply.usage = reply.usage or self._told
        return reply


_METRICS: Final = "amazon-bedrock-invocationMetrics"


class InvokedCollector(Collector):
    """The collector of a stream whose events wrap those of the model's family."""

    __slots__ = ("_error_type", "_inner", "_usage")

    def __init__(self, inner: Collector) -> None:
        self._inner = inner
        self._usage: Usage | None = None
        self._error_type: str | None = None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._usage is not None or self._inner.complete

    @property
    def spoke(self) -> bool:
        """See `Collector.spoke`."""
        return self._inner.spoke

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        return self._inner.produced

    @property
    def text(self) -> str:
        """See `Collector.text`."""
        return self._inner.text

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        return self._inner.told_input

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return self._inner.tool_uses

    def keep_text(self, most: int) -> None:
        """See `Collector.keep_text`."""
        self._inner.keep_text(most)

    def be_quiet_until(self, produced: int) -> None:
        """See `Collector.be_quiet_until`."""
        self._inner.be_quiet_until(produced)

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        opened = _opened(get(get(event, "chunk"), "bytes"))
        if opened is None:
            self._error_type = next((name for name in as_mapping(event) if name.endswith(_EXCEPTION)), self._error_type)
            return None
        metrics = get(opened, _METRICS)
        if metrics is not None:
            given, made = count(get(metrics, "inputTokenCount")), count(get(metrics, "outputTokenCount"))
            cached, written = (_first(metrics, f"cache{name}InputTokenCount") for name in ("Read", "Write"))
            if given is not None and made is not None and given + cached + written <= MOST:
                self._usage = Usage(given + cached + written, made, cached_input_tokens=cached, cache_write_tokens=written)
        quiet = self._inner.add(opened)
        return None if metrics is not None else quiet

    def reply(self) -> Reply:
        """See `Collector.reply`; the family's own usage is more detailed than the metrics."""
        reply = self._inner.reply()
        if self._usage is not None and (reply.usage is None or reply.usage.source != "reported"):
            reply.usage = self._usage
        reply.error_type = self._error_type or reply.error_type
        return reply


def _opened(data: Any) -> Any:
    if not isinstance(data, (str, bytes)) or len(data) > _MOST_CHUNK:
        return None
    try:
        return json.loads(a2b_base64(data))
    except (ValueError, Error, RecursionError):
        return None


class TextModels(WireFormat):
    """The format of families that complete a text: Llama, Mistral, Titan, Jurassic, Command, older Claude, and their like."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        config = as_mapping(body.get("textGenerationConfig"))
        cap = next((found for name in _TEXT_CAPS if (found := count(body.get(name))) is not None), count(config.get(_TITAN_CAP)))
        given = [body.get(name) for name in _TEXT_INPUTS]
        return request.describe(
            "text_completion",
            "invoke",
            size=partial(tokens_in, given, 1),
            output_cap=cap,
            choices=max(1, count(body.get("num_generations")) or 1),
            parameters={**_TEXT_SETTINGS.of(body), **_TEXT_SETTINGS.of(config)},
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        answers = _completions(result)
        reasons = map(_reason_of, answers)
        return Reply(
            id=text(result, "generation_id"),
            usage=_text_usage(result),
            finish_reasons=tuple(filter(None, reasons)),
            answers=len(answers),
        )

    def collector(self, call: Call) -> Collector:
        """See `WireFormat.collector`."""
        return TextModelsCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        said = next((found for name in _TEXT_INPUTS if (found := as_text(request.body.get(name)))), None)
        return None if said is None else Asked(messages=[message_of("user", [words(said)])])

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return [message_of("assistant", [words(_said(one))], _reason_of(one)) for one in _completions(result)]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; only a text alone has one."""
        body = request.body
        config = as_mapping(body.get("textGenerationConfig"))
        strange = next((name for name in body if name not in _BOUNDED and name not in _TEXT_SETTINGS_READ), None)
        call.output_cap = largest_cap({**body, _TITAN_CAP: config.get(_TITAN_CAP)}, (*_TEXT_CAPS, _TITAN_CAP))
        bound(request, call, strange, uncapped=capless(body, *_TEXT_CAPS) or capless(config, _TITAN_CAP))

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`; each family has a name of its own for it."""
        body = request.body
        if "inputText" in body:
            config = as_mapping(body.get("textGenerationConfig"))
            return {"textGenerationConfig": {**config, **lowered(config, (_TITAN_CAP,), cap)}}
        llama = "llama" in (text(body, "model") or "").lower()
        return lowered(body, _TEXT_CAPS if llama else ("max_tokens", *_TEXT_CAPS), cap)


_TEXT_INPUTS: Final = ("prompt", "inputText", "message", "chat_history")
_TEXT_CAPS: Final = ("max_gen_len", "max_tokens", "max_tokens_to_sample", "maxTokens", "max_new_tokens")
_TITAN_CAP: Final = "maxTokenCount"
_TEXT_SETTINGS: Final = Settings(
    ("temperature", "top_p", "top_k", "stop_sequences"),
    *(("max_tokens", name) for name in (*_TEXT_CAPS, _TITAN_CAP)),
    ("top_p", "topP"),
    ("top_p", "p"),
    ("top_k", "k"),
    ("stop_sequences", "stop"),
    ("stop_sequences", "stopSequences"),
)
_TEXT_SETTINGS_READ: Final = frozenset(
    {*_TEXT_CAPS, "temperature", "top_p", "topP", "p", "k", "top_k", "stop", "stop_sequences", "stopSequences"}
)
_BOUNDED: Final = frozenset({"prompt", "inputText", "textGenerationConfig", "model", "stream", "num_generations"})
_REASONS: Final = ("stop_reason", "completionReason", "finish_reason")
_TEXTS: Final = ("generation", "outputText", "text", "completion")
_HOLDERS: Final = ("outputs", "results", "generations", "choices")


def _completions(result: Any) -> Sequence[Any]:
    """Return the answers of one body: those of a list, or the body itself."""
    many = next((found for name in _HOLDERS if (found := items(result, name))), ())
    return many[:MOST_ITEMS] or ((result,) if any(text(result, name) is not None for name in _TEXTS) else ())


def _said(answer: Any) -> str:
    return next((said for name in _TEXTS if (said := text(answer, name))), "")


def _reason_of(answer: Any) -> str | None:
    return _stop(next((reason for name in _REASONS if (reason := text(answer, name))), None))


def _count_of(told: Any, names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := count(get(told, name))) is not None), None)


def _text_usage(told: Any) -> Usage | None:
    """Read the counts of a family that reports some in the body; Mistral's has them in headers only."""
    given, made = _count_of(told, _GIVEN), _count_of(told, _MADE)
    if made is None:
        counted = [count(get(one, "tokenCount")) for one in items(told, "results")]
        made = sum(filter(None, counted)) if counted and None not in counted else None
    if made is None and get(told, "embedding") is not None:  # an embedding model, whose name an ARN hides
        made = 0
    if given is None or made is None or made > MOST:
        return chat.usage(get(told, "usage"))
    return Usage(given, made)


_GIVEN: Final = ("prompt_token_count", "inputTextTokenCount")
_MADE: Final = ("generation_token_count", "totalOutputTextTokenCount")


class TextModelsCollector(AnswerCollector):
    """The collector of a family that completes a text: each event is an answer with a further piece of it."""

    __slots__ = ("_given",)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._given: int | None = None

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        quiet = False
        self._given = _count_of(event, _GIVEN) or self._given  # only the first event has it
        for at, one in enumerate(_completions(event)):
            quiet = self.say(_said(one), index=at)
            self.finish(_reason_of(one), at)
        found = _text_usage({**as_mapping(event), _GIVEN[0]: self._given})
        if found is not None:  # a running total, repeated in each event
            self.usage, self.ended = found, bool(self._reasons)
        return quiet and not self.ended


class Embeddings(WireFormat):
    """The format of models that embed: Titan reports a text's tokens in the body, Cohere's in headers only."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        given = [request.body.get(name) for name in ("inputText", "texts", "inputs")]
        return request.describe("embeddings", "invoke", turn=False, stream=False, size=partial(tokens_in, given))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = count(get(result, "inputTextTokenCount"))
        return Reply(id=text(result, "id"), usage=None if told is None else Usage(told))

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        bound(request, call, first_of(request.body, ("inputImage", "images", "inputs")))


class _Unknown(WireFormat):
    """The format of unknown families, mostly for pictures: a request to a model of which only the name is known."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return request.describe("invoke", turn=False, size=partial(tokens_in, request.body))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(usage=usage(get(result, "usage")) or _text_usage(result) or anthropic.usage(get(result, "usage")))


# -- the paths ----------------------------------------------------------------------------------------------------------

CONVERSE: Final = Converse()
_MESSAGES: Final = Invoked(anthropic.MESSAGES)
_NOVA: Final = Invoked(CONVERSE)
_CHAT: Final = Invoked(chat.CHAT)
_TEXT: Final = Invoked(TextModels())
_EMBEDDINGS: Final = Invoked(Embeddings())
_OTHER: Final = Invoked(_Unknown())
_INVOKES: Final = frozenset({"invoke", "invoke-with-response-stream"})
_CONVERSES: Final = frozenset({"converse", "converse-stream"})
_MODEL: Final = "model"


def known(parts: tuple[str, ...], body: Mapping[str, Any]) -> WireFormat | None:
    """Return the format of a POST to a model: that of Converse, or by the shape of the body, as an ARN hides the family."""
    if _MODEL not in parts[:-1]:
        return JOB if parts[-1:] == ("async-invoke",) else None
    if parts[-1] in _CONVERSES:
        return CONVERSE
    return _invoked("/".join(parts[:-1]), body) if parts[-1] in _INVOKES else None


def _invoked(model: str, body: Mapping[str, Any]) -> WireFormat:
    if "anthropic_version" in body:
        return _MESSAGES
    if isinstance(body.get("messages"), (list, tuple)):
        return _NOVA if _is_converse(body) else _CHAT
    if "embed" in model or any(name in body for name in ("texts", "embeddingTypes", "embeddingConfig")):
        return _EMBEDDINGS
    return _TEXT if any(isinstance(body.get(name), str) for name in _TEXT_INPUTS) and "taskType" not in body else _OTHER


def _is_converse(body: Mapping[str, Any]) -> bool:
    if any(name in body for name in ("inferenceConfig", "schemaVersion", "toolConfig")):
        return True
    first = next(iter(_blocks(next(iter(items(body, "messages")), None))), None)
    return text(first, "text") is not None and text(first, "type") is None


def otherwise(parts: tuple[str, ...]) -> WireFormat | None:
    """Return the format of a POST to any other path, None where it asks no model: guardrails and management of Bedrock do not."""
    model = _MODEL in parts[:-1] and parts[-1] != "count-tokens"
    agent = parts[-1:] and parts[-1] in _AGENTS
    return UNREAD if model or agent else None


_AGENTS: Final = frozenset({"text", "retrieveandgenerate", "retrieveandgeneratestream", "rerank", "optimize-prompt"})
"""The endings of the paths by which Bedrock's agents and knowledge bases call a model."""
