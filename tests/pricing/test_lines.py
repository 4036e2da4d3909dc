"""Every line of a card at once, against plain Decimal arithmetic and against the price library's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import genai_prices
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel._pricing import PriceBook
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._usage import Usage

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TABLE = PriceBook(clock=NOW.timestamp)
MTOK = 10**6


@dataclass(frozen=True)
class Parts:
    """What a call used, cut into pieces that share no token."""

    words: int
    cached_words: int
    written: int
    written_1h: int
    audio: int
    cached_audio: int
    image: int
    cached_image: int
    said: int
    thought: int
    sound: int
    drawn: int
    rejected: int
    searches: int

    def usage(self) -> Usage:
        rest = self.words + self.cached_words + self.audio + self.cached_audio + self.image + self.cached_image
        return Usage(
            input_tokens=rest + self.written + self.written_1h,
            output_tokens=self.said + self.thought + self.sound + self.drawn,
            cached_input_tokens=self.cached_words + self.cached_audio + self.cached_image,
            cache_write_tokens=self.written + self.written_1h,
            cache_write_1h_tokens=self.written_1h,
            audio_input_tokens=self.audio + self.cached_audio,
            image_input_tokens=self.image + self.cached_image,
            cached_image_tokens=self.cached_image,
            reasoning_tokens=self.thought,
            audio_output_tokens=self.sound,
            image_output_tokens=self.drawn,
            rejected_prediction_tokens=min(self.rejected, self.said),
            searches=self.searches,
        )


def few():
    return st.just(0) | st.integers(0, 100_000)


every = st.builds(Parts, *[few()] * 13, st.integers(0, 20))
usd = st.decimals(0, 500, places=4)
LINES = (
    *("input", "output", "cached_input", "cache_write", "cache_write_1h", "audio_input", "cached_audio_input", "audio_output"),
    *("image_input", "cached_image_input", "image_output", "reasoning", "search", "request"),
)
cards = st.fixed_dictionaries({"input": usd, "output": usd}, optional=dict.fromkeys(LINES[2:], usd))


def by_hand(lines: dict[str, Decimal], parts: Parts) -> Decimal | None:
    """Multiply and add, in USD; None where there were searches and no price for one."""

    def line(*names: str) -> Decimal:
        return next(lines[name] for name in names if name in lines)

    def both(cached_kind: str, kind: str) -> Decimal:
        known = [lines[name] for name in ("cached_input", kind) if name in lines]
        return lines.get(cached_kind, max(known, default=lines["input"]))

    if parts.searches and "search" not in lines:
        return None
    tokens = (
        parts.words * lines["input"]
        + parts.cached_words * line("cached_input", "input")
        + parts.written * line("cache_write", "input")
        + parts.written_1h * line("cache_write_1h", "cache_write", "input")
        + parts.audio * line("audio_input", "input")
        + parts.cached_audio * both("cached_audio_input", "audio_input")
        + parts.image * line("image_input", "input")
        + parts.cached_image * both("cached_image_input", "image_input")
        + parts.said * lines["output"]
        + parts.thought * line("reasoning", "output")
        + parts.sound * line("audio_output", "output")
        + parts.drawn * line("image_output", "output")
    )
    return tokens / MTOK + (parts.searches * lines.get("search", Decimal(0)) + lines.get("request", Decimal(0))) / 1000


def told_apart(parts: Parts) -> bool:
    """Tell that the usage says of every cached token what it is."""
    no_pictures = parts.cached_image > 0 or parts.image == 0 or parts.cached_words == 0
    return no_pictures and parts.cached_audio == 0 and (parts.audio == 0 or parts.cached_words == 0)


@settings(max_examples=8000 if os.environ.get("RAVI_LONG") else 200, deadline=None)
@given(cards, every)
def test_a_call_costs_the_sum_of_its_parts_rounded_up_to_a_nano_and_is_never_below_it(lines, parts):
    ours, theirs = PriceBook({"m": lines}).card("openai", "m").cost_nano(parts.usage()), by_hand(lines, parts)
    if theirs is None:
        assert ours is None
        return
    if told_apart(parts):
        assert 0 <= ours - theirs * 10**9 < 1
    else:
        assert ours >= theirs * 10**9


MEDIA = [
    *(("openai", f"gpt-image-{version}") for version in ("1", "1-mini", "1.5", "2", "2.5-flare", "2.5-sunburst")),
    *(("openai", name) for name in ("chatgpt-image-latest", "gpt-realtime", "gpt-realtime-mini", "gpt-5", "gpt-5.4", "gpt-6-sol")),
    *(("anthropic", name) for name in ("claude-sonnet-4-5", "claude-opus-4-5", "claude-3-5-haiku-latest")),
    *(("google", name) for name in ("gemini-2.5-flash", "gemini-2.5-flash-image", "gemini-3-pro-image-preview")),
]


def library_nano(provider, model, usage):
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=usage.cache_write_1h_tokens,
        input_image_tokens=usage.image_input_tokens,
        cache_image_read_tokens=usage.cached_image_tokens,
        output_image_tokens=usage.image_output_tokens,
        output_audio_tokens=usage.audio_output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
        input_audio_tokens=usage.audio_input_tokens,
        cache_audio_read_tokens=0,
        web_searches=usage.searches,
    )
    return Fraction(genai_prices.calc_price(counted, model, provider_id=provider, genai_request_timestamp=NOW).total_price) * 10**9


@settings(max_examples=5000 if os.environ.get("RAVI_LONG") else 150, deadline=None)
@given(st.sampled_from([pair for pair in MEDIA if TABLE.card(*pair)]), every)
def test_pictures_searches_and_hour_long_writes_agree_with_the_library(pair, parts):
    parts = Parts(**{**vars(parts), "audio": 0, "cached_audio": 0})
    card, usage = TABLE.card(*pair), parts.usage()
    if usage.image_input_tokens and not parts.cached_image:
        usage.cached_input_tokens = 0  # whether those are pictures would not be told
    ours = card.cost_nano(usage)
    if ours is None:
        assert usage.searches
        assert card.rates.search is None
    else:
        assert 0 <= ours - library_nano(*pair, usage) < 1


@given(st.integers(1, 10**9))
def test_a_length_agrees_with_the_library(audio_ms):
    for model in ("whisper-1", "gpt-transcribe"):
        counted = genai_prices.Usage(audio_seconds=Decimal(audio_ms) / 1000, input_audio_seconds=Decimal(audio_ms) / 1000)
        price = genai_prices.calc_price(counted, model, provider_id="openai", genai_request_timestamp=NOW).total_price
        assert 0 <= TABLE.card("openai", model).cost_nano(Usage(audio_ms=audio_ms)) - price * 10**9 < 1


@given(st.integers(1, 10**9))
def test_characters_agree_with_the_library(characters):
    price = genai_prices.calc_price(
        genai_prices.Usage(input_characters=characters), "tts-1", provider_id="openai", genai_request_timestamp=NOW
    ).total_price
    assert TABLE.card("openai", "tts-1").cost_nano(Usage(characters=characters)) == price * 10**9


# -- the user's own ---------------------------------------------------------------------------------------------------


def test_a_user_prices_what_is_not_sold_by_tokens():
    book = PriceBook({"my-whisper": {"audio_hour": "0.36"}, "my-tts": {"characters": 15}})
    assert book.card("openai", "my-whisper").cost_nano(Usage(audio_ms=3_600_000)) == 360_000_000
    assert book.card("openai", "my-tts").cost_nano(Usage(characters=1_000)) == 15_000_000
    assert book.card("openai", "my-tts").cost_nano(Usage(1_000)) is None


def test_a_user_prices_requests_and_searches_by_the_thousand():
    card = PriceBook({"m": {"input": 1, "output": 1, "request": 5, "search": 10}}).card("openai", "m")
    assert card.cost_nano(Usage(1_000, 0, searches=2)) == 1_000_000 + 5_000_000 + 20_000_000


def test_a_search_a_users_price_does_not_name_is_unknown():
    assert PriceBook({"m": {"input": 1, "output": 1}}).card("openai", "m").cost_nano(Usage(10, 1, searches=1)) is None


def test_a_line_by_tokens_needs_input_and_output_beside_an_hour_of_sound():
    with pytest.raises(ConfigurationError, match="has no 'input'"):
        PriceBook({"m": {"audio_hour": 1, "audio_input": 3}})


@pytest.mark.parametrize(
    ("line", "unit"),
    [("audio_hour", "USD per hour of sound"), ("search", "USD per thousand searches"), ("image_output", "USD per million tokens")],
)
def test_a_wrong_price_is_told_with_the_unit_of_its_line(line, unit):
    with pytest.raises(ConfigurationError, match=unit):
        PriceBook({"m": {"input": 1, "output": 1, line: "much"}})


def test_a_misspelled_line_is_told_its_name():
    with pytest.raises(ConfigurationError, match="did you mean 'image_output'"):
        PriceBook({"m": {"input": 1, "output": 1, "image_out": 1}})
