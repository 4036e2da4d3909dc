"""Ask the price library, and keep everything it does wrong away from a call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from ravi_otel import _extras
from ravi_otel._forksafe import renew_in_child
from ravi_otel._pricing.rates import RateCard, Rates, nano_per_million

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

TOKEN_LINES: Final[Mapping[str, str]] = {
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
}
"""The library's price keys in USD per million tokens, and our lines for them; of two for one line the later goes first."""

THOUSANDS: Final[Mapping[str, str]] = {"requests_kcount": "request", "web_searches_kcount": "search"}
"""The library's price keys in USD per thousand, and our lines for them."""

UNIT_LINES: Final[Mapping[str, str]] = {"input_mchars": "characters", "audio_hours": "audio_hour", "input_audio_hours": "audio_hour"}
"""The library's price keys in USD per million characters and per hour of sound, and our lines for them; the later goes first."""

COUNTED: Final = TOKEN_LINES.keys() | THOUSANDS.keys() | UNIT_LINES.keys()
"""The library's price keys that a `Usage` counts; a card names the others as uncounted."""

FREE: Final = frozenset({("openai", "moderation")})
"""Models the table lists without any price because the vendor gives them away, beside those it names `…:free`."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Answer one question: the card, None when nobody knows the price, and until when (epoch seconds) it holds."""

    card: RateCard | None
    until: float


class Table:
    """Read the library's price table, which is imported at the first question and not before.

    Not thread-safe by itself: hold `lock` around `quote` and `load`. A price holds until midnight UTC, as prices
    change by date, or until the hour at which the vendor's next price of the day begins.
    """

    __slots__ = ("_failed", "_logged", "_providers", "_snapshot", "_snapshots", "_version", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._snapshots: Any = None
        self._version = ""
        self._failed = False
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self._snapshot: Any = None
        self._providers: dict[str, Any] = {}

    def unlock_after_fork(self) -> None:
        """Replace the lock that another thread may have held when this process was forked."""
        self.lock = threading.RLock()

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
        midnight = datetime.combine(moment.date() + timedelta(days=1), time(), UTC).timestamp()
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
        if card is not None and tier not in _STANDARD and prices == found.get_prices(moment, None).__dict__:
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
        if "input_mtok" not in listed and not listed.keys() & UNIT_LINES.keys():
            return None
        starts = sorted({tier.start for price in listed.values() for tier in getattr(price, "tiers", ())})
        return RateCard(
            provider=provider_id,
            model=model,
            rates=_rates(listed, 0),
            steps=tuple((start, _rates(listed, start + 1)) for start in starts),
            table_date=snapshot.timestamp.date().isoformat() if snapshot.from_auto_update else self._version,
            uncounted=tuple(sorted(listed.keys() - COUNTED)),
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
    lines = {line: nano_per_million(_price_at(listed[key], input_tokens)) for key, line in TOKEN_LINES.items() if key in listed}
    lines.setdefault("input", 0)  # sold by the hour or by characters: no token is
    lines.setdefault("output", 0)  # embeddings: no output is sold, none comes
    for keys, scale in ((THOUSANDS, 1000), (UNIT_LINES, 1)):
        for key, line in keys.items():
            if key in listed:
                lines[line] = nano_per_million(_price_at(listed[key], input_tokens)) * scale
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
        if isinstance(hour, time)
    ]
    days = [moment.date() + timedelta(days=shift) for shift in (-1, 0, 1)]
    instants = [datetime.combine(day, hour if hour.tzinfo is not None else hour.replace(tzinfo=UTC)) for hour in hours for day in days]
    return [instant.timestamp() for instant in instants if instant > moment]


TABLE: Final = Table()
"""The process's one table; the library behind it is one too."""

renew_in_child(TABLE.unlock_after_fork)
