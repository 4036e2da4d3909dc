from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel.local.store import Store, processes
from ravi_otel.local.store.pruning import is_running, prune

DAY = 24 * 3600.0
NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def begun(store, age_days=0.0, size=0, *, outcome="ok", **facts):
    run = store.begin("r")
    if size:
        (run.path / f"{os.getpid()}-aa.traces.jsonl").write_bytes(b"x" * size)
    return run.write(started=NOW - age_days * DAY, outcome=outcome, **facts)


def ids(runs):
    return [run.run_id for run in runs]


def test_a_run_older_than_the_age_goes_and_a_younger_one_stays(store):
    old, young = begun(store, 15), begun(store, 13)
    pruned = prune(store, now=NOW)
    assert [(each.run.run_id, each.why) for each in pruned.removed] == [(old.run_id, "age")]
    assert ids(store.runs()) == [young.run_id]
    assert not old.path.exists()


def test_the_oldest_go_until_the_bytes_fit(store):
    runs = [begun(store, age, 10_000) for age in (3, 2, 1)]
    pruned = prune(store, max_bytes=25_000, now=NOW)
    assert [(each.run.run_id, each.why) for each in pruned.removed] == [(runs[0].run_id, "size")]
    assert pruned.bytes >= 10_000
    assert pruned.bytes_left <= 25_000


def test_the_latest_run_that_ended_does_not_go_for_its_size_alone(store):
    older, latest, running = begun(store, 2, 10), begun(store, 1, 50_000), begun(store, 0, 50_000, outcome="running")
    assert [each.run.run_id for each in prune(store, max_bytes=1_000, now=NOW).removed] == [older.run_id]
    assert set(ids(store.runs())) == {latest.run_id, running.run_id}


def test_a_large_run_that_goes_on_drives_no_other_out(store):
    ended = [begun(store, 2, 10), begun(store, 1, 10)]
    begun(store, 0, 50_000, outcome="running")
    assert prune(store, max_bytes=10_000, now=NOW).removed == ()
    assert len(ended) == 2


def test_the_run_to_keep_stays_whatever_its_age(store):
    run = begun(store, 99)
    assert prune(store, keep=run.run_id, now=NOW).removed == ()


def test_a_run_whose_launcher_lives_stays_and_is_told(store):
    run = begun(store, 99, outcome="running")
    assert is_running(run)
    pruned = prune(store, max_bytes=0, now=NOW)
    assert (pruned.removed, ids(pruned.running)) == ((), [run.run_id])


def test_a_run_whose_launcher_was_killed_goes(store):
    program = "import json; from ravi_otel.local.store import processes; print(json.dumps(processes.this_one()))"
    dead = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    run = begun(store, 99, outcome="running", launcher=dead)
    assert not is_running(run)
    assert [each.run.run_id for each in prune(store, now=NOW).removed] == [run.run_id]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells when a process started")
def test_a_launchers_number_that_another_process_has_now_is_no_launcher(store):
    assert not is_running(begun(store, outcome="running", launcher=processes.this_one() | {"start": "1"}))


@pytest.mark.parametrize(("quiet_days", "expected"), [(0.5, True), (2, False)])
@pytest.mark.parametrize("launcher", [{}, {"pid": 1, "start": "2", "machine": "another"}, {"pid": "x"}, {"pid": -1}])
def test_a_run_of_an_unknown_launcher_runs_for_a_day_after_its_last_write(store, quiet_days, expected, launcher):
    run = begun(store, 99, outcome="running", launcher=launcher)
    for path in run.path.iterdir():
        os.utime(path, (NOW - quiet_days * DAY,) * 2)
    assert is_running(run, NOW) is expected


