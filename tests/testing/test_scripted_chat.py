from __future__ import annotations

import json

import openai
import pydantic
import pytest

from ravi_otel.policy._usage import Usage
from ravi_otel.testing import Disconnect, Failure, Malformed, Raw, Refusal, ScriptedLLM, Text, ToolCalls

CALLS = [("lookup", {"user_id": 42}), ("refund", {"order": "A-1", "cents": 1999})]


def test_a_string_is_answered_as_text_with_counted_usage(serve, chat):
    _, client = serve("It is on its way.")
    reply = client.chat.completions.create(**chat)
    assert reply.choices[0].message.content == "It is on its way."
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.id, reply.model) == ("chatcmpl-1", "gpt-4o-mini")
    # 18 bytes of message text are 5 tokens, + 4 for the message, + 3; 17 bytes of answer are 5
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (12, 5, 17)


def test_stated_usage_is_sent_with_its_details(serve, chat):
    _, client = serve(Text("x", usage=Usage(100, 50, cached_input_tokens=64, reasoning_tokens=32)))
    usage = client.chat.completions.create(**chat).usage
    assert usage.prompt_tokens_details.cached_tokens == 64
    assert usage.completion_tokens_details.reasoning_tokens == 32
    assert usage.total_tokens == 150


def test_missing_usage_is_not_sent(serve, chat):
    _, client = serve(Text("x", usage="missing"))
    assert "usage" not in json.loads(_raw(client, chat))


def test_hostile_usage_is_sent_as_it_is(serve, chat):
    hostile = {"prompt_tokens": -1, "completion_tokens": "many", "total_tokens": None}
    _, client = serve(Text("x", usage=hostile))
    assert json.loads(_raw(client, chat))["usage"] == hostile


def _raw(client, chat) -> bytes:
    return client.chat.completions.with_raw_response.create(**chat).http_response.content


def test_a_raw_response_carries_the_usual_and_the_added_headers(serve, chat):
    _, client = serve(Text("hello", headers={"X-RateLimit-Remaining-Requests": "7"}))
    raw = client.chat.completions.with_raw_response.create(**chat)
    assert raw.headers["x-request-id"] == raw.request_id == "req_1"
    assert raw.headers["x-ratelimit-remaining-requests"] == "7"
    assert raw.parse().choices[0].message.content == "hello"


def test_a_stream_with_usage_ends_with_a_chunk_that_has_usage_and_no_choice(serve, chat):
    _, client = serve(Text("one two three", usage=(10, 3)))
    with client.chat.completions.with_streaming_response.create(**chat, stream=True, stream_options={"include_usage": True}) as raw:
        lines = [line.removeprefix("data: ") for line in raw.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:4]] == ["one", " two", " three"]
    assert chunks[4]["choices"][0] | {"logprobs": None} == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 5
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 13


def test_a_stream_without_usage_does_not_mention_it(serve, chat):
    _, client = serve("one two")
    with client.chat.completions.with_streaming_response.create(**chat, stream=True) as raw:
        assert "usage" not in raw.read().decode()


@pytest.mark.parametrize(
    ("chunks", "deltas"), [(2, ["abcd", "efg"]), (1, ["abcdefg"]), (["a", "", "bcdefg"], ["a", "", "bcdefg"]), (99, list("abcdefg"))]
)
def test_a_text_is_streamed_in_the_pieces_asked_for(serve, chat, chunks, deltas):
    _, client = serve(Text("abcdefg", chunks=chunks))
    found = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**chat, stream=True)]
    assert found[1:-1] == deltas


def test_parallel_tool_calls_are_answered_whole(serve, chat):
    _, client = serve(ToolCalls(CALLS))
    choice = client.chat.completions.create(**chat).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls] == CALLS


def test_parallel_tool_calls_are_streamed_as_deltas(serve, chat):
    _, client = serve(ToolCalls(CALLS, text="Let me look."))
    with client.chat.completions.stream(**chat) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.message.content == "Let me look."
    assert [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls] == CALLS
    assert len({call.id for call in choice.message.tool_calls}) == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_every_choice_asked_for_is_answered_and_counted(serve, chat, streamed):
    _, client = serve(Text("two words"))
    if streamed:
        chunks = list(client.chat.completions.create(**chat, n=3, stream=True, stream_options={"include_usage": True}))
        texts = dict.fromkeys(range(3), "")
        for chunk in chunks[:-1]:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        usage = chunks[-1].usage
    else:
        reply = client.chat.completions.create(**chat, n=3)
        texts, usage = {choice.index: choice.message.content for choice in reply.choices}, reply.usage
    assert texts == dict.fromkeys(range(3), "two words")
    assert usage.completion_tokens == 9


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_has_a_field_of_its_own(serve, chat, streamed):
    _, client = serve(Refusal("I will not do that."))
    if streamed:
        with client.chat.completions.stream(**chat) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**chat).choices[0].message
    assert message.refusal == "I will not do that."
    assert not message.content


