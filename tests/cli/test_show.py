from __future__ import annotations

import json

import pytest

from ravi_otel._local.store import TABLES

CALLS = TABLES["calls"]


@pytest.fixture
def run(shelf):
    budget = {"scope": "run", "scope_id": "x", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 90, "held": 0}
    rest = {"remaining": 10, "ratio": 0.9, "denied": 3, "events": ["limit_nearing", "limit_exceeded"]}
    made = shelf.add("desk", outcome="stopped", status=4, budgets=(budget | rest,), notes=("The program was ended.",))
    at = shelf.agent(made, "clerk")
    shelf.call(made, (1_210, 80), 0.25, parent=at)
    return made


def test_the_latest_run_is_shown_as_a_tree_with_its_budgets(shelf, run):
    done = shelf("show")
    assert (done.exit_code, done.stderr) == (0, "")
    first, note, *_ = done.stdout.splitlines()
    assert first == f"{run.launch}  desk  stopped, exit status 4"
    assert note == "The program was ended."
    for words in ("run desk", "limit_tokens", "└─ agent clerk", "chat m-1", "1,210", "$0.2500", "90", "nearing, exceeded"):
        assert words in done.stdout


@pytest.mark.parametrize("cut", ["whole", "beginning", "end"])
def test_a_run_is_found_by_its_id_or_an_end_of_it(shelf, run, cut):
    other = shelf.add("other", ago=-5).launch  # of the same second, so that only what is drawn tells the two apart
    alike = next(at for at, (mine, its) in enumerate(zip(run.launch, other, strict=True)) if mine != its)
    asked = {"whole": run.launch, "beginning": run.launch[: alike + 1], "end": run.launch[alike:]}[cut]
    assert f"{run.launch}  desk" in shelf("show", asked).stdout


@pytest.mark.parametrize("asked", ["nonsense", "2", "", "../..", "\x1b[31m"])
def test_a_run_that_is_none_or_several_is_a_sentence(shelf, run, asked):
    shelf.add("other")
    done = shelf("show", asked)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ID=")
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr


def test_json_is_the_same_as_the_reports(shelf, run):
    document = json.loads(shelf("show", "--json").stdout)
    assert [node["type"] for node in document["nodes"]] == ["run", "agent", "call"]
    assert document["limits"][0]["denied"] == 3


def test_a_store_without_a_run_is_a_sentence(shelf):
    done = shelf("show")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "holds no run" in done.stderr


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_and_notes_stay_where_they_are(shelf, width):
    name = "ev\x1b[31mil\u202e\n\r[bold]x[/]" + "y" * 300
    made = shelf.add(name, notes=(name,))
    shelf.call(made, parent=shelf.agent(made, name), model=name)
    done = shelf("show", width=width)
    assert done.exit_code == 0
    assert all(char == "\n" or char.isprintable() for char in done.stdout)


def test_json_says_what_the_report_of_the_run_says(shelf, run):
    document = json.loads(shelf("show", "--json").stdout)
    assert (document["run_id"], document["name"], document["outcome"]) == (run.launch, "desk", "stopped")
    assert (document["exit_status"], document["program_status"], document["observe"]) == (4, 4, False)
    assert (document["said"], document["directory"]) == (["The program was ended."], str(run.path))
    assert document["ended"] - document["started"] == pytest.approx(2.0)


@pytest.mark.parametrize("width", [40, 120])
def test_a_run_that_was_only_observed_says_so(shelf, width):
    budget = {"scope": "run", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 190, "held": 0, "ratio": 1.9, "denied": 3}
    shelf.add(observe=True, budgets=(budget,))
    shown = " ".join(shelf("show", width=width).stdout.split())
    assert "only observed: nothing was refused" in shown
    assert "would be denied" in shown


def test_a_run_of_six_thousand_calls_is_folded(shelf):
    made = shelf.add()
    shelf.call(made)
    shelf.execute(
        "WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < 5999) INSERT INTO calls "
        f"SELECT 'x' || n, {', '.join(each for each in CALLS if each != 'call')} FROM calls, more"
    )
    done = shelf("show")
    assert len(done.stdout.splitlines()) < 15
    assert "… 4,996 more chat m-1" in done.stdout
    assert "Not shown, past the first 5,000 entries: 1,001 calls." in done.stdout
    assert "180,000" in done.stdout


def test_a_run_that_nobody_saw_end_is_lost_and_its_limits_are_shown_as_unknown(shelf):
    shelf.dies(shelf.add(outcome="running", seconds=None, status=None, limits=[{"limit": "tokens=20k"}]))
    done = shelf("show")
    assert done.stdout.splitlines()[0].endswith("lost")
    (line,) = [line for line in done.stdout.splitlines() if "20,000" in line]
    assert line.split()[-4:] == ["?", "?", "?", "?"]
    document = json.loads(shelf("show", "--json").stdout)
    assert (document["outcome"], document["limits"][0]["used"], document["limits"][0]["denied"]) == ("lost", None, None)


def test_refusals_by_the_same_limit_are_folded_in_whichever_words(shelf):
    made = shelf.add()
    for at in range(12):
        words = {"sentence": "3 + 1 > 3" if at % 2 else "3 of 3 used"}
        shelf.call(made, None, None, status="refused", limit_kind="requests", limit_scope="run", model=f"m-{at % 2}", refusal=words)
    assert "… 11 more refused" in shelf("show").stdout


