"""Who is charged: leaf agents, enclosing scopes, sessions, templates, and calls with no scope (enforcement §2)."""

import os
import threading
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import context as otel_context

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, request_limit
from ravi_otel._current import leaf
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Text


def used(handle):
    return {reading.limit.label: reading.used for reading in handle.scope.readings()}


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
        with (
            ravi_otel.run("outer"),
            ravi_otel.run("inner", session_id="s", tenant_id="t", limits=["session.requests=3", "tenant.requests=3"]),
        ):
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
    with ravi_otel.run("r", session_id="s", limits=["session.requests=50"]), pytest.raises(BudgetExhaustedError, match=r"2 > 2|2 \+ 1 > 2"):
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


@pytest.mark.parametrize("use", [50, 900])
def test_a_limit_that_joins_a_session_counts_what_is_in_flight_there(stage, client, ask, use):
    stage.answer = Text("ok", usage=(10, use))

    def first():
        with ravi_otel.run("first", session_id="s", limits=["session.tokens=10000"]):
            ask(client, max_tokens=900)

    stage.server.hold()
    thread = threading.Thread(target=first)
    thread.start()
    stage.wait_for(1)
    with ravi_otel.run("second", session_id="s", limits=["session.tokens=1000:warn=0.5"]) as run:
        loose, tight = next(scope for scope in run.scope.upwards() if scope.facts.kind == "session").accounts
        assert (tight.used, tight.held) == (loose.used, loose.held)
        assert tight.held >= 900
        stage.server.release()
        thread.join(10)
        assert [(one.used, one.held) for one in (loose, tight)] == [(10 + use, 0)] * 2
        stage.answer = Text("ok", usage=(10, 10))
        ask(client, max_tokens=20)
    assert [(one.used, one.held) for one in (loose, tight)] == [(30 + use, 0)] * 2
    assert len(run.scope.engine.ledger) == 0


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


# A forked child


def test_a_forked_child_leaves_the_open_scopes_and_starts_at_zero_under_the_same_limits(settings):
    ran = []

    @ravi_otel.tool
    def work():
        ran.append(1)

    def in_child():
        assert leaf() is None
        assert ravi_otel.current_scope().facts.kind == "process"
        work()
        work()
        with pytest.raises(BudgetExhaustedError):
            work()
        with ravi_otel.run("fresh"), pytest.raises(BudgetExhaustedError, match="this process"):
            work()

    with settings([ravi_otel.tool_call_limit(2)]), ravi_otel.run("r", limits=["tool_calls=9"]) as run:
        work()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the server of other tests has threads; the child uses none of them
            child = os.fork()
        if child == 0:
            try:
                in_child()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert used(run) == {"tool_calls": 1}
        work()
        with pytest.raises(BudgetExhaustedError, match="this process"):
            work()


# Shares, handoffs, and limits set aside


SHARED = {
    # share: what the parent's tab shows of three calls of a child, while it is open and when it is closed: tokens used and held
    "own": ((0, 0), (0, 0)),
    "pool": ((600, 0), (600, 0)),
    0.5: ((0, 2000), (600, 0)),
    1_500: ((0, 1500), (600, 0)),
}


@pytest.mark.parametrize("share", SHARED)
@pytest.mark.parametrize("around", ["nothing", "handoff", "block", "suspended"])
def test_what_a_child_used_is_on_its_parents_tab_by_its_share_and_once_on_the_runs(client, ask, share, around):
    between = {
        "nothing": lambda: ravi_otel.apply_limits([]),
        "handoff": lambda: ravi_otel.handoff("h", limits=["tokens=9k"]),
        "block": lambda: ravi_otel.apply_limits(["tokens=9k"]),
        "suspended": lambda: ravi_otel.suspend_limits("judge"),
    }[around]()
    with ravi_otel.run("r", limits=["tokens=9k:suspend=allow"]) as run, ravi_otel.agent("p", limits=["tokens=4000"]) as parent:
        with between, ravi_otel.agent("c", share=share) as child:
            for _ in range(3):
                ask(client)
            inside = [(one.used, one.held) for one in parent.scope.readings()]
        after = [(one.used, one.held) for one in parent.scope.readings()]
    assert (inside, after) == ([SHARED[share][0]], [SHARED[share][1]])
    assert [one.used for one in (*run.scope.readings(), *between.scope.readings())] == [600] * (1 + len(between.scope.readings()))
    assert (child.stats().total_tokens, run.stats().total_tokens) == (600, 600)


@pytest.mark.parametrize("share", ["own", "pool", 100, 0.02])
def test_32_children_at_once_are_summed_without_loss(stage, instrumented, ask, share):
    with ravi_otel.run("r", limits=["tokens=1M", "requests=99"]) as run, ravi_otel.agent("p", limits=["tokens=100k"]) as parent:

        def one(client):
            with ravi_otel.agent("c", share=share) as child:
                ask(client, max_tokens=20)
            return child.stats().total_tokens

        with stage.client() as client, ThreadPoolExecutor(32) as pool:
            spent = [future.result() for future in [pool.submit(one, client) for _ in range(32)]]
    assert (sum(spent), run.stats().total_tokens, used(run)["requests"]) == (6_400, 6_400, 32)
    assert [(one.used, one.held) for one in parent.scope.readings()] == [(0 if share == "own" else 6_400, 0)]
    assert len(run.scope.engine.ledger) == 0


@pytest.mark.parametrize("share", [0.5, 2_000, "pool", "own"])
def test_a_stream_that_outlives_its_agent_is_read_to_its_end(stage, client, ask, share):
    stage.answer = Text("word " * 1_500, usage=(10, 1_500), chunks=60)
    with ravi_otel.run("r") as run, ravi_otel.agent("p", limits=["tokens=4000"]) as parent:
        with ravi_otel.agent("c", share=share):
            stream = iter(ask(client, stream=True, stream_options={"include_usage": True}))
            next(stream)
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in stream) >= 59
    assert [(one.used, one.held) for one in parent.scope.readings()] == [(0 if share == "own" else run.stats().total_tokens, 0)]


def test_a_stream_that_outlives_its_agent_is_cut_at_what_its_part_had(stage, client, ask):
    stage.answer = Text("word " * 2_000, usage=(10, 2_000), chunks=80)
    with ravi_otel.run("r"), ravi_otel.agent("p", limits=["tokens=4000"]) as parent:
        with ravi_otel.agent("c", share=0.375):
            stream = iter(ask(client, stream=True))
            next(stream)
        with pytest.raises(
            BudgetExhaustedError, match=r"^15\d\d of 1500 tokens used in agent 'c' of run 'r'.* so the stream was cut \(15\d\d > 1500\)"
        ):
            list(stream)
    assert (parent.limits[0].held, 1_500 <= parent.limits[0].used <= 1_600) == (0, True)
