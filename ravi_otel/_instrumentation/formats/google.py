"""Google's `generateContent`, its stream and its embeddings, as AI Studio and Vertex AI serve them, and others' models on Vertex AI.

Requests, answers and usage: https://ai.google.dev/api/generate-content, https://ai.google.dev/api/embeddings and
https://docs.cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference. The path names the model. Fields may be spelled
in either case (https://protobuf.dev/programming-guides/json/). A cached prompt is part of `promptTokenCount`; thoughts and the
results of Google's own tools are not in the counts of candidates and prompt, and are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from ravi_otel._instrumentation.formats import anthropic, chat
from ravi_otel._instrumentation.formats.answers import AnswerCollector
from ravi_otel._instrumentation.formats.content import (
    MOST_ITEMS,
    PICTURE,
    Parts,
    blob,
    bound,
    capless,
    largest_cap,
    lenient,
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
    as_list,
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
from ravi_otel._instrumentation.formats.format import JOB, MOST_USES, UNREAD, Hosted, Request, Settings, WireFormat, segments
from ravi_otel._instrumentation.formats.framing import Framing
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = ("contents", "systemInstruction", "system_instruction", "tools")

_STOPS: Final[Mapping[str, str]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "JAILBREAK"), "content_filter"),
    **dict.fromkeys(("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"), "content_filter"),
    **dict.fromkeys(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"), "error"),
}
"""https://ai.google.dev/api/generate-content#FinishReason; one without a term in the semantic conventions stays as it is."""

