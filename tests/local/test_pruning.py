"""Old runs go whole, the oldest first; what is of one person, customer or conversation goes from everywhere, over the bytes on disk."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time

import pytest
from approval_desk import desk, requested
from kept_by import rows, run
from stored_runs import Shelf

from ravi_otel._local.prune import Upkeep
from ravi_otel._local.store import Store, this_process
from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor.approval._queue import seal_of

DAY_S = 24 * 3600
PEOPLE = """
ravi_otel.instrument()
for user, tenant, session in (("ann", "acme", "s1"), ("bob", "acme", "s2"), ("ann", "other", "s3")):
    with ravi_otel.run("desk", user_id=user, tenant_id=tenant, session_id=session):
        ask(f"a secret of {user} of {tenant} in {session}")
        with ravi_otel.agent("clerk"):
            ask("what all of them ask")
"""
TABLES = ("runs", "scopes", "calls", "content", "messages", "otlp")


def prune(store, *, now=None, most_s=float("inf"), dry_run=False, **asked):
    with Upkeep(store, now=now, most_s=most_s, dry_run=dry_run) as upkeep:
        return upkeep.prune(**asked)


def erase(store, whose, value, *, dry_run=False, **asked):
    with Upkeep(store, dry_run=dry_run) as upkeep:
        return upkeep.erase(whose, value, **asked)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    store = tmp_path_factory.mktemp("people") / "store"
    run(store, PEOPLE, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")
    with sqlite3.connect(store / "runs.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return store


@pytest.fixture
def store(people, tmp_path):
    shutil.copytree(people, tmp_path / "store")
    return Store.find(tmp_path / "store")


def on_disk(store) -> bytes:
    return b"".join(path.read_bytes() for path in store.root.rglob("*") if path.is_file())


def test_what_is_old_goes_whole_and_what_is_young_stays(store):
    assert prune(store).removed == ()
    done = prune(store, now=time.time() + 31 * DAY_S)
    assert len(done.removed) == 3
    assert {each.why for each in done.removed} == {"age"}
    assert [len(rows(store.root, table)) for table in ("runs", "calls", "content", "messages", "hourly")] == [0] * 5
    assert b"a secret of" not in on_disk(store)


def test_the_oldest_go_for_their_size_and_never_the_latest(store):
    done = prune(store, max_bytes=1)
    assert [each.why for each in done.removed] == ["size", "size"]
    (left,) = rows(store.root, "runs", "kind = 'run'")
    assert left["session"] == "s3"


def test_a_run_in_which_another_goes_on_stays(tmp_path):
    shelf = Shelf(tmp_path / "store")
    ages = {"began": time.time_ns() - 40 * DAY_S * 10**9, "ended": time.time_ns() - 39 * DAY_S * 10**9}
    for outer, inner in (("over", "over too"), ("around", "goes on")):
        shelf.run(outer, **ages)
        shelf.run(inner, parent=outer, process="alive", **ages)
    shelf.put("processes", process="alive", began=1, last_seen=1, **this_process())
    shelf.execute("UPDATE runs SET ended = NULL, status = 'open' WHERE run = 'goes on'")
    shelf.run("new")
    done = prune(shelf.store)
    assert {each.run for each in done.removed} == {"over", "over too"}
    assert {each["run"] for each in rows(tmp_path / "store", "runs")} == {"around", "goes on", "new"}
    assert set(done.running) == {"around", "goes on"}


def test_what_there_is_no_time_for_goes_the_next_time(store):
    later = time.time() + 31 * DAY_S
    assert prune(store, now=later, most_s=0).unfinished
    assert len(rows(store.root, "runs")) == 3
    done = prune(store, now=later)
    assert (len(done.removed), done.unfinished) == (3, False)


def test_a_dry_run_changes_nothing(store):
    before = {table: rows(store.root, table) for table in TABLES}
    assert len(prune(store, now=time.time() + 31 * DAY_S, dry_run=True).removed) == 3
    assert [each.why for each in prune(store, max_bytes=1, dry_run=True).removed] == ["size", "size"]
    assert {table: rows(store.root, table) for table in TABLES} == before
    told, done = prune(store, max_bytes=1, dry_run=True), prune(store, max_bytes=1)
    assert (told.removed, told.bytes_left) == (done.removed, done.bytes_left)


@pytest.mark.parametrize(
    ("whose", "value", "gone", "left"),
    [("user", "ann", {"s1", "s3"}, {"s2"}), ("tenant", "acme", {"s1", "s2"}, {"s3"}), ("session", "s2", {"s2"}, {"s1", "s3"})],
)
def test_what_is_of_one_is_erased_from_everywhere(store, whose, value, gone, left):
    done = erase(store, whose, value)
    assert (done.runs, done.calls) == (len(gone), 2 * len(gone))
    assert {each["session"] for each in rows(store.root, "runs", "kind = 'run'")} == left
    kept = on_disk(store)
    assert not [session for session in gone if f"in {session}".encode() in kept]
    assert all(f"in {session}".encode() in kept for session in left)
    if whose != "session":
        assert not rows(store.root, "hourly", f"{whose} = '{value}'")


CROWD = """
def answer(request):
    return Text("an answer to " + request.body["messages"][-1]["content"], usage=(30, 10))
