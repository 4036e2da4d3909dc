"""How often supervised agents are started again, how long that waits, and what cannot be started at all."""

import asyncio
import functools
import sys
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import (
    ConfigurationError,
    DeadlineExceededError,
    ExecutionBudget,
    RetriesExhaustedError,
    RetryPolicy,
    SpawnBudget,
    SpawnTracker,
)
from ravi_otel.hooks._listeners import Listener

sys.path.insert(0, str(Path(__file__).parent))

from crashing import Crashing


@pytest.fixture
def run_of(instrumented):
    return lambda count, **more: ravi_otel.run("r", spawn_budget=SpawnBudget(count), **more)


def test_one_policy_allows_each_call_as_many_retries_whatever_came_before(run_of, supervised):
    policy = RetryPolicy(2)
    for _ in range(2):
        with run_of(2):
            with pytest.raises(RetriesExhaustedError) as caught:
                supervised(Crashing(9), policy)
            assert caught.value.attempts == 3
            assert supervised(Crashing(2), policy) == "done"


def test_runs_side_by_side_that_share_a_policy_do_not_use_up_each_others_retries(run_of):
    policy = RetryPolicy(2)

    async def one(child):
        async def awaited():
            await asyncio.sleep(0)
            return child()

        async with run_of(2), ravi_otel.agent("root"):
            return await ravi_otel.supervise(awaited, policy, agent="child")

    async def main():
        return await asyncio.gather(*(one(Crashing(2)) for _ in range(4)))

    assert asyncio.run(main()) == ["done"] * 4


def test_what_a_program_counts_itself_is_its_own_affair(run_of, supervised):
    policy = RetryPolicy(1)
    assert [policy.should_retry("child"), policy.should_retry("child")] == [True, False]
    with run_of(2):
        assert supervised(Crashing(1), policy) == "done"
    assert not policy.should_retry("child")


def test_a_policy_with_a_rule_of_its_own_is_asked_by_name_and_told_of_a_success(run_of, supervised):
    asked = []

    class Picky(RetryPolicy):
        def should_retry(self, agent_id):
            asked.append(agent_id)
            return len(asked) < 3

        def reset(self, agent_id):
            asked.append(f"{agent_id} is well")

    with run_of(2):
        assert supervised(Crashing(2), Picky(0)) == "done"
        with pytest.raises(RetriesExhaustedError):
            supervised(Crashing(1), Picky(9))
    assert asked == ["child", "child", "child is well", "child"]


def test_a_plain_function_cannot_pause_between_attempts_on_an_event_loop_and_is_told_so_before_the_first(run_of):
    child = Crashing(0)

    async def main():
        return ravi_otel.supervise(child, agent="child", backoff_s=0.5)

    with run_of(2):
        with pytest.raises(ConfigurationError, match=r"backoff_s=0\.5\).*Use a coroutine function and await it, or backoff_s=0\."):
            asyncio.run(main())
        assert (child.scopes, SpawnTracker.current().stats().granted_total) == ([], 0)


def test_a_plain_function_without_a_pause_is_supervised_on_an_event_loop(run_of):
    async def main():
        return ravi_otel.supervise(Crashing(2), agent="child")

    with run_of(2):
        assert asyncio.run(main()) == "done"


class Restarts(Listener):
    def __init__(self):
        self.waits = []

    def counted(self, event):
        if event.what == "restarted":
            self.waits.append(event.retry.wait_s)


def test_the_pause_is_no_longer_than_the_agents_own_deadline_leaves(on_clock, supervised):
    child, restarts = Crashing(9, before=lambda: on_clock.advance(10)), Restarts()
    with ravi_otel.run("r") as run:
        run.scope.engine.listeners.add(restarts)
        with pytest.raises(DeadlineExceededError):
            supervised(child, budget=ExecutionBudget(deadline_s=10.001), backoff_s=0.5)
    assert restarts.waits == [0.001, None]


def test_attempts_are_told_apart_in_the_tree(run_of, supervised):
    with run_of(2) as run, ravi_otel.agent("root"):
        supervised(Crashing(2))
    shown = [[word for word in line.split(" · ") if word[-1] != "s"] for line in run.tree().splitlines()[2:]]
    assert shown == [
        ["    ├── 'child'", "error"],
        ["    ├── 'child'", "attempt 2", "error"],
        ["    └── 'child'", "attempt 3", "ok"],
    ]


class Yielding:
    def __call__(self):
        yield 1


def yielding():
    yield 1


async def yielding_too():
    yield 1


@pytest.mark.parametrize(
    "child", [yielding, yielding_too, Yielding(), functools.partial(yielding)], ids=["def", "async", "call", "partial"]
)
def test_a_generator_function_is_refused_since_a_call_runs_nothing_of_it(child):
    with pytest.raises(ConfigurationError, match=r"is a generator function, .* Hand over the function that goes through it"):
        ravi_otel.supervise(child, agent="child")
