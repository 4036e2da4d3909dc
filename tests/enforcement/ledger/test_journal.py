"""What a process could not tell the store before it ended: kept in a file of its own, told once, and never believed blindly."""

import json
import os
import subprocess
import sys

import pytest
import redis_servers

from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger import choosing
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Line, Reservation, new_op_id
from ravi_otel.enforcement.ledger.failing import StoreError
from ravi_otel.enforcement.ledger.journal import Entry, Journal, journal_of
from ravi_otel.enforcement.ledger.redis.link import Link, Script
from ravi_otel.enforcement.ledger.redis.wire import WireError
from ravi_otel.errors import ConfigurationError
from ravi_otel.local.store import Store
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, ScopeKind

FIRST, SECOND = Entry("settle", ["{a}"], ["op-1", "5"]), Entry("release", ["{a}", "{a}b"], ["op-2"])
COUNT = Script.of("settle", b"return redis.call('INCRBY', KEYS[1], ARGV[2])")


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "state" / "owed.jsonl", {"settle", "release"})


@pytest.fixture
def delivered():
    return []


def test_what_is_kept_is_told_once_and_in_order(journal, delivered):
    assert journal.keep([FIRST])
    assert journal.keep([SECOND])
    assert journal.tell(delivered.append) == 2
    assert delivered == [FIRST, SECOND]
    assert journal.tell(delivered.append) == 0


def test_nobody_else_may_read_it(journal):
    journal.keep([FIRST])
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_told_stays(journal, delivered):
    def deliver(entry):
        if len(delivered) == 1:
            raise StoreError("because it cannot be reached")
        delivered.append(entry)

    journal.keep([FIRST, SECOND])
    assert journal.tell(deliver) == 1
    delivered.clear()
    assert journal.tell(delivered.append) == 2  # from the start: what was told before counts once


def test_what_the_store_refuses_does_not_keep_back_the_rest(journal, delivered):
    def deliver(entry):
        delivered.append(entry)
        if entry == FIRST:
            raise WireError("because it answered no", "refused")

    journal.keep([FIRST, SECOND])
    assert journal.tell(deliver) == 2
    assert (delivered, journal.refused) == ([FIRST, SECOND], 1)


@pytest.mark.parametrize("why", ["NOREPLICAS Not enough good replicas to write", "MISCONF no snapshot", "OOM command not allowed"])
def test_what_the_store_refuses_for_a_while_is_told_later(journal, delivered, why):
    def deliver(entry):
        raise WireError(f"because it answered {why!r}", "refused")

    journal.keep([FIRST, SECOND])
    assert journal.tell(deliver) == 0
    assert journal.tell(delivered.append) == 2
    assert delivered == [FIRST, SECOND]


