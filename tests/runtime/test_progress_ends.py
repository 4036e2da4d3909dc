"""Whoever follows a run comes to its end: also when a generator was dropped with the run in it, and where nobody else could bring it."""

import asyncio
import copy
import dataclasses
import gc
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import RetryPolicy

_PATIENCE_S = 20
ROOT = Path(__file__).parents[2]


async def stream(given):
    async with ravi_otel.run("streamed", limits=["time=1h"]) as run:
        given.append(run)
        yield 1
        yield 2


def plain_stream(given):
    with ravi_otel.run("streamed") as run:
        given.append(run)
        yield 1
        yield 2


async def heard(progress):
    return [event.event async for event in progress]


@pytest.mark.parametrize("way", ["aclose", "drop"])
def test_a_run_in_an_async_generator_that_is_closed_or_dropped_ends_and_so_do_its_readers(way):
    async def main():
        given = []
        chunks = stream(given)
        await chunks.__anext__()
        reading = asyncio.ensure_future(heard(given[0].progress()))
        await asyncio.sleep(0)
        if way == "aclose":
            await chunks.aclose()
        del chunks
        gc.collect()
        assert await asyncio.wait_for(reading, _PATIENCE_S) == ["scope_closed"]

    asyncio.run(main())


def test_a_run_in_an_async_generator_that_is_closed_is_told_of_at_the_loops_next_turn():
    async def main():
        given = []
        chunks = stream(given)
        await chunks.__anext__()
        await chunks.aclose()
        over = given[0].scope.clock.ended_ns
        await asyncio.sleep(0)
        return given[0], over

    run, over = asyncio.run(main())
    assert (run.status, run.scope.clock.ended_ns) == ("error", over)
    assert over is not None


def test_a_reader_in_a_thread_ends_the_run_of_a_plain_generator_that_was_dropped():
    given, events = [], []
    chunks = plain_stream(given)
    next(chunks)
    progress = given[0].progress()
    thread = threading.Thread(target=lambda: events.extend(event.event for event in progress), daemon=True)
    thread.start()
    del chunks
    gc.collect()
    thread.join(_PATIENCE_S)
    assert (thread.is_alive(), events) == (False, ["scope_closed"])


def test_the_clocks_of_a_run_stand_still_from_when_its_generator_was_dropped():
    given = []
    chunks = plain_stream(given)
    next(chunks)
    run = given[0]
    del chunks
    gc.collect()
    took = run.stats().duration_s
    assert (run.scope.clock.ended_ns is not None, run.stats().duration_s) == (True, took)
    with ravi_otel.run("the next, which does the rest"):
        assert (run.status, run.stats().duration_s) == ("error", took)


# -- in the run's own block -------------------------------------------------------------------------------------------------------


def test_a_program_of_one_thread_that_reads_in_the_runs_own_block_is_told_that_it_would_wait_for_ever():
    program = (
        "import ravi_otel\nwith ravi_otel.run('r') as run:\n    run.report('one')\n    for event in run.progress(): print(event.event)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "ConfigurationError: `for event in run.progress()` waits in the block of the very run" in done.stderr


def test_reading_in_the_runs_own_block_while_another_thread_works_goes_on_and_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING, "ravi_otel"), ravi_otel.run("r") as run:
        progress = run.progress()

        def work():
            for number in range(2):
                deadline = time.monotonic() + _PATIENCE_S
                while not progress.box._sleepers and time.monotonic() < deadline:
                    time.sleep(0.001)
                run.report(str(number))

        worker = threading.Thread(target=work)
        worker.start()
        came = [next(progress).data["text"] for _ in range(2)]
        worker.join()
    assert came == ["0", "1"]
    assert len([record for record in caplog.records if "the very run" in record.getMessage()]) == 1


# -- what is told -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))], ids=["copy", "deep", "pickle"]
)
def test_an_event_is_copied_and_pickled_and_its_data_stays_read_only(copied):
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("half", done=1)
    event = next(progress)
    other = copied(event)
    assert other == event
    with pytest.raises(TypeError, match="read-only"):
        other.data["text"] = "all"


def test_an_event_goes_into_json_as_a_dict():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("half", done=1)
    assert json.loads(json.dumps(dataclasses.asdict(next(progress))))["data"] == {"text": "half", "done": 1}


def test_a_closed_scope_says_what_it_raised_and_a_slot_that_is_given_back_whose_it_was():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        with pytest.raises(KeyError), ravi_otel.agent("a"):
            raise KeyError
    told = [(event.event, event.agent_name, event.data.get("error_type")) for event in progress]
    assert told[-3:] == [("spawn_released", "a", None), ("scope_closed", "a", "KeyError"), ("scope_closed", None, None)]


def test_an_agent_that_crashed_and_is_started_again_is_told_of():
    attempts = []

    def work():
        attempts.append(1)
        if len(attempts) == 1:
            raise KeyError

    with ravi_otel.run("r") as run:
        progress = run.progress()
        ravi_otel.supervise(work, RetryPolicy(max_retries=2), agent="a")
    (again,) = [event for event in progress if event.event == "restarted"]
    assert (again.run_id, again.data["attempt"], again.data["error_type"]) == (run.id, 1, "KeyError")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_asks_for_its_parents_run_hears_its_end_at_once():
    with ravi_otel.run("r") as run:
        child = os.fork()
        if not child:
            os._exit(0 if list(run.progress()) == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
