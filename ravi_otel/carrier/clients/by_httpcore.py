"""Wrap what writes requests for httpx and httpx2: the connections of `httpcore` and `httpcore2`, HTTP/1.1 and HTTP/2, sync and async."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

from ravi_otel._flow import Flow, is_done, run_sync
from ravi_otel._runtime.patching import Wraps
from ravi_otel.carrier.clients.rewriting import Edit, Going, Rewriting, going, origin_of, take

_CLASSES: Final = ("HTTP11Connection", "HTTP2Connection")
_SYNC: Final = "handle_request"
_ASYNC: Final = "handle_async_request"
_OPTIONAL: Final = "HTTP2Connection"
"""Where `h2` is not installed, a class without methods stands for it."""


class Installed:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sync and the async connections."""
        for prefix, name, wrapper in (("", _SYNC, self._request), ("Async", _ASYNC, self._request_async)):
            for each in _CLASSES:
                owner = getattr(self._module, prefix + each)
                if name in vars(owner) or each != _OPTIONAL:
                    self._wraps.wrap(owner, name, wrapper)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    def _request(self, wrapped: Callable[..., Any], _connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        edit = self._edit(request)
        try:
            response = wrapped(_edited(request, edit))
        except self._module.ConnectionNotAvailable:  # it turned out to be somebody else's, and the pool asks another
            _unsend(edit)
            raise
        try:
            run_sync(self._rewriting.returns(response.headers, partial(_going, request)))
        except BaseException:  # a signal: nobody gets the answer, and its connection would be taken for ever
            response.close()
            raise
        return response

    async def _request_async(self, wrapped: Callable[..., Any], _connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return await wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        edit = self._edit(request)
        try:
            response = await wrapped(_edited(request, edit))
        except self._module.ConnectionNotAvailable:  # the same
            _unsend(edit)
            raise
        flow = self._rewriting.returns(response.headers, partial(_going, request))
        if not is_done(flow):
            await self._take(flow, response)
        return response

    async def _take(self, flow: Flow[None], response: Any) -> None:
        """Take what came back, out of reach of cancelled scopes; a task that is cancelled gets no answer, and its connection is free."""
        shield = self._module._synchronization.AsyncShieldCancellation  # noqa: SLF001 - by which it keeps its own connections from that
        try:
            with shield():
                await take(flow)
        except BaseException:
            with shield():
                await response.aclose()
            raise

    def _edit(self, request: Any) -> Edit | None:
        return self._rewriting.edit(request.headers, partial(_going, request), request.extensions)


def _edited(request: Any, edit: Edit | None) -> Any:
    """Return the request to send: the program's own object stays as it is."""
    if edit is None:
        return request
    changed = copy.copy(request)
    changed.headers = edit.of(request.headers)
    return changed


def _unsend(edit: Edit | None) -> None:
    if edit is not None:
        edit.unsend()


def _going(request: Any) -> Going:
    url = request.url
    peer = origin_of(url.scheme.decode("ascii"), url.host.decode("latin-1"), url.port)
    return going(peer, request.method.decode("latin-1"), url.target.decode("latin-1"))