class Verdict(pydantic.BaseModel):
    approved: bool
    cents: int


@pytest.mark.parametrize("streamed", [False, True])
def test_a_structured_answer_is_parsed(serve, chat, streamed):
    server, client = serve(Text('{"approved": true, "cents": 1999}'))
    if streamed:
        with client.chat.completions.stream(**chat, response_format=Verdict) as stream:
            reply = stream.get_final_completion()
    else:
        reply = client.chat.completions.parse(**chat, response_format=Verdict)
    assert reply.choices[0].message.parsed == Verdict(approved=True, cents=1999)
    assert server.requests[0].body["response_format"]["type"] == "json_schema"


def test_a_429_with_retry_after_is_tried_again_and_then_succeeds(serve, chat):
    script = [Failure(429, "slow down", "rate_limit_exceeded", retry_after_s=0.001), Text("at last")]
    server, client = serve(script, max_retries=1)
    assert client.chat.completions.create(**chat).choices[0].message.content == "at last"
    assert [request.headers["x-stainless-retry-count"] for request in server.requests] == ["0", "1"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_a_failure_is_the_clients_own_exception(serve, chat, status, error):
    _, client = serve(Failure(status, "no luck", "some_code", param="model"))
    with pytest.raises(error, match="no luck") as caught:
        client.chat.completions.create(**chat)
    assert (caught.value.code, caught.value.param, caught.value.request_id) == ("some_code", "model", "req_1")


def test_a_disconnect_in_the_middle_of_a_stream_comes_after_the_chunks_asked_for(serve, chat):
    server, client = serve(Disconnect(after_chunks=3))
    stream = client.chat.completions.create(**chat, stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(3)] == ["", "This", " sentence"]
    with pytest.raises(Exception, match=r"Connection error|peer closed connection|incomplete chunked read"):
        next(stream)  # older clients let the HTTP library's own error through
    assert (server.sent.answers, server.sent.chunks) == (0, 3)


@pytest.mark.parametrize("after", [0, 1])
def test_a_disconnect_without_a_stream_is_a_connection_error(serve, chat, after):
    _, client = serve(Disconnect(after_chunks=after))
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**chat)


def test_thinking_longer_than_the_clients_timeout_is_a_timeout_and_a_hang_up(serve, chat):
    server, client = serve(Text("late", think_s=60), timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**chat)
    server.wait_for_hang_ups(1)
    assert server.in_flight == 0


def test_a_stream_that_is_closed_early_is_a_hang_up(serve, chat):
    server, client = serve(Text("a b c d", chunk_s=0.2))
    with client.chat.completions.create(**chat, stream=True) as stream:
        next(iter(stream))
    server.wait_for_hang_ups(1)
    assert server.sent.answers == 0


def test_an_error_event_in_a_stream_is_an_api_error(serve, chat):
    _, client = serve(Malformed('{"error": {"message": "overloaded"}}', after_chunks=2))
    with pytest.raises(openai.APIError, match="overloaded"):
        list(client.chat.completions.create(**chat, stream=True))


def test_a_broken_event_reaches_the_client_as_it_is(serve, chat):
    _, client = serve(Malformed("{oops"))
    with pytest.raises(json.JSONDecodeError):
        list(client.chat.completions.create(**chat, stream=True))


def test_raw_bytes_are_answered_as_they_are(serve, chat):
    _, client = serve(Raw(b"\x00not json", 200, content_type="text/plain"))
    assert client.chat.completions.with_raw_response.create(**chat).http_response.content == b"\x00not json"


@pytest.mark.anyio
async def test_the_async_client_is_answered_and_streamed_to(chat):
    with ScriptedLLM(["one two", ToolCalls(CALLS), "three four"]) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            reply = await client.chat.completions.create(**chat)
            async with client.chat.completions.stream(**chat) as stream:
                called = (await stream.get_final_completion()).choices[0].message.tool_calls
            words = [chunk.choices[0].delta.content or "" async for chunk in await client.chat.completions.create(**chat, stream=True)]
    assert reply.choices[0].message.content == "one two"
    assert [call.function.name for call in called] == ["lookup", "refund"]
    assert "".join(words) == "three four"
