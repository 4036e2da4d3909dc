from __future__ import annotations

import csv
import io
import json

import pytest

from ravi_otel.policy import Usage


@pytest.fixture
def filled(shelf):
    run = shelf.add()
    inner = shelf.run("inner", parent=run.launch, session="s-1", tags={"team": "search"}, user="u1")
    for agent, model, cost in (("clerk", "m-1", 0.5), ("clerk", "m-2", 0.25), ("boss", "m-2", 1.0)):
        shelf.call(inner, (100, 10), cost, agent=agent, model=model)
    shelf.call(run, (100, 10), None, model="m-9")
    return shelf


def rows(done):
    return list(csv.reader(io.StringIO(done.stdout)))


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (["--by", "agent"], ["boss", "clerk", ""]),
        ([], ["m-2", "m-1", "m-9"]),
        (["--by", "session"], ["s-1", ""]),
        (["--tag", "team"], ["search", ""]),
    ],
)
def test_sums_are_by_what_is_asked_for_and_the_most_expensive_comes_first(filled, by, names):
    head, *body = rows(filled("cost", *by, "--csv"))
    assert [row[0] for row in body] == names
    assert sum(int(row[1]) for row in body) == 4
    assert head[1:] == [
        "calls",
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "unsplit_tokens",
        "cost_usd",
        "calls_without_price",
        "calls_without_usage",
        "calls_estimated",
        "calls_at_assumed_prices",
    ]


def test_json_counts_the_same_calls_as_the_table_and_the_lines(filled, shelf):
    shelf.call("inner", None, None, agent="clerk", model="m-1", status="refused")
    for by in ("model", "tool", "agent,tool"):
        head, *body = rows(filled("cost", "--by", by, "--csv"))
        groups = json.loads(filled("cost", "--by", by, "--json").stdout)["groups"]
        assert [str(group["calls"]) for group in groups] == [row[head.index("calls")] for row in body]


def test_a_call_without_a_price_makes_a_lower_bound_and_is_never_free(filled):
    done = filled("cost")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "≥$1.7500 in all, 1 call without a known price."
    (line,) = [line for line in done.stdout.splitlines() if "m-9" in line]
    assert line.split() == ["m-9", "1", "100", "10", "?", "1"]
    (row,) = [row for row in rows(filled("cost", "--csv")) if row[0] == "m-9"]
    assert (row[6], row[7]) == ("", "1")


def test_tokens_that_nobody_told_apart_have_their_own_column(shelf):
    run = shelf.add()
    shelf.call(run, (100, 10), 0.5)
    assert "in or out" not in shelf("cost").stdout
    shelf.call(run, None, None, model="m-9", usage=Usage(total_tokens=500))
    shown = shelf("cost").stdout.splitlines()
    assert "in or out" in shown[0]
    assert [line.split() for line in shown[2:5]] == [
        ["m-1", "1", "100", "10", "$0.5000"],
        ["m-9", "1", "?", "?", "500", "?", "1"],
        ["all", "2", "≥100", "≥10", "500", "≥$0.5000", "1"],
    ]
    assert [row[5] for row in rows(shelf("cost", "--csv"))] == ["unsplit_tokens", "0", "500"]


def test_what_a_program_reported_by_hand_is_in_every_sum(shelf):
    run = shelf.add()
    shelf.call(run, (100, 10), 0.5)
    shelf.consume(run, "a", tokens=700, cost=0.25, turns=2)
    assert [row[:7] for row in rows(shelf("cost", "--by", "agent", "--csv"))[1:]] == [
        ["", "1", "100", "10", "0", "0", "0.500000000"],
        ["a", "0", "0", "0", "0", "700", "0.250000000"],
    ]
    assert "$0.7500 in all." in shelf("cost").stdout
    (line,) = [line for line in shelf("runs").stdout.splitlines() if run.launch in line]
    assert "810" in line.split()
    (agent,) = [line for line in shelf("show").stdout.splitlines() if "agent a" in line]
    assert "700 tokens reported by" in " ".join(agent.split())
    assert agent.split()[-3:] == ["?", "?", "$0.2500"]


def test_when_no_price_is_known_at_all_no_sum_is_said(shelf):
    shelf.call(shelf.add(), None, None)
    assert shelf("cost").stdout.splitlines()[-1] == "No cost is known: 1 call without a known price."


def test_when_every_price_is_known_the_sum_is_exact(shelf):
    shelf.call(shelf.add(), (1, 1), 12.5)
    assert shelf("cost").stdout.splitlines()[-1] == "$12.50 in all."


