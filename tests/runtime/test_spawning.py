"""Slots as programs take them: through `run(spawn_budget=)` and `agent()`."""

import asyncio
import contextlib
import contextvars

import pytest

import ravi_otel
from ravi_otel import (
    AgentPausedError,
    BudgetExhaustedError,
    ConfigurationError,
    HookEvent,
    HookManager,
    Priority,
    SpawnBudget,
    SpawnDeniedError,
    SpawnTracker,
)
from ravi_otel.policy._limits import ScopeKind


def counts():
    stats = SpawnTracker.current().stats()
    return stats.active, stats.paused


def test_the_first_agent_of_a_run_is_its_root_and_takes_no_further_slot(run_of):
    with run_of(2):
        assert counts() == (1, 0)
        with ravi_otel.agent("root"):
            assert counts() == (1, 0)


def test_a_cap_of_one_allows_just_the_root(run_of):
    with run_of(1), ravi_otel.agent("root"):
        with (
            pytest.raises(SpawnDeniedError, match=r"1 of 1 .*: a run's first agent is its root"),
            ravi_otel.agent("child", priority=Priority.CRITICAL),
        ):
            pytest.fail("it opened")
        assert ravi_otel.current_scope().facts.agent_name == "root"
        assert counts() == (1, 0)


def test_a_limit_on_agents_is_the_same_cap(instrumented):
    with ravi_otel.run("r", limits=["agents=2"]) as run, ravi_otel.agent("root"), ravi_otel.agent("child"):
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("one more"):
            pytest.fail("it opened")
        (reading,) = run.limits
        assert (reading.limit.kind, reading.used, reading.remaining) == ("agents", 2, 0)


def test_an_observed_limit_on_agents_denies_nobody(instrumented):
    with ravi_otel.run("r", limits=["agents=1:on=observe"]), ravi_otel.agent("root"), ravi_otel.agent("child"):
        assert counts() == (2, 0)


def test_nested_and_sibling_entries_take_leases_and_give_them_back(run_of):
    with run_of(3), ravi_otel.agent("root"):
        with ravi_otel.agent("a"), ravi_otel.agent("b"):
            assert counts() == (3, 0)
            with pytest.raises(SpawnDeniedError), ravi_otel.agent("c"):
                pytest.fail("it opened")
        for _ in range(5):
            with ravi_otel.agent("a"):
                assert counts() == (2, 0)
        assert counts() == (1, 0)


def test_sibling_tasks_take_a_lease_each(run_of):
    async def child(name):
        async with ravi_otel.agent(name):
            await asyncio.sleep(0)
            return counts()[0]

    async def main():
        async with run_of(3), ravi_otel.agent("root"):
            return await asyncio.gather(*(child(name) for name in "abc"), return_exceptions=True), counts()

    found, after = asyncio.run(main())
    assert [type(one) for one in found].count(SpawnDeniedError) == 1
    assert after == (1, 0)


def test_a_repeated_id_is_two_leases_and_leaks_nothing(run_of):
    with run_of(3), ravi_otel.agent("root"):
        with ravi_otel.agent("same"), ravi_otel.agent("same"):
            assert counts() == (3, 0)
        assert counts() == (1, 0)
        SpawnTracker.current().release("same")
        assert counts() == (1, 0)


def test_an_agent_that_fails_gives_its_slot_back(run_of):
    with run_of(2), ravi_otel.agent("root"):
        with pytest.raises(KeyError), ravi_otel.agent("a"):
            raise KeyError
        assert counts() == (1, 0)


def test_one_high_agent_preempts_once_and_its_release_frees_one(run_of, stage, client, ask):
    with run_of(2), ravi_otel.agent("root"):
        with ravi_otel.spawn("low", priority=Priority.LOW) as low:
            with ravi_otel.agent("urgent", priority=Priority.HIGH):
                assert counts() == (2, 1)
                with pytest.raises(SpawnDeniedError), ravi_otel.agent("urgent too", priority=Priority.HIGH):
                    pytest.fail("it opened")
                assert counts() == (2, 1)
            assert counts() == (1, 1)
            with ravi_otel.agent("next"):
                assert counts() == (2, 1)
            assert low.paused
        assert counts() == (1, 0)