def test_processes_that_did_alike_are_folded(shelf):
    made = shelf.add()
    for number in range(10):
        shelf.call(made, process=f"p{number}")
    assert "more processes" in shelf("show").stdout


@pytest.mark.parametrize(("outcome", "reason"), [("ok", "limit_requests"), ("stopped", "store_lost")])
def test_a_run_ends_in_the_tree_as_it_says_whatever_its_program_made_of_that(shelf, outcome, reason):
    shelf.add("nightly", outcome=outcome)
    for table in ("runs", "scopes"):
        shelf.execute(f"UPDATE {table} SET status = 'stopped', stop_reason = ?", (reason,))
    assert f"run nightly  {reason}" in shelf("show").stdout


# -- whatever an id names -------------------------------------------------------------------------------------------


@pytest.fixture
def call(shelf):
    shelf.add("other")
    shelf.run("f" * 32, name="triage", user="u42", tenant="acme", trace="a" * 32, tags={"team": "x"})
    agent = shelf.agent("f" * 32, "clerk")
    chain = [{"scope": "run", "name": "triage", "limit": "cost", "kind": "cost", "value": 0.5, "used": 0.5, "held": 0, "refused": True}]
    refusal = {"sentence": "$0.50 of $0.50 used.", "chain": chain}
    shelf.call("f" * 32, None, None, parent=agent, agent="clerk", status="refused", refusal=refusal, trace="a" * 32, span="b" * 16)
    held = [{"scope": "run", "name": "triage", "limit": "cost", "kind": "cost", "held": 0.0093}]
    ids = {"span": "c" * 16, "response_id": "chatcmpl-9", "price_date": "2026-11-01", "cost_source": "local"}
    made = shelf.call("f" * 32, (2_104, 280), 0.0061, parent=agent, agent="clerk", held=held, **ids)
    shelf.say("f" * 32, made, "where is\nmy \x1b[31morder?", answer="on its way")
    return made


def test_the_id_of_a_call_a_span_or_an_answer_shows_that_call(shelf, call):
    for written in (call, "c" * 16, "chatcmpl-9"):
        shown = shelf("show", written).stdout
        assert f"{call}  chat m-1  ok  5 ms" in shown
        assert "agent clerk · user u42 · tenant acme" in shown
        assert "2,104 in · 280 out · $0.006100 (local, prices of 2026-11-01)" in shown
        assert "held $0.0093 of cost of run triage" in shown
        assert "where is" not in shown


def test_a_refused_call_shows_the_limits_around_it(shelf, call):
    shown = shelf("show", "b" * 16).stdout
    assert "refused: $0.50 of $0.50 used." in shown
    assert " x cost of run triage: $0.50 of $0.50 used, $0 held" in shown


def test_what_was_said_is_shown_where_it_is_asked_for_and_moves_no_cursor(shelf, call):
    for written in (call, "f" * 32):
        done = shelf("show", written, "--content")
        assert "user:      where is\n           my order?" in done.stdout
        assert "user:      on its way" in done.stdout
        assert "\x1b" not in done.stdout
    document = json.loads(shelf("show", call, "--content", "--json").stdout)
    assert document["messages"][0]["parts"][0]["content"] == "where is\nmy \x1b[31morder?"
    assert "messages" not in json.loads(shelf("show", call, "--json").stdout)


def test_where_nothing_was_kept_of_what_was_said_the_way_to_keep_it_is_told(shelf):
    made = shelf.add()
    bare = shelf.call(made)
    for written in (made.launch, bare):
        assert shelf("show", written, "--content").stderr.startswith("No prompts were kept here. `ravi-otel run --content")


def test_a_run_that_was_not_launched_says_whose_it_is(shelf, call):
    for written in ("f" * 32, "ffff", "a" * 32):
        first, second, *_ = shelf("show", written).stdout.splitlines()
        assert first == f"{'f' * 32}  triage  ok"
        assert second == f"user u42 · tenant acme · trace {'a' * 32} · team x"


def test_the_id_of_an_agent_shows_that_agent_alone(shelf, call):
    shelf.agent("f" * 32, "other")
    scope = json.loads(shelf("show", "f" * 32, "--json").stdout)["nodes"][1]["scope_id"]
    shown = shelf("show", scope).stdout
    assert "agent clerk" in shown
    assert "agent other" not in shown


def test_of_an_agent_only_what_was_said_in_it_is_shown(shelf):
    run = shelf.add("desk")
    for agent, words in (("planner", "where is the plan"), ("writer", "write it down")):
        scope = shelf.agent(run, agent)
        shelf.say(run, shelf.call(run, agent=agent, parent=scope), words)
    out = shelf("show", scope, "--content").stdout
    assert "write it down" in out
    assert "where is the plan" not in out
    assert "where is the plan" in shelf("show", run.launch, "--content").stdout


@pytest.mark.parametrize(
    ("whose", "written"), [("session", "conv-123"), ("user", "u42"), ("tenant", "acme"), ("agent", "clerk"), ("name", "triage")]
)
def test_an_id_that_is_of_many_runs_leads_to_their_list(shelf, call, whose, written):
    shelf.run("r2", session="conv-123")
    done = shelf("show", written)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"ID='{written}' is the {whose} of runs" in done.stderr
    assert f"`ravi-otel runs --{whose} {written}` lists them" in done.stderr


def test_a_beginning_that_is_too_short_is_told_how_long_one_has_to_be(shelf):
    done = shelf("show", "ff")
    assert done.exit_code == 2
    assert "its first 4 characters or more" in " ".join(done.stderr.split())
