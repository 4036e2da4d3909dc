"""What is remembered or read in haste on the way of every call is what the careful way would find."""

from types import SimpleNamespace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from ravi_otel._instrumentation.client_profile import profile_of
from ravi_otel._instrumentation.formats import fields
from ravi_otel._instrumentation.formats.chat import ChatCollector
from ravi_otel.policy._usage import Call

TEXTS = st.one_of(st.none(), st.text(max_size=8), st.integers(), st.binary(max_size=4))
CALLS = st.sampled_from([None, [], [{"index": 0, "function": {"name": "f", "arguments": "a long argument of a tool"}}]])
MORE = st.sampled_from([{}, {"reasoning_content": None}, {"reasoning_content": "a thought of some words"}, {"role": "assistant"}])
DELTAS = st.builds(
    lambda more, **said: ChoiceDelta.construct(**said, **more),
    more=MORE,
    content=TEXTS,
    refusal=TEXTS,
    tool_calls=CALLS,
    function_call=st.sampled_from([None, {"name": "f", "arguments": "more than nothing"}]),
)
CHOICES = st.builds(
    SimpleNamespace, index=st.integers(0, 2), delta=st.one_of(st.none(), DELTAS), finish_reason=st.sampled_from([None, "stop"])
)
USAGES = st.one_of(st.none(), st.builds(SimpleNamespace, prompt_tokens=st.integers(0, 9), completion_tokens=st.integers(0, 9)))
EVENTS = st.builds(SimpleNamespace, id=st.sampled_from(["", "c1"]), choices=st.lists(CHOICES, max_size=2), usage=USAGES, model=st.just("m"))

NAMED: dict[str, str] = {}


@given(st.lists(EVENTS, max_size=6))
def test_a_chunk_read_in_haste_counts_like_one_read_with_care(events):
    hasty, careful = (ChatCollector(Call("chat", "chat.completions", size=5)) for _ in range(2))
    for event in events:
        hasty.add(event)
        careful._add(fields.as_mapping(event))
    assert (hasty.reply(), hasty.complete) == (careful.reply(), careful.complete)


@pytest.mark.parametrize(
    "beside",
    [
        {"reasoning_content": "y" * 400},
        {"refusal": "y" * 400},
        {"function_call": {"arguments": "y" * 400}},
        {"tool_calls": [{"index": 0, "function": {"arguments": "y" * 400}}]},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_what_comes_beside_text_in_one_chunk_counts_as_well(beside):
    alone, both = (ChatCollector(Call("chat", "chat.completions", size=5)) for _ in range(2))
    for collector, content in ((alone, None), (both, "x" * 40)):
        for delta in ({"content": "first"}, {**beside, "content": content}):
            choice = SimpleNamespace(index=0, delta=ChoiceDelta.construct(**delta), finish_reason=None)
            collector.add(SimpleNamespace(id="c1", model="m", choices=[choice], usage=None))
    assert both.produced > alone.produced > 90


def test_a_client_that_is_given_another_base_url_is_asked_again():
    with openai.OpenAI(api_key="none", base_url="https://api.groq.com/openai/v1") as client:
        before = profile_of("openai").host_of(client, NAMED)
        client.base_url = "https://api.mistral.ai/v1"
        after = profile_of("openai").host_of(client, NAMED)
    assert [(one.provider, one.base) for one in (before, after)] == [("groq", "/openai/v1/"), ("mistral_ai", "/v1/")]


def test_two_classes_of_client_with_one_url_are_told_apart():
    class AzureOpenAI(openai.OpenAI):
        pass

    with openai.OpenAI(api_key="none", base_url="http://model.invalid/v1") as plain, AzureOpenAI(api_key="none") as azure:
        azure._base_url = plain._base_url
        assert (profile_of("openai").host_of(plain, NAMED).provider, profile_of("openai").host_of(azure, NAMED).provider) == (
            "openai",
            "azure.ai.openai",
        )


def test_a_url_that_a_property_makes_anew_is_read_each_time():
    class Moving(openai.OpenAI):
        names = iter(["https://api.groq.com/v1", "https://api.x.ai/v1"])

        @property
        def base_url(self):
            return type(self._base_url)(next(self.names))

    with openai.OpenAI(api_key="none", base_url="http://model.invalid/v1") as made:
        moving = object.__new__(Moving)
        moving.__dict__.update(made.__dict__)
        assert [profile_of("openai").host_of(moving, NAMED).provider for _ in range(2)] == ["groq", "x_ai"]


class Proxy:
    """Stand for anything, as the proxies of other packages do."""

    def __init__(self, target):
        self.target = target

    @property
    def __class__(self):
        return type(self.target)

    def get(self, name):
        return self.target.get(name)

    a = 1


@pytest.mark.parametrize(
    ("value", "found"), [({"a": 2}, 2), (SimpleNamespace(a=3), 3), (Proxy(SimpleNamespace()), 1), (Proxy({"a": 4}), 4)]
)
def test_a_field_is_found_whatever_was_asked_before(value, found):
    assert [fields.get(one, "a") for one in (SimpleNamespace(a=0), value, value)] == [0, found, found]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner)
    )
)
def test_a_small_mapping_weighs_what_a_large_one_of_the_same_would(value):
    some = value if isinstance(value, dict) else {"v": value}
    padding = {f"\0{index}": None for index in range(fields._FEW + 1)}
    assert fields.tokens_in(some) + len(padding) == fields.tokens_in({**some, **padding})
