"""A run that goes on elsewhere has the caller's ids and trace, and no more than the caller has left; over each store of counters."""

import asyncio
import os
import sys
from contextlib import ExitStack
from contextvars import Context

import pytest
import warm_starts
from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel import (
    BudgetError,
    BudgetExhaustedError,
    DeadlineExceededError,
    Priority,
    SpawnBudget,
    SpawnDeniedError,
    child_environment,
    continue_run,
    lend,
    outbound_headers,
    take_return,
    task_headers,
)
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._flow import run_async, run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier._inbound import Inbound, read
from ravi_otel.carrier._lending import RETURN_HEADER, returned
from ravi_otel.carrier._outbound import headers_for
from ravi_otel.testing import ScriptedLLM, Text

URL = "http://b.internal/x"


class World:
    """Be two processes in one: each with an engine of its own, over one store or over two."""

    def __init__(self, ledgers, clock):
        self.ledgers = ledgers
        self.there = Engine(clock=clock, ledger=ledgers[1])

    @property
    def shared(self):
        return not isinstance(self.ledgers[0], MemoryLedger)

    def elsewhere(self, act):
        """Do it in the other process: another engine, and nothing of this context."""
        before = (STATE.engine, STATE.limits)
        STATE.install(self.there, ())
        try:
            return Context().run(act)
        finally:
            STATE.install(*before)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def world(request, carrying, clock, tmp_path):
    if request.param == "memory":
        spec = "memory:"
    elif request.param == "sqlite":
        spec = f"sqlite:{tmp_path / 'ledger.db'}"
    else:
        spec = request.getfixturevalue("redis_server").url
    ledgers = [open_ledger(spec), open_ledger(spec)]
    before = (STATE.engine, STATE.limits)
    STATE.install(Engine(clock=clock, ledger=ledgers[0], listeners=STATE.engine.listeners), ())
    yield World(ledgers, clock)
    STATE.install(*before)
    for ledger in ledgers:
        getattr(ledger, "close", lambda: None)()


def spend(amount, kind="tokens"):
    """Do work that takes so much, as a call does: refused where it does not fit."""
    scope = ravi_otel.current_scope()
    lines = [Line(each, amount, amount) for each in scope.plan.accounts() if each.kind == kind]
    op_id = new_op_id()
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines)))
    if isinstance(answer, Denied):
        return answer.reason
    run_sync(scope.engine.ledger.settle(op_id, {kind: amount}))
    return amount


def used(run, kind="tokens"):
    return next(each.used for each in run.limits if each.limit.kind == kind)


def seen(run):
    return {each.limit.label: each.remaining for each in run.limits}


# -- whose it is ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_its_ids_and_without_the_agent(world):
    with ravi_otel.run("triage", session_id="s", tenant_id="t", user_id="u", tags={"team": "x"}) as outer, ravi_otel.agent("a"):
        headers = outbound_headers(URL)

    def act():
        with continue_run(headers) as run:
            facts = run.scope.facts
            return run.id, facts.name, facts.session_id, facts.tenant_id, facts.user_id, facts.agent_name, dict(facts.tags)

    assert world.elsewhere(act) == (outer.id, "triage", "s", "t", "u", None, {})


def test_only_tags_that_a_limit_counts_by_go_along(carrying):
    with ravi_otel.run(tags={"team": "x", "secret": "y"}, limits=["tokens=50:by=tag.team"]):
        headers = outbound_headers(URL)
    with continue_run(headers, tags={"mine": "z"}) as run:
        assert run.scope.facts.tags == {"team": "x", "mine": "z"}


