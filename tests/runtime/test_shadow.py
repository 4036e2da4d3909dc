"""Shadow mode changes nothing, and tells what would have been refused (enforcement §7)."""

import asyncio

import pytest

import ravi_otel
from ravi_otel import ExecutionTracker, SpawnDeniedError, SpawnTracker
from ravi_otel._enforcement.engine import Engine
from ravi_otel._pricing import PriceBook
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listeners

MODEL = "gpt-4o-mini"


@ravi_otel.tool
def work():
    return "done"


def call(stage, client):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}]).choices[0].message.content


def stream(stage, client):
    chunks = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def unpriced(stage, client):
    return client.chat.completions.create(model="nobody-knows", messages=[{"role": "user", "content": "hi"}]).choices[0].message.content


def tool(stage, client):
    return work()


def charge(stage, client):
    ravi_otel.current_scope().charge("rows", 5, op_id=None)


def agent(stage, client):
    with ravi_otel.agent("a"):
        pass


def late(stage, client):
    STATE.engine.clock.advance(2)
    ravi_otel.current_scope().checkpoint()


def consume(stage, client):
    ExecutionTracker.current().consume(tokens=500, external=True)


PLACES = [
    (call, "requests=0", "ok"),
    (call, "turns=0", "ok"),
    (call, "tokens=0", "ok"),
    (call, "input_tokens=0", "ok"),
    (call, "output_tokens=0", "ok"),
    (call, "cost=0", "ok"),
    (call, "messages=1", "ok"),
    (stream, "tokens=1", "ok"),
    (stream, "output_tokens=1", "ok"),
    (tool, "tool_calls=0", "done"),
    (tool, "tool.work=0", "done"),
    (charge, "charge.rows=4", None),
    (agent, "depth=0", None),
    (late, "time=1", None),
    (late, "working=1", None),
    (consume, "tokens=400", None),
]
"""What would be refused, the limit that would, and what it gives when nothing is."""


@pytest.fixture
def shadow(instrumented, clock, heard):
    """Install an engine whose limits are enforced or not, and keep what it counts as well as what it tells."""
    before = STATE.engine, STATE.limits

    def counted(event):
        heard.counts.append((event.what, event.limit_kind, event.observed))

    heard.counted = counted

    def install(*, observe):
        STATE.install(
            Engine(clock=clock, listeners=Listeners([heard]), prices=PriceBook({MODEL: {"input": 1e3, "output": 1e3}}), observe=observe), ()
        )
        return heard

    yield install
    STATE.install(*before)


def kind_of(limit):
    return limit.partition("=")[0].removeprefix("charge.")


@pytest.mark.parametrize("whole", [True, False], ids=["process", "limit"])
@pytest.mark.parametrize(("act", "limit", "result"), PLACES, ids=lambda one: getattr(one, "__name__", one))
def test_nothing_is_refused_and_it_is_told_once(stage, client, shadow, act, limit, result, whole):
    heard = shadow(observe=whole)
    with ravi_otel.run("r", limits=[limit if whole else f"{limit}:on=observe"]) as run, ravi_otel.agent("root"):
        for _ in range(3):
            assert act(stage, client) == result
    exceeded = [(event.limit_kind, event.decision) for event in heard.limits if event.event == "limit_exceeded"]
    assert exceeded == [(kind_of(limit), "observed")]
    assert (run.status, run.stats().refused, run.limits[0].held) == ("ok", 0, 0)


@pytest.mark.parametrize(
    ("act", "limit"), [(call, "requests=0"), (call, "tokens=0"), (tool, "tool_calls=0"), (charge, "charge.rows=4"), (late, "time=1")]
)
def test_what_would_have_been_refused_is_counted_each_time(stage, client, shadow, act, limit):
    heard = shadow(observe=True)
    with ravi_otel.run("r", limits=[limit]):
        for _ in range(3):
            act(stage, client)
    assert [count for count in heard.counts if count[0] == "denied"] == [("denied", kind_of(limit), True)] * 3


