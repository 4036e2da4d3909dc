from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel.errors import ConfigurationError
from ravi_otel.local.store import Store
from ravi_otel.local.store.directory import Manifest, read_manifest
from ravi_otel.local.store.pruning import prune

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.integers(-(10**400), 10**400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@settings(max_examples=200 if os.environ.get("RAVI_LONG") else 80, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(Manifest.__dataclass_fields__, JSON)))
def test_a_manifest_of_any_shape_is_read_or_is_none(known):
    facts = read_manifest({"run_id": "r", "name": "n", "started": 1.0} | known)
    if facts is not None:
        json.dumps({"started": facts.started, "ended": facts.ended, "status": facts.status, "outcome": facts.outcome}, allow_nan=False)
        assert {facts.outcome} <= {"running", "ok", "failed", "limited", "unattached", "signal"}


@pytest.mark.parametrize("started", ["true", "1e400", "-1e400", "NaN", "1" + "0" * 400, "[]", "null", '"1"'])
def test_a_beginning_that_is_no_time_makes_the_run_unreadable_and_no_other(store, started):
    bad, good = store.begin("bad"), store.begin("good")
    (bad.path / "run.json").write_text(f'{{"run_id": "{bad.run_id}", "name": "n", "started": {started}}}')
    assert [run.run_id for run in store.runs()] == [good.run_id]
    assert store.unreadable() == [bad.path]
    assert prune(store).removed == ()


@pytest.mark.parametrize("field", ["outcome", "status", "ended"])
@pytest.mark.parametrize("value", ["[]", "{}", "1e400", "NaN", "1" + "0" * 400, "true", '"x"'])
def test_a_field_of_another_kind_is_left_out_and_the_run_is_read(store, field, value):
    run = store.begin("r")
    (run.path / "run.json").write_text(f'{{"run_id": "{run.run_id}", "name": "n", "started": 1, "{field}": {value}}}')
    (read,) = store.runs()
    assert getattr(read.manifest, field) == getattr(Manifest("r", "n", 1.0), field)


def test_every_file_is_for_its_owner_only_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = Store.open(tmp_path / "store")
        run = store.begin("r").write(outcome="ok")
    finally:
        os.umask(before)
    assert [mode(path) for path in (store.root, store.runs_path, run.path)] == [0o700] * 3
    assert {mode(path) for path in store.root.rglob("*") if path.is_file()} == {0o600}
    assert sorted(path.name for path in store.root.iterdir()) == [".gitignore", "runs", "store.json"]


@pytest.mark.parametrize("which", ["run.json", "store.json"])
@pytest.mark.parametrize("kind", ["pipe", "zeros", "directory", "huge"])
def test_what_is_no_file_of_a_sensible_size_is_not_read(store, which, kind):
    path = (store.begin("r").path if which == "run.json" else store.root) / which
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(2**34)
    if which == "run.json":
        assert store.runs() == []
        assert prune(store).removed == ()
    else:
        for look in (Store.open, Store.find):
            with pytest.raises(ConfigurationError, match="is not a store"):
                look(store.root)


FIRST = """
import sys
from pathlib import Path
from ravi_otel.local.store import Store
print("ready", flush=True)
for line in sys.stdin:
    Store.open(Path(line.strip())).begin("x")
    print("done", flush=True)
"""


def test_many_first_starts_at_once_all_have_the_store(tmp_path):
    programs = [subprocess.Popen([sys.executable, "-c", FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        assert [program.stdout.readline() for program in programs] == ["ready\n"] * 4
        for each in range(25):
            for program in programs:
                program.stdin.write(f"{tmp_path / str(each)}\n")
                program.stdin.flush()
            assert [program.stdout.readline() for program in programs] == ["done\n"] * 4
            assert len(Store.find(tmp_path / str(each)).runs()) == 4
    finally:
        for program in programs:
            program.communicate(timeout=60)


@pytest.fixture
def full_disk():
    """Let no file grow, as a full disk does."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_full(full):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if full else soft, hard))

    yield set_full
    set_full(False)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_at_the_first_start_is_one_sentence_and_harms_no_later_start(tmp_path, full_disk):
    full_disk(True)
    with pytest.raises(ConfigurationError, match="cannot be made"):
        Store.open(tmp_path / "store")
    full_disk(False)
    assert list((tmp_path / "store").iterdir()) == []
    Store.open(tmp_path / "store").begin("r")


def test_a_full_disk_at_the_start_of_a_run_is_one_sentence_and_leaves_nothing(store, full_disk):
    full_disk(True)
    with pytest.raises(ConfigurationError, match=r"the run cannot be kept in .*: File too large.*RAVI_STORE"):
        store.begin("r")
    full_disk(False)
    assert list(store.runs_path.iterdir()) == []


def test_a_manifest_that_cannot_be_replaced_stays_as_it_was(store, full_disk):
    run = store.begin("r")
    full_disk(True)
    with pytest.raises(OSError, match="too large"):
        run.write(outcome="ok")
    full_disk(False)
    assert [path.name for path in run.path.iterdir()] == ["run.json"]
    assert store.run().manifest.outcome == "running"


def test_what_a_start_that_was_killed_left_is_no_hindrance(tmp_path):
    (tmp_path / ".store.json.4711-a1b2c3").write_text('{"store')
    (tmp_path / ".gitignore").write_text("")
    assert Store.open(tmp_path).begin("r").path.is_dir()


@pytest.mark.parametrize("name", ["mine.txt", ".gitignore"])
def test_a_directory_with_anything_of_somebody_elses_is_not_taken(tmp_path, name):
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(ConfigurationError, match="is not a store"):
        Store.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("look", [Store.open, Store.find])
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["finance"], "holds a store, 'finance'. Set RAVI_STORE or --store to it, or RAVI_STORE to another directory; nothing in"),
        (["a", "b\x1b", "c", "d"], r"holds stores, 'a', 'b\x1b', 'c' and 1 more. Set RAVI_STORE or --store to one of them, or "),
    ],
)
def test_a_directory_of_stores_is_none_and_the_sentence_names_those_in_it(tmp_path, look, names, told):
    for name in names:
        Store.open(tmp_path / name)
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "store.json").write_text('{"store": "ravi-otel", "much": "' + "x" * 1_000 + '"}')
    (tmp_path / "mine.txt").write_text("mine\n")
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        look(tmp_path)
    assert not (tmp_path / "store.json").exists()


def test_an_empty_directory_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigurationError, match="is not a store"):
        Store.open(tmp_path / "link")
    assert (list((tmp_path / "theirs").iterdir()), mode(tmp_path / "theirs")) == ([], 0o755)


def test_a_store_of_ours_is_used_through_a_link(store, tmp_path):
    (tmp_path / "link").symlink_to(store.root)
    run = Store.open(tmp_path / "link").begin("r")
    assert [each.run_id for each in store.runs()] == [run.run_id]


def test_the_mode_of_a_directory_that_was_there_is_left_alone(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o750)
    Store.open(tmp_path / "theirs")
    assert mode(tmp_path / "theirs") == 0o750