def test_the_trace_goes_on_where_no_span_is_current_and_the_servers_own_span_comes_first(carrying):
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("caller") as span, ravi_otel.run():
        headers = outbound_headers(URL)
    trace_id = f"{span.get_span_context().trace_id:032x}"
    with continue_run(headers) as run:
        assert run.meta.trace_id == trace_id
        with ravi_otel.agent("inner"):
            assert ravi_otel.current_scope().meta.trace_id == trace_id
    with tracer.start_as_current_span("server") as server, continue_run(headers) as run:
        assert run.meta.trace_id == f"{server.get_span_context().trace_id:032x}"


def test_a_trace_without_a_believed_run_goes_on_as_well(carrying):
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with continue_run({"traceparent": parent}) as run:
        assert (run.rejected, run.meta.trace_id) == ("missing", "a" * 32)
    with continue_run({"traceparent": "00-zz-bb-01", "baggage": "ravi.carry=1"}) as run:
        assert run.rejected == "malformed"


def test_what_was_read_is_gone_on_with_once_and_the_name_may_be_another(carrying):
    with ravi_otel.run("triage", priority=Priority.HIGH):
        found = read(outbound_headers(URL))
    with continue_run(found, name="billing") as run:
        assert (run.scope.facts.name, run.supervision.priority) == ("billing", Priority.HIGH)
    assert isinstance(found, Inbound)


def test_it_is_a_decorator_and_works_in_both_colours(carrying):
    with ravi_otel.run("triage"):
        headers = outbound_headers(URL)

    @continue_run(headers)
    def work():
        return ravi_otel.current_scope().facts.run_name

    @continue_run(headers)
    async def work_async():
        return ravi_otel.current_scope().facts.run_name

    assert (work(), asyncio.run(work_async())) == ("triage", "triage")


# -- what is left ---------------------------------------------------------------------------------------------------------


def test_without_a_store_in_common_it_is_held_to_what_is_left(carrying):
    with ravi_otel.run(limits=["tokens=100", "cost=2usd", "requests=5", "tool.search=3", "charge.rows=9"]) as outer:
        spend(30)
        outer.scope.charge("rows", 4)
        with ravi_otel.agent("a", limits=["tokens=60", "turns=4"]):
            headers = outbound_headers(URL)
    with continue_run(headers, limits=["tokens=65"]) as run:
        assert {type(each.limit.kind) for each in (*run.limits, *outer.limits)} == {str}
        assert sorted(each.remaining for each in run.limits if each.limit.kind == "tokens") == [60, 65]
        assert {kind: left for kind, left in seen(run).items() if kind != "tokens"} == {
            "cost": 2.0, "requests": 5, "tool.search": 3, "rows": 5, "turns": 4,
        }  # fmt: skip
        assert [spend(60), spend(1)] == [60, "exhausted"]


def test_a_scope_that_drains_leaves_nothing(carrying):
    with ravi_otel.run(limits=["tokens=100"]):
        spend(90)
        spend(20)
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        assert seen(run) == {"tokens": 0}
        assert spend(1) == "exhausted"


def test_a_limit_that_only_watches_here_limits_nobody_there(carrying):
    with ravi_otel.run(limits=["tokens=100:on=observe"]):
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        assert run.limits == []


def test_limits_of_other_agents_hold_for_those_of_that_name(carrying):
    with ravi_otel.run(limits=["tokens@writer=40", "tokens@reader=30"]), ravi_otel.agent("reader"):
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        assert seen(run) == {"tokens": 30, "tokens@writer": 40}


def test_a_strict_limit_is_strict_there_too_and_the_least_careful_option_never_wins(carrying):
    with ravi_otel.run(limits=["cost=2usd:unpriced=warn"]), ravi_otel.apply_limits(["cost=9usd:admission=strict"]):
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        [limit] = [each.limit for each in run.limits]
        assert (limit.amount, limit.admission, limit.on_unpriced) == (2.0, "strict", "refuse")


