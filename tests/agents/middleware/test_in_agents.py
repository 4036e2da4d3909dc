"""Middlewares in an agent that runs: what they end, answer and see."""

from __future__ import annotations

import pytest

from ravi_otel import HookEvent, HookManager
from ravi_otel.agents import OpenAIModel, ReActAgent
from ravi_otel.agents.history import MemoryHistory
from ravi_otel.agents.middleware import (
    AgentRun,
    Cache,
    InputGuardrail,
    ModelFallback,
    OutputGuardrail,
    Redaction,
    Retry,
    agent_middleware,
    chat_middleware,
    tool_middleware,
)
from ravi_otel.errors import ConfigurationError, MiddlewareTermination
from ravi_otel.testing import Failure, Text, ToolCalls

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PLAYS = (ToolCalls([("look", {"where": "hunter2"})], usage=(10, 5)), Text("all done", usage=(10, 5)))


@pytest.fixture
def run(stage):
    """Run an agent with a tool, asked for once, inside middlewares; give its result and what the tool was called with."""

    async def ran(*middleware, asked="go", play=PLAYS, **more):
        looked = []

        def look(where: str) -> str:
            looked.append(where)
            return "nothing there"

        stage.play(*play)
        async with stage.client() as client:
            agent = ReActAgent("a", model=OpenAIModel("gpt-4o-mini", client=client), tools=[look], middleware=middleware, **more)
            return await agent.run(asked), looked

    return ran


@BOTH
async def test_without_a_trip_an_agent_comes_to_its_end(run):
    result, looked = await run(
        *[kind("nowhere", level=level) for kind in (InputGuardrail, OutputGuardrail) for level in ("agent", "chat", "tool")]
    )
    assert (result.status, result.stop_reason, result.answer) == ("ok", "success", "all done")
    assert looked == ["hunter2"]


GUARDS = [
    (InputGuardrail, "agent", "^go$", 0, False),
    (InputGuardrail, "chat", "nothing there", 1, True),
    (InputGuardrail, "tool", "hunter2", 1, False),
    (OutputGuardrail, "tool", "nothing", 1, True),
    (OutputGuardrail, "chat", "hunter2", 1, False),
    (OutputGuardrail, "agent", "all done", 2, True),
]


@pytest.mark.parametrize(("kind", "level", "check", "asked", "looked"), GUARDS, ids=lambda value: getattr(value, "__name__", value))
async def test_a_guardrail_ends_an_agent_at_every_level(run, stage, kind, level, check, asked, looked):
    hooks = HookManager()
    trips = []
    hooks.on(HookEvent.GUARDRAIL_TRIP)(lambda ctx: trips.append((ctx["guardrail"], ctx["level"], ctx["agent_name"])))
    result, seen = await run(kind(check, name="g", level=level), hooks=hooks)
    assert (result.status, result.stop_reason) == ("stopped", "guardrail:g")
    assert (stage.sent, bool(seen)) == (asked, looked)
    assert trips == [("g", level, "a")]


@pytest.mark.parametrize("level", ["agent", "chat", "tool"])
async def test_a_termination_is_a_result(run, level):
    class Stop:
        async def process(self, context, call_next):
            raise MiddlewareTermination("enough")

    stop = Stop()
    stop.level = level
    result, looked = await run(stop)
    assert (result.status, result.stop_reason, looked) == ("stopped", "middleware_terminated", [])


async def test_a_tool_may_be_called_with_other_arguments_or_not_at_all(run):
    @tool_middleware
    async def elsewhere(context, call_next):
        context.arguments["where"] = "home"
        await call_next()

    @tool_middleware
    async def knowing(context, call_next):
        context.result = "known"

    assert (await run(elsewhere))[1] == ["home"]
    result, looked = await run(knowing)
    assert (result.status, looked) == ("ok", [])


async def test_a_tool_is_retried_inside_its_agent(stage):
    tries = []

    def look(where: str) -> str:
        tries.append(where)
        if len(tries) == 1:
            raise OSError("locked")
        return "there"

    stage.play(*PLAYS)
    async with stage.client() as client:
        model = OpenAIModel("gpt-4o-mini", client=client)
        retry = Retry(level="tool", on=OSError, wait_s=0, jitter_s=0)
        result = await ReActAgent("a", model=model, tools=[look], middleware=[retry]).run("go")
    assert result.status == "ok"
    assert len(tries) == 2


async def test_another_input_is_the_agents_and_another_result_the_callers(run, stage):
    @agent_middleware
    async def politely(context: AgentRun, call_next):
        context.input = f"Please {context.input}."
        await call_next()

    await run(politely)
    assert stage.requests[0].body["messages"][-1]["content"] == "Please go."


@BOTH
async def test_retry_fallback_cache_and_redaction_work_together(run, stage):
    stack = (Redaction(), Cache(scope="all"), ModelFallback("gpt-4o"), Retry(2, wait_s=0, jitter_s=0))
    first, _ = await run(*stack, asked="mail bob@example.com", play=(Failure(500), Failure(500), Text("of another model")))
    assert [request.model for request in stage.requests] == ["gpt-4o-mini", "gpt-4o-mini", "gpt-4o"]
    second, _ = await run(*stack, asked="mail bob@example.com", play=(Failure(500), Text("sent")))
    third, _ = await run(*stack, asked="mail bob@example.com", play=(Failure(500),))
    assert (first.answer, second.answer, third.answer) == ("of another model", "sent", "sent")
    assert stage.sent == 5
    assert third.usage.requests == 0
    assert b"bob@example.com" not in b"".join(request.raw for request in stage.requests)


async def forgetful(context, call_next):
    call_next()


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("wrap", [agent_middleware, chat_middleware, tool_middleware])
async def test_who_forgets_to_await_hears_it_at_every_level(run, wrap):
    with pytest.raises(ConfigurationError, match=r"forgetful\) did not await call_next\(\), so nothing was called: write `await call_next"):
        await run(wrap(forgetful))


async def test_a_tool_that_a_middleware_answers_for_is_not_charged_as_one_that_ran(run):
    async def knowing(context, call_next):
        context.result = "known"

    async def failing(context, call_next):
        raise OSError("no")

    for answering, row in ((knowing, (True, "middleware")), (failing, (False, "original"))):
        result, looked = await run(tool_middleware(answering))
        assert (result.status, result.usage.tool_calls, looked) == ("ok", 0, [])
        assert [(each["ok"], each["executed_from"]) for each in result.trace] == [row]
    result, looked = await run(tool_middleware(passing))
    assert (result.usage.tool_calls, [each["executed_from"] for each in result.trace]) == (1, ["original"])


async def passing(context, call_next):
    await call_next()


async def test_an_agent_wants_a_list_of_middlewares():
    with pytest.raises(ConfigurationError, match=r"^ReActAgent\(middleware\)=.* must be a list of middlewares, such as middleware=\[Cache"):
        ReActAgent("a", middleware=Cache())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": OpenAIModel}, r"^ReActAgent\(model\)=OpenAIModel is a class; give an instance of it, OpenAIModel\(\.\.\.\)\.$"),
        ({"model": 5}, r"^ReActAgent\(model\)=5 is no LLMClient; give a model's name, or an LLMClient"),
        ({"history": MemoryHistory}, "^history=MemoryHistory is a class; give an instance of it"),
    ],
)
async def test_a_class_in_the_place_of_an_instance_is_refused_when_the_agent_is_made(given, says):
    with pytest.raises(ConfigurationError, match=says):
        ReActAgent("a", **given)
