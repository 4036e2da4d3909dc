"""Agents that remember: over runs, in each other's company, and when the file fails them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import anyio
import pytest

import ravi_otel
from ravi_otel import HistoryRetention
from ravi_otel.agents import OpenAIModel, ReActAgent
from ravi_otel.agents.history import AgentMemory, SlidingWindow, SqliteHistory, Summarizing
from ravi_otel.testing import Failure, Text, ToolCalls

MODEL = "gpt-4o-mini"
pytestmark = pytest.mark.anyio


@pytest.fixture
def model(aclient):
    return OpenAIModel(MODEL, client=aclient)


@pytest.fixture
def echo(server):
    """Have the model repeat the last thing it was told."""
    server.answer = lambda request: Text(f"re {request.body['messages'][-1]['content']}", usage=(10, 5))


def sent(server):
    return [[(message["role"], message["content"]) for message in request.body["messages"]] for request in server.requests]


def texts(messages):
    return [message.content for message in messages]


async def test_a_session_goes_on_in_the_next_run(model, server, echo, store):
    agent = ReActAgent("worker", model=model, history=store, instructions="be kind")
    for text in ("one", "two"):
        result = await agent.run(text, session_id="s")
        assert result.ok
    assert (await agent.run("three", session_id="other")).answer == "re three"
    assert sent(server)[1:] == [
        [("system", "be kind"), ("user", "one"), ("assistant", "re one"), ("user", "two")],
        [("system", "be kind"), ("user", "three")],
    ]


async def test_tool_calls_and_their_results_are_remembered(model, server, store):
    answers = iter([ToolCalls([("look", {"place": "attic"})], usage=(10, 5)), Text("a heron"), Text("yes")])
    server.answer = lambda request: next(answers)

    @ravi_otel.tool
    def look(place: str) -> str:
        """Look there."""
        return f"in the {place}: a heron"

    agent = ReActAgent("worker", model=model, history=store, tools=[look])
    await agent.run("what is there?", session_id="s")
    await agent.run("sure?", session_id="s")
    user, called, result, answer, again = server.requests[-1].body["messages"]
    assert [message["role"] for message in (user, called, result, answer, again)] == ["user", "assistant", "tool", "assistant", "user"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]
    assert "heron" in result["content"]


async def test_what_is_said_in_a_run_that_keeps_nothing_longer_is_forgotten_with_it(model, server, echo, store):
    agent = ReActAgent("worker", model=model, history=store)
    with ravi_otel.run("r", session_id="s", retention=HistoryRetention.RUN):
        await agent.run("one")
        await agent.run("two")
    with ravi_otel.run("r", session_id="s"):
        await agent.run("three")
    assert [len(messages) for messages in sent(server)] == [1, 3, 1]


async def test_an_agent_below_another_remembers_for_the_run_and_by_itself(model, server, store):
    worker = ReActAgent("worker", model=model, history=store)

    async def ask_worker(question: str) -> str:
        """Ask the worker."""
        return str((await worker.run(question)).answer)

    def answer(request):
        messages = request.body["messages"]
        if "tools" not in request.body:
            return Text(f"{len(messages)} messages", usage=(10, 5))
        after = [message["role"] for message in messages][::-1].index("user")
        return Text("done") if after == 4 else ToolCalls([("ask_worker", {"question": "well?"})])  # two calls, with their results

    server.answer = answer
    lead = ReActAgent("lead", model=model, history=store, tools=[ask_worker])
    for _ in range(2):
        assert (await lead.run("go", session_id="s")).answer == "done"
    below = [message for message in server.requests[-1].body["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in below] == ["1 messages", "3 messages"] * 2


async def test_a_summary_is_charged_to_the_run_it_was_made_for(model, server, store):
    server.answer = lambda request: Text(
        "sum" if request.body["messages"][0]["content"].startswith("Sum up the beginning of a conversation") else "ok", usage=(100, 20)
    )
    memory = AgentMemory("worker", store, compaction=Summarizing(model, over=60, keep=1))
    agent = ReActAgent("worker", model=model, history=memory)
    for number in range(3):
        result = await agent.run(f"question {number} " + "x" * 100, session_id="s")
    assert result.usage.requests == 2
    assert sent(server)[-1][0] == ("user", "Summary of the conversation so far, written by a model and not by the user:\nsum")
    assert len(await store.load("s", agent_name="worker")) == 6


async def test_a_summary_that_the_budget_refuses_is_done_without(model, server, store):
    agent = ReActAgent("worker", model=model, history=AgentMemory("worker", store, compaction=Summarizing(model, over=60, keep=1)))
    for number in range(2):
        await agent.run(f"question {number} " + "x" * 100, session_id="s")
    before = len(server.requests)
    with ravi_otel.run("r", session_id="s"), ravi_otel.apply_limits(["requests=0"]):
        result = await agent.run("and now?")
    assert (result.status, len(server.requests)) == ("stopped", before)


async def test_many_runs_of_one_session_at_once_leave_a_history_that_goes_on(model, server, echo, store):
    agent = ReActAgent("worker", model=model, history=store)
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(lambda number=number: agent.run(f"q{number}", session_id="s"))
    found = texts(await store.load("s", agent_name="worker"))
    assert sorted(found[::2]) == [f"q{number}" for number in range(6)]
    assert found[1::2] == [f"re {text}" for text in found[::2]]


async def test_a_history_that_cannot_be_read_ends_the_run_before_anything_is_sent(model, server, path):
    path.write_bytes(b"no database at all" * 100)
    result = await ReActAgent("worker", model=model, history=SqliteHistory(path)).run("one", session_id="s")
    assert (result.status, result.stop_reason, result.answer) == ("error", "history_error", None)
    assert "nothing was changed" in str(result.error)
    assert server.requests == ()


async def test_an_answer_that_could_not_be_kept_is_still_given_and_told(model, server, path):
    store = SqliteHistory(path, busy_s=0)
    agent = ReActAgent("worker", model=model, history=store)
    await agent.run("one", session_id="s")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:

        def answer(request):
            other.execute("BEGIN IMMEDIATE")
            return Text("an answer")

        server.answer = answer
        result = await agent.run("two", session_id="s")
        other.execute("ROLLBACK")
    assert (result.status, result.stop_reason, result.answer) == ("error", "history_error", "an answer")
    assert "keeps it locked" in str(result.error)
    assert texts(await store.load("s", agent_name="worker")) == ["one", "They spoke of plans."]


async def test_a_run_that_is_stopped_appends_what_was_said_until_then(model, server, store):
    @ravi_otel.tool
    def look() -> str:
        """Look."""
        return "a heron"

    server.answer = ToolCalls([("look", {})])
    agent = ReActAgent("worker", model=model, history=store, tools=[look], limits=["requests=2"])
    result = await agent.run("what is there?", session_id="s")
    assert (result.status, result.stop_reason) == ("stopped", "limit_requests")
    assert texts(await store.load("s", agent_name="worker")) == ["what is there?", None, "a heron", None, "a heron"]


async def test_a_window_goes_around_what_is_remembered_and_never_around_the_question(model, server, echo, store):
    agent = ReActAgent("worker", model=model, history=AgentMemory("worker", store, compaction=SlidingWindow(1)))
    for number in range(4):
        await agent.run(f"q{number}", session_id="s")
    assert sent(server)[-1] == [("user", "q2"), ("assistant", "re q2"), ("user", "q3")]


async def test_a_window_bounds_the_questions_that_an_outage_has_left_unanswered(model, server, store):
    server.answer = Failure(503, "down")
    agent = ReActAgent("worker", model=model, history=AgentMemory("worker", store, compaction=SlidingWindow(3)))
    for number in range(8):
        result = await agent.run(f"q{number}", session_id="s")
        assert result.status == "error"
    assert sent(server)[-1] == [("user", f"q{number}") for number in (4, 5, 6, 7)]


def test_one_file_serves_programs_without_an_event_loop_too(server, instrumented, path, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    server.answer = Text("ok")
    agent = ReActAgent("worker", model=MODEL, history=SqliteHistory(path))
    for number in range(2):
        assert agent.run_blocking(f"q{number}", session_id="s").ok
    assert sent(server)[-1] == [("user", "q0"), ("assistant", "ok"), ("user", "q1")]


async def test_what_a_content_filter_stopped_does_not_come_back_with_the_session(model, server, store):
    answers = iter([Text("fine"), Text("bad th", finish_reason="content_filter"), Text("well")])
    server.answer = lambda request: next(answers)
    agent = ReActAgent("worker", model=model, history=store)
    ends = [(await agent.run(text, session_id="s")).stop_reason for text in ("one", "two", "three")]
    assert ends == ["success", "llm_content_filter", "success"]
    assert texts(await store.load("s", agent_name="worker")) == ["one", "fine", "three", "well"]


async def test_an_agent_whose_history_cannot_be_written_asks_nobody(model, server, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    agent = ReActAgent("worker", model=model, history=SqliteHistory(folder / "history.db"))
    folder.rmdir()
    result = await agent.run("hi", session_id="s")
    assert (result.status, result.stop_reason, server.requests) == ("error", "history_error", ())
    assert "Give a path at which this process may make, read and write a file." in str(result.error)