def test_the_deadline_goes_along_and_ends_there_what_it_ends_here(carrying, clock):
    with ravi_otel.run(limits=["time=90s", "working=60s"]), ravi_otel.agent("a", limits=["time=50s"]):
        clock.advance(10)
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        assert {type(each.limit.kind) for each in run.limits} == {str}
        assert seen(run) == {"time": 40.0, "working": 50.0}
        clock.advance(40)
        with pytest.raises(DeadlineExceededError, match="deadline"):
            run.scope.checkpoint()


def test_the_deadline_does_not_wait_until_the_run_is_entered(carrying, clock):
    with ravi_otel.run(limits=["time=90s"]):
        headers = outbound_headers(URL)
    run = continue_run(headers)
    clock.advance(60)
    with run:
        assert seen(run) == {"time": 30.0}


def test_a_deadline_that_is_over_leaves_no_time(carrying, clock):
    with ravi_otel.run(limits=["time=5s"]):
        clock.advance(9)
        headers = outbound_headers(URL)
    with continue_run(headers) as run, pytest.raises(DeadlineExceededError):
        run.scope.checkpoint()


@pytest.mark.parametrize(("most", "there"), [(5, 3), (3, 1)])
def test_no_more_agents_live_there_than_have_room_here(carrying, most, there):
    with ravi_otel.run(spawn_budget=SpawnBudget(max_agents=most)), ravi_otel.agent("a0"), ravi_otel.agent("a1"):
        headers = outbound_headers(URL)
    with continue_run(headers) as run:
        with ExitStack() as opened:
            for at in range(there):
                opened.enter_context(ravi_otel.agent(f"b{at}"))
            with pytest.raises(SpawnDeniedError), ravi_otel.agent("more"):
                pass
        assert run.status == "open"


def test_where_no_agent_has_room_none_lives_there(carrying):
    with ravi_otel.run(spawn_budget=SpawnBudget(max_agents=1)), ravi_otel.agent("a"):
        headers = outbound_headers(URL)
    with continue_run(headers), pytest.raises(SpawnDeniedError), ravi_otel.agent("b"):
        pass


def test_slots_that_are_counted_in_one_store_are_taken_by_both(world):
    with ravi_otel.run(spawn_budget=SpawnBudget(max_agents=3)), ravi_otel.agent("a"):
        headers = [outbound_headers(URL) for _ in range(2)]

        def act():
            with continue_run(headers[0]), continue_run(headers[1]), ravi_otel.agent("b"), ravi_otel.agent("c"):
                with pytest.raises(SpawnDeniedError), ravi_otel.agent("d"):
                    pass
                return True

        assert world.elsewhere(act)
        with ravi_otel.agent("e"), ravi_otel.agent("f"), pytest.raises(SpawnDeniedError), ravi_otel.agent("g"):
            pass


def test_a_slot_that_is_taken_there_is_taken_here(world):
    with ravi_otel.run(spawn_budget=SpawnBudget(max_agents=2)), ravi_otel.agent("a"):
        headers = outbound_headers(URL)
        there = []

        def act():
            there.append(continue_run(headers))
            there.append(ravi_otel.agent("b"))
            for each in there:
                each.__enter__()

        world.elsewhere(act)
        if world.shared:
            with pytest.raises(SpawnDeniedError), ravi_otel.agent("c"):
                pass
        else:
            with ravi_otel.agent("c"):
                pass
        for each in reversed(there):
            world.elsewhere(lambda each=each: each.__exit__(None, None, None))
        with ravi_otel.agent("c"):
            pass


@pytest.mark.parametrize(("depth", "levels"), [(3, 2), (2, 1), (1, 0)])
def test_depth_is_counted_on_from_the_agent_that_calls(carrying, depth, levels):
    with ravi_otel.run(limits=[f"depth={depth}"]), ravi_otel.agent("a"), ravi_otel.agent("b"):
        headers = outbound_headers(URL)
    with continue_run(headers), ExitStack() as opened:
        for at in range(levels):
            opened.enter_context(ravi_otel.agent(f"c{at}"))
        with pytest.raises((BudgetError, SpawnDeniedError)):
            opened.enter_context(ravi_otel.agent("more"))


