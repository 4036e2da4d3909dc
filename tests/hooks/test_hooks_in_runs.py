"""What hooks hear of runs, agents, calls, tools, limits and slots, and who hears it."""

import asyncio
import contextvars
import gc
import threading
import traceback
from contextlib import nullcontext

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, HookEvent, HookManager, Priority, RunLogger, SpawnBudget, SpawnDeniedError, SpawnTracker
from ravi_otel._enforcement.engine import Engine
from ravi_otel._runtime.state import STATE
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.hooks._manager import Bridge
from ravi_otel.testing import Capture, Failure, ManualClock, Text

LIMIT_KEYS = {
    "agent_name", "agent_id", "run_id", "session_id", "scope", "limit_kind", "threshold", "used", "held", "remaining", "exceeded_by",
    "ratio", "phase", "enforcement", "decision", "trace_id", "span_id",
}  # fmt: skip


def names(log):
    return [one.event.value for one in log]


def only(log, event):
    return [one.context for one in log if one.event is event]


@ravi_otel.tool
def look(word):
    return word


@pytest.fixture(params=["sync", "async"])
def call(request, stage, ask, instrumented):
    """Make one call in a run and an agent, in either colour; gives what came of it."""

    def in_thread(hooks, **more):
        with stage.client() as client, ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
            result = ask(client, **more)
            return "".join(part.choices[0].delta.content or "" for part in result if part.choices) if more.get("stream") else result

    async def in_task(hooks, **more):
        async with stage.async_client() as client, ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
            result = await ask(client, **more)
            if not more.get("stream"):
                return result
            return "".join([part.choices[0].delta.content or "" async for part in result if part.choices])

    return in_thread if request.param == "sync" else lambda hooks, **more: asyncio.run(in_task(hooks, **more))


def test_a_run_tells_everything_in_it_in_order(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks, session_id="s") as run, ravi_otel.agent("a"):
        ask(client)
        look("x")
        with ravi_otel.handoff("b"):
            ask(client)
    assert names(log) == [
        "flow_start", "run_start", "llm_start", "llm_end", "tool_start", "tool_end",
        "handoff", "llm_start", "llm_end", "run_end", "flow_end",
    ]  # fmt: skip
    assert {one.context["run_id"] for one in log} == {run.id}
    assert {one.context["session_id"] for one in log} == {"s"}
    assert {one.context["agent_name"] for one in log if "flow" not in one.event} == {"a"}
    assert [one.context["event"] for one in log] == names(log)


def test_the_end_of_a_call_tells_usage_model_cost_and_status(call, hooks, log):
    call(hooks)
    begun, ended = only(log, HookEvent.LLM_START)[0], only(log, HookEvent.LLM_END)[0]
    assert (begun["agent_name"], begun["model"], begun["operation"], begun["provider"]) == ("a", "gpt-4o-mini", "chat", "openai")
    assert begun["call_id"] == ended["call_id"]
    assert (ended["usage"]["input_tokens"], ended["usage"]["output_tokens"], ended["usage"].total_tokens) == (10, 20, 30)
    assert (ended["model"], ended["cost_usd"], ended["status"], ended["error_type"]) == ("gpt-4o-mini", 0.03, "ok", None)


def test_a_stream_is_over_when_it_was_read(call, hooks, log):
    assert call(hooks, stream=True, stream_options={"include_usage": True}) == "ok"
    assert names(log) == ["flow_start", "run_start", "llm_start", "llm_end", "run_end", "flow_end"]
    assert only(log, HookEvent.LLM_END)[0]["usage"]["total_tokens"] == 30


def test_an_unknown_cost_is_none_and_never_zero(call, hooks, log):
    call(hooks, model="a-model-nobody-prices")
    assert only(log, HookEvent.LLM_END)[0]["cost_usd"] is None
    assert only(log, HookEvent.RUN_END)[0]["cost_usd"] is None
    assert only(log, HookEvent.FLOW_END)[0]["unpriced_calls"] == 1


