"""Limits of tenants, sessions and the process are gauges too, though nobody opens those scopes."""

from __future__ import annotations

import contextlib

import pytest
from openai import OpenAI

import ravi_otel
from ravi_otel.testing import Capture, ScriptedLLM, Text


@pytest.fixture
def capture():
    with Capture() as captured:
        yield captured


@pytest.fixture
def client(capture):
    with (
        ScriptedLLM(Text("hi", usage=(10, 10))) as server,
        ravi_otel.instrument(
            tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider, logger_provider=capture.logger_provider
        ),
        OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
    ):
        yield client


def ask(client):
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Hello?"}])


def shown(capture, name="ravi.limit.used"):
    return {point.attributes["ravi.limit.scope"]: point.value for point in capture.metric(name)}


@pytest.mark.parametrize(
    ("scope", "names"),
    [("tenant", {"tenant_id": "acme"}), ("session", {"session_id": "chat-7"}), ("session", {"session_id": "chat-7", "tenant_id": "acme"})],
    ids=["tenant", "session", "session of a tenant"],
)
@pytest.mark.parametrize("per", ["", ":per=24h"], ids=["for good", "in a window"])
def test_a_limit_around_a_run_is_shown_while_the_run_is_open(client, capture, scope, names, per):
    with ravi_otel.run("triage", limits=[f"{scope}.tokens=1000{per}"], **names), ravi_otel.agent("researcher"):
        ask(client)
        assert shown(capture) == {scope: 20}
        assert shown(capture, "ravi.limit.threshold") == {scope: 1000}


def test_it_counts_what_all_runs_of_the_tenant_used(client, capture):
    for _ in range(2):
        with ravi_otel.run("triage", tenant_id="acme", limits=["tenant.tokens=1000"]):
            ask(client)
    assert shown(capture) == {"tenant": 40}


def test_what_the_last_run_used_is_shown_after_its_end(client, capture):
    with contextlib.suppress(ravi_otel.BudgetExhaustedError), ravi_otel.run("triage", tenant_id="acme", limits=["tenant.requests=1"]):
        ask(client)
        ask(client)
    assert shown(capture) == {"tenant": 1}


def test_the_fullest_of_all_tenants_is_shown(client, capture):
    with ravi_otel.run("full", tenant_id="acme", limits=["tenant.tokens=80"]):
        ask(client)
        with ravi_otel.run("empty", tenant_id="globex", limits=["tenant.tokens=1000"]):
            ask(client)
            assert shown(capture) == {"tenant": 40}  # what is inside of it, too
            assert shown(capture, "ravi.limit.threshold") == {"tenant": 80}


def test_its_events_are_counted_from_zero(client, capture):
    with ravi_otel.run("triage", tenant_id="acme", limits=["tenant.tokens=1000"]):
        ask(client)
    points = capture.metric("ravi.limit.events")
    assert {point.attributes["ravi.limit.scope"] for point in points} == {"tenant"}
    assert {point.value for point in points} == {0}


def test_whoever_else_reads_metrics_takes_no_reading_away(client, capture):
    with ravi_otel.run("triage", tenant_id="acme", limits=["tenant.tokens=1000"]):
        ask(client)
        assert shown(capture) == {"tenant": 20}
    for _ in range(3):
        capture.clear()
        assert shown(capture) == {"tenant": 20}


def by_name(capture, scope, name="ravi.limit.fullest.used"):
    points = [point for point in capture.metric(name) if point.attributes["ravi.limit.scope"] == scope]
    return {point.attributes.get("ravi.limit.scope.name"): point.value for point in points}


def test_which_tenant_is_full_is_told_by_name(client, capture):
    for tenant, amount in (("acme", 80), ("globex", 1000)):
        with ravi_otel.run("triage", tenant_id=tenant, limits=[f"tenant.tokens={amount}"]):
            ask(client)
    assert by_name(capture, "tenant") == {"acme": 20, "globex": 20}
    assert by_name(capture, "tenant", "ravi.limit.fullest.threshold") == {"acme": 80, "globex": 1000}


def test_of_many_tenants_the_ten_fullest_are_told(client, capture):
    for number in range(30):
        with ravi_otel.run("triage", tenant_id=f"tenant-{number}", limits=[f"tenant.tokens={1000 - number}"]):
            ask(client)
    assert by_name(capture, "tenant") == {f"tenant-{number}": 20 for number in range(20, 30)}


def test_full_runs_do_not_hide_a_tenant(client, capture):
    with contextlib.ExitStack() as runs:
        runs.enter_context(ravi_otel.run("around", tenant_id="acme", limits=["tenant.tokens=100000"]))
        for number in range(12):
            runs.enter_context(ravi_otel.run(f"run-{number}", limits=["tokens=1000"]))
        ask(client)
        assert by_name(capture, "tenant") == {"acme": 20}
        assert len(by_name(capture, "run")) == 10


def test_a_session_is_told_without_its_id_and_the_fullest_stands_for_all(client, capture):
    for session, amount in (("chat-7", 40), ("chat-8", 1000)):
        with ravi_otel.run("triage", session_id=session, limits=[f"session.tokens={amount}"]):
            ask(client)
    assert by_name(capture, "session", "ravi.limit.fullest.threshold") == {None: 40}


@pytest.mark.parametrize(
    ("per", "seconds"), [("hour", 3_600), ("day", 86_400), ("week", 604_800), ("month", 2_592_000), ("90m", 5_400), ("24h", 86_400)]
)
def test_how_long_a_limits_window_is_is_told(client, capture, per, seconds):
    with ravi_otel.run("triage", tenant_id="acme", limits=[f"tenant.tokens=1000:per={per}", "tokens=1000"]):
        ask(client)
        points = capture.metric("ravi.limit.fullest.window")
    assert [(point.attributes["ravi.limit.scope"], point.attributes["ravi.limit.per"], point.value) for point in points] == [
        ("tenant", per, seconds)
    ]


def test_limits_of_one_tenant_in_two_windows_stand_apart(client, capture):
    with ravi_otel.run("triage", tenant_id="acme", limits=["tenant.tokens=100:per=hour", "tenant.tokens=1000:per=day"]):
        ask(client)
        points = capture.metric("ravi.limit.fullest.threshold")
    assert {(point.attributes["ravi.limit.per"], point.value) for point in points} == {("hour", 100), ("day", 1000)}


def test_a_tenants_name_is_no_label_of_the_metric_of_all_tenants(client, capture):
    with ravi_otel.run("triage", tenant_id="acme", limits=["tenant.tokens=100"]):
        ask(client)
        (point,) = capture.metric("ravi.limit.used")
    assert dict(point.attributes) == {"ravi.limit.scope": "tenant", "ravi.limit.kind": "tokens"}
