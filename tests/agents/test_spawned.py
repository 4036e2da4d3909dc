"""An agent in the background answers whoever asks it, from wherever, or says why it does not."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

import ravi_otel
from ravi_otel import SpawnBudget, SpawnTracker
from ravi_otel.agents import AgentContext, ReActAgent
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio
LONGEST_S = 30


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Helped:
    """Be two agents and their helper: one spawns it and ends, the other has asked it by then."""

    def __init__(self, team, *, stuck):
        self.handle, self.answers = None, []
        self.spawned, self.asking, self.asked = anyio.Event(), anyio.Event(), anyio.Event()
        self.helper = ReActAgent("helper", model=team.plays("helper", partial(self._play, stuck)), tools=[self.hang])
        self.owner = self._agent(team, "owner", self.spawn)
        self.other = self._agent(team, "other", self.ask)

    def _agent(self, team, name, tool):
        return ReActAgent(name, model=team.plays(name, ToolCalls([(tool.__name__, {})]), Text("Done.")), tools=[tool])

    def _play(self, stuck, request):
        return ToolCalls([("hang", {})]) if request.body["messages"][-1]["content"] == stuck else Text("Hello.")

    async def hang(self) -> str:
        """Be at work for ever."""
        self.asked.set()
        await anyio.sleep_forever()
        return "never"

    async def spawn(self) -> str:
        """Have a helper, until it is at work and was asked."""
        self.handle = await AgentContext.current().spawn(self.helper.id, boot="boot")
        self.spawned.set()
        await self.asked.wait()
        await self.asking.wait()  # who waits for a server is blocked, too
        await anyio.wait_all_tasks_blocked()
        return "ok"

    async def ask(self) -> str:
        """Ask the helper."""
        await self.spawned.wait()
        self.asking.set()
        self.answers.append(await AgentContext.current().ask(self.handle, "How?"))
        return "ok"


@pytest.mark.parametrize("stuck", ["boot", "How?"], ids=["in line", "at work"])
async def test_an_agent_that_is_ended_answers_whoever_still_waits_for_it(team, stuck):
    helped = Helped(team, stuck=stuck)
    with anyio.fail_after(LONGEST_S):
        async with anyio.create_task_group() as group:
            group.start_soon(helped.owner.run, "Go.")
            group.start_soon(helped.other.run, "Go.")
    (answer,) = helped.answers
    assert (answer.status, answer.stop_reason, answer.answer) == ("stopped", "cancelled", None)
    assert "was ended before it had answered" in str(answer.error)


async def test_a_plain_function_asks_from_its_thread_through_the_loop(team):
    said = []

    async def hire() -> str:
        """Have a helper."""
        said.append(await AgentContext.current().spawn(helper.id, boot="boot"))
        return "ok"

    def ask(right: bool) -> str:
        """Ask the helper from a thread, through its loop or in one of its own."""
        question = partial(AgentContext.current().ask, said[0], "How?")
        return anyio.from_thread.run(question).answer if right else anyio.run(question).answer

    helper = ReActAgent("helper", model=team.plays("helper", lambda _: Text("Hello.")))
    script = ToolCalls([("hire", {})]), ToolCalls([("ask", {"right": True})]), ToolCalls([("ask", {"right": False})]), Text("Done.")
    agent = ReActAgent("r", model=team.plays("r", *script), tools=[hire, ask])
    with anyio.fail_after(LONGEST_S):
        assert (await agent.run("Go.")).ok
    assert team.texts("r")[1] == "Hello."
    assert "anyio.from_thread.run(ctx.ask, handle, message)" in team.texts("r")[2]


async def test_an_agent_that_is_spawned_sits_on_the_slot_that_was_acquired_for_it(team):
    seen = []

    async def hire() -> str:
        """Have a helper on the slot that is kept for it."""
        slots = SpawnTracker.current()
        with slots.acquire(helper.id):
            handle = await AgentContext.current().spawn(helper.id, boot="boot")
            answer = await AgentContext.current().ask(handle, "How?")
            seen.append((slots.stats().active, answer.answer))
        return "ok"

    helper = ReActAgent("helper", model=team.plays("helper", lambda _: Text("Hello.")))
    agent = ReActAgent("r", model=team.plays("r", ToolCalls([("hire", {})]), Text("Done.")), tools=[hire])
    with anyio.fail_after(LONGEST_S), ravi_otel.run("r", spawn_budget=SpawnBudget(2)):
        assert (await agent.run("Go.")).ok
        assert seen == [(2, "Hello.")]
        assert SpawnTracker.current().stats().active == 1
