"""Agents that are started again when they crash: `supervise()`, for functions and coroutine functions."""

import asyncio
import functools
import inspect
import pickle
import sys
import threading
from contextvars import Context
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ravi_otel
from ravi_otel import (
    AgentPausedError,
    BudgetContendedError,
    BudgetExhaustedError,
    CancellationError,
    ConfigurationError,
    DeadlineExceededError,
    ExecutionBudget,
    ExecutionTracker,
    HistoryRetention,
    Priority,
    RetriesExhaustedError,
    RetryPolicy,
    SpawnBudget,
    SpawnDeniedError,
    SpawnTracker,
)

sys.path.insert(0, str(Path(__file__).parent))

from crashing import Crashing


@pytest.fixture
def run_of(instrumented):
    return lambda count, **more: ravi_otel.run("r", spawn_budget=SpawnBudget(count), **more)


def headcount():
    return SpawnTracker.current().stats().active


def test_it_gives_the_result_of_the_attempt_that_did_not_crash(run_of, supervised):
    child = Crashing(2)
    with run_of(2) as run, ravi_otel.agent("root"):
        assert supervised(child) == "done"
        assert headcount() == 1
    assert [(one.facts.agent_name, one.status, one.supervision.depth) for one in child.scopes] == [
        ("child", "error", 1),
        ("child", "error", 1),
        ("child", "ok", 1),
    ]
    assert run.status == "ok"


def test_past_the_ceiling_it_gives_up_with_the_last_crash(run_of, supervised):
    child = Crashing(9)
    with run_of(2), ravi_otel.agent("root"):
        with pytest.raises(RetriesExhaustedError) as caught:
            supervised(child, RetryPolicy(max_retries=2))
        assert headcount() == 1
    error = caught.value
    assert (len(child.scopes), error.attempts, error.agent_id) == (3, 3, "child")
    assert isinstance(error.__cause__, ValueError)
    assert str(error) == (
        "agent 'child' crashed 3 times, the last time with ValueError, and RetryPolicy.max_retries=2 allows no more. "
        "Mend what it crashes of, or raise max_retries."
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.attempts, again.agent_id) == (str(error), 3, "child")


def test_what_crashed_attempts_have_spent_stays_spent(client, ask, supervised):
    child = Crashing(5, before=lambda: ask(client))
    with ravi_otel.run("r") as run, ravi_otel.agent("root"):
        with pytest.raises(BudgetExhaustedError, match=r"Raise ExecutionBudget\.max_turns"):
            supervised(child, budget=ExecutionBudget(max_turns=2))
        assert (len(child.scopes), run.stats().turns) == (3, 2)


def test_without_a_budget_it_has_its_parents_on_one_tab_over_all_attempts(client, ask, supervised):
    child = Crashing(5, before=lambda: ask(client))
    with ravi_otel.run("r") as run, ravi_otel.agent("root", budget=ExecutionBudget(max_turns=2)):
        with pytest.raises(BudgetExhaustedError):
            supervised(child)
        assert run.stats().turns == 2


def test_a_tracker_of_the_programs_own_is_the_tab_and_is_free_afterwards(client, ask, supervised):
    tracker = ExecutionTracker(max_turns=10)
    with ravi_otel.run("r"):
        supervised(Crashing(2, before=lambda: ask(client)), budget=tracker)
        assert tracker.turns == 3
        supervised(Crashing(0, before=lambda: ask(client)), budget=tracker)
        assert tracker.turns == 4


def test_the_deadline_runs_from_the_first_attempt(on_clock, supervised):
    child = Crashing(9, before=lambda: on_clock.advance(2))
    with ravi_otel.run("r"), pytest.raises(DeadlineExceededError):
        supervised(child, budget=ExecutionBudget(deadline_s=3))
    assert len(child.scopes) == 2


def test_it_keeps_its_slot_between_attempts(run_of, supervised):
    seen = []

    def count():
        seen.append((headcount(), ravi_otel.current_scope().lease))
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("one more"):
            pytest.fail("it opened")

    with run_of(2), ravi_otel.agent("root"):
        supervised(Crashing(2, before=count))
        assert [active for active, _ in seen] == [2, 2, 2]
        assert len({lease for _, lease in seen}) == 1
        assert SpawnTracker.current().stats().granted_total == 2


