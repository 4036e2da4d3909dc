from __future__ import annotations

import io
import json
import os
from contextlib import nullcontext

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import BudgetExhaustedError, ExecutionBudget, ExecutionTracker
from ravi_otel._telemetry import names
from ravi_otel._telemetry.model_calls import CallAttributes
from ravi_otel.hooks._events import CallRecord
from ravi_otel.local import as_json, console, render
from ravi_otel.local.store.entries import entry_of
from ravi_otel.local.store.reading import read_run
from ravi_otel.local.store.spans import Span
from ravi_otel.local.store.writing import FileSink
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Usage
from ravi_otel.testing import Disconnect, Failure, Text, ToolCalls

CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my order?"}]}
TIMES = {"duration_ms", "id", "parent"}


def document(record):
    return json.loads(as_json(record))


def tree(record, kind="run"):
    """Give the tree below the first scope of a kind as nested facts, without what a clock says."""
    nodes = document(record)["nodes"]
    top = next(node for node in nodes if node["type"] == kind)
    children = {}
    for node in nodes:
        children.setdefault(node["parent"], []).append(node)

    def facts(node, *, is_top=False):
        known = {key: value for key, value in node.items() if key not in TIMES}
        if is_top:
            known.pop("scope_id")
            for event in known["events"]:
                event.pop("scope_id")
        return known | {"children": [facts(child) for child in children.get(node["id"], [])]}

    return facts(top, is_top=True)


def limits_of(record):
    found = document(record)["limits"]
    return [{key: value for key, value in limit.items() if key != "scope_id"} for limit in found if limit["limit"] != "time"]


def shown(record, width=120):
    out = io.StringIO()
    render(record, console(out, width=width))
    return out.getvalue()


def work_inside_budgets(client):
    with ravi_otel.agent("clerk", budget=ExecutionBudget(max_tokens=1_000)):
        client.chat.completions.create(**CHAT)
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}).close()
        for _ in client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}):
            pass
        ravi_otel.tool(len)("abc")
        client.embeddings.create(model="text-embedding-3-small", input="abc")
        with ravi_otel.agent("helper"):
            client.chat.completions.create(**CHAT)
    client.models.list()


def work_past_a_limit(client):
    with ravi_otel.agent("clerk", limits=["turns=2", "tool.rm=1"]):
        for _ in range(4):
            with pytest.raises(BudgetExhaustedError) if _ > 1 else nullcontext():
                client.chat.completions.create(**CHAT)
        remove = ravi_otel.tool(lambda: None, name="rm")
        remove()
        with pytest.raises(BudgetExhaustedError):
            remove()


def work_stopped_by_its_limit(client):
    with ravi_otel.agent("clerk", limits=[ravi_otel.turn_limit(1, on_exceed="stop")]):
        for _ in range(3):
            client.chat.completions.create(**CHAT)


def work_with_an_unknown_model(client):
    with ravi_otel.agent("clerk"):
        client.chat.completions.create(**CHAT | {"model": "my-own"})
        client.chat.completions.create(**CHAT)


def work_without_usage(client):
    with ravi_otel.agent("clerk", limits=["tokens=100000"]):
        for _ in client.chat.completions.create(**CHAT, stream=True):
            pass


def work_whose_tools_nobody_saw(client):
    asked = client.chat.completions.create(**CHAT, tools=[{"type": "function", "function": {"name": "look"}}])
    results = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in asked.choices[0].message.tool_calls]
    with ravi_otel.agent("clerk", limits=["tool_calls=2"]), pytest.raises(BudgetExhaustedError):
        client.chat.completions.create(**CHAT | {"messages": [*CHAT["messages"], *results]})


def work_that_fails(client):
    with ravi_otel.agent("clerk"), pytest.raises(openai.APIError):
        client.chat.completions.create(**CHAT)


def retried(request):
    return Failure(429, "slow down") if retried.answers.pop() else Text("x", usage=(3, 1))


