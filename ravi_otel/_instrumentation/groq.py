"""Know the `groq` package: chats with usage and failures under `x_groq`, and an API shaped like OpenAI's below `/openai/v1`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from ravi_otel._instrumentation.client_profile import ClientProfile
from ravi_otel._instrumentation.formats import openai
from ravi_otel._instrumentation.formats.chat import ChatCollector, ChatCompletions
from ravi_otel._instrumentation.formats.fields import get, text
from ravi_otel._instrumentation.formats.format import WireFormat
from ravi_otel._instrumentation.formats.paths import READS, segments
from ravi_otel.policy._usage import Call, Reply

FAILED: Final = "x_groq_error"
"""The `error.type` of a stream whose chunk reports a failure, which the client does not raise."""

_MOST_KEPT: Final = 512


class GroqChat(ChatCompletions):
    """Read groq's `/chat/completions`, whose streams tell their usage unasked."""

    usage_on_request = False

    def collector(self, call: Call) -> ChatCollector:
        """See `WireFormat.collector`."""
        return GroqCollector(call)


class GroqCollector(ChatCollector):
    """Follow a chat stream, and what groq adds to it in any of its chunks."""

    __slots__ = ("_failed",)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._failed = False

    def add(self, event: Any) -> bool | None:
        """See `Collector.add`."""
        is_quiet, told = super().add(event), get(event, "x_groq")
        if told is None:
            return is_quiet
        self._usage = get(told, "usage") or self._usage
        self._failed = self._failed or bool(text(told, "error"))
        return None

    def reply(self) -> Reply:
        """See `Collector.reply`."""
        reply = super().reply()
        if self._failed:
            reply.error_type = FAILED
        return reply


_CHAT: Final = GroqChat()


@lru_cache(maxsize=_MOST_KEPT)
def format_for(method: str, path: str, base: str = "", provider: str = "") -> WireFormat:
    """Return the format of `path` below the base URL's path: OpenAI's, but for chat."""
    if method not in READS and segments(path, base)[-2:] == ("chat", "completions"):
        return _CHAT
    return openai.format_for(method, path, base, provider or "groq")


PROFILE: Final = ClientProfile(package="groq", provider="groq", format_for=format_for)
