"""Every figure of the page is the terminal's, with the same marks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from live_actors import limit, scope
from live_actors import run as open_run
from page_client import Client
from stored_runs import Shelf

from ravi_otel._cli.entry import commands
from ravi_otel._local.live.protocol import MOST_REFUSALS, LiveEvent


@pytest.fixture
def inside(served):
    client = Client(served)
    client.arrive()
    return client


def kept(served):
    """Keep calls of every doubt: counted by us, of no price, priced by a guess, told by nobody, refused."""
    shelf = Shelf(served.store)
    shelf.put("processes", process="p1", name="x.py", began=shelf._now, lost=0)
    sure = shelf.run("sure", user="anna", tenant="acme")
    for _ in range(3):
        shelf.call(sure, (100, 20), 0.0005, agent="planner", model="m-1")
    shelf.tool(sure, "search", agent="planner")
    shelf.tool(sure, "search", agent="planner", status="refused")
    rough = shelf.run("rough", user="ben")
    shelf.agent(rough, "writer", status="stopped", stop_reason="limit_cost")
    shelf.call(rough, (1_000, 300), 0.02, agent="writer", model="m-2", source="estimated")
    shelf.call(rough, (1_000, 300), 0.02, agent="writer", model="m-1", cost_source="assumed")
    partly = shelf.run("partly", user="cleo")
    shelf.agent(partly, "reader", status="paused", stop_reason="paused")
    shelf.call(partly, (10, 5), 0.001, agent="reader", model="m-1")
    shelf.call(partly, (10, 5), None, agent="reader", model="local")
    shelf.call(partly, None, None, agent="reader", model="m-1")
    shelf.call(partly, None, None, agent="reader", model="m-1", status="refused")
    unknown = shelf.run("unknown", user="dora")
    shelf.call(unknown, (10, 5), None, agent="loner", model="local")
    return shelf


def terminal(served, *words):
    done = CliRunner().invoke(commands, [*words, "--store", str(served.store)], env={"COLUMNS": "200", "PYTHONUTF8": "1"})
    assert done.exit_code == 0, done.output
    return done.output


def lines(output):
    """Return the cells of each line."""
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]


@pytest.mark.parametrize("by", ["user", "model", "agent", "tool", "tenant", "run", "provider"])
def test_who_spent_what_is_the_same_in_the_terminal(inside, served, by):
    kept(served)
    page = json.loads(inside(f"/api/spend?since=30d&by={by}")[2])
    said = lines(terminal(served, "cost", "--from", "30d", "--by", by))
    named = [row for row in page["rows"] if row["key"] is not None]
    assert named
    for row in named:
        (line,) = [line for line in said if line[0] == row["key"]]
        assert line[1:5] == [row["calls"], row["input"], row["output"], row["cost"]], row["key"]
    (all_of_it,) = [line for line in said if line[0].startswith(page["says"].partition(" in ")[0].rpartition(": ")[2])]
    assert "in all" in all_of_it[0]


def test_what_a_call_cost_and_a_share_carry_the_marks_of_what_they_are_worked_out_from(inside, served):
    kept(served)
    rows = {row["key"]: row for row in json.loads(inside("/api/spend?since=30d&by=user")[2])["rows"]}
    assert [rows[name]["each"] for name in ("anna", "ben", "cleo", "dora")] == ["$0.000500", "~$0.020000", "?", "?"]
    assert rows["dora"]["share"] == "?"
    assert rows["anna"]["share"].startswith("~")
    (column,) = [each for each in json.loads(inside("/api/spend?since=today&by=user")[2])["columns"] if each["text"] != "$0"]
    assert column["text"] == "≥~$0.042500"
    (column,) = [each for each in json.loads(inside("/api/spend?since=today&by=user&user=dora")[2])["columns"] if each["text"] != "$0"]
    assert column["text"] == "?"
    (column,) = [each for each in json.loads(inside("/api/spend?since=today&by=user&user=anna")[2])["columns"] if each["text"] != "$0"]
    assert column["text"] == "$0.001500"


def test_a_sum_says_of_which_days_it_is(inside, served):
    kept(served)
    now = datetime.now().astimezone()
    before, today = now - timedelta(days=1), f"{now.day} {now:%B}: ≥~$"

    def said(asked):
        return json.loads(inside(f"/api/spend?by=user&{asked}")[2])["says"]

    assert said("since=today").startswith(today)
    assert re.match(rf"{before.day}( {before:%B})? to {re.escape(today)}", said("since=yesterday"))
    assert said("since=yesterday&until=today").startswith(f"{before.day} {before:%B}: $0 in 0 calls")
    assert said("since=").startswith("≥~$")


def test_a_group_with_a_call_of_no_price_says_so_beside_what_is_known(inside, served):
    kept(served)
    rows = json.loads(inside("/api/spend?since=today&by=user")[2])["rows"]
    assert {row["key"]: (row["unknown"], bool(row["parts"])) for row in rows} == {
        "anna": (False, True),
        "ben": (False, True),
        "cleo": (True, True),
        "dora": (True, False),
    }


def test_a_refused_call_and_tool_were_not_sent_or_run_and_what_the_same_limit_refuses_next_is_short(inside, served):
    shelf = Shelf(served.store)
    run = shelf.run("r", status="stopped", stop_reason="limit_requests")
    for at, kind in enumerate(("requests", "requests", "tokens", "tokens")):
        known = {"refusal": {"sentence": f"No more {kind}."}, "limit_kind": kind, "limit_scope": "run", "limit_reason": "exhausted"}
        shelf.call(run, None, None, status="refused", began=shelf._now + at, **known)
    shelf.tool(run, "search", status="refused", began=shelf._now + 9)
    (root, *rows) = json.loads(inside("/api/runs/r")[2])["rows"]
    assert (root[2], root[4]) == ("run", "refused")
    assert [row[7] for row in rows] == ["not sent"] * 4 + ["not run"]
    assert [row[10] for row in rows[:4]] == ["No more requests.", "the same limit", "No more tokens.", "the same limit"]


def test_the_limits_around_a_refused_call_are_marked_where_they_warn(inside, served):
    shelf = Shelf(served.store)
    at = {"scope": "run", "scope_id": "r", "name": "r", "held": 0, "refused": False, "warn_at": 0.8}
    chain = [
        {**at, "limit": "cost", "kind": "cost", "used": 0.41, "value": 0.5},
        {**at, "limit": "tokens", "kind": "tokens", "used": 10, "value": 100},
        {**at, "limit": "agents", "kind": "agents", "used": 10, "value": 10},
        {**at, "limit": "turns", "kind": "turns", "used": 20, "value": 20, "refused": True},
    ]
    shelf.run("r")
    call = shelf.call("r", None, None, status="refused", refusal={"sentence": "No more turns.", "chain": chain})
    bars = [link["bar"] for link in json.loads(inside(f"/api/calls/{call}")[2])["chain"]]
    assert [(bar["tone"], bar["warn"]) for bar in bars] == [("near", 80.0), ("ok", 80.0), ("ok", None), ("refused", 80.0)]


@pytest.mark.parametrize(("status", "ended_s", "longest"), [("open", None, 70_000), ("ok", 2, 2_000)])
def test_the_time_of_a_run_that_is_open_reaches_until_now(inside, served, status, ended_s, longest):
    shelf = Shelf(served.store)
    began = time.time_ns() - 60 * 10**9
    shelf.run("r", status=status, began=began, ended=None if ended_s is None else began + ended_s * 10**9)
    length = json.loads(inside("/api/runs/r")[2])["length"]
    assert (60_000 if ended_s is None else 2_000) <= length <= longest


def test_runs_of_one_name_are_told_apart_where_they_are_found(inside, served):
    shelf = Shelf(served.store)
    at = datetime(2026, 11, 20, 12, 30).astimezone()
    shelf.run("a" * 32, name="nightly", began=round(at.timestamp()) * 10**9, status="stopped", stop_reason="limit_cost")
    shelf.run("b" * 32, name="nightly")
    named = {path[-1]: kind for kind, path, name in json.loads(inside("/api/find?text=nightly")[2])["found"]}
    assert named["a"] == "run, 20 Nov 12:30, stopped: limit_cost"
    assert re.fullmatch(r"run, \d\d:\d\d:\d\d, ok", named["b"])


@pytest.mark.parametrize(
    ("name", "file"), [("desk", "desk-b325e2a7c253.html"), ("../a b\r\n", "a-b-b325e2a7c253.html"), (None, "b325e2a7c253.html")]
)
def test_an_exported_run_is_a_file_of_its_name_and_id_and_says_when_it_was_made(inside, served, name, file):
    run = "e" * 20 + "b325e2a7c253"
    Shelf(served.store).run(run, name=name)
    _, headers, body = inside(f"/api/export/{run}")
    assert dict(headers)["content-disposition"] == f'attachment; filename="{file}"'
    assert f'"at":"{time.strftime("%Y-%m-%d %H:")}' in body


def test_an_exported_run_that_is_open_has_the_limits_it_had_then(inside, served):
    Shelf(served.store).run("r1", status="open", ended=None)
    served.actor(open_run("r1", limits=(limit("requests", 3, 5),)))
    body = inside("/api/export/r1")[2]
    assert '"text":"3 of 5"' in body


def test_every_hour_and_day_of_the_time_that_is_asked_for_has_its_column_until_now(inside, served):
    kept(served)

    def columns(asked):
        return [(each["at"], each["text"]) for each in json.loads(inside(f"/api/spend?{asked}")[2])["columns"]]

    today, hour = time.strftime("%Y-%m-%d"), int(time.strftime("%H"))
    hours = columns("since=today")
    assert [at for at, _ in hours][: hour + 1] == [f"{today} {each:02}:00" for each in range(hour + 1)]
    assert sum(text == "$0" for _, text in hours) >= len(hours) - 2
    for days in (7, 30):
        told = [at for at, _ in columns(f"since={days}d")]
        assert (len(told), told[-1]) == (days + 1, time.strftime("%Y-%m-%d"))
    assert 0 < len(columns("since=1990-01-01")) <= 2  # too long ago for a column a day: from the first that was spent


def test_a_run_is_told_as_in_the_terminal_and_how_it_ended_once(inside, served):
    kept(served)
    page = json.loads(inside("/api/runs")[2])
    told = {row["run"]: (row["spent"], word) for row, (_, word) in zip(page["page"]["rows"], page["words"], strict=True)}
    said = {line[0]: line for line in lines(terminal(served, "runs"))}
    for run, (spent, _) in told.items():
        assert said[run][-4:-1] == [str(spent["requests"]), spent["tokens_text"], spent["cost_text"]]
        facts = dict(json.loads(inside(f"/api/runs/{run}")[2])["facts"])
        assert (facts["cost"], facts["tokens"], facts["calls"]) == (spent["cost_text"], spent["tokens_text"], str(spent["requests"]))
    assert {run: word for run, (_, word) in told.items()} == {
        "sure": "ok",
        "rough": "stopped: limit_cost",
        "partly": "paused",
        "unknown": "ok",
    }


def stood(kind, used, of, **more):
    """Write where a limit of the run stood when it ended."""
    known = {"limit": kind, "scope": "run", "threshold": of, "used": used, "held": 0, "remaining": of - used, "ratio": used / of}
    return {**known, "scope_name": "rough", "denied": 0, "events": [], **more}


@pytest.mark.parametrize(("run", "mark"), [("rough", "~"), ("partly", "≥"), ("sure", "")])
def test_a_limit_that_is_kept_carries_the_marks_of_what_was_used_of_it_and_names_who_set_it(inside, served, run, mark):
    shelf = kept(served)
    limits = [stood("cost", 0.04, 0.05, declared=0.02, set_by="ann")]
    shelf.execute("UPDATE scopes SET limits = ? WHERE kind = 'run' AND run = ?", (json.dumps(limits), run))
    (bar,) = json.loads(inside(f"/api/runs/{run}")[2])["limits"]
    assert (bar["text"], bar["since"]) == (f"{mark}$0.04 of $0.05", "$0.02 there, set since by ann")
    page = json.loads(inside("/api/runs")[2])
    glance = next(glance for row, glance in zip(page["page"]["rows"], page["glances"], strict=True) if row["run"] == run)
    assert glance["limit"]["text"] == bar["text"]
    assert "set by ann" in terminal(served, "show", run)


def test_all_runs_that_fit_are_summed_up_with_the_marks_of_their_parts(inside, served):
    kept(served)
    told = json.loads(inside("/api/runs?user=anna")[2])["page"]["spent"]
    assert (told["requests"], told["cost_text"], told["tokens_text"], told["refused"]) == (3, "$0.001500", "360", 1)
    told = json.loads(inside("/api/runs")[2])["page"]["spent"]
    assert told["cost_text"].startswith("≥~$")
    assert told["requests"] == sum(row["spent"]["requests"] for row in json.loads(inside("/api/runs")[2])["page"]["rows"])
    assert json.loads(inside("/api/runs?after=9~z")[2])["page"]["spent"] is None


def refusal(number, agent):
    return LiveEvent("refused", 1_000.0 + number, "r1", "r1", agent, "chat m-1", "refused", "No more.", f"c{agent}{number}", "requests")


@pytest.mark.parametrize(
    ("of_writer", "counted", "before"),
    [
        (3, "5 calls of programs that still run", ["and twice before", "and once before"]),
        (MOST_REFUSALS - 2, "\u226568 calls of programs that still run", ["and at least 47 times before", "and at least once before"]),
    ],
    ids=["all", "cut"],
)
def test_refusals_are_counted_whole_or_as_at_least_so_many(served, inside, of_writer, counted, before):
    actor = served.actor(open_run("r1", scope("a", "r1", refused=57), scope("b", "r1", refused=11), refused=68))
    kept = [*(refusal(number, "reader") for number in range(2)), *(refusal(10 + number, "writer") for number in range(of_writer))]
    actor.told = replace(actor.told, refusals=tuple(kept))
    now = json.loads(inside("/api/now")[2])
    assert now["refused"] == counted
    assert [(each["agent"], each["before"]) for each in now["refusals"]] == list(zip(("writer", "reader"), before, strict=True))


def test_an_agent_whose_calls_go_through_again_is_not_shown_as_refused(served, inside):
    served.actor(open_run("r1", scope("again", "r1", refused=20), scope("still", "r1", refused=2, last_refusal="No more.")))
    rows = {row["name"]: (row["tone"], row["word"], row["note"]) for row in json.loads(inside("/api/now")[2])["rows"]}
    assert rows["again"] == ("run", "chat gpt-4.1-mini", None)
    assert rows["still"][:2] == ("refused", "refused 2 calls")
