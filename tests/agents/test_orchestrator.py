"""An orchestrator holds its team: slots, priorities, cycles, a gate, and its own end, which is everybody's under it."""

from __future__ import annotations

import json

import anyio
import pytest
from team_stage import Waiting, delegates, lead_of, waits

import ravi_otel
from ravi_otel import ConfigurationError, Priority, SpawnBudget
from ravi_otel.agents import OrchestratorAgent, ReActAgent, SubAgentConfig, handoff, run_agent
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio
LONGEST_S = 30


class Crashes:
    """Be somebody else's agent, which raises."""

    name = "crashes"

    async def run(self, task):
        raise KeyError(task)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_the_budget_of_the_whole_run_ends_the_parent_too(team):
    def greedy(_request):
        return Text("A lot.", usage=(500, 500))

    lead = lead_of(team, ReActAgent("spender", model=team.plays("spender", greedy)))
    result = await run_agent(lead, "Spend.", limits=["tokens=900"])
    assert not result.ok
    assert result.stop_reason == "limit_tokens"
    assert len(team.requests("lead")) == 1


async def test_more_urgent_work_takes_the_slot_of_a_sub_agent_which_is_told_as_paused(team):
    begun, go = anyio.Event(), anyio.Event()
    urgent = ReActAgent("urgent", model=team.plays("urgent", Text("Put out.")))

    async def stall() -> str:
        """Be at work until the urgent one has ended."""
        begun.set()
        with anyio.fail_after(LONGEST_S):
            await go.wait()
        return "stalled"

    async def alarm() -> str:
        """Start the urgent one, once the other is at work."""
        with anyio.fail_after(LONGEST_S):
            await begun.wait()
        async with ravi_otel.spawn("urgent", priority=Priority.HIGH):
            result = await urgent.run("Fire.")
        go.set()
        return str(result.answer)

    low = ReActAgent("low", model=team.plays("low", ToolCalls([("stall", {})], text="Half of it.")), tools=[stall])
    first = ToolCalls([("delegate_to_low", {"task": "Do it."}), ("alarm", {})])
    lead = OrchestratorAgent(
        "lead",
        model=team.plays("lead", first, Text("Done.")),
        sub_agents=[SubAgentConfig(agent=low, priority=Priority.LOW)],
        tools=[alarm],
        spawn_budget=SpawnBudget(max_agents=2),
    )
    result = await run_agent(lead, "Work.", limits=["time=60s"])
    assert result.ok
    texts = team.texts("lead")
    assert texts[1] == "Put out."
    told = json.loads(texts[0])
    assert (told["status"], told["stop_reason"], told["partial"]) == ("paused", "paused", "Half of it.")


async def test_a_supervisor_may_judge_what_is_delegated(team):
    class NoBigTasks:
        def review(self, action, state, policy):
            big = action["kind"] == "tool" and len(action["args"]["task"]) > 10
            return Decision(DecisionKind.BLOCK if big else DecisionKind.APPROVE, "too_big" if big else "fine")

    sub = ReActAgent("sub", model=team.plays("sub", Text("I did it.")))
    first = ToolCalls([("delegate_to_sub", {"task": "Little."}), ("delegate_to_sub", {"task": "A very big task."})])
    model = team.plays("lead", first, Text("Done."))
    lead = OrchestratorAgent("lead", model=model, sub_agents=[SubAgentConfig(agent=sub)], supervisor=NoBigTasks())
    result = await lead.run("Work.")
    assert result.ok
    did, refused = team.told("lead")
    assert (did["answer"], refused["stop_reason"]) == ("I did it.", "supervisor_block:too_big")
    assert len(team.requests("sub")) == 1


async def test_a_cancelled_parent_cancels_what_it_has_delegated(team):
    left, right = Waiting(), Waiting()
    subs = [
        ReActAgent(name, model=team.plays(name, waits(name)), tools=[waiting.wait]) for name, waiting in (("left", left), ("right", right))
    ]
    lead = lead_of(team, *subs)
    with anyio.fail_after(LONGEST_S):
        async with anyio.create_task_group() as group:
            group.start_soon(lead.run, "Work.")
            await left.begun.wait()
            await right.begun.wait()
            group.cancel_scope.cancel()
    assert left.left.is_set()
    assert right.left.is_set()
    assert len(team.requests("lead")) == 1


