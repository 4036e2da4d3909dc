"""However a sub-agent ends, its parent's model is told so as a result, and nobody else ends with it."""

from __future__ import annotations

import json
import threading

import anyio
import pytest
from team_stage import Waiting, delegates, lead_of, patiently, waits

import ravi_otel
from ravi_otel import ExecutionBudget, Priority, SpawnBudget, SpawnTracker
from ravi_otel.agents import AgentTool, OrchestratorAgent, ReActAgent, SubAgentConfig, handoff
from ravi_otel.testing import Failure, Text, ToolCalls

pytestmark = pytest.mark.anyio
LONGEST_S = 30


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Slots:
    """Look at the run's slots as a tool of the lead."""

    def __init__(self):
        self.active = None

    def look(self) -> str:
        """Look at the slots."""
        self.active = SpawnTracker.current().stats().active
        return "looked"


async def test_what_one_answer_delegates_is_worked_on_side_by_side(team):
    both = {"left": anyio.Event(), "right": anyio.Event()}
    active = []

    def meeting(mine, other):
        async def meet() -> str:
            """Wait until the other is at work too."""
            both[mine].set()
            with anyio.fail_after(LONGEST_S):
                await both[other].wait()
            active.append(SpawnTracker.current().stats().active)
            return "met"

        return ReActAgent(mine, model=team.plays(mine, ToolCalls([("meet", {})]), Text(f"{mine} is done.")), tools=[meet])

    lead = lead_of(team, meeting("left", "right"), meeting("right", "left"), spawn_budget=SpawnBudget(max_agents=3))
    result = await lead.run("Meet.")
    assert result.ok
    assert [told["answer"] for told in team.told("lead")] == ["left is done.", "right is done."]
    assert active == [3, 3]


async def test_the_same_sub_agent_twice_in_one_answer_is_two_leases(team):
    active = []
    here, both = [], anyio.Event()

    async def meet() -> str:
        """Wait until there are two."""
        here.append(True)
        if len(here) == 2:
            both.set()
        with anyio.fail_after(LONGEST_S):
            await both.wait()
        active.append(SpawnTracker.current().stats().active)
        return "met"

    def twin(request):
        return ToolCalls([("meet", {})]) if request.body["messages"][-1]["role"] == "user" else Text("Met.")

    lead = lead_of(team, ReActAgent("twin", model=team.plays("twin", twin), tools=[meet]), names=["twin", "twin"])
    assert (await lead.run("Meet.")).ok
    assert active == [3, 3]


