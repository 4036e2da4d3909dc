"""What operators may do with slots, and what counts while an agent runs."""

import asyncio

import pytest

from ravi_otel._enforcement.spawn_tracker import PriorityQueue, SpawnTracker
from ravi_otel.errors import SpawnDeniedError
from ravi_otel.policy._runs import Priority, SpawnBudget

LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL


def tracker(max_agents=2, **more):
    return SpawnTracker(SpawnBudget(max_agents), **more)


def counts(slots):
    stats = slots.stats()
    return stats.active, stats.paused


# An operator's pause


def test_an_operators_pause_hands_the_slot_to_who_waits():
    slots = tracker()
    lease = slots.acquire("a", CRITICAL)
    line = slots.slot("w")
    next(line)
    assert slots.pause("a")
    assert lease.paused
    with pytest.raises(StopIteration) as end:
        line.send(None)
    assert end.value.value.agent_id == "w"
    assert counts(slots) == (2, 1)


def test_a_pause_takes_the_newest_active_lease_of_the_id_then_the_one_before():
    slots = tracker(3)
    one, two = slots.acquire("a"), slots.acquire("a")
    assert slots.pause("a")
    assert (one.paused, two.paused) == (False, True)
    assert slots.pause("a")
    assert one.paused
    assert not slots.pause("a")
    assert counts(slots) == (1, 2)


def test_a_resume_lets_the_newest_paused_lease_go_on_then_the_one_before():
    slots = tracker(3)
    one, two = slots.acquire("a"), slots.acquire("a")
    slots.pause("a")
    slots.pause("a")
    assert slots.resume("a")
    assert (one.paused, two.paused) == (True, False)
    assert slots.resume("a")
    assert not one.paused
    assert not slots.resume("a")


def test_an_agent_on_hold_that_waits_goes_on_only_when_it_is_resumed():
    slots = tracker()
    lease = slots.acquire("a")
    slots.pause("a")
    line = slots.resumption(lease)
    next(line)
    slots.resize(5)
    assert lease.paused
    assert slots.stats().waiting == 0
    slots.resume("a")
    with pytest.raises(StopIteration):
        line.send(None)
    assert not lease.paused


def test_a_lower_priority_lets_nobody_go_on_whom_an_operator_holds_and_a_normal_one_does():
    slots = tracker()
    lease = slots.acquire("a")
    slots.pause("a")
    slots.reprioritize("a", LOW)
    assert lease.paused
    slots.reprioritize("a", NORMAL)
    assert not lease.paused


def test_a_resumed_agent_stands_first_in_line_while_the_run_is_full_and_keeps_its_priority():
    slots = tracker()
    lease = slots.acquire("a", LOW)
    slots.pause("a")
    taker = slots.acquire("b", CRITICAL)
    line = slots.slot("w", CRITICAL)
    next(line)
    assert slots.resume("a")
    taker.release()
    assert (lease.paused, lease.priority) == (False, LOW)
    line.close()


@pytest.mark.parametrize("agent_id", ["root", "ghost", "", None, []])
def test_the_root_and_who_is_unknown_are_not_paused(agent_id):
    slots = tracker()
    slots.enter("root")
    assert not slots.pause(agent_id)
    assert not slots.resume(agent_id)
    assert not slots.is_paused(agent_id)
    slots.release(agent_id)
    assert counts(slots) == (1, 0)


# An agent that runs counts


def test_an_agent_whose_lease_is_released_counts_until_it_leaves():
    slots = tracker()
    slots.enter("root")
    with slots.acquire("a") as lease:
        slots.enter("a")
    for _ in range(20):
        with pytest.raises(SpawnDeniedError):
            slots.acquire("more")
    assert (lease.ended, counts(slots)) == (False, (2, 0))
    lease.leave()
    assert (lease.ended, counts(slots)) == (True, (1, 0))


def test_a_paused_agent_whose_lease_is_released_stays_paused():
    slots = tracker()
    slots.enter("root")
    lease = slots.acquire("a")
    slots.enter("a")
    slots.acquire("urgent", HIGH)
    lease.release()
    assert lease.paused
    lease.leave()
    assert counts(slots) == (2, 0)


def test_a_waiter_cancelled_after_its_grant_was_adopted_leaves_the_agent_its_slot():
    slots = tracker()
    slots.enter("root")
    first = slots.acquire("x")
    line = slots.slot("a")
    next(line)
    first.release()
    lease = slots.enter("a")
    with pytest.raises(asyncio.CancelledError):
        line.throw(asyncio.CancelledError())
    assert (lease.ended, counts(slots)) == (False, (2, 0))
    lease.leave()
    assert counts(slots) == (1, 0)


@pytest.mark.parametrize("act", ["acquire", "enter", "wait"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_a_listener_that_ends_the_program_costs_no_slot(act, error):
    ends = []

    def hear(event):
        if ends and event.outcome in {"granted", "preempted"}:
            raise error

    slots = tracker(on_event=hear)
    slots.enter("root")
    slots.enter("v", LOW)
    ends.append(True)
    with pytest.raises(error):
        next(slots.slot("u", HIGH)) if act == "wait" else getattr(slots, act)("u", HIGH)
    ends.clear()
    assert counts(slots) == (1, 1)
    assert slots.resume("v")
    slots.acquire("u", HIGH).release()


# What a victim costs


class Counted(int):
    """Count comparisons of priorities."""

    seen = 0

    def __lt__(self, other):
        Counted.seen += 1
        return int(self) < int(other)

    def __eq__(self, other):
        Counted.seen += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
def test_to_choose_a_victim_takes_as_many_comparisons_as_a_heap_is_deep(size):
    ranking = PriorityQueue()
    for number in range(size):
        ranking.put(number, (Counted(number % 3), -number))
    worst = 0
    for _ in range(50):
        Counted.seen = 0
        victim = ranking.first()
        ranking.drop(victim)
        ranking.put(size + victim, (Counted(8), -victim))
        ranking.first()
        worst = max(worst, Counted.seen)
    assert 0 < worst <= 6 * size.bit_length()


# One lease of several of an id


def test_of_several_leases_of_an_id_the_one_that_is_given_is_meant():
    slots = tracker(max_agents=4)
    first, second, third = (slots.acquire("a") for _ in range(3))
    slots.reprioritize(second, HIGH)
    assert [lease.priority for lease in (first, second, third)] == [NORMAL, HIGH, NORMAL]
    assert slots.pause(second)
    assert slots.pause(first)
    assert [lease.paused for lease in (first, second, third)] == [True, True, False]
    assert slots.resume(second)
    assert [lease.paused for lease in (first, second, third)] == [True, False, False]
    assert not slots.resume(third)


def test_a_lease_that_is_over_or_another_runs_is_nobodys():
    slots, others = tracker(), tracker()
    ended, foreign = slots.acquire("a"), others.acquire("a")
    ended.release()
    kept = slots.acquire("a")
    for lease in (ended, foreign):
        assert (slots.pause(lease), slots.resume(lease)) == (False, False)
        slots.reprioritize(lease, CRITICAL)
    assert (foreign.priority, ended.priority, kept.priority) == (NORMAL, NORMAL, NORMAL)
    assert (counts(slots), counts(others)) == ((2, 0), (2, 0))


def test_the_roots_lease_is_never_paused():
    slots = tracker()
    assert not slots.pause(slots.enter("root"))
