import asyncio
import gc
import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from ravi_otel._enforcement.sleeper import Sleeper
from ravi_otel._enforcement.spawn_tracker import SpawnTracker
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.policy._runs import Priority, SpawnBudget

BACKGROUND, LOW, NORMAL, HIGH, CRITICAL = Priority


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class Line:
    """Stand in line by hand: the flow that both colours drive, stopped where a caller would sleep."""

    def __init__(self, flow):
        self.flow = flow
        self.step = next(flow)

    def wake(self):
        try:
            self.flow.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("waits again")

    def cancel(self, error):
        with pytest.raises(type(error)):
            self.flow.throw(error)


def full(max_agents=2, priority=NORMAL, **rest):
    """Make a run that is full of agents named a0, a1 and so on."""
    slots = SpawnTracker(SpawnBudget(max_agents), **rest)
    leases = [slots.acquire(f"a{number}", priority) for number in range(max_agents - 1)]
    return slots, leases


async def in_line(slots, count):
    while slots.stats().waiting < count:
        await anyio.lowlevel.checkpoint()


def thread_in_line(slots, count):
    while slots.stats().waiting < count:
        threading.Event().wait(0.001)


# The line


def test_a_freed_slot_goes_to_who_waits_and_a_newcomer_does_not_jump_the_line():
    slots, [lease] = full()
    waiter = Line(slots.slot("w"))
    lease.release()
    with pytest.raises(SpawnDeniedError):
        slots.acquire("newcomer")
    assert waiter.wake().agent_id == "w"
    assert slots.stats().active == 2


def test_waiting_with_room_is_no_waiting():
    slots = SpawnTracker(SpawnBudget(2))
    with pytest.raises(StopIteration) as end:
        next(slots.slot("w", HIGH))
    assert end.value.value.priority is HIGH


def test_who_is_only_observed_waits_for_nothing():
    slots, _ = full(observe=True)
    with pytest.raises(StopIteration) as end:
        next(slots.slot("w"))
    assert end.value.value.agent_id == "w"
    assert (slots.stats().waiting, slots.stats().active, slots.stats().denied_total) == (0, 3, 1)


def test_urgent_work_that_would_wait_preempts_instead():
    slots, [lease] = full()
    with pytest.raises(StopIteration):
        next(slots.slot("w", HIGH))
    assert lease.paused


def test_who_waits_is_served_by_priority_and_in_order_of_arrival():
    granted = []
    slots, leases = full(5, CRITICAL, on_event=lambda event: event.outcome == "granted" and granted.append(event.agent_id))
    asked = [("first", NORMAL), ("low", LOW), ("second", NORMAL), ("high", HIGH)]
    waiters = [Line(slots.slot(name, priority)) for name, priority in asked]
    for lease in leases:
        lease.release()
    assert granted[len(leases) :] == ["high", "first", "second", "low"]
    assert len(waiters) == 4


@pytest.mark.parametrize(("later_s", "first"), [(59, "high"), (60, "normal"), (61, "normal")])
def test_waiting_thirty_seconds_is_worth_one_point_of_priority(later_s, first):
    clock = Clock()
    slots, [lease] = full(2, CRITICAL, clock=clock)
    waiters = {"normal": Line(slots.slot("normal", NORMAL))}
    clock.now = later_s
    waiters["high"] = Line(slots.slot("high", HIGH))
    lease.release()
    assert waiters[first].wake().agent_id == first


def test_promoted_agents_come_before_any_waiter():
    slots, [lease] = full()
    taker = slots.acquire("taker", CRITICAL)
    waiter = Line(slots.slot("w", CRITICAL))
    slots.reprioritize("a0", NORMAL)
    taker.release()
    assert not lease.paused
    with pytest.raises(SpawnDeniedError):
        waiter.wake()


def test_a_cap_of_one_is_nothing_to_wait_for():
    with pytest.raises(SpawnDeniedError):
        next(SpawnTracker(SpawnBudget(1)).slot("w"))


def test_a_waiter_that_gives_up_is_denied_says_how_long_it_waited_and_leaves_the_line():
    clock = Clock()
    slots, [lease] = full(clock=clock)
    waiter = Line(slots.slot("w", timeout_s=5))
    clock.now = 5
    with pytest.raises(SpawnDeniedError, match=r"No slot for agent 'w' after waiting 5 s: 2 of 2 agents .* wait longer"):
        waiter.wake()
    lease.release()
    stats = slots.stats()
    assert (stats.active, stats.waiting, stats.denied_total) == (1, 0, 1)


