"""Slots that programs take for agents to come: `spawn()`, in both colours."""

import asyncio
import contextvars
import gc
import json
import pickle
import threading
from contextlib import contextmanager

import pytest

import ravi_otel
from ravi_otel import (
    AgentPausedError,
    CancellationError,
    ConfigurationError,
    DeadlineExceededError,
    ExecutionBudget,
    HistoryRetention,
    Priority,
    SpawnBudget,
    SpawnDeniedError,
    SpawnTracker,
)

SOON_S = 30


def counts():
    stats = SpawnTracker.current().stats()
    return stats.active, stats.paused, stats.waiting


@contextmanager
def meanwhile(act):
    """Run `act` in a thread, which must have come to its end when the block is left."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(SOON_S)
        assert not thread.is_alive()


def in_line(slots, count=1):
    """Wait until so many stand in line."""
    gate = threading.Event()
    for _ in range(3_000):
        if slots.stats().waiting >= count:
            return
        gate.wait(0.01)
    raise AssertionError


def test_its_agent_takes_over_slot_priority_budget_and_retention(run_of, inside):
    budget = ExecutionBudget(max_turns=3)

    def body(spawned):
        assert counts() == (2, 0, 0)
        with ravi_otel.agent("worker") as worker:
            assert counts() == (2, 0, 0)
            assert worker.scope.lease is spawned.lease
            found = worker.supervision
            assert (worker.priority, found.retention, found.execution_budget) == (Priority.HIGH, HistoryRetention.NONE, budget)
            assert (found.parent_id, found.depth) == ("root", 1)
        assert counts() == (2, 0, 0)

    with run_of(2), ravi_otel.agent("root"):
        inside(ravi_otel.spawn("worker", priority=Priority.HIGH, budget=budget, retention=HistoryRetention.NONE), body)
        assert counts() == (1, 0, 0)


def test_an_agents_own_budget_goes_before_the_one_it_was_spawned_with(run_of):
    own = ExecutionBudget(max_turns=1)
    with run_of(2), ravi_otel.spawn("worker", budget=ExecutionBudget(max_turns=3)), ravi_otel.agent("worker", budget=own) as worker:
        assert worker.supervision.execution_budget is own


def test_one_agent_at_a_time_sits_on_it_and_the_next_takes_a_slot_of_its_own(run_of):
    with run_of(3), ravi_otel.agent("root"), ravi_otel.spawn("same") as spawned, ravi_otel.agent("same") as first:
        with ravi_otel.agent("same") as second:
            assert (first.scope.lease is spawned.lease, second.scope.lease is spawned.lease) == (True, False)
            assert counts() == (3, 0, 0)
        assert counts() == (2, 0, 0)


def test_the_same_id_spawned_twice_is_two_slots_taken_from_the_inside_out(run_of):
    with run_of(3), ravi_otel.agent("root"), ravi_otel.spawn("same") as outer, ravi_otel.spawn("same") as inner:
        with ravi_otel.agent("same") as first, ravi_otel.agent("same") as second:
            assert (first.scope.lease is inner.lease, second.scope.lease is outer.lease) == (True, True)
        assert counts() == (3, 0, 0)


def test_an_agent_elsewhere_does_not_take_the_slot_that_is_kept_here(run_of):
    with run_of(2), ravi_otel.agent("root") as root, ravi_otel.spawn("same") as spawned:

        def elsewhere():
            leaf = ravi_otel._current.Attachment(ravi_otel._current.with_leaf(root.scope))
            slotless = ravi_otel._current.Attachment(ravi_otel._current.with_kept_slot(None))
            with leaf, slotless, pytest.raises(SpawnDeniedError), ravi_otel.agent("same"):
                pytest.fail("it opened")

        with meanwhile(elsewhere):
            pass
        with ravi_otel.agent("same") as mine:
            assert mine.scope.lease is spawned.lease


def test_tasks_and_threads_inside_carry_it(run_of):
    def in_thread():
        with ravi_otel.agent("worker") as worker:
            return worker.scope.lease

    async def main():
        async with ravi_otel.spawn("worker") as spawned:
            return await asyncio.to_thread(in_thread), await asyncio.create_task(asyncio.to_thread(in_thread)), spawned.lease

    with run_of(2), ravi_otel.agent("root"):
        first, second, kept = asyncio.run(main())
    assert (first is kept, second is kept) == (True, True)


def test_an_agent_that_outlives_the_block_keeps_the_slot_until_it_ends(run_of):
    with run_of(2), ravi_otel.agent("root"):
        worker = ravi_otel.agent("worker")
        with ravi_otel.spawn("worker"):
            worker.__enter__()
        assert counts() == (2, 0, 0)
        worker.__exit__(None, None, None)
        assert counts() == (1, 0, 0)


def test_whatever_ends_the_block_gives_the_slot_back_once(run_of, inside):
    def fail(spawned):
        raise KeyError

    def give_back(spawned):
        SpawnTracker.current().release("worker")
        spawned.lease.release()

    with run_of(3), ravi_otel.agent("root"):
        with pytest.raises(KeyError):
            inside(ravi_otel.spawn("worker"), fail)
        assert counts() == (1, 0, 0)
        inside(ravi_otel.spawn("worker"), give_back)
        assert counts() == (1, 0, 0)


def test_an_agent_that_cannot_be_opened_leaves_the_slot_to_the_next(run_of):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.spawn("worker") as spawned:
        with pytest.raises(ConfigurationError), ravi_otel.agent("worker", share=0.5):
            pytest.fail("it opened")
        with ravi_otel.agent("worker") as worker:
            assert worker.scope.lease is spawned.lease


def test_a_generator_that_is_dropped_gives_it_back(run_of):
    def held():
        with ravi_otel.spawn("worker"), ravi_otel.agent("worker"):
            yield counts()

    with run_of(2), ravi_otel.agent("root"):
        assert next(held()) == (2, 0, 0)
        gc.collect()
        with ravi_otel.agent("next"):
            assert counts() == (2, 0, 0)


def test_in_a_full_run_it_is_denied_at_once(run_of, inside):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.agent("other"):
        with pytest.raises(SpawnDeniedError, match=r"No slot for agent 'worker': 2 of 2 agents are live"):
            inside(ravi_otel.spawn("worker"), lambda _: pytest.fail("it opened"))
        assert counts() == (2, 0, 0)


def test_it_waits_in_line_for_a_slot(run_of, inside):
    with run_of(2), ravi_otel.agent("root"):
        slots = SpawnTracker.current()
        other = slots.acquire("other")

        def free():
            in_line(slots)
            other.release()

        with meanwhile(free):
            waiting = ravi_otel.spawn("worker", wait_s=SOON_S)
            assert inside(waiting, lambda spawned: spawned.lease.entered)
        assert counts() == (1, 0, 0)


def test_it_waits_no_longer_than_it_was_told(run_of, inside):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.agent("other"):
        with pytest.raises(SpawnDeniedError, match="after waiting"):
            inside(ravi_otel.spawn("worker", wait_s=0.01), lambda _: pytest.fail("it opened"))
        assert counts() == (2, 0, 0)


@pytest.mark.parametrize(
    ("stop", "error"), [(lambda run: run.cancel("enough"), CancellationError), (lambda run: run.close(), ravi_otel.BudgetExhaustedError)]
)
def test_what_ends_the_run_ends_the_wait(run_of, inside, stop, error):
    with run_of(2) as run, ravi_otel.agent("root"), ravi_otel.agent("other"):
        slots = SpawnTracker.current()

        def end():
            in_line(slots)
            stop(run)

        with meanwhile(end), pytest.raises(error):
            inside(ravi_otel.spawn("worker", wait_s=None), lambda _: pytest.fail("it opened"))
        assert counts() == (2, 0, 0)
        assert slots.stats().denied_total == 0


def test_a_deadline_around_ends_the_wait(instrumented, inside):
    limits = ["time=50ms"]
    with ravi_otel.run("r", spawn_budget=SpawnBudget(2), limits=limits), ravi_otel.agent("root"), ravi_otel.agent("other"):
        with pytest.raises(DeadlineExceededError):
            inside(ravi_otel.spawn("worker", wait_s=None), lambda _: pytest.fail("it opened"))
        assert counts() == (2, 0, 0)


def test_a_cancelled_run_and_a_paused_agent_spawn_nothing(run_of):
    with run_of(3) as run, ravi_otel.agent("root"):
        with ravi_otel.agent("low"):
            SpawnTracker.current().reprioritize("low", Priority.LOW)
            SpawnTracker.current().pause("low")
            with pytest.raises(AgentPausedError), ravi_otel.spawn("worker"):
                pytest.fail("it opened")
        run.cancel()
        with pytest.raises(CancellationError), ravi_otel.spawn("worker"):
            pytest.fail("it opened")
        assert counts() == (1, 0, 0)


def test_outside_any_run_it_refuses_nothing(instrumented, inside):
    def body(spawned):
        with ravi_otel.agent("worker") as worker:
            return worker.supervision.retention, spawned.lease, spawned.paused

    assert inside(ravi_otel.spawn("worker", retention=HistoryRetention.NONE), body) == (HistoryRetention.NONE, None, False)


def test_a_spawn_for_an_outer_run_is_not_taken_by_an_agent_of_an_inner_one(run_of):
    with run_of(2), ravi_otel.spawn("worker") as spawned, run_of(2), ravi_otel.agent("worker") as worker:
        assert worker.scope.lease is not spawned.lease
        assert counts() == (1, 0, 0)


def test_one_handle_is_open_once_at_a_time_and_may_be_used_again(run_of, inside):
    handle = ravi_otel.spawn("worker")

    def again(spawned):
        with pytest.raises(ConfigurationError, match="already open"), handle:
            pytest.fail("it opened")

    with run_of(2), ravi_otel.agent("root"):
        inside(handle, again)
        inside(handle, lambda spawned: None)
        assert counts() == (1, 0, 0)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"agent_id": ""}, r"spawn\(agent_id\)"),
        ({"priority": "high"}, r"spawn\(priority\)='high' is unknown: .*did you mean Priority\.HIGH\?"),
        ({"priority": 3}, r"give one of Priority\.BACKGROUND, Priority\.LOW, Priority\.NORMAL, Priority\.HIGH, Priority\.CRITICAL\."),
        ({"agent_id": print}, r"spawn\(agent_id\)=<built-in function print> is not text.*such as 'researcher'\.$"),
        ({"wait_s": -1}, r"spawn\(wait_s\)"),
        ({"budget": 5}, r"spawn\(budget\)"),
        ({"retention": "for ever"}, r"spawn\(retention\)"),
    ],
)
def test_what_cannot_be_used_is_named(given, named):
    with pytest.raises(ConfigurationError, match=named):
        ravi_otel.spawn(**{"agent_id": "worker", **given})


def test_the_priority_and_retention_an_agent_is_given_go_before_those_it_was_spawned_with(run_of):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.spawn("worker", priority=Priority.LOW) as spawned:
        for given, rank, kept in [
            ({"priority": Priority.HIGH, "retention": HistoryRetention.PERMANENT}, Priority.HIGH, HistoryRetention.PERMANENT),
            ({}, Priority.LOW, HistoryRetention.RUN),
            ({"priority": Priority.BACKGROUND}, Priority.BACKGROUND, HistoryRetention.RUN),
            ({"priority": Priority.NORMAL}, Priority.NORMAL, HistoryRetention.RUN),
            ({}, Priority.LOW, HistoryRetention.RUN),
        ]:
            with ravi_otel.agent("worker", **given) as worker:
                found = worker.supervision
                assert (worker.priority, found.priority, found.retention, spawned.priority) == (rank, rank, kept, rank)
                assert not worker.paused


def test_what_an_operator_made_of_a_priority_stays_for_the_next_agent(run_of):
    with run_of(3), ravi_otel.agent("root"), ravi_otel.spawn("worker", priority=Priority.LOW):
        with ravi_otel.agent("worker", priority=Priority.NORMAL):
            SpawnTracker.current().reprioritize("worker", Priority.HIGH)
        with ravi_otel.agent("worker") as worker:
            assert worker.priority is Priority.HIGH


def test_an_agent_that_made_itself_urgent_is_no_victim_any_more(run_of):
    slots = []

    def urgent():
        return contextvars.Context().run(slots[0].acquire, "urgent", Priority.HIGH)

    with run_of(3), ravi_otel.agent("root"):
        slots.append(SpawnTracker.current())
        with (
            ravi_otel.spawn("first", priority=Priority.LOW) as first,
            ravi_otel.agent("first", priority=Priority.CRITICAL),
            ravi_otel.spawn("second", priority=Priority.NORMAL) as second,
            urgent(),
        ):
            assert (first.paused, second.paused) == (False, True)


def test_outside_any_run_an_agents_own_priority_goes_first_too(instrumented):
    with ravi_otel.spawn("worker", priority=Priority.LOW):
        with ravi_otel.agent("worker", priority=Priority.HIGH) as worker:
            assert worker.priority is Priority.HIGH
        with ravi_otel.agent("worker") as worker:
            assert worker.priority is Priority.LOW


def test_a_denied_spawn_goes_to_the_model_as_a_tool_error_and_the_run_goes_on(run_of, client, ask):
    @ravi_otel.tool
    def delegate(agent_id):
        with ravi_otel.spawn(agent_id), ravi_otel.agent(agent_id):
            return "done"

    with run_of(2) as run, ravi_otel.agent("root"), ravi_otel.agent("other"):
        try:
            content = delegate("one\u202emore")
        except SpawnDeniedError as denied:
            content = json.dumps(denied.as_tool_error())
            carried = pickle.loads(pickle.dumps(denied))
        ask(client, text=content)
    told = json.loads(content)
    assert carried.as_tool_error() == told
    assert (told["error"], told["agent_id"], told["max_agents"], told["limit_kind"]) == ("spawn_denied", "one\u202emore", 2, "agents")
    assert told["message"].startswith("There is no room for agent")
    assert "SpawnBudget" not in content
    assert told["way_out"].startswith("Go on without another agent")
    assert (run.status, run.stats().tool_calls) == ("ok", 1)


def test_threads_that_spawn_the_same_id_at_once_never_pass_the_cap_and_leak_nothing(run_of):
    failed = []

    def work(crash):
        for number in range(30):
            try:
                with ravi_otel.spawn("same", wait_s=SOON_S) as spawned, ravi_otel.agent("same") as agent:
                    assert agent.scope.lease is spawned.lease
                    if crash and number % 3 == 0:
                        raise KeyError
            except KeyError:
                pass
            except BaseException as error:  # a thread's failure is the test's
                failed.append(error)

    with run_of(4), ravi_otel.agent("root"):
        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        stats = SpawnTracker.current().stats()
    assert failed == []
    assert (stats.active, stats.paused, stats.waiting, stats.granted_total) == (1, 0, 0, 8 * 30 + 1)
    assert stats.peak <= 4
