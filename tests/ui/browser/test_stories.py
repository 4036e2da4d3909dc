"""What people come for, played in a real browser on programs that really run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from approval_desk import until
from page_stage import free_port
from playwright.sync_api import expect
from stored_runs import Shelf

from ravi_otel._local.wording import money
from ravi_otel.supervisor.approval._queue import current_login

ROOT = Path(__file__).parents[3]

AGENT = """
import sys
import openai, ravi_otel
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.supervisor import AuditLog, Gate
from ravi_otel.testing import ScriptedLLM, Text

def search(words: str) -> str:
    return "nothing new"

gate = Gate(tools=[search], audit=AuditLog("audit"))
ravi_otel.instrument()
with ScriptedLLM(lambda asked: Text("The search results repeat.", usage=(1200, 300))) as server:
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    with ravi_otel.run("triage-42", user_id="u42", tenant_id="acme", limits=[ravi_otel.cost_limit(0.5)]):
        with ravi_otel.agent("researcher", limits=[ravi_otel.turn_limit(4)]):
            for number, line in enumerate(sys.stdin):  # one call a line
                try:
                    client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": f"Ticket {number}: {line}"}])
                    print("went through", flush=True)
                except BudgetExhaustedError as error:
                    print("refused", flush=True)
"""
SHARING = """
import sys
import openai, ravi_otel
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.testing import ScriptedLLM, Text

ravi_otel.instrument(ledger=sys.argv[1])
with ScriptedLLM(lambda asked: Text("Done.", usage=(1200, 300))) as server:
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    for number, line in enumerate(sys.stdin):
        with ravi_otel.run(f"ticket-{number}", tenant_id="acme", limits=["tenant.requests=2"]):
            try:
                client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": line}])
                print("went through", flush=True)
            except BudgetExhaustedError as error:
                print("refused", flush=True)
"""
JAEGER = """
service:
  extensions: [jaeger_storage, jaeger_query, healthcheckv2]
  pipelines:
    traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {{metrics: {{level: none}}}}
extensions:
  healthcheckv2: {{use_v2: true, http: {{endpoint: "127.0.0.1:{health}"}}}}
  jaeger_query:
    storage: {{traces: some}}
    http: {{endpoint: "127.0.0.1:{ui}"}}
    grpc: {{endpoint: "127.0.0.1:{grpc}"}}
  jaeger_storage: {{backends: {{some: {{memory: {{max_traces: 1000}}}}}}}}
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{otlp}"}}}}}}}}
exporters: {{jaeger_storage_exporter: {{trace_storage: some}}}}
"""
NEXT_TONE = """
([name, tone]) => [...document.querySelectorAll('[role=row][aria-level]')].some(
  row => row.textContent.includes(name) && row.querySelector(`[role=meter][data-tone=${tone}]`))
"""
REFUNDS = """
from typing import Annotated, Literal
import openai, pydantic, ravi_otel
from ravi_otel.supervisor import ApprovalQueue, AuditLog, Decision, DecisionKind, Gate

class Caps:
    def review(self, action, state, policy):
        high = action["kind"] == "tool" and action["args"]["amount"] > 50
        return Decision(DecisionKind.ESCALATE, "high_refund_requires_human") if high else Decision(DecisionKind.APPROVE, "small")

def issue_refund(
    order: int,
    amount: Annotated[float, pydantic.Field(gt=0, le=500)],
    currency: Literal["USD", "EUR"] = "USD",
    note: Annotated[str, pydantic.Field(max_length=40)] | None = None,
) -> str:
    return f"refunded {amount} {currency} of {order}"

from ravi_otel.testing import ScriptedLLM, Text
ravi_otel.instrument()
gate = Gate(Caps(), tools=[issue_refund], approver=ApprovalQueue(), audit=AuditLog("audit", content=True))
refund = ravi_otel.tool(issue_refund, gate=gate)
with ScriptedLLM(Text("Both payments went through; the second goes back.", usage=(1200, 300))) as server:
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
    with ravi_otel.run("refunds", user_id="u42"), ravi_otel.agent("writer"):
        asked = [{"role": "user", "content": "Ticket 4417: I was charged twice for order 881."}]
        client.chat.completions.create(model="gpt-4.1", messages=asked)
        print(refund(order=881, amount=120.0), flush=True)
