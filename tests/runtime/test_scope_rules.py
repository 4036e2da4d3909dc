"""Who is charged, who stops, and what follows the running code (enforcement §2, §7)."""

import asyncio
import gc
import logging
import threading

import pytest
from opentelemetry import context as otel_context

import ravi_otel
from ravi_otel import (
    BudgetContendedError,
    BudgetExhaustedError,
    CancellationError,
    ConfigurationError,
    DeadlineExceededError,
    ExecutionBudget,
    cost_limit,
    request_limit,
    time_limit,
    token_limit,
)
from ravi_otel._current import leaf
from ravi_otel.runtime.state import STATE
from ravi_otel.testing import Text


def used(handle):
    return {reading.limit.label: reading.used for reading in handle.limits}


# Who is charged


def test_a_charge_goes_to_the_leaf_agent_and_every_scope_that_is_no_agent(client, ask):
    wide = ["requests=100"]
    with (
        ravi_otel.run("outer", limits=wide, session_id="s1", tenant_id="t1") as outer,
        ravi_otel.agent("parent", limits=wide) as parent,
        ravi_otel.apply_limits(wide) as block,
        ravi_otel.agent("child", limits=wide) as child,
    ):
        ask(client)
        handles = (outer, parent, block, child)
        assert [handle.limits[0].used for handle in handles] == [1, 0, 1, 1]
        assert [handle.stats().requests for handle in handles] == [1, 0, 1, 1]
        ask(client)
    assert [handle.stats().turns for handle in handles] == [2, 0, 2, 2]


def test_a_run_inside_a_run_is_charged_to_both(client, ask):
    with ravi_otel.run("outer", limits=["requests=2"]) as outer, ravi_otel.run("inner", limits=["requests=9"]) as inner:
        ask(client)
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="run 'outer'"):
            ask(client)
    assert (used(outer), used(inner)) == ({"requests": 2}, {"requests": 2})


@pytest.mark.parametrize("session", ["same", "another"])
def test_naming_a_session_is_no_way_out_of_the_enclosing_run(client, ask, session):
    with ravi_otel.run("outer", session_id="same", limits=["requests=2", "session.requests=50"]) as outer:
        for _ in range(2):
            with ravi_otel.run("inner", session_id=session, limits=["session.requests=9"]):
                ask(client)
        with pytest.raises(BudgetExhaustedError, match="run 'outer'"), ravi_otel.run("inner", session_id=session):
            ask(client)
    assert used(outer) == {"requests": 2}


def test_a_session_first_named_inside_a_run_outlives_it(client, ask):
    with ravi_otel.run("first", limits=["requests=1"]) as first, ravi_otel.run("inner", session_id="s", limits=["session.requests=2"]):
        ask(client)
    first.cancel()
    first.scope.close()
    with ravi_otel.run("later", session_id="s"):
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="session 's'"):
            ask(client)


def test_a_session_joined_inside_a_run_is_charged_too(client, ask):
    for _ in range(2):
        with ravi_otel.run("outer"), ravi_otel.run("inner", session_id="s", tenant_id="t", limits=["session.requests=3", "tenant.requests=3"]):
            ask(client)
    with ravi_otel.run("top", session_id="s", tenant_id="t"):
        ask(client)
        with pytest.raises(BudgetExhaustedError, match="tenant 't'"):
            ask(client)


def test_sessions_and_tenants_count_over_their_runs(client, ask):
    limits = ["session.requests=3", "tenant.requests=5"]
    for session, expected in (("s1", 3), ("s2", 2)):
        sent = 0
        with ravi_otel.run("r", session_id=session, tenant_id="t", limits=limits):
            for _ in range(9):
                try:
                    ask(client)
                    sent += 1
                except BudgetExhaustedError:
                    pass
        assert sent == expected


@pytest.mark.parametrize(("first", "second"), [("t1", "t2"), (None, "None"), (None, "t")])
def test_one_session_id_under_two_tenants_is_two_sessions(client, ask, first, second):
    for tenant in (first, second):
        with ravi_otel.run("r", session_id="s", tenant_id=tenant, limits=["session.requests=1"]):
            ask(client)


def test_a_limit_declared_again_on_a_session_takes_the_smaller_value(client, ask):
    with ravi_otel.run("r", session_id="s", limits=["session.requests=5"]):
        ask(client)
    with ravi_otel.run("r", session_id="s", limits=["session.requests=2"]):
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    with ravi_otel.run("r", session_id="s", limits=["session.requests=50"]), pytest.raises(BudgetExhaustedError, match="2 > 2|2 \\+ 1 > 2"):
        ask(client)


