"""Show one of OpenAI's readers the path it knows: groq keeps that API below `/openai/v1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ravi_otel.instrumentation.http.contract import Collector, Endpoint, Request
from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, ToolUse

_OWN_ROOT: Final = "openai"


class Below:
    """Read with another reader; a stream of groq's tells its usage unasked."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner

    @property
    def usage_on_request(self) -> bool:
        """See `Endpoint.usage_on_request`."""
        return False

    def call(self, request: Request) -> Call:
        """See `Endpoint.call`."""
        return self._inner.call(_shown(request))

    def reply(self, result: Any) -> Reply:
        """See `Endpoint.reply`."""
        return self._inner.reply(result)

    def collector(self, call: Call) -> Collector:
        """See `Endpoint.collector`."""
        return self._inner.collector(call)

    def asked(self, request: Request) -> Asked | None:
        """See `Endpoint.asked`."""
        return self._inner.asked(_shown(request))

    def answered(self, result: Any) -> Sequence[Message]:
        """See `Endpoint.answered`."""
        return self._inner.answered(result)

    def bound(self, request: Request, call: Call) -> None:
        """See `Endpoint.bound`."""
        self._inner.bound(_shown(request), call)

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:
        """See `Endpoint.cap`."""
        return self._inner.cap(_shown(request), cap)

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """See `Endpoint.tool_uses`."""
        return self._inner.tool_uses(result)

    def tool_results(self, request: Request) -> tuple[str, ...]:
        """See `Endpoint.tool_results`."""
        return self._inner.tool_results(_shown(request))


def path_below(path: str) -> str:
    """Give a path without groq's own root: `/openai/v1/files` is `/v1/files`."""
    first, _, rest = path.lstrip("/").partition("/")
    return f"/{rest}" if first == _OWN_ROOT else path


def _shown(request: Request) -> Request:
    path = path_below(request.path)
    return request if path == request.path else replace(request, path=path)
