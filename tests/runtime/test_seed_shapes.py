"""The shapes a program written against the contracts uses: trackers, supervision, spawning, runs and agents."""

import asyncio
import contextvars
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

import ravi_otel
from ravi_otel import (
    AgentPausedError,
    BudgetExhaustedError,
    ConfigurationError,
    ExecutionBudget,
    ExecutionTracker,
    HistoryRetention,
    Priority,
    SpawnBudget,
    SpawnDeniedError,
    SpawnTracker,
    Supervision,
)
from ravi_otel.testing import Text

# A tracker fed by hand


def test_a_tracker_is_fed_by_consume_and_tells_the_first_breach():
    tracker = ExecutionTracker(max_tokens=4_000, max_cost_usd=1.0, max_turns=10)
    tracker.consume(tokens=4_000, cost=0.5, turns=1)
    with pytest.raises(BudgetExhaustedError, match=r"^Token budget exceeded: 4200 > 4000") as caught:
        tracker.consume(tokens=200)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.limit_kind, error.threshold, error.used) == ("tokens", 4_000, 4_200)
    assert (tracker.tokens, tracker.cost_usd, tracker.turns) == (4_200, 0.5, 1)


@pytest.mark.parametrize(
    ("limit", "spent", "message"),
    [
        ({"max_cost_usd": 0.5}, {"cost": 0.75}, r"^Cost budget exceeded: \$0\.75 > \$0\.50"),
        ({"max_turns": 2}, {"turns": 3}, r"^Turn budget exceeded: 3 > 2"),
        ({"max_tokens": 0}, {"tokens": 1}, r"^Token budget exceeded: 1 > 0"),
        ({"max_tokens": 1_000_000}, {"tokens": 1_000_001}, r"^Token budget exceeded: 1000001 > 1000000"),
        ({"max_tokens": 1, "max_turns": 1}, {"tokens": 2, "turns": 2}, r"^Token budget exceeded: 2 > 1"),
    ],
)
def test_each_budget_says_its_own_sentence(limit, spent, message):
    with pytest.raises(BudgetExhaustedError, match=message):
        ExecutionTracker(**limit).consume(**spent)


def test_exactly_the_budget_is_allowed():
    tracker = ExecutionTracker.from_budget(ExecutionBudget(max_tokens=10, max_cost_usd=0.3, max_turns=1))
    for _ in range(3):
        tracker.consume(cost=0.1)
    tracker.consume(tokens=10, turns=1)
    tracker.consume()


def test_a_tracker_without_limits_only_counts():
    tracker = ExecutionTracker()
    tracker.consume(tokens=10**12, cost=10**6, turns=10**6)
    assert tracker.tokens == 10**12


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": True},
        {"tokens": "5"},
        {"turns": -1},
        {"cost": -0.1},
        {"cost": float("nan")},
        {"cost": float("inf")},
        {"cost": True},
        {"cost": "0.5"},
        {"cost": None},
        {"tokens": None},
        {"cost": 10**40},
        {"tokens": 2**80},
        {"cost": Decimal("NaN")},
    ],
)
def test_what_is_no_amount_is_refused_and_adds_nothing(bad):
    tracker = ExecutionTracker(max_tokens=5)
    with pytest.raises(ConfigurationError, match=r"consume\((tokens|cost|turns)\)=.* must be"):
        tracker.consume(**bad)
    assert (tracker.tokens, tracker.cost_usd, tracker.turns) == (0, 0.0, 0)


def test_threads_that_consume_at_once_lose_nothing():
    tracker = ExecutionTracker()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [tracker.consume(tokens=1) for _ in range(500)], range(8)))
    assert tracker.tokens == 4_000


# A tracker that is a scope's tab


