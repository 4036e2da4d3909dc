import contextlib
import gc
import pickle
import threading

import pytest

from ravi_otel._enforcement.spawn_tracker import PriorityQueue, SpawnTracker
from ravi_otel.errors import ConfigurationError, SpawnDeniedError
from ravi_otel.policy._runs import Priority, SpawnBudget

BACKGROUND, LOW, NORMAL, HIGH, CRITICAL = Priority


def tracker(max_agents=2, *, allow_preempt=True, **rest):
    return SpawnTracker(SpawnBudget(max_agents, allow_preempt), **rest)


def counts(slots):
    stats = slots.stats()
    return stats.active, stats.paused


# Room and no room


def test_the_root_counts_as_one_before_anybody_came():
    assert counts(tracker()) == (1, 0)


def test_a_cap_of_one_allows_just_the_root():
    slots = tracker(1)
    slots.enter("root")
    with pytest.raises(SpawnDeniedError):
        slots.acquire("a", CRITICAL)
    assert counts(slots) == (1, 0)


def test_fifty_is_the_cap_by_default():
    slots = SpawnTracker()
    for number in range(49):
        slots.acquire(str(number))
    with pytest.raises(SpawnDeniedError):
        slots.acquire("one more")
    assert slots.stats().peak == 50


def test_a_normal_agent_is_denied_when_the_run_is_full():
    slots = tracker(2)
    slots.acquire("a", BACKGROUND)
    with pytest.raises(SpawnDeniedError) as caught:
        slots.acquire("b", NORMAL)
    assert (caught.value.agent_id, caught.value.max_agents) == ("b", 2)
    assert str(caught.value) == (
        "No slot for agent 'b': 2 of 2 agents are live, its root included. Raise SpawnBudget.max_agents, release an agent first, "
        "or await wait_for_slot()."
    )
    assert pickle.loads(pickle.dumps(caught.value)).agent_id == "b"


def test_a_released_slot_can_be_taken_again():
    slots = tracker(2)
    slots.acquire("a").release()
    assert not slots.acquire("b").paused


def test_a_lease_gives_its_slot_back_when_its_block_is_left():
    slots = tracker(2)
    with pytest.raises(KeyError), slots.acquire("a") as lease:
        raise KeyError
    assert lease.ended
    assert counts(slots) == (1, 0)


@pytest.mark.parametrize("agent_id", ["", "x" * 257, None, "a\nb"])
def test_an_id_that_is_no_name_is_refused(agent_id):
    slots = tracker()
    for act in (slots.acquire, slots.enter):
        with pytest.raises(ConfigurationError, match="agent_id="):
            act(agent_id)
    assert slots.stats().granted_total == 0


@pytest.mark.parametrize("priority", [3, "high", None, 2.5])
def test_a_priority_that_is_none_is_refused(priority):
    slots = tracker()
    for act in (slots.acquire, slots.enter, slots.reprioritize):
        with pytest.raises(ConfigurationError, match="priority="):
            act("a", priority)


def test_a_priority_may_be_given_as_its_number():
    assert tracker().acquire("a", 8).priority is CRITICAL


# Preemption


@pytest.mark.parametrize("urgent", [HIGH, CRITICAL])
def test_urgent_work_takes_the_slot_of_a_lesser_agent_and_the_headcount_stays(urgent):
    slots = tracker(2)
    victim = slots.acquire("a")
    taker = slots.acquire("b", urgent)
    assert (victim.paused, taker.paused) == (True, False)
    assert counts(slots) == (2, 1)


def test_with_preemption_off_nobody_is_paused():
    slots = tracker(2, allow_preempt=False)
    lease = slots.acquire("a", BACKGROUND)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("b", CRITICAL)
    assert not lease.paused


def test_nobody_of_the_same_priority_is_paused():
    slots = tracker(2)
    slots.acquire("a", HIGH)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("b", HIGH)


