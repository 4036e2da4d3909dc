"""What runs now, in a real browser: seen, steered, and never trusted."""

from __future__ import annotations

import json
import re

import pytest
from approval_desk import desk, requested
from live_actors import limit, run, scope
from page_stage import HOSTILE, serving
from playwright.sync_api import expect

from ravi_otel.supervisor.approval._queue import current_login, seal_of

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]


def desk_of_five(served):
    """Have five programs run, as the drawing has them."""
    served.actor(
        run(
            "triage-42",
            scope("planner", "triage-42", priority="high", requests=12, limits=(limit("turns", 12, 40),)),
            scope(
                "researcher",
                "triage-42",
                requests=20,
                refused=3,
                last_refusal="Turn limit exceeded: 20 + 1 > 20 in agent 'researcher' of run 'triage-42'. Raise turns=20 or leave it out.",
                limits=(limit("turns", 20, 20),),
            ),
            scope("writer", "triage-42", status="waiting", pauses=False, limits=(limit("turns", 6, 20),)),
            limits=(limit("cost", 0.412, 0.5, held=0.02, warn_at=0.8), limit("time", 72.0, 300.0)),
            requests=38,
            cost_usd=0.412,
        ),
        program="support_desk.py",
    )
    served.actor(
        run(
            "nightly-summaries-2026-11-04-eu-central-1-shard-0007-of-0032",
            scope(
                "orchestrator",
                "nightly-summaries-2026-11-04-eu-central-1-shard-0007-of-0032",
                priority="high",
                limits=(limit("turns", 31, 200),),
            ),
            scope(
                "archivist",
                "nightly-summaries-2026-11-04-eu-central-1-shard-0007-of-0032",
                status="paused",
                pauses=True,
                priority="background",
            ),
            limits=(limit("cost", 1.8642, 5.0, held=0.14), limit("agents", 10, 10)),
            cost_usd=1.8642,
        ),
        program="summaries.py",
    )
    served.actor(
        run(
            "import-contacts-7",
            scope("a", "import-contacts-7", name=HOSTILE, limits=(limit("tool_calls:search", 5, 5),)),
            limits=(limit("time", 34.0, 90.0),),
        ),
        program=HOSTILE,
    )
    served.actor(run("faq", cost_usd=None, tokens_per_s=None, limits=(limit("tokens", 0, 0),)), program="faq.py")


