"""What is in messages: their parts as those of the GenAI convention (`policy.usage.Part`), and how many tokens they can count at most.

What is written down is a copy that no later change can reach. APIs differ in what a message is, and hardly in what is in one: one table
knows every sort of part, whoever sends it.

The bound is never below what a provider can count, whatever its tokenizer. A token is at least one byte of text, so that the bytes of
the JSON that is sent are a bound for all of its texts, names and numbers; what a server's template adds to them is a constant. A picture
inside the request is the one thing that can count more tokens than it has bytes, and is taken at the most any known model makes of one.
What a request only points at has no bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import MOST, class_of, fields_of, get, plain, text
from ravi_otel._instrumentation.formats.format import Request
from ravi_otel.policy._usage import Call, Message, Part

MOST_ITEMS: Final = 10_000
_MOST_PARSED: Final = 256 * 1024
_SECRET: Final = frozenset({"authorization", "authorization_token", "headers", "server_url", "domain_secrets", "encrypted_content"})
"""Fields of tools and items that hold keys, or what only the provider can read."""

_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text", "unknown"), ("text", "text")),
    "refusal": ("refusal", "refusal"),
    "thinking": ("reasoning", "thinking"),
}
"""Sorts of part that are words: what they are to the convention, and the field that has them."""

_MEDIA: Final[Mapping[str, tuple[str, str]]] = {
    "computer_screenshot": ("image", "image_url"),
    "container_upload": ("document", ""),
    "document": ("document", "source"),
    "file": ("document", "file"),
    "image": ("image", "source"),
    "image_url": ("image", "image_url"),
    "input_audio": ("audio", "input_audio"),
    "input_file": ("document", ""),
    "input_image": ("image", "image_url"),
    "video_url": ("video", "video_url"),
}
"""Sorts of part that are media: their modality, and the field that holds them, an address or an object; "" for the part itself."""

_USES: Final = frozenset({"mcp_tool_use", "server_tool_use", "tool_use"})
_RESULT: Final = "tool_result"


def message_of(role: str, parts: list[Part], reason: str | None = None) -> Message:
    """Return a message, with the reason for its end in the convention's word where it has one."""
    written: Message = {"role": role, "parts": parts}
    if reason is not None:
        written["finish_reason"] = _REASONS.get(reason, reason)
    return written


def words(said: str) -> Part:
    """Return text as a part."""
    return {"type": "text", "content": said}


def blob(modality: str, mime: str | None, content: str | bytes) -> Part:
    """Return what a request or an answer holds itself."""
    return {"type": "blob", "modality": modality, "mime_type": mime, "content": content}


def link(modality: str, mime: str | None, uri: str) -> Part:
    """Return what is somewhere else; a `data:` address is there."""
    head, comma, data = uri.partition(",")
    if comma and head[:5].lower() == "data:":
        return blob(modality, head[5:].partition(";")[0] or mime, data)
    return {"type": "uri", "modality": modality, "mime_type": mime, "uri": uri}


def file(modality: str, file_id: str) -> Part:
    """Return what the provider keeps."""
    return {"type": "file", "modality": modality, "file_id": file_id}


def tool_call(call_id: str | None, name: str | None, arguments: Any) -> Part:
    """Return a call that a model asks for."""
    return {"type": "tool_call", "id": call_id, "name": name or "", "arguments": arguments}


def tool_response(call_id: str | None, said: Any) -> Part:
    """Return what a tool answers: its parts as such, so that a picture among them is known for one."""
    return {"type": "tool_call_response", "id": call_id, "response": contents(said) if isinstance(said, (list, tuple)) else plain(said)}


def parsed(arguments: Any) -> Any:
    """Return a tool's arguments as JSON, or as the text that a model wrote where that is none."""
    if not isinstance(arguments, str) or len(arguments) > _MOST_PARSED:
        return plain(arguments)
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def own_fields(value: Any, kind: str | None) -> Part:
    """Return what the convention has no part for, under its own names."""
    return {**fields_of(value, without=_SECRET), "type": kind}


def contents(told: Any) -> list[Part]:
    """Return the parts of a content: a text, or a list of parts; iterators are the caller's to read, and are left alone."""
    if isinstance(told, str):
        return [words(told)] if told else []
    return [_part(one) for one in cast("Sequence[Any]", told)[:MOST_ITEMS]] if isinstance(told, (list, tuple)) else []


