"""What is in flight ends at its deadline, when it is cancelled, and when its scope is closed; nothing else does."""

import asyncio
import gc
import threading
import weakref
from contextlib import contextmanager
from importlib.util import find_spec

import openai
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, CancellationError, DeadlineExceededError
from ravi_otel._runtime.settings import read_options
from ravi_otel._runtime.state import STATE
from ravi_otel._runtime.stopping import IN_FLIGHT
from ravi_otel.testing import Failure, Text

pytestmark = pytest.mark.anyio
TRIO = pytest.param("trio", marks=pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed"))

STOPS = {
    "cancelled": (lambda run, clock: run.cancel("enough"), CancellationError, "cancelled: enough"),
    "token": (lambda run, clock: run.scope.cancellation.cancel(), CancellationError, "cancelled"),
    "closed": (lambda run, clock: run.scope.close(), BudgetExhaustedError, "was closed"),
    "time": (lambda run, clock: clock.advance(10), DeadlineExceededError, "deadline exceeded"),
    "working": (lambda run, clock: clock.advance(15), DeadlineExceededError, "deadline exceeded"),
}


@pytest.fixture(params=STOPS)
def stop(request):
    return STOPS[request.param]


@pytest.fixture
def held(stage):
    """Let the server think until the test is over."""
    stage.server.hold()
    return stage


@contextmanager
def stopping(stage, run, clock, act, calls=1):
    """Stop the run from another thread once `calls` requests have come to the server."""

    def wait_and_stop():
        stage.wait_for(calls)
        act(run, clock)

    thread = threading.Thread(target=wait_and_stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def opened():
    return ravi_otel.run("r", limits=["time=10s", "working=15s", "tokens=100k"])


def nothing_is_left(run, heard):
    assert [reading.held for reading in run.limits] == [0, 0, 0]
    assert not IN_FLIGHT
    assert len(heard.calls) == 1
    assert heard.calls[0].status in {"error", "refused"}


@pytest.mark.parametrize("anyio_backend", ["asyncio", TRIO])
async def test_an_awaited_call_ends_when_its_run_is_stopped(held, on_clock, heard, aclient, ask, stop):
    act, error, words = stop
    hung_up = held.server.sent.hang_ups
    async with opened() as run:
        with stopping(held, run, on_clock, act), pytest.raises(error, match=words):
            await ask(aclient)
    held.server.wait_for_hang_ups(hung_up + 1)
    nothing_is_left(run, heard)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_blocked_call_ends_when_its_run_is_stopped(held, on_clock, heard, instrumented, ask, stop, retries):
    act, error, words = stop
    hung_up = held.server.sent.hang_ups
    with held.client(max_retries=retries) as client, opened() as run:
        with stopping(held, run, on_clock, act), pytest.raises(error, match=words) as raised:
            ask(client)
        assert isinstance(raised.value.__cause__, Exception)  # what the client made of it
    held.server.wait_for_hang_ups(hung_up + 1)
    nothing_is_left(run, heard)
    assert held.sent == 1


async def test_the_error_of_a_deadline_says_whose_it_was(held, on_clock, aclient, ask):
    async with ravi_otel.run("triage", limits=["time=10s"]) as run, ravi_otel.agent("a", limits=["time=60s"]):
        with stopping(held, run, on_clock, STOPS["time"][0]), pytest.raises(DeadlineExceededError) as raised:
            await ask(aclient)
    late = raised.value
    assert (late.limit_kind, late.threshold, late.used, late.reason) == ("time", 10, 10, "deadline")
    assert (late.scope, late.run_id, late.run_name) == ("run", run.id, "triage")
    assert isinstance(late.__cause__, asyncio.CancelledError)
    assert asyncio.current_task().cancelling() == 0


async def test_on_the_machines_clock_a_call_ends_at_its_deadline(held, aclient, ask):
    with pytest.raises(DeadlineExceededError):
        async with ravi_otel.run("r", limits=["time=50ms"]):
            await ask(aclient)


async def test_others_go_on(held, on_clock, aclient, ask):
    async def within(run):
        async with run:
            return await ask(aclient)

    stopped, other = opened(), opened()
    first, second = asyncio.create_task(within(stopped)), asyncio.create_task(within(other))
    await asyncio.to_thread(held.wait_for, 2)
    stopped.cancel()
    with pytest.raises(CancellationError):
        await first
    held.server.release()
    assert (await second).choices[0].message.content == "ok"


def test_another_threads_call_over_the_same_client_goes_on(held, on_clock, client, ask):
    runs, ends = [opened(), opened()], {}

    def within(number):
        try:
            with runs[number]:
                ends[number] = ask(client).choices[0].message.content
        except CancellationError as error:
            ends[number] = error

    threads = [threading.Thread(target=within, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    held.wait_for(2)
    runs[0].cancel()
    threads[0].join()
    held.server.release()
    threads[1].join()
    assert isinstance(ends[0], CancellationError)
    assert ends[1] == "ok"


async def test_a_cancellation_of_the_programs_own_stays_one(held, aclient, ask):
    async with ravi_otel.run("r", limits=["time=1h"]):
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(held.wait_for, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_it_stays_one_when_the_run_is_stopped_too(held, aclient, ask):
    async with ravi_otel.run("r") as run:
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(held.wait_for, 1)
        run.cancel()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("limits", [[], ["time=1h"], ["time=30ms"]])
async def test_the_programs_own_timeout_around_a_call_stays_a_timeout_error(held, aclient, ask, limits):
    error = DeadlineExceededError if limits == ["time=30ms"] else TimeoutError
    with pytest.raises(error):
        async with ravi_otel.run("r", limits=limits), asyncio.timeout(60 if error is DeadlineExceededError else 0.03):
            await ask(aclient)
    assert asyncio.current_task().cancelling() == 0


async def test_in_a_task_group_a_deadline_is_one_tasks_error(held, on_clock, aclient, ask):
    async def limited():
        with ravi_otel.apply_limits(["time=10s"]):
            await ask(aclient)

    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(aclient))
            group.create_task(limited())

    async with ravi_otel.run("r") as run:
        with stopping(held, run, on_clock, lambda *_: on_clock.advance(10), calls=2), pytest.raises(ExceptionGroup) as raised:
            await both()
    assert [type(error) for error in raised.value.exceptions] == [DeadlineExceededError]


async def test_a_finished_result_wins_over_a_late_timer(stage, on_clock, aclient, ask):
    async with opened():
        answer = await ask(aclient)
        on_clock.advance(100)
        await asyncio.sleep(0)
    assert answer.choices[0].message.content == "ok"
    assert asyncio.current_task().cancelling() == 0


async def test_a_deadline_that_only_observes_ends_nothing(held, on_clock, aclient, ask):
    async with ravi_otel.run("r", limits=["time=10s:on=observe"]):
        call = asyncio.create_task(ask(aclient))
        await asyncio.to_thread(held.wait_for, 1)
        on_clock.advance(20)
        held.server.release()
        assert (await call).choices[0].message.content == "ok"


async def test_a_call_that_begins_while_its_run_is_stopped_is_not_sent(stage, on_clock, aclient, ask, heard):
    async with opened() as run:
        stopped = run.scope.engine.ledger.reserve

        def reserve(request):
            run.scope.closed = True  # right after the call was let through
            STATE.engine.stopped()
            return stopped(request)

        run.scope.engine.ledger.reserve = reserve
        with pytest.raises(BudgetExhaustedError, match="was closed"):
            await ask(aclient)
    assert stage.sent == 0
    assert [reading.held for reading in run.limits] == [0, 0, 0]


# -- time-outs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent():
    """Keep the time-outs of each request as it leaves, by part."""
    return []


@pytest.fixture
def watched(stage, instrumented, sent):
    hooks = {"request": [lambda request: sent.append(request.extensions["timeout"])]}
    with openai.DefaultHttpxClient(event_hooks=hooks) as http_client, stage.client(http_client=http_client) as client:
        yield client


@pytest.mark.parametrize(("own", "first"), [(60, 10.0), (None, 10.0), (3, 3), (10, 10)])
def test_when_less_is_left_than_the_callers_own_it_is_the_time_out(on_clock, heard, watched, sent, ask, own, first):
    with ravi_otel.run("r", limits=["time=10s"]), ravi_otel.apply_limits(["time=90s"]):
        ask(watched, timeout=own)
        on_clock.advance(8)
        ask(watched, timeout=own)
    assert sent == [dict.fromkeys(("connect", "read", "write", "pool"), left) for left in (first, 2.0)]
    assert [call.call.changes for call in heard.calls] == [() if own in (3, 10) else ("timeout",), ("timeout",)]


def test_each_part_of_a_time_out_is_looked_at_by_itself(on_clock, watched, sent, ask):
    with ravi_otel.run("r", limits=["time=10s"]):
        ask(watched, timeout=openai.Timeout(30, connect=2))
    assert sent == [{"connect": 2, "read": 10.0, "write": 10.0, "pool": 10.0}]


def test_nothing_that_is_sent_changes(on_clock, stage, client, ask):
    ask(client)
    with ravi_otel.run("r", limits=["time=10s"]):
        ask(client)
    plain, limited = stage.server.requests[-2:]
    assert (plain.headers, plain.body) == (limited.headers, limited.body)


def test_time_outs_may_be_left_alone(monkeypatch, watched, sent, ask):
    options = read_options(content=False, each_chunk=False, providers=None, environ={"RAVI_SHORTEN_TIMEOUTS": "off"})
    monkeypatch.setattr(STATE, "options", options)
    with ravi_otel.run("r", limits=["time=10s"]):
        ask(watched, timeout=60)
    assert sent[0]["read"] == 60


def test_without_a_clock_and_in_a_wait_of_working_time_they_are_left_alone(on_clock, watched, sent, ask):
    with ravi_otel.run("r", limits=["working=10s"]) as run, run.waiting("approval"):
        ask(watched, timeout=60)
    assert sent[0]["read"] == 60


def test_a_time_out_that_we_caused_is_the_deadline(held, instrumented, client, ask, settings):
    with settings() as heard:
        STATE.engine.deadlines.active = False  # which may be faster
        with ravi_otel.run("r", limits=["time=300ms"]), pytest.raises(DeadlineExceededError) as raised:
            ask(client)
    assert isinstance(raised.value.__cause__, openai.APITimeoutError)
    assert heard.events() == [("run", "time", "limit_nearing"), ("run", "time", "limit_exceeded")]


class Slow(openai.OpenAI):
    """A client whose headers take their time, in the middle of making a request."""

    on_clock = None

    @property
    def default_headers(self):
        self.on_clock.advance(10)
        return super().default_headers


def test_time_that_runs_out_while_a_request_is_made_is_the_deadline_too(held, on_clock, ask):
    STATE.engine.deadlines.active = False  # which may be faster
    with Slow(base_url=held.server.base_url, api_key="any", max_retries=0) as client:
        client.on_clock = on_clock
        with ravi_otel.run("r", limits=["time=10s"]), pytest.raises(DeadlineExceededError):
            ask(client)


async def test_so_it_is_for_awaited_calls(held, instrumented, aclient, ask, settings):
    with settings():
        STATE.engine.deadlines.active = False
        async with ravi_otel.run("r", limits=["time=300ms"]):
            with pytest.raises(DeadlineExceededError) as raised:
                await ask(aclient)
    assert isinstance(raised.value.__cause__, openai.APITimeoutError)


def test_the_callers_own_time_out_stays_what_it_is(held, client, ask):
    with ravi_otel.run("r", limits=["time=1h"]), pytest.raises(openai.APITimeoutError):
        ask(client, timeout=0.03)


# -- retries ----------------------------------------------------------------------------------------------------------


def test_a_pause_before_a_retry_does_not_outlast_the_deadline(stage, instrumented, heard, ask):
    stage.answer = Failure(500, retry_after_s=20)
    with stage.client(max_retries=2) as client, ravi_otel.run("r", limits=["time=300ms"]), pytest.raises(DeadlineExceededError):
        ask(client)
    assert stage.sent == 1
    assert heard.calls[0].retries[0].wait_s < 1


async def test_neither_does_one_that_is_awaited(stage, instrumented, ask):
    stage.answer = Failure(500, retry_after_s=20)
    async with stage.async_client(max_retries=2) as client, ravi_otel.run("r", limits=["time=300ms"]):
        with pytest.raises(DeadlineExceededError):
            await ask(client)
    assert stage.sent == 1


def test_a_retry_within_the_deadline_is_made(stage, on_clock, ask):
    answers = iter([Failure(500, retry_after_s=0.01), Text("ok")])
    stage.answer = lambda request: next(answers)
    with stage.client(max_retries=2) as client, opened():
        assert ask(client).choices[0].message.content == "ok"


# -- what is left behind ----------------------------------------------------------------------------------------------


@contextmanager
def by_reference_alone():
    """Free nothing meanwhile but what nobody holds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("name", STOPS)
def test_the_error_of_a_cut_call_is_freed_with_its_last_reference(held, on_clock, heard, client, ask, name):
    act, error, _ = STOPS[name]
    with by_reference_alone(), opened() as run:
        with stopping(held, run, on_clock, act):
            try:
                ask(client)
            except error as raised:
                freed = weakref.ref(raised)
        heard.calls.clear()  # whose records know it
        assert freed() is None


async def test_so_is_that_of_a_cancelled_one(held, on_clock, heard, aclient, ask):
    with by_reference_alone():
        async with opened() as run:
            with stopping(held, run, on_clock, STOPS["time"][0]):
                try:
                    await ask(aclient)
                except DeadlineExceededError as raised:
                    freed = weakref.ref(raised)
            heard.calls.clear()
            assert freed() is None
