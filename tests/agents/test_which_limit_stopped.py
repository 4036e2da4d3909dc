"""Under the text of an agent that a limit stopped a line says which limit it was: where that is asked for, once, and to no model."""

from __future__ import annotations

import pytest
from desk_stage import Desk, agent_of, final, use
from team_stage import lead_of

import ravi_otel
from ravi_otel import footer, turn_limit
from ravi_otel.agents import Flow, ReActAgent, run_agent
from ravi_otel.agents.history import MemoryHistory
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio

LINE = "[stopped by the turn limit of agent 'worker': 3 of 3]"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def footers(team):
    """Turn footers on."""
    with ravi_otel.instrument(footers=True):
        yield


def look() -> str:
    """Look."""
    return "nothing yet"


def play(request):
    """Look for ever, and say something meanwhile; without tools on offer answer."""
    return ToolCalls([("look", {})], text="I look.") if request.body.get("tools") else Text("All I know.")


def worker(team, on, **more):
    return ReActAgent("worker", model=team.plays("worker", play), tools=[look], limits=[turn_limit(3, on_exceed=on)], **more)


async def test_the_answer_that_a_last_call_gave_has_the_line_once(team, footers):
    result = await worker(team, "final").run("Look.")
    assert (result.status, result.stop_reason) == ("stopped", "limit_turns")
    assert result.answer == result.partial == f"All I know.\n{footer(result.error)}"
    assert result.answer.count("[stopped by the turn limit of agent 'worker'") == 1


@pytest.mark.parametrize("on", ["raise", "stop"])
async def test_what_there_is_without_an_answer_has_it_too(team, footers, on):
    result = await worker(team, on).run("Look.")
    assert (result.answer, result.partial) == (None, f"I look.\n{LINE}")


async def test_without_being_asked_for_it_nobody_reads_of_limits(team):
    assert (await worker(team, "final").run("Look.")).answer == "All I know."
    assert (await worker(team, "stop").run("Look.")).partial == "I look."


async def test_an_answer_that_no_limit_stopped_has_none(team, footers):
    result = await ReActAgent("clerk", model=team.plays("clerk", Text("Done."))).run("Work.")
    assert (result.ok, result.answer) == (True, "Done.")


async def test_a_limit_of_the_runner_is_named_as_the_runs(team, footers):
    agent = ReActAgent("worker", model=team.plays("worker", play), tools=[look])
    result = await run_agent(agent, "Look.", limits=[turn_limit(3)])
    assert result.partial == "I look.\n[stopped by the turn limit of run 'worker': 3 of 3]"


async def test_a_parents_model_is_told_in_words_and_a_team_that_is_stopped_says_so(team, footers):
    result = await run_agent(lead_of(team, worker(team, "final"), then="We know little."), "Work.")
    assert (result.ok, result.answer) == (True, "We know little.")
    (told,) = team.told("lead")
    assert (told["stop_reason"], told["partial"]) == ("limit_turns", "All I know.")
    lead = lead_of(team, ReActAgent("helper", model=team.plays("helper", Text("Helped."))), limits=[turn_limit(1)])
    stopped = await lead.run("Work.")
    assert stopped.stop_reason == "limit_turns"
    assert "[stopped" not in str(team.requests("lead"))


async def test_a_session_does_not_remember_it(team, footers):
    store = MemoryHistory()
    await worker(team, "final", history=store).run("Look.", session_id="s")
    kept = await store.load("s", agent_name="worker")
    assert kept[-1].content == "All I know."


async def test_the_results_of_a_flow_have_it(team, footers):
    result = await Flow("report", [worker(team, "final")]).run("Look.")
    assert result.results[-1].answer == f"All I know.\n{footer(result.error)}"


async def test_a_supervised_agents_last_answer_has_it_under_the_text_that_was_reviewed(team, footers):
    agent = agent_of(team, Desk(), use("look", user_id=1), final("Probably yes."))
    result, error = await run_agent(agent, "Look.", limits=[turn_limit(2, on_exceed="final")], return_limit_error=True)
    assert result.error is error
    assert result.answer == f"Probably yes.\n{footer(error)}"
    assert result.history[-1]["executed_action"]["answer"] == "Probably yes."
