"""Say what an endpoint module does: turn one API's JSON into our neutral words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ravi_otel.policy.content import Asked, Message
from ravi_otel.policy.usage import Call, Reply, ToolUse


@dataclass(frozen=True, slots=True)
class Host:
    """Say which provider answers, whether that is a guess, and where; `base` is the path its API lies below."""

    provider: str
    assumed: bool
    address: str | None
    port: int | None
    base: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """Carry what the seam saw: method, path without the base URL, the JSON object or the form's fields to be sent, its files."""

    method: str
    path: str
    body: Mapping[str, Any]
    host: Host
    stream: bool
    files: Any = None


class Collector(Protocol):
    """Follow a stream, event by event; cheap, because it runs between the network and the user."""

    @property
    def complete(self) -> bool:
        """Tell that the provider said how it ended, so that closing now loses nothing."""
        ...

    @property
    def spoke(self) -> bool:
        """Tell that some of the answer's content came, text, a tool's arguments or a sound; True also where there is none."""
        ...

    @property
    def produced(self) -> int:
        """Count the output tokens that came by what could be seen of them; 0 of a stream that is not counted as it comes."""
        ...

    @property
    def said(self) -> str:
        """Give the text of the latest event, of the first answer where there are several; empty where it has none."""
        ...

    @property
    def told_input(self) -> int | None:
        """Give the input tokens that the provider told before the answer; None where it tells them at its end."""
        ...

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """List the tools that were asked for until now, where the request offered some; read by other threads, too."""
        ...

    def add(self, event: Any) -> None:
        """Take in one event as the client parsed it, or as the JSON object it came as."""
        ...

    def reply(self) -> Reply:
        """Tell what was received so far; its usage is the provider's, or estimated, or None when nothing came.

        Its `output` is told when the call's content is captured.
        """
        ...


class Quiet:
    """Be a collector that counts no output, hears of no input or tool and has no text; each says otherwise where it can."""

    __slots__ = ()

    @property
    def produced(self) -> int:
        """See `Collector.produced`."""
        return 0

    @property
    def told_input(self) -> int | None:
        """See `Collector.told_input`."""
        return None

    @property
    def said(self) -> str:
        """See `Collector.said`."""
        return ""

    @property
    def tool_uses(self) -> Sequence[ToolUse]:
        """See `Collector.tool_uses`."""
        return ()


class Endpoint(Protocol):
    """Read one API."""

    @property
    def usage_on_request(self) -> bool:
        """Tell that a stream of it tells its usage only when asked to (`stream_options`)."""
        ...

    def call(self, request: Request) -> Call:
        """Describe the request."""
        ...

    def reply(self, result: Any) -> Reply:
        """Read a complete answer: a model, a mapping, or whatever the server sent."""
        ...

    def collector(self, call: Call) -> Collector:
        """Begin to follow a stream."""
        ...

    def asked(self, request: Request) -> Asked | None:
        """Write down what a request says, None where it says nothing in words; only when content is captured."""
        ...

    def answered(self, result: Any) -> Sequence[Message]:
        """Write down what a complete answer says; only when content is captured."""
        ...

    def bound(self, request: Request, call: Call) -> None:
        """Write on the call what its input cannot pass, or what hides that; only where a strict limit asks."""
        ...

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:
        """Give the fields of the body that hold each of its answers to so many tokens."""
        ...

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:
        """List the tools that a complete answer asks the program to run; only where the request offered some."""
        ...

    def tool_results(self, request: Request) -> tuple[str, ...]:
        """List the call ids of the results that a request brings, also those of earlier turns; only while results are waited for."""
        ...


class Wordless:
    """Be an endpoint whose requests and answers hold no messages, and whose streams tell their usage unasked."""

    @property
    def usage_on_request(self) -> bool:
        """See `Endpoint.usage_on_request`."""
        return False

    def asked(self, request: Request) -> Asked | None:  # noqa: ARG002 - the protocol's
        """See `Endpoint.asked`."""
        return None

    def answered(self, result: Any) -> Sequence[Message]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.answered`."""
        return ()

    def bound(self, request: Request, call: Call) -> None:  # noqa: ARG002 - the protocol's
        """See `Endpoint.bound`; unless an endpoint knows better, what it answers cannot be capped."""
        call.unbounded, call.least_cap = call.endpoint, 0

    def cap(self, request: Request, cap: int) -> Mapping[str, int]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.cap`."""
        return {}

    def tool_uses(self, result: Any) -> tuple[ToolUse, ...]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.tool_uses`."""
        return ()

    def tool_results(self, request: Request) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        """See `Endpoint.tool_results`."""
        return ()
