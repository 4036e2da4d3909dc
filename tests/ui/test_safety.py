"""Each way in that is not meant to be one, tried over real HTTP."""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.parse
from pathlib import Path

import pytest
from approval_desk import desk, requested
from click.testing import CliRunner
from live_actors import run
from page_client import JSON, Client
from page_stage import serving

from ravi_otel._cli.entry import commands
from ravi_otel._ui.safety import access
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor.approval._queue import current_login, seal_of


@pytest.fixture
def client(served):
    return Client(served)


@pytest.fixture
def inside(client):
    client.arrive()
    return client


def test_it_listens_on_this_machine_alone_unless_a_token_is_kept(tmp_path):
    known = access(port=1)
    assert known.host == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"needs --token-file.*proxy with sign-in"):
        access(port=1, host="0.0.0.0")
    assert len({access(port=1).token for _ in range(8)}) == 8
    assert len(known.token) >= 40


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("short", 0o600, "at least 16"),
        ("a" * 20, 0o644, "others than its owner"),
        ("é" * 20, 0o600, "ASCII"),
        (None, 0, "cannot be read.*[Ww]rite a token of at least 16"),
    ],
    ids=["short", "readable", "letters", "missing"],
)
def test_a_token_file_that_others_could_know_is_refused(tmp_path, content, mode, why):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigurationError, match=why):
        access(port=1, host="0.0.0.0", token_file=path)
    path.unlink(missing_ok=True)
    path.write_text(" 0123456789abcdef\n")
    path.chmod(0o600)
    assert access(port=1, host="0.0.0.0", token_file=path).token == "0123456789abcdef"


def test_nothing_is_shown_without_the_token(client):
    for path in (
        "/",
        "/approvals",
        "/api/now",
        "/api/session",
        "/api/events",
        "/api/approvals",
        "/openapi.json",
        "/docs",
    ):
        status, headers, text = client(path)
        assert (status, "set-cookie" in headers) == (401, False), path
        assert text == "This page needs the URL that `ravi-otel ui` printed when it started, with its token: open that one.\n"


@pytest.mark.parametrize("token", ["wrong", "", "%00", "%ff%fe", "a" * 5000])
def test_a_wrong_token_is_refused_in_one_sentence(client, token):
    status, headers, text = client(f"/?token={token}")
    assert (status, "set-cookie" in headers, text.count("\n")) == (403, False, 1)


def test_two_tokens_are_none(client, served):
    assert client(f"/?token={served.access.token}&token=wrong")[0] == 403


def test_the_token_becomes_a_cookie_that_no_script_reads_and_that_is_of_its_port(client, served):
    headers = client.arrive()
    name, _, rest = headers["set-cookie"].partition("=")
    assert name == f"ravi_ui_{served.port}"
    assert {each.strip().lower() for each in rest.split(";")[1:]} == {"httponly", "path=/", "samesite=lax"}
    assert served.access.token not in headers["set-cookie"] + headers["location"]
    assert client("/")[0] == 200


def test_the_token_leaves_the_address_and_the_rest_of_it_stays(client, served):
    status, headers, _ = client(f"/audit?run=r1&token={served.access.token}&what=approved")
    assert (status, headers["location"]) == (303, "/audit?run=r1&what=approved")


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example", "/%2F/evil.example"])
def test_no_address_leads_to_another_site(client, served, path):
    status, headers, _ = client(f"{path}?token={served.access.token}")
    went = urllib.parse.urljoin("http://127.0.0.1/", headers["location"].replace("\\", "/"))
    assert (status, urllib.parse.urlsplit(went).netloc) == (303, "127.0.0.1")


def test_a_cookie_of_another_page_or_a_guess_opens_nothing(client, served):
    client.arrive()
    name, _, value = client.cookie.partition("=")
    near = value[:-1] + ("0" if value[-1] != "0" else "1")
    for cookie in (f"{name}={near}", f"ravi_ui_1={value}", f"{name}={served.access.token}", f"{name}=", f"{name}={'é' * 9}"):
        client.cookie = cookie.encode().decode("latin-1")
        assert client("/api/now")[0] == 401


