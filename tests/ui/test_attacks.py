"""Attacks on the page's server by whoever reaches its port: bytes that are no request, and requests that no page sends."""

from __future__ import annotations

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from approval_desk import desk, requested
from fastapi import FastAPI
from live_actors import run, scope
from page_client import JSON, Client, raw
from page_stage import serving
from stored_runs import Shelf

from ravi_otel._ui.app import router
from ravi_otel._ui.safety import access
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor.approval._queue import seal_of


@pytest.fixture
def inside(served):
    client = Client(served)
    client.arrive()
    return client


# -- what is no request of a page ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1.:{port}", "localhost.:{port}", "127.1:{port}", "127.0.0.1:0{port}", "x@127.0.0.1:{port}", "127.0.0.1:{port}, evil"],
)
def test_a_host_written_in_another_way_is_none_of_ours(inside, served, host):
    assert inside("/api/now", host=[host.format(port=served.port)])[0] in {400, 421}


def test_a_host_is_one_of_ours_in_any_case_and_by_every_address_of_this_machine(inside, served):
    for host in (f"LocalHost:{served.port}", f"[::1]:{served.port}", f"127.0.0.1:{served.port}"):
        assert inside("/api/now", host=[host])[0] == 200


def test_a_target_with_a_host_of_its_own_reaches_nothing(inside, served):
    assert inside("http://evil.example/api/now")[0] == 404
    assert inside(f"http://127.0.0.1:{served.port}/api/now")[0] == 404
    assert inside("/api/now", x_forwarded_host="evil.example", forwarded="host=evil.example")[0] == 200


def test_what_is_no_http_is_answered_as_such_and_ends(served):
    host = f"Host: 127.0.0.1:{served.port}\r\n"
    for head in ("\x16\x03\x01\r\n", f"GET / HTTP/1.1\r\n{host}{host}", "GET / HTTP/1.1\r\n", f"GET /\xff HTTP/1.1\r\n{host}"):
        assert raw(served, head).startswith(b"HTTP/1.1 400 ")


def test_a_websocket_is_not_opened(inside, served):
    asked = {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_version": "13",
        "sec_websocket_key": "bm9uY2U=",
    }
    status, headers, _ = inside("/api/now", **asked)
    assert (status, headers["x-frame-options"]) == (200, "DENY")
    inside.cookie = None
    assert inside("/api/now", **asked)[0] == 401


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_in_the_same_browser_is_told_nothing_and_does_nothing(inside, site):
    assert inside("/api/session", sec_fetch_site=site)[0] == 403
    assert inside.change(sec_fetch_site=site)[0] == 403
    assert inside("/runs", sec_fetch_site=site)[0] == 200  # a link from there leads to the page
    assert inside("/api/session", sec_fetch_site="same-origin")[0] == 200


def test_a_method_that_a_header_asks_for_changes_nothing(inside, served):
    for name in ("x_http_method_override", "x_method_override"):
        assert inside("/api/commands", "GET", **{name: "POST"})[0] == 404
    assert inside("/", "HEAD")[0] == 200
    for method in ("PUT", "DELETE", "PATCH"):
        told = {"origin": served.origin, "x_ravi_token": inside.token(), **JSON}
        status, headers, text = inside("/api/commands", method, {}, **told)
        assert (status, text) == (405, "That cannot be asked for in this way.\n")
        assert "content-security-policy" in headers


def test_no_way_to_change_something_is_open_to_whoever_only_looks_or_has_no_token(tmp_path):
    with serving(tmp_path, read_only=True) as served:
        schema = FastAPI()
        schema.include_router(router)
        changes = [path for path, ways in schema.openapi()["paths"].items() if set(ways) - {"get"}]
        assert len(changes) >= 5
        looks, stranger = Client(served), Client(served)
        looks.arrive()
        for path in changes:
            told = {"origin": served.origin, "x_ravi_token": looks.token(), **JSON}
            assert looks(path, "POST", {}, **told)[::2] == (403, "This page only shows: it was started with --read-only.\n"), path
            assert stranger(path, "POST", {}, **told)[0] == (403 if path.startswith("/api/links/") else 401), path


