"""Whose slot urgent work takes: never that of an agent around it, which waits for it."""

import asyncio
import threading

import pytest

import ravi_otel
from ravi_otel import Priority, SpawnBudget
from ravi_otel._enforcement.spawn_tracker import PriorityQueue, SpawnTracker
from ravi_otel.errors import SpawnDeniedError

LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL


def desk(max_agents):
    return ravi_otel.run("desk", spawn_budget=SpawnBudget(max_agents))


def enter(agent_id, priority):
    with ravi_otel.agent(agent_id, priority=priority):
        pass


def spawn(agent_id, priority):
    with ravi_otel.spawn(agent_id, priority=priority):
        pass


def acquire(agent_id, priority):
    SpawnTracker.current().acquire(agent_id, priority).release()


def wait_blocking(agent_id, priority):
    SpawnTracker.current().wait_for_slot_blocking(agent_id, priority, 0).release()


def wait(agent_id, priority):
    async def waiting():
        lease = await SpawnTracker.current().wait_for_slot(agent_id, priority, 0)
        lease.release()

    asyncio.run(waiting())


async def spawn_in_a_task(agent_id, priority):
    async with ravi_otel.spawn(agent_id, priority=priority):
        pass


def spawn_in_task(agent_id, priority):
    async def spawning():
        await asyncio.create_task(spawn_in_a_task(agent_id, priority))

    asyncio.run(spawning())


WAYS_IN = pytest.mark.parametrize("come", [enter, spawn, acquire, wait_blocking, wait, spawn_in_task])


@WAYS_IN
@pytest.mark.parametrize("priority", [HIGH, CRITICAL])
def test_urgent_work_does_not_pause_the_agent_that_asks_for_it(come, priority):
    with desk(2), ravi_otel.agent("root"), ravi_otel.agent("parent", priority=LOW) as parent:
        with pytest.raises(SpawnDeniedError, match=r"2 of 2 agents are live .*\. Raise SpawnBudget\.max_agents"):
            come("urgent", priority)
        assert not parent.paused


@WAYS_IN
def test_nor_one_further_around(come):
    with desk(3), ravi_otel.agent("root"), ravi_otel.agent("outer", priority=LOW) as outer, ravi_otel.agent("inner") as inner:
        with pytest.raises(SpawnDeniedError):
            come("urgent", CRITICAL)
        assert (outer.paused, inner.paused) == (False, False)


@WAYS_IN
def test_it_takes_the_slot_of_an_agent_beside_though_those_around_are_less_urgent(come):
    with desk(4), ravi_otel.agent("root"):
        beside = SpawnTracker.current().acquire("beside", HIGH)
        with ravi_otel.agent("outer", priority=LOW) as outer, ravi_otel.agent("inner", priority=LOW) as inner:
            come("urgent", CRITICAL)
            assert beside.paused
            assert (outer.paused, inner.paused) == (False, False)


def test_the_agents_around_can_be_paused_by_others():
    with desk(2), ravi_otel.agent("root"), ravi_otel.agent("parent") as parent:
        outside = threading.Thread(target=SpawnTracker.current().acquire, args=("urgent", HIGH))
        outside.start()
        outside.join()
        assert parent.paused


def test_who_was_around_is_paused_for_what_comes_when_it_has_ended():
    with desk(2), ravi_otel.agent("root"), ravi_otel.spawn("parent") as kept:
        with ravi_otel.agent("parent"), pytest.raises(SpawnDeniedError):
            enter("urgent", HIGH)
        enter("urgent", HIGH)
        assert kept.paused


def test_what_is_passed_over_stays_in_its_place():
    ranking = PriorityQueue()
    for item, key in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        ranking.put(item, (key, 0))
    ranking.drop("c")
    assert ranking.first({"a", "b"}) == "d"
    assert ranking.first({"a", "b", "d"}) is None
    assert [ranking.first(), len(ranking)] == ["a", 3]
    ranking.drop("a")
    assert ranking.first({"d"}) == "b"
