"""A supervisor's run ends with what it submits, and a conversation that has grown too long is shortened if that is asked for."""

from __future__ import annotations

import json

import pytest

import ravi_otel
from ravi_otel import ConfigurationError, StopRun
from ravi_otel.agents import AgentContext, build_supervisor, run_agent
from ravi_otel.agents.history import SlidingWindow
from ravi_otel.agents.middleware import OutputGuardrail
from ravi_otel.policy._contracts import ChatMessage
from ravi_otel.testing import Failure, Text, ToolCalls

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def submits(*answers):
    return ToolCalls([("submit", {"answer": answer}) for answer in answers])


async def test_the_first_submission_is_the_answer(team):
    result = await build_supervisor("Count.", model=team.plays("chief", Text("Counting."), submits("42"))).run("How many?")
    assert (result.ok, result.stop_reason, result.answer) == (True, "success", "42")
    sent = team.requests("chief")[-1]["messages"]
    assert sent[0]["content"].startswith("Count.\n\n")
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]


async def test_of_two_submissions_in_one_answer_one_counts(team):
    result = await build_supervisor("Count.", model=team.plays("chief", submits("42", "43"))).run("How many?")
    assert result.ok
    assert result.answer in ("42", "43")
    assert sorted(row["ok"] for row in result.trace) == [False, True]


async def test_a_check_says_why_it_does_not_accept(team):
    async def check(answer):
        return True if answer == "42" else f"{answer} is too few"

    model = team.plays("chief", submits("40"), submits("41"), submits("42"))
    result = await build_supervisor("Count.", attempts=3, model=model, check=check).run("How many?")
    assert (result.ok, result.answer) == (True, "42")
    assert [(told["reason"], told["attempts_left"]) for told in team.told("chief")] == [("40 is too few", 2), ("41 is too few", 1)]
    assert [row.get("stop_reason") for row in result.trace] == ["not_accepted", "not_accepted", None]


async def test_a_submission_without_an_answer_is_none(team):
    model = team.plays("chief", ToolCalls([("submit", {})]), ToolCalls([("submit", {"answer": 42})]), submits("42"))
    result = await build_supervisor("Count.", model=model).run("How many?")
    assert (result.ok, result.answer, len(team.requests("chief"))) == (True, "42", 3)


async def test_one_supervisor_runs_often_and_each_run_has_its_own_attempts(team):
    supervisor = build_supervisor("Count.", attempts=2, model=team.plays("chief", *[submits("no")] * 4), check=lambda _: False)
    for _ in range(2):
        result = await supervisor.run("How many?")
        assert (result.stop_reason, result.partial, len(result.trace)) == ("not_accepted", "no", 2)


def overflow():
    return Failure(400, "This model's maximum context length is 1000 tokens.", "context_length_exceeded")


class Small:
    """Be a model with a small window, which looks things up until it has seen enough."""

    def __init__(self, most, rounds):
        self.most, self.rounds, self.sizes, self.refused = most, rounds, [], 0

    def __call__(self, request):
        messages = request.body["messages"]
        if len(json.dumps(messages)) > self.most:
            self.refused += 1
            return overflow()
        self.sizes.append(len(messages))
        if len(self.sizes) > self.rounds:
            return submits(messages[1]["content"])
        return ToolCalls([("look", {"what": f"clue {len(self.sizes)}"})])


def look(what: str) -> str:
    """Look something up."""
    return f"{what}: " + "nothing yet " * 20


async def test_a_conversation_that_is_too_long_is_shortened_and_keeps_its_task(team):
    model = Small(4_000, rounds=14)
    result = await build_supervisor("Find it.", [look], model=team.plays("chief", model), truncation="auto").run("The task.")
    assert (result.ok, result.answer) == (True, "The task.")
    assert model.refused >= 1
    for body in team.requests("chief"):
        asked = {call["id"] for message in body["messages"] for call in message.get("tool_calls", ())}
        assert {message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"} == asked


async def test_it_is_not_shortened_unless_that_is_asked_for(team):
    model = Small(4_000, rounds=14)
    result = await build_supervisor("Find it.", [look], model=team.plays("chief", model)).run("The task.")
    assert (result.status, result.stop_reason, model.refused) == ("error", "llm_error:BadRequestError", 1)


async def test_a_strategy_of_the_programs_own_shortens_before_each_call(team):
    model = team.plays("chief", Text("One."), Text("Two."), Text("Three."), submits("done"))
    await build_supervisor("Talk.", model=model, truncation=SlidingWindow(1)).run("The task.")
    sent = [[message["content"] for message in body["messages"]][1:] for body in team.requests("chief")]
    assert all(contents[0] == "The task." for contents in sent)
    assert [len(contents) for contents in sent] == [1, 2, 2, 2]


async def test_another_failure_of_the_model_is_not_taken_for_a_long_conversation(team):
    model = team.plays("chief", lambda _: Failure(400, "no such tool"))
    result = await build_supervisor("Find it.", model=model, truncation="auto").run("The task.")
    assert (result.stop_reason, len(team.requests("chief"))) == ("llm_error:BadRequestError", 1)


async def test_what_was_submitted_wins_over_a_limit_that_ends_what_was_asked_for_beside_it(team):
    both = ToolCalls([("submit", {"answer": "42"}), ("look", {"what": "more"})])
    result = await run_agent(build_supervisor("Find it.", [look], model=team.plays("chief", both)), "Go.", limits=["tool.look=0"])
    assert (result.ok, result.answer) == (True, "42")


def both_of(team):
    return team.plays("chief", ToolCalls([("submit", {"answer": "42"}), ("look", {"what": "more"})]))


@pytest.mark.parametrize("blocked", ["nothing yet", "accepted"], ids=["beside it", "itself"])
async def test_a_guardrail_that_trips_in_the_same_answer_is_not_outdone_by_a_submission(team, blocked):
    rail = OutputGuardrail(lambda text: "no" if blocked in text else None, name="rail", level="tool")
    result = await build_supervisor("Find it.", [look], model=both_of(team), middleware=[rail]).run("Go.")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "guardrail:rail", None)