def _part(given: Any) -> Part:
    if isinstance(given, str):
        return words(given)
    kind = text(given, "type") or "unknown"
    found: Part | None = None
    if kind in _WORDS:
        sort, name = _WORDS[kind]
        said = text(given, name)
        found = None if said is None else {"type": sort, "content": said}
    elif kind in _MEDIA:
        found = _medium(given, *_MEDIA[kind])
    elif kind in _USES:
        found = tool_call(text(given, "id"), text(given, "name"), plain(get(given, "input")))
    elif kind.endswith(_RESULT):
        found = tool_response(text(given, "tool_use_id"), get(given, "content"))
    return own_fields(given, kind) if found is None else found


def _medium(given: Any, modality: str, name: str) -> Part | None:
    """Write down a picture, a sound, a video or a document; None for one of a shape that nobody knows."""
    held = get(given, name) if name else given
    url = held if isinstance(held, str) else text(held, "url") or text(held, "file_url")
    data = next((one for name in ("data", "file_data") if (one := get(held, name)) is not None), None)
    mime, form, file_id = text(held, "media_type"), text(held, "format"), text(held, "file_id") or text(given, "file_id")
    if file_id is not None:
        return file(modality, file_id)
    if text(held, "type") == "text":
        return words(text(held, "data") or "")
    if isinstance(data, str) and data[:5].lower() == "data:":
        url = data
    if url is not None:
        found = link(modality, mime, url)
    elif isinstance(data, (str, bytes)):
        found = blob(modality, mime if form is None else f"{modality}/{form}", data)
    else:
        return None
    named = text(held, "filename")
    return found if named is None else {**found, "name": named}


def definition(tool: Any) -> dict[str, Any]:
    """Return a tool's definition; one that is no function keeps its own fields."""
    kind = text(tool, "type")
    if kind not in (None, "function", "custom"):
        return own_fields(tool, kind)
    held = next((inner for name in ("function", "custom") if (inner := get(tool, name)) is not None), tool)
    schema = get(held, "input_schema")
    written = {
        "type": "function" if kind is None or schema is not None else kind,
        "name": text(held, "name") or "",
        "description": text(held, "description") or "",
    }
    for name, found in (("parameters", get(held, "parameters") if schema is None else schema), ("format", get(held, "format"))):
        if found is not None:
            written[name] = plain(found)
    return written


# -- the bound --------------------------------------------------------------------------------------------------------

_AT_HOME: Final = 64
"""Tokens a vendor's own template adds to a request."""

_ELSEWHERE: Final = 512
"""The same of a server nobody knows: open models come with system prompts of several hundred tokens in their templates."""

_WITH_TOOLS: Final = 1_024
"""What vendors put around the tools of a request."""

PICTURE: Final = 50_000
"""More than any vendor counts for one picture, however large: gpt-4o-mini takes 48,169."""

