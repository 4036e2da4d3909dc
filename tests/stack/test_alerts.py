"""The shipped rules and routes are whole: each alert says what it is and what to do, and asks for nothing that does not exist."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from dashboard_files import FILES, panels, selectors

from dashboards.source import foreign
from dashboards.source.names import label, prometheus
from ravi_otel._telemetry.names import METRICS, TABLE

COLLECTOR = Path(__file__).parents[2] / "collector"
RULES = {path.stem: yaml.safe_load(path.read_text())["groups"] for path in sorted((COLLECTOR / "prometheus" / "rules").glob("*.yaml"))}
ALERTS = {rule["alert"]: rule for group in RULES["alerts"] for rule in group["rules"]}
RECORDED = {rule["record"]: rule for stem in ("thresholds", "recording") for group in RULES[stem] for rule in group["rules"]}
RUNBOOKS = {path.stem: path.read_text() for path in sorted((COLLECTOR / "runbooks").glob("*.md"))}
ROUTES = yaml.safe_load((COLLECTOR / "alertmanager" / "alertmanager.yaml").read_text())
LINK = re.compile(r"\[[^]]+\]\(([^)]+)\)")

BY_SCOPE = ", of a run's, an agent's or a block's own info"
BY_SCOPE_RULE = re.compile(r'\{\{ if match "process\|tenant\|session" \$labels.ravi_limit_scope \}\}(\w+)\{\{ else \}\}info\{\{ end \}\}')
URGENCY = {name: BY_SCOPE_RULE.sub(rf"\1{BY_SCOPE}", rule["labels"]["severity"]) for name, rule in ALERTS.items()}
ATTRIBUTES = {row.name for row in TABLE if row.kind == "attribute"}

alerts = pytest.mark.parametrize("name", ALERTS)


@alerts
def test_every_alert_says_how_urgent_it_is_what_it_is_and_where_to_read_on(name):
    rule = ALERTS[name]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert URGENCY[name].removesuffix(BY_SCOPE) in ({"none"} if name == "RaviWatchdog" else {"warning", "critical"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["annotations"]["runbook_url"] == f"{{{{ $externalURL }}}}/user/{name}.html"


@alerts
def test_every_alert_leads_to_a_dashboard_there_is_and_to_the_service_it_is_about(name):
    url = ALERTS[name]["annotations"]["dashboard_url"]
    found = re.fullmatch(r"\{\{ \$externalLabels.grafana \}\}/d/(ravi-\w+)(.*)", url)
    assert found is not None
    assert found[1] in {dashboard["uid"] for dashboard in FILES.values()}
    assert found[2] in {"", "{{ with $labels.service_name }}?var-service={{ . | urlquery }}{{ end }}"}


def test_what_comes_again_within_minutes_is_one_alert():
    counted = [name for name, rule in ALERTS.items() if "increase90s" in rule["expr"]]
    assert {"RaviCallsRefused", "RaviBudgetNearLimit", "RaviBudgetExhausted", "RaviStoreDegraded"} <= set(counted)
    assert [name for name in counted if ALERTS[name].get("keep_firing_for") not in {"5m", "10m"}] == []


def test_a_store_that_fails_once_is_no_alert():
    assert ALERTS["RaviStoreDegraded"]["for"] == "2m"  # longer than a failure is counted


@pytest.mark.parametrize("name", ["RaviBudgetNearLimit", "RaviBudgetExhausted", "RaviBudgetBurnTooFast"])
def test_whose_limit_it_is_is_in_the_message_and_each_has_one_of_its_own(name):
    assert "$labels.ravi_limit_scope_name" in ALERTS[name]["annotations"]["summary"]
    assert "ravi_limit_scope_name" in ROUTES["route"]["group_by"]


def test_where_grafana_is_is_said_once_and_taken_off_again():
    config = yaml.safe_load((COLLECTOR / "prometheus" / "prometheus.yaml").read_text())
    assert config["global"]["external_labels"] == {"grafana": "${RAVI_GRAFANA_URL}"}
    assert {"action": "labeldrop", "regex": "grafana"} in config["alerting"]["alert_relabel_configs"]


@alerts
def test_every_alert_has_a_runbook_of_four_parts(name):
    parts = re.split(r"^## (.+)$", RUNBOOKS[name], flags=re.MULTILINE)
    assert parts[0].strip() == f"# {name}"
    assert parts[1::2] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(len(part.split()) >= 8 for part in parts[2::2])


def test_there_is_no_runbook_that_nothing_leads_to_and_no_link_that_leads_nowhere():
    assert set(RUNBOOKS) == set(ALERTS)
    links = {link for text in RUNBOOKS.values() for link in LINK.findall(text)}
    assert links
    assert {link.removesuffix(".md") for link in links} <= set(RUNBOOKS)


class _Links(HTMLParser):
    """Collect where a page leads, and what of it leads to a dashboard."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: set[str] = set()
        self.boards: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("data-board"):
            self.boards.add(given["data-board"] or "")
        elif tag == "a":
            self.pages.add(given["href"] or "")


