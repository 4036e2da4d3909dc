"""The Responses API: what asks a model for a response, its answer, its stream, and looks at what was begun before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast
from urllib.parse import unquote

from ravi_otel._instrumentation.formats.content import (
    MOST_ITEMS,
    Parts,
    blob,
    bound,
    capless,
    contents,
    definition,
    first_of,
    hosted,
    lenient,
    message_of,
    own_fields,
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
)
from ravi_otel._instrumentation.formats.format import Request, Settings, TextCollector, WireFormat
from ravi_otel._runtime.background_calls import AWAITED, CONVERSATIONS, key_of
from ravi_otel.policy._usage import Asked, Call, Message, Part, Reply, ToolUse, Usage

_INPUT_FIELDS: Final = frozenset({"input", "instructions", "tools", "text"})
_SETTINGS: Final = Settings(
    ("temperature", "top_p", "service_tier"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_level", "reasoning", "effort"),
    ("output_type", "text", "format", "type"),
    ("conversation_id", "conversation"),
    ("conversation_id", "conversation", "id"),
)

_FINISHED: Final = {"completed": "stop", "failed": "error", "cancelled": "error", "incomplete": "length"}
_AT_WORK: Final = frozenset({"queued", "in_progress"})
_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_TEXT: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})

_NAMED_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_BUILT_IN: Final = {
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
}
"""Tools that the provider defines and the program runs, and what they are called."""

_RESULT: Final = "call_output"

_PROGRAM_TOOLS: Final = ("function", "custom", "local_shell")
_HIDES: Final = ("previous_response_id", "conversation", "prompt", "context_management")
_LEAST_CAP: Final = 16
"""The smallest `max_output_tokens` that the API takes."""

_BOUNDED_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_BOUNDED_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})

_USER_ITEMS: Final = frozenset({"", "message", "item_reference", "mcp_approval_response"})
"""Items without a role that are the user's."""

_FETCHED: Final = "responses.retrieve"


class Responses(WireFormat):
    """Read `/responses`."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        body = request.body
        instructed = int(isinstance(body.get("instructions"), str))
        given = body.get("input")
        size = len(cast("Sequence[Any]", given)) if isinstance(given, (list, tuple)) else int(isinstance(given, str))
        call = request.describe(
            "chat",
            "responses",
            size=partial(tokens_in, tuple(map(body.get, _INPUT_FIELDS.intersection(body))), size * PER_MESSAGE + PER_REQUEST),
            output_cap=count(body.get("max_output_tokens")),
            messages=size + instructed,
            unchained=instructed,
            previous_response_id=text(body, "previous_response_id"),
            parameters=_SETTINGS.of(body),
            offers_tools="tools" in body or "prompt" in body,  # a stored prompt may hold some
        )
        goes_on = call.previous_response_id or call.parameters.get("conversation_id")
        if goes_on is not None:
            call.messages = size + instructed + CONVERSATIONS.before(key_of(call, goes_on))
        return call

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`; an answer that is still being made, in the background, has no usage yet."""
        told = as_mapping(result)
        status, conversation, output = as_text(told.get("status")), told.get("conversation"), as_list(told.get("output"))
        reported = usage(told.get("usage"))
        if reported is not None:
            reported.searches = _searches(told, output)
        return Reply(
            id=as_text(told.get("id")),
            model=as_text(told.get("model")),
            usage=reported,
            finish_reasons=finish_reasons(status, text(told.get("incomplete_details"), "reason"), output),
            service_tier=as_text(told.get("service_tier")),
            conversation_id=conversation if isinstance(conversation, str) else text(conversation, "id"),
            answers=len(output),
            error_type=(text(told.get("error"), "code") or "response_failed") if status == "failed" else None,
            pending=status in _AT_WORK and reported is None,
        )

    def collector(self, call: Call) -> ResponsesCollector:
        """See `WireFormat.collector`."""
        return ResponsesCollector(self, call)

    def asked(self, request: Request) -> Asked | None:
        """See `WireFormat.asked`."""
        return asked(request.body)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        told = as_mapping(result)
        output = as_list(told.get("output"))
        reason = text(told.get("incomplete_details"), "reason")
        return answered(output, finish_reasons(as_text(told.get("status")), reason, output))

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `WireFormat.tool_uses`."""
        return _uses(items(result, "output"))

    def tool_results(self, request: Request) -> Sequence[str | None]:
        """See `WireFormat.tool_results`."""
        return [id_of(item, "call_id") for item in items(request.body, "input") if (text(item, "type") or "").endswith(_RESULT)]

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; what the provider keeps or fetches has no bound."""
        body, parts = request.body, Parts()
        call.least_cap = _LEAST_CAP
        call.output_cap = lenient(body.get("max_output_tokens")) or None
        parts.hide(first_of(body, _HIDES) or hosted(body, _PROGRAM_TOOLS) or searching(body))
        given = body.get("input")
        if not isinstance(given, (str, list, tuple)):
            parts.hide("input")
        for item in as_list(given):
            _take_item(item, parts)
        bound(request, call, parts.hidden, pictures=parts.pictures, uncapped=capless(body, "max_output_tokens"))

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the format's
        """See `WireFormat.cap`."""
        return {"max_output_tokens": cap}


