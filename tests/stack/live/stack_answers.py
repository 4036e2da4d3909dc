"""What the servers answer: Prometheus's, Alertmanager's, Jaeger's and Loki's own HTTP interfaces, asked as anybody asks them."""

from __future__ import annotations

import time
from typing import Any

import httpx

_ANSWERS_WITHIN_S = 20.0
_WEEK_S = 7 * 86_400


class Answers:
    """Ask one stack; every method raises where a server refuses the question, with what it said."""

    def __init__(self, prometheus: str, alertmanager: str, jaeger: str, loki: str | None):
        self._urls = {"prometheus": prometheus, "alertmanager": alertmanager, "jaeger": jaeger, "loki": loki}
        self._client = httpx.Client(timeout=_ANSWERS_WITHIN_S, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def get(self, server: str, path: str, **parameters: Any) -> Any:
        """Give the JSON at a path of one of the servers."""
        answer = self._client.get(f"{self._urls[server]}{path}", params=parameters)
        assert answer.is_success, f"{server} answered {answer.status_code} to {path} {parameters}: {answer.text[:500]}"
        return answer.json()

    def query(self, promql: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Give an instant query's result: `{"metric": {label: value}, "value": [time, "number"]}` each; a scalar as one without labels."""
        data = self.get("prometheus", "/api/v1/query", query=promql, **({} if at_s is None else {"time": at_s}))["data"]
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else data["result"]

    def value(self, promql: str) -> float | None:
        """Give the number of a query that has one result, None for none; more are a mistake of the question."""
        result = self.query(promql)
        assert len(result) <= 1, f"{promql} has {len(result)} results: {[one['metric'] for one in result]}"
        return float(result[0]["value"][1]) if result else None

    def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """Give a range query's result: `{"metric": {...}, "values": [[time, "number"], ...]}` each."""
        return self.get("prometheus", "/api/v1/query_range", query=promql, start=start_s, end=end_s, step=step_s)["data"]["result"]

    def series(self, selector: str) -> list[dict[str, str]]:
        """Give the labels of every series that a selector has had within the last week."""
        found = self.get("prometheus", "/api/v1/series", **{"match[]": selector}, start=time.time() - _WEEK_S)
        return found["data"]

    def metric_names(self) -> list[str]:
        """Give every name that Prometheus has."""
        return self.get("prometheus", "/api/v1/label/__name__/values")["data"]

    def exemplars(self, promql: str) -> list[dict[str, Any]]:
        """Give `{"labels": {"trace_id": ..., "span_id": ...}, "value": ..., "timestamp": ...}` of every exemplar of the last hour."""
        now = time.time()
        found = self.get("prometheus", "/api/v1/query_exemplars", query=promql, start=now - 3600, end=now + 60)["data"]
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Give every rule that Prometheus has loaded, with its `name`, `type`, `query`, `health`, `lastError` and, of an alert, `state`."""
        groups = self.get("prometheus", "/api/v1/rules")["data"]["groups"]
        return [rule | {"group": group["name"]} for group in groups for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Give what Prometheus says of alerts: `labels`, `annotations`, `state` (pending or firing)."""
        return self.get("prometheus", "/api/v1/alerts")["data"]["alerts"]

    def routed_alerts(self) -> list[dict[str, Any]]:
        """Give what Alertmanager holds: `labels`, `annotations`, `status` with `state` and `inhibitedBy`."""
        return self.get("alertmanager", "/api/v2/alerts")

    def targets(self) -> list[dict[str, Any]]:
        """Give what Prometheus scrapes, with `labels`, `health` and `lastError`."""
        return self.get("prometheus", "/api/v1/targets")["data"]["activeTargets"]

    def jaeger(self, trace_id: str) -> list[dict[str, Any]]:
        """Give a trace's spans as Jaeger has them, empty while it has none.

        Each has `operationName`, `spanID`, `references`, `tags` and `logs` as lists, `attributes` as a mapping of its tags, and `process`.
        """
        answer = self._client.get(f"{self._urls['jaeger']}/api/traces/{trace_id}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        assert answer.is_success, f"Jaeger answered {answer.status_code} to trace {trace_id!r}: {answer.text[:500]}"
        return [_with_attributes(span, trace["processes"]) for trace in answer.json()["data"] for span in trace["spans"]]

    def jaeger_search(self, service: str, **parameters: Any) -> list[list[dict[str, Any]]]:
        """Give the traces of a service, each as its spans; `tags='{"error":"true"}'`, `operation=`, `limit=` narrow it."""
        found = self.get("jaeger", "/api/traces", service=service, **({"limit": 1000, "lookback": "1h"} | parameters))["data"]
        return [[_with_attributes(span, trace["processes"]) for span in trace["spans"]] for trace in found]

    def logs(self, logql: str = '{service_name=~".+"}', limit: int = 5_000) -> list[dict[str, Any]]:
        """Give the log records of the last hour that a LogQL selector finds, oldest first.

        Each is `{"time_ns": int, "line": str, "labels": {...}}`; the labels hold trace_id, span_id and the record's attributes too.
        """
        now_ns = time.time_ns()
        streams = self.get(
            "loki", "/loki/api/v1/query_range", query=logql, start=now_ns - 3600 * 10**9, end=now_ns + 60 * 10**9, limit=limit
        )["data"]["result"]
        records = [{"time_ns": int(at), "line": line, "labels": one["stream"]} for one in streams for at, line, *_ in one["values"]]
        return sorted(records, key=lambda record: record["time_ns"])


def _with_attributes(span: dict[str, Any], processes: dict[str, Any]) -> dict[str, Any]:
    attributes = {tag["key"]: tag["value"] for tag in span["tags"]}
    return span | {"attributes": attributes, "process": processes[span["processID"]]}