@pytest.mark.parametrize(
    "host",
    [["evil.example"], ["evil.example:{port}"], ["127.0.0.1"], [], ["127.0.0.1:{port}", "evil.example"], ["127.0.0.1:1"]],
    ids=["name", "name and port", "no port", "none", "two", "other port"],
)
def test_a_host_that_is_none_of_ours_is_refused_which_ends_dns_rebinding(inside, served, host):
    named = [each.format(port=served.port) for each in host]
    assert inside("/api/now", host=named)[0] in {400, 421}
    assert inside("/api/now", host=[f"localhost:{served.port}"])[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": None},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},
        {"x_ravi_token": None},
        {"x_ravi_token": ""},
        {"x_ravi_token": "wrong"},
    ],
    ids=str,
)
def test_a_change_without_the_origin_and_the_token_of_the_page_is_refused(inside, served, headers):
    actor = served.actor(run("r1"))
    assert inside.change(**headers)[0] == 403
    assert actor.heard == []


def test_a_change_that_is_no_json_is_refused_so_that_no_form_sends_one(inside):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert inside.change(**{"content_type": kind, "content-type": kind})[0] == 415


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PROPFIND"])
def test_any_other_method_is_judged_as_a_change(inside, method):
    assert inside("/api/now", method, origin="http://evil.example")[0] == 403


def test_the_token_of_changes_is_neither_the_cookie_nor_the_url(inside, served):
    assert len({inside.token(), served.access.token, inside.cookie.partition("=")[2]}) == 3


def test_every_answer_says_what_a_browser_may_load_and_that_nobody_keeps_it(inside):
    for path in ("/", "/api/now", "/assets/app.js", "/nowhere", "/api/nothing", "/?token=wrong"):
        _, headers, _ = inside(path)
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[each] for each in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert "unsafe" not in headers["content-security-policy"]
        assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'",) * 3
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in {"no-store", "no-cache"}
        assert "server" not in headers


def test_the_page_itself_has_no_script_or_style_in_its_text(inside):
    text = inside("/")[2]
    assert "<script>" not in text
    assert " style=" not in text
    assert "onload" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../_safety.py",
        "/assets/..%2f_safety.py",
        "/assets/%2e%2e/_safety.py",
        "/assets//etc/passwd",
        "/assets/%00",
        "/assets/app.js/..",
        "/api/../../etc/passwd",
        "/api/approvals/..%2f..%2fetc%2fpasswd",
        "/api/audit?run=../../etc/passwd",
    ],
)
def test_no_url_leads_to_a_file(inside, path):
    status, _, text = inside(path)
    assert "root:" not in text
    assert "derived" not in text
    assert status in {200, 400, 404}
    if status == 200:
        assert path.startswith("/api/audit")


def test_read_only_shows_and_changes_nothing(tmp_path):
    with serving(tmp_path, read_only=True) as served:
        client = Client(served)
        client.arrive()
        at = desk(served.queue)
        asked = requested(expires_s=None)
        at.enter(asked, seal_of(asked))
        assert json.loads(client("/api/session")[2])["read_only"] is True
        status, _, text = client.change(f"/api/approvals/{asked.id}", {"seal": seal_of(asked), "approved": True})
        assert (status, text) == (403, "This page only shows: it was started with --read-only.\n")
        assert at.find(asked.id).state == "pending"


def test_who_decides_is_the_user_of_the_system_whatever_a_header_says(inside):
    assert json.loads(inside("/api/session", x_forwarded_user="root2", remote_user="root2")[2])["user"] == current_login()


def test_a_proxys_header_is_believed_from_the_proxy_alone(tmp_path):
    with pytest.raises(ConfigurationError, match="--trusted-proxy"):
        access(port=1, user_header="x-user")
    with serving(tmp_path / "a", user_header="x-user", trusted_proxies=["127.0.0.1"]) as served:
        client = Client(served)
        client.arrive()
        assert json.loads(client("/api/session", x_user="anna")[2])["user"] == "anna"
        assert client.change(x_user="anna")[0] == 409  # nothing of that name is open
        assert client.change()[0] == 403
        assert client.change(x_user="")[0] == 403
    with serving(tmp_path / "b", user_header="x-user", trusted_proxies=["192.0.2.1"]) as served:
        client = Client(served)
        client.arrive()
        assert json.loads(client("/api/session", x_user="anna")[2])["user"] is None
        assert client.change(x_user="anna")[0] == 403


