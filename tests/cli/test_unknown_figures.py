"""What nobody told is never 0, and a sum with it in it is a lower bound, in every command alike."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ravi_otel.policy import Usage


def untold(shelf, run):
    shelf.call(run, None, None, model="silent")


def half_told(shelf, run):
    """Store a stream that was closed after its first chunk: what went in is estimated, and nobody counted what came out."""
    shelf.call(run, (11, 0), 0.000004, model="silent", source="estimated", status="cancelled")


def failed(shelf, run, **charged):
    shelf.call(run, None, None, model="silent", status="error", error_type="AuthenticationError", **charged)


def facts(shelf):
    (run,) = json.loads(shelf("runs", "--json").stdout)
    root = json.loads(shelf("show", "--json").stdout)["nodes"][0]
    rows = list(csv.DictReader(io.StringIO(shelf("cost", "--csv").stdout)))
    return run, root, rows


@pytest.mark.parametrize("call", [untold, half_told, failed])
def test_a_call_that_was_sent_and_told_nothing_makes_every_sum_a_lower_bound(shelf, call):
    run = shelf.add()
    shelf.call(run, (1_000, 200), 0.25)
    call(shelf, run)
    row = next(line for line in shelf("runs").stdout.splitlines() if run.launch in line)
    top = next(line for line in shelf("show").stdout.splitlines() if "run desk" in line)
    assert row.count("≥") == 2
    assert top.count("≥") == 3
    assert "≥" in shelf("cost").stdout.splitlines()[-1]
    listed, root, rows = facts(shelf)
    assert (listed["calls_without_usage"], listed["calls_without_price"], root["calls_without_usage"]) == (1, 1, 1)
    assert [each["calls_without_usage"] for each in rows if each["model"] == "silent"] == ["1"]


@pytest.mark.parametrize("call", [untold, failed])
def test_tokens_that_nobody_told_are_null_and_empty_for_programs(shelf, call):
    call(shelf, shelf.add())
    listed, root, (row,) = facts(shelf)
    assert [each[key] for each in (listed, root) for key in ("input_tokens", "output_tokens", "cost_usd")] == [None] * 6
    assert (row["input_tokens"], row["output_tokens"], row["cached_input_tokens"], row["cost_usd"]) == ("", "", "", "")


def test_a_stream_left_at_its_beginning_has_a_lower_bound_for_its_cost(shelf):
    half_told(shelf, shelf.add())
    line = next(line for line in shelf("show").stdout.splitlines() if "chat silent" in line)
    assert line.split()[-3:] == ["~11", "?", "≥~$0.000004"]
    listed, root, (row,) = facts(shelf)
    assert [each["output_tokens"] for each in (listed, root)] == [None, None]
    assert (row["input_tokens"], row["output_tokens"], row["calls_without_usage"]) == ("11", "", "1")
    leaf = json.loads(shelf("show", "--json").stdout)["nodes"][-1]
    assert (leaf["input_tokens"], leaf["output_tokens"]) == (11, None)


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_failed_call_is_charged_is_an_estimate_in_every_command(shelf, beside):
    run = shelf.add()
    if beside:
        shelf.call(run, (100, 20), 0.5)
    charged = {"charged": Usage(16, 0, source="estimated"), "charged_cost": 0.000006}
    failed(shelf, run, **charged)
    listed = next(line for line in shelf("runs").stdout.splitlines() if run.launch in line).split()
    shown = next(line for line in shelf("show").stdout.splitlines() if "run desk" in line).split()
    summed = shelf("cost").stdout.splitlines()
    if beside:
        assert (listed[-3], shown[-3:]) == ("≥~136", ["≥~116", "≥~20", "≥~$0.5000"])
    else:
        assert (listed[-3], shown[-3:]) == ("≥~16", ["≥~16", "?", "≥~$0.000006"])
    assert (shown[-1], shown[-1] in summed[-1]) == (listed[-2], True)


def test_embeddings_answer_without_output_and_are_not_unknown_for_it(shelf):
    run = shelf.add()
    shelf.call(run, (30, None), 0.001, operation="embeddings")
    (listed,) = json.loads(shelf("runs", "--json").stdout)
    assert (listed["calls_without_usage"], listed["output_tokens"]) == (0, 0)


def test_an_agent_is_not_unknown_for_what_an_agent_below_it_was_not_told(shelf):
    run = shelf.add()
    outer = shelf.agent(run, "outer")
    shelf.call(run, (30, 10), 0.5, parent=outer)
    inner = shelf.agent(run, "inner", parent=outer)
    shelf.call(run, None, None, parent=inner)
    lines = {line.split()[2]: line for line in shelf("show").stdout.splitlines() if "agent " in line}
    assert ("≥" in lines["outer"], "?" in lines["inner"]) == (False, True)


def test_the_mark_of_a_lower_bound_is_explained_where_it_is_shown(shelf):
    run = shelf.add()
    shelf.call(run, model="a")
    untold(shelf, run)
    for command in (("runs",), ("show",), ("cost",)):
        assert "≥ at least" in shelf(*command).stdout


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("command", [("runs",), ("cost",), ("show",)])
def test_figures_and_ids_are_whole_however_narrow_the_terminal(shelf, width, command):
    runs = [shelf.add("support-desk-nightly-evaluation", outcome="stopped", ago=at) for at in range(3)]
    for run in runs:
        shelf.call(run, (1_234_567, 76_543), 12_345.678, model="a-model-with-a-rather-long-name", parent=shelf.agent(run, "researcher"))
    done = shelf(*command, *([runs[0].launch] if command == ("show",) else []), width=width)
    assert max(map(len, done.stdout.splitlines())) <= width
    shown = {
        "runs": ["1,311,110", "$12,345.68", runs[0].launch[-6:]],
        "cost": ["$37,037.03"],
        "show": ["1,234,567", "$12,345.68", runs[0].launch],
    }
    for figure in shown[command[0]]:
        assert figure in done.stdout
    assert not any("…" in cell and cell.strip("…")[:1].isdigit() for cell in done.stdout.split())


def told_in_total(shelf, run):
    shelf.call(run, None, None, model="lumps", usage=Usage(total_tokens=500))


def test_a_total_that_was_told_alone_is_in_the_sum_of_all_tokens_and_in_neither_part(shelf):
    run = shelf.add()
    told_in_total(shelf, run)
    row = next(line for line in shelf("runs").stdout.splitlines() if run.launch in line)
    assert " 500 " in row
    line = next(line for line in shelf("show").stdout.splitlines() if "chat lumps" in line)
    assert "500 tokens, input and output not told" in line
    listed, root, (csv_row,) = facts(shelf)
    for each in (listed, root):
        assert (each["input_tokens"], each["output_tokens"], each["total_tokens"], each["cost_usd"]) == (None, None, 500, None)
    assert (listed["calls_without_usage"], listed["calls_without_price"]) == (1, 1)
    assert (csv_row["input_tokens"], csv_row["output_tokens"], csv_row["calls_without_usage"]) == ("", "", "1")


def test_the_sum_of_all_tokens_is_a_lower_bound_beside_a_call_that_told_nothing_at_all(shelf):
    run = shelf.add()
    told_in_total(shelf, run)
    untold(shelf, run)
    row = next(line for line in shelf("runs").stdout.splitlines() if run.launch in line)
    assert "≥500" in row
