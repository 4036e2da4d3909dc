"""Agents and tools of a framework: who pays for what, however an agent is run, and nothing of the framework's own is changed."""

import asyncio
import contextvars
import gc
import inspect
from threading import Thread

import pytest
from made_framework import MadeAgent, MadeTool
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, ExecutionBudget, ToolDeniedError, current_scope
from ravi_otel._runtime.stopping import drain
from ravi_otel.supervisor import Decision, DecisionKind

WAYS = ["run", "arun", "stream", "astream"]


def where():
    scope = current_scope()
    return scope.facts.kind.value, scope.facts.name


async def all_of(stream):
    return [item async for item in stream]


def run(agent, way):
    started = getattr(agent, way)()
    if way == "arun":
        return asyncio.run(started)
    return asyncio.run(all_of(started)) if way == "astream" else list(started)


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def agents_in(around):
    return [line.strip("├└─│ ").split(" · ")[0] for line in around.tree().splitlines()[1:]]


def test_each_step_is_in_the_agent_and_what_comes_after_is_not(followed, way):
    with ravi_otel.run("around") as around:
        assert run(MadeAgent("clerk", where, where), way) == [("agent", "clerk")] * 2
        assert where() == ("run", "around")
    assert "clerk" in around.tree()


def test_what_a_program_does_between_two_items_of_a_stream_is_not_the_agents(followed):
    with ravi_otel.run("around"):
        stream = MadeAgent("clerk", where, where).stream()
        assert (next(stream), where()) == (("agent", "clerk"), ("run", "around"))
        assert (next(stream), where()) == (("agent", "clerk"), ("run", "around"))
        with pytest.raises(StopIteration) as end:
            next(stream)
    assert end.value.value == "done"


def test_two_streams_at_once_are_two_agents(followed):
    with ravi_otel.run("around"):
        first, second = MadeAgent("one", where, where).stream(), MadeAgent("two", where, where).stream()
        seen = [next(stream)[1] for stream in (first, second, first, second)]
        first.close()
        second.close()
        assert (seen, where()) == (["one", "two", "one", "two"], ("run", "around"))


@pytest.mark.parametrize("end", ["close", "collect"])
def test_a_stream_that_nobody_reads_to_its_end_ends_its_agent(followed, end):
    with ravi_otel.run("around") as around:
        stream = MadeAgent("clerk", where, where).stream()
        next(stream)
        assert "clerk" in around.tree()
        assert "open" in around.tree().splitlines()[1]
        if end == "close":
            stream.close()
        del stream
        gc.collect()
        drain()
        assert "open" not in around.tree().splitlines()[1]
        assert where() == ("run", "around")


def test_an_agent_inside_anothers_tool_is_its_child(followed):
    inner = MadeAgent("inner", where)
    tool = MadeTool("delegate", inner.run)
    with ravi_otel.run("around") as around:
        assert MadeAgent("outer", tool.call).run() == [[("agent", "inner")]]
        assert around.stats().tool_calls == 1
    assert [line.count("──") for line in around.tree().splitlines()] == [0, 1, 1]
    assert [line.index("──") for line in around.tree().splitlines()[1:]] == [1, 5]


def test_a_thread_without_a_context_works_in_the_one_run_that_is_open(followed):
    seen = []
    with ravi_otel.run("around") as around:
        thread = Thread(target=contextvars.Context().run, args=(lambda: seen.append(MadeAgent("clerk", where).run()),))
        thread.start()
        thread.join()
        assert "clerk" in around.tree()
    assert seen == [[("agent", "clerk")]]


def test_model_calls_are_charged_to_the_agent_that_makes_them(followed, ask, way):
    with ravi_otel.run("around", limits=["agent.clerk.requests=1"]):
        with pytest.raises(BudgetExhaustedError) as refused:
            run(MadeAgent("clerk", ask, ask), way)
        run(MadeAgent("other", ask, ask), way)
    assert refused.value.agent_name == "clerk"


def test_an_agent_of_the_program_around_a_framework_pays_for_it_as_without_us(followed, ask):
    inner = MadeTool("delegate", MadeAgent("inner", ask).run)
    with ravi_otel.run("around"), ravi_otel.agent("mine", budget=ExecutionBudget(max_tokens=300)) as mine:
        with pytest.raises(BudgetExhaustedError):
            MadeAgent("outer", ask, inner.call, ask).run()
        assert mine.stats().total_tokens == 400