async def test_a_run_that_is_cancelled_ends_its_sub_agents_with_it(team):
    waiting = Waiting()
    lead = lead_of(team, ReActAgent("slow", model=team.plays("slow", waits("slow")), tools=[waiting.wait]))
    results = []

    async def work():
        results.append(await lead.run("Work."))

    with anyio.fail_after(LONGEST_S):
        async with ravi_otel.run("outer") as run, anyio.create_task_group() as group:
            group.start_soon(work)
            await waiting.begun.wait()
            run.cancel("enough")
    assert waiting.left.is_set()
    assert [(result.ok, result.stop_reason) for result in results] == [(False, "cancelled")]


class Again:
    """Be an agent that is its own sub-agent."""

    name = "narcissus"

    def __init__(self):
        self.agent = None

    async def run(self, task):
        return await self.agent.run(task)


def narcissus(team, **more):
    """Make an agent whose model delegates to itself whenever it can, and answers with what came of it."""
    again = Again()

    def play(request):
        last = request.body["messages"][-1]
        return delegates("narcissus") if last["role"] == "user" else Text(last["content"])

    again.agent = OrchestratorAgent("narcissus", model=team.plays("narcissus", play), sub_agents=[SubAgentConfig(agent=again)], **more)
    return again.agent


async def test_a_cycle_of_delegation_ends_where_there_are_no_more_slots(team):
    result = await narcissus(team, spawn_budget=SpawnBudget(max_agents=4)).run("Look.")
    assert result.ok
    assert "spawn_denied" in result.answer
    assert len(team.requests("narcissus")) == 2 * 4


async def test_a_cycle_of_delegation_ends_at_its_depth(team):
    result = await run_agent(narcissus(team), "Look.", limits=["depth=2"])
    assert result.ok
    assert "depth" in result.answer
    assert len(team.requests("narcissus")) == 2 * 3


async def test_inside_a_run_an_orchestrators_own_spawn_budget_holds_for_those_under_it(team):
    subs = [ReActAgent(name, model=team.plays(name, Text("I am fine."))) for name in ("one", "other")]
    lead = lead_of(team, *subs, spawn_budget=SpawnBudget(max_agents=1))
    async with ravi_otel.run("outer", spawn_budget=SpawnBudget(max_agents=10)):
        result = await lead.run("Work.")
    assert result.ok
    assert [told["error"] for told in team.told("lead")] == ["spawn_denied", "spawn_denied"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SubAgentConfig(agent="researcher"), "SubAgentConfig(agent)='researcher' must be an agent"),
        (lambda: SubAgentConfig(agent=Crashes(), ask_timeout=0), "ask_timeout)=0 must be seconds above 0"),
        (lambda: SubAgentConfig(agent=Crashes(), ask_timeout=True), "ask_timeout)=True must be seconds above 0"),
        (lambda: SubAgentConfig(agent=Crashes(), priority=3), "SubAgentConfig(priority)"),
        (lambda: OrchestratorAgent("lead", sub_agents=[Crashes()]), "Write SubAgentConfig(agent=...)"),
        (lambda: OrchestratorAgent("lead", sub_agents=[SubAgentConfig(agent=Crashes())] * 2), "'delegate_to_crashes'"),
        (lambda: OrchestratorAgent("lead", spawn_budget=10), "must be a SpawnBudget"),
        (lambda: handoff("researcher"), "handoff(agent)='researcher' must be an agent"),
        (lambda: handoff(Crashes(), limits="message=4"), "must be a list"),
        (lambda: handoff(Crashes(), ask_timeout=float("nan")), "handoff(ask_timeout)"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_cannot_be_used_is_named(make, said):
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert said in str(raised.value)