def test_a_call_that_fails_and_one_that_is_refused_say_so(client, stage, ask, hooks, log):
    stage.answer = Failure(400, "no")
    with ravi_otel.run("r", hooks=hooks, limits=["requests=1"]):
        for error in (Exception, BudgetExhaustedError):
            with pytest.raises(error):
                ask(client)
    failed, refused = only(log, HookEvent.LLM_END)
    assert (failed["status"], failed["error_type"], failed["usage"], failed["cost_usd"]) == ("error", "BadRequestError", None, 0.0)
    assert (refused["status"], refused["limit_kind"], refused["decision"], refused["cost_usd"]) == ("refused", "requests", "denied", 0.0)
    assert only(log, HookEvent.FLOW_END)[0]["status"] == "stopped"


def test_the_end_of_an_agent_and_of_a_run_tell_what_was_used_and_how_it_ended(client, ask, hooks, log):
    def works():
        with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
            ask(client)
            raise KeyError("x")

    with pytest.raises(KeyError):
        works()
    for ended in (only(log, HookEvent.RUN_END)[0], only(log, HookEvent.FLOW_END)[0]):
        assert (ended["status"], ended["error_type"], ended["cost_usd"], ended["requests"]) == ("error", "KeyError", 0.03, 1)
        assert ended["usage"]["total_tokens"] == 30
        assert ended["duration_ms"] > 0


def test_a_tool_tells_its_name_its_end_and_never_what_it_was_given(hooks, log):
    @ravi_otel.tool(name="divide")
    def divides(secret):
        return 1 / 0

    with ravi_otel.run("r", hooks=hooks), pytest.raises(ZeroDivisionError):
        divides("hunter2")
    begun, ended = (one.context for one in list(log)[1:3])
    assert (begun["tool_name"], ended["tool_name"], ended["status"], ended["error_type"]) == (
        "divide",
        "divide",
        "error",
        "ZeroDivisionError",
    )
    assert ended["duration_ms"] >= 0
    assert "hunter2" not in repr(list(log))


def test_a_handoff_says_who_hands_over_and_to_whom(hooks, log):
    with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"), ravi_otel.handoff("b"):
        pass
    (told,) = only(log, HookEvent.HANDOFF)
    assert (told["agent_name"], told["to"]) == ("a", "b")


# -- who hears it -----------------------------------------------------------------------------------------------------


def test_an_agents_hooks_hear_its_own_work_and_not_its_child_agents_or_runs_inside(client, ask, hooks, log):
    with ravi_otel.run("r"), ravi_otel.agent("a", hooks=hooks):
        with ravi_otel.apply_limits(["tokens=1k"]):
            ask(client)
        with ravi_otel.handoff("h"):
            look("x")
        with ravi_otel.agent("child"):
            ask(client)
            look("x")
        with ravi_otel.run("inner"):
            ask(client)
    assert names(log) == ["run_start", "llm_start", "llm_end", "handoff", "tool_start", "tool_end", "run_end"]
    assert {one.context["agent_name"] for one in log} == {"a"}