_TOOLS: Final = ("tools", "functions")
_TEXTS: Final = frozenset(
    {
        *("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "summary_text", "reasoning_text"),
        *("tool_use", "tool_result", "search_result", "input_audio", "compaction"),
    }
)
"""Parts that are text, or sound, whose every token has at least a byte."""

_LEFT_OUT: Final = frozenset({"Omit", "NotGiven"})
"""The clients' marks of what is not sent."""

_PICTURES: Final = frozenset({"image_url", "input_image", "image"})
_MOST_PARTS: Final = 100_000


def bound(request: Request, call: Call, hidden: str | None, *, pictures: int = 0, tools: int = 0, uncapped: str | None = None) -> None:
    """Write the bound on the call, or what is `hidden` in the request and leaves it without one.

    `uncapped` is what in it keeps its output from being capped, whatever is known of its input. `pictures` are so many bytes of inline
    pictures less what they count as, `tools` what more these count than their text.
    """
    if uncapped is not None:
        call.unbounded, call.least_cap = f"a request with {uncapped}", 0
        return
    if hidden is not None:
        call.unbounded = hidden
        return
    size = written(request.body)
    if size is None:
        call.unbounded = "a body that is no JSON"
        return
    host = request.host
    size += _ELSEWHERE if host.assumed or host.provider not in _HOMES else _AT_HOME
    if any(request.body.get(name) for name in _TOOLS):
        size += _WITH_TOOLS
    call.input_bound = size + pictures + tools


_HOMES: Final = frozenset({"openai", "azure.ai.openai", "anthropic"})


def written(body: Mapping[str, Any]) -> int | None:
    """Count the bytes of a body as the shortest JSON there is of it; None when it cannot be written."""
    try:
        return len(json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=_plain).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """Write what the client's own encoder may know: models, dates; anything else is refused."""
    if hasattr(class_of(value), "__pydantic_fields_set__") or isinstance(value, Mapping):
        return plain(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if class_of(value).__name__ in _LEFT_OUT:
        return None
    raise TypeError(f"{type(value).__name__} is no JSON")


class Parts:
    """Look through the parts of messages: what hides its size, and how much more the pictures count than they have bytes."""

    __slots__ = ("_seen", "hidden", "pictures")

    def __init__(self) -> None:
        self.hidden: str | None = None
        self.pictures = 0
        self._seen = 0

    def take(self, content: Any) -> None:
        """Take in a message's content: text, one part, or a list of them."""
        if isinstance(content, (list, tuple)):
            for part in cast("Sequence[Any]", content):
                self._part(part)
        elif content is not None and not isinstance(content, str):
            self._part(content)

    def hide(self, name: str | None) -> None:
        """Note what hides its size; the first is told."""
        self.hidden = self.hidden or name

    def _part(self, part: Any) -> None:
        self._seen += 1
        if self._seen > _MOST_PARTS:
            self.hide("so many parts")
            return
        if isinstance(part, str):
            return
        kind = text(part, "type")
        if kind in _PICTURES:
            self._picture(part, kind)
        elif kind == "document":
            self._document(part)
        elif kind in _TEXTS:
            if kind in ("tool_result", "search_result"):
                self.take(get(part, "content"))
        else:
            self.hide(kind or "a part without a type")

    def _picture(self, part: Any, kind: str | None) -> None:
        given: Any = get(part, "image_url") if kind != "image" else get(part, "source")
        address = given if isinstance(given, str) else text(given, "url") or text(given, "data")
        inline = isinstance(address, str) and (address.startswith("data:") or text(given, "type") == "base64")
        if not inline or address is None or text(part, "file_id") is not None:
            self.hide(str(kind))
            return
        self.pictures += PICTURE - len(address)

    def _document(self, part: Any) -> None:
        source = get(part, "source")
        kind = text(source, "type")
        if kind == "content":
            self.take(get(source, "content"))
        elif kind != "text":
            self.hide("document")


def lenient(value: Any) -> int | None:
    """Read a whole number as the most lenient server does, rounded up: also of text, floats and booleans; None for no such number."""
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        return None
    return math.ceil(number) if 0 <= number <= MOST else None


def largest_cap(config: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return the largest of the caps that a request states under these names: which of two a server keeps to is its own affair."""
    return max((cap for name in names if (cap := lenient(config.get(name)))), default=None)


def lowered(config: Mapping[str, Any], names: Sequence[str], cap: int) -> dict[str, int]:
    """Return the caps that a request uses, none above `cap`; the first of `names` where it uses none."""
    used = [name for name in names if name in config] or names[:1]
    return {name: min(cap, lenient(config.get(name)) or cap) for name in used}


def capless(body: Mapping[str, Any], *names: str) -> str | None:
    """Return the first cap that is below 1: some servers take that for none, and what we put in its place would be more."""
    for name in names:
        value = body.get(name)
        if isinstance(value, (str, int, float)) and (number := lenient(value)) is not None and number < 1:
            return f"{name}={number}"
        if _is_negative(value):
            return f"{name} below 0"
    return None


def _is_negative(value: Any) -> bool:
    try:
        return isinstance(value, (str, int, float)) and float(value) < 0
    except (ValueError, OverflowError):
        return isinstance(value, int) and value < 0


def first_of(body: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first of these fields that a request has."""
    return next((name for name in names if body.get(name)), None)


def hosted(body: Mapping[str, Any], known: Sequence[str]) -> str | None:
    """Return the type of the first tool that the provider runs itself; `known` begin the types that the program runs."""
    tools = body.get("tools")
    if not isinstance(tools, (list, tuple)):
        return None if tools is None else "tools"
    for tool in cast("Sequence[Any]", tools):
        kind = text(tool, "type")
        if kind is not None and not kind.startswith(tuple(known)):
            return kind
    return None


_SEARCHING: Final = ("-search-", "compound", "sonar", ":online")
"""What the names of models have in them that search by themselves."""

_OPENAI: Final = frozenset({"openai", "azure.ai.openai"})


def searching(body: Mapping[str, Any]) -> str | None:
    """Return the model as what hides the input's size, where its name says that it searches by itself."""
    model = text(body, "model") or ""
    return f"model {model[:64]!r}" if any(mark in model for mark in _SEARCHING) else None


def at_home(request: Request) -> bool:
    """Whether OpenAI itself answers, directly or on Azure."""
    return not request.host.assumed and request.host.provider in _OPENAI