def ask(served, **changes):
    at = desk(served.queue)
    asked = requested({"order": 881, "amount": "120.00 USD"}, expires_s=None, agent_name="writer", run_id="triage-42", **changes)
    at.enter(asked, seal_of(asked))
    return asked


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_what_runs_is_a_tree_with_states_costs_and_limits(served, looking, request):
    desk_of_five(served)
    asked = ask(served)
    page = looking.open()
    tree = page.get_by_role("treegrid", name="What runs now")
    expect(tree.get_by_role("row").filter(has_text="triage-42").first).to_contain_text("$0.4120")
    expect(tree.get_by_role("row").filter(has_text="researcher").first).to_contain_text("refused 3 calls")
    expect(page.get_by_role("meter", name="cost: $0.412 + $0.02 held of $0.50").first).to_be_visible()
    expect(tree.get_by_text("Turn limit exceeded: 20 + 1 > 20 in agent 'researcher' of run 'triage-42'.").first).to_be_visible()
    expect(tree.get_by_role("row").filter(has_text="writer").first).to_contain_text("waits for approval")
    expect(tree.get_by_role("row").filter(has_text="order=881")).to_contain_text(re.compile(r"waits \d:\d\d"))
    expect(tree.get_by_text(HOSTILE, exact=True).first).to_be_visible()
    expect(page.get_by_text("4 runs of 4 programs, 6 agents")).to_be_visible()
    looking.picture(f"now-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("link", name="Look at").first.click()
    expect(page).to_have_url(f"{served.origin}/approvals/{asked.id}")


def test_a_call_that_waits_in_a_run_without_an_agent_stands_below_the_run(served, looking):
    served.actor(run("closure", status="open", waits_for="approval"))
    at = desk(served.queue)
    asked = requested({"customer": 5512}, expires_s=None, agent_name=None, run_id="closure")
    at.enter(asked, seal_of(asked))
    page = looking.open()
    page.get_by_role("treegrid", name="What runs now").get_by_role("link", name="Look at issue_refund(customer=5512)").click()
    expect(page).to_have_url(f"{served.origin}/approvals/{asked.id}")


def test_an_empty_page_says_what_to_type(served, looking):
    page = looking.open()
    expect(page.get_by_text("ravi-otel demo")).to_be_visible()
    looking.picture("now-empty")
    assert looking.accessible() == []


def test_a_program_that_starts_and_ends_comes_and_goes_by_itself(served, looking):
    page = looking.open()
    expect(page.get_by_text("ravi-otel demo")).to_be_visible()
    actor = served.actor(run("r1"))
    expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
    actor.say(run("r1", limits=(limit("tokens", 990, 1000),)))
    expect(page.get_by_role("meter", name="tokens: 990 of 1,000")).to_be_visible()
    actor.say(run("r1", limits=(limit("tokens", 1000, 1000),)))
    expect(page.get_by_text("1 limit spent")).to_be_visible()
    served.actors.remove(actor)
    actor.leave()
    expect(page.get_by_text("ravi-otel demo")).to_be_visible()


def test_a_limit_is_raised_by_key_and_the_process_hears_who(served, looking):
    actor = served.actor(run("r1", limits=(limit("cost", 0.412, 0.5),)))
    page = looking.open()
    expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
    page.keyboard.press("l")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It counts from the next call on.")
    looking.picture("now-set-limit")
    assert looking.accessible() == []
    dialog.get_by_label("New value").fill("2,50")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("write a number such as 2.50")
    dialog.get_by_label("New value").fill("1.50")
    dialog.get_by_role("button", name="Set cost to 1.50").click()
    expect(dialog).to_have_count(0)
    assert [(each["op"], each["kind"], each["value"], each["by"]) for each in actor.heard] == [("set_limit", "cost", 1.5, current_login())]


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_a_value_is_judged_as_it_is_typed(served, looking, request):
    actor = served.actor(run("r1", limits=(limit("cost", 0.412, 0.5, held=0.02),)))
    page = looking.open("/limits")
    page.get_by_role("button", name="Set cost of run r1").click()
    dialog = page.get_by_role("dialog")
    value, button = dialog.get_by_label("New value"), dialog.get_by_role("button", name="Set cost to")
    expect(button).to_be_disabled()
    value.fill("0.50")
    expect(dialog.get_by_text("That is what it is now.")).to_be_visible()
    expect(button).to_be_disabled()
    value.fill("much")
    expect(dialog.get_by_role("alert")).to_contain_text("'much' is no value for cost")
    expect(button).to_be_disabled()
    value.fill("0.43")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    said = "$0.412 is used already, and $0.02 held: with $0.43 every call is refused from now on."
    expect(dialog.get_by_role("status")).to_have_text(said)
    expect(button).to_be_enabled()
    looking.picture(f"set-limit-{request.node.callspec.id}")
    assert looking.accessible() == []
    value.fill("0.60")
    expect(dialog.get_by_role("status")).to_have_count(0)
    assert actor.heard == []


def test_a_value_that_is_entered_at_once_counts_when_the_server_has_judged_it(served, looking):
    actor = served.actor(run("r1", limits=(limit("cost", 0.412, 0.5),)))
    page = looking.open("/limits")
    page.get_by_role("button", name="Set cost of run r1").click()
    page.get_by_label("New value").fill("0.75")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [each["value"] for each in actor.heard] == [0.75]


def test_what_a_process_refused_is_forgotten_with_the_next_value(served, looking):
    actor = served.actor(run("r1", limits=(limit("cost", 0.412, 0.5),)))
    actor.refusal = "no more today"
    page = looking.open("/limits")
    page.get_by_role("button", name="Set cost of run r1").click()
    page.get_by_label("New value").fill("0.75")
    page.get_by_role("button", name="Set cost to 0.75").click()
    expect(page.get_by_role("alert")).to_have_text("no more today")
    page.get_by_label("New value").fill("0.8")
    expect(page.get_by_role("alert")).to_have_count(0)
    looking.is_refused()


def test_an_agent_whose_limit_was_raised_is_not_shown_as_refused_until_it_has_tried(served, looking):
    sentence = "Turn limit exceeded: 20 + 1 > 20 in agent 'researcher' of run 'r1'."
    refused = scope("researcher", "r1", refused=3, last_refusal=sentence, is_raised=True, limits=(limit("turns", 20, 40, declared=20),))
    served.actor(run("r1", refused))
    page = looking.open()
    row = page.get_by_role("row").filter(has_text="researcher").first
    expect(row).to_contain_text("limit raised, not tried yet")
    expect(row).not_to_contain_text("refused 3 calls")
    expect(page.locator(".note.near")).to_contain_text(sentence)
    assert looking.accessible() == []


@pytest.mark.parametrize(
    ("key", "scope_of", "button", "heard"),
    [
        ("x", {}, "Cancel it", "cancel"),
        ("p", {"pauses": True}, "Pause it", "pause"),
        ("p", {"pauses": False}, "Stop it", "pause"),
        ("p", {"status": "paused"}, "Resume it", "resume"),
    ],
    ids=["cancel", "pause", "stop", "resume"],
)
def test_steering_says_what_it_will_do_before_it_does(served, looking, key, scope_of, button, heard):
    actor = served.actor(run("r1", scope("writer", "r1", **scope_of)))
    page = looking.open()
    expect(page.get_by_role("row").filter(has_text="writer").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert actor.heard == []
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [(each["op"], each["scope_id"]) for each in actor.heard] == [(heard, "writer")]


def test_what_is_more_urgent_gets_another_priority_and_what_needs_nobody_is_left_out(served, looking):
    actor = served.actor(run("triage-42", scope("planner", "triage-42", pauses=True), scope("writer", "triage-42")))
    served.actor(run("r2", scope("clerk", "r2")))
    asked = ask(served)
    page = looking.open()
    rows = page.locator("[role=row][aria-level]")
    expect(rows).to_have_count(5)
    page.get_by_role("button", name="Needs me").click()
    expect(rows).to_have_count(2)
    expect(page.get_by_role("link", name=f"Look at {asked.tool}")).to_be_visible()
    page.get_by_role("button", name="All", exact=True).click()
    rows.filter(has_text="planner").click()
    page.get_by_role("button", name="Priority…").click()
    page.get_by_role("combobox", name="Priority").select_option("critical")
    page.get_by_role("button", name="Set it to critical").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [(each["op"], each["scope_id"], each["priority"]) for each in actor.heard] == [("reprioritize", "planner", "critical")]


def test_what_a_process_refuses_is_said_in_its_own_words_as_text(served, looking):
    actor = served.actor(run("r1"))
    actor.refusal = f"no: {HOSTILE}"
    page = looking.open()
    expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
    page.keyboard.press("x")
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_role("alert")).to_have_text(f"no: {HOSTILE}")
    looking.is_refused()


def test_rows_fold_and_move_by_keys(served, looking):
    served.actor(run("r1", scope("a", "r1"), scope("b", "r1")))
    page = looking.open()
    row = page.get_by_role("row").filter(has_text="b")
    expect(row.last).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[role=row][aria-selected]")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("[role=row][aria-selected=true]")).to_contain_text("b")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def test_a_server_that_dies_and_returns_is_told_and_found_again(tmp_path, browser):
    from page_stage import Looking, Served

    with serving(tmp_path) as served:
        served.actor(run("r1"))
        looking = Looking(browser, served)
        page = looking.open()
        expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
        port, token = served.port, served.access.token
        actors, served.actors = served.actors, []
    gone = page.get_by_role("alert")
    expect(gone).to_contain_text("Not connected. What is shown was so at")
    expect(gone).to_contain_text("The server does not answer. Is `ravi-otel ui` still running?")
    again = Served(tmp_path, port=port, token=token)
    again.actors = actors
    try:
        again.start()
        expect(gone).to_have_count(0, timeout=20_000)
    finally:
        looking.context.close()
        again.stop()
    assert json.dumps(looking.wrong).count("dialog") == 0


def test_a_server_that_started_anew_says_that_its_new_address_is_needed(tmp_path, browser):
    from page_stage import Looking, Served

    with serving(tmp_path) as served:
        looking = Looking(browser, served)
        page = looking.open()
        expect(page.get_by_role("heading", name="Now")).to_be_visible()
        port = served.port
    again = Served(tmp_path, port=port)
    try:
        again.start()
        expect(page.get_by_role("alert")).to_contain_text("This page needs the URL that `ravi-otel ui` printed", timeout=20_000)
    finally:
        looking.context.close()
        again.stop()


def test_a_server_that_falls_silent_is_not_taken_for_one_where_nothing_happens(served, looking):
    served.actor(run("r1"))
    page = looking.page
    page.clock.install()
    looking.open()
    expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
    page.route("**/api/events", lambda route: route.fulfill(status=401))
    looking.is_refused()
    page.clock.run_for(20_000)
    expect(page.get_by_role("alert")).to_contain_text("Not connected. What is shown was so at")
    expect(page.get_by_role("alert")).to_contain_text("The server answers, but tells nothing new.")
