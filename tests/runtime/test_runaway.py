"""A program that never stops by itself: after its first refusal nothing more is sent."""

import time

import pytest

import ravi_otel
from ravi_otel import (
    BudgetExhaustedError,
    CancellationError,
    DeadlineExceededError,
    ExecutionBudget,
    ExecutionTracker,
    cost_limit,
    request_limit,
    time_limit,
    token_limit,
    tool_call_limit,
    turn_limit,
    working_limit,
)
from ravi_otel.testing import Failure, Text

REFUSALS = 25
LIMITS = {
    "tokens": (token_limit(1_000), 5),
    "input_tokens": (ravi_otel.parse_limit("input_tokens=500"), 5),
    "output_tokens": (ravi_otel.parse_limit("output_tokens=500"), 5),
    "cost": (cost_limit(1), 5),
    "requests": (request_limit(5), 5),
    "turns": (turn_limit(5), 5),
    "time": (time_limit(5), 5),
    "working": (working_limit(5), 5),
}


class Runaway:
    """Count what is swallowed, and what is sent after the first of it."""

    def __init__(self, stage):
        self._stage = stage
        self.errors = []
        self.sent_before = None
        self.steps = 0

    def swallow(self, error):
        if self.sent_before is None:
            self.sent_before = self._stage.sent
        self.errors.append(error)

    @property
    def going(self):
        self.steps += 1  # a bound for the day when nothing stops it
        return len(self.errors) < REFUSALS and self.steps < 3 * REFUSALS

    @property
    def sent_after(self):
        return self._stage.sent - self.sent_before


@pytest.fixture
def runaway(stage, on_clock):
    def answer(request):
        on_clock.advance(1)
        return Text("word " * 80, usage=(100, 100))

    stage.answer = answer
    return Runaway(stage)


def loop(runaway, step):
    while runaway.going:
        try:
            step()
        except BaseException as error:
            runaway.swallow(error)


async def aloop(runaway, step):
    while runaway.going:
        try:
            await step()
        except BaseException as error:
            runaway.swallow(error)


def stopped(runaway, kind, sent):
    assert (runaway.sent_before, runaway.sent_after) == (sent, 0)
    assert {type(error) for error in runaway.errors} <= {BudgetExhaustedError, DeadlineExceededError}
    assert {error.limit_kind for error in runaway.errors} == {kind}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_loop_that_swallows_everything_sends_nothing_after_the_first_refusal(runaway, stage, client, ask, kind):
    limit, calls = LIMITS[kind]
    with ravi_otel.run("runaway", limits=[limit]) as run:
        loop(runaway, lambda: ask(client))
    stopped(runaway, kind, calls)
    assert run.stats().refused + run.stats().errors == REFUSALS  # a deadline may end a call that is in flight
    assert run.limits[0].events[-1] == "limit_exceeded" or kind in {"time", "working"}
    assert run.limits[0].events.count("limit_exceeded") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("kind", LIMITS)
async def test_neither_does_a_coroutine(runaway, stage, aclient, ask, kind):
    limit, calls = LIMITS[kind]
    async with ravi_otel.run("runaway", limits=[limit]):
        await aloop(runaway, lambda: ask(aclient))
    stopped(runaway, kind, calls)


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "time"])
def test_neither_does_one_that_streams(runaway, stage, client, ask, kind):
    def step():
        for _ in ask(client, stream=True, stream_options={"include_usage": True}):
            pass

    limit, calls = LIMITS[kind]
    with ravi_otel.run("runaway", limits=[limit]):
        loop(runaway, step)
    stopped(runaway, kind, calls)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "time"])
async def test_neither_does_a_coroutine_that_streams(runaway, stage, aclient, ask, kind):
    async def step():
        async for _ in await ask(aclient, stream=True, stream_options={"include_usage": True}):
            pass

    limit, calls = LIMITS[kind]
    async with ravi_otel.run("runaway", limits=[limit]):
        await aloop(runaway, step)
    stopped(runaway, kind, calls)


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests"])
def test_neither_does_one_that_drops_its_streams_unread(runaway, stage, client, ask, kind):
    def step():
        ask(client, stream=True, max_tokens=10).close()

    limit = {"tokens": token_limit(60), "cost": cost_limit("0.06"), "requests": request_limit(5)}[kind]
    with ravi_otel.run("runaway", limits=[limit]):
        loop(runaway, step)
    assert runaway.sent_after == 0
    assert runaway.sent_before <= 6


@pytest.mark.parametrize("endpoint", ["responses", "embeddings"])
@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "time"])
def test_neither_does_one_that_uses_another_endpoint(runaway, stage, client, endpoint, kind):
    if endpoint == "responses":
        step = lambda: client.responses.create(model="gpt-4o-mini", input="hi")  # noqa: E731 - a choice of two
    else:
        from ravi_otel.testing import Vector

        chat = stage.answer

        def answer(request):
            chat(request)
            return Vector(usage=(200, 0))

        stage.answer = answer
        step = lambda: client.embeddings.create(model="gpt-4o-mini", input="hi")  # noqa: E731 - a choice of two
    limit, calls = LIMITS[kind]
    with ravi_otel.run("runaway", limits=[limit]):
        loop(runaway, step)
    stopped(runaway, kind, calls)


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "time"])
def test_opening_fresh_agents_is_no_way_round_the_run(runaway, stage, client, ask, kind):
    def step():
        with ravi_otel.agent("worker"):
            ask(client)

    limit, calls = LIMITS[kind]
    with ravi_otel.run("runaway", limits=[limit]):
        loop(runaway, step)
    stopped(runaway, kind, calls)


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "time"])
def test_the_limit_may_be_an_agents_a_blocks_or_the_processes(runaway, stage, client, ask, settings, clock, kind):
    limit, calls = LIMITS[kind]
    with ravi_otel.run("runaway"), ravi_otel.agent("a", limits=[limit]):
        loop(runaway, lambda: ask(client))
    stopped(runaway, kind, calls)
    before = stage.sent
    blocked = Runaway(stage)
    with ravi_otel.apply_limits([limit]):
        loop(blocked, lambda: ask(client))
    stopped(blocked, kind, before + calls)
    before = stage.sent
    whole = Runaway(stage)
    with settings([limit], clock=clock):
        loop(whole, lambda: ask(client))
    stopped(whole, kind, before + calls)