def test_runs_that_join_a_session_at_once_share_one_counter(stage, instrumented, ask):
    barrier, errors = threading.Barrier(8), []

    def work():
        barrier.wait(10)
        with ravi_otel.run("r", session_id="s", limits=["session.requests=3"]):
            try:
                ask(client)
            except BudgetExhaustedError as error:
                errors.append(error)

    with stage.client() as client:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert (stage.sent, len(errors)) == (3, 5)


# Templates


def test_a_template_gives_each_agent_of_its_name_a_counter_of_its_own(client, ask):
    with ravi_otel.run("r", limits=["agent.writer.requests=1"]) as run:
        for name, allowed in (("writer", 1), ("writer", 1), ("reader", 3)):
            with ravi_otel.agent(name):
                for _ in range(allowed):
                    ask(client)
                if name == "writer":
                    with pytest.raises(BudgetExhaustedError, match="agent 'writer'"):
                        ask(client)
    assert (run.stats().requests, run.limits) == (5, [])


def test_a_limit_at_a_name_sums_over_its_instances(client, ask):
    with ravi_otel.run("r", limits=["requests@writer=3"]) as run:
        for _ in range(3):
            with ravi_otel.agent("writer"):
                ask(client)
            with ravi_otel.agent("reader"):
                ask(client)
        with ravi_otel.agent("writer"), pytest.raises(BudgetExhaustedError, match="run 'r'"):
            ask(client)
        with ravi_otel.agent("reader"):
            ask(client)
    assert used(run) == {"requests@writer": 3}


def test_a_block_template_applies_to_the_blocks_inside(client, ask):
    with ravi_otel.run("r", limits=["block.requests=1"]):
        ask(client)
        ask(client)
        for _ in range(2):
            with ravi_otel.apply_limits([], name="b"):
                ask(client)
                with pytest.raises(BudgetExhaustedError, match="block 'b'"):
                    ask(client)


@pytest.mark.parametrize("limit", ["session.requests=5", "tenant.tokens=5"])
def test_a_prefix_upwards_without_such_a_scope_is_an_error(instrumented, limit):
    with pytest.raises(ConfigurationError, match=r"none encloses it.*run\((session|tenant)_id="), ravi_otel.run("r", limits=[limit]):
        pytest.fail("it opened")
    assert leaf() is None


# What happens past a limit


def test_stop_is_swallowed_by_the_scope_that_owns_the_limit(client, ask):
    after = []
    with ravi_otel.run("r", limits=["requests=1:on=stop"]) as run:
        with ravi_otel.agent("a") as agent:
            ask(client)
            ask(client)
            after.append("agent")
        after.append("run")
    assert (run.status, run.stop_reason, after) == ("stopped", "limit_requests", [])
    assert (agent.status, agent.stop_reason) == ("error", "limit_requests")


def test_stop_leaves_other_errors_alone(client, ask):
    with pytest.raises(KeyError), ravi_otel.run("r", limits=["requests=1:on=stop"]) as run:
        raise KeyError
    assert run.stop_reason == "error"


def test_exhaustion_is_never_told_as_success(client, ask):
    with pytest.raises(BudgetExhaustedError), ravi_otel.run("r", limits=["requests=0"]) as run:
        ask(client)
    assert (run.status, run.stop_reason) == ("error", "limit_requests")


def test_a_block_that_catches_swallows_its_own_breach(client, ask):
    with ravi_otel.run("r"):
        with ravi_otel.apply_limits([request_limit(1)], catch=True) as block:
            ask(client)
            ask(client)
            pytest.fail("it went on")
        ask(client)
    assert block.limits[0].denied == 1


def test_a_block_that_catches_lets_the_breach_of_others_pass(client, ask):
    with (
        pytest.raises(BudgetExhaustedError, match="run 'r'"),
        ravi_otel.run("r", limits=["requests=1"]),
        ravi_otel.apply_limits([request_limit(5)], catch=True),
    ):
        ask(client)
        ask(client)


def test_a_block_that_catches_lets_the_breach_of_an_inner_one_pass(client, ask):
    with (
        pytest.raises(BudgetExhaustedError),
        ravi_otel.apply_limits([request_limit(9)], catch=True),
        ravi_otel.apply_limits([request_limit(0)], name="inner"),
    ):
        ask(client)


