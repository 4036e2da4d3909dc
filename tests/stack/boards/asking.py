"""Ask what a dashboard asks, as Grafana would of its data sources, and put each answer into its panel as data frames."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from dashboard_files import filled
from stack_servers import Stack

ROOT = Path(__file__).parents[3]
SOURCES = yaml.safe_load((ROOT / "collector/grafana/provisioning/datasources/datasources.yaml").read_text())["datasources"]
(LEAST_INTERVAL,) = [source["jsonData"]["timeInterval"] for source in SOURCES if source["type"] == "prometheus"]
"""Between two points of a line at least, as the shipped data source says."""

_RATE_COVERS = 4
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}

Json = dict[str, Any]


def seconds(duration: str) -> float:
    """Return a duration such as 15s in seconds."""
    found = re.fullmatch(r"(\d+)(ms|[smhd])", duration)
    assert found is not None, duration
    return int(found[1]) * _UNITS_S[found[2]]


def opened(dashboard: Mapping[str, Any], start_s: float, end_s: float, width: int) -> Json:
    """Return the dashboard as somebody sees it who opens it: rows that are collapsed stay so."""
    board = copy.deepcopy(dict(dashboard))
    return board | {"range": {"from": start_s * 1000, "to": end_s * 1000}, "width": width}


def unfolded(board: Json) -> Json:
    """Return a board with every row open, one below the other."""
    panels: list[Json] = []
    lower_by = 0
    for panel in board["panels"]:
        moved = copy.deepcopy(panel)
        moved["gridPos"]["y"] += lower_by
        panels.append(moved)
        if panel["type"] == "row" and panel.get("collapsed"):
            inside = copy.deepcopy(panel["panels"])
            top = min(each["gridPos"]["y"] for each in inside)
            below = moved["gridPos"]["y"] + 1
            for each in inside:
                each["gridPos"]["y"] += below - top
            panels += inside
            lower_by += max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in inside) - below
            moved |= {"collapsed": False, "panels": []}
    return board | {"panels": panels}


class Asking:
    """Fill the panels of a board with what a stack answers; `variables` are those that do not stand for all."""

    def __init__(self, stack: Stack | None, variables: Mapping[str, str]):
        self._stack = stack
        self._variables = variables

    def fill(self, board: Json, intervals_ms: Mapping[str, int]) -> Json:
        """Put frames, lines, or why there are none into each panel of the board, and return it."""
        for panel in board["panels"]:
            if panel["type"] != "row":
                try:
                    self._panel(panel, board["range"], intervals_ms[str(panel["id"])] / 1000)
                except AssertionError as refused:
                    panel["failed"] = str(refused)
        return board

    def _panel(self, panel: Json, span: Mapping[str, float], interval_s: float) -> None:
        if panel["type"] == "alertlist":
            firing = [rule for rule in self._stack.rules() if rule["type"] == "alerting" and rule["state"] == "firing"]
            panel["lines"] = [{"text": f"{rule['name']}: {one['annotations']['summary']}"} for rule in firing for one in rule["alerts"]]
            return
        frames: list[Json] = []
        for target in panel["targets"]:
            match target["datasource"]["type"]:
                case "prometheus":
                    frames += self._prometheus(panel, target, span, interval_s)
                case "jaeger":
                    frames += self._jaeger(panel, target)
                case "loki":
                    frames += self._loki(panel, target, span)
        panel["frames"] = frames

    def _text(self, query: str, span: Mapping[str, float], interval_s: float, scrape_s: float) -> str:
        rate_s = max(interval_s + scrape_s, _RATE_COVERS * scrape_s)
        own = {"__interval": f"{interval_s:g}s", "__rate_interval": f"{rate_s:g}s", "__range": f"{(span['to'] - span['from']) / 1000:.0f}s"}
        return filled(query, **own, **self._variables)

    def _prometheus(self, panel: Json, target: Json, span: Mapping[str, float], interval_s: float) -> list[Json]:
        scrape_s = seconds(target.get("interval") or LEAST_INTERVAL)
        step_s = seconds(target["interval"]) if target.get("interval") else interval_s
        query = self._text(target["expr"], span, step_s, scrape_s)
        if target.get("instant"):
            found = self._stack.query(query, span["to"] / 1000)
            if target.get("format") == "table":
                several = len(panel["targets"]) > 1
                return [_table(found, target["refId"], f"Value #{target['refId']}" if several else "Value")]
            points = [(one["metric"], [one["value"]]) for one in found]
        else:
            start_s = math.floor(span["from"] / 1000 / step_s) * step_s
            found = self._stack.query_range(query, start_s, span["to"] / 1000, step_s)
            points = [(one["metric"], one["values"]) for one in found]
        return [_series(labels, values, target, step_s, query) for labels, values in points]

    def _loki(self, panel: Json, target: Json, span: Mapping[str, float]) -> list[Json]:
        query = self._text(target["expr"], span, 1, 1)
        if query.startswith("topk"):
            found = self._stack.get("loki", "/loki/api/v1/query", query=query, time=span["to"] / 1000)["data"]["result"]
            return [_table(found, target["refId"], "Value")]
        records = self._stack.logs(query)
        panel["lines"] = [
            {"text": f"{one['line']}  {' '.join(f'{key}={value}' for key, value in one['labels'].items())}"} for one in records
        ]
        return []

    def _jaeger(self, panel: Json, target: Json) -> list[Json]:
        if target.get("queryType") != "search":
            trace = self._stack.jaeger(filled(target["query"], **self._variables))
            panel["lines"] = [{"text": span["operationName"]} for span in (trace or [])]
            return []
        tags = dict(each.split("=", 1) for each in shlex.split(filled(target["tags"], **self._variables)))
        more = {"minDuration": target["minDuration"]} if "minDuration" in target else {}
        if tags:
            more["tags"] = json.dumps(tags)
        found = self._stack.jaeger_search(filled(target["service"], **self._variables), limit=target["limit"], **more)
        return [_traces(found, target["refId"])] if found else []


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _series(labels: Mapping[str, str], values: Sequence[tuple[float, str]], target: Json, step_s: float, query: str) -> Json:
    legend = target.get("legendFormat") or "__auto"
    config: Json = {}
    if legend != "__auto":
        config["displayNameFromDS"] = re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend)
    elif not labels:
        config["displayNameFromDS"] = query
    times = [float(at) * 1000 for at, _ in values]
    return {
        "refId": target["refId"],
        "fields": [
            {"name": "Time", "type": "time", "values": times, "config": {"interval": step_s * 1000}},
            {
                "name": "Value",
                "type": "number",
                "values": [_number(value) for _, value in values],
                "labels": dict(labels),
                "config": config,
            },
        ],
    }


def _table(found: Sequence[Json], ref_id: str, value_name: str) -> Json:
    columns = sorted({label for one in found for label in one["metric"]})
    fields: list[Json] = [{"name": "Time", "type": "time", "values": [float(one["value"][0]) * 1000 for one in found], "config": {}}]
    values = {label: [one["metric"].get(label, "") for one in found] for label in columns}
    fields += [{"name": label, "type": "string", "values": values[label], "config": {"filterable": True}} for label in columns]
    fields.append({"name": value_name, "type": "number", "values": [_number(one["value"][1]) for one in found], "config": {}})
    return {"refId": ref_id, "fields": fields if found else []}


def _traces(found: Sequence[Sequence[Json]], ref_id: str) -> Json:
    rows = list(_rows_of_traces(found))
    columns = [("traceID", "string", "Trace ID"), ("traceName", "string", "Trace name"), ("startTime", "time", "Start time")]
    fields: list[Json] = [
        {"name": name, "type": kind, "values": [row[name] for row in rows], "config": {"displayNameFromDS": title}}
        for name, kind, title in columns
    ]
    took = {"name": "duration", "type": "number", "values": [row["duration"] for row in rows]}
    fields.append(took | {"config": {"displayNameFromDS": "Duration", "unit": "µs"}})
    return {"refId": ref_id, "fields": fields}


def _rows_of_traces(found: Sequence[Sequence[Json]]) -> Iterator[Json]:
    for spans in sorted(found, key=lambda trace: min(span["startTime"] for span in trace), reverse=True):
        first = min(spans, key=lambda span: (span["startTime"], -span["duration"]))
        name = f"{first['process']['serviceName']}: {first['operationName']}"
        yield {"traceID": first["traceID"], "traceName": name, "startTime": first["startTime"] / 1000, "duration": first["duration"]}
