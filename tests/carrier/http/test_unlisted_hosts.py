"""Nothing of ours leaves for a host that is not listed, whoever put it on the request and in whatever order they came."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import threading

import httpx
import openai
import pytest
import requests
import urllib3
from http_stacks import Ask, others
from wire_recorder import Recorder

import ravi_otel
from ravi_otel.testing import ScriptedLLM, Text

OURS = re.compile(rb"ravi|spent|traceparent", re.IGNORECASE)
MIXED = "team=blue,ravi.carry=abc;p=1,%72avi.other=2, RAVI.x = 3,user=7"


@pytest.fixture(autouse=True)
def _instrumented() -> None:
    ravi_otel.instrument()


def nothing_of_ours(recorder: Recorder) -> bool:
    return len(recorder.heads) > 0 and not any(OURS.search(head) for head in recorder.heads)


def test_an_unlisted_host_gets_others_entries_and_none_of_ours(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    with ravi_otel.run("r"):
        ask(elsewhere.url, {"baggage": MIXED})
    assert nothing_of_ours(elsewhere)
    assert elsewhere.headers("baggage") == ["team=blue,user=7"]


def test_a_header_of_nothing_but_ours_goes_as_a_whole(ask: Ask, elsewhere: Recorder) -> None:
    ask(elsewhere.url, {"baggage": "ravi.carry=abc"})
    assert elsewhere.headers("baggage") == []


def test_headers_that_older_propagators_make_of_each_entry_go_too(ask: Ask, elsewhere: Recorder) -> None:
    ask(elsewhere.url, {"uberctx-ravi.carry": "abc", "ot-baggage-ravi.carry": "abc", "uberctx-team": "blue"})
    assert nothing_of_ours(elsewhere)
    assert elsewhere.headers("uberctx-team") == ["blue"]


@pytest.mark.parametrize("order", ["they first", "they later"])
def test_another_instrumentation_carries_on_its_own_and_nothing_of_ours(
    ask: Ask, order: str, listed: Recorder, elsewhere: Recorder
) -> None:
    ravi_otel.uninstrument()
    with contextlib.ExitStack() as stack:
        for begin in (lambda: stack.enter_context(others(MIXED)), ravi_otel.instrument)[:: 1 if order == "they first" else -1]:
            begin()
        with ravi_otel.run("r"):
            ask(elsewhere.url, {})
            ask(listed.url, {})
    assert nothing_of_ours(elsewhere)
    assert elsewhere.headers("baggage") == ["team=blue,user=7"]
    (carried,) = listed.headers("baggage")
    assert carried.startswith("team=blue,user=7,ravi.carry=")
    assert "abc" not in carried


def test_a_redirect_to_an_unlisted_host_leaves_ours_behind(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    listed.redirect(elsewhere.url)
    with ravi_otel.run("r"):
        ask(listed.url, {})
    assert len(listed.headers("baggage")) == 1
    assert nothing_of_ours(elsewhere)


def test_a_redirect_to_a_listed_host_gets_its_own(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    elsewhere.redirect(listed.url)
    with ravi_otel.run("r"):
        ask(elsewhere.url, {})
    assert nothing_of_ours(elsewhere)
    assert len(listed.headers("baggage")) == 1


def test_what_is_carried_does_not_follow_a_redirect_by_hand(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    listed.redirect(elsewhere.url)
    with ravi_otel.run("r"):
        ask(listed.url, ravi_otel.outbound_headers(listed.url))
    assert nothing_of_ours(elsewhere)


def test_a_proxy_that_reads_along_must_be_listed_too(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    with ravi_otel.run("r"):
        ask(listed.url, {}, elsewhere.url)  # which answers by itself
    assert elsewhere.heads[0].startswith(b"GET " + listed.url.encode())
    assert nothing_of_ours(elsewhere)


def test_a_listed_proxy_hands_on_nothing_to_a_host_that_is_not(ask: Ask, listed: Recorder, elsewhere: Recorder) -> None:
    with ravi_otel.run("r"):
        ask(elsewhere.url, {"baggage": "ravi.carry=abc"}, listed.url)
    assert nothing_of_ours(listed)


def test_a_request_for_a_tunnel_carries_nothing(listed: Recorder, elsewhere: Recorder) -> None:
    elsewhere.answers = [b"HTTP/1.1 407 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"] * 3
    secure = listed.url.replace("http:", "https:")

    async def later() -> None:
        async with httpx.AsyncClient(proxy=elsewhere.url, trust_env=False) as client:
            await client.get(secure)

    with ravi_otel.run("r"):
        with pytest.raises(httpx.ProxyError), httpx.Client(proxy=elsewhere.url, trust_env=False) as client:
            client.get(secure)
        with pytest.raises(httpx.ProxyError):
            asyncio.run(later())
        with pytest.raises(requests.exceptions.ProxyError):
            requests.get(secure, proxies={"https": elsewhere.url}, timeout=10)
    assert [head[:7] for head in elsewhere.heads] == [b"CONNECT"] * 3
    assert nothing_of_ours(elsewhere)


def test_through_a_tunnel_it_is_the_far_end_that_counts(listed: Recorder, elsewhere: Recorder) -> None:
    def opened(first: bytes) -> tuple[str, bytes]:
        """Be a proxy that opens a tunnel to nowhere, and keep what is sent through it."""
        server = socket.create_server(("127.0.0.1", 0))
        seen: list[bytes] = []

        def serve() -> None:
            with server, server.accept()[0] as connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                seen.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 204 No\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=10)
        host, port = first.decode().split(":")
        connection.set_tunnel(host, int(port))
        connection.request("GET", "/", headers={"baggage": "team=blue,ravi.carry=abc"})
        connection.getresponse().read()
        connection.close()
        thread.join()
        return host, seen[0]

    with ravi_otel.run("r"):
        assert not OURS.search(opened(elsewhere.host.encode())[1])
        assert b"ravi.carry=" in opened(listed.host.encode())[1]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_call_to_a_model_never_carries_it_even_where_its_host_is_listed(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedLLM(lambda request: Text("hello")) as server:
        monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:a secret that is long enough")
        monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
        with ravi_otel.run("r"), others("team=blue,ravi.carry=abc"):
            if colour == "sync":
                openai.OpenAI(base_url=server.base_url, api_key="k").responses.create(model="gpt-4o-mini", input="x")
            else:

                async def later() -> None:
                    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
                        await client.responses.create(model="gpt-4o-mini", input="x")

                asyncio.run(later())
        headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert headers["baggage"] == "team=blue"
    assert "traceparent" not in headers


def test_a_call_to_a_model_around_our_wrapper_carries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ravi_otel.uninstrument()
    original = openai.OpenAI.request  # somebody who wrapped the client before us holds it like this
    ravi_otel.instrument()
    with ScriptedLLM(lambda request: Text("hello")) as server, ravi_otel.run("r") as run:
        monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:a secret that is long enough")
        monkeypatch.setenv("RAVI_CARRY_TO", "127.0.0.1")
        client = openai.OpenAI(base_url=server.base_url, api_key="k")
        monkeypatch.setattr(openai.OpenAI, "request", original, raising=False)
        client.responses.create(model="gpt-4o-mini", input="x")
        assert run.stats().requests == 1
        assert not any("ravi" in value for value in server.requests[0].headers.values())


def test_a_bug_of_ours_lets_nothing_through(ask: Ask, listed: Recorder, elsewhere: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAVI_RAISE_BUGS")
    monkeypatch.setattr("ravi_otel.carrier._clients.is_listed", lambda *_: 1 / 0)
    ask(elsewhere.url, {"baggage": MIXED})
    assert nothing_of_ours(elsewhere)


def test_without_a_list_nobody_gets_anything(ask: Ask, elsewhere: Recorder) -> None:
    with ravi_otel.run("r"):
        ask(elsewhere.url, {})
    assert nothing_of_ours(elsewhere)
    assert elsewhere.headers("baggage") == []


def test_urllib3_retries_leave_nothing_on_the_way(listed: Recorder, elsewhere: Recorder) -> None:
    listed.answers.append(b"")  # hangs up
    with ravi_otel.run("r"), urllib3.PoolManager() as pool:
        pool.request("GET", listed.url, retries=urllib3.Retry(connect=0, read=2, redirect=2), headers={"baggage": "team=blue"})
    assert [head.count(b"ravi.carry=") for head in listed.heads] == [1, 1]
