"""Apps as a service has them, over ASGI and WSGI, that spend on a model what they are told to."""

from __future__ import annotations

import json
import threading
import wsgiref.simple_server
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai import AsyncOpenAI, OpenAI

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text
from ravi_otel.testing._loopback import Loopback

ASK: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}


def model() -> ScriptedLLM:
    """Be a model that takes 100 tokens each time."""
    return ScriptedLLM(lambda request: Text("hello", usage=(60, 40)))


def facts() -> dict[str, Any]:
    scope = ravi_otel.current_scope()
    facts, limits = scope.facts, {each.limit.kind: each.limit.value for each in scope.readings()}
    return {"run": facts.run_id, "name": facts.run_name, "session": facts.session_id, "tenant": facts.tenant_id, "limits": limits}


class Asgi:
    """Call the model `calls` times, then answer in `pieces`; with `sized` the answer tells its length."""

    def __init__(self, server: ScriptedLLM, *, calls: int = 1, pieces: int = 1, sized: bool = True) -> None:
        self._server, self._calls, self._pieces, self._sized = server, calls, pieces, sized
        self.seen: dict[str, Any] = {}
        self.refused: str | None = None
        self.after: Callable[[], Any] | None = None

    async def spend(self) -> None:
        async with AsyncOpenAI(base_url=self._server.base_url, api_key="k", max_retries=0) as client:
            await client.chat.completions.create(**ASK)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen = facts()
        try:
            for _ in range(self._calls):
                await self.spend()
        except ravi_otel.BudgetExhaustedError as error:
            self.refused = str(error)
        body = json.dumps(self.seen).encode()
        headers = [(b"content-type", b"application/json")] + [(b"content-length", str(len(body)).encode())] * self._sized
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        size = -(-len(body) // self._pieces)
        for at in range(0, len(body), size):
            await send({"type": "http.response.body", "body": body[at : at + size], "more_body": at + size < len(body)})
        if self.after is not None:
            await self.after()


class Wsgi:
    """Do the same over WSGI; `kind` says what the body is."""

    def __init__(self, server: ScriptedLLM, kind: str = "list", *, sized: bool = False) -> None:
        self._server, self._kind, self._sized = server, kind, sized
        self.seen: dict[str, Any] = {}
        self.closed = False

    def __call__(self, environ: Any, start_response: Any) -> Any:
        self.seen = facts()
        with OpenAI(base_url=self._server.base_url, api_key="k", max_retries=0) as client:
            client.chat.completions.create(**ASK)
        body = json.dumps(self.seen).encode()
        write = start_response("200 OK", [("Content-Type", "application/json")] + [("Content-Length", str(len(body)))] * self._sized)
        if self._kind == "list":
            return [body]
        if self._kind == "written":
            write(body)
            return []
        return self._pieces(body)

    def _pieces(self, body: bytes) -> Iterator[bytes]:
        try:
            for at in range(0, len(body), 10):
                assert facts() == self.seen
                yield body[at : at + 10]
        finally:
            self.closed = True


@contextmanager
def over_asgi(app: Any) -> Iterator[str]:
    with Loopback(app) as served:
        yield served.url


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Say nothing."""


@contextmanager
def over_wsgi(app: Any) -> Iterator[str]:
    """Serve over the standard library's own server, one request at a time on one thread."""
    server = wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