def test_older_runs_are_not_counted(shelf):
    shelf.call(shelf.add(ago=7_200), cost=5.0)
    shelf.call(shelf.add(), cost=1.0)
    assert "$1.0000 in all." in shelf("cost", "--since", "1h").stdout
    assert "$6.0000 in all." in shelf("cost", "--since", "1d").stdout
    assert shelf("cost", "--since", "0s").stdout == "No call was stored in that time.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "soon"], "--since or --from 'soon' is no time"),
        (["--by", "tag"], "--by tag needs --tag KEY"),
        (["--by", "agent", "--tag", "team"], "Leave one of them out"),
    ],
)
def test_a_wrong_option_is_a_sentence(filled, arguments, words):
    done = filled("cost", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\x1b[1m=1", "\uff1d1"])
def test_a_name_is_never_a_spreadsheets_formula(shelf, name):
    shelf.call(shelf.add(tags={"team": name}), agent=name)
    for by in (["--by", "agent"], ["--tag", "team"]):
        _, row = rows(shelf("cost", *by, "--csv"))
        assert row[0].startswith("'")


def test_names_with_commas_quotes_and_breaks_stay_one_cell(shelf):
    shelf.call(shelf.add(), agent='a,"b"\n"c"')
    assert rows(shelf("cost", "--by", "agent", "--csv"))[1][0] == 'a,"b" "c"'


def test_the_tags_of_the_run_count_for_calls_without_their_own(shelf):
    shelf.call(shelf.add(tags={"team": "web"}))
    assert rows(shelf("cost", "--tag", "team", "--csv"))[1][0] == "web"


def test_refused_calls_cost_nothing_and_are_not_counted(shelf):
    shelf.call(shelf.add(), None, None, status="refused")
    assert shelf("cost").stdout == "No call was stored.\n"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_is_as_wide_as_the_terminal_at_most(shelf, width):
    shelf.call(shelf.add(), agent="x\u202e" * 300)
    done = shelf("cost", "--by", "agent", width=width)
    assert all(len(line) <= width for line in done.stdout.splitlines()[:-1])


def test_a_tag_that_no_call_has_is_said(filled):
    done = filled("cost", "--tag", "nope")
    assert done.exit_code == 0
    assert done.stderr == "No call of these runs has the tag nope.\n"


def test_a_tag_of_any_letters_can_be_a_head_in_ascii(filled, monkeypatch):
    monkeypatch.setattr("rich.console.ConsoleOptions.ascii_only", property(lambda _: True))
    done = filled("cost", "--tag", "\u00e9")
    assert done.exit_code == 0
    assert done.stdout.isascii()


def test_sums_are_by_several_things_at_once_and_for_programs_with_null_for_what_is_not_known(filled):
    document = json.loads(filled("cost", "--by", "user,model", "--json").stdout)
    assert document["by"] == ["user", "model"]
    found = {(group["user"], group["model"]): (group["requests"], group["cost_usd"]) for group in document["groups"]}
    assert found == {("u1", "m-1"): (1, 0.5), ("u1", "m-2"): (2, 1.25), (None, "m-9"): (1, None)}
    assert (document["total"]["cost_usd"], document["total"]["calls_without_price"]) == (1.75, 1)
    shown = filled("cost", "--by", "user,tag.team").stdout
    assert [line.split()[:3] for line in shown.splitlines()[2:3]] == [["u1", "search", "3"]]


def test_days_come_in_order_and_a_span_of_time_is_exact(shelf):
    shelf.call(shelf.add(ago=3 * 86_400), cost=5.0)
    shelf.call(shelf.add(), cost=1.0)
    body = rows(shelf("cost", "--by", "day", "--csv"))[1:]
    assert [row[6] for row in body] == ["5.000000000", "1.000000000"]
    assert body[0][0] < body[1][0]
    assert rows(shelf("cost", "--from", "4d", "--to", "2d", "--csv"))[1:] == [["m-1", *body[0][1:]]]


def test_only_what_is_of_somebody_is_added_up(filled):
    assert [row[0] for row in rows(filled("cost", "--user", "u1", "--csv"))[1:]] == ["m-2", "m-1"]
    assert filled("cost", "--user", "nobody").stdout == "No stored call fits --user nobody.\n"
    assert filled("cost", "--model", "gpt-99", "--since", "1h").stdout == "No stored call fits --model gpt-99 in that time.\n"


def test_tools_are_counted_where_they_are_asked_for(shelf):
    run = shelf.add()
    shelf.call(run)
    shelf.tool(run, "search")
    shelf.tool(run, "search")
    assert [row[:2] for row in rows(shelf("cost", "--by", "tool", "--csv"))[1:]] == [["search", "2"]]


@pytest.mark.parametrize("by", ["nonsense", "", "model,", "model,model", "tag.", "model; DROP", "\x1b[31m"])
def test_what_cannot_be_added_up_by_is_a_sentence(filled, by):
    done = filled("cost", "--by", by)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("Error: --by ")
    assert "\x1b" not in done.stderr


def test_groups_for_programs_add_up_to_the_total_with_whoever_only_called_tools_or_was_only_refused(shelf):
    run = shelf.add()
    shelf.call(run, agent="writer")
    shelf.tool(run, "search", agent="clerk")
    shelf.tool(run, "search", agent="clerk", status="refused")
    shelf.call(run, None, None, agent="late", status="refused")
    document = json.loads(shelf("cost", "--by", "user,agent", "--json").stdout)
    assert {group["agent"] for group in document["groups"]} == {"writer", "clerk", "late"}
    for figure in ("requests", "tool_calls", "refused"):
        assert sum(group[figure] for group in document["groups"]) == document["total"][figure]


def test_where_only_tools_were_called_the_way_to_count_them_is_told(shelf):
    shelf.tool(shelf.add(), "search")
    assert shelf("cost").stdout == "No call to a model was sent. --by tool counts the tool calls.\n"
