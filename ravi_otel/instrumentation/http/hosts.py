"""Know whose API a client talks to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ravi_otel.instrumentation.http.fields import class_of
from ravi_otel.instrumentation.http.vendor import Vendor

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
    "api.cohere.com": "cohere",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "models.inference.ai.azure.com": "azure.ai.inference",
    "codestral.mistral.ai": "mistral_ai",
    "api.fireworks.ai": "fireworks",
    "api.cerebras.ai": "cerebras",
    "api.deepinfra.com": "deepinfra",
    "integrate.api.nvidia.com": "nvidia",
    "router.huggingface.co": "huggingface",
}
_SUFFIXES = {
    ".openai.azure.com": "azure.ai.openai",
    ".openai.azure.us": "azure.ai.openai",
    ".openai.azure.cn": "azure.ai.openai",
    ".cognitiveservices.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.openai",
    ".models.ai.azure.com": "azure.ai.inference",
    ".api.openai.com": "openai",
    ".api.x.ai": "x_ai",
    "-aiplatform.googleapis.com": "gcp.vertex_ai",
    ".prediction.vertexai.goog": "gcp.vertex_ai",
    ".ml.cloud.ibm.com": "ibm.watsonx.ai",
}
_BEDROCK = re.compile(r"([a-z0-9-]+\.)?bedrock(-runtime|-mantle)?(-fips)?\.[a-z0-9-]+\.((vpce\.)?amazonaws\.com(\.cn)?|api\.aws)")
"""Not every host of that cloud: a program's own model may run on one."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 - nothing is bound, it is compared with
_OLLAMA_PORT = 11_434
_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class Host:
    """Say which provider answers, whether that is a guess, and where; `base` is the path its API lies below."""

    provider: str
    assumed: bool
    address: str | None
    port: int | None
    base: str = ""


_kept: dict[tuple[int, type, int], tuple[object, object, Host]] = {}
"""Hosts by the identity of a client's URL object and of the user's map, which are kept too, so that no other can take their place."""


def host_of(client: Any, vendor: Vendor, named: Mapping[str, str]) -> Host:
    """Tell the provider by the user's map, else by the client's class, else by its host; else it is taken for the vendor's own.

    `named` gives providers by host name, or by `host:port`.
    """
    kind = class_of(client)
    field = getattr(client, "_base_url", None)  # what the property gives, at a thirtieth of its cost
    kept = _kept.get((id(field), kind, id(named)))
    if kept is not None:
        return kept[2]
    url = client.base_url
    host = look_up(url, kind, vendor, named)
    if url is field:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[id(url), kind, id(named)] = (url, named, host)
    return host


def look_up(url: Any, kind: type, vendor: Vendor, named: Mapping[str, str]) -> Host:
    """Tell whose API lies at `url`, for a client of class `kind`."""
    address = url.host or None
    port = url.port or _PORTS.get(url.scheme)
    name = (address or "").lower()
    known = named.get(f"{name}:{port}") or named.get(name)
    if known is None:
        known = next((vendor.classes[cls.__name__] for cls in kind.__mro__ if cls.__name__ in vendor.classes), None)
    if known is None:
        known = _by_host(name, port)
    return Host(known or vendor.provider, known is None, address, port, url.path)


def _by_host(name: str, port: int | None) -> str | None:
    known = _HOSTS.get(name) or next((found for suffix, found in _SUFFIXES.items() if name.endswith(suffix)), None)
    if known is None and _BEDROCK.fullmatch(name):
        return "aws.bedrock"
    return "ollama" if known is None and port == _OLLAMA_PORT and name in _LOCAL else known
