"""What was asked, decided and done, in a real browser: verified, filtered, and torn where somebody wrote."""

from __future__ import annotations

import pytest
from page_stage import HOSTILE
from playwright.sync_api import expect
from stored_runs import Shelf

from ravi_otel.supervisor import AuditLog

WIDE = [
    {"theme": "light"},
    {"theme": "dark"},
    {"theme": "light", "width": 390, "height": 844},
    {"theme": "dark", "width": 390, "height": 844},
]
NAMES = ["light", "dark", "phone", "phone in the dark"]


def written(served, run_id="triage-42", tool="refund", agent="writer", amount=120):
    log = AuditLog(served.audit, content=True)
    known = {"run_id": run_id, "agent_name": agent, "tool": tool, "op_id": "op-1", "arguments": {"order": 881, "amount": amount}}
    log.note("proposed", **known)
    log.note("reviewed", **known, decision="escalate", reason="high_refund_requires_human")
    log.note("approved", **known, approved=True, who="anna", comment="ok")
    log.note("executed", **known, status="ok")
    return log


@pytest.mark.parametrize("looking", WIDE, ids=NAMES, indirect=True)
def test_the_chain_is_shown_verified_and_torn_where_it_was_changed(served, looking, request):
    written(served)
    log = written(served, "import-contacts-6", HOSTILE, HOSTILE)
    path = log.path("import-contacts-6")
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"amount":120', b'"amount":999')  # and no part of a hash or a time
    path.write_bytes(b"\n".join(lines))
    page = looking.open("/audit")
    expect(page.get_by_role("alert")).to_contain_text("import-contacts-6.audit.jsonl, entry 2")
    expect(page.get_by_role("row").filter(has_text="its content was changed")).to_have_count(1)
    expect(page.get_by_text("1 as written")).to_be_visible()
    expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()
    looking.picture(f"audit-{request.node.callspec.id}")
    assert looking.accessible() == []
    assert looking.fits()


def test_the_run_is_named_with_a_way_to_it_where_it_is_kept(served, looking):
    written(served, "8d630df874e24a3babb591bb815555a7")
    Shelf(served.store).run("8d630df874e24a3babb591bb815555a7", name="refunds")
    page = looking.open("/audit")
    page.get_by_role("link", name="refunds", exact=True).click()
    expect(page).to_have_url(f"{served.origin}/runs/8d630df874e24a3babb591bb815555a7")


def test_filters_are_in_the_address_and_the_address_filters(served, looking):
    written(served)
    written(served, "triage-43", "send_email", amount=7)
    page = looking.open("/audit")
    expect(page.get_by_role("row")).to_have_count(9)
    page.get_by_role("button", name="+ tool").click()
    page.get_by_label("tool", exact=True).select_option("send_email")
    expect(page).to_have_url(f"{served.origin}/audit?tool=send_email")
    expect(page.get_by_role("row")).to_have_count(5)
    page.get_by_role("button", name="+ person").click()
    page.get_by_label("person", exact=True).select_option("anna")
    expect(page.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="Take out tool").click()
    expect(page.get_by_role("row")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("triage-43")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page).to_have_url(f"{served.origin}/audit?person=anna&text=triage-43")


def test_where_there_is_no_log_it_says_where_it_looked(served, looking):
    page = looking.open("/audit")
    expect(page.get_by_text("There is no audit log in")).to_contain_text(str(served.audit))
    assert looking.accessible() == []


def test_verify_again_reads_what_was_written_since(served, looking):
    written(served)
    page = looking.open("/audit")
    expect(page.get_by_role("row")).to_have_count(5)
    written(served, "triage-44")
    page.get_by_role("button", name="Verify again").click()
    expect(page.get_by_role("row")).to_have_count(9)


def test_one_line_says_who_decided_what_and_a_click_opens_all_its_fields(served, looking):
    log = AuditLog(served.audit, content=True)
    known = {"run_id": "8d630df874e24a3babb591bb815555a7", "agent_name": "writer", "tool": "refund", "op_id": "op-1"}
    asked, edited = {"order": 881, "amount_usd": 1200}, {"order": 881, "amount_usd": 1000}
    log.note("proposed", **known, arguments=asked)
    log.note("reviewed", **known, arguments=asked, decision="escalate", reason="high_refund")
    log.note("approved", **known, arguments=edited, asked=asked, approved=True, who="anna", comment="as agreed", identity="sign-in anna")
    log.note("reviewed", **known, arguments=edited, decision="escalate", reason="high_refund")
    log.note("effective", **known, arguments=edited)
    page = looking.open("/audit")
    rows = page.get_by_role("row")
    expect(rows.filter(has_text="escalated")).to_have_count(1)
    expect(rows.filter(has_text="high_refund, which was approved")).to_contain_text("let through")
    approved = rows.filter(has_text="edited: amount_usd 1,200 → 1,000; “as agreed”")
    expect(approved).to_contain_text("anna")
    expect(page.get_by_role("cell", name="8d630df8", exact=True)).to_be_visible()
    approved.get_by_role("button").click()
    opened = page.locator("dl")
    for each in ("as agreed", "sign-in anna", '"amount_usd": 1200', "args_sha256", known["run_id"]):
        expect(opened).to_contain_text(each)
    assert looking.accessible() == []
    page.keyboard.press("Escape")
    expect(opened).to_have_count(0)


def test_arguments_that_were_not_kept_are_said_to_be_so_by_a_short_hash(served, looking):
    log = AuditLog(served.audit)
    known = {"run_id": "one", "agent_name": "writer", "tool": "refund", "op_id": "op-1"}
    log.note("proposed", **known, arguments={"order": 881})
    log.note("approved", **known, arguments={"order": 881}, asked={"order": 882}, approved=True, who="anna", comment="")
    page = looking.open("/audit")
    expect(page.get_by_role("button", name="its arguments were not kept, only their hash")).to_be_visible()
    expect(page.get_by_role("button", name="edited: from")).to_be_visible()