async def test_a_sub_agent_without_a_slot_is_a_result_and_its_sibling_goes_on(team):
    denied = anyio.Event()

    async def hold() -> str:
        """Hold the only slot until the other was denied it."""
        with anyio.fail_after(LONGEST_S):
            await denied.wait()
        return "held"

    hooks = ravi_otel.HookManager()
    hooks.on(ravi_otel.HookEvent.SPAWN_DENIED)(lambda _: denied.set())

    def play(request):
        return ToolCalls([("hold", {})]) if request.body["messages"][-1]["role"] == "user" else Text("I had the slot.")

    subs = [ReActAgent(name, model=team.plays(name, play), tools=[hold]) for name in ("first", "second")]
    lead = lead_of(team, *subs, spawn_budget=SpawnBudget(max_agents=2), hooks=hooks)
    result = await lead.run("Both at once.")
    assert result.ok
    told = {one.get("error", one.get("status")): one for one in team.told("lead")}
    assert set(told) == {"ok", "spawn_denied"}
    assert told["ok"]["answer"] == "I had the slot."
    assert (told["spawn_denied"]["max_agents"], "way_out" in told["spawn_denied"]) == (2, True)
    assert [row["stop_reason"] for row in result.trace if not row["ok"]] == ["spawn_denied"]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"execution_budget": ExecutionBudget(max_tokens=50)}, "tokens"),
        ({"execution_budget": ExecutionBudget(max_turns=1)}, "turns"),
        ({"limits": ["tool_calls=1"]}, "tool_calls"),
        ({"limits": ["requests=2"]}, "requests"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_breach_in_a_sub_agent_reaches_its_parent_as_a_result(team, more, kind):
    def look(what: str) -> str:
        """Look."""
        return what

    def greedy(request):
        return ToolCalls([("look", {"what": str(len(request.body["messages"]))})], text="So far nothing.", usage=(40, 20))

    other = ReActAgent("other", model=team.plays("other", Text("I am fine.")))
    spender = ReActAgent("spender", model=team.plays("spender", greedy), tools=[look], **more)
    result = await lead_of(team, spender, other).run("Spend.")
    assert (result.status, result.answer) == ("ok", "Done.")
    breached, fine = team.told("lead")
    assert (breached["agent"], breached["stop_reason"]) == ("spender", f"limit_{kind}")
    assert breached["status"] in ("stopped", "error")
    assert kind in breached["message"]
    assert fine["answer"] == "I am fine."
    assert [(row["ok"], row.get("stop_reason")) for row in result.trace] == [(False, f"limit_{kind}"), (True, None)]


async def test_ask_timeout_cancels_the_sub_agent_and_gives_its_slot_back(team):
    async def attempt(seconds):
        waiting, slots = Waiting(), Slots()
        slow = ReActAgent("slow", model=team.plays("slow", waits("slow")), tools=[waiting.wait])
        lead = OrchestratorAgent(
            "lead",
            model=team.plays("lead", delegates("slow"), ToolCalls([("look", {})]), Text("Without it, then.")),
            sub_agents=[SubAgentConfig(agent=slow, ask_timeout=seconds)],
            tools=[slots.look],
        )
        result = await lead.run("Ask.")
        return (waiting, slots, result) if waiting.begun.is_set() else None

    waiting, slots, result = await patiently(attempt)
    assert (result.ok, result.answer) == (True, "Without it, then.")
    (told,) = [json.loads(text) for text in team.texts("lead") if text.startswith("{")]
    assert (told["agent"], told["status"], told["stop_reason"]) == ("slow", "stopped", "ask_timeout")
    assert waiting.left.is_set()
    assert slots.active == 1
    assert result.trace[0]["stop_reason"] == "ask_timeout"


async def test_ask_timeout_hangs_up_on_the_model_that_the_sub_agent_waits_for(team):
    before = team.server.sent.hang_ups

    async def attempt(seconds):
        slow = ReActAgent("slow", model=team.plays("slow", Text("Too late.", think_s=60)))
        result = await lead_of(team, SubAgentConfig(agent=slow, ask_timeout=seconds)).run("Ask.")
        return result if team.requests("slow") else None

    assert (await patiently(attempt)).ok
    assert team.told("lead")[0]["stop_reason"] == "ask_timeout"
    await anyio.to_thread.run_sync(team.server.wait_for_hang_ups, before + 1)


async def test_what_a_sub_agent_has_left_in_a_thread_asks_nobody_any_more(team):
    async def attempt(seconds):
        begun, go_on, over, ends = threading.Event(), threading.Event(), threading.Event(), []

        def linger() -> str:
            """Be at work until the one who waited has given up."""
            begun.set()
            go_on.wait(LONGEST_S)
            return "and again"

        hired = ReActAgent("hired", model=team.plays("hired", lambda _: ToolCalls([("linger", {})])), tools=[linger])

        def hire() -> str:
            """Run another agent in this thread."""
            try:
                ends.append(hired.run_blocking("Go.").stop_reason)
            finally:
                over.set()
            return "hired"

        slow = ReActAgent("slow", model=team.plays("slow", ToolCalls([("hire", {})])), tools=[hire])
        async with ravi_otel.run("case"):
            assert (await lead_of(team, SubAgentConfig(slow, ask_timeout=seconds)).run("Ask.")).ok
            asked = len(team.requests("hired"))
            go_on.set()
            if not begun.is_set():
                return None
            assert await anyio.to_thread.run_sync(over.wait, LONGEST_S)
        assert len(team.requests("hired")) == asked
        return ends

    assert await patiently(attempt) == ["closed"]


async def test_a_paused_sub_agent_is_told_with_what_it_has(team):
    def step_aside() -> str:
        """Lose the slot, as to an operator."""
        SpawnTracker.current().pause("modest")
        return "aside"

    modest = ReActAgent("modest", model=team.plays("modest", ToolCalls([("step_aside", {})], text="Half of it.")), tools=[step_aside])
    result = await lead_of(team, SubAgentConfig(agent=modest, priority=Priority.LOW)).run("Work.")
    assert result.ok
    (told,) = team.told("lead")
    assert (told["status"], told["stop_reason"]) == ("paused", "paused")


async def test_a_sub_agent_whose_model_fails_is_told_as_an_error(team):
    broken = ReActAgent("broken", model=team.plays("broken", lambda _: Failure(400, "no such thing")))
    other = ReActAgent("other", model=team.plays("other", Text("I am fine.")))
    result = await lead_of(team, broken, other).run("Work.")
    assert result.ok
    failed, fine = team.told("lead")
    assert (failed["agent"], failed["status"], failed["stop_reason"]) == ("broken", "error", "llm_error:BadRequestError")
    assert fine["answer"] == "I am fine."


class Crashes:
    """Be somebody else's agent, which raises."""

    name = "crashes"

    async def run(self, task):
        raise KeyError(task)


async def test_a_sub_agent_that_crashes_is_told_as_an_error(team):
    result = await lead_of(team, Crashes()).run("Work.")
    assert result.ok
    (told,) = team.told("lead")
    assert (told["status"], told["message"]) == ("error", "Agent 'crashes' failed with KeyError: 'Do it.'.")


class Limited:
    """Be somebody else's agent, which lets a limit of its own out as it is."""

    name = "limited"

    async def run(self, task):
        with ravi_otel.agent(self.name, limits=["charge.rows=1"]):
            ravi_otel.current_scope().charge("rows", 2)


async def test_a_limit_that_somebody_elses_agent_raises_is_told_as_one(team):
    result = await lead_of(team, Limited()).run("Work.")
    assert result.ok
    (told,) = team.told("lead")
    assert (told["status"], told["stop_reason"]) == ("stopped", "limit_custom")
    assert "limit of" in told["message"]


async def test_the_time_of_a_handoff_ends_what_waits_in_it_and_nothing_else(team):
    async def attempt(seconds):
        waiting = Waiting()
        slow = ReActAgent("slow", model=team.plays("slow", waits("slow")), tools=[waiting.wait])
        first = ToolCalls([("transfer_to_slow", {"task": "Wait."})])
        lead = ReActAgent(
            "lead",
            model=team.plays("lead", first, Text("Without it, then.")),
            tools=[handoff(slow, limits=[ravi_otel.time_limit(seconds)])],
        )
        result = await lead.run("Work.")
        return (waiting, result) if waiting.begun.is_set() else None

    waiting, result = await patiently(attempt)
    assert (result.ok, result.answer) == (True, "Without it, then.")
    assert waiting.left.is_set()
    assert (result.trace[0]["ok"], result.trace[0]["stop_reason"]) == (False, "deadline")
    assert team.told("lead")[0]["partial"] == "slow waits."


async def test_what_a_sub_agent_wraps_up_with_reaches_its_parent_and_stays_inside_the_budget(team):
    def look() -> str:
        """Look."""
        return "nothing yet"

    def play(request):
        return ToolCalls([("look", {})]) if request.body.get("tools") else Text("All I know.")

    limits = [ravi_otel.turn_limit(3, on_exceed="final")]
    spender = ReActAgent("spender", model=team.plays("spender", play), tools=[look], limits=limits)
    result = await lead_of(team, spender).run("Work.")
    assert result.ok
    (told,) = team.told("lead")
    assert (told["status"], told["stop_reason"], told["partial"]) == ("stopped", "limit_turns", "All I know.")
    assert len(team.requests("spender")) == 3


async def test_a_handoff_has_a_name_of_its_own_and_tells_hooks_who_takes_over(team):
    hooks, told = ravi_otel.HookManager(), []
    hooks.on(ravi_otel.HookEvent.HANDOFF)(lambda ctx: told.append((ctx["agent_name"], ctx["to"])))
    clerk = ReActAgent("the clerk", model=team.plays("the clerk", Text("Filed.")), description="Files things.")
    tool = handoff(clerk)
    assert tool.name == "transfer_to_the_clerk"
    assert tool.description.endswith("Files things.")
    lead = ReActAgent(
        "lead", model=team.plays("lead", ToolCalls([("transfer_to_the_clerk", {"task": "File it."})]), Text("Done.")), tools=[tool]
    )
    async with ravi_otel.run("office", hooks=hooks):
        assert (await lead.run("File it.")).ok
    assert told == [("lead", "the clerk")]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda one: ReActAgent("lead", tools=[ravi_otel.handoff("one")]), r"ravi_otel\.agents\.handoff\(agent"),
        (ravi_otel.handoff, r"ravi_otel\.agents\.handoff\(agent\)"),
        (lambda one: ReActAgent("lead", tools=[handoff(one), handoff(one)]), r"handoff\(agent, name="),
        (lambda one: handoff(one, name="to the one"), "ASCII letters"),
        (lambda one: AgentTool(len, name=5), "ASCII letters"),
        (lambda one: OrchestratorAgent("lead", spawn_budget=10), r"OrchestratorAgent\(spawn_budget\)=10"),
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_cannot_hand_over_is_refused_with_what_can(make, said):
    with pytest.raises(ravi_otel.ConfigurationError, match=said):
        make(ReActAgent("one"))
