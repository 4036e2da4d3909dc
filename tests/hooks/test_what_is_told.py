"""What hooks are told of denied spawns, supervised agents and inferred tools, and what they are not told for want of instrument()."""

import contextvars

import pytest

import ravi_otel
from ravi_otel import CostTracker, HookEvent, HookManager, RetryPolicy, SpawnBudget, SpawnDeniedError
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Text, ToolCalls


def only(log, event):
    return [one.context for one in log if one.event is event]


def denied_by_slots(hooks):
    with ravi_otel.run("r", hooks=hooks, spawn_budget=SpawnBudget(max_agents=1)), ravi_otel.agent("root"), ravi_otel.agent("child"):
        pass


def denied_by(limit, budget=None):
    def acts(hooks):
        with ravi_otel.run("r", hooks=hooks, limits=[limit], spawn_budget=budget), ravi_otel.agent("root"), ravi_otel.agent("child"):
            ravi_otel.supervise(int, agent="its own")

    return acts


@pytest.mark.parametrize(
    ("act", "kind", "most"),
    [
        (denied_by_slots, "agents", 1),
        (denied_by("agents=2"), "agents", 2),
        (denied_by("agents_total=2"), "agents_total", None),
        (denied_by("agents_total=2", SpawnBudget(max_agents=9)), "agents_total", 9),
    ],
    ids=["budget", "agents", "agents_total", "agents_total beside a budget"],
)
def test_a_denied_spawn_says_which_limit_refused_and_how_many_may_be_live(hooks, log, act, kind, most):
    with pytest.raises(SpawnDeniedError) as denied:
        act(hooks)
    (told,) = only(log, HookEvent.SPAWN_DENIED)
    assert (told["limit_kind"], told["max_agents"]) == (kind, most)
    assert denied.value.limit_kind == kind


def test_one_child_too_many_is_told_as_a_limit_of_fan_out(hooks, log):
    with ravi_otel.run("r", hooks=hooks, limits=["fan_out=1"]), ravi_otel.agent("root"):
        first = ravi_otel.agent("first")
        beside = contextvars.copy_context()
        beside.run(first.__enter__)
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("second"):
            pass
        beside.run(first.__exit__, None, None, None)
    (told,) = only(log, HookEvent.SPAWN_DENIED)
    assert (told["agent_id"], told["limit_kind"], told["max_agents"]) == ("second", "fan_out", None)


@pytest.mark.parametrize(("budget", "limit"), [(None, None), (SpawnBudget(max_agents=3), 3)])
def test_the_counts_of_a_run_say_none_where_nothing_limits_its_agents(budget, limit):
    with ravi_otel.run("r", spawn_budget=budget), ravi_otel.agent("root"):
        assert ravi_otel.SpawnTracker.current().stats().limit == limit


def test_a_slot_that_was_lost_or_given_again_was_refused_by_no_limit(hooks, log):
    with ravi_otel.run("r", hooks=hooks, spawn_budget=SpawnBudget(max_agents=2)), ravi_otel.agent("root"), ravi_otel.agent("a"):
        assert ravi_otel.SpawnTracker.current().pause("a")
        assert ravi_otel.SpawnTracker.current().resume("a")
    (lost,), (again,) = only(log, HookEvent.PREEMPTED), only(log, HookEvent.RESUMED)
    assert (lost["limit_kind"], again["limit_kind"]) == (None, None)


def test_each_attempt_of_a_supervised_agent_says_which_it_is(hooks, log):
    def crashes():
        begun.append(1)
        if len(begun) < 3:
            raise ValueError("not yet")

    begun = []
    with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("root"):
        ravi_otel.supervise(crashes, RetryPolicy(max_retries=3), agent="worker")
    told = [(one.event.value, one.context["attempt"], one.context.get("status")) for one in log if one.context["agent_name"] == "worker"]
    assert told == [
        ("run_start", 1, None), ("run_end", 1, "error"), ("run_start", 2, None), ("run_end", 2, "error"), ("run_start", 3, None),
        ("run_end", 3, "ok"),
    ]  # fmt: skip
    assert [one["attempt"] for one in only(log, HookEvent.RUN_END) if one["agent_name"] == "root"] == [None]


def test_a_tool_that_nobody_saw_run_is_told_as_inferred_and_one_of_ours_is_not(stage, client, ask, hooks, log):
    @ravi_otel.tool
    def seen():
        return 1

    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    stage.answer = ToolCalls([("look", {"word": "x"})])
    with ravi_otel.run("r", hooks=hooks):
        asked = ask(client, tools=tools).choices[0].message
        stage.answer = Text("ok", usage=(10, 20))
        ask(
            client,
            tools=tools,
            messages=[
                {"role": "user", "content": "hi"},
                asked.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "found"},
            ],
        )
        seen()
    told = [(one.event.value, one.context["tool_name"], one.context["inferred"]) for one in log if one.event.startswith("tool_")]
    assert told == [
        ("tool_start", "look", True), ("tool_end", "look", True), ("tool_start", "seen", False), ("tool_end", "seen", False),
    ]  # fmt: skip


@pytest.fixture
def warned(monkeypatch, caplog):
    """Give what was warned of, as if nothing had been before."""
    monkeypatch.setattr(STATE, "_warned", set())
    return lambda: [one.message for one in caplog.records if "instrument() was not called" in one.message]


@pytest.mark.parametrize("front", [ravi_otel.run, ravi_otel.agent])
def test_hooks_that_wait_for_calls_of_clients_that_nobody_wrapped_are_warned_of_once(warned, front):
    hooks = HookManager()
    CostTracker(hooks)
    for _ in range(2):
        with front("a", hooks=hooks):
            pass
    (said,) = warned()
    assert said.startswith("ravi-otel: hooks were given, but ravi_otel.instrument() was not called: ")
    assert said.endswith("model calls are neither told to them nor counted, except those of ravi_otel.agents.")


def test_limits_and_hooks_are_warned_of_each_for_itself(warned, hooks, log):
    with ravi_otel.run("r", hooks=hooks, limits=["tokens=1k"]), ravi_otel.agent("a", limits=["tokens=1k"]):
        pass
    assert [one.partition(",")[0] for one in warned()] == ["ravi-otel: limits were set", "ravi-otel: hooks were given"]


@pytest.mark.parametrize("event", [HookEvent.RUN_END, HookEvent.REVIEW, HookEvent.FLOW_START])
def test_hooks_that_wait_for_no_calls_are_not_warned_of(warned, hooks, event):
    hooks.register(event, lambda context: None)
    with ravi_otel.run("r", hooks=hooks):
        pass
    assert warned() == []


def test_hooks_of_an_instrumented_program_are_not_warned_of(warned, instrumented, hooks, log):
    with ravi_otel.run("r", hooks=hooks, limits=["tokens=1k"]):
        pass
    assert warned() == []
