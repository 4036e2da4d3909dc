"""Know the `groq` package: an API shaped like OpenAI's, with usage in a field of its own where it streams."""

from __future__ import annotations

from typing import Final

from ravi_otel.instrumentation.groq.endpoints import endpoint_for
from ravi_otel.instrumentation.http.vendor import Vendor

VENDOR: Final = Vendor(package="groq", provider="groq", endpoint_for=endpoint_for)
