"""Find the module that reads a path."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ravi_otel.instrumentation.anthropic.endpoints.messages import Messages
from ravi_otel.instrumentation.anthropic.endpoints.other import Other
from ravi_otel.instrumentation.formats.format import WireFormat
from ravi_otel.instrumentation.formats.paths import READS, segments

_MOST_KEPT: Final = 512
_OTHER: Final = Other()
_ENDPOINTS: Final[dict[tuple[str, ...], WireFormat]] = {("messages",): Messages()}


@lru_cache(maxsize=_MOST_KEPT)
def endpoint_for(method: str, path: str, base: str = "", _provider: str = "") -> WireFormat:
    """Give the reader of `path` below the base URL's path, by how it ends; what only reads creates nothing."""
    if method in READS:
        return _OTHER
    return _ENDPOINTS.get(segments(path, base)[-1:]) or _OTHER
