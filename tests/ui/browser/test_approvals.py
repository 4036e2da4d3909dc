"""Requests that wait for a person, answered in a real browser, at a desk and on a phone."""

from __future__ import annotations

import re
import time

import pytest
from approval_desk import Asked, desk, requested
from live_actors import run
from page_stage import HOSTILE, Looking, free_port, serving
from playwright.sync_api import expect
from stored_runs import Shelf

from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue
from ravi_otel.supervisor._json import fingerprint
from ravi_otel.supervisor.approval._queue import current_login, seal_of

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]


def ask(served, arguments=None, *, expires_s=3600.0, **changes):
    at = desk(served.queue, time.time)
    arguments = {"order": 881, "amount": 120, "reason": "duplicate charge on 2 Nov"} if arguments is None else arguments
    now = time.time()
    tool = changes.setdefault("tool", "issue_refund")
    changes.setdefault("fingerprint", fingerprint(tool, arguments, "run/agent", "v1"))
    asked = requested(
        arguments,
        requested_at=now - 20,
        expires_at=None if expires_s is None else now + expires_s,
        agent_name=changes.pop("agent_name", "writer"),
        run_id="triage-42",
        **changes,
    )
    at.enter(asked, seal_of(asked))
    return asked


def over(served, approved, request_id, **facts):
    at = desk(served.queue, time.time)
    stored = at.find(request_id)
    at.answer(stored, ApprovalAnswer(approved, who="jo", **facts), login="jo")