def test_an_alarm_that_comes_after_the_grant_is_too_late():
    slots, [lease] = full()
    waiter = Line(slots.slot("w", timeout_s=5))
    lease.release()
    assert not waiter.wake().ended


def test_a_timeout_of_zero_asks_once():
    slots, _ = full()
    with pytest.raises(SpawnDeniedError, match=r"No slot for agent 'w': 2 of 2 agents .* await wait_for_slot") as denied:
        next(slots.slot("w", timeout_s=0))
    assert "waiting" not in str(denied.value)
    assert slots.stats().waiting == 0


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), True, "5"])
def test_a_timeout_that_is_no_time_is_refused(timeout_s):
    slots, _ = full()
    with pytest.raises(ConfigurationError, match="timeout_s="):
        next(slots.slot("w", timeout_s=timeout_s))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_waiter_interrupted_in_line_leaves_it(error):
    slots, [lease] = full()
    Line(slots.slot("w")).cancel(error)
    lease.release()
    stats = slots.stats()
    assert (stats.active, stats.waiting) == (1, 0)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_a_waiter_interrupted_after_its_grant_gives_the_slot_to_the_next(error):
    slots, [lease] = full()
    gone, following = Line(slots.slot("gone")), Line(slots.slot("next"))
    lease.release()
    gone.cancel(error)
    assert following.wake().agent_id == "next"
    assert slots.stats().active == 2


def test_a_waiter_collected_as_garbage_takes_no_lock_and_leaves_the_line():
    heard = []
    slots, [lease] = full(on_event=lambda event: heard.append((event.outcome, event.agent_id)))
    waiter = Line(slots.slot("w"))
    lease.release()
    heard.clear()
    with slots._lock:
        del waiter
        gc.collect()
    assert heard == []
    assert slots.stats().active == 1
    assert heard == [("released", "w")]


def test_a_waiter_collected_as_garbage_calls_nobody_back():
    heard = []
    slots, [lease] = full(on_event=lambda event: heard.append(event.outcome))
    waiter = Line(slots.slot("w"))
    lease.release()
    heard.clear()
    del waiter
    gc.collect()
    assert heard == []
    assert slots.stats().active == 1
    assert heard == ["released"]


# Paused agents that wait


def test_a_paused_agent_that_waits_resumes_with_a_free_slot():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    waiter = Line(slots.resumption(lease))
    taker.release()
    assert not lease.paused
    assert waiter.wake() is lease


def test_an_active_agent_does_not_wait_to_be_resumed():
    slots, [lease] = full()
    with pytest.raises(StopIteration):
        next(slots.resumption(lease))


def test_a_paused_agent_that_asks_while_there_is_room_resumes_at_once():
    slots, [lease] = full()
    slots.acquire("b", HIGH).release()
    with pytest.raises(StopIteration):
        next(slots.resumption(lease))
    assert not lease.paused


def test_paused_agents_and_waiters_share_one_line_with_aging():
    clock = Clock()
    slots, [lease] = full(clock=clock)
    taker = slots.acquire("b", CRITICAL)
    early = Line(slots.slot("early", LOW))
    clock.now = 31
    waiter = Line(slots.resumption(lease))
    taker.release()
    assert lease.paused
    assert early.wake().agent_id == "early"
    slots.release("early")
    assert waiter.wake() is lease


def test_a_waiting_agent_that_is_raised_is_promoted_and_one_that_is_lowered_moves_back():
    slots, leases = full(3)
    takers = [slots.acquire(name, CRITICAL) for name in "xy"]
    waiters = [Line(slots.resumption(lease)) for lease in leases]
    low = Line(slots.slot("low", LOW))
    slots.reprioritize("a0", BACKGROUND)
    slots.reprioritize("a1", NORMAL)
    takers[0].release()
    assert waiters[1].wake() is leases[1]
    takers[1].release()
    assert leases[0].paused
    low.wake().release()
    assert waiters[0].wake() is leases[0]


def test_a_promoted_agent_that_is_lowered_again_keeps_waiting_as_it_did():
    slots, [lease] = full()
    taker = slots.acquire("b", CRITICAL)
    waiter = Line(slots.resumption(lease))
    slots.reprioritize("a0", NORMAL)
    slots.reprioritize("a0", LOW)
    other = Line(slots.slot("w", NORMAL))
    taker.release()
    assert lease.paused
    other.wake().release()
    assert waiter.wake() is lease


def test_two_tasks_may_wait_for_one_lease_and_one_may_give_up():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    stays, goes = Line(slots.resumption(lease)), Line(slots.resumption(lease, 1))
    with pytest.raises(SpawnDeniedError):
        goes.wake()
    assert slots.stats().waiting == 1
    taker.release()
    assert stays.wake() is lease


