"""How an agent ends whose tools run in a TaskGroup, which makes a group of what they raise."""

from __future__ import annotations

import asyncio

import pytest

import ravi_otel
from ravi_otel import Priority, SpawnBudget, SpawnTracker


@ravi_otel.tool
async def work():
    """Be refused before it begins."""


async def child():
    async with ravi_otel.agent("child"):
        pytest.fail("it opened")


async def ended(stop, *steps):
    async with ravi_otel.run("r", spawn_budget=SpawnBudget(2)) as run, ravi_otel.agent("root"):
        with pytest.raises(ExceptionGroup):  # noqa: PT012 - the agent must end by it
            async with ravi_otel.agent("a", priority=Priority.LOW) as agent:
                stop(agent)
                async with asyncio.TaskGroup() as group:
                    for step in steps:
                        group.create_task(step())
    return agent.status, agent.stop_reason, run.status


def preempted(_):
    SpawnTracker.current().pause("a")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("stop", "steps", "how"),
    [
        (preempted, (work, work), ("paused", "paused")),
        (lambda agent: agent.cancel("enough"), (work, work), ("cancelled", "cancelled")),
        (lambda agent: None, (child, child), ("error", "limit_agents")),
    ],
    ids=["paused", "cancelled", "denied"],
)
async def test_it_ends_as_it_would_without_the_group(instrumented, stop, steps, how):
    assert await ended(stop, *steps) == (*how, "ok")


async def crashing():
    raise ZeroDivisionError


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_crash_beside_it_is_an_error(instrumented):
    assert await ended(preempted, crashing, work) == ("error", "error", "ok")
