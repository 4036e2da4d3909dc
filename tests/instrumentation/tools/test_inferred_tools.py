"""A tool that a program runs itself is told between the answer that asks for it and the request that brings its result."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from tool_talks import CHAT_TOOLS, TALKS, Chat, ChatStream, Heard, Messages, Responses, ResponsesChain, Talk, got

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._runtime import inferred_tools
from ravi_otel._runtime.inferred_tools import INFERRING
from ravi_otel.testing import Capture, Raw, Text, ToolCalls

TWO = ToolCalls([("search", {"q": 1}), ("fetch", {"u": 2})])
ONE = ToolCalls([("search", {"q": 1})])
DONE = Text("done")


@ravi_otel.tool
def search() -> str:
    return "result"


@ravi_otel.tool
async def fetch() -> str:
    return "result"


@ravi_otel.tool(name="fetch")
def fetch_now() -> str:
    return "result"


async def until_done(talk: Talk, **more: Any) -> None:
    """Run the loop every program has: bring results until there is nothing more to bring."""
    while await talk.ask(**more):
        talk.answer_all()


@pytest.mark.parametrize("kind", TALKS)
def test_each_tool_is_told_and_counted_once_over_every_api(kind: type[Talk], talk: Any, play: Any, heard: Heard) -> None:
    with ravi_otel.run("r") as run:
        conversation = talk(kind, TWO, ONE, DONE)
        play(until_done(conversation))
        assert run.stats().tool_calls == 3
    assert heard.inferred == ["search", "fetch", "search"]
    assert all(record.call_id and record.status == "ok" and record.decision == "admitted" for record in heard.tools)
    assert not len(INFERRING)


@pytest.mark.parametrize("kind", TALKS)
def test_what_does_not_fit_refuses_the_request_before_it_is_sent(kind: type[Talk], talk: Any, play: Any, heard: Heard, stage: Any) -> None:
    conversation = talk(kind, TWO, TWO, DONE)
    with ravi_otel.run("r", limits=["tool_calls=3"]) as run, pytest.raises(BudgetExhaustedError) as refused:
        play(until_done(conversation))
    assert (refused.value.limit_kind, refused.value.threshold) == ("tool_calls", 3)
    assert len(stage.server.requests) == 2
    assert (run.stats().tool_calls, run.stats().refused) == (4, 1)
    assert [record.decision for record in heard.tools] == ["admitted"] * 3 + ["denied"]
    assert heard.calls[-1].status == "refused"


def test_a_limit_on_one_tool_names_that_tool(talk: Any, play: Any, heard: Heard, stage: Any) -> None:
    conversation = talk(Chat, TWO, TWO, DONE)
    with ravi_otel.run("r", limits=["tool.fetch=1"]), pytest.raises(BudgetExhaustedError, match="fetch"):
        play(until_done(conversation))
    assert len(stage.server.requests) == 2


def test_a_request_that_was_refused_is_refused_again_until_there_is_room(talk: Any, play: Any, heard: Heard, stage: Any) -> None:
    conversation = talk(Chat, TWO, DONE)
    with ravi_otel.run("r", limits=["tool_calls=1"]) as run:
        play(conversation.ask())
        conversation.answer_all()
        for _ in range(3):
            with pytest.raises(BudgetExhaustedError):
                play(conversation.ask())
        assert len(stage.server.requests) == 1
        run.set_limit("tool_calls", 2)
        assert play(conversation.ask()) == []
        assert run.stats().tool_calls == 2
    assert len(heard.inferred) == 2


def test_shadow_mode_tells_what_would_be_refused_and_sends_it(talk: Any, play: Any) -> None:
    with ravi_otel.instrument(enforcement="observe") as handle:
        heard = Heard()
        handle.listen(heard)
        with ravi_otel.run("r", limits=["tool_calls=1"]):
            play(until_done(talk(Chat, TWO, DONE)))
        assert [record.decision for record in heard.tools] == ["admitted", "observed"]


@pytest.mark.parametrize("kind", [Chat, ChatStream, Messages, Responses])
def test_a_tool_that_is_seen_to_run_is_not_inferred_too(kind: type[Talk], talk: Any, play: Any, heard: Heard, colour: str) -> None:
    async def program(conversation: Talk) -> None:
        while await conversation.ask():
            for _, name in conversation.asked:
                if name == "search":
                    search()
                elif colour == "sync":
                    fetch_now()
                else:
                    await fetch()
            conversation.answer_all()

    conversation = talk(kind, TWO, ONE, TWO, DONE)
    with ravi_otel.run("r") as run:
        play(program(conversation))
        assert run.stats().tool_calls == 5
    assert heard.inferred == []


def test_tools_seen_in_threads_are_not_inferred_and_others_beside_them_are(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, ToolCalls([("search", {})] * 3 + [("fetch", {})]), DONE)
    with ravi_otel.run("r") as run:
        play(conversation.ask())
        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        conversation.answer_all()
        play(conversation.ask())
        assert run.stats().tool_calls == 4
    assert heard.inferred == ["fetch"]


def test_tools_seen_in_tasks_are_not_inferred(talk: Any, colour: str, clients: Any, heard: Heard) -> None:
    conversation = talk(Chat, ToolCalls([("fetch", {})] * 3), DONE)

    async def tasks() -> None:
        await asyncio.gather(*(fetch() for _ in range(3)))

    with ravi_otel.run("r") as run:
        clients.run(colour, conversation.ask())
        clients.loop.run(tasks())
        conversation.answer_all()
        clients.run(colour, conversation.ask())
        assert run.stats().tool_calls == 3
    assert heard.inferred == []


def test_a_tool_that_was_refused_where_it_is_seen_is_not_inferred_either(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, ONE, DONE)
    with ravi_otel.run("r", limits=["tool.search=0"]):
        play(conversation.ask())
        with pytest.raises(BudgetExhaustedError):
            search()
        conversation.answer_all()
        assert play(conversation.ask()) == []
    assert heard.inferred == []


def test_a_tool_seen_in_a_run_inside_stands_for_what_was_asked_around_it(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, ONE, DONE)
    with ravi_otel.run("outer"):
        play(conversation.ask())
        with ravi_otel.run("inner"):
            search()
        conversation.answer_all()
        play(conversation.ask())
    assert heard.inferred == []


def test_a_tool_that_ran_while_its_stream_went_on_is_not_inferred(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(ONE, DONE))
    with ravi_otel.run("r") as run:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": CHAT_TOOLS}
        found = ""
        for chunk in client.chat.completions.create(**asked, stream=True):
            for call in chunk.choices[0].delta.tool_calls or ():
                if call.id:
                    found = call.id
                    search()
        client.chat.completions.create(
            **{**asked, "messages": [*asked["messages"], {"role": "tool", "tool_call_id": found, "content": ""}]}
        )
        assert run.stats().tool_calls == 1
    assert heard.inferred == []


def test_what_is_asked_for_and_never_run_takes_nothing_from_what_comes_later(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, ONE, ONE, DONE)
    with ravi_otel.run("r") as run:
        play(conversation.ask())
        conversation.items.pop()
        conversation.items.append({"role": "user", "content": "no, again"})
        play(conversation.ask())
        search()
        conversation.answer_all()
        play(conversation.ask())
        assert run.stats().tool_calls == 1
    assert heard.inferred == []


def test_a_conversation_said_again_counts_once_also_when_its_request_failed(talk: Any, play: Any, heard: Heard) -> None:
    failed = Raw(b"{}", status=500)
    conversation = talk(Chat, TWO, failed, DONE, DONE)
    with ravi_otel.run("r") as run:
        play(conversation.ask())
        conversation.answer_all()
        with pytest.raises(Exception, match="500"):
            play(conversation.ask())
        play(conversation.ask())
        play(conversation.ask())
        assert run.stats().tool_calls == 2


def test_every_choice_of_an_answer_is_known_and_only_the_answered_one_counts(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, TWO, DONE)
    seen: list[Any] = []
    with ravi_otel.run("r") as run:

        async def both() -> None:
            made = conversation.client.chat.completions.create(model="m", messages=conversation.items, tools=CHAT_TOOLS, n=2)
            seen.extend(choice.message.tool_calls for choice in (await got(made)).choices)

        play(both())
        for call in seen[1]:
            conversation.answer(call.id)
        play(conversation.ask())
        assert (run.stats().tool_calls, len(INFERRING)) == (2, 2)
    assert not len(INFERRING)


def test_another_run_does_not_know_what_was_asked_in_this_one(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, TWO, DONE)
    with ravi_otel.run("one"):
        play(conversation.ask())
        conversation.answer_all()
    with ravi_otel.run("two", limits=["tool_calls=0"]) as run:
        play(conversation.ask())
        assert run.stats().tool_calls == 0


def test_outside_any_run_tools_are_inferred_until_nothing_is_instrumented(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, TWO, TWO, DONE)
    play(conversation.ask())
    conversation.answer_all()
    play(conversation.ask())
    assert (len(heard.inferred), len(INFERRING)) == (2, 2)
    ravi_otel.uninstrument()
    assert (len(INFERRING), len(INFERRING.runs)) == (0, 0)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(
    talk: Any, play: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inferred_tools, "MOST_WAITING", 2)
    conversation = talk(Chat, ToolCalls([("search", {})] * 5), DONE)
    with ravi_otel.run("r"):
        play(conversation.ask())
        assert len(INFERRING) == 2
        latest = [call_id for call_id, _ in conversation.asked][-2:]
        conversation.answer_all()
        play(conversation.ask())
    assert [record.call_id for record in heard.tools] == latest


def call_of(call_id: Any, name: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def answer_of(*calls: Any) -> Raw:
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, "tool_calls": list(calls)}}
    ]}  # fmt: skip
    return Raw(json.dumps(body).encode())


HUGE = "x" * 100_000


@pytest.mark.parametrize(
    ("calls", "results", "names"),
    [
        ([call_of(HUGE, HUGE)], [{"tool_call_id": HUGE}], ["x" * 1_024]),
        ([call_of("a", "search"), call_of("a", "fetch")], [{"tool_call_id": "a"}, {"tool_call_id": "a"}], ["search"]),
        ([call_of("", "search")], [{"tool_call_id": "", "name": "search"}], []),
        ([call_of(None, "search")], [{"name": "search"}], []),
        ([call_of("a", None), call_of(7, "b")], [{"tool_call_id": "a"}, {"tool_call_id": 7}], ["unknown", "b"]),
        ([call_of("\ud800", "\x1b[31m\ud800")], [{"tool_call_id": "\ud800"}], None),
        (["junk", None, 3], [{"tool_call_id": ["a"]}], []),
        ([call_of("a", "search")], [{"tool_call_id": "b"}, {}], []),
    ],
)
def test_whatever_a_model_says_names_and_ids_are_read_with_care(
    calls: list[Any], results: list[Any], names: list[str] | None, stage: Any, clients: Any, heard: Heard
) -> None:
    client = clients.make("sync", stage.play(answer_of(*calls), DONE))
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": CHAT_TOOLS}
    with ravi_otel.run("r"):
        client.chat.completions.create(**asked)
        asked["messages"] = [*asked["messages"], *({"role": "tool", "content": "r", **one} for one in results)]
        try:
            client.chat.completions.create(**asked)
        except UnicodeEncodeError:
            assert names is None  # the client cannot write half a surrogate, with us or without
    assert names is None or heard.inferred == names


def test_requests_are_the_same_bytes_as_without_us(talk: Any, play: Any, stage: Any) -> None:
    async def program(conversation: Talk) -> None:
        await until_done(conversation)

    play(program(talk(Chat, TWO, DONE)))
    without = [request.raw for request in stage.server.requests]
    with ravi_otel.instrument(), ravi_otel.run("r", limits=["tool_calls=9"]):
        play(program(talk(Chat, TWO, DONE)))
    assert [request.raw for request in stage.server.requests] == without


def test_the_span_lies_between_the_answer_and_the_request_and_is_marked(talk: Any, play: Any, instrumented: Capture) -> None:
    with ravi_otel.run("r"), ravi_otel.agent("a"):
        play(until_done(talk(Chat, ONE, DONE)))
    first, second = instrumented.spans("chat gpt-4o-mini")
    (span,) = instrumented.spans("execute_tool search")
    (around,) = instrumented.spans("invoke_agent a")
    told = dict(span.attributes or {})
    assert told["ravi.tool.inferred"] is True
    assert told["gen_ai.tool.call.id"]
    assert "gen_ai.tool.call.arguments" not in told
    assert told["gen_ai.agent.name"] == "a"
    assert span.parent is not None
    assert span.parent.span_id == around.context.span_id
    assert first.end_time is not None
    assert span.start_time is not None
    assert span.end_time is not None
    assert second.end_time is not None
    assert first.start_time <= span.start_time <= span.end_time <= second.end_time  # type: ignore[operator]  # none of them is None
    assert instrumented.metric("gen_ai.execute_tool.duration") == []
    assert [point.sum for point in instrumented.metric("gen_ai.invoke_agent.tool_calls")] == [1]


@pytest.mark.parametrize("kind", [Chat, Messages, ResponsesChain])
def test_arguments_and_results_are_told_only_with_content_and_go_through_redaction(
    kind: type[Talk], talk: Any, play: Any, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    hides = ravi_otel.instrument(tracer_provider=capture.tracer_provider, redact=lambda text: text.replace("result", "[hidden]"))
    with hides, ravi_otel.run("r"):
        play(until_done(talk(kind, ONE, DONE)))
    (span,) = capture.spans("execute_tool search")
    told = dict(span.attributes or {})
    assert "[hidden]" in str(told["gen_ai.tool.call.result"])
    assert ("gen_ai.tool.call.arguments" in told) is (kind is not ResponsesChain)


def test_a_call_without_tools_remembers_and_reads_nothing(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(TWO, DONE))
    with ravi_otel.run("r"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert (len(INFERRING), len(INFERRING.runs)) == (0, 0)


def test_many_requests_at_once_that_bring_the_same_results_count_them_once(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(ToolCalls([("search", {})] * 8), DONE))
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": CHAT_TOOLS}
    with ravi_otel.run("r") as run:
        calls = client.chat.completions.create(**asked).choices[0].message.tool_calls
        asked["messages"] += [{"role": "tool", "tool_call_id": call.id, "content": "r"} for call in calls]
        threads = [threading.Thread(target=client.chat.completions.create, kwargs=asked) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.stats().tool_calls == 8
    assert sorted(record.call_id for record in heard.tools) == sorted(call.id for call in calls)


def test_the_last_call_is_made_whatever_has_run(talk: Any, play: Any, heard: Heard, stage: Any) -> None:
    conversation = talk(Chat, TWO, DONE)
    with ravi_otel.run("r", limits=["tool_calls=1", "requests=2:on=final"]) as run:
        play(conversation.ask())
        conversation.answer_all()
        with run.wrap_up():
            assert play(conversation.ask()) == []
        assert run.stats().tool_calls == 2
    assert len(stage.server.requests) == 2
