"""Text of models, users and links that would do something besides being read, in a real browser."""

from __future__ import annotations

import csv
import io
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from stored_runs import Shelf

TURNED = "gpj.\u202eexe\u2028\x1b[31m<b>"
SEEN = "gpj. exe [31m<b>"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1", " =2", 'a"b,c']


def test_names_turn_nothing_round_and_are_no_markup(served, looking):
    shelf = Shelf(served.store)
    run = shelf.run("r1", name=TURNED, user=TURNED, tenant=TURNED)
    shelf.call(run, (100, 20), 0.1, model=TURNED)
    page = looking.open("/runs")
    expect(page.get_by_role("link", name=SEEN).first).to_be_visible()
    for path in ("/runs", f"/runs?user={quote(TURNED)}", "/runs/r1", "/compare?a=r1&b=r1", "/spend?by=user,model"):
        page.goto(f"{served.origin}{path}")
        expect(page.get_by_role("main").get_by_text("gpj.").filter(visible=True).first).to_be_visible()
        assert not {"\u202e", "\u2028", "\x1b"} & set(page.locator("body").inner_text() + page.title()), path
        assert page.locator("main b").filter(has_text="gpj").count() == 0


@pytest.mark.parametrize("path", ["/runs?user=%s", "/runs?text=%s", "/runs/%s", "/compare?a=%s&b=x", "/spend?since=%s"])
def test_a_command_that_is_copied_from_the_page_runs_nothing_that_an_address_says(served, looking, path):
    Shelf(served.store)
    looking.is_refused()
    page = looking.open(path % quote("x'; touch y", safe=""))
    expect(page.locator(".cli")).to_contain_text(r"""'x'\''; touch y'""")


def test_no_cell_of_a_table_that_is_saved_is_a_formula_and_each_line_says_whose_it_is(served, looking):
    shelf = Shelf(served.store)
    run = {user: shelf.run(f"r{at}", user=user) for at, user in enumerate(FORMULAS)}
    for user in FORMULAS:
        shelf.call(run[user], (100, 20), 0.1, model=f"model of {user}")
    page = looking.open("/spend?by=user,model")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    text = saved.value.path().read_text(encoding="utf-8-sig")
    head, *rows = csv.reader(io.StringIO(text))
    assert head == ["user", "model", "cost", "calls", "input", "output", "refused"]
    assert len(rows) == 2 * len(FORMULAS)
    assert not [cell for row in rows for cell in row if cell.strip()[:1] in set("=+-@\uff1d")]
    for user in FORMULAS:
        shown = " ".join(user.split())
        whose = [row for row in rows if row[0].removeprefix("'") == shown]
        assert [row[1] for row in whose] == ["", f"model of {shown}"]
        assert {row[2] for row in whose} == {"$0.1000"}


@pytest.mark.parametrize("user", ["a+b@example.com", "a&b=c", "100%25", "x#y", "a;b"])
def test_a_filter_means_the_name_that_it_is_made_from_whatever_is_in_it(served, looking, user):
    shelf = Shelf(served.store)
    shelf.call(shelf.run("of the user", user=user), (100, 20), 0.1)
    shelf.call(shelf.run("of another", user="u2"), (100, 20), 0.1)
    page = looking.open("/spend?by=user")
    page.get_by_role("region", name="Who spent what").get_by_role("link", name=user).click()
    rows = page.get_by_role("table", name="Runs").locator("[role=rowgroup] [role=row]")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("of the user")
    page.reload()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Take out user").click()
    expect(rows).to_have_count(2)


@pytest.mark.parametrize("path", ["/a/%E0%A4%A", "/runs/%E0%A4%A", "/approvals/%", "/nowhere/%00"])
def test_an_address_that_is_no_text_shows_a_page_all_the_same(served, looking, path):
    Shelf(served.store)
    looking.is_refused()
    page = looking.open(path)
    expect(page.get_by_role("banner")).to_be_visible()


def test_an_exported_run_asks_nobody_and_runs_nothing_that_was_said(served, looking, browser, tmp_path):
    ends = "</script><script>document.title='run'</script><!--<script>"
    shelf = Shelf(served.store)
    shelf.run("r1", name=ends, user=ends)
    call = shelf.call("r1", (100, 20), 0.1, model=ends)
    shelf.say("r1", call, ends + "<img src=https://example.com/x>", answer="javascript:alert(1)")
    page = looking.open("/runs/r1")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Export HTML").click()
    saved.value.save_as(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert served.access.token not in text
    assert served.access.derived("change") not in text
    elsewhere = browser.new_context(offline=True)
    exported, asked, wrong = elsewhere.new_page(), [], []
    exported.on("request", lambda request: asked.append(request.url))
    exported.on("pageerror", lambda error: wrong.append(str(error)))
    exported.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    exported.goto(f"file://{tmp_path}/run.html")
    expect(exported.get_by_role("heading", level=1)).to_have_text(ends)
    exported.get_by_role("treegrid").get_by_text("chat").first.click()
    expect(exported.get_by_text("<img src=https://example.com/x>").first).to_be_visible()
    assert exported.title() != "run"
    assert exported.locator("img").count() == 0
    assert [url for url in asked if not url.startswith("file:")] == []
    assert wrong == []
    elsewhere.close()