HOSTILE = {
    "text": b"nothing of ours\n",
    "half a line": b'["settle",["{a}"],["op',
    "another script": json.dumps(["flushall", [], []]).encode(),
    "a script that is none": b'[["settle"],[],[]]',
    "keys that are none": b'["settle",{"a":1},["x"]]',
    "words that are none": b'["settle",["a"],[1]]',
    "too many": b'["settle",["a"],["b"],["c"]]',
    "deep": b"[" * 60_000,
    "long": b'["settle",["' + b"a" * 70_000 + b'"],[]]',
    "no text": b"\xff\xfe\x00",
    "half of a character": b'["settle",["\\ud800"],["x"]]',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_is_not_ours_is_skipped_and_counted(journal, delivered, line):
    journal.keep([FIRST])
    with journal.path.open("ab") as file:
        file.write(line)
    journal.keep([SECOND])
    assert journal.tell(delivered.append) == 2
    assert delivered == [FIRST, SECOND]
    assert journal.corrupt >= 1


def test_a_file_that_others_may_write_is_not_read(journal, delivered):
    journal.keep([FIRST])
    journal.path.chmod(0o622)
    assert journal.tell(delivered.append) == 0
    assert not journal.keep([SECOND])
    assert journal.lost == 1


def test_a_link_to_another_file_is_not_followed(journal, delivered, tmp_path):
    journal.keep([FIRST])
    elsewhere = tmp_path / "elsewhere"
    journal.path.rename(elsewhere)
    journal.path.symlink_to(elsewhere)
    assert journal.tell(delivered.append) == 0
    assert elsewhere.stat().st_size


def test_where_nothing_can_be_written_it_is_counted(tmp_path):
    (tmp_path / "state").write_text("a file, where a directory should be")
    journal = Journal(tmp_path / "state" / "owed.jsonl", {"settle"})
    assert not journal.keep([FIRST, SECOND])
    assert journal.lost == 2


@pytest.mark.parametrize("there", [False, True])
def test_what_is_left_before_the_first_run_is_no_hindrance_to_the_local_store(tmp_path, there):
    place = tmp_path / ".ravi"
    if there:
        place.mkdir()
    journal = Journal(journal_of("redis://one:6379", {"RAVI_STORE": str(place)}), {"settle", "release"})
    assert journal.keep([FIRST])
    with pytest.raises(ConfigurationError, match="there is no store at"):
        Store.find(place)
    store = Store.open(place)
    assert (store.runs(), Store.find(place).runs()) == ([], [])
    assert (place / ".gitignore").read_text() == "*\n"
    told = []
    assert journal.tell(told.append) == 1


def test_each_store_has_a_file_of_its_own_in_the_directory_of_the_state(tmp_path):
    environ = {"RAVI_STORE": str(tmp_path)}
    one, other = journal_of("redis://one:6379", environ), journal_of("redis://other:6379", environ)
    assert one != other
    assert one.parent == tmp_path
    assert journal_of("redis://one:6379", {}).is_absolute()


def test_what_was_left_is_told_as_soon_as_the_store_answers_again(redis_server, tmp_path):
    left = Journal(tmp_path / "owed.jsonl", {"settle"})
    left.keep([Entry("settle", ["{a}"], ["op-1", "5"])])
    link = Link(redis_server.url)
    link.keep_in(left.path, [COUNT])
    try:
        run_sync(link.call(COUNT, ["{a}"], ["op-2", "1"]))
        redis_servers.until(lambda: not left.path.stat().st_size, "it was not told")
        assert redis_server.say("GET", "{a}") == b"$1\r\n6\r\n"
    finally:
        link.close()


ENDING = """
import os, sys
from ravi_otel._flow import run_sync
from ravi_otel.enforcement.ledger.choosing import open_ledger
from ravi_otel.enforcement.ledger.account import Account
from ravi_otel.enforcement.ledger.contract import Line, Reservation, new_op_id
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, ScopeKind
ledger = open_ledger(sys.argv[1])
account = Account(Limit(kind=Kind.TOKENS, value=100), ScopeFacts(scope_id="one", kind=ScopeKind.RUN), origin="tokens=100")
op = new_op_id()
run_sync(ledger.reserve(Reservation(op, [Line(account, 50, 50)], {})))
print("held", flush=True)
sys.stdin.readline()
run_sync(ledger.settle(op, {"tokens": 30}))
ledger.close()
"""


def test_what_a_process_could_not_settle_is_settled_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_STORE", str(tmp_path))
    with redis_servers.server() as server:
        command = [sys.executable, "-c", ENDING, server.url.replace("timeout_s=10", "timeout_s=0.5")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout.readline() == "held\n"
            with server.paused():
                process.communicate("go\n", timeout=60)
            assert process.returncode == 0
        ledger = choosing.open_ledger(server.url.replace("timeout_s=10", "timeout_s=0.5"))
        try:
            account = Account(Limit(kind=Kind.TOKENS, value=100), ScopeFacts(scope_id="one", kind=ScopeKind.RUN), origin="tokens=100")

            def settled():
                op = new_op_id()
                run_sync(ledger.reserve(Reservation(op, [Line(account, 1, 1)], {})))
                run_sync(ledger.release(op))
                return (account.used, account.held) == (30, 0)

            redis_servers.until(settled, "nobody settled it")
        finally:
            ledger.close()
