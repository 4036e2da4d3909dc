"""The user's own prices."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ravi_otel._pricing.book import Overrides
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._usage import Usage

MILLION = 1_000_000


def model_of(prices, provider, model):
    card = Overrides({name: {"input": 1, "output": 1} for name in prices}).price_of((provider,), model)
    return card and card.model


@pytest.mark.parametrize("value", [2.5, "2.5", Decimal("2.5")])
def test_a_price_is_a_number_or_its_text(value):
    card = Overrides({"m": {"input": value, "output": 0}}).price_of(("openai",), "m")
    assert card.rates.input == 2_500_000_000


def test_a_float_means_the_digits_it_shows():
    card = Overrides({"m": {"input": 0.1, "output": 1}}).price_of(("openai",), "m")
    assert card.rates.input == 100_000_000


def test_zero_is_free():
    card = Overrides({"m": {"input": 0, "output": 0}}).price_of(("openai",), "m")
    assert card.cost_nano(Usage(MILLION, MILLION)) == 0


def test_lines_that_are_not_given_cost_what_their_total_costs():
    card = Overrides({"m": {"input": 2, "output": 8}}).price_of(("openai",), "m")
    assert card.rates.cached_input == card.rates.cache_write == card.rates.audio_input == card.rates.input
    assert card.rates.reasoning == card.rates.audio_output == card.rates.output


def test_an_override_says_it_is_one():
    card = Overrides({"m": {"input": 2, "output": 8}}).price_of(("openai",), "m")
    assert (card.source, card.model, card.table_date) == ("override", "m", None)


def test_a_name_with_its_provider_goes_before_the_name_alone():
    assert model_of(["m", "groq/m"], "groq", "m") == "groq/m"
    assert model_of(["m", "groq/m"], "openai", "m") == "m"


def test_a_model_with_a_slash_in_it_is_found_by_its_name():
    assert model_of(["openai/gpt-oss-20b"], "groq", "openai/gpt-oss-20b") == "openai/gpt-oss-20b"


def test_an_exact_name_goes_before_a_pattern():
    assert model_of(["groq/mo*", "m*", "model"], "groq", "model") == "model"


def test_the_longest_pattern_goes_first():
    assert model_of(["*", "gpt-*", "gpt-4*"], "openai", "gpt-4o") == "gpt-4*"
    assert model_of(["*", "gpt-*", "gpt-4*"], "openai", "gpt-5") == "gpt-*"
    assert model_of(["*", "gpt-*", "gpt-4*"], "openai", "o3") == "*"


def test_a_pattern_can_stand_for_a_whole_provider():
    assert model_of(["ollama/*"], "ollama", "llama3") == "ollama/*"
    assert model_of(["ollama/*"], "openai", "llama3") is None


def test_case_does_not_matter():
    assert model_of(["My-Deployment"], "azure.ai.openai", "my-deployment") == "My-Deployment"


def test_no_prices_are_no_overrides():
    assert not Overrides(None)
    assert not Overrides({})
    assert Overrides({"m": {"input": 0, "output": 0}})


@pytest.mark.parametrize(
    ("prices", "sentence"),
    [
        ({"m": {"input": -1, "output": 1}}, r"prices\['m'\]\['input'\] is -1, but a price is between 0"),
        ({"m": {"input": float("nan"), "output": 1}}, r"\['input'\] is nan, which is no number"),
        ({"m": {"input": float("inf"), "output": 1}}, r"\['input'\] is inf, but a price is between 0"),
        ({"m": {"input": "1E+999999", "output": 1}}, "but a price is between 0"),
        ({"m": {"input": Decimal("sNaN"), "output": 1}}, "which is no number"),
        ({"m": {"input": "two", "output": 1}}, r"is 'two', which is no number"),
        ({"m": {"input": True, "output": 1}}, "is True, which is no number"),
        ({"m": {"input": None, "output": 1}}, "is None, which is no number"),
        ({"m": {"input": 1, "outptu": 1}}, "unknown line 'outptu': did you mean 'output'"),
        ({"m": {"input": 1, "output": 1, "zzzzzz": 1}}, "unknown line 'zzzzzz': use input, output"),
        ({"m": {"input": 1, "output": 1, 7: 1}}, "unknown line 7"),
        ({"m": {"output": 1}}, "has no 'input'"),
        ({"m": {"input": 1}}, "has no 'output'"),
        ({"m": 3}, r"prices\['m'\] is 3, but must name its lines"),
        ({"": {"input": 1, "output": 1}}, "has the name ''"),
        ({3: {"input": 1, "output": 1}}, "has the name 3"),
        ({"g*t": {"input": 1, "output": 1}}, "only as its last character"),
        ({"m": {"input": 1, "output": 1}, "M": {"input": 1, "output": 1}}, "names 'M' twice"),
        ([("m", 1)], "prices is list, but must map"),
    ],
)
def test_a_price_that_cannot_be_used_is_one_sentence(prices, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        Overrides(prices)
    assert "\n" not in str(caught.value)