def test_limits_that_hold_here_hold_besides(carrying):
    before = (STATE.engine, STATE.limits)
    with ravi_otel.run(limits=["tokens=100"]):
        headers = task_headers()
    STATE.install(STATE.engine, (ravi_otel.token_limit(50),))
    try:
        with continue_run(headers):
            assert [spend(50), spend(1)] == [50, "exhausted"]
    finally:
        STATE.install(*before)


def test_nothing_that_comes_in_makes_a_limit_looser(carrying):
    with ravi_otel.run(limits=["tokens=1000000"]):
        headers = outbound_headers(URL)
    with continue_run(headers, limits=["tokens=5"], otherwise=["tokens=1"]):
        assert spend(6) == "too_large"
    with ravi_otel.run(limits=["tokens=7"]), continue_run(headers):
        assert spend(8) == "too_large"


# -- one store ------------------------------------------------------------------------------------------------------------


def test_where_both_count_in_one_store_the_very_limits_of_the_caller_are_charged(world):
    with ravi_otel.run(limits=["tokens=100", "requests=3"]) as outer:
        headers = [outbound_headers(URL) for _ in range(3)]

        def act(at):
            with continue_run(headers[at]):
                return spend(40)

        came = [world.elsewhere(lambda at=at: act(at)) for at in range(3)]
        if world.shared:
            assert came == [40, 40, "exhausted"]
            assert [spend(20), spend(1), used(outer)] == ["draining", "draining", 80]
        else:
            assert came == [40, 40, 40]
            assert used(outer) == 0


def test_what_the_caller_used_since_counts_there_as_well(world):
    with ravi_otel.run(limits=["cost=1usd"]) as outer:
        headers = outbound_headers(URL)
        spend(900_000_000, "cost")

        def act():
            with continue_run(headers):
                return spend(200_000_000, "cost")

        assert world.elsewhere(act) == ("exhausted" if world.shared else 200_000_000)
        assert used(outer, "cost") == 0.9


def test_limits_of_sessions_and_of_runs_around_runs_are_shared_too(world):
    with (
        ravi_otel.run("outer", session_id="s", limits=["session.tokens=100", "tokens=90"]),
        ravi_otel.run("inner", limits=["tokens=80"]) as inner,
    ):
        headers = outbound_headers(URL)

        def act():
            with continue_run(headers):
                return spend(50), {str(each.facts.kind): each.used for each in ravi_otel.current_scope().plan.accounts()}

        came, there = world.elsewhere(act)
        assert came == 50
        if world.shared:
            assert spend(1) == 1
            assert {each.used for each in inner.scope.plan.accounts()} == {51}
            assert set(there) == {"session", "run"}


def test_a_tenants_limit_of_the_day_is_shared_with_a_run_inside_of_a_run_that_has_none(world):
    with (
        ravi_otel.run("outer", limits=["tokens=1000"]),
        ravi_otel.run("inner", tenant_id="t", limits=["tenant.tokens=100:per=day"]) as inner,
    ):
        spend(10)
        headers = outbound_headers(URL)

        def act():
            with continue_run(headers):
                return [spend(50), spend(50)]

        assert world.elsewhere(act) == [50, "too_large"]
        spend(1)
        assert [each.used for each in inner.scope.plan.accounts()] == ([61, 61] if world.shared else [11, 11])


def test_an_agents_own_limit_is_a_ceiling_there_besides_what_is_shared(world):
    with ravi_otel.run(limits=["tokens=100"]), ravi_otel.agent("a", limits=["tokens=30"]):
        headers = outbound_headers(URL)

    def act():
        with continue_run(headers):
            return spend(31), spend(30), spend(1)

    assert world.elsewhere(act) == ("too_large", 30, "exhausted")


