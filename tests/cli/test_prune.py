from __future__ import annotations

import json
import os
import sys

import pytest
import warm_starts

DAY = 86_400


@pytest.fixture
def filled(shelf):
    for days in (20, 10, 1):
        shelf.call(shelf.add(f"{days}-days", ago=days * DAY))
    return shelf


def names(shelf):
    return {run.manifest.name for run in shelf.store.runs()}


def test_old_runs_go_and_are_named(filled):
    done = filled("prune")
    assert (done.exit_code, done.stderr) == (0, "")
    assert names(filled) == {"10-days", "1-days"}
    assert "deleted" in done.stdout.splitlines()[0]
    assert "20-days" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1].startswith("1 run was deleted, ")


def test_how_old_is_for_the_user_to_say(filled):
    filled("prune", "--older-than", "5d")
    assert names(filled) == {"1-days"}


def test_the_oldest_go_until_so_much_is_left(filled):
    filled("prune", "--older-than", "52w", "--keep-bytes", "0B")
    assert names(filled) == {"1-days"}


def test_a_dry_run_changes_nothing(filled):
    held = filled.files()
    done = filled("prune", "--older-than", "5d", "--dry-run")
    assert "2 runs would be deleted" in done.stdout
    assert filled.files() == held


def test_a_run_with_files_of_somebody_else_stays_and_is_said(filled):
    (old,) = [run for run in filled.store.runs() if run.manifest.name == "20-days"]
    (old.path / "thesis.txt").write_text("mine")
    held = filled.files()
    done = filled("prune")
    assert filled.files() == held
    assert done.stderr == f"Left alone, with files in them that are not ours: {old.run_id}.\n"


def test_a_run_whose_manifest_is_broken_is_said_and_counted_and_goes_when_it_is_old(filled):
    run = filled.add("broken")
    (run.path / "run.json").write_text("{")
    (run.path / "1-ab.traces.jsonl").write_bytes(b"x" * 50_000)
    done = filled("prune", "--older-than", "52w")
    assert done.stderr == f"Left alone, without a readable run.json: {run.run_id}.\n"
    assert "KiB stay" in done.stdout
    for path in (*run.path.iterdir(), run.path):
        os.utime(path, (run.manifest.started - 20 * DAY,) * 2)
    done = filled("prune", "--older-than", "15d")
    assert f"deleted {run.run_id}  (no readable run.json)" in done.stdout
    assert (done.exit_code, done.stderr, run.path.exists()) == (0, "", False)


def test_names_of_anybodys_cannot_move_the_cursor(filled):
    name = "\x1b[31mred\x1b]0;owned\x07"
    (filled.store.runs_path / name).mkdir()
    (filled.store.runs_path / name / "run.json").write_text(f'{{"run_id": {json.dumps(name)}, "name": "n", "started": 1, "outcome": "ok"}}')
    (filled.store.runs_path / "\x1b[5m").mkdir()
    done = filled("prune")
    assert "\x1b" not in done.stdout + done.stderr
    assert "deleted red  n  " in done.stdout
    assert "Left alone, without a readable run.json: " in done.stderr


def test_the_help_says_what_becomes_of_the_latest_run(filled):
    assert "not deleted for its size, but is for its age" in " ".join(filled("prune", "--help").stdout.split())


def test_runs_behind_a_link_stay_and_are_said(filled, tmp_path):
    filled.store.runs_path.rename(tmp_path / "archive")
    filled.store.runs_path.symlink_to(tmp_path / "archive")
    done = filled("prune", "--older-than", "1s")
    assert len(list((tmp_path / "archive").iterdir())) == 3
    assert done.stderr.startswith("Left alone, because a link leads to them: ")


@pytest.mark.parametrize("arguments", [("--older-than", "old"), ("--keep-bytes", "much")])
def test_a_wrong_option_is_a_sentence_and_deletes_nothing(filled, arguments):
    held = filled.files()
    done = filled("prune", *arguments)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert filled.files() == held


def test_what_was_pruned_is_gone_from_the_list(filled):
    filled("runs")
    filled("prune")
    assert "20-days" not in filled("runs").stdout


@pytest.mark.parametrize("command", [("show",), ("runs",), ("cost", "--by", "agent"), ("suggest",), ("prune", "--older-than", "0s")])
def test_an_output_of_ascii_is_enough_for_any_name(shelf, command):
    for _ in range(6):
        shelf.call(shelf.add("注文 ≥", ago=5, notes=("注文",)), agent="注文")
    program = [sys.executable, "-m", "ravi_otel", *command, "--store", str(shelf.store.root)]
    done = warm_starts.run(program, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
