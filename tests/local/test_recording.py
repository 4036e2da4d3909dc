"""What a program did is in the store by our own ids, however much of it is told to anybody else."""

from __future__ import annotations

import json
import stat

import pytest
from kept_by import rows, run

STORY = """
ravi_otel.instrument()
with ravi_otel.run("desk", limits=["cost=1usd"], user_id="ann", tenant_id="acme", session_id="s1", tags={"team": "blue"}):
    with ravi_otel.agent("clerk", limits=["requests=2"]):
        for text in ("one", "two", "three"):
            try:
                ask(text)
            except ravi_otel.BudgetExhaustedError:
                pass
    @ravi_otel.tool
    def look(order):
        return order
    look("881")
ask("outside of any run")
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    store = tmp_path_factory.mktemp("kept") / "store"
    run(store, STORY)
    return store


def test_a_run_is_there_with_whose_it_was_and_what_it_used(story):
    (desk,) = rows(story, "runs", "kind = 'run'")
    whose = {name: desk[name] for name in ("name", "user", "tenant", "session", "tags", "status", "stop_reason", "agents")}
    assert whose == {
        "name": "desk",
        "user": "ann",
        "tenant": "acme",
        "session": "s1",
        "tags": '{"team":"blue"}',
        "status": "ok",
        "stop_reason": "success",
        "agents": 1,
    }
    used = {name: desk[name] for name in ("requests", "turns", "input_tokens", "output_tokens", "refused", "tool_calls", "untold_calls")}
    assert used == {"requests": 2, "turns": 2, "input_tokens": 60, "output_tokens": 20, "refused": 1, "tool_calls": 1, "untold_calls": 0}
    assert desk["cost_nano"] > 0
    assert desk["began"] < desk["ended"]


def test_what_happens_outside_any_run_is_kept_by_its_process(story):
    (process,) = rows(story, "processes")
    (outside,) = rows(story, "runs", "kind = 'process'")
    (call,) = rows(story, "calls", f"run = '{process['process']}'")
    assert outside["run"] == process["process"]
    assert outside["requests"] == 1
    assert call["status"] == "ok"


def test_a_process_that_came_to_its_end_says_so(story):
    (process,) = rows(story, "processes")
    assert process["outcome"] == "ok"
    assert process["began"] < process["ended"]
    assert process["lost"] == 0


def test_a_call_tells_what_was_expected_held_and_used(story):
    call = rows(story, "calls", "status = 'ok' AND agent = 'clerk'")[0]
    expected, held = json.loads(call["estimated"]), json.loads(call["held"])
    assert expected["cost"] >= call["cost"]
    assert [(each["scope"], each["name"], each["limit"]) for each in held] == [("run", "desk", "cost")]
    assert held[0]["held"] == pytest.approx(expected["cost"] / 1e9)
    assert json.loads(call["usage"]) == {"input_tokens": 30, "output_tokens": 10, "source": "reported"}


def test_a_refused_call_tells_which_limit_of_the_chain_said_no_and_what_was_left(story):
    (call,) = rows(story, "calls", "status = 'refused'")
    refusal = json.loads(call["refusal"])
    assert refusal["sentence"].startswith("2 of 2 requests used in agent 'clerk'")
    stands = [(each["scope"], each["limit"], each["remaining"] > 0, each["refused"]) for each in refusal["chain"]]
    assert stands == [("run", "cost", True, False), ("agent", "requests", False, True)]
    assert [each["warn_at"] for each in refusal["chain"]] == [0.8, 0.8]


def test_a_call_or_tool_refused_by_time_tells_how_much_of_that_had_passed(tmp_path):
    program = """
    @ravi_otel.tool
    def look():
        raise AssertionError
    ravi_otel.instrument()
    with ravi_otel.run("desk", limits=["time=0.05s", "requests=9"]):
        threading.Event().wait(0.1)
        for late in (ask, look):
            try:
                late()
            except ravi_otel.DeadlineExceededError:
                pass
    """
    run(tmp_path / "store", program)
    (call,) = rows(tmp_path / "store", "calls", "status = 'refused'")
    (tool,) = rows(tmp_path / "store", "tools")
    for refused in (call, tool):
        chain = json.loads(refused["refusal"])["chain"]
        assert [(each["limit"], each["refused"]) for each in chain] == [("requests", False), ("time", True)]
        assert chain[1]["used"] >= chain[1]["value"] == 0.05


def test_a_review_names_the_call_that_it_is_of(tmp_path):
    program = """
    from ravi_otel.supervisor import Gate
    def pay(amount: int) -> int:
        return amount
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        ravi_otel.tool(pay, gate=Gate(tools=[pay]))(5)
    """
    run(tmp_path / "store", program)
    (call,) = rows(tmp_path / "store", "tools")
    assert {each["call"] for each in rows(tmp_path / "store", "reviews")} == {call["call"]}


def test_limit_events_name_the_call_they_came_with(story):
    (refused,) = rows(story, "calls", "status = 'refused'")
    (exceeded,) = rows(story, "events", "event = 'limit_exceeded'")
    assert exceeded["call"] == refused["call"]


def test_scopes_tell_where_their_limits_stood_at_the_end(story):
    (agent,) = rows(story, "scopes", "kind = 'agent'")
    (limit,) = json.loads(agent["limits"])
    assert (limit["used"], limit["threshold"], limit["denied"]) == (2, 2, 1)
    assert agent["status"] == "stopped"


def test_the_last_sample_of_a_limit_is_where_it_stood_at_the_end_however_soon_that_comes(tmp_path):
    program = """
    import sqlite3
    def kept():
        with sqlite3.connect(os.environ["RAVI_STORE"] + "/runs.db") as connection:
            return connection.execute("SELECT count(*) FROM samples").fetchone()[0]
    ravi_otel.instrument()
    with ravi_otel.run("desk", limits=["requests=10"]):
        ask("one")
        until = time.monotonic() + 20
        while not kept() and time.monotonic() < until:
            pass
        ask("two")
        ask("three")
    """
    run(tmp_path / "store", program)
    assert rows(tmp_path / "store", "samples")[-1]["used"] == 3


def test_sums_by_the_hour_are_those_of_the_calls(story):
    calls, hours = rows(story, "calls"), rows(story, "hourly", "tool = ''")
    for name in ("requests", "input_tokens", "output_tokens", "cost_nano", "refused"):
        assert sum(each[name] for each in calls) == sum(each[name] for each in hours)
    assert {(each["agent"], each["user"], each["tenant"]) for each in hours} == {("clerk", "ann", "acme"), ("", "", "")}
    assert [each["tool"] for each in rows(story, "hourly", "tool != ''")] == ["look"]


def test_nothing_that_was_said_is_kept_unless_it_is_captured(story):
    assert not rows(story, "messages")
    assert not rows(story, "content")
    assert "Where is my order" not in (story / "runs.db").read_bytes().decode("latin-1")


def test_what_is_captured_is_kept_once_a_run_and_found_by_its_words(tmp_path):
    run(tmp_path / "store", STORY, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")
    said = {each["id"]: json.loads(each["data"]) for each in rows(tmp_path / "store", "messages")}
    content = {each["item"]: each for each in rows(tmp_path / "store", "content", "kind = 'call'")}
    first = rows(tmp_path / "store", "calls", "status = 'ok'")[0]
    (asked,) = json.loads(content[first["call"]]["messages"])
    (answered,) = json.loads(content[first["call"]]["data"])["output"]
    assert said[asked] == {"role": "user", "parts": [{"type": "text", "content": "one"}]}
    assert said[answered]["parts"] == [{"type": "text", "content": "It will be there tomorrow."}]
    assert len(rows(tmp_path / "store", "messages_text", "messages_text MATCH 'tomorrow'")) == 2  # in the run, and outside of it


def test_only_the_owner_may_read_it(story):
    assert stat.S_IMODE((story / "runs.db").stat().st_mode) == 0o600
    assert stat.S_IMODE(story.stat().st_mode) == 0o700


SPEND = ("requests", "input_tokens", "output_tokens", "cost_nano", "refused", "tool_calls")


@pytest.mark.parametrize(
    "setting",
    [
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_SDK_DISABLED": "true"},
        {"RAVI_DETAIL": "full"},
    ],
    ids=lambda setting: " ".join(setting.values()),
)
def test_neither_a_sampler_nor_a_level_of_detail_nor_the_lack_of_an_sdk_takes_anything_away(tmp_path, story, setting):
    run(tmp_path / "store", STORY, **setting)
    (whole,), (desk,) = rows(story, "runs", "kind = 'run'"), rows(tmp_path / "store", "runs", "kind = 'run'")
    assert {name: desk[name] for name in SPEND} == {name: whole[name] for name in SPEND}
    assert len(rows(tmp_path / "store", "calls")) == len(rows(story, "calls"))


def test_a_program_that_has_no_providers_keeps_its_runs(tmp_path):
    missing = """