def test_a_request_in_the_list_says_first_when_it_expires_and_names_its_run(served, looking):
    Shelf(served.store).run("triage-42", name="refunds of today")
    ask(served, expires_s=600)
    page = looking.open("/approvals")
    expect(page.locator(".mail .sub").first).to_have_text(re.compile(r"^expires in \S+, writer in refunds of today$"))


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_the_inbox_shows_exactly_what_will_run(served, looking, request):
    asked = ask(served)
    over(served, False, ask(served, {"to": "all@acme.example"}, tool="send_email").id, comment="not to all")
    over(served, True, ask(served, {"order": 874, "amount": 240, "reason": HOSTILE}, agent_name=HOSTILE).id)
    page = looking.open("/approvals")
    expect(page.get_by_text("1 request for you")).to_be_visible()
    expect(page.get_by_text("rejected by jo (login jo)").or_(page.get_by_text("rejected by jo")).first).to_be_visible()
    looking.picture(f"approvals-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("link").filter(has_text="issue_refund(amount=120").click()
    expect(page.get_by_role("row").filter(has_text="reason")).to_contain_text('"duplicate charge on 2 Nov"')
    expect(page.get_by_text(asked.fingerprint[:12])).to_be_visible()
    looking.picture(f"approval-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()


def test_an_empty_queue_says_what_would_fill_it(served, looking):
    page = looking.open("/approvals")
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    assert looking.accessible() == []


def test_text_of_a_model_is_text_and_look_alikes_are_escapes(served, looking):
    ask(served, {"to": "p\u0430ypal@example.com", "body": HOSTILE, "evil": "a\u202eb\n<script>alert(2)</script>"}, reason=HOSTILE)
    page = looking.open("/approvals")
    expect(page.get_by_role("cell").get_by_text('"p\\u0430ypal@example.com"')).to_be_visible()
    expect(page.get_by_text("reads: p\u0430ypal@example.com")).to_be_visible()
    expect(page.get_by_text("\\u202eb\\n<script>alert(2)</script>").first).to_be_visible()
    expect(page.locator("code", has_text=HOSTILE).first).to_be_visible()
    assert page.locator("img, script:not([src])").count() == 0


@pytest.mark.parametrize("looking", [WIDE[2]], ids=["phone"], indirect=True)
def test_a_refund_is_edited_and_approved_on_a_phone_and_the_program_goes_on_with_just_that(served, looking):
    now = time.time()
    asked = requested({"order": 881, "amount": 120}, requested_at=now, expires_at=now + 600, agent_name="writer")
    program = Asked(ApprovalQueue(served.queue), asked, "sync")
    page = looking.open(f"/approvals/{asked.id}")
    page.get_by_role("button", name="Edit…").click()
    page.get_by_label("New value of amount").fill("80")
    expect(page.get_by_text(fingerprint("issue_refund", {"order": 881, "amount": 80}, "run/agent", "v1")[:12])).to_be_visible()
    page.get_by_label("Note for the audit log").fill("one was credited")
    looking.picture("approval-edited-phone")
    assert looking.accessible() == []
    page.get_by_role("button", name="Approve with amount 80").click()
    answer = program.answer()
    assert (answer.approved, answer.arguments, answer.who, answer.comment) == (
        True,
        {"order": 881, "amount": 80},
        current_login(),
        "one was credited",
    )
    page.reload()
    expect(page.get_by_text("edited and approved by")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(page.locator(".was")).to_have_text("120")
    expect(page.locator(".becomes")).to_have_text("80")


def test_an_edit_of_another_kind_cannot_be_approved(served, looking):
    ask(served)
    page = looking.open("/approvals")
    page.get_by_role("button", name="Edit…").click()
    page.get_by_label("New value of amount").fill("lots")
    expect(page.get_by_role("alert")).to_contain_text("is no JSON object")
    expect(page.locator("#approve")).to_be_disabled()
    page.get_by_label("New value of amount").fill('"80"')
    expect(page.get_by_role("alert")).to_contain_text("was a number")
    page.get_by_role("button", name="Undo edit").click()
    expect(page.locator("#approve")).to_be_enabled()
    looking.is_refused()


def test_a_rejection_goes_with_its_reason_by_keys_alone(served, looking):
    now = time.time()
    asked = requested(requested_at=now, expires_at=now + 600)
    program = Asked(ApprovalQueue(served.queue), asked, "sync")
    page = looking.open("/approvals")
    expect(page.locator("#approve")).to_be_visible()
    page.keyboard.press("r")
    page.get_by_label("Why: the model may be told").fill("not to all")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    answer = program.answer()
    assert (answer.approved, answer.comment, answer.who) == (False, "not to all", current_login())
    expect(page.get_by_text("rejected by").first).to_be_visible()


def test_one_that_was_answered_elsewhere_meanwhile_is_said_to_be_and_is_not_answered_again(served, looking):
    asked = ask(served)
    page = looking.open("/approvals")
    expect(page.locator("#approve")).to_be_visible()
    page.route("**/api/events", lambda route: route.abort())
    over(served, False, asked.id, comment="no")
    page.evaluate("document.querySelector('#approve')?.click()")
    expect(page.get_by_text("rejected by jo").first).to_be_visible()
    assert desk(served.queue, time.time).find(asked.id).state == "rejected"
    looking.is_refused()


def test_one_that_expired_says_so_and_one_that_was_forged_is_not_offered(served, looking):
    import sqlite3

    ask(served, expires_s=-1.0)
    forged = ask(served, {"order": 1, "amount": 2, "reason": "x"})
    with sqlite3.connect(served.queue) as file:
        file.execute("UPDATE requests SET arguments = replace(arguments, '2', '9000') WHERE id = ?", (forged.id,))
    page = looking.open(f"/approvals/{forged.id}")
    expect(page.get_by_text("somebody wrote to the queue")).to_be_visible()
    expect(page.locator("#approve")).to_have_count(0)


def test_a_damaged_queue_is_told_in_one_sentence(served, looking):
    served.queue.write_bytes(b"not a database at all, for certain" * 40)
    served.queue.chmod(0o600)
    page = looking.open("/approvals")
    expect(page.get_by_role("alert").first).to_contain_text("cannot be used")
    served.actor(run("r1"))
    page.get_by_role("link", name="Now").click()
    expect(page.get_by_text("approvals cannot be read")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="r1").first).to_be_visible()
    looking.is_refused()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_link_is_opened_on_a_phone_decides_once_and_shows_what_was_decided(tmp_path, browser, theme):
    port = free_port()
    with serving(tmp_path, port=port, public_url=f"http://127.0.0.1:{port}") as served:
        asked = ask(served)
        link = served.access.link(asked.id, asked.expires_at, seal_of(asked))
        looking = Looking(browser, served, theme=theme, width=390, height=844)
        page = looking.page
        page.goto(link)
        expect(page.get_by_text("as whoever has the link", exact=True)).to_be_visible()
        expect(page.get_by_role("link")).to_have_count(0)
        looking.picture(f"link-{theme}")
        assert looking.accessible() == []
        page.get_by_role("button", name="Edit…").click()
        page.get_by_label("New value of amount").fill("80")
        page.get_by_role("button", name="Approve with amount 80").click()
        expect(page.get_by_text("edited and approved by whoever has the link")).to_be_visible()
        page.goto(link)
        expect(page.get_by_text("edited and approved by whoever has the link")).to_be_visible()
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        looking.context.close()
        assert looking.wrong == []


def test_a_request_of_another_machine_is_decided_over_a_redis_at_a_desk(tmp_path, browser, redis_server):
    with serving(tmp_path, queue=redis_server.url) as served:
        now = time.time()
        schema = {"type": "object", "properties": {"order": {"type": "integer"}, "amount": {"type": "number", "maximum": 500}}}
        asked = requested(
            {"order": 881, "amount": 120.0}, requested_at=now, expires_at=now + 600, schema={**schema, "required": ["order", "amount"]}
        )
        program = Asked(ApprovalQueue(redis_server.url), asked, "sync")
        looking = Looking(browser, served)
        page = looking.open("/approvals")
        expect(page.get_by_text("issue_refund(order=881, amount=120.0)").first).to_be_visible()
        expect(page.locator("#approve")).to_be_visible()
        page.keyboard.press("e")
        page.get_by_label("New value of amount").fill("80")
        page.get_by_role("button", name="Approve with amount 80.0").click()
        assert program.answer().arguments == {"order": 881, "amount": 80.0}
        expect(page.get_by_text("edited and approved by").first).to_be_visible()
        looking.picture("approvals-redis")
        looking.context.close()
        assert looking.wrong == []


def test_somebody_who_may_not_approve_is_told_who_may_and_is_offered_nothing(served, looking):
    asked = ask(served, approvers=("anna", "jo"))
    page = looking.open(f"/approvals/{asked.id}")
    expect(page.get_by_text(f"{current_login()} may not decide about issue_refund: anna and jo may.")).to_be_visible()
    expect(page.get_by_text("may be approved by anna and jo")).to_be_visible()
    expect(page.get_by_text("1 request for others")).to_be_visible()
    expect(page.locator("#approve")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert looking.accessible() == []


def test_a_notice_says_that_something_waits_and_not_what(served, looking):
    looking.context.grant_permissions(["notifications"], origin=served.origin)
    page = looking.page
    page.add_init_script(
        "window.heard = []; window.Notification = class { static permission = 'granted'; constructor(...a) { heard.push(a); } }"
    )
    looking.open("/approvals")
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    ask(served)
    expect(page.get_by_text("1 request for you")).to_be_visible()
    assert page.evaluate("heard") == [["ravi", {"body": "1 request for your approval", "tag": "ravi-approvals"}]]


@pytest.mark.parametrize("looking", [{"width": 390, "height": 844}, {"theme": "dark"}], ids=["phone", "dark"], indirect=True)
def test_a_signed_link_to_a_request_is_copied_and_said_to_be_one_of_this_machine(served, looking, request):
    asked = ask(served)
    looking.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=served.origin)
    page = looking.open(f"/approvals/{asked.id}")
    expect(page.get_by_text("A signed link for one other person", exact=False)).to_contain_text("It opens on this machine alone")
    looking.picture(f"copy-link-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == served.access.link(asked.id, asked.expires_at, seal_of(asked))
    looking.context.clear_cookies()
    page.goto(link)
    expect(page.get_by_text("as whoever has the link", exact=True)).to_be_visible()
