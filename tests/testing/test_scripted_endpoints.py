from __future__ import annotations

import json
import math

import openai
import pydantic
import pytest

from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Refusal, ScriptedLLM, Text, ToolCalls, Vector

CALLS = [("lookup", {"user_id": 42}), ("refund", {})]


def test_a_response_is_answered_with_usage(serve):
    _, client = serve(Text("Hello there.", usage=Usage(20, 5, cached_input_tokens=16, reasoning_tokens=2)))
    reply = client.responses.create(model="gpt-4.1", input="Hi", instructions="Be short.", temperature=0.5)
    assert (reply.id, reply.output_text, reply.status) == ("resp_1", "Hello there.", "completed")
    assert (reply.instructions, reply.temperature) == ("Be short.", 0.5)
    assert reply.usage.input_tokens_details.cached_tokens == 16
    assert reply.usage.output_tokens_details.reasoning_tokens == 2
    assert reply.usage.total_tokens == 25


def test_a_response_is_streamed_with_every_event_in_order(serve):
    _, client = serve("Four plus")
    events = list(client.responses.create(model="gpt-4.1", input="Hi", stream=True))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    # 2 bytes of input are 1 token, + 4 for the message, + 3; 9 bytes of output are 3
    assert events[-1].response.usage.total_tokens == 8 + 3


@pytest.mark.parametrize("streamed", [False, True])
def test_function_calls_are_items_of_a_response(serve, streamed):
    _, client = serve(ToolCalls(CALLS))
    if streamed:
        with client.responses.stream(model="gpt-4.1", input="Hi") as stream:
            reply = stream.get_final_response()
    else:
        reply = client.responses.create(model="gpt-4.1", input="Hi")
    assert [(item.type, item.name, json.loads(item.arguments)) for item in reply.output] == [("function_call", *call) for call in CALLS]


def test_function_call_arguments_come_in_deltas(serve):
    _, client = serve(ToolCalls([("lookup", {"user_id": 42})], text="Let me look."))
    events = list(client.responses.create(model="gpt-4.1", input="Hi", stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"user_id": 42}'
    assert {event.output_index for event in events if event.type == "response.output_item.done"} == {0, 1}


@pytest.mark.parametrize(("reason", "status"), [("length", "incomplete"), ("content_filter", "incomplete"), ("failed", "failed")])
def test_a_response_can_end_otherwise(serve, reason, status):
    _, client = serve(Text("Half a sen", finish_reason=reason))
    events = list(client.responses.create(model="gpt-4.1", input="Hi", stream=True))
    assert events[-1].type == f"response.{status}"
    assert events[-1].response.status == status


class Verdict(pydantic.BaseModel):
    approved: bool


def test_a_structured_response_is_parsed(serve):
    _, client = serve(Text('{"approved": true}'))
    assert client.responses.parse(model="gpt-4.1", input="Hi", text_format=Verdict).output_parsed == Verdict(approved=True)


def test_a_refused_response_is_streamed(serve):
    _, client = serve(Refusal("I will not."))
    events = list(client.responses.create(model="gpt-4.1", input="Hi", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.refusal.delta") == "I will not."
    assert events[-1].response.output[0].content[0].refusal == "I will not."


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_embeddings_are_unit_vectors_of_the_size_asked_for(serve, encoding):
    _, client = serve(Vector(16))
    options = {"encoding_format": "float"} if encoding == "float" else {}
    reply = client.embeddings.create(model="text-embedding-3-small", input=["abcd", "efgh ijkl", "abcd"], **options)
    assert [len(entry.embedding) for entry in reply.data] == [16, 16, 16]
    assert math.fsum(number**2 for number in reply.data[0].embedding) == pytest.approx(1)
    assert reply.data[0].embedding == reply.data[2].embedding != reply.data[1].embedding
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (5, 5)


def test_token_ids_are_one_embedding_and_count_one_each(serve):
    _, client = serve(Vector(4))
    reply = client.embeddings.create(model="text-embedding-3-small", input=[1, 2, 3], dimensions=6)
    assert [len(entry.embedding) for entry in reply.data] == [6]
    assert reply.usage.prompt_tokens == 3


def test_legacy_completions_are_answered_and_streamed(serve):
    _, client = serve("one two")
    reply = client.completions.create(model="gpt-3.5-turbo-instruct", prompt=["a", "b"])
    assert [choice.text for choice in reply.choices] == ["one two", "one two"]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 4)
    chunks = list(
        client.completions.create(model="gpt-3.5-turbo-instruct", prompt="a", stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "one two"
    assert chunks[-1].usage.total_tokens == 3


@pytest.mark.parametrize("text", ["flagged", "clean"])
def test_moderations_follow_the_script(serve, text):
    _, client = serve(text)
    assert client.moderations.create(input="some text").results[0].flagged is (text == "flagged")


def test_models_are_listed_without_taking_an_answer():
    with ScriptedLLM(["only one"], models=["gpt-x"]) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="any") as client:
            assert [model.id for model in client.models.list()] == ["gpt-x"]
        assert len(server.requests) == 1


@pytest.mark.anyio
async def test_the_async_client_reaches_responses_and_embeddings():
    with ScriptedLLM([Text("Hello."), Text("Hello again."), Vector(4)]) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            whole = await client.responses.create(model="gpt-4.1", input="Hi")
            async with client.responses.stream(model="gpt-4.1", input="Hi") as stream:
                streamed = await stream.get_final_response()
            vectors = await client.embeddings.create(model="text-embedding-3-small", input="Hi")
    assert (whole.output_text, streamed.output_text) == ("Hello.", "Hello again.")
    assert len(vectors.data[0].embedding) == 4
