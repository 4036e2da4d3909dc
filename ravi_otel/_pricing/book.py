"""Answer what a model costs: by the user's own prices, then by the price library's table, asked once a day."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeGuard

from ravi_otel import _extras
from ravi_otel._forksafe import ForkLock, around_fork, without_signals
from ravi_otel._pricing.rates import DEAREST_USD, RateCard, Rates, nano_per_million
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._usage import Usage

LOG = logging.getLogger("ravi_otel")

PROVIDERS: Final[Mapping[str, str]] = {
    "aws.bedrock": "aws",
    "azure.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "gcp.gemini": "google",
    "gcp.gen_ai": "google",
    "gcp.vertex_ai": "google",
    "mistral_ai": "mistral",
    "moonshot_ai": "moonshotai",
    "x_ai": "x-ai",
}
"""Provider names of the convention whose name in the price table is another."""

AT_LIST_PRICE: Final[Mapping[str, Mapping[str, str]]] = {"vercel": {"amazon": "aws", "xai": "x-ai"}}
"""Gateways that sell the models of others, named `creator/model`, at their creators' list price, which is taken for theirs.

https://vercel.com/docs/ai-gateway/pricing. To each its names of creators whose name in the price table is another.
"""

LIBRARY_LINES: Final[Mapping[str, str]] = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached_input",
    "cache_write_mtok": "cache_write",
    "cache_write_5m_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "input_audio_mtok": "audio_input",
    "cache_audio_read_mtok": "cached_audio_input",
    "output_audio_mtok": "audio_output",
    "input_image_mtok": "image_input",
    "cache_image_read_mtok": "cached_image_input",
    "output_image_mtok": "image_output",
    "output_reasoning_mtok": "reasoning",
    "requests_kcount": "request",
    "web_searches_kcount": "search",
    "input_mchars": "characters",
    "audio_hours": "audio_hour",
    "input_audio_hours": "audio_hour",
}
"""The library's price keys, each in the unit of our line for it; of two for one line the later goes first.

They are what a `Usage` counts. What the vendor also bills, such as searches in stored files, is in no price: the true one is higher.
"""

PER_MILLION: Final = "USD per million tokens"
REQUIRED: Final = ("input", "output")
UNITS: Final[Mapping[str, tuple[str, int]]] = {
    **dict.fromkeys((*REQUIRED, "cached_input", "cache_write", "cache_write_1h"), (PER_MILLION, 1)),
    **dict.fromkeys(("audio_input", "cached_audio_input", "audio_output", "reasoning"), (PER_MILLION, 1)),
    **dict.fromkeys(("image_input", "cached_image_input", "image_output"), (PER_MILLION, 1)),
    "characters": ("USD per million characters", 1),
    "audio_hour": ("USD per hour of sound", 1),
    "request": ("USD per thousand requests", 1000),
    "search": ("USD per thousand searches", 1000),
}
"""What each line is priced in, and how many of that a million of it are."""

LINES: Final = tuple(UNITS)
_INSTEAD: Final = ("characters", "audio_hour")
"""The lines of models that are not sold by tokens."""

FREE: Final = frozenset({("openai", "moderation")})
"""Models the table lists without any price because the vendor gives them away, beside those it names `…:free`."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Answer one question: the card, None when nobody knows the price, and until when (epoch seconds) it holds."""

    card: RateCard | None
    until: float