# Calls with no scope


def test_a_call_with_no_scope_joins_the_only_open_run(stage, client, ask, heard):
    with ravi_otel.run("r", limits=["requests=1"]) as run:
        token = otel_context.attach(otel_context.Context())
        try:
            ask(client)
            with pytest.raises(BudgetExhaustedError):
                ask(client)
        finally:
            otel_context.detach(token)
    assert run.stats().requests == 1
    assert [what for what, _ in heard.counts].count("unscoped") == 2


@pytest.mark.parametrize("open_runs", [[{}, {}], [{"session_id": "s"}], [{"tenant_id": "t"}], []], ids=["two", "session", "tenant", "none"])
def test_else_it_belongs_to_the_process(client, ask, heard, open_runs):
    handles = []
    for number, more in enumerate(open_runs):
        otel_context.attach(otel_context.Context())
        handles.append(ravi_otel.run(f"r{number}", **more).__enter__())
    otel_context.attach(otel_context.Context())
    before = STATE.root.spend().requests
    ask(client)
    assert STATE.root.spend().requests == before + 1
    assert [handle.stats().requests for handle in handles] == [0] * len(handles)
    assert ("unscoped", None) in heard.counts
    for handle in handles:
        handle.__exit__(None, None, None)
    otel_context.attach(otel_context.Context())


def test_the_processes_own_limits_hold_for_everything(stage, client, ask, settings):
    with settings([request_limit(2)]):
        ask(client)
        with ravi_otel.run("r"):
            ask(client)
            with pytest.raises(BudgetExhaustedError, match="this process"):
                ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    assert stage.sent == 2


# Scopes held over a yield


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.DEBUG)
    yield
    assert not [record for record in caplog.records if "detach" in record.getMessage().lower()]


def name():
    scope = leaf()
    return None if scope is None else scope.facts.name


def test_a_run_held_over_a_yield_gives_back_what_was_there(quiet, instrumented):
    def steps():
        with ravi_otel.run("inner"):
            yield name()
            yield name()

    with ravi_otel.run("outer"):
        generator = steps()
        assert next(generator) == "inner"
        assert list(generator) == ["inner"]
        assert name() == "outer"
    assert name() is None


def test_generators_that_end_out_of_order_leave_nothing_behind(quiet, instrumented):
    def steps(label):
        with ravi_otel.run(label):
            yield

    first, second = steps("first"), steps("second")
    next(first)
    next(second)
    next(first, None)
    next(second, None)
    with ravi_otel.run("third"):
        assert name() == "third"
    assert name() in {None, "first"}
    otel_context.attach(otel_context.Context())


@pytest.mark.parametrize("end", ["close", "collect"])
def test_a_generator_that_is_dropped_ends_its_run(quiet, instrumented, end):
    handles = []

    def steps():
        with ravi_otel.run("dropped") as handle:
            handles.append(handle)
            yield

    generator = steps()
    next(generator)
    if end == "close":
        generator.close()
    del generator
    gc.collect()
    with ravi_otel.run("next"):
        assert handles[0].status != "open"
    assert not STATE.top_runs
    assert name() is None


@pytest.mark.anyio
async def test_an_async_generator_closed_in_another_task_restores_and_stays_quiet(quiet, instrumented):
    async def steps():
        async with ravi_otel.run("inner") as handle:
            yield handle
            yield handle

    generator = steps()
    handle = await anext(generator)

    async def close():
        await generator.aclose()
        return name()

    assert await asyncio.create_task(close()) in {None, "inner"}
    with ravi_otel.run("next"):
        pass
    assert handle.status != "open"
    otel_context.attach(otel_context.Context())


@pytest.mark.anyio
async def test_a_run_entered_in_one_task_and_left_in_another(quiet, instrumented):
    handle = ravi_otel.run("r")
    await asyncio.create_task(handle.__aenter__())
    assert name() is None
    await asyncio.create_task(handle.__aexit__(None, None, None))
    assert (handle.status, name()) == ("ok", None)


@pytest.mark.anyio
async def test_tasks_keep_to_their_own_scopes(quiet, instrumented):
    async def work(label):
        async with ravi_otel.run(label):
            await asyncio.sleep(0)
            async with ravi_otel.agent(f"agent of {label}"):
                await asyncio.sleep(0)
                assert name() == f"agent of {label}"
            return name()

    assert await asyncio.gather(*(work(f"r{number}") for number in range(8))) == [f"r{number}" for number in range(8)]
    assert name() is None