def test_without_preemption_a_full_run_denies_the_most_urgent_too(run_of):
    with run_of(2, allow_preempt=False), ravi_otel.agent("root"), ravi_otel.agent("low", priority=Priority.BACKGROUND) as low:
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("urgent", priority=Priority.CRITICAL):
            pytest.fail("it opened")
        assert not low.scope.lease.paused
        assert counts() == (2, 0)


def test_a_paused_agents_next_call_raises_and_it_ends_paused(run_of, stage, client, ask):
    with run_of(2), ravi_otel.agent("root"):
        slots, beside = SpawnTracker.current(), contextvars.copy_context()
        with (  # noqa: PT012 - the agent must end by it
            pytest.raises(AgentPausedError, match="agent 'low' is paused") as caught,
            ravi_otel.agent("low", priority=Priority.LOW) as low,
        ):
            ask(client)
            urgent = beside.run(slots.acquire, "urgent", Priority.HIGH)
            ask(client)
        urgent.release()
        ask(client)
    assert (low.status, low.stop_reason, caught.value.agent_id) == ("paused", "paused", "low")
    assert stage.sent == 2


def test_a_paused_agents_next_tool_raises_too(run_of):
    ran = []

    @ravi_otel.tool
    def work():
        ran.append(1)

    with run_of(2), ravi_otel.agent("root"):
        beside = contextvars.copy_context()
        with (
            pytest.raises(AgentPausedError),
            ravi_otel.agent("low", priority=Priority.LOW),
            beside.run(SpawnTracker.current().acquire, "urgent", Priority.HIGH),
        ):
            work()
        assert ran == []
        assert counts() == (1, 0)


def test_a_paused_agent_that_is_resumed_goes_on(run_of, client, ask):
    with run_of(2), ravi_otel.agent("root"), ravi_otel.agent("low", priority=Priority.LOW):
        slots = SpawnTracker.current()
        slots.pause("low")
        assert slots.is_paused("low")
        slots.reprioritize("low", Priority.NORMAL)
        assert not slots.is_paused("low")
        ask(client)


def test_an_agent_adopts_the_lease_acquired_for_it_as_often_as_it_is_entered(run_of):
    with run_of(2), ravi_otel.agent("root"):
        slots = SpawnTracker.current()
        with slots.acquire("worker"):
            for _ in range(3):
                with ravi_otel.agent("worker"):
                    assert counts() == (2, 0)
                assert counts() == (2, 0)
        assert counts() == (1, 0)


def test_a_run_inside_a_run_has_slots_of_its_own(run_of):
    with run_of(1), ravi_otel.agent("root"), run_of(1), ravi_otel.agent("root of the inner one"):
        assert counts() == (1, 0)


def test_a_run_without_a_spawn_budget_counts_and_denies_nobody(instrumented):
    with ravi_otel.run("r"):
        handles = [ravi_otel.agent(f"a{number}") for number in range(60)]
        for handle in handles:
            handle.__enter__()
        assert counts() == (60, 0)
        for handle in reversed(handles):
            handle.__exit__(None, None, None)
        assert counts() == (1, 0)


def test_agents_outside_a_run_take_no_slot(instrumented):
    with ravi_otel.agent("a") as agent:
        assert SpawnTracker.current() is None
        assert agent.scope.lease is None
        assert agent.scope.facts.kind is ScopeKind.AGENT


def test_what_became_of_each_request_is_told(run_of, heard):
    with (
        run_of(2),
        ravi_otel.agent("root"),
        ravi_otel.spawn("low", priority=Priority.LOW),
        ravi_otel.agent("urgent", priority=Priority.HIGH),
    ):
        pass
    assert heard.spawns == ["granted", "granted", "preempted", "granted", "released", "released", "released"]


def test_watching_only_denies_and_pauses_nobody(settings):
    with (
        settings(observe=True) as heard,
        ravi_otel.run("r", spawn_budget=SpawnBudget(2)),
        ravi_otel.agent("root"),
        ravi_otel.agent("low", priority=Priority.LOW) as low,
        ravi_otel.agent("urgent", priority=Priority.HIGH),
    ):
        low.scope.checkpoint()
    assert "denied" in heard.spawns
    assert "preempted" not in heard.spawns


