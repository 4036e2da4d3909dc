"""The packages that are wrapped: generated clients, their modules for streaming and WebSockets, and the HTTP libraries below them."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from ravi_otel._extras import load
from ravi_otel._instrumentation.client_profile import profile_of
from ravi_otel._instrumentation.client_seam import SENDING, ClientSeam, call_of
from ravi_otel._instrumentation.streams import StreamHelpers
from ravi_otel._runtime.patching import Block, Installed, Package, Wraps, is_within, wrapper_of


class ClientPackage(Package):
    """Wrap one client package when, and only when, the program imports it; again when it imports it anew.

    Only then are the formats of its API imported. `versions` says which are supported.
    """

    def __init__(self, name: str, versions: str) -> None:
        self.name, self.versions = name, f"{name}{versions}"
        unusable = (
            f"ravi-otel: this version of {name} cannot be instrumented (%s is missing), so its calls are neither counted nor "
            f"refused. Supported are {self.versions}."
        )
        super().__init__(f"{name}._base_client", lambda base_client: ClientSeam(profile_of(name), base_client), unusable)

    @property
    def is_strange(self) -> bool:
        """Whether the program has imported this client, and that it could not be wrapped."""
        # A single file of the program's own that is called like it is no client.
        return hasattr(sys.modules.get(self.name), "__path__") and not self.holds(sys.modules.get(self.module))

    @property
    def outside(self) -> str | None:
        """Return which version the program has imported, where it is none of those that are supported; one that is wrapped all the same."""
        version = getattr(sys.modules.get(self.name), "__version__", None)
        if not isinstance(version, str) or self.is_strange or is_within(version, self.versions):
            return None
        return f"{self.name} {version} is outside {self.versions}"


CLIENTS: Final = (ClientPackage("openai", ">=1.66,<4"), ClientPackage("anthropic", ">=0.40,<3"), ClientPackage("groq", ">=0.20,<2"))
"""One of each for ever, as their wrappers are."""

HELPERS: Final = tuple(
    Package(
        f"{name}.lib.streaming.{helper}",
        StreamHelpers,
        f"ravi-otel: helper objects of {name} that are dropped end late (%s is missing).",
    )
    for name, helper in (
        ("openai", "chat._completions"),
        ("openai", "responses._responses"),
        ("anthropic", "_messages"),
        ("anthropic", "_beta_messages"),
    )
)
"""Modules with classes that read a stream for the program."""


def _sockets_of(module: ModuleType) -> Installed:
    return cast("Installed", load("ravi_otel._instrumentation.socket_seam").ConnectionClasses(module))


SOCKETS: Final = tuple(
    Package(
        f"openai.resources.{name}",
        _sockets_of,
        "ravi-otel: the WebSocket connections of this version of openai cannot be instrumented "
        f"(%s is missing in openai.resources.{name}), so they are neither counted nor refused.",
    )
    for name in (
        *("responses.responses", "beta.responses.responses", "realtime.realtime", "beta.realtime.realtime"),
        *("realtime.translations.translations", "live.live", "live.sideband", "live.forks"),
    )
)
"""Modules with classes of connections; what follows these is imported with the first of the modules, not before."""


def _mcp(place: str, wrapping: str, module: ModuleType) -> Installed:
    return cast("Installed", getattr(load(f"ravi_otel.{place}"), wrapping)(module))


MCP: Final = (
    Package(
        "mcp.client.session",
        partial(_mcp, "_instrumentation.mcp_client", "ClientSessions"),
        "ravi-otel: this version of mcp cannot be instrumented (%s is missing), so tools that are called over it are neither counted nor "
        "refused. Supported are mcp>=1.27,<3.",
    ),
    Package(
        "mcp.client.session",
        partial(_mcp, "_instrumentation.mcp_client", "Callbacks"),
        "ravi-otel: this version of mcp does not tell what a server asks of its client (%s is missing), so that belongs to no run.",
    ),
    Package(
        "mcp.client.client",  # of 2.x alone
        partial(_mcp, "_instrumentation.mcp_client", "Clients"),
        "ravi-otel: a call of a tool that this version of mcp sends once more counts again (%s is missing).",
    ),
    Package(
        "mcp.client.streamable_http",
        partial(_mcp, "_runtime.mcp_sessions", "HttpTransports"),
        "ravi-otel: this version of mcp does not tell over what a tool is called (%s is missing).",
    ),
)
"""The client of the official MCP SDK; what wraps it is imported with it, not before."""


class SingleRequests:
    """The wrapped methods of one HTTP library, through which each single request goes.

    Paid for is what leaves beyond the request that the client built: what follows a redirect, and what is sent again, to log in or at all.
    A transport of the program's own may send one several times, and from whichever thread, through the libraries' own: there it is known.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sync and the async client."""
        module, sending, transport = self._module, self._around_client_send, self._around_transport_send
        self._wraps.wrap(module.Client, "_send_single_request", wrapper_of(sending, awaits=False))
        self._wraps.wrap(module.AsyncClient, "_send_single_request", wrapper_of(sending, awaits=True))
        self._wraps.wrap(module.HTTPTransport, "handle_request", wrapper_of(transport, awaits=False))
        self._wraps.wrap(module.AsyncHTTPTransport, "handle_async_request", wrapper_of(transport, awaits=True))
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _around_client_send(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block | None:
        sent = SENDING.get() if self._active else None
        return None if sent is None else sent.around_client_send(args[0] if args else kwargs["request"], client)

    def _around_transport_send(self, _transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block | None:
        request = args[0] if args else kwargs["request"]
        sent = call_of(request) if self._active else None
        return None if sent is None else sent.around_transport_send(request)


HTTP_LIBRARIES: Final = tuple(
    Package(
        f"{name}._client",  # the module that defines the classes: it is whole when it was imported, and the package itself not yet
        SingleRequests,
        f"ravi-otel: this version of {name} cannot be wrapped (%s is missing), so a request to a model that follows redirects counts as "
        "one, however many are sent.",
    )
    for name in ("httpx", "httpx2")
)


def _seam(module: str, name: str, kind: str, unusable: str) -> Package:
    return Package(
        name,
        lambda found: cast("Installed", getattr(load(f"ravi_otel._instrumentation.{module}"), kind)(found)),
        f"ravi-otel: this version of {unusable} cannot be wrapped (%s is missing), so requests that it sends to models for clients that we "
        "do not wrap are neither counted nor refused.",
    )


HTTP_SEAMS: Final = (
    _seam("httpx_seam", "httpx._client", "HttpxSeam", "httpx"),
    _seam("httpx_seam", "httpx2._client", "HttpxSeam", "httpx2"),
    _seam("urllib3_seam", "urllib3.connectionpool", "Urllib3Seam", "urllib3"),
    _seam("botocore_seam", "botocore.endpoint", "BotocoreSeam", "botocore"),
    _seam("aiohttp_seam", "aiohttp", "AiohttpSeam", "aiohttp"),
)
"""The HTTP libraries in which requests to models are seen that no wrapped client makes."""
