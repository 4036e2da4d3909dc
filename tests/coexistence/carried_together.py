"""Ask hosts with five HTTP clients that other instrumentations are on, beside us in a given order, and write what was sent as JSON.

`python carried_together.py ORDER`: each order needs a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import requests
import urllib3
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel

TRACES = TracerProvider()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


class Host:
    """Keep the heads of the requests that come to a port of its own."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.heads: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            with connection:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65_536)
                self.heads.append(data.decode("latin-1"))
                connection.sendall(OK)


def theirs() -> None:
    from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
    from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor, HTTPXClientInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor

    for each in (HTTPXClientInstrumentor, HTTPX2ClientInstrumentor, RequestsInstrumentor, URLLib3Instrumentor, AioHttpClientInstrumentor):
        each().instrument(tracer_provider=TRACES)


def ours() -> None:
    ravi_otel.instrument(tracer_provider=TRACES)


def stacks() -> dict[str, Callable[[str], Any]]:
    """Name each client in each colour, with what asks a URL by it."""

    def in_loop(library: Any) -> Callable[[str], Any]:
        async def ask(url: str) -> None:
            async with library.AsyncClient(trust_env=False) as client:
                await client.get(url)

        return lambda url: asyncio.run(ask(url))

    def direct(library: Any) -> Callable[[str], Any]:
        def ask(url: str) -> None:
            with library.Client(trust_env=False) as client:
                client.get(url)

        return ask

    async def by_aiohttp(url: str) -> None:
        async with aiohttp.ClientSession() as session, session.get(url):
            pass

    return {
        "httpx": direct(httpx),
        "httpx async": in_loop(httpx),
        "httpx2": direct(httpx2),
        "httpx2 async": in_loop(httpx2),
        "requests": lambda url: requests.get(url, timeout=10),
        "urllib3": lambda url: urllib3.PoolManager().request("GET", url),
        "aiohttp": lambda url: asyncio.run(by_aiohttp(url)),
    }


def main(order: str) -> None:
    listed, elsewhere = Host(), Host()
    os.environ |= {"RAVI_CARRY_KEYS": "k1:a secret that is long enough", "RAVI_CARRY_TO": listed.name}
    for begin in (ours, theirs) if order == "us first" else (theirs, ours):
        begin()
    # As an instrumentation of a server puts it there, which takes up whatever its caller sent.
    context.attach(baggage.set_baggage("ravi.carry", "theirs", baggage.set_baggage("team", "blue")))
    seen: dict[str, dict[str, str]] = {}
    for name, ask in stacks().items():
        with ravi_otel.run("r"):
            for host in (elsewhere, listed):
                ask(f"http://{host.name}/")
        seen[name] = {"elsewhere": elsewhere.heads.pop(), "listed": listed.heads.pop()}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # theirs
    main(sys.argv[1])
