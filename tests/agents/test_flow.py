"""A flow runs agents in their order, in one run, and ends with the first that does not come to its end."""

from __future__ import annotations

import asyncio

import anyio
import pytest

import ravi_otel
from ravi_otel import ConfigurationError, HookEvent, HookManager
from ravi_otel.agents import AgentResult, Flow, ReActAgent
from ravi_otel.testing import Text

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def echo(name):
    """Answer with the agent's name around what it was asked."""
    return lambda request: Text(f"{name}({request.body['messages'][-1]['content']})")


def agent_of(team, name, **more):
    return ReActAgent(name, model=team.plays(name, echo(name)), **more)


async def test_each_step_gets_what_the_one_before_answered(team):
    flow = Flow("report", [agent_of(team, "research"), agent_of(team, "write")])
    result = await flow.run("ants")
    assert (result.ok, result.stop_reason, result.answer) == (True, "success", "write(research(ants))")
    assert [each.agent_name for each in result.results] == ["research", "write"]
    assert {each.run_id for each in result.results} == {result.run_id}
    assert result.usage.turns == 2


async def test_agents_of_one_step_work_side_by_side_on_the_same(team):
    inside, both = [], anyio.Event()

    async def meet() -> str:
        """Wait for the other."""
        inside.append(True)
        if len(inside) == 2:
            both.set()
        with anyio.fail_after(30):
            await both.wait()
        return "met"

    class Meets:
        def __init__(self, name):
            self.name = name

        async def run(self, task):
            await meet()
            return await agent_of(team, self.name).run(task)

    flow = Flow("report", [(Meets("critic"), Meets("checker")), agent_of(team, "write")])
    result = await flow.run("ants")
    assert result.answer == "write(critic:\ncritic(ants)\n\nchecker:\nchecker(ants))"


async def test_it_is_told_as_a_flow_around_its_agents(team):
    hooks, told = HookManager(), []
    for event in (HookEvent.FLOW_START, HookEvent.RUN_START, HookEvent.RUN_END, HookEvent.FLOW_END):
        hooks.on(event)(lambda ctx, event=event: told.append(event))
    await Flow("report", [agent_of(team, "one"), agent_of(team, "two")], hooks=hooks).run("ants")
    run = [HookEvent.RUN_START, HookEvent.RUN_END]
    assert told == [HookEvent.FLOW_START, *run, *run, HookEvent.FLOW_END]


async def test_it_ends_with_the_agent_that_does_not_come_to_its_end(team):
    flow = Flow("report", [agent_of(team, "one"), agent_of(team, "two", limits=["turns=0"]), agent_of(team, "three")])
    result = await flow.run("ants")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "limit_turns", None)
    assert isinstance(result.error, ravi_otel.BudgetExhaustedError)
    assert [each.ok for each in result.results] == [True, False]
    assert team.requests("three") == []


async def test_an_agent_that_crashes_ends_it_as_an_error_and_keeps_no_other_from_its_end(team):
    class Crashes:
        name = "crashes"

        async def run(self, task):
            raise KeyError(task)

    result = await Flow("report", [(Crashes(), agent_of(team, "fine"))]).run("ants")
    assert (result.status, result.stop_reason) == ("error", "error")
    assert isinstance(result.error, KeyError)
    assert [each.answer for each in result.results] == [None, "fine(ants)"]


async def test_its_limits_hold_for_all_its_agents_together(team):
    flow = Flow("report", [agent_of(team, "one"), agent_of(team, "two")], limits=["turns=1"])
    first, again = await flow.run("ants"), await flow.run("bees")
    for result in (first, again):
        assert (result.stop_reason, [each.ok for each in result.results]) == ("limit_turns", [True, False])


class Late:
    """Be somebody else's agent, at work when the flow's time is up, which it does not look at."""

    name = "late"

    def __init__(self, *, ends):
        self.ends, self.runs = ends, 0

    async def run(self, task):
        self.runs += 1
        ravi_otel.current_scope().set_limit("time", 1e-6)  # which is over before the next step, on the quickest machine
        if not self.ends:
            await anyio.sleep_forever()
        return AgentResult(agent_name="late", run_id="", status="ok", stop_reason="success", answer="late")


@pytest.mark.parametrize("beside", [False, True])
async def test_an_agent_that_hangs_past_the_flows_time_is_cut_off(team, beside):
    late = Late(ends=False)
    flow = Flow("report", [(late, agent_of(team, "fine")) if beside else late], limits=["time=1h"])
    with anyio.fail_after(30):
        result = await flow.run("ants")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "deadline", None)
    assert isinstance(result.error, ravi_otel.DeadlineExceededError)
    assert result.results[0].stop_reason == "deadline"


async def test_no_step_begins_past_the_flows_time(team):
    late = Late(ends=True)
    result = await Flow("report", [late, late], limits=["time=1h"]).run("ants")
    assert (result.status, result.stop_reason, late.runs) == ("stopped", "deadline", 1)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_agent_that_is_cancelled_by_what_it_waits_for_has_not_come_to_its_end(team, beside):
    class Vanishes:
        name = "vanishes"

        async def run(self, task):
            raise asyncio.CancelledError

    result = await Flow("report", [(Vanishes(), agent_of(team, "fine")) if beside else Vanishes()]).run("ants")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "cancelled", None)
    assert [(each.agent_name, each.ok) for each in result.results] == [("vanishes", False), ("fine", True)][: 1 + beside]


async def test_a_signal_comes_out_as_it_is(team):
    class Exits:
        name = "exits"

        async def run(self, task):
            raise SystemExit(3)

    with pytest.raises(SystemExit) as raised:
        await Flow("report", [(Exits(), agent_of(team, "fine"))]).run("ants")
    assert raised.value.code == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_runs_from_a_thread_without_a_loop(team):
    flow = Flow("report", [agent_of(team, "one")])
    assert (await anyio.to_thread.run_sync(flow.run_blocking, "ants")).answer == "one(ants)"


@pytest.mark.parametrize("steps", [[], "agents", 3, ["agent"], [()]], ids=repr)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_no_step_is_refused(steps):
    with pytest.raises(ConfigurationError, match=r"Flow\("):
        Flow("report", steps)
