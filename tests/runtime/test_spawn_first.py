"""What `spawn()` does first thing in a run, when it is interrupted, and what it says when it cannot."""

import asyncio

import pytest

import ravi_otel
from ravi_otel import Priority, SpawnDeniedError, SpawnTracker


def counts():
    stats = SpawnTracker.current().stats()
    return stats.active, stats.paused, stats.waiting


def test_the_first_one_of_a_run_is_its_root(run_of, inside):
    def body(spawned):
        with ravi_otel.agent("a") as agent:
            assert (agent.scope.lease is spawned.lease, spawned.lease.is_root, counts()) == (True, True, (1, 0, 0))
            with pytest.raises(SpawnDeniedError), ravi_otel.agent("b"):
                pytest.fail("it opened")

    with run_of(1):
        inside(ravi_otel.spawn("a"), body)
        stats = SpawnTracker.current().stats()
        assert (stats.active, stats.granted_total, stats.released_total) == (1, 1, 1)


@pytest.mark.parametrize("wait_s", [0, 5])
def test_it_sits_on_the_slot_that_was_acquired_for_its_id_and_gives_it_back_to_who_acquired_it(run_of, inside, wait_s):
    def body(spawned):
        with ravi_otel.agent("child") as child:
            assert (spawned.lease is mine, child.scope.lease is mine, counts()) == (True, True, (2, 0, 0))

    with run_of(2), ravi_otel.agent("lead"):
        mine = SpawnTracker.current().acquire("child")
        for _ in range(2):  # as often as it is spawned
            inside(ravi_otel.spawn("child", wait_s=wait_s), body)
        assert (mine.ended, mine.entered, counts()) == (False, False, (2, 0, 0))
        mine.release()
        assert counts() == (1, 0, 0)


def test_it_sits_on_the_slot_that_somebody_waited_for(run_of):
    async def main():
        with await SpawnTracker.current().wait_for_slot("child") as mine:
            async with ravi_otel.spawn("child", wait_s=None) as spawned:
                assert (spawned.lease is mine, counts()) == (True, (2, 0, 0))
        assert counts() == (1, 0, 0)

    with run_of(2), ravi_otel.agent("lead"):
        asyncio.run(main())


def test_the_same_id_acquired_or_spawned_twice_is_two_slots(run_of):
    with run_of(4), ravi_otel.agent("lead"):
        slots = SpawnTracker.current()
        one, two = slots.acquire("child"), slots.acquire("child")
        with ravi_otel.spawn("child") as first, ravi_otel.spawn("child") as second, ravi_otel.spawn("child") as third:
            assert {first.lease, second.lease} == {one, two}
            assert third.lease not in (one, two)
            assert counts() == (4, 0, 0)
        assert counts() == (3, 0, 0)


def test_a_slot_given_up_while_it_is_spawned_on_ends_with_the_block(run_of):
    with run_of(2), ravi_otel.agent("lead"):
        slots = SpawnTracker.current()
        slots.acquire("child")
        with ravi_otel.spawn("child"):
            slots.release("child")
            assert counts() == (2, 0, 0)
        assert counts() == (1, 0, 0)


@pytest.mark.parametrize(("given", "is_then"), [({}, Priority.LOW), ({"priority": Priority.BACKGROUND}, Priority.BACKGROUND)])
def test_an_acquired_slot_keeps_its_priority_unless_the_spawn_names_one(run_of, given, is_then):
    with run_of(3), ravi_otel.agent("lead"):
        mine = SpawnTracker.current().acquire("child", Priority.LOW)
        with ravi_otel.spawn("child", **given) as spawned, ravi_otel.agent("child") as child:
            assert (mine.priority, spawned.priority, child.priority) == (is_then,) * 3


def test_a_blocking_wait_on_an_event_loop_is_told_what_to_write(run_of):
    async def main():
        with pytest.raises(
            SpawnDeniedError, match=r"included\. A blocking wait .*: write async with ravi_otel\.spawn\('a', \.\.\.\) instead"
        ):
            ravi_otel.spawn("a", wait_s=1).__enter__()

    with run_of(2), ravi_otel.agent("root"), ravi_otel.agent("other"):
        asyncio.run(main())


def test_a_denied_agent_is_told_of_the_slot_that_is_kept_for_another_id(run_of):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.spawn("writer"):
        with pytest.raises(SpawnDeniedError, match=r"spawn\('writer'\) around it keeps one that is free, which only agent\('writer'\)"):
            ravi_otel.agent("riter").__enter__()
        with ravi_otel.agent("writer"), pytest.raises(SpawnDeniedError) as denied:
            ravi_otel.agent("riter").__enter__()
    assert "keeps one that is free" not in str(denied.value)


def test_what_interrupts_it_between_the_slot_and_the_block_gives_the_slot_back(run_of, inside, monkeypatch):
    def interrupt(context):
        raise KeyboardInterrupt

    with run_of(3), ravi_otel.agent("root"):
        with monkeypatch.context() as patch:
            patch.setattr(ravi_otel._current, "with_kept_slot", interrupt)
            with pytest.raises(KeyboardInterrupt):
                inside(ravi_otel.spawn("worker"), lambda spawned: None)
        assert counts() == (1, 0, 0)
        inside(ravi_otel.spawn("worker"), lambda spawned: None)


def test_what_interrupts_an_agent_between_its_slot_and_its_block_gives_the_slot_back(run_of, monkeypatch):
    def interrupt(context):
        raise KeyboardInterrupt

    with run_of(3), ravi_otel.agent("root"):
        monkeypatch.setattr(ravi_otel._current, "with_leaf", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ravi_otel.agent("worker").__enter__()
        assert counts() == (1, 0, 0)


def test_hooks_and_errors_of_a_run_without_a_cap_show_none(instrumented):
    told = []
    hooks = ravi_otel.HookManager()
    hooks.register(ravi_otel.HookEvent.PREEMPTED, lambda event: told.append(event["max_agents"]))
    with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("root"), ravi_otel.agent("low") as low:
        SpawnTracker.current().pause("low")
        with pytest.raises(SpawnDeniedError, match=r"still paused after waiting .*: SpawnTracker\.pause\(\) stopped it") as caught:
            low.resumed_blocking(0.01)
    assert (told, caught.value.max_agents, "1000000000" in str(caught.value)) == ([None], None, False)
