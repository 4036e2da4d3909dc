from __future__ import annotations

import dataclasses
import math
from decimal import Decimal

import pytest

from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import ExecutionBudget, HistoryRetention, Priority, SpawnBudget

NO_COUNTS = [-1, True, 1.5, math.nan, math.inf, "5", [], 2**53 + 1, pytest.param(10**5000, id="huge")]
NO_AMOUNTS = [-1, -0.5, True, math.nan, math.inf, -math.inf, [], pytest.param(10**5000, id="huge"), 1e300]


class Indexed:
    def __index__(self):
        return 7


class Hostile:
    def __index__(self):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError


def test_nothing_is_limited_unless_said():
    budget = ExecutionBudget()

    assert (budget.max_tokens, budget.max_cost_usd, budget.max_turns, budget.deadline_s) == (None, None, None, None)


def test_zero_is_a_budget_of_nothing():
    assert ExecutionBudget(0, 0, 0, 0) == ExecutionBudget(max_tokens=0, max_cost_usd=0, max_turns=0, deadline_s=0)


@pytest.mark.parametrize("field", ["max_tokens", "max_turns"])
@pytest.mark.parametrize("wrong", NO_COUNTS)
def test_a_count_must_be_a_whole_number(field, wrong):
    with pytest.raises(ConfigurationError, match=rf"^{field}=") as caught:
        ExecutionBudget(**{field: wrong})
    assert str(caught.value).endswith("(None is unlimited, 0 allows nothing).")


@pytest.mark.parametrize("field", ["max_cost_usd", "deadline_s"])
@pytest.mark.parametrize("wrong", NO_AMOUNTS)
def test_an_amount_must_be_finite_and_not_negative(field, wrong):
    with pytest.raises(ConfigurationError, match=rf"^{field}="):
        ExecutionBudget(**{field: wrong})


@pytest.mark.parametrize("amount", [2, 2.5, Decimal("2.5"), 0.1 + 0.2])
def test_a_cost_is_kept_as_it_was_written(amount):
    assert ExecutionBudget(max_cost_usd=amount).max_cost_usd == amount


def test_a_number_of_another_library_becomes_a_plain_one():
    assert type(ExecutionBudget(max_tokens=Indexed()).max_tokens) is int


def test_a_hostile_value_gets_the_same_sentence():
    with pytest.raises(ConfigurationError, match=r"^max_tokens=<Hostile> must be a whole number"):
        ExecutionBudget(max_tokens=Hostile())


def test_a_long_value_is_cut_in_the_sentence():
    with pytest.raises(ConfigurationError) as caught:
        ExecutionBudget(max_tokens="9" * 10_000)
    assert len(str(caught.value)) < 200


def test_a_spawn_budget_is_fifty_agents_with_preemption():
    assert SpawnBudget() == SpawnBudget(max_agents=50, allow_preempt=True)


@pytest.mark.parametrize("wrong", [0, None, *NO_COUNTS])
def test_a_run_has_at_least_its_root(wrong):
    with pytest.raises(ConfigurationError, match=r"^max_agents=.*the root agent counts as 1"):
        SpawnBudget(max_agents=wrong)


@pytest.mark.parametrize("wrong", [0, 1, None, "yes"])
def test_preemption_is_true_or_false(wrong):
    with pytest.raises(ConfigurationError, match=r"^allow_preempt=.* must be True or False\.$"):
        SpawnBudget(allow_preempt=wrong)


@pytest.mark.parametrize("budget", [SpawnBudget(), ExecutionBudget()])
def test_a_budget_is_frozen_and_hashable(budget):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(budget, dataclasses.fields(budget)[0].name, 1)
    assert {budget: 1}


def test_priorities_are_weights_and_retentions_are_words():
    assert [int(priority) for priority in Priority] == [0, 1, 2, 4, 8]
    assert [str(retention) for retention in HistoryRetention] == ["none", "run", "permanent"]