class Table:
    """Read the library's price table, which is imported at the first question and not before.

    Not thread-safe by itself: hold `lock.own` around `quote` and `load`. A price holds until midnight UTC, as prices
    change by date, or until the hour at which the vendor's next price of the day begins.
    """

    __slots__ = ("_failed", "_logged", "_providers", "_snapshot", "_snapshots", "_version", "lock")

    def __init__(self) -> None:
        self.lock = ForkLock()
        self._snapshots: Any = None
        self._version = ""
        self._failed = False
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self._snapshot: Any = None
        self._providers: dict[str, Any] = {}

    def load(self) -> bool:
        """Import the library once; False when it cannot be, which is logged and not tried again."""
        if self._snapshots is not None or self._failed:
            return not self._failed
        try:
            self._version = f"genai-prices {_extras.load('genai_prices').__version__}"
            snapshots = _extras.load("genai_prices.data_snapshot")
            snapshots.get_snapshot()
        except Exception as error:  # noqa: BLE001 - a broken library makes prices unknown, never a call fail
            self._failed = True
            self._complain("load", error)
            return False
        self._snapshots = snapshots
        return True

    def quote(self, provider: str, model: str, tier: str | None, now: float) -> Quote:
        """Return what the table says at `now` (epoch seconds); any failure of the library is an unknown price."""
        moment = datetime.fromtimestamp(now, UTC)
        midnight = datetime.combine(moment.date() + timedelta(days=1), time_of_day(), UTC).timestamp()
        if not self.load():
            return Quote(None, midnight)
        try:
            return self._ask(PROVIDERS.get(provider, provider), model, tier, moment, midnight)
        except Exception as error:  # noqa: BLE001 - the library reads hostile names; its failure is an unknown price
            self._complain("ask", error)
            return Quote(None, midnight)

    def window(self, provider: str, model: str) -> int | None:
        """Return how many tokens the model's context holds, None where the table does not say."""
        if not self.load():
            return None
        try:
            snapshot = self._current_snapshot()
            listed = self._providers.get(PROVIDERS.get(provider, provider))
            found = None if listed is None else listed.find_model(model, all_providers=snapshot.providers)
            size = None if found is None else found.context_window
        except Exception as error:  # noqa: BLE001 - the library reads hostile names; its failure is an unknown window
            self._complain("window", error)
            return None
        return size if isinstance(size, int) and size > 0 else None

    def _ask(self, provider_id: str, model: str, tier: str | None, moment: datetime, midnight: float) -> Quote:
        # The library's own look-up remembers every name it ever saw; these two steps of it remember none.
        snapshot = self._current_snapshot()
        sold_on = provider_id in AT_LIST_PRICE
        if sold_on:
            creator, _, model = model.partition("/")
            provider_id = AT_LIST_PRICE[provider_id].get(creator.lower(), creator.lower())
        if provider_id not in self._providers:
            return Quote(None, midnight)
        provider = self._providers[provider_id]
        found = provider.find_model(model, all_providers=snapshot.providers)
        if found is None:
            return Quote(None, midnight)
        # A model borrowed from another vendor's list has that vendor's standard price: its tiers are not sold here.
        own = any(found is listed for listed in provider.models)
        prices: dict[str, Any] = found.get_prices(moment, _context(tier) if own else None).__dict__
        card = self._card(provider_id, str(found.id), prices, snapshot)
        if card is not None and (sold_on or (tier not in _STANDARD and prices == found.get_prices(moment, None).__dict__)):
            card = replace(card, stands_in=True)
        return Quote(card, min([midnight, *_changes(found, moment)]))

    def _current_snapshot(self) -> Any:
        snapshot = self._snapshots.get_snapshot()
        if snapshot is not self._snapshot:
            self._providers = {provider.id: provider for provider in snapshot.providers}
            self._snapshot = snapshot
        return snapshot

    def _card(self, provider_id: str, model: str, prices: Mapping[str, Any], snapshot: Any) -> RateCard | None:
        listed = {key: price for key, price in prices.items() if price is not None}
        if not listed and (model.endswith(":free") or (provider_id, model) in FREE):
            listed = {"input_mtok": Decimal(0)}
        if "input_mtok" not in listed and not any(LIBRARY_LINES.get(key) in _INSTEAD for key in listed):
            return None
        starts = sorted({tier.start for price in listed.values() for tier in getattr(price, "tiers", ())})
        return RateCard(
            provider=provider_id,
            model=model,
            rates=_rates(listed, 0),
            steps=tuple((start, _rates(listed, start + 1)) for start in starts),
            table_date=snapshot.timestamp.date().isoformat() if snapshot.from_auto_update else self._version,
            by_tokens="input_mtok" in listed,
        )

    def _complain(self, stage: str, error: Exception) -> None:
        kind = (stage, type(error))
        if kind in self._logged:
            return
        self._logged.add(kind)
        LOG.warning(
            "Prices are unknown, the price library failed (%s, %s: %.200s); logged once. Set prices= for the models you use.",
            stage,
            type(error).__name__,
            error,
        )


_STANDARD: Final = frozenset({None, "auto", "default", "on_demand", "standard", "standard_only"})
"""Service tiers that are sold at the standard price."""