def test_somebody_elses_context_survives_ours(quiet, instrumented):
    key = otel_context.create_key("theirs")
    handle = ravi_otel.run("r")
    handle.__enter__()
    otel_context.attach(otel_context.set_value(key, "kept"))
    handle.__exit__(None, None, None)
    assert otel_context.get_value(key) == "kept"
    assert name() is None
    otel_context.attach(otel_context.Context())


# Cost and price


def test_a_model_without_a_price_is_refused_under_a_cost_limit(stage, client, ask, heard):
    with ravi_otel.run("r", limits=[cost_limit(1)]), pytest.raises(BudgetExhaustedError, match=r"no known price.*instrument\(prices=") as caught:
        ask(client, model="nobody-knows-this-model")
    assert (stage.sent, caught.value.reason, caught.value.limit_kind) == (0, "unpriced_model", "cost")
    assert ("unpriced", None) in heard.counts


def test_it_is_let_through_where_that_was_chosen(stage, client, ask, heard):
    with ravi_otel.run("r", limits=[cost_limit(1, on_unpriced="warn")]) as run:
        ask(client, model="nobody-knows-this-model")
    assert (stage.sent, run.cost_usd, run.stats().unpriced_calls) == (1, None, 1)
    assert ("unpriced", None) in heard.counts


def test_a_spent_cost_limit_refuses_it_even_so(stage, client, ask):
    with ravi_otel.run("r", limits=[cost_limit("0.2", on_unpriced="warn")]):
        ask(client, max_tokens=1)
        for model in ("gpt-4o-mini", "nobody-knows-this-model"):
            with pytest.raises(BudgetExhaustedError):
                ask(client, model=model)
    assert stage.sent == 1


def test_a_price_that_comes_with_the_answer_is_charged(stage, client, ask):
    stage.answer = Text("ok", usage=(100, 100), model="gpt-4o-mini")
    with ravi_otel.run("r", limits=[cost_limit(1, on_unpriced="warn")]) as run:
        ask(client, model="nobody-knows-this-model")
    assert (used(run), run.cost_usd) == ({"cost": 0.2}, 0.2)


def test_without_a_cost_limit_an_unknown_price_is_unknown(client, ask):
    with ravi_otel.run("r") as run:
        ask(client, model="nobody-knows-this-model")
    assert run.cost_usd is None


# Watching only


def test_watching_only_refuses_nothing_and_tells_what_would_have_been(stage, client, ask, settings, clock):
    @ravi_otel.tool
    def work():
        return "done"

    limits = ["requests=1", "tokens=100", "cost=0.01", "turns=1", "time=1", "messages=1", "tool_calls=0", "depth=0", "agents=1"]
    with (
        settings(observe=True, clock=clock) as heard,
        ravi_otel.run("r", limits=limits) as run,
        ravi_otel.agent("a", budget=ExecutionBudget(max_turns=0)),
        ravi_otel.agent("b"),
    ):
        for _ in range(3):
            clock.advance(1)
            assert ask(client).choices[0].message.content == "ok"
            assert ask(client, model="nobody-knows-this-model")
            assert work() == "done"
    assert (stage.sent, run.status, run.stats().refused) == (6, "ok", 0)
    told = {(event.limit_kind, event.decision) for event in heard.limits if event.event == "limit_exceeded"}
    assert {kind for kind, _ in told} == {"requests", "tokens", "cost", "turns", "time", "messages", "tool_calls", "depth"}
    assert "denied" not in {decision for _, decision in told}


# Time, closing, cancelling


