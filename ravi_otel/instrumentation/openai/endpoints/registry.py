"""Find the module that reads a path."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ravi_otel.instrumentation.formats.chat import CHAT, Completions
from ravi_otel.instrumentation.formats.format import WireFormat
from ravi_otel.instrumentation.formats.media import MEDIA
from ravi_otel.instrumentation.formats.paths import READS, segments
from ravi_otel.instrumentation.formats.responses import Compact, Responses, look_at
from ravi_otel.instrumentation.openai.endpoints.other import Other, Plain, asks_a_model

_MOST_KEPT: Final = 512
_OTHER: Final = Other()
_PLAIN: Final = Plain()
_ENDPOINTS: Final[dict[tuple[str, ...], WireFormat]] = {
    ("chat", "completions"): CHAT,
    ("completions",): Completions(),
    ("responses",): Responses(),
    ("responses", "compact"): Compact(),
    **MEDIA,
}


@lru_cache(maxsize=_MOST_KEPT)
def endpoint_for(method: str, path: str, base: str = "", provider: str = "") -> WireFormat:
    """Give the reader of `path` below the base URL's path, by how it ends; what only reads creates nothing.

    `provider` is who answers, empty where that is a guess.
    """
    parts = segments(path, base)
    if method in READS:
        return look_at(method, parts, path) or _PLAIN
    known = _ENDPOINTS.get(parts[-2:]) or _ENDPOINTS.get(parts[-1:])
    if known is not None:
        return known
    if asks_a_model(segments(path), provider):
        return _OTHER
    return look_at("POST", parts, path) or _PLAIN
