"""Read what of a call's tokens a limit counts: `uncached`, or a sum such as `input+4*output-cached`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks

if TYPE_CHECKING:
    from ravi_otel.policy.usage import Usage

ALL: Final = "all"
"""What a token limit counts unless it says otherwise: input and output together."""

WHOLE: Final = (ALL, "input", "output")
"""Words that are no formula: limits of kinds of their own."""

TERMS: Final = ("input", "output", "cached", "cache_write", "reasoning", "audio", "total")
"""What a formula can count; `cached` and `cache_write` are part of the input, `reasoning` of the output."""

_PRESETS: Final = {"uncached": "total-cached"}
_LONGEST: Final = 200
_MOST_TIMES: Final = 1_000
_PIECE: Final = re.compile(r"\s*([+-]?)\s*(?:(\d{1,9})\s*\*\s*)?([a-z_]+)\s*")
_OF_INPUT: Final = frozenset({"input", "cached", "cache_write", "audio", "total"})
_OF_OUTPUT: Final = frozenset({"output", "reasoning", "audio", "total"})
_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Formula:
    """Count some of a call's tokens: `terms` are names with how often each counts, negative ones taken off.

    `per_input` and `per_output` are the most that one token of the input and of the output can count.
    """

    text: str
    terms: tuple[tuple[str, int], ...]
    per_input: int
    per_output: int

    def of(self, usage: Usage) -> int:
        """Count what a call used; never less than 0."""
        amount = 0
        for name, times in self.terms:
            amount += times * _count(name, usage)
        return max(0, amount)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """Return the most that so many tokens can count, whatever they are."""
        return self.per_input * input_tokens + self.per_output * output_tokens

    def sum_of(self, input_tokens: int, output_tokens: int, cached_input_tokens: int) -> int:
        """Count many calls of which only these sums are known: exactly where they tell it, else the most that it can be."""
        times = dict.fromkeys(TERMS, 0) | dict(self.terms)
        fresh, made = times["input"] + times["total"], times["output"] + times["total"]
        cached = fresh + times["cached"]
        told = not (times["cache_write"] or times["reasoning"] or times["audio"])
        if not told or min(fresh, made, cached) < 0:  # below 0 one call counts 0, and takes nothing off the others
            return self.most(input_tokens, output_tokens)
        read = min(cached_input_tokens, input_tokens)
        return fresh * (input_tokens - read) + cached * read + made * output_tokens

    def covered(self, amount: int, input_tokens: int) -> int | None:
        """Return how many tokens of output an amount is enough for after so many of input; None when for any number."""
        if self.per_output == 0:
            return None
        return max(0, amount - self.per_input * input_tokens) // self.per_output


def _count(name: str, usage: Usage) -> int:  # noqa: PLR0911 - one return a term
    match name:
        case "input":
            return usage.input_tokens
        case "output":
            return usage.output_tokens
        case "cached":
            return usage.cached_input_tokens
        case "cache_write":
            return usage.cache_write_tokens
        case "reasoning":
            return usage.reasoning_tokens
        case "audio":
            return usage.audio_input_tokens + usage.audio_output_tokens
        case _:
            return usage.total_tokens


@lru_cache(maxsize=_KEPT)
def formula_of(text: str) -> Formula:
    """Read a formula, or the name of one; raises ConfigurationError for anything else."""
    terms = _terms(text, _PRESETS.get(text, text))
    return Formula(text, terms, _weight(terms, _OF_INPUT, "input"), _weight(terms, _OF_OUTPUT, "output"))


def check_count(parameter: str, value: object) -> str:
    """Accept what a token limit may count, and give it without its blanks."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ConfigurationError(_flaw(parameter, value, "is no formula"))
    text = value.strip()
    if text in WHOLE or text in _PRESETS:
        return text
    try:
        return formula_of(_written(value)).text
    except ConfigurationError as error:
        raise ConfigurationError(_flaw(parameter, value, str(error))) from None


def _written(value: str) -> str:
    """Write a formula in one way: without blanks, and without a plus in front."""
    _terms(value, value)  # blanks inside a word or a number are not to be closed up
    return "".join(value.split()).removeprefix("+")


def _terms(shown: str, text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or (at and not piece[1]):
            raise ConfigurationError(f"cannot be read from {checks.show(text[at:].strip() or shown)} on")
        sign, times, name = piece.groups()
        if name not in TERMS:
            close = checks.nearest(name, TERMS)
            raise ConfigurationError(
                f"names {checks.show(name)}" + (f", did you mean {close}" if close else ", which is no sort of tokens")
            )
        if times is not None and int(times) > _MOST_TIMES:
            raise ConfigurationError(f"takes {name} {times} times, and at most {_MOST_TIMES} are allowed")
        found[name] = found.get(name, 0) + (-1 if sign == "-" else 1) * int(times or 1)
        at = piece.end()
    if not any(times > 0 for times in found.values()):
        raise ConfigurationError("counts nothing")
    return tuple((name, times) for name, times in found.items() if times)


def _weight(terms: tuple[tuple[str, int], ...], parts: frozenset[str], whole: str) -> int:
    """Add up what one token can count as: as the whole, as all that it can be besides, and never less than nothing.

    A total less the whole of its input counts no input; what a part takes off is left on, for nobody knows how many are such.
    """
    plain = sum(times for name, times in terms if name in (whole, "total"))
    return max(0, plain) + sum(times for name, times in terms if name in parts and name not in (whole, "total") and times > 0)


def _flaw(parameter: str, value: object, what: str) -> str:
    return (
        f"{parameter}={checks.show(value)} {what}: give {', '.join(repr(word) for word in (*WHOLE, *_PRESETS))} or a sum such as "
        f"'input + 4*output - cached' of {', '.join(TERMS)}, each with a whole number from 0 to {_MOST_TIMES}."
    )
