"""The committed dashboards are whole: shaped as Grafana takes them, told in words, and asking for nothing that does not exist."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from dashboard_files import FILES, PLACE, Query, asked, filled, first_screen, panels, promql, selectors, used_variables, variables

from dashboards.source import foreign
from dashboards.source.names import label, prometheus
from ravi_otel._telemetry import names
from ravi_otel._telemetry.names import METRICS, TABLE

UIDS = {"budgets.json": "ravi-budgets", "calls.json": "ravi-calls", "runs.json": "ravi-runs", "health.json": "ravi-health"}
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "description", "tags", "timezone", "refresh", "schemaVersion", "time", "templating", "panels", "links"],
    "not": {"required": ["id"]},
    "properties": {
        "schemaVersion": {"type": "integer", "minimum": 41},
        "timezone": {"const": "browser"},
        "refresh": {"const": "30s"},
        "tags": {"const": ["ravi-otel"]},
        "description": {"type": "string", "minLength": 40},
        "editable": {"const": False},
        "panels": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "title": {"type": "string", "minLength": 3},
                    "gridPos": {
                        "type": "object",
                        "required": ["x", "y", "w", "h"],
                        "properties": {
                            "x": {"type": "integer", "minimum": 0, "maximum": 23},
                            "y": {"type": "integer", "minimum": 0},
                            "w": {"type": "integer", "minimum": 1, "maximum": 24},
                            "h": {"type": "integer", "minimum": 1},
                        },
                    },
                },
                "if": {"properties": {"type": {"const": "row"}}},
                "then": {"required": ["collapsed", "panels"], "properties": {"panels": {"items": {"$ref": "#/properties/panels/items"}}}},
                "else": {
                    "required": ["description", "fieldConfig"],
                    "properties": {
                        "type": {"enum": ["stat", "timeseries", "table", "heatmap", "logs", "traces", "alertlist"]},
                        "description": {"type": "string", "minLength": 20},
                        "fieldConfig": {
                            "type": "object",
                            "required": ["defaults"],
                            "properties": {
                                "defaults": {"type": "object", "required": ["unit"], "properties": {"unit": {"minLength": 1}}},
                            },
                        },
                        "targets": {"type": "array", "items": {"type": "object", "required": ["refId", "datasource"]}},
                    },
                },
            },
        },
        "templating": {
            "type": "object",
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "type", "label", "description"],
                        "properties": {"type": {"enum": ["datasource", "query", "custom", "textbox"]}},
                    },
                }
            },
        },
    },
}  # fmt: skip
IS_WHOLE = fastjsonschema.compile(SCHEMA)

PROMQL = promql()
KNOWN = {
    **{prometheus(name): name for name, row in METRICS.items() if row.kind != "histogram"},
    **{
        f"{prometheus(name)}{part}": name
        for name, row in METRICS.items()
        if row.kind == "histogram"
        for part in ("_bucket", "_sum", "_count")
    },
}
ATTRIBUTES = {label(row.name) for row in TABLE if row.kind == "attribute"}
OTHERS_LABELS = {
    "service_name": "the resource, promoted by prometheus/prometheus.yaml",
    "deployment_environment_name": "the resource, promoted by prometheus/prometheus.yaml",
    "ravi_tag_tenant": "the tag tenant",
    "ravi_tag_team": "the tag team",
    "span_kind": foreign.SPAN_METRICS,
    "alertname": foreign.RULES,
    "alertstate": foreign.RULES,
    "sampled": foreign.SAMPLING,
    "severity": foreign.RULES,
    "job": "prometheus, the name of what it scrapes in prometheus/prometheus.yaml",
    "event_name": "the record's event name",
    "trace_id": "the record's trace",
}

each_file = pytest.mark.parametrize("name", FILES)


def test_there_are_four_with_uids_that_stay():
    assert {name: dashboard["uid"] for name, dashboard in FILES.items()} == UIDS


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")  # of the library, which has two schemas
def test_they_are_what_their_source_makes():
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    from dashboards.source.__main__ import files, pages

    made = files()
    committed = {path.name: path.read_text(encoding="utf-8") for path in PLACE.glob("*.json")}
    assert made.keys() == committed.keys()
    assert [name for name in made if made[name] != committed[name]] == [], "run make dashboards"
    books = {path.name: path.read_text(encoding="utf-8") for path in (PLACE.parent / "collector" / "runbooks").glob("*.html")}
    assert books == pages(), "run make dashboards"
    for name, text in made.items():  # and the library reads them as its own
        again = json.loads(json.dumps(Dashboard.from_json(json.loads(text)), cls=JSONEncoder))
        assert [panel["title"] for panel in panels(again)] == [panel["title"] for panel in panels(FILES[name])]


@each_file
def test_each_is_a_classic_dashboard_whose_panels_have_title_description_and_unit(name: str):
    IS_WHOLE(FILES[name])


@each_file
def test_ids_are_unique_and_so_are_titles_within_a_dashboard(name: str):
    every = [*panels(FILES[name]), *_rows(FILES[name])]
    assert len({panel["id"] for panel in every}) == len(every)
    titles = [panel["title"] for panel in panels(FILES[name])]
    assert sorted(titles) == sorted(set(titles))


def _rows(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] == "row"]


@each_file
def test_no_panel_lies_over_another_or_beyond_the_edge(name: str):
    closed = [(row, panel) for row in _rows(FILES[name]) for panel in row["panels"]]
    assert [panel["title"] for row, panel in closed if panel["gridPos"]["y"] <= row["gridPos"]["y"]] == []
    for together in (FILES[name]["panels"], *(row["panels"] for row in _rows(FILES[name]))):
        places = [(panel["title"], panel["gridPos"]) for panel in together]
        assert [title for title, at in places if at["x"] + at["w"] > 24] == []
        over = [(one, other) for (one, a), (other, b) in itertools.combinations(places, 2) if _overlap(a, b)]
        assert over == []


@each_file
def test_one_row_is_open_and_fits_a_screen_and_the_others_ask_nothing_until_they_are_opened(name: str):
    first, *others = _rows(FILES[name])
    assert (first["title"], first["collapsed"], first["panels"]) == ("Now", False, [])
    assert all(row["collapsed"] and row["panels"] for row in others)
    lowest = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in first_screen(FILES[name]))
    assert lowest * 38 <= 1000  # of 1200 pixels, of which Grafana's own head takes the rest
    assert [panel["title"] for panel in first_screen(FILES[name]) if panel["type"] in {"traces", "logs"}] == []
    assert [panel["title"] for panel in first_screen(FILES[name]) if "jaeger" in json.dumps(panel.get("targets"))] == []


def test_the_first_screen_of_budgets_says_what_fires_what_is_refused_who_spends_who_is_near_and_whether_it_can_be_believed():
    shown = [panel["title"] for panel in first_screen(FILES["budgets.json"])]
    assert {"Alerts", "Calls refused", "Who spends the most", "Targets down", "Services silent"} <= set(shown)


def test_health_begins_with_who_does_not_answer():
    assert [panel["title"] for panel in first_screen(FILES["health.json"])][:2] == ["Targets down", "Services silent"]


@each_file
def test_what_is_not_known_is_grey_and_says_so(name: str):
    for panel in panels(FILES[name]):
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] in {"stat", "timeseries"}:
            assert defaults["noValue"] == "no data", panel["title"]
        if panel["type"] == "stat":
            (unknown,) = [each["options"] for each in defaults["mappings"] if each["type"] == "special"]
            assert unknown == {"match": "null+nan", "result": {"text": "no data", "color": "#8e8e8e"}}, panel["title"]


def test_nothing_is_said_to_be_zero_that_nobody_has_told_of():
    """`or vector(0)` makes a figure of a Prometheus that has heard nothing; what a dashboard does without our rules is its own."""
    assert [query.where for query in PROMQL if "or vector(" in query.text.replace("or vector(0.8)", "")] == []


@each_file
def test_rates_of_programs_span_four_of_their_exports_and_what_is_scraped_is_asked_as_often_as_it_is_read(name: str):
    for file in ("grafana/provisioning/datasources/datasources.yaml", "one/datasources.yaml"):
        (source,) = [each for each in _yaml(file)["datasources"] if each["type"] == "prometheus"]
        assert source["jsonData"]["timeInterval"] == "60s"  # what OTEL_METRIC_EXPORT_INTERVAL is by default
    for panel in panels(FILES[name]):
        queries = [target for target in panel.get("targets", ()) if target["datasource"]["type"] == "prometheus"]
        of_programs = any('service_name=~"$service"' in target["expr"] for target in queries)
        rated = any("$__rate_interval" in target["expr"] or "$__interval" in target["expr"] for target in queries)
        if rated:
            expected = {None} if of_programs else {"15s"}
            assert {panel.get("interval"), *(target.get("interval") for target in queries)} == expected, panel["title"]


def _yaml(file: str) -> dict[str, Any]:
    return yaml.safe_load((PLACE.parent / "collector" / file).read_text(encoding="utf-8"))


def test_columns_of_the_widest_table_fit_beside_each_other():
    (table,) = [panel for panel in first_screen(FILES["budgets.json"]) if panel["type"] == "table" and panel["gridPos"]["w"] == 24]
    widths = {rule["matcher"]["options"]: _width(rule) for rule in table["fieldConfig"]["overrides"] if _width(rule)}
    shown = next(each["options"]["renameByName"] for each in table["transformations"] if each["id"] == "organize").values()
    assert sum(widths.get(name, 120) for name in shown) < 1500
    assert all(panel["fieldConfig"]["defaults"]["custom"]["minWidth"] == 50 for panel in _tables())


def _width(rule: Mapping[str, Any]) -> int:
    return next((each["value"] for each in rule["properties"] if each["id"] == "custom.width"), 0)


def _tables() -> list[dict[str, Any]]:
    return [panel for dashboard in FILES.values() for panel in panels(dashboard) if panel["type"] == "table"]


def test_tables_hold_nothing_that_grafana_does_not_know():
    assert [panel["title"] for panel in _tables() if "footer" in panel["options"]] == []


def test_calls_that_were_never_sent_are_no_calls_and_no_errors():
    asked_for = [query for query in PROMQL if "traces_span_metrics_" in query.text]
    assert len(asked_for) == 3
    assert [query.where for query in asked_for if 'error_type!~"ravi[.].+"' not in query.text] == []


def test_a_trace_opens_alone_though_the_row_of_its_panel_is_closed():
    links = {link for name in FILES for link in re.findall(r"/d/ravi-runs\?[^\"]*var-trace=[^\"]*", json.dumps(FILES[name]))}
    assert links
    (tree,) = [panel for panel in panels(FILES["runs.json"]) if panel["type"] == "traces"]
    assert [link for link in links if f"viewPanel=panel-{tree['id']}" not in link] == []


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


@each_file
def test_every_variable_that_is_used_exists_and_every_one_that_exists_is_used(name: str):
    dashboard = FILES[name]
    known = variables(dashboard)
    assert used_variables(json.dumps(dashboard)) - known.keys() == set()
    elsewhere = {key: value for key, value in dashboard.items() if key != "templating"}
    queries = json.dumps([elsewhere["panels"], elsewhere.get("annotations")])
    without_links = re.sub(r"/d/ravi-[^\"]*", "", queries)
    assert known.keys() - used_variables(without_links) == set()


@each_file
def test_values_are_several_or_all_but_of_what_takes_one(name: str):
    for variable in variables(FILES[name]).values():
        if variable["type"] == "query" and variable["name"] != "trace_service":
            assert (variable["multi"], variable["includeAll"]) == (True, True)
            assert variable["allValue"] == (".+" if variable["name"] == "service" else ".*")  # Loki takes no selector that may be empty


@each_file
def test_data_sources_are_those_of_the_variables_and_begin_with_the_stacks(name: str):
    known = variables(FILES[name])
    for kind in ("prometheus", "jaeger", "loki"):
        assert kind not in known or known[kind]["current"]["value"] == f"ravi-{kind}"
    found = set(re.findall(r'"uid": "([^"]+)"', json.dumps(FILES[name]["panels"])))
    assert found <= {f"${{{kind}}}" for kind in known}


@each_file
def test_links_lead_to_a_dashboard_there_is_and_set_variables_it_has(name: str):
    by_uid = {dashboard["uid"]: dashboard for dashboard in FILES.values()}
    found = re.findall(r"/d/(ravi-\w+)\?([^\"]*)", json.dumps(FILES[name]))
    assert found or name == "health.json"
    for uid, query in found:
        assert query.startswith("from=${__from}&to=${__to}&")
        carried = set(re.findall(r"\$\{(\w+):queryparam\}", query)) | set(re.findall(r"var-(\w+)=", query))
        assert carried <= variables(by_uid[uid]).keys(), (uid, query)


@each_file
def test_each_leads_to_the_others(name: str):
    (link,) = FILES[name]["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == ("dashboards", ["ravi-otel"], True, True)


PAGE = "http://127.0.0.1:8411"
"""Where `ravi-otel ui` serves its page unless it is told otherwise: a value of the variable `page` that anybody may change."""


@each_file
def test_no_address_of_a_machine_is_in_it(name: str):
    text = (PLACE / name).read_text(encoding="utf-8").replace(PAGE, "")
    assert re.findall(r"https?://|localhost|\d+\.\d+\.\d+\.\d+|/(?:home|root|work|tmp)/", text) == []


def test_every_query_is_one_that_prometheus_reads():
    assert len(PROMQL) > 100
    for query in PROMQL:
        selectors(filled(query.text))


def test_rates_are_over_the_interval_that_grafana_finds_right():
    for query in PROMQL:
        spans = set(re.findall(r"(?:rate|increase)\([^\[]*\[([^\]]+)\]", re.sub(r'"[^"]*"', "", query.text)))
        assert spans <= {"$__rate_interval", "$__range"}, query.where
        assert "irate(" not in query.text


def _named(selector: Any) -> str:
    """Give the name that a selector asks for, or the pattern of it."""
    return selector.name or next(matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__")


def test_every_metric_is_in_the_table_or_in_the_list_of_others():
    for query in PROMQL:
        for selector in selectors(filled(query.text)):
            pattern = re.compile(_named(selector))
            found = [name for name in (*KNOWN, *foreign.NAMES) if pattern.fullmatch(name)]
            assert found, f"{query.where}: nothing is called {pattern.pattern}"


def test_what_the_collector_counts_is_asked_of_the_collector_alone():
    """Jaeger is a collector too: without the job, each span is shown twice."""
    asked_for = [selector.prettify() for query in PROMQL for selector in selectors(filled(query.text)) if "otelcol_" in _named(selector)]
    assert len(asked_for) > 30
    assert [each for each in asked_for if 'job="collector"' not in each] == []


def test_every_other_metric_in_the_list_is_asked_for():
    patterns = {_named(selector) for query in PROMQL for selector in selectors(filled(query.text))}
    assert [name for name in foreign.NAMES if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []


def test_every_label_is_an_attribute_of_ours_or_said_whence_it_is():
    for query in PROMQL:
        for selector in selectors(filled(query.text)):
            names = {matcher.name for matcher in selector.matchers.matchers} - {"__name__"}
            assert names <= ATTRIBUTES | OTHERS_LABELS.keys(), query.where
    for query in asked("loki"):
        names = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query.text))
        assert names <= ATTRIBUTES | OTHERS_LABELS.keys(), query.where


def test_log_queries_select_limit_events_and_nothing_else():
    found = list(asked("loki"))
    assert len(found) >= 8
    for query in found:
        assert _is_of_limit_events(query), query.where
        assert query.text.count('{service_name=~"$service"}') == 1, query.where


def _is_of_limit_events(query: Query) -> bool:
    return '| event_name=~"ravi[.]limit[.].+"' in query.text


def test_every_metric_of_limits_and_costs_is_shown():
    shown = {KNOWN.get(_named(selector)) for query in PROMQL for selector in selectors(filled(query.text))}
    ours = {name for name in METRICS if name.startswith("ravi.")}
    assert ours - shown == set()


def test_points_are_asked_for_where_prometheus_keeps_them_and_told_of_nowhere_else():
    """It keeps them with buckets and counters, never with a histogram's sum and count."""
    for query in PROMQL:
        if query.target.get("exemplar"):
            assert {_named(selector).rpartition("_")[2] for selector in selectors(filled(query.text))} <= {"bucket", "total"}, query.where
    for dashboard in FILES.values():
        for panel in panels(dashboard):
            if "Points are" in panel["description"]:
                assert any(target.get("exemplar") for target in panel["targets"]), panel["title"]
    quantiles = [query for query in PROMQL if "histogram_quantile(0.99" in query.text]
    assert quantiles
    assert [query.where for query in quantiles if not query.target.get("exemplar")] == []


