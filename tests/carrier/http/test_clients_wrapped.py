"""The wrappers of HTTP clients change nothing but the baggage, show nothing of it to the program, and go as they came."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpcore
import httpcore2
import httpx
import httpx2
import pytest
import requests
from http_stacks import STACKS, Ask
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from wire_recorder import Recorder

import ravi_otel
from ravi_otel.carrier._configuration import configuration
from ravi_otel.carrier._token import read_token, tokens_of

PLACES: list[tuple[type, str]] = [
    *((getattr(library, name), "handle_request") for library in (httpcore, httpcore2) for name in ("HTTP11Connection", "HTTP2Connection")),
    *(
        (getattr(library, name), "handle_async_request")
        for library in (httpcore, httpcore2)
        for name in ("AsyncHTTP11Connection", "AsyncHTTP2Connection")
    ),
    (http.client.HTTPConnection, "endheaders"),
    (http.client.HTTPConnection, "send"),
    (http.client.HTTPConnection, "getresponse"),
    (aiohttp.ClientRequest, "send"),
    (aiohttp.ClientResponse, "start"),
]
BEFORE = [vars(owner).get(name) for owner, name in PLACES]


@pytest.fixture
def told(elsewhere: Recorder) -> Iterator[Recorder]:
    """Give back what was wrapped after a test that looks at it itself."""
    yield elsewhere
    ravi_otel.uninstrument()


def now() -> list[Any]:
    return [vars(owner).get(name) for owner, name in PLACES]


def test_the_identical_methods_are_back_afterwards() -> None:
    ravi_otel.instrument()
    assert all(after is not before for before, after in zip(BEFORE, now(), strict=True) if before is not None)
    ravi_otel.uninstrument()
    assert all(after is before for before, after in zip(BEFORE, now(), strict=True))


def test_wrapped_twice_is_wrapped_once() -> None:
    ravi_otel.instrument()
    first = now()
    ravi_otel.instrument(footers=True)
    assert all(after is before for before, after in zip(first, now(), strict=True))


def test_what_stays_beneath_others_does_nothing_after_we_left(ask: Ask, listed: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    ravi_otel.instrument()
    held = now()  # as somebody holds them who wrapped over us
    ravi_otel.uninstrument()
    for (owner, name), ours in zip(PLACES, held, strict=True):
        if ours is not None:
            monkeypatch.setattr(owner, name, ours)
    with ravi_otel.run("r"):
        ask(listed.url, {"baggage": "ravi.mine=1"})
    assert listed.headers("baggage") == ["ravi.mine=1"]


def test_without_anything_of_ours_the_very_same_bytes_are_sent(ask: Ask, told: Recorder) -> None:
    headers = {"Baggage": "b = 2;x , a=1", "traceparent": "00-odd"}
    ask(told.url, headers)
    ravi_otel.instrument()
    with ravi_otel.run("r"):
        ask(told.url, headers)
    assert told.heads[0] == told.heads[1]


def test_a_listed_host_gets_one_entry_of_ours_behind_those_of_others(ask: Ask, listed: Recorder) -> None:
    ravi_otel.instrument()
    with ravi_otel.run("r"):
        ask(listed.url, {"baggage": "team=blue, ravi.carry=forged"})
    (sent,) = listed.headers("baggage")
    assert sent.startswith("team=blue,ravi.carry=")
    assert sent.count("ravi.") == 1
    assert "forged" not in sent


def test_a_listed_host_goes_on_with_the_trace(ask: Ask, listed: Recorder) -> None:
    tracer = TracerProvider().get_tracer("t")
    ravi_otel.instrument()
    with tracer.start_as_current_span("here") as span, ravi_otel.run("r"):
        ask(listed.url, {})
    (sent,) = listed.headers("traceparent")
    assert sent.split("-")[1] == trace.format_trace_id(span.get_span_context().trace_id)


def test_a_trace_that_others_carry_on_is_left_to_them(ask: Ask, listed: Recorder) -> None:
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    ravi_otel.instrument()
    with ravi_otel.run("r"):
        ask(listed.url, {"traceparent": theirs})
    assert listed.headers("traceparent") == [theirs]


def test_the_programs_own_objects_show_nothing_of_it(listed: Recorder) -> None:
    mine = {"baggage": "team=blue"}

    async def later() -> Any:
        async with aiohttp.ClientSession() as session, session.get(listed.url, headers=mine) as reply:
            return reply.request_info.headers

    ravi_otel.instrument()
    with ravi_otel.run("r"):
        shown = [
            httpx.get(listed.url, headers=mine, trust_env=False).request.headers,
            requests.get(listed.url, headers=mine, timeout=10).request.headers,
            asyncio.run(later()),
        ]
    assert [headers["baggage"] for headers in shown] == ["team=blue"] * 3
    assert [len(listed.headers("baggage", at)) for at in range(3)] == [1] * 3
    assert all("ravi" in listed.headers("baggage", at)[0] for at in range(3))
    assert mine == {"baggage": "team=blue"}


def test_an_answer_that_gives_nonsense_back_is_an_answer(ask: Ask, listed: Recorder) -> None:
    ravi_otel.instrument()
    listed.tell(b"ravi-spent: \xff\xfe not what we write")
    with ravi_otel.run("r"):
        assert ask(listed.url, {})["content-length"] == "2"


def test_clients_are_imported_by_nobody_but_the_program() -> None:
    program = "import sys, ravi_otel; ravi_otel.instrument(); print([m for m in ('aiohttp', 'requests', 'urllib3') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_what_the_program_imports_later_is_wrapped_then() -> None:
    program = (
        "import ravi_otel; ravi_otel.instrument(); import aiohttp; sends = lambda: aiohttp.ClientRequest.__dict__['send'];"
        "print(hasattr(sends(), '__wrapped__')); ravi_otel.uninstrument(); print(hasattr(sends(), '__wrapped__'))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_connection_that_is_not_free_after_all_costs_no_loan(
    library: Any, colour: str, listed: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    beneath = httpcore if library is httpx else httpcore2
    owner, name = (beneath.HTTP11Connection, PLACES[0][1]) if colour == "sync" else (beneath.AsyncHTTP11Connection, PLACES[4][1])
    original, turned_away = vars(owner)[name], []

    def busy(connection: Any, request: Any) -> Any:
        if not turned_away:
            turned_away.append(request)
            raise beneath.ConnectionNotAvailable
        return original(connection, request)

    monkeypatch.setattr(owner, name, busy)
    ravi_otel.instrument()
    with ravi_otel.run("r", limits=["tokens=100"]), ravi_otel.lend(tokens=10):
        STACKS[library.__name__ + (" async" if colour == "async" else "")](listed.url, {})
    ravi_otel.uninstrument()
    assert len(turned_away) == len(listed.heads) == 1
    (sent,) = listed.headers("baggage")
    token = read_token(tokens_of(sent)[0], configuration().keys, trusted=False)
    assert token.loan is not None
    assert token.loan.amounts == {"tokens": 10}


def test_what_stands_in_for_a_connection_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some test libraries put classes of their own there, without what a real one has."""
    monkeypatch.delenv("RAVI_RAISE_BUGS")

    class Bare(http.client.HTTPConnection):
        def __init__(self) -> None:
            """Have nothing."""

    ravi_otel.instrument()
    for call in (lambda: Bare().endheaders(), lambda: Bare().getresponse()):
        with pytest.raises(AttributeError, match="_HTTPConnection__"):  # as without us
            call()