def test_a_runs_first_agent_may_be_supervised_under_a_cap_of_one(run_of, supervised):
    child = Crashing(2)
    with run_of(1):
        assert supervised(child) == "done"
        assert child.scopes[0].lease.is_root


def test_in_a_full_run_it_is_denied(run_of, supervised):
    child = Crashing(0)
    with run_of(2), ravi_otel.agent("root"), ravi_otel.agent("other"):
        with pytest.raises(SpawnDeniedError):
            supervised(child)
        assert (child.scopes, headcount()) == ([], 2)


def test_inside_a_spawn_of_its_name_it_takes_that_slot(run_of, supervised):
    child = Crashing(1)
    with run_of(2), ravi_otel.agent("root"), ravi_otel.spawn("child", priority=Priority.HIGH) as spawned:
        supervised(child)
        assert [one.lease is spawned.lease for one in child.scopes] == [True, True]
        assert (headcount(), child.scopes[0].supervision.priority) == (2, Priority.HIGH)
        with ravi_otel.agent("child") as next_one:
            assert next_one.scope.lease is spawned.lease


def test_the_priority_and_retention_it_is_given_go_before_those_of_the_spawn_around(run_of, supervised):
    child = Crashing(1)
    with run_of(2), ravi_otel.agent("root"), ravi_otel.spawn("child", priority=Priority.LOW):
        supervised(child, priority=Priority.HIGH, retention=HistoryRetention.PERMANENT)
    assert {(one.supervision.priority, one.supervision.retention) for one in child.scopes} == {(Priority.HIGH, HistoryRetention.PERMANENT)}


def refusals():
    def contended():
        raise BudgetContendedError("contended")

    def exhausted():
        raise BudgetExhaustedError("exhausted")

    def cancelled():
        raise CancellationError

    def paused():
        raise AgentPausedError("paused")

    def wrapped():
        try:
            exhausted()
        except BudgetExhaustedError as refused:
            raise ValueError("wrapped") from refused

    def grouped():
        raise ExceptionGroup("both", [ValueError(), BudgetExhaustedError("exhausted")])

    def interrupted():
        raise KeyboardInterrupt

    return [contended, exhausted, cancelled, paused, wrapped, grouped, interrupted]


@pytest.mark.parametrize("refused", refusals(), ids=lambda one: one.__name__)
def test_what_is_no_crash_is_never_tried_again(run_of, refused):
    child = Crashing(0, before=refused)
    with run_of(2), ravi_otel.agent("root"):
        with pytest.raises(BaseException) as caught:
            ravi_otel.supervise(child, agent="child")
        assert not isinstance(caught.value, RetriesExhaustedError)
        assert (len(child.scopes), headcount()) == (1, 1)


def test_a_group_of_crashes_and_a_stop_iteration_are_crashes(run_of, supervised):
    with run_of(2):
        assert supervised(Crashing(1, lambda words: ExceptionGroup(words, [ValueError()]))) == "done"
        assert ravi_otel.supervise(Crashing(1, StopIteration), agent="child") == "done"


def test_a_supervisor_that_gave_up_is_a_crash_to_the_one_above(run_of, supervised):
    inner = Crashing(3)
    with run_of(3):
        assert supervised(lambda: ravi_otel.supervise(inner, RetryPolicy(1), agent="inner"), RetryPolicy(1), agent="outer") == "done"


def test_a_cancelled_run_starts_no_further_attempt(run_of, supervised):
    with run_of(2) as run:
        child = Crashing(9, before=lambda: run.cancel("enough"))
        with pytest.raises(CancellationError, match="enough"):
            supervised(child)
        assert len(child.scopes) == 1


def test_a_child_that_lost_its_slot_when_it_crashed_is_not_started_again(run_of, supervised):
    with run_of(2), ravi_otel.agent("root"):
        slots = SpawnTracker.current()
        child = Crashing(9, before=lambda: Context().run(slots.acquire, "urgent", Priority.HIGH))
        with pytest.raises(AgentPausedError, match="agent 'child' is paused"):
            supervised(child)
        assert len(child.scopes) == 1
        assert (slots.stats().active, slots.stats().paused) == (2, 0)


def test_a_pause_before_the_next_attempt_is_a_declared_wait(run_of, supervised):
    with run_of(2) as run:
        assert supervised(Crashing(2), backoff_s=0.005) == "done"
        assert run.stats().waited_s > 0.005