def test_behind_a_proxy_its_name_and_origin_are_ours_and_the_cookie_is_for_tls_alone(tmp_path):
    with serving(tmp_path, public_url="https://ravi.example.com") as served:
        client = Client(served)
        _, headers, _ = client(f"/?token={served.access.token}", host=["ravi.example.com"])
        assert "secure" in headers["set-cookie"].lower()
        client.cookie = headers["set-cookie"].partition(";")[0]
        assert client("/api/now", host=["ravi.example.com"])[0] == 200
        assert client.change(origin="https://ravi.example.com")[0] == 409
        assert client.change(origin="http://ravi.example.com")[0] == 403


@pytest.mark.parametrize("url", ["ravi.example.com", "ftp://x", "https://", "https://u:p@x", "https://x/path", "https://x/?a=b"])
def test_a_public_url_that_is_no_address_of_a_site_is_refused(url):
    with pytest.raises(ConfigurationError, match="--public-url"):
        access(port=1, public_url=url)


def test_what_is_sent_that_makes_no_sense_is_told_in_one_sentence_that_repeats_none_of_it(inside):
    for body in ({}, {"process": "p", "scope": "s", "op": "<script>"}, {"process": "p", "scope": "s", "op": "cancel", "more": 1}, [1], "x"):
        status, _, text = inside.change(body=body)
        assert (status, "script" in text, text.count("\n")) == (422, False, 1)


def test_a_command_for_what_is_not_open_reaches_nobody(inside, served):
    actor = served.actor(run("r1"))
    assert inside.change(body={"process": str(actor.entry.socket), "scope": "r1", "op": "cancel"})[0] == 409
    assert actor.heard == []


# -- links to one request -----------------------------------------------------------------------------------------


def linked(served, amount=1200, *, link=True, **changes):
    """Have one request wait; returns it, and the path of the link to it."""
    at = desk(served.queue, time.time)
    asked = requested({"user_id": 42, "amount_usd": amount}, requested_at=time.time(), expires_at=time.time() + 600, **changes)
    at.enter(asked, seal_of(asked))
    if not link:
        return asked, ""
    client = Client(served)
    client.arrive()
    url = json.loads(client(f"/api/approvals/{asked.id}")[2])["link"]
    return asked, url.removeprefix("http://127.0.0.1:" + str(served.port))


def test_a_link_shows_one_request_and_looking_changes_nothing(outside):
    asked, path = linked(outside)
    stranger = Client(outside)
    api = path.replace("/a/", "/api/links/")
    for _ in range(3):
        assert stranger(path)[0] == 200
        assert json.loads(stranger(api)[2])["asked"]["ask"]["id"] == asked.id
    assert desk(outside.queue, time.time).find(asked.id).state == "pending"
    for other in ("/", "/approvals", "/api/now", "/api/approvals", f"/api/approvals/{asked.id}", "/api/session", "/api/audit"):
        assert stranger(other)[0] == 401


def test_a_link_decides_once_and_then_shows_what_was_decided(outside):
    asked, path = linked(outside)
    stranger = Client(outside)
    api = path.replace("/a/", "/api/links/")
    answer = {"seal": seal_of(asked), "approved": True}
    told = {"origin": outside.origin, **JSON}
    assert stranger(api, "POST", answer, **{**told, "origin": "http://evil.example"})[0] == 403
    assert stranger(api, "POST", answer, **told)[0] == 200
    assert stranger(api, "POST", answer, **told)[0] == 409
    assert "approved by whoever has the link" in json.loads(stranger(api)[2])["asked"]["ask"]["word"]
    assert desk(outside.queue, time.time).find(asked.id).login == current_login()


def test_a_link_that_was_changed_or_has_expired_or_is_for_other_arguments_opens_nothing(outside):
    asked, path = linked(outside)
    other, _ = linked(outside, 1300)
    stranger = Client(outside)
    link = path.removeprefix("/a/")
    request_id, until, digest = link.split("~")
    signed = outside.access.link(asked.id, time.time() - 1, seal_of(asked)).partition("/a/")[2]
    of_others = outside.access.link(asked.id, time.time() + 60, "another seal").partition("/a/")[2]
    longer, forged = f"{request_id}~{int(until) + 9}~{digest}", f"{other.id}~{until}~{digest}"
    bad = [longer, forged, f"{link[:-1]}{'0' if link[-1] != '0' else '1'}", request_id, "~~", signed, of_others, "nobody~9~x"]
    for each in bad:
        status, _, text = stranger(f"/api/links/{urllib.parse.quote(each)}")
        assert (status, text.count("\n")) == (400, 1), each


