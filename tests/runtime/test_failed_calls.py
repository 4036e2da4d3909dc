"""What a failed call costs: nothing when it never left, a request when it was refused, at least its input otherwise."""

import asyncio
import gc
import importlib
import inspect

import openai
import openai._base_client as client_module
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, request_limit
from ravi_otel.testing import Disconnect, Failure, Text

httpx = importlib.import_module(openai.DefaultHttpxClient.__mro__[2].__module__.partition(".")[0])
LIMITS = ["requests=50", "turns=50", "tokens=50000", "cost=50"]


class Flaky(httpx.BaseTransport):
    """Fail to connect so many times, then be a real transport."""

    def __init__(self, failures):
        self._failures = failures
        self._real = httpx.HTTPTransport()

    def handle_request(self, request):
        if self._failures > 0:
            self._failures -= 1
            raise httpx.ConnectError("no route")
        return self._real.handle_request(request)

    def close(self):
        self._real.close()


@pytest.fixture
def flaky(stage, instrumented):
    clients = []

    def make(failures, retries=0):
        http = openai.DefaultHttpxClient(transport=Flaky(failures))
        clients.append(stage.client(max_retries=retries, http_client=http))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    """Retry at once: the pause is the client's own, and is not what is tested."""
    monkeypatch.setattr(client_module, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(client_module, "MAX_RETRY_DELAY", 0.0)


def used(run):
    return {reading.limit.kind: reading.used for reading in run.limits} | {"held": sum(reading.held for reading in run.limits)}


NOTHING = {"requests": 0, "turns": 0, "tokens": 0, "cost": 0, "held": 0}


@pytest.mark.parametrize("retries", [0, 2])
def test_a_call_that_never_connected_costs_nothing(stage, flaky, ask, retries):
    with ravi_otel.run("r", limits=LIMITS) as run, pytest.raises(openai.APIConnectionError):
        ask(flaky(9, retries))
    assert (stage.sent, used(run)) == (0, NOTHING)
    assert (run.stats().requests, run.stats().turns, run.stats().errors) == (0, 0, 1)


def test_an_attempt_that_never_connected_is_not_paid_twice(stage, flaky, ask):
    with ravi_otel.run("r", limits=["requests=1"]) as run:
        ask(flaky(2, retries=2))
    assert (stage.sent, used(run)["requests"], run.stats().requests) == (1, 1, 1)


def test_a_retry_that_never_connected_is_given_back_and_the_first_attempt_is_not(stage, instrumented, ask, monkeypatch):
    stage.answer = Failure(500, "no")
    transport = Flaky(0)
    with (
        stage.client(max_retries=1, http_client=openai.DefaultHttpxClient(transport=transport)) as client,
        ravi_otel.run("r", limits=LIMITS) as run,
    ):
        sending = transport.handle_request

        def once(request):
            answer = sending(request)
            transport._failures = 9
            return answer

        monkeypatch.setattr(transport, "handle_request", lambda request: once(request) if not stage.sent else sending(request))
        with pytest.raises(openai.APIConnectionError):
            ask(client)
    assert stage.sent == 1
    assert (used(run)["requests"], used(run)["turns"], run.stats().requests, used(run)["held"]) == (1, 1, 1, 0)
    assert used(run)["tokens"] > 0


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_what_the_provider_refuses_costs_a_request_and_no_tokens(stage, client, ask, status):
    stage.answer = Failure(status, "no")
    with ravi_otel.run("r", limits=LIMITS) as run, pytest.raises(openai.APIStatusError):
        ask(client)
    assert used(run) == {"requests": 1, "turns": 1, "tokens": 0, "cost": 0, "held": 0}


@pytest.mark.parametrize("answer", [Failure(500, "no"), Failure(503, "no"), Disconnect()], ids=["500", "503", "disconnect"])
def test_what_fails_after_it_was_sent_costs_at_least_its_input(stage, client, ask, answer):
    stage.answer = answer
    with ravi_otel.run("r", limits=LIMITS) as run, pytest.raises(openai.APIError):
        ask(client)
    found = used(run)
    assert (found["requests"], found["turns"], found["held"]) == (1, 1, 0)
    assert 0 < found["tokens"] < 100
    assert found["cost"] == found["tokens"] / 1_000


def test_each_retry_costs_a_request_and_the_call_one_turn(stage, instrumented, ask):
    answers = iter([Failure(500, "no"), Failure(429, "no"), Text("ok", usage=(100, 100))])
    stage.answer = lambda request: next(answers)
    with stage.client(max_retries=5) as client, ravi_otel.run("r", limits=LIMITS) as run:
        ask(client)
    assert (stage.sent, used(run)) == (3, {"requests": 3, "turns": 1, "tokens": 200, "cost": 0.2, "held": 0})
    assert run.stats().requests == 3


def test_a_retry_past_the_limit_is_refused_instead_of_sent(stage, instrumented, ask, heard):
    stage.answer = Failure(500, "no")
    with (
        stage.client(max_retries=5) as client,
        ravi_otel.run("r", limits=[request_limit(3)]) as run,
        pytest.raises(BudgetExhaustedError, match=r"this one is refused \(3 \+ 1 > 3\)"),
    ):
        ask(client)
    assert (stage.sent, used(run)["requests"], run.stats().refused) == (3, 3, 1)
    (record,) = heard.calls
    assert (record.decision, record.error_type, len(record.retries)) == ("denied", "ravi.limit_exceeded", 3)


def test_a_retry_past_the_deadline_is_refused_instead_of_sent(stage, instrumented, ask, on_clock):
    def answer(request):
        on_clock.advance(6)
        return Failure(500, "no")

    stage.answer = answer
    with stage.client(max_retries=5) as client, ravi_otel.run("r", limits=["time=10"]), pytest.raises(ravi_otel.DeadlineExceededError):
        ask(client)
    assert stage.sent == 2


def test_a_timeout_costs_what_a_failure_costs(stage, instrumented, ask):
    stage.server.hold()
    with stage.client(timeout=0.05) as client, ravi_otel.run("r", limits=LIMITS) as run, pytest.raises(openai.APITimeoutError):
        ask(client)
    stage.server.release()
    assert used(run)["requests"] == 1
    assert used(run)["tokens"] > 0
    assert used(run)["held"] == 0


def test_a_cancelled_task_settles_what_it_had_sent(stage, instrumented, ask, until):
    stage.server.hold()

    async def main():
        async with stage.async_client() as client, ravi_otel.run("r", limits=LIMITS) as run:
            task = asyncio.create_task(ask(client))
            await until(lambda: stage.sent)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return run

    run = asyncio.run(main())
    stage.server.release()
    found = used(run)
    assert (found["requests"], found["held"]) == (1, 0)
    assert found["tokens"] > 0
    assert run.status == "ok"


def test_a_task_cancelled_in_line_costs_nothing(stage, instrumented, ask, until):
    stage.server.hold()

    async def main():
        async with stage.async_client() as client, ravi_otel.run("r", limits=["tokens=1000", "requests=9"]) as run:
            first = asyncio.create_task(ask(client))
            await until(lambda: stage.sent)
            second = asyncio.create_task(ask(client))
            await until(lambda: run.scope.accounts[0].waiters)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            stage.server.release()
            await first
            return run

    run = asyncio.run(main())
    assert (stage.sent, used(run)) == (1, {"tokens": 200, "requests": 1, "held": 0})


@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_a_stream_left_early_settles_what_came(stage, client, ask, how):
    stage.answer = Text("word " * 40)
    with ravi_otel.run("r", limits=LIMITS) as run:
        stream = ask(client, stream=True)
        if how == "with":
            with stream:
                next(iter(stream))
        else:
            next(iter(stream))
        if how == "close":
            stream.close()
        del stream
        gc.collect()  # the client's own stream is a cycle
        ask(client)
    found = used(run)
    assert (stage.sent, found["requests"], found["held"]) == (2, 2, 0)
    assert found["tokens"] > 60


@pytest.mark.parametrize("after", [0, 3])
def test_a_stream_that_breaks_settles_what_came(stage, client, ask, after):
    stage.answer = Disconnect(after, Text("word " * 40))
    with ravi_otel.run("r", limits=LIMITS) as run, pytest.raises((openai.APIError, httpx.HTTPError)):
        list(ask(client, stream=True))
    assert used(run)["requests"] == 1
    assert used(run)["held"] == 0
    assert used(run)["tokens"] > 0


def test_an_error_of_the_users_own_hook_is_theirs_and_releases_the_hold(stage, instrumented, ask):
    def explode(request):
        raise KeyError("mine")

    http = openai.DefaultHttpxClient(event_hooks={"request": [explode]})
    with (
        stage.client(http_client=http) as client,
        ravi_otel.run("r", limits=LIMITS) as run,
        pytest.raises((KeyError, openai.APIConnectionError)),
    ):
        ask(client)
    assert used(run)["held"] == 0
    assert stage.sent == 0


def test_a_tool_that_fails_was_still_executed(instrumented, heard):
    @ravi_otel.tool
    def work():
        raise StopIteration("mine")

    with ravi_otel.run("r", limits=["tool_calls=2"]) as run:
        for _ in range(2):
            with pytest.raises(StopIteration):
                work()
        with pytest.raises(BudgetExhaustedError):
            work()
    assert (used(run)["tool_calls"], run.stats().refused) == (2, 1)
    assert [record.status for record in heard.tools] == ["error", "error", "refused"]


@pytest.mark.anyio
async def test_a_coroutine_tool_counts_when_it_runs_and_keeps_its_result(instrumented):
    @ravi_otel.tool(name="fetch")
    async def work(number):
        await asyncio.sleep(0)
        return number

    async with ravi_otel.run("r", limits=["tool.fetch=2"]) as run:
        assert await asyncio.gather(work(1), work(2)) == [1, 2]
        with pytest.raises(BudgetExhaustedError, match="of tool 'fetch'"):
            await work(3)
    assert run.stats().tool_calls == 2
    assert inspect.iscoroutinefunction(work)