import ravi_otel._telemetry.providers
for name in ("trace", "metrics", "_logs"):
    sys.modules[f"opentelemetry.sdk.{name}"] = None
"""
    run(tmp_path / "store", missing + STORY)
    assert len(rows(tmp_path / "store", "calls")) == 4


def test_a_call_in_flight_has_one_row_that_its_end_completes(tmp_path):
    program = """
    import sqlite3
    def answer(request):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with sqlite3.connect(os.environ["RAVI_STORE"] + "/runs.db") as connection:
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                seen = connection.execute("SELECT call, began, status FROM calls").fetchall() if tables else []
            if seen:
                print(*seen[0], flush=True)
                return Text("at last", usage=(30, 10), model="gpt-4o-mini-2024-07-18")
    ravi_otel.instrument()
    with ScriptedLLM(answer) as server, ravi_otel.run("desk", user_id="ann"):
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        ask()
    """
    call, began, status = run(tmp_path / "store", program).stdout.split()
    (row,) = rows(tmp_path / "store", "calls")
    assert status == "open"
    assert (row["call"], row["began"], row["status"], row["user"]) == (call, int(began), "ok", "ann")
    assert (row["requests"], row["input_tokens"], json.loads(row["usage"])["output_tokens"]) == (1, 30, 10)
    assert row["duration"] >= 200_000_000
    (desk,), (hour,) = rows(tmp_path / "store", "runs"), rows(tmp_path / "store", "hourly")
    for summed in (desk, hour):
        assert (summed["requests"], summed["input_tokens"], summed["untold_calls"], summed["uncosted_calls"]) == (1, 30, 0, 0)
    assert (hour["model"], hour["calls"]) == (
        "gpt-4o-mini-2024-07-18",
        1,
    )  # nothing is left of the name it was asked by


def test_what_a_call_used_after_its_run_was_closed_changes_the_runs_own_limits_and_not_those_it_shared(tmp_path):
    program = """
    ravi_otel.instrument(limits=["requests=100"])
    with ravi_otel.run("desk", limits=["tokens=1000"]), ravi_otel.agent("clerk", limits=["tokens=500"]):
        stream = client.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
        )
    ravi_otel.flush()
    with ravi_otel.run("other"):
        ask()
    for _ in stream:
        pass
    """
    run(tmp_path / "store", program)
    scopes = {each["name"]: json.loads(each["limits"]) for each in rows(tmp_path / "store", "scopes", "kind IN ('run', 'agent')")}
    told = {name: [(each["scope"], each["limit"], each["used"], each["held"]) for each in found] for name, found in scopes.items()}
    assert told == {
        "desk": [("run", "tokens", 40, 0), ("process", "requests", 1, 0)],
        "clerk": [("agent", "tokens", 40, 0)],
        "other": [("process", "requests", 2, 0)],
    }


def test_usage_that_comes_late_updates_the_row_and_every_sum(tmp_path):
    program = """
    import json
    from ravi_otel.testing import Raw
    def answer(status, usage=None):
        body = {"id": "resp_1", "object": "response", "model": "gpt-4o-mini", "status": status, "output": [], "usage": usage}
        return Raw(json.dumps(body).encode(), content_type="application/json")
    ravi_otel.instrument()
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    with ScriptedLLM([answer("queued"), answer("completed", usage)]) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        with ravi_otel.run("desk"):
            client.responses.create(model="gpt-4o-mini", input="hi", extra_body={"background": True})
            ravi_otel.flush()
            client.responses.retrieve("resp_1")
    """
    run(tmp_path / "store", program)
    begun, look = rows(tmp_path / "store", "calls", order="began")
    (desk,) = rows(tmp_path / "store", "runs")
    (hour,) = rows(tmp_path / "store", "hourly")
    assert (begun["pending"], json.loads(begun["usage"])["input_tokens"]) == (0, 11)
    for summed in (begun, desk, hour):
        assert (summed["requests"], summed["input_tokens"], summed["output_tokens"], summed["untold_calls"]) == (1, 11, 7, 0)
    assert (look["operation"], look["input_tokens"]) == ("fetch_response", 0)


def test_what_a_program_reports_by_hand_is_in_its_run(tmp_path):
    program = """
    ravi_otel.instrument()
    with ravi_otel.run("desk"):
        ravi_otel.ExecutionTracker.current().consume(120, 0.5, 0, external=True)
    """
    run(tmp_path / "store", program)
    (desk,) = rows(tmp_path / "store", "runs", "kind = 'run'")
    (hour,) = rows(tmp_path / "store", "hourly")
    for summed in (desk, hour):
        assert (summed["unsplit_tokens"], summed["cost_nano"]) == (120, 500_000_000)
