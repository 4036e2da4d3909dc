"""The local store: whose it is, and that nothing of it is made by looking."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking_doctor import ask, states, the

from ravi_otel.local.store import Store
from ravi_otel.stack.doctor import local_store


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAVI_STORE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_store_that_is_not_there_yet_is_not_made(place):
    assert the(ask(local_store.examine), "store").state == "left_out"
    assert not place.exists()


def test_a_store_of_ones_own_is_well(place):
    Store.open(place)
    assert states(ask(local_store.examine)) == {"store.owner": {"well"}, "store.size": {"well"}}


def test_a_store_that_others_may_look_into_is_odd(place):
    Store.open(place)
    place.chmod(0o755)
    found = the(ask(local_store.examine), "store.owner")
    assert (found.state, found.advice) == ("odd", f"Run: chmod 700 {place}")


def test_a_directory_of_something_else_is_broken(place):
    place.mkdir(mode=0o700)
    (place / "letter.txt").write_text("dear")
    found = the(ask(local_store.examine), "store")
    assert (found.state, found.advice) == ("broken", "Set RAVI_STORE to a store, or to a directory that is empty or not there yet.")


def test_a_file_in_its_place_is_broken(place):
    place.write_text("")
    assert the(ask(local_store.examine), "store").state == "broken"
