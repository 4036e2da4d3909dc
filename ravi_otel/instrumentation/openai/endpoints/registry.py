"""Find the module that reads a path."""

from __future__ import annotations

from typing import Final

from ravi_otel.instrumentation.openai.endpoints.chat import Chat
from ravi_otel.instrumentation.openai.endpoints.contract import Endpoint
from ravi_otel.instrumentation.openai.endpoints.embeddings import Embeddings
from ravi_otel.instrumentation.openai.endpoints.other import Other
from ravi_otel.instrumentation.openai.endpoints.responses import Responses

_OTHER: Final = Other()
_ENDPOINTS: Final[dict[str, Endpoint]] = {
    "chat/completions": Chat(),
    "responses": Responses(),
    "embeddings": Embeddings(),
}


def endpoint_for(method: str, path: str) -> Endpoint:
    """Give the reader of `path`, absolute or not, with or without a prefix; only POST creates something."""
    if method != "POST":
        return _OTHER
    bare = path.partition("?")[0].strip("/")
    found = _ENDPOINTS.get(bare)
    if found is not None:
        return found
    return next((known for tail, known in _ENDPOINTS.items() if bare.endswith(f"/{tail}")), _OTHER)
