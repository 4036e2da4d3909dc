"""What identifies a run to whoever works for it, and who may stop which part of it: `meta`, `cancel()`."""

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import ravi_otel
from ravi_otel import CancellationError, ConfigurationError, DeadlineExceededError, ExecutionBudget, RunMeta, SpawnBudget
from ravi_otel._runtime.stopping import IN_FLIGHT
from ravi_otel.testing import Text

pytestmark = pytest.mark.anyio
TRACE = 0x1234567890ABCDEF1234567890ABCDEF


@pytest.fixture
def held(stage):
    """Let the server think until the test is over."""
    stage.server.hold()
    return stage


@contextmanager
def once_sent(stage, act, calls=1):
    """Act from another thread once `calls` requests have come to the server."""

    def wait_and_act():
        stage.wait_for(calls)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def in_trace(number):
    span = NonRecordingSpan(SpanContext(number, 1, is_remote=False, trace_flags=TraceFlags(0)))
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        otel_context.detach(token)


def test_it_names_run_tenant_and_place(instrumented):
    with ravi_otel.run("r", tenant_id="t") as run, ravi_otel.agent("a") as agent:
        assert (run.meta.run_id, run.meta.tenant_id, run.meta.deadline) == (run.id, "t", None)
        assert run.meta.supervision is run.supervision
        assert agent.meta.supervision is agent.supervision
        assert ravi_otel.current_scope().meta.run_id == run.id
        assert agent.meta.cancellation is agent.meta.cancellation


def test_its_trace_is_the_one_its_span_is_in_from_wherever_it_is_read(instrumented):
    with in_trace(TRACE), ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        with in_trace(TRACE + 1):
            found = [run.meta.trace_id, agent.meta.trace_id]
        thread = threading.Thread(target=lambda: found.append(run.meta.trace_id))
        thread.start()
        thread.join()
    assert found == [trace.format_trace_id(TRACE)] * 3


def test_without_any_span_one_trace_is_made_up_for_the_whole_run(instrumented):
    with ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        run.scope.trace_id = agent.scope.trace_id = None
        with in_trace(0):
            assert agent.meta.trace_id == run.meta.trace_id == agent.meta.trace_id


def test_its_deadline_is_the_tightest_around(instrumented):
    before = time.time()
    with ravi_otel.run("r", limits=["time=100s", "working=5s"]) as run, ravi_otel.agent("a", budget=ExecutionBudget(deadline_s=50)):  # noqa: SIM117 - one kind of scope a line
        with ravi_otel.agent("b", budget=ExecutionBudget(deadline_s=70)) as inner, ravi_otel.agent("c", limits=["time=9s"]) as tight:
            left = [one.meta.deadline - before for one in (run, inner, tight)]
    assert [round(seconds, -1) for seconds in left] == [100, 50, 10]


def test_past_its_deadline_it_says_so(on_clock):
    with ravi_otel.run("r", limits=["time=10s"]) as run:
        run.meta.check()
        on_clock.advance(11)
        with pytest.raises(DeadlineExceededError):
            run.meta.check()


def test_read_after_its_deadline_it_tells_how_much_was_allowed_and_for_how_long_it_is_past(on_clock):
    with ravi_otel.run("r", budget=ExecutionBudget(deadline_s=10)) as run:
        on_clock.advance(12)
        with pytest.raises(DeadlineExceededError, match=r"run 'r' had 10\.000 s and is [\d.]+ s over") as caught:
            run.meta.check()
    error = caught.value
    assert (error.threshold, error.used) == (10, 10 - error.remaining)
    assert error.remaining <= -2
    assert (error.scope, error.run_name, error.run_id, error.agent_name) == ("run", "r", run.id, None)


def test_an_agents_deadline_is_told_under_the_agents_name(on_clock):
    with ravi_otel.run("r", limits=["time=90s"]), ravi_otel.agent("a", limits=["time=10s"]), ravi_otel.agent("b") as below:
        on_clock.advance(15)
        with pytest.raises(DeadlineExceededError, match=r"agent 'a' of run 'r' had 10\.000 s and is [\d.]+ s over") as caught:
            below.meta.check()
    assert (caught.value.scope, caught.value.agent_name, caught.value.threshold) == ("agent", "a", 10)


def test_an_agent_without_a_session_is_given_none(instrumented):
    with ravi_otel.agent("alone") as alone, ravi_otel.agent("below") as below:
        assert (alone.supervision.session_id, below.supervision.session_id) == (None, None)


def test_a_deadline_that_is_only_watched_is_none(settings):
    with settings(observe=True), ravi_otel.run("r", limits=["time=10s"]) as run:
        assert run.meta.deadline is None


def test_outside_any_run_there_is_standalone(instrumented):
    with pytest.raises(ConfigurationError, match=r"RunMeta\.standalone\(\)"):
        _ = ravi_otel.current_scope().meta
    RunMeta.standalone("worker").check()
    with ravi_otel.agent("alone") as alone:
        assert alone.meta.run_id == alone.supervision.run_id


