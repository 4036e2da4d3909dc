"""What the store answers: figures that are never 0 where nobody told, exact edges of times, ids by their beginning, hostile words."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from stored_runs import HOUR_NS, Shelf

from ravi_otel._local.answers import RunFilter, SpendFilter
from ravi_otel._local.queries import Queries
from ravi_otel._local.wording import matching, moment
from ravi_otel.errors import ConfigurationError

NOW = time.time_ns()


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / ".ravi")


@pytest.fixture
def ask(shelf):
    with Queries(shelf.store) as queries:
        yield queries


def keys(table):
    return {group.key: group.spent.cost_nano for group in table.groups}


# -- runs ---------------------------------------------------------------------------------------------------------


def test_a_launch_stands_for_the_runs_in_it_until_they_are_asked_for(shelf, ask):
    launch = shelf.add("server")
    shelf.run("r1", parent=launch.launch, user="u1")
    shelf.run("r2", parent=launch.launch, user="u2")
    shelf.run("alone", began=NOW - HOUR_NS)
    assert [row.run for row in ask.runs().rows] == [launch.launch, "alone"]
    assert [row.run for row in ask.runs(RunFilter(user="u2")).rows] == ["r2"]
    assert {row.run for row in ask.runs(every=True).rows} == {launch.launch, "r1", "r2", "alone"}
    assert {row.run for row in ask.runs(RunFilter(inside=launch.launch)).rows} == {"r1", "r2"}


def test_a_launch_has_the_user_and_tenant_that_all_runs_in_it_have_and_says_how_many_where_they_differ(shelf, ask):
    one, two, some, none = (shelf.add(name) for name in ("one", "two", "some", "none"))
    shelf.run("r1", parent=one.launch, user="u42", tenant="acme")
    shelf.run("r2", parent=one.launch, user="u42", tenant="globex")
    shelf.run("r3", parent="r2")  # a run in a run is its work
    shelf.run("r4", parent=two.launch, user="u1", tenant="acme")
    shelf.run("r5", parent=two.launch, user="u2", tenant="acme")
    shelf.run("r6", parent=some.launch, user="u1")
    shelf.run("r7", parent=some.launch)
    told = {row.name: (row.user, row.user_text, row.tenant, row.tenant_text) for row in ask.runs().rows}
    assert told == {
        "one": ("u42", "u42", None, "2 tenants"),
        "two": (None, "2 users", "acme", "acme"),
        "some": (None, None, None, None),
        "none": (None, None, None, None),
    }
    assert ask.run(one.launch).user == "u42"
    assert ask.run("r3").user is None
    assert none.launch


def test_what_still_runs_says_how_long_it_has_and_what_nobody_saw_end_does_not(shelf, ask):
    shelf.lives(shelf.add("goes-on", outcome="running", seconds=None, ago=90))
    shelf.dies(shelf.add("gone", outcome="running", seconds=None))
    told = {row.name: row for row in ask.runs().rows}
    assert told["goes-on"].duration is None
    assert told["goes-on"].duration_text.startswith("≥")
    assert float(told["goes-on"].duration_text[1:]) >= 90
    assert told["gone"].duration_text == "?"


def test_runs_are_chosen_by_what_they_are(shelf, ask):
    shelf.run("a", user="u1", tenant="acme", session="s1", tags={"team": "x"}, stop_reason="llm_error:Boom", status="error", began=NOW - 9)
    shelf.run("b", user="u2", tags={"team": "y", "env": "p"}, began=NOW - 5 * HOUR_NS)
    shelf.call("b", model="gpt", agent="clerk", status="refused", limit_kind="cost")
    shelf.agent("b", "clerk")
    found = {
        "user": RunFilter(user="u1"),
        "tenant": RunFilter(tenant="acme"),
        "session": RunFilter(session="s1"),
        "tag": RunFilter(tag=("team", "x")),
        "family of a reason": RunFilter(stop_reason="llm_error"),
        "status": RunFilter(status="error"),
        "since": RunFilter(since=NOW - HOUR_NS),
        "name": RunFilter(name="a"),
    }
    assert {name: [row.run for row in ask.runs(where).rows] for name, where in found.items()} == {name: ["a"] for name in found}
    others = [
        RunFilter(status="refused"),
        RunFilter(model="gpt"),
        RunFilter(agent="clerk"),
        RunFilter(tag=("env", None)),
        RunFilter(until=NOW - HOUR_NS),
    ]
    assert [[row.run for row in ask.runs(where).rows] for where in others] == [["b"]] * len(others)


def test_pages_follow_one_another_without_a_gap_and_say_how_many_there_are(shelf, ask):
    for number in range(7):
        shelf.run(f"r{number}", began=NOW - number // 2)  # two of each time
    seen, after = [], None
    while True:
        page = ask.runs(most=3, after=after)
        assert page.total == 7
        seen += [row.run for row in page.rows]
        after = page.after
        if after is None:
            break
    assert sorted(seen) == [f"r{number}" for number in range(7)]


def test_facets_count_what_can_be_chosen(shelf, ask):
    shelf.run("a", user="u1", tags={"team": "x"})
    shelf.run("b", user="u1", tags={"team": "x"}, status="error")
    facets = ask.runs(facets=True).facets
    assert (facets["user"], facets["tag"]) == ((("u1", 2),), (("team=x", 2),))
    assert dict(facets["status"]) == {"ok": 1, "error": 1}


def test_a_facet_counts_what_choosing_it_lists_also_of_runs_in_others(shelf, ask):
    launch = shelf.add("desk")
    shelf.run("ada's", parent=launch.launch, user="ada", tags={"team": "a"})
    shelf.run("ben's", parent=launch.launch, user="ben", status="error")
    shelf.run("inner", parent="ben's", user="ben", status="error")
    shelf.run("alone", user="ada", tags={"team": "a"})
    facets = ask.runs(facets=True).facets
    assert dict(facets["user"]) == {"ada": 2, "ben": 1}
    for name in ("user", "status"):
        assert {word: ask.runs(RunFilter(**{name: word})).total for word, _ in facets[name]} == dict(facets[name])
    assert dict(facets["tag"]) == {"team=a": ask.runs(RunFilter(tag=("team", "a"))).total} == {"team=a": 2}


def test_how_a_run_stands_is_told_by_its_process(shelf, ask):
    running, lost, done = (shelf.add(name, outcome="running", seconds=None) for name in ("running", "lost", "done"))
    shelf.lives(running)
    shelf.dies(lost)
    shelf.execute("UPDATE processes SET ended = 5 WHERE launch = ?", (done.launch,))
    shelf.run("open in a process that ended", parent=done.launch, status="open", ended=None)
    shelf.run("open in one that is gone", parent=lost.launch, status="open", ended=None)
    found = {row.name: row.status for row in ask.runs(every=True).rows}
    assert (found["running"], found["lost"]) == ("running", "lost")
    assert (found["open in a process that ended"], found["open in one that is gone"]) == ("ended", "lost")
    assert [row.name for row in ask.runs(RunFilter(status="lost")).rows] == ["lost"]


def test_the_end_of_the_outermost_agent_inside_is_told(shelf, ask):
    launch = shelf.add()
    shelf.run("inner", parent=launch.launch)
    outer = shelf.agent("inner", "lead", status="stopped", stop_reason="supervisor_block:cap", depth=0)
    shelf.agent("inner", "sub", parent=outer, status="error", stop_reason="llm_error", depth=1)
    (row,) = ask.runs().rows
    assert (row.end_status, row.end_reason) == ("stopped", "supervisor_block:cap")


def test_a_run_that_a_limit_ended_was_stopped_whether_it_handled_the_refusal_or_let_it_through(shelf, ask):
    launch = shelf.add("launched", outcome="stopped", status=1)
    shelf.run("inner", parent=launch.launch, status="error", stop_reason="limit_tokens")
    shelf.run("let it through", status="error", stop_reason="limit_tokens")
    shelf.run("handled", status="stopped", stop_reason="limit_tokens")
    shelf.run("broken", status="error", stop_reason="error")
    found = ask.runs(RunFilter(status="stopped"), facets=True)
    assert {row.name for row in found.rows} == {"launched", "let it through", "handled"}
    assert dict(found.facets["status"]) == {"stopped": 3}
    assert next((row.outcome, row.end_status) for row in found.rows if row.name == "launched") == ("stopped", "stopped")
    assert [row.name for row in ask.runs(RunFilter(status="error")).rows] == ["broken"]


def test_records_that_were_lost_are_said(shelf, ask):
    launch = shelf.add()
    shelf.execute("UPDATE processes SET lost = 3")
    assert ask.run(launch.launch).lost_records == 3


# -- spend --------------------------------------------------------------------------------------------------------


def test_what_nobody_told_is_never_nothing(shelf, ask):
    shelf.run("r")
    shelf.call("r", None, None, model="silent")
    shelf.call("r", (10, 5), 0.5, model="known")
    found = {group.key[0]: group.spent for group in ask.spend().groups}
    silent, known = found["silent"], found["known"]
    assert (silent.cost_nano, silent.input_tokens, silent.total_tokens, silent.cost_text, silent.tokens_text) == (
        None,
        None,
        None,
        "?",
        "?",
    )
    assert (known.cost_nano, known.cost_text) == (500_000_000, "$0.5000")
    total = ask.spend().total
    assert (total.cost_nano, total.cost_text, total.unknown_cost) == (500_000_000, "≥$0.5000", 1)


def test_spend_between_two_times_is_exact_within_an_hour(shelf, ask):
    hour = NOW - NOW % HOUR_NS - 5 * HOUR_NS
    shelf.run("r", began=hour, ended=hour + 4 * HOUR_NS, session="s", tags={"team": "x"})
    for at, cost in ((0, 1), (HOUR_NS // 2, 2), (HOUR_NS, 4), (2 * HOUR_NS + 1, 8), (3 * HOUR_NS, 16)):
        shelf.call("r", cost=cost, began=hour + at)
    ranges = [(None, None, 31), (hour, hour + HOUR_NS, 3), (hour + 1, hour + 3 * HOUR_NS, 14), (hour + 1, hour + HOUR_NS // 2 + 1, 2)]
    ranges += [
        (hour + HOUR_NS // 2, hour + 2 * HOUR_NS + 1, 6),
        (hour + 3 * HOUR_NS, None, 16),
        (None, hour + 1, 1),
        (hour + 5, hour + 5, 0),
    ]
    for by in (("model",), ("session",), ("tag.team",), ("run", "model")):
        totals = [(ask.spend(by, since=since, until=until).total.cost_nano or 0) // 10**9 for since, until, _ in ranges]
        assert totals == [cost for *_, cost in ranges], by


def test_spend_is_added_up_by_any_of_its_sides(shelf, ask):
    launch = shelf.add("server", tags={"env": "prod"})
    shelf.run("r1", parent=launch.launch, user="u1", tenant="acme", session="s1", tags={"team": "x", "env": "prod"})
    shelf.run("r2", parent=launch.launch, user="u2", tenant="acme", session="s2", tags={"team": "y", "env": "prod"})
    shelf.call("r1", cost=1, model="big", agent="lead")
    shelf.call("r2", cost=2, model="small", agent="clerk")
    shelf.call(launch, cost=4, model="small")
    shelf.tool("r1", "search", agent="lead")
    usd = 10**9
    assert keys(ask.spend(("user",))) == {("u1",): usd, ("u2",): 2 * usd, (None,): 4 * usd}
    assert keys(ask.spend(("tenant", "model"))) == {
        ("acme", "big"): usd,
        ("acme", "small"): 2 * usd,
        (None, "small"): 4 * usd,
        ("acme", None): 0,
    }
    assert keys(ask.spend(("session",))) == {("s1",): usd, ("s2",): 2 * usd, (None,): 4 * usd}
    assert keys(ask.spend(("tag.team",))) == {("x",): usd, ("y",): 2 * usd, (None,): 4 * usd}
    assert keys(ask.spend(("tag.env",))) == {("prod",): 7 * usd}
    assert keys(ask.spend(("session", "model"), where=SpendFilter(user="u1"))) == {("s1", "big"): usd, ("s1", None): 0}
    assert keys(ask.spend(("run",))) == {("r1",): usd, ("r2",): 2 * usd, (launch.launch,): 4 * usd}
    assert keys(ask.spend(("model",), where=SpendFilter(user=""))) == {("small",): 4 * usd}
    assert [(group.key, group.calls) for group in ask.spend(("tool",)).groups] == [(("search",), 1)]
    assert ask.spend(()).total.cost_nano == 7 * usd


def test_days_are_local_and_in_order(shelf, ask, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        # 2026-03-08, when daylight saving begins there: a day of 23 hours
        for at, run in (("2026-03-08T04:30", "a"), ("2026-03-08T05:30", "b"), ("2026-03-09T03:30", "c"), ("2026-03-09T04:30", "d")):
            began = moment("at", f"{at}Z")
            shelf.run(run, began=began, ended=began + 1)
            shelf.call(run, cost=1, began=began)
        days = [(group.key, group.calls) for group in ask.spend(("day",)).groups]
        assert days == [(("2026-03-07",), 1), (("2026-03-08",), 2), (("2026-03-09",), 1)]
        assert [(group.key, group.calls) for group in ask.spend(("week",)).groups] == [(("2026-W10",), 3), (("2026-W11",), 1)]
        assert [group.key for group in ask.spend(("month", "model")).groups] == [("2026-03", "m-1")]
        assert next(group.key for group in ask.spend(("hour",)).groups) == ("2026-03-07 23:00",)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("day", "week"), [("2027-01-03", "2026-W53"), ("2027-01-04", "2027-W01"), ("2024-12-30", "2025-W01")])
def test_a_week_is_of_the_year_that_its_thursday_is_of(shelf, ask, day, week):
    began = moment("at", f"{day}T12:00")
    shelf.run("r", began=began, ended=began + 1)
    shelf.call("r", cost=1, began=began)
    assert [group.key for group in ask.spend(("week",)).groups] == [(week,)]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"])
def test_days_are_exact_where_local_time_is_no_whole_hours_ahead_of_utc(shelf, ask, monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for at in ("2026-10-03T23:40", "2026-10-04T00:10", "2026-10-04T02:20", "2026-10-04T23:50", "2026-10-05T00:20", "2026-10-05T12:00"):
            began = moment("at", at)
            shelf.run(at, began=began, ended=began + 1)
            shelf.call(at, cost=1, began=began)
            shelf.tool(at, "search", began=began)
        days = {("2026-10-03",): 1, ("2026-10-04",): 3, ("2026-10-05",): 2}
        assert {group.key: group.spent.requests for group in ask.spend(("day",)).groups} == days
        assert {group.key: group.calls for group in ask.spend(("day", "tool")).groups} == {(*day, "search"): n for day, n in days.items()}
        assert {(group.key[0],): group.spent.requests for group in ask.spend(("day", "tag.team")).groups} == days
        one = ask.spend(("day",), since=moment("since", "2026-10-04"), until=moment("until", "2026-10-05"))
        assert [(group.key, group.spent.requests) for group in one.groups] == [(("2026-10-04",), 3)]
        hours = [moment("hour", group.key[0].replace(" ", "T")) for group in ask.spend(("hour",)).groups]
        assert not any(each % HOUR_NS for each in hours)  # each says when it began
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("by", ["", "nonsense", "tag.", "model; DROP TABLE runs"])
def test_what_cannot_be_added_up_by_is_a_sentence(ask, by):
    with pytest.raises(ConfigurationError, match=r"^by=.* is nothing to add up by\. Write one of hour, day"):
        ask.spend((by,))


# -- one run, one call ----------------------------------------------------------------------------------------------


def test_the_tree_has_every_scope_and_call_with_the_sums_of_each(shelf, ask):
    launch = shelf.add("desk", budgets=[{"scope": "run", "limit": "tokens", "threshold": 100, "used": 90, "held": 0, "ratio": 0.9}])
    shelf.run("r", parent=launch.launch, name="triage")
    lead = shelf.agent("r", "lead")
    sub = shelf.agent("r", "sub", parent=lead)
    call = shelf.call("r", cost=1, parent=lead, agent="lead")
    shelf.call("r", cost=2, parent=sub, agent="sub")
    refused = shelf.call("r", None, None, parent=sub, status="refused", refusal={"sentence": "No more."}, limit_kind="cost")
    tree = ask.tree(launch.launch)
    lines = {node.id: (node.parent, node.title, node.cost_nano) for node in tree.nodes}
    usd = 10**9
    assert lines[launch.launch] == (None, "run desk", 3 * usd)
    assert (lines[lead], lines[sub]) == (("r", "agent lead", usd), (lead, "agent sub", 2 * usd))
    assert lines[call] == (lead, "chat m-1", usd)
    assert [(node.status, node.refusal) for node in tree.nodes if node.id == refused] == [("refused", "No more.")]
    assert [(limit.title, limit.used, limit.ratio) for limit in tree.limits] == [("tokens", 90, 0.9)]
    json.dumps(dataclasses.asdict(tree))


def test_a_run_that_is_too_much_for_a_tree_is_summed_up_whole_and_says_what_is_left_out(shelf, ask):
    launch = shelf.add("server")
    for number in range(4):
        shelf.run(f"r{number}", parent=launch.launch)
        agent = shelf.agent(f"r{number}", "clerk")
        for _ in range(5):
            shelf.call(f"r{number}", cost=1, parent=agent, agent="clerk")
        shelf.tool(f"r{number}", "search", parent=agent)
    whole, part = ask.tree(launch.launch), ask.tree(launch.launch, most=6)
    assert (len(whole.nodes), whole.left_out) == (1 + 4 * 8, 0)
    assert (len(part.nodes), part.left_out) == (6, 1 + 4 * 8 - 6)
    for tree in (whole, part):
        assert (tree.nodes[0].cost_nano, tree.nodes[0].spent.tool_calls) == (20 * 10**9, 4)
    assert {node.id: node.cost_nano for node in part.nodes}.items() <= {node.id: node.cost_nano for node in whole.nodes}.items()


@pytest.mark.parametrize(
    ("told", "window"),
    [
        ({"per": "day", "window": "2026-01-01", "by": "user", "counted_for": "ann"}, ("day", "2026-01-01", "user", "ann")),
        *(({"per": odd}, (None,) * 4) for odd in ("fortnight", ["day"], 5)),
        ({"by": "me", "counted_for": "x"}, (None,) * 4),
    ],
)
def test_a_limit_that_begins_anew_is_read_with_its_window_and_whose_it_is(shelf, ask, told, window):
    budget = {"scope": "run", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 80, "held": 0, "ratio": 0.8}
    (read,) = ask.tree(shelf.add(budgets=[budget | told]).launch).limits
    assert (read.used, read.limit.per, read.window, read.limit.by, read.counted_for) == (80, *window)


def test_a_scope_that_stands_in_a_session_or_in_itself_is_in_the_tree(shelf, ask):
    launch = shelf.add()
    shelf.put("scopes", scope="session", kind="session", name="s", parent=launch.launch, status="open")
    shelf.run("r", parent=launch.launch)
    shelf.execute("UPDATE scopes SET parent = 'session' WHERE scope = 'r'")
    one, other = shelf.agent("r", "one"), shelf.agent("r", "other")
    shelf.execute("UPDATE scopes SET parent = CASE scope WHEN ? THEN ? ELSE ? END WHERE scope IN (?, ?)", (one, other, one, one, other))
    found = {node.id: node.parent for node in ask.tree(launch.launch).nodes}
    assert found["r"] == launch.launch
    assert {one, other} < set(found)


def test_a_call_is_shown_whole_with_what_was_said_only_where_that_was_kept(shelf, ask):
    shelf.run("r")
    bare = shelf.call("r")
    said = shelf.call("r", held=[{"scope": "run", "held": 0.5}], estimated={"input_tokens": 9}, retries=[{"attempt": 1}])
    shelf.say("r", said, "where is my order?", answer="on its way")
    assert (ask.call(bare).captured, ask.call(bare).messages) == (False, None)
    view = ask.call(said)
    texts = [part["content"] for message in (*view.messages, *view.output) for part in message["parts"]]
    assert texts == ["where is my order?", "on its way"]
    assert (view.held[0]["held"], view.estimated["input_tokens"], view.node.retries) == (0.5, 9, 1)
    json.dumps(dataclasses.asdict(view))
    for unknown in ("nobody", "", "' OR 1=1 --"):
        with pytest.raises(ConfigurationError, match=r"^CALL=.* names no call of the store"):
            ask.call(unknown)


def test_an_id_is_found_whole_or_by_its_beginning_wherever_it_stands(shelf, ask):
    launch = shelf.add("desk")
    shelf.run("abcdef0123", parent=launch.launch, trace="f" * 32, span="e" * 16)
    call = shelf.call("abcdef0123", trace="f" * 32, span="d" * 16, response_id="chatcmpl-1")
    agent = shelf.agent("abcdef0123", "clerk", span="c" * 16)
    expected = {
        launch.launch: ("launch", launch.launch),
        launch.launch[-6:]: ("launch", launch.launch),
        "abcd": ("run", "abcdef0123"),
        "f" * 32: ("run", "abcdef0123"),
        "eeeeeeee": ("run", "abcdef0123"),
        call: ("call", call),
        "d" * 16: ("call", call),
        "chatcmpl-1": ("call", call),
        "c" * 16: ("scope", agent),
        f"p-{launch.launch}": ("process", f"p-{launch.launch}"),
    }
    assert {written: [(each.kind, each.id) for each in ask.find(written)] for written in expected} == {k: [v] for k, v in expected.items()}
    assert [ask.find(written) for written in ("", "nobody at all", "%", "abc")] == [()] * 4


@pytest.mark.parametrize(
    "words", ['"', "*", "NEAR(", "a OR", "text:x", "'; DROP TABLE runs", "\x00", "-", "^", "漢字", "x" * 5_000, '"a b']
)
def test_no_words_break_a_search(shelf, ask, words):
    shelf.run("r")
    shelf.say("r", shelf.call("r"), "where is my refund?")
    assert ask.search(words) == ()
    assert ask.runs(RunFilter(text=words)).rows == ()


def test_a_refused_call_is_found_by_a_part_of_its_sentence_and_by_the_line_that_quotes_it(shelf, ask):
    sentence = "3000 of 3000 tokens used in run 'letters'; this call needs 24 more and is refused."
    shelf.run("r", name="letters")
    call = shelf.call("r", status="refused", refusal={"sentence": sentence})
    tool = shelf.tool("r", "pay", status="refused", refusal={"sentence": "The tool pay is refused by a rule of the gate."})
    shelf.run("other")
    shelf.call("other")
    for text in ("run 'letters'; this", sentence, f"ravi_otel.errors.BudgetExhaustedError: {sentence} (again)"):
        assert [(each.id, each.run) for each in ask.refused_with(text)] == [(call, "r")]
        assert [row.run for row in ask.runs(RunFilter(text=text)).rows] == ["r"]
    assert [each.id for each in ask.refused_with("a rule of the gate")] == [tool]
    assert [ask.refused_with(text) for text in ("", "%", "nobody")] == [(), (), ()]


def test_words_and_phrases_are_found_with_the_call_they_stand_in(shelf, ask):
    shelf.run("r")
    call = shelf.call("r")
    shelf.say("r", call, "where is my refund?", answer="it was sent on Monday")
    (hit,) = ask.search("refund my")
    assert (hit.id, hit.run, hit.title) == (call, "r", "where is «my» «refund»?")
    assert [each.id for each in ask.search('"sent on"')] == [call]
    assert ask.search('"on sent"') == ()
    assert [row.run for row in ask.runs(RunFilter(text="monday")).rows] == ["r"]
    assert matching('a "b c" d') == '"a" "b c" "d"'


def test_refusals_are_the_latest_first(shelf, ask):
    shelf.run("r", user="u1")
    first = shelf.call("r", None, None, status="refused", refusal={"sentence": "no"}, limit_kind="cost")
    second = shelf.tool("r", "refund", status="refused", limit_kind="tool_calls")
    assert [each["call"] for each in ask.refusals()] == [second, first]
    assert [each["refusal"] for each in ask.refusals(where=SpendFilter(model="m-1"))] == ["no"]
    assert ask.refusals(where=SpendFilter(user="nobody")) == ()
    assert ask.refusals(until=NOW - HOUR_NS) == ()


def test_two_runs_are_compared_by_totals_agents_and_models(shelf, ask):
    shelf.run("a")
    shelf.run("b")
    shelf.call("a", cost=1, agent="lead", model="big")
    shelf.call("b", None, None, agent="lead", model="small")
    rows = {row.what: (row.a, row.b, row.a_text, row.b_text) for row in ask.compare("a", "b").rows}
    assert rows["cost"] == (10**9, None, "$1.0000", "?")
    assert rows["lead · big: cost"] == (10**9, None, "$1.0000", "")
    assert rows["lead · small: requests"] == (None, 1, "", "1")


def test_where_limits_stood_is_a_curve_each(shelf, ask):
    shelf.run("r")
    for at in (1, 2):
        shelf.put(
            "samples",
            at=at,
            run="r",
            scope="r",
            scope_kind="run",
            limit_label="tokens",
            limit_kind="tokens",
            used=at * 10,
            held=0,
            value=100,
        )
    (curve,) = ask.curves("r")
    assert (curve.limit_label, curve.points) == ("tokens", ((1, 10, 0, 100), (2, 20, 0, 100)))


def reading(kind, used, of, scope="agent", **more):
    limit = {"limit": kind, "scope": scope, "scope_name": "clerk", "threshold": of, "used": used, "held": 0}
    return limit | {"remaining": of - used, "ratio": used / of, "denied": 0, "events": []} | more


def test_a_row_shows_how_the_cost_of_a_run_grew_and_the_fullest_limit_of_what_is_in_it(shelf, ask):
    shelf.run("r", ended=shelf._now + 16 * 10**9)
    shelf.run("inner", parent="r")
    shelf.run("idle")
    for run, at, cost in (("r", 0, 1), ("inner", 9, 2), ("inner", 16, 1)):
        shelf.call(run, cost=cost, began=shelf._now + at * 10**9, duration=0)
    shelf.agent("r", "clerk", limits=[reading("tokens", 10, 100), reading("agents", 10, 10), reading("cost", 99, 100, scope="tenant")])
    shelf.agent("inner", "clerk", limits=[reading("turns", 3, 4)])
    rows = [ask.run("r"), ask.run("idle")]
    busy, idle = ask.glances(rows)
    assert busy.spent == (0.25,) * 8 + (0.75,) * 7 + (1.0,)
    assert (busy.limit.limit.kind, busy.limit.ratio, busy.limit.limit.amount) == ("turns", 0.75, 4)
    assert (idle.spent, idle.limit) == ((), None)


def test_a_row_of_a_program_that_called_nothing_shows_the_limits_it_was_launched_with(shelf, ask):
    launch = shelf.add(budgets=[reading("requests", 0, 4, scope="run")]).launch
    (glance,) = ask.glances([ask.run(launch)])
    assert (glance.limit.limit.kind, glance.limit.ratio) == ("requests", 0)


def test_a_limit_is_tried_on_the_calls_of_past_runs_and_of_each_work_of_an_agent(shelf, ask):
    for run, calls in (("a", 4), ("b", 2)):
        shelf.run(run)
        for at in range(calls):
            shelf.call(run, (10, 5), 0.5 if at else None, agent="clerk" if at % 2 else None, began=shelf._now + at)
    refused = ask.refused_by("cost", 10**9)
    assert (refused.works, refused.calls, refused.cost_nano) == (1, 1, 500_000_000)
    assert ask.refused_by("requests", 1).works == 2
    assert ask.refused_by("tokens", 15).calls == 4
    assert ask.refused_by("requests", 1, agent="clerk").calls == 1
    assert ask.refused_by("tokens", 0).unknown_cost == 2
    with pytest.raises(ConfigurationError, match=r"^kind='time' cannot be tried on past runs\. Write one of cost, tokens"):
        ask.refused_by("time", 1)


def test_the_limit_of_a_run_or_an_agent_that_counted_last_is_known(shelf, ask):
    shelf.run("a")
    shelf.agent("a", "clerk", limits=[reading("turns", 1, 4)])
    shelf.agent("a", "clerk", limits=[reading("turns", 1, 6)])
    assert ask.limits_of("turns", agent="clerk").limit.amount == 6
    assert ask.limits_of("turns") is None


# -- hostile stores and times ---------------------------------------------------------------------------------------

POISON = {
    "text for a sum": "UPDATE runs SET cost_nano = 'much', requests = NULL, input_tokens = -5",
    "text for times": "UPDATE runs SET began = 'yesterday', ended = x'ff'",
    "broken JSON": "UPDATE scopes SET limits = '[{', tags = '[', spend = '{\"consumed\": 5}'",
    "deep JSON": f"UPDATE calls SET usage = '{'[' * 50_000}', refusal = '{'{' * 50_000}', retries = '5'",
    "a list for tags": "UPDATE runs SET tags = '[1]'",
    "bytes for names": "UPDATE runs SET name = x'ff00', status = x'ff', user = 5",
    "unknown kinds": "UPDATE scopes SET kind = 'dragon', status = 'asleep', priority = 'most'",
    "limits of another shape": 'UPDATE scopes SET limits = \'[1, {}, {"scope": "run", "limit": "cost", "threshold": -5}]\'',
    "an event of another version": "INSERT INTO events (at, event, run, scope) VALUES (1, 'limit_doubted', 'r', 'r')",
}


@pytest.mark.parametrize("statement", POISON.values(), ids=POISON.keys())
def test_whatever_a_column_holds_every_question_is_answered(shelf, ask, statement):
    shelf.run("r", tags={"team": "x"})
    call = shelf.call("r", parent=shelf.agent("r", "clerk"), agent="clerk")
    shelf.execute(statement)
    ask.runs(facets=True)
    ask.runs(RunFilter(tag=("team", None)), order="cost")
    ask.tree("r")
    ask.record("r")
    ask.call(call)
    for by in (("model",), ("session",), ("tag.team", "day")):
        ask.spend(by)
    ask.compare("r", "r")
    ask.worked()
    ask.glances(ask.runs().rows)
    ask.refused_by("tokens", 5)
    ask.refused_by("cost", 5, agent="clerk")
    ask.limits_of("cost")
    ask.named("e%_")


def test_a_file_that_is_damaged_is_one_sentence(shelf, ask):
    shelf.execute("DROP TABLE calls")
    with pytest.raises(ConfigurationError, match=r"^the local store at .* cannot be read: no such table: calls\. Set RAVI_STORE"):
        ask.runs(RunFilter(model="x"))


@pytest.mark.parametrize(
    ("written", "ago"), [("now", 0), ("7d", 604_800), ("24h", 86_400), ("90m", 5_400), (" 30s ", 30), ("1.5h", 5_400), ("2w", 1_209_600)]
)
def test_a_time_is_a_word_or_how_long_ago(written, ago):
    assert moment("--since", written, now=2_000_000_000) == (2_000_000_000 - ago) * 10**9


def test_a_time_is_a_date_local_or_of_a_zone():
    assert moment("--since", "2026-11-28T14:00Z") == moment("--since", "2026-11-28T15:00+01:00") == 1_795_874_400 * 10**9
    assert moment("--since", "1795874400") == 1_795_874_400 * 10**9
    midnight = moment("--since", "today", now=1_795_874_400)
    assert moment("--since", "yesterday", now=1_795_874_400) < midnight < 1_795_874_400 * 10**9
    assert moment("--since", "2026-11-28") == moment("--since", "2026-11-28 00:00")


@pytest.mark.parametrize(
    "written", ["", "7", "d", "-1d", "7 days", "nan", "∞d", "٣d", "2026-02-30", "2026-13-01", "tomorrow-ish", "9" * 40, "\x1b[31m"]
)
def test_what_is_no_time_is_a_sentence_naming_the_option(written):
    with pytest.raises(ConfigurationError, match=r"^--since .* is no time\. Write now, today, yesterday, how long ago") as raised:
        moment("--since", written)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("after", ["", "x", "5", "~r", "9" * 30 + "~r", "-1~r"])
def test_a_page_after_nothing_is_a_sentence(ask, after):
    with pytest.raises(ConfigurationError, match=r"^after=.* is no place in a list of runs"):
        ask.runs(after=after)


def test_a_status_and_an_order_that_are_none_are_sentences(ask):
    with pytest.raises(ConfigurationError, match=r"^status='asleep' is no status of a run\. Write running, ok"):
        ask.runs(RunFilter(status="asleep"))
    with pytest.raises(ConfigurationError, match=r"^order='age' is none of began, cost"):
        ask.runs(order="age")
    with pytest.raises(ConfigurationError, match=r"^RUN='nobody' names no run of the store"):
        ask.tree("nobody")
