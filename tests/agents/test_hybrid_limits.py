"""Limits at the runner and at a handoff hold together: what ends early says why, and what is around it goes on."""

from __future__ import annotations

import pytest
from team_stage import Waiting, patiently

import ravi_otel
from ravi_otel import BudgetExhaustedError, DeadlineExceededError, HookEvent, HookManager, message_limit, time_limit
from ravi_otel.agents import ReActAgent, build_supervisor, handoff, run_agent
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def look(what: str) -> str:
    """Look something up."""
    return f"{what}: nothing yet"


def restless(request):
    """Look up something else, for ever."""
    return ToolCalls([("look", {"what": f"clue {len(request.body['messages'])}"})], text="Still looking.", usage=(10, 5))


async def test_a_message_limit_in_a_handoff_ends_it_early_with_the_reason_surfaced(team):
    hooks, events = HookManager(), []
    hooks.on(HookEvent.LIMIT_EXCEEDED)(lambda ctx: events.append((str(ctx["scope"]), ctx["limit_kind"], ctx["threshold"])))
    researcher = ReActAgent("researcher", model=team.plays("researcher", restless), tools=[look])
    lead = ReActAgent(
        "lead",
        model=team.plays("lead", ToolCalls([("transfer_to_researcher", {"task": "Find it."})]), Text("It was not found in time.")),
        tools=[handoff(researcher, limits=[message_limit(8)])],
    )
    async with ravi_otel.run("case", hooks=hooks):
        result = await lead.run("Have it found.")
    assert (result.status, result.answer) == ("ok", "It was not found in time.")
    (told,) = team.told("lead")
    assert (told["agent"], told["status"], told["stop_reason"]) == ("researcher", "stopped", "limit_messages")
    assert "limit of messages" in told["message"]
    (row,) = result.trace
    assert (row["tool"], row["ok"], row["stop_reason"]) == ("transfer_to_researcher", False, "limit_messages")
    assert 1 < len(team.requests("researcher")) < 5
    assert events == [("handoff", "messages", 8)]


async def test_each_handoff_counts_its_messages_afresh(team):
    researcher = ReActAgent("researcher", model=team.plays("researcher", lambda _: Text("Found.")))
    twice = [ToolCalls([("transfer_to_researcher", {"task": f"Find {thing}."})]) for thing in ("it", "the other")]
    lead = ReActAgent("lead", model=team.plays("lead", *twice, Text("Both found.")), tools=[handoff(researcher, limits=["message=2"])])
    result = await lead.run("Have both found.")
    assert result.answer == "Both found."
    assert [told["answer"] for told in team.told("lead")] == ["Found.", "Found."]


async def test_a_runner_wall_clock_stops_an_agent_that_does_nothing(team):
    async def attempt(seconds):
        waiting = Waiting()
        idle = ReActAgent("idle", model=team.plays("idle", lambda _: ToolCalls([("wait", {})])), tools=[waiting.wait])
        result, error = await run_agent(idle, "Wait.", limits=[time_limit(seconds)], return_limit_error=True)
        return (waiting, result, error) if waiting.begun.is_set() else None

    waiting, result, error = await patiently(attempt)
    assert (result.status, result.stop_reason) == ("stopped", "deadline")
    assert isinstance(error, DeadlineExceededError)
    assert waiting.left.is_set()
    assert [row["tool"] for row in result.trace] in ([], ["wait"])


async def test_the_wall_clock_of_the_runner_reaches_into_sub_agents(team):
    async def attempt(seconds):
        waiting = Waiting()
        # For ever: a request of the attempt before, which was cut off, may arrive late.
        idle = ReActAgent("idle", model=team.plays("idle", lambda _: ToolCalls([("wait", {})])), tools=[waiting.wait])
        hands_over = ToolCalls([("transfer_to_idle", {"task": "Wait."})])
        lead = ReActAgent("lead", model=team.plays("lead", lambda _: hands_over), tools=[handoff(idle)])
        with pytest.raises(DeadlineExceededError):
            await run_agent(lead, "Have it waited for.", limits=[time_limit(seconds)], raise_on_limit=True)
        return waiting if waiting.begun.is_set() else None

    assert (await patiently(attempt)).left.is_set()


async def test_a_supervisor_with_two_attempts_takes_several_turns_before_it_submits(team):
    model = team.plays(
        "chief",
        ToolCalls([("look", {"what": "the key"})]),
        Text("I should look again."),
        ToolCalls([("look", {"what": "the door"})]),
        ToolCalls([("submit", {"answer": "It is behind the door."})]),
    )
    supervisor = build_supervisor("You solve cases.", [look], attempts=2, model=model)
    result = await run_agent(supervisor, "Where is it?", limits=[message_limit(40), time_limit(60)])
    assert (result.status, result.stop_reason, result.answer) == ("ok", "success", "It is behind the door.")
    assert len(team.requests("chief")) == 4
    assert [row["tool"] for row in result.trace if row["tool"] != "submit"] == ["look", "look"]


async def test_a_submission_that_is_not_accepted_is_tried_again_as_often_as_there_are_attempts(team):
    answers = [ToolCalls([("submit", {"answer": text})]) for text in ("41", "42")]
    supervisor = build_supervisor("Count.", [], attempts=2, model=team.plays("chief", *answers), check=lambda answer: answer == "42")
    result = await supervisor.run("How many?")
    assert (result.status, result.answer) == ("ok", "42")


async def test_the_last_attempt_is_the_answer_and_is_told_as_not_accepted(team):
    answers = [ToolCalls([("submit", {"answer": text})]) for text in ("40", "41")]
    supervisor = build_supervisor("Count.", [], attempts=2, model=team.plays("chief", *answers), check=lambda answer: answer == "42")
    result = await supervisor.run("How many?")
    assert (result.status, result.stop_reason, result.partial) == ("stopped", "not_accepted", "41")


async def test_a_supervisor_that_never_submits_is_ended_by_the_runners_limit(team):
    supervisor = build_supervisor("Talk.", [], model=team.plays("chief", lambda _: Text("Let me think.")))
    with pytest.raises(BudgetExhaustedError) as raised:
        await run_agent(supervisor, "Well?", limits=[message_limit(12)], raise_on_limit=True)
    assert raised.value.limit_kind == "messages"
    assert len(team.requests("chief")) > 2
