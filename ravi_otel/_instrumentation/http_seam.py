"""Pay for each request that leaves beyond the one the client built: what follows a redirect, and what is sent again, to log in or at all.

A transport of the program's own may send one several times, and from whichever thread, through the libraries' own: there it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ravi_otel._instrumentation.client_seam import SENDING, SentCall, call_of
from ravi_otel._runtime.packages import Package
from ravi_otel._runtime.wrapping import Wraps

_UNUSABLE: Final = (
    "ravi-otel: this version of {} cannot be wrapped (%s is missing), so a request to a model that follows redirects counts as one, "
    "however many are sent."
)


class HttpSeam:
    """Hold the wrapped methods of one HTTP library, through which each single request goes, redirected ones too."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the clients of both colours."""
        self._wraps.wrap(self._module.Client, "_send_single_request", self._send)
        self._wraps.wrap(self._module.AsyncClient, "_send_single_request", self._send_async)
        self._wraps.wrap(self._module.HTTPTransport, "handle_request", self._hand)
        self._wraps.wrap(self._module.AsyncHTTPTransport, "handle_async_request", self._hand_async)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _send(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sent = SENDING.get() if self._active else None
        if sent is None:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        sent.leaving(request, client)
        response = wrapped(*args, **kwargs)
        sent.passed(request, response)
        return response

    def _send_async(self, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sent = SENDING.get() if self._active else None
        return wrapped(*args, **kwargs) if sent is None else self._sent_async(sent, wrapped, client, args, kwargs)

    async def _sent_async(
        self, sent: SentCall, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        request = args[0] if args else kwargs["request"]
        sent.leaving(request, client)
        response = await wrapped(*args, **kwargs)
        sent.passed(request, response)
        return response

    def _hand(self, wrapped: Callable[..., Any], _transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = args[0] if args else kwargs["request"]
        sent = call_of(request) if self._active else None
        if sent is None:
            return wrapped(*args, **kwargs)
        sent.resending(request)
        token = SENDING.set(sent)
        try:
            response = wrapped(*args, **kwargs)
        except BaseException as error:
            sent.resent(request, None, error)
            raise
        finally:
            SENDING.reset(token)
        sent.resent(request, response, None)
        return response

    def _hand_async(self, wrapped: Callable[..., Any], _transport: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = args[0] if args else kwargs["request"]
        sent = call_of(request) if self._active else None
        return wrapped(*args, **kwargs) if sent is None else self._handed_async(sent, wrapped, request, args, kwargs)

    async def _handed_async(
        self, sent: SentCall, wrapped: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        sent.resending(request)
        token = SENDING.set(sent)
        try:
            response = await wrapped(*args, **kwargs)
        except BaseException as error:
            sent.resent(request, None, error)
            raise
        finally:
            with suppress(ValueError):  # a coroutine that is finalised in another context than it ran in
                SENDING.reset(token)
        sent.resent(request, response, None)
        return response


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
