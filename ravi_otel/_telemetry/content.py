"""Decide whether what was said is told, where, and how much of it; off unless it is asked for.

`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is `NO_CONTENT`, `SPAN_ONLY`, `EVENT_ONLY` or `SPAN_AND_EVENT`.
`RAVI_CONTENT_TEXT_BYTES` (4096) bounds one text, `RAVI_CONTENT_BYTES` (65536) one attribute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ravi_otel._telemetry import names
from ravi_otel._telemetry.content_json import Bounds, as_json, messages, parts, value
from ravi_otel._telemetry.redaction import Redact, guarded
from ravi_otel.policy.checks import show
from ravi_otel.policy.content import Asked, Message

_log = logging.getLogger("ravi_otel")

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TEXT_BYTES: Final = "RAVI_CONTENT_TEXT_BYTES"
WHOLE_BYTES: Final = "RAVI_CONTENT_BYTES"
_SDK_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")

_DEFAULT_TEXT: Final = 4 * 1024
_DEFAULT_WHOLE: Final = 64 * 1024
_FEWEST: Final = 256
_MODES: Final = {
    **dict.fromkeys(("no_content", "false", "0", "no", "off", ""), (False, False)),
    **dict.fromkeys(("span_only", "true", "1", "yes", "on"), (True, False)),
    "event_only": (False, True),
    "span_and_event": (True, True),
}

Structured = dict[str, Any]
"""Attributes of a log record, whose values may be lists and mappings."""


@dataclass(frozen=True, slots=True)
class Content:
    """Say where content goes and within which bounds; neither place is no capture at all.

    A text is at most `text_bytes` and an attribute at most `whole_bytes` of UTF-8; `redact` sees a text
    before it is cut, of a long one the first 2 * `text_bytes` + 1,024 characters.
    """

    on_spans: bool = False
    on_events: bool = False
    text_bytes: int = _DEFAULT_TEXT
    whole_bytes: int = _DEFAULT_WHOLE
    redact: Redact | None = None
    _bounds: Bounds = field(init=False)

    def __post_init__(self) -> None:
        """Make ready what every text goes through."""
        redact = None if self.redact is None else guarded(self.redact)
        object.__setattr__(self, "_bounds", Bounds(self.text_bytes, self.whole_bytes, redact))

    @property
    def captured(self) -> bool:
        """Tell whether requests and answers are to be written down at all."""
        return self.on_spans or self.on_events

    def asked(self, asked: Asked) -> Structured:
        """Copy what a request says, cut, hashed and redacted, by attribute; what it does not say is left out."""
        found: Structured = {}
        if asked.messages:
            found[names.INPUT_MESSAGES] = messages(asked.messages, self._bounds)
        if asked.system:
            found[names.SYSTEM_INSTRUCTIONS] = parts(asked.system, self._bounds)
        if asked.tools:
            found[names.TOOL_DEFINITIONS] = parts(asked.tools, self._bounds)
        return found

    def answered(self, output: Sequence[Message] | None, *, ended: str) -> Structured:
        """Copy what an answer says likewise; `ended` is the finish reason of a message that tells none."""
        if not output:
            return {}
        return {names.OUTPUT_MESSAGES: messages(output, self._bounds, ended=ended)}

    def argument(self, given: Any) -> str:
        """Write a tool's arguments or its result as JSON."""
        return as_json(value(given, self._bounds))


NO_CONTENT: Final = Content()
"""What is told unless content was asked for: nothing that was said."""


def as_text(structured: Structured) -> dict[str, str]:
    """Write structured attributes as JSON, since a span's attributes hold no structure."""
    return {name: as_json(found) for name, found in structured.items()}


def read_content(redact: Redact | None = None, environ: Mapping[str, str] = os.environ) -> Content:
    """Read the mode and the bounds; what cannot be read is warned of, and captures nothing or keeps the default."""
    stated = environ.get(CAPTURE, "").strip()
    mode = _MODES.get(stated.lower())
    if mode is None:
        _log.warning(
            "ravi-otel: %s=%s is unknown, no content is captured. Use NO_CONTENT, SPAN_ONLY, EVENT_ONLY or SPAN_AND_EVENT.",
            CAPTURE,
            show(stated),
        )
        mode = (False, False)
    whole = _bytes(environ, WHOLE_BYTES, _DEFAULT_WHOLE)
    for name in _SDK_LIMITS:  # the SDK would cut the text in the middle of its JSON
        limit = environ.get(name, "").strip()
        if limit.isdecimal() and int(limit) < whole:
            whole = int(limit)
    return Content(*mode, min(_bytes(environ, TEXT_BYTES, _DEFAULT_TEXT), whole), whole, redact)


def _bytes(environ: Mapping[str, str], name: str, default: int) -> int:
    stated = environ.get(name, "").strip()
    if not stated:
        return default
    if stated.isdecimal() and stated.isascii() and len(stated) < 10 and int(stated) >= _FEWEST:  # noqa: PLR2004 - below 1 GB
        return int(stated)
    _log.warning("ravi-otel: %s=%s is no number of bytes from %d up, %d is used.", name, show(stated), _FEWEST, default)
    return default
