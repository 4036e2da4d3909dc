"""Callbacks that are slow, hang, or outlive their task or loop: they are left, ended or counted, and nobody waits for them."""

import asyncio
import threading
from contextlib import suppress

import pytest

from ravi_otel import HookEvent
from ravi_otel.hooks import _background as background
from ravi_otel.hooks import _manager as manager


def trio():
    return pytest.importorskip("trio")


def test_a_quick_synchronous_one_is_not_reported(hooks, caplog, monkeypatch, reported):
    monkeypatch.setattr(manager, "SLOW_S", 60.0)
    hooks.register(HookEvent.REVIEW, lambda context: None)
    hooks.emit(HookEvent.REVIEW)
    assert hooks.stats().slow == 0
    assert caplog.records == []


def test_a_slow_synchronous_one_is_reported_and_counted(hooks, caplog, monkeypatch, reported):
    monkeypatch.setattr(manager, "SLOW_S", -1.0)
    hooks.register(HookEvent.REVIEW, lambda context: None)
    for _ in range(3):
        hooks.emit(HookEvent.REVIEW)
    assert hooks.stats().slow == 3
    assert [one.message.split(" kept")[0] for one in caplog.records] == [
        "ravi-otel: hook " + repr("test_a_slow_synchronous_one_is_reported_and_counted.<locals>.<lambda>") + " of review"
    ]


@pytest.mark.parametrize("caller", ["task", "synchronous"])
def test_one_that_hangs_is_left_alone_after_its_time_and_reported(hooks, caplog, monkeypatch, soon, reported, caller):
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)
    monkeypatch.setattr(manager, "PATIENCE_S", 30)

    async def hangs(context):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        while not hooks.stats().late:  # noqa: ASYNC110 - what comes is a timer of the loop
            await asyncio.sleep(0)
        assert not ended

    ended = []
    hooks.register(HookEvent.REVIEW, hangs)
    if caller == "task":
        asyncio.run(main())
    else:
        hooks.emit(HookEvent.REVIEW)
    assert soon(lambda: hooks.stats().late == 1)
    assert hooks.stats().lost == 0
    assert soon(lambda: "was not over after" in caplog.text)  # counted first, and logged then


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_who_drains_goes_on_when_the_callbacks_are_over(hooks, library):
    heard = []

    @hooks.on(HookEvent.REVIEW)
    async def hears(context):
        for _ in range(20):
            await asyncio.sleep(0)
        heard.append(1)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await hooks.drain(30)
        assert heard == [1]

    if library == "asyncio":
        asyncio.run(main())
    else:
        trio().run(main)


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_who_dispatches_waits_for_one_that_hangs_no_longer_than_its_time(hooks, monkeypatch, soon, reported, library):
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)
    monkeypatch.setattr(manager, "PATIENCE_S", 0.02)

    async def hangs(context):
        await asyncio.Event().wait()

    async def main():
        hooks.register(HookEvent.REVIEW, hangs)
        await hooks.dispatch(HookEvent.REVIEW)

    if library == "asyncio":
        asyncio.run(main())
    else:
        trio().run(main)
    assert soon(lambda: hooks.stats().late == 1)


@pytest.mark.anyio
async def test_who_is_cancelled_while_it_dispatches_is_cancelled_and_the_callback_goes_on(hooks, soon_here):
    begun, go_on, heard = asyncio.Event(), asyncio.Event(), []

    async def waits(context):
        begun.set()
        await go_on.wait()
        heard.append(1)

    hooks.register(HookEvent.REVIEW, waits)
    dispatching = asyncio.ensure_future(hooks.dispatch(HookEvent.REVIEW))
    await begun.wait()
    dispatching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dispatching
    go_on.set()
    assert await soon_here(lambda: heard == [1])


def test_one_that_is_cancelled_by_the_end_of_its_loop_is_reported(hooks, reported):
    begun = []

    async def waits(context):
        begun.append(1)
        await asyncio.Event().wait()

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await asyncio.sleep(0)

    hooks.register(HookEvent.REVIEW, waits)
    asyncio.run(main())
    assert begun == [1]
    assert hooks.stats().lost == 1


def test_one_that_goes_on_after_it_was_cancelled_does_not_keep_its_loop_from_ending(hooks, monkeypatch, reported):
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)

    async def stubborn(context):
        begun.append(1)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                begun.append("cancelled")

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await asyncio.sleep(0)

    begun = []
    hooks.register(HookEvent.REVIEW, stubborn)
    asyncio.run(main())
    assert begun == [1, "cancelled"]
    assert hooks.stats().lost + hooks.stats().late == 1


def test_one_that_tidies_up_when_it_is_cancelled_comes_to_its_end(hooks, reported):
    async def tidies_up(context):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append(1)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await asyncio.sleep(0)

    done = []
    hooks.register(HookEvent.REVIEW, tidies_up)
    asyncio.run(main())
    assert done == [1]


def test_one_that_has_a_time_out_of_its_own_goes_on_after_it(hooks, monkeypatch, reported):
    monkeypatch.setattr(background, "PATIENCE_S", 0.01)

    async def times_out(context):
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        while not hooks.stats().late:  # noqa: ASYNC110 - what comes is a timer of the loop
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        done.append(1)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await hooks.drain(30)

    done = []
    hooks.register(HookEvent.REVIEW, times_out)
    asyncio.run(main())
    assert (done, hooks.stats().late, hooks.stats().raised, hooks.stats().lost) == ([1], 1, 0, 0)


def test_one_that_had_not_begun_when_its_loop_ended_runs_on_the_background_thread(hooks, soon):
    heard = []

    async def hears(context):
        heard.append(threading.current_thread().name)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        for task in background.BACKGROUND.tasks():
            task.cancel()

    hooks.register(HookEvent.REVIEW, hears)
    asyncio.run(main())
    assert soon(lambda: heard == ["ravi-otel-hooks"])
    assert hooks.stats().lost == 0


def test_one_whose_loop_was_closed_under_it_is_counted_as_lost(hooks, reported):
    async def hears(context):
        await asyncio.Event().wait()

    async def main():
        hooks.emit(HookEvent.REVIEW)
        await asyncio.sleep(0)
        tasks.extend(background.BACKGROUND.tasks())

    tasks = []
    hooks.register(HookEvent.REVIEW, hears)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert hooks.stats().lost == 1
    tasks[0]._log_destroy_pending = False  # asyncio complains of it, with reason, and this test is not about that


def test_no_more_than_so_many_are_under_way_at_a_time(hooks, monkeypatch, reported):
    monkeypatch.setattr(background, "_MOST", 2)

    async def waits(context):
        await asyncio.Event().wait()

    async def main():
        for _ in range(5):
            hooks.emit(HookEvent.REVIEW)
        assert len(background.BACKGROUND.tasks()) == 2

    hooks.register(HookEvent.REVIEW, waits)
    asyncio.run(main())
    assert hooks.stats().lost == 5  # three that were not run, and two that the end of the loop cancelled