WORK = [
    pytest.param(work_inside_budgets, Text("On its way.", usage=(30, 10)), {}, id="budgets"),
    pytest.param(work_past_a_limit, Text("On its way.", usage=(30, 10)), {}, id="refusals"),
    pytest.param(work_stopped_by_its_limit, Text("On its way.", usage=(30, 10)), {}, id="stopped"),
    pytest.param(work_with_an_unknown_model, Text("On its way.", usage=(30, 10)), {}, id="unpriced"),
    pytest.param(work_whose_tools_nobody_saw, ToolCalls([("look", {})] * 3, usage=(30, 10)), {}, id="inferred"),
    pytest.param(work_without_usage, Text("On its way.", usage=None), {}, id="unreported"),
    pytest.param(work_that_fails, Failure(500, "broken"), {}, id="failed"),
    pytest.param(work_that_fails, Failure(400, "wrong"), {}, id="refused-by-the-provider"),
    pytest.param(work_that_fails, Disconnect(), {}, id="disconnected"),
    pytest.param(work_that_fails, Failure(429, "slow down"), {"max_retries": 2}, id="retries"),
    pytest.param(work_that_fails, Text("x"), {"base_url": "http://127.0.0.1:9/v1", "max_retries": 1}, id="never-sent"),
]


def test_the_limit_of_a_tracker_is_read_back_as_the_tracker_s(desk):
    tracker = ExecutionTracker(max_tokens=10)
    with desk.working(Text("x")), ravi_otel.run("desk", run_id=desk.run.run_id), pytest.raises(BudgetExhaustedError):
        tracker.consume(tokens=12)
    stored, live = ([node["events"] for node in document(record)["nodes"]] for record in (read_run(desk.keep()), desk.live))
    told = [(event["event"], event["tracker"], event["used"], event["threshold"]) for events in stored for event in events]
    assert told == [(event, "ExecutionTracker.max_tokens", 12, 10) for event in ("limit_nearing", "limit_exceeded")]
    assert [event["tracker"] for events in live for event in events] == ["ExecutionTracker.max_tokens"] * 2


@pytest.mark.parametrize(("work", "model", "options"), WORK)
def test_a_run_read_back_is_the_run_that_was_seen_live(desk, work, model, options):
    with desk.working(model) as client, ravi_otel.run("desk", run_id=desk.run.run_id, limits=["requests=50"]):
        work(client.with_options(**options) if options else client)
    stored = read_run(desk.keep())
    assert tree(stored) == tree(desk.live)
    assert limits_of(stored) == limits_of(desk.live)
    assert (stored.unread, sum(stored.left_out.values())) == (0, 0)


def test_the_report_of_a_run_read_back_says_the_same_but_for_times(desk):
    with desk.working(Text("On its way.", usage=(30, 10))) as client, ravi_otel.run("desk", run_id=desk.run.run_id):
        work_past_a_limit(client)
    stored = read_run(desk.keep())

    def words(text):
        return [[word for word in line.split() if not word.strip("<").replace(",", "").isdigit()] for line in text.splitlines()]

    assert words(shown(stored)) == words(shown(desk.live))


def one_run(desk, calls=2):
    with (
        desk.working(Text("On its way.", usage=(30, 10))) as client,
        ravi_otel.run("desk", run_id=desk.run.run_id),
        ravi_otel.agent("clerk"),
    ):
        for _ in range(calls):
            client.chat.completions.create(**CHAT)
    return desk.keep()


def types_of(record):
    return [node["type"] for node in document(record)["nodes"]]


# -- what stands between, around, or is not there ---------------------------------------------------------------------


def test_spans_of_other_libraries_between_ours_do_not_break_the_tree(desk):
    tracer = desk.capture.tracer_provider.get_tracer("http")
    span = tracer.start_as_current_span
    with (
        desk.working(Text("x", usage=(30, 10))) as client,
        ravi_otel.run("desk", run_id=desk.run.run_id),
        ravi_otel.agent("clerk"),
        span("GET /"),
        span("handler"),
        ravi_otel.agent("helper"),
        span("POST"),
    ):
        client.chat.completions.create(**CHAT)
    assert tree(read_run(desk.keep())) == tree(desk.live)


def test_each_of_several_processes_is_a_child_of_the_run(desk):
    one_run(desk)
    with desk.working(Text("x", usage=(5, 5))) as client:
        client.chat.completions.create(**CHAT)
    record = read_run(desk.keep("4712-00ff"))
    kept = document(record)["nodes"]
    assert [node["name"] for node in kept if node["type"] == "process"] == ["4711", "4712"]
    assert kept[0]["requests"] == 3
    assert [node["requests"] for node in kept if node["type"] == "process"] == [2, 1]
    assert "process 4712" in shown(record)