def test_a_paused_victim_is_never_chosen_again():
    slots = tracker(2)
    slots.acquire("victim")
    slots.acquire("first", HIGH)
    for number in range(20):
        with pytest.raises(SpawnDeniedError):
            slots.acquire(f"more {number}", HIGH)
    assert counts(slots) == (2, 1)
    assert slots.stats().preempted_total == 1
    assert slots.stats().peak == 2


def test_the_lowest_priority_goes_first_and_among_equals_the_newest():
    slots = tracker(5)
    leases = {name: slots.acquire(name, priority) for name, priority in [("n", NORMAL), ("old", LOW), ("new", LOW), ("h", HIGH)]}
    order = []
    for number in range(4):
        slots.acquire(f"c{number}", CRITICAL)
        order += [name for name, lease in leases.items() if lease.paused and name not in order]
    assert order == ["new", "old", "n", "h"]


def test_the_root_is_never_a_victim():
    slots = tracker(1)
    root = slots.enter("root", BACKGROUND)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("a", CRITICAL)
    assert not root.paused


def test_the_release_of_a_paused_victim_frees_nothing():
    slots = tracker(2)
    victim = slots.acquire("a")
    slots.acquire("b", HIGH)
    victim.release()
    victim.release()
    assert counts(slots) == (2, 0)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("c")


def test_the_release_of_who_preempted_frees_one_slot_once():
    slots = tracker(2)
    slots.acquire("a")
    taker = slots.acquire("b", HIGH)
    for _ in range(3):
        taker.release()
    assert counts(slots) == (1, 1)
    slots.acquire("c")
    with pytest.raises(SpawnDeniedError):
        slots.acquire("d")


def test_a_paused_lease_on_which_nobody_waits_stays_paused_when_a_slot_is_free():
    slots = tracker(2)
    victim = slots.acquire("a")
    slots.acquire("b", HIGH).release()
    assert victim.paused


# Ids


def test_the_same_id_twice_is_two_leases_and_both_are_freed():
    slots = tracker(3)
    one, two = slots.acquire("a"), slots.acquire("a")
    assert counts(slots) == (3, 0)
    slots.release("a")
    assert (one.ended, two.ended) == (False, True)
    slots.release("a")
    slots.release("a")
    assert counts(slots) == (1, 0)


def test_the_release_of_an_id_that_was_never_seen_does_nothing():
    slots = tracker()
    slots.release("ghost")
    assert slots.stats().released_total == 0


def test_is_paused_asks_all_leases_of_an_id():
    slots = tracker(3)
    assert not slots.is_paused("a")
    first = slots.acquire("a")
    second = slots.acquire("a")
    assert not slots.is_paused("a")
    slots.acquire("b", HIGH)
    assert (first.paused, second.paused) == (False, True)
    assert slots.is_paused("a")
    assert not slots.is_paused("b")
    second.release()
    assert not slots.is_paused("a")


def test_is_paused_follows_a_resumption():
    slots = tracker(2)
    slots.acquire("a")
    slots.acquire("b", HIGH).release()
    slots.reprioritize("a", NORMAL)
    assert not slots.is_paused("a")


# Reprioritize


def test_an_agent_lowered_below_normal_while_full_is_paused_and_its_slot_is_free():
    slots = tracker(2)
    lease = slots.acquire("a")
    slots.reprioritize("a", LOW)
    assert lease.paused
    assert counts(slots) == (1, 1)
    slots.acquire("b")


def test_an_agent_lowered_while_there_is_room_goes_on_as_an_earlier_victim():
    slots = tracker(4)
    high, lowered = slots.acquire("h", HIGH), slots.acquire("a", CRITICAL)
    slots.reprioritize("a", LOW)
    assert not lowered.paused
    slots.acquire("b", HIGH)
    slots.acquire("c", HIGH)
    assert (lowered.paused, high.paused) == (True, False)


def test_an_agent_lowered_to_normal_while_full_is_not_paused():
    slots = tracker(2)
    lease = slots.acquire("a", HIGH)
    slots.reprioritize("a", NORMAL)
    assert not lease.paused


