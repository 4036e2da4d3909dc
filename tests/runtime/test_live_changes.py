"""Limits changed, scopes closed and breaches caught while work goes on (enforcement §2, §7)."""

import os
import signal
import threading
from contextlib import suppress

import pytest

import ravi_otel
from ravi_otel import (
    BudgetContendedError,
    BudgetExhaustedError,
    ConfigurationError,
    DeadlineExceededError,
    ExecutionTracker,
    SpawnDeniedError,
    request_limit,
    time_limit,
    token_limit,
)
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._flow import run_sync


def hold(scope, tokens):
    """Hold so many tokens as a call in flight does; give what ends it."""
    lines = [Line(account, tokens, tokens) for account in scope.accounts]
    run_sync(scope.engine.ledger.reserve(Reservation("held", lines)))
    return lambda: scope.engine.settle("held", {"tokens": tokens})


# Set anew


def test_every_kind_of_limit_can_be_set_anew_by_the_name_it_is_written_with(instrumented):
    limits = [
        "tokens=1", "cost=1usd", "requests=1", "turns=1", "messages=1", "tool_calls=1", "tool.search=1", "charge.sql_rows=1",
        "time=90s", "working=90s", "depth=1", "tokens@researcher=1",
    ]  # fmt: skip
    words = [
        "tokens",
        "cost",
        "request",
        "turns",
        "message",
        "tool_call",
        "tool_calls.search",
        "charge.sql_rows",
        "time",
        "working",
        "depth",
    ]
    with ravi_otel.run("r", limits=limits) as run:
        for word in [*words, "token@researcher"]:
            run.set_limit(word, 7)
        assert [reading.limit.amount for reading in run.limits] == [7] * 12


def test_a_limit_for_one_agents_name_is_another_than_the_one_for_all(instrumented):
    with ravi_otel.run("r", limits=["tokens=5", "tokens@researcher=6"]) as run:
        run.set_limit("tokens@researcher", 2)
        assert [reading.limit.amount for reading in run.limits] == [5, 2]
        with pytest.raises(
            ConfigurationError, match=r"set_limit\('tokens@writer', …\): run 'r' has no such limit; it has tokens, tokens@resea"
        ):
            run.set_limit("tokens@writer", 2)


def test_more_agents_may_be_allowed_and_fewer(instrumented):
    with ravi_otel.run("r", limits=["agents=1"]) as run, ravi_otel.agent("root"):
        with pytest.raises(SpawnDeniedError):
            ravi_otel.agent("a").__enter__()
        run.set_limit("agents", 3)
        with ravi_otel.agent("a"), ravi_otel.agent("b"):
            run.set_limit("agents", 1)
            assert (run.scope.spawn.stats().active, run.scope.spawn.stats().limit) == (3, 1)
        with pytest.raises(SpawnDeniedError, match="1 of 1 agents are live"):
            ravi_otel.agent("a").__enter__()


def test_who_waits_for_a_slot_gets_it_when_more_are_allowed(instrumented):
    with ravi_otel.run("r", spawn_budget=ravi_otel.SpawnBudget(max_agents=2)) as run:
        first, leases = run.scope.spawn.acquire("a"), []
        thread = threading.Thread(target=lambda: leases.append(run.scope.spawn.wait_for_slot_blocking("b", timeout_s=20)))
        thread.start()
        while not run.scope.spawn.stats().waiting:
            pass
        run.set_limit("agents", 3)
        thread.join(20)
        assert [lease.agent_id for lease in leases] == ["b"]
        first.release()


def test_time_can_be_given_and_taken(client, ask, on_clock):
    with ravi_otel.run("r", limits=[time_limit(10)]) as run:
        on_clock.advance(11)
        run.set_limit("time", 20)
        ask(client)
        run.set_limit("time", 5)
        with pytest.raises(DeadlineExceededError, match=r"^11 s of 5 s used"):
            ask(client)


def test_a_raise_ends_draining_and_arms_again_and_a_fall_tells_with_the_first_refusal(client, ask, heard):
    with ravi_otel.run("r", limits=["requests=2"]) as run:
        ask(client)
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        run.set_limit("requests", 9)
        ask(client)
        assert heard.events() == [("run", "requests", "limit_nearing"), ("run", "requests", "limit_exceeded")]
        run.set_limit("requests", 1)
        assert len(heard.events()) == 2
        for _ in range(2):
            with pytest.raises(BudgetExhaustedError, match=r"3 \+ 1 > 1|3 > 1"):
                ask(client)
    assert heard.events()[2:] == [("run", "requests", "limit_nearing"), ("run", "requests", "limit_exceeded")]


