"""What we send ourselves over HTTP is bounded, goes nowhere else, and is nobody's trace."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from opentelemetry import context as otel_context

from ravi_otel._http import UnansweredError, send


@contextmanager
def server(*pieces: bytes, pause_s: float = 0.0) -> Generator[tuple[str, list[bytes]]]:
    """Answer one request with these pieces, one after another; give its URL, and what it was asked."""
    asked: list[bytes] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            try:
                taken, _ = listening.accept()
            except OSError:
                return
            with taken:
                asked.append(taken.recv(65_536))
                for piece in pieces:
                    if over.wait(pause_s):
                        return
                    try:
                        taken.sendall(piece)
                    except OSError:
                        return

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)  # which wakes who waits in accept
            thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def test_an_answer_of_whatever_status_is_given_as_it_is():
    for status in (200, 204, 404, 503):
        said = f"HTTP/1.1 {status} x\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n".encode()
        with server(said) as (url, _):
            answer = send(url, timeout_s=5, most_bytes=10)
        assert (answer.status, answer.headers["retry-after"], answer.body, answer.whole) == (status, "3", b"", True)


def to(status: int, place: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_an_answer_and_nobody_named_there_gets_anything(status):
    with server(OK) as (elsewhere, asked_there), server(to(status, elsewhere)) as (url, asked):
        answer = send(url, b"body", headers={"authorization": "secret"}, timeout_s=5, most_bytes=10)
    assert (answer.status, asked_there) == (status, [])
    assert b"secret" in asked[0]


def test_a_body_is_read_up_to_so_many_bytes():
    with server(OK) as (url, _):
        answer = send(url, timeout_s=5, most_bytes=4)
    assert (answer.body, answer.whole) == (b"hell", False)
    with server(OK) as (url, _):
        assert send(url, timeout_s=5, most_bytes=5).whole


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"])
def test_a_server_that_drips_is_left_when_time_is_over(head):
    pieces = [head, *[b"x"] * 500] if head else [b"H"] * 500
    began = time.monotonic()
    with server(*pieces, pause_s=0.02) as (url, _), pytest.raises(UnansweredError, match=r"^no answer within 0\.4 s$"):
        send(url, timeout_s=0.3, whole_s=0.4, most_bytes=10_000)
    assert time.monotonic() - began < 5


def test_a_server_that_says_nothing_is_not_waited_for():
    with server(b"x", pause_s=30) as (url, _), pytest.raises(UnansweredError, match=r"^no answer within 0\.2 s$"):
        send(url, timeout_s=0.2, whole_s=5, most_bytes=10)


def test_what_nobody_answers_is_said_in_a_clause():
    with server(b"what?\x1b[31m\r\n\r\n") as (url, _), pytest.raises(UnansweredError, match=r"no HTTP$"):
        send(url, timeout_s=5, most_bytes=10)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnansweredError, match=r"^nothing listens there$"):
            send(f"http://127.0.0.1:{taken.getsockname()[1]}", timeout_s=5, most_bytes=10)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "nothing", "http://"])
def test_only_http_is_spoken(url):
    with pytest.raises(UnansweredError):
        send(url, timeout_s=1, most_bytes=10)


def test_a_header_that_is_none_is_not_shown():
    with server(OK) as (url, _), pytest.raises(UnansweredError) as caught:
        send(url, headers={"authorization": "secret\nx: y"}, timeout_s=1, most_bytes=10)
    assert caught.value.invalid
    assert "secret" not in str(caught.value)


def test_proxies_of_the_environment_are_asked_unless_it_goes_direct(monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with server(OK) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        assert send("http://elsewhere.invalid/x", timeout_s=5, most_bytes=10).body == b"hello"
    assert asked[0].startswith(b"GET http://elsewhere.invalid/x ")
    with server(OK) as (url, asked):
        assert send(f"{url}/y", timeout_s=5, most_bytes=10, direct=True).body == b"hello"
    assert asked[0].startswith(b"GET /y ")


def test_nobody_who_instruments_clients_sees_it(monkeypatch):
    seen: list[object] = []
    connect = socket.create_connection

    def looking(*args: object, **kwargs: object) -> socket.socket:
        seen.append(dict(otel_context.get_current()))
        return connect(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", looking)
    before = otel_context.get_current()
    token = otel_context.attach(otel_context.set_value("baggage", "ours"))
    try:
        with server(OK) as (url, _):
            send(url, timeout_s=5, most_bytes=10)
    finally:
        otel_context.detach(token)
    assert otel_context.get_current() == before
    assert seen
    assert seen[0].get("suppress_instrumentation") is True
    assert "baggage" not in seen[0]
