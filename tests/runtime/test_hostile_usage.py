"""What a provider claims to have used never lowers, poisons or bypasses a counter."""

import itertools
import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ravi_otel
from ravi_otel import BudgetExhaustedError
from ravi_otel._instrumentation.formats.chat import usage as chat_usage
from ravi_otel._instrumentation.formats.responses import usage as responses_usage
from ravi_otel.testing import Raw, Text

CLAIMS = {
    "missing": "missing",
    "null": None,
    "empty": {},
    "negative": {"prompt_tokens": -100, "completion_tokens": -100, "total_tokens": -200},
    "one negative": {"prompt_tokens": 100, "completion_tokens": -100_000},
    "text": {"prompt_tokens": "100", "completion_tokens": "x"},
    "dicts": {"prompt_tokens": {"a": 1}, "completion_tokens": [1]},
    "fractions": {"prompt_tokens": 1.5, "completion_tokens": 0.1},
    "2**63": {"prompt_tokens": 2**63, "completion_tokens": 2**63},
    "2**53 + 1": {"prompt_tokens": 2**53 + 1, "completion_tokens": 0},
    "true": {"prompt_tokens": True, "completion_tokens": True},
    "a total alone that is text": {"total_tokens": "500"},
    "a total alone that is negative": {"total_tokens": -500},
    "a total alone beyond any": {"total_tokens": 2**53 + 1},
    "a total alone of nothing": {"total_tokens": 0},
    "a lower total": {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 0},
    "more cached than there is": {"prompt_tokens": 100, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 10**9}},
    "negative details": {
        "prompt_tokens": 100,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": -(10**9), "audio_tokens": "x"},
        "completion_tokens_details": {"reasoning_tokens": -(10**9)},
    },
}


def raw(usage_json, stream=False):
    """Write an answer by hand, for claims that no JSON encoder writes."""
    choice = '{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}'
    head = '"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini"'
    return Raw(f'{{{head}, "choices": [{choice}], "usage": {usage_json}}}'.encode())


def swallow(act, times):
    refused = 0
    for _ in range(times):
        try:
            act()
        except BudgetExhaustedError:
            refused += 1
    return refused


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_claim_keeps_a_program_going(stage, client, ask, claim, stream):
    stage.answer = Text("word " * 80, usage=CLAIMS[claim])
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    def call():
        answer = ask(client, **more)
        if stream:
            list(answer)

    with ravi_otel.run("r", limits=["tokens=2000", "cost=4", "input_tokens=100000", "output_tokens=100000"]) as run:
        seen = []
        for _ in range(60):
            try:
                call()
            except BudgetExhaustedError:
                break
            seen.append([(reading.used, reading.held) for reading in run.limits])
        else:
            pytest.fail("nothing was ever refused")
        sent = stage.sent
        assert swallow(call, 20) == 20
    assert stage.sent == sent
    for before, after in itertools.pairwise(seen):
        assert all(now >= then for (then, _), (now, _) in zip(before, after, strict=True))
    assert all(held == 0 for row in seen for _, held in row)
    assert all(math.isfinite(used) for row in seen for used, _ in row)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", '"NaN"', "1e15", "9007199254740993"])
def test_no_number_that_is_none_poisons_a_counter(stage, client, ask, literal):
    stage.answer = raw(f'{{"prompt_tokens": {literal}, "completion_tokens": {literal}, "total_tokens": {literal}}}')
    with ravi_otel.run("r", limits=["tokens=4000"]) as run:
        refused = swallow(lambda: ask(client), 10)
        used = run.limits[0].used
    assert refused >= 5
    assert math.isfinite(used)
    assert used >= 2_000


def test_a_claim_of_nothing_is_believed_but_costs_a_request_each(stage, client, ask):
    """Zero is a count, and real answers tell it; what bounds such a provider is `requests` or `turns`."""
    stage.answer = Text("ok", usage=(0, 0))
    with ravi_otel.run("r", limits=["tokens=4000", "requests=5"]) as run:
        assert swallow(lambda: ask(client), 10) == 5
    assert run.limits[0].used == 0


def test_calls_whose_usage_nobody_told_are_counted_as_such_and_their_cost_is_unknown(stage, client, ask):
    stage.answer = Text("ok", usage="missing")
    with ravi_otel.run("r") as run:
        ask(client)
    assert run.stats().unreported_calls == 1
    assert run.cost_usd is None


def test_a_stream_without_usage_is_estimated_in_the_stats_and_settles_no_lower_than_what_was_held(stage):
    """Reasoning is not streamed: what can be seen of an answer may be a small part of what it used."""
    stage.answer = Text("ok")
    with stage.client() as client, ravi_otel.instrument(), ravi_otel.run("r", limits=["tokens=50k"]) as run:
        list(client.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": "hi"}], stream=True))
        assert run.stats().estimated_calls == 1
        assert run.stats().total_tokens < 50
        assert run.limits[0].used > 1_024


def test_usage_that_is_missing_settles_at_what_was_held(stage, client, ask, heard):
    stage.answer = Text("ok", usage="missing")
    with ravi_otel.run("r", limits=["tokens=4000"]) as run:
        ask(client, max_tokens=500)
    (record,) = heard.calls
    assert record.usage.source == "reserved"
    assert run.limits[0].used == record.usage.total_tokens


@pytest.mark.parametrize("model", [5, None, "", "\ud800", "x" * 100_000, {"a": 1}, "nobody-knows-this-model"])
def test_a_model_name_that_is_none_does_not_make_a_call_free(stage, client, ask, model):
    body = json.loads(raw('{"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}').body)
    body["model"] = model
    stage.answer = Raw(json.dumps(body).encode())
    with ravi_otel.run("r", limits=["cost=1"]) as run:
        ask(client)
    assert run.limits[0].used == 0.2


counts = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
details = st.one_of(counts, st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens", "reasoning_tokens"]), counts))
NAMES = ["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"]
DETAILS = ["prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"]


@settings(deadline=None, max_examples=3000 if os.environ.get("RAVI_LONG") else 100)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, counts) | dict.fromkeys(DETAILS, details)))
@pytest.mark.parametrize("read", [chat_usage, responses_usage], ids=["chat", "responses"])
def test_whatever_is_claimed_is_read_as_whole_counts_or_not_at_all(read, claim):
    found = read(claim)
    if found is None:
        return
    numbers = [found.input_tokens, found.output_tokens, found.cached_input_tokens, found.reasoning_tokens, found.total_tokens]
    assert all(type(number) is int and 0 <= number <= 2**54 for number in numbers)
    assert found.total_only or found.total_tokens == found.input_tokens + found.output_tokens
    if found.total_only:  # neither part was told, under any name
        assert found.total_tokens == claim["total_tokens"]
        assert all(claim.get(name) is None for name in NAMES[:-1])
    assert found.cached_input_tokens <= found.input_tokens
    assert found.reasoning_tokens <= found.output_tokens
