"""See whether another instrumentation has wrapped the method a call came through, where no span of it is current yet."""

from __future__ import annotations

import sys
from typing import Any, Final

_THEIRS: Final = ("opentelemetry.instrumentation.", "openinference.instrumentation.")
_PLACES: Final = {"responses": ("openai.resources.responses.responses", ("Responses", "AsyncResponses"))}
"""Endpoints whose calls some instrumentation tells afterwards, by a span it makes then: the module and classes it wraps."""


def told_afterwards(endpoint: str) -> bool:
    """Tell that another instrumentation will make a span for this call when it is over."""
    place = _PLACES.get(endpoint)
    module = None if place is None else sys.modules.get(place[0])
    if place is None or module is None:
        return False
    return any(_is_wrapped(getattr(module, name, None)) for name in place[1])


def _is_wrapped(cls: Any) -> bool:
    method = getattr(cls, "create", None)
    wrapper = getattr(method, "_self_wrapper", None)  # what `wrapt` calls it
    return wrapper is not None and str(getattr(wrapper, "__module__", "")).startswith(_THEIRS)
