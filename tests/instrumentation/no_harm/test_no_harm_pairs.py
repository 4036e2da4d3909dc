"""With us and without us: the same bytes sent, the same result or exception, the same warnings and log lines."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import pytest
from odd_answers import ANSWERS
from odd_requests import REQUESTS
from operations import PLAIN, present
from pairwise import heads, pairs_of, pairwise, some
from programs import MODES, program
from seen import WAYS
from side_by_side import CLIENTS, COLOURS, Case

OPERATIONS = present()
INPUTS = [*((request, "as ever") for request in REQUESTS), *(("as it is", answer) for answer in ANSWERS if answer != "as ever")]
"""What is asked and what is answered: one of them odd."""
CAPTURING = (False, True)
KINDS = [kind for kind in CLIENTS if kind != "admin"]
REST: list[Any] = [COLOURS, MODES, CAPTURING, KINDS, WAYS]
FACTORS: list[Any] = [INPUTS, [name for name in OPERATIONS if name not in PLAIN], *REST]
FEWER: list[Any] = [INPUTS[::4], [name for name in OPERATIONS if name in PLAIN], *REST]
EVERY = 16
"""Of what is asked and answered, each operation meets one in so many here, and each kind of client some; of all else, every pair.

The long form has all.
"""
BY_CHANCE = {(0, 5)}
ROWS = [*pairwise(FACTORS, every=EVERY, by_chance=BY_CHANCE), *pairwise(FEWER, every=EVERY, by_chance=BY_CHANCE)]
ASKED = int(os.environ.get("RAVI_LONG", "0") or 0)
PARTS = 20


def case_of(row: tuple[Any, ...]) -> Case:
    (request, answer), operation, colour, mode, _, client, way = row
    chosen = OPERATIONS[operation]
    return Case(
        repr(row), program(chosen, mode, request, way), ANSWERS[answer](chosen), colour, client, debug=way == "whole" and mode == "plain"
    )


def compared(side_by_side: Any, rows: list[Any]) -> None:
    for capturing in CAPTURING:
        cases = [case_of(row) for row in rows if row[4] is capturing]
        if cases:
            told = side_by_side.differences(cases, capturing=capturing)
            assert told == {}, "\n".join(f"{name}\n    {line}" for name, lines in told.items() for line in lines)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_differs_for_any_pair_of_what_may_come_together(operation: str, side_by_side: Any) -> None:
    compared(side_by_side, [row for row in ROWS if row[1] == operation])


@pytest.mark.parametrize("factors", [FACTORS, FEWER], ids=["thorough", "fewer"])
def test_every_pair_is_among_what_is_compared(factors: list[Any]) -> None:
    assert len(INPUTS) >= 150
    covered = {pair for row in ROWS if row[1] in factors[1] for pair in pairs_of(row)}
    sizes = [len(factor) for factor in factors]
    rest = sum(one * other for at, one in enumerate(sizes) for other in sizes[at + 1 :]) - sizes[0] * (sizes[1] + sizes[5])
    met = set(heads(factors[0], factors[1], EVERY))
    assert met <= {(row[0], row[1]) for row in ROWS}
    assert {one for one, _ in met} == set(factors[0])
    assert len([pair for pair in covered if (pair[0], pair[2]) not in {(0, 1), *BY_CHANCE}]) == rest


def test_few_rows_cover_every_pair_of_small_factors() -> None:
    rows = pairwise([list("abcd"), list("xyz"), [1, 2], [True, False]])
    assert {pair for row in rows for pair in pairs_of(row)} == {
        pair for row in itertools.product("abcd", "xyz", [1, 2], [True, False]) for pair in pairs_of(row)
    }
    assert len(rows) == 12


def chosen(part: int) -> list[Any]:
    """Give this part of the long form: with 1, each input in each operation, colour, mode and capture; else so many at random."""
    if ASKED == 1:
        chance = random.Random(part)
        product = itertools.islice(itertools.product(INPUTS, OPERATIONS, COLOURS, MODES, CAPTURING), part, None, PARTS)
        return [(*row, chance.choice(KINDS), chance.choice(WAYS)) for row in product]
    both = list(itertools.product(REQUESTS, ANSWERS))
    return list(some([both, list(OPERATIONS), *REST], max(1, ASKED // PARTS), seed=part))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(ASKED == 0, reason="RAVI_LONG=1 for the product, RAVI_LONG=100000 for so many of all odd requests and answers")
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_differs_in_the_whole_product(part: int, side_by_side: Any) -> None:
    rows = chosen(part)
    for at in range(0, len(rows), 500):
        compared(side_by_side, rows[at : at + 500])