async def test_a_refusal_beside_a_limit_is_not_hidden_by_it(team):
    def stop() -> str:
        """Be refused by a person."""
        raise StopRun("human_rejected")

    three = ToolCalls([("submit", {"answer": "42"}), ("look", {"what": "more"}), ("stop", {})])
    supervisor = build_supervisor("Find it.", [look, stop], model=team.plays("chief", three))
    result = await run_agent(supervisor, "Go.", limits=["tool.look=0"])
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "human_rejected", None)


async def test_a_run_that_is_cancelled_beside_a_submission_is_cancelled(team):
    async def look(what: str) -> str:
        """Cancel the run."""
        run.cancel()
        AgentContext.current().check()
        return what

    async with ravi_otel.run("case") as run:
        result = await build_supervisor("Find it.", [look], model=both_of(team)).run("Go.")
    assert (result.status, result.stop_reason, result.answer) == ("stopped", "cancelled", None)


@pytest.mark.parametrize("broken", [lambda _: {}["no"], lambda: True], ids=["raises", "takes nothing"])
async def test_a_check_with_a_mistake_in_it_raises_it_and_is_no_news_for_the_model(team, broken):
    supervisor = build_supervisor("Count.", model=team.plays("chief", submits("42")), check=broken)
    with pytest.raises((KeyError, TypeError)):
        await supervisor.run("How many?")
    assert len(team.requests("chief")) == 1


@pytest.mark.parametrize("verdict", [None, 1], ids=repr)
async def test_a_check_that_gives_no_verdict_is_a_mistake(team, verdict):
    supervisor = build_supervisor("Count.", model=team.plays("chief", submits("42")), check=lambda _: verdict)
    with pytest.raises(ConfigurationError, match="Give True, or False"):
        await supervisor.run("How many?")


async def test_a_limit_that_a_check_meets_ends_the_run_as_any(team):
    async def check(answer):
        ravi_otel.current_scope().charge("looks")

    supervisor = build_supervisor("Count.", model=team.plays("chief", submits("42")), check=check)
    assert (await run_agent(supervisor, "How many?", limits=["charge.looks=0"])).stop_reason == "limit_custom"


async def test_what_one_run_has_shortened_shortens_no_other(team):
    sizes = []

    def play(request):
        long = request.body["messages"][1]["content"].startswith("long")
        sizes.append((long, len(request.body["messages"])))
        if long:
            return overflow() if len(sizes) == 1 else submits("done")
        return submits("done") if len(sizes) > 6 else ToolCalls([("look", {"what": "more"})])

    supervisor = build_supervisor("Find it.", [look], model=team.plays("chief", play), truncation="auto")
    said = [ChatMessage("user", "long"), *[ChatMessage("assistant", "word")] * 6]
    assert (await supervisor.run(said)).ok
    assert (await supervisor.run("short")).ok
    assert [size for long, size in sizes if long][1] < len(said)
    assert [size for long, size in sizes if not long] == [2, 4, 6, 8, 10]


async def test_limits_around_it_end_it(team):
    result, error = await run_agent(
        build_supervisor("Talk.", model=team.plays("chief", lambda _: Text("Hm."))), "Go.", limits=["turns=3"], return_limit_error=True
    )
    assert (result.stop_reason, error.limit_kind, len(team.requests("chief"))) == ("limit_turns", "turns", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0}, {"attempts": True}, {"limits": ["turns=3"]}, {"max_steps": 3}, {"truncation": "some"}, {"check": "42"},
        {"instructions": "x"}, {"tools": [submits]}, {"modle": "x"}, {"prompt": None}, {"prompt": [look]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_cannot_be_used_is_named(wrong):
    if "tools" in wrong:

        def submit(answer: str) -> str:
            """Be in the way."""
            return answer

        wrong = {"tools": [submit]}
    with pytest.raises(ConfigurationError):
        build_supervisor(**{"prompt": "Count.", **wrong})
