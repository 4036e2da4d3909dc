"""Each alert is made true by a fault of its own, reaches the webhook, and is quiet again once the fault has gone."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from alert_faults import ANSWER
from stack_process import wait_for
from stack_servers import Stack, program_environment, running_stack

from ravi_otel.testing import ScriptedLLM

WITHIN_S = 120.0
OVER_WITHIN_S = 300.0
"""A pace is looked at for three and a half minutes more, whatever else is shorter here."""
FAULTS = Path(__file__).parent / "alert_faults.py"


class Case(NamedTuple):
    """Be a program's fault and one alert that it must lead to."""

    fault: str
    alert: str
    more: tuple[tuple[str, str], ...] = ()
    service: str = ""

    def named(self) -> str:
        return self.service or f"alert-{self.fault}"


CASES = [
    Case("near", "RaviBudgetNearLimit"),
    Case("exhausted", "RaviBudgetExhausted"),
    Case("exhausted", "RaviCallsRefused"),
    Case("short", "RaviBudgetExhausted"),
    Case("rented", "RaviBudgetExhausted"),
    Case("rented", "RaviCallsRefused"),
    Case("burning", "RaviBudgetBurnTooFast"),
    Case("unpriced", "RaviUnpricedModel"),
    Case("spawn", "RaviSpawnDenied"),
    Case("paused", "RaviAgentsPaused"),
    Case("calling", "RaviStoreDegraded", (("RAVI_LEDGER", "redis://127.0.0.1:9"),), "alert-storeless"),
    Case("calling", "RaviTelemetryDropped", (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "{prometheus}/v1/traces"),), "alert-misled"),
]


class Times(NamedTuple):
    """Be how long an alert took from its fault to the webhook, and from the fault's end until that was told too."""

    fires_s: float
    resolves_s: float
    alert: dict[str, Any]


@contextlib.contextmanager
def faulty(stack: Stack, url: str, case: Case) -> Iterator[None]:
    """Run the program of a case until its fault is there, and let it stay there."""
    more = {name: value.format(prometheus=stack.prometheus_url) for name, value in case.more}
    program = subprocess.Popen(
        [sys.executable, str(FAULTS), url, case.fault],
        env=program_environment(stack, **stack.environment(case.named()), **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "there\n", case
        yield
        program.communicate(timeout=60)
        assert program.returncode == 0, case
    finally:
        program.kill()
        program.communicate()


def watch(stack: Stack, cases: list[Case], status: str, since: dict[str, float]) -> dict[Case, tuple[float, dict[str, Any]]]:
    """Wait for the alerts of all cases at the webhook; give for each how long it took since its service's fault, and what was told."""
    found: dict[Case, tuple[float, dict[str, Any]]] = {}

    def all_told() -> bool:
        for case in cases:
            told = None if case in found else stack.webhook.told(case.alert, status, service_name=case.named())
            if told is not None:
                found[case] = (time.monotonic() - since[case.named()], told)
        return len(found) == len(cases)

    try:
        wait_for(all_told, status, WITHIN_S if status == "firing" else OVER_WITHIN_S)
    except AssertionError as late:
        raise AssertionError(f"{late}; not told: {[(case.alert, case.named()) for case in cases if case not in found]}") from None
    return found


@pytest.fixture(scope="module")
def times(stack: Stack) -> dict[Case, Times]:
    """Have every fault at once, wait until all are told, take them away, and wait until that is told."""
    stack.webhook.clear()
    since: dict[str, float] = {}
    with ScriptedLLM(ANSWER) as model:
        with contextlib.ExitStack() as running:
            for case in {case.named(): case for case in CASES}.values():
                running.enter_context(faulty(stack, model.base_url, case))
                since[case.named()] = time.monotonic()
            fired = watch(stack, CASES, "firing", since)
        ended = dict.fromkeys(since, time.monotonic())
        resolved = watch(stack, CASES, "resolved", ended)
    table = {case: Times(fired[case][0], resolved[case][0], fired[case][1]) for case in CASES}
    print("\nseconds until the webhook was told, of the fault and of its end", file=sys.__stderr__)
    for case, each in table.items():
        print(f"  {case.alert:<24} {case.named():<18} {each.fires_s:6.1f} {each.resolves_s:6.1f}", file=sys.__stderr__)
    return table


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.fault}")
def test_an_alert_fires_within_two_minutes_and_resolves(times: dict[Case, Times], case: Case):
    assert times[case].alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert times[case].alert["labels"]["deployment_environment_name"] == "test"
    assert case.named() in times[case].alert["annotations"]["summary"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.fault}")
def test_an_alert_leads_to_a_page_that_says_what_to_do(times: dict[Case, Times], stack: Stack, case: Case):
    url = times[case].alert["annotations"]["runbook_url"]
    assert url.startswith(stack.prometheus_url)
    page = httpx.get(url, trust_env=False)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"<h1>{case.alert}</h1>" in page.text


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.fault}")
def test_an_alert_leads_to_a_dashboard_of_its_service(times: dict[Case, Times], case: Case):
    url = times[case].alert["annotations"]["dashboard_url"]
    assert re.fullmatch(rf"http://127\.0\.0\.1:3000/d/ravi-\w+\?var-service={case.named()}", url)
    assert "grafana" not in times[case].alert["labels"]


