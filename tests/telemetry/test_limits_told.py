from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import warm_starts
from heard import Telemetry
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry._logs import SeverityNumber

from ravi_otel.hooks._events import CountEvent, SpawnEvent, Totals
from ravi_otel.policy._limits import Outcome, ScopeKind

EVENTS = ("limit_nearing", "limit_exceeded")


def _line(caplog):
    (entry,) = [entry for entry in caplog.records if entry.name == "ravi_otel.limits"]
    return entry


@pytest.fixture
def as_json(monkeypatch, backend):
    """Tell limit events as JSON."""
    monkeypatch.setenv("RAVI_LIMIT_LOG", "json")
    return Telemetry(backend.pipeline())


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
    assert (entry.event, entry.limit_kind, entry.used, entry.threshold) == (event, "tokens", 80, 100)
    assert (entry.trace_id, entry.span_id) == (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")


def test_the_line_is_json_on_request_keyed_by_the_payloads_names(as_json, make, caplog):
    as_json.limit_event(make.limit_event(), None)
    assert _line(caplog).getMessage().startswith('{"event": "limit_nearing"')
    line = json.loads(_line(caplog).getMessage())
    payload = (
        "agent_name agent_id run_id session_id scope limit_kind threshold used held remaining exceeded_by ratio phase enforcement decision"
    )
    assert set(payload.split()) | {"trace_id", "span_id"} <= line.keys()
    assert line["trace_id"] is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(st.characters(codec=None), max_size=400), amount=st.floats() | st.integers())
def test_whatever_the_names_and_amounts_the_line_is_one_line_of_ascii_json(as_json, make, caplog, name, amount):
    caplog.clear()
    as_json.limit_event(make.limit_event(agent_name=name, limit_kind=name, used=amount, ratio=amount), None)
    message = _line(caplog).getMessage()
    assert message.isascii()
    assert "\n" not in message
    json.loads(message, parse_constant=pytest.fail)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(st.characters(codec=None), max_size=400), amount=st.floats() | st.integers(), event=st.sampled_from(EVENTS))
@example(name="", amount=1.7e308, event="limit_nearing")
@example(name="\x1f\U0002ebe1" * 200, amount=-1.7e308, event="limit_nearing")
@example(name="\x1f\U0002ebe1" * 200, amount=-1.7e308, event="limit_exceeded")
def test_whatever_the_names_and_amounts_the_sentence_is_one_line_without_what_moves_a_cursor(telemetry, make, caplog, name, amount, event):
    caplog.clear()
    telemetry.limit_event(
        make.limit_event(event, agent_name=name, scope_name=name, limit_kind=name, counted_for=name, by=name, used=amount, ratio=amount),
        None,
    )
    message = _line(caplog).getMessage()
    assert message.isprintable()
    assert len(message) < 800


# -- the sentence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {
                "limit_kind": "cost",
                "used": 0.004072,
                "threshold": 0.005,
                "ratio": 0.8144,
                "scope": ScopeKind.RUN,
                "scope_name": "script.py",
            },
            "81 % of the cost of run 'script.py' used: $0.004072 of $0.005",
        ),
        ({"run_name": "desk"}, "80 % of the tokens of agent 'researcher' of run 'desk' used: 80 of 100"),
        (
            {"limit_kind": "tool.search", "scope": ScopeKind.TENANT, "scope_name": "acme", "per": "day", "window": "2026-01-01"},
            "80 % of the calls of tool 'search' of tenant 'acme', day 2026-01-01 used: 80 of 100",
        ),
        (
            {
                "limit_kind": "tokens(uncached)",
                "scope": ScopeKind.PROCESS,
                "scope_name": None,
                "per": "90m",
                "by": "user",
                "counted_for": "ann",
            },
            "80 % of the tokens (uncached) of this process, in 90m, user 'ann' used: 80 of 100",
        ),
        (
            {"limit_kind": "time", "used": 72.5, "threshold": 90, "scope": ScopeKind.RUN},
            "80 % of the time of run 'researcher' used: 72.5 s of 90 s",
        ),
    ],
)
def test_a_limit_that_is_near_is_told_in_a_sentence(telemetry, make, caplog, fields, sentence):
    telemetry.limit_event(make.limit_event(**fields), None)
    assert _line(caplog).getMessage() == f"ravi-otel: {sentence}"


@pytest.mark.parametrize(
    ("kind", "what", "then"),
    [
        ("tokens", "tokens", "nothing more is sent"),
        ("requests", "requests", "nothing more is sent"),
        ("sql_rows", "sql_rows", "nothing more is sent"),
        ("agents", "agents", "no more agents are let in"),
        ("agents_total", "agents total", "no more agents are let in"),
        ("fan_out", "fan out", "no more agents are let in"),
        ("depth", "depth", "no agents are let in below that"),
        ("tool_calls", "tool calls", "no more tool calls are let through"),
        ("tool.search", "calls of tool 'search'", "no more tool calls are let through"),
    ],
)
def test_one_that_is_reached_says_what_is_let_through_no_more(telemetry, make, caplog, kind, what, then):
    event = make.limit_event("limit_exceeded", limit_kind=kind, scope=ScopeKind.RUN, scope_name="r", used=3, threshold=2)
    telemetry.limit_event(event, None)
    assert _line(caplog).getMessage() == f"ravi-otel: the limit of {what} of run 'r' is reached: 3 of 2 used, {then}"