def test_a_body_that_is_too_long_is_not_kept(inside, served):
    told = {"origin": served.origin, "x_ravi_token": inside.token(), **JSON}
    status, _, text = inside("/api/commands", "POST", "A" * 1_100_000, **told)
    assert (status, text) == (413, "What was sent is longer than 1,048,576 bytes.\n")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"process":"\xff"}', b'{"value":' + b"9" * 100_000 + b"}", b"", b"\0"])
def test_a_body_that_cannot_be_read_is_told_in_one_sentence(inside, served, body):
    head = f"POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {inside.cookie}\r\nOrigin: {served.origin}\r\n"
    head += f"X-Ravi-Token: {inside.token()}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    answer = raw(served, head, body)
    assert answer.split(b" ")[1] in {b"400", b"422"}
    assert answer.endswith(b"\r\n\r\nThat is not what is asked for here.\n")


def test_a_connection_that_asks_for_nothing_is_ended(served, monkeypatch):
    monkeypatch.setattr("ravi_otel._ui.app._HEAD_S", 0.05)
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert slow.recv(1) == b""


def test_a_body_that_does_not_come_is_waited_for_no_longer_than_it_may_take(inside, served, monkeypatch):
    monkeypatch.setattr("ravi_otel._ui.safety._BODY_S", 0.05)
    head = f"POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {inside.cookie}\r\nOrigin: {served.origin}\r\n"
    answer = raw(served, f"{head}X-Ravi-Token: {inside.token()}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n", b"{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.endswith(b"What was sent took too long.\n")


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["https://[", "https://x:99999", "https://x:0", "https://x/#a", "https://x y", "https://\u0445"])
def test_a_public_url_that_a_browser_reads_otherwise_is_refused(url):
    with pytest.raises(ConfigurationError, match="--public-url"):
        access(port=1, public_url=url)


def test_a_port_that_browsers_leave_out_may_be_left_out():
    behind = access(port=8411, public_url="https://Ravi.example.com:443/")
    assert {"ravi.example.com", "ravi.example.com:443"} <= behind.hosts
    assert "https://ravi.example.com" in behind.origins
    assert "http://ravi.example.com" not in behind.origins
    alone = access(port=80)
    assert {"127.0.0.1", "127.0.0.1:80"} <= alone.hosts
    assert "http://127.0.0.1" in alone.origins


def test_this_machine_has_more_than_one_name_and_none_of_them_needs_a_token_file():
    for host in ("localhost", "::1", "127.0.0.2"):
        assert access(port=1, host=host).host == host
    for host in ("", "0", "::", "::ffff:0.0.0.0", "192.0.2.1"):
        with pytest.raises(ConfigurationError, match="--token-file"):
            access(port=1, host=host)


def test_a_token_file_that_is_a_pipe_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ConfigurationError, match="no regular file"):
        access(port=1, token_file=tmp_path / "token")
    (tmp_path / "bytes").write_bytes(b"\xff" * 40)
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(ConfigurationError, match="no text"):
        access(port=1, token_file=tmp_path / "bytes")


def test_a_user_header_that_is_none_is_refused():
    for name in ("", "x user", "x:user", "x\r\nuser", "x\u00fcser"):
        with pytest.raises(ConfigurationError, match="--user-header"):
            access(port=1, user_header=name, trusted_proxies=["127.0.0.1"])


def test_a_name_of_a_proxy_is_one_line_and_told_once(tmp_path):
    with serving(tmp_path, user_header="x-user", trusted_proxies=["::ffff:127.0.0.1"]) as served:
        client = Client(served)
        client.arrive()
        told = f"GET /api/session HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {client.cookie}\r\n"

        def seen(*names: bytes) -> str | None:
            headers = "".join(f"X-User: {name.decode('latin-1')}\r\n" for name in names)
            return json.loads(raw(served, told + headers).partition(b"\r\n\r\n")[2])["user"]

        assert seen(b"anna") == "anna"
        assert seen("Åsa Öberg".encode()) == "Åsa Öberg"
        for names in ([b"anna", b"root"], [b""], [b"\xff\xfe"], ["a\u202eb".encode()], [b"a" * 201], ["a\u2028b".encode()]):
            assert seen(*names) is None, names


