"""Read looks at responses that were begun before: retrieving, cancelling, deleting one.

A look asks no model. It brings what a response that was made in the background has used, once; for any other response it shows
no usage, which was counted where it was begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from ravi_otel.instrumentation.formats.fields import get
from ravi_otel.instrumentation.formats.format import Request, WireFormat
from ravi_otel.instrumentation.openai.endpoints.responses import Responses
from ravi_otel.instrumentation.openai.endpoints.responses_stream import ResponsesCollector
from ravi_otel.policy.content import Message
from ravi_otel.policy.usage import Call, Reply

_RESPONSES: Final = Responses()
_FETCHED: Final = "responses.retrieve"


class Look(WireFormat):
    """Read an answer to GET `/responses/ID` or POST `/responses/ID/cancel`."""

    def __init__(self, name: str, shape: str, method: str) -> None:
        self._name = name
        self._shape = shape
        self._method = method

    def call(self, request: Request) -> Call:
        """See `WireFormat.call`."""
        fetches = self._shape == _FETCHED
        host = request.host
        return Call(
            operation="fetch_response" if fetches else f"{self._method} {self._shape}",
            endpoint=self._shape,
            provider=host.provider,
            provider_assumed=host.assumed,
            generative=False,
            turn=False,
            stream=request.stream,
            server_address=host.address,
            server_port=host.port,
            fetches=fetches,
        )

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`; an answer about another response than was asked for brings nothing."""
        told = _RESPONSES.reply(result)
        told.id = told.id or self._name
        told.awaited = told.id == self._name
        if not told.awaited:
            told.usage, told.pending = None, False
        if self._shape != _FETCHED:
            told.error_type = None  # that it was cancelled is no failure of cancelling it
        return told

    def collector(self, call: Call) -> ResponsesCollector:
        """See `WireFormat.collector`."""
        return ResponsesCollector(self, call, name=self._name)

    def answered(self, result: Any) -> Sequence[Message]:
        """See `WireFormat.answered`."""
        return _RESPONSES.answered(result) if self._shape == _FETCHED else ()


class Deletion(Look):
    """Read an answer to DELETE `/responses/ID`: after it nobody can look any more."""

    def reply(self, result: Any) -> Reply:
        """See `WireFormat.reply`."""
        return Reply(id=self._name, awaited=get(result, "deleted") is not False)


def look_at(method: str, parts: tuple[str, ...], path: str) -> WireFormat | None:
    """Give the reader of a request about one response; None where it is about something else."""
    if parts[-2:-1] == ("responses",) and method in ("GET", "DELETE"):
        name = named(path, 1)
        return Look(name, _FETCHED, method) if method == "GET" else Deletion(name, "responses.delete", method)
    if method == "POST" and parts[-3:-2] == ("responses",) and parts[-1] == "cancel":
        return Look(named(path, 2), "responses.cancel", method)
    return None


def named(path: str, last: int) -> str:
    """Give the id that is the `last`-th segment of a path from its end, spelled as it is."""
    found = [part for part in path.partition("?")[0].partition("#")[0].split("/") if part]
    return unquote(found[-last]) if len(found) >= last else ""