def test_a_pause_before_the_next_attempt_ends_with_the_run(run_of, supervised):
    with run_of(2) as run:
        canceller = threading.Thread(target=run.cancel)
        child = Crashing(9, before=canceller.start)
        with pytest.raises(CancellationError):
            supervised(child, backoff_s=3_600)
        canceller.join()
        assert len(child.scopes) == 1


def test_its_agent_is_named_like_the_function_and_arguments_go_with_partial(run_of):
    def work(number):
        return number, ravi_otel.current_scope().facts.agent_name

    async def work_on(number):
        return work(number)

    with run_of(2):
        assert ravi_otel.supervise(functools.partial(work, 7)) == (7, "work")
        assert asyncio.run(ravi_otel.supervise(functools.partial(work_on, 7))) == (7, "work_on")
        assert ravi_otel.supervise(Crashing(0)) == "done"


def test_outside_any_run_it_works_too(instrumented, supervised):
    assert supervised(Crashing(2)) == "done"


def test_a_coroutine_that_is_not_expected_is_named_and_closed(run_of):
    made = []

    async def work():
        return 1

    def secretly():
        made.append(work())
        return made[-1]

    with run_of(2), pytest.raises(ConfigurationError, match=r"gave a coroutine\. Hand over the coroutine function itself"):
        ravi_otel.supervise(secretly)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"child": 5}, r"supervise\(child=5\)"),
        ({"policy": 3}, r"supervise\(policy=3\)"),
        ({"agent": ""}, r"supervise\(agent\)"),
        ({"budget": 3}, r"supervise\(budget\)"),
        ({"backoff_s": -1}, r"supervise\(backoff_s\)"),
        ({"priority": 3}, r"supervise\(priority\)"),
        ({"retention": 3}, r"supervise\(retention\)"),
    ],
)
def test_what_cannot_be_used_is_named(given, named):
    with pytest.raises(ConfigurationError, match=named):
        ravi_otel.supervise(**{"child": print, **given})


def test_each_restart_is_an_event_on_the_span_around_and_is_counted(stage):
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([metrics])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with ravi_otel.instrument(tracer_provider=tracers, meter_provider=meters), ravi_otel.run("r"):
        ravi_otel.supervise(Crashing(2), agent="child", backoff_s=0.001)
    (workflow,) = [span for span in spans.get_finished_spans() if span.name == "invoke_workflow r"]
    assert [dict(event.attributes) for event in workflow.events if event.name == "ravi.retry"] == [
        {"ravi.retry.attempt": 1, "error.type": "ValueError", "ravi.retry.wait_s": 0.001},
        {"ravi.retry.attempt": 2, "error.type": "ValueError", "ravi.retry.wait_s": 0.001},
    ]
    told = [metric for scope in metrics.get_metrics_data().resource_metrics[0].scope_metrics for metric in scope.metrics]
    (retries,) = [metric for metric in told if metric.name == "ravi.retry.count"]
    assert sum(point.value for point in retries.data.data_points) == 2
    meters.shutdown()
    tracers.shutdown()


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (lambda x: x, r"is called without arguments: missing a required argument: 'x'\. Hand over functools\.partial"),
        (5, r"supervise\(child=5\) takes a function without arguments"),
    ],
)
def test_a_child_that_cannot_be_called_so_is_refused_at_once(run_of, child, said):
    with run_of(2), ravi_otel.agent("root"):
        with pytest.raises(ConfigurationError, match=said):
            ravi_otel.supervise(child, agent="child")
        assert SpawnTracker.current().stats().granted_total == 1


def test_a_coroutine_is_refused_and_what_to_hand_over_is_said():
    async def child():
        pytest.fail("it ran")

    with pytest.raises(ConfigurationError, match=r"is a coroutine, which runs once\. Hand over the coroutine function itself"):
        ravi_otel.supervise(child())


def test_a_callable_that_tells_nothing_of_its_arguments_is_called(instrumented):
    assert ravi_otel.supervise(dict, agent="child") == {}


def test_an_agents_name_is_text():
    with pytest.raises(ConfigurationError, match=r"supervise\(agent\)=<Agent 'a' not entered> is not text"):
        ravi_otel.supervise(dict, agent=ravi_otel.agent("a"))
