"""The file of a history: whose it is, what is left in it, what is wrong with it, and who else uses it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ravi_otel import HistoryRetention
from ravi_otel.agents.history import HistoryError, SqliteHistory
from ravi_otel.agents.history._sqlite import _Process as Process
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import ChatMessage

NONE, RUN, PERMANENT = HistoryRetention
pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
SECRET = "the-heron-flies-at-noon"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(path):
    return SqliteHistory(path)


def said(*texts):
    return [ChatMessage("user", text) for text in texts]


def texts(messages):
    return [message.content for message in messages]


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def left_of(path):
    return b"".join(each.read_bytes() for each in path.parent.iterdir())


def program(path, body, **more):
    lines = [
        "import anyio, sys",
        "from ravi_otel import HistoryRetention",
        "from ravi_otel.agents.history import SqliteHistory",
        "from ravi_otel.policy._contracts import ChatMessage",
        f"store = SqliteHistory({str(path)!r}, busy_s=60)",
        body,
    ]
    return subprocess.Popen([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, text=True, **more)


async def test_the_file_and_those_beside_it_are_their_owners_alone(store, path):
    before = os.umask(0)
    try:
        await store.append("s", said("x"), retention=PERMANENT)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("SELECT * FROM appends").fetchall()
            await store.append("s", said("y"), retention=PERMANENT)
            found = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert found == {"history.db": 0o600, "history.db-wal": 0o600, "history.db-shm": 0o600}


async def test_what_is_deleted_is_gone_from_the_file_and_its_log(store, path):
    await store.append("kept", said("y"), retention=PERMANENT)
    await store.append("s", said(SECRET), retention=PERMANENT)
    await store.append("t", said(SECRET), retention=RUN, run_id="r")
    assert SECRET.encode() in left_of(path)
    await store.clear("s")
    await store.forget_run("r")
    assert SECRET.encode() not in left_of(path)
    assert texts(await store.load("kept")) == ["y"]


async def test_what_is_deleted_is_gone_from_the_log_also_while_others_have_the_file_open(store, path):
    await store.append("s", said("y"), retention=PERMANENT)
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT * FROM appends").fetchall()
        await store.append("s", said(SECRET), retention=PERMANENT)
        assert SECRET.encode() in left_of(path)
        await store.clear("s")
        assert SECRET.encode() not in left_of(path)


async def test_the_end_of_a_run_deletes_at_once(store, path):
    await store.append("s", said(SECRET), retention=RUN, run_id="r")
    store.run_ended("r", None)
    assert SECRET.encode() not in left_of(path)


async def test_what_a_runs_end_could_not_delete_goes_with_the_next_thing_that_is_asked(store, path):
    await store.append("s", said(SECRET), retention=RUN, run_id="r")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.run_ended("r", None)
        other.execute("ROLLBACK")
    assert texts(await store.load("s", run_id="r")) == []
    assert SECRET.encode() not in left_of(path)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("PRAGMA user_version=2", "because it has format 2, and this version reads 1; nothing was changed. Move it away"),
        ("PRAGMA application_id=7", "because it is a database of another program; nothing was changed. Move it away"),
    ],
)
async def test_a_file_that_is_not_ours_to_read_is_named_and_left_as_it_is(store, path, statement, told):
    await store.append("s", said("x"), retention=PERMANENT)
    changed(path, "PRAGMA journal_mode=DELETE", statement)
    before = path.read_bytes()
    for ask in (store.append("s", said("y"), retention=PERMANENT), store.load("s"), store.clear("s"), store.forget_run("r")):
        with pytest.raises(HistoryError) as error:
            await ask
        assert told in str(error.value)
        assert str(path) in str(error.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [0, 1, 3])
async def test_a_database_of_another_program_is_left_as_it_is(store, path, size):
    changed(path, *(f"CREATE TABLE t{number} (x)" for number in range(size)))
    before = path.read_bytes() if path.exists() else b""
    if size:
        with pytest.raises(HistoryError, match="of another program"):
            await store.append("s", said("x"), retention=PERMANENT)
        assert path.read_bytes() == before
    else:
        await store.append("s", said("x"), retention=PERMANENT)
        assert texts(await store.load("s")) == ["x"]


async def test_a_broken_file_is_named_and_left_as_it_is(store, path):
    await store.append("s", said("x" * 50_000), retention=PERMANENT)
    whole = path.read_bytes()
    for broken in (b"no database at all, but a text of some length" * 30, whole[:4096] + b"\xff" * (len(whole) - 4096)):
        path.write_bytes(broken)
        fresh = SqliteHistory(path)
        for ask in (fresh.load("s"), fresh.append("s", said("y"), retention=RUN, run_id="r")):
            with pytest.raises(
                HistoryError, match=r"because of an error of SQLite .*; nothing was changed\. Move it away, or give another path"
            ):
                await ask
        assert path.read_bytes()[: len(broken)] == broken


@pytest.mark.parametrize(
    "body",
    [
        "x'ff'",
        "'text'",
        "NULL",
        "x'7b7d'",  # {}
        'CAST(\'[{"role": "boss"}]\' AS BLOB)',
        'CAST(\'[{"role": "user", "content": 5}]\' AS BLOB)',
        'CAST(\'[{"role": "user", "more": 5}]\' AS BLOB)',
        "CAST('[5]' AS BLOB)",
        "CAST(replace(hex(zeroblob(50000)), '00', '[') AS BLOB)",
        "zeroblob(16777300)",
    ],
)
async def test_an_entry_that_was_tampered_with_is_told_and_not_given(store, path, body):
    await store.append("s", said("x"), retention=PERMANENT)
    changed(path, "CREATE TABLE copy AS SELECT * FROM appends", "DROP TABLE appends", "ALTER TABLE copy RENAME TO appends")
    changed(path, f"UPDATE appends SET body = {body}")
    with pytest.raises(HistoryError, match=r"an entry of session 's' cannot be read|error of SQLite"):
        await store.load("s")


def test_a_folder_that_is_not_there_is_told_when_it_is_given(tmp_path):
    with pytest.raises(ConfigurationError, match=r"^SqliteHistory\(path\)=.*: there is no folder '.*none'; make it first, or give another"):
        SqliteHistory(tmp_path / "none" / "history.db")
    with pytest.raises(ConfigurationError, match=r" is a folder; give a file in it, such as 'history.db'"):
        SqliteHistory(tmp_path)


async def test_a_file_that_cannot_be_made_is_told_to_who_looks_for_it_and_to_who_writes(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    store = SqliteHistory(folder / "history.db")
    folder.rmdir()
    with pytest.raises(HistoryError, match=r"because no file can be made in '.*gone'; nothing was changed\. Give a path at which"):
        await store.load("s")
    with pytest.raises(HistoryError, match=r"because of No such file or directory; nothing was changed\. Give a path at which"):
        await store.append("s", said("x"), retention=PERMANENT)


async def test_a_file_that_became_a_folder_is_told_with_the_way_out(tmp_path):
    store = SqliteHistory(tmp_path / "history.db")
    (tmp_path / "history.db").mkdir()
    with pytest.raises(HistoryError, match=r"unable to open database file\); nothing was changed\. Give a path at which"):
        await store.load("s")


async def test_who_waits_too_long_for_another_process_is_told(store, path):
    await store.append("s", said("x"), retention=PERMANENT)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match=r"because another process keeps it locked; nothing was changed\. Try again"):
            await SqliteHistory(path, busy_s=0).append("s", said("y"), retention=PERMANENT)
    assert texts(await store.load("s")) == ["x"]


async def test_many_processes_make_and_fill_one_file(store, path):
    body = (
        "async def main():\n"
        "    for n in range(15):\n"
        "        two = [ChatMessage('user', f'{sys.argv[1]} {n}'), ChatMessage('assistant', f'{sys.argv[1]} {n}')]\n"
        "        await store.append('s', two, retention=HistoryRetention.PERMANENT, run_id=f'run {n % 2} {sys.argv[1]}')\n"
        "anyio.run(main)"
    )
    workers = [program(path, f"sys.argv.append('{name}')\n{body}") for name in "abc"]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    found = texts(await store.load("s"))
    for name in "abc":
        own = [text for text in found if text.startswith(name)]
        at = [found.index(f"{name} {number}") for number in (*range(0, 15, 2), *range(1, 15, 2))]
        assert len(own) == 30
        assert [found[place + 1] for place in at] == [found[place] for place in at]
        assert at[:8] == sorted(at[:8])
        assert at[8:] == sorted(at[8:])


async def test_what_a_process_kept_for_a_run_is_deleted_after_it_was_killed_unless_the_run_goes_on(path):
    body = (
        "async def main():\n"
        f"    for run in ('r1', 'r2'):\n"
        f"        await store.append('s', [ChatMessage('user', '{SECRET}' + run)], retention=HistoryRetention.RUN, run_id=run)\n"
        "    await store.append('s', [ChatMessage('user', 'kept')], retention=HistoryRetention.PERMANENT, run_id='r1')\n"
        "    print('done', flush=True)\n"
        "    await anyio.sleep_forever()\n"
        "anyio.run(main)"
    )
    with program(path, body, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == "done\n"
        assert texts(await SqliteHistory(path).load("s", run_id="r2")) == [f"{SECRET}r2", "kept"]
        other.send_signal(signal.SIGKILL)
    assert texts(await SqliteHistory(path).load("s", run_id="r2")) == [f"{SECRET}r2", "kept"]  # which was resumed here
    assert f"{SECRET}r1".encode() not in left_of(path)
    assert texts(await SqliteHistory(path).load("s")) == ["kept"]
    assert SECRET.encode() not in left_of(path)


async def test_a_run_that_another_live_process_works_for_is_left_alone(store, path):
    await store.append("s", said("x"), retention=RUN, run_id="r")
    changed(path, "INSERT INTO owners SELECT run, tenant, 2147480000, '1', place, seen FROM owners")
    assert texts(await SqliteHistory(path).load("s")) == []
    assert texts(await SqliteHistory(path).load("s", run_id="r")) == ["x"]


@pytest.mark.parametrize(("seen", "left"), [("seen", ["x"]), ("seen - 8 * 24 * 3600", [])])
async def test_what_was_kept_where_nobody_can_look_is_deleted_after_a_week(store, path, seen, left):
    await store.append("s", said("x"), retention=RUN, run_id="r")
    changed(path, f"UPDATE owners SET place = 'another container', seen = {seen}")
    await SqliteHistory(path).load("s")
    assert texts(await SqliteHistory(path).load("s", run_id="r")) == left


@pytest.mark.parametrize(
    "wrong", ["pid = 'x'", "pid = 1e99", "seen = x'00'", "place = x'00'", "start = x'00'", "run = x'00'", "tenant = 5"]
)
async def test_an_owner_that_was_tampered_with_stands_in_nobodys_way(store, path, wrong):
    await store.append("s", said("x"), retention=RUN, run_id="r")
    changed(path, f"UPDATE owners SET {wrong}")
    fresh = SqliteHistory(path)
    await fresh.append("s", said("y"), retention=RUN, run_id="r")
    assert texts(await fresh.load("s", run_id="r")) == ["x", "y"]
    await fresh.forget_run("r")
    assert texts(await fresh.load("s", run_id="r")) == []


async def test_a_relative_path_stays_where_it_was_when_the_program_moves(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    store = SqliteHistory(path.name)
    monkeypatch.chdir("/")
    await store.append("s", said("x"), retention=PERMANENT)
    assert path.exists()


def test_a_process_is_told_from_a_later_one_of_its_number():
    own = Process.this()
    assert not own.is_gone
    assert Process(own.pid, f"{own.start}1", own.place).is_gone
    assert not Process(own.pid, "", own.place).is_gone
    assert not Process(2**40, "1", own.place).is_gone
    assert not Process(1, "", own.place).is_gone


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say")
def test_a_process_that_ended_is_gone_before_its_parent_asks():
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Process(ended.pid, "", Process.this().place).is_gone


def opened():
    return [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files")
async def test_nothing_stays_open_between_two_calls(store, path):
    await store.append("s", said("x"), retention=PERMANENT)
    await store.load("s")
    assert not [each for each in opened() if str(path) in each]
