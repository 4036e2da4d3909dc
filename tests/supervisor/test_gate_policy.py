"""Another value anywhere in what is decided by is another version of it, and nothing else is."""

import decimal
import logging
import threading
from dataclasses import dataclass, field
from enum import Enum

import openai
import pytest

from ravi_otel.supervisor._decisions import policy_text


class Plain:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("limit",)

    def __init__(self, limit):
        self.limit = limit


@dataclass
class Data:
    limit: object = 1
    more: dict = field(default_factory=dict)


class Colour(Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "wrap", [lambda limit: Plain(limit=limit), Slotted, Data, lambda limit: {"limit": [limit]}, lambda limit: (limit,)]
)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        ("1", 1),
        (None, 0),
        (decimal.Decimal("1.0"), decimal.Decimal("1.1")),
        (Colour.RED, Colour.BLUE),
        ({"a", "b"}, {"a"}),
        ({1: 2}, {1: 3}),
        (Plain(x=Plain(y=1)), Plain(x=Plain(y=2))),
        (Slotted(1), Slotted(2)),
        (Data(more={"a": 1}), Data(more={"a": 2})),
        (str, int),
    ],
)
def test_another_value_is_another_version_and_an_equal_one_is_none(wrap, one, other):
    assert policy_text(wrap(one)) != policy_text(wrap(other))
    assert policy_text(wrap(one)) == policy_text(wrap(one))


class WithMethod:
    def method(self):
        """Do nothing."""


def test_a_method_is_written_the_same_each_time_it_is_looked_up():
    policy = WithMethod()
    methods = [policy.method for _ in range(3)]
    assert len({policy_text(method) for method in methods}) == 1


def test_a_value_that_holds_itself_is_written():
    policy = Plain(limit=1)
    policy.me = policy
    before = policy_text(policy)
    policy.limit = 2
    assert policy_text(policy) != before


def test_what_hangs_on_a_client_a_logger_or_a_lock_is_no_value_of_a_policy():
    with openai.OpenAI(api_key="x") as client:
        policy = Plain(lock=threading.Lock(), client=client, log=logging.getLogger("a.b"), limit=1)
        before = policy_text(policy)
        with policy.lock:
            assert policy_text(policy) == before
        policy.limit = 2
        assert policy_text(policy) != before
    assert len(before) < 200_000


def test_a_large_policy_of_data_is_written_whole():
    policy = Data(more={str(number): Data(number) for number in range(2000)})
    before = policy_text(policy)
    policy.more["1999"].limit = 0
    assert policy_text(policy) != before
