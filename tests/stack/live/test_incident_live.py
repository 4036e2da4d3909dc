"""What docs/incident.md tells of the fleet is what the servers say, from the alert to the refused call."""

from __future__ import annotations

import re

import httpx
import pytest
from incident_pictures import after, asked, of_the_day, save
from incident_story import (
    ALERTS,
    SERVICES,
    WILD,
    Played,
    exceeded,
    play_tamed,
    play_wild,
    refused,
    told,
    whole_trace,
)
from panel_answers import panel
from stack_process import wait_for
from stack_servers import ROOT, Stack

PAGE = (ROOT / "docs" / "incident.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^\| `(Ravi\w+)` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
"""What the page says of alerts: name, severity and summary."""


def attributes(heading: str) -> dict[str, str]:
    """Give the attributes in the table below a heading of the page."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", part, re.MULTILINE))


def unmeasured(summary: str) -> str:
    """Take out what depends on the second at which it was measured."""
    return re.sub(r"\d[\d.hms%]*( \d[\d.hms%]*)*", "#", summary)


@pytest.fixture(scope="module")
def day(stack: Stack) -> Played:
    return play_wild(stack)


@pytest.fixture(scope="module")
def tamed(stack: Stack, day: Played) -> Played:
    assert day.environment == WILD
    return play_tamed(stack)


@pytest.fixture(scope="module")
def record(stack: Stack, day: Played) -> dict[str, str]:
    assert day.environment == WILD
    return exceeded(stack)


def test_the_alerts_of_the_page_reach_the_webhook_as_the_page_has_them(stack: Stack, day: Played):
    assert day.environment == WILD
    assert [name for name, *_ in SHOWN] == list(ALERTS)
    for name, severity, summary in SHOWN:
        alert = told(stack, name)
        assert (alert["labels"]["severity"], unmeasured(alert["annotations"]["summary"])) == (severity, unmeasured(summary))
        assert f"<h1>{name}</h1>" in httpx.get(alert["annotations"]["runbook_url"], trust_env=False).text


def test_burning_is_told_before_near_and_near_before_exhausted(stack: Stack, day: Played):
    starts = [told(stack, name)["startsAt"] for name, *_ in SHOWN[:3]]
    assert starts == sorted(set(starts))
    assert day.environment == WILD


@pytest.mark.parametrize("service", SERVICES[:2])
def test_other_teams_are_answered_and_no_alert_names_them(stack: Stack, day: Played, service: str):
    of = f'service_name="{service}", deployment_environment_name="{day.environment}"'
    assert stack.value(f'sum(gen_ai_client_operation_duration_seconds_count{{{of}, error_type=""}})') == 24
    assert not stack.value(f'sum(gen_ai_client_operation_duration_seconds_count{{{of}, error_type!=""}})')
    assert not stack.value(f"sum(ravi_limit_denied_total{{{of}}})")
    assert [note for note in stack.webhook.notes if note["groupLabels"].get("service_name") == service] == []


def test_the_dashboard_shows_which_limit_and_who_spent_it(stack: Stack, day: Played):
    look = asked(stack, day)
    fullest = look.rows(panel("budgets.json", "Used against limit, worst first"))[0]
    assert (fullest["Scope"], fullest["Whose"], fullest["Counts"]) == ("tenant", "finance", "cost")
    assert (fullest["Per"], fullest["Service"], fullest["Limit"]) == ("24h", "finance-agents", 1.0)
    assert fullest["Share"] == pytest.approx(1.02941)
    assert look.rows(panel("budgets.json", "Spent, by team"))[0]["Team"] == "finance"
    assert look.rows(panel("budgets.json", "Spent, by agent"))[0]["Agent"] == "reconciler"
    assert look.number(panel("budgets.json", "Calls refused")) == 3


def test_the_log_record_has_what_the_page_says_and_leads_to_the_trace(stack: Stack, record: dict[str, str]):
    shown = attributes("The log record")
    assert len(shown) > 5
    assert {name: record[name.replace(".", "_")] for name in shown} == shown
    spans = whole_trace(stack, record["trace_id"])
    (root,) = [span for span in spans if not span["references"]]
    assert root["operationName"] == "invoke_workflow finance"


def test_the_refused_call_has_the_attributes_of_the_page(stack: Stack, record: dict[str, str]):
    (call,) = refused(whole_trace(stack, record["trace_id"]))
    shown = attributes("The refused call")
    assert len(shown) > 5
    assert {name: str(call["attributes"][name]) for name in shown} == shown
    assert "gen_ai.usage.input_tokens" not in call["attributes"]


def test_with_the_policy_the_team_has_its_budget(stack: Stack, tamed: Played):
    look = asked(stack, tamed)
    rows = look.rows(panel("budgets.json", "Used against limit, worst first"))
    assert (rows[0]["Whose"], rows[0]["Scope"]) == ("reconciler", "agent")
    (team,) = [row for row in rows if (row["Scope"], row["Service"]) == ("tenant", "finance-agents")]
    assert team["Share"] == pytest.approx(0.1117, abs=1e-4)
    assert look.number(panel("budgets.json", "Calls refused")) == 1


def test_the_pictures_of_the_page_can_be_drawn(stack: Stack, day: Played, tamed: Played, tmp_path):
    sheets = of_the_day(stack, day) | {"after": after(asked(stack, tamed))}
    paths = save(sheets, tmp_path)
    assert {path.name for path in paths} == {path.name for path in (ROOT / "docs" / "pictures" / "incident").iterdir()}
    for path in paths:
        assert path.stat().st_size < 60_000
        assert path.read_text(encoding="utf-8").endswith("</svg>\n")


def test_a_query_that_finds_nothing_is_seen(stack: Stack, day: Played):
    look = asked(stack, day._replace(environment="nowhere"))
    assert look.number(panel("budgets.json", "Fullest limit")) is None
    assert wait_for(lambda: look.lines(panel("budgets.json", "Used against limit over time")) == [], "no line")