"""


@contextmanager
def demo(served) -> Iterator[subprocess.Popen[str]]:
    """Play the demo as it is, slowly enough to be watched, in the store that is looked at."""
    known = {name: value for name, value in os.environ.items() if name != "RAVI_RAISE_BUGS"} | {"RAVI_STORE": str(served.store)}
    command = [sys.executable, "-m", "ravi_otel", "demo", "--pace", "0.2"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=known, cwd=served.store.parent)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(20)


@contextmanager
def program(served, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that keeps its runs in the store that is looked at, with what was said."""
    known = {name: value for name, value in os.environ.items() if name != "RAVI_RAISE_BUGS"}
    told = {"RAVI_STORE": str(served.store), "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    started = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=known | told, cwd=served.store.parent, bufsize=1,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.stdin is not None and not started.stdin.closed:
            started.stdin.close()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        started.stdout.close()


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        taken = [opened.enter_context(socket.socket()) for _ in range(number)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


def asks(started: subprocess.Popen[str], words: str) -> str:
    """Have the program make one call; returns what became of it."""
    started.stdin.write(words + "\n")
    started.stdin.flush()
    return started.stdout.readline().strip()


def test_the_demo_is_watched_while_its_runaway_agent_fills_its_bar_turns_and_is_refused(served, looking):
    page = looking.open()
    expect(page.get_by_text("ravi-otel demo")).to_be_visible()
    with demo(served) as started:
        row = page.locator("[role=row][aria-level]").filter(has_text="parcel-chaser")
        expect(row).to_be_visible(timeout=30_000)
        tones = [page.wait_for_function(NEXT_TONE, arg=["parcel-chaser", tone]) for tone in ("ok", "near")]
        assert len(tones) == 2
        expect(row).to_contain_text("refused")
        expect(page.get_by_text("988 of 1000 tokens used in agent 'parcel-chaser' of run 'support-desk'").first).to_be_visible()
        page.get_by_role("link", name="Open call that parcel-chaser was refused").click()
        panel = page.get_by_role("complementary", name="The open item")
        expect(panel.get_by_text("Where is parcel P-33? Answer with the street it is in, and nothing less.")).to_be_visible()
        expect(panel.get_by_text("parcel-chaser · tokens · said no")).to_be_visible()
        looking.picture("story-demo")
        assert started.wait(60) == 0
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.locator(".runs-body [role=row]").filter(has_text="support-desk")).to_contain_text("25 refused")


def test_a_runaway_agent_is_seen_refused_and_its_limit_raised_and_the_refused_call_is_read(served, looking):
    page = looking.open()
    with program(served, AGENT) as started:
        assert asks(started, "charged twice") == "went through"
        row = page.locator("[role=row][aria-level]").filter(has_text="researcher")
        expect(row).to_contain_text("1 of 4")
        for _ in range(3):
            asks(started, "charged twice")
        expect(page.get_by_role("meter", name="turns: 4 of 4")).to_be_visible()
        said = time.monotonic()
        assert asks(started, "the last one") == "refused"
        expect(row).to_contain_text("refused 1 call")
        assert time.monotonic() - said < 5
        expect(page.get_by_text("4 of 4 turns used in agent 'researcher' of run 'triage-42'").first).to_be_visible()
        looking.picture("story-refused")
        assert looking.accessible() == []
        page.get_by_role("link", name="Open call that researcher was refused").click()
        panel = page.get_by_role("complementary", name="The open item")
        expect(panel.get_by_text("Ticket 4: the last one")).to_be_visible()
        page.go_back()

        row.click()
        page.keyboard.press("l")
        page.get_by_label("New value").fill("6")
        page.get_by_role("button", name="Set turns to 6").click()
        expect(page.get_by_role("meter", name="turns: 4 of 6")).to_be_visible()
        assert asks(started, "once more") == "went through"
        started.stdin.close()
        started.wait(20)
    expect(page.get_by_text("ravi-otel demo")).to_be_visible()
    page.goto(f"{served.origin}/runs?status=refused")
    page.get_by_role("link", name="triage-42").click()
    panel = page.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text("researcher · turns · said no")).to_be_visible()
    expect(panel.get_by_text("Ticket 4: the last one")).to_be_visible()
    looking.picture("story-read")
    tree = page.get_by_role("treegrid", name="Calls")
    tree.get_by_role("row").filter(has_text="run triage-42").or_(tree.get_by_role("row").first).first.click()
    expect(panel.get_by_text(re.compile(f"set_limit.*{re.escape(current_login())}"))).to_be_visible()
    page.goto(f"{served.origin}/audit")
    written = page.get_by_role("row").filter(has_text="limit set")
    expect(written).to_contain_text("turns of agent researcher: 4 before, 6 now")
    expect(written).to_contain_text(current_login())