def test_a_deadline_refuses_before_anything_is_sent(stage, client, ask, on_clock):
    with ravi_otel.run("r", limits=[time_limit(10)]) as run:
        ask(client)
        on_clock.advance(10)
        with pytest.raises(DeadlineExceededError, match=r"^deadline exceeded: 10 s > 10 s in run 'r'") as caught:
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
    with pytest.raises(CancellationError, match="cancelled: enough"), ravi_otel.run("r") as run:
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
def test_a_call_that_waits_in_line_is_let_go_when_its_run_ends(stage, instrumented, ask, end, mode):
    """It neither waits out its patience nor is it sent when what stood in the way is given back."""
    stage.server.hold()
    outcome = []

    def finish(run, agent):
        {"cancel": run.cancel, "close": run.scope.close, "close the agent": agent.scope.close}[end]()

    def threads():
        with stage.client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]) as run, ravi_otel.agent("a") as agent:
            first = threading.Thread(target=ask, args=(client,))
            first.start()
            stage.wait_for(1)
            second = threading.Thread(target=lambda: outcome.append(failure(lambda: ask(client))))
            second.start()
            while not run.scope.accounts[0].line:
                pass
            finish(run, agent)
            second.join(10)
            stage.server.release()
            first.join(10)

    async def tasks():
        async with stage.async_client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]) as run, ravi_otel.agent("a") as agent:
            first = asyncio.create_task(ask(client))
            while not stage.sent:
                await asyncio.sleep(0)
            second = asyncio.create_task(ask(client))
            while not run.scope.accounts[0].line:
                await asyncio.sleep(0)
            finish(run, agent)
            outcome.extend(await asyncio.wait_for(asyncio.gather(second, return_exceptions=True), 10))
            stage.server.release()
            await first

    threads() if mode == "threads" else asyncio.run(tasks())
    assert [type(one) for one in outcome] == [CancellationError if end == "cancel" else BudgetExhaustedError]
    assert stage.sent == 1


def failure(act):
    try:
        act()
    except Exception as error:
        return error
    return None


def test_synchronous_code_on_an_event_loop_never_waits(stage, instrumented, ask):
    stage.server.hold()

    async def main():
        async with stage.async_client() as client, ravi_otel.run("r", limits=[token_limit(1_000)]):
            first = asyncio.create_task(ask(client))
            while not stage.sent:
                await asyncio.sleep(0)
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


# Reading and changing


def test_a_raised_limit_lets_the_run_go_on(client, ask):
    with ravi_otel.run("r", limits=["requests=1"]) as run:
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
        run.scope.set_limit("requests", 2)
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client)
    assert run.limits[0].events == ("limit_nearing", "limit_exceeded") * 2


def test_a_kind_of_the_programs_own(instrumented):
    with ravi_otel.run("r", limits=["charge.sql_rows=100"]) as run:
        scope = ravi_otel.current_scope()
        scope.charge("sql_rows", 60)
        with pytest.raises(BudgetExhaustedError, match="sql_rows too small for this call: 60 used"):
            scope.charge("sql_rows", 60)
        scope.charge("sql_rows", 40)
        with pytest.raises(BudgetExhaustedError, match="sql_rows exceeded: 100 \\+ 1 > 100"):
            scope.charge("sql_rows")
    assert used(run) == {"sql_rows": 100}


@pytest.mark.parametrize("amount", [-1, 1.5, float("nan"), float("inf"), "5", True, None, 2**70])
def test_what_is_no_amount_is_never_charged(instrumented, amount):
    with ravi_otel.run("r", limits=["charge.sql_rows=100"]) as run:
        with pytest.raises(ConfigurationError, match=r"charge\(amount\)=.* must be a whole number"):
            run.scope.charge("sql_rows", amount)
        assert used(run) == {"sql_rows": 0}


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), "5", True, None, 2**70])
def test_what_is_no_limit_is_never_set(instrumented, value):
    with ravi_otel.run("r", limits=["requests=3"]) as run:
        with pytest.raises(ConfigurationError, match=r"set_limit\(value\)=.* must be a whole number"):
            run.scope.set_limit("requests", value)
        assert run.limits[0].limit.value == 3


def test_setting_a_limit_that_is_not_there_says_which_are(instrumented):
    with ravi_otel.run("r", limits=["requests=3"]) as run, pytest.raises(ConfigurationError, match="has no such limit; it has requests"):
        run.scope.set_limit("tokens", 5)


def test_a_depth_limit_refuses_the_agent_below_and_says_how_deep(instrumented):
    with ravi_otel.run("r", limits=["depth=1"]), ravi_otel.agent("a"), ravi_otel.agent("b"):
        with pytest.raises(BudgetExhaustedError, match=r"^Depth limit exceeded: 2 > 1 in run 'r'"), ravi_otel.agent("c"):
            pytest.fail("it opened")


def test_a_message_limit_looks_at_the_conversation(stage, client, ask):
    many = [{"role": "user", "content": "hi"}] * 6
    with ravi_otel.run("r", limits=["messages=5"]):
        ask(client, messages=many[:4])
        with pytest.raises(BudgetExhaustedError, match=r"^Message limit exceeded: 7 > 5 in run 'r'"):
            ask(client, messages=many)
        ask(client, messages=many[:4])
    assert stage.sent == 2
