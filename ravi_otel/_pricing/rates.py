"""Turn tokens into nano-USD with integers alone."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final, Literal

from ravi_otel.policy._usage import Usage

MILLION: Final = 1_000_000
"""Prices are for this many tokens."""

DEAREST_USD: Final = Decimal(1_000_000)
"""A price above this, in USD per million tokens, is a mistake, and is treated as one."""

_MILLION_HOURS_PER_MS: Final = (5, 18)
"""A millisecond is 5/18 of a millionth of an hour; a fraction, so that no digit is lost."""

_EXACT: Final = Context(prec=60, rounding=ROUND_CEILING)

_PART_OF: Final = {
    "cached_input": "input",
    "cache_write": "input",
    "cache_write_1h": "cache_write",
    "audio_input": "input",
    "image_input": "input",
    "audio_output": "output",
    "image_output": "output",
    "reasoning": "output",
}
"""The line whose price another has that is not billed apart."""

CardSource = Literal["table", "override", "own_machine"]


def nano_per_million(usd: Decimal) -> int:
    """Turn USD per million tokens into nano-USD per million tokens, rounded up whatever the caller's decimal context.

    Raises ValueError for what is no price: negative, not finite, or above `DEAREST_USD`.
    """
    if not usd.is_finite() or usd < 0 or usd > DEAREST_USD:
        raise ValueError(f"{usd} is no price")
    return int(usd.scaleb(9, context=_EXACT).to_integral_value(ROUND_CEILING, context=_EXACT))


@dataclass(frozen=True, slots=True)
class Rates:
    """Hold the price of every line, in nano-USD per million tokens.

    Each line is filled in: one the vendor does not bill apart has the price of the line it is part of.
    `cached_audio_input` and `cached_image_input` are what tokens cost that are both cached and of that kind. What is not
    sold by tokens: `request` and `search` per million of them, `characters` per million characters to be spoken,
    `audio_hour` per hour of sound that is heard; the last three are None where the vendor names no such price.
    """

    input: int
    output: int
    cached_input: int
    cache_write: int
    audio_input: int
    cached_audio_input: int
    audio_output: int
    reasoning: int
    request: int = 0
    cache_write_1h: int = 0
    image_input: int = 0
    cached_image_input: int = 0
    image_output: int = 0
    search: int | None = None
    characters: int | None = None
    audio_hour: int | None = None

    @classmethod
    def fill(cls, *, input: int, output: int, **lines: int | None) -> Rates:  # noqa: A002 - the line's own name
        """Complete the lines a vendor bills apart with those it does not; None is a line that does not exist."""
        told = {line: price for line, price in lines.items() if price is not None}
        whole = {"input": input, "output": output, **told}
        for line, part_of in _PART_OF.items():
            whole.setdefault(line, whole[part_of])
        for kind in ("audio", "image"):  # what is cached and of a kind: at the dearer of the two lines that exist
            both = [told[line] for line in ("cached_input", f"{kind}_input") if line in told]
            whole.setdefault(f"cached_{kind}_input", max(both, default=input))
        return cls(**whole)

    def input_parts(self, total: int, usage: Usage) -> int:
        """Return what cached, written, audio and image tokens add to `total` tokens at the input line; negative for a discount.

        Parts that exceed their total are cut to it. How many tokens are cached *and* audio or images is not always
        reported: the dearest split that fits is taken, so the amount is never below the true one.
        """
        amount, rest = 0, total
        write = usage.cache_write_tokens
        if write > 0:
            write = min(write, rest)
            for_an_hour = min(max(usage.cache_write_1h_tokens, 0), write)
            amount = (self.cache_write - self.input) * write + (self.cache_write_1h - self.cache_write) * for_an_hour
            rest -= write
        cached = usage.cached_input_tokens
        if cached > 0:
            cached = min(cached, rest)
            amount += (self.cached_input - self.input) * cached
        if usage.audio_input_tokens > 0 or usage.image_input_tokens > 0:
            amount += self._media_part(rest, max(cached, 0), usage)
        return amount

    def _media_part(self, rest: int, cached: int, usage: Usage) -> int:
        audio = min(max(usage.audio_input_tokens, 0), rest)
        image = min(max(usage.image_input_tokens, 0), rest - audio)
        amount = (self.audio_input - self.input) * audio + (self.image_input - self.input) * image
        both_audio = self.input - self.cached_input - self.audio_input + self.cached_audio_input
        both_image = self.input - self.cached_input - self.image_input + self.cached_image_input
        words = rest - audio - image
        told = min(max(usage.cached_image_tokens, 0), image, cached)
        if told:
            # The images' share is known: what else is cached is audio or words.
            cached -= told
            return amount + both_image * told + _dearest_split(cached, words, ((both_audio, audio),))
        return amount + _dearest_split(cached, words, ((both_audio, audio), (both_image, image)))

    def output_parts(self, total: int, usage: Usage) -> int:
        """Return what audio, image and reasoning tokens add to `total` tokens at the output line; negative for a discount."""
        audio, image = usage.audio_output_tokens, usage.image_output_tokens
        if audio <= 0 and image <= 0 and self.reasoning == self.output:
            return 0
        audio = min(max(audio, 0), total)
        image = min(max(image, 0), total - audio)
        reasoning = min(max(usage.reasoning_tokens, 0), total - audio - image)
        return (
            (self.audio_output - self.output) * audio
            + (self.image_output - self.output) * image
            + (self.reasoning - self.output) * reasoning
        )

    def dearest(self) -> tuple[int, int]:
        """Return the highest price an input and an output token can have."""
        return (
            max(
                *(self.input, self.cached_input, self.cache_write, self.cache_write_1h),
                *(self.audio_input, self.cached_audio_input, self.image_input, self.cached_image_input),
            ),
            max(self.output, self.audio_output, self.image_output, self.reasoning),
        )


def _dearest_split(cached: int, words: int, kinds: tuple[tuple[int, int], ...]) -> int:
    """Spread cached tokens over kinds of (what a cached one of it adds, how many there are), as dearly as they fit.

    What is in none of them is cached words, and there cannot be more of those than there are words.
    """
    amount, needed = 0, max(0, cached - words)
    for adds, size in sorted(kinds, reverse=True):
        share = min(cached, size) if adds > 0 else min(needed, size)
        amount += adds * share
        cached -= share
        needed = max(0, needed - share)
    return amount


@dataclass(frozen=True, slots=True)
class RateCard:
    """Price the calls of one model.

    `provider` and `model` are the price table's own names; of an override, "" and the name the user wrote. `steps` are
    (tokens, rates) in rising order: above so many input tokens the whole call is billed at those rates. `table_date`
    is the table's date (ISO) where it was fetched, else the version of the library that ships it; None for an
    override. `by_tokens` is False where tokens have no price: such a model is sold by
    the hour of sound or by characters. `stands_in` says that the tier asked for has no price of its own, and this is the
    standard one.
    """

    provider: str
    model: str
    rates: Rates
    steps: tuple[tuple[int, Rates], ...] = ()
    table_date: str | None = None
    source: CardSource = "table"
    by_tokens: bool = True
    stands_in: bool = False

    def cost_nano(self, usage: Usage) -> int | None:
        """Return what a call with this usage costs in nano-USD, rounded up, never negative; None when it has no price here.

        That is a usage of which nothing is sold by this card (tokens of a model that is sold by the hour), or that
        counts searches where the card has no price for one.
        """
        tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
        if tokens_in < 0 or tokens_out < 0:
            tokens_in, tokens_out = max(tokens_in, 0), max(tokens_out, 0)
        rates = self._rates_at(tokens_in) if self.steps else self.rates
        amount = rates.request + rates.input * tokens_in + rates.output * tokens_out
        if usage.cached_input_tokens or usage.cache_write_tokens or usage.audio_input_tokens or usage.image_input_tokens:
            amount += rates.input_parts(tokens_in, usage)
        if usage.reasoning_tokens or usage.audio_output_tokens or usage.image_output_tokens:
            amount += rates.output_parts(tokens_out, usage)
        if not self.by_tokens or usage.audio_ms or usage.characters or usage.searches:
            other = self._other_measures(rates, usage)
            if other is None:
                return None
            amount += other
        return -(-amount // MILLION)

    def _other_measures(self, rates: Rates, usage: Usage) -> int | None:
        """Price what is not tokens, in millionths of a nano-USD; None when what was used has no price."""
        amount, sold = 0, self.by_tokens and (usage.input_tokens > 0 or usage.output_tokens > 0)
        if usage.audio_ms > 0 and rates.audio_hour is not None:
            amount += -(-rates.audio_hour * usage.audio_ms * _MILLION_HOURS_PER_MS[0] // _MILLION_HOURS_PER_MS[1])
            sold = True
        if usage.characters > 0 and rates.characters is not None:
            amount += rates.characters * usage.characters
            sold = True
        if usage.searches > 0:
            if rates.search is None:
                return None
            amount += rates.search * usage.searches
        measured = usage.total_tokens > 0 or usage.audio_ms > 0 or usage.characters > 0
        return amount if sold or not measured or self.is_free else None

    @property
    def is_free(self) -> bool:
        """Whether nothing of this model costs anything, whatever is used of it."""
        rates = self.rates
        units = rates.request, rates.search or 0, rates.characters or 0, rates.audio_hour or 0
        return self.by_tokens and not self.steps and rates.dearest() == (0, 0) and not any(units)

    def estimate_nano(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what a call of plain, uncached text costs in nano-USD, rounded up; None where tokens have no price."""
        if not self.by_tokens:
            return None
        rates = self._rates_at(input_tokens) if self.steps else self.rates
        return -(-(rates.request + rates.input * max(input_tokens, 0) + rates.output * max(output_tokens, 0)) // MILLION)

    def estimates_nano(self, input_tokens: int, output_tokens: int) -> tuple[int, int] | tuple[None, None]:
        """Return the same, and what it costs when it is answered with one of these tokens of output; neither may be negative."""
        if not self.by_tokens:
            return None, None
        rates = self._rates_at(input_tokens) if self.steps else self.rates
        sent = rates.request + rates.input * input_tokens
        least = sent + rates.output if output_tokens else sent
        return -(-(sent + rates.output * output_tokens) // MILLION), -(-least // MILLION)

    def worst_nano(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most a call of up to so many tokens can cost in nano-USD: all at their dearest line and step."""
        return -(-self._worst(input_tokens, output_tokens) // MILLION)

    def _worst(self, input_tokens: int, output_tokens: int) -> int:
        """Return that in millionths of a nano-USD."""
        reached = [self.rates, *(rates for above, rates in self.steps if input_tokens > above)]
        dearest = [rates.dearest() for rates in reached]
        return (
            max(rates.request for rates in reached)
            + max(price for price, _ in dearest) * max(input_tokens, 0)
            + max(price for _, price in dearest) * max(output_tokens, 0)
        )

    def output_within(self, nano: int, input_tokens: int) -> int | None:
        """Return how many tokens of output `nano` pays for after so many of input, all at their dearest; None for any number."""
        dearest = max(rates.dearest()[1] for rates in (self.rates, *(rates for above, rates in self.steps if input_tokens > above)))
        if dearest == 0:
            return None
        return max(0, nano * MILLION - self._worst(input_tokens, 0)) // dearest

    def _rates_at(self, input_tokens: int) -> Rates:
        found = self.rates
        for above, rates in self.steps:
            if input_tokens <= above:
                break
            found = rates
        return found
