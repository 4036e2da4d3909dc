"""The local store: whose it is, and that nothing of it is made by looking."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from asking_doctor import ask, states, the

from ravi_otel._local.store import Store
from ravi_otel._stack.doctor import store as checks


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_store_that_is_not_there_yet_is_not_made(place):
    assert the(ask(checks.examine), "store").state == "left_out"
    assert not place.exists()


def test_a_store_of_ones_own_is_well(place):
    Store.open(place)
    assert states(ask(checks.examine)) == {"store.owner": {"well"}, "store.size": {"well"}, "store.file": {"well"}}


def test_a_store_that_others_may_look_into_is_odd(place):
    Store.open(place)
    place.chmod(0o755)
    found = the(ask(checks.examine), "store.owner")
    assert (found.state, found.advice) == ("odd", f"Run: chmod 700 {place}")


def test_a_directory_of_something_else_is_broken(place):
    place.mkdir(mode=0o700)
    (place / "letter.txt").write_text("dear")
    found = the(ask(checks.examine), "store")
    assert (found.state, found.advice) == ("broken", "Set RAVI_STORE to a store, or to a directory that is empty or not there yet.")


def test_a_file_in_its_place_is_broken(place):
    place.write_text("")
    assert the(ask(checks.examine), "store").state == "broken"


def test_a_store_with_a_damaged_page_is_broken(place):
    store = Store.open(place)
    with closing(store.connect()) as connection:
        for number in range(2_000):
            connection.execute("INSERT INTO notes (at, kind, text) VALUES (?, 'report', ?)", (number, "x" * 100))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = bytearray(store.file.read_bytes())
    whole[-3 * 4096 : -2 * 4096] = b"\xff" * 4096
    store.file.write_bytes(whole)
    found = the(ask(checks.examine), "store.file")
    assert (found.state, found.said.startswith(f"{store.file} is damaged")) == ("broken", True)


def test_a_file_of_another_program_in_its_place_is_broken(place):
    place.mkdir(mode=0o700)
    with closing(sqlite3.connect(place / "runs.db")) as connection:
        connection.execute("CREATE TABLE letters (text)")
        connection.commit()
    found = the(ask(checks.examine), "store")
    assert (found.state, "another program" in found.said) == ("broken", True)


def test_what_could_not_be_written_is_odd(place):
    with closing(Store.open(place).connect()) as connection:
        connection.execute("INSERT INTO processes (process, began, lost, lost_why) VALUES ('p', 1, 7, 'the disk is full')")
    found = the(ask(checks.examine), "store.records")
    assert (found.state, "7 records" in found.said, "the disk is full" in found.said) == ("odd", True, True)


def test_a_store_of_the_former_layout_is_said_to_be_there(place):
    (place / "runs" / "20260101T000000-abc").mkdir(parents=True, mode=0o700)
    place.chmod(0o700)
    (place / "store.json").write_text("{}")
    found = the(ask(checks.examine), "store.former")
    assert (found.state, "1 run of the former layout" in found.said) == ("left_out", True)