def test_a_paused_agent_that_gives_up_leaves_the_line_and_stays_paused():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    waiter = Line(slots.resumption(lease, 1))
    with pytest.raises(SpawnDeniedError, match=r"No slot for agent 'a0' after waiting"):
        waiter.wake()
    taker.release()
    assert lease.paused
    assert slots.stats().waiting == 0


def test_a_promoted_agent_that_gives_up_waiting_stays_promoted():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    slots.reprioritize("a0", NORMAL)
    waiter = Line(slots.resumption(lease, 1))
    with pytest.raises(SpawnDeniedError):
        waiter.wake()
    taker.release()
    assert not lease.paused


def test_a_cancelled_resumption_leaves_the_resumed_lease_to_its_owner():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    waiter = Line(slots.resumption(lease))
    taker.release()
    waiter.cancel(asyncio.CancelledError())
    assert not lease.paused
    lease.release()
    assert slots.stats().active == 1


def test_a_lease_released_while_its_agent_waits_wakes_and_refuses_it():
    slots, [lease] = full()
    slots.acquire("b", HIGH)
    waiter = Line(slots.resumption(lease))
    lease.release()
    with pytest.raises(SpawnDeniedError, match=r"lease was released|slot was given back"):
        waiter.wake()
    with pytest.raises(SpawnDeniedError, match=r"lease was released|slot was given back"):
        next(slots.resumption(lease))


def test_who_waited_once_does_not_wait_again_by_being_paused_again():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    waiter = Line(slots.resumption(lease))
    taker.release()
    waiter.wake()
    slots.acquire("c", HIGH)
    slots.reprioritize("a0", LOW)
    assert slots.stats().waiting == 0


def test_a_second_caller_for_the_same_lease_does_not_cost_its_place_in_line():
    slots, [lease] = full(clock=Clock())
    taker = slots.acquire("b", CRITICAL)
    waiters = [Line(slots.resumption(lease)), Line(slots.slot("w")), Line(slots.resumption(lease))]
    taker.release()
    assert not lease.paused
    assert waiters[2].wake() is lease


def test_a_thread_that_sleeps_for_a_cancelled_waiter_ends():
    slots, _ = full()
    waiter = Line(slots.slot("w"))
    thread = threading.Thread(target=waiter.step.blocking, daemon=True)
    thread.start()
    waiter.cancel(asyncio.CancelledError())
    thread.join(10)
    assert not thread.is_alive()


def test_a_resumption_with_a_timeout_of_zero_asks_once():
    slots, [lease] = full()
    slots.acquire("b", HIGH)
    with pytest.raises(SpawnDeniedError):
        next(slots.resumption(lease, 0))
    assert slots.stats().waiting == 0


# Under asyncio


@pytest.mark.anyio
async def test_a_task_waits_for_a_slot_that_another_thread_releases():
    slots, [lease] = full()
    task = asyncio.create_task(slots.wait_for_slot("w", LOW))
    await in_line(slots, 1)
    thread = threading.Thread(target=lease.release)
    thread.start()
    granted = await task
    thread.join()
    assert (granted.agent_id, granted.priority, granted.paused) == ("w", LOW, False)


@pytest.mark.anyio
async def test_a_slot_freed_before_the_sleep_begins_is_not_missed():
    slots, [lease] = full()
    waiter = slots.slot("w")
    step = next(waiter)
    lease.release()
    await step.awaiting()
    with pytest.raises(StopIteration):
        waiter.send(None)


@pytest.mark.anyio
async def test_a_task_that_waits_too_long_is_denied():
    slots, _ = full()
    with pytest.raises(SpawnDeniedError, match="after waiting"):
        await slots.wait_for_slot("w", timeout_s=0.001)
    assert slots.stats().waiting == 0


@pytest.mark.anyio
async def test_a_task_granted_in_time_leaves_no_alarm_behind():
    slots, [lease] = full()
    task = asyncio.create_task(slots.wait_for_slot("w", timeout_s=3600))
    await in_line(slots, 1)
    lease.release()
    assert not (await task).ended
    assert [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()] == []