@pytest.mark.parametrize(
    "budget",
    [ExecutionBudget(max_tokens=1_000), ExecutionBudget(max_cost_usd=1), ExecutionBudget(max_turns=5), ExecutionBudget(deadline_s=5)],
    ids=["tokens", "cost", "turns", "deadline"],
)
def test_a_budget_stops_it_too(runaway, stage, client, ask, budget):
    with ravi_otel.run("runaway"), ravi_otel.agent("a", budget=budget):
        loop(runaway, lambda: ask(client))
    assert (runaway.sent_before, runaway.sent_after) == (5, 0)


def test_a_tracker_handed_from_agent_to_agent_stops_it_too(runaway, stage, client, ask):
    tracker = ExecutionTracker(max_turns=5)

    def step():
        with ravi_otel.agent("a", budget=tracker):
            ask(client)

    with ravi_otel.run("runaway"):
        loop(runaway, step)
    assert (runaway.sent_before, runaway.sent_after) == (5, 0)
    assert tracker.turns == 5


@pytest.mark.parametrize("usage", ["missing", {"prompt_tokens": "100", "completion_tokens": float("1e400")}, {"prompt_tokens": -5}])
def test_a_tracker_is_not_fooled_by_answers_that_hide_what_they_used(runaway, stage, client, ask, usage):
    stage.answer = Text("ok", usage=usage)
    tracker = ExecutionTracker(max_tokens=3_000)

    def step():
        with ravi_otel.agent("a", budget=tracker):
            ask(client)

    with ravi_otel.run("runaway"):
        loop(runaway, step)
    assert runaway.sent_before <= 3
    assert runaway.sent_after == 0
    assert tracker.tokens >= 2_000
    with pytest.raises(BudgetExhaustedError):
        tracker.consume(tokens=3_001 - tracker.tokens)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_retries_by_the_client_count_and_stop_too(runaway, stage, instrumented, ask, status):
    stage.answer = Failure(status, "no", retry_after_s=0.001)
    with stage.client(max_retries=3) as client, ravi_otel.run("runaway", limits=[request_limit(6)]):
        loop(runaway, lambda: ask(client))
    assert stage.sent == 6
    assert runaway.sent_after <= 2


@pytest.mark.parametrize("kind", ["time", "tool_calls", "tool.search"])
def test_tools_stop_too(runaway, stage, on_clock, kind):
    ran = []

    @ravi_otel.tool
    def search():
        ran.append(1)
        on_clock.advance(1)

    limit = {"time": time_limit(5), "tool_calls": tool_call_limit(5), "tool.search": tool_call_limit(5, tool="search")}[kind]
    with ravi_otel.run("runaway", limits=[limit]) as run:
        loop(runaway, search)
    assert len(ran) == 5
    assert {error.limit_kind for error in runaway.errors} == {kind}
    assert (run.stats().tool_calls, run.stats().refused) == (5, REFUSALS)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_run_that_was_cancelled_or_closed_sends_nothing_more(runaway, stage, client, ask, end):
    with ravi_otel.run("runaway") as run:
        ask(client)
        run.cancel("enough") if end == "cancel" else run.scope.close()
        loop(runaway, lambda: ask(client))
    assert (runaway.sent_before, runaway.sent_after) == (1, 0)
    assert {type(error) for error in runaway.errors} == {CancellationError if end == "cancel" else BudgetExhaustedError}


def test_real_time_stops_it_without_a_clock_of_ours(stage, client, ask):
    def answer(request):
        time.sleep(0.02)  # so that they are few in a time in which a busy machine makes one
        return Text("hello")

    stage.answer = answer
    runaway = Runaway(stage)
    with ravi_otel.run("runaway", limits=[time_limit(0.8)]):
        loop(runaway, lambda: ask(client))
    assert runaway.sent_before >= 1
    assert runaway.sent_after <= 1  # one that was on its way when the time was over may be counted after it was cut
    assert {type(error) for error in runaway.errors} == {DeadlineExceededError}


@pytest.mark.parametrize("kind", ["tokens", "cost", "requests", "turns", "time"])
def test_a_limit_of_zero_sends_nothing_at_all(runaway, stage, client, ask, kind):
    zero = {"tokens": token_limit, "cost": cost_limit, "requests": request_limit, "turns": turn_limit, "time": time_limit}[kind](0)
    with ravi_otel.run("runaway", limits=[zero]):
        loop(runaway, lambda: ask(client))
    stopped(runaway, kind, 0)
