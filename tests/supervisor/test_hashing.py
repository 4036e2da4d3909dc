"""Arguments are written in one way only, and a hash of them stands for nothing else."""

from __future__ import annotations

import json
import math
import pickle
from datetime import date
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel.supervisor._json import (
    MOST_CHARS,
    MOST_DEPTH,
    MOST_INT,
    MOST_VALUES,
    NotPlainError,
    args_hash,
    args_sha256,
    canonical,
    fingerprint,
    plain,
)


class Liar(str):
    __slots__ = ()

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Sly(dict):
    def __getitem__(self, key):
        return 1


class Number(int):
    def __repr__(self):
        return "1"


class Tiny(float):
    def __repr__(self):
        return "0.01"


class Many(list):
    pass


class Coin(IntEnum):
    CENT = 1


class Word(StrEnum):
    A = "a"


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_known_hash_is_the_known_hash():
    assert args_hash({"user_id": 42}) == "feaa769a39ae"


SAME = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": "issue  a\n refund "}, {"a": "issue a refund"}),
    (MappingProxyType({"a": 1}), {"a": 1}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_order_of_keys_and_white_space_make_no_difference_to_a_displayed_hash(one, other):
    assert args_hash(one) == args_hash(other)


def test_white_space_makes_a_difference_to_what_an_approval_is_bound_to():
    assert args_sha256("t", {"a": "x y"}) != args_sha256("t", {"a": "x  y"})


@pytest.mark.parametrize("value", [{"a": object()}, {1: 2}, {"a": math.nan}, "not JSON", nested(5_000), {"a": "\ud800"}, None, Sly(a=1)])
def test_anything_has_a_hash_to_display(value):
    assert len(args_hash(value)) == 12


APART = [
    (1, 1.0),
    (1, True),
    (0, False),
    (0.0, -0.0),
    ("1", 1),
    ("null", None),
    ([], {}),
    ([1, 2], [2, 1]),
    ({"a": None}, {}),
    ("é", "e\u0301"),
    ("a", "\u0430"),
    ("a", "a\u200b"),
    ({"a": {"b": 1}}, {"a.b": 1}),
    (["a,b"], ["a", "b"]),
    (0.1, 0.1 + 1e-17 + 1e-16),
    (2**53, 2**53 + 1),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_is_not_the_same_is_not_written_the_same(one, other):
    assert canonical(one) != canonical(other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-MOST_INT, MOST_INT) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def typed(value):
    """Write a value with its types, so that 1, 1.0 and True are apart."""
    if isinstance(value, dict):
        return "object", sorted((key, typed(each)) for key, each in value.items())
    return [typed(each) for each in value] if isinstance(value, list) else (type(value).__name__, repr(value))


@settings(max_examples=150, deadline=None)
@given(JSON, JSON)
def test_the_canonical_text_is_injective_and_reads_back(one, other):
    assert (canonical(one) == canonical(other)) == (typed(one) == typed(other))
    assert typed(json.loads(canonical(one))) == typed(one)


REFUSED = [
    (math.nan, "not_finite"),
    (math.inf, "not_finite"),
    (-math.inf, "not_finite"),
    (Liar("a"), "not_json"),
    (Sly(a=1), "not_json"),
    (Number(5), "not_json"),
    (Tiny(5000.0), "not_json"),
    (Many([1]), "not_json"),
    (Coin.CENT, "not_json"),
    (Word.A, "not_json"),
    ((1, 2), "not_json"),
    ({1}, "not_json"),
    (b"a", "not_json"),
    (Decimal(1), "not_json"),
    (date(2026, 1, 2), "not_json"),
    (object(), "not_json"),
    ({1: "a"}, "bad_key"),
    ({Liar("a"): 1}, "bad_key"),
    ({None: 1}, "bad_key"),
    ("\ud800", "half_character"),
    ({"\udfff": 1}, "half_character"),
    ("\ud83d\ude00", "half_character"),
    (MOST_INT + 1, "too_large"),
    (-MOST_INT - 1, "too_large"),
    (10**5000, "too_large"),
    ("x" * (MOST_CHARS + 1), "too_large"),
    ([0] * MOST_VALUES, "too_large"),
    (nested(MOST_DEPTH + 1), "too_deep"),
    (nested(100_000), "too_deep"),
]


@pytest.mark.parametrize(("value", "code"), REFUSED, ids=range(len(REFUSED)))
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}], ids=["bare", "inside"])
def test_what_json_does_not_have_is_refused_by_name(value, code, wrap):
    with pytest.raises(NotPlainError) as caught:
        canonical(wrap(value))
    assert caught.value.code == code


def test_the_very_bounds_are_taken():
    for value in (nested(MOST_DEPTH), MOST_INT, -MOST_INT, "x" * MOST_CHARS, [0] * (MOST_VALUES - 1)):
        assert plain(value) == value


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NotPlainError, match="nested deeper"):
        canonical(value)


def test_a_list_that_is_there_a_billion_times_is_refused_soon():
    value = [0] * 10
    for _ in range(9):
        value = [value] * 10
    with pytest.raises(NotPlainError, match="20000 values"):
        canonical(value)


def test_the_copy_shares_nothing_with_what_was_given():
    given_ = {"a": [{"b": 1}]}
    copied = plain(given_)
    given_["a"][0]["b"] = 5_000
    given_["a"].append(1)
    assert copied == {"a": [{"b": 1}]}


def test_the_error_says_where_and_crosses_a_process():
    with pytest.raises(NotPlainError) as caught:
        plain({"a": [1, {"b": math.nan}]})
    assert str(caught.value).startswith("'a.1.b' is nan")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.code, copied.path, str(copied)) == (caught.value.code, caught.value.path, str(caught.value))


BOUND = [
    ("refund", {"amount_usd": 10}, "run/a", "v1"),
    ("refund2", {"amount_usd": 10}, "run/a", "v1"),
    ("refund", {"amount_usd": 10.0}, "run/a", "v1"),
    ("refund", {"amount_usd": 10, "x": None}, "run/a", "v1"),
    ("refund", {"amount_usd": 10}, "run/b", "v1"),
    ("refund", {"amount_usd": 10}, "run/a", "v2"),
    ("refund", {"amount_usd": 10}, "run/av1", ""),
    ("refund", {"amount_usd": 10}, "", "run/av1"),
]


def test_a_fingerprint_is_bound_to_tool_arguments_scope_and_policy_version():
    made = [fingerprint(*each) for each in BOUND]
    assert len(set(made)) == len(BOUND)
    assert all(len(each) == 64 for each in made)
    assert fingerprint(*BOUND[0]) == fingerprint("refund", {"amount_usd": 10}, "run/a", "v1")


def test_a_fingerprint_is_never_made_of_what_cannot_be_written_in_one_way():
    with pytest.raises(NotPlainError):
        fingerprint("refund", {"amount_usd": math.nan}, "run/a", "v1")