@pytest.mark.parametrize(("value", "expected"), [(5_000, None), (50, BudgetExhaustedError)])
def test_who_waits_in_line_is_judged_again_by_the_new_value(stage, client, ask, value, expected):
    outcome = []

    def work():
        try:
            ask(client)
            outcome.append(None)
        except BudgetExhaustedError as error:
            outcome.append(type(error))

    with ravi_otel.run("r", limits=[token_limit(1_000)]) as run:
        end = hold(run.scope, 990)
        thread = threading.Thread(target=work)
        thread.start()
        while not run.scope.accounts[0].waiters:
            pass
        run.set_limit("tokens", value)
        if expected is not None:
            end()  # what was in flight is now more than all there may be
        thread.join(20)
        end()
    assert outcome == [expected]


def test_a_sessions_limit_is_set_for_all_its_runs(client, ask):
    with ravi_otel.run("a", session_id="s", limits=["session.requests=1"]) as run:
        ask(client)
        session = run.scope.parent
        session.set_limit("requests", 2)
    with ravi_otel.run("b", session_id="s"):
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="session 's'"):
            ask(client)


def test_a_photograph_does_not_change_with_what_comes_after(client, ask):
    with ravi_otel.run("r", limits=["requests=9"]) as run:
        ask(client)
        before, limits = run.stats(), run.limits
        ask(client)
        assert (before.requests, limits[0].used, run.stats().requests) == (1, 1, 2)
        with pytest.raises(AttributeError):
            before.requests = 5


# The kill switch


@pytest.mark.parametrize("what", ["call", "tool", "charge", "agent", "block", "run", "handoff"])
def test_nothing_new_begins_in_what_was_closed(stage, client, ask, what):
    begin = {
        "call": lambda: ask(client),
        "tool": ravi_otel.tool(lambda: pytest.fail("it ran"), name="t"),
        "charge": lambda: ravi_otel.current_scope().charge("rows", 1),
        "agent": lambda: ravi_otel.agent("b").__enter__(),
        "block": lambda: ravi_otel.apply_limits([]).__enter__(),
        "run": lambda: ravi_otel.run("inner").__enter__(),
        "handoff": lambda: ravi_otel.handoff("h").__enter__(),
    }
    with ravi_otel.run("r") as run, ravi_otel.agent("a"):
        run.close()
        run.close()
        with pytest.raises(BudgetExhaustedError, match=r"run 'r' was closed\. Open another one\.") as caught:
            begin[what]()
    assert (caught.value.reason, stage.sent) == ("closed", 0)
    with ravi_otel.run("r"):
        ask(client)


def test_a_signal_handler_may_close_what_the_code_it_interrupts_is_working_on(stage, client, ask):
    with ravi_otel.run("r", limits=[token_limit(1_000)]) as run:
        before = signal.signal(signal.SIGUSR1, lambda *_: run.close())
        try:
            with run.scope.engine.lock, run.scope.engine.ledger._lock:
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        with pytest.raises(BudgetExhaustedError, match="was closed"):
            ask(client)
    assert stage.sent == 0


# Catching


def test_a_block_catches_the_breach_of_its_own_limits_only(client, ask):
    with ravi_otel.run("r", limits=["requests=3"]):
        with ravi_otel.apply_limits([request_limit(1)], catch=True) as block:
            ask(client)
            ask(client)
            pytest.fail("it went on")
        assert (block.status, block.stop_reason) == ("stopped", "limit_requests")
        with pytest.raises(BudgetExhaustedError, match="run 'r'"), ravi_otel.apply_limits([request_limit(9)], catch=True):  # noqa: PT012 - the last of three is refused
            ask(client)
            ask(client)
            ask(client)


def test_of_two_that_are_breached_at_once_the_outer_one_is_told(client, ask):
    with ravi_otel.apply_limits([request_limit(1)], catch=True) as outer:
        with ravi_otel.apply_limits([request_limit(1)], catch=True):
            ask(client)
            ask(client)
        pytest.fail("the inner block caught what was not its own")
    assert outer.status == "stopped"


@pytest.mark.anyio
async def test_a_caught_breach_ends_a_coroutine_and_a_decorated_function_with_none(aclient, ask):
    @ravi_otel.apply_limits([request_limit(1)], catch=True)
    async def twice():
        await ask(aclient)
        await ask(aclient)
        return "done"

    assert (await twice(), await twice()) == (None, None)