_SETTINGS: Final = Settings(
    ("temperature", "seed", "top_p", "top_k", "stop_sequences", "presence_penalty", "frequency_penalty"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("stop_sequences", "stopSequences"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
    ("max_tokens", "maxOutputTokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_level", "thinkingConfig", "thinkingLevel"),
    ("reasoning_level", "thinking_config", "thinking_level"),
)
_SHEER: Final = frozenset({"text", "thought", "thoughtSignature", "thought_signature", "functionCall", "function_call", "executableCode"})
_SHEER_TOO: Final = frozenset({"executable_code", "codeExecutionResult", "code_execution_result", "partMetadata", "part_metadata"})
"""The fields of parts that are text, in which a token has at least one byte."""

_TEXT: Final = "text"
_MEDIA: Final = frozenset({"image", "audio", "video"})
_FOUND_ELSEWHERE: Final = ("cachedContent", "cached_content")
_OWN_TOOLS: Final = frozenset({"functionDeclarations", "function_declarations"})
_NO_TEXT: Final = frozenset({"IMAGE", "AUDIO", "VIDEO"})


def either(value: Any, camel: str) -> Any:
    """Return a field in JSON's spelling (camelCase), or in that of its definition (snake_case)."""
    found = get(value, camel)
    return get(value, _snake(camel)) if found is None else found


def _snake(camel: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in camel)


def model_in(path: str) -> str | None:
    """Return the model that a path names before its last colon: `…/models/gemini-2.5-flash:generateContent`."""
    named = unquote(path.partition("?")[0].partition("#")[0]).rstrip("/").rpartition("/")[2].rpartition(":")[0]
    return named or None


class GenerateContent(WireFormat):
    """The format of `…:generateContent` and `…:streamGenerateContent`."""

    def streams(self, request: Request) -> bool:
        """See `WireFormat.streams`; the path decides."""
        return _action(segments(request.path)) == "streamgeneratecontent"

    def framing(self, request: Request) -> Framing:
        """See `WireFormat.framing`: an array, unless the query asks for events."""
        asked = parse_qs(request.path.partition("?")[2]).get("alt", ())
        return Framing.SSE if "sse" in asked else Framing.JSON_ARRAY

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        contents = _contents(body)
        system = either(body, "systemInstruction")
        config = either(body, "generationConfig")
        given: list[Any] = [value for name in _INPUT_FIELDS if isinstance(value := body.get(name), (str, list, tuple, Mapping))]
        size = len(contents) + (system is not None)
        modalities = {one.upper() for one in items(config, "responseModalities") if isinstance(one, str)}
        parameters = _SETTINGS.of(as_mapping(config))
        if modalities & _NO_TEXT:
            parameters["output_type"] = "speech" if "AUDIO" in modalities else "image"
        elif "json" in (as_text(either(config, "responseMimeType")) or ""):
            parameters["output_type"] = "json"
        return request.describe(
            "generate_content",
            model=model_in(request.path),
            stream=self.streams(request),
            size=partial(tokens_in, given, size * PER_MESSAGE + PER_REQUEST),
            output_cap=count(either(config, "maxOutputTokens")),
            choices=max(1, count(either(config, "candidateCount")) or 1),
            messages=size,
            parameters=parameters,
            offers_tools=bool(items(body, "tools")),
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        candidates = items(result, "candidates")
        return Reply(
            id=text(result, "responseId"),
            model=text(result, "modelVersion"),
            usage=usage(get(result, "usageMetadata")),
            finish_reasons=tuple(filter(None, [*(_reason(one) for one in candidates), _blocked(result)])),
            service_tier=text(get(result, "usageMetadata"), "serviceTier"),
            answers=len(candidates),
        )

    def collector(self, call: Call) -> ContentCollector:
        """See `WireFormat.collector`."""
        return ContentCollector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        system = either(request.body, "systemInstruction")
        found = Asked(system=[words(system)] if isinstance(system, str) else _parts(system))
        found.messages = [_message(one, "user") for one in _contents(request.body)]
        for tool in items(request.body, "tools"):
            declared = as_list(either(tool, "functionDeclarations"))
            found.tools.extend(_definition(one) for one in declared)
            found.tools.extend(own_fields({name: inner}, name) for name, inner in as_mapping(tool).items() if name not in _OWN_TOOLS)
        return found

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return [_message(get(one, "content"), "assistant", _reason(one)) for one in items(result, "candidates")]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; content that Google stores, fetches or searches has none, nor have videos, sounds and documents."""
        body, parts = request.body, Parts()
        config = either(body, "generationConfig")
        parts.hide(next((name for name in _FOUND_ELSEWHERE if body.get(name)), None))
        for tool in items(body, "tools"):
            parts.hide(next((name for name in as_mapping(tool) if name not in _OWN_TOOLS), None))
        given = [either(body, "systemInstruction"), *_contents(body)]
        pictures = sum(_picture(part, parts) for one in given for part in _raw_parts(one))
        modalities = {one.upper() for one in as_list(either(config, "responseModalities")) if isinstance(one, str)}
        call.output_cap = largest_cap(as_mapping(config), _CAPS)
        call.choices = max(lenient(either(config, "candidateCount")) or 1, 1)
        uncapped = "responseModalities" if modalities & _NO_TEXT else capless(as_mapping(config), *_CAPS)
        bound(request, call, parts.hidden, pictures=pictures, uncapped=uncapped)

    def cap(self, request: Request, cap: int) -> Mapping[str, Any]:
        """See `WireFormat.cap`; in each of the spellings that the request uses."""
        found: dict[str, Any] = {}
        for name in ("generationConfig", "generation_config"):
            if name in request.body or (name == "generationConfig" and "generation_config" not in request.body):
                config = as_mapping(request.body.get(name))
                found[name] = {**config, **lowered(config, _CAPS, cap)}
        return found

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        calls = (_call(part) for one in items(result, "candidates") for part in _raw_parts(get(one, "content")))
        return tuple(ToolUse(id_of(call, "id"), text(call, "name")) for call in calls if call is not None)[:MOST_USES]

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        answers = (either(part, "functionResponse") for one in _contents(request.body) for part in _raw_parts(one))
        return [id_of(answer, "id") for answer in answers if answer is not None]


_CAPS: Final = ("maxOutputTokens", "max_output_tokens")
GENERATE_CONTENT: Final = GenerateContent()


def usage(found: Any) -> Usage | None:
    """Read `usageMetadata`; a count that is 0 is left out by the provider."""
    if found is None:
        return None
    told = as_mapping(found)
    prompt, made = count(told.get("promptTokenCount")), count(told.get("candidatesTokenCount"))
    if prompt is None and made is None:
        total = count(told.get("totalTokenCount"))
        return total_only({"total_tokens": total}) if total else None
    thought, used_by_tools = count(told.get("thoughtsTokenCount")) or 0, count(told.get("toolUsePromptTokenCount")) or 0
    given, made = (prompt or 0) + used_by_tools, (made or 0) + thought
    if given > MOST or made > MOST:
        return None
    of_input = [*items(told, "promptTokensDetails"), *items(told, "toolUsePromptTokensDetails")]
    of_output, of_cache = items(told, "candidatesTokensDetails"), items(told, "cacheTokensDetails")
    cached = min(count(told.get("cachedContentTokenCount")) or 0, given)
    pictures = min(_of(of_input, *_SEEN), given)
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=cached,
        reasoning_tokens=min(thought, made),
        audio_input_tokens=min(_of(of_input, "AUDIO"), given),
        audio_output_tokens=min(_of(of_output, "AUDIO"), made),
        image_input_tokens=pictures,
        cached_image_tokens=min(_of(of_cache, *_SEEN), pictures, cached),
        image_output_tokens=min(_of(of_output, *_SEEN), made),
    )


_SEEN: Final = ("IMAGE", "DOCUMENT")
"""The modalities that are counted, and billed, as pictures."""


def _of(details: Sequence[Any], *modalities: str) -> int:
    return sum(count(get(one, "tokenCount")) or 0 for one in details if get(one, "modality") in modalities)


def _reason(candidate: Any) -> str | None:
    told = text(candidate, "finishReason")
    return None if told in (None, "FINISH_REASON_UNSPECIFIED") else _STOPS.get(told, told)


def _blocked(result: Any) -> str | None:
    """Return why a prompt was blocked, for which there are no candidates."""
    return "content_filter" if text(get(result, "promptFeedback"), "blockReason") else None


class ContentCollector(AnswerCollector):
    """The collector of a stream whose events are answers with a further piece of each candidate, and the usage so far."""

    __slots__ = ()

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        self.id = text(event, "responseId") or self.id
        self.model = text(event, "modelVersion") or self.model
        used = get(event, "usageMetadata")
        self.usage = usage(used) or self.usage
        self.service_tier = text(used, "serviceTier") or self.service_tier
        if (failed := get(event, "error")) is not None:
            self.error_type = text(failed, "status") or "error"
        quiet = False
        for candidate in items(event, "candidates"):
            self.begin()
            index = count(get(candidate, "index")) or 0
            for part in _raw_parts(get(candidate, "content")):
                quiet = self._part(part, index)
            if (reason := _reason(candidate)) is not None:
                self.finish(reason, index)
                self.ended, quiet = self.usage is not None, False
        if (blocked := _blocked(event)) is not None:
            self.finish(blocked)
            self.ended = True
        return quiet

    def _part(self, part: Any, index: int) -> bool:
        if (said := text(part, "text")) is not None:
            return self.say(said, kind="reasoning" if get(part, "thought") is True else "text", index=index)
        if (call := _call(part)) is not None:
            self.ask(id_of(call, "id"), text(call, "name"), get(call, "args"), index=index)
            self._weight += tokens_in(get(call, "args")) * 12
        return False


# -- messages -----------------------------------------------------------------------------------------------------------


def _contents(body: Mapping[str, Any]) -> Sequence[Any]:
    given: Any = body.get("contents")
    return [given] if isinstance(given, str) or as_mapping(given) else as_list(given)


def _raw_parts(content: Any) -> Sequence[Any]:
    given: Any = get(content, "parts")
    return [given] if as_mapping(given) else as_list(given)[:MOST_ITEMS]


def _parts(content: Any) -> list[Part]:
    return [_part(one) for one in _raw_parts(content)]


def _message(content: Any, role: str, reason: str | None = None) -> Message:
    told = text(content, "role")
    if isinstance(content, str):
        return message_of(role, [words(content)])
    parts = _parts(content)
    answers_tools = bool(parts) and all(part["type"] == "tool_call_response" for part in parts)
    return message_of("tool" if answers_tools else _ROLES.get(told or role, told or role), parts, reason)


_ROLES: Final = {"model": "assistant", "function": "tool"}


def _part(part: Any) -> Part:
    if (said := text(part, "text")) is not None:
        return {"type": "reasoning" if get(part, "thought") is True else "text", "content": said}
    if (call := _call(part)) is not None:
        return tool_call(id_of(call, "id"), text(call, "name"), plain(get(call, "args")))
    if (answer := either(part, "functionResponse")) is not None:
        return {"type": "tool_call_response", "id": id_of(answer, "id") or text(answer, "name"), "response": plain(get(answer, "response"))}
    for name, field in (("inlineData", "data"), ("fileData", "fileUri")):
        held = either(part, name)
        found = either(held, field)
        if isinstance(found, (str, bytes)):
            mime = as_text(either(held, "mimeType"))
            modality = _modality(mime)
            return blob(modality, mime, found) if name == "inlineData" else link(modality, mime, str(found))
    kind = next(iter(as_mapping(part)), None)
    return own_fields(part, kind if isinstance(kind, str) else "unknown")


def _modality(mime: str | None) -> str:
    sort = (mime or "").partition("/")[0].lower()
    return sort if sort in _MEDIA else "document"


def _call(part: Any) -> Any:
    return either(part, "functionCall")


def _definition(tool: Any) -> dict[str, Any]:
    schema = next((found for name in ("parameters", "parametersJsonSchema") if (found := either(tool, name)) is not None), None)
    written = {"type": "function", "name": text(tool, "name") or "", "description": text(tool, "description") or ""}
    return written if schema is None else {**written, "parameters": plain(schema)}


def _picture(part: Any, parts: Parts) -> int:
    """Return by how much a part's tokens can exceed its bytes; a part without a bound is marked as hidden."""
    if isinstance(part, str):
        return 0
    inline = either(part, "inlineData")
    if inline is not None:
        mime, data = as_text(either(inline, "mimeType")), get(inline, "data")
        if _modality(mime) == "image" and isinstance(data, str):
            return PICTURE - len(data)
        parts.hide(f"inline {_modality(mime)}")
        return 0
    answer = either(part, "functionResponse")
    if answer is not None:
        if as_list(get(answer, "parts")):
            parts.hide("functionResponse.parts")
        return 0
    if _SHEER.isdisjoint(as_mapping(part)) and _SHEER_TOO.isdisjoint(as_mapping(part)):
        parts.hide(next(iter(as_mapping(part)), None) or "a part without fields")
    return 0


# -- embeddings ---------------------------------------------------------------------------------------------------------


class EmbedContent(WireFormat):
    """The format of `…:embedContent` and `…:batchEmbedContents`, and Vertex AI's `…:predict` of models that embed; none makes tokens.

    AI Studio reports no usage for most of its models, Vertex AI the tokens of each text.
    """

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        given = [body.get(name) for name in ("content", "requests", "instances")]
        return request.describe("embeddings", model=model_in(request.path), turn=False, stream=False, size=partial(tokens_in, given))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        told = usage(get(result, "usageMetadata"))
        if told is None:
            counted = [count(get(one, "tokenCount") or get(one, "token_count")) for one in _statistics(result)]
            if counted and None not in counted:
                told = Usage(input_tokens=min(sum(filter(None, counted)), MOST))
        return Reply(model=text(result, "modelVersion"), usage=told)

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; there is no output."""
        call.output_cap = 0
        parts = Parts()
        given = [request.body.get("content"), *(get(one, "content") for one in items(request.body, "requests"))]
        pictures = sum(_picture(part, parts) for one in given for part in _raw_parts(one))
        bound(request, call, parts.hidden, pictures=pictures)


def _statistics(result: Any) -> list[Any]:
    told = [get(get(one, "embeddings"), "statistics") for one in items(result, "predictions")]
    told += [get(one, "statistics") for one in items(result, "embeddings")]
    return [one for one in told if one is not None]


class Predict(WireFormat):
    """The format of `…:predict` of any other model: a request whose usage is not reported, mostly for pictures."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        return request.describe("predict", model=model_in(request.path), turn=False, stream=False, size=partial(tokens_in, request.body))

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(answers=len(items(result, "predictions")))


# -- others' models on Vertex AI ----------------------------------------------------------------------------------------


class RawPredict(Hosted):
    """The format of `…:rawPredict` and `…:streamRawPredict`, which pass a body in another dialect to a model that the path names."""

    def model_in(self, path: str) -> str | None:
        """See `Hosted.model_in`."""
        return model_in(path)

    def streams(self, request: Request) -> bool:
        """See `WireFormat.streams`."""
        return request.body.get("stream") is True or _action(segments(request.path)) == "streamrawpredict"


# -- the paths ----------------------------------------------------------------------------------------------------------

_EMBED: Final = EmbedContent()
_PREDICT: Final = Predict()
_ACTIONS: Final[Mapping[str, WireFormat]] = {
    **dict.fromkeys(("generatecontent", "streamgeneratecontent"), GENERATE_CONTENT),
    **dict.fromkeys(("embedcontent", "batchembedcontents"), _EMBED),
    **dict.fromkeys(("asyncbatchembedcontent", "batchgeneratecontent", "predictlongrunning"), JOB),
}
_RAW: Final = frozenset({"rawpredict", "streamrawpredict"})
_ANTHROPIC: Final = RawPredict(anthropic.MESSAGES)
_CHAT: Final = RawPredict(chat.CHAT)
_PREDICTING: Final = frozenset({*_RAW, "predict", "directpredict", "serverstreamingpredict", "evaluateinstances", "generatesyntheticdata"})
_FREE_ACTIONS: Final = frozenset({"cancel", "counttokens", "computetokens", "fetchpredictoperation", "transferownership", "query"})
_FREE: Final = frozenset(
    """
    batches cachedcontents chunks corpora documents files filesearchstores operations permissions register sessions upload webhooks
    """.split()  # noqa: SIM905 - many words read better as text
)
"""Collections of AI Studio whose members are made, searched and changed without a model."""

_TUNING: Final = frozenset({"tunedmodels", "tuningjobs"})
_PROJECTS: Final = "projects"


def _action(parts: tuple[str, ...]) -> str:
    return parts[-1].rpartition(":")[2] if parts and ":" in parts[-1] else ""


def known(parts: tuple[str, ...], body: Mapping[str, Any]) -> WireFormat | None:
    """Return the format of a POST to a model of Google's, or to one on Vertex AI."""
    action = _action(parts)
    if action in _RAW:
        messages = "anthropic_version" in body or "anthropic" in parts
        return _ANTHROPIC if messages else _CHAT if isinstance(body.get("messages"), (list, tuple)) else None
    if action == "predict" and "publishers" in parts:
        return _EMBED if "embed" in parts[-1] else _PREDICT
    return _ACTIONS.get(action)


def otherwise(parts: tuple[str, ...]) -> WireFormat | None:
    """Return the format of a POST to any other path: None where it asks no model.

    Vertex AI has hundreds of paths that ask none, AI Studio few.
    """
    action = _action(parts)
    if parts[-1:] and parts[-1] in _TUNING:
        return JOB
    if _PROJECTS in parts:
        return UNREAD if action in _PREDICTING else None
    return None if action in _FREE_ACTIONS or not _FREE.isdisjoint(parts[-3:]) else UNREAD
