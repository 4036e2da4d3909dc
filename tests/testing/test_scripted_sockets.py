"""Talk to `ScriptedSocket` with a plain WebSocket client: what it answers, keeps, pushes, closes and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ravi_otel.errors import ConfigurationError
from ravi_otel.testing import Close, Incoming, ScriptedSocket, realtime_events, responses_events


def _talk(server: ScriptedSocket, path: str = "/realtime?model=m", **options: Any) -> Any:
    return connect(server.base_url.replace("http://", "ws://") + path, **options)


def test_it_answers_each_message_by_its_script() -> None:
    def script(message: Incoming) -> Any:
        yield {"number": message.index, "type": message.event.get("type")}
        yield "plain"
        yield b"\x00\xff"

    with ScriptedSocket(script) as server, _talk(server) as client:
        client.send(json.dumps({"type": "first"}))
        assert [json.loads(client.recv()), client.recv(), client.recv()] == [{"number": 0, "type": "first"}, "plain", b"\x00\xff"]
        client.send("no JSON")
        assert json.loads(client.recv()) == {"number": 1, "type": None}


def test_it_greets_every_connection() -> None:
    with ScriptedSocket(greeting=[{"type": "session.created"}]) as server:
        for _ in range(2):
            with _talk(server) as client:
                assert json.loads(client.recv()) == {"type": "session.created"}


def test_it_keeps_what_came_with_its_connection_path_and_place() -> None:
    with ScriptedSocket() as server:
        with _talk(server, "/realtime?model=a") as first, _talk(server, "/responses") as second:
            first.send('{"type": "one"}')
            server.wait_for(1)
            second.send(b"[1]")
            server.wait_for(2)
            first.send("three")
            server.wait_for(3)
        kept = [(one.connection, one.index, one.path, dict(one.event), one.raw) for one in server.received]
    assert kept == [
        (0, 0, "/v1/realtime?model=a", {"type": "one"}, '{"type": "one"}'),
        (1, 0, "/v1/responses", {}, b"[1]"),
        (0, 1, "/v1/realtime?model=a", {}, "three"),
    ]
    assert server.paths == ("/v1/realtime?model=a", "/v1/responses")


def test_it_keeps_the_headers_of_each_connection() -> None:
    with ScriptedSocket() as server, _talk(server, additional_headers={"X-Mine": "7"}):
        assert {key.lower(): value for key, value in server.headers[0].items()}["x-mine"] == "7"


def test_it_pushes_to_everybody_who_is_connected() -> None:
    with ScriptedSocket(greeting=["hello"]) as server, _talk(server) as first, _talk(server) as second:
        assert (first.recv(), second.recv()) == ("hello", "hello")
        server.push({"type": "news"}, "more")
        assert [json.loads(client.recv())["type"] for client in (first, second)] == ["news", "news"]
        assert (first.recv(), second.recv()) == ("more", "more")


def test_it_closes_with_the_code_and_reason_of_its_script() -> None:
    with ScriptedSocket(lambda _: [Close(4001, "enough")]) as server, _talk(server) as client:
        client.send("go")
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "enough")


def test_it_cuts_a_connection_without_a_word() -> None:
    with ScriptedSocket(lambda _: [Close(abort=True)]) as server, _talk(server) as client:
        client.send("go")
        with pytest.raises(ConnectionClosed) as closed:
            client.recv()
    assert closed.value.rcvd is None


def test_it_refuses_connections_with_a_status() -> None:
    with ScriptedSocket(refuse=429) as server:
        with pytest.raises(InvalidStatus) as refused:
            _talk(server)
        assert (refused.value.response.status_code, len(server.paths), server.received) == (429, 1, ())


def test_waiting_for_what_does_not_come_says_how_many_did() -> None:
    with ScriptedSocket() as server, pytest.raises(TimeoutError, match=r"0 of 1 messages came within timeout_s=0\.01"):
        server.wait_for(1, timeout_s=0.01)


def test_it_has_no_address_before_it_starts_and_starts_once() -> None:
    server = ScriptedSocket()
    with pytest.raises(ConfigurationError, match="before it is started"):
        _ = server.base_url
    with server, pytest.raises(ConfigurationError, match="called twice"):
        server.start()


def test_stopping_cuts_what_is_open_and_keeps_what_came() -> None:
    server = ScriptedSocket().start()
    with _talk(server) as client:
        client.send("one")
        server.wait_for(1)
        server.stop()
        with pytest.raises(ConnectionClosed):
            client.recv()
    server.push("nobody hears this")
    assert [one.raw for one in server.received] == ["one"]


@pytest.mark.parametrize(("write", "details"), [(realtime_events, "output_token_details"), (responses_events, "output_tokens_details")])
def test_the_ready_answers_say_it_word_by_word_and_end_with_usage(write: Any, details: str) -> None:
    first, *deltas, last = write("One two three", response_id="resp_7", usage=(5, 3))
    assert (first["type"], first["response"]["id"]) == ("response.created", "resp_7")
    assert [delta["delta"] for delta in deltas] == ["One ", "two ", "three"]
    usage = last["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (5, 3, 8)
    assert details in usage
