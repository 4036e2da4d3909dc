"""Our integers against the library's own arithmetic, over the models it lists."""

from __future__ import annotations

import functools
import os
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._pricing import PriceBook
from ravi_otel._pricing.book import LIBRARY_LINES
from ravi_otel.policy._usage import Usage

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BOOK = PriceBook(clock=NOW.timestamp)
PROVIDERS = (
    "openai",
    "azure",
    "google",
    "mistral",
    "x-ai",
    "groq",
    "deepseek",
    "perplexity",
    "moonshotai",
    "openrouter",
    "together",
    "anthropic",
    "aws",
)
CONTEXTS = {None: None, "flex": {"service_tier": "flex"}, "priority": {"service_tier": "priority"}, "batch": {"processing": "batch"}}


def sold_by_tokens(provider, model):
    card = BOOK.card(provider, model)
    return card is not None and card.by_tokens


@functools.cache
def priced():
    """List what is sold by tokens: when it is first asked for, as each worker of the tests reads this file."""
    listed = {provider.id: provider for provider in get_snapshot().providers}
    return [(name, model.id) for name in PROVIDERS for model in listed[name].models if sold_by_tokens(name, model.id)]


@functools.cache
def dear():
    return [pair for pair in priced() if pair[0] == "openai"]


@st.composite
def usages(draw):
    total_in = draw(st.integers(0, 1_500_000) | st.sampled_from([0, 1, 199_999, 200_000, 200_001, 272_000, 272_001]))
    total_out = draw(st.integers(0, 200_000))
    cached = draw(st.integers(0, total_in))
    write = draw(st.integers(0, total_in - cached))
    audio_in = draw(st.just(0) | st.integers(0, total_in - cached - write))
    both = draw(st.integers(0, min(cached, 1000))) if audio_in else 0
    audio_out = draw(st.just(0) | st.integers(0, total_out))
    reasoning = draw(st.integers(0, total_out - audio_out))
    return Usage(total_in, total_out, cached, write, reasoning, audio_in + both, audio_out), both


def library_nano(provider, model, tier, usage, both):
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
        input_audio_tokens=usage.audio_input_tokens,
        output_audio_tokens=usage.audio_output_tokens,
        cache_audio_read_tokens=both,
    )
    price = genai_prices.calc_price(counted, model, provider_id=provider, genai_request_timestamp=NOW, price_context=CONTEXTS[tier])
    return price, Fraction(price.total_price) * 10**9


def slack(price, usage):
    """Return 1 nano-USD, and one more per million tokens where the table has digits below a nano, which we round up."""
    stored = [value for key in LIBRARY_LINES if key.endswith("_mtok") and (value := getattr(price.model_price, key)) is not None]
    numbers = [
        number for value in stored for number in ([value] if isinstance(value, Decimal) else [value.base, *(t.price for t in value.tiers)])
    ]
    noisy = any(number.as_tuple().exponent < -9 for number in numbers)
    return 1 + (Fraction(usage.input_tokens + usage.output_tokens, 1_000_000) if noisy else 0)


@settings(max_examples=6000 if os.environ.get("RAVI_LONG") else 200, deadline=None)
@given(st.deferred(lambda: st.sampled_from(priced()) | st.sampled_from(dear())), st.sampled_from(sorted(CONTEXTS, key=str)), usages())
def test_a_card_agrees_with_the_library_to_a_nano_usd_and_is_never_below_it(pair, tier, drawn):
    usage, both = drawn
    card = BOOK.card(*pair, tier)
    price, theirs = library_nano(*pair, tier, usage, both)
    assert card.model == price.model.id
    ours = card.cost_nano(usage)
    assert ours >= theirs
    if not both:
        assert ours - theirs < slack(price, usage)


@pytest.mark.parametrize("tier", sorted(CONTEXTS, key=str), ids=str)
def test_every_listed_model_agrees_on_one_usage(tier):
    usage = Usage(300_123, 4_567, cached_input_tokens=100_001, cache_write_tokens=3_333, reasoning_tokens=99)
    for pair in priced():
        price, theirs = library_nano(*pair, tier, usage, 0)
        assert 0 <= BOOK.card(*pair, tier).cost_nano(usage) - theirs < slack(price, usage), pair


def test_enough_models_are_compared():
    assert len(priced()) > 500
    assert len(dear()) > 50
