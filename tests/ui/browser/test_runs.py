"""What a store keeps, in a real browser: runs, one of them whole, and who spent what."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import time
from datetime import datetime
from pathlib import Path

import pytest
from approval_desk import desk, requested
from live_actors import limit, run, scope
from page_stage import HOSTILE
from playwright.sync_api import expect
from stored_runs import Shelf

from ravi_otel.supervisor.approval._queue import seal_of

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]
SECOND = 10**9
REFUSED = "Turn limit exceeded: 20 + 1 > 20 in agent 'researcher' of run 'triage-42'. Raise turns=20 or leave it out."
CHAIN = [
    {"scope": "tenant", "name": "acme", "limit": "cost", "kind": "cost", "value": 200.0, "used": 61.2, "held": 0.02, "refused": False},
    {"scope": "run", "name": "triage-42", "limit": "cost", "kind": "cost", "value": 0.5, "used": 0.38, "held": 0.02, "refused": False},
    {
        "scope": "agent", "scope_id": "researcher", "name": "researcher", "limit": "turns", "kind": "turns", "value": 20, "used": 20,
        "held": 0, "written": "/srv/desk/agents.py:31", "refused": True, "declared": 10, "set_by": "ann",
    },
]  # fmt: skip
LIMITS = [
    {
        "limit": "cost",
        "kind": "cost",
        "scope": "run",
        "scope_name": "triage-42",
        "value": 0.5,
        "threshold": 0.5,
        "used": 0.412,
        "held": 0.02,
        "remaining": 0.068,
        "ratio": 0.824,
        "denied": 0,
        "events": ["limit_nearing"],
        "declared": 0.4,
        "set_by": "ann",
    }
]


def kept(served):
    """Keep a run with three agents, of which one was refused, and some others."""
    shelf = Shelf(served.store)
    shelf._now -= 120 * SECOND
    shelf.put("processes", process="p1", name="support_desk.py", began=shelf._now, lost=0)
    run = shelf.run("triage-42", user="u42", tenant="acme", status="stopped", stop_reason="max_turns", ended=shelf._now + 70 * SECOND)
    began = shelf._now
    for at, (name, model) in enumerate([("planner", "gpt-4.1"), ("researcher", "gpt-4.1"), (HOSTILE, "claude-sonnet")]):
        agent = shelf.agent(run, name, seconds=40, began=began + at * 8 * SECOND)
        for turn in range(6):
            begin = {"began": began + (at * 8 + turn * 5 + 1) * SECOND, "duration": 3 * SECOND}
            call = shelf.call(run, (1_200 + 300 * turn, 310), 0.0051, agent=name, model=model, parent=agent, **begin)
            shelf.tool(run, "search", agent=name, parent=agent, began=begin["began"] + 4 * SECOND, duration=SECOND // 2)
        if name == "researcher":
            refusal = {"sentence": REFUSED, "limit_kind": "turns", "chain": CHAIN}
            call = shelf.call(
                run, None, None, agent=name, parent=agent, status="refused", sent=False, began=began + 49 * SECOND, duration=1_000_000,
                refusal=refusal, limit_kind="turns", limit_scope="agent",
            )  # fmt: skip
            shelf.say(run, call, f"Ticket 4417: {HOSTILE} charged twice", answer="The search results repeat.")
    shelf.execute("UPDATE scopes SET limits = ? WHERE scope = ?", (json.dumps(LIMITS), run))
    for at in range(20):
        shelf.put(
            "samples", at=began + at * 3 * SECOND, run=run, scope=run, scope_kind="run", scope_name="triage-42", limit_kind="cost",
            limit_label="cost", value=0.5, used=0.02 * at, held=0.01, warn_at=0.6,
        )  # fmt: skip
    shelf.run("faq", user="u17", tenant="globex")
    shelf.call("faq", (100, 20), None, model="local/llama-3.3-70b")
    shelf.run("lost one", ended=None, status="open")
    shelf.run("own", status="error", error_type="ValueError", name=HOSTILE)
    return shelf


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_runs_are_listed_with_how_they_ended_and_narrowed_down_by_the_address(served, looking, request):
    kept(served)
    page = looking.open("/runs")
    table = page.get_by_role("table", name="Runs")
    row = table.get_by_role("row").filter(has_text="triage-42")
    expect(row).to_contain_text("stopped: max_turns")
    expect(row.get_by_role("meter", name="cost $0.50: $0.412 + $0.02 held of $0.50")).to_be_visible()
    assert request.node.callspec.id.startswith("phone") or row.locator(".spark").is_visible()
    lost = table.get_by_role("row").filter(has_text="lost one")
    assert request.node.callspec.id.startswith("phone") or lost.locator(".r-limit").inner_text() == "?"
    expect(table.get_by_text(HOSTILE, exact=True)).to_be_visible()
    looking.picture(f"runs-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.goto(f"{served.origin}/runs?tenant=acme")
    expect(table.locator("[role=rowgroup] [role=row]")).to_have_count(1)
    page.get_by_role("button", name="Take out tenant").click()
    expect(table.locator("[role=rowgroup] [role=row]")).to_have_count(4)


def test_the_rail_has_the_shapes_and_words_of_the_rows(served, looking):
    shelf = kept(served)
    launch = shelf.add("desk.py")
    shelf.run("inner", parent=launch.launch, user="u42", tenant="acme")
    page = looking.open("/runs")
    states = page.get_by_role("complementary", name="Narrow down").locator("section").filter(has_text="Status").locator("li")
    expect(states.locator(".st-refused")).to_have_text("stopped")
    expect(states.locator(".st-error")).to_have_text("own error")
    expect(states.locator(".st-unknown svg")).to_be_visible()
    expect(states.first).to_have_text("any5")
    expect(page.get_by_role("row").filter(has_text="desk.py").locator(".r-user")).to_have_text("u42")
    states.filter(has_text="own error").get_by_role("link").click()
    expect(page).to_have_url(f"{served.origin}/runs?status=error")
    states.filter(has_text="any").get_by_role("link").click()
    expect(page).to_have_url(f"{served.origin}/runs")


@pytest.mark.parametrize("name", ["a/b", "a#b", "100%", "50%25", "a b?c&d+e"])
def test_a_run_opens_whatever_is_in_its_id(served, looking, name):
    shelf = Shelf(served.store)
    shelf.run(name, name="odd")
    shelf.call(name, (10, 5), 0.001)
    page = looking.open("/runs")
    page.get_by_role("link", name="odd").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("odd")
    tree = page.get_by_role("treegrid", name="Calls")
    expect(tree).to_be_visible()
    page.reload()
    expect(tree).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Export HTML").click()
    assert "odd" in saved.value.path().read_text()


def test_runs_are_ordered_by_a_column_and_the_address_says_so(served, looking):
    kept(served)
    page = looking.open("/runs")
    page.get_by_role("columnheader", name="Cost").get_by_role("link").click()
    expect(page).to_have_url(f"{served.origin}/runs?order=cost")
    expect(page.get_by_role("columnheader", name="Cost ↓")).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".runs-body [role=row]").first).to_contain_text("triage-42")


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_a_run_is_shown_whole_with_the_refused_call_its_chain_and_its_last_prompt(served, looking, request):
    kept(served)
    page = looking.open("/runs")
    page.get_by_role("link", name="triage-42").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("triage-42")
    expect(page.get_by_role("meter", name="triage-42 · cost")).to_be_visible()
    tree = page.get_by_role("treegrid", name="Calls")
    expect(tree.get_by_text("researcher").first).to_be_visible()
    panel = page.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text(REFUSED)).to_be_visible()
    expect(panel.get_by_text("researcher · turns · said no")).to_be_visible()
    expect(panel.get_by_text(f"Ticket 4417: {HOSTILE} charged twice")).to_be_visible()
    expect(panel.get_by_text("written agents.py:31, 10 there, set since by ann")).to_be_visible()
    expect(page.locator(".runlimits")).to_contain_text("$0.40 there, set since by ann")
    if request.node.callspec.id in NAMES[:2]:
        expect(page.get_by_text("Share of each limit over time, dotted where it warns: 60 %")).to_be_visible()
    looking.picture(f"run-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.keyboard.press("2")
    expect(panel.get_by_role("tab", name="Reservation")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("3")
    expect(panel.get_by_text("request_model")).to_be_visible()
    page.keyboard.press("k")
    page.reload()
    expect(panel.get_by_text(REFUSED)).to_have_count(0)


def test_a_run_that_is_open_is_steered_from_its_own_page(served, looking):
    kept(served)
    turns = limit("turns", 20, 20)
    actor = served.actor(run("triage-42", scope("researcher", "triage-42", limits=(turns,)), limits=(limit("cost", 0.4, 0.5),)))
    page = looking.open("/runs/triage-42")
    panel = page.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text("agents.py:31")).to_have_attribute("title", "/srv/desk/agents.py:31")
    panel.get_by_role("button", name="Set limit…").click()
    page.get_by_label("New value").fill("30")
    page.get_by_role("button", name="Set turns to 30").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("x")
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [(each["op"], each["scope_id"]) for each in actor.heard] == [("set_limit", "researcher"), ("cancel", "triage-42")]


def test_a_call_leads_to_jaeger_and_is_copied_as_curl_and_so_are_its_ids(served, looking):
    shelf = Shelf(served.store)
    served.desk.jaeger = "http://127.0.0.1:16686"
    trace, span = "ab" * 16, "cd" * 8
    shelf.run("r", trace=trace, span="ef" * 8)
    call = shelf.call(
        "r", cost_source="response_model", price_date="2026-11-01", trace=trace, span=span, sampled=1,
        estimated={"input_tokens": 9, "output_tokens": 99, "cost": 2_000_000}, held=[{**CHAIN[1], "held": 0.002}],
    )  # fmt: skip
    shelf.say("r", call, "it's broken")
    shelf.call("r", trace=trace, span=span, sampled=0)
    looking.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = looking.open(f"/runs/r?item={call}")
    panel = page.get_by_role("complementary", name="The open item")
    there = panel.get_by_role("link", name="See its span in Jaeger")
    expect(there).to_have_attribute("href", f"http://127.0.0.1:16686/trace/{trace}?uiFind={span}")
    panel.get_by_role("button", name=f"Copy trace {trace}").or_(panel.get_by_title(f"Copy trace {trace}")).first.click()
    assert page.evaluate("navigator.clipboard.readText()") == trace
    panel.get_by_role("button", name="Copy it as curl").click()
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert json.loads(words[words.index("-d") + 1]) == {"model": "m-1", "messages": [{"role": "user", "content": "it's broken"}]}
    page.keyboard.press("2")
    told = panel.get_by_role("tabpanel")
    for words in ("9 in, 99 out, $0.002000", "$0.002", "30 in, 10 out, $0.001000", "the table, by the model that answered, 2026-11-01"):
        expect(told.get_by_text(words, exact=True)).to_be_visible()
    page.keyboard.press("j")
    expect(there).to_have_count(0)


def test_a_tree_is_folded_and_walked_by_keys(served, looking):
    kept(served)
    page = looking.open("/runs/triage-42")
    rows = page.get_by_role("treegrid", name="Calls").get_by_role("row")
    expect(rows.first).to_contain_text("triage-42")
    for _ in range(60):
        page.keyboard.press("k")
    expect(rows.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(rows).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(rows.nth(1)).to_be_visible()


def test_turns_that_look_alike_are_one_line_until_it_is_opened(served, looking):
    kept(served)
    page = looking.open("/runs/triage-42")
    rows = page.get_by_role("treegrid", name="Calls").get_by_role("row")
    folded = rows.filter(has_text="4 turns, 3 \u00d7 search").first
    expect(folded).to_be_visible()
    before = rows.count()
    folded.get_by_role("button").click()
    expect(rows).to_have_count(before + 7)
    rows.nth(rows.count() - 3).click()
    rows.filter(has_text="chat gpt-4.1").nth(2).click()
    page.reload()
    expect(page.locator("[role=row][aria-selected=true]")).to_contain_text("chat gpt-4.1")


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_who_spent_what_is_added_up_stacked_and_drilled_down_to_the_runs(served, looking, request):
    kept(served)
    page = looking.open("/spend")
    rows = page.locator("table.spend tbody tr")
    expect(rows.first).to_contain_text("u42")
    expect(rows.nth(1)).to_contain_text("gpt-4.1")
    expect(page.get_by_text("calls without a price")).to_be_visible()
    looking.picture(f"spend-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("link", name="u42").click()
    expect(page).to_have_url(f"{served.origin}/runs?user=u42&since=today")
    expect(page.get_by_role("table", name="Runs").get_by_text("triage-42")).to_be_visible()


def test_no_figure_of_spend_is_cut_at_a_desk(served, looking):
    shelf = kept(served)
    shelf.call("faq", (1_000_000, 20_000), 0.0000034, model="gpt-4.1-mini", cost_source="assumed")
    shelf.call("faq", (1_000_000, 20_000), 12.3, model="gpt-4.1", source="estimated")
    page = looking.open("/spend?by=model&since=7d")
    figures = page.locator("table.spend td.n")
    expect(figures.filter(has_text="~$0.000003").first).to_be_visible()
    assert (
        figures.evaluate_all("cells => cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)") == []
    )


def test_spend_is_grouped_otherwise_by_the_address(served, looking):
    kept(served)
    page = looking.open("/spend?by=agent")
    expect(page.locator("table.spend tbody tr").filter(has_text=HOSTILE)).to_be_visible()
    page.get_by_role("button", name="+ tool").click()
    expect(page).to_have_url(f"{served.origin}/spend?by=agent%2Ctool")
    page.get_by_role("button", name="Yesterday").click()
    expect(page.get_by_text("Nothing was spent in that time")).to_be_visible()
    assert looking.accessible() == []


def test_spend_between_two_days_stands_in_the_address_and_leads_to_the_runs_of_a_day_and_of_a_tag(served, looking):
    shelf = Shelf(served.store)
    noon = round(datetime(2026, 11, 20, 12).astimezone().timestamp() * SECOND)
    for day, cost in ((0, 0.5), (1, 0.75), (2, 5)):
        began = noon + day * 86_400 * SECOND
        shelf.run(f"run-{day}", began=began, ended=began + SECOND, tags={"team": HOSTILE})
        shelf.call(f"run-{day}", (100, 20), cost, began=began)
    page = looking.open("/spend?by=day")
    page.get_by_role("button", name="From, to…").click()
    page.get_by_label("From").fill("2026-11-20")
    page.get_by_label("to, with that day").fill("2026-11-21")
    expect(page).to_have_url(f"{served.origin}/spend?by=day&since=2026-11-20&until=2026-11-22")
    expect(page.get_by_text("20 to 21 November: $1.2500 in 2 calls")).to_be_visible()
    assert looking.accessible() == []
    page.reload()
    expect(page.locator("table.spend tbody tr")).to_have_text([re.compile("2026-11-20"), re.compile("2026-11-21")])
    page.get_by_role("link", name="2026-11-21").click()
    expect(page).to_have_url(f"{served.origin}/runs?since=2026-11-21&until=2026-11-22")
    expect(page.locator(".runs-body [role=row]")).to_have_text([re.compile("run-1")])
    page.goto(f"{served.origin}/spend?by=tag.team&since=2026-11-21")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.locator(".runs-body [role=row]")).to_have_count(2)


def test_words_that_were_said_and_ids_are_found_from_everywhere(served, looking):
    kept(served)
    page = looking.open("/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("triage")
    found = page.get_by_role("listbox", name="Found")
    expect(found.get_by_role("option").filter(has_text="triage-42").first).to_be_visible()
    assert looking.accessible() == []
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{served.origin}/runs/triage-42")


def test_agents_models_limits_and_settings_are_found_by_their_names(served, looking):
    kept(served)
    served.actor(run("open now", limits=(limit("cost", 0.4, 0.5, spec="cost=0.5usd"),)))
    page = looking.open("/")
    expect(page.get_by_role("row").filter(has_text="open now").first).to_be_visible()
    for typed, what, path in (
        ("claude", "model", "/runs?model=claude-sonnet"),
        ("esearche", "agent", "/runs?agent=researcher"),
        ("u42", "user", "/runs?user=u42"),
        ("cost=0.5", "limit of run open now", "/limits"),
        ("charged twice", "said", "/runs/triage-42?item="),
        (REFUSED, "refused call", "/runs/triage-42?item="),
        ("refused", "Runs with a refused call", "/runs?status=refused"),
    ):
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox", name="Find a run")).to_be_focused()
        page.keyboard.type(typed)
        page.get_by_role("option").filter(has_text=what).first.click()
        expect(page).to_have_url(re.compile(re.escape(served.origin + path)))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find a run")).to_be_focused()
    page.keyboard.type("nobody ever said this")
    expect(page.get_by_role("status").filter(has_text="Nothing has this in it")).to_contain_text("the sentence of a refusal")
    page.get_by_role("combobox", name="Find a run").fill("dark th")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_where_there_is_no_store_it_says_how_to_keep_one(served, looking):
    page = looking.open("/runs")
    expect(page.get_by_role("alert")).to_contain_text("there is no store at")
    expect(page.get_by_text("ravi-otel run --limit")).to_be_visible()
    page.goto(f"{served.origin}/runs/nobody")
    expect(page.get_by_role("alert")).to_be_visible()
    looking.is_refused()


def test_many_runs_are_scrolled_without_pages(served, looking):
    shelf = Shelf(served.store)
    for at in range(450):
        shelf.run(f"run-{at:04}", began=shelf._now - at * SECOND)
    page = looking.open("/runs")
    rows = page.locator(".runs-body [role=row]")
    expect(rows.first).to_contain_text("run-0000")
    assert rows.count() < 80
    region = page.get_by_role("region", name="Runs")
    for _ in range(12):
        region.evaluate("each => each.scrollTo(0, each.scrollHeight)")
        page.wait_for_timeout(100)
    expect(page.get_by_text("run-0449")).to_be_visible()


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_two_runs_are_compared(served, looking, request):
    kept(served)
    page = looking.open("/runs/triage-42")
    page.get_by_role("link", name="Compare…").click()
    page.get_by_label("with that run").select_option("faq")
    expect(page).to_have_url(f"{served.origin}/compare?a=triage-42&b=faq")
    row = page.get_by_role("row").filter(has_text="claude-sonnet").first
    expect(row).to_be_visible()
    expect(page.get_by_role("row").nth(0)).to_have_text(re.compile(r"Whattriage-42, .*\dfaq, .*\d"))
    expect(page.get_by_role("row").filter(has_text="took, s")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="_")).to_have_count(0)
    looking.picture(f"compare-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_a_limit_is_tried_on_past_runs(served, looking, request):
    shelf = Shelf(served.store)
    for at in range(60):
        shelf.run(f"run-{at}")
        shelf.call(f"run-{at}", (100, 20), 0.001 * (at + 1))
    page = looking.open("/limits")
    expect(page.get_by_text("60 runs of the last 30 days")).to_be_visible()
    page.get_by_label("Value", exact=True).fill("0.05")
    expect(page.get_by_text("10 of 60 runs would have been refused, 16 %, at 10 calls. $0.5550 would not have been spent.")).to_be_visible()
    expect(page.get_by_text("ravi-otel suggest would write cost=0.072usd")).to_be_visible()
    expect(page.get_by_text("cost=0.05", exact=False).first).to_be_visible()
    looking.picture(f"what-if-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()


def test_a_limit_is_drawn_where_runs_came_to_and_nothing_where_none_did(served, looking):
    shelf = Shelf(served.store)
    for at in range(9):
        shelf.run(f"run-{at}")
        shelf.call(f"run-{at}", (100, 20), 0.001 * (at + 1))
    page = looking.open("/limits")
    ticks = page.locator(".hist .x")
    expect(ticks).to_have_text(["$0", "$0.002", "$0.004", "$0.006", "$0.008", "$0.01"])
    page.get_by_label("Value", exact=True).fill("0.0045")
    expect(page.locator(".hist .cut-at")).to_have_count(1)
    expect(page.locator(".hist .h-in")).to_have_count(4)
    expect(page.locator(".hist .h-out")).to_have_count(5)
    page.get_by_label("Value", exact=True).fill("5")
    expect(page.get_by_text("0 of 9 runs would have been refused, 0 %.", exact=False)).to_contain_text("It lies beyond what is drawn")
    expect(page.locator(".hist .cut-at, .hist .h-out")).to_have_count(0)
    expect(ticks).to_have_count(6)


@pytest.mark.parametrize("looking", WIDE[:2], ids=NAMES[:2], indirect=True)
@pytest.mark.parametrize(("ms", "ticks"), [(8, ["0", "2 ms", "4 ms", "6 ms"]), (3_000, ["0", "0.5 s", "1.0 s", "1.5 s", "2.0 s", "2.5 s"])])
def test_the_limits_of_a_short_run_are_read_by_its_own_units_and_points(served, looking, request, ms, ticks):
    shelf = Shelf(served.store)
    run = shelf.run("short", ended=shelf._now + ms * SECOND // 1000)
    shelf.call(run, duration=ms * SECOND // 2000)
    for at, used in enumerate((2, 8, 10)):
        shelf.put(
            "samples", at=shelf._now + at * ms * SECOND // 4000, run=run, scope=run, scope_kind="run", scope_name="short",
            limit_kind="turns", limit_label="turns", value=10, used=used, held=0, warn_at=0.5,
        )  # fmt: skip
    page = looking.open("/runs/short")
    expect(page.locator(".axis span")).to_have_text(ticks)
    expect(page.locator(".curves .point")).to_have_count(3)
    expect(page.locator(".curves .point.c-near, .curves .point.c-refused")).to_have_count(2)
    line = page.locator(".curves .c-line").last.get_attribute("d")
    assert line.endswith("H100"), "a limit stands where it stood until its run ends"
    looking.picture(f"short-{request.node.callspec.id}")
    assert looking.accessible() == []


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_all_runs_that_fit_are_summed_up_and_saved_as_csv(served, looking, request):
    shelf = kept(served)
    for at in range(120):
        shelf.run(f"=run-{at}", tenant="globex")
    page = looking.open("/runs")
    head = page.locator(".head")
    expect(head).to_contain_text("124 runs")
    expect(head).to_contain_text("cost ≥$0.0918")
    expect(head).to_contain_text("1 refused")
    looking.picture(f"runs-{request.node.callspec.id}")
    assert looking.fits()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    told, *lines = csv.reader(io.StringIO(Path(download.value.path()).read_text("utf-8-sig")))
    assert (told[1], told[7], len(lines)) == ("run", "cost", 124)
    found = {line[1]: dict(zip(told, line, strict=True)) for line in lines}
    assert found["triage-42"]["how it ended"] == "stopped: max_turns"
    assert found["triage-42"]["cost"] == "$0.091800"
    assert found["faq"]["cost"] == "?"
    assert "'=run-7" in found


@pytest.mark.parametrize("looking", WIDE[:3], ids=NAMES[:3], indirect=True)
def test_how_long_a_tool_waited_for_a_person_stands_apart_from_how_long_it_ran(served, looking, request):
    shelf = Shelf(served.store)
    run = shelf.run("desk", ended=shelf._now + 60 * SECOND)
    began = shelf._now
    call = shelf.tool(run, "refund", began=began, duration=54_517_000_000)
    for at, decision in ((1, "escalate"), (54, "approve")):
        shelf.put("reviews", at=began + at * SECOND, run=run, call=call, tool="refund", decision=decision, reason="large", final=at > 1)
    page = looking.open(f"/runs/desk?item={call}")
    panel = page.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text("waited for a person 53 s")).to_be_visible()
    expect(panel.get_by_text("ran 1,517 ms")).to_be_visible()
    expect(panel.get_by_text("54,517")).to_have_count(0)
    if "phone" not in request.node.callspec.id:
        waited, whole = page.locator(".lane .b.waits").bounding_box(), page.locator(".lane .b.tool").bounding_box()
        assert waited["x"] > whole["x"]
        assert waited["width"] / whole["width"] == pytest.approx(53 / 54.5, abs=0.02)
    assert looking.accessible() == []
    looking.picture(f"waited-{request.node.callspec.id}")


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_a_call_that_waits_for_a_person_stands_in_the_tree_of_its_run_and_leads_there(served, looking, request):
    shelf = Shelf(served.store)
    shelf.run("closure", status="open", ended=None)
    shelf.call("closure", (100, 20), 0.01)
    served.actor(run("closure", status="open", waits_for="approval"))
    asked = requested({"customer": 5512}, expires_s=None, agent_name=None, run_id="closure")
    desk(served.queue).enter(asked, seal_of(asked))
    page = looking.open("/runs/closure")
    row = page.get_by_role("treegrid", name="Calls").get_by_role("row").filter(has_text="issue_refund(customer=5512)")
    row.click()
    panel = page.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text("waits for approval")).to_be_visible()
    assert looking.accessible() == []
    looking.picture(f"asked-{request.node.callspec.id}")
    panel.get_by_role("link", name="Look").click()
    expect(page).to_have_url(f"{served.origin}/approvals/{asked.id}")


def test_the_id_of_a_call_leads_to_it_in_its_run(served, looking):
    shelf = Shelf(served.store)
    shelf.run("only-one")
    for _ in range(5):
        call = shelf.call("only-one", (100, 20), 0.001, trace="ab" * 16, span="cd" * 8)
    shelf.say("only-one", call, "the last question", answer="an answer")
    page = looking.open(f"/runs/{'ab' * 16}")
    expect(page.get_by_role("heading", level=1)).to_have_text("only-one")
    looking.is_refused()


def test_times_are_those_of_the_terminal_wherever_the_browser_is(served, browser):
    shelf = Shelf(served.store)
    shelf.run("r1")
    there = browser.new_context(timezone_id="Pacific/Kiritimati")
    page = there.new_page()
    page.goto(f"{served.origin}/runs?token={served.access.token}")
    row = page.get_by_role("table", name="Runs").get_by_role("row").filter(has_text="r1")
    at = time.strftime("%H:%M:%S", time.localtime(shelf._now / 1e9))
    expect(row).to_contain_text(at)
    expect(page.get_by_role("contentinfo")).to_contain_text("times of")
    page.goto(f"{served.origin}/runs/r1")
    expect(page.get_by_role("main")).to_contain_text(at)
    there.close()
