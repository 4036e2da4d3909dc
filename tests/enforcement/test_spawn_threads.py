import contextlib
import random
import statistics
import sys
import threading
import time

import pytest

from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel.errors import SpawnDeniedError
from ravi_otel.policy._runs import Priority, SpawnBudget

THREADS = 8
ROUNDS = 300
MAX_AGENTS = 4


@pytest.fixture(autouse=True)
def threads_that_change_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    barrier = threading.Barrier(THREADS)
    failures = []

    def body(number):
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_that_do_everything_at_once_never_exceed_the_cap_and_leak_nothing():
    heard = []
    slots = SpawnTracker(SpawnBudget(MAX_AGENTS), on_event=heard.append)

    def work(number):
        dice = random.Random(number)
        for _ in range(ROUNDS):
            agent_id, priority = f"a{dice.randrange(3)}", dice.choice(list(Priority))
            try:
                if dice.random() < 0.3:
                    lease = slots.wait_for_slot_blocking(agent_id, priority, timeout_s=0.001)
                elif dice.random() < 0.5:
                    lease = slots.enter(agent_id, priority)
                else:
                    lease = slots.acquire(agent_id, priority)
            except SpawnDeniedError:
                continue
            slots.reprioritize(agent_id, dice.choice(list(Priority)))
            if lease.paused and dice.random() < 0.5:
                with contextlib.suppress(SpawnDeniedError):
                    lease.resumed_blocking(0.001)
            if dice.random() < 0.2:
                slots.release(agent_id)
            lease.release()
            lease.leave()

    in_threads(work)
    stats = slots.stats()
    assert (stats.active, stats.paused, stats.waiting) == (1, 0, 0)
    assert stats.peak <= MAX_AGENTS
    assert stats.granted_total == stats.released_total
    told = [event.outcome for event in heard]
    assert told.count("granted") == stats.granted_total
    assert told.count("released") == stats.released_total
    assert max(event.active for event in heard) == stats.peak


def test_of_many_threads_that_ask_at_once_as_many_get_a_slot_as_there_are():
    slots = SpawnTracker(SpawnBudget(MAX_AGENTS))
    granted = []

    def work(number):
        with contextlib.suppress(SpawnDeniedError):
            granted.append(slots.acquire(f"a{number}"))

    in_threads(work)
    assert len(granted) == MAX_AGENTS - 1
    assert slots.stats().denied_total == THREADS - len(granted)


def test_every_waiting_thread_gets_its_turn():
    slots = SpawnTracker(SpawnBudget(2))

    def work(number):
        for _ in range(ROUNDS // 10):
            with slots.wait_for_slot_blocking(f"a{number}", Priority.LOW):
                pass

    in_threads(work)
    stats = slots.stats()
    assert (stats.active, stats.peak, stats.released_total) == (1, 2, THREADS * (ROUNDS // 10))


@pytest.mark.parametrize("same_id", [False, True])
def test_the_cost_of_an_agent_does_not_grow_with_how_many_there_are(same_id):
    """Ten thousand live agents, each preempting an earlier one: the last cost about what the first did."""
    slots = SpawnTracker(SpawnBudget(10_001))
    for number in range(10_000):
        slots.acquire("a" if same_id else f"a{number}", Priority.LOW)
    costs = []
    for number in range(5_000):
        started = time.perf_counter_ns()
        agent_id = "b" if same_id else f"b{number}"
        slots.acquire(agent_id, Priority.HIGH)
        slots.enter(agent_id).leave()
        slots.release("a" if same_id else f"a{9_999 - number}")
        slots.release(agent_id)
        slots.acquire("filler", Priority.HIGH)
        costs.append(time.perf_counter_ns() - started)
    first, last = statistics.median(costs[:500]), statistics.median(costs[-500:])
    print(f"\nmedian cost of an agent among 10,000: first 500 {first / 1000:.1f} us, last 500 {last / 1000:.1f} us")
    assert last < 3 * first
