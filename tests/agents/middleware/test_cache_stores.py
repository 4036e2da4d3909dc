"""What keeps answers: bounds, many processes, damaged files, forged rows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import anyio
import pytest

from ravi_otel.agents.middleware import Cache, MemoryCache, MiddlewarePipeline, SqliteCache
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._usage import Usage

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
NOW = 1_000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.db"


@pytest.fixture(params=["memory", "sqlite"])
def make(request, path):
    return MemoryCache if request.param == "memory" else lambda **more: SqliteCache(path, **more)


async def get(store, key, now=NOW, ttl_s=None):
    return await store.get(key, now=now, ttl_s=ttl_s)


@BOTH
async def test_what_was_put_in_is_found(make):
    store = make()
    assert await get(store, "a") is None
    await store.put("a", "one", now=NOW)
    await store.put("b", "two \u2603", now=NOW)
    await store.put("a", "three", now=NOW)
    assert [await get(store, key) for key in "abc"] == ["three", "two \u2603", None]


@pytest.mark.parametrize(("now", "found"), [(NOW, "x"), (NOW + 59, "x"), (NOW + 60, None), (NOW - 1, None)])
async def test_it_is_found_for_its_time_and_not_from_the_future(make, now, found):
    store = make()
    await store.put("a", "x", now=NOW)
    assert await get(store, "a", now, 60) == found


async def test_there_are_no_more_than_are_allowed(make):
    store = make(max_entries=3)
    for number in range(40):
        await store.put(str(number), "x", now=NOW + number)
    found = [number for number in range(40) if await get(store, str(number), NOW + 40) is not None]
    assert found[-3:] == [37, 38, 39]
    assert len(found) <= 3 + 16


async def test_memory_keeps_what_was_used_last():
    store = MemoryCache(max_entries=2)
    await store.put("a", "x", now=NOW)
    await store.put("b", "x", now=NOW)
    await get(store, "a")
    await store.put("c", "x", now=NOW)
    assert [await get(store, key) for key in "abc"] == ["x", None, "x"]


async def test_memory_is_bounded_in_characters():
    store = MemoryCache(max_characters=100)
    await store.put("large", "x" * 101, now=NOW)
    for key in "abc":
        await store.put(key, "x" * 40, now=NOW)
    assert len(store) == 2
    assert await get(store, "large") is None


async def test_what_is_too_large_is_not_kept(make):
    store = make()
    await store.put("a", "x" * 1_000_001, now=NOW)
    assert await get(store, "a") is None


async def test_the_file_is_its_owners_alone(path):
    await SqliteCache(path).put("a", "x", now=NOW)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_looking_makes_no_file(path):
    assert await get(SqliteCache(path), "a") is None
    assert not path.exists()


DAMAGED = {"text": b"this is no database, and never was " * 40, "torn": b"SQLite format 3\x00" + b"\xff" * 5_000}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_file_is_left_as_it_is_and_told_once(path, caplog, damage):
    path.write_bytes(damage)
    store = SqliteCache(path)
    for _ in range(2):
        assert await get(store, "a") is None
        await store.put("a", "x", now=NOW)
    assert path.read_bytes() == damage
    told = [record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()]
    assert len(told) == 1
    assert "models are asked each time" in told[0]


async def test_a_database_of_something_else_finds_nothing(path, caplog):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE ravi_cache (mine TEXT)")
        connection.execute("INSERT INTO ravi_cache VALUES ('kept')")
    store = SqliteCache(path)
    assert await get(store, "a") is None
    await store.put("a", "x", now=NOW)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM ravi_cache").fetchall() == [("kept",)]
    assert "cannot be used" in caplog.text


async def test_a_file_that_never_ends_is_given_up(path, caplog):
    with closing(sqlite3.connect(path)) as connection, connection:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
        columns = "CAST(x AS TEXT) AS key, 'b' AS body, printf('%064d', x) AS digest, CAST(x AS REAL) AS stored_at"
        connection.execute(f"CREATE VIEW ravi_cache AS SELECT {columns} FROM ({endless})")
    assert await get(SqliteCache(path, busy_s=0), "a") is None
    assert "cannot be used" in caplog.text


FORGED = {
    "another body": "UPDATE ravi_cache SET body = 'y'",
    "another key": "UPDATE ravi_cache SET key = 'b'",
    "a blob": "UPDATE ravi_cache SET body = CAST(body AS BLOB)",
    "a digest of no text": "UPDATE ravi_cache SET digest = 7",
    "a time of no number": "UPDATE ravi_cache SET stored_at = 'soon'",
    "a time that never ends": "UPDATE ravi_cache SET stored_at = 9e999",
    "a large one": "UPDATE ravi_cache SET body = printf('%.*c', 2000000, 'x')",
}


@pytest.mark.parametrize("forgery", FORGED.values(), ids=FORGED)
async def test_a_row_that_is_not_as_it_was_written_is_no_answer(path, forgery):
    store = SqliteCache(path)
    await store.put("a", "x", now=NOW)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(forgery)
    assert [await get(store, key) for key in "ab"] == [None, None]


async def test_a_locked_file_is_not_waited_for_long(path, caplog):
    store = SqliteCache(path, busy_s=0)
    await store.put("a", "x", now=NOW)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert await get(store, "a") is None
        await store.put("b", "x", now=NOW)
    assert await get(store, "a") == "x"
    assert "cannot be used" in caplog.text


PROGRAM = """
import sys, anyio
from ravi_otel.agents.middleware import SqliteCache
async def main():
    store = SqliteCache(sys.argv[1], busy_s=30)
    for number in range(10):
        await store.put(f"{sys.argv[2]}-{number}", sys.argv[2] * 100, now=1000.0)
        assert await store.get(f"{sys.argv[2]}-{number}", now=1000.0, ttl_s=None) == sys.argv[2] * 100
