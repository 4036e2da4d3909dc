"""What a call is expected to take before it is sent, and what is written down after."""

from __future__ import annotations

import pytest

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.plan import OUTPUT_GUESS, Estimate
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import PriceBook
from ravi_otel.policy._usage import Call, Usage

PRICES = PriceBook(
    {
        "words": {"input": 1, "output": 10},
        "pictures": {"input": 1, "output": 2, "image_input": 5, "image_output": 10},
        "hours": {"audio_hour": 0.36},
        "characters": {"characters": 15},
    }
)
DRAWN = Usage(1_100, 4_000, image_input_tokens=1_000, image_output_tokens=4_000)
HEARD = Usage(600, 240, audio_input_tokens=600, audio_ms=60_000)
SPOKEN = Usage(10, 60, audio_output_tokens=60, characters=40)


def expected(model, **more):
    return Estimate.of(Call("any", "any", model=model, **more), PRICES.card("openai", model))


def test_words_are_expected_at_their_size_and_the_callers_cap_or_a_guess():
    assert expected("words", size=100, output_cap=50, choices=2).cost == 100 * 1_000 + 100 * 10_000
    guessed = expected("words", size=100)
    assert (guessed.output_tokens, guessed.cost) == (OUTPUT_GUESS, 100 * 1_000 + OUTPUT_GUESS * 10_000)


def test_pictures_are_expected_at_what_their_endpoint_says_and_need_at_least_what_is_sent():
    found = expected("pictures", turn=False, expected=DRAWN)
    assert (found.input_tokens, found.output_tokens) == (1_100, 4_000)
    assert found.cost == 100 * 1_000 + 1_000 * 5_000 + 4_000 * 10_000
    assert found.least_cost == 100 * 1_000 + 1_000 * 5_000 + 10_000


def test_a_recording_is_expected_at_its_length_and_speech_at_its_characters():
    assert expected("hours", expected=HEARD).cost == expected("hours", expected=HEARD).least_cost == 6_000_000
    assert expected("characters", expected=SPOKEN).cost == 600_000


@pytest.mark.parametrize(("model", "usage"), [("hours", SPOKEN), ("characters", HEARD), ("hours", None), ("nobody", DRAWN)])
def test_what_a_model_is_not_sold_by_has_no_expected_cost(model, usage):
    found = expected(model, expected=usage)
    assert (found.cost, found.least_cost) == (None, None)


def test_a_call_that_failed_on_its_way_is_charged_what_was_sent():
    assert expected("words", size=7).floor() == Usage(7, source="estimated")
    assert expected("pictures", expected=DRAWN).floor() == Usage(1_100, image_input_tokens=1_000, source="estimated")
    assert expected("hours", expected=HEARD).floor() == Usage(600, audio_input_tokens=600, audio_ms=60_000, source="estimated")


def test_what_was_reserved_is_marked_as_that():
    assert expected("pictures", expected=DRAWN).usage().source == "reserved"
    assert DRAWN.source == "reported"


def test_tokens_nobody_counted_settle_at_what_was_held():
    amounts = Scope.of_process(Engine()).plan.amounts
    assert amounts(Usage(audio_ms=5), 7, None) == {"cost": 7}
    assert amounts(Usage(), None, None) == {"tokens": 0, "input_tokens": 0, "output_tokens": 0}
    assert amounts(Usage(3, 2, searches=1), 7, 4) == {"tokens": 5, "input_tokens": 3, "output_tokens": 2, "cost": 7, "messages": 4}
