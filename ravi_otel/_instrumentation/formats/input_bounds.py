"""Bound the input of a request from above: never below what a provider can count, whatever its tokenizer.

A token is at least one byte of text, so that the bytes of the JSON that is sent are a bound for all of its texts, names and
numbers; what a server's template adds to them is a constant. A picture inside the request is the one thing that can count more
tokens than it has bytes, and is taken at the most any known model makes of one. What a request only points at has no bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ravi_otel._instrumentation.formats.fields import MOST, class_of, get, plain, text
from ravi_otel._instrumentation.formats.format import Request
from ravi_otel.policy._usage import Call

_AT_HOME: Final = 64
"""Tokens a vendor's own template adds to a request."""

_ELSEWHERE: Final = 512
"""The same of a server nobody knows: open models come with system prompts of several hundred tokens in their templates."""

_WITH_TOOLS: Final = 1_024
"""What vendors put around the tools of a request."""

_PICTURE: Final = 50_000
"""More than any vendor counts for one picture: gpt-4o-mini takes 48,169 for a large one."""

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
        self.pictures += _PICTURE - len(address)

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
