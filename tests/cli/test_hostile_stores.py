"""One bad run, or a bad index, costs nobody the others: sentences, and never a traceback."""

from __future__ import annotations

import json
import sqlite3

import pytest

READERS = (("runs",), ("runs", "--json"), ("show",), ("show", "--json"), ("cost",), ("cost", "--csv"), ("suggest",))
BIG = 10**400


def spoil(run, **changes):
    path = run.path / "run.json"
    text = json.dumps({**json.loads(path.read_text()), **changes})
    path.write_text(text.replace('"1e400"', "1e400").replace('"NaN"', "NaN"))


def all_answer(shelf):
    for command in READERS:
        done = shelf(*command)
        assert done.exit_code in (0, 1, 2), (command, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
    return shelf


@pytest.mark.parametrize(
    "changes",
    [
        {"budgets": [{"scope": [], "limit": "tokens", "threshold": 5}]},
        {"budgets": [{"scope": "run", "limit": "tokens", "threshold": 5, "used": BIG, "denied": -3}]},
        {"budgets": [{"scope": "run", "limit": "cost", "threshold": -5, "used": "NaN", "events": [[], {}]}]},
        {"started": "1e400"},
        {"started": "NaN"},
        {"started": BIG},
        {"started": -1},
        {"ended": 2**33 - 1},
        {"ended": "1e400"},
        {"status": "1e400", "outcome": "failed"},
        {"status": 1.5, "outcome": "signal"},
        {"limits": [{"limit": []}, {"limit": "nonsense"}, {}], "outcome": "running"},
    ],
)
def test_a_manifest_of_anybodys_stops_no_command(shelf, changes):
    good, bad = shelf.add("good"), shelf.add("bad")
    shelf.call(good)
    shelf.call(bad)
    spoil(bad, **changes)
    assert "good" in all_answer(shelf)("runs").stdout


@pytest.mark.parametrize("cost", [-1.0, -9e18, 9e18, BIG, float("inf")])
def test_a_cost_that_none_can_be_is_not_known_and_not_taken_off(shelf, cost):
    run = shelf.add()
    shelf.call(run, cost=1.5)
    shelf.call(run, cost=cost)
    assert "≥$1.5000" in all_answer(shelf)("cost").stdout
    (fields,) = json.loads(shelf("runs", "--json").stdout)
    assert (fields["cost_usd"], fields["calls_without_price"]) == (1.5, 1)


def test_a_span_that_was_written_twice_counts_once(shelf):
    run = shelf.add()
    shelf.call(run, (30, 10), 0.5)
    (path,) = run.files()
    path.write_text(path.read_text() * 3)
    (fields,) = json.loads(shelf("runs", "--json").stdout)
    assert (fields["requests"], fields["input_tokens"], fields["cost_usd"]) == (1, 30, 0.5)


@pytest.mark.parametrize("start", [1, 1_600_000_000_000_000_000, 2**62])
def test_a_time_that_cannot_be_makes_no_run_long(shelf, start):
    run = shelf.add(seconds=None, outcome="ok")
    shelf.call(run)
    shelf.span(run, {"gen_ai.operation.name": "chat"}, startTimeUnixNano=str(start), endTimeUnixNano=str(start + 10))
    (fields,) = json.loads(shelf("runs", "--json").stdout)
    assert fields["duration_s"] < 100
    leaf = json.loads(shelf("show", "--json").stdout)["nodes"]
    assert None in [node["duration_ms"] for node in leaf if node["type"] == "call"]


POISON = {
    "text for a sum": "UPDATE calls SET input_tokens = 'many'",
    "nothing for a sum": "UPDATE runs SET cost_nano = NULL",
    "less than nothing": "UPDATE calls SET cost_nano = -5",
    "a blob for a name": "UPDATE runs SET name = x'ff00'",
    "a blob for an agent": "UPDATE agents SET agent = x'ff00'",
    "text for a time": "UPDATE runs SET started = 'yesterday'",
    "text for a status": "UPDATE runs SET status = 'four'",
    "text that is none": "UPDATE runs SET name = CAST(x'ff' AS TEXT)",
    "deep tags": f"UPDATE calls SET tags = '{'[' * 100_000}'",
    "tags that are a list": "UPDATE calls SET tags = '[1]'",
}


@pytest.mark.parametrize("statement", POISON.values(), ids=POISON.keys())
def test_a_poisoned_index_is_made_anew_or_read_without_harm(shelf, statement):
    run = shelf.add("desk")
    shelf.call(run, (30, 10), 0.5, parent=shelf.agent(run, "clerk"), agent="clerk")
    before = {command: shelf(*command).stdout for command in READERS}
    with sqlite3.connect(shelf.store.index) as connection:
        connection.execute(statement)
    connection.close()
    after = {command: all_answer(shelf)(*command).stdout for command in READERS}
    if "CAST" not in statement:
        assert after == before
        assert len([path for path in shelf.store.root.iterdir() if path.name.endswith(".aside")]) == 1


def test_a_runs_directory_moves_no_cursor(shelf):
    run = shelf.add()
    name = "x\x1b[31mred\u202egnp"
    spoil(run, run_id=name)
    run.path.rename(run.path.with_name(name))
    for command in READERS:
        done = shelf(*command)
        assert all(char == "\n" or char.isprintable() for char in done.stdout + done.stderr), command


@pytest.mark.parametrize("name", ["a\u202eb\u2066c", "\u200b=1", "a\U000e0041b"])
def test_a_suggestion_has_no_character_that_cannot_be_seen(shelf, name):
    for at in range(5):
        run = shelf.add()
        shelf.call(run, (at, 1), 0.5, parent=shelf.agent(run, name), agent=name)
    done = shelf("suggest")
    assert done.exit_code == 0
    assert all(char == "\n" or char.isprintable() for char in done.stdout)