def test_a_raised_agent_is_no_victim_any_more():
    slots = tracker(3)
    raised, other = slots.acquire("a", LOW), slots.acquire("b")
    slots.reprioritize("a", CRITICAL)
    slots.acquire("c", HIGH)
    assert (raised.paused, other.paused) == (False, True)


def test_a_paused_agent_raised_while_there_is_room_resumes_at_once():
    slots = tracker(2)
    lease = slots.acquire("a")
    slots.acquire("b", HIGH).release()
    slots.reprioritize("a", NORMAL)
    assert counts(slots) == (2, 0)
    assert not lease.paused


def test_a_paused_agent_raised_while_full_resumes_with_the_next_free_slot():
    slots = tracker(2)
    lease = slots.acquire("a")
    taker = slots.acquire("b", CRITICAL)
    slots.reprioritize("a", HIGH)
    assert lease.paused
    assert slots.stats().waiting == 1
    taker.release()
    assert not lease.paused
    assert counts(slots) == (2, 0)
    assert slots.stats().waiting == 0


def test_promoted_agents_resume_in_the_order_they_were_promoted():
    slots = tracker(3)
    one, two = slots.acquire("one"), slots.acquire("two")
    takers = [slots.acquire(name, CRITICAL) for name in "xy"]
    slots.reprioritize("two", NORMAL)
    slots.reprioritize("one", CRITICAL)
    slots.reprioritize("two", HIGH)
    takers[0].release()
    assert (one.paused, two.paused) == (True, False)


def test_an_agent_that_was_promoted_before_and_is_paused_again_can_be_promoted_again():
    slots = tracker(2)
    lease = slots.acquire("a")
    for name in "xy":
        taker = slots.acquire(name, CRITICAL)
        slots.reprioritize("a", NORMAL)
        taker.release()
        assert not lease.paused


def test_a_promoted_agent_lowered_again_leaves_the_line():
    slots = tracker(2)
    lease = slots.acquire("a")
    taker = slots.acquire("b", CRITICAL)
    slots.reprioritize("a", HIGH)
    slots.reprioritize("a", BACKGROUND)
    assert slots.stats().waiting == 0
    taker.release()
    assert lease.paused


def test_a_paused_agent_lowered_further_stays_paused():
    slots = tracker(2)
    lease = slots.acquire("a")
    slots.acquire("b", HIGH).release()
    slots.reprioritize("a", LOW)
    assert lease.paused


def test_all_leases_of_an_id_are_lowered_newest_first_while_the_run_is_full():
    slots = tracker(3)
    one, two = slots.acquire("a"), slots.acquire("a")
    slots.reprioritize("a", LOW)
    assert (one.paused, two.paused) == (False, True)


def test_the_slot_of_a_lowered_agent_goes_to_the_promoted_one():
    slots = tracker(2)
    waiting = slots.acquire("a")
    slots.acquire("b", CRITICAL)
    slots.reprioritize("a", HIGH)
    slots.reprioritize("b", LOW)
    assert (waiting.paused, slots.is_paused("b")) == (False, True)


def test_the_root_is_not_paused_by_a_lower_priority_and_unknown_ids_are_ignored():
    slots = tracker(1)
    root = slots.enter("root")
    slots.reprioritize("root", BACKGROUND)
    slots.reprioritize("ghost", HIGH)
    assert not root.paused
    assert counts(slots) == (1, 0)
    root.leave()
    assert counts(slots) == (1, 0)


# Entering agents


def test_the_first_agent_is_the_root_and_occupies_no_further_slot():
    slots = tracker(2)
    root = slots.enter("root")
    assert root.is_root
    assert root.entered
    assert counts(slots) == (1, 0)


def test_after_the_root_has_left_agents_take_leases():
    slots = tracker(2)
    slots.enter("root").leave()
    assert counts(slots) == (1, 0)
    second = slots.enter("root")
    assert not second.is_root
    assert counts(slots) == (2, 0)
    second.leave()
    assert counts(slots) == (1, 0)