def test_a_stream_that_is_refused_is_caught_as_any_other(client, ask):
    with ravi_otel.apply_limits([request_limit(1)], catch=True) as block:
        for _ in range(2):
            for _chunk in ask(client, stream=True):
                pass
        pytest.fail("it went on")
    assert block.stats().requests == 1


def test_its_own_time_is_caught_and_that_of_others_is_not(client, ask, on_clock):
    with ravi_otel.apply_limits([time_limit(5)], catch=True) as block:
        on_clock.advance(6)
        ask(client)
    assert (block.status, block.stop_reason) == ("stopped", "deadline")
    with ravi_otel.run("r", limits=[time_limit(5)]):
        on_clock.advance(6)
        with pytest.raises(DeadlineExceededError), ravi_otel.apply_limits([], catch=True):
            ask(client)


@pytest.mark.parametrize("how", [{"catch": True}, {}])
def test_what_is_only_contended_is_caught_by_nobody(client, ask, how):
    """Nothing is exceeded, so whoever catches it would take for done what was not even tried."""

    @ravi_otel.tool
    def search():
        pytest.fail("it ran")

    with ravi_otel.run("r"), pytest.raises(BudgetContendedError), ravi_otel.apply_limits(["tool_calls=1:on=stop"], **how) as block:  # noqa: PT012 - the block must end by it
        run_sync(block.scope.engine.ledger.reserve(Reservation("part", [Line(block.scope.accounts[0], 1, 1, carved=True)])))
        try:
            search()
        finally:
            block.scope.engine.ledger.release("part")


# Limits are values, trackers are counters


def test_one_limit_is_every_scopes_own(client, ask):
    one = request_limit(1)
    with ravi_otel.run("r", limits=[one, one]) as run, ravi_otel.agent("a", limits=[one]) as agent:
        ask(client)
        assert [reading.used for reading in (*run.scope.readings(), *agent.scope.readings())] == [1, 1, 1]


def test_one_limit_in_32_threads_is_32_limits(instrumented):
    one, ran, barrier = ravi_otel.tool_call_limit(2), [], threading.Barrier(32)
    step = ravi_otel.tool(lambda: ran.append(1), name="step")

    def work():
        barrier.wait(10)
        with ravi_otel.run("r", limits=[one]), ravi_otel.apply_limits([one], catch=True):
            for _ in range(5):
                step()

    threads = [threading.Thread(target=lambda: _swallow(work)) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(ran) == 64


def _swallow(work):
    with suppress(BudgetExhaustedError):
        work()


def test_one_tracker_of_two_open_scopes_is_an_error(instrumented):
    tracker = ExecutionTracker(max_tokens=5)
    with ravi_otel.run("r", budget=tracker):
        with (
            pytest.raises(ConfigurationError, match="already the tracker of run 'r', which is still open"),
            ravi_otel.agent("a", budget=tracker),
        ):
            pytest.fail("it opened")
        with ravi_otel.agent("a"):
            pass
    with ravi_otel.agent("a", budget=tracker):
        pass


# Root to leaf

KINDS = [
    "tokens",
    "input_tokens",
    "output_tokens",
    "cost",
    "requests",
    "turns",
    "messages",
    "tool_calls",
    "tool.t",
    "charge.rows",
    "time",
    "depth",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outermost", range(4))
def test_of_four_levels_the_outermost_breach_is_told(client, ask, kind, outermost):
    """Each level from the outermost on allows nothing, those around it plenty."""

    def limits(level):
        return [f"{kind}={0 if level >= outermost else 5}"]

    def work():
        if kind in ("tool_calls", "tool.t"):
            ravi_otel.tool(lambda: None, name="t")()
        elif kind == "charge.rows":
            ravi_otel.current_scope().charge("rows", 1)
        elif kind == "depth":
            with ravi_otel.agent("deep"), ravi_otel.agent("deeper"):
                pass
        else:
            ask(client, max_tokens=1)

    kinds = ["run", "handoff", "block", "run"]
    roomy = {"tokens": "900", "input_tokens": "900", "output_tokens": "900", "cost": "9usd"}
    given = [[f"{kind}={roomy.get(kind, '99')}"] if level < outermost else limits(level) for level in range(4)]
    with (
        ravi_otel.run("one", limits=given[0]),
        ravi_otel.handoff("two", limits=given[1]),
        ravi_otel.apply_limits(given[2], name="three"),
        pytest.raises(BudgetExhaustedError, match=["run 'one'", "handoff 'two'", "block 'three'", "run 'four'"][outermost]) as caught,
        ravi_otel.run("four", limits=given[3]),
    ):
        work()
    assert caught.value.scope == kinds[outermost]
