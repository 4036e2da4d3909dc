"""The ledger: real servers and files, fit or unfit to hold budgets, and none of them changed."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import redis_servers
from asking_doctor import ask, not_well, states, the

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel._stack.doctor import ledger
from ravi_otel.policy import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts

DURABLE = (*redis_servers.DURABLE, "--maxmemory-policy", "noeviction")


def test_without_a_ledger_nothing_is_looked_at():
    assert states(ask(ledger.examine)) == {"ledger": {"left_out"}}
    assert states(ask(ledger.examine, ledger="memory:")) == {"ledger": {"left_out"}}


def test_a_url_that_names_none_is_broken_and_its_password_not_shown(monkeypatch):
    monkeypatch.setenv("RAVI_LEDGER", "redsi://bob:s3cret@h/0")
    found = the(ask(ledger.examine), "ledger.url")
    assert found.state == "broken"
    assert "s3cret" not in str(found)


# -- a server -----------------------------------------------------------------------------------------------------


def test_a_server_that_keeps_what_it_is_told_is_well_and_holds_what_it_held():
    with redis_servers.server(*DURABLE) as server:
        server.say("SET", "mine", "1")
        found = ask(ledger.examine, ledger=server.url)
        assert (server.say("DBSIZE"), server.say("GET", "mine")) == (b":1\r\n", b"$1\r\n1\r\n")
    assert not_well(found) == []
    assert {"ledger.opens", "ledger.scripts", "ledger.version", "ledger.eviction", "ledger.persistence"} == set(states(found))


def test_a_server_that_may_forget_counters_is_broken(monkeypatch):
    with redis_servers.server(
        "--save", "", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", "--requirepass", "s3cret"
    ) as server:
        monkeypatch.setenv("RAVI_LEDGER", server.url.replace("//", "//:s3cret@"))
        found = ask(ledger.examine)
        wrong = ask(ledger.examine, ledger=server.url.replace("//", "//:wr0ng@"))
    assert the(found, "ledger.eviction").state == "broken"
    assert "noeviction" in the(found, "ledger.eviction").advice
    assert (the(found, "ledger.persistence").state, "appendonly yes" in the(found, "ledger.persistence").advice) == ("odd", True)
    assert the(wrong, "ledger.opens").state == "broken"
    assert "does not let this user in" in the(wrong, "ledger.opens").said
    assert not {"s3cret", "wr0ng"} & set(str(found + wrong).replace("@", ":").replace("/", ":").split(":"))


def test_each_server_of_a_cluster_is_looked_at(redis_cluster):
    found = ask(ledger.examine, ledger=redis_cluster.url)
    assert the(found, "ledger.cluster").state == "well"
    assert [each.state for each in found if each.check in ("ledger.kind", "ledger.opens")] == ["well"] * 6
    port = redis_cluster.url.split("127.0.0.1:")[1].split(",")[0].split("?")[0].split("/")[0]
    alone = ask(ledger.examine, ledger=f"redis://127.0.0.1:{port}/0?timeout_s=10")
    assert (the(alone, "ledger.kind").state, "redis+cluster://" in the(alone, "ledger.kind").advice) == ("broken", True)


def test_a_sentinel_names_the_master_and_is_itself_no_ledger():
    with redis_servers.server(*DURABLE) as server:
        sentinel = redis_servers.Server("--sentinel", config=f"sentinel monitor main 127.0.0.1 {server.port} 1\n")
        try:
            found = ask(ledger.examine, ledger=f"redis+sentinel://127.0.0.1:{sentinel.port}/main?timeout_s=10")
            itself = ask(ledger.examine, ledger=sentinel.url)
        finally:
            sentinel.close()
    assert not_well(found) == []
    assert the(found, "ledger.sentinel").state == "well"
    assert (the(itself, "ledger.kind").state, "redis+sentinel://" in the(itself, "ledger.kind").advice) == ("broken", True)


def test_a_user_who_may_not_ask_for_settings_hears_what_was_left_out():
    with redis_servers.server(*DURABLE) as server:
        server.say("ACL", "SETUSER", "agent", "on", ">pw", "~*", "+@all", "-info", "-config", "-time", "-eval")
        found = ask(ledger.examine, ledger=server.url.replace("//", "//agent:pw@"))
    assert {each.check: each.state for each in found} == {
        "ledger.opens": "well",
        "ledger.scripts": "broken",
        "ledger.server": "left_out",
    }


def test_a_server_that_answers_without_end_is_not_read_to_its_end():
    given = []
    with socket.create_server(("127.0.0.1", 0)) as hostile:

        def answer() -> None:
            taken, _ = hostile.accept()
            with taken:
                taken.settimeout(5.0)
                try:
                    while taken.recv(65_536):
                        for _ in range(1 << 10):
                            taken.sendall(b"+" + b"x" * 65_536)
                            given.append(65_537)
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        found = ask(ledger.examine, ledger=f"redis://127.0.0.1:{hostile.getsockname()[1]}", within_s=2.0)
        thread.join(10.0)
    assert the(found, "ledger.opens").state == "broken"
    assert "is no Redis" in the(found, "ledger.opens").said
    assert sum(given) < 1 << 28


def test_a_server_that_is_not_there_is_broken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = the(ask(ledger.examine, ledger=f"redis://127.0.0.1:{taken.getsockname()[1]}"), "ledger.opens")
    assert (found.state, "cannot be reached" in found.said) == ("broken", True)


def test_a_server_that_hangs_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as hung:
        found = ask(ledger.examine, ledger=f"redis://127.0.0.1:{hung.getsockname()[1]}", within_s=0.3)
    assert the(found, "ledger.opens").state == "broken"


# -- a file -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger that a program has made."""
    path = tmp_path / "ledger.db"
    opened = SqliteLedger(path)
    acme = Account(parse_limit("tokens=100"), ScopeFacts("t", ScopeKind.TENANT, name="acme", tenant_id="acme"), origin="tokens=100")
    assert isinstance(run_sync(opened.reserve(Reservation(new_op_id(), [Line(acme, 3, 3)]))), Grant)
    opened.close()
    path.chmod(0o600)
    return path


