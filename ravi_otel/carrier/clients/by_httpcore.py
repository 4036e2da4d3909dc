"""Wrap what writes requests for httpx and httpx2: the connections of `httpcore` and `httpcore2`, HTTP/1.1 and HTTP/2, sync and async."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from ravi_otel._flow import run_async, run_sync
from ravi_otel.carrier.clients.rewriting import Going, Rewriting, going, origin_of
from ravi_otel.runtime.wrapping import Wraps

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
        self._sent: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def install(self) -> None:
        """Wrap the connections of both colours."""
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
        response = wrapped(self._rewritten(request))
        self._sent.pop(request, None)
        run_sync(self._rewriting.returns(response.headers, partial(_going, request)))
        return response

    async def _request_async(self, wrapped: Callable[..., Any], _connection: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._active:
            return await wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        response = await wrapped(self._rewritten(request))
        self._sent.pop(request, None)
        await run_async(self._rewriting.returns(response.headers, partial(_going, request)))
        return response

    def _rewritten(self, request: Any) -> Any:
        """Give the request to send: the program's own object stays as it is."""
        again = self._sent.get(request)  # the connection turned out to be somebody else's, and nothing was sent
        if again is not None:
            return again
        edit = self._rewriting.edit(request.headers, partial(_going, request), request.extensions)
        if edit is None:
            return request
        changed = copy.copy(request)
        changed.headers = edit.of(request.headers)
        self._sent[request] = changed
        return changed


def _going(request: Any) -> Going:
    url = request.url
    peer = origin_of(url.scheme.decode("ascii"), url.host.decode("latin-1"), url.port)
    return going(peer, url.target.decode("latin-1"), bare=request.method == b"CONNECT")