@pytest.mark.parametrize("name", [*ALERTS, "index"])
def test_a_runbook_is_a_page_that_leads_to_dashboards_to_others_and_back(name):
    text = (COLLECTOR / "runbooks" / f"{name}.html").read_text()
    read = _Links()
    read.feed(text)
    uids = {dashboard["uid"]: {panel["id"] for panel in panels(dashboard)} for dashboard in FILES.values()}
    assert {f"/d/{uid}" for uid in uids} <= read.boards
    for board in read.boards:
        found = re.fullmatch(r"/d/(ravi-\w+)(?:\?viewPanel=panel-(\d+))?", board)
        assert found is not None
        assert found[2] is None or int(found[2]) in uids[found[1]]
    assert {"index.html", "../alerts"} <= read.pages
    assert {page.removesuffix(".html") for page in read.pages - {"index.html", "../alerts"}} <= set(ALERTS)
    if name == "index":
        assert {f"{alert}.html" for alert in ALERTS} <= read.pages
    else:
        assert f"<h1>{name}</h1>" in text


def _rules() -> list[Any]:
    return [
        pytest.param(rule, id=rule.get("alert") or rule["record"])
        for groups in RULES.values()
        for group in groups
        for rule in group["rules"]
    ]


@pytest.mark.parametrize("rule", _rules())
def test_every_rule_asks_for_metrics_that_go_out_or_that_another_rule_writes(rule):
    known = {prometheus(metric) for metric in METRICS} | set(RECORDED) | set(foreign.NAMES)
    known |= {f"{prometheus(metric)}_count" for metric, row in METRICS.items() if row.kind == "histogram"}
    assert {selector.name for selector in selectors(rule["expr"])} <= known


@pytest.mark.parametrize("rule", _rules())
def test_every_rule_groups_and_says_by_labels_that_exist(rule):
    ours = {label(name) for name in ATTRIBUTES} | {"service_name", "deployment_environment_name", "service_instance_id"}
    theirs = {"job", "instance", "exporter", "data_type"}
    grouped = [name for by in re.findall(r"(?:by|without) \(([^)]+)\)", rule["expr"]) for name in by.split(", ")]
    said = re.findall(r"\$labels\.(\w+)", " ".join(rule.get("annotations", {}).values()))
    assert {*grouped, *said} <= ours | theirs


def test_every_threshold_is_asked_by_an_alert_and_no_alert_has_a_number_of_its_own():
    asked = {name for rule in ALERTS.values() for name in re.findall(r"ravi:\w+:threshold", rule["expr"])}
    assert asked == {rule["record"] for group in RULES["thresholds"] for rule in group["rules"]}
    numbers = {number for rule in ALERTS.values() for number in re.findall(r"[<>=] *(?:bool )?(\d+(?:\.\d+)?)", rule["expr"])}
    assert numbers <= {"0"}  # something has been counted, or is down


def test_every_recorded_figure_is_asked_by_an_alert_or_shown_as_one_for_dashboards():
    asked = {name for rule in ALERTS.values() for name in re.findall(r"ravi:\w+:\w+", rule["expr"])}
    assert set(RECORDED) - asked == {"ravi:cost_usd:rate5m"}


def test_an_alert_is_made_quiet_only_by_another_of_the_same_thing():
    for rule in ROUTES["inhibit_rules"]:
        names = re.findall(r"Ravi\w+", " ".join(rule["source_matchers"] + rule["target_matchers"]))
        assert set(names) <= set(ALERTS)
        labels = {label for name in names for by in re.findall(r"by \(([^)]+)\)", _behind(name)) for label in by.split(", ")}
        assert set(rule.get("equal", ())) <= labels


def _behind(alert: str) -> str:
    expression = ALERTS[alert]["expr"]
    return expression + "".join(RECORDED[name]["expr"] for name in re.findall(r"ravi:limit_used:\w+", expression))


def test_every_route_leads_to_a_receiver_that_is_told_the_end_too():
    receivers = {receiver["name"]: receiver for receiver in ROUTES["receivers"]}
    routes = [ROUTES["route"], *ROUTES["route"]["routes"]]
    assert {route["receiver"] for route in routes} == set(receivers)
    assert all(hook["send_resolved"] for receiver in receivers.values() for hook in receiver["webhook_configs"])


def test_the_page_lists_every_alert_with_its_urgency_and_its_runbook():
    page = (COLLECTOR.parent / "docs" / "alerts.md").read_text()
    rows = re.findall(r"^\| `(Ravi\w+)` \| ([^|]+) \| .+ \| \[page\]\(\.\./collector/runbooks/(\w+)\.md\) \|$", page, flags=re.MULTILINE)
    assert rows == [(name, URGENCY[name], name) for name in sorted(ALERTS, key=[row[0] for row in rows].index)]