def test_a_bound_tracker_is_charged_once_by_the_runtime_and_consume_only_checks(stage, client, ask):
    tracker = ExecutionTracker(max_tokens=1_000)
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=tracker) as agent:
        ask(client, max_tokens=100)
        tracker.consume(tokens=200, turns=1)
        tracker.consume(tokens=200, turns=1)
    assert (tracker.tokens, tracker.turns, tracker.cost_usd) == (200, 1, 0.2)
    assert (agent.stats().total_tokens, run.stats().total_tokens) == (200, 200)


def test_spend_made_elsewhere_is_added_everywhere_and_then_checked(stage, client, ask):
    tracker = ExecutionTracker(max_tokens=1_000)
    with ravi_otel.run("r", limits=["tokens=5000", "cost=10", "turns=9"]) as run, ravi_otel.agent("a", budget=tracker):
        tracker.consume(tokens=900, cost=0.25, turns=2, external=True)
        with pytest.raises(BudgetExhaustedError, match=r"^Token budget exceeded: 1100 > 1000 in agent 'a' of run 'r'"):
            tracker.consume(tokens=200, external=True)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    assert stage.sent == 0
    assert {reading.limit.kind: reading.used for reading in run.limits} == {"tokens": 1_100, "cost": 0.25, "turns": 2}
    assert run.stats().total_tokens == 1_100


def test_a_tracker_keeps_what_was_used_from_one_scope_to_the_next(stage, client, ask):
    tracker = ExecutionTracker(max_turns=3)
    tracker.consume(turns=1)
    for _ in range(2):
        with ravi_otel.agent("a", budget=tracker):
            ask(client)
    with ravi_otel.agent("a", budget=tracker), pytest.raises(BudgetExhaustedError):
        ask(client)
    assert (tracker.turns, stage.sent) == (3, 2)


def test_one_tracker_in_two_live_scopes_is_an_error():
    tracker = ExecutionTracker(max_tokens=10)
    with (
        ravi_otel.agent("a", budget=tracker),
        pytest.raises(ConfigurationError, match=r"already the tracker of agent 'a', which is still open.*tracker of its own"),
        ravi_otel.agent("b", budget=tracker),
    ):
        pytest.fail("it opened")
    with ravi_otel.agent("b", budget=tracker):
        assert ExecutionTracker.current() is tracker


def test_an_entry_that_fails_lets_the_tracker_go():
    tracker = ExecutionTracker(max_tokens=10)
    with (
        ravi_otel.run("r", spawn_budget=SpawnBudget(1)),
        ravi_otel.agent("root"),
        pytest.raises(SpawnDeniedError),
        ravi_otel.agent("b", budget=tracker),
    ):
        pytest.fail("it opened")
    with ravi_otel.agent("b", budget=tracker):
        assert ExecutionTracker.current() is tracker


def test_a_budget_may_be_used_in_many_scopes_at_once_each_with_a_tab_of_its_own(client, ask):
    budget = ExecutionBudget(max_turns=1)
    with ravi_otel.run("r", budget=budget), ravi_otel.agent("a", budget=budget):
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)


# The tab around the caller


def test_there_is_no_current_tracker_outside():
    assert ExecutionTracker.current() is None
    assert SpawnTracker.current() is None


def test_the_current_tracker_is_the_innermost():
    outer, inner = ExecutionTracker(max_tokens=10), ExecutionTracker(max_tokens=10)
    with ravi_otel.run("r", budget=outer):
        assert ExecutionTracker.current() is outer
        with ravi_otel.apply_limits(["tokens=5"]):
            assert ExecutionTracker.current() is outer
        with ravi_otel.agent("a", budget=inner):
            assert ExecutionTracker.current() is inner
        assert ExecutionTracker.current() is outer


async def in_tasks(probe):
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(probe()), asyncio.ensure_future(probe())]
    return [task.result() for task in tasks] + await asyncio.gather(probe())


def in_threads(probe):
    found = []
    thread = threading.Thread(target=lambda: found.append(probe()))
    thread.start()
    thread.join(10)
    with ThreadPoolExecutor(1) as pool:
        found += [pool.submit(probe).result(), *pool.map(lambda _: probe(), range(2))]
    return found