def test_a_runs_hooks_hear_runs_and_agents_inside_it(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"), ravi_otel.agent("child"), ravi_otel.run("inner"):
        ask(client)
    assert names(log) == [
        "flow_start", "run_start", "run_start", "flow_start", "llm_start", "llm_end", "flow_end", "run_end", "run_end", "flow_end",
    ]  # fmt: skip


def test_nobody_hears_of_runs_beside_it(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks):
        pass
    with ravi_otel.run("other"), ravi_otel.agent("b"):
        ask(client)
    assert names(log) == ["flow_start", "flow_end"]


def test_a_manager_that_is_given_twice_hears_once(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=[hooks, hooks]), ravi_otel.agent("a", hooks=hooks):
        ask(client)
    assert names(log).count("llm_end") == 1


def test_several_managers_hear_each_for_itself(client, ask):
    managers = [HookManager(), HookManager()]
    logs = [RunLogger(manager) for manager in managers]
    with ravi_otel.run("r", hooks=iter(managers)):
        ask(client)
    assert [names(log) for log in logs] == [["flow_start", "llm_start", "llm_end", "flow_end"]] * 2


def test_hooks_of_the_process_hear_every_run_and_calls_outside_of_any_until_it_is_uninstrumented(stage, ask, hooks, log):
    with ravi_otel.instrument(hooks=hooks), stage.client() as client:
        ask(client)
        with ravi_otel.run("r"), ravi_otel.agent("a", hooks=hooks):
            ask(client)
    with ravi_otel.run("after"):
        pass
    assert names(log) == ["llm_start", "llm_end", "flow_start", "run_start", "llm_start", "llm_end", "run_end", "flow_end"]


def test_a_run_that_is_open_when_the_process_is_uninstrumented_tells_its_own_hooks_alone(stage, hooks, log):
    of_the_process = HookManager()
    all_of_it = RunLogger(of_the_process)
    ravi_otel.instrument(hooks=of_the_process)
    with ravi_otel.run("r", hooks=hooks):
        ravi_otel.uninstrument()
    assert (names(log), names(all_of_it)) == (["flow_start", "flow_end"], ["flow_start"])


def test_hooks_hear_runs_also_where_nothing_is_instrumented(hooks, log):
    with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
        pass
    assert names(log) == ["flow_start", "run_start", "run_end", "flow_end"]


def test_a_decorated_function_tells_its_hooks_each_time(hooks, log):
    @ravi_otel.run("r", hooks=hooks)
    def works():
        return 1

    assert (works(), works()) == (1, 1)
    assert names(log) == ["flow_start", "flow_end"] * 2


def test_work_in_threads_and_tasks_of_a_run_is_heard(client, ask, hooks, log):
    async def main():
        await asyncio.gather(*(asyncio.to_thread(ask, client) for _ in range(3)))

    with ravi_otel.run("r", hooks=hooks):
        thread = threading.Thread(target=ask, args=(client,))
        thread.start()
        thread.join()
        asyncio.run(main())
    assert names(log).count("llm_end") == 4


def test_hooks_of_a_run_need_no_listener_where_none_are_given(client, ask):
    with ravi_otel.run("r"), ravi_otel.agent("a"):
        ask(client)
    assert not STATE.engine.listeners.bridged
    assert not any(isinstance(each, Bridge) for each in STATE.engine.listeners._all)


def test_many_runs_with_hooks_have_one_listener_and_leave_nothing_behind(instrumented, hooks, log):
    for number in range(5):
        with ravi_otel.run(f"r{number}", hooks=hooks), ravi_otel.agent("a"):
            pass
    bridges = [each for each in STATE.engine.listeners._all if isinstance(each, Bridge)]
    assert len(bridges) == 1
    assert bridges[0]._open == {}


# -- limits and slots -------------------------------------------------------------------------------------------------


def test_a_limit_tells_the_hooks_of_the_run_that_owns_it(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks, limits=["tokens=35"]) as run, ravi_otel.agent("a"):
        ask(client)
        with pytest.raises(BudgetExhaustedError):
            ask(client, max_tokens=100)
    (near,), (over,) = only(log, HookEvent.LIMIT_NEARING), only(log, HookEvent.LIMIT_EXCEEDED)
    for told in (near, over):
        assert set(told) >= LIMIT_KEYS
        assert (told["run_id"], told["scope"], told["limit_kind"], told["threshold"], told["used"]) == (run.id, "run", "tokens", 35, 30)
    assert (near["phase"], over["phase"], over["decision"]) == ("settle", "admission", "denied")


def test_a_limit_of_an_agent_tells_that_agents_hooks_and_the_runs(client, ask, hooks, log):
    outer = HookManager()
    all_of_it = RunLogger(outer)
    with ravi_otel.run("r", hooks=outer), ravi_otel.agent("a", hooks=hooks, limits=["tokens=35"]):
        ask(client)
    assert [one["scope"] for one in only(log, HookEvent.LIMIT_NEARING)] == ["agent"]
    assert len(only(all_of_it, HookEvent.LIMIT_NEARING)) == 1


def test_a_limit_says_of_which_run_and_tenant_it_is_as_every_other_context_does(hooks, log):
    with ravi_otel.run("named", run_id="r-1", session_id="s-1", tenant_id="acme", hooks=hooks, limits=["charge.rows=10"]):
        ravi_otel.current_scope().charge("rows", 9)
    (near,) = only(log, HookEvent.LIMIT_NEARING)
    assert [near[name] for name in ("run_id", "run_name", "session_id", "tenant_id")] == ["r-1", "named", "s-1", "acme"]


def test_a_limit_of_a_session_tells_the_hooks_of_the_run_that_brought_it_there(client, ask, hooks, log):
    with ravi_otel.run("r", hooks=hooks, session_id="s1", limits=["session.tokens=35"]):
        ask(client)
    assert [one["scope"] for one in only(log, HookEvent.LIMIT_NEARING)] == ["session"]


def test_a_charge_that_crosses_a_limit_is_told_though_no_call_is_made(hooks, log):
    with ravi_otel.run("r", hooks=hooks, limits=["charge.rows=10"]):
        ravi_otel.current_scope().charge("rows", 9)
    assert [one["limit_kind"] for one in only(log, HookEvent.LIMIT_NEARING)] == ["rows"]


def test_a_clock_tells_the_hooks_of_the_scope_that_owns_it_when_nobody_calls_anything(hooks, log):
    outer = HookManager()
    all_of_it, before, clock = RunLogger(outer), (STATE.engine, STATE.limits), ManualClock()
    STATE.install(Engine(clock=clock, listeners=Listeners()), ())
    try:
        with ravi_otel.run("r", hooks=outer, limits=["time=100s"]), ravi_otel.agent("a", hooks=hooks, limits=["time=10s"]):
            clock.advance(11)
            clock.advance(80)
    finally:
        STATE.install(*before)
    own = [(one.event.value, one.context["scope"], one.context["phase"]) for one in log if "limit" in one.event]
    assert own == [("limit_nearing", "agent", "timer"), ("limit_exceeded", "agent", "timer")]
    assert [one["scope"] for one in only(all_of_it, HookEvent.LIMIT_NEARING)] == ["agent", "run"]


def test_a_clock_of_the_machine_tells_from_a_thread_of_its_own(hooks, soon):
    heard = []

    @hooks.on(HookEvent.LIMIT_EXCEEDED)
    def hears(context):
        heard.append((context["phase"], threading.current_thread().name))

    with ravi_otel.run("r", hooks=hooks, limits=["time=10ms"]):
        assert soon(lambda: heard == [("timer", "ravi-otel-events")])


def test_a_span_that_is_current_is_named_in_every_context(stage, ask, hooks, log):
    with Capture() as capture:
        with (
            ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider, hooks=hooks),
            stage.client() as client,
            ravi_otel.run("r", limits=["tokens=35"]),
            ravi_otel.agent("a"),
        ):
            ask(client)
            look("x")
        spans = {span.name: format(span.context.span_id, "016x") for span in capture.spans()}
    named = {one.event.value: one.context["span_id"] for one in log}
    assert named["llm_start"] == named["llm_end"] == named["limit_nearing"] == spans["chat gpt-4o-mini"]
    assert named["tool_start"] == named["tool_end"] == spans["execute_tool look"]
    assert named["run_start"] == named["run_end"] == spans["invoke_agent a"]
    assert named["flow_start"] == named["flow_end"] == spans["invoke_workflow r"]
    assert len({one.context["trace_id"] for one in log}) == 1


