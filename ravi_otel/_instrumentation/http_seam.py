"""Pay for each request that leaves beyond the one the client built: what follows a redirect, and what is sent again, to log in or at all.

A transport of the program's own may send one several times, and from whichever thread, through the libraries' own: there it is known.
"""

from __future__ import annotations

from typing import Any, Final

from ravi_otel._instrumentation.client_seam import SENDING, call_of
from ravi_otel._instrumentation.sync_async import Block, wrapper_of
from ravi_otel._runtime.patching import Package, Wraps

_UNUSABLE: Final = (
    "ravi-otel: this version of {} cannot be wrapped (%s is missing), so a request to a model that follows redirects counts as one, "
    "however many are sent."
)


class HttpSeam:
    """The wrapped methods of one HTTP library, through which each single request goes, redirected ones too."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the clients of both colours."""
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


class Redirects:
    """Wrap the HTTP libraries that the clients are built on, each when the program has imported it."""

    def __init__(self) -> None:
        # `_client` is the module that defines the classes: it is whole when it was imported, and the package itself not yet.
        self._packages = [Package(f"{name}._client", HttpSeam, _UNUSABLE.format(name)) for name in ("httpx", "httpx2")]

    def install(self) -> None:
        """Wrap what the program has imported, and later what it imports then."""
        for package in self._packages:
            package.install()

    def remove(self) -> None:
        """Put the identical methods back."""
        for package in self._packages:
            package.remove()