async def in_executors(probe):
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        return [await asyncio.to_thread(probe), await loop.run_in_executor(None, probe), await loop.run_in_executor(pool, probe)]


def test_the_current_tracker_is_there_in_threads_and_pools(instrumented):
    tracker = ExecutionTracker(max_tokens=10)
    with ravi_otel.run("r"), ravi_otel.agent("a", budget=tracker):
        slots = SpawnTracker.current()
        assert slots is not None
        assert in_threads(lambda: (ExecutionTracker.current(), SpawnTracker.current())) == [(tracker, slots)] * 4


@pytest.mark.anyio
async def test_the_current_tracker_is_there_in_tasks_and_executors(instrumented):
    tracker = ExecutionTracker(max_tokens=10)

    async def probe():
        await asyncio.sleep(0)
        return ExecutionTracker.current()

    async with ravi_otel.run("r"), ravi_otel.agent("a", budget=tracker):
        assert await in_tasks(probe) == [tracker] * 3
        assert await in_executors(ExecutionTracker.current) == [tracker] * 3


def test_a_pools_threads_carry_nothing_over_from_one_run_to_the_next(instrumented):
    with ThreadPoolExecutor(1) as pool:
        with ravi_otel.run("first"):
            assert pool.submit(lambda: ravi_otel.current_scope().facts.name).result() == "first"
        with ravi_otel.run("second"):
            assert pool.submit(lambda: ravi_otel.current_scope().facts.name).result() == "second"
        assert pool.submit(ExecutionTracker.current).result() is None


def test_calls_in_threads_are_charged_to_the_agent_they_were_started_from(stage, client, ask):
    tracker = ExecutionTracker(max_turns=2)
    with ravi_otel.run("r") as run, ravi_otel.agent("a", budget=tracker), ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, client) for _ in range(6)]
        errors = [future.exception() for future in futures]
    assert sum(isinstance(error, BudgetExhaustedError) for error in errors) == 4
    assert (stage.sent, tracker.turns, run.stats().turns) == (2, 2, 2)


# Supervision


def test_a_supervision_tree_grows_by_spawn_child():
    root = Supervision.root("planner", session_id="s", spawn_budget=SpawnBudget(5), execution_budget=ExecutionBudget(max_turns=3))
    child = root.spawn_child("planner", priority=Priority.HIGH)
    assert (child.run_id, child.session_id, child.depth, child.parent_id) == (root.run_id, "s", 1, "planner")
    assert child.spawn_budget is root.spawn_budget
    assert child.execution_budget is root.execution_budget
    assert (root.is_root, child.is_root, child.priority) == (True, False, Priority.HIGH)
    assert (root.retention, child.retention) == (HistoryRetention.PERMANENT, HistoryRetention.RUN)
    assert child.spawn_child("x", execution_budget=ExecutionBudget()).execution_budget == ExecutionBudget()
    assert (str(root.progress_topic.type), root.progress_topic.source) == ("agent.progress", root.run_id)


def test_agents_of_a_run_stand_in_one_tree(instrumented):
    budget = ExecutionBudget(max_turns=7)
    with ravi_otel.run("r") as run, ravi_otel.agent("root", budget=budget) as outer, ravi_otel.agent("child") as inner:
        root, child = outer.scope.supervision, inner.scope.supervision
        assert (root.run_id, root.root_id, root.is_root, root.depth) == (run.id, "root", True, 0)
        assert (child.run_id, child.root_id, child.parent_id, child.depth) == (run.id, "root", "root", 1)
        assert child.execution_budget == budget
        assert inner.limits[0].limit.value == 7


# Runs and agents as with, async with and decorators


def opened():
    scope = ravi_otel.current_scope()
    return str(scope.facts.kind), scope.facts.name


