"""Rewrite the `baggage` header of HTTP clients at the very last moment, so that nothing of ours goes where it must not.

Whoever else wants to know of requests is told from the same wrappers (`rewriting.Watch`): there is one of each.

Others put baggage on requests too: instrumentations that carry on what they were given, and programs. Whoever of them came first or
last, they all work above the one place where a request becomes bytes. That is where these wrappers are: in `httpcore` for httpx,
`httpcore2` for httpx2, `http.client` for requests and urllib3, and in aiohttp's own request. Requests over MCP have no headers where it is
no HTTP; what would be one is in their `_meta`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final, cast

from ravi_otel._extras import load
from ravi_otel._runtime.patching import Installed, Package
from ravi_otel.carrier.clients import by_aiohttp, by_http_client, by_httpcore
from ravi_otel.carrier.clients.rewriting import Rewriting, Watch

_UNUSABLE: Final = (
    "ravi-otel: this version of {} cannot be wrapped (%s is missing), so its requests carry no run to other services, and baggage that "
    "others put on them is not looked at."
)


_UNUSABLE_MCP: Final = (
    "ravi-otel: this version of mcp cannot be wrapped (%s is missing), so its requests carry no run to servers, and baggage that others "
    "put on them is not looked at."
)


def _mcp(place: str, wrapping: str, module: ModuleType) -> Installed:
    return cast("Installed", getattr(load(f"ravi_otel.carrier.{place}"), wrapping)(module))


MCP_SERVERS: Final = tuple(
    Package(
        name,
        partial(_mcp, "mcp", wrapping),
        "ravi-otel: servers of this version of mcp cannot be wrapped (%s is missing), so their tools go on with nobody's run.",
    )
    for name, wrapping in (("mcp.server.runner", "Middleware"), ("mcp.server.lowlevel.server", "RequestHandlers"))
)
"""What answers requests over MCP: the first is of 2.x, and the second of 1.x."""


class Clients:
    """The wrappers of all HTTP clients; each in place when, and only when, the program has imported its package."""

    def __init__(self, is_provider_call: Callable[[object], bool], watch: Watch) -> None:
        rewriting = Rewriting(is_provider_call, watch)
        self._packages = [
            Package(name, partial(make, rewriting), _UNUSABLE.format(name))
            for name, make in (
                ("httpcore", by_httpcore.Installed),
                ("httpcore2", by_httpcore.Installed),
                ("http.client", by_http_client.Installed),
                ("aiohttp", by_aiohttp.Installed),
            )
        ]
        self._packages.append(Package("mcp.client.session", partial(_mcp, "clients.by_mcp", "Installed"), _UNUSABLE_MCP))

    def install(self) -> None:
        """Wrap what the program has imported, and later what it imports then."""
        for package in self._packages:
            package.install()

    def remove(self) -> None:
        """Put the identical methods back."""
        for package in self._packages:
            package.remove()
