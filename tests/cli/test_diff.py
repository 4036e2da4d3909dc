from __future__ import annotations

import json

import pytest


@pytest.fixture
def two(shelf):
    for run, cost, agent in (("a" * 32, 1.0, "lead"), ("b" * 32, 2.5, "lead")):
        shelf.run(run, name="triage")
        shelf.call(run, (100, 10), cost, agent=agent)
    shelf.call("b" * 32, None, None, agent="clerk", model="silent")
    return shelf


def test_two_runs_are_compared_by_what_they_used_and_who_used_it(two):
    done = two("diff", "aaaa", "bbbb")
    assert done.exit_code == 0, done.stderr
    lines = {" ".join(line.split()[:-2]): line.split()[-2:] for line in done.stdout.splitlines()}
    assert lines["lead · m-1: cost $1.0000"] == ["$2.5000", "+$1.5000"]
    assert "requests" in done.stdout
    assert "≥" in done.stdout
    assert "≥ at least" in done.stdout


def test_eighty_columns_are_enough_for_who_they_are_and_for_the_change(two):
    done = two("diff", "aaaa", "bbbb", width=80)
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert (lines["run"], lines["name"]) == (["aaaaaaaa", "bbbbbbbb"], ["triage", "triage"])
    assert lines["what"] == ["first", "second", "change"]
    assert lines["seconds"] == ["1.0", "1.0"]
    assert len(lines["began"]) == 4


def test_what_is_not_known_is_null_for_programs_and_no_change(two):
    document = json.loads(two("diff", "a" * 32, "b" * 32, "--json").stdout)
    found = {each["what"]: (each["first"], each["second"]) for each in document["differences"]}
    assert found["cost"] == (1.0, 2.5)
    assert found["clerk · silent: cost"] == (None, None)
    assert found["requests"] == (1, 2)
    assert (document["first"]["run_id"], document["second"]["run_id"]) == ("a" * 32, "b" * 32)


@pytest.mark.parametrize(("first", "second"), [("aaaa", "nobody"), ("", "bbbb"), ("\x1b[31m", "bbbb")])
def test_a_run_that_is_none_is_a_sentence(two, first, second):
    done = two("diff", first, second)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_stay_on_their_line(two, width):
    two.call("a" * 32, agent="ev\x1b[31mil\u202e\n[bold]" + "y" * 300)
    done = two("diff", "aaaa", "bbbb", width=width)
    assert all(char == "\n" or char.isprintable() for char in done.stdout)
    assert all(len(line) <= width for line in done.stdout.splitlines()[:-1])