def test_a_limit_of_agents_that_is_the_process_s_holds_in_each_run_by_itself(stage):
    with ravi_otel.instrument(limits=["agents=2"]):
        for _ in range(2):
            with ravi_otel.run("r") as run, ravi_otel.agent("root"), ravi_otel.agent("child"):
                with pytest.raises(SpawnDeniedError), ravi_otel.agent("one more"):
                    pytest.fail("it opened")
                assert [one.used for one in run.limits] == [2]
        with ravi_otel.agent("a"), ravi_otel.agent("b"), ravi_otel.agent("c"):
            assert SpawnTracker.current() is None


def test_a_denied_agent_names_the_limit_its_run_and_where_it_was_written(stage, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('limits = ["agents=2"]\n')
    with ravi_otel.instrument(policy=path), ravi_otel.run("r"), ravi_otel.agent("root"), ravi_otel.agent("child"):
        with pytest.raises(SpawnDeniedError) as caught, ravi_otel.agent("one more"):
            pytest.fail("it opened")
        with pytest.raises(SpawnDeniedError, match=r"No slot for agent 'by hand'.*in run 'r'"):
            SpawnTracker.current().acquire("by hand")
    assert str(caught.value) == (
        f"No slot for agent 'one more': 2 of 2 agents are live in run 'r', its root included. Raise agents=2 in {path} limits[0], "
        "release an agent first, or await wait_for_slot()."
    )


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [("raise", ("error", "limit_agents")), ("stop", ("stopped", "limit_agents")), ("pause", ("paused", "limit_agents"))],
)
def test_a_run_that_a_denied_agent_ends_says_so(instrumented, outcome, ended):
    run = ravi_otel.run("r", limits=[f"agents=1:on={outcome}"])
    denied = pytest.raises(SpawnDeniedError) if outcome == "raise" else contextlib.nullcontext()
    with denied, run, ravi_otel.agent("root"), ravi_otel.agent("child"):
        pytest.fail("it opened")
    assert (run.status, run.stop_reason) == ended


@pytest.mark.parametrize("outcome", ["raise", "observe"])
def test_denials_are_counted_and_told_once(instrumented, outcome):
    with ravi_otel.run("r", limits=[f"agents=1:on={outcome}"]) as run, ravi_otel.agent("root"):
        for _ in range(3):
            with contextlib.suppress(SpawnDeniedError), ravi_otel.agent("child"):
                pass
        (reading,) = run.limits
    assert (reading.denied, reading.events) == (3, ("limit_nearing", "limit_exceeded"))
    assert run.stats().refused == (3 if outcome == "raise" else 0)


def test_what_is_denied_does_not_add_up_in_what_is_used(instrumented):
    with ravi_otel.run("r", limits=["agents=1"]), ravi_otel.agent("root"):
        for _ in range(3):
            with contextlib.suppress(SpawnDeniedError), ravi_otel.agent("child"):
                pass
        (account,) = [each for each in ravi_otel.current_scope().plan.accounts() if each.kind == "agents"]
    assert account.used == 1


def test_a_limit_written_twice_for_one_scope_is_an_error(instrumented):
    twice = ["requests=5", "requests=9"]
    for given in (
        lambda: ravi_otel.run("r", limits=twice),
        lambda: ravi_otel.agent("a", limits=twice),
        lambda: ravi_otel.handoff("h", limits=twice),
        lambda: ravi_otel.apply_limits(twice),
    ):
        with pytest.raises(ConfigurationError, match=r"limits\) has 'requests=9' twice: 'requests=5' sets the same limit"):
            given()
    same = ravi_otel.request_limit(5)
    with ravi_otel.run("r", limits=[same]), ravi_otel.agent("a", limits=[same]), ravi_otel.apply_limits([same]):
        pass


FULL = [{"spawn_budget": SpawnBudget(3)}, {"limits": ["agents=3"]}]


