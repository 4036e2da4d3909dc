"""Every limit that counts now, in a real browser, the fullest first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from live_actors import limit, run, scope
from page_stage import HOSTILE
from playwright.sync_api import expect

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_the_fullest_come_first_with_whose_they_are(served, looking, request):
    served.actor(
        run(
            "r1",
            scope("a", "r1", name=HOSTILE, limits=(limit("turns", 20, 20), limit("tokens", 100, 1000))),
            limits=(limit("cost", 0.45, 0.5, source="/srv/desk/agents.py:31", declared=0.4, set_by="ann"), limit("agents", 10, 10)),
        )
    )
    page = looking.open("/limits")
    expect(page.locator("tbody tr").filter(has_text="agents.py:31")).to_contain_text("agents.py:31 $0.40 there, set since by ann")
    expect(page.get_by_text("4 limits count now")).to_be_visible()
    expect(page.get_by_text("1 limit spent")).to_be_visible()
    kinds = page.locator("tbody tr td:first-child")
    expect(kinds).to_have_text(["turns", "cost", "tokens", "agents"])
    expect(page.locator("tbody tr").first).to_contain_text(f"agent {HOSTILE}")
    looking.picture(f"limits-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("button", name="As written").click()
    expect(kinds.first).to_have_text("cost")


def test_a_limit_is_set_from_its_row(served, looking):
    actor = served.actor(run("r1", limits=(limit("cost", 0.45, 0.5), limit("tokens", 5, 10))))
    page = looking.open("/limits")
    page.get_by_role("button", name="Set tokens of run r1").click()
    page.get_by_label("New value").fill("20k")
    page.get_by_role("button", name="Set tokens to 20k").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [(each["kind"], each["value"]) for each in actor.heard] == [("tokens", 20_000)]


def test_without_limits_it_says_how_to_set_one(served, looking):
    page = looking.open("/limits")
    expect(page.get_by_text("ravi-otel limits --policy policy.yaml")).to_be_visible()
    assert looking.accessible() == []


CUT = "each => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight + 1"


@pytest.mark.parametrize("looking", [WIDE[0], {"theme": "dark", "width": 1280}, WIDE[2]], ids=["desk", "narrow", "phone"], indirect=True)
def test_where_a_limit_is_written_is_read_whole(served, looking, request):
    place = "/srv/agents/support/customer_relations_department/triage_and_refunds.py:1331"
    served.actor(run("r1", limits=(limit("cost", 0.45, 0.5, source=place, declared=0.4, set_by="ann.fitzgerald"),)))
    page = looking.open("/limits")
    where = page.locator("td.l-where")
    expect(where).to_have_text("triage_and_refunds.py:1331 $0.40 there, set since by ann.fitzgerald")
    assert not where.evaluate(CUT)
    assert looking.fits()
    looking.picture(f"limits-where-{request.node.callspec.id}")


def test_runs_of_one_name_are_told_apart_and_lead_to_their_pages(served, looking):
    for run_id in ("1f0a77c2aa", "1f0a77c2bb"):
        many = (limit("turns", 3, 20),)
        served.actor(replace(run(run_id, scope("writer", run_id, limits=many), limits=many), name="nightly"))
    served.actor(run("alone", scope("clerk", "alone", limits=(limit("turns", 1, 20),))))
    page = looking.open("/limits")
    for run_id in ("1f0a77c2aa", "1f0a77c2bb"):
        row = page.get_by_role("row").filter(has_text=f"agent writer of nightly ({run_id[:9]})")
        expect(row.get_by_role("link", name="agent writer")).to_have_attribute("href", f"/runs/{run_id}")
    expect(page.get_by_role("row").filter(has_text="agent clerk of alone")).to_have_count(1)
    expect(page.get_by_text("alone (")).to_have_count(0)
