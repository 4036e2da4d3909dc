"""Questions to a book of prices, with the real table behind it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest

from ravi_otel import _extras
from ravi_otel._pricing import PriceBook, book
from ravi_otel._pricing.book import Table
from ravi_otel.policy._usage import Usage

USAGE = Usage(1000, 100)
OWN = {"input": 1, "output": 1}
TABLE_DATE = PriceBook().card("openai", "gpt-4o").table_date


@pytest.fixture(scope="module")
def prices():
    found = PriceBook()
    assert found.preload()
    return found


class CountingTable(Table):
    """A table that counts what reaches it."""

    __slots__ = ("asked",)

    def __init__(self):
        super().__init__()
        self.asked = []

    def quote(self, provider, model, tier, now):
        self.asked.append((provider, model, tier))
        return super().quote(provider, model, tier, now)


def epoch(*parts):
    return datetime(*parts, tzinfo=UTC).timestamp()


def test_importing_the_package_does_not_import_the_price_library():
    program = "import sys, ravi_otel._pricing as p; p.PriceBook({'m': {'input': 1, 'output': 1}}); print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_override_is_answered_without_the_price_library():
    program = (
        "import sys; from ravi_otel._pricing import PriceBook\n"
        "assert PriceBook({'m': {'input': 1, 'output': 1}}).card('openai', 'm'); print('genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_sixteen_threads_that_ask_first_load_the_library_once(monkeypatch):
    loaded = []
    real = _extras.load
    monkeypatch.setattr(_extras, "load", lambda name: loaded.append(name) or real(name))
    found = PriceBook(table=Table())
    barrier, cards = threading.Barrier(16), []

    def ask():
        barrier.wait()
        cards.append(found.card("openai", "gpt-4o"))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == ["genai_prices", "genai_prices.data_snapshot"]
    assert len(cards) == 16
    assert all(card is cards[0] is not None for card in cards)


def test_a_known_model_has_a_card(prices):
    card = prices.card("openai", "gpt-4o")
    assert (card.provider, card.model, card.source) == ("openai", "gpt-4o", "table")
    assert card.rates.input == 2_500_000_000
    assert card.table_date


@pytest.mark.parametrize(
    ("provider", "model", "listed"),
    [
        ("openai", "gpt-4o", "openai"),
        ("azure.ai.openai", "gpt-4o", "azure"),
        ("gcp.gemini", "gemini-2.5-pro", "google"),
        ("mistral_ai", "mistral-large-latest", "mistral"),
        ("x_ai", "grok-4.3", "x-ai"),
        ("groq", "llama-3.3-70b-versatile", "groq"),
        ("deepseek", "deepseek-chat", "deepseek"),
        ("perplexity", "sonar-pro", "perplexity"),
        ("moonshot_ai", "kimi-k2.6", "moonshotai"),
        ("openrouter", "openai/gpt-4o", "openrouter"),
        ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "together"),
        ("anthropic", "claude-sonnet-4-5", "anthropic"),
        ("aws.bedrock", "amazon.nova-lite-v1:0", "aws"),
        ("cohere", "command-r", "cohere"),
    ],
)
def test_providers_are_known_by_the_names_of_the_convention(prices, provider, model, listed):
    card = prices.card(provider, model)
    assert card is not None
    assert card.provider == listed
    assert card.rates.input > 0


@pytest.mark.parametrize(
    ("provider", "model"),
    [("openai", "no-such-model"), ("ollama", "llama3"), ("my-openai-proxy", "gpt-4o"), ("litellm", "openai/gpt-4o"), ("", "gpt-4o")],
)
def test_an_unknown_provider_or_model_is_none(prices, provider, model):
    assert prices.card(provider, model) is None


def test_a_fine_tuned_name_has_no_guessed_base_price(prices):
    assert prices.card("openai", "ft:gpt-4o-mini:org::id") is None
    assert prices.card("openai", "ft:gpt-4o-mini-2024-07-18:org::id") is not None


def test_a_model_listed_without_prices_is_unknown_and_not_free(prices):
    assert prices.card("cerebras", "qwen-3-coder-480b") is None
    assert prices.card("openai", "dall-e-3") is None


def test_a_recording_costs_its_length(prices):
    card = prices.card("openai", "whisper-1")
    assert card.cost_nano(Usage(audio_ms=60_000)) == 6_000_000
    assert card.cost_nano(Usage(audio_ms=1)) == 100
    assert prices.card("openai", "gpt-transcribe").cost_nano(Usage(audio_ms=3_600_000)) == 270_000_000


def test_speech_costs_its_characters(prices):
    assert prices.card("openai", "tts-1").cost_nano(Usage(characters=1000)) == 15_000_000
    assert prices.card("openai", "tts-1-hd").cost_nano(Usage(characters=1)) == 30_000


def test_a_picture_costs_its_tokens_by_kind(prices):
    drawn = Usage(1_050, 4_160, image_input_tokens=1_000, image_output_tokens=4_160)
    assert prices.card("openai", "gpt-image-1").cost_nano(drawn) == 50 * 5_000 + 1_000 * 10_000 + 4_160 * 40_000
    assert prices.card("openai", "gpt-image-1.5").cost_nano(drawn) == 50 * 5_000 + 1_000 * 8_000 + 4_160 * 32_000
    cached = Usage(1_050, 0, cached_input_tokens=500, image_input_tokens=1_000, cached_image_tokens=500)
    assert prices.card("openai", "gpt-image-1").cost_nano(cached) == 50 * 5_000 + 500 * 10_000 + 500 * 2_500


def test_a_transcript_that_is_sold_by_tokens_costs_its_sound_and_its_text(prices):
    heard = Usage(110, 40, audio_input_tokens=100, audio_ms=10_000)
    assert prices.card("openai", "gpt-4o-transcribe").cost_nano(heard) == 10 * 2_500 + 100 * 6_000 + 40 * 10_000


@pytest.mark.parametrize(
    ("model", "usage"),
    [
        ("whisper-1", Usage(100, 10)),
        ("whisper-1", Usage(characters=10)),
        ("tts-1", Usage(audio_ms=10)),
        ("gpt-4o-transcribe", Usage(audio_ms=10)),
        ("gpt-4o-mini-tts", Usage(characters=10)),
        ("gpt-4-turbo", Usage(100, 10, searches=1)),
    ],
)
def test_what_a_model_is_not_sold_by_has_no_price_and_is_not_free(prices, model, usage):
    assert prices.card("openai", model).cost_nano(usage) is None
    assert prices.cost("openai", model, model, usage) == (None, None, None)


def test_searches_are_added_to_the_tokens(prices):
    card = prices.card("openai", "gpt-5")
    assert card.cost_nano(Usage(1000, 100, searches=3)) == card.cost_nano(USAGE) + 30_000_000


def test_tokens_written_for_an_hour_have_their_own_price(prices):
    card = prices.card("anthropic", "claude-sonnet-4-5")
    five, hour = Usage(1_000_000, 0, cache_write_tokens=1_000), Usage(1_000_000, 0, cache_write_tokens=1_000, cache_write_1h_tokens=1_000)
    # five minutes at 1.25 times the input's price of the step, an hour at twice
    rates = card._rates_at(1_000_000)
    assert rates.cache_write * 4 == rates.input * 5
    assert rates.cache_write_1h == rates.input * 2
    assert card.cost_nano(hour) - card.cost_nano(five) == (rates.cache_write_1h - rates.cache_write) // 1000


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "scale", None])
def test_a_tier_that_is_no_dearer_or_cheaper_has_the_standard_price(prices, tier):
    assert prices.card("openai", "gpt-5", tier).rates == prices.card("openai", "gpt-5").rates


@pytest.mark.parametrize(("tier", "times_two"), [("flex", 1), ("batch", 1), ("priority", 4)])
def test_a_tier_as_answered_has_its_price(prices, tier, times_two):
    assert prices.card("openai", "gpt-5", tier).cost_nano(USAGE) * 2 == prices.card("openai", "gpt-5").cost_nano(USAGE) * times_two


def test_a_model_the_vendor_gives_away_is_free(prices):
    assert prices.card("openai", "omni-moderation-latest").cost_nano(USAGE) == 0
    assert prices.card("openrouter", "deepseek-chat-v3-0324:free").cost_nano(USAGE) == 0


@pytest.mark.parametrize("model", [None, "", 7, b"gpt-4o", ["gpt-4o"], "x" * 10_000_000, "gpt-4o\n", "gpt\x00", "gpt-4o\x1b[0m", "\ud800"])
def test_a_name_that_is_none_is_unknown_and_never_reaches_the_library(model):
    counting = CountingTable()
    found = PriceBook({"*": OWN}, table=counting)
    assert found.card("openai", model) is None
    assert found.card(model, "gpt-4o") is None
    assert counting.asked == []
    assert len(found._cards) == 0


def test_a_service_tier_has_its_own_price(prices):
    standard, flex = prices.card("openai", "gpt-5"), prices.card("openai", "gpt-5", "flex")
    assert flex.rates.input * 2 == standard.rates.input
    assert prices.card("openai", "gpt-5", "priority").rates.input == standard.rates.input * 2
    assert prices.card("openai", "gpt-5", "batch").rates.output * 2 == standard.rates.output
    assert prices.card("openai", "gpt-5", "FLEX").rates == flex.rates


@pytest.mark.parametrize("tier", ["default", "auto", "scale", "no such tier", "", 3, ["flex"], "flex\n", "y" * 10_000_000])
def test_an_unknown_tier_has_the_standard_price(prices, tier):
    assert prices.card("openai", "gpt-5", tier).rates == prices.card("openai", "gpt-5").rates


def test_a_borrowed_model_has_no_tiers_of_its_lender(prices):
    assert prices.card("azure.ai.openai", "gpt-5.4-pro") is not None
    assert prices.card("azure.ai.openai", "gpt-5.4-pro", "flex").rates == prices.card("azure.ai.openai", "gpt-5.4-pro").rates


def test_every_price_of_the_library_is_of_a_line_of_ours_but_that_of_searches_in_stored_files():
    listed = {provider.id: provider for provider in _extras.load("genai_prices.data_snapshot").get_snapshot().providers}["openai"]
    prices = [model.get_prices(datetime.now(UTC), None).__dict__ for model in listed.models]
    known = {key for each in prices for key, price in each.items() if price is not None}
    assert known - book.LIBRARY_LINES.keys() == {"storage_searches_kcount"}


def test_the_table_is_asked_once_a_day():
    counting, now = CountingTable(), [epoch(2026, 11, 20, 23, 0)]
    found = PriceBook(clock=lambda: now[0], table=counting)
    first = found.card("openai", "gpt-4o")
    now[0] += 3599
    assert found.card("openai", "gpt-4o") is first
    assert len(counting.asked) == 1
    now[0] += 1
    assert found.card("openai", "gpt-4o") == first
    assert len(counting.asked) == 2


def test_an_unknown_model_is_asked_once_too():
    counting = CountingTable()
    found = PriceBook(table=counting, clock=lambda: epoch(2026, 11, 20))
    assert found.card("openai", "nothing") is found.card("openai", "nothing") is None
    assert len(counting.asked) == 1


def test_a_price_by_the_hour_changes_at_its_hour():
    now = [epoch(2026, 11, 20, 0, 59, 59)]
    found = PriceBook(clock=lambda: now[0])
    night = found.card("deepseek", "deepseek-flash").rates
    now[0] += 1
    peak = found.card("deepseek", "deepseek-flash").rates
    now[0] = epoch(2026, 11, 20, 4, 0)
    assert peak.input == 2 * night.input
    assert found.card("deepseek", "deepseek-flash").rates == night


def test_a_price_by_date_changes_at_its_date():
    now = [epoch(2026, 10, 11, 12)]
    found = PriceBook(clock=lambda: now[0])
    before = found.card("openai", "gpt-5", "flex").rates
    now[0] = epoch(2026, 10, 12)
    assert found.card("openai", "gpt-5", "flex").rates.input * 2 == before.input


def test_hostile_model_names_fill_no_memory(monkeypatch):
    monkeypatch.setattr(book, "MAX_CARDS", 10)
    found = PriceBook()
    for number in range(50):
        found.card("ollama", f"model-{number}")
    assert len(found._cards) == 10
    assert ("ollama", "model-49", None) in found._cards


def test_the_library_keeps_no_hostile_name_either(prices):
    snapshot = _extras.load("genai_prices.data_snapshot").get_snapshot()
    before = len(snapshot._lookup_cache), len(snapshot._provider_cache), len(snapshot._provider_misses)
    for number in range(5):
        prices.card("openai", f"ft:gpt-4o-2024-{number}")
        prices.card("nobody", f"gpt-{number}")
    assert (len(snapshot._lookup_cache), len(snapshot._provider_cache), len(snapshot._provider_misses)) == before


def test_a_failing_library_is_an_unknown_price_and_logged_once(prices, monkeypatch, caplog):
    snapshots = _extras.load("genai_prices.data_snapshot")
    own = Table()
    assert own.load()
    monkeypatch.setattr(snapshots, "get_snapshot", lambda: 1 / 0)
    found = PriceBook(table=own)
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        assert found.card("openai", "gpt-4o") is None
        assert found.card("openai", "gpt-4o-mini") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ZeroDivisionError" in caplog.text


def test_a_missing_library_is_tried_once_and_logged_once(monkeypatch, caplog):
    tried = []

    def missing(name):
        tried.append(name)
        raise ImportError(name)

    monkeypatch.setattr(_extras, "load", missing)
    found = PriceBook(table=Table())
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        assert found.preload() is False
        assert found.card("openai", "gpt-4o") is None
        assert found.card("openai", "gpt-5") is None
    assert len(tried) == 1
    assert len(caplog.records) == 1


def test_cost_goes_by_the_model_that_answered(prices):
    expected = prices.card("openai", "gpt-4o-mini").cost_nano(USAGE)
    assert prices.cost("openai", "gpt-4o-mini", "gpt-4o", USAGE) == (expected, "response_model", TABLE_DATE)


def test_cost_goes_by_the_model_asked_when_the_other_has_no_price(prices):
    expected = prices.card("openai", "gpt-4o").cost_nano(USAGE)
    assert prices.cost("openai", "who-knows", "gpt-4o", USAGE) == (expected, "request_model", TABLE_DATE)
    assert prices.cost("openai", None, "gpt-4o", USAGE) == (expected, "request_model", TABLE_DATE)


def test_a_cost_nobody_knows_is_none(prices):
    assert prices.cost("openai", "who-knows", None, USAGE) == (None, None, None)
    assert prices.cost("openai", "gpt-4o", "gpt-4o", None) == (None, None, None)


def test_cost_goes_by_the_tier(prices):
    flex, _, _ = prices.cost("openai", "gpt-5", "gpt-5", USAGE, "flex")
    standard, _, _ = prices.cost("openai", "gpt-5", "gpt-5", USAGE)
    assert flex * 2 == standard


def test_the_users_price_for_the_model_asked_goes_before_the_table():
    found = PriceBook({"gpt-4o": OWN})
    assert found.cost("openai", "gpt-4o-2024-08-06", "gpt-4o", USAGE) == (1_100_000, "override", None)
    assert found.cost("openai", "gpt-4o", "gpt-4o", USAGE) == (1_100_000, "override", None)
    assert found.cost("openai", "gpt-4o-mini", "gpt-4o-mini", USAGE)[1] == "response_model"


def test_a_users_price_may_name_the_provider_either_way():
    for name in ("azure.ai.openai/deploy", "azure/deploy"):
        assert PriceBook({name: OWN}).cost("azure.ai.openai", None, "deploy", USAGE) == (1_100_000, "override", None)


def test_every_name_of_the_convention_is_one_of_the_table():
    snapshot = _extras.load("genai_prices.data_snapshot").get_snapshot()
    assert set(book.PROVIDERS.values()) <= {provider.id for provider in snapshot.providers}


def test_the_default_clock_is_the_wall_clock():
    assert PriceBook()._clock is time.time


@pytest.mark.parametrize(
    ("tier", "source"), [(None, "response_model"), ("default", "response_model"), ("weird", "assumed"), ("flex", "assumed")]
)
def test_a_tier_without_a_price_of_its_own_is_told_at_the_standard_price_as_assumed(tier, source):
    prices = PriceBook()
    cost, told, _ = prices.cost("openai", "gpt-4o-mini", None, USAGE, tier)
    assert (cost, told) == (prices.cost("openai", "gpt-4o-mini", None, USAGE)[0], source)


def test_a_tier_with_a_price_of_its_own_is_told_at_that():
    prices = PriceBook()
    flex, standard = (prices.cost("openai", "o3", None, USAGE, tier) for tier in ("flex", None))
    assert flex[0] < standard[0]
    assert flex[1] == "response_model"


@pytest.mark.parametrize("seller", ["ollama@localhost", "vllm@localhost"])
def test_a_server_of_open_models_on_this_machine_costs_nothing_and_says_why(prices, seller):
    assert prices.cost(seller, "llama3.2", "llama3.2", USAGE) == (0, "own_machine", None)


@pytest.mark.parametrize(
    ("seller", "model"),
    [("ollama", "llama3.2"), ("vllm", "llama3.2"), ("ollama@localhost", "gpt-oss:120b-cloud"), ("ollama@localhost", "kimi-k2:cloud")],
)
def test_one_on_another_machine_or_in_a_cloud_has_an_unknown_price(prices, seller, model):
    assert prices.cost(seller, model, model, USAGE) == (None, None, None)


def test_ones_own_price_goes_before_that_of_ones_own_machine():
    own = PriceBook({"ollama/llama3.2": OWN})
    assert own.cost("ollama@localhost", "llama3.2", "llama3.2", USAGE) == (1_100_000, "override", None)


@pytest.mark.parametrize(
    ("model", "provider", "listed"),
    [
        ("openai/gpt-4o", "openai", "gpt-4o"),
        ("anthropic/claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("xai/grok-4", "x_ai", "grok-4"),
        ("google/gemini-2.5-flash", "gcp.gemini", "gemini-2.5-flash"),
    ],
)
def test_what_a_gateway_sells_at_list_price_has_that_of_its_creator_which_is_assumed(prices, model, provider, listed):
    nano, source, _ = prices.cost("vercel", model, model, USAGE)
    assert nano == prices.cost(provider, listed, listed, USAGE)[0]
    assert nano > 0
    assert source == "assumed"


@pytest.mark.parametrize("model", ["gpt-4o", "nobody/gpt-4o", "/", "openai/"])
def test_what_names_no_creator_has_no_price_at_a_gateway(prices, model):
    assert prices.cost("vercel", model, model, USAGE) == (None, None, None)


def test_what_openrouter_says_in_its_answer_goes_before_its_list_and_after_ones_own_price(prices):
    told = Usage(1_000, 100, told_nano=4_321)
    assert prices.cost("openrouter", "openai/gpt-4o", "openai/gpt-4o", told) == (4_321, "told", None)
    assert prices.cost("openrouter", "nobody/knows-this", None, told) == (4_321, "told", None)
    assert prices.cost("openai", "gpt-4o", "gpt-4o", told)[1] == "response_model"
    own = PriceBook({"openai/gpt-4o": {"input": 1, "output": 1}})
    assert own.cost("openrouter", "openai/gpt-4o", "openai/gpt-4o", told) == (1_100_000, "override", None)


def test_openrouter_has_a_list_of_its_own(prices):
    nano, source, _ = prices.cost("openrouter", "openai/gpt-4o", "openai/gpt-4o", USAGE)
    assert nano > 0
    assert source == "response_model"