def test_a_tenants_alert_names_the_tenant_and_a_runs_own_wakes_nobody(times: dict[Case, Times]):
    told = {(case.alert, case.fault): each.alert for case, each in times.items()}
    tenant = told["RaviBudgetExhausted", "rented"]
    assert (tenant["labels"]["severity"], tenant["labels"]["ravi_limit_scope_name"]) == ("critical", "acme")
    assert "of tenant acme in alert-rented" in tenant["annotations"]["summary"]
    assert "Used up now: acme." in told["RaviCallsRefused", "rented"]["annotations"]["description"]
    assert told["RaviBudgetExhausted", "exhausted"]["labels"]["severity"] == "info"
    assert told["RaviCallsRefused", "exhausted"]["labels"]["severity"] == "info"


def test_the_watchdog_arrives_at_alertmanager(stack: Stack):
    wait_for(lambda: "RaviWatchdog" in {alert["labels"]["alertname"] for alert in stack.routed_alerts()}, "the watchdog", WITHIN_S)


def test_what_is_exhausted_is_not_told_as_near_too(times: dict[Case, Times], stack: Stack):
    assert times
    assert stack.webhook.told("RaviBudgetNearLimit", service_name="alert-exhausted") is None
    assert stack.webhook.told("RaviBudgetNearLimit", service_name="alert-near") is not None


def test_a_collector_that_is_gone_is_told_and_its_return_too():
    with running_stack(only=("collector", "prometheus", "alertmanager")) as own:
        with own.server("collector").down():
            told = own.webhook.wait_for("RaviCollectorDown", within_s=WITHIN_S)
            assert told["labels"]["severity"] == "critical"
        own.webhook.wait_for("RaviCollectorDown", "resolved", within_s=WITHIN_S)


def test_a_store_that_is_down_is_told():
    with running_stack(only=("collector", "prometheus", "alertmanager", "jaeger")) as own, own.server("jaeger").down():
        told = own.webhook.wait_for("RaviStoreDown", within_s=WITHIN_S, job="jaeger")  # Loki was never started
        assert told["labels"]["severity"] == "critical"


def test_a_collector_whose_queue_fills_is_told():
    sizes = {("queue_size",): 30_000, ("batch", "min_size"): 500, ("batch", "max_size"): 2_000}
    queue = {("exporters", "otlp_grpc/jaeger", "sending_queue", *where): size for where, size in sizes.items()}
    nobody = ("collector", "prometheus", "alertmanager")  # no Jaeger: spans wait in the queue
    with running_stack(overlays=(), only=nobody, but=queue) as own, ScriptedLLM(ANSWER) as model:
        with faulty(own, model.base_url, Case("busy", "RaviCollectorQueueFull")):
            told = own.webhook.wait_for("RaviCollectorQueueFull", within_s=WITHIN_S)
        assert told["labels"]["data_type"] == "traces"
        assert told["labels"]["exporter"] == "otlp_grpc/jaeger"
