"""Integer arithmetic of one card."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._pricing import RateCard, Rates
from ravi_otel._pricing.rates import MILLION, nano_per_million
from ravi_otel.policy._usage import Usage

USD = 1_000_000_000

prices = st.integers(0, 100 * USD)
optional = st.none() | prices
counts = st.integers(-5, 3_000_000) | st.integers(0, 2**60)
rates = st.builds(
    Rates.fill,
    input=prices,
    output=prices,
    cached_input=optional,
    cache_write=optional,
    audio_input=optional,
    audio_output=optional,
    reasoning=optional,
)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts, counts)


def card_of(steps=(), **lines):
    lines = {"input": 0, "output": 0} | lines
    return RateCard(provider="p", model="m", rates=Rates.fill(**lines), steps=steps)


def test_a_million_tokens_cost_the_line():
    card = card_of(input=2 * USD, output=8 * USD)
    assert card.cost_nano(Usage(MILLION, MILLION)) == 10 * USD


def test_a_fraction_of_a_nano_is_rounded_up_once_at_the_sum():
    card = card_of(input=1, output=1)
    assert card.cost_nano(Usage(1, 1)) == 1
    assert card.estimate_nano(1, 1) == 1
    assert card.cost_nano(Usage(0, 0)) == 0


def test_cached_tokens_are_part_of_the_input_and_billed_on_their_own_line():
    card = card_of(input=10 * USD, cached_input=1 * USD)
    assert card.cost_nano(Usage(MILLION, 0, cached_input_tokens=MILLION // 2)) == 5_500_000_000


def test_cache_writes_may_cost_more_than_input():
    card = card_of(input=10 * USD, cached_input=1 * USD, cache_write=12 * USD)
    usage = Usage(MILLION, 0, cached_input_tokens=500_000, cache_write_tokens=250_000)
    assert card.cost_nano(usage) == 2_500_000_000 + 500_000_000 + 3 * USD


@pytest.mark.parametrize(
    "part", ["cached_input_tokens", "cache_write_tokens", "audio_input_tokens", "audio_output_tokens", "reasoning_tokens"]
)
def test_a_part_without_a_line_costs_what_its_total_costs(part):
    card = card_of(input=10 * USD, output=20 * USD)
    assert card.cost_nano(Usage(1000, 1000, **{part: 700})) == card.cost_nano(Usage(1000, 1000))


def test_audio_and_reasoning_output_are_billed_on_their_own_lines():
    card = card_of(output=10 * USD, audio_output=40 * USD, reasoning=5 * USD)
    usage = Usage(0, MILLION, audio_output_tokens=250_000, reasoning_tokens=250_000)
    assert card.cost_nano(usage) == 5 * USD + 10 * USD + 1_250_000_000


def test_an_unreported_overlap_of_cached_and_audio_takes_the_dearest_split():
    card = card_of(input=4 * USD, cached_input=USD, audio_input=32 * USD, cached_audio_input=USD)
    apart = card.cost_nano(Usage(MILLION, 0, cached_input_tokens=500_000, audio_input_tokens=500_000))
    assert apart == 500_000_000 + 16 * USD
    forced = card.cost_nano(Usage(MILLION, 0, cached_input_tokens=MILLION, audio_input_tokens=MILLION))
    assert forced == USD


def test_a_part_larger_than_its_total_is_cut_to_it():
    card = card_of(input=10 * USD, cached_input=USD)
    assert card.cost_nano(Usage(100, 0, cached_input_tokens=10**15)) == card.cost_nano(Usage(100, 0, cached_input_tokens=100))


def test_a_request_price_is_charged_once_a_call():
    card = card_of(input=USD, output=USD, request=5_000 * USD)
    assert card.cost_nano(Usage(0, 0)) == 5_000_000
    assert card.estimate_nano(0, 0) == 5_000_000


def test_above_a_step_the_whole_call_has_the_price_of_the_step():
    steps = ((1000, Rates.fill(input=2 * USD, output=20 * USD)), (2000, Rates.fill(input=4 * USD, output=40 * USD)))
    card = card_of(steps, input=USD, output=10 * USD)
    assert card.cost_nano(Usage(1000, 1000)) == 11_000_000
    assert card.cost_nano(Usage(1001, 1000)) == 22_002_000
    assert card.cost_nano(Usage(2001, 1000)) == 48_004_000
    assert card.estimate_nano(1001, 1000) == card.cost_nano(Usage(1001, 1000))


def test_a_card_is_frozen():
    with pytest.raises(AttributeError):
        card_of().model = "other"


def test_a_price_does_not_depend_on_the_decimal_context_of_the_caller():
    with decimal.localcontext(decimal.Context(prec=2, rounding=decimal.ROUND_DOWN)):
        assert nano_per_million(Decimal("1.23456789")) == 1_234_567_890


def test_digits_below_a_nano_are_rounded_up():
    assert nano_per_million(Decimal("0.08333333333333334")) == 83_333_334
    assert nano_per_million(Decimal("1E-999999")) == 1


@pytest.mark.parametrize("text", ["-0.01", "NaN", "Infinity", "1000001", "1E+999999"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(ValueError, match="no price"):
        nano_per_million(Decimal(text))


@given(rates, usages)
def test_no_usage_costs_less_than_its_totals_at_their_cheapest_lines(lines, usage):
    cost = RateCard(provider="p", model="m", rates=lines).cost_nano(usage)
    cheapest_in = min(lines.input, lines.cached_input, lines.cache_write, lines.audio_input, lines.cached_audio_input)
    cheapest_out = min(lines.output, lines.audio_output, lines.reasoning)
    assert cost >= 0
    assert cost * MILLION >= max(usage.input_tokens, 0) * cheapest_in + max(usage.output_tokens, 0) * cheapest_out


@given(rates, rates, st.integers(0, 1_000_000), usages)
def test_no_usage_costs_more_than_the_worst_case(lines, above, start, usage):
    card = RateCard(provider="p", model="m", rates=lines, steps=((start, above),))
    assert card.cost_nano(usage) <= card.worst_nano(usage.input_tokens, usage.output_tokens)


@given(rates, st.integers(0, 10**7), st.integers(0, 10**7))
def test_an_estimate_is_the_cost_of_plain_text(lines, tokens_in, tokens_out):
    card = RateCard(provider="p", model="m", rates=lines)
    assert card.estimate_nano(tokens_in, tokens_out) == card.cost_nano(Usage(tokens_in, tokens_out))