def test_parts_of_one_process_are_one_process(desk):
    run = one_run(desk, 4)
    (path,) = run.files()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    path.with_name("4711-9a2c.traces.2.jsonl").write_text("".join(lines[2:]))
    assert types_of(read_run(run)) == ["run", "agent", "call", "call", "call", "call"]


def test_an_agent_whose_process_was_killed_is_shown_as_open(desk):
    run = one_run(desk)
    (path,) = run.files()
    calls = [line for line in path.read_text().splitlines(keepends=True) if "invoke_" not in line]
    path.write_text("".join(calls))
    run = run.write(outcome="running", ended=None, status=None)
    kept = document(read_run(run))["nodes"]
    assert [(node["type"], node["name"], node["status"]) for node in kept[:2]] == [("run", "desk", "open"), ("agent", "clerk", "open")]
    assert kept[1]["input_tokens"] == 60


def test_the_runs_limits_are_those_of_its_manifest(desk):
    budget = {"scope": "run", "scope_id": "x", "scope_name": "desk", "limit": "tokens", "threshold": 100, "used": 80}
    rest = {"held": 0, "remaining": 20, "ratio": 0.8, "denied": 3, "events": ["limit_nearing", "limit_exceeded"]}
    odd = [
        {"limit": "tokens"},
        {"scope": "moon", "limit": "tokens"},
        budget | rest | {"limit": "\x00"},
        budget | rest | {"threshold": None},
    ]
    run = desk.keep(budgets=(budget | rest, *odd), outcome="limited", status=4)
    record = read_run(run)
    (limit,) = document(record)["limits"]
    assert {key: value for key, value in limit.items() if key != "scope_id"} == {
        key: value for key, value in (budget | rest).items() if key != "scope_id"
    }
    assert document(record)["nodes"][0]["stop_reason"] == "limit_tokens"
    assert "limit_tokens" in shown(record)


@pytest.mark.parametrize(
    ("outcome", "status"), [("running", "open"), ("ok", "ok"), ("failed", "error"), ("limited", "stopped"), ("unattached", "error")]
)
def test_the_run_ends_as_its_manifest_says(desk, outcome, status):
    run = desk.keep(outcome=outcome)
    assert document(read_run(run))["nodes"][0]["status"] == status


def test_a_run_without_files_is_a_run_in_which_nothing_was_called(desk):
    for path in desk.keep().files():
        path.unlink()
    record = read_run(desk.run)
    assert types_of(record) == ["run"]
    assert document(record)["nodes"][0]["duration_ms"] == pytest.approx(2_000)


# -- what is broken, foreign or too much ------------------------------------------------------------------------------

FOREIGN = [
    "{", "[]", "null", "1", '{"a": 1}', '{"resourceSpans": 3}', '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 3}]}]}]}',
    '{"resourceLogs": []}', "[" * 100_000,  "\x00\xff",
    '{"resourceSpans": [{"scopeSpans": [{"scope": {"name": "ravi_otel"}, "spans": [{}]}]}]}',
]  # fmt: skip


@pytest.mark.parametrize("line", FOREIGN, ids=range(len(FOREIGN)))
def test_a_line_that_is_no_span_is_left_out_and_said(desk, line):
    run = one_run(desk)
    before = tree(read_run(run))
    (path,) = run.files()
    path.write_bytes(line.encode() + b"\n" + path.read_bytes())
    held = path.read_bytes()
    record = read_run(run)
    assert tree(record) == before
    assert record.unread == 1
    assert "1 line of the stored run could not be read, and is left out." in shown(record)
    assert document(record)["left_out"]["lines"] == 1
    assert path.read_bytes() == held


def test_a_last_line_that_was_half_written_costs_only_itself(desk):
    run = one_run(desk, 3)
    (path,) = run.files()
    path.write_bytes(path.read_bytes()[:-100])
    record = read_run(run)
    assert record.unread == 1
    assert types_of(record).count("call") == 3


def spans_in(run):
    (path,) = run.files()
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def span_of(line):
    return line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]


def test_spans_that_are_their_own_ancestors_hang_from_the_run(desk):
    run = one_run(desk)
    path, lines = spans_in(run)
    ids = [span_of(line)["spanId"] for line in lines]
    for at, line in enumerate(lines):
        span_of(line)["parentSpanId"] = ids[at - 1]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    kept = document(read_run(run))["nodes"]
    assert sorted(node["type"] for node in kept) == ["agent", "call", "call", "run"]
    assert kept[0]["requests"] == 2


