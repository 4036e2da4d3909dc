from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import logging
import pickle
import threading
import weakref

import pytest

from ravi_otel.errors import CancellationError, ConfigurationError
from ravi_otel.policy import CancellationToken


def test_a_token_starts_active():
    token = CancellationToken()
    token.check()

    assert (token.cancelled, token.reason, repr(token)) == (False, None, "<CancellationToken active>")


def test_a_cancelled_token_says_why():
    token = CancellationToken()
    token.cancel("user")

    assert (token.cancelled, token.reason, repr(token)) == (True, "user", "<CancellationToken cancelled: user>")
    with pytest.raises(CancellationError, match=r"^cancelled: user$") as caught:
        token.check()
    assert caught.value.reason == "user"


def test_a_reason_may_be_left_out():
    token = CancellationToken()
    token.cancel()

    with pytest.raises(CancellationError, match=r"^cancelled$") as caught:
        token.check()
    assert caught.value.reason is None


def test_the_first_reason_stays():
    token = CancellationToken()
    token.cancel()
    token.cancel("late")

    assert token.reason is None


def test_a_child_is_cancelled_with_its_parent():
    parent = CancellationToken()
    child = parent.child()
    parent.cancel("user")

    assert child.reason == "user"


def test_a_parent_outlives_its_cancelled_child():
    parent = CancellationToken()
    child = parent.child()
    child.cancel("local")
    assert not parent.cancelled

    parent.cancel("user")
    assert child.reason == "local"


def test_a_child_of_a_cancelled_token_is_born_cancelled():
    parent = CancellationToken()
    parent.cancel("user")

    assert parent.child().reason == "user"


def test_children_are_held_weakly():
    parent = CancellationToken()
    gone = weakref.ref(parent.child())
    gc.collect()

    assert gone() is None
    assert not parent._children


def test_a_grandchild_is_reached_though_nobody_holds_what_is_between():
    parent = CancellationToken()
    grandchild = parent.child().child()
    gc.collect()
    parent.cancel("user")

    assert grandchild.cancelled


def test_a_long_line_of_children_is_cancelled_whole():
    parent = last = CancellationToken()
    for _ in range(5_000):
        last = last.child()
    parent.cancel("user")

    assert last.reason == "user"


def test_who_subscribed_is_told_once():
    token, told = CancellationToken(), []
    token.subscribe(lambda: told.append(token.reason))
    token.cancel("user")
    token.cancel("again")

    assert told == ["user"]


def test_who_subscribes_late_is_told_at_once():
    token, told = CancellationToken(), []
    token.cancel()
    token.subscribe(lambda: told.append(1))

    assert told == [1]


def test_who_unsubscribed_is_not_told():
    token, told = CancellationToken(), []
    unsubscribe = token.subscribe(lambda: told.append(1))
    unsubscribe()
    unsubscribe()
    token.cancel()

    assert told == []


def test_a_failing_callback_keeps_nobody_from_hearing(caplog):
    token, told = CancellationToken(), []
    child = token.child()
    token.subscribe(lambda: 1 / 0)
    token.subscribe(lambda: told.append(1))
    with caplog.at_level(logging.ERROR, "ravi_otel"):
        token.cancel()

    assert told == [1]
    assert child.cancelled
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_ends_the_program_does_so_when_everybody_has_heard(end):
    def stop():
        raise end(3)

    heard = []
    token = CancellationToken()
    token.subscribe(stop)
    token.subscribe(lambda: heard.append("beside"))
    below = token.child()
    below.subscribe(stop)
    below.subscribe(lambda: heard.append("below"))
    with pytest.raises(end):
        token.cancel()
    assert heard == ["beside", "below"]
    with pytest.raises(end):
        token.subscribe(stop)


def test_a_callback_may_cancel_and_subscribe_again():
    token, told = CancellationToken(), []
    token.subscribe(lambda: (token.cancel("again"), token.subscribe(lambda: told.append(token.reason))))
    token.cancel("user")

    assert told == ["user"]


def test_a_callback_taken_off_by_another_is_not_called():
    token, told = CancellationToken(), []
    undo = []
    token.subscribe(lambda: [take_off() for take_off in undo])
    undo.append(token.subscribe(lambda: told.append(1)))
    token.cancel()

    assert told == []


def test_everybody_is_told_once_when_threads_cancel_and_subscribe_at_once():
    for _ in range(50):
        token, told, gate = CancellationToken(), [], threading.Barrier(4)

        def work(number, token=token, told=told, gate=gate):
            gate.wait()
            if number % 2:
                token.cancel(str(number))
            else:
                token.subscribe(lambda: told.append(number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == [0, 2]
        assert token.reason in {"1", "3"}


@pytest.mark.anyio
async def test_waiting_ends_when_cancelled():
    token = CancellationToken()
    waiter = asyncio.ensure_future(token.wait())
    await asyncio.sleep(0)
    token.cancel("user")

    await asyncio.wait_for(waiter, 5)
    assert not token._callbacks


@pytest.mark.anyio
async def test_waiting_for_a_cancelled_token_takes_no_time():
    token = CancellationToken()
    token.cancel()

    await asyncio.wait_for(token.wait(), 5)


@pytest.mark.anyio
async def test_another_thread_ends_the_waiting():
    token = CancellationToken()
    waiters = [asyncio.ensure_future(token.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    thread = threading.Thread(target=token.cancel)
    thread.start()

    await asyncio.wait_for(asyncio.gather(*waiters), 5)
    thread.join()


def test_loops_of_several_threads_wait_for_one_token():
    token, ready = CancellationToken(), threading.Barrier(3)

    async def wait():
        waiter = asyncio.ensure_future(token.wait())
        await asyncio.sleep(0)
        ready.wait()
        await asyncio.wait_for(waiter, 5)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(asyncio.run, wait())) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    token.cancel()
    for thread in threads:
        thread.join(5)

    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.anyio
async def test_a_waiter_that_gives_up_leaves_nothing_behind():
    token = CancellationToken()
    waiter = asyncio.ensure_future(token.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    assert not token._callbacks


@pytest.mark.anyio
async def test_a_waiter_that_gives_up_as_it_is_woken_is_no_trouble():
    token = CancellationToken()
    waiter = asyncio.ensure_future(token.wait())
    await asyncio.sleep(0)
    token.cancel()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await asyncio.sleep(0)


def test_a_loop_that_is_closed_is_no_trouble(caplog):
    token, loop = CancellationToken(), asyncio.new_event_loop()
    waiting = token.wait()
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    token.cancel()
    waiting.close()

    assert not caplog.records


def test_waiting_without_a_loop_is_refused():
    waiting = CancellationToken().wait()

    with pytest.raises(ConfigurationError, match=r"needs a running asyncio loop"):
        waiting.send(None)


def test_a_copy_of_a_token_is_the_token():
    token = CancellationToken()

    assert copy.copy(token) is token
    assert copy.deepcopy(token) is token


def test_a_token_does_not_cross_a_process():
    with pytest.raises(TypeError, match=r"cannot be pickled"):
        pickle.dumps(CancellationToken())