def test_a_denied_spawn_is_told_to_the_run_and_to_the_agent_that_asked(hooks, log):
    outer = HookManager()
    all_of_it = RunLogger(outer)
    with ravi_otel.run("r", hooks=outer, spawn_budget=SpawnBudget(max_agents=1)) as run, ravi_otel.agent("root", hooks=hooks):  # noqa: SIM117 - the innermost is refused
        with pytest.raises(SpawnDeniedError), ravi_otel.agent("child"):
            pass
    for heard in (log, all_of_it):
        (told,) = only(heard, HookEvent.SPAWN_DENIED)
        assert (told["agent_id"], told["run_id"], told["priority"], told["active"], told["max_agents"]) == ("child", run.id, "normal", 1, 1)


def test_preempted_and_resumed_are_told_to_the_run_and_to_that_agent(hooks, log):
    outer = HookManager()
    all_of_it = RunLogger(outer)
    with ravi_otel.run("r", hooks=outer, spawn_budget=SpawnBudget(max_agents=2)), ravi_otel.agent("root"):
        with ravi_otel.agent("slow", hooks=hooks):
            tracker = SpawnTracker.current()
            urgent = contextvars.Context().run(tracker.acquire, "urgent", Priority.HIGH)  # from outside the agent that loses its slot
            urgent.release()
            tracker.reprioritize("slow", Priority.NORMAL)
        with ravi_otel.agent("other"):
            pass
    for heard in (log, all_of_it):
        assert [(one.event.value, one.context["agent_id"]) for one in heard if one.event in ("preempted", "resumed")] == [
            ("preempted", "slow"),
            ("resumed", "slow"),
        ]
    assert only(log, HookEvent.PREEMPTED)[0]["agent_name"] == "slow"