WRONG = [None, [], {}, "", "-1", "x" * 50, -5, 1e400, True, "18446744073709551616"]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_value_of_another_type_is_unknown_and_nothing_else(desk, wrong):
    run = one_run(desk)
    path, lines = spans_in(run)
    for line in lines:
        span = span_of(line)
        span["startTimeUnixNano"] = span["endTimeUnixNano"] = span["kind"] = span["status"] = wrong
        span["attributes"] = [{"key": each["key"], "value": dict.fromkeys(each["value"], wrong)} for each in span["attributes"]]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    record = read_run(run)
    assert shown(record)
    assert as_json(record)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["resourceSpans", "scopeSpans", "spans", "scope", "spanId", "name", "events"]), inner)
    ),
    max_leaves=30,
)


@settings(
    max_examples=100 if os.environ.get("RAVI_LONG") else 40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(st.lists(json_values | st.fixed_dictionaries({"resourceSpans": st.lists(json_values)}), max_size=5))
def test_no_json_makes_the_reader_fail(desk, values):
    path = desk.run.path / "1-1.traces.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in values) + "\n")
    assert as_json(read_run(desk.run))


def test_a_run_of_many_calls_is_summed_whole_and_kept_in_part(desk):
    run = one_run(desk, 1)
    path, lines = spans_in(run)
    (call,) = [line for line in lines if span_of(line)["kind"] == 3]
    with path.open("a") as file:
        for number in range(999):
            span_of(call)["spanId"] = f"{number:016x}"
            file.write(json.dumps(call) + "\n")
    record = read_run(run, most=100)
    assert len(record) == 100
    assert document(record)["nodes"][0]["requests"] == 1_000
    assert document(record)["nodes"][0]["input_tokens"] == 30_000
    assert record.left_out["calls"] == 902


def test_what_reads_is_told_of_the_bytes(desk):
    run, told = one_run(desk), []
    read_run(run, told=told.append)
    assert sum(told) == sum(path.stat().st_size for path in run.files())


def test_what_the_stores_own_writer_wrote_is_read_back_the_same(desk):
    sink = FileSink(desk.run.path)
    desk.capture.tracer_provider.add_span_processor(sink.span_processor())
    with desk.working(Text("On its way.", usage=(30, 10))) as client, ravi_otel.run("desk", run_id=desk.run.run_id):
        work_past_a_limit(client)
    desk.capture.shutdown()
    record = read_run(desk.run)
    assert [path.name.startswith(f"{os.getpid()}-") for path in desk.run.files()] == [True]
    assert tree(record)["children"] == tree(desk.live)["children"]


def told_of(operation, usage, convention):
    record = CallRecord(Call(operation, "any"), ScopeFacts("s", ScopeKind.RUN), "op", 0, usage=usage)
    return {"gen_ai.operation.name": operation, **CallAttributes(convention, langfuse=False).at_end(record)}


@pytest.mark.parametrize("spoken", ["", "gen_ai_latest_experimental", "gen_ai_latest_experimental/dup"])
def test_a_run_is_read_back_the_same_in_whichever_convention_it_was_stored(spoken):
    usage = Usage(
        90, 40, cached_input_tokens=30, cache_write_tokens=20, reasoning_tokens=7, audio_input_tokens=10, image_input_tokens=12,
        cached_image_tokens=4, audio_output_tokens=3, image_output_tokens=5, cache_write_1h_tokens=6, rejected_prediction_tokens=2,
    )  # fmt: skip
    attributes = told_of("chat", usage, names.chosen_convention({names.OPT_IN: spoken}))
    entry = entry_of(stored_call(attributes))
    assert entry is not None
    assert entry.leaf.usage == usage


def test_a_call_that_was_measured_in_sound_is_read_back_without_tokens():
    attributes = told_of("transcription", Usage(audio_ms=2_500, searches=1), names.RELEASED)
    entry = entry_of(stored_call(attributes))
    assert entry is not None
    assert entry.leaf.usage == Usage(audio_ms=2_500, searches=1)


def stored_call(attributes):
    return Span("a", "b", None, "chat m", True, True, False, "", 1, 2, attributes, [])
