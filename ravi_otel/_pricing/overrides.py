"""Read the prices a user sets, and find the one for a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeGuard

from ravi_otel._pricing.rates import DEAREST_USD, RateCard, Rates, nano_per_million
from ravi_otel.errors import ConfigurationError

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
            near = difflib.get_close_matches(str(line), LINES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(LINES)}."
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
