"""What sets one client package apart: its name, the formats of its paths, and whose API each of its clients talks to.

`profile_of` gives that of each package, whose formats are imported no sooner.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from opentelemetry import trace

from ravi_otel._extras import load
from ravi_otel._instrumentation.formats.fields import class_of, get
from ravi_otel._instrumentation.formats.format import Host, WireFormat
from ravi_otel._instrumentation.model_hosts import provider_at

_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_MOST_KEPT: Final = 64
_kept: dict[tuple[int, type, int], tuple[object, object, Host]] = {}
"""Hosts by the identity of a client's URL object and of the user's map, which are kept too, so that no other can take their place."""

_OTHERS: Final = ("opentelemetry.instrumentation.", "openinference.instrumentation.")
OTHERS_WRAP: Final = {"responses": ("openai.resources.responses.responses", ("Responses", "AsyncResponses"))}
"""Endpoints whose calls another instrumentation describes by a span that it makes afterwards: the module and classes it wraps."""


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """Describe a client package.

    `package` is what the program imports. `provider` answers a plain client on a host that nobody knows. `classes` maps the name of a
    client's class, or of one it derives from, to a provider. `format_for` returns the format of (method, path, base path, provider).
    `asks_usage` says whether a stream to this client's host may be asked for its usage, None where none has to be asked.
    `own_span` settles who describes a call for which the client can make a span itself: it returns the options to send, the very object
    where nothing is to change, and whether the client makes a span.
    """

    package: str
    provider: str
    format_for: Callable[[str, str, str, str], WireFormat]
    classes: Mapping[str, str] = field(default_factory=dict[str, str])
    asks_usage: Callable[[Any], bool] | None = None
    own_span: Callable[[Any, Any], tuple[Any, bool]] | None = None

    def host_of(self, client: Any, named: Mapping[str, str]) -> Host:
        """Return the provider by the user's map, else by the client's class, else by its host; else it is assumed to be the package's own.

        `named` maps host names, or `host:port`, to providers.
        """
        kind = class_of(client)
        attribute = getattr(client, "_base_url", None)  # what the property returns, at a thirtieth of its cost
        kept = _kept.get((id(attribute), kind, id(named)))
        if kept is not None:
            return kept[2]
        url = client.base_url
        host = self.host_at(url, kind, named)
        if url is attribute:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[id(url), kind, id(named)] = (url, named, host)
        return host

    def host_at(self, url: Any, kind: type, named: Mapping[str, str]) -> Host:
        """Return whose API lies at `url`, for a client of class `kind`."""
        address = url.host or None
        port = url.port or _PORTS.get(url.scheme)
        name = (address or "").lower()
        known = named.get(f"{name}:{port}") or named.get(name)
        if known is None:
            known = next((self.classes[cls.__name__] for cls in kind.__mro__ if cls.__name__ in self.classes), None)
        if known is None:
            known = provider_at(name, port)
        return Host(known or self.provider, known is None, address, port, url.path)


def described_afterwards(endpoint: str) -> bool:
    """Whether another instrumentation will make a span for this call when it is over; none of it is current yet."""
    place, names = OTHERS_WRAP.get(endpoint, ("", ()))
    methods = [getattr(getattr(sys.modules.get(place), name, None), "create", None) for name in names]
    wrappers = [getattr(method, "_self_wrapper", None) for method in methods]  # what `wrapt` calls it
    return any(str(getattr(wrapper, "__module__", "")).startswith(_OTHERS) for wrapper in wrappers)


# -- openai -------------------------------------------------------------------------------------------------------------

_OPENAI: Final = {"BaseAzureClient": "azure.ai.openai", "AzureOpenAI": "azure.ai.openai", "AsyncAzureOpenAI": "azure.ai.openai"}
_FIRST_AZURE: Final = "2024-09-01"
"""Azure's versions before this one refuse `stream_options`."""

_AZURE: Final = (".openai.azure.com", ".services.ai.azure.com")
_AZURE_PATH: Final = "/openai/v1"
"""Where Azure's API has no dated versions any more, and a plain client goes."""

_DATED: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def asks_usage(client: Any) -> bool:
    """Whether this client's host is known to take `stream_options`: OpenAI's own, and Azure's since it does."""
    if any(cls.__name__ in _OPENAI for cls in class_of(client).__mro__):
        version = getattr(client, "_api_version", None)
        dated = _DATED.match(version) if isinstance(version, str) else None
        return version in ("preview", "latest") or (dated is not None and dated.group() >= _FIRST_AZURE)
    url = client.base_url
    host = (url.host or "").lower()
    if host.endswith(_AZURE):
        return str(url.path).startswith(_AZURE_PATH)
    return host == "api.openai.com" or host.endswith(".api.openai.com")


# -- anthropic ----------------------------------------------------------------------------------------------------------

_ANTHROPIC: Final = {
    name: provider
    for kind, provider in (
        ("AnthropicBedrock", "aws.bedrock"),
        ("AnthropicBedrockMantle", "aws.bedrock"),
        ("AnthropicVertex", "gcp.vertex_ai"),
        ("AnthropicFoundry", "azure.ai.inference"),
        ("AnthropicAWS", "anthropic"),
        ("AnthropicGoogleCloud", "anthropic"),
    )
    for name in (kind, f"Async{kind}")
}
"""The last two reach Anthropic's own platform through an account with somebody else."""


def _own_span(client: Any, options: Any) -> tuple[Any, bool]:
    """Return the options to send, and whether the client makes a span for the call.

    It does where the program has set tracing up, for this client or for the whole process: that span stays, and the call has
    none of ours. Anywhere else it would make none without us, and none must come of our being here: one that only passes
    ours on would add headers to the request.
    """
    chosen = getattr(client, "_open_telemetry", None)
    traces = get(chosen, "traces")
    if not get(options, "span_name") or get(traces, "enabled") is False:
        return options, False
    own, provider = get(chosen, "tracer_provider"), trace.get_tracer_provider()
    if own is not None or not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return options, True
    silent = copy.copy(options)
    silent.span_name = None
    return silent, False


# -- the table ----------------------------------------------------------------------------------------------------------

_PARTICULARS: Final[Mapping[str, Mapping[str, Any]]] = {
    "openai": {"classes": _OPENAI, "asks_usage": asks_usage},
    "anthropic": {"classes": _ANTHROPIC, "own_span": _own_span},
    "groq": {},
}
"""What is particular about the clients of each package."""

_FORMATS: Final = {"openai": "openai", "anthropic": "anthropic", "groq": "openai"}
"""The module that reads its API."""


@lru_cache
def profile_of(package: str) -> ClientProfile:
    """Return the profile of a client package."""
    formats = load(f"ravi_otel._instrumentation.formats.{_FORMATS[package]}")
    return ClientProfile(package, package, formats.format_for, **_PARTICULARS[package])