def test_what_is_no_run_is_never_touched(store):
    (store.runs_path / "notes").mkdir()
    (store.runs_path / "notes" / "mine.txt").write_text("keep")
    (store.runs_path / "file").write_text("keep")
    half = begun(store, 99)
    (half.path / "run.json").write_text('{"run_id": "')
    (half.path / "mine.txt").write_text("keep")
    (half.path / "run.json").rename(half.path / "run.json.old")
    copied = begun(store, 99)
    copied.path.rename(store.runs_path / "20200101T000000-abcdef")
    pruned = prune(store, max_age_s=0, max_bytes=0, now=NOW)
    assert pruned.removed == ()
    assert (store.runs_path / "notes" / "mine.txt").read_text() == "keep"
    assert (half.path / "mine.txt").read_text() == "keep"
    assert {path.name for path in pruned.unreadable} == {"notes", "file", "20200101T000000-abcdef"}
    assert ids(pruned.foreign) == [half.run_id]


@pytest.mark.parametrize("manifest", [None, "", '{"run_id": "', '{"run_id": "x", "name": "y", "started": true}'])
def test_a_run_whose_manifest_cannot_be_read_goes_by_its_last_write(store, manifest):
    run = begun(store, 0)
    (run.path / "run.json").unlink()
    if manifest is not None:
        (run.path / "run.json").write_text(manifest)
    last = max(path.lstat().st_mtime for path in (run.path, *run.path.iterdir()))
    for days, gone in ((0.5, False), (13, False), (15, True)):
        pruned = prune(store, now=last + days * DAY)
        assert [each.run.run_id for each in pruned.removed] == [run.run_id] * gone
        assert [path.name for path in pruned.unreadable] == [run.run_id] * (not gone)
        assert run.path.exists() is not gone


def test_bytes_of_what_cannot_be_read_stay_too(store):
    run = begun(store, 0, 5_000)
    (run.path / "run.json").write_text("")
    assert prune(store, now=run.path.stat().st_mtime).bytes_left == 5_000


def test_runs_behind_a_link_out_of_the_store_stay_and_are_told(store, tmp_path):
    run = begun(store, 99)
    store.runs_path.rename(tmp_path / "archive")
    store.runs_path.symlink_to(tmp_path / "archive")
    pruned = prune(store, max_bytes=0, now=NOW)
    assert (pruned.removed, ids(pruned.linked)) == ((), [run.run_id])
    assert (tmp_path / "archive" / run.run_id / "run.json").exists()


def test_a_store_reached_through_a_link_is_pruned_as_it_stands(store, tmp_path):
    begun(store, 99)
    (tmp_path / "link").symlink_to(store.root)
    assert len(prune(Store.find(tmp_path / "link"), now=NOW).removed) == 1


def test_a_run_dated_in_the_future_does_not_take_the_place_of_the_latest(store):
    latest, future = begun(store, 1, 10), begun(store, -999, 10)
    assert [each.run.run_id for each in prune(store, max_bytes=0, now=NOW).removed] == [future.run_id]
    assert ids(store.runs()) == [latest.run_id]


def test_a_run_dated_in_the_future_grows_old_from_its_last_write(store):
    run = begun(store, -9999)
    for path in run.path.iterdir():
        os.utime(path, (NOW - 15 * DAY,) * 2)
    assert [each.why for each in prune(store, now=NOW).removed] == ["age"]