def _context(tier: str | None) -> dict[str, str] | None:
    if tier is None:
        return None
    return {"processing": "batch"} if tier == "batch" else {"service_tier": tier}


def _rates(listed: Mapping[str, Any], input_tokens: int) -> Rates:
    lines: dict[str, int] = dict.fromkeys(REQUIRED, 0)  # what is sold by the hour or by characters has no input, embeddings no output
    for key, line in LIBRARY_LINES.items():
        if key in listed:
            lines[line] = nano_per_million(_price_at(listed[key], input_tokens)) * UNITS[line][1]
    return Rates.fill(**lines)


def _price_at(price: Any, input_tokens: int) -> Decimal:
    if hasattr(price, "tiers"):
        reached = [tier.price for tier in sorted(price.tiers, key=lambda tier: tier.start) if input_tokens > tier.start]
        price = reached[-1] if reached else price.base
    if not isinstance(price, Decimal):
        raise TypeError(f"{type(price).__name__} is no price")
    return price


def _changes(model: Any, moment: datetime) -> list[float]:
    """List when prices by the hour change within the next day, in epoch seconds."""
    prices: Any = model.prices
    plans: list[Any] = [*(() if hasattr(prices, "calc_price") else prices), *(model.price_variants or ())]
    hours = [
        hour
        for plan in plans
        for hour in (getattr(plan.constraint, "start_time", None), getattr(plan.constraint, "end_time", None))
        if isinstance(hour, time_of_day)
    ]
    days = [moment.date() + timedelta(days=shift) for shift in (-1, 0, 1)]
    instants = [datetime.combine(day, hour if hour.tzinfo is not None else hour.replace(tzinfo=UTC)) for hour in hours for day in days]
    return [instant.timestamp() for instant in instants if instant > moment]


TABLE: Final = Table()
"""The process's one table; the library behind it is one too."""


MAX_CARDS: Final = 2_000
"""Names come from servers: a book never keeps more, the oldest goes first."""

CostSource = Literal["response_model", "request_model", "override", "assumed", "own_machine", "told"]

Cost = tuple[int | None, CostSource | None, str | None]
"""What a call costs in nano-USD, whose price that is, and how old the price table is."""

UNKNOWN: Final[Cost] = (None, None, None)
_TELL_COSTS: Final = frozenset({"openrouter"})
"""Who sells at what their answers say, whatever a list says: OpenRouter routes one model to vendors with prices of their own."""

_RESPONSE: CostSource = "response_model"
_REQUEST: CostSource = "request_model"

_ELSEWHERE: Final = ("-cloud", ":cloud")
"""How the names of models end that a server on this machine has its vendor run."""

_Key = tuple[str, str | None, str | None]

Price = float | Decimal | str | int
PriceMap = Mapping[str, Mapping[str, Price]]

_LONGEST_S: Final = 10.0
PATCHES_THREADS: Final = "gevent.monkey"
"""A module that may take the locks of imports away from the threads which hold them, at any moment after its own import."""