def test_an_unknown_price_is_let_through_and_counted(stage, client, shadow):
    heard = shadow(observe=True)
    with ravi_otel.run("r", limits=["cost=1"]):
        assert unpriced(stage, client) == "ok"
    assert ("denied", "cost", True) in heard.counts
    assert [(record.decision, record.limit_reason) for record in heard.calls] == [("observed", "unpriced_model")]


@pytest.mark.parametrize("whole", [True, False], ids=["process", "limit"])
def test_agents_beyond_the_cap_are_let_in_and_told(shadow, whole):
    heard = shadow(observe=whole)
    with ravi_otel.run("r", limits=["agents=1" if whole else "agents=1:on=observe"]), ravi_otel.agent("a"), ravi_otel.agent("b"):
        lease = SpawnTracker.current().acquire("c", ravi_otel.Priority.HIGH)
        waited = SpawnTracker.current().wait_for_slot_blocking("d", timeout_s=60)
        assert SpawnTracker.current().stats().active == 4
        lease.release()
        waited.release()
    assert (heard.spawns.count("denied"), heard.spawns.count("granted"), "preempted" in heard.spawns) == (3, 4, False)


def test_a_spawn_budget_beside_a_watched_cap_holds(shadow):
    shadow(observe=False)
    run = ravi_otel.run("r", limits=["agents=1:on=observe"], spawn_budget=ravi_otel.SpawnBudget(max_agents=2))
    with run, ravi_otel.agent("a"), ravi_otel.agent("b"), pytest.raises(SpawnDeniedError), ravi_otel.agent("c"):
        pytest.fail("it was let in")


@pytest.mark.anyio
@pytest.mark.parametrize("whole", [True, False], ids=["process", "limit"])
async def test_nobody_waits_in_line(stage, aclient, shadow, ask, whole):
    """Ten at once, held back by the server until all are there: in line, they would never be."""
    heard = shadow(observe=whole)
    stage.server.hold()
    with ravi_otel.run("r", limits=["tokens=1500" if whole else "tokens=1500:on=observe"]):
        calls = [asyncio.ensure_future(ask(aclient)) for _ in range(10)]
        await asyncio.to_thread(stage.wait_for, 10)
        stage.server.release()
        answers = await asyncio.gather(*calls)
    assert len(answers) == 10
    assert "contended" not in {count[0] for count in heard.counts}


def test_a_limit_that_holds_holds_beside_one_that_watches(stage, client, ask, shadow):
    heard = shadow(observe=False)
    with ravi_otel.run("r", limits=["requests=2", "turns=1:on=observe"]) as run:
        call(stage, client)
        call(stage, client)
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            call(stage, client)
    assert (stage.sent, run.stats().refused) == (2, 1)
    told = [(event.limit_kind, event.decision) for event in heard.limits if event.event == "limit_exceeded"]
    assert told == [("turns", "observed"), ("requests", "denied")]


def test_a_kill_switch_and_a_cancellation_are_the_programs_own(client, stage, shadow):
    shadow(observe=True)
    with ravi_otel.run("r") as run:
        run.scope.close()
        with pytest.raises(ravi_otel.BudgetExhaustedError, match="was closed"):
            call(stage, client)
    with ravi_otel.run("r") as run:
        run.cancel()
        with pytest.raises(ravi_otel.CancellationError):
            call(stage, client)


def test_the_same_requests_leave_as_without_limits(stage, client, shadow):
    """No clamp, no shorter time-out, nothing added: what is sent is byte for byte the same."""

    def sent(limits):
        with ravi_otel.run("r", limits=limits):
            call(stage, client)
        return stage.server.requests[-1]

    shadow(observe=True)
    limits = ["tokens=10:admission=strict", "cost=0.001:admission=strict", "time=3"]
    plain, watched = sent([]), sent(limits)
    assert watched.body == plain.body
    assert watched.headers.get("x-stainless-read-timeout") == plain.headers.get("x-stainless-read-timeout")
