"""What a CostTracker totals, by whom, and what it says of calls whose cost nobody knows."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

import ravi_otel
from ravi_otel import CostTracker, HookEvent, HookManager
from ravi_otel.hooks import Cost
from ravi_otel.hooks import _trackers as trackers


def told(**more):
    return {"agent_name": "a", "model": "m", "cost_usd": 0.5, "usage": {"input_tokens": 1, "output_tokens": 2}, **more}


@pytest.fixture
def tracker(hooks):
    return CostTracker(hooks)


def test_it_totals_by_agent_and_model_what_a_run_really_spends(client, ask, hooks, tracker):
    with ravi_otel.run("r", hooks=hooks) as run:
        ask(client)
        for _ in range(2):
            with ravi_otel.agent("a"):
                ask(client)
    assert tracker.total == Cost(calls=3, usd=0.09, input_tokens=30, output_tokens=60)
    assert tracker.total_usd == run.cost_usd
    assert dict(tracker.by_agent) == {None: Cost(1, 0, 0.03, 10, 20), "a": Cost(2, 0, 0.06, 20, 40)}
    assert dict(tracker.by_model) == {"gpt-4o-mini": tracker.total}


def test_a_call_without_a_price_stays_unknown_beside_what_is_known(client, ask, hooks, tracker):
    with ravi_otel.run("r", hooks=hooks):
        ask(client)
        ask(client, model="a-model-nobody-prices")
    assert (tracker.total_usd, tracker.unknown_calls, tracker.total.calls) == (0.03, 1, 2)
    assert tracker.by_model["a-model-nobody-prices"] == Cost(1, 1, 0.0, 10, 20)


@pytest.mark.parametrize("usd", [None, float("nan"), float("inf"), -1, "0.5", True, {}, 2.0**60])
def test_what_is_no_amount_is_unknown(hooks, tracker, usd):
    hooks.emit(HookEvent.LLM_END, told(cost_usd=usd))
    assert tracker.total == Cost(1, 1, 0.0, 1, 2)


@pytest.mark.parametrize("usage", [None, 3, {}, {"input_tokens": -1, "output_tokens": "2"}, {"input_tokens": True}])
def test_what_is_no_usage_adds_no_tokens(hooks, tracker, usage):
    hooks.emit(HookEvent.LLM_END, told(usage=usage))
    assert tracker.total == Cost(1, 0, 0.5, 0, 0)


def test_tokens_that_nobody_told_apart_are_said_as_such(hooks, tracker, caplog):
    caplog.set_level(logging.INFO, "ravi_otel.cost")
    hooks.emit(HookEvent.LLM_END, told(cost_usd=None, usage={"input_tokens": None, "output_tokens": None, "total_tokens": 500}))
    assert tracker.total == Cost(calls=1, unknown_calls=1, unsplit_tokens=500)
    hooks.emit(HookEvent.RUN_END, {"agent_name": "a"})
    assert caplog.messages[0].endswith("0 input and 0 output tokens, and 500 of which nobody told which they are")


def test_a_call_that_two_managers_tell_counts_once(client, ask):
    managers = [HookManager(), HookManager()]
    tracker = CostTracker(managers[0]).attach(managers[1]).register(managers[1])
    with ravi_otel.run("r", hooks=managers[0]), ravi_otel.agent("a", hooks=managers[1]):
        ask(client)
    assert tracker.total.calls == 1


def test_it_logs_at_the_end_of_each_agent(hooks, tracker, caplog):
    caplog.set_level(logging.INFO, "ravi_otel.cost")
    hooks.emit(HookEvent.LLM_END, told())
    hooks.emit(HookEvent.LLM_END, told(agent_name="b", cost_usd=None))
    hooks.emit(HookEvent.RUN_END, {"agent_name": "b"})
    (line,) = [one.message for one in caplog.records]
    assert line == (
        "agent 'b': $0.000000 for 0 calls, and 1 of unknown cost, 1 input and 2 output tokens; "
        "all agents: $0.500000 for 1 calls, and 1 of unknown cost, 2 input and 4 output tokens"
    )


def test_a_hostile_name_breaks_no_line_of_the_log(hooks, tracker, caplog):
    caplog.set_level(logging.INFO, "ravi_otel.cost")
    hooks.emit(HookEvent.RUN_END, {"agent_name": "a\nERROR \x1b[31m"})
    assert caplog.records[0].message.startswith("agent 'a\\nERROR \\x1b[31m': ")


def test_it_adds_up_exactly_whatever_the_threads(hooks, tracker):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(400):
            pool.submit(hooks.emit, HookEvent.LLM_END, told(cost_usd=0.1))
    assert tracker.total == Cost(400, 0, 40.0, 400, 800)


def test_names_beyond_the_most_are_counted_together(hooks, tracker, monkeypatch):
    monkeypatch.setattr(trackers, "_MOST_NAMES", 2)
    for name in ("a", "b", "c", "d", "a"):
        hooks.emit(HookEvent.LLM_END, told(agent_name=name))
    assert {name: cost.calls for name, cost in tracker.by_agent.items()} == {"a": 2, "b": 1, "_other": 2}


def test_a_photograph_does_not_change_and_cannot_be_changed(hooks, tracker):
    before = tracker.by_agent
    hooks.emit(HookEvent.LLM_END, told())
    assert dict(before) == {}
    with pytest.raises(TypeError):
        tracker.by_agent["a"] = Cost()


def test_it_begins_at_zero_again(hooks, tracker):
    hooks.emit(HookEvent.LLM_END, told())
    tracker.reset()
    assert tracker.total == Cost()
    assert dict(tracker.by_agent) == dict(tracker.by_model) == {}


def test_a_program_that_feeds_it_by_its_own_loop_runs_as_it_is(caplog):
    caplog.set_level(logging.INFO, "ravi_otel.cost")
    heard = []

    async def loop():
        hooks = HookManager()
        tracker = CostTracker()
        tracker.attach(hooks)

        @hooks.on(HookEvent.LLM_END)
        async def after(context):
            await asyncio.sleep(0)
            heard.append(context["usage"]["total_tokens"])

        hooks.register(HookEvent.RUN_START, lambda context: heard.append(context["agent_name"]))
        await hooks.dispatch(HookEvent.RUN_START, {"agent_name": "react", "run_id": "r1"})
        await hooks.dispatch(HookEvent.LLM_END, told(agent_name="react", usage={"total_tokens": 7}))
        await hooks.dispatch(HookEvent.RUN_END, {"agent_name": "react", "run_id": "r1"})
        return tracker.total_usd

    assert asyncio.run(loop()) == 0.5
    assert heard == ["react", 7]
    assert len(caplog.records) == 1