async def test_cancelling_through_the_meta_ends_an_awaited_call_in_an_agent(held, aclient, ask):
    async with ravi_otel.run("r") as run:
        meta = run.meta
        with (
            once_sent(held, lambda: meta.cancellation.cancel("enough")),
            pytest.raises(CancellationError, match="run 'r' was cancelled: enough"),
        ):
            async with ravi_otel.agent("a"), ravi_otel.agent("b"):
                await ask(aclient)
        with pytest.raises(CancellationError):
            meta.check()
    assert not IN_FLIGHT


async def test_cancelling_through_the_meta_cuts_a_stream_with_its_partial_text(stage, aclient, ask):
    stage.answer = Text("word " * 200)
    async with ravi_otel.run("r", limits=["tokens=100k"]) as run:
        with pytest.raises(CancellationError) as raised:  # noqa: PT012 - the agent must end by it
            async with ravi_otel.agent("a") as agent:
                async for _ in await ask(aclient, stream=True):
                    run.meta.cancellation.cancel()
        assert raised.value.partial is not None
    assert (agent.status, agent.partial) == ("cancelled", raised.value.partial)


async def test_who_waits_for_the_meta_is_woken(instrumented):
    async with ravi_otel.run("r") as run, ravi_otel.agent("a") as agent:
        waiting = asyncio.create_task(agent.meta.cancellation.wait())
        await asyncio.sleep(0)
        await asyncio.to_thread(run.cancel)
        await asyncio.wait_for(waiting, 30)


async def test_a_cancelled_branch_ends_and_the_others_go_on(held, aclient, ask):
    opened = {}

    async def branch(name):
        async with ravi_otel.agent(name) as opened[name], ravi_otel.agent(f"below {name}"):
            return await ask(aclient)

    def cancel_one():
        opened["one"].cancel("not needed")
        held.server.release()

    async with ravi_otel.run("r") as run:
        with once_sent(held, cancel_one, calls=2):
            first, second = await asyncio.gather(branch("one"), branch("two"), return_exceptions=True)
        held.server.release()
        run.meta.check()
        with pytest.raises(CancellationError):
            opened["one"].meta.check()
        await ask(aclient)
    assert isinstance(first, CancellationError)
    assert str(first) == "agent 'one' of run 'r' was cancelled: not needed"
    assert second.choices[0].message.content == "ok"
    assert (opened["one"].status, opened["two"].status, run.status) == ("cancelled", "ok", "ok")


def test_what_comes_next_in_a_cancelled_branch_is_refused(client, ask, stage):
    with ravi_otel.run("r"), ravi_otel.agent("lead"):
        with pytest.raises(CancellationError, match="agent 'branch'"), ravi_otel.agent("branch") as branch:  # noqa: PT012 - the agent must end by it
            branch.cancel()
            with pytest.raises(CancellationError), ravi_otel.agent("below"):
                ask(client)
            with pytest.raises(CancellationError), ravi_otel.spawn("another"):
                pytest.fail("it opened")
            ask(client)
        ask(client)
    assert stage.sent == 1


def test_a_branch_of_no_run_is_cancelled_alone_too(client, ask):
    with ravi_otel.agent("outer"):
        with pytest.raises(CancellationError), ravi_otel.agent("inner") as inner:  # noqa: PT012 - the agent must end by it
            inner.cancel()
            ask(client)
        ask(client)


def test_an_agent_that_was_cancelled_is_so_even_when_it_swallows_it(instrumented):
    with ravi_otel.run("r") as run:
        with ravi_otel.agent("a") as agent:
            agent.cancel()
        with ravi_otel.agent("b") as finished:
            run.cancel()
    assert (agent.status, finished.status, run.status) == ("cancelled", "ok", "cancelled")


def test_an_agent_opened_in_a_cancelled_run_is_cancelled_from_the_start(instrumented):
    with ravi_otel.run("r") as run:
        run.cancel("over")
        with ravi_otel.agent("a") as late, pytest.raises(CancellationError, match="run 'r' was cancelled: over"):
            late.scope.checkpoint()
        assert late.meta.cancellation.reason == "over"


def test_one_cancellation_looks_once_through_what_is_in_flight(instrumented, monkeypatch):
    with ravi_otel.run("r", spawn_budget=SpawnBudget(20)) as run:
        handles = [ravi_otel.agent(f"a{number}") for number in range(10)]
        for handle in handles:
            handle.__enter__()
        looks, engine = [], run.scope.engine
        monkeypatch.setattr(engine, "when_stopped", lambda: looks.append(1))
        run.cancel()
        run.cancel()
        for handle in reversed(handles):
            handle.__exit__(None, None, None)
    assert looks == [1]


def test_a_stream_that_was_cut_before_its_first_word_leaves_an_empty_partial(instrumented):
    with ravi_otel.run("r") as run:
        error = CancellationError("cancelled")
        error.partial = ""
        with pytest.raises(CancellationError), ravi_otel.agent("a") as agent:
            raise error
    assert (agent.status, agent.partial, run.status) == ("cancelled", "", "ok")
