from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from ravi_otel._cli.entry import commands
from ravi_otel._cli.frame import parse_duration, parse_size
from ravi_otel.errors import ConfigurationError


def test_runs_are_listed_newest_first_with_their_sums(shelf):
    old = shelf.add("first", ago=100, seconds=1.5)
    shelf.call(old, (1_000, 200), 0.25)
    new = shelf.add("second", outcome="stopped", status=4)
    done = shelf("runs")
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = [line.split() for line in done.stdout.splitlines()[2:]]
    assert (first[0], first[3:]) == (new.launch, ["second", "stopped", "0", "0", "$0", "2.0"])
    assert (second[0], second[3:]) == (old.launch, ["first", "ok", "1", "1,200", "$0.2500", "1.5"])


def test_the_end_of_an_agent_that_was_stopped_is_in_the_table_and_in_the_json(shelf):
    stopped = shelf.add("stopped")
    outer = shelf.agent(stopped, "lead", status="stopped", stop_reason="supervisor_block:over_the_cap", depth=0)
    shelf.agent(stopped, "sub", parent=outer, status="error", stop_reason="llm_error:X", depth=1)
    shelf.agent(shelf.add("fine"), "lead")
    shelf.agent(shelf.add("paused"), "lead", status="paused", stop_reason="paused")
    rows = {line.split()[3]: line.split()[4:] for line in shelf("runs", width=160).stdout.splitlines()[2:]}
    assert rows["stopped"][:3] == ["ok", "stopped", "supervisor_block:over_the_cap"]
    assert rows["fine"][:2] == ["ok", "0"]
    assert rows["paused"][:3] == ["ok", "paused", "0"]
    fields = {each["name"]: (each["end_status"], each["stop_reason"]) for each in json.loads(shelf("runs", "--json").stdout)}
    assert fields == {"stopped": ("stopped", "supervisor_block:over_the_cap"), "fine": (None, None), "paused": ("paused", "paused")}


def test_a_hostile_stop_reason_stays_on_its_line(shelf):
    shelf.agent(shelf.add("evil"), "lead", status="stopped", stop_reason="no\x1b[31m\nmore" + "y" * 500)
    for command in ("runs", "show"):
        done = shelf(command, width=80)
        assert all(char == "\n" or char.isprintable() for char in done.stdout)
        assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_only_as_many_as_asked_for(shelf):
    for number in range(5):
        shelf.add(f"run-{number}", ago=number)
    done = shelf("runs", "-n", "2")
    assert ["run-0" in done.stdout, "run-1" in done.stdout, "run-2" in done.stdout] == [True, True, False]


def test_what_is_not_known_is_never_shown_as_nothing(shelf):
    shelf.call(shelf.add("none"), None, None)
    partly = shelf.add("partly")
    shelf.call(partly)
    shelf.call(partly, None, None)
    shelf.call(shelf.add("unpriced"), (5, 5), None)
    shelf.lives(shelf.add("goes-on", outcome="running", seconds=None))
    rows = {line.split()[3]: line.split()[4:] for line in shelf("runs").stdout.splitlines()[2:]}
    assert rows["none"] == ["ok", "1", "?", "?", "2.0"]
    assert rows["partly"] == ["ok", "2", "≥40", "≥$0.001000", "2.0"]
    assert rows["unpriced"] == ["ok", "1", "10", "?", "2.0"]
    assert rows["goes-on"][:-1] == ["running", "0", "0", "$0"]
    assert rows["goes-on"][-1].startswith("≥")


def test_json_has_null_for_what_is_not_known(shelf):
    run = shelf.add()
    shelf.call(run, None, None)
    (fields,) = json.loads(shelf("runs", "--json").stdout)
    assert fields["run_id"] == run.launch
    assert (fields["requests"], fields["cost_usd"], fields["calls_without_price"], fields["calls_without_usage"]) == (1, None, 1, 1)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_stay_on_their_line(shelf, width):
    shelf.add("ev\x1b[31mil\u202e\n\rname [bold]x[/]" + "y" * 500)
    done = shelf("runs", width=width)
    assert done.exit_code == 0
    assert all(char == "\n" or char.isprintable() for char in done.stdout)
    assert all(len(line) <= width for line in done.stdout.splitlines())