def test_what_was_lent_is_charged_to_the_lender_once(world):
    with ravi_otel.run("outer", session_id="s", limits=["session.tokens=1000", "tokens=100", "requests=9"]) as outer:
        loan = lend(tokens=60)
        headers = outbound_headers(URL, lend=loan)

        def act():
            with continue_run(headers) as run:
                came = spend(40), spend(1, "requests"), spend(21)
                return came, run_sync(run.give_back())

        came, value = world.elsewhere(act)
        assert came == (40, 1, "too_large")
        assert take_return(URL, {RETURN_HEADER: value})
        assert (used(outer), outer.limits[0].held) == (40, 0)
        assert next(each.used for each in outer.scope.plan.accounts() if each.facts.kind == "session") == 40


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_loan_is_held_and_comes_back_in_tasks_over_each_store(world, anyio_backend):
    async with ravi_otel.run("outer", limits=["tokens=100"]) as outer:
        async with lend(tokens=60) as loan:
            headers = {"baggage": headers_for(URL, None)}
            assert (used(outer), outer.limits[0].held) == (0, 60)
        async with lend(tokens=30) as unsent:
            assert outer.limits[0].held == 90

        def act():
            with continue_run(headers) as run:
                return spend(40), run.return_headers()

        came, answer = world.elsewhere(act)
        assert (came, unsent.status) == (40, "released")
        await run_async(returned(URL, answer[RETURN_HEADER]))
        assert (loan.status, used(outer), outer.limits[0].held) == ("returned", 40, 0)


def test_a_loan_inside_of_the_lenders_own_scope_counts_once(carrying):
    with ravi_otel.run("outer", limits=["tokens=100"]) as outer:
        with lend(tokens=60):
            headers = {"baggage": headers_for(URL, None)}
        with continue_run(headers) as run:
            assert spend(40) == 40
            value = run_sync(run.give_back())
        assert used(outer) == 0
        assert take_return(URL, {RETURN_HEADER: value})
        assert (used(outer), outer.limits[0].held) == (40, 0)


def test_a_store_that_has_forgotten_the_run_refuses_who_goes_on_with_it(world):
    if not world.shared:
        return
    with ravi_otel.run(limits=["tokens=100"]) as outer:
        spend(10)
        headers = outbound_headers(URL)
        token = read(headers).token
        [scope] = token.shared
        assert scope.limits[0][1] is not None
        forged = [(limit, "e" * 12) for limit, _ in scope.limits]
    object.__setattr__(scope, "limits", forged)

    def act():
        with continue_run(Inbound(token)):
            return spend(1)

    with pytest.raises(BudgetExhaustedError) as raised:
        world.elsewhere(act)
    assert raised.value.reason == "store_lost", raised.value
    assert outer.status == "ok"


CHILD = """
import os, sys
import ravi_otel
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0)
with ravi_otel.instrument():
    with ravi_otel.continue_run(os.environ) as run:
        for _ in range(4):
            try:
                client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
            except ravi_otel.BudgetExhaustedError as error:
                print("refused", run.rejected)
                break
        print(run.id, run.stats().total_tokens)
"""


def test_a_child_process_is_cut_off_by_the_very_limit_of_its_parents_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:0123456789abcdef")
    monkeypatch.setenv("RAVI_LEDGER", f"sqlite:{tmp_path / 'ledger.db'}")
    with (
        ScriptedLLM(lambda request: Text("ok", usage=(20, 20))) as server,
        ravi_otel.instrument(),
        OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
        ravi_otel.run("parent", limits=["tokens=80"]) as run,
    ):
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
        command = [sys.executable, "-c", CHILD, server.base_url]
        child = warm_starts.run(command, env={**os.environ, **child_environment()}, check=True)
        assert child.stdout.split() == ["refused", "None", run.id, "40"]
        with pytest.raises(BudgetExhaustedError):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hi" * 100}], max_tokens=50)
        assert used(run) == 80
