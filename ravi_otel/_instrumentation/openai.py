"""Know the `openai` package: its client classes, and which streams may be asked for their usage."""

from __future__ import annotations

import re
from typing import Any, Final

from ravi_otel._instrumentation.client_profile import ClientProfile
from ravi_otel._instrumentation.formats.fields import class_of
from ravi_otel._instrumentation.formats.openai import format_for

_CLASSES: Final = {"BaseAzureClient": "azure.ai.openai", "AzureOpenAI": "azure.ai.openai", "AsyncAzureOpenAI": "azure.ai.openai"}
_FIRST_AZURE: Final = "2024-09-01"
"""Azure's versions before this one refuse `stream_options`."""

_AZURE: Final = (".openai.azure.com", ".services.ai.azure.com")
_AZURE_PATH: Final = "/openai/v1"
"""Where Azure's API has no dated versions any more, and a plain client goes."""

_DATED: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def asks_usage(client: Any) -> bool:
    """Whether this client's host is known to take `stream_options`: OpenAI's own, and Azure's since it does."""
    if any(cls.__name__ in _CLASSES for cls in class_of(client).__mro__):
        version = getattr(client, "_api_version", None)
        dated = _DATED.match(version) if isinstance(version, str) else None
        return version in ("preview", "latest") or (dated is not None and dated.group() >= _FIRST_AZURE)
    url = client.base_url
    host = (url.host or "").lower()
    if host.endswith(_AZURE):
        return str(url.path).startswith(_AZURE_PATH)
    return host == "api.openai.com" or host.endswith(".api.openai.com")


PROFILE: Final = ClientProfile(
    package="openai",
    provider="openai",
    format_for=format_for,
    classes=_CLASSES,
    asks_usage=asks_usage,
)