def test_a_name_of_prometheus_is_made_as_prometheus_makes_it():
    assert prometheus(names.COST) == "ravi_usage_cost_USD_total"
    assert prometheus(names.CALL_DURATION) == "gen_ai_client_operation_duration_seconds"
    assert prometheus(names.TOKEN_USAGE) == "gen_ai_client_token_usage"
    assert prometheus(names.LIMIT_USED) == "ravi_limit_used"
    assert prometheus(names.AGENT_ACTIVE) == "ravi_agent_active"
    assert prometheus(names.RETRY_COUNT) == "ravi_retry_count_total"
    with pytest.raises(KeyError):
        prometheus("ravi.no.such")


def test_the_page_tells_every_row_and_every_variable():
    page = (PLACE.parent / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for dashboard in FILES.values():
        _, title = dashboard["title"].split(" / ")
        told = re.search(rf"\n\*\*{title}\*\*\n\n\| row \| answers \|\n\|---\|---\|\n((?:\| .*\n)+)", page)
        assert told is not None, title
        rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
        assert [line.split(" | ")[0].removeprefix("| ") for line in told[1].splitlines()] == rows
        assert [variable["label"] for variable in variables(dashboard).values() if variable["label"] not in page] == []


def test_what_the_runbooks_and_pages_send_people_to_is_there():
    root = PLACE.parent
    named = {dashboard["title"] for dashboard in FILES.values()}
    named |= {panel["title"] for dashboard in FILES.values() for panel in (*panels(dashboard), *_rows(dashboard))}
    pages = [*sorted((root / "collector" / "runbooks").glob("*.md")), root / "docs" / "alerts.md"]
    found = {
        (page.name, name) for page in pages for name in re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", page.read_text(encoding="utf-8"))
    }
    assert len(found) > 20
    assert {(page, name) for page, name in found if name not in named | {"Alerting"}} == set()  # that is a menu of Grafana's
