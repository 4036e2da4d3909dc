"""Turn tokens into nano-USD with integers alone."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final, Literal

from ravi_otel.policy.usage import Usage

MILLION: Final = 1_000_000
"""Prices are for this many tokens."""

DEAREST_USD: Final = Decimal(1_000_000)
"""A price above this, in USD per million tokens, is a mistake, and is treated as one."""

_EXACT: Final = Context(prec=60, rounding=ROUND_CEILING)

CardSource = Literal["table", "override"]


def nano_per_million(usd: Decimal) -> int:
    """Turn USD per million tokens into nano-USD per million tokens, rounded up whatever the caller's decimal context.

    Raises ValueError for what is no price: negative, not finite, or above `DEAREST_USD`.
    """
    if not usd.is_finite() or usd < 0 or usd > DEAREST_USD:
        raise ValueError(f"{usd} is no price")
    return int(usd.scaleb(9, context=_EXACT).to_integral_value(ROUND_CEILING, context=_EXACT))


@dataclass(frozen=True, slots=True)
class Rates:
    """Hold the price of every line, in nano-USD per million tokens (`request`: per million requests).

    Each line is filled in: one the vendor does not bill apart has the price of the line it is part of.
    `cached_audio_input` is what tokens cost that are both cached and audio.
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

    @classmethod
    def fill(  # noqa: PLR0913 - one keyword a line of the card
        cls,
        *,
        input: int,  # noqa: A002 - the line's own name
        output: int,
        cached_input: int | None = None,
        cache_write: int | None = None,
        audio_input: int | None = None,
        cached_audio_input: int | None = None,
        audio_output: int | None = None,
        reasoning: int | None = None,
        request: int = 0,
    ) -> Rates:
        """Complete the lines a vendor bills apart with those it does not; None is a line that does not exist."""
        if cached_audio_input is None:
            known = [line for line in (cached_input, audio_input) if line is not None]
            cached_audio_input = max(known, default=input)
        return cls(
            input=input,
            output=output,
            cached_input=input if cached_input is None else cached_input,
            cache_write=input if cache_write is None else cache_write,
            audio_input=input if audio_input is None else audio_input,
            cached_audio_input=cached_audio_input,
            audio_output=output if audio_output is None else audio_output,
            reasoning=output if reasoning is None else reasoning,
            request=request,
        )

    def input_parts(self, total: int, usage: Usage) -> int:
        """Return what cached, written and audio tokens add to `total` tokens at the input line; negative for a discount.

        Parts that exceed their total are cut to it. How many tokens are cached *and* audio is not reported: the
        dearest split that fits is taken, so the amount is never below the true one.
        """
        amount, rest = 0, total
        write = usage.cache_write_tokens
        if write > 0:
            write = min(write, rest)
            amount, rest = (self.cache_write - self.input) * write, rest - write
        cached = usage.cached_input_tokens
        if cached > 0:
            cached = min(cached, rest)
            amount += (self.cached_input - self.input) * cached
        audio = usage.audio_input_tokens
        return amount + self._audio_part(rest, max(cached, 0), audio) if audio > 0 else amount

    def _audio_part(self, rest: int, cached: int, audio: int) -> int:
        audio = min(audio, rest)
        both = self.input - self.cached_input - self.audio_input + self.cached_audio_input
        overlap = min(cached, audio) if both > 0 else max(0, cached + audio - rest)
        return (self.audio_input - self.input) * audio + both * overlap

    def output_parts(self, total: int, usage: Usage) -> int:
        """Return what audio and reasoning tokens add to `total` tokens at the output line; negative for a discount."""
        audio = usage.audio_output_tokens
        if audio <= 0 and self.reasoning == self.output:
            return 0
        audio = min(max(audio, 0), total)
        reasoning = min(max(usage.reasoning_tokens, 0), total - audio)
        return (self.audio_output - self.output) * audio + (self.reasoning - self.output) * reasoning

    def dearest(self) -> tuple[int, int]:
        """Return the highest price an input and an output token can have."""
        return (
            max(self.input, self.cached_input, self.cache_write, self.audio_input, self.cached_audio_input),
            max(self.output, self.audio_output, self.reasoning),
        )


@dataclass(frozen=True, slots=True)
class RateCard:
    """Price the calls of one model.

    `provider` and `model` are the price table's own names; of an override, "" and the name the user wrote. `steps` are
    (tokens, rates) in rising order: above so many input tokens the whole call is billed at those rates. `table_date`
    is the table's date (ISO) where it was fetched, else the version of the library that ships it; None for an
    override. `uncounted` names what the vendor also bills and a `Usage` does not count, such as web searches or
    image tokens: with those the true price is higher.
    """

    provider: str
    model: str
    rates: Rates
    steps: tuple[tuple[int, Rates], ...] = ()
    table_date: str | None = None
    source: CardSource = "table"
    uncounted: tuple[str, ...] = ()

    def cost_nano(self, usage: Usage) -> int:
        """Return what a call with this usage costs in nano-USD, rounded up; never negative."""
        tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
        if tokens_in < 0 or tokens_out < 0:
            tokens_in, tokens_out = max(tokens_in, 0), max(tokens_out, 0)
        rates = self._rates_at(tokens_in) if self.steps else self.rates
        amount = rates.request + rates.input * tokens_in + rates.output * tokens_out
        if usage.cached_input_tokens or usage.cache_write_tokens or usage.audio_input_tokens:
            amount += rates.input_parts(tokens_in, usage)
        if usage.reasoning_tokens or usage.audio_output_tokens:
            amount += rates.output_parts(tokens_out, usage)
        return -(-amount // MILLION)

    def estimate_nano(self, input_tokens: int, output_tokens: int) -> int:
        """Return what a call of plain, uncached text costs in nano-USD, rounded up."""
        rates = self._rates_at(input_tokens)
        return -(-(rates.request + rates.input * max(input_tokens, 0) + rates.output * max(output_tokens, 0)) // MILLION)

    def worst_nano(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most a call of up to so many tokens can cost in nano-USD: all at their dearest line and step.

        What `uncounted` names is not in it.
        """
        reached = [self.rates, *(rates for above, rates in self.steps if input_tokens > above)]
        dearest = [rates.dearest() for rates in reached]
        amount = (
            max(rates.request for rates in reached)
            + max(price for price, _ in dearest) * max(input_tokens, 0)
            + max(price for _, price in dearest) * max(output_tokens, 0)
        )
        return -(-amount // MILLION)

    def _rates_at(self, input_tokens: int) -> Rates:
        found = self.rates
        for above, rates in self.steps:
            if input_tokens <= above:
                break
            found = rates
        return found
