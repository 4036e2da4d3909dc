"""Answer what a model costs: by the user's own prices, then by the table, which is asked once a day and imported beside the program."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, TypeGuard

from ravi_otel._forksafe import around_fork, without_signals
from ravi_otel._pricing.rates import DEAREST_USD, RateCard, Rates, nano_per_million
from ravi_otel._pricing.table import PROVIDERS, TABLE, Table
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.usage import Usage

MAX_CARDS: Final = 2_000
"""Names come from servers: a book never keeps more, the oldest goes first."""

MAX_NAME: Final = 256

CostSource = Literal["response_model", "request_model", "override", "assumed"]

Cost = tuple[int | None, CostSource | None, str | None]
"""What a call costs in nano-USD, whose price that is, and how old the price table is."""

UNKNOWN: Final[Cost] = (None, None, None)

_Key = tuple[str, str | None, str | None]

Price = float | Decimal | str | int
PriceMap = Mapping[str, Mapping[str, Price]]

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
        with self._table.lock:
            return self._table.load()

    def card(self, provider: str, model: str | None, tier: str | None = None) -> RateCard | None:
        """Return the rate card of a model, None when its price is unknown.

        `provider` is the convention's name ("openai", "azure.ai.openai", …), `tier` a service tier ("flex",
        "priority", "batch"); one the vendor does not price apart has the standard price.
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
        with self._table.lock:
            return self._table.window(provider, model)

    def cost(
        self, provider: str, response_model: str | None, request_model: str | None, usage: Usage | None, tier: str | None = None
    ) -> Cost:
        """Return a call's price in nano-USD, whose price it is, and the table's date; None is unknown.

        The user's own price for either model goes first; then the table's for the model that answered, then for the
        one that was asked. A tier without a price of its own has the standard one, which is then "assumed". An override has
        no date.
        """
        if usage is None:
            return UNKNOWN
        answered = self.card(provider, response_model, tier)
        if answered is not None and (answered.source == "override" or not self._has_overrides):
            nano = answered.cost_nano(usage)  # nearly always; a call less than below
            if nano is None:
                return UNKNOWN
            plain = answered.source != "override" and not answered.stands_in
            return nano, "response_model" if plain else _source(answered, "response_model"), answered.table_date
        asked = self.card(provider, request_model, tier)
        if asked is not None and asked.source == "override":
            return _at(asked, usage, "override")
        if answered is not None:
            return _at(answered, usage, "response_model")
        return UNKNOWN if asked is None else _at(asked, usage, "request_model")

    def _ask(self, provider: object, model: object, tier: object) -> RateCard | None:
        if not _is_name(provider) or not _is_name(model):
            return None
        label = tier if _is_name(tier) else None
        with self._table.lock:
            now = self._clock()
            if now >= self._fresh_until:
                self._cards = {}
                self._fresh_until = float("inf")
            key = (provider, model, label)
            if key in self._cards:
                return self._cards[key]
            card, until = self._look_up(provider, model, label, now)
            if len(self._cards) >= MAX_CARDS:
                del self._cards[next(iter(self._cards))]
            self._cards[key] = card
            self._fresh_until = min(self._fresh_until, until)
            return card

    def _look_up(self, provider: str, model: str, tier: str | None, now: float) -> tuple[RateCard | None, float]:
        if self._overrides:
            own = self._overrides.price_of((provider, PROVIDERS.get(provider, provider)), model)
            if own is not None:
                return own, float("inf")
        quote = self._table.quote(provider, model, tier and tier.lower(), now)
        return quote.card, quote.until


def _at(card: RateCard, usage: Usage, source: CostSource) -> Cost:
    nano = card.cost_nano(usage)
    if nano is None:
        return UNKNOWN
    return nano, _source(card, source), card.table_date


def _source(card: RateCard, source: CostSource) -> CostSource:
    return "override" if card.source == "override" else "assumed" if card.stands_in else source


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


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
            card = RateCard(provider="", model=name, rates=_rates(name, lines), source="override", by_tokens=REQUIRED[0] in lines)
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


def _rates(name: str, lines: Mapping[Any, Any]) -> Rates:
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
