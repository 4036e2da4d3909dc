"""Find the module that reads a path."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ravi_otel.instrumentation.openai.endpoints.chat import Chat
from ravi_otel.instrumentation.openai.endpoints.completions import Completions
from ravi_otel.instrumentation.openai.endpoints.contract import Endpoint
from ravi_otel.instrumentation.openai.endpoints.embeddings import Embeddings
from ravi_otel.instrumentation.openai.endpoints.other import Other
from ravi_otel.instrumentation.openai.endpoints.paths import segments
from ravi_otel.instrumentation.openai.endpoints.responses import Responses

_MOST_KEPT: Final = 512
_OTHER: Final = Other()
_ENDPOINTS: Final[dict[tuple[str, ...], Endpoint]] = {
    ("chat", "completions"): Chat(),
    ("completions",): Completions(),
    ("responses",): Responses(),
    ("embeddings",): Embeddings(),
}


@lru_cache(maxsize=_MOST_KEPT)
def endpoint_for(method: str, path: str, base: str = "") -> Endpoint:
    """Give the reader of `path` below the base URL's path, by how it ends; only POST creates something."""
    if method != "POST":
        return _OTHER
    parts = segments(path, base)
    return _ENDPOINTS.get(parts[-2:]) or _ENDPOINTS.get(parts[-1:]) or _OTHER