def test_an_empty_store_says_how_to_fill_it(shelf):
    done = shelf("runs")
    assert (done.exit_code, done.stdout) == (0, "The store holds no run. Run a program with `ravi-otel run -- ...`.\n")
    assert shelf("runs", "--json").stdout == "[]\n"


def test_a_place_without_a_store_is_a_sentence_and_nothing_is_made_there(tmp_path):
    for place in (tmp_path / "none", tmp_path):
        done = CliRunner().invoke(commands, ["runs", "--store", str(place)])
        assert (done.exit_code, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_output_of_ascii_is_enough(shelf):
    run = shelf.add("注文")
    shelf.call(run)
    shelf.call(run, None, None)
    done = CliRunner(charset="ascii").invoke(commands, ["runs", "--store", str(shelf.store.root)], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert ">=40" in done.stdout


@pytest.mark.parametrize(
    ("written", "found"), [("7d", 604_800), ("24h", 86_400), ("90m", 5_400), ("30s", 30), ("1.5h", 5_400), ("2w", 1_209_600)]
)
def test_a_duration_is_a_number_and_its_unit(written, found):
    assert parse_duration("--since", written) == found


@pytest.mark.parametrize("written", ["", "7", "d", "-1d", "7 days", "1e3d", "nan", "∞d", "٣d", "9" * 20 + "d"])
def test_what_is_no_duration_is_a_sentence_naming_the_option(written):
    with pytest.raises(ConfigurationError, match=r"^--since .* is no duration\. Write a number with s, m, h, d or w"):
        parse_duration("--since", written)


@pytest.mark.parametrize(
    ("written", "found"), [("4096", 4_096), ("1KiB", 1_024), ("256MiB", 2**28), ("1.5GB", 1_500_000_000), ("2 gib", 2**31), ("3b", 3)]
)
def test_an_amount_of_storage_is_a_number_and_its_unit(written, found):
    assert parse_size("--keep-bytes", written) == found


@pytest.mark.parametrize("written", ["", "MiB", "-1", "1 elephant", "1e9", "nan"])
def test_what_is_no_amount_of_storage_is_a_sentence_naming_the_option(written):
    with pytest.raises(ConfigurationError, match=r"^--keep-bytes .* is no amount of storage\. Write"):
        parse_size("--keep-bytes", written)


def test_eighty_columns_are_enough_for_every_figure_and_a_name_for_show(shelf):
    run = shelf.add()
    shelf.call(run, (1_000_000, 2), 0.25)
    done = shelf("runs", width=80)
    (row,) = done.stdout.splitlines()[2:]
    assert row.split()[3:] == ["desk", "ok", "1", "1,000,002", "$0.2500", "2.0"]
    assert shelf("show", row.split()[0]).exit_code == 0


def test_a_run_whose_launcher_is_gone_is_lost(shelf):
    shelf.dies(shelf.add(outcome="running", seconds=None))
    assert shelf("runs").stdout.splitlines()[2].split()[4] == "lost"


@pytest.fixture
def served(shelf):
    """Put a server there, with three runs in it."""
    launch = shelf.add("server.py", ago=10)
    shelf.run("a" * 32, parent=launch.launch, name="triage", user="u1", tenant="acme", session="s1", tags={"team": "x"}, trace="b" * 32)
    shelf.run("c" * 32, parent=launch.launch, name="nightly", user="u2", status="stopped", stop_reason="limit_cost")
    shelf.run("d" * 32, parent=launch.launch, name="nightly", user="u2")
    shelf.call("c" * 32, None, None, status="refused", limit_kind="cost")
    shelf.call("d" * 32, (5, 5), 2.5, agent="clerk", model="big")
    shelf.agent("d" * 32, "clerk")
    shelf.launch = launch.launch
    return shelf


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--user", "u1"], "a"),
        (["--tenant", "acme"], "a"),
        (["--session", "s1"], "a"),
        (["--tag", "team"], "a"),
        (["--tag", "team=x"], "a"),
        (["--tag", "team=y"], ""),
        (["--user", "u2", "--status", "refused"], "c"),
        (["--stop-reason", "limit_cost"], "c"),
        (["--agent", "clerk"], "d"),
        (["--model", "big"], "d"),
        (["--name", "nightly", "--sort", "cost"], "dc"),
        (["--text", "TRIAGE"], "a"),
        (["--user", "u2", "--since", "yesterday"], "cd"),
        (["--user", "u2", "--until", "yesterday"], ""),
        (["--user", "u2", "--sort", "cost", "-n", "1"], "d"),
    ],
)
def test_runs_are_chosen_by_whose_they_are_and_what_came_of_them(served, options, expected):
    found = [each["run_id"][0] for each in json.loads(served("runs", "--json", *options).stdout)]
    assert (found if "--sort" in options else sorted(found)) == (list(expected) if "--sort" in options else sorted(expected))