@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent])
def test_with(make):
    with make("x") as handle:
        assert opened() == (make.__name__, "x")
        assert handle.status == "open"
    assert opened() == ("process", None)
    assert (handle.status, handle.stop_reason) == ("ok", "success")


@pytest.mark.anyio
@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent])
async def test_async_with(make):
    async with make("x") as handle:
        await asyncio.sleep(0)
        assert opened() == (make.__name__, "x")
    assert (opened(), handle.stop_reason) == (("process", None), "success")


@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent])
def test_as_a_decorator_every_call_opens_a_scope_of_its_own(make):
    @make("x")
    def work(a, *, b=2):
        """Work."""
        return a, b, ravi_otel.current_scope().facts.scope_id

    first, second = work(1), work(1, b=3)
    assert (first[:2], second[:2]) == ((1, 2), (1, 3))
    assert first[2] != second[2]
    assert (work.__name__, work.__doc__) == ("work", "Work.")


@pytest.mark.anyio
@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent])
async def test_as_a_decorator_of_a_coroutine_function(make):
    @make("x")
    async def work(number):
        await asyncio.sleep(0)
        return number, opened(), ravi_otel.current_scope().facts.scope_id

    found = await asyncio.gather(*(work(number) for number in range(3)))
    assert [number for number, *_ in found] == [0, 1, 2]
    assert {kind for _, (kind, _), _ in found} == {make.__name__}
    assert len({scope_id for *_, scope_id in found}) == 3


def test_a_decorated_run_without_a_name_takes_the_functions():
    @ravi_otel.run()
    def triage():
        return opened()

    assert triage() == ("run", "test_a_decorated_run_without_a_name_takes_the_functions.<locals>.triage")


def test_a_decorated_functions_limits_start_afresh_each_time(stage, client, ask):
    @ravi_otel.run(limits=["requests=1"])
    def work():
        ask(client)

    work()
    work()
    assert stage.sent == 2


@pytest.mark.parametrize("make", [ravi_otel.run, ravi_otel.agent])
def test_what_the_body_raises_is_the_callers(make):
    with pytest.raises(KeyError), make("x") as handle:
        raise KeyError("mine")
    assert (handle.status, handle.stop_reason) == ("error", "error")


def test_an_entered_handle_cannot_be_entered_again_until_it_is_left():
    handle = ravi_otel.run("x")
    with handle:
        with pytest.raises(ConfigurationError, match=r"run\('x'\) is already open.*of its own"), handle:
            pytest.fail("it opened")
        assert opened() == ("run", "x")
    with handle:
        assert opened() == ("run", "x")


def test_a_handle_that_was_not_entered_says_so():
    with pytest.raises(ConfigurationError, match=r"run\('x'\) was not entered yet\. Write: with"):
        _ = ravi_otel.run("x").cost_usd


def test_copying_the_context_copies_the_scope(instrumented):
    with ravi_otel.run("x"):
        context = contextvars.copy_context()
    assert context.run(opened) == ("run", "x")
    assert opened() == ("process", None)


def test_a_stopped_decorated_function_returns_none(stage, client, ask):
    stage.answer = Text("ok", usage=(10, 10))

    @ravi_otel.run("x", limits=["requests=1:on=stop"])
    def work():
        return [ask(client) for _ in range(3)]

    assert work() is None


@pytest.mark.parametrize("error", [AgentPausedError("paused", agent_id="a")])
def test_a_paused_agent_ends_paused(error):
    with pytest.raises(AgentPausedError), ravi_otel.agent("a") as agent:
        raise error
    assert (agent.status, agent.stop_reason) == ("paused", "paused")


def test_the_message_of_an_agent_entered_twice_is_good_english(instrumented):
    handle = ravi_otel.agent("x")
    with handle, pytest.raises(ConfigurationError, match=r"Give each with block an agent\(\) of its own\."), handle:
        pytest.fail("it opened twice")