def test_a_file_that_is_ours_is_well_and_stays_as_it_is(file):
    before = (file.read_bytes(), sorted(file.parent.iterdir()))
    found = ask(ledger.examine, ledger=f"sqlite:{file}")
    assert {each.check: each.state for each in found} == dict.fromkeys(("ledger.owner", "ledger.format", "ledger.opens"), "well")
    assert (file.read_bytes(), sorted(file.parent.iterdir())) == before


def test_a_file_that_is_not_there_yet_is_not_made(tmp_path):
    found = the(ask(ledger.examine, ledger=f"sqlite:{tmp_path / 'ledger.db'}"), "ledger.opens")
    assert found.state == "left_out"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_broken(tmp_path):
    assert the(ask(ledger.examine, ledger=f"sqlite:{tmp_path / 'no' / 'ledger.db'}"), "ledger.url").state == "broken"


def test_a_file_that_others_may_write_is_odd(file):
    file.chmod(0o666)
    assert the(ask(ledger.examine, ledger=f"sqlite:{file}"), "ledger.owner").state == "odd"


def test_a_file_of_something_else_is_broken_and_left_as_it_is(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_bytes(b"#!/bin/sh\n" * 20)
    assert the(ask(ledger.examine, ledger=f"sqlite:{path}"), "ledger.format").state == "broken"
    assert path.read_bytes() == b"#!/bin/sh\n" * 20


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path):
    path = tmp_path / "ledger.db"
    os.mkfifo(path)
    assert the(ask(ledger.examine, ledger=f"sqlite:{path}"), "ledger.owner").state == "broken"


def test_a_network_file_system_is_known_by_the_longest_mount_point(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    place = tmp_path / "far away"
    place.mkdir()
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda rw",
        f"2 1 0:5 / {str(place).replace(' ', chr(92) + '040')} rw,x shared:1 - nfs4 host:/export rw",
        "broken",
    ]
    mounts.write_text("\n".join(lines))
    monkeypatch.setattr(ledger, "_MOUNTS", mounts)
    assert ledger.file_system(tmp_path) == "ext4"
    found = [each for each in ask(ledger.examine, ledger=f"sqlite:{place}/ledger.db") if each.check == "ledger.place"]
    assert [each.state for each in found] == ["broken"]
    assert "nfs4" in found[0].said