RESPONSES: Final = Responses()


class Compact(Responses):
    """Read `/responses/compact`, where a model shortens a conversation: it is asked, and that is no turn."""

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        call = super().call(request)
        call.operation = call.endpoint = "responses.compact"
        call.turn = False
        return call

    def bound(self, request: Request, call: Call) -> None:
        """See `WireFormat.bound`; what it answers cannot be capped."""
        WireFormat.bound(self, request, call)


def usage(told: Any) -> Usage | None:
    """Read the usage object of a response."""
    return usage_of(told, "input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")


def _searches(told: Mapping[str, Any], output: Sequence[Any]) -> int:
    """Count the searches that are billed: as the answer says, or else those among its items; opening a page is none."""
    searched = count(get(get(told.get("tool_usage"), "web_search"), "num_requests"))
    return searched if searched is not None else sum([_is_search(item) for item in output[:MOST_ITEMS]])


def _is_search(item: Any) -> bool:
    if text(item, "type") != "web_search_call" or text(item, "status") == "failed":
        return False
    return text(get(item, "action"), "type") in ("search", None)


def finish_reasons(status: str | None, reason: str | None, output: Sequence[Any], calls: frozenset[str] = _NAMED_CALLS) -> tuple[str, ...]:
    """Return why a response ended, by its status, the reason it tells for that, and whether its output asks for one of these `calls`."""
    if status == "incomplete":
        return (("length" if reason == "max_output_tokens" else reason) or "length",)
    if status == "completed" and any([text(item, "type") in calls for item in output[:MOST_ITEMS]]):  # noqa: C419 - no frame each
        return ("tool_calls",)
    found = _FINISHED.get(status or "")
    return () if found is None else (found,)


def _uses(output: Sequence[Any]) -> tuple[ToolUse, ...]:
    """Return what the output asks for; what the provider runs itself is none of it."""
    found: list[ToolUse] = []
    for item in output[:MOST_ITEMS]:
        kind = text(item, "type") or ""
        if kind in _NAMED_CALLS:
            found.append(ToolUse(id_of(item, "call_id"), text(item, "name")))
        elif kind in _BUILT_IN:
            found.append(ToolUse(id_of(item, "call_id"), _BUILT_IN[kind]))
    return tuple(found)


def _take_item(item: Any, parts: Parts) -> None:
    kind = text(item, "type")
    if kind in (None, "message"):
        if get(item, "content") is None:
            parts.hide("item_reference")
        parts.take(get(item, "content"))
    elif kind in _BOUNDED_OUTPUTS:
        parts.take(get(item, "output"))
    elif kind == "reasoning":
        if text(item, "encrypted_content") is None:
            parts.hide("reasoning")  # named by its id, and kept by the provider
    elif kind not in _BOUNDED_CALLS:
        parts.hide(kind)