@pytest.mark.parametrize("looking", [{"theme": "light", "width": 390, "height": 844}], ids=["phone"], indirect=True)
def test_a_refund_that_waits_is_found_edited_approved_and_written_down(served, looking):
    page = looking.open()
    with program(served, REFUNDS) as started:
        expect(page.get_by_role("link", name="Look at issue_refund")).to_be_visible(timeout=20_000)
        page.get_by_role("link", name="Look at issue_refund").click()
        expect(page.get_by_text("1 call, ")).to_be_visible()
        expect(page.get_by_text("Ticket 4417: I was charged twice for order 881.")).to_be_visible()
        page.get_by_role("button", name="Edit…").click()
        amount = page.get_by_label("New value of amount")
        for wrong, why in (("", "amount is needed."), ("lots", "amount must be a number."), ("501", "amount must be at most 500.")):
            amount.fill(wrong)
            expect(page.get_by_role("alert")).to_have_text(why)
            expect(amount).to_have_attribute("aria-invalid", "true")
            expect(page.locator("#approve")).to_be_disabled()
        amount.fill("80")
        expect(page.get_by_role("button", name="Approve with amount 80.0")).to_be_enabled()
        looking.picture("approval-form-phone")
        assert looking.accessible() == []
        assert looking.fits()
        page.get_by_role("button", name="Approve with amount 80.0").click()
        assert "refunded 80.0 USD of 881" in started.stdout.readline()
        expect(page.get_by_text("edited and approved by")).to_contain_text("ran")
        expect(page.get_by_role("heading", name="What ran")).to_be_visible()
        expect(page.get_by_text("refunded 80.0 USD of 881")).to_be_visible()
        looking.picture("approval-ran-phone")
        url = page.url
        started.wait(20)
    page.goto(url)
    expect(page.get_by_text("edited and approved by")).to_contain_text("ran")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.goto(f"{served.origin}/audit")
    expect(page.get_by_role("row").filter(has_text="amount=80.0").first).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="edited: amount")).to_contain_text(current_login())


@pytest.mark.parametrize("looking", [{"width": 1440}, {"theme": "dark", "width": 390, "height": 844}], ids=["desk", "phone"], indirect=True)
def test_a_budget_that_programs_share_is_set_and_closed_for_all_of_them(served, looking, request):
    served.desk.budgets.url = f"sqlite:{served.store / 'ledger.db'}"
    page = looking.open()
    expect(page.get_by_role("alert")).to_contain_text("there is no such file")
    with program(served, SHARING, served.desk.budgets.url) as started:
        for became in ("went through", "went through", "refused"):
            assert asks(started, "a ticket") == became
        shared = page.get_by_role("region", name="Shared budgets")
        expect(shared.get_by_role("meter", name="tenant:acme, requests: 2 of 2")).to_be_visible()
        looking.picture(f"shared-{request.node.callspec.id}")
        assert looking.accessible() == []
        assert looking.fits()
        shared.get_by_role("button", name="Set tenant:acme, requests").click()
        page.get_by_label("New value").fill("5")
        page.get_by_role("button", name="Set it to 5").click()
        expect(shared.get_by_role("meter", name="tenant:acme, requests: 2 of 5")).to_be_visible()
        assert asks(started, "a ticket") == "went through"
        shared.get_by_role("button", name="Close tenant:acme, requests").click()
        expect(page.get_by_role("dialog")).to_contain_text("on every machine, is refused from its next call on")
        page.get_by_role("button", name="Close it").click()
        expect(shared.get_by_text("closed")).to_be_visible()
        assert asks(started, "a ticket") == "refused"
    page.goto(f"{served.origin}/audit")
    expect(page.get_by_role("row").filter(has_text="requests").filter(has_text=current_login())).to_have_count(2)


