"""Every query of every dashboard finds something on the real servers, once everything that can happen has happened."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from dashboard_files import FILES, asked, filled, promql, selectors
from dashboard_load import answer
from dashboard_loads import AT_A_FAULT, SERVICES, excused, load
from stack_process import wait_for
from stack_servers import Stack, program_environment, programs

from dashboards.source import foreign
from dashboards.source.names import prometheus
from ravi_otel._telemetry.names import METRICS
from ravi_otel.testing import ScriptedLLM, Text

BRIEF = """
import sys, openai, ravi_otel
ravi_otel.instrument()
run = ravi_otel.run("brief", limits=["requests=2"], tags={"team": "a", "tenant": "b"})
with openai.OpenAI(base_url=sys.argv[1], api_key="k") as client, run:
    for _ in range(5):
        try:
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Say hello."}])
        except ravi_otel.RaviError:
            pass
"""
WITHIN_S = 120.0
"""What is scraped is scraped every 15 s, and a rate needs two of them."""


@pytest.fixture(scope="module")
def moving(stack: Stack) -> Iterator[Stack]:
    """Have every part of the load at work on the stack."""
    with ScriptedLLM(answer) as model, contextlib.ExitStack() as loads:
        for part in SERVICES:
            loads.enter_context(load(stack, model.base_url, part))
        yield stack


def left_over(ask: Callable[[str], Any], questions: dict[str, str]) -> dict[str, str]:
    """Ask until each has an answer; give what has none in the end, with what was asked."""
    deadline = time.monotonic() + WITHIN_S
    left = dict(questions)

    def look() -> bool:
        for where in [where for where, question in left.items() if ask(question)]:
            del left[where]
        return not left or time.monotonic() > deadline

    wait_for(look, "the answers", WITHIN_S + 60)
    return left


def test_prometheus_calls_our_metrics_what_we_say(moving: Stack):
    parts = {"histogram": "_bucket"}
    expected = {prometheus(name) + parts.get(row.kind, "") for name, row in METRICS.items()}
    left = left_over(lambda name: name in moving.metric_names(), {name: name for name in expected})
    assert left == {}


@pytest.mark.parametrize("name", FILES)
def test_every_query_finds_something(moving: Stack, name: str):
    questions = {query.where: filled(query.text) for query in promql() if query.where.startswith(name)}
    wanted = {where: query for where, query in questions.items() if not excused(query, moving)}
    assert left_over(moving.query, wanted) == {}


def test_every_selector_finds_something_by_itself(moving: Stack):
    every = [selector.prettify() for query in promql() for selector in selectors(filled(query.text))]
    found = {selector.partition(" offset ")[0] for selector in every}  # of now: an hour ago nothing ran
    wanted = {each: each for each in found if not excused(each, moving)}
    assert left_over(moving.query, wanted) == {}


def test_what_is_not_there_before_a_fault_is_known_to_the_collector(stack: Stack):
    binary = Path(programs()["otelcol-contrib"]).read_bytes()
    at_a_fault = {name for name in foreign.NAMES if AT_A_FAULT.fullmatch(name) and not name.endswith("_total")}
    assert len(at_a_fault) == 9
    assert [name for name in at_a_fault if name.encode() not in binary] == []


def test_the_values_of_every_variable_are_there(moving: Stack):
    labels = {query.where: (filled(query.text), query.target["label"]) for query in promql() if "label" in query.target}
    assert len(labels) > 15
    for where, (selector, label) in labels.items():
        wait_for(lambda s=selector, n=label: [one for one in moving.query(s) if one["metric"].get(n)], where)


def test_answered_by_another_model_are_only_those_that_were(moving: Stack):
    (question,) = [filled(query.text) for query in promql() if query.where.startswith("calls.json: Answered by another model")]
    found = wait_for(lambda: moving.query(question), "answers of another model", WITHIN_S)
    answered = {(one["metric"]["gen_ai_request_model"], one["metric"]["gen_ai_response_model"]) for one in found}
    assert answered == {("gpt-4o-mini", "gpt-4o-mini-2026-01-01")}
    by_itself = 'gen_ai_client_operation_duration_seconds_count{gen_ai_response_model="house-model"}'
    assert moving.query(by_itself), "and a model that answers itself there was"


def test_points_lead_to_traces_that_jaeger_has(moving: Stack):
    def traced(query: str) -> bool:
        found = dict.fromkeys(one["labels"].get("trace_id") for one in reversed(moving.exemplars(query)))  # each trace once
        return any(trace and moving.jaeger(trace) for trace in list(found)[:200])

    questions = {query.where: filled(query.text) for query in promql() if query.target.get("exemplar") and "traces_span" not in query.text}
    assert len(questions) > 15
    assert left_over(traced, questions) == {}


def test_log_queries_find_limit_events_with_their_trace(moving: Stack):
    trace = wait_for(lambda: moving.logs(filled('{service_name="fleet"} | event_name="ravi.limit.exceeded"')), "a limit event")[-1]
    questions = {query.where: filled(query.text, trace=trace["labels"]["trace_id"]) for query in asked("loki")}
    counted = {where: query for where, query in questions.items() if query.startswith("topk")}
    assert left_over(moving.logs, {where: query for where, query in questions.items() if where not in counted}) == {}

    def figures(query: str) -> list[Any]:
        return moving.get("loki", "/loki/api/v1/query", query=query)["data"]["result"]

    assert left_over(figures, counted) == {}
    (dearest,) = counted.values()
    for one in figures(dearest):
        assert one["metric"].keys() >= {"ravi_limit_scope", "ravi_limit_scope_name", "trace_id"}
        assert moving.jaeger(one["metric"]["trace_id"]) is not None

    def scopes() -> set[str]:
        return {one["metric"]["ravi_limit_scope"] for one in figures(dearest)}

    wait_for(lambda: scopes() >= {"run", "tenant"}, "a run and a tenant that came near a limit of cost", WITHIN_S)
    assert wait_for(lambda: moving.jaeger(trace["labels"]["trace_id"]), "the trace of a limit event")


def test_searches_find_traces(moving: Stack):
    for query in asked("jaeger"):
        target = query.target
        if target.get("queryType") != "search":
            continue
        tags = dict(each.split("=", 1) for each in shlex.split(target["tags"].replace("$trace_tags", "")))
        more = {"minDuration": target["minDuration"]} if "minDuration" in target else {}
        if tags:
            more["tags"] = json.dumps(tags)
        wait_for(lambda m=more, n=target["limit"]: moving.jaeger_search("fleet", limit=n, **m), query.where, WITHIN_S)


def test_a_program_of_a_moment_is_told_in_full(stack: Stack):
    """Two calls and three refusals, sent once: as many are shown, neither none nor an estimate."""
    with ScriptedLLM(Text("hello", usage=(1_000_000, 1_000_000))) as model:
        environment = program_environment(stack, **stack.environment("brief"))
        subprocess.run([sys.executable, "-c", BRIEF, model.base_url], env=environment, check=True, timeout=60, stderr=subprocess.DEVNULL)
    asked_for = {query.where: filled(query.text, service="brief") for query in promql()}

    def shown(where: str) -> list[tuple[dict[str, str], float]]:
        return [(one["metric"], float(one["value"][1])) for one in stack.query(asked_for[where])]

    wait_for(lambda: stack.query('ravi_limit_denied_total{service_name="brief"}'), "the program's refusals")
    assert shown("budgets.json: Calls refused A") == [({}, 3)]
    assert shown("budgets.json: Spent A") == [({}, pytest.approx(1.5))]  # 0.15 USD a million in, 0.60 out, twice
    assert shown("budgets.json: Spent, by team A") == [({"ravi_tag_team": "a"}, pytest.approx(1.5))]
    assert shown("budgets.json: Spent, by tag tenant B") == [({"ravi_tag_tenant": "b"}, 1)]
    assert shown("calls.json: Failed A") == [({}, 0)]
    assert 0 < shown("calls.json: Slow calls take A")[0][1] < 60
    assert shown("runs.json: Runs that fail A") == [({}, 0)]  # one that a limit stopped has not failed
    now = time.time()
    bars = stack.query_range(asked_for["budgets.json: Refused, by kind and scope A"], now - 300, now, 15)
    assert [(one["metric"], sum(float(value) for _, value in one["values"])) for one in bars] == [
        ({"ravi_limit_kind": "requests", "ravi_limit_scope": "run"}, 3)
    ]