def test_one_that_is_only_observed_says_so(telemetry, make, caplog):
    telemetry.limit_event(make.limit_event("limit_exceeded", decision="observed", scope=ScopeKind.RUN, scope_name="r", used=101), None)
    assert _line(caplog).getMessage().endswith("101 of 100 used, observed only: would be refused")


@pytest.mark.parametrize("event", EVENTS)
def test_a_limit_of_a_tracker_is_told_as_such_and_counted_as_no_scope_s(telemetry, backend, make, caplog, event):
    telemetry.limit_event(make.limit_event(event, tracker="ExecutionTracker.max_tokens"), None)
    (log,) = backend.logs()
    assert log.body == f"{event} ExecutionTracker.max_tokens in agent: 80 of 100"
    assert log.attributes["ravi.limit.tracker"] == _line(caplog).tracker == "ExecutionTracker.max_tokens"
    assert backend.value("ravi.limit.events") == 0


def test_the_fields_of_a_programs_own_record_factory_stay(telemetry, make, caplog):
    before = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        record = before(*args, **kwargs)
        record.trace_id = "the program's"
        return record

    logging.setLogRecordFactory(factory)
    try:
        telemetry.limit_event(make.limit_event(), None)
    finally:
        logging.setLogRecordFactory(before)
    assert (_line(caplog).trace_id, _line(caplog).limit_kind) == ("the program's", "tokens")


PROGRAM = """
import logging, sys
import ravi_otel
{logging}
ravi_otel.instrument()
with ravi_otel.run("desk", limits=["charge.rows=5"]) as run:
    run.scope.charge("rows", 4)
    for amount in (2, 2, 2):
        try:
            run.scope.charge("rows", amount)
        except ravi_otel.BudgetExhaustedError:
            pass
"""
HANDLER = 'h = logging.StreamHandler(); h.setFormatter(logging.Formatter("GOT %(message)s")); logging.getLogger({name!r}).addHandler(h)'


@pytest.mark.parametrize(
    ("configured", "prefix"),
    [
        ("", ""),
        (HANDLER.format(name="ravi_otel"), "GOT "),
        (HANDLER.format(name="ravi_otel.limits"), "GOT "),
        (HANDLER.format(name=""), "GOT "),
        ("logging.basicConfig(format='GOT %(message)s')", "GOT "),
    ],
)
def test_a_program_gets_one_sentence_for_each_event_wherever_its_handlers_are(tmp_path, configured, prefix):
    done = _run(tmp_path, PROGRAM.format(logging=configured))
    assert done.stderr.splitlines() == [
        f"{prefix}ravi-otel: 80 % of the rows of run 'desk' used: 4 of 5",
        f"{prefix}ravi-otel: the limit of rows of run 'desk' is reached: 4 of 5 used, 2 more asked for, nothing more is sent",
    ]


def test_a_programs_formatter_has_the_fields_and_json_is_one_variable_away(tmp_path):
    wanted = "logging.basicConfig(format='%(event)s %(limit_kind)s %(used)s of %(threshold)s in %(scope)s %(scope_name)s')"
    assert _run(tmp_path, PROGRAM.format(logging=wanted)).stderr.startswith("limit_nearing rows 4 of 5 in run desk\n")
    line, _ = _run(tmp_path, PROGRAM.format(logging=""), RAVI_LIMIT_LOG="json").stderr.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["used"]) == ("limit_nearing", 4)


def test_a_wrong_choice_is_said_once_and_the_sentence_stays(tmp_path):
    said, sentence, _ = _run(tmp_path, PROGRAM.format(logging=""), RAVI_LIMIT_LOG="xml").stderr.splitlines()
    assert said == "ravi-otel: RAVI_LIMIT_LOG='xml' is none of text, json, and is taken for text."
    assert sentence.startswith("ravi-otel: 80 % of the rows")