@pytest.fixture
def survivor(tmp_path):
    """Start a process that works on, and stop it in the end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        yield program.pid
        program.communicate(b"\n", timeout=60)


DEAD = {"pid": 2**22 + 1, "start": "1"}


def test_a_run_whose_launcher_was_killed_stays_while_its_program_works(store, survivor):
    run = begun(store, 99, outcome="running", launcher=processes.this_one() | DEAD)
    (run.path / f"{survivor}-ab.traces.jsonl").write_text("{}\n")
    assert is_running(run)
    pruned = prune(store, max_bytes=0, now=NOW)
    assert (pruned.removed, ids(pruned.running)) == ((), [run.run_id])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells when a process started")
def test_a_process_with_the_number_of_one_that_wrote_long_before_is_no_survivor(store, survivor):
    run = begun(store, 99, outcome="running", launcher=processes.this_one() | DEAD)
    path = run.path / f"{survivor}-ab.traces.jsonl"
    path.write_text("{}\n")
    os.utime(path, (processes.began(survivor) - 2 * DAY,) * 2)
    assert not is_running(run)


def test_a_run_cut_short_stays_for_a_day_because_its_program_may_not_have_written_yet(store):
    run = begun(store, 99, outcome="running", launcher=processes.this_one() | DEAD)
    last = (run.path / "run.json").stat().st_mtime
    assert not is_running(run)
    assert ids(prune(store, max_age_s=0, now=last + 0.9 * DAY).running) == [run.run_id]
    assert [each.run.run_id for each in prune(store, max_age_s=0, now=last + 1.1 * DAY).removed] == [run.run_id]


@pytest.mark.parametrize(
    "name", ["x-ab.traces.jsonl", "0-ab.traces.jsonl", f"{'9' * 30}-ab.logs.jsonl", "²-ab.traces.jsonl", "-1-a.traces.jsonl"]
)
def test_odd_names_are_no_processes(store, name):
    run = begun(store, 99, outcome="running", launcher=processes.this_one() | DEAD)
    (run.path / name).write_text("")
    assert not is_running(run)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_run_with_something_foreign_in_it_stays_and_is_told(store, tmp_path, kind):
    run = begun(store, 99, 10)
    foreign = run.path / "mine.txt"
    if kind == "file":
        foreign.write_text("keep")
    elif kind == "directory":
        foreign.mkdir()
    else:
        (tmp_path / "precious").write_text("keep")
        (run.path / "1-aa.logs.jsonl").symlink_to(tmp_path / "precious")
    before = sorted(run.path.iterdir())
    pruned = prune(store, now=NOW)
    assert (pruned.removed, ids(pruned.foreign)) == ((), [run.run_id])
    assert sorted(run.path.iterdir()) == before


def test_a_run_that_is_a_link_to_elsewhere_stays(store, tmp_path):
    run = begun(store, 99)
    elsewhere = tmp_path / run.run_id
    run.path.rename(elsewhere)
    run.path.symlink_to(elsewhere)
    assert prune(store, now=NOW).removed == ()
    assert (elsewhere / "run.json").exists()


def test_every_file_of_a_run_goes(store):
    run = begun(store, 99)
    for name in (
        "ledger.db",
        "ledger.db-wal",
        "ledger.db-shm",
        "notes.jsonl",
        "7-ab.logs.jsonl",
        "7-ab.metrics.2.jsonl",
        ".run.json.7-ab12cd",
    ):
        (run.path / name).write_text("x")
    assert len(prune(store, now=NOW).removed) == 1
    assert not run.path.exists()


def test_a_dry_run_reports_the_same_and_removes_nothing(store):
    begun(store, 99, 10)
    begun(store, 1, 10)
    dry = prune(store, now=NOW, dry_run=True)
    assert len(store.runs()) == 2
    assert prune(store, now=NOW) == dry


def test_an_empty_store_has_nothing_to_prune(tmp_path):
    assert prune(Store(tmp_path), now=NOW).removed == ()


@settings(max_examples=25, deadline=None)
@given(
    runs=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 5_000), st.booleans()), max_size=6),
    most=st.integers(0, 20_000),
)
def test_pruning_leaves_the_youngest_and_pruning_again_changes_nothing(tmp_path_factory, runs, most):
    store = Store.open(tmp_path_factory.mktemp("pruned") / "store")
    made = [begun(store, age, size, outcome="running" if runs_on else "ok") for age, size, runs_on in runs]
    pruned = prune(store, max_bytes=most, now=NOW)
    gone = {each.run.run_id for each in pruned.removed}
    assert not gone & {run.run_id for run in made if run.manifest.outcome == "running"}
    ended = [run for run in made if run.manifest.outcome == "ok"]
    youngest_gone = max((run.manifest.started for run in ended if run.run_id in gone), default=0.0)
    assert all(run.manifest.started >= youngest_gone for run in ended if run.run_id not in gone)
    assert all(run.manifest.started >= NOW - 14 * DAY for run in ended if run.run_id not in gone)
    assert prune(store, max_bytes=most, now=NOW).removed == ()
