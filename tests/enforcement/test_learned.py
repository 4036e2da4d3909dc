"""How long answers are, learned while they come."""

from __future__ import annotations

import bisect
import math
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel._enforcement.usage_counters import BOUNDS, ENOUGH, MOST_KEYS, MOST_PLAUSIBLE, Learned


def bucket(tokens):
    return min(bisect.bisect_left(BOUNDS, tokens), len(BOUNDS) - 1)


@given(st.lists(st.integers(0, MOST_PLAUSIBLE) | st.integers(0, 300), min_size=ENOUGH, max_size=400))
def test_the_learned_length_is_within_one_bucket_of_the_true_one(lengths):
    learned = Learned()
    for tokens in lengths:
        learned.observe("agent", "model", tokens)
    true = sorted(lengths)[min(math.ceil(len(lengths) * 0.95), len(lengths) - 1) - 1]
    found = learned.p95("agent", "model")
    assert abs(bucket(found) - bucket(true)) <= 1
    assert found <= BOUNDS[-1]


@pytest.mark.parametrize("absurd", [3_000_000, MOST_PLAUSIBLE])
@pytest.mark.parametrize("others", [ENOUGH, 30])
def test_one_absurd_answer_is_not_what_is_known(absurd, others):
    learned = Learned()
    for tokens in (14, absurd, *([14] * (others - 1))):
        learned.observe("agent", "model", tokens)
    assert learned.p95("agent", "model") == 14
    assert learned.longest("agent", "model") == 14


def test_the_longest_answer_is_one_that_two_have_reached():
    learned = Learned()
    for tokens in (100, 9_000, 300, 5_001, 7):
        learned.observe("agent", "model", tokens)
    assert learned.longest("agent", "model") == 5_001
    assert learned.longest("agent", "other") == 0


def test_nothing_is_known_before_the_eighth_answer_nor_of_another_agent_or_model():
    learned = Learned()
    for _ in range(ENOUGH - 1):
        learned.observe("agent", "model", 100)
    assert learned.p95("agent", "model") is None
    learned.observe("agent", "model", 100)
    assert 100 <= learned.p95("agent", "model") <= 112
    assert learned.p95("other", "model") is learned.p95("agent", None) is None


def test_answers_that_become_shorter_are_followed():
    learned = Learned()
    for _ in range(2_000):
        learned.observe(None, "model", 5_000)
    for _ in range(3_000):
        learned.observe(None, "model", 20)
    assert learned.p95(None, "model") == 20


def test_only_so_many_pairs_are_kept_and_those_heard_of_last_stay():
    learned = Learned()
    for number in range(3 * MOST_KEYS):
        for _ in range(ENOUGH):
            learned.observe(f"agent {number}", "model", 7)
        learned.observe("constant", "model", 7)
    assert len(learned) <= MOST_KEYS
    assert learned.p95("constant", "model") == learned.p95(f"agent {3 * MOST_KEYS - 1}", "model") == 7
    assert learned.p95("agent 0", "model") is None


def test_it_may_be_read_and_fed_from_many_threads_at_once():
    learned, before = Learned(), sys.getswitchinterval()
    found = set()

    def work():
        for _ in range(300):
            learned.observe("agent", "model", 50)
            found.add(learned.p95("agent", "model"))

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert found <= {None, 56}
    assert learned.p95("agent", "model") == 56
