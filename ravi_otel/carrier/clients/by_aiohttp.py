"""Wrap what writes requests in aiohttp."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from ravi_otel._flow import is_done
from ravi_otel._runtime.patching import Wraps
from ravi_otel.carrier.clients.rewriting import Field, Going, Rewriting, origin_of, take


class Installed:
    """Hold the wrapped methods of one module."""

    def __init__(self, rewriting: Rewriting, module: ModuleType) -> None:
        self._rewriting = rewriting
        self._module = module
        self._wraps = Wraps()
        self._active = False

    def install(self) -> None:
        """Wrap the sending of a request, and the beginning of its answer."""
        self._wraps.wrap(self._module.ClientRequest, "send", self._send)
        self._wraps.wrap(self._module.ClientResponse, "start", self._start)
        self._active = True

    def remove(self) -> None:
        """Fall silent, and put the identical methods back."""
        self._active = False
        self._wraps.restore()

    async def _send(self, wrapped: Callable[..., Any], request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        headers = request.headers
        edit = self._rewriting.edit(_fields(headers.items()), partial(_going, request)) if self._active else None
        if edit is None:
            return await wrapped(*args, **kwargs)
        before = list(headers.items())
        touched = {_name(before[place][0]) for place in edit.drop} | {name.decode("ascii") for name, _ in edit.add}
        _put(headers, touched, [(name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in edit.add])
        try:
            return await wrapped(*args, **kwargs)
        finally:  # what the program reads of its request is what it wrote
            _put(headers, touched, [(name, value) for name, value in before if _name(name) in touched])

    async def _start(self, wrapped: Callable[..., Any], response: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = await wrapped(*args, **kwargs)
        if self._active:
            flow = self._rewriting.returns(_fields(response.headers.items()), partial(_answering, response))
            if not is_done(flow):
                await take(flow)  # what is raised in here has aiohttp close the answer
        return started


def _name(written: Any) -> str:
    return str(written).lower()


def _fields(pairs: Any) -> list[Field]:
    return [(str(name).encode("utf-8", "surrogateescape"), str(value).encode("utf-8", "surrogateescape")) for name, value in pairs]


def _put(headers: Any, names: set[str], pairs: list[tuple[str, str]]) -> None:
    """Have these headers in the place of all that have one of the names."""
    for name in names:
        headers.popall(name, None)
    for name, value in pairs:
        headers.add(name, value)


def _going(request: Any) -> Going:
    """Tell where it goes: over TLS a proxy only hands bytes on, and is asked to with a request of its own."""
    via = None if request.proxy is None or request.is_ssl() else str(request.proxy.origin())
    url = request.url  # whose `raw_host` is as it is asked for and listed, `xn--` and all
    return Going(origin_of(url.scheme, url.raw_host or "", url.port), via, str(request.method), str(url.raw_path))


def _answering(response: Any) -> Going:
    return Going(str(response.url))