def test_a_sibling_takes_a_lease_for_its_time_and_is_denied_when_full():
    slots = tracker(2)
    slots.enter("root")
    sibling = slots.enter("a")
    with pytest.raises(SpawnDeniedError):
        slots.enter("b")
    sibling.leave()
    sibling.leave()
    assert sibling.ended
    assert slots.stats().released_total == 1


def test_an_urgent_agent_preempts_on_entry():
    slots = tracker(2)
    slots.enter("root")
    sibling = slots.enter("a")
    slots.enter("b", HIGH)
    assert sibling.paused


def test_an_agent_adopts_the_newest_unentered_lease_of_its_id():
    slots = tracker(4)
    slots.enter("root")
    one, two = slots.acquire("a"), slots.acquire("a")
    assert slots.enter("a") is two
    assert slots.enter("a") is one
    assert one.entered
    assert slots.stats().active == 3
    assert slots.enter("a") not in (one, two)


def test_a_lease_acquired_before_any_agent_is_adopted_and_the_root_is_still_to_come():
    slots = tracker(2)
    lease = slots.acquire("a")
    assert slots.enter("a") is lease
    assert not lease.is_root
    assert slots.enter("orchestrator").is_root
    assert counts(slots) == (2, 0)


def test_an_adopted_lease_goes_back_to_who_acquired_it():
    slots = tracker(2)
    slots.enter("root")
    lease = slots.acquire("a")
    slots.enter("a").leave()
    assert (lease.entered, lease.ended) == (False, False)
    assert slots.enter("a") is lease
    lease.leave()
    slots.release("a")
    assert counts(slots) == (1, 0)


def test_a_second_delegate_keeps_its_lease_when_the_first_releases_the_shared_id():
    slots = tracker(3)
    slots.enter("root")
    slots.acquire("a")
    slots.acquire("a")
    first, second = slots.enter("a"), slots.enter("a")
    first.leave()
    slots.release("a")
    assert (first.ended, second.ended) == (True, False)
    assert counts(slots) == (2, 0)


def test_an_agent_released_by_its_id_while_it_runs_is_counted_until_it_leaves():
    slots = tracker(2)
    slots.enter("root")
    lease = slots.acquire("a")
    slots.enter("a")
    slots.release("a")
    slots.release("a")
    assert counts(slots) == (2, 0)
    lease.leave()
    assert lease.ended
    assert counts(slots) == (1, 0)


def test_leaving_a_lease_that_was_released_does_nothing():
    slots = tracker(2)
    slots.enter("root")
    lease = slots.enter("a")
    lease.release()
    lease.leave()
    assert slots.stats().released_total == 1


def test_leaving_a_lease_that_nobody_entered_does_nothing():
    slots = tracker(3)
    older, newer = slots.acquire("a"), slots.acquire("a")
    older.leave()
    slots.release("a")
    assert (older.ended, newer.ended) == (False, True)


# Telling


def test_events_tell_every_change_with_the_counts_after_it():
    heard = []
    slots = tracker(2, run_id="r1", on_event=heard.append)
    slots.acquire("a", LOW)
    taker = slots.acquire("b", HIGH)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("c")
    slots.reprioritize("a", NORMAL)
    taker.release()
    assert [(event.outcome, event.agent_id, event.priority, event.active, event.paused) for event in heard] == [
        ("granted", "a", "low", 2, 0),
        ("preempted", "a", "low", 1, 1),
        ("granted", "b", "high", 2, 1),
        ("denied", "c", "normal", 2, 1),
        ("released", "b", "high", 1, 1),
        ("resumed", "a", "normal", 2, 0),
    ]
    assert {(event.run_id, event.max_agents) for event in heard} == {("r1", 2)}


def test_a_callback_that_raises_breaks_nothing(monkeypatch, caplog):
    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)

    def broken(event):
        raise ValueError("broken callback")

    slots = tracker(2, on_event=broken)
    slots.acquire("a").release()
    assert counts(slots) == (1, 0)


