from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry._logs import SeverityNumber

from ravi_otel.hooks.records import CountEvent, SpawnEvent
from ravi_otel.policy.limits import Outcome, ScopeKind


def _line(caplog):
    (entry,) = [entry for entry in caplog.records if entry.name == "ravi_otel.limits"]
    return entry


@pytest.mark.parametrize(
    ("event", "name", "severity", "level"),
    [
        ("limit_nearing", "ravi.limit.nearing", SeverityNumber.WARN, logging.WARNING),
        ("limit_exceeded", "ravi.limit.exceeded", SeverityNumber.ERROR, logging.ERROR),
    ],
)
def test_a_limit_event_goes_out_as_log_record_span_event_counter_and_line(telemetry, backend, make, caplog, event, name, severity, level):
    record = make.call()
    with telemetry.call_started(record):
        pass
    telemetry.limit_event(make.limit_event(event, decision="denied"), record)
    record.status = "ok"
    telemetry.call_ended(record)
    span = backend.span()
    (log,) = backend.logs()
    assert (log.event_name, log.severity_number) == (name, severity)
    assert log.span_id == span.context.span_id
    assert [told.name for told in span.events] == [name]
    expected = {"ravi.limit.kind": "tokens", "ravi.limit.threshold": 100, "ravi.limit.used": 80, "ravi.limit.phase": "settle"}
    assert expected.items() <= dict(log.attributes).items()
    assert expected.items() <= dict(span.events[0].attributes).items()
    assert backend.value("ravi.limit.events", ravi__limit__event=event, ravi__limit__decision="denied") == 1
    entry = _line(caplog)
    assert entry.levelno == level
    assert entry.getMessage().startswith(f'{{"event": "{event}"')
    line = json.loads(entry.getMessage())
    assert line["trace_id"] == f"{span.context.trace_id:032x}"
    assert line["span_id"] == f"{span.context.span_id:016x}"


def test_the_line_is_keyed_by_the_payloads_names(telemetry, make, caplog):
    telemetry.limit_event(make.limit_event(), None)
    line = json.loads(_line(caplog).getMessage())
    payload = (
        "agent_name agent_id run_id session_id scope limit_kind threshold used held remaining exceeded_by ratio phase enforcement decision"
    )
    assert set(payload.split()) | {"trace_id", "span_id"} <= line.keys()
    assert line["trace_id"] is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(codec=None), max_size=400), amount=st.floats() | st.integers())
def test_whatever_the_names_and_amounts_the_line_is_one_line_of_ascii_json(telemetry, make, caplog, name, amount):
    caplog.clear()
    telemetry.limit_event(make.limit_event(agent_name=name, limit_kind=name, used=amount, ratio=amount), None)
    message = _line(caplog).getMessage()
    assert message.isascii()
    assert "\n" not in message
    json.loads(message, parse_constant=pytest.fail)


def test_a_timer_without_context_finds_the_span_of_the_scope_that_owns_the_limit(telemetry, backend, make):
    agent = make.scope()
    telemetry.scope_opened(agent)  # not entered: this thread is elsewhere
    telemetry.limit_event(make.limit_event(scope_id=agent.facts.scope_id, phase="timer"), None)
    agent.status = "ok"
    telemetry.scope_closed(agent)
    assert [event.name for event in backend.span().events] == ["ravi.limit.nearing"]


def test_an_event_counter_is_shown_at_zero_before_the_first_event(telemetry, backend, make):
    telemetry.scope_opened(make.scope(ScopeKind.AGENT, limits=[make.reading("tokens"), make.reading("tool_calls", detail="search")]))
    points = {tuple(sorted(point.attributes.items())): point.value for point in backend.points("ravi.limit.events")}
    assert set(points.values()) == {0}
    assert {dict(key)["ravi.limit.kind"] for key in points} == {"tokens", "tool.search"}
    telemetry.limit_event(make.limit_event("limit_exceeded", decision="denied"), None)
    after = {tuple(sorted(point.attributes.items())) for point in backend.points("ravi.limit.events")}
    assert after == points.keys(), "the event must fall on a series that was shown"


def test_an_observed_limit_is_shown_under_its_own_decision(telemetry, backend, make):
    telemetry.scope_opened(make.scope(limits=[make.reading(on_exceed=Outcome.OBSERVE)]))
    assert {point.attributes["ravi.limit.decision"] for point in backend.points("ravi.limit.events")} == {"observed"}


def test_the_gauges_show_the_fullest_active_scope_and_a_pair_from_one_scope(telemetry, backend, make):
    emptier = make.scope(limits=[make.reading("tokens", 1000, 100)])
    fuller = make.scope(limits=[make.reading("tokens", 200, 150)])
    telemetry.scope_opened(emptier)
    telemetry.scope_opened(fuller)
    metrics = backend.metrics()
    assert [point.value for point in metrics["ravi.limit.used"]] == [150]
    assert [point.value for point in metrics["ravi.limit.threshold"]] == [200]
    fuller.status = "ok"
    telemetry.scope_closed(fuller)
    metrics = backend.metrics()
    assert [point.value for point in metrics["ravi.limit.used"]] == [100]
    assert [point.value for point in metrics["ravi.limit.threshold"]] == [1000]
    assert dict(metrics["ravi.limit.used"][0].attributes) == {
        "gen_ai.agent.name": "researcher",
        "ravi.limit.scope": "agent",
        "ravi.limit.kind": "tokens",
    }