def test_what_was_launched_stands_for_what_is_in_it(served):
    assert [each["run_id"] for each in json.loads(served("runs", "--json").stdout)] == [served.launch]
    assert len(json.loads(served("runs", "--json", "--all").stdout)) == 4
    assert {each["run_id"][0] for each in json.loads(served("runs", "--json", "--inside", served.launch).stdout)} == set("acd")


def test_a_choice_that_no_run_fits_says_so(served):
    assert served("runs", "--user", "nobody").stdout == "No run is like that. Leave an option out to see more.\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--since", "soon"],
        ["--status", "asleep"],
        ["--tag", "=x"],
        ["--inside", "nothing at all"],
        ["--until", "\x1b[31m"],
        ["--since", ""],
        ["--since", "now", "--until", "7d"],
        ["--to", "yesterday", "--from", "today"],
        ["--text", " "],
    ],
)
def test_a_choice_that_is_none_is_a_sentence(served, options):
    done = served("runs", *options)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "\x1b" not in done.stderr


def test_a_run_that_nobody_launched_shows_its_own_end(shelf):
    shelf.run("e" * 32, name="alone", status="stopped", stop_reason="limit_turns")
    (row,) = shelf("runs").stdout.splitlines()[2:]
    assert row.split()[2:5] == ["alone", "stopped", "limit_turns"]


@pytest.mark.parametrize(("outcome", "reason", "ended"), [("stopped", "limit_turns", "limit_turns"), ("failed", "error", None)])
def test_what_was_launched_and_ended_at_a_limit_says_at_which(shelf, outcome, reason, ended):
    shelf.add(outcome=outcome, status=4)
    shelf.execute("UPDATE runs SET status = 'stopped', stop_reason = ?", (reason,))
    assert json.loads(shelf("runs", "--json").stdout)[0]["stop_reason"] == ended
    assert ("limit_turns" in shelf("runs").stdout) is (ended is not None)


def test_with_little_room_a_run_of_today_has_its_time_and_an_older_one_its_day(shelf):
    shelf.add("older", ago=3 * 86_400)
    shelf.run("e" * 32, name="newer", status="stopped", stop_reason="limit_requests")
    newer, older = [line.split()[1] for line in shelf("runs").stdout.splitlines()[2:]]
    assert re.fullmatch(r"\d\d:\d\d", newer)
    assert re.fullmatch(r"\d\d-\d\d", older)


def test_records_that_were_lost_are_said(shelf):
    shelf.add()
    shelf.execute("UPDATE processes SET lost = 2")
    assert shelf("runs").stderr == "2 records of these runs could not be written, so every figure is at least so much.\n"
