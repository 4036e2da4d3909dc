"""What a run tells of itself while it works: its whole tree, what is known, and never what was asked or answered."""

import contextvars
from dataclasses import FrozenInstanceError

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, Priority, RaviError, SpawnBudget, SpawnDeniedError
from ravi_otel.testing import Failure, Text

MODEL = "gpt-4o-mini"


def ask(client, text="hi", **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": text}], **more})


def names(events):
    return [event.event for event in events]


def test_the_whole_tree_is_told_with_each_agents_place_and_runs_inside_too():
    with ravi_otel.run("outer") as run:
        progress = run.progress()
        with ravi_otel.agent("boss"), ravi_otel.agent("worker", agent_id="w-1"):
            ravi_otel.report_progress("deep")
            with ravi_otel.run("inner") as inner, ravi_otel.agent("other"):
                ravi_otel.report_progress("inside")
    events = list(progress)
    deep, inside = (event for event in events if event.event == "report")
    assert (deep.agent_name, deep.agent_id, deep.parent_id, deep.depth, deep.run_id) == ("worker", "w-1", "boss", 1, run.id)
    assert (inside.agent_name, inside.run_id) == ("other", inner.id)
    closed = [event.data["name"] for event in events if event.event == "scope_closed"]
    assert closed == ["other", "inner", "worker", "boss", "outer"]


def test_a_run_hears_nothing_of_its_siblings_or_of_the_run_around_it():
    with ravi_otel.run("outer") as outer, ravi_otel.run("inner") as inner:
        progress = inner.progress()
        outer.report("around")
        with ravi_otel.run("other"):
            pass
        inner.report("mine")
    assert [event.data["name"] for event in list(progress) if event.event == "scope_closed"] == ["other", "inner"]
    # "other" was opened inside "inner", and so belongs to it.


def test_of_two_runs_of_one_id_a_reader_ends_with_its_own():
    with ravi_otel.run("first", run_id="same") as first:
        mine = first.progress()
        with ravi_otel.run("second", run_id="same"):
            pass
        first.report("still open")
        assert "still open" in [event.data.get("text") for event in (next(mine), next(mine), next(mine))]


def test_a_call_is_told_with_its_model_tokens_cost_and_status(client, stage):
    stage.answer = Text("ok", usage=(100, 20))
    with ravi_otel.run("r") as run:
        progress = run.progress()
        ask(client)
    start, end = (event.data for event in list(progress) if event.event.startswith("llm"))
    assert (start["model"], start["operation"], start["provider"]) == (MODEL, "chat", "openai")
    assert (end["op_id"], end["status"]) == (start["op_id"], "ok")
    assert (end["input_tokens"], end["output_tokens"], end["cost_usd"]) == (100, 20, 0.12)


def test_an_unknown_cost_is_none_and_never_nothing(client):
    with ravi_otel.run("r") as run:
        progress = run.progress()
        ask(client, model="nobody-knows-this-one")
    (end,) = (event.data for event in list(progress) if event.event == "llm_end")
    assert (end["cost_usd"], end["output_tokens"]) == (None, 100)


def test_a_retry_is_told_when_it_happens(stage, instrumented):
    answers = iter([Failure(500, retry_after_s=0), Text("ok")])
    stage.answer = lambda _: next(answers)
    with ravi_otel.run("r") as run:
        progress = run.progress()
        with stage.client(max_retries=1) as patient:
            ask(patient)
    events = list(progress)
    assert names(events) == ["llm_start", "retry", "llm_end", "scope_closed"]
    assert (events[1].data["attempt"], events[1].data["status"], events[2].data["retries"]) == (1, 500, 1)


def test_a_limit_is_told_once_near_and_once_exceeded_and_the_refused_call_too(client):
    with ravi_otel.run("r", limits=["requests=2:warn=0.5"]) as run:
        progress = run.progress()
        ask(client)
        ask(client)
        with pytest.raises(RaviError):
            ask(client)
    events = list(progress)
    limits = [(event.event, event.data["limit_kind"], event.data["threshold"]) for event in events if event.event.startswith("limit")]
    assert limits == [("limit_nearing", "requests", 2), ("limit_exceeded", "requests", 2)]
    refused = [event.data for event in events if event.event == "llm_end"][-1]
    assert (refused["status"], refused["limit_kind"]) == ("refused", "requests")


def test_a_tool_is_told_and_nothing_of_what_it_was_given(instrumented):
    @ravi_otel.tool
    def search(query):
        raise LookupError(query)

    with ravi_otel.run("r") as run:
        progress = run.progress()
        with pytest.raises(LookupError):
            search("the secret word")
    events = list(progress)
    assert names(events) == ["tool_start", "tool_end", "scope_closed"]
    assert (events[1].data["tool_name"], events[1].data["status"], events[1].data["error_type"]) == ("search", "error", "LookupError")
    assert "secret" not in repr(events)


def test_nothing_that_was_asked_or_answered_is_in_an_event_also_where_content_is_captured(stage, monkeypatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT")
    stage.answer = Text("the secret answer")
    with ravi_otel.instrument(), ravi_otel.run("r") as run, stage.client() as client:
        progress = run.progress()
        ask(client, "the secret question")
    assert "secret" not in repr(list(progress))


def test_what_becomes_of_slots_is_told(instrumented):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(2)) as run:
        progress = run.progress()
        with ravi_otel.agent("root"), ravi_otel.spawn("low", priority=Priority.LOW):
            with pytest.raises(SpawnDeniedError), ravi_otel.agent("late"):
                pytest.fail("it opened")
            with ravi_otel.agent("urgent", priority=Priority.CRITICAL):
                pass
            run.scope.spawn.reprioritize("low", Priority.NORMAL)
    told = [(event.event, event.agent_id) for event in list(progress) if "scope" not in event.event and "limit" not in event.event]
    assert told == [
        ("spawn_granted", "root"), ("spawn_granted", "low"), ("spawn_denied", "late"), ("preempted", "low"), ("spawn_granted", "urgent"),
        ("spawn_released", "urgent"), ("resumed", "low"), ("spawn_released", "low"), ("spawn_released", "root"),
    ]  # fmt: skip


def test_a_report_carries_what_was_given_with_it_and_cannot_be_changed():
    pages = {"done": 3}
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("reading", pages=pages)
    event = next(progress)
    assert (event.data["text"], event.data["pages"]) == ("reading", {"done": 3})
    with pytest.raises(TypeError):
        event.data["text"] = "another"
    with pytest.raises(FrozenInstanceError):
        event.event = "another"


def test_a_long_report_is_cut():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("x" * 5_000)
    assert len(next(progress).data["text"]) == 1_000


@pytest.mark.parametrize("text", [None, 3, b"bytes"])
def test_a_report_that_is_no_text_is_refused_whether_or_not_anybody_reads(text):
    with ravi_otel.run("r") as run, pytest.raises(ConfigurationError, match=r"report\(text\)="):
        run.report(text)


def test_a_report_outside_any_run_changes_nothing(instrumented):
    ravi_otel.report_progress("anybody there?")


def test_progress_needs_no_instrumentation():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        with ravi_otel.agent("a"):
            pass
    assert names(progress) == ["spawn_granted", "scope_opened", "spawn_released", "scope_closed", "scope_closed"]


def test_agents_of_one_id_are_told_by_the_name_of_each(instrumented):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(4)) as run, ravi_otel.agent("boss"):
        progress = run.progress()
        alice, bob = ((contextvars.copy_context(), ravi_otel.agent(name, agent_id="w")) for name in ("Alice", "Bob"))
        for context, agent in (alice, bob):
            context.run(agent.__enter__)
        run.scope.spawn.pause(alice[1].scope.lease)
        for context, agent in (alice, bob):
            context.run(agent.__exit__, None, None, None)
        with ravi_otel.spawn("w"), ravi_otel.agent("Carol", agent_id="w"):
            pass
    told = [(event.event, event.agent_name) for event in progress if event.agent_id == "w" and "scope" not in event.event]
    assert told == [
        ("spawn_granted", "Alice"), ("spawn_granted", "Bob"), ("preempted", "Alice"), ("spawn_released", "Alice"),
        ("spawn_released", "Bob"), ("spawn_granted", None), ("spawn_released", "Carol"),
    ]  # fmt: skip


def test_an_agent_that_is_denied_is_told_by_its_name(instrumented):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(1)) as run, ravi_otel.agent("boss"):
        progress = run.progress()
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("Alice", agent_id="w"):
            pytest.fail("it opened")
    assert [(event.agent_name, event.agent_id) for event in progress if event.event == "spawn_denied"] == [("Alice", "w")]


def test_what_is_no_text_is_refused_by_the_name_of_the_call_that_was_given_it(instrumented):
    with ravi_otel.run("r") as run:
        with pytest.raises(ConfigurationError, match=r"^report_progress\(text\)=None must be a text"):
            ravi_otel.report_progress(None)
        with pytest.raises(ConfigurationError, match=r"^report\(text\)=None must be a text"):
            run.report(None)
