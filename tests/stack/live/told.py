"""Telemetry as other programs send it: OTLP written by hand, so that a test says each name and time itself."""

from __future__ import annotations

import secrets
import time
from typing import Any

import httpx

SCOPE = "another.instrumentation"


def value(given: Any) -> dict[str, Any]:
    """Write one attribute's value as OTLP's JSON has it."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    return {"doubleValue": given} if isinstance(given, float) else {"stringValue": given}


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(one)} for key, one in given.items()]


def trace_id() -> str:
    return secrets.token_hex(16)


def span(trace: str, name: str = "work", *, root: bool = True, error: bool = False, lasts_s: float = 0.01, **more: Any) -> dict[str, Any]:
    """Give one span that ends now; `has` are its attributes, `events` its events' names or (name, attributes)."""
    end = time.time_ns()
    named = [(each, {}) if isinstance(each, str) else each for each in more.get("events", ())]
    return {
        "traceId": trace,
        "spanId": secrets.token_hex(8),
        "parentSpanId": "" if root else secrets.token_hex(8),
        "name": name,
        "kind": 3,
        "startTimeUnixNano": str(end - int(lasts_s * 1e9)),
        "endTimeUnixNano": str(end),
        "status": {"code": 2} if error else {},
        "attributes": attributes(more.get("has", {})),
        "events": [{"timeUnixNano": str(end), "name": each, "attributes": attributes(has)} for each, has in named],
    }


def send(otlp: str, service: str, signal: str, scope: str = SCOPE, **items: Any) -> None:
    """Send spans=[...], metrics=[...] or logRecords=[...] of one service and scope; AssertionError unless they were taken."""
    resource = {"attributes": attributes({"service.name": service, "deployment.environment.name": "test"})}
    kind = {"traces": "Spans", "metrics": "Metrics", "logs": "Logs"}[signal]
    body = {f"resource{kind}": [{"resource": resource, f"scope{kind}": [{"scope": {"name": scope}, **items}]}]}
    answer = httpx.post(f"{otlp}/v1/{signal}", json=body, timeout=20, trust_env=False)
    assert answer.is_success, f"the collector answered {answer.status_code}: {answer.text[:500]}"


def gauge(name: str, number: float, **has: Any) -> dict[str, Any]:
    """Give a gauge with one point, of now."""
    return {
        "name": name,
        "gauge": {"dataPoints": [{"timeUnixNano": str(time.time_ns()), "asDouble": number, "attributes": attributes(has)}]},
    }