def test_an_error_is_the_programs_own(followed, way):
    def fail():
        raise KeyError("theirs")

    with ravi_otel.run("around"), pytest.raises(KeyError, match="theirs"):
        run(MadeAgent("clerk", fail), way)


def test_what_is_sent_or_thrown_into_a_stream_gets_there(followed):
    class Echo(MadeAgent):
        def stream(self):
            got = yield "first"
            try:
                yield got
            except KeyError:
                yield "caught"

    adapter = type(followed)(followed.module)
    followed.module.MadeAgent = Echo
    adapter.agents(Echo, "stream", lambda agent, _args, _kwargs: agent.name)
    adapter._active = True
    stream = Echo("clerk").stream()
    assert (next(stream), stream.send("sent"), stream.throw(KeyError())) == ("first", "sent", "caught")
    stream.close()
    adapter.remove()


HOSTILE = {"long": "x" * 1_000_000, "none": None, "number": 7, "empty": "", "control": "\x00\n", "surrogate": "\ud800", "bytes": b"clerk"}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_framework_calls_an_agent_or_a_tool_it_runs(followed, name, way):
    named = HOSTILE[name]
    tool = MadeTool(named, lambda: "ran")
    # An agent without a name is, to this adapter, no agent.
    place = ("run", "around") if named is None else ("agent", None)
    with ravi_otel.run("around") as around:
        ((kind, label), result) = run(MadeAgent(named, where, tool.call), way)
        assert around.stats().tool_calls == 1
    assert (kind, result) == (place[0], "ran")
    assert 0 < len(label) <= 256


class Broken(str):
    __slots__ = ()

    def __getitem__(self, at):
        raise RuntimeError("hostile")

    def __str__(self):
        raise RuntimeError("hostile")


def test_a_name_whose_methods_raise_is_read_all_the_same(followed, way):
    with ravi_otel.run("around"):
        assert run(MadeAgent(Broken("clerk"), where), way) == [("agent", "clerk")]


def test_a_fault_of_ours_stays_ours(followed, way, monkeypatch):
    class Nameless(MadeAgent):
        @property
        def name(self):
            raise RuntimeError("hostile")

        @name.setter
        def name(self, value):
            pass

    monkeypatch.delenv("RAVI_RAISE_BUGS")
    with ravi_otel.run("around"):
        assert run(Nameless("any", where), way) == [("run", "around")]


def test_methods_stay_what_they_are_and_come_back(followed):
    assert inspect.iscoroutinefunction(MadeAgent("a").arun)
    assert inspect.isasyncgen(MadeAgent("a").astream())
    assert inspect.isgenerator(MadeAgent("a").stream())
    ours = [vars(MadeAgent)[way] for way in WAYS]
    followed.remove()
    assert not any(vars(MadeAgent)[way] is one for way, one in zip(WAYS, ours, strict=True))
    with ravi_otel.run("around"):
        assert MadeAgent("clerk", where).run() == [("run", "around")]


class Traced(MadeAgent):
    """An agent of a framework that traces itself."""

    tracer = TracerProvider().get_tracer("theirs")

    def stream(self):
        with self.tracer.start_as_current_span("theirs"):
            for step in self.steps:
                yield step()

    async def astream(self):
        with self.tracer.start_as_current_span("theirs"):
            for step in self.steps:
                yield step()


def spans_seen(way):
    """Give the spans that are current in each step, after each, and at the end."""

    def name():
        return getattr(trace.get_current_span(), "name", None)

    async def read():
        return [*[(item, name()) async for item in Traced("clerk", name, name, name).astream()], name()]

    def read_now():
        return [*[(item, name()) for item in Traced("clerk", name, name, name).stream()], name()]

    return read_now() if way == "stream" else asyncio.run(read())


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_span_that_a_framework_leaves_open_in_its_stream_stays_current_as_without_us(followed, way):
    without = spans_seen(way)
    followed.agents(Traced, way, lambda agent, _args, _kwargs: agent.name)
    with ravi_otel.run("around"):
        assert spans_seen(way) == without
        assert where() == ("run", "around")
    assert without == [("theirs", "theirs")] * 3 + [None]


