"""Weighted shares as programs use them: real calls at once, split by priority."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, Priority

PARTS = {Priority.HIGH: 8, Priority.NORMAL: 4, Priority.LOW: 2}
"""What a priority is promised of 14 turns among these three."""


@pytest.mark.anyio
async def test_each_task_gets_its_part_however_many_call_at_once(aclient, ask):
    opened, living = asyncio.Event(), []

    async def work(priority):
        async with ravi_otel.agent(priority.name, priority=priority, share="weighted"):
            living.append(priority)
            if len(living) == len(PARTS):
                opened.set()
            await opened.wait()
            await asyncio.gather(*(ask(aclient) for _ in range(PARTS[priority])))

    async with ravi_otel.run("r", limits=["turns=14"]) as run, asyncio.timeout(20):
        await asyncio.gather(*(work(priority) for priority in PARTS))
        assert (run.limits[0].used, run.limits[0].denied) == (14, 0)


def test_each_thread_gets_its_part_however_many_call_at_once(client, ask):
    opened = threading.Barrier(len(PARTS))

    def work(priority):
        with ravi_otel.agent(priority.name, priority=priority, share="weighted"):
            opened.wait(20)
            with ThreadPoolExecutor(PARTS[priority]) as pool:
                return [one.result() for one in [pool.submit(ask, client) for _ in range(PARTS[priority])]]

    with ravi_otel.run("r", limits=["turns=14"]) as run, ThreadPoolExecutor(len(PARTS)) as pool:
        answers = [one.result() for one in [pool.submit(work, priority) for priority in PARTS]]
        assert [len(each) for each in answers] == list(PARTS.values())
        assert (run.limits[0].used, run.limits[0].denied) == (14, 0)


@pytest.mark.anyio
async def test_a_background_agent_is_refused_what_is_promised_and_served_when_it_is_free(client, aclient, ask):
    promised = ravi_otel.agent("main", share="weighted")
    async with ravi_otel.run("r", limits=["turns=2"]) as run:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def main():
            async with promised:
                entered.set()
                await leave.wait()
                await ask(aclient)

        task = asyncio.create_task(main())
        await entered.wait()
        async with ravi_otel.agent("tidy", priority=Priority.BACKGROUND, share="weighted") as tidy:
            with pytest.raises(BudgetContendedError, match="2 promised to agents with a weighted share"):
                ask(client)  # it would stop the event loop, and so does not wait in line
            waiting = asyncio.create_task(ask(aclient))
            leave.set()
            await task
            await waiting
            assert (tidy.stats().turns, run.limits[0].used, run.status) == (1, 2, "open")


def test_an_agent_says_what_it_is_promised(client, ask):
    with ravi_otel.run("r", limits=["turns=6", "cost=3usd"]), ravi_otel.agent("a", share="weighted", priority=Priority.HIGH) as a:
        with ravi_otel.agent("b") as b:
            assert (dict(a.promised), dict(b.promised)) == ({"turns": 6, "cost": 3.0}, {})
        ask(client)
        assert a.promised["turns"] == 5
        assert a.promised["cost"] < 3.0
    assert dict(a.promised) == {}