def test_a_closing_scope_records_how_full_each_limit_was(telemetry, backend, make):
    scope = make.scope(limits=[make.reading("tokens", 100, 90, denied=2), make.reading("turns", 10, 1)])
    telemetry.scope_opened(scope)
    scope.status = "ok"
    telemetry.scope_closed(scope)
    points = {point.attributes["ravi.limit.kind"]: point for point in backend.points("ravi.limit.final_ratio")}
    assert points["tokens"].sum == pytest.approx(0.9)
    assert points["tokens"].attributes["ravi.limit.decision"] == "denied"
    assert points["turns"].attributes["ravi.limit.decision"] == "admitted"


@pytest.mark.parametrize("what", ["denied", "contended", "overage", "unpriced", "unscoped", "suspended", "store_errors"])
def test_what_is_only_counted_is_counted(telemetry, backend, what):
    telemetry.counted(CountEvent(what, 3, "tokens", ScopeKind.RUN))
    telemetry.counted(CountEvent(what, 1))
    assert backend.value(f"ravi.limit.{what}") == 4
    assert backend.value(f"ravi.limit.{what}", ravi__limit__kind="tokens", ravi__limit__scope="run") == 3


def test_limits_set_aside_are_told_on_the_span_of_their_run_with_the_reason_in_bounds(telemetry, backend, make):
    scope = make.scope()
    telemetry.scope_opened(scope)
    telemetry.counted(CountEvent("suspended", 1, "turns", reason="sum\x00mary" + "x" * 9_000, scope_id=scope.facts.scope_id))
    scope.status = "ok"
    telemetry.scope_closed(scope)
    event = next(event for event in backend.spans()[0].events if event.name == "ravi.limit.suspended")
    assert event.attributes["ravi.limit.kind"] == "turns"
    assert event.attributes["ravi.limit.reason"].startswith("sum")
    assert len(event.attributes["ravi.limit.reason"]) < 2_000


def _slot(telemetry, outcome, agent="a", priority="normal"):
    telemetry.spawn_event(SpawnEvent(outcome, agent, priority, "r1", 0, 0, 5))


def test_active_and_paused_agents_follow_the_slots(telemetry, backend):
    _slot(telemetry, "granted", "a", "low")
    _slot(telemetry, "granted", "b", "normal")
    _slot(telemetry, "preempted", "a", "low")
    _slot(telemetry, "granted", "c", "high")
    assert backend.value("ravi.agent.active", ravi__agent__priority="low") == 0
    assert backend.value("ravi.agent.paused", ravi__agent__priority="low") == 1
    assert backend.value("ravi.agent.active") == 2
    for agent, priority in (("c", "high"), ("a", "low"), ("b", "normal")):
        _slot(telemetry, "released", agent, priority)
    assert backend.value("ravi.agent.active") == 0
    assert backend.value("ravi.agent.paused") == 0
    assert backend.value("ravi.spawn.events", ravi__spawn__outcome="granted") == 3


@given(steps=st.lists(st.tuples(st.sampled_from(["granted", "denied", "preempted", "resumed", "released"]), st.sampled_from("ab"))))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_active_and_paused_never_fall_below_zero(make, steps, request):
    backend = request.getfixturevalue("backend").__class__()
    telemetry = request.getfixturevalue("telemetry").__class__(backend.pipeline())
    for position, (outcome, agent) in enumerate(steps):
        _slot(telemetry, outcome, agent, ("low", "normal")[position % 2])
    for metric in ("ravi.agent.active", "ravi.agent.paused"):
        assert all(point.value >= 0 for point in backend.points(metric))


def test_a_limit_that_begins_anew_is_told_with_its_window_and_whose_it_is_and_never_on_a_metric(telemetry, backend, make, caplog):
    event = make.limit_event(per="day", window="2026-01-01", by="user", counted_for="ann")
    telemetry.limit_event(event, None)

    line, attributes = json.loads(_line(caplog).getMessage()), dict(backend.logs()[0].attributes)
    assert {name: line[name] for name in ("per", "window", "by", "counted_for")} == {
        "per": "day",
        "window": "2026-01-01",
        "by": "user",
        "counted_for": "ann",
    }
    assert (attributes["ravi.limit.window"], attributes["ravi.limit.counted_for"]) == ("2026-01-01", "ann")
    points = [point for points in backend.metrics().values() for point in points]
    assert points
    assert not [point for point in points if "ann" in point.attributes.values()]


def test_a_limit_without_a_window_says_nothing_of_one(telemetry, backend, make, caplog):
    telemetry.limit_event(make.limit_event(), None)

    told = {*json.loads(_line(caplog).getMessage()), *dict(backend.logs()[0].attributes)}
    assert told.isdisjoint({"per", "by", "window", "counted_for", "ravi.limit.per", "ravi.limit.counted_for"})


def test_what_a_run_used_of_a_window_is_on_its_span(telemetry, backend, make):
    reading = replace(make.reading(per="day", by="user"), window="2026-01-01", counted_for="a\nb")
    scope = make.scope(ScopeKind.RUN, limits=[reading], user_id="ann")
    with telemetry.scope_opened(scope):
        pass
    telemetry.scope_closed(scope)

    span = backend.span()
    assert span.attributes["user.id"] == "ann"
    state = dict(span.events[0].attributes)
    assert [state[f"ravi.limit.{name}"] for name in ("per", "window", "by", "counted_for")] == ["day", "2026-01-01", "user", "a\nb"]
