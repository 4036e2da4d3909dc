from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from ravi_otel.cli.entry import commands
from ravi_otel.cli.stored import Reading, seconds, size
from ravi_otel.errors import ConfigurationError


def test_runs_are_listed_newest_first_with_their_sums(shelf):
    old = shelf.add("first", ago=100, seconds=1.5)
    shelf.call(old, (1_000, 200), 0.25)
    new = shelf.add("second", outcome="limited", status=4)
    done = shelf("runs")
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = [line.split() for line in done.stdout.splitlines()[2:]]
    assert (first[0], first[3:]) == (new.run_id, ["second", "limited", "0", "0", "$0", "2.0"])
    assert (second[0], second[3:]) == (old.run_id, ["first", "ok", "1", "1,200", "$0.2500", "1.5"])


def test_the_end_of_an_agent_that_was_stopped_is_in_the_table_and_in_the_json(shelf):
    stopped = shelf.add("stopped")
    outer = shelf.agent(stopped, "lead", **{"ravi.status": "stopped", "ravi.stop_reason": "supervisor_block:over_the_cap"})
    shelf.agent(stopped, "sub", parent=outer, **{"ravi.status": "error", "ravi.stop_reason": "llm_error:X"})
    shelf.agent(shelf.add("fine"), "lead")
    shelf.agent(shelf.add("paused"), "lead", **{"ravi.status": "paused", "ravi.stop_reason": "paused"})
    rows = {line.split()[3]: line.split()[4:] for line in shelf("runs", width=160).stdout.splitlines()[2:]}
    assert rows["stopped"][:3] == ["ok", "stopped", "supervisor_block:over_the_cap"]
    assert rows["fine"][:2] == ["ok", "0"]
    assert rows["paused"][:3] == ["ok", "paused", "0"]
    fields = {each["name"]: (each["end_status"], each["stop_reason"]) for each in json.loads(shelf("runs", "--json").stdout)}
    assert fields == {"stopped": ("stopped", "supervisor_block:over_the_cap"), "fine": (None, None), "paused": ("paused", "paused")}


def test_a_hostile_stop_reason_stays_on_its_line(shelf):
    shelf.agent(shelf.add("evil"), "lead", **{"ravi.status": "stopped", "ravi.stop_reason": "no\x1b[31m\nmore" + "y" * 500})
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
    shelf.add("goes-on", outcome="running", seconds=None, launcher=None)
    rows = {line.split()[3]: line.split()[4:] for line in shelf("runs").stdout.splitlines()[2:]}
    assert rows["none"] == ["ok", "1", "?", "?", "2.0"]
    assert rows["partly"] == ["ok", "2", "≥40", "≥$0.001000", "2.0"]
    assert rows["unpriced"] == ["ok", "1", "10", "?", "2.0"]
    assert rows["goes-on"] == ["running", "0", "0", "$0", "?"]


def test_json_has_null_for_what_is_not_known(shelf):
    run = shelf.add()
    shelf.call(run, None, None)
    (fields,) = json.loads(shelf("runs", "--json").stdout)
    assert fields["run_id"] == run.run_id
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


def test_a_broken_run_among_the_runs_is_said_and_left_as_it_is(shelf):
    shelf.add("good")
    torn = shelf.add("torn")
    (torn.path / "run.json").write_text('{"run_id": "')
    (shelf.store.runs_path / "notes.txt").write_text("mine")
    held = shelf.files()
    done = shelf("runs")
    assert done.exit_code == 0
    assert "good" in done.stdout
    assert done.stderr == f"Left out, because they hold no readable run.json: {', '.join(sorted([torn.run_id, 'notes.txt']))}.\n"
    assert shelf.files() == held


def test_half_written_lines_are_said_and_lose_nothing(shelf):
    run = shelf.add()
    shelf.call(run)
    with (run.path / "4711-9a2c.traces.jsonl").open("a") as file:
        file.write('{"resourceSpans": [{"sco')
    held = shelf.files()
    done = shelf("runs")
    assert done.stderr == "1 line of these runs could not be read, and is left out.\n"
    assert "$0.001000" in done.stdout
    assert shelf.files() == held


def test_a_foreign_index_is_a_sentence_and_kept(shelf):
    shelf.add()
    shelf.store.index.write_bytes(b"my own data")
    done = shelf("runs")
    assert done.exit_code == 0
    assert len(done.stderr.splitlines()) == 1
    assert [path.read_bytes() for path in shelf.store.root.glob("*.aside")] == [b"my own data"]


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
    assert seconds("--since", written) == found


@pytest.mark.parametrize("written", ["", "7", "d", "-1d", "7 days", "1e3d", "nan", "∞d", "٣d", "9" * 20 + "d"])
def test_what_is_no_duration_is_a_sentence_naming_the_option(written):
    with pytest.raises(ConfigurationError, match=r"^--since .* is no duration\. Write a number with s, m, h, d or w"):
        seconds("--since", written)


@pytest.mark.parametrize(
    ("written", "found"), [("4096", 4_096), ("1KiB", 1_024), ("256MiB", 2**28), ("1.5GB", 1_500_000_000), ("2 gib", 2**31), ("3b", 3)]
)
def test_an_amount_of_storage_is_a_number_and_its_unit(written, found):
    assert size("--keep-bytes", written) == found


@pytest.mark.parametrize("written", ["", "MiB", "-1", "1 elephant", "1e9", "nan"])
def test_what_is_no_amount_of_storage_is_a_sentence_naming_the_option(written):
    with pytest.raises(ConfigurationError, match=r"^--keep-bytes .* is no amount of storage\. Write"):
        size("--keep-bytes", written)


def test_eighty_columns_are_enough_for_every_figure_and_a_name_for_show(shelf):
    run = shelf.add()
    shelf.call(run, (1_000_000, 2), 0.25)
    done = shelf("runs", width=80)
    (row,) = done.stdout.splitlines()[2:]
    assert row.split()[3:] == ["desk", "ok", "1", "1,000,002", "$0.2500", "2.0"]
    assert shelf("show", row.split()[0]).exit_code == 0


def test_a_run_whose_launcher_is_gone_is_lost(shelf):
    run = shelf.add(outcome="running", seconds=None, launcher={"pid": 2**22 + 1, "start": "1", "machine": "elsewhere"})
    past = run.manifest.started - 2 * 86_400
    for path in run.path.iterdir():
        os.utime(path, (past, past))
    assert shelf("runs").stdout.splitlines()[2].split()[4] == "lost"


def test_reading_that_takes_long_is_told_once_and_on_standard_error(capsys, monkeypatch):
    with Reading() as told:
        told(1, 2_000_000)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("ravi_otel.cli.stored._PATIENCE_S", -1)
    with Reading() as told:
        told(1, 999_999)
    assert capsys.readouterr() == ("", "")
    with Reading() as told:
        told(1, 2_000_000)
        told(2_000_000, 2_000_000)
    assert capsys.readouterr() == ("", "Reading stored runs, 2 MB ...\n")
