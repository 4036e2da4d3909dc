"""Callbacks of a HookManager: who calls them, what they get, and that nothing they do reaches their caller."""

import asyncio
import functools
import json
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from copy import deepcopy

import pytest

import ravi_otel.hooks
from ravi_otel import ConfigurationError, CostTracker, HookEvent, HookManager, RunLogger, run
from ravi_otel.hooks import Listener, _manager

CONTEXT = {"agent_name": "a", "usage": {"input_tokens": 1, "parts": [{"n": 1}]}, "tags": {"x"}}


def trio():
    return pytest.importorskip("trio")


async def _emit(hooks, context):
    hooks.emit(HookEvent.REVIEW, context)


CALLERS = {
    "a synchronous caller": lambda hooks, context: hooks.emit(HookEvent.REVIEW, context),
    "a task that emits": lambda hooks, context: asyncio.run(_settled(hooks, context)),
    "a task that dispatches": lambda hooks, context: asyncio.run(hooks.dispatch(HookEvent.REVIEW, context)),
    "a task of trio's that emits": lambda hooks, context: trio().run(_emit, hooks, context),
    "a task of trio's that dispatches": lambda hooks, context: trio().run(hooks.dispatch, HookEvent.REVIEW, context),
}


async def _settled(hooks, context):
    hooks.emit(HookEvent.REVIEW, context)
    await hooks.drain()


@pytest.fixture(params=CALLERS)
def fire(request):
    return CALLERS[request.param]


@pytest.fixture(params=["sync", "async"])
def colour(request):
    """Give a callback of either colour that does what a plain function does."""

    def coloured(act):
        if request.param == "sync":
            return act

        async def acts(context):
            await asyncio.sleep(0)
            return act(context)

        return acts

    return coloured


def test_a_callback_of_either_colour_hears_from_a_caller_of_either(hooks, fire, colour, soon):
    heard = []
    hooks.register(HookEvent.REVIEW, colour(heard.append))
    fire(hooks, CONTEXT)
    assert soon(lambda: heard == [CONTEXT | {"usage": {"input_tokens": 1, "parts": ({"n": 1},)}}])


def test_one_that_raises_is_counted_and_the_others_and_the_caller_go_on(hooks, fire, colour, soon, reported):
    heard = []
    hooks.register(HookEvent.REVIEW, colour(lambda context: 1 / 0))
    hooks.register(HookEvent.REVIEW, colour(heard.append))
    fire(hooks, CONTEXT)
    assert soon(lambda: len(heard) == 1)
    assert soon(lambda: hooks.stats().raised == 1)


