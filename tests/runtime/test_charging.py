"""What a call costs where its answer tells little, and which tier it is held at."""

from __future__ import annotations

import pytest

from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.charging import dearest_tier, is_free, price, spoken
from ravi_otel.hooks._events import CallRecord
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._usage import Call, Reply, Usage

PRICES = PriceBook()
DATE = PRICES.card("openai", "gpt-4o").table_date
SPOKEN = Usage(10, 60, audio_output_tokens=60, characters=40)


def record_of(model, usage=None, **more):
    return CallRecord(Call("any", "any", model=model, **more), ScopeFacts("s", ScopeKind.RUN), "op", 0, usage=usage)


def test_a_price_is_written_down_with_its_source_and_its_date():
    usage = Usage(1_000, 100)
    record = record_of("gpt-4o", usage)
    assert price(record, PRICES, Reply(model="gpt-4o-2024-08-06"), usage) == 3_500_000
    assert (record.cost_nano, record.cost_source, record.price_date) == (3_500_000, "response_model", DATE)


def test_an_unknown_price_has_no_source_and_no_date():
    usage = Usage(1_000, 100)
    record = record_of("nobody-knows", usage)
    assert price(record, PRICES, Reply(), usage) is None
    assert (record.cost_nano, record.cost_source, record.price_date) == (None, None, None)


def test_the_price_of_a_guessed_provider_is_assumed():
    usage = Usage(1_000, 100)
    record = record_of("gpt-4o", usage, provider_assumed=True)
    price(record, PRICES, Reply(), usage)
    assert (record.cost_source, record.price_date) == ("assumed", DATE)


def test_what_a_failed_call_is_charged_is_not_what_it_cost():
    record = record_of("gpt-4o")
    assert price(record, PRICES, Reply(), Usage(1_000, source="estimated")) == 2_500_000
    assert (record.cost_nano, record.charged_nano, record.charged.input_tokens) == (None, 2_500_000, 1_000)


def test_characters_are_counted_where_they_are_what_is_sold():
    assert spoken(Call("s", "s", model="tts-1", expected=SPOKEN), PRICES) == Usage(characters=40, source="estimated")


@pytest.mark.parametrize(("model", "expected"), [("gpt-4o-mini-tts", SPOKEN), ("nobody", SPOKEN), (None, SPOKEN), ("tts-1", None)])
def test_characters_are_not_counted_for_what_is_sold_otherwise(model, expected):
    assert spoken(Call("s", "s", model=model, expected=expected), PRICES) is None


def test_what_is_given_away_is_free_however_much_it_was():
    record = record_of(None)
    assert is_free(record, PRICES, Reply(model="omni-moderation-latest"))
    assert (record.cost_nano, record.cost_source, record.price_date) == (0, "response_model", DATE)


@pytest.mark.parametrize("model", ["gpt-4o", "whisper-1", "tts-1", "dall-e-3", None, "nobody"])
def test_what_is_sold_or_unknown_is_not_free(model):
    record = record_of(model)
    assert not is_free(record, PRICES, Reply())
    assert record.cost_nano is None


@pytest.mark.parametrize(("asked", "held"), [("priority", "priority"), ("flex", None), ("auto", None), (None, None), (["priority"], None)])
def test_a_call_is_held_at_the_dear_tier_only_where_it_was_asked_for(asked, held):
    assert dearest_tier(Call("c", "c", parameters={"service_tier": asked})) == held