def test_who_spent_most_is_three_clicks_from_the_start_and_the_same_as_the_command_says(served, looking):
    with program(served, AGENT) as started:
        for _ in range(3):
            asks(started, "charged twice")
    page = looking.open()
    page.get_by_role("link", name="Spend").click()
    rows = page.locator("table.spend tbody tr")
    expect(rows.first).to_contain_text("u42")
    expect(rows.first).to_contain_text("$0.014400")
    page.get_by_role("link", name="u42").click()
    page.get_by_role("link", name="triage-42").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("triage-42")


def test_who_spent_most_yesterday_and_on_what_is_three_clicks_from_the_start_and_what_the_command_says(served, looking):
    shelf = Shelf(served.store)
    noon = datetime.now().astimezone().replace(hour=12) - timedelta(days=1)
    spent = {"u42": (("gpt-4.1", 3.5), ("gpt-4.1-mini", 0.25)), "u17": (("gpt-4.1", 1.25),), None: (("local/llama", None),)}
    for user, calls in spent.items():
        run = shelf.run(f"run of {user}", user=user, began=round(noon.timestamp() * 1e9), ended=round(noon.timestamp() * 1e9) + 10**9)
        for model, cost in calls:
            shelf.call(run, (1200, 300), cost, model=model)
    page = looking.open()
    page.get_by_role("link", name="Spend").click()
    page.get_by_role("button", name="Yesterday").click()
    rows = page.locator("table.spend tbody tr")
    expect(rows.nth(1)).to_contain_text("gpt-4.1")
    line = page.locator(".status .cli").inner_text().removeprefix("$ ravi-otel ")
    assert line == "cost --from yesterday --to today --by user,model"
    said = subprocess.run(
        [sys.executable, "-m", "ravi_otel", *line.split(), "--json", "--store", str(served.store)], capture_output=True, check=True
    )
    told = json.loads(said.stdout)["groups"]
    assert [(each["user"], each["model"], each["cost_usd"]) for each in told][:2] == [("u42", "gpt-4.1", 3.5), ("u17", "gpt-4.1", 1.25)]
    expect(rows.first).to_contain_text("u42")
    while (folded := page.get_by_role("button", name="Unfold ")).count():  # the users after the first
        folded.first.click()
    lines = [[each.locator("td").nth(place).inner_text() for place in (0, 2)] for each in rows.all()]
    for each in told:
        named = [line for line in lines if line[0] == each["model"]]
        assert [each["model"], "?" if each["calls_without_price"] else money(round(each["cost_usd"] * 1e9))] in named
    page.get_by_role("link", name="u42").click()
    expect(page.locator(".runs-body [role=row]")).to_have_text([re.compile("run of u42")])


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Run the stack's own Jaeger; return where spans go to, and where they are looked at."""
    listed = subprocess.run(["sh", "scripts/stack_servers.sh", "paths", "jaeger"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode:
        pytest.skip("there is no Jaeger here: `make servers` builds it")
    ports = dict(zip(("otlp", "grpc", "ui", "health"), free_ports(4), strict=True))
    config = tmp_path_factory.mktemp("jaeger") / "jaeger.yaml"
    config.write_text(JAEGER.format(**ports))
    started = subprocess.Popen(
        [listed.stdout.split()[-1], "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        origin = f"http://127.0.0.1:{ports['ui']}"
        until(lambda: started.poll() is not None or asked(f"{origin}/api/services"), 60)
        assert started.poll() is None, "Jaeger ended"
        yield f"http://127.0.0.1:{ports['otlp']}", origin
    finally:
        started.terminate()
        started.wait(20)


def asked(url: str) -> bytes:
    """Return what a server answers, nothing where it does not, or not with what was asked for."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.read()
    except OSError:
        return b""


def test_an_error_and_grafanas_table_lead_to_the_run_and_the_run_to_jaeger(served, looking, jaeger, monkeypatch):
    spans, served.desk.jaeger = jaeger
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", spans)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with program(served, AGENT.replace('print("refused"', 'print("refused", error.run_id')) as started:
        for _ in range(4):
            asks(started, "charged twice")
        refused, run_id = asks(started, "the last one").split()
        assert refused == "refused"
    page = looking.open()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type(run_id)
    expect(page.get_by_role("option").filter(has_text="triage-42")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"{served.origin}/runs/{run_id}"))
    trace = page.get_by_title(re.compile("Copy trace ")).first.get_attribute("title").removeprefix("Copy trace ")

    boards = json.loads((ROOT / "dashboards" / "runs.json").read_text())
    links = set(re.findall(r'"url": "(\$\{page:raw\}[^"]*)"', json.dumps(boards)))
    assert links == {"${page:raw}/runs/${__value.raw}"}
    (link,) = links
    for value in (trace, run_id):
        page.goto(link.replace("${page:raw}", served.origin).replace("${__value.raw}", value))
        expect(page.get_by_role("heading", level=1)).to_have_text("triage-42")

    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Jaeger ↗").first.click()
    there = opened.value  # its own page, or in its place where it was built without one
    expect(there).to_have_url(re.compile(rf"^{re.escape(served.desk.jaeger)}/trace/{trace}\?uiFind=[0-9a-f]{{16}}$"))
    found = until(lambda: asked(f"{served.desk.jaeger}/api/traces/{trace}"))
    spans = {span["spanID"] for each in json.loads(found)["data"] for span in each["spans"]}
    assert there.url.rpartition("=")[2] in spans
    there.close()
    looking.is_refused()


def test_a_run_is_exported_as_one_file_that_opens_anywhere_and_asks_nobody(served, looking, browser, tmp_path):
    with program(served, AGENT) as started:
        for _ in range(5):
            asks(started, "</script><img src=x onerror=alert(1)>")
    page = looking.open("/runs")
    page.get_by_role("link", name="triage-42").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export HTML").click()
    file = tmp_path / "run.html"
    download.value.save_as(file)
    context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
    there = context.new_page()
    wrong = []
    there.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    there.on("pageerror", lambda error: wrong.append(str(error)))
    there.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith("file:") else None)
    there.goto(file.as_uri())
    expect(there.get_by_role("heading", level=1)).to_have_text("triage-42")
    panel = there.get_by_role("complementary", name="The open item")
    expect(panel.get_by_text("researcher · turns · said no")).to_be_visible()
    expect(panel.get_by_text("Ticket 4: </script><img src=x onerror=alert(1)>")).to_be_visible()
    there.keyboard.press("k")
    expect(panel.get_by_text("Ticket 3: </script>")).to_be_visible()
    there.keyboard.press("2")
    expect(panel.get_by_text("settled")).to_be_visible()
    if os.environ.get("RAVI_PICTURES"):
        there.screenshot(path=Path(os.environ["RAVI_PICTURES"]) / "exported.png")
    context.close()
    assert wrong == []


def test_the_command_prints_the_url_and_serves_the_page(tmp_path: Path, browser):
    port = free_port()
    started = subprocess.Popen(
        [sys.executable, "-m", "ravi_otel", "ui", "--port", str(port), "--store", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = started.stdout.readline().partition("Open ")[2].strip()
        context = browser.new_context()
        page = context.new_page()
        until(lambda: asked(f"http://127.0.0.1:{port}/assets/app.js"))
        page.goto(url)
        expect(page.get_by_text("ravi-otel demo")).to_be_visible()
        assert "token" not in page.url
        context.close()
    finally:
        started.terminate()
        _, said = started.communicate(timeout=20)
    assert "It shows the store" in said
    assert "Traceback" not in said