# -- links to one request -----------------------------------------------------------------------------------------


def linked(served, **arguments):
    """Have a request wait; returns it, and what the page has its link at."""
    asked = requested({"user_id": 42, **arguments}, requested_at=time.time(), expires_at=time.time() + 600)
    desk(served.queue, time.time).enter(asked, seal_of(asked))
    client = Client(served)
    client.arrive()
    link = json.loads(client(f"/api/approvals/{asked.id}")[2])["link"].rpartition("/a/")[2]
    return asked, f"/api/links/{link}"


def told_by_a_page(served):
    return {"origin": served.origin, **JSON}


def test_who_guesses_links_learns_neither_what_waits_nor_where(outside):
    stranger = Client(outside)
    none = stranger("/api/links/nobody~9~x")
    asked, _ = linked(outside)
    for guess in ("nobody~9~x", "~9~x", f"{asked.id}~9~x", f"{asked.id[:4]}~99999999999~{'0' * 64}", "%00~9~x"):
        assert stranger(f"/api/links/{guess}")[::2] == none[::2] == (400, none[2])
    assert str(outside.store) not in none[2]


def test_of_a_hundred_that_use_a_link_at_once_exactly_one_decides(outside):
    asked, path = linked(outside)
    seal = seal_of(asked)

    def decide(at: int) -> tuple[int, bool]:
        approved = at % 2 == 0
        return Client(outside)(path, "POST", {"seal": seal, "approved": approved}, **told_by_a_page(outside))[0], approved

    with ThreadPoolExecutor(20) as several:
        said = list(several.map(decide, range(100)))
    decided = [approved for status, approved in said if status == 200]
    assert len(decided) == 1
    assert {status for status, _ in said} == {200, 409}
    state = desk(outside.queue, time.time).find(asked.id).state
    assert state == ("approved" if decided[0] else "rejected")


def test_a_link_that_approved_takes_nothing_back(outside):
    asked, path = linked(outside)
    answer = {"seal": seal_of(asked), "approved": True}
    assert Client(outside)(path, "POST", answer, **told_by_a_page(outside))[0] == 200
    for more in ({}, {"takes_back": True}):
        status, _, text = Client(outside)(path, "POST", {**answer, "approved": False, **more}, **told_by_a_page(outside))
        assert (status, "was approved by" in text) == (409, True)
    assert desk(outside.queue, time.time).find(asked.id).state == "approved"


def test_a_tab_that_shows_a_waiting_request_takes_back_no_approval_of_another(inside, served):
    at = desk(served.queue, time.time)
    asked = requested(requested_at=time.time(), expires_at=time.time() + 600)
    at.enter(asked, seal_of(asked))
    path, answer = f"/api/approvals/{asked.id}", {"seal": seal_of(asked), "approved": True}
    assert inside.change(path, answer)[0] == 200
    assert inside.change(path, {**answer, "approved": False})[0] == 409
    assert at.find(asked.id).state == "approved"
    assert inside.change(path, {**answer, "approved": False, "takes_back": True})[0] == 200
    assert at.find(asked.id).state == "rejected"


def test_whoever_has_a_link_reaches_nothing_else_with_it(outside):
    asked, path = linked(outside)
    stranger, answer = Client(outside), {"seal": seal_of(asked), "approved": True}
    for other in (f"/api/approvals/{asked.id}", "/api/commands", "/api/links/../commands", "/assets/../api/commands", "/a/../api/now"):
        assert stranger(other, "POST", answer, **told_by_a_page(outside))[0] in {401, 404, 405}, other
    assert stranger(path, "POST", answer, **{**told_by_a_page(outside), "origin": "null"})[0] == 403
    assert stranger(path, "POST", answer, **JSON)[0] == 403
    assert stranger(path, "HEAD")[0] in {404, 405}
    assert desk(outside.queue, time.time).find(asked.id).state == "pending"


# -- the stream of events -----------------------------------------------------------------------------------------


class Stream:
    """Listen as a page does."""

    def __init__(self, served, cookie):
        self.connection = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        self.connection.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {cookie}\r\n\r\n".encode())
        self.lines = self.connection.makefile("rb")

    def next(self, event="now"):
        """Return what the next event of that kind says."""
        for line in self.lines:
            if line.strip() == f"event: {event}".encode():
                return next(self.lines).removeprefix(b"data: ").decode()
        raise EOFError

    def close(self):
        self.lines.close()
        self.connection.close()


