"""Ask a URL with each of the five HTTP clients, in each colour it has; and stand beside us as other instrumentations do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import httpx
import httpx2
import requests
import trio
import urllib3
import wrapt

Ask = Callable[..., Mapping[str, str]]
"""Take a URL, headers and perhaps a proxy; give the headers of the answer, in lower case."""


def _lowered(headers: Any) -> Mapping[str, str]:
    return {str(name).lower(): value for name, value in headers.items()}


def _sync(library: Any) -> Ask:
    def ask(url: str, headers: Mapping[str, str], proxy: str | None = None) -> Mapping[str, str]:
        with library.Client(proxy=proxy, follow_redirects=True, trust_env=False) as client:
            return _lowered(client.get(url, headers=headers).headers)

    return ask


def _async(library: Any, run: Callable[[Any], Any] = lambda asked: asyncio.run(asked())) -> Ask:
    def ask(url: str, headers: Mapping[str, str], proxy: str | None = None) -> Mapping[str, str]:
        async def asked() -> Mapping[str, str]:
            async with library.AsyncClient(proxy=proxy, follow_redirects=True, trust_env=False) as client:
                return _lowered((await client.get(url, headers=headers)).headers)

        return run(asked)

    return ask


def _requests(url: str, headers: Mapping[str, str], proxy: str | None = None) -> Mapping[str, str]:
    with requests.Session() as session:
        session.trust_env = False
        return _lowered(session.get(url, headers=headers, proxies={"http": proxy} if proxy else None).headers)


def _urllib3(url: str, headers: Mapping[str, str], proxy: str | None = None) -> Mapping[str, str]:
    with urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager() as pool:
        return _lowered(pool.request("GET", url, headers=dict(headers)).headers)


def _aiohttp(url: str, headers: Mapping[str, str], proxy: str | None = None) -> Mapping[str, str]:
    async def asked() -> Mapping[str, str]:
        async with aiohttp.ClientSession(trace_configs=list(_TRACES)) as session, session.get(url, headers=headers, proxy=proxy) as reply:
            return _lowered(reply.headers)

    return asyncio.run(asked())


STACKS: dict[str, Ask] = {
    "httpx": _sync(httpx),
    "httpx async": _async(httpx),
    "httpx trio": _async(httpx, trio.run),
    "httpx2": _sync(httpx2),
    "httpx2 async": _async(httpx2),
    "requests": _requests,
    "urllib3": _urllib3,
    "aiohttp": _aiohttp,
}

_TRACES: list[Any] = []


# -- instrumentations that carry baggage on, where the well-known ones do it -------------------------------------------


def _mark(headers: Any, entries: str) -> None:
    headers["baggage"] = entries


@contextlib.contextmanager
def others(entries: str) -> Iterator[None]:
    """Put `entries` on every request of every client, over or under whoever wrapped them already."""
    undo: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, wrapper: Any) -> None:
        original = owner.__dict__[name]
        undo.append((owner, name, original))
        setattr(owner, name, wrapt.FunctionWrapper(original, wrapper))

    def of_request(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        _mark((args[0] if args else kwargs["request"]).headers, entries)
        return wrapped(*args, **kwargs)

    def of_urlopen(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        kwargs["headers"] = {**(kwargs.get("headers") or {}), "baggage": entries}
        return wrapped(*args, **kwargs)

    async def of_start(_session: Any, _context: Any, params: Any) -> None:
        _mark(params.headers, entries)

    for library in (httpx, httpx2):
        wrap(library.HTTPTransport, "handle_request", of_request)
        wrap(library.AsyncHTTPTransport, "handle_async_request", of_request)
    wrap(requests.Session, "send", of_request)
    wrap(urllib3.HTTPConnectionPool, "urlopen", of_urlopen)
    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(of_start)
    _TRACES.append(trace)
    try:
        yield
    finally:
        _TRACES.remove(trace)
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)