class PriceBook:
    """Price models by their vendor's table and the user's own prices, which go first.

    `overrides`: `{"model" or "provider/model": {"input": 2.5, "output": 10}}` in USD per million tokens; see
    `Overrides` for lines and patterns. `clock` gives epoch seconds. A price nobody knows is None, never 0. The price
    library, slow to import, is loaded at the first question the overrides do not answer, or by `preload()`.
    Safe to use from any thread. Raises ConfigurationError for overrides that cannot be used.
    """

    __slots__ = ("_cards", "_clock", "_fresh_until", "_has_overrides", "_has_overrides", "_overrides", "_table")

    def __init__(self, overrides: PriceMap | None = None, *, clock: Callable[[], float] = time.time, table: Table = TABLE) -> None:
        self._overrides = Overrides(overrides)
        self._has_overrides = bool(self._overrides)  # each call asks
        self._clock = clock
        self._table = table
        self._cards: dict[_Key, RateCard | None] = {}
        self._fresh_until = 0.0

    def preload(self) -> bool:
        """Import the price library now, on a thread of the caller's choice; False when it cannot be."""
        with self._table.lock.own:
            return self._table.load()

    def card(self, provider: str, model: str | None, tier: str | None = None) -> RateCard | None:
        """Return the rate card of a model, None when its price is unknown.

        `provider` is the convention's name ("openai", "azure.ai.openai", …), followed by `@localhost` for a server of open models on
        this machine, which costs 0. `tier` is a service tier ("flex", "priority", "batch"); one the vendor does not price apart has
        the standard price.
        """
        if self._clock() < self._fresh_until:
            try:
                return self._cards[provider, model, tier]
            except (KeyError, TypeError):  # not asked yet, or no name at all
                pass
        return self._ask(provider, model, tier)

    def window(self, provider: str, model: str | None) -> int | None:
        """Return how many tokens the context of a model holds, None where nobody knows; slow, and not kept."""
        if not _is_name(provider) or not _is_name(model):
            return None
        with self._table.lock.own:
            return self._table.window(provider, model)

    def cost(
        self, provider: str, response_model: str | None, request_model: str | None, usage: Usage | None, tier: str | None = None
    ) -> Cost:
        """Return a call's price in nano-USD, whose price it is, and the table's date; None is unknown.

        The user's own price for either model goes first; then the table's for the model that answered, then for the
        one that was asked. A tier without a price of its own has the standard one, which is then "assumed". What a seller says
        itself in the answer ("told") goes before the table's. An override has no date.
        """
        if usage is None:
            return UNKNOWN
        card, source = self.card(provider, response_model, tier), _RESPONSE
        if card is None or (self._has_overrides and card.source != "override"):
            asked = self.card(provider, request_model, tier)
            if asked is not None and (card is None or asked.source == "override"):
                card, source = asked, _REQUEST
        if usage.told_nano and provider in _TELL_COSTS and (card is None or card.source != "override"):
            return usage.told_nano, "told", None
        nano = None if card is None else card.cost_nano(usage)
        if card is None or nano is None:
            return UNKNOWN
        if card.source != "table":
            return nano, card.source, None
        return nano, "assumed" if card.stands_in else source, card.table_date

    def _ask(self, provider: object, model: object, tier: object) -> RateCard | None:
        if not _is_name(provider) or not _is_name(model):
            return None
        label = tier if _is_name(tier) else None
        with self._table.lock.own:
            now = self._clock()
            if now >= self._fresh_until:
                self._cards = {}
                self._fresh_until = float("inf")
            key = (provider, model, label)
            if key in self._cards:
                return self._cards[key]
            quote = self._look_up(provider, model, label, now)
            if len(self._cards) >= MAX_CARDS:
                del self._cards[next(iter(self._cards))]
            self._cards[key] = quote.card
            self._fresh_until = min(self._fresh_until, quote.until)
            return quote.card

    def _look_up(self, provider: str, model: str, tier: str | None, now: float) -> Quote:
        provider, here, _ = provider.partition("@")
        own = self._overrides.price_of((provider, PROVIDERS.get(provider, provider)), model)
        if own is None and here and not model.lower().endswith(_ELSEWHERE):
            own = RateCard(provider, model, Rates.fill(**dict.fromkeys(REQUIRED, 0)), source="own_machine")
        return Quote(own, float("inf")) if own is not None else self._table.quote(provider, model, tier and tier.lower(), now)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= checks.MAX_NAME and value.isprintable()


# -- the user's own prices ---------------------------------------------------------------------------------------------


class Overrides:
    """Hold the user's prices, `{"model" or "provider/model": {"input": 2.5, "output": 10}}` in USD per million tokens.

    `cached_input`, `cache_write`, `cache_write_1h`, `audio_input`, `cached_audio_input`, `audio_output`, `image_input`,
    `cached_image_input`, `image_output` and `reasoning` may be given too; without them those tokens cost what input or
    output costs. A model that is not sold by tokens has `characters` (USD per million) or `audio_hour` (USD per hour of
    sound) instead of input and output. `request` and `search` are USD per thousand; a call that searched where no
    `search` is given has an unknown price. Zero is free. A name that ends in `*` stands for all that begin like it; an
    exact name goes before a pattern, "provider/model" before "model", the longer pattern before the shorter. Case does
    not matter. Raises ConfigurationError for a map that cannot be used.
    """

    __slots__ = ("_exact", "_patterns")

    def __init__(self, prices: PriceMap | None = None) -> None:
        self._exact: dict[str, RateCard] = {}
        patterns: dict[str, RateCard] = {}
        for name, lines in _entries(prices):
            card = RateCard(provider="", model=name, rates=_rates_of_lines(name, lines), source="override", by_tokens=REQUIRED[0] in lines)
            key = name.lower()
            target, key = (patterns, key[:-1]) if key.endswith("*") else (self._exact, key)
            if key in target:
                raise ConfigurationError(
                    f"prices names {name!r} twice, as case does not matter in it: keep one of {target[key].model!r} and {name!r}."
                )
            target[key] = card
        self._patterns = tuple(sorted(patterns.items(), key=lambda item: -len(item[0])))

    def __bool__(self) -> bool:
        return bool(self._exact or self._patterns)

    def price_of(self, providers: tuple[str, ...], model: str) -> RateCard | None:
        """Return the user's card for a model that any of these providers' names may qualify, None when there is none."""
        model = model.lower()
        names = [*(f"{provider.lower()}/{model}" for provider in providers), model]
        for name in names:
            if card := self._exact.get(name):
                return card
        for prefix, card in self._patterns:
            if any(name.startswith(prefix) for name in names):
                return card
        return None


