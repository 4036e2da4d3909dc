"""Deadlines, closing and cancelling, also for calls that wait in line (enforcement §3, §6)."""

import asyncio
import threading

import pytest

import ravi_otel
from ravi_otel import (
    BudgetContendedError,
    BudgetExhaustedError,
    CancellationError,
    DeadlineExceededError,
    ExecutionBudget,
    time_limit,
    token_limit,
)
from ravi_otel.testing import Capture

# Leaving the program

WELL = {"nothing": None, "0": 0, "False": False}
BADLY = {"3": 3, "a sentence": "no such file", "no text": ""}


@pytest.mark.parametrize("code", WELL.values(), ids=WELL)
def test_a_program_that_exits_with_status_0_has_ended_its_runs_well(code):
    captured = Capture()
    instrumented = ravi_otel.instrument(tracer_provider=captured.tracer_provider)
    with instrumented, pytest.raises(SystemExit), ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        raise SystemExit(code)
    assert [(each.status, each.stop_reason) for each in (run, agent)] == [("ok", "success")] * 2
    assert [(span.status.status_code.name, "error.type" in span.attributes) for span in captured.spans()] == [("UNSET", False)] * 2


@pytest.mark.parametrize("code", BADLY.values(), ids=BADLY)
def test_one_that_exits_with_another_status_has_not(code):
    captured = Capture()
    instrumented = ravi_otel.instrument(tracer_provider=captured.tracer_provider)
    with instrumented, pytest.raises(SystemExit), ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        raise SystemExit(code)
    assert [(each.status, each.stop_reason) for each in (run, agent)] == [("error", "error")] * 2
    assert [(span.status.status_code.name, span.attributes["error.type"]) for span in captured.spans()] == [("ERROR", "SystemExit")] * 2


def test_a_limit_that_was_reached_is_told_of_a_run_whose_program_exits_with_status_0(client, ask):
    with pytest.raises(SystemExit), ravi_otel.run("r", limits=["requests=0"]) as run:  # noqa: PT012 - the run must end by it
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        raise SystemExit(0)
    assert (run.status, run.stop_reason) == ("stopped", "limit_requests")


# Time, closing, cancelling


def test_a_deadline_refuses_before_anything_is_sent(stage, client, ask, on_clock):
    with ravi_otel.run("r", limits=[time_limit(10)]) as run:
        ask(client)
        on_clock.advance(10)
        with pytest.raises(
            DeadlineExceededError, match=r"^10 s of 10 s used in run 'r', so the work is stopped \(deadline exceeded\)"
        ) as caught:
            ask(client)
    assert isinstance(caught.value, CancellationError)
    assert (stage.sent, caught.value.limit_kind, caught.value.scope) == (1, "time", "run")
    assert run.limits[0].used == 10


def test_an_agents_deadline_starts_with_the_agent_and_its_parents_binds_it_too(client, ask, on_clock):
    with ravi_otel.run("r", limits=[time_limit(10)]):
        on_clock.advance(8)
        with ravi_otel.agent("a", budget=ExecutionBudget(deadline_s=5)), ravi_otel.agent("b"):
            on_clock.advance(1)
            ask(client)
            on_clock.advance(1)
            with pytest.raises(DeadlineExceededError, match="run 'r'"):
                ask(client)


def test_a_run_that_ends_by_its_deadline_says_so(client, ask, on_clock):
    with ravi_otel.run("r", limits=["time=1:on=stop"]) as run:
        on_clock.advance(2)
        ask(client)
    assert (run.status, run.stop_reason) == ("stopped", "deadline")


def test_closing_a_scope_refuses_everything_inside(stage, client, ask):
    with ravi_otel.run("r") as run, ravi_otel.agent("a"):
        run.scope.close()
        with pytest.raises(BudgetExhaustedError, match=r"run 'r' was closed\. Open another one\."):
            ask(client)
    assert stage.sent == 0


def test_another_thread_may_cancel_a_run(stage, client, ask):
    with pytest.raises(CancellationError, match="cancelled: enough"), ravi_otel.run("r") as run:  # noqa: PT012 - the run must end by it
        thread = threading.Thread(target=run.cancel, args=("enough",))
        thread.start()
        thread.join(10)
        ask(client)
    assert (stage.sent, run.status, run.stop_reason) == (0, "cancelled", "cancelled")


def test_cancelling_a_run_cancels_the_runs_inside_and_not_the_other_way_round(client, ask):
    with ravi_otel.run("outer") as outer:
        with ravi_otel.run("inner") as inner:
            inner.cancel()
            with pytest.raises(CancellationError):
                ask(client)
        ask(client)
        with ravi_otel.run("inner"):
            outer.cancel()
            with pytest.raises(CancellationError):
                ask(client)


@pytest.mark.parametrize("end", ["cancel", "close", "close the agent"])
@pytest.mark.parametrize("mode", ["tasks", "threads"])
def test_a_call_that_waits_in_line_is_let_go_when_its_run_ends(stage, instrumented, ask, until, end, mode):
    """It neither waits out its patience nor is it sent when what stood in the way is given back; what is in flight ends too."""
    stage.server.hold()
    outcome = []

    def finish(run, agent):
        {"cancel": run.cancel, "close": run.scope.close, "close the agent": agent.scope.close}[end]()

    def threads():
        with stage.client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]) as run, ravi_otel.agent("a") as agent:
            first = threading.Thread(target=lambda: outcome.append(failure(lambda: ask(client))))
            first.start()
            stage.wait_for(1)
            second = threading.Thread(target=lambda: outcome.append(failure(lambda: ask(client))))
            second.start()
            while not run.scope.accounts[0].waiters:
                pass
            finish(run, agent)
            second.join(10)
            first.join(10)

    async def tasks():
        async with stage.async_client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]) as run, ravi_otel.agent("a") as agent:
            first = asyncio.create_task(ask(client))
            await until(lambda: stage.sent)
            second = asyncio.create_task(ask(client))
            await until(lambda: run.scope.accounts[0].waiters)
            finish(run, agent)
            outcome.extend(await asyncio.wait_for(asyncio.gather(second, first, return_exceptions=True), 10))

    threads() if mode == "threads" else asyncio.run(tasks())
    assert [type(one) for one in outcome] == [CancellationError if end == "cancel" else BudgetExhaustedError] * 2
    assert stage.sent == 1


def failure(act):
    try:
        act()
    except Exception as error:
        return error
    return None


def test_synchronous_code_on_an_event_loop_never_waits(stage, instrumented, ask, until):
    stage.server.hold()

    async def main():
        async with stage.async_client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]):
            first = asyncio.create_task(ask(client))
            await until(lambda: stage.sent)
            with stage.client() as blocking, pytest.raises(BudgetContendedError, match="Lower the concurrency"):
                ask(blocking)
            stage.server.release()
            await first

    asyncio.run(main())
    assert stage.sent == 1


def test_a_stream_left_open_in_the_same_task_never_makes_its_own_task_wait(stage, client, ask):
    with ravi_otel.run("r", limits=[token_limit(1_000)]):
        stream = ask(client, stream=True)
        with pytest.raises(BudgetContendedError):
            ask(client)
        stream.close()
        ask(client)
