"""One bad row, or a bad file, costs nobody the others: sentences, and never a traceback."""

from __future__ import annotations

import json

import pytest

READERS = (
    ("runs",),
    ("runs", "--json"),
    ("show",),
    ("show", "--json"),
    ("cost",),
    ("cost", "--csv"),
    ("cost", "--by", "day,tag.x", "--json"),
)
READERS += (("suggest",), ("runs", "--all", "--text", "x"), ("prune", "--dry-run"))
BIG = 10**18


def all_answer(shelf):
    for command in READERS:
        done = shelf(*command)
        assert done.exit_code in (0, 1, 2), (command, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
        assert all(char == "\n" or char.isprintable() for char in done.stdout + done.stderr), command
    return shelf


POISON = {
    "budgets of any shape": 'UPDATE launches SET budgets = \'[{"scope": [], "limit": "tokens", "threshold": 5}, 5]\'',
    "a budget without sense": 'UPDATE launches SET budgets = \'[{"scope": "run", "limit": "cost", "threshold": -5, "events": [[], {}]}]\'',
    "limits of any shape": 'UPDATE launches SET outcome = \'running\', limits = \'[{"limit": []}, {"limit": "nonsense"}, {}]\'',
    "a time past every calendar": f"UPDATE launches SET began = {BIG}, ended = {BIG}",
    "a time before every calendar": f"UPDATE launches SET began = -{BIG}",
    "text for times": "UPDATE launches SET began = 'yesterday', ended = 'today'",
    "an outcome that is none": "UPDATE launches SET outcome = 'eaten', status = 'four'",
    "text for a sum": "UPDATE runs SET input_tokens = 'many', cost_nano = NULL, requests = -5",
    "text for a rolled up sum": "UPDATE hourly SET input_tokens = 'many', cost_nano = -5, hour = 'noon'",
    "bytes for a name": "UPDATE runs SET name = x'ff00'",
    "text that is none": "UPDATE launches SET name = CAST(x'ff1b5b33316d' AS TEXT)",
    "deep tags": f"UPDATE runs SET tags = '{'[' * 100_000}'",
    "tags that are a list": "UPDATE runs SET tags = '[1]'",
    "a ring of runs": "UPDATE runs SET parent = run",
    "a ring of scopes": "UPDATE scopes SET parent = scope",
}


@pytest.mark.parametrize("statement", POISON.values(), ids=POISON.keys())
def test_whatever_a_column_holds_every_command_answers(shelf, statement):
    run = shelf.add("desk")
    shelf.call(run, (30, 10), 0.5, parent=shelf.agent(run, "clerk"), agent="clerk")
    shelf.execute(statement)
    all_answer(shelf)


@pytest.mark.parametrize("content", [b"", b"my own data" * 1_000, b"SQLite format 3\0" + b"x" * 5_000])
def test_a_file_that_is_no_store_is_one_sentence_and_left_as_it_is(shelf, content):
    shelf.store.file.unlink()
    for path in shelf.store.root.glob("runs.db-*"):
        path.unlink()
    shelf.store.file.write_bytes(content)
    done = all_answer(shelf)("runs")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert shelf.store.file.read_bytes() == content


def test_a_store_of_a_newer_version_is_one_sentence(shelf):
    shelf.execute("PRAGMA user_version = 99")
    done = shelf("runs")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "format 99" in done.stderr


@pytest.mark.parametrize("cost", [9e9, 0.0])
def test_a_cost_of_any_size_is_shown_whole(shelf, cost):
    shelf.call(shelf.add(), cost=cost)
    (fields,) = json.loads(all_answer(shelf)("runs", "--json").stdout)
    assert fields["cost_usd"] == cost


@pytest.mark.parametrize("name", ["a\u202eb\u2066c", "\u200b=1", "a\U000e0041b"])
def test_a_suggestion_has_no_character_that_cannot_be_seen(shelf, name):
    for at in range(5):
        run = shelf.add()
        shelf.call(run, (at, 1), 0.5, parent=shelf.agent(run, name), agent=name)
    done = shelf("suggest")
    assert done.exit_code == 0
    assert all(char == "\n" or char.isprintable() for char in done.stdout)