def _entries(prices: object) -> list[tuple[str, Mapping[Any, Any]]]:
    if prices is None:
        return []
    if not _is_mapping(prices):
        raise ConfigurationError(
            f"prices is {type(prices).__name__}, but must map model names to prices, as in {{'gpt-4o': {{'input': 2.5, 'output': 10}}}}."
        )
    found: list[tuple[str, Mapping[Any, Any]]] = []
    for name, lines in prices.items():
        if not isinstance(name, str) or not name or "*" in name[:-1]:
            raise ConfigurationError(f"prices has the name {name!r}: write a model or provider/model, with * only as its last character.")
        if not _is_mapping(lines):
            raise ConfigurationError(
                f"prices[{name!r}] is {lines!r}, but must name its lines, as in {{'input': 2.5, 'output': 10}} USD per million tokens."
            )
        found.append((name, lines))
    return found


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _rates_of_lines(name: str, lines: Mapping[Any, Any]) -> Rates:
    for line in lines:
        if line not in LINES:
            near = checks.nearest(line, LINES)
            hint = f"did you mean {near!r}?" if near else f"use {', '.join(LINES)}."
            raise ConfigurationError(f"prices[{name!r}] has the unknown line {line!r}: {hint}")
    instead = any(line in lines for line in _INSTEAD) and not any(UNITS[line][0] == PER_MILLION for line in lines)
    for line in REQUIRED:
        if line not in lines and not instead:
            raise ConfigurationError(
                f"prices[{name!r}] has no {line!r}: add it in USD per million tokens, or 0 where it is free or does not exist."
            )
    return Rates.fill(**dict.fromkeys(REQUIRED, 0) | {line: _nano(name, line, value) for line, value in lines.items()})


def _nano(name: str, line: str, value: object) -> int:
    unit, scale = UNITS[line]
    amount = _decimal(value)
    if amount is None or amount.is_nan():
        raise ConfigurationError(f"prices[{name!r}][{line!r}] is {value!r}, which is no number: give {unit}, as a number or its text.")
    if amount < 0 or amount > DEAREST_USD:
        raise ConfigurationError(f"prices[{name!r}][{line!r}] is {value!r}, but a price is between 0 and {DEAREST_USD} {unit}.")
    return nano_per_million(amount) * scale


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        return None
    try:
        return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except (InvalidOperation, ValueError):
        return None


# -- the table, imported beside the program ----------------------------------------------------------------------------


_preloading: threading.Thread | None = None


def preload(prices: PriceBook) -> None:
    """Import it in a thread of its own; not where gevent may be patching threads, there the first call imports it."""
    global _preloading  # noqa: PLW0603 - the one thread that a fork has to wait for
    if PATCHES_THREADS in sys.modules:
        return
    _preloading = threading.Thread(target=prices.preload, name="ravi-otel-prices", daemon=True)
    try:
        with without_signals():
            _preloading.start()
    except RuntimeError:  # the system gives no more threads: the first call imports it
        _preloading = None


def wait_until_preloaded(_: object = None) -> None:
    """Let the price table be imported: a lock that its thread holds is never let go of in a forked child, or once threads are patched.

    Call it when `PATCHES_THREADS` was imported.
    """
    thread = _preloading
    if thread is not None and thread is not threading.current_thread():
        thread.join(_LONGEST_S)


around_fork(wait_until_preloaded)
