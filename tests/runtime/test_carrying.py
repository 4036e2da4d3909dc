"""What work belongs to, by where it is started from (enforcement §2): the rules here are the table of docs/carrying.md."""

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import re
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from opentelemetry import context as otel_context

import ravi_otel

sys.path.insert(0, str(Path(__file__).parent))

from carried import where

PAGE = Path(__file__).parents[2] / "docs" / "carrying.md"


@contextlib.contextmanager
def nowhere():
    """Be code that is in no scope, as a thread of the program's that was there before any run."""
    token = otel_context.attach(otel_context.Context())
    try:
        yield
    finally:
        otel_context.detach(token)


# How work is started. `work` makes one tool call, and whose it was is read off the counters.


async def as_task(work):
    async def coroutine():
        work()

    await asyncio.create_task(coroutine())


async def in_task_group(work):
    async def coroutine():
        await asyncio.sleep(0)
        work()

    async with asyncio.TaskGroup() as group:
        group.create_task(coroutine())


async def gathered(work):
    async def coroutine():
        await asyncio.sleep(0)
        work()

    await asyncio.gather(coroutine())


async def as_eager_task(work):
    async def coroutine():
        await asyncio.sleep(0)
        work()

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    await loop.create_task(coroutine())


async def by_call_soon(work):
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(lambda: (work(), done.set()))
    await done.wait()


async def by_to_thread(work):
    await asyncio.to_thread(work)


async def by_run_in_executor(work):
    await asyncio.get_running_loop().run_in_executor(None, work)


async def in_async_generator(work):
    async def steps():
        yield
        work()

    async for _ in steps():
        pass


async def in_async_generator_read_elsewhere(work):
    async def steps():
        yield
        work()

    generator = steps()
    await anext(generator)

    async def read():
        async for _ in generator:
            pass

    with nowhere():
        task = asyncio.create_task(read())
    await task


async def after_a_scope_held_over_a_yield(work):
    async def steps():
        with ravi_otel.agent("inner"):
            yield

    async for _ in steps():
        pass
    work()


def on_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def by_timer(work):
    timer = threading.Timer(0, work)
    timer.start()
    timer.join()


def by_submit(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def by_executor_map(work):
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(lambda _: work(), [0]))


def in_worker_of_another_run(work):
    with ThreadPoolExecutor(1) as pool:
        with nowhere(), ravi_otel.run("another"):
            pool.submit(len, "").result()  # the worker is hired in there
        pool.submit(work).result()


def in_thread_pool_of_multiprocessing(work):
    with ThreadPool(1) as pool:
        pool.apply(work)


def on_a_thread_that_was_there_before(work):
    go, done = threading.Event(), threading.Event()

    def body():
        go.wait()
        work()
        done.set()

    with nowhere():
        thread = threading.Thread(target=body)
        thread.start()
    go.set()
    done.wait()
    thread.join()


def with_no_scope(work):
    with nowhere():
        work()


def with_no_scope_and_two_runs(work):
    with nowhere(), ravi_otel.run("another"), nowhere():
        work()


def by_fork(_work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the server of other tests has threads; the child uses none of them
        reads, writes = os.pipe()
        child = os.fork()
    if child == 0:
        try:
            os.write(writes, where().encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as told:
        return told.read()


def in_fork_pool(_work):
    return in_pool("fork")


def in_spawn_pool(_work):
    return in_pool("spawn")


def in_forkserver_pool(_work):
    return in_pool("forkserver")


def in_pool(method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as above
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            return pool.submit(where).result(60)


AGENT, RUN, PROCESS, CHILD = "the agent", "the run, as the only open one", "the process", "the child process"
RULES = {
    "`asyncio.create_task`": (as_task, AGENT),
    "`asyncio.TaskGroup`": (in_task_group, AGENT),
    "`asyncio.gather`": (gathered, AGENT),
    "an eager task (Python 3.12 and later; 3.11 has none)": (as_eager_task, AGENT),
    "`loop.call_soon`": (by_call_soon, AGENT),
    "`asyncio.to_thread`": (by_to_thread, AGENT),
    "`loop.run_in_executor`": (by_run_in_executor, AGENT),
    "`ThreadPoolExecutor.submit`": (by_submit, AGENT),
    "`ThreadPoolExecutor.map`": (by_executor_map, AGENT),
    "a worker thread that another run hired": (in_worker_of_another_run, AGENT),
    "`threading.Thread`": (on_thread, AGENT),
    "`threading.Timer`": (by_timer, AGENT),
    "an async generator, read where it was made": (in_async_generator, AGENT),
    "what follows a scope held over a yield": (after_a_scope_held_over_a_yield, AGENT),
    "an async generator, read by a task with no scope": (in_async_generator_read_elsewhere, RUN),
    "`multiprocessing.pool.ThreadPool`": (in_thread_pool_of_multiprocessing, RUN),
    "a thread started before any scope": (on_a_thread_that_was_there_before, RUN),
    "no scope, one run open": (with_no_scope, RUN),
    "no scope, two runs open": (with_no_scope_and_two_runs, PROCESS),
    "`os.fork`": (by_fork, CHILD),
    "a pool of forked processes": (in_fork_pool, CHILD),
    "a pool of spawned processes": (in_spawn_pool, CHILD),
    "a pool of processes of a fork server": (in_forkserver_pool, CHILD),
}
"""What is started from inside an agent of a run that is of no session or tenant: how, and what its calls are charged to."""


def charged(agent, run, told):
    """Read off the counters whose the call was: the agent's are also the run's."""
    if told is not None:
        return CHILD if told == "process" and (agent.tool_calls, run.tool_calls) == (0, 0) else told
    return {(1, 1): AGENT, (0, 1): RUN, (0, 0): PROCESS}[agent.tool_calls, run.tool_calls]


@pytest.mark.parametrize("way", RULES)
def test_work_belongs_to_what_the_table_says(instrumented, way):
    start, expected = RULES[way]
    if start is as_eager_task and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")
    if expected is CHILD and not hasattr(os, "fork") and start not in (in_spawn_pool, in_forkserver_pool):
        pytest.skip("no fork here")
    ran = []

    @ravi_otel.tool
    def work():
        ran.append(1)

    async def main():
        return await start(work)

    with ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        told = asyncio.run(main()) if inspect.iscoroutinefunction(start) else start(work)
        found = charged(agent.stats(), run.stats(), told)
    assert (found, len(ran)) == (expected, 0 if expected is CHILD else 1)


@pytest.mark.parametrize("more", [{"session_id": "s"}, {"tenant_id": "t"}], ids=["session", "tenant"])
def test_a_call_with_no_scope_joins_no_run_that_is_somebodys(instrumented, more):
    @ravi_otel.tool
    def work():
        pass

    with ravi_otel.run("r", **more) as run, nowhere():
        work()
        assert run.stats().tool_calls == 0


def test_the_page_shows_the_rules_that_are_tested():
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert dict(rows) == {way: expected for way, (_, expected) in RULES.items()}
    assert len(rows) == len(RULES)
