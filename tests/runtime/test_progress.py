"""A run is followed while it works: by as many as like to, from any loop or thread, and nobody in it waits for them."""

import asyncio
import gc
import os
import threading
import time
import weakref
from importlib.util import find_spec

import anyio
import pytest

import ravi_otel
from ravi_otel import ConfigurationError
from ravi_otel._runtime.progress import BOARD
from ravi_otel._runtime.state import STATE
from ravi_otel.policy import TopicId

_PATIENCE_S = 20
TRIO = pytest.param("trio", marks=pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed"))


def names(events):
    return [event.event for event in events]


class Follow:
    """Be one reader in one thread."""

    def __init__(self, colour, progress):
        self.heard = []
        self._came = threading.Condition()
        run = {
            "for": self._for,
            "asyncio": lambda it: asyncio.run(self._async_for(it)),
            "trio": lambda it: anyio.run(self._async_for, it, backend="trio"),
        }
        self.thread = threading.Thread(target=run[colour], args=(progress,), daemon=True)
        self.thread.start()

    def _for(self, progress):
        for event in progress:
            self._keep(event)

    async def _async_for(self, progress):
        async for event in progress:
            self._keep(event)

    def _keep(self, event):
        with self._came:
            self.heard.append(event)
            self._came.notify_all()

    def wait_for(self, count):
        with self._came:
            assert self._came.wait_for(lambda: len(self.heard) >= count, _PATIENCE_S), f"{len(self.heard)} of {count} came"

    def all(self):
        """Wait for the end, and give everything."""
        self.thread.join(_PATIENCE_S)
        assert not self.thread.is_alive(), "it reads on"
        return self.heard


class Readers:
    """Begin readers of one colour."""

    def __init__(self, colour):
        self._colour = colour

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    def begin(self, progress):
        return Follow(self._colour, progress)


@pytest.fixture(params=["for", "asyncio", TRIO])
def readers(request):
    with Readers(request.param) as several:
        yield several


# -- who reads ------------------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_from_a_thread_and_from_either_kind_of_loop_until_it_is_closed(readers):
    with ravi_otel.run("r") as run:
        follow = readers.begin(run.progress())
        with ravi_otel.agent("a"):
            ravi_otel.report_progress("half")
    events = follow.all()
    assert names(events) == ["spawn_granted", "scope_opened", "report", "spawn_released", "scope_closed", "scope_closed"]
    assert (events[-1].data["kind"], events[-1].data["status"], events[-1].run_id) == ("run", "ok", run.id)


def test_many_readers_each_get_every_event(readers):
    with ravi_otel.run("r") as run:
        follows = [readers.begin(run.progress()) for _ in range(5)]
        for number in range(20):
            run.report(str(number))
    heard = [[event.data["text"] for event in follow.all() if event.event == "report"] for follow in follows]
    assert heard == [[str(number) for number in range(20)]] * 5


def test_a_reader_on_another_threads_loop_is_woken_by_each_event_of_agents_on_this_one(readers):
    with ravi_otel.run("r") as run:
        follow = readers.begin(run.progress())
        for number in range(3):
            run.report(str(number))
            follow.wait_for(number + 1)
    assert len(follow.all()) == 4


@pytest.mark.anyio
async def test_a_task_of_the_same_loop_hears_while_the_agents_work():
    heard, went_on = [], asyncio.Event()

    async def follow(progress):
        async for event in progress:
            heard.append(event.data.get("text"))
            went_on.set()

    async with ravi_otel.run("r") as run:
        task = asyncio.create_task(follow(run.progress()))
        run.report("begun")
        await asyncio.wait_for(went_on.wait(), 20)
        assert heard == ["begun"]
    await asyncio.wait_for(task, 20)


@pytest.mark.anyio
async def test_a_task_that_nobody_holds_is_not_lost_while_it_waits_for_an_event():
    done = asyncio.Event()

    async def follow(progress):
        async for _ in progress:
            pass
        done.set()

    async with ravi_otel.run("r") as run:
        # Nobody keeps it but the loop, which keeps it weakly.
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(follow(run.progress())) and None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        run.report("still there?")
    await asyncio.wait_for(done.wait(), 20)


@pytest.mark.anyio
async def test_a_cancelled_reader_ends_and_the_run_goes_on():
    async with ravi_otel.run("r") as run:
        progress = run.progress()
        waiting = asyncio.ensure_future(anext(progress))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        run.report("after")
        assert (await anext(progress)).data["text"] == "after"


@pytest.mark.parametrize("library", ["asyncio", TRIO])
def test_a_reader_of_either_loop_that_waits_in_vain_can_be_given_up(library):
    with ravi_otel.run("r") as run:

        async def follow():
            with anyio.move_on_after(0.01) as waited:
                await anext(run.progress())
            return waited.cancelled_caught

        assert anyio.run(follow, backend=library)


@pytest.mark.anyio
async def test_a_plain_for_that_would_stop_the_event_loop_is_refused_with_the_way_out():
    async with ravi_otel.run("r") as run:
        with pytest.raises(ConfigurationError, match="write `async for`"):
            next(run.progress())


def test_a_run_that_was_not_entered_says_how_to(instrumented):
    with pytest.raises(ConfigurationError, match="was not entered yet"):
        ravi_otel.run("r").progress()


def test_a_run_that_is_over_has_no_more_events():
    with ravi_otel.run("r") as run:
        pass
    assert list(run.progress()) == []


def test_what_was_told_before_is_not_told_again():
    with ravi_otel.run("r") as run:
        run.report("before")
        progress = run.progress()
        run.report("after")
        assert next(progress).data["text"] == "after"


def test_its_topic_is_the_runs():
    with ravi_otel.run("r", run_id="r-1") as run, ravi_otel.agent("a"):
        assert run.progress().topic == TopicId("agent.progress", "r-1") == ravi_otel.current_scope().supervision.progress_topic


# -- slow, closed and dropped readers ---------------------------------------------------------------------------------------------


def test_a_slow_reader_keeps_nobody_waiting_and_is_told_how_many_it_missed():
    with ravi_otel.run("r") as run:
        progress = run.progress(most=10)
        for number in range(30):
            run.report(str(number))
        first, second = next(progress), next(progress)
        assert (first.data["text"], first.missed) == ("20", 20)
        assert (second.data["text"], second.missed, progress.missed) == ("21", 0, 20)


@pytest.mark.parametrize(("most", "said"), [(0, "from 1 to"), (-1, "from 1 to"), (True, "most"), ("many", "most")])
def test_room_for_no_event_is_refused(most, said):
    with ravi_otel.run("r") as run, pytest.raises(ConfigurationError, match=said):
        run.progress(most=most)


def test_a_closed_reader_gets_what_waits_and_then_ends(readers):
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("last words")
        progress.close()
        run.report("too late")
        assert [event.data["text"] for event in readers.begin(progress).all()] == ["last words"]


def test_a_reader_that_waits_ends_when_it_is_closed(readers):
    with ravi_otel.run("r") as run:
        progress = run.progress()
        follow = readers.begin(progress)
        progress.close()
        assert follow.all() == []


def test_a_reader_that_is_dropped_is_let_go_of_with_its_events():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        run.report("heard")
        gone, box = weakref.ref(progress), progress.box
        del progress
        assert gone() is None
        run.report("by nobody")
        assert box.ended
        del box
        run.progress()
        assert len(BOARD._boxes[run.id]) == 1


def test_nothing_is_kept_of_a_run_that_is_over():
    with ravi_otel.run("r") as run:
        progress = run.progress()
    assert run.id not in BOARD._boxes
    assert names(progress) == ["scope_closed"]


def test_before_anybody_reads_nothing_is_listened_to(instrumented):
    with ravi_otel.run("r") as run:
        run.report("to nobody")
        assert BOARD not in STATE.engine.listeners._all
        run.progress()
        run.progress()
        assert STATE.engine.listeners._all.count(BOARD) == 1


def test_threads_that_report_and_readers_that_come_and_go_lose_nothing_of_each_other():
    with ravi_otel.run("r") as run:
        with Readers("for") as several:
            follow = several.begin(run.progress(most=100_000))

            def work(name):
                for number in range(200):
                    run.report(name, number=number)
                    if number % 50 == 0:
                        run.progress()  # and drop it

            threads = [threading.Thread(target=work, args=(str(name),)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            follow.wait_for(800)
        told = [event for event in follow.heard if event.event == "report"]
    for name in "0123":
        assert [event.data["number"] for event in told if event.data["text"] == name] == list(range(200))
    assert not any(event.missed for event in told)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_in_a_forked_child_a_reader_of_the_parents_ends_and_the_parents_goes_on():
    with ravi_otel.run("r") as run:
        progress = run.progress()
        child = os.fork()
        if not child:
            ended = not list(progress)
            with ravi_otel.run("own") as own:
                mine = own.progress()
            os._exit(0 if ended and names(mine) == ["scope_closed"] else 1)
        deadline = time.monotonic() + 30
        while not (waited := os.waitpid(child, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "the child hangs"
        assert waited[1] == 0
        run.report("here")
        assert next(progress).data["text"] == "here"
