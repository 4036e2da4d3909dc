from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import openai
import pytest
from recorded import Record, as_json

import ravi_otel
from ravi_otel import BudgetExhaustedError, ExecutionBudget
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.testing import ScriptedLLM, Text

CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my order?"}]}


def nodes(record):
    return json.loads(as_json(record))["nodes"]


@pytest.fixture
def desk():
    """A client on a scripted model, and the record that listens."""
    record = Record()
    with ScriptedLLM(Text("On its way.", usage=(30, 10))) as server, ravi_otel.instrument() as instrumentation:
        instrumentation.listen(record)
        with openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            yield client, record


def test_a_real_run_is_kept_as_a_tree(desk):
    client, record = desk
    with ravi_otel.run("desk"), ravi_otel.agent("clerk"):
        client.chat.completions.create(**CHAT)
        ravi_otel.tool(len)("abc")
    kept = {node["type"]: node for node in nodes(record)}
    assert kept["agent"]["parent"] == kept["run"]["id"]
    assert kept["call"]["parent"] == kept["tool"]["parent"] == kept["agent"]["id"]
    assert (kept["call"]["input_tokens"], kept["call"]["output_tokens"], kept["call"]["usage_source"]) == (30, 10, "reported")
    assert kept["tool"]["name"] == "len"


def test_a_refused_call_is_kept_with_its_reason_and_event(desk):
    client, record = desk
    with ravi_otel.run("desk"), ravi_otel.agent("clerk", budget=ExecutionBudget(max_turns=1)):
        client.chat.completions.create(**CHAT)
        with pytest.raises(BudgetExhaustedError):
            client.chat.completions.create(**CHAT)
    refused = nodes(record)[-1]
    assert (refused["status"], refused["sent"], refused["limit_kind"], refused["reason"]) == ("refused", False, "turns", "exhausted")
    assert refused["refusal"].startswith("1 of 1 turn used")
    assert [event["event"] for event in refused["events"]] == ["limit_exceeded"]
    (limit,) = json.loads(as_json(record))["limits"]
    assert (limit["limit"], limit["used"], limit["threshold"], limit["denied"]) == ("turns", 1, 1, 1)


def test_a_stream_is_kept_with_what_it_used(desk):
    client, record = desk
    with ravi_otel.run("desk"):
        for _ in client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}):
            pass
    call = nodes(record)[-1]
    assert (call["stream"], call["status"], call["input_tokens"], call["output_tokens"]) == (True, "ok", 30, 10)


def test_a_call_outside_any_run_hangs_from_the_process(desk):
    client, record = desk
    client.chat.completions.create(**CHAT)
    assert [node["type"] for node in nodes(record)] == ["process", "call"]


def test_a_session_around_a_run_is_kept_with_its_limits(desk):
    _, record = desk
    with ravi_otel.run("desk", session_id="s-1", limits=["session.tokens=100"]):
        pass
    assert [node["type"] for node in nodes(record)] == ["process", "session", "run"]
    assert [limit["scope"] for limit in json.loads(as_json(record))["limits"]] == ["session"]


def test_a_dropped_stream_and_an_unended_call_are_open_in_the_record(story):
    story.begin(story.run())
    call = nodes(story.record)[-1]
    assert (call["status"], call["duration_ms"], call["cost_usd"]) == ("open", None, None)


def test_unknown_is_null_in_json(story):
    story.call(story.run(), None, None)
    call = nodes(story.record)[-1]
    assert (call["input_tokens"], call["output_tokens"], call["cost_usd"]) == (None, None, None)


def test_json_survives_hostile_names_numbers_and_depth(story):
    place = story.run("\ud83d\x1b[31m\u202e\n", limits=[story.reading(used=float("inf"), ratio=float("nan"))])
    for _ in range(3_000):
        place = story.agent("x" * 10_000, place)
    document = json.loads(as_json(story.record))
    assert as_json(story.record).isascii()
    assert len(document["nodes"]) == 3_001
    assert (document["limits"][0]["used"], document["limits"][0]["ratio"]) == (None, None)


def test_what_the_bound_leaves_out_costs_nothing_but_a_count(story):
    record = story.record = Record(most=0)
    run = story.run()
    story.call(run)
    story.tool(run, "t")
    record.limit_event(story.event(run), None)
    assert record.left_out == {"scopes": 1, "calls": 1, "tools": 1, "events": 0}
    assert nodes(record) == []


def test_a_limit_event_says_in_json_what_was_asked_for_and_for_whom_it_counts(story):
    run = story.run()
    resets_at = datetime(2026, 1, 3, tzinfo=UTC)
    exceeded = {"used": 100, "remaining": 0, "exceeded_by": 12, "requested": 12}
    of_whom = {"per": "day", "window": "2026-01-02", "by": "user", "counted_for": "ann"}
    story.record.limit_event(story.event(run, "limit_exceeded", **exceeded, **of_whom, resets_at=resets_at), None)
    (told,) = nodes(story.record)[-1]["events"]
    assert {name: told[name] for name in (*exceeded, *of_whom)} == exceeded | of_whom
    assert told["resets_at"] == "2026-01-03T00:00:00+00:00"


def test_limit_events_of_kept_scopes_count_toward_the_bound(story):
    record = story.record = Record(most=1)
    run = story.run()
    record.limit_event(story.event(run), None)
    assert record.left_out["events"] == 1


def test_outer_scopes_come_before_inner_ones(story):
    process = story.scope(ScopeKind.PROCESS)
    story.agent("clerk", story.run(parent=process))
    assert [branch.facts.kind for branch in story.record.branches()] == ["process", "run", "agent"]


def test_importing_the_package_does_not_import_the_report_or_the_command_line():
    program = "import sys, ravi_otel; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith(("rich", "click", "ravi_otel._local", "ravi_otel._cli"))] == []
