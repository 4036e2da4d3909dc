"""Say what an endpoint module does: turn one API's JSON into our neutral words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ravi_otel.instrumentation.openai.hosts import Host
from ravi_otel.policy.usage import Call, Reply


@dataclass(slots=True, eq=False)
class Request:
    """Carry what the seam saw: method, path without the base URL, and the JSON object to be sent."""

    method: str
    path: str
    body: Mapping[str, Any]
    host: Host
    stream: bool


class Collector(Protocol):
    """Follow a stream, event by event; cheap, because it runs between the network and the user."""

    @property
    def complete(self) -> bool:
        """Tell that the provider said how it ended, so that closing now loses nothing."""
        ...

    def add(self, event: Any) -> None:
        """Take in one event as the client parsed it."""
        ...

    def reply(self) -> Reply:
        """Tell what was received so far; its usage is the provider's, or estimated, or None when nothing came."""
        ...


class Endpoint(Protocol):
    """Read one API."""

    def call(self, request: Request) -> Call:
        """Describe the request."""
        ...

    def reply(self, result: Any) -> Reply:
        """Read a complete answer: a model, a mapping, or whatever the server sent."""
        ...

    def collector(self, call: Call) -> Collector:
        """Begin to follow a stream."""
        ...