def test_the_first_that_a_page_hears_names_every_program_that_runs(inside, served):
    for at in range(30):
        served.actor(run(f"r{at}"))
    stream = Stream(served, inside.cookie)
    told = json.loads(stream.next())
    stream.close()
    assert {row["run"] for row in told["rows"] if row["kind"] == "run"} == {f"r{at}" for at in range(30)}


def test_a_program_can_be_steered_at_once_when_a_page_has_begun_to_listen(inside, served):
    actor = served.actor(run("r1"))
    row = next(row for row in json.loads(inside("/api/now")[2])["rows"] if row["kind"] == "run")
    stream = Stream(served, inside.cookie)
    assert inside.change(body={"process": row["process"], "scope": "r1", "op": "cancel"})[0] == 200
    stream.close()
    assert [each["op"] for each in actor.heard] == ["cancel"]


def test_a_page_that_has_nothing_to_hear_is_told_that_somebody_is_there(inside, served, monkeypatch):
    monkeypatch.setattr("ravi_otel._ui.live._ALIVE_S", 0.01)
    stream = Stream(served, inside.cookie)
    stream.next()
    assert stream.next("alive").strip() == "-"
    stream.close()


def test_many_pages_that_listen_are_told_by_one_look(inside, served, monkeypatch):
    looked = []
    monkeypatch.setattr(served.desk.feed.__class__, "look", lambda feed: looked.append(feed) or [])
    streams = [Stream(served, inside.cookie) for _ in range(200)]
    began = time.monotonic()
    for each in streams:
        each.next()
    assert len(looked) <= 20 * (time.monotonic() - began + 2)
    for each in streams:
        each.close()
    assert inside("/api/session")[0] == 200


def test_a_server_that_ends_lets_its_pages_go_at_once_and_says_nothing(tmp_path, caplog):
    with serving(tmp_path) as served:
        client = Client(served)
        client.arrive()
        streams = [Stream(served, client.cookie) for _ in range(5)]
        for each in streams:
            each.next()
    for each in streams:
        with pytest.raises(EOFError):
            each.next()
        each.close()
    assert caplog.records == []


# -- text that nobody should have written -------------------------------------------------------------------------

HALF = "\ud800"


def test_half_a_character_of_a_model_takes_nothing_of_the_page_away(inside, served):
    served.actor(replace(run("r1", scope(f"s{HALF}", "r1", name=HALF)), name=HALF, user=HALF, run_id=f"r{HALF}"))
    assert "r?" in inside("/api/now")[2]
    assert inside("/api/limits")[0] == 200
    shelf = Shelf(served.store)
    stored = shelf.run("r2", tags={HALF: HALF})
    call = shelf.call(stored, (100, 20), 0.1)
    shelf.put("messages", id=901, run=stored, data={"role": HALF, "parts": [{"type": "text", "content": f"said {HALF}"}, HALF, None]})
    shelf.put("content", item=call, run=stored, kind="call", messages=[901], data={"output": []})
    tool = shelf.tool(stored, "search")
    shelf.put("content", item=tool, run=stored, kind="tool", messages=[], data={"arguments": {HALF: HALF}, "result": HALF})
    for path in ("/api/runs", "/api/runs/r2", f"/api/calls/{tool}", "/api/export/r2", "/api/compare?a=r2&b=r2", "/api/find?text=r2"):
        assert inside(path)[0] == 200, path
    assert json.loads(inside(f"/api/calls/{call}")[2])["messages"][0]["parts"][0][1] == "said ?"


def test_a_directory_whose_name_is_no_text_is_shown_all_the_same(tmp_path):
    with serving(tmp_path / "a\udcff\u202eb") as served:
        client = Client(served)
        client.arrive()
        assert json.loads(client("/api/session")[2])["store"] == f"{tmp_path}/ab/.ravi"
        for path in ("/api/approvals", "/api/audit", "/api/runs"):
            assert client(path)[0] in {200, 400}, path