def test_arguments_that_do_not_fit_are_refused_where_the_stream_is_made(followed):
    for make in (MadeAgent("clerk").stream, MadeAgent("clerk").astream):
        with pytest.raises(TypeError, match="2 were given"):
            make("too many")


def test_a_stream_goes_by_the_name_of_its_method(followed):
    assert (MadeAgent("clerk").stream().__qualname__, MadeAgent("clerk").astream().__name__) == ("MadeAgent.stream", "astream")


# -- a tool is counted once -------------------------------------------------------------------------------------------------


def counted(call):
    with ravi_otel.run("around") as around:
        call()
        return around.stats().tool_calls


def test_a_tool_of_a_framework_is_one_tool_call(followed):
    assert counted(MadeTool("find", lambda: 1).call) == 1


def test_a_tool_that_is_async_is_one_tool_call(followed):
    async def find():
        return 1

    assert counted(lambda: asyncio.run(MadeTool("find", find).acall())) == 1


@pytest.mark.parametrize("name", ["find", "another"])
def test_a_tool_of_ours_inside_is_the_same_call(followed, name):
    assert counted(MadeTool("find", ravi_otel.tool(lambda: 1, name=name)).call) == 1


def test_a_tool_of_ours_that_is_async_inside_is_the_same_call(followed):
    @ravi_otel.tool
    async def find():
        return 1

    assert counted(lambda: asyncio.run(MadeTool("find", find).acall())) == 1


def test_a_tool_of_ours_around_is_the_same_call(followed):
    inner = MadeTool("find", lambda: 1)
    assert counted(ravi_otel.tool(inner.call, name="find")) == 1


def test_a_tool_that_calls_itself_or_another_is_each_of_them(followed):
    other = ravi_otel.tool(lambda: 1, name="other")
    find = ravi_otel.tool(lambda: other() + other(), name="find")
    assert counted(MadeTool("find", find).call) == 3
    assert counted(MadeTool("find", lambda: find() + find()).call) == 6


def test_past_its_limit_a_tool_does_not_run(followed):
    ran = []
    tool = MadeTool("find", lambda: ran.append(1))
    with ravi_otel.run("around", limits=["tool_calls=1"]):
        tool.call()
        with pytest.raises(BudgetExhaustedError):
            tool.call()
    assert ran == [1]


def test_the_gate_of_a_tool_inside_is_asked(followed):
    class Refusing:
        def review(self, action, state, policy):
            return Decision(kind=DecisionKind.BLOCK, reason="not today")

    functions = {"find": lambda: 1}
    with ravi_otel.instrument_tools(functions, supervisor=Refusing()), ravi_otel.run("around") as around:
        with pytest.raises(ToolDeniedError, match="not today"):
            MadeTool("find", functions["find"]).call()
        assert around.stats().tool_calls == 1


# -- which are followed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [["langchian"], ["openai"], "langchain", [7], 3])
def test_what_is_no_framework_is_refused(given):
    with pytest.raises(ConfigurationError, match="frameworks"):
        ravi_otel.instrument(frameworks=given)


def test_a_misspelt_one_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("RAVI_FRAMEWORKS", "langchain,smolagent")
    with pytest.raises(ConfigurationError, match="did you mean 'smolagents'"):
        ravi_otel.instrument()


@pytest.mark.parametrize(
    ("given", "said", "follows"),
    [
        (None, None, {"langchain", "smolagents"}),
        ([], None, set()),
        (["langchain"], None, {"langchain"}),
        (None, "", set()),
        (None, "langchain, ", {"langchain"}),
        (["smolagents"], "langchain", {"smolagents"}),
        (["LangChain"], None, {"langchain"}),
    ],
)
def test_a_list_or_the_environment_chooses(monkeypatch, given, said, follows):
    if said is not None:
        monkeypatch.setenv("RAVI_FRAMEWORKS", said)
    with ravi_otel.instrument(frameworks=given):
        options = ravi_otel._runtime.state.STATE.options
        assert {each for each in ("langchain", "smolagents") if options.follows(each)} == follows
