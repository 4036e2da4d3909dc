import sys
import threading

import pytest

from ravi_otel._runtime.spawning import MAX_REMEMBERED, RetryPolicy
from ravi_otel.errors import ConfigurationError


@pytest.fixture
def threads_that_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Slow(str):
    """An id whose hash is computed in Python, so that another thread may come in between."""

    __slots__ = ()

    def __hash__(self):
        return hash(str(self)) + sum(range(0))

    __eq__ = str.__eq__


def asked(policy, agent_id, times):
    return [policy.should_retry(agent_id) for _ in range(times)]


def test_an_agent_is_retried_as_often_as_allowed_and_no_more():
    assert asked(RetryPolicy(max_retries=2), "a", 4) == [True, True, False, False]


def test_three_retries_are_the_default():
    policy = RetryPolicy()
    assert policy.max_retries == 3
    assert asked(policy, "a", 4) == [True, True, True, False]


def test_zero_allows_no_retry():
    assert asked(RetryPolicy(0), "a", 1) == [False]


def test_none_allows_any_number():
    assert all(asked(RetryPolicy(None), "a", 100))


def test_each_agent_has_its_own_count():
    policy = RetryPolicy(1)
    assert asked(policy, "a", 2) == [True, False]
    assert asked(policy, "b", 2) == [True, False]


def test_a_reset_starts_the_count_again():
    policy = RetryPolicy(1)
    policy.should_retry("a")
    policy.reset("a")
    policy.reset("never seen")
    assert asked(policy, "a", 2) == [True, False]


@pytest.mark.parametrize("ceiling", [-1, 1.5, True, "3", float("nan")])
def test_a_ceiling_that_is_no_whole_number_is_refused_by_name(ceiling):
    with pytest.raises(ConfigurationError, match="max_retries="):
        RetryPolicy(ceiling)


@pytest.mark.parametrize("agent_id", ["", "x" * 257, None])
def test_an_id_that_is_no_name_is_refused(agent_id):
    with pytest.raises(ConfigurationError, match="agent_id="):
        RetryPolicy().should_retry(agent_id)


def test_a_flood_of_ids_takes_bounded_memory_and_the_one_asked_about_last_is_kept():
    policy = RetryPolicy(1)
    policy.should_retry("kept")
    policy.should_retry("lost")
    for number in range(MAX_REMEMBERED - 1):
        policy.should_retry(str(number))
        policy.should_retry("kept")
    assert len(policy._counts) == MAX_REMEMBERED
    assert policy.should_retry("kept") is False
    assert policy.should_retry("lost") is True


def test_threads_together_get_exactly_the_retries_allowed(threads_that_change_often):
    policy = RetryPolicy(2000)
    agent_id = Slow("a")
    barrier = threading.Barrier(8)
    allowed = []

    def hammer():
        barrier.wait()
        allowed.extend(asked(policy, agent_id, 500))

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 2000


def test_it_is_written_the_way_it_was_made():
    assert repr(RetryPolicy(5)) == "RetryPolicy(max_retries=5)"
