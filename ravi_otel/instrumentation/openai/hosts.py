"""Know whose API a client talks to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ravi_otel.instrumentation.openai.fields import class_of

_CLASSES = {"AzureOpenAI": "azure.ai.openai", "AsyncAzureOpenAI": "azure.ai.openai"}
_HOSTS = {
    "api.openai.com": "openai",
    "api.groq.com": "groq",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral_ai",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.moonshot.ai": "moonshot_ai",
    "api.moonshot.cn": "moonshot_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "openrouter.ai": "openrouter",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.anthropic.com": "anthropic",
    "api.cohere.ai": "cohere",
}
_SUFFIXES = {
    ".openai.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.openai",
    ".api.openai.com": "openai",
    ".amazonaws.com": "aws.bedrock",
}
_PORTS = {"https": 443, "http": 80}


_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class Host:
    """Say which provider answers, whether that is a guess, and where; `base` is the path its API lies below."""

    provider: str
    assumed: bool
    address: str | None
    port: int | None
    base: str = ""


_kept: dict[tuple[int, type], tuple[object, Host]] = {}
"""Hosts by the identity of a client's URL object, which is kept too, so that no other can take its place."""


def host_of(client: Any) -> Host:
    """Tell the provider by the client's class, else by its host; a plain client on an unknown host is taken for OpenAI's."""
    kind = class_of(client)
    field = getattr(client, "_base_url", None)  # what the property gives, at a thirtieth of its cost
    kept = _kept.get((id(field), kind))
    if kept is not None:
        return kept[1]
    url = client.base_url
    host = _look_up(url, kind)
    if url is field:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[id(url), kind] = (url, host)
    return host


def _look_up(url: Any, kind: type) -> Host:
    address = url.host or None
    port = url.port or _PORTS.get(url.scheme)
    for cls in kind.__mro__:
        if cls.__name__ in _CLASSES:
            return Host(_CLASSES[cls.__name__], assumed=False, address=address, port=port, base=url.path)
    name = (address or "").lower()
    known = _HOSTS.get(name) or next((found for suffix, found in _SUFFIXES.items() if name.endswith(suffix)), None)
    return Host(known or "openai", known is None, address, port, url.path)