def _run(path, program, **environment):
    (path / "program.py").write_text(program, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    return warm_starts.run([sys.executable, "program.py"], cwd=path, env=kept | environment, check=True)


def test_a_timer_without_context_finds_the_span_of_the_scope_that_owns_the_limit(telemetry, backend, make):
    agent = make.scope()
    telemetry.scope_opened(agent)  # not entered: this thread is elsewhere
    telemetry.limit_event(make.limit_event(scope_id=agent.facts.scope_id, phase="timer"), None)
    agent.status = "ok"
    telemetry.scope_closed(agent, Totals(agent.spend(), agent.readings()))
    assert [event.name for event in backend.span().events] == ["ravi.limit.nearing"]


def test_an_event_counter_is_shown_at_zero_before_the_first_event(telemetry, backend, make):
    telemetry.scope_opened(make.scope(ScopeKind.AGENT, limits=[make.reading("tokens"), make.reading("tool_calls", detail="search")]))
    points = {tuple(sorted(point.attributes.items())): point.value for point in backend.points("ravi.limit.events")}
    assert set(points.values()) == {0}
    assert {dict(key)["ravi.limit.kind"] for key in points} == {"tokens", "tool.search"}
    for event in ("limit_nearing", "limit_exceeded"):
        for decision in ("admitted", "denied"):  # the first request may be near, beyond and refused at once
            telemetry.limit_event(make.limit_event(event, decision=decision), None)
    after = {tuple(sorted(point.attributes.items())) for point in backend.points("ravi.limit.events")}
    assert after == points.keys(), "the event must fall on a series that was shown"


@pytest.mark.parametrize(("outcome", "decision"), [(Outcome.OBSERVE, "observed"), (Outcome.ASK, "ask")])
@pytest.mark.parametrize("event", ["limit_nearing", "limit_exceeded"])
def test_a_limit_that_does_not_refuse_is_shown_at_zero_under_its_own_decision(telemetry, backend, make, outcome, decision, event):
    telemetry.scope_opened(make.scope(limits=[make.reading(on_exceed=outcome)]))
    shown = {point.attributes["ravi.limit.decision"] for point in backend.points("ravi.limit.events")}
    assert shown == {decision} | ({"admitted"} if outcome is Outcome.ASK else set())
    before = len(backend.points("ravi.limit.events"))
    telemetry.limit_event(make.limit_event(event, decision=decision), None)
    assert len(backend.points("ravi.limit.events")) == before


def test_the_gauges_show_the_fullest_active_scope_and_a_pair_from_one_scope(telemetry, backend, make):
    emptier = make.scope(limits=[make.reading("tokens", 1000, 100)])
    fuller = make.scope(limits=[make.reading("tokens", 200, 150)])
    telemetry.scope_opened(emptier)
    telemetry.scope_opened(fuller)
    metrics = backend.metrics()
    assert [point.value for point in metrics["ravi.limit.used"]] == [150]
    assert [point.value for point in metrics["ravi.limit.threshold"]] == [200]
    fuller.status = "ok"
    telemetry.scope_closed(fuller, Totals(fuller.spend(), fuller.readings()))
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
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))
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
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))
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
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_active_and_paused_never_fall_below_zero(make, steps, request):
    backend = request.getfixturevalue("backend").__class__()
    telemetry = request.getfixturevalue("telemetry").__class__(backend.pipeline())
    for position, (outcome, agent) in enumerate(steps):
        _slot(telemetry, outcome, agent, ("low", "normal")[position % 2])
    for metric in ("ravi.agent.active", "ravi.agent.paused"):
        assert all(point.value >= 0 for point in backend.points(metric))


def test_a_limit_that_begins_anew_is_told_with_its_window_and_whose_it_is_and_never_on_a_metric(as_json, backend, make, caplog):
    event = make.limit_event(per="day", window="2026-01-01", by="user", counted_for="ann", resets_at=datetime(2026, 1, 2, tzinfo=UTC))
    as_json.limit_event(event, None)

    line, attributes = json.loads(_line(caplog).getMessage()), dict(backend.logs()[0].attributes)
    assert {name: line[name] for name in ("per", "window", "by", "counted_for")} == {
        "per": "day",
        "window": "2026-01-01",
        "by": "user",
        "counted_for": "ann",
    }
    assert (attributes["ravi.limit.window"], attributes["ravi.limit.counted_for"]) == ("2026-01-01", "ann")
    assert (line["resets_at"], attributes["ravi.limit.resets_at"]) == ("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z")
    points = [point for points in backend.metrics().values() for point in points]
    assert points
    assert not [point for point in points if "ann" in point.attributes.values()]


def test_a_limit_without_a_window_says_nothing_of_one(as_json, backend, make, caplog):
    as_json.limit_event(make.limit_event(), None)

    told = {*json.loads(_line(caplog).getMessage()), *dict(backend.logs()[0].attributes)}
    assert told.isdisjoint({"per", "by", "window", "counted_for", "ravi.limit.per", "ravi.limit.counted_for"})


def test_what_a_run_used_of_a_window_is_on_its_span(telemetry, backend, make):
    reading = replace(make.reading(per="day", by="user"), window="2026-01-01", counted_for="a\nb")
    scope = make.scope(ScopeKind.RUN, limits=[reading], user_id="ann")
    with telemetry.scope_opened(scope):
        pass
    telemetry.scope_closed(scope, Totals(scope.spend(), scope.readings()))

    span = backend.span()
    assert span.attributes["user.id"] == "ann"
    state = dict(span.events[0].attributes)
    assert [state[f"ravi.limit.{name}"] for name in ("per", "window", "by", "counted_for")] == ["day", "2026-01-01", "user", "a\nb"]
