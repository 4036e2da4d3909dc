"""Whatever fails in what we wrap around apps, their answers, errors and surroundings stay what they are without us."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry import context as otel_context
from served_apps import Asgi, Wsgi, model, over_wsgi

import ravi_otel
from ravi_otel import _current
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel.carrier import asgi, wsgi
from ravi_otel.carrier._continue import ContinuedRun
from ravi_otel.testing import ScriptedLLM

NAMED: contextvars.ContextVar[str] = contextvars.ContextVar("named", default="")


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:a secret that is long enough")
    monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
    ravi_otel.instrument()


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedLLM]:
    with model() as scripted:
        yield scripted


def headers(*, lent: bool = True) -> dict[str, str]:
    """Be what a caller sends, who may lend."""
    with ravi_otel.run("caller", limits=["tokens=2000"]):
        return dict(ravi_otel.outbound_headers("http://127.0.0.1:1", lend=ravi_otel.lend(tokens=1_000) if lent else None))


def request(*, lent: bool = True) -> dict[str, Any]:
    pairs = [(name.encode(), value.encode()) for name, value in headers(lent=lent).items()]
    return {"type": "http", "headers": pairs, "client": ("127.0.0.1", 1)}


def environ(*, lent: bool = True) -> dict[str, Any]:
    given = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers(lent=lent).items()}
    return {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "127.0.0.1", **given}


def served(app: Any, scope: dict[str, Any]) -> list[Any]:
    """Give what the app sends."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append({**message, "headers": list(message["headers"])} if "headers" in message else message)

    asyncio.run(app(scope, None, send))
    return sent


@pytest.fixture
def store_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody to ask what was used of a loan."""

    def fails(*_: Any) -> Any:
        raise ravi_otel.BudgetExhaustedError("tokens= of the caller's lend() cannot be kept, so nothing is sent")
        yield

    monkeypatch.setattr(MemoryLedger, "retune", fails)


@pytest.mark.usefixtures("store_gone")
def test_an_answer_leaves_without_what_comes_back_where_the_store_does_not_tell(server: ScriptedLLM) -> None:
    started: list[Any] = []
    start, body = served(asgi.Carried(Asgi(server)), request())
    wsgi.Carried(Wsgi(server))(environ(), lambda status, given: started.append((status, given)))
    assert start["status"] == 200
    assert body["body"]
    assert [name for name, _ in start["headers"]] == [b"content-type", b"content-length"]
    assert started == [("200 OK", [("Content-Type", "application/json")])]


@pytest.mark.parametrize("lent", [True, False])
def test_headers_that_can_be_read_once_are_all_sent(lent: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pairs = [(b"content-type", b"text/html"), (b"set-cookie", b"a=b")]
        await send({"type": "http.response.start", "status": 200, "headers": (pair for pair in pairs)})
        await send({"type": "http.response.body", "body": b"x"})

    start, _ = served(asgi.Carried(app), request(lent=lent))
    assert [name for name, _ in start["headers"]] == [b"content-type", b"set-cookie", b"ravi-spent"][: 3 if lent else 2]


def test_a_run_ends_and_the_apps_error_is_told_when_nobody_is_there_to_be_answered() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(ravi_otel.current_scope())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("mine")

    async def gone(message: Any) -> None:
        raise OSError("the client went away")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(asgi.Carried(app)(request(), None, gone))
    assert scopes[0].status == "error"


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_what_fails_at_the_end_of_a_run_changes_no_answer(kind: str, server: ScriptedLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    left = ContinuedRun.__exit__

    def fails(run: ContinuedRun, *error: Any) -> None:
        left(run, *error)
        raise RuntimeError("ours")

    monkeypatch.setattr(ContinuedRun, "__exit__", fails)
    if kind == "asgi":
        assert len(served(asgi.Carried(Asgi(server)), request(lent=False))) == 2
    else:
        assert len(list(wsgi.Carried(Wsgi(server))(environ(lent=False), lambda *_: None))) == 1


class Pieces:
    """Be a body that tells how many pieces it has, and no list."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"abc"])

    def __len__(self) -> int:
        return 1


def test_a_server_measures_a_body_of_one_piece() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Pieces()

    with over_wsgi(wsgi.Carried(app)) as url:
        assert httpx.get(url, trust_env=False).headers["content-length"] == "3"


def test_a_body_that_does_not_tell_its_pieces_has_no_length(server: ScriptedLLM) -> None:
    body = wsgi.Carried(Wsgi(server, "generator"))(environ(lent=False), lambda *_: None)
    assert not hasattr(body, "__len__")
    body.close()


def test_what_an_app_sets_on_its_thread_is_there_for_who_is_around_it() -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        NAMED.set("in the app")
        start_response("200 OK", [])
        return pieces()

    def pieces() -> Iterator[bytes]:
        yield NAMED.get().encode()
        NAMED.set("in the body")
        yield b""

    def around() -> None:
        body = iter(wsgi.Carried(app)(environ(lent=False), lambda *_: None))
        assert NAMED.get() == "in the app"
        assert next(body) == b"in the app"
        next(body)
        assert NAMED.get() == "in the body"
        body.close()
        assert _current.leaf() is None

    contextvars.copy_context().run(around)


def test_a_scope_that_is_held_open_between_pieces_is_there_for_the_next_one_and_for_nobody_else() -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        with ravi_otel.agent("writer"):
            yield b"a"
            seen.append(ravi_otel.current_scope().facts.agent_name)
        seen.append(ravi_otel.current_scope().facts.agent_name)
        yield b"b"

    before = otel_context.get_current()
    body = wsgi.Carried(app)(environ(lent=False), lambda *_: None)
    for _ in body:
        assert otel_context.get_current() is before
    body.close()
    assert seen == ["writer", None]
    assert otel_context.get_current() is before


def test_a_body_is_closed_by_another_thread_than_reads_it() -> None:
    waiting, scopes = threading.Event(), []

    class Blocking:
        def __init__(self) -> None:
            self._queue: queue.Queue[None] = queue.Queue()

        def __iter__(self) -> Blocking:
            return self

        def __next__(self) -> bytes:
            waiting.set()
            self._queue.get(timeout=10)
            raise StopIteration

        def close(self) -> None:
            self._queue.put(None)

    def app(environ: Any, start_response: Any) -> Any:
        scopes.append(ravi_otel.current_scope())
        start_response("200 OK", [])
        return Blocking()

    body = wsgi.Carried(app)(environ(lent=False), lambda *_: None)
    read: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: read.append(list(body)))
    reader.start()
    assert waiting.wait(10)
    body.close()
    reader.join(10)
    assert read == [[]]
    assert scopes[0].status == "ok"


def test_an_app_that_begins_two_answers_hears_what_its_server_thinks_of_that() -> None:
    begun: list[str] = []

    def start_response(status: str, given: Any) -> None:
        if begun:
            raise AssertionError("begun before")
        begun.append(status)

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        start_response("201 Created", [])
        return []

    with pytest.raises(AssertionError, match="begun before"):
        wsgi.Carried(app)(environ(), start_response)
    assert begun == ["200 OK"]


def lengthy(environ: Any, start_response: Callable[..., Any]) -> Iterator[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    yield b"a"
    yield b"b"


def test_a_generator_that_tells_its_length_gives_back_what_it_did_not_use() -> None:
    started: list[Any] = []
    body = wsgi.Carried(lengthy)(environ(), lambda status, given: started.extend(given))
    assert b"".join(body) == b"ab"
    body.close()
    assert [name for name, _ in started] == ["Content-Length", "ravi-spent"]