@pytest.mark.parametrize("how", FULL, ids=["spawn_budget", "limits"])
def test_a_full_spawn_budget_is_a_limit_like_any_other(heard, how):
    hooks, fired = HookManager(), []
    for event in (HookEvent.LIMIT_NEARING, HookEvent.LIMIT_EXCEEDED):
        hooks.register(event, lambda told: fired.append((told["event"], told["limit_kind"], told["used"], told["threshold"])))
    with ravi_otel.run("r", hooks=hooks, **how) as run, ravi_otel.agent("lead"), ravi_otel.agent("a"):
        assert [event.event for event in heard.limits] == []
        with ravi_otel.agent("b"):
            assert [event.event for event in heard.limits] == ["limit_nearing"]
            for _ in range(2):
                with pytest.raises(SpawnDeniedError) as denied, ravi_otel.agent("c"):
                    pytest.fail("it opened")
            (reading,) = run.limits
    assert [(told.event, told.limit_kind, told.scope, told.used, told.threshold) for told in heard.limits] == [
        ("limit_nearing", "agents", "run", 3, 3),
        ("limit_exceeded", "agents", "run", 3, 3),
    ]
    assert fired == [("limit_nearing", "agents", 3, 3), ("limit_exceeded", "agents", 3, 3)]
    assert (reading.limit.kind, reading.limit.value, reading.used, reading.remaining, reading.denied) == ("agents", 3, 3, 0, 2)
    assert reading.events == ("limit_nearing", "limit_exceeded")
    assert run.stats().refused == 2
    error = denied.value
    fields = (error.limit_kind, error.threshold, error.used, error.remaining, error.scope, error.run_name, error.reason)
    assert fields == ("agents", 3, 3, 0, "run", "r", "full")


@pytest.mark.parametrize(
    ("budget", "limits", "rows"),
    [(SpawnBudget(3), ["agents=5"], [3, 5]), (SpawnBudget(5), ["agents=3"], [3]), (SpawnBudget(3), ["agents=3"], [3])],
)
def test_the_tighter_of_the_two_is_told_and_only_that_one(heard, budget, limits, rows):
    with ravi_otel.run("r", spawn_budget=budget, limits=limits) as run, ravi_otel.agent("lead"), ravi_otel.agent("a"), ravi_otel.agent("b"):
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("c"):
            pytest.fail("it opened")
        assert sorted(reading.limit.value for reading in run.limits) == rows
    assert [(told.event, told.threshold) for told in heard.limits] == [("limit_nearing", 3), ("limit_exceeded", 3)]


def test_slots_that_are_limited_later_are_a_limit_from_then_on(heard):
    with ravi_otel.run("r") as run, ravi_otel.agent("lead"):
        assert run.limits == []
        run.set_limit("agents", 1)
        with pytest.raises(SpawnDeniedError, match="1 of 1 agents are live in run 'r'"), ravi_otel.agent("a"):
            pytest.fail("it opened")
        assert [(reading.limit.kind, reading.limit.value, reading.denied) for reading in run.limits] == [("agents", 1, 1)]
    assert [told.event for told in heard.limits] == ["limit_nearing", "limit_exceeded"]


@pytest.mark.parametrize(
    ("budget", "lives", "asks", "reason", "said"),
    [
        (SpawnBudget(2), Priority.LOW, Priority.NORMAL, "full", r"included\. Raise SpawnBudget\.max_agents, release an agent first, or"),
        (
            SpawnBudget(2),
            Priority.HIGH,
            Priority.HIGH,
            "none_below",
            r"has a priority below HIGH\. Lower one with SpawnTracker\.reprioritize",
        ),
        (
            SpawnBudget(2, allow_preempt=False),
            Priority.LOW,
            Priority.CRITICAL,
            "preemption_off",
            r"allow_preempt=False has none paused for one of priority CRITICAL\. Allow it with allow_preempt=True",
        ),
    ],
)
def test_a_denial_says_which_of_three_reasons_it_has_and_the_way_out_of_that_one(instrumented, budget, lives, asks, reason, said):
    with ravi_otel.run("r", spawn_budget=budget), ravi_otel.agent("lead"):
        slots = SpawnTracker.current()
        slots.acquire("lives", lives)
        for act in (
            lambda: slots.acquire("asks", asks),
            lambda: ravi_otel.agent("asks", priority=asks).__enter__(),
            lambda: ravi_otel.spawn("asks", priority=asks).__enter__(),
        ):
            with pytest.raises(BudgetExhaustedError, match=said) as denied:
                act()
            assert (type(denied.value), denied.value.reason, denied.value.agent_id) == (SpawnDeniedError, reason, "asks")


def test_a_denial_that_a_program_swallows_does_not_end_its_run(instrumented):
    for limits in (["agents=1"], ["agents_total=1"], ["fan_out=0"]):
        with (
            ravi_otel.run("r", limits=limits) as run,
            ravi_otel.agent("lead"),
            contextlib.suppress(BudgetExhaustedError),
            ravi_otel.agent("child"),
        ):
            pytest.fail("it opened")
        assert (run.status, run.stop_reason) == ("ok", "success")
