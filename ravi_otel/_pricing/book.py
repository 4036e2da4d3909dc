"""Answer what a model costs, once a day at the table and from a dict after that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeGuard

from ravi_otel._pricing.overrides import Overrides, PriceMap
from ravi_otel._pricing.rates import RateCard
from ravi_otel._pricing.table import PROVIDERS, TABLE, Table
from ravi_otel.policy.usage import Usage

MAX_CARDS: Final = 2_000
"""Names come from servers: a book never keeps more, the oldest goes first."""

MAX_NAME: Final = 256

CostSource = Literal["response_model", "request_model", "override", "assumed"]

Cost = tuple[int | None, CostSource | None, str | None]
"""What a call costs in nano-USD, whose price that is, and how old the price table is."""

UNKNOWN: Final[Cost] = (None, None, None)

_Key = tuple[str, str | None, str | None]


class PriceBook:
    """Price models by their vendor's table and the user's own prices, which go first.

    `overrides`: `{"model" or "provider/model": {"input": 2.5, "output": 10}}` in USD per million tokens; see
    `Overrides` for lines and patterns. `clock` gives epoch seconds. A price nobody knows is None, never 0. The price
    library, slow to import, is loaded at the first question the overrides do not answer, or by `preload()`.
    Safe to use from any thread. Raises ConfigurationError for overrides that cannot be used.
    """

    __slots__ = ("_cards", "_clock", "_fresh_until", "_overrides", "_table")

    def __init__(self, overrides: PriceMap | None = None, *, clock: Callable[[], float] = time.time, table: Table = TABLE) -> None:
        self._overrides = Overrides(overrides)
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
        if answered is not None and (answered.source == "override" or not self._overrides):
            nano = answered.cost_nano(usage)  # nearly always; a call less than below
            if nano is None:
                return UNKNOWN
            return nano, _source(answered, "response_model"), answered.table_date
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
