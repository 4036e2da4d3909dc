"""What a response says it used, down to what was cached, written to the cache, reasoned about and searched for."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ravi_otel
from ravi_otel._instrumentation.formats.responses import Responses, ResponsesCollector
from ravi_otel.policy._usage import Asked, Call, Usage
from ravi_otel.testing import Capture, ScriptedLLM, Text

USED = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}


def asked(content: Asked | None = None) -> Call:
    return Call(operation="chat", endpoint="responses", size=10, content=content)


def usage_of(response: Any) -> Usage:
    found = Responses().reply(response).usage
    assert found is not None
    return found


def test_every_detail_is_read():
    details = {
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens_details": {"reasoning_tokens": 40},
    }
    found = usage_of({"usage": USED | details})
    assert (found.cached_input_tokens, found.cache_write_tokens, found.reasoning_tokens) == (60, 30, 40)


def test_no_more_is_written_to_the_cache_than_was_sent_and_not_read_from_it():
    found = usage_of({"usage": USED | {"input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 90}}})
    assert found.cached_input_tokens + found.cache_write_tokens <= found.input_tokens


@pytest.mark.parametrize("missing", [{}, {"input_tokens": None}, {"output_tokens": None}])
def test_a_part_that_is_not_told_is_what_the_total_leaves(missing: dict[str, None]):
    lacks = next(iter(missing), "output_tokens")
    told = {name: value for name, value in USED.items() if name != lacks} | missing
    assert usage_of({"usage": told}) == Usage(input_tokens=100, output_tokens=50)


@pytest.mark.parametrize("total", [99, 100, 0, -1, "150", "many", None, True, 2**60, [150]])
def test_a_total_that_leaves_nothing_tells_nothing_of_a_part(total: Any):
    assert Responses().reply({"usage": {"input_tokens": 100, "total_tokens": total}}).usage is None


@pytest.mark.parametrize("part", [-1, "many", float("nan"), True, [1]])
def test_a_part_that_is_no_count_is_not_made_up_from_the_total(part: Any):
    assert Responses().reply({"usage": USED | {"output_tokens": part}}).usage is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("api", "inputs"), [("chat", "prompt_tokens"), ("responses", "input_tokens")])
def test_a_limit_settles_at_a_total_that_is_told_with_one_part(api: str, inputs: str, stream: bool, instrumented: Capture):
    told = Text("hello", usage={inputs: 100, "total_tokens": 150})
    more: dict[str, Any] = {"stream": True} if stream else {}
    with (
        ScriptedLLM(lambda _: told) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client,
        ravi_otel.run("r", limits=["tokens=100000"]) as run,
    ):
        if api == "responses":
            made: Any = client.responses.create(model="gpt-4o-mini", input="Hi.", **more)
        else:
            asks = more and more | {"stream_options": {"include_usage": True}}
            made = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Hi."}], **asks)
        if stream:
            list(made)
        spend, (reading,) = run.stats(), run.limits
    assert (spend.input_tokens, spend.output_tokens, spend.estimated_calls, spend.unreported_calls) == (100, 50, 0, 0)
    assert reading.used == 150
    attributes = instrumented.spans("chat gpt-4o-mini")[0].attributes or {}
    assert attributes["gen_ai.usage.output_tokens"] == 50
    assert "ravi.usage.source" not in attributes


SEARCHED = [
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "a"}},
    {"type": "web_search_call", "status": "completed", "action": {"type": "open_page", "url": "u"}},
    {"type": "web_search_call", "status": "failed", "action": {"type": "search", "query": "b"}},
    {"type": "web_search_call", "status": "completed"},
]


def test_searches_are_counted_by_their_items_where_nothing_else_tells():
    assert usage_of({"usage": USED, "output": SEARCHED}).searches == 2


@pytest.mark.parametrize("billed", [0, 1, 5])
def test_searches_are_those_that_the_answer_says_are_billed(billed):
    told = {"web_search": {"num_requests": billed}}
    assert usage_of({"usage": USED, "output": SEARCHED, "tool_usage": told}).searches == billed


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_an_answer_that_is_still_being_made_is_pending_until_it_tells_its_usage(status):
    assert Responses().reply({"status": status}).pending
    assert not Responses().reply({"status": status, "usage": USED}).pending


def test_a_plain_stream_that_was_cut_is_estimated_and_nothing_is_awaited():
    follows = ResponsesCollector(Responses(), asked())
    follows.add({"type": "response.created", "response": {"id": "r", "status": "in_progress", "background": False}})
    follows.add({"type": "response.output_text.delta", "delta": "some text"})
    told = follows.reply()
    assert told.usage is not None
    assert (told.pending, told.usage.source, told.usage.input_tokens) == (False, "estimated", 10)


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "input_tokens", "cache_write_tokens", "web_search", "num_requests", "x"]), inner)
    ),
    max_leaves=10,
)


@given(odd, odd, odd, odd)
def test_no_answer_makes_reading_it_raise_or_count_below_nothing(usage, output, tools, details):
    for told in ({"usage": usage}, {"usage": USED | {"input_tokens_details": details}}):
        found = Responses().reply(told | {"output": output, "tool_usage": tools, "status": "completed"}).usage
        if found is not None:
            assert min(found.input_tokens, found.output_tokens, found.cache_write_tokens, found.searches) >= 0


@given(st.lists(odd, max_size=5))
def test_no_stream_makes_following_it_raise(events):
    for writes in (False, True):
        follows = ResponsesCollector(Responses(), asked(Asked() if writes else None))
        for event in events:
            follows.add(event)
            follows.add({"type": "response.output_item.done", "output_index": event, "item": event})
            follows.add({"type": "response.completed", "response": event})
        follows.reply()