# -- nothing they do changes anything ---------------------------------------------------------------------------------


async def _hangs(context):
    await asyncio.Event().wait()


async def _raises_later(context):
    raise ValueError("later")


def _registers(hooks):
    def acts(context):
        hooks.register(HookEvent.LLM_END, lambda context: None)
        hooks.unregister(HookEvent.LLM_START, acts)

    return acts


MISBEHAVING = {
    "raises": lambda hooks: lambda context: 1 / 0,
    "raises later": lambda hooks: _raises_later,
    "exits": lambda hooks: lambda context: exec("raise SystemExit(3)"),
    "mutates": lambda hooks: lambda context: context.clear(),
    "mutates deeply": lambda hooks: lambda context: context["usage"].update(input_tokens=10**9),
    "registers": _registers,
    "hangs": lambda hooks: _hangs,
    "returns": lambda hooks: lambda context: "something",
}


@pytest.mark.parametrize("kind", MISBEHAVING)
def test_whatever_a_hook_does_the_run_is_as_without_it(call, stage, kind):
    def sent_and_got(hooks):
        first = len(stage.server.requests)
        answer = call(hooks, temperature=0.5)
        streamed = call(hooks, stream=True)
        stage.answer = Failure(400, "no")
        with pytest.raises(Exception) as failed:
            call(hooks)
        stage.answer = Text("ok", usage=(10, 20))
        sent = [(request.method, request.path, dict(request.headers), request.raw) for request in stage.server.requests[first:]]
        plain = {**answer.model_dump(), "id": None, "created": None}
        return sent, plain, streamed, type(failed.value), str(failed.value)

    hooks = HookManager()
    for event in HookEvent:
        hooks.register(event, MISBEHAVING[kind](hooks))
    assert sent_and_got(hooks) == sent_and_got(None)


def test_what_hooks_do_wrong_is_counted_by_a_metric(stage, ask, hooks, soon):
    hooks.register(HookEvent.LLM_START, lambda context: 1 / 0)
    hooks.register(HookEvent.LLM_END, _raises_later)
    with Capture() as capture:
        with ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider), stage.client() as client:
            with ravi_otel.run("r", hooks=hooks):
                ask(client)
                ask(client)
            assert soon(lambda: hooks.stats().raised == 4)
            assert soon(lambda: [point.value for point in capture.metric("ravi.hook.errors")] == [4])
        assert [dict(point.attributes) for point in capture.metric("ravi.hook.errors")] == [{"ravi.hook.fault": "raised"}]


