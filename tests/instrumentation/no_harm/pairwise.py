"""Choose few rows out of a product so that every pair of values of two factors is in one of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator, Sequence
from typing import Any

Row = tuple[Any, ...]
Pair = tuple[int, Any, int, Any]

_TRIED = 10


def pairs_of(row: Row) -> Iterator[Pair]:
    for one, other in itertools.combinations(range(len(row)), 2):
        yield one, row[one], other, row[other]


def heads(first: Sequence[Any], second: Sequence[Any], every: int = 1) -> Iterator[tuple[Any, Any]]:
    """Give the product, or one of `every` so many, spread so that each value meets its share of the other factor."""
    for (at, one), (beside, other) in itertools.product(enumerate(first), enumerate(second)):
        if (at + beside) % every == 0:
            yield one, other


def pairwise(factors: Sequence[Sequence[Any]], seed: int = 4, *, every: int = 1, by_chance: Container[tuple[int, int]] = ()) -> list[Row]:
    """Give the rows: the two largest factors, which come first, filled up greedily with the rest; the same every time.

    Of the pairs of these two there is one in `every`; of two factors that are named `by_chance`, what comes of itself; of all others, each.
    """
    chance, covered, rows = random.Random(seed), set[Pair](), list[Row]()
    rest = list(itertools.product(*factors[2:]))
    for head in heads(factors[0], factors[1], every):
        tried = [(*head, *each) for each in chance.sample(rest, min(_TRIED, len(rest)))]
        best = max(tried, key=lambda row: sum(pair not in covered for pair in pairs_of(row)))
        covered.update(pairs_of(best))
        rows.append(best)
    for one, other in itertools.combinations(range(len(factors)), 2):
        if (one, other) == (0, 1) or (one, other) in by_chance:
            continue
        for left, right in itertools.product(factors[one], factors[other]):
            if (one, left, other, right) not in covered:
                tried: list[Row] = []
                for _ in range(_TRIED):
                    row = [chance.choice(factor) for factor in factors]
                    row[one], row[other] = left, right
                    tried.append(tuple(row))
                best = max(tried, key=lambda row: sum(pair not in covered for pair in pairs_of(row)))
                covered.update(pairs_of(best))
                rows.append(best)
    return rows


def some(factors: Sequence[Sequence[Any]], count: int, seed: int = 4) -> Iterator[Row]:
    """Give `count` rows of the whole product by chance, the same every time."""
    chance = random.Random(seed)
    for _ in range(count):
        yield tuple(chance.choice(factor) for factor in factors)