@pytest.mark.parametrize("approved", [True, False])
def test_somebody_who_is_no_approver_is_refused_in_one_sentence_on_the_page_and_by_link(outside, approved):
    asked, path = linked(outside, approvers=("anna",))
    inside, stranger = Client(outside), Client(outside)
    inside.arrive()
    answer = {"seal": seal_of(asked), "approved": approved}
    shown = json.loads(inside(f"/api/approvals/{asked.id}")[2])["ask"]
    assert (shown["can"], shown["says"]) == ([], f"{current_login()} may not decide about issue_refund: anna may.")
    status, _, text = inside.change(f"/api/approvals/{asked.id}", answer)
    assert (status, text) == (409, f"{current_login()} may not decide about issue_refund: anna may.\n")
    status, _, text = stranger(path.replace("/a/", "/api/links/"), "POST", answer, origin=outside.origin, **JSON)
    assert (status, text) == (409, "Whoever has the link may not decide about issue_refund: anna may.\n")
    assert desk(outside.queue, time.time).find(asked.id).state == "pending"


def test_who_requested_it_may_say_no_and_not_yes(outside):
    asked, path = linked(outside, user_id=current_login(), requester_may_approve=False)
    inside, stranger = Client(outside), Client(outside)
    inside.arrive()
    yes, no = ({"seal": seal_of(asked), "approved": approved} for approved in (True, False))
    assert json.loads(inside(f"/api/approvals/{asked.id}")[2])["ask"]["can"] == ["reject"]
    assert "requested it, and may not approve it" in inside.change(f"/api/approvals/{asked.id}", yes)[2]
    status, _, text = stranger(path.replace("/a/", "/api/links/"), "POST", yes, origin=outside.origin, **JSON)
    assert (status, "may be the one who requested it" in text) == (409, True)
    assert inside.change(f"/api/approvals/{asked.id}", no)[0] == 200


SCHEMA = {
    "type": "object",
    "properties": {"user_id": {"type": "integer"}, "amount_usd": {"type": "number", "maximum": 1_500}},
    "required": ["user_id", "amount_usd"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"user_id": 42, "amount_usd": 1501}', "amount_usd must be at most 1500."),
        ('{"user_id": 42, "amount_usd": "800"}', "amount_usd must be a number."),
        ('{"user_id": 42}', "amount_usd is needed."),
        ('{"user_id": 42, "amount_usd": 800, "to": "me"}', "is no argument of its tool"),
        ('{"user_id": 42, "amount_usd": 800, "amount_usd": 1}', "name a key twice"),
        ('{"user_id": 42, "amount_usd": NaN}', "no number of JSON"),
    ],
)
def test_an_edit_that_the_tool_does_not_take_decides_nothing_whoever_sends_it(outside, arguments, why):
    asked, path = linked(outside, schema=SCHEMA)
    inside, stranger = Client(outside), Client(outside)
    inside.arrive()
    answer = {"seal": seal_of(asked), "approved": True, "arguments": arguments}
    for status, _, text in (
        inside.change(f"/api/approvals/{asked.id}", answer),
        inside.change(f"/api/approvals/{asked.id}/edit", {"arguments": arguments}),
        stranger(path.replace("/a/", "/api/links/"), "POST", answer, origin=outside.origin, **JSON),
    ):
        assert (status, text.count("\n")) == (400, 1)
        assert why in text
    assert desk(outside.queue, time.time).find(asked.id).state == "pending"