def test_a_hook_that_calls_the_model_is_charged_and_does_not_hear_of_it_again(client, ask, hooks, log):
    @hooks.on(HookEvent.LLM_START, HookEvent.LLM_END)
    def asks(context):
        ask(client)

    with ravi_otel.run("r", hooks=hooks) as run:
        ask(client)
    assert run.stats().requests == 3
    assert names(log).count("llm_end") == 3


def test_an_asynchronous_hook_that_calls_the_model_comes_to_an_end_too(stage, ask, instrumented, hooks, log):
    async def main():
        async with stage.async_client() as client:

            @hooks.on(HookEvent.LLM_END)
            async def asks(context):
                await ask(client)

            async with ravi_otel.run("r", hooks=hooks) as run:
                await ask(client)
                await hooks.drain(30)
            return run.stats().requests

    assert asyncio.run(main()) == 2
    assert names(log).count("llm_end") == 2


@pytest.mark.parametrize("around", ["run", "process"])
def test_a_hook_that_hands_a_call_to_a_thread_does_not_hear_of_it_again(stage, ask, hooks, log, around):
    @hooks.on(HookEvent.LLM_END)
    def asks(context):
        thread = threading.Thread(target=ask, args=(client,))
        thread.start()
        thread.join()

    given = hooks if around == "process" else None
    with stage.client() as client, ravi_otel.instrument(hooks=given):
        with nullcontext() if given else ravi_otel.run("r", hooks=hooks):
            ask(client)
        assert ravi_otel.current_scope().stats().requests == 2
    assert names(log).count("llm_end") == 2


def test_nothing_of_the_programs_is_called_from_a_finaliser(client, hooks):
    heard, told = [], threading.Event()

    def works():
        with ravi_otel.agent("dropped"):
            yield

    @hooks.on(HookEvent.RUN_END)
    def ended(context):
        finalised = any(frame.f_code is works.__code__ for frame, _ in traceback.walk_stack(None))
        heard.append((context["agent_name"], finalised))
        told.set()

    with ravi_otel.run("r", hooks=hooks):
        generator = works()
        next(generator)
        del generator
        gc.collect()
        with ravi_otel.apply_limits([]):  # whoever comes next tells it, or a thread that is there for it
            pass
        assert told.wait(30)
        assert heard == [("dropped", False)]


def test_an_interrupt_while_a_hook_runs_ends_the_call_and_leaves_nothing_open(stage, ask, hooks):
    @hooks.on(HookEvent.LLM_START)
    def interrupted(context):
        raise KeyboardInterrupt

    with Capture() as capture, ravi_otel.instrument(tracer_provider=capture.tracer_provider, meter_provider=capture.meter_provider):
        with stage.client() as client, pytest.raises(KeyboardInterrupt), ravi_otel.run("r", hooks=hooks) as run:
            ask(client)
        assert sorted(span.name for span in capture.spans()) == ["chat gpt-4o-mini", "invoke_workflow r"]
    assert run.stats().requests == 0


@pytest.mark.parametrize("given", [3, "hooks", [3], HookManager], ids=repr)
@pytest.mark.parametrize(
    ("front", "parameter"),
    [
        (lambda given: ravi_otel.run(hooks=given), "run"),
        (lambda given: ravi_otel.agent("a", hooks=given), "agent"),
        (lambda given: ravi_otel.instrument(hooks=given), "instrument"),
    ],
    ids=["run", "agent", "instrument"],
)
def test_what_is_no_manager_is_said_in_a_sentence(front, parameter, given):
    with pytest.raises(ravi_otel.ConfigurationError, match=rf"{parameter}\(hooks\)=.* must be a HookManager, or several in a list"):
        front(given)
