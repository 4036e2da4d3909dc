"""Say what is kept of the spans that other libraries make in the application's own tracer provider.

They are needed for the tree: a call of ours may hang from a request's span. But their attributes hold whatever those
libraries record, which may be prompts, answers, queries or keys, and none of that belongs into the store. Of such a span
its name, ids, times, kind, status code and the names of its events are kept, and of its attributes those named here,
none of which carries content. Status descriptions go, and so do the attributes of events and links that are not named here.
What was left out is counted as dropped attributes, so a replay does not say that the span was whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ravi_otel._telemetry import names

_KEPT: Final = frozenset({
    names.OPERATION_NAME, names.PROVIDER_NAME, "gen_ai.system", names.REQUEST_MODEL, names.RESPONSE_MODEL,
    names.AGENT_NAME, "gen_ai.agent.id", names.WORKFLOW_NAME, names.TOOL_NAME, names.TOOL_TYPE,
    names.ERROR_TYPE, names.EXCEPTION_TYPE,
    names.SERVER_ADDRESS, names.SERVER_PORT, "network.transport", "network.protocol.name", "network.protocol.version", "url.scheme",
    "http.request.method", names.HTTP_STATUS, "http.route", "http.request.body.size", "http.response.body.size",
    "http.method", "http.status_code", "http.scheme", "http.flavor",
    "rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code",
    "db.system", "db.system.name", "db.operation.name", "db.operation.batch.size",
    "messaging.system", "messaging.operation.name", "messaging.operation.type",
    "code.function", "code.function.name", "code.namespace", "code.filepath", "code.file.path", "code.lineno", "code.line.number",
    "thread.id", "thread.name", "process.pid",
    names.RUN_ID, names.SESSION_ID, names.TENANT_ID, names.AGENT_ID, names.AGENT_DEPTH, names.AGENT_PRIORITY,
})  # fmt: skip
_COUNTS: Final = "gen_ai.usage."
_MOST_TEXT: Final = 256


def is_foreign(scope: Any) -> bool:
    """Tell whether a span was made by somebody else, from its instrumentation scope."""
    return scope is None or scope.name != names.SCOPE


def kept(found: Any) -> Mapping[str, Any]:
    """Give the attributes that carry no content; a text longer than a name is content, whatever it is called."""
    if not found:
        return {}
    return {key: value for key, value in found.copy().items() if _is_kept(key, value)}


def left_out(found: Any, kept_of_it: Mapping[str, Any]) -> int:
    """Count the attributes that were not kept."""
    return len(found) - len(kept_of_it) if found else 0


def _is_kept(key: str, value: Any) -> bool:
    if key.startswith(_COUNTS):
        return isinstance(value, (int, float))
    # A run's tags are on every span of it.
    return (key in _KEPT or key.startswith(names.TAG_PREFIX)) and _is_name(value)


def _is_name(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MOST_TEXT
    return isinstance(value, (bool, int, float))
