"""Know the hosts of providers of models, and which requests to them ask a model for something.

The one table of them. It imports nothing but `re`: a launched process reads this file by itself, before it has anything of ours.
"""

from __future__ import annotations

import re

HOSTS = {
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
    "ollama.com": "ollama",
    "ai-gateway.vercel.sh": "vercel",
}
SUFFIXES = {
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
BEDROCK = re.compile(r"([a-z0-9-]+\.)?bedrock(-runtime|-mantle)?(-fips)?\.[a-z0-9-]+\.((vpce\.)?amazonaws\.com(\.cn)?|api\.aws)")
"""Not every host of that cloud: a program's own model may run on one."""

_SELF_RUN = frozenset({"ollama", "vllm"})
"""Servers of open models: nothing is paid where one runs on one's own machine; what a rented machine costs, nobody here knows."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 - nothing is bound, it is compared with
_OLLAMA_PORT = 11_434
_READING = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "CONNECT"})
_FREE = re.compile(r"[:/](count_?tokens|tokenize|detokenize)(\?|$)|/api/(show|pull|push|create|copy|blobs/[^/]*)(\?|$)", re.IGNORECASE)
"""Paths that count words, or manage the models of a server, and have no model answer."""


def provider_at(name: str, port: int | None) -> str | None:
    """Return the provider whose host is called `name` (in lower case), None for a host that nobody knows; `port` may be None."""
    known = HOSTS.get(name) or next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)
    if known is None and BEDROCK.fullmatch(name):
        return "aws.bedrock"
    return "ollama" if known is None and port == _OLLAMA_PORT and name in _LOCAL else known


def seller_at(provider: str, name: str | None) -> str:
    """Return whose prices hold for what a provider answers at a host: of a server of open models on this machine, its own."""
    return f"{provider}@localhost" if provider in _SELF_RUN and (name or "").lower() in _LOCAL else provider


def asks_model(method: str, target: str) -> bool:
    """Whether a request with this method and path asks for something that a model makes; what only reads or counts does not."""
    return method.upper() not in _READING and not _FREE.search(target)
