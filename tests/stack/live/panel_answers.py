"""Ask a stack what the panels of the committed dashboards ask: their own queries, with the variables filled in as Grafana does."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_files import FILES, filled, panels
from stack_servers import Stack

LINE_S, BAR_S = 2, 5
"""From one point of a line, and one bar, to the next."""


def panel(file: str, title: str) -> dict[str, Any]:
    """Give one panel of a dashboard."""
    (found,) = [each for each in panels(FILES[file]) if each["title"] == title]
    return found


@dataclass(frozen=True)
class Asked:
    """Be a stack and a span of time that is looked at, in seconds since 1970; `variables` are those that are not All."""

    stack: Stack
    start_s: float
    end_s: float
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self, query: str) -> str:
        """Fill in a query's variables."""
        own = {"__interval": f"{BAR_S}s", "__rate_interval": "15s", "__range": f"{round(self.end_s - self.start_s)}s"}
        return filled(query, **own, **self.variables)

    def number(self, shown: Mapping[str, Any]) -> float | None:
        """Give the figure of a panel, None for none."""
        found = self.stack.query(self.text(shown["targets"][0]["expr"]), self.end_s)
        return float(found[0]["value"][1]) if found else None

    def rows(self, shown: Mapping[str, Any]) -> list[dict[str, str | float]]:
        """Give a table's rows, each by the columns' headings, sorted as the table is."""
        merged: dict[tuple[tuple[str, str], ...], dict[str, str | float]] = {}
        for target in shown["targets"]:
            for one in self.stack.query(self.text(target["expr"]), self.end_s):
                row = merged.setdefault(tuple(sorted(one["metric"].items())), dict(one["metric"]))
                row[f"Value #{target['refId']}"] = float(one["value"][1])
        (organized,) = [each["options"] for each in shown["transformations"] if each["id"] == "organize"]
        order = sorted(organized["indexByName"], key=organized["indexByName"].get)
        names = organized["renameByName"]
        table = [{names.get(column, column): row.get(column, "") for column in order} for row in merged.values()]
        by = shown["options"]["sortBy"][0]
        return sorted(table, key=lambda row: row[by["displayName"]] or 0.0, reverse=by["desc"])

    def lines(self, shown: Mapping[str, Any]) -> list[tuple[str, list[tuple[float, float]]]]:
        """Give a graph's lines, each with its legend and its points: seconds since 1970, and the value."""
        step_s = BAR_S if shown["fieldConfig"]["defaults"]["custom"].get("drawStyle") == "bars" else LINE_S
        found: list[tuple[str, list[tuple[float, float]]]] = []
        for target in shown["targets"]:
            for one in self.stack.query_range(self.text(target["expr"]), self.start_s, self.end_s, step_s):
                legend = re.sub(r"{{(\w+)}}", lambda label, has=one["metric"]: has.get(label[1], ""), target["legendFormat"])
                found.append((" ".join(legend.split()), [(float(at), float(value)) for at, value in one["values"]]))
        return sorted(found)

    def traces(self, shown: Mapping[str, Any]) -> list[dict[str, str | float]]:
        """Give the traces that a panel searches in Jaeger, newest first: their id, root, duration and number of spans."""
        target = shown["targets"][0]
        tags = dict(each.split("=", 1) for each in shlex.split(self.text(target["tags"])))
        found = self.stack.jaeger_search(self.text(target["service"]), limit=target["limit"], tags=json.dumps(tags))
        rows: list[dict[str, str | float]] = []
        for spans in sorted(found, key=lambda trace: min(span["startTime"] for span in trace), reverse=True):
            first = min(spans, key=lambda span: (span["startTime"], -span["duration"]))
            name = f"{first['process']['serviceName']}: {first['operationName']}"
            took_ms = first["duration"] / 1e3
            took = f"{took_ms:.1f} ms" if took_ms < 1000 else f"{took_ms / 1000:.1f} s"
            rows.append({"Trace": first["traceID"], "Trace name": name, "Spans": float(len(spans)), "Duration": took})
        return rows
