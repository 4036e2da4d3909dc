"""What of a call's tokens a limit counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel import cost_limit, parse_limit, token_limit
from ravi_otel.errors import ConfigurationError, LimitSyntaxError
from ravi_otel.policy._grammar import parse_limits
from ravi_otel.policy._limits import TERMS, format_limit, formula_of
from ravi_otel.policy._usage import Usage

USED = Usage(100, 40, cached_input_tokens=60, cache_write_tokens=10, reasoning_tokens=25, audio_input_tokens=5, audio_output_tokens=3)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *(("uncached", 80), ("input+output", 140), ("total", 140), ("input+4*output-cached", 200), ("2*audio", 16)),
        *(("reasoning+cache_write", 35), ("cached-input", 0), ("input+input", 200), ("0*input+output", 40), ("output-2*reasoning", 0)),
    ],
)
def test_a_formula_counts_each_term_as_often_as_it_says_and_never_less_than_nothing(text, amount):
    assert formula_of(text).of(USED) == amount


@given(
    st.lists(st.tuples(st.sampled_from(TERMS), st.integers(-3, 5)), min_size=1, max_size=5).filter(
        lambda terms: any(sum(times for name, times in terms if name == one) > 0 for one in TERMS)
    ),
    *(st.integers(0, 1_000) for _ in range(2)),
    st.data(),
)
def test_nothing_counts_more_than_the_most_a_formula_gives_for_so_many_tokens(terms, size, made, data):
    text = "".join(f"{'-' if times < 0 else '+'}{abs(times)}*{name}" for name, times in terms)
    formula = formula_of(text.removeprefix("+"))
    part = lambda most: data.draw(st.integers(0, most))  # noqa: E731 - a word for what is drawn six times
    cached = part(size)
    usage = Usage(size, made, cached, part(size - cached), part(made), part(size), part(made))
    assert formula.of(usage) <= formula.most(size, made)
    room = formula.covered(formula.most(size, made), size)
    assert room is None or room >= made


@given(
    st.dictionaries(st.sampled_from(TERMS), st.integers(-3, 5), min_size=1).filter(lambda terms: max(terms.values()) > 0),
    st.lists(st.tuples(*(st.integers(0, 1_000) for _ in range(5))), max_size=4),
)
def test_what_many_calls_count_is_never_more_than_what_their_sums_give(terms, sizes):
    formula = formula_of("".join(f"{'-' if times < 0 else '+'}{abs(times)}*{name}" for name, times in terms.items()).removeprefix("+"))
    calls = [
        Usage(fresh + read + written, made + thought, read, written, thought, audio_input_tokens=fresh)
        for fresh, read, written, made, thought in sizes
    ]
    sums = [
        sum(each)
        for each in zip((0, 0, 0), *((one.input_tokens, one.output_tokens, one.cached_input_tokens) for one in calls), strict=True)
    ]
    counted = sum(formula.of(one) for one in calls)
    assert counted <= formula.sum_of(*sums)
    if min(terms.values()) >= 0 and terms.keys() <= {"input", "output", "cached", "total"}:
        assert counted == formula.sum_of(*sums)


def test_a_kind_of_ones_own_is_not_named_as_a_formula_is():
    with pytest.raises(ConfigurationError, match="built-in kind"):
        parse_limit('charge."tokens(uncached)"=5')
    assert parse_limit('charge."rows (eu)"=5').counted == "rows (eu)"


def test_input_and_output_are_the_kinds_they_always_were_and_all_is_no_formula():
    assert token_limit(5, "input").kind == "input_tokens"
    assert token_limit(5, count="output").kind == "output_tokens"
    assert token_limit(5, "all") == token_limit(5) == parse_limit("tokens=5:count=all")


@pytest.mark.parametrize("written", ["uncached", "input + 4*output - cached", "+ 2 * total-cached"])
def test_a_formula_is_written_so_that_the_same_is_read_back(written):
    limit = token_limit(500_000, written, warn_at=0.5, admission="strict")
    assert parse_limit(format_limit(limit)) == limit
    assert " " not in limit.count
    assert limit.counted == limit.label == f"tokens({limit.count})"


def test_two_limits_of_different_formulas_are_two_limits():
    assert len(parse_limits(["tokens=5", "tokens=5:count=uncached", "tokens=5:count=total-cached"])) == 3
    with pytest.raises(LimitSyntaxError, match="there twice"):
        parse_limits(["tokens=5:count=uncached", "tokens=9:count=uncached"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *(("inputs", "did you mean input"), ("words", "no sort of tokens"), ("input output", "'output' on"), ("input+", "'\\+' on")),
        *(("-input", "counts nothing"), ("", "counts nothing"), ("9999*input", "at most 1000"), ("1.5*input", "cannot be read")),
        *((7, "is no formula"), ("in put", "names 'in'"), ("all+input", "names 'all'"), ("input*4", "cannot be read")),
    ],
)
def test_a_wrong_formula_is_refused_with_what_may_stand_there(wrong, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        token_limit(5, wrong)
    assert "'uncached'" in str(refused.value)
    assert "cache_write" in str(refused.value)


def test_only_tokens_are_counted_by_a_formula():
    with pytest.raises(ConfigurationError, match="goes with a limit of tokens, not with one of cost"):
        cost_limit(1, count="uncached")
    with pytest.raises(LimitSyntaxError, match="option count"):
        parse_limit("tokens=5:count=uncached:count=input")
