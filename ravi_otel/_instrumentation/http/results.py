"""Know what the client returned: a model, a stream, or a raw response whose body may still be on its way."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel._instrumentation.formats.fields import class_of, get
from ravi_otel._instrumentation.formats.format import WireFormat, read_body, read_result
from ravi_otel._instrumentation.http.stream import Following
from ravi_otel._runtime.model_call import ModelCall
from ravi_otel.policy.usage import Call, Reply

_MOST_KEPT: Final = 256
_complete: set[type] = set()
"""Classes seen to be neither a stream nor a raw response: a model's class is slow to say that it lacks something."""


def watch(live: ModelCall, result: Any, endpoint: WireFormat, *, hides: bool = False) -> bool:
    """Follow a result that is still open; False when it is complete. `hides` has its usage kept from the program."""
    kind = class_of(result)
    if kind in _complete:
        return False
    if hasattr(kind, "__stream__"):
        Following(live, endpoint, hides=hides).stream(result)
        return True
    if not _is_raw(result):
        if len(_complete) < _MOST_KEPT:
            _complete.add(kind)
        return False
    if get(result, "_is_sse_stream") or get(result, "_stream"):
        Following(live, endpoint).parsing(result)
        return True
    if get(result.http_response, "is_closed") is False:
        Following(live, endpoint).response(result.http_response)
        return True
    return False


def read(result: Any, endpoint: WireFormat, call: Call) -> Reply:
    """Read a complete result of a request; a raw response by the JSON of its body, without touching its own parser."""
    if _is_raw(result):
        return read_body(endpoint, lambda: result.http_response.content, call)
    return read_result(endpoint, result, call)


def _is_raw(result: Any) -> bool:
    # The class tells, never the object: a provider may answer a model with any field names it likes.
    kind = class_of(result)
    return kind not in _complete and hasattr(kind, "parse") and hasattr(kind, "http_request")
