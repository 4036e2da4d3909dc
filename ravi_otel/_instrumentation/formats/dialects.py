"""Choose the format of a request: by the dialect that a host is known to speak, and by its path and body, whichever client sends it.

Most hosts speak more than one: Vertex AI also Anthropic's, Bedrock also OpenAI's, Ollama both. A path that only another dialect
has is read as that dialect's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

from ravi_otel._instrumentation.formats import anthropic, bedrock, cohere, google, ollama, openai
from ravi_otel._instrumentation.formats.format import READS, WireFormat, below_version, segments

Dialect = Literal["openai", "anthropic", "google", "bedrock", "cohere", "ollama", "auto"]
"""An API that hosts speak; with `auto`, path and body alone decide."""

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

_DIALECT_OF_PROVIDER: Final[Mapping[str, Dialect]] = {
    "anthropic": "anthropic",
    "aws.bedrock": "bedrock",
    "azure.ai.inference": "openai",
    "azure.ai.openai": "openai",
    "cerebras": "openai",
    "cohere": "cohere",
    "deepinfra": "openai",
    "deepseek": "openai",
    "fireworks": "openai",
    "gcp.gemini": "google",
    "gcp.vertex_ai": "google",
    "groq": "openai",
    "huggingface": "openai",
    "ibm.watsonx.ai": "openai",
    "mistral_ai": "openai",
    "moonshot_ai": "openai",
    "nvidia": "openai",
    "ollama": "ollama",
    "openai": "openai",
    "openrouter": "openai",
    "perplexity": "openai",
    "together": "openai",
    "vercel": "openai",
    "vllm": "openai",
    "x_ai": "openai",
}
"""The dialect of each provider that `model_hosts` knows, and of servers whose hosts only a program can name."""


def dialect_of(provider: str) -> Dialect | None:
    """Return the dialect that a provider's hosts speak; None for an unknown provider."""
    return _DIALECT_OF_PROVIDER.get(provider)


def format_for_request(dialect: Dialect, method: str, path: str, body: Mapping[str, Any], provider: str = "") -> WireFormat | None:
    """Return the format that reads a request, None where it asks no model for anything.

    `path` may have a query, which some formats read. With a known dialect, a request to an unknown path is `UNREAD`; with `auto`, one that
    neither path nor body identifies is ignored. `provider` is the one that answers, where that is known.
    """
    if method.upper() in READS:
        return _format_of_poll(method.upper(), path) if dialect in ("openai", "auto") else None
    parts = segments(path)
    own = (_READERS[dialect],) if dialect in _READERS else ()
    for reader in (*own, *_READERS.values()):
        found: WireFormat | None = reader(parts, body)
        if found is not None:
            return found
    return _otherwise(dialect, parts, path, body, provider)


def _format_of_poll(method: str, path: str) -> WireFormat | None:
    """Return the format of a request that polls an answer begun earlier."""
    found: WireFormat = openai.format_for(method, path)
    return None if found is openai.PLAIN else found


def _otherwise(dialect: Dialect, parts: tuple[str, ...], path: str, body: Mapping[str, Any], provider: str) -> WireFormat | None:
    if dialect == "openai":
        found: WireFormat = openai.format_for("POST", path, "", provider)
        return None if found is openai.PLAIN else found
    if dialect == "anthropic":
        return anthropic.format_for("POST", path) if anthropic.asks_a_model(below_version(parts), provider) else None
    return openai.by_body(body) if dialect == "auto" else _OTHERWISE[dialect](parts)


_READERS: Final[Mapping[str, Callable[[tuple[str, ...], Mapping[str, Any]], WireFormat | None]]] = {
    "google": google.known,
    "bedrock": bedrock.known,
    "cohere": cohere.known,
    "ollama": ollama.known,
    "anthropic": anthropic.known,
    "openai": openai.known,
}
"""The functions that recognise a dialect's paths, in the order in which they are tried: the most specific first."""

_OTHERWISE: Final[Mapping[str, Callable[[tuple[str, ...]], WireFormat | None]]] = {
    "google": google.otherwise,
    "bedrock": bedrock.otherwise,
    "cohere": cohere.otherwise,
    "ollama": ollama.otherwise,
}
"""The functions that choose a format for a dialect's other paths."""