CHANGES = {
    "set": lambda context: context.update(agent_name="b"),
    "item": lambda context: context.__setitem__("agent_name", "b"),
    "delete": lambda context: context.__delitem__("agent_name"),
    "pop": lambda context: context.pop("agent_name"),
    "clear": lambda context: context.clear(),
    "attribute": lambda context: setattr(context, "agent_name", "b"),
    "nested": lambda context: context["usage"].__setitem__("input_tokens", 9),
    "in a list": lambda context: context["usage"]["parts"][0].pop("n"),
    "the list": lambda context: context["usage"]["parts"].append(2),
    "the set": lambda context: context["tags"].add("y"),
    "in place": lambda context: context.__ior__({"agent_name": "b"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_changes_its_context_raises_in_itself_only(hooks, change, reported):
    heard, given = [], deepcopy(CONTEXT)
    hooks.register(HookEvent.REVIEW, CHANGES[change])
    hooks.register(HookEvent.REVIEW, heard.append)
    hooks.emit(HookEvent.REVIEW, given)
    assert hooks.stats().raised == 1
    assert heard[0]["usage"]["input_tokens"] == 1
    assert given == CONTEXT


def test_each_gets_a_context_of_its_own_which_reads_like_a_dict(hooks):
    heard = []
    hooks.register(HookEvent.REVIEW, heard.append)
    hooks.register(HookEvent.REVIEW, heard.append)
    given = {"usage": {"total_tokens": 3}, "names": ["a"]}
    hooks.emit(HookEvent.REVIEW, given)
    given["usage"]["total_tokens"] = 4
    one, other = heard
    assert one is not other
    assert one["usage"] is not other["usage"]
    assert one == {"usage": {"total_tokens": 3}, "names": ("a",)}
    assert one.usage.total_tokens == 3
    assert json.loads(json.dumps(one)) == {"usage": {"total_tokens": 3}, "names": ["a"]}
    assert pickle.loads(pickle.dumps(one)) == deepcopy(one) == one
    with pytest.raises(AttributeError, match="no 'cost'; it has usage, names"):
        _ = one.cost


def test_a_context_that_is_inside_itself_ends_there(hooks):
    heard, around = [], {"name": "a"}
    around["me"] = [around]
    hooks.register(HookEvent.REVIEW, heard.append)
    hooks.emit(HookEvent.REVIEW, around)
    assert heard[0]["name"] == "a"
    assert hooks.stats().raised == 0


class Unreadable(Mapping):
    def __getitem__(self, name):
        raise LookupError(name)

    def __iter__(self):
        raise RuntimeError("no names")

    def __len__(self):
        return 1


def test_a_context_that_cannot_be_copied_is_its_callers_fault_and_no_hooks(hooks):
    hooks.register(HookEvent.REVIEW, heard := [].append)
    with pytest.raises(ConfigurationError, match="the context of review cannot be copied for a hook: RuntimeError"):
        hooks.emit(HookEvent.REVIEW, {"inner": Unreadable()})
    with pytest.raises(ConfigurationError, match="is no mapping"):
        hooks.emit(HookEvent.REVIEW, Unreadable())
    assert (heard.__self__, hooks.stats().raised) == ([], 0)


def test_a_context_that_is_too_deep_ends_where_it_is(hooks):
    heard, deep = [], {}
    around = deep
    for _ in range(5_000):
        deep["in"] = deep = {}
    hooks.register(HookEvent.REVIEW, heard.append)
    hooks.emit(HookEvent.REVIEW, around)
    found, levels = heard[0], 0
    while found != "…":
        found, levels = found["in"], levels + 1
    assert (levels, hooks.stats().raised) == (51, 0)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, MemoryError, RecursionError])
def test_what_would_end_a_program_or_a_task_ends_neither(hooks, fire, colour, soon, error, reported):
    def acts(context):
        raise error

    hooks.register(HookEvent.REVIEW, colour(acts))
    fire(hooks, CONTEXT)
    assert soon(lambda: hooks.stats().raised == 1)


def test_one_that_says_it_is_closed_closes_nothing(hooks, fire, colour, soon, reported):
    def acts(context):
        raise GeneratorExit

    hooks.register(HookEvent.REVIEW, colour(acts))
    fire(hooks, {})
    assert soon(lambda: hooks.stats().raised == 1)


def test_what_a_signal_raises_meanwhile_is_the_programs(hooks):
    def interrupted(_number, _frame):
        raise TimeoutError("from the handler")

    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        hooks.register(HookEvent.REVIEW, lambda context: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(TimeoutError, match="from the handler"):
            hooks.emit(HookEvent.REVIEW)
    finally:
        signal.signal(signal.SIGUSR1, before)
    hooks.register(HookEvent.RESUMED, lambda context: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        hooks.emit(HookEvent.RESUMED)
    assert hooks.stats().raised == 0


def test_what_is_registered_or_taken_off_meanwhile_counts_from_the_next_event_on(hooks):
    heard = []

    def late(context):
        heard.append("late")

    def first(context):
        heard.append("first")
        hooks.register(HookEvent.REVIEW, late)
        assert hooks.unregister(HookEvent.REVIEW, first)

    hooks.register(HookEvent.REVIEW, first)
    hooks.emit(HookEvent.REVIEW)
    assert heard == ["first"]
    hooks.emit(HookEvent.REVIEW)
    assert heard == ["first", "late"]


def test_threads_register_and_take_off_while_others_fire(hooks):
    heard, stop = [], threading.Event()

    def fires():
        while not stop.is_set():
            hooks.emit(HookEvent.REVIEW)

    def comes_and_goes():
        for _ in range(200):
            hooks.register(HookEvent.REVIEW, heard.append)
            assert hooks.unregister(HookEvent.REVIEW, heard.append)

    firing, coming = threading.Thread(target=fires), [threading.Thread(target=comes_and_goes) for _ in range(3)]
    for thread in (firing, *coming):
        thread.start()
    for thread in coming:
        thread.join()
    stop.set()
    firing.join()
    assert not hooks.hears(HookEvent.REVIEW)


def test_a_callback_is_called_as_often_as_it_is_registered(hooks):
    heard = []
    hooks.register("review", heard.append)
    hooks.register(HookEvent.REVIEW, heard.append)
    assert hooks.unregister(HookEvent.REVIEW, heard.append)
    hooks.emit("review")
    assert len(heard) == 1
    assert hooks.unregister(HookEvent.REVIEW, heard.append)
    assert not hooks.unregister(HookEvent.REVIEW, heard.append)


def test_one_decorator_takes_several_events_and_leaves_the_function_as_it_is(hooks):
    def acts(context):
        heard.append(context["n"])

    heard = []
    assert hooks.on(HookEvent.REVIEW, HookEvent.RESUMED)(acts) is acts
    hooks.emit(HookEvent.REVIEW, {"n": 1})
    hooks.emit(HookEvent.RESUMED, {"n": 2})
    assert heard == [1, 2]


def test_the_callbacks_of_one_event_run_at_the_same_time(hooks):
    met = []

    def pair():
        here, there = asyncio.Event(), asyncio.Event()

        async def one(context):
            here.set()
            await there.wait()
            met.append(1)

        async def other(context):
            there.set()
            await here.wait()
            met.append(2)

        return one, other

    async def main():
        for callback in pair():
            hooks.register(HookEvent.REVIEW, callback)
        await hooks.dispatch(HookEvent.REVIEW)
        assert sorted(met) == [1, 2]

    asyncio.run(main())


def test_a_callback_does_not_hear_what_it_does_itself_and_the_others_do(hooks):
    heard = []

    def fires(context):
        heard.append(("fires", context["n"]))
        hooks.emit(HookEvent.REVIEW, {"n": context["n"] + 1})

    def hears(context):
        heard.append(("hears", context["n"]))

    hooks.register(HookEvent.REVIEW, fires)
    hooks.register(HookEvent.REVIEW, hears)
    hooks.emit(HookEvent.REVIEW, {"n": 1})
    assert heard == [("fires", 1), ("hears", 2), ("hears", 1)]


def test_a_method_that_several_managers_and_events_call_does_not_hear_what_it_does_itself():
    class Asks:
        def heard(self, context):
            heard.append(context["event"])
            for each in managers:
                each.emit(HookEvent.REVIEW, {"event": "its own"})

    heard, managers, asks = [], [HookManager() for _ in range(3)], Asks()
    for each in managers:
        each.register(HookEvent.REVIEW, asks.heard)
        each.register(HookEvent.RESUMED, asks.heard)
    managers[0].emit(HookEvent.RESUMED, {"event": "the program's"})
    assert heard == ["the program's"]


def test_two_that_set_each_other_off_come_to_an_end(hooks, fire, colour, soon):
    heard = []

    def one(context):
        heard.append("one")
        hooks.emit(HookEvent.REVIEW)

    def other(context):
        heard.append("other")
        hooks.emit(HookEvent.REVIEW)

    hooks.register(HookEvent.REVIEW, colour(one))
    hooks.register(HookEvent.REVIEW, colour(other))
    fire(hooks, {})
    assert soon(lambda: sorted(heard) == ["one", "one", "other", "other"])


def test_a_fault_is_logged_once_a_minute_and_counted_every_time(hooks, caplog, monkeypatch, reported):
    now = [100.0]
    monkeypatch.setattr("ravi_otel.hooks._listeners.time.monotonic", lambda: now[0])
    hooks.register(HookEvent.REVIEW, lambda context: 1 / 0)
    for at in (100, 110, 159, 160):
        now[0] = float(at)
        hooks.emit(HookEvent.REVIEW)
    assert [one.message.split("raised ")[1] for one in caplog.records] == [
        "ZeroDivisionError (1 so far); the run goes on.",
        "ZeroDivisionError (4 so far); the run goes on.",
    ]
    assert hooks.stats().raised == 4


def yields(context):
    yield context


async def ayields(context):
    yield context


class Yields:
    def __call__(self, context):
        yield context


def run_one(hooks):
    with run("r", hooks=hooks):
        pass


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda hooks: hooks.on(), r"hooks.on\(\) names no event"),
        (lambda hooks: hooks.on("llm_ends"), "hooks.on.event.='llm_ends' is unknown: give one of 'run_start', .*; did you mean 'llm_end'"),
        (lambda hooks: hooks.register("nothing", print), "hooks.register.event.='nothing' is unknown"),
        (
            lambda hooks: hooks.on(print),
            "hooks.on.<built-in function print>. takes an event, not the function: write @hooks.on.HookEvent.LLM_END.",
        ),
        (lambda hooks: hooks.register(HookEvent.REVIEW, 3), "hooks.register.callback.=3 cannot be called"),
        (
            lambda hooks: hooks.register(HookEvent.REVIEW, lambda: 1),
            "is called with one argument, the context: too many positional arguments",
        ),
        (
            lambda hooks: hooks.register(HookEvent.REVIEW, lambda a, b: 1),
            "is called with one argument, the context: missing a required argument: 'b'",
        ),
        (lambda hooks: hooks.register(HookEvent.REVIEW, lambda *, context: 1), "is called with one argument, the context: "),
        (lambda hooks: hooks.register(HookEvent.REVIEW, yields), "is a generator function, which runs nothing when it is called"),
        (lambda hooks: hooks.register(HookEvent.REVIEW, ayields), "is a generator function"),
        (lambda hooks: hooks.register(HookEvent.REVIEW, functools.partial(yields)), "is a generator function"),
        (lambda hooks: hooks.register(HookEvent.REVIEW, Yields()), "is a generator function"),
        (lambda hooks: hooks.emit(HookEvent.REVIEW, 3), "hooks.emit.context.=3 is no mapping"),
        (lambda hooks: hooks.emit(None, {}), "hooks.emit.event.=None is unknown"),
        (lambda hooks: asyncio.run(hooks.dispatch(HookEvent.REVIEW, "text")), "hooks.dispatch.context.='text' is no mapping"),
        (lambda hooks: hooks.drain_blocking("x"), "hooks.drain_blocking.timeout_s.='x' must be a number of seconds such as 90"),
        (lambda hooks: hooks.drain_blocking(float("nan")), "hooks.drain_blocking.timeout_s.=nan must be"),
        (lambda hooks: asyncio.run(hooks.drain(-1)), "hooks.drain.timeout_s.=-1 must be a number of seconds"),
        (
            lambda hooks: run_one(CostTracker()),
            "run.hooks. takes a HookManager, and a CostTracker listens to one: .* then CostTracker.hooks., and give",
        ),
        (lambda hooks: run_one([hooks, RunLogger()]), "run.hooks. takes a HookManager, and a RunLogger listens to one"),
        (lambda hooks: run_one(RunLogger()), "run.hooks. takes a HookManager, and a RunLogger listens to one"),
        (lambda hooks: CostTracker(5), "CostTracker.hooks.=5 must be a HookManager, such as hooks = HookManager..."),
        (lambda hooks: CostTracker().attach(None), "CostTracker.attach.hooks.=None must be a HookManager"),
        (lambda hooks: RunLogger([]), r"RunLogger.hooks.=\[\] must be a HookManager"),
        (lambda hooks: RunLogger().attach(RunLogger()), "RunLogger.attach.hooks.=<.* must be a HookManager"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(hooks, act, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        act(hooks)


def test_what_is_called_counts_and_not_what_it_wraps(hooks):
    def two(context, more):
        heard.append((context["n"], more))

    @functools.wraps(two)
    def one(context):
        two(context, "more")

    heard = []
    hooks.register(HookEvent.REVIEW, one)
    hooks.register(HookEvent.REVIEW, functools.partial(two, more="said before"))
    hooks.emit(HookEvent.REVIEW, {"n": 1})
    assert heard == [(1, "more"), (1, "said before")]


def test_one_that_gives_a_generator_is_counted_as_lost(hooks, reported):
    hooks.register(HookEvent.REVIEW, functools.partial(lambda how, context: how(context), yields))
    hooks.emit(HookEvent.REVIEW)
    assert hooks.stats().lost == 1


def test_who_would_stop_its_own_loop_to_drain_it_is_told_what_to_write(hooks):
    async def hears(context):
        heard.append(1)

    async def main():
        hooks.emit(HookEvent.REVIEW)
        with pytest.raises(ConfigurationError, match=r"would stop the event loop that runs here: write await hooks\.drain\(\)"):
            hooks.drain_blocking()
        await hooks.drain()
        assert heard == [1]

    heard = []
    hooks.register(HookEvent.REVIEW, hears)
    asyncio.run(main())


def test_the_values_of_the_events_are_their_names_in_small_letters():
    assert [event.value for event in HookEvent] == [event.name.lower() for event in HookEvent]
    assert {*HookEvent} >= {
        "run_start", "run_end", "step_start", "step_end", "llm_start", "llm_end", "tool_start", "tool_end", "guardrail_trip", "handoff",
        "flow_start", "flow_end", "limit_nearing", "limit_exceeded", "spawn_denied", "preempted", "resumed", "review",
    }  # fmt: skip


def test_a_manager_says_how_many_callbacks_it_has():
    hooks = HookManager()
    hooks.register(HookEvent.REVIEW, print)
    assert repr(hooks) == "<HookManager with 1 callbacks>"


def test_a_program_without_asynchronous_callbacks_loads_nothing_that_runs_them():
    program = (
        "import sys, ravi_otel\n"
        "hooks = ravi_otel.HookManager()\n"
        "hooks.register('flow_start', print)\n"
        "with ravi_otel.instrument(hooks=hooks), ravi_otel.run('r'): pass\n"
        "hooks.stats()\n"
        "print('ravi_otel.hooks._background' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("False\n"), done.stdout


def test_every_event_of_the_engine_is_heard_of_by_a_method_of_a_listener():
    methods = {name for name in vars(Listener) if not name.startswith("_")}
    assert {row.method for row in _manager._HEARD.values()} <= methods
    assert set(_manager._HEARD) == set(HookEvent)


def test_the_package_has_what_it_lists_and_says_so_of_nothing_else():
    assert set(ravi_otel.hooks.__all__) <= set(dir(ravi_otel.hooks))
    assert all(getattr(ravi_otel.hooks, name) is not None for name in ravi_otel.hooks.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'HookEvents'"):
        _ = ravi_otel.hooks.HookEvents
