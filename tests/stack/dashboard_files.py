"""Read the committed dashboards: their panels, their queries, and what these ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser

PLACE = Path(__file__).parents[2] / "dashboards"
FILES = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(PLACE.glob("*.json"))}

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:[.:\[][^}]*)?\}|([A-Za-z_]\w*))")
_VALUES_OF = re.compile(r"label_values\((.+), (\w+)\)")


class Query(NamedTuple):
    """Be one query, and say where it stands."""

    where: str
    text: str
    target: Mapping[str, Any]


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the panels without the rows' headings, those of closed rows among them."""
    every = [inside for panel in dashboard["panels"] for inside in (panel, *panel.get("panels", ()))]
    return [panel for panel in every if panel["type"] != "row"]


def first_screen(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the panels that are seen before anybody opens a row."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def asked(kind: str, files: Mapping[str, Any] = FILES) -> Iterator[Query]:
    """Give every query that panels and events ask of one kind of data source."""
    for name, dashboard in files.items():
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                if target["datasource"]["type"] == kind:
                    yield Query(f"{name}: {panel['title']} {target['refId']}", target.get("expr", ""), target)
        for event in dashboard.get("annotations", {}).get("list", ()):
            if event["datasource"]["type"] == kind:
                yield Query(f"{name}: {event['name']}", event["target"]["expr"], event["target"])
                yield Query(f"{name}: {event['name']}", event["expr"], event["target"])


def promql() -> list[Query]:
    """Give every query of Prometheus, and the selector that each variable's values are read from."""
    found = list(asked("prometheus"))
    for name, dashboard in FILES.items():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                read = _VALUES_OF.fullmatch(variable["query"]["query"])
                assert read is not None, variable["query"]
                found.append(Query(f"{name}: ${variable['name']}", read[1], {"label": read[2]}))
    return found


def variables(dashboard: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def used_variables(text: str) -> set[str]:
    """Name the variables in a text, Grafana's own, which begin with `__`, left out."""
    found = {one or other for one, other in _VARIABLE.findall(text)}
    return {name for name in found if not name.startswith("__")}


def filled(text: str, **values: str) -> str:
    """Put in what Grafana puts in: for every variable its value for all, or what is in `values`, and for its own a span of time."""
    every = {"__interval": "1m", "__rate_interval": "4m", "__range": "1h", "service": ".+", "convention": "operation|inference|embeddings"}
    known = {**every, **values}
    return _VARIABLE.sub(lambda found: known.get(found[1] or found[2], ".*"), text)


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Give the selectors of a query."""
    found: list[promql_parser.VectorSelector] = []

    def look(expression: promql_parser.Expr) -> None:
        if isinstance(expression, promql_parser.VectorSelector):
            found.append(expression)

    promql_parser.walk(promql_parser.parse(query), look)
    return found
