"""What holds of every page and of every dialog, in both themes, at a desk and on a phone: for eyes, for ears, for fingers and for keys."""

from __future__ import annotations

import time

import pytest
from approval_desk import desk, requested
from live_actors import limit, run, scope
from page_stage import HOSTILE, Looking
from playwright.sync_api import Page, expect
from stored_runs import Shelf

from ravi_otel.supervisor import AuditLog
from ravi_otel.supervisor.approval._queue import seal_of

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]
LONG = "quarterly-churn-and-refund-pattern-summaries-for-the-board-of-eu-central-1-" * 2
PAGES = {
    "/": ".now-row:not(.now-head)",
    "/runs": ".runs-row:not(.runs-head)",
    "/runs/kept": ".span",
    "/compare?a=kept&b=other": "td",
    "/spend?since=30d": "td",
    "/spend?since=30d&by=tool": "td",
    "/limits": "td",
    "/approvals": ".mail li",
    "/approvals/req-1": ".ask-main",
    "/audit": "td",
    "/nowhere": "main",
}
DIALOGS = {"Keys": ("/", "?"), "Find": ("/", "Control+k"), "Set": ("/", "l"), "Cancel": ("/", "x"), "Reject": ("/approvals/req-1", "r")}
SIDEWAYS = "() => [...document.querySelectorAll('.scroll')].some(each => each.scrollWidth > each.clientWidth)"
FOCUSED = """
() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  if (at === document.body) return null;
  const isSeen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const isMarked = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  return [at.tagName + ' ' + (at.getAttribute('aria-label') || at.textContent || '').trim().slice(0, 40), isSeen, isMarked];
}
"""


@pytest.fixture
def filled(served):
    """Have something on every page, with long names and many limits."""
    many = tuple(limit(f"tool_calls:{'a' * at}", at, 10) for at in range(1, 9))
    agents = (
        scope("writer", "r1", limits=many, pauses=True),
        scope("b", "r1", name=LONG, refused=2, last_refusal=f"No more of {LONG}.", limits=(limit("turns", 9, 9),)),
    )
    served.actor(run("r1", *agents, limits=(limit("cost", 0.41, 0.5, held=0.02), limit("tokens", 0, 0))), program=LONG)
    shelf = Shelf(served.store)
    shelf.put("processes", process="p1", name="desk.py", began=shelf._now, lost=0)
    for name in ("kept", "other"):
        shelf.run(name, user=LONG, tenant="acme", name=LONG)
        agent = shelf.agent(name, LONG)
        shelf.say(name, shelf.call(name, agent=LONG, parent=agent), f"Hello {HOSTILE} {LONG}", answer="Yes. " * 400)
        shelf.tool(name, "search", agent=LONG, parent=agent)
    at = desk(served.queue, time.time)
    known = {"expires_s": None, "agent_name": LONG, "run_id": "r1", "tool": "issue_refund", "id": "req-1"}
    asked = requested({"order": 881, "why": LONG}, **known)
    at.enter(asked, seal_of(asked))
    AuditLog(served.audit, content=True).note("proposed", run_id="r1", agent_name=LONG, tool="refund", op_id="op", arguments={"why": LONG})
    return served


def opened(looking: Looking, path: str, there: str) -> Page:
    page = looking.open(path)
    expect(page.locator(there).first).to_be_visible()
    return page


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_every_page_can_be_read_by_everybody_and_fits(filled, looking):
    found, tight = {}, []
    for path, there in PAGES.items():
        page = opened(looking, path, there)
        found[path] = looking.accessible()
        if not looking.fits() or page.evaluate(SIDEWAYS):
            tight.append(path)
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert tight == []


@pytest.mark.parametrize("looking", WIDE[:2], ids=NAMES[:2], indirect=True)
def test_every_dialog_can_be_read_by_everybody_and_left_by_escape(filled, looking):
    found = {}
    for name, (path, key) in DIALOGS.items():
        page = opened(looking, path, PAGES[path])
        page.keyboard.press(key)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        found[name] = looking.accessible()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    assert {name: faults for name, faults in found.items() if faults} == {}


