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
    return {each["name"] for each in json.loads(shelf("runs", "--json").stdout)}


def test_old_runs_go_and_are_named(filled):
    done = filled("prune", "--older-than", "14d")
    assert (done.exit_code, done.stderr) == (0, "")
    assert names(filled) == {"10-days", "1-days"}
    assert done.stdout.splitlines()[0].endswith("  20-days  age")
    assert done.stdout.splitlines()[1].startswith("1 run was deleted, ")


def test_how_old_is_for_the_user_to_say(filled):
    filled("prune", "--older-than", "5d")
    assert names(filled) == {"1-days"}


def test_the_oldest_go_until_so_much_is_left(filled):
    filled("prune", "--older-than", "52w", "--keep-bytes", "0B")
    assert names(filled) == {"1-days"}


def test_a_run_in_another_goes_and_stays_with_it_and_is_not_counted_apart(filled):
    launch = filled.add("outer")
    filled.run("inner", parent=launch.launch)
    done = filled("prune", "--older-than", "52w", "--keep-bytes", "0B")
    assert "3 runs were deleted" in done.stdout
    assert [each["run_id"] for each in json.loads(filled("runs", "--json", "--all").stdout)] == ["inner", launch.launch]


def test_a_dry_run_changes_nothing(filled):
    done = filled("prune", "--older-than", "5d", "--dry-run")
    assert "2 runs would be deleted" in done.stdout
    assert len(names(filled)) == 3


def test_a_run_that_goes_on_stays_and_is_said(filled):
    launch = filled.add("old", ago=20 * DAY, outcome="running", seconds=None)
    filled.lives(launch)
    filled.execute("UPDATE runs SET ended = NULL WHERE run = ?", (launch.launch,))
    done = filled("prune", "--older-than", "14d")
    assert names(filled) == {"10-days", "1-days", "old"}
    assert done.stderr == f"Left alone, still running or cut short less than a day ago: {launch.launch}.\n"


def test_names_of_anybodys_cannot_move_the_cursor(filled):
    filled.add("\x1b[31mred\x1b]0;owned\x07", ago=20 * DAY)
    done = filled("prune", "--older-than", "14d")
    assert "\x1b" not in done.stdout + done.stderr
    assert "  red  age" in done.stdout


def test_the_help_says_what_becomes_of_the_latest_run(filled):
    assert "not deleted for its size, but is for its age" in " ".join(filled("prune", "--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--older-than", "old"], "--older-than 'old' is no duration"),
        (["--keep-bytes", "much"], "--keep-bytes 'much' is no amount"),
        (["--user", "a", "--tenant", "b"], "Give one"),
        (["--user", "a", "--older-than", "5d"], "Give one"),
        (["--user", ""], "--user is empty"),
        (["--history", "h.db"], "--history needs --user"),
        (["--user", "a", "--history", "nowhere.db"], "--history 'nowhere.db' is no file"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_deletes_nothing(filled, arguments, words):
    done = filled("prune", *arguments)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert words in done.stderr
    assert len(names(filled)) == 3


def test_what_is_of_one_person_is_erased_and_counted_however_new(filled):
    filled.run("r1", user="u1")
    filled.run("r2", user="u2")
    call = filled.call("r1")
    filled.say("r1", call, "a secret of u1")
    filled.call("r2")
    assert filled("prune", "--user", "u1", "--dry-run").stdout == "Would erase of user u1: 1 run, 1 call.\n"
    assert filled("prune", "--user", "u1").stdout == "Erased of user u1: 1 run, 1 call.\n"
    assert {each["run_id"] for each in json.loads(filled("runs", "--json").stdout)} > {"r2"}
    assert filled("runs", "--user", "u1").stdout.startswith("No run is like that.")
    assert filled("cost", "--user", "u1").stdout == "No stored call fits --user u1.\n"
    assert filled("runs", "--text", "secret").stdout.startswith("No run is like that.")
    assert filled("prune", "--user", "u1").stdout == "Nothing is of user u1: nothing was erased.\n"


@pytest.mark.parametrize(
    "command",
    [("show",), ("runs",), ("cost", "--by", "agent"), ("suggest",), ("prune", "--older-than", "0s"), ("diff", "FIRST", "SECOND")],
)
def test_an_output_of_ascii_is_enough_for_any_name(shelf, command):
    made = [shelf.add("注文 ≥", ago=5, notes=("注文",)) for _ in range(6)]
    for run in made:
        shelf.call(run, agent="注文")
    command = [{"FIRST": made[0].launch, "SECOND": made[1].launch}.get(each, each) for each in command]
    program = [sys.executable, "-m", "ravi_otel", *command, "--store", str(shelf.store.root)]
    done = warm_starts.run(program, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