def test_a_name_of_a_proxy_decides_as_that_name_alone(tmp_path):
    with serving(tmp_path, user_header="x-user", trusted_proxies=["127.0.0.1"]) as served:
        asked, _ = linked(served, approvers=("anna",), link=False)
        inside = Client(served)
        inside.arrive()
        answer = {"seal": seal_of(asked), "approved": True}
        for name in ("bob", "anna ", "link", "login:anna", "sign-in:anna"):
            status, _, text = inside.change(f"/api/approvals/{asked.id}", answer, x_user=name)
            if name != "anna ":  # a proxy's header has no white space around its value
                assert (status, text.count("\n")) == (409, 1), name
        stored = desk(served.queue, time.time).find(asked.id)
        assert (stored.state, stored.who, stored.identity, stored.login) == ("approved", "anna", "sign-in:anna", current_login())


def test_without_a_public_url_a_link_is_one_of_this_machine_and_opens_that_request_alone(inside, served):
    asked, path = linked(served)
    assert json.loads(inside(f"/api/approvals/{asked.id}")[2])["link"] == served.origin + path
    stranger = Client(served)
    assert json.loads(stranger(path.replace("/a/", "/api/links/"))[2])["asked"]["ask"]["id"] == asked.id
    assert stranger("/api/links/x~1~y")[0] == 400
    assert stranger(f"/api/approvals/{asked.id}")[0] == 401


def test_what_was_decided_by_a_link_is_said_to_be_and_names_no_user_of_this_machine(inside, served):
    asked, path = linked(served)
    answer = {"seal": seal_of(asked), "approved": False}
    assert Client(served)(path.replace("/a/", "/api/links/"), "POST", answer, origin=served.origin, **JSON)[0] == 200
    word = json.loads(inside(f"/api/approvals/{asked.id}")[2])["ask"]["word"]
    assert word == "rejected by whoever has the link"


# -- the command --------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(commands, ["ui", "--port", str(port), "--store", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output == f"Error: port {port} is taken: another `ravi-otel ui` may run there. Name another with --port.\n"


@pytest.mark.parametrize("option", ["--store", "--audit", "--queue"])
def test_a_place_that_cannot_come_to_be_is_refused_before_anything_is_served(tmp_path, option):
    given = {"--store": str(tmp_path), option: str(tmp_path / "nowhere" / "x")}
    done = CliRunner().invoke(commands, ["ui", *(word for pair in given.items() for word in pair)])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert f"{option} " in done.output
    assert done.output.endswith(f"which is not there. Name another, or leave {option} out.\n")


@pytest.mark.parametrize("option", ["--store", "--audit"])
def test_a_file_is_no_place_of_a_store_or_of_audit_logs(tmp_path, option):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(commands, ["ui", "--store", str(tmp_path), option, str(tmp_path / "file")])
    assert (done.exit_code, f"is no directory. Name one, or leave {option} out.\n" in done.output) == (2, True)


def test_a_place_where_nothing_is_yet_is_said_on_start(tmp_path, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda _: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    places = ["--store", str(tmp_path / ".ravi"), "--audit", str(tmp_path / "logs")]
    done = CliRunner().invoke(commands, ["ui", "--port", port, *places])
    assert f"It shows the store {tmp_path / '.ravi'}, where nothing is yet. Ctrl-C ends it.\n" in done.output
    assert f"No audit log is in {tmp_path / 'logs'} yet.\n" in done.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--user-header", "x-user"], "--trusted-proxy"),
        (["--user-header", "x-user", "--trusted-proxy", "proxy.example"], "is no address"),
    ],
    ids=["host", "header", "proxy"],
)
def test_the_command_refuses_what_would_open_it_to_others(tmp_path: Path, options, why):
    done = CliRunner().invoke(commands, ["ui", "--store", str(tmp_path), *options])
    assert (done.exit_code, why in done.output, done.output.count("\n")) == (2, True, 1)


def test_a_damaged_page_is_told_in_one_sentence(tmp_path, monkeypatch):
    from importlib import resources

    from ravi_otel._ui import app
    from ravi_otel._ui.decisions import Inbox

    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    (tmp_path / "static").mkdir()
    with pytest.raises(ConfigurationError, match=r"the page is damaged, index.html is missing"):
        app.Desk(access(port=1), tmp_path, Inbox(tmp_path / "a.db"), tmp_path)


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_what_the_page_needs_is_named_with_the_extra_that_installs_it(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    done = CliRunner().invoke(commands, ["ui", "--store", str(tmp_path)])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert done.output.endswith("Install it with: pip install 'ravi-otel[ui]'\n")