STEERED = {"pause": {"pauses": True}, "stop": {"pauses": False}, "resume": {"status": "paused", "pauses": True}, "close": {"kind": "block"}}


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_every_dialog_that_steers_can_be_read_by_everybody(served, looking):
    served.actor(run("r1", *(scope(name, "r1", **how) for name, how in STEERED.items())))
    page = opened(looking, "/", PAGES["/"])
    found = {}
    for name in STEERED:
        page.get_by_role("row").filter(has_text=name).first.click()
        page.get_by_role("button", name=f"{name.capitalize()}…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"{name.capitalize()} {'block' if name == 'close' else 'agent'} {name}?")
        found[name] = looking.accessible()
        assert looking.fits()
        looking.picture(f"{name}-{looking.page.viewport_size['width']}")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_of_a_link_can_be_read_by_everybody_before_and_after_it_was_decided(served, browser, theme, width):
    asked = requested({"order": 881, "why": LONG}, requested_at=time.time(), expires_at=time.time() + 600)
    desk(served.queue, time.time).enter(asked, seal_of(asked))
    looking = Looking(browser, served, theme=theme, width=width)
    page = looking.page
    page.goto(served.access.link(asked.id, asked.expires_at, seal_of(asked)))
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("button", name="Reject…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert looking.accessible() == []
    page.get_by_role("button", name="Reject it").click()
    expect(page.get_by_text("rejected by whoever has the link", exact=True)).to_be_visible()
    assert looking.accessible() == []
    looking.context.close()
    assert looking.wrong == []


PHONES = [WIDE[2], WIDE[3]]
OUTSIDE = """() => [...document.querySelectorAll('button, .item .title .l > *')]
    .filter(each => each.offsetParent && (each.getBoundingClientRect().right > innerWidth || each.scrollWidth > each.clientWidth + 1))
    .map(each => each.textContent || each.getAttribute('aria-label'))"""


@pytest.mark.parametrize("looking", PHONES, ids=NAMES[2:], indirect=True)
def test_no_button_of_spend_and_no_head_of_a_call_is_cut_on_a_phone(filled, looking, request):
    page = opened(looking, "/spend?since=30d", "td")
    for name in ("Today", "Yesterday", "7 days", "30 days", "From, to…"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= 390, name
    looking.picture(f"spend-{request.node.callspec.id}")
    page = opened(looking, "/runs/kept", ".span")
    page.locator(".span.call").first.click()
    expect(page.get_by_role("button", name="Copy it as JSON")).to_be_visible()
    assert page.evaluate(OUTSIDE) == []
    page.locator(".item").scroll_into_view_if_needed()
    looking.picture(f"call-{request.node.callspec.id}")


@pytest.mark.parametrize("looking", WIDE[:2], ids=NAMES[:2], indirect=True)
def test_what_has_the_focus_is_seen_and_marked(filled, looking):
    wrong = []
    for path, there in PAGES.items():
        page = opened(looking, path, there)
        steps = 0
        for _ in range(40):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED)
            if at is None:
                break
            steps += 1
            name, is_seen, is_marked = at
            if not (is_seen and is_marked):
                wrong.append((path, name, is_seen, is_marked))
        assert steps > 8, f"{path}: keys reach {steps} things"
    assert wrong == []


def test_nothing_moves_for_those_who_want_no_motion(filled, looking):
    page = opened(looking, "/", PAGES["/"])
    assert page.locator(".bar .used").first.evaluate("each => getComputedStyle(each).transitionDuration") == "0s"
    assert page.evaluate("() => document.getAnimations().length") == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.locator(".bar .used").first.evaluate("each => getComputedStyle(each).transitionDuration") == "0.15s"