# -- streams ------------------------------------------------------------------------------------------------------------


class ResponsesCollector(TextCollector):
    """Follow one stream. One made in the background goes on without it: then its usage comes with a later look."""

    __slots__ = ("_begun", "_error", "_final", "_is_look", "_items", "_name", "_reader", "_response", "_texts_by_item", "_uses")

    def __init__(self, reader: WireFormat, call: Call, *, name: str | None = None) -> None:
        """Follow a stream that `reader` reads; one with a `name` is a look at what was begun before under it."""
        super().__init__(call)
        self._reader = reader
        self._is_look = name is not None
        self._name = name
        self._response: Any = None
        self._begun = False
        self._final = False
        self._error: str | None = None
        self._items: dict[int, Any] | None = {} if call.content is not None else None
        self._texts_by_item: dict[int, list[str]] = {}
        self._uses: list[ToolUse] | None = [] if call.offers_tools else None

    @property
    def complete(self) -> bool:
        """See `Collector.complete`."""
        return self._final

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`: what it ends with says, or where that is empty, what came before."""
        whole = _uses(items(self._response, "output")) if self._final and self._uses is not None else ()
        return whole or tuple(self._uses or ())

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        delta = get(event, "delta")
        if isinstance(delta, str):
            is_text = (self._room > 0 or self._items is not None) and get(event, "type") in _TEXT
            if is_text and self._items is not None:
                self._texts_by_item.setdefault(count(get(event, "output_index")) or 0, []).append(delta)
            return self._add_text(delta, is_text=is_text)
        self._add_other(event)
        return None

    def _add_other(self, event: Any) -> None:
        response = get(event, "response")
        kind = get(event, "type")
        if response is not None:
            self._response = response
            self._final = self._final or kind in _TERMINAL
            if not self._begun and not self._is_look and get(response, "background") is True:
                self._begun = True
                AWAITED.streams(key_of(self._call, text(response, "id")))
        elif kind == "error":
            self._error = text(event, "code") or "error"
        elif kind == "response.output_item.done":
            item = get(event, "item")
            if self._items is not None:
                place = count(get(event, "output_index"))
                self._items[len(self._items) if place is None else place] = item
            if self._uses is not None and len(self._uses) < MOST_ITEMS:
                self._uses.extend(_uses((item,)))

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        told = self._reader.reply(self._response)
        told.id = told.id or self._name
        told.error_type = told.error_type or self._error
        told.pending = (self._begun or self._is_look) and not self._final and told.usage is None
        if told.usage is None and not told.pending and not self._is_look and self._response is not None:
            told.usage = self._counted()
        if self._begun and not told.pending:
            AWAITED.ended(key_of(self._call, told.id))
        if self._uses is not None:
            told.tool_uses = tuple(self.tool_uses)
        return told if self._items is None else replace(told, output=self._said(told))

    def _said(self, told: Reply) -> list[Message]:
        """Write the items that are whole, and of the others the text that came."""
        whole = self._items or {}
        if self._final:
            found = items(self._response, "output")
            if found:
                return answered(found, told.finish_reasons)
        part = {at: {"type": "message", "content": "".join(texts)} for at, texts in self._texts_by_item.items()}
        merged = {**part, **whole}
        return answered([merged[at] for at in sorted(merged)], told.finish_reasons)


# -- looks --------------------------------------------------------------------------------------------------------------


class Look(WireFormat):
    """Read an answer to GET `/responses/ID` or POST `/responses/ID/cancel`.

    A look asks no model. It brings what a response that was made in the background has used, once; for any other response it
    shows no usage, which was counted where it was begun.
    """

    def __init__(self, name: str, shape: str, method: str) -> None:
        self._name = name
        self._shape = shape
        self._method = method

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        fetches = self._shape == _FETCHED
        operation = "fetch_response" if fetches else f"{self._method} {self._shape}"
        return request.describe(operation, self._shape, model=None, generative=False, turn=False, fetches=fetches)

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`; an answer about another response than was asked for brings nothing."""
        told = RESPONSES.reply(result)
        told.id = told.id or self._name
        told.awaited = told.id == self._name
        if not told.awaited:
            told.usage, told.pending = None, False
        if self._shape != _FETCHED:
            told.error_type = None  # that it was cancelled is no failure of cancelling it
        return told

    def collector(self, call: Call) -> ResponsesCollector:
        """See `WireFormat.collector`."""
        return ResponsesCollector(self, call, name=self._name)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return RESPONSES.answered(result) if self._shape == _FETCHED else ()


class Deletion(Look):
    """Read an answer to DELETE `/responses/ID`: after it nobody can look any more."""

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(id=self._name, awaited=get(result, "deleted") is not False)


def look_at(method: str, parts: tuple[str, ...], path: str) -> WireFormat | None:
    """Return the reader of a request about one response; None where it is about something else."""
    if parts[-2:-1] == ("responses",) and method in ("GET", "DELETE"):
        name = _id_at(path, 1)
        return Look(name, _FETCHED, method) if method == "GET" else Deletion(name, "responses.delete", method)
    if method == "POST" and parts[-3:-2] == ("responses",) and parts[-1] == "cancel":
        return Look(_id_at(path, 2), "responses.cancel", method)
    return None


def _id_at(path: str, last: int) -> str:
    """Return the id that is the `last`-th segment of a path from its end, spelled as it is."""
    found = [part for part in path.partition("?")[0].partition("#")[0].split("/") if part]
    return unquote(found[-last]) if len(found) >= last else ""


# -- what requests and outputs say ----------------------------------------------------------------------------------------


def asked(body: Mapping[str, Any]) -> Asked:
    """Write down a request: its instructions, its input of either form, and its tools."""
    found = Asked(tools=[definition(tool) for tool in items(body, "tools")[:MOST_ITEMS]])
    instructions, given, prompt = body.get("instructions"), body.get("input"), body.get("prompt")
    if isinstance(instructions, str):
        found.system.append(words(instructions))
    for item in (given,) if isinstance(given, str) else as_list(given)[:MOST_ITEMS]:
        found.messages.append(_message(item))
    if isinstance(prompt, Mapping):
        found.messages.append(message_of("user", [own_fields(prompt, "prompt")]))
    return found


def answered(output: Sequence[Any], finish_reasons: Sequence[str]) -> list[Message]:
    """Write down the output as one message of the assistant; nothing where there is no output."""
    parts = [part for item in output[:MOST_ITEMS] for part in _parts_of_item(item)]
    return [message_of("assistant", parts, next(iter(finish_reasons), None))] if parts else []


def _message(item: Any) -> Message:
    if isinstance(item, str):
        return message_of("user", [words(item)])
    role, kind = text(item, "role"), text(item, "type") or ""
    if role is None:
        role = "tool" if kind.endswith("_output") else "user" if kind in _USER_ITEMS else "assistant"
    return message_of(role, _parts_of_item(item))


def _parts_of_item(item: Any) -> list[Part]:
    kind = text(item, "type")
    if kind in (None, "message"):
        return contents(get(item, "content"))
    if kind == "reasoning":
        told = [*items(item, "summary"), *items(item, "content")]
        return [{"type": "reasoning", "content": one} for part in told[:MOST_ITEMS] if (one := text(part, "text")) is not None]
    if kind in _NAMED_CALLS:
        arguments = parsed(get(item, "arguments")) if kind == "function_call" else get(item, "input")
        return [tool_call(text(item, "call_id"), text(item, "name"), arguments)]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [tool_response(text(item, "call_id"), get(item, "output"))]
    own, drawn = own_fields(item, kind), text(item, "result")
    if kind == "image_generation_call" and drawn is not None:
        del own["result"]
        return [own, blob("image", f"image/{text(item, 'output_format') or 'png'}", drawn)]
    return [own]
