"""A slot that is taken for an agent to come: limits that would refuse the agent are asked first, so that nobody gives way for nothing."""

from __future__ import annotations

import contextlib
import contextvars

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, Priority, SpawnDeniedError, SpawnTracker


@pytest.fixture
def opened():
    """Open agents beside each other, and close them at the end."""
    with contextlib.ExitStack() as stack:

        def make(name, **how):
            agent, context = ravi_otel.agent(name, **how), contextvars.copy_context()
            entered = context.run(agent.__enter__)
            stack.callback(context.run, agent.__exit__, None, None, None)
            return entered

        yield make


@pytest.mark.parametrize(
    ("limit", "refusal", "wait_s"),
    [
        ("agents_total=2", SpawnDeniedError, 0),
        ("agents_total=2", SpawnDeniedError, 5),
        ("agents_total@urgent=0", SpawnDeniedError, 0),
        ("fan_out=1", SpawnDeniedError, 0),  # one that waits is not refused: a sibling may end by then
        ("fan_out@root=1", SpawnDeniedError, 0),
        ("depth=1", BudgetExhaustedError, 0),
        ("depth=1", BudgetExhaustedError, 5),
    ],
)
def test_nobody_is_paused_for_an_agent_that_another_limit_refuses(opened, limit, refusal, wait_s):
    with ravi_otel.run("r", limits=["agents=2", limit]) as run, ravi_otel.agent("root"):
        low = opened("low", priority=Priority.LOW)
        if limit == "depth=1":
            run.set_limit("depth", 0)
        with pytest.raises(refusal) as refused:
            ravi_otel.spawn("urgent", priority=Priority.CRITICAL, wait_s=wait_s).__enter__()
        assert refused.value.limit_kind == limit.partition("=")[0].partition("@")[0]
        assert "'urgent'" in str(refused.value)
        assert not low.paused
        (counted,) = [reading for reading in run.limits if reading.limit.kind == refused.value.limit_kind]
        assert counted.denied == 1
        assert SpawnTracker.current().stats().preempted_total == 0


@pytest.mark.parametrize("limit", ["agents_total=3", "fan_out=2", "depth=1", "agents_total@urgent=1"])
def test_an_agent_that_fits_is_counted_once_and_not_for_its_slot(opened, limit):
    with ravi_otel.run("r", limits=["agents=3", limit]) as run, ravi_otel.agent("root"):
        opened("low")
        before = [(reading.used, reading.events) for reading in run.limits if reading.limit.kind != "agents"]
        with ravi_otel.spawn("urgent"):
            assert [(reading.used, reading.events) for reading in run.limits if reading.limit.kind != "agents"] == before
            with ravi_otel.agent("urgent"):
                pass
        assert all(reading.denied == 0 for reading in run.limits)


def test_a_limit_that_is_only_observed_keeps_no_spawn_back():
    with (
        ravi_otel.run("r", limits=["agents=5", "agents_total=1:on=observe"]),
        ravi_otel.agent("root"),
        ravi_otel.spawn("b"),
        ravi_otel.agent("b") as b,
    ):
        assert b.status == "open"


def test_agents_of_an_outer_run_are_no_parents_of_what_is_spawned_in_the_inner_one():
    with (
        ravi_otel.run("outer", limits=["fan_out=0"]),
        ravi_otel.agent("root"),
        ravi_otel.run("inner"),
        ravi_otel.spawn("a"),
        ravi_otel.agent("a") as a,
    ):
        assert a.status == "open"


def test_no_agents_at_all_cannot_be_set_and_the_error_speaks_of_the_limit():
    with ravi_otel.run("r", limits=["agents=3"]) as run:
        with pytest.raises(
            ConfigurationError, match=r"^set_limit\('agents', 0\): agents must be at least 1, because the root agent counts"
        ):
            run.set_limit("agents", 0)
        assert run.limits[0].limit.value == 3


def test_a_denied_spawn_is_counted_whichever_limit_denied_it():
    with ravi_otel.run("r", limits=["agents_total=1", "agents=9"]), ravi_otel.agent("root"):
        for _ in range(2):
            with pytest.raises(SpawnDeniedError):
                ravi_otel.agent("b").__enter__()
        with pytest.raises(SpawnDeniedError):
            ravi_otel.spawn("b").__enter__()
        assert SpawnTracker.current().stats().denied_total == 3