def test_a_callback_may_use_the_tracker():
    seen = []
    slots = tracker(3, on_event=lambda event: seen.append((event.outcome, slots.stats().active)))
    with slots.acquire("a"):
        assert seen == [("granted", 2)]
    assert seen[-1] == ("released", 1)


def test_a_callback_may_release_what_it_hears_of():
    leases = []
    slots = tracker(3, on_event=lambda event: event.agent_id == "a" and slots.release("b"))
    leases.append(slots.acquire("b"))
    slots.acquire("a")
    assert leases[0].ended


def test_stats_are_a_photograph_that_adds_up():
    slots = tracker(3)
    slots.enter("root")
    slots.acquire("a")
    slots.acquire("b")
    slots.acquire("c", HIGH)
    with pytest.raises(SpawnDeniedError):
        slots.acquire("d")
    slots.release("b")
    stats = slots.stats()
    assert (stats.limit, stats.active, stats.paused, stats.waiting, stats.peak) == (3, 3, 0, 0, 3)
    assert (stats.granted_total, stats.denied_total, stats.preempted_total, stats.released_total) == (4, 1, 1, 1)
    with pytest.raises(AttributeError):
        stats.active = 0


def test_a_lease_is_written_with_its_state():
    slots = tracker(2)
    lease = slots.acquire("a", LOW)
    slots.acquire("b", HIGH)
    assert repr(lease) == "Lease('a', LOW, paused)"


# Giving back from where nothing may block


@contextlib.contextmanager
def held_by_another_thread(lock):
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    yield
    done.set()
    thread.join(10)


def test_a_release_while_the_lock_is_held_is_done_by_the_next_operation():
    slots = tracker(2)
    lease = slots.acquire("a")
    with held_by_another_thread(slots._lock):
        lease.release()
        assert not lease.ended
    assert counts(slots) == (1, 0)


def test_a_release_while_the_lock_is_held_is_done_by_its_holder():
    leases = []
    slots = tracker(2, clock=lambda: leases[0].release() or 0.0)
    leases.append(slots.acquire("a"))
    with pytest.raises(SpawnDeniedError):
        slots.wait_for_slot_blocking("b", timeout_s=0)
    assert leases[0].ended


def test_a_lease_held_by_a_collected_generator_is_freed_and_told_with_the_next_operation():
    heard = []
    slots = tracker(2, on_event=lambda event: heard.append(event.outcome))

    def holding():
        with slots.acquire("a"):
            yield

    generator = holding()
    next(generator)
    del generator
    gc.collect()
    assert heard == ["granted"]
    assert counts(slots) == (1, 0)
    assert heard == ["granted", "released"]


# Size


def test_ten_thousand_agents_leave_nothing_behind():
    slots = tracker(10_001)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(2):
        leases = [slots.acquire(f"a{number % 7}", Priority.LOW) for number in range(10_000)]
        slots.acquire("urgent", HIGH)
        for lease in leases:
            lease.release()
        slots.release("urgent")
    del leases, lease
    gc.collect()
    assert len(gc.get_objects()) - before < 300
    assert (slots.stats().active, slots.stats().peak) == (1, 10_001)


def test_a_ranking_gives_the_smallest_key_and_equals_in_order_of_arrival():
    ranking = PriorityQueue()
    for item, key in [("c", 2), ("a", 1), ("b", 1)]:
        ranking.put(item, (key, 0))
    order = []
    while (item := ranking.first()) is not None:
        order.append(item)
        ranking.drop(item)
    assert order == ["a", "b", "c"]


def test_a_ranking_forgets_what_was_dropped_or_moved():
    ranking = PriorityQueue()
    ranking.put("a", (0, 0))
    for number in range(1000):
        ranking.put("a", (number, 0))
    ranking.put("b", (5, 0))
    assert ranking.first() == "b"
    assert len(ranking) == 2
    assert len(ranking._heap) <= 2 * len(ranking) + 64
    ranking.drop("b")
    ranking.drop("b")
    assert "b" not in ranking
    assert ranking.first() == "a"
