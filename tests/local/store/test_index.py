from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest
import warm_starts

from ravi_otel.local.store import Store
from ravi_otel.local.store.index import ask, past_agents, past_calls, past_runs, sums_of


@pytest.fixture
def said():
    return []


def runs(store, said):
    return [(row["run_id"], row["requests"], row["input_tokens"]) for row in ask(store, past_runs(), say=said.append)]


def files_of(store):
    return {path: path.read_bytes() for path in store.runs_path.rglob("*") if path.is_file()}


def test_the_sums_of_a_run_are_those_of_its_tree(desk, said):
    run = desk.fill(3)
    assert runs(desk.store, said) == [(run.run_id, 3, 90)]
    (call,) = [row for row in ask(desk.store, past_calls(), say=said.append) if row["requests"]]
    assert (call["agent"], call["model"], call["session"], sums_of(call).turns) == ("clerk", "gpt-4o-mini", None, 3)
    (agent,) = ask(desk.store, past_agents(), say=said.append)
    assert (agent["agent"], agent["status"], sums_of(agent).output_tokens) == ("clerk", "ok", 30)
    assert said == []


def test_new_changed_and_removed_runs_are_seen(desk, said):
    first = desk.fill(1)
    assert len(runs(desk.store, said)) == 1
    second = desk.fill(2)
    assert [row[1] for row in runs(desk.store, said)] == [2, 1]
    (path,) = second.files()
    path.write_text("")
    assert [row[1] for row in runs(desk.store, said)] == [0, 1]
    for path in first.path.iterdir():
        path.unlink()
    first.path.rmdir()
    assert [row[0] for row in runs(desk.store, said)] == [second.run_id]


def test_what_has_not_changed_is_not_read_again(desk, said):
    run = desk.fill(1)
    told = []
    ask(desk.store, past_runs(), say=said.append, told=lambda done, total: told.append((done, total)))
    size = sum(path.stat().st_size for path in run.files())
    assert told[-1] == (size, size)
    told.clear()
    ask(desk.store, past_runs(), say=said.append, told=lambda done, total: told.append((done, total)))
    assert told == []


def sqlite_of_another_program(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE precious (x)")
    connection.close()


def index_of_another_format(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id = 1918989929")
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE runs (x)")
    connection.close()


def torn(path):
    path.write_bytes(path.read_bytes()[:5_000])


def overwritten(path):
    held = bytearray(path.read_bytes())
    held[4_096:] = b"\xff" * (len(held) - 4_096)
    path.write_bytes(held)


@pytest.mark.parametrize(
    "spoil", [sqlite_of_another_program, index_of_another_format, torn, overwritten, lambda path: path.write_text("my diary")]
)
def test_an_index_that_is_not_ours_or_broken_is_kept_and_made_anew(desk, said, spoil):
    desk.fill(2)
    before = runs(desk.store, said)
    if spoil in (sqlite_of_another_program, index_of_another_format):
        desk.store.index.unlink()
    spoil(desk.store.index)
    held, files = desk.store.index.read_bytes(), files_of(desk.store)
    assert runs(desk.store, said) == before
    (sentence,) = said
    (aside,) = desk.store.root.glob("index.db.*.aside")
    assert aside.name in sentence
    assert aside.read_bytes() == held
    assert files_of(desk.store) == files
    assert runs(desk.store, said) == before
    assert len(said) == 1


def test_an_index_that_is_gone_is_made_again_without_a_word(desk, said):
    desk.fill(2)
    before = runs(desk.store, said)
    desk.store.index.unlink()
    assert runs(desk.store, said) == before
    assert said == []


def test_an_index_that_cannot_be_written_costs_a_sentence_and_no_answer(desk, said):
    desk.fill(2)
    desk.store.index.mkdir()
    assert [row[1] for row in runs(desk.store, said)] == [2]
    assert len(said) == 1
    assert "every run is read anew" in said[0]


def test_names_that_no_database_can_hold_are_held(desk, said):
    run = desk.fill(1)
    (path,) = run.files()
    path.write_text(path.read_text().replace("clerk", "\\ud83d\\u0000 half"))
    run.write(name="\ud83d", status=2**80)
    (row,) = ask(desk.store, past_runs(), say=said.append)
    assert (row["name"], row["status"]) == ("?", None)
    assert [agent["agent"] for agent in ask(desk.store, past_agents(), say=said.append)] == ["?\x00 half"]


@pytest.mark.parametrize("broken", [False, True])
def test_several_commands_at_once_agree(desk, broken):
    for _ in range(5):
        desk.fill(1)
    if broken:
        desk.store.index.write_bytes(b"my own data" * 1_000)
    program = (
        "import sys; from pathlib import Path; from ravi_otel.local.store import Store; "
        "from ravi_otel.local.store.index import ask, past_runs;"
        "said = []; print(len(ask(Store.find(Path(sys.argv[1])), past_runs(), say=said.append)), said)"
    )
    started = [
        warm_starts.start([sys.executable, "-c", program, str(desk.store.root)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert {process.communicate()[0][:2] for process in started} == {"5 "}
    assert [path.read_bytes() for path in desk.store.root.glob("*.aside")] == [b"my own data" * 1_000] * broken


def test_an_empty_store_has_no_past(tmp_path, said):
    assert runs(Store.open(tmp_path / ".ravi"), said) == []


def test_only_the_time_asked_for_counts(desk, said):
    run = desk.fill(1)
    assert len(ask(desk.store, past_runs(run.manifest.started), say=said.append)) == 1
    assert ask(desk.store, past_runs(run.manifest.started + 1), say=said.append) == []
    assert ask(desk.store, past_calls(run.manifest.started + 1), say=said.append) == []
