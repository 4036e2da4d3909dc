"""Find the reader of a path: OpenAI's, but for chat."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ravi_otel.instrumentation.groq.below import Below, path_below
from ravi_otel.instrumentation.groq.chat import GroqChat
from ravi_otel.instrumentation.http.contract import Endpoint
from ravi_otel.instrumentation.http.paths import READS, segments
from ravi_otel.instrumentation.openai.endpoints import registry
from ravi_otel.instrumentation.openai.endpoints.chat import Chat

_MOST_KEPT: Final = 512
_OWN: Final = "groq"
_CHAT: Final = GroqChat(Chat())


@lru_cache(maxsize=_MOST_KEPT)
def endpoint_for(method: str, path: str, base: str = "", provider: str = "") -> Endpoint:
    """Give the reader of `path` below the base URL's path; see OpenAI's of the same name."""
    if method not in READS and segments(path, base)[-2:] == ("chat", "completions"):
        return _CHAT
    return Below(registry.endpoint_for(method, path_below(path), base, provider or _OWN))