@pytest.mark.anyio
async def test_a_task_cancelled_in_line_leaves_it():
    slots, _ = full()
    task = asyncio.create_task(slots.wait_for_slot("w"))
    await in_line(slots, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots.stats().waiting == 0


@pytest.mark.anyio
async def test_a_task_cancelled_just_after_its_grant_gives_the_slot_back():
    slots, [lease] = full()
    task = asyncio.create_task(slots.wait_for_slot("w"))
    await in_line(slots, 1)
    lease.release()
    assert slots.stats().active == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots.stats().active == 1


@pytest.mark.anyio
async def test_a_paused_task_waits_for_its_slot():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    task = asyncio.create_task(lease.resumed())
    await in_line(slots, 1)
    taker.release()
    await task
    assert not lease.paused


@pytest.mark.anyio
async def test_a_paused_task_whose_lease_is_released_is_woken_and_refused():
    slots, [lease] = full()
    slots.acquire("b", HIGH)
    task = asyncio.create_task(lease.resumed())
    await in_line(slots, 1)
    lease.release()
    with anyio.fail_after(10), pytest.raises(SpawnDeniedError, match=r"lease was released|slot was given back"):
        await task


@pytest.mark.anyio
async def test_a_blocking_wait_on_the_thread_of_an_event_loop_is_refused_at_once():
    slots, _ = full()
    with pytest.raises(SpawnDeniedError, match="would stop the event loop of this thread: await"):
        slots.wait_for_slot_blocking("w")
    assert slots.stats().waiting == 0


def test_a_slot_granted_to_a_loop_that_is_closed_goes_to_the_next():
    slots, [lease] = full()
    lost = slots.wait_for_slot("lost")
    loop = asyncio.new_event_loop()
    task = loop.create_task(lost)
    loop.call_soon(loop.stop)
    loop.run_forever()
    task._log_destroy_pending = False
    loop.close()
    waiter = Line(slots.slot("next"))
    lease.release()
    assert waiter.wake().agent_id == "next"
    assert slots.stats().active == 2
    lost.close()
    assert slots.stats().active == 2


# Without asyncio


def test_a_thread_waits_for_a_slot():
    slots, [lease] = full()
    granted = []
    thread = threading.Thread(target=lambda: granted.append(slots.wait_for_slot_blocking("w", timeout_s=60)))
    thread.start()
    thread_in_line(slots, 1)
    lease.release()
    thread.join()
    assert granted[0].agent_id == "w"


def test_a_thread_that_waits_too_long_is_denied():
    slots, _ = full()
    with pytest.raises(SpawnDeniedError, match="after waiting"):
        slots.wait_for_slot_blocking("w", timeout_s=0.001)


def test_a_paused_thread_waits_for_its_slot():
    slots, [lease] = full()
    taker = slots.acquire("b", HIGH)
    thread = threading.Thread(target=lease.resumed_blocking)
    thread.start()
    thread_in_line(slots, 1)
    taker.release()
    thread.join()
    assert not lease.paused


@pytest.mark.anyio
async def test_a_sleep_in_a_worker_thread_ends_when_woken_and_when_cancelled():
    sleeper = Sleeper()
    async with anyio.create_task_group() as group:
        group.start_soon(sleeper.wait_in_thread, None)
        await anyio.lowlevel.checkpoint()
        sleeper.wake()
    with anyio.move_on_after(0):
        await Sleeper().wait_in_thread(0.01)
    sleeper.wake()


@pytest.mark.anyio
async def test_many_sleepers_leave_the_program_its_worker_threads():
    sleepers = [Sleeper() for _ in range(50)]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for sleeper in sleepers:
                group.start_soon(sleeper.wait_in_thread, None)
            await anyio.wait_all_tasks_blocked()
            try:
                await anyio.to_thread.run_sync(len, "", abandon_on_cancel=True)
            finally:
                for sleeper in sleepers:
                    sleeper.wake()


def test_a_wait_outside_any_event_loop_fails_and_leaves_the_line():
    slots, _ = full()
    with pytest.raises(anyio.NoEventLoopError):
        slots.wait_for_slot("w").send(None)
    assert slots.stats().waiting == 0


def test_trio_tasks_wait_are_cancelled_and_time_out_too():
    trio = pytest.importorskip("trio")
    slots, [lease] = full()

    async def main():
        async with trio.open_nursery() as nursery:
            granted = []

            async def wait():
                granted.append(await slots.wait_for_slot("w"))

            nursery.start_soon(wait)
            await in_line(slots, 1)
            with trio.move_on_after(0) as scope:
                await slots.wait_for_slot("cancelled")
            assert scope.cancelled_caught
            with pytest.raises(SpawnDeniedError):
                await slots.wait_for_slot("late", timeout_s=0.001)
            lease.release()
        assert granted[0].agent_id == "w"
        assert (slots.stats().active, slots.stats().waiting) == (2, 0)

    trio.run(main)