anyio.run(main)
"""


async def test_many_processes_share_a_file(path):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(path)]
    programs = [subprocess.Popen([*command, name]) for name in "ab"]  # noqa: ASYNC220 - to be started is quick
    assert [await anyio.to_thread.run_sync(program.wait) for program in programs] == [0, 0]
    store = SqliteCache(path)
    assert [await get(store, f"{name}-9") for name in "ab"] == [name * 100 for name in "ab"]


@BOTH
async def test_many_tasks_share_a_file(path):
    store = SqliteCache(path, busy_s=30)
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(lambda number=number: store.put(str(number), str(number), now=NOW))
    assert [await get(store, str(number)) for number in range(6)] == [str(number) for number in range(6)]


async def test_a_folder_that_is_not_there_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no folder"):
        SqliteCache(tmp_path / "none" / "cache.db")
    with pytest.raises(ConfigurationError, match=r"^SqliteCache\(path\)=.* is a folder; give a file in it, such as 'cache.db'"):
        SqliteCache(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^SqliteCache\(path\)=5 is no path of a file"):
        SqliteCache(5)


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


class Holding:
    """A store that holds one text, whatever it is asked for."""

    def __init__(self, body=None):
        self.body = body

    async def get(self, key, *, now, ttl_s):
        return self.body

    async def put(self, key, body, *, now):
        self.body = body


async def answered(chat, store, given=None, *, tool_calls=True):
    """Make a call through a cache over `store`, where the model gives `given`; return its context."""
    context = chat()

    async def final(at):
        at.response = given or Generation(ChatMessage("assistant", "asked"), finish_reason="stop")

    await MiddlewarePipeline(Cache(store, tool_calls=tool_calls)).run_chat(context, final)
    return context


async def test_an_answer_comes_back_as_it_was_but_for_what_it_used(instrumented, chat):
    answer = Generation(ChatMessage("assistant", "ok", name="bob", tool_calls=(CALL,)), Usage(10, 20), "tool_calls")
    store = Holding()
    await answered(chat, store, answer)
    found = (await answered(chat, store)).response
    assert (found.message, found.finish_reason, found.usage) == (answer.message, "tool_calls", Usage())


HOSTILE = [
    "",
    "null",
    "[]",
    "7",
    "[" * 100_000,
    '{"version": 1, "content": NaN, "tool_calls": [], "finish_reason": "stop"}',
    '{"version": 2, "content": "x", "name": null, "tool_calls": [], "finish_reason": "stop"}',
    '{"version": 1, "content": 7, "name": null, "tool_calls": [], "finish_reason": "stop"}',
    '{"version": 1, "content": "x", "name": [], "tool_calls": [], "finish_reason": "stop"}',
    '{"version": 1, "content": "x", "name": null, "tool_calls": "look", "finish_reason": "stop"}',
    '{"version": 1, "content": "x", "name": null, "tool_calls": ["look"], "finish_reason": "stop"}',
    '{"version": 1, "content": "x", "name": null, "finish_reason": "stop"}',
    '{"version": 1, "content": "x", "name": null, "tool_calls": [], "finish_reason": "length"}',
    '{"version": 1, "content": "", "name": null, "tool_calls": [], "finish_reason": "stop"}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
async def test_what_is_no_answer_is_not_given(instrumented, chat, body):
    context = await answered(chat, Holding(body))
    assert (context.cached, context.response.message.content) == (False, "asked")


@pytest.mark.parametrize("tool_calls", [False, True])
async def test_tool_calls_are_an_answer_for_those_who_ask_for_them(instrumented, chat, tool_calls):
    body = json.dumps({"version": 1, "content": None, "name": None, "tool_calls": [CALL], "finish_reason": "tool_calls"})
    assert (await answered(chat, Holding(body), tool_calls=tool_calls)).cached == tool_calls


async def test_a_digest_binds_an_answer_to_its_question(path):
    await SqliteCache(path).put("a", "x", now=NOW)
    with closing(sqlite3.connect(path)) as connection:
        (digest,) = connection.execute("SELECT digest FROM ravi_cache").fetchone()
    assert digest == hashlib.sha256(b"a\nx").hexdigest()