ravi_otel.instrument(limits=["requests=5:per=day:by=user", "tokens=1M:per=day:by=tenant"])
@ravi_otel.tool
def look(what):
    return what
with ScriptedLLM(answer) as server:
    client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
    for number in range(120):
        user = f"Ünser{number % 20:02d}@example.com"
        try:
            with ravi_otel.run("desk", user_id=user, tenant_id=f"tenant-{number % 3}", session_id=f"session of {user}"):
                ask(f"a secret of {user}: " + "blah " * (number * 7 % 300))
                look(user)
        except ravi_otel.BudgetExhaustedError:
            pass
"""


def test_no_byte_is_left_of_whom_limits_counted_by_and_sessions_were_named_after(tmp_path):
    store = tmp_path / "store"
    run(store, CROWD, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")
    gone, left = (b"nser07@example.com", b"nser08@example.com")
    assert gone in on_disk(Store.find(store))
    done = erase(Store.find(store), "user", "Ünser07@example.com")
    assert (done.runs, done.calls) == (6, 6)
    kept = on_disk(Store.find(store))
    assert gone not in kept
    assert left in kept
    others = rows(store, "otlp", "signal != 'metrics' AND user IS NULL")
    assert others
    assert all(each["records"] == sum(len(group[-1]) for group in json.loads(each["data"])) for each in others)


def test_while_somebody_reads_the_file_it_is_said_that_bytes_may_be_left(store, monkeypatch):
    monkeypatch.setattr("ravi_otel._local.store._PATIENCE_S", 0.1)
    reader = store.connect()
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchone()
    try:
        with pytest.raises(ConfigurationError, match="another program reads it"):
            erase(store, "user", "ann")
    finally:
        reader.close()
    erase(store, "user", "ann")
    assert b"secret of ann" not in on_disk(store)


def test_what_waits_for_a_person_is_erased_too(store):
    (first, *_) = rows(store.root, "runs", "session = 's1'")
    at = desk(store.root / "approvals.db")
    for facts in (
        {"id": "of-the-run", "run_id": first["run"]},
        {"id": "of-anns", "user_id": "ann"},
        {"id": "of-another", "tenant_id": "acme"},
    ):
        request = requested({"user_id": 1, "id": facts["id"]}, **facts)
        at.enter(request, seal_of(request))
    assert erase(store, "user", "ann", dry_run=True).requests == 2
    assert erase(store, "user", "ann").requests == 2
    assert [each.id for each in at.all(pending=False, most=9)] == ["of-another"]


def test_a_program_that_keeps_its_own_runs_removes_old_ones_at_its_end(store):
    connection = store.connect()
    connection.execute("UPDATE runs SET began = began - ?, ended = ended - ?", (31 * DAY_S * 10**9,) * 2)
    connection.close()
    run(store.root, "ravi_otel.instrument()\nwith ravi_otel.run('new'): ask()")
    assert [each["name"] for each in rows(store.root, "runs", "kind = 'run'")] == ["new"]
