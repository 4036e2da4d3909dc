"""Inferred tools hold the limit also where streams are left, ids repeat or lack, and the store of the counts fails."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tool_talks import CHAT_TOOLS, NAMES, Chat, ChatStream, GroqStream, Heard, MessagesStream, ResponsesStream, Talk, got

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._instrumentation.formats.chat import ChatCompletions
from ravi_otel._runtime.inferred_tools import INFERRING, Inferring
from ravi_otel.testing import Capture, Raw, Text, ToolCalls

ONE = ToolCalls([("search", {"q": 1})])
TWO = ToolCalls([("search", {"q": 1}), ("fetch", {"u": 2})])
DONE = Text("done")


async def until(stream: Any, last: Callable[[Any], Any]) -> list[Any]:
    """Read a stream of either colour up to the piece that is the last for its program, and leave it open."""
    found: list[Any] = []
    if hasattr(stream, "__aiter__"):
        async for each in stream:
            found.append(each)
            if last(each):
                break
    else:
        for each in stream:
            found.append(each)
            if last(each):
                break
    return found


class Leaving:
    """Ask for streams that are left at the piece that ends them for most programs; `kept` are never closed."""

    last: Callable[[Any], Any]
    real: Callable[..., Any]

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.kept: list[Any] = []

    async def create(self, **asked: Any) -> Any:
        stream = await got(self.real(**asked))
        self.kept.append(stream)
        return await until(stream, type(self).last)


class LeavingChat(Leaving):
    @staticmethod
    def last(chunk: Any) -> Any:
        return chunk.choices and chunk.choices[0].finish_reason

    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.real = talk.client.chat.completions.create

    async def ask(self) -> None:
        talk = self.talk
        made = await self.create(model="gpt-4o-mini", messages=talk.items, tools=CHAT_TOOLS, stream=True)
        said = ChatStream._pieces(made)
        talk.items.append({"role": "assistant", "content": None, "tool_calls": said})
        talk.asked = [(call["id"], call["function"]["name"]) for call in said]


class LeavingResponses(Leaving):
    @staticmethod
    def last(event: Any) -> Any:
        return event.type == "response.completed"

    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.real = talk.client.responses.create

    async def ask(self) -> None:
        talk = self.talk
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in NAMES]
        made = await self.create(model="gpt-4o-mini", input=talk.items, tools=tools, stream=True)
        output = [event.item.model_dump(exclude_none=True) for event in made if event.type == "response.output_item.done"]
        talk.items = talk.items + output
        talk.asked = [(item["call_id"], item["name"]) for item in output]


class LeavingMessages(Leaving):
    @staticmethod
    def last(event: Any) -> Any:
        return event.type == "message_delta"

    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.real = talk.client.messages.create

    async def ask(self) -> None:
        talk = self.talk
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
        made = await self.create(model="claude-opus-4-8", max_tokens=64, messages=talk.items, tools=tools, stream=True)
        blocks = MessagesStream._started(made)
        talk.items = [*talk.items, {"role": "assistant", "content": blocks}, {"role": "user", "content": []}]
        talk.asked = [(block["id"], block["name"]) for block in blocks]


LEAVING: list[tuple[type[Talk], type[Any]]] = [
    (ChatStream, LeavingChat),
    (GroqStream, LeavingChat),
    (ResponsesStream, LeavingResponses),
    (MessagesStream, LeavingMessages),
]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("kind", "leaving"), LEAVING)
def test_a_stream_that_is_left_at_its_end_is_counted_before_the_next_request(
    kind: type[Talk], leaving: type[Any], kept: bool, talk: Any, play: Any, heard: Heard, stage: Any
) -> None:
    asks = leaving(talk(kind, *[ONE] * 8))

    async def program() -> None:
        for _ in range(8):
            await asks.ask()
            asks.talk.answer_all()
            if not kept:
                await got(asks.kept.pop().close())

    with ravi_otel.run("r", limits=["tool_calls=2"]) as run, pytest.raises(BudgetExhaustedError):
        play(program())
    assert (run.stats().tool_calls, len(stage.server.requests)) == (3, 3)
    assert heard.inferred == ["search"] * 3
    for stream in asks.kept:
        play(got(stream.close()))
    assert run.stats().tool_calls == 3
    assert not len(INFERRING)


def test_a_stream_is_left_at_its_first_tool_and_what_it_asks_for_beside_is_not_counted(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(TWO, DONE))
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": CHAT_TOOLS}
    with ravi_otel.run("r") as run:
        stream = client.chat.completions.create(**asked, stream=True)
        found = next(call.id for chunk in stream for call in chunk.choices[0].delta.tool_calls or () if call.id)
        asked["messages"] += [{"role": "tool", "tool_call_id": found, "content": "r"}]
        client.chat.completions.create(**asked)
        assert (heard.inferred, run.stats().tool_calls) == (["search"], 1)
        stream.close()
        client.chat.completions.create(**asked)
        assert run.stats().tool_calls == 1


def call_of(call_id: Any, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def answer_of(*choices: list[Any]) -> Raw:
    said = [
        {"index": at, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None, "tool_calls": asked}}
        for at, asked in enumerate(choices)
    ]
    return Raw(json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": said}).encode())


def follow(messages: list[Any], asked: list[Any]) -> list[Any]:
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in asked]
    return [*messages, {"role": "assistant", "content": None, "tool_calls": asked}, *results]


HI: list[Any] = [{"role": "user", "content": "hi"}]
SAME = [call_of("functions.search:0", "search")]


@pytest.mark.parametrize(("limit", "sent"), [(8, 16), (2, 10), (0, 8)])
@pytest.mark.parametrize("agents", [True, False])
def test_ids_that_several_conversations_of_a_run_share_are_counted_for_each(
    limit: int, sent: int, agents: bool, stage: Any, clients: Any, heard: Heard
) -> None:
    client = clients.make("sync", stage.play(*[answer_of(SAME)] * 8, DONE), max_retries=0)
    refused = 0
    with ravi_otel.run("r", limits=[f"tool_calls={limit}"]) as run:

        def ask(at: int, messages: list[Any]) -> None:
            with ravi_otel.agent(f"a{at if agents else 0}"):
                client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)

        for at in range(8):
            ask(at, HI)
        for at in range(8):
            try:
                ask(at, follow(HI, SAME))
            except BudgetExhaustedError:
                refused += 1
        assert (run.stats().tool_calls, refused) == (8, 8 - limit)
    assert len(stage.server.requests) == sent


def test_agents_side_by_side_whose_ids_are_the_same_are_each_counted_as_their_own(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(*[answer_of(SAME)] * 8, DONE), max_retries=0)
    asked_all = threading.Barrier(8)

    def one(at: int) -> None:
        with ravi_otel.agent(f"a{at}"):
            client.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS)
            asked_all.wait(30)
            client.chat.completions.create(model="m", messages=follow(HI, SAME), tools=CHAT_TOOLS)

    with ravi_otel.run("r") as run:
        threads = [threading.Thread(target=one, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.stats().tool_calls == 8
    assert sorted(record.facts.agent_name for record in heard.tools) == [f"a{at}" for at in range(8)]


def test_a_conversation_with_the_same_id_in_every_answer_counts_each_once(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(*[answer_of(SAME)] * 4, DONE))
    messages = HI
    with ravi_otel.run("r") as run:
        for _ in range(5):
            client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
            messages = follow(messages, SAME)
        assert run.stats().tool_calls == 4


@pytest.mark.parametrize("first", [5, "one"])
def test_an_id_that_is_a_number_is_an_id(first: Any, stage: Any, clients: Any, heard: Heard) -> None:
    said = [call_of(first, "search"), call_of("mine", "other"), call_of("two", "fetch")]
    client = clients.make("sync", stage.play(answer_of(said), DONE), max_retries=0)
    with ravi_otel.run("r", limits=["tool.fetch=0"]) as run:
        client.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS)
        with pytest.raises(BudgetExhaustedError, match="fetch"):
            client.chat.completions.create(model="m", messages=follow(HI, said), tools=CHAT_TOOLS)
        assert run.stats().tool_calls == 3
    assert sorted(heard.inferred) == ["fetch", "other", "search"]


def test_choices_that_number_their_calls_alike_count_as_the_one_that_is_gone_on_with(stage: Any, clients: Any, heard: Heard) -> None:
    client = clients.make("sync", stage.play(answer_of(SAME, SAME), DONE))
    with ravi_otel.run("r") as run:
        client.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS, n=2)
        for messages in (follow(HI, SAME), [*follow(HI, SAME), HI[0]], follow(HI, SAME)):
            client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
        assert run.stats().tool_calls == 1


@pytest.mark.parametrize("numbered", [True, False])
def test_a_response_whose_last_event_lists_no_output_is_known_by_its_items(numbered: bool, stage: Any, clients: Any, heard: Heard) -> None:
    asked = [
        {"type": "function_call", "id": f"f{at}", "call_id": f"c{at}", "name": name, "arguments": "{}"} for at, name in enumerate(NAMES)
    ]
    base: dict[str, Any] = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "output": []}
    events: list[dict[str, Any]] = [
        *(
            {"type": "response.output_item.done", "item": each, **({"output_index": at} if numbered else {})}
            for at, each in enumerate(asked)
        ),
        {"type": "response.completed", "response": {**base, "status": "completed"}},
    ]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    client = clients.make("sync", stage.play(Raw(body.encode(), content_type="text/event-stream"), DONE))
    with ravi_otel.run("r") as run:
        tools = [{"type": "function", "name": "search", "parameters": {"type": "object"}, "strict": False}]
        list(client.responses.create(model="m", input="hi", tools=tools, stream=True))
        brought = [{"type": "function_call_output", "call_id": each["call_id"], "output": "r"} for each in asked]
        client.responses.create(model="m", input=[*asked, *brought], tools=tools)
        assert run.stats().tool_calls == 2
    assert heard.inferred == list(NAMES)


def test_the_last_call_is_made_also_after_a_result_that_was_refused(talk: Any, play: Any, heard: Heard, stage: Any) -> None:
    conversation = talk(Chat, TWO, DONE)
    with ravi_otel.run("r", limits=["tool_calls=1", "requests=9:on=final"]) as run:
        play(conversation.ask())
        conversation.answer_all()
        with pytest.raises(BudgetExhaustedError):
            play(conversation.ask())
        with run.wrap_up():
            assert play(conversation.ask()) == []
        assert run.stats().tool_calls == 2


def test_while_the_store_of_the_counts_fails_nothing_more_is_sent_and_the_tools_are_counted_later(
    stage: Any, clients: Any, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [call_of("one", "search"), call_of("two", "fetch")]
    client = clients.make("sync", stage.play(answer_of(said), DONE), max_retries=0)
    ledger = SqliteLedger(tmp_path / "ledger.db", busy_s=0.05)
    monkeypatch.setattr(ravi_otel.current_scope().engine, "ledger", ledger)
    with ravi_otel.run("r", limits=["tool_calls=1"]) as run:
        client.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS)
        asked: dict[str, Any] = {"model": "m", "messages": follow(HI, said), "tools": CHAT_TOOLS}
        with contextlib.closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(2):
                with pytest.raises(BudgetExhaustedError) as refused:
                    client.chat.completions.create(**asked)
                assert refused.value.reason == "store_failed"
            other.execute("ROLLBACK")
        with pytest.raises(BudgetExhaustedError) as refused:
            client.chat.completions.create(**asked)
        assert (refused.value.reason, run.stats().tool_calls) == ("exhausted", 2)
        run.set_limit("tool_calls", 2)
        client.chat.completions.create(**asked)
        assert run.stats().tool_calls == 2
    ledger.close()
    assert heard.inferred == ["search", "fetch"]
    assert len(stage.server.requests) == 2


@pytest.mark.parametrize(
    ("owner", "name"), [(Inferring, "take"), (Inferring, "offered"), (Inferring, "_asked"), (ChatCompletions, "tool_results")]
)
def test_a_bug_in_following_tools_lets_no_call_go_unseen(
    owner: Any, name: str, stage: Any, clients: Any, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)
    monkeypatch.setattr(owner, name, fails)
    client = clients.make("sync", stage.play(answer_of(SAME), DONE), max_retries=0)
    with ravi_otel.run("r", limits=["requests=2"]) as run:
        client.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS)
        asked: dict[str, Any] = {"model": "m", "messages": follow(HI, SAME), "tools": CHAT_TOOLS}
        client.chat.completions.create(**asked)
        with pytest.raises(BudgetExhaustedError):
            client.chat.completions.create(**asked)
        assert run.stats().requests == 2
    assert [record.status for record in heard.calls] == ["ok", "ok", "refused"]


def test_the_span_of_a_tool_of_a_stream_that_is_still_open_lies_before_the_request(stage: Any, clients: Any, instrumented: Capture) -> None:
    client = clients.make("sync", stage.play(ONE, DONE))
    asked: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [*HI], "tools": CHAT_TOOLS}
    with ravi_otel.run("r"):
        stream = client.chat.completions.create(**asked, stream=True)
        found = next(call.id for chunk in stream for call in chunk.choices[0].delta.tool_calls or () if call.id)
        asked["messages"] += [{"role": "tool", "tool_call_id": found, "content": "r"}]
        client.chat.completions.create(**asked)
        stream.close()
    (span,) = instrumented.spans("execute_tool search")
    request = next(each for each in instrumented.spans("chat gpt-4o-mini") if "gen_ai.request.stream" not in (each.attributes or {}))
    assert span.start_time is not None
    assert span.end_time is not None
    assert request.end_time is not None
    assert span.start_time <= span.end_time <= request.end_time


def test_tools_of_threads_that_are_noted_in_another_order_than_they_began_are_known(talk: Any, play: Any, heard: Heard) -> None:
    conversation = talk(Chat, ToolCalls([("search", {"q": 1})]), Text("done"))
    with ravi_otel.run("r") as run:
        play(conversation.ask())
        INFERRING.ran(run.scope, "search", run.scope.engine.clock.monotonic_ns())
        INFERRING.ran(run.scope, "search", 1)  # long before: it answers nothing of this conversation
        conversation.answer_all()
        play(conversation.ask())
    assert heard.inferred == []
