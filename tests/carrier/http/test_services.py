"""A service behind `Carried` works in its caller's run, within what it was lent, and changes nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from served_apps import Asgi, Wsgi, facts, model, over_asgi, over_wsgi

import ravi_otel
from ravi_otel import _current
from ravi_otel.carrier import asgi, wsgi
from ravi_otel.testing import ScriptedLLM


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedLLM]:
    with model() as scripted:
        yield scripted


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:a secret that is long enough")
    monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
    ravi_otel.instrument()


@pytest.fixture(params=["asgi", "wsgi"])
def service(request: Any, server: ScriptedLLM) -> Iterator[tuple[Any, str]]:
    """Serve an app that calls the model once, and answers in one piece that tells its length."""
    app: Any = Asgi(server) if request.param == "asgi" else Wsgi(server, sized=True)
    carried = (asgi if request.param == "asgi" else wsgi).Carried(app, name="service", otherwise=["tokens=50"])
    with (over_asgi if request.param == "asgi" else over_wsgi)(carried) as url:
        yield app, url


def lend_to(url: str, tokens: int = 1_000) -> tuple[Any, Any, httpx.Response]:
    """Ask the service with a loan; give the run, the loan and the answer."""
    with ravi_otel.run("caller", limits=["tokens=2000"], session_id="s", tenant_id="t") as run:
        with ravi_otel.lend(tokens=tokens) as loan:
            reply = httpx.get(url, trust_env=False)
        return run, loan, reply


def test_the_service_works_in_the_callers_run(service: tuple[Any, str]) -> None:
    app, url = service
    with ravi_otel.run("caller", session_id="s", tenant_id="t") as run:
        httpx.get(url, trust_env=False)
        assert app.seen == {"run": run.scope.facts.run_id, "name": "service", "session": "s", "tenant": "t", "limits": {}}


@pytest.mark.parametrize(
    "baggage",
    ["", "ravi.carry=2.k1.eyJyIjoxfQ.AAAA", "ravi.carry=a,ravi.carry=b", "\xff,;=%%%ravi." + "x" * 9_000],
    ids=["none", "forged", "two", "odd"],
)
def test_a_request_that_carries_nothing_to_believe_gets_a_run_of_its_own(baggage: str, service: tuple[Any, str]) -> None:
    app, url = service
    with socket.create_connection(httpx.URL(url).netloc.decode().split(":")) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nbaggage: %s\r\n\r\n" % baggage.encode("latin-1"))
        assert b" 200 " in raw.recv(4_096)
    assert (app.seen["name"], app.seen["session"], app.seen["limits"]) == ("service", None, {"tokens": 50})


def test_limits_of_the_service_hold_besides_those_of_the_caller(server: ScriptedLLM) -> None:
    app = Asgi(server)
    with over_asgi(asgi.Carried(app, limits=["requests=7"], otherwise=["tokens=50"])) as url:
        lend_to(url)
    assert app.seen["limits"] == {"tokens": 1_000, "requests": 7}


def test_what_was_not_used_comes_back_with_the_answer(service: tuple[Any, str]) -> None:
    run, loan, reply = lend_to(service[1])
    assert reply.status_code == 200
    assert (loan.status, loan.used["tokens"]) == ("returned", 100)
    (tokens,) = run.limits
    assert (tokens.used, tokens.held) == (100, 0)


def test_nobody_else_gets_the_header_with_what_was_used(service: tuple[Any, str]) -> None:
    with ravi_otel.run("caller", limits=["tokens=2000"]):
        assert "ravi-spent" not in httpx.get(service[1], trust_env=False).headers


def test_an_answer_in_one_piece_needs_not_tell_its_length(server: ScriptedLLM) -> None:
    with over_asgi(asgi.Carried(Asgi(server, sized=False))) as url:
        assert lend_to(url)[1].status == "returned"
    with over_wsgi(wsgi.Carried(Wsgi(server))) as url:
        assert lend_to(url)[1].status == "returned"


@pytest.mark.parametrize("kind", ["asgi", "generator", "written"])
def test_of_an_answer_in_pieces_nothing_comes_back(kind: str, server: ScriptedLLM) -> None:
    carried = asgi.Carried(Asgi(server, pieces=3, sized=False)) if kind == "asgi" else wsgi.Carried(Wsgi(server, kind))
    with (over_asgi if kind == "asgi" else over_wsgi)(carried) as url:
        run, loan, reply = lend_to(url)
    assert reply.json()["session"] == "s"
    assert loan.status == "sent"
    assert run.limits[0].held == 1_000  # until it expires, and counts as spent


def test_a_loan_holds_in_the_service(server: ScriptedLLM) -> None:
    app = Asgi(server, calls=10)
    with over_asgi(asgi.Carried(app)) as url:
        _, loan, _ = lend_to(url, 300)
    assert app.refused is not None
    assert "300" in app.refused
    assert loan.used["tokens"] == 300


def test_after_the_answer_nothing_more_is_spent_of_a_loan(server: ScriptedLLM) -> None:
    app, done = Asgi(server), threading.Event()

    async def background() -> None:
        try:
            await app.spend()
        except ravi_otel.BudgetExhaustedError as error:
            app.refused = str(error)
        finally:
            done.set()

    app.after = background
    with over_asgi(asgi.Carried(app)) as url:
        assert lend_to(url)[1].used["tokens"] == 100
        assert done.wait(10)
    assert app.refused is not None


def test_a_run_over_wsgi_lasts_until_the_body_is_read_and_leaves_the_thread_as_it_was(server: ScriptedLLM) -> None:
    app, sent = Wsgi(server, "generator"), []
    body = wsgi.Carried(app, otherwise=[])({"REQUEST_METHOD": "GET"}, lambda status, headers: sent.append(status))
    assert _current.leaf() is None
    pieces = iter(body)
    next(pieces)
    assert _current.leaf() is None
    assert not app.closed
    assert len(list(pieces)) > 1
    body.close()
    assert app.closed
    assert sent == ["200 OK"]


def test_a_body_that_is_all_there_is_handed_on_as_it_is(server: ScriptedLLM) -> None:
    class FileWrapper:
        def __init__(self, file: Any) -> None:
            self.file = file

    for made in ([b"a"], (b"a", b"b"), FileWrapper(None)):

        def app(environ: Any, start_response: Any, made: Any = made) -> Any:
            start_response("200 OK", [])
            return made

        assert wsgi.Carried(app)({"wsgi.file_wrapper": FileWrapper}, lambda status, headers: None) is made


@pytest.mark.parametrize("when", ["before", "after the start", "in the body"])
def test_what_the_app_raises_is_raised_on(when: str, server: ScriptedLLM) -> None:
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if when != "before":
            await send({"type": "http.response.start", "status": 200})
        if when == "in the body":
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise KeyError("mine")

    async def send(message: Any) -> None:
        sent.append(message["type"])

    with ravi_otel.run("caller", limits=["tokens=2000"]):
        headers = ravi_otel.outbound_headers("http://127.0.0.1:1", lend=ravi_otel.lend(tokens=10))
    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": None}
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(asgi.Carried(app)(scope, _nothing, send))
    assert sent == ["http.response.start", "http.response.body"][: ("before", "after the start", "in the body").index(when)]


def test_what_a_wsgi_app_raises_is_raised_on_wherever_it_is() -> None:
    def late() -> Iterator[bytes]:
        yield b"a"
        raise KeyError("mine")

    def early(environ: Any, start_response: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        wsgi.Carried(early)({}, lambda status, headers: None)
    body = wsgi.Carried(lambda environ, start: late())({}, lambda status, headers: None)
    with pytest.raises(KeyError, match="mine"):
        list(body)


def test_a_web_socket_is_a_run_and_a_lifespan_is_none() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen[scope["type"]] = facts()["session"]

    with ravi_otel.run("caller", session_id="s"):
        headers = [(name.encode(), value.encode()) for name, value in ravi_otel.outbound_headers("http://127.0.0.1:1").items()]

    async def served() -> None:
        for kind in ("websocket", "lifespan"):
            await asgi.Carried(app)({"type": kind, "headers": headers, "client": ("127.0.0.1", 1)}, _nothing, _nothing)

    asyncio.run(served())
    assert seen == {"websocket": "s", "lifespan": None}


def test_the_headers_of_a_stream_of_events_do_not_wait_for_the_first_one(server: ScriptedLLM) -> None:
    heard = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await asyncio.to_thread(heard.wait, 10)
        await send({"type": "http.response.body", "body": b"data: 1\n\n" if heard.is_set() else b"late"})

    with (
        over_asgi(asgi.Carried(app)) as url,
        ravi_otel.run("caller", limits=["tokens=2000"]),
        ravi_otel.lend(tokens=10),
        httpx.stream("GET", url, trust_env=False) as reply,
    ):
        heard.set()
        assert reply.read() == b"data: 1\n\n"


def test_wrong_limits_are_refused_where_they_are_written() -> None:
    for carried in (asgi.Carried, wsgi.Carried):
        with pytest.raises(ravi_otel.ConfigurationError, match="kind 'nonsense' is unknown"):
            carried(lambda *_: None, otherwise=["nonsense=1"])


async def _nothing(*_: Any) -> Any:
    return None
