"""What chat answers and streams report is read as it is, whatever host reports it and however wrongly."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from ravi_otel._instrumentation.formats.chat import CHAT, ChatCollector, usage
from ravi_otel._instrumentation.formats.format import Host, Request
from ravi_otel.policy._usage import Asked, Call


def collector_of(size: int, **more: Any) -> ChatCollector:
    return CHAT.collector(Call("chat", "chat.completions", size=size, **more))


def counts(**fields: Any) -> dict[str, Any]:
    return {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150, **fields}


@pytest.mark.parametrize("as_model", [False, True])
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 10}}, {"cached_input_tokens": 40, "cache_write_tokens": 10}),
        ({"prompt_tokens_details": {"cache_creation_tokens": 10}}, {"cache_write_tokens": 10}),
        ({"cache_creation_input_tokens": 7, "cache_read_input_tokens": 5}, {"cache_write_tokens": 7, "cached_input_tokens": 5}),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, {"cached_input_tokens": 64}),
        ({"cached_tokens": 9}, {"cached_input_tokens": 9}),
        ({"prompt_tokens_details": {"cached_tokens": 95, "cache_write_tokens": 10}}, {"cached_input_tokens": 95, "cache_write_tokens": 5}),
        ({"prompt_tokens_details": {"audio_tokens": 8, "image_tokens": 3}}, {"audio_input_tokens": 8, "image_input_tokens": 3}),
        (
            {"completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 6, "rejected_prediction_tokens": 4}},
            {"reasoning_tokens": 20, "audio_output_tokens": 6, "rejected_prediction_tokens": 4},
        ),
        ({"prompt_tokens_details": {"cached_tokens": -1, "cache_write_tokens": "x"}}, {}),
    ],
)
def test_every_sort_of_token_is_read(told, expected, as_model):
    given: Any = CompletionUsage.construct(**counts(**told)) if as_model else counts(**told)
    if as_model:
        given = CompletionUsage.model_construct(**counts())
        given = CompletionUsage.construct(None, **counts(**told))
    found = usage(given)
    assert found is not None
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (100, 50, 150)
    rest = {"cached_input_tokens", "cache_write_tokens", "reasoning_tokens", "rejected_prediction_tokens", "audio_input_tokens"} - set(
        expected
    )
    assert {getattr(found, name) for name in rest} <= {0}


def chunk(*deltas: Any, usage: Any = None, reason: str | None = None, **fields: Any) -> ChatCompletionChunk:
    choices = [{"index": at, "delta": delta, "finish_reason": reason, "logprobs": None} for at, delta in enumerate(deltas)]
    known = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": usage}
    return ChatCompletionChunk.model_validate(known | fields)


def test_groq_tells_usage_under_a_name_of_its_own():
    collector = collector_of(10)
    collector.add(chunk({"role": "assistant", "content": ""}, x_groq={"id": "req"}))
    collector.add(chunk({"content": "Hi"}))
    collector.add(chunk({}, reason="stop", x_groq={"id": "req", "usage": counts()}))
    found = collector.reply().usage
    assert found is not None
    assert (found.source, found.total_tokens) == ("reported", 150)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "", "reasoning_content": "think"},
        {"content": None, "reasoning_content": "think"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
        {"function_call": {"name": "f", "arguments": "{}"}},
        {"refusal": "no"},
        {"audio": {"data": "A" * 6_400}},
        {"audio": {"transcript": "hello"}},
    ],
)
def test_whatever_is_said_counts_as_content(delta):
    collector = collector_of(10)
    collector.add(chunk({"role": "assistant", "content": ""}))
    assert not collector.spoke
    collector.add(chunk(delta))
    assert collector.spoke
    found = collector.reply().usage
    assert found is not None
    assert found.source == "estimated"
    assert found.output_tokens > 0


def test_hostile_indexes_hold_little_memory():
    collector = collector_of(0, content=Asked())
    for index in range(20_000):
        event = {"id": "c", "choices": [{"index": index, "delta": {"content": "x" * 1_000}, "finish_reason": "stop"}]}
        collector.add(event)
    assert len(collector.reply().finish_reasons) == 4_096
    messages = collector.reply().output or ()
    assert len(messages) == 128
    assert sum(len(part["content"]) for message in messages for part in message["parts"]) <= 1_000_000


@pytest.mark.parametrize("index", [2**60, -1, True, None, "0", 1.5, [], 3.0])
def test_a_tool_call_with_a_strange_index_is_put_together(index):
    collector = collector_of(0, content=Asked())
    collector.add(
        {"id": "c", "choices": [{"index": index, "delta": {"tool_calls": [{"index": index, "id": "c1", "function": {"name": "f"}}]}}]}
    )
    for piece in ('{"a"', ":1}"):
        collector.add(
            {"id": "c", "choices": [{"index": index, "delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}}]}
        )
    ((message,),) = (collector.reply().output,)
    assert message["parts"] == [{"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}}]


def test_calls_without_an_index_are_told_apart_by_their_id():
    collector = collector_of(0, content=Asked())
    for call_id in ("a", "b"):
        collector.add({"choices": [{"delta": {"tool_calls": [{"id": call_id, "function": {"name": f"f{call_id}", "arguments": "{}"}}]}}]})
    assert [part["id"] for part in (collector.reply().output or ())[0]["parts"]] == ["a", "b"]


@pytest.mark.parametrize(
    "event", [None, 1, "x", [], {"choices": 1}, {"choices": [None, 1, {"delta": 3}, {"delta": {"tool_calls": [None], "audio": 4}}]}]
)
def test_nonsense_is_taken_in_without_a_word(event):
    collector = collector_of(0, content=Asked())
    collector.add(event)
    collector.reply()


def settings(body):
    return CHAT.call(
        Request("POST", "/chat/completions", body, Host("openai", assumed=False, address=None, port=None), stream=False)
    ).parameters


def test_the_settings_of_a_request_are_read():
    body = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 7,
        "frequency_penalty": 1,
        "presence_penalty": 2,
        "stop": "END",
        "service_tier": "flex",
        "max_completion_tokens": None,
        "max_tokens": 5,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema"},
    }
    assert settings(body) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 7,
        "frequency_penalty": 1,
        "presence_penalty": 2,
        "stop_sequences": ["END"],
        "service_tier": "flex",
        "max_tokens": 5,
        "reasoning_level": "low",
        "output_type": "json",
    }
    assert settings({"modalities": ["text", "audio"], "reasoning": {"effort": "high"}}) == {
        "output_type": "speech",
        "reasoning_level": "high",
    }


@pytest.mark.parametrize(
    "result",
    [None, 5, "text", {"choices": [{"message": 4}, None]}, {"choices": [{"message": {"content": 3, "tool_calls": [1], "audio": "x"}}]}],
)
def test_an_answer_of_any_shape_can_be_written_down(result):
    endpoint = CHAT
    endpoint.reply(result)
    for message in endpoint.answered(result):
        assert message["role"] == "assistant"


W = "some words which are tokens "


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": W},
        {"reasoning": W},
        {"reasoning": W, "reasoning_details": [{"type": "reasoning.text", "text": W}]},
        {"content": "", "reasoning_details": [{"type": "reasoning.summary", "summary": W}]},
        {"content": [{"type": "text", "text": W}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": W}]}]},
    ],
)
def test_thoughts_and_parts_are_counted_wherever_a_host_streams_them(delta):
    collector = collector_of(10)
    for _ in range(10):
        one = chunk({"role": "assistant"})
        one.choices[0].delta = type(one.choices[0].delta).model_construct(**delta)
        collector.add(one)
    assert collector.produced == len(W) * 10 / 4
    assert collector.spoke


@pytest.mark.parametrize("lie", [3, [3], [[]], [{"text": {"text": 3}}], {"text": W}])
def test_thoughts_that_are_no_text_are_not_counted(lie):
    collector = collector_of(10)
    collector.add({"id": "c", "choices": [{"index": 0, "delta": {"reasoning": lie, "content": lie}}]})
    assert collector.produced == 0
