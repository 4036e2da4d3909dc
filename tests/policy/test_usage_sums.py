"""Sums of usage fit what JSON and spans hold, and never go down."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel.policy._usage import Usage, add_to, added

MOST = 2**53
NAMES = [one.name for one in fields(Usage) if one.name != "source"]
COUNTS = st.integers(min_value=0, max_value=MOST)


def most(name: str) -> Usage:
    usage = Usage()
    setattr(usage, name, MOST)
    return usage


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, COUNTS)), max_size=8))
def test_a_sum_only_grows_and_stays_a_count(parts: list[dict[str, int]]) -> None:
    total = Usage()
    for part in parts:
        before = {name: getattr(total, name) for name in NAMES}
        more = Usage()
        for name, value in part.items():
            setattr(more, name, value)
        add_to(total, more)
        for name in NAMES:
            assert before[name] <= getattr(total, name) <= MOST


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_counts_add_up_to_the_largest(name: str) -> None:
    assert getattr(added([most(name), most(name)]), name) == MOST


def test_a_total_is_no_larger_than_a_count() -> None:
    assert Usage(input_tokens=MOST, output_tokens=MOST).total_tokens == MOST


def test_small_sums_are_exact() -> None:
    assert added([Usage(input_tokens=2, output_tokens=3), Usage(input_tokens=5, cached_input_tokens=1)]) == Usage(
        input_tokens=7, output_tokens=3, cached_input_tokens=1
    )
