"""What must not go in or come out."""

from __future__ import annotations

import re

import pytest

import ravi_otel
from ravi_otel import errors
from ravi_otel.agents import AgentResult
from ravi_otel.agents._model import ResponseMessage
from ravi_otel.agents.middleware import AgentRun, InputGuardrail, MiddlewarePipeline, OutputGuardrail
from ravi_otel.policy._contracts import ChatMessage, Generation
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import Text, ToolCalls

pytestmark = pytest.mark.anyio
BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


def no_secrets(text):
    return "it names the secret" if "hunter2" in text else None


async def no_secrets_later(text):
    return no_secrets(text)


CHECKS = {"a pattern": r"hunter\d", "a compiled one": re.compile("HUNTER2", re.IGNORECASE), "sync": no_secrets, "async": no_secrets_later}


def call(arguments):
    return {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}


def answered(text):
    return AgentResult(agent_name="a", run_id="r", status="ok", stop_reason="success", answer=text)


@pytest.fixture
def go(chat, tool, instrumented):
    """Run something at a level, whose input or output says this; give how often it was reached."""

    async def gone(level, guardrail, asked, given="fine"):
        pipeline = MiddlewarePipeline(guardrail)

        async def final(context):
            if level == "chat":
                context.response = Generation(ChatMessage("assistant", given))
            else:
                context.result = answered(given) if level == "agent" else {"found": [given]}

        if level == "agent":
            context = AgentRun(agent_name="a", run_id="r", input=asked)
            run = pipeline.run_agent
        else:
            context = chat(asked) if level == "chat" else tool({"for": [asked]})
            run = pipeline.run_chat if level == "chat" else pipeline.run_tool
        try:
            await run(context, final)
        except errors.MiddlewareTermination as error:
            return context.calls, error
        return context.calls, None

    return gone


LEVELS = pytest.mark.parametrize("level", ["agent", "chat", "tool"])


@LEVELS
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@BOTH
async def test_what_must_not_go_in_reaches_nothing(go, level, check):
    guardrail = InputGuardrail(check, level=level, name="secrets")
    assert await go(level, guardrail, "all is well") == (1, None)
    calls, error = await go(level, guardrail, "use hunter2 here")
    assert calls == 0
    assert (error.guardrail, error.stop_reason) == ("secrets", "guardrail:secrets")


@LEVELS
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@BOTH
async def test_what_must_not_come_out_reaches_nobody(go, level, check):
    guardrail = OutputGuardrail(check, level=level, name="secrets")
    assert await go(level, guardrail, "hunter2 may go in", "all is well") == (1, None)
    calls, error = await go(level, guardrail, "hi", "it is hunter2")
    assert calls == 1
    assert error.guardrail == "secrets"


@LEVELS
@pytest.mark.parametrize("kind", [InputGuardrail, OutputGuardrail])
async def test_it_is_told_where_it_happened(go, heard, level, kind):
    with ravi_otel.run("r") as run:
        await go(level, kind(no_secrets, level=level), "hunter2", "hunter2")
    (event,) = heard.trips
    assert isinstance(event.facts, ScopeFacts)
    assert event.facts.run_id == run.id
    assert (event.guardrail, event.level, event.reason) == ("no_secrets", level, "it names the secret")
    assert event.stage == ("input" if kind is InputGuardrail else "output")


async def test_its_sentence_says_who_where_and_why(go):
    _, error = await go("chat", InputGuardrail(no_secrets), "hunter2")
    assert str(error) == "Guardrail 'no_secrets' stopped the input of the model call: it names the secret."


def broken(text):
    raise ZeroDivisionError


async def broken_later(text):
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", [InputGuardrail, OutputGuardrail])
@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (broken, "the guardrail itself raised ZeroDivisionError"),
        (broken_later, "the guardrail itself raised ZeroDivisionError"),
        (lambda text: True, "the guardrail gave True"),
        (lambda text: False, "the guardrail gave False"),
        (lambda text: "", "the guardrail gave ''"),
    ],
    ids=["raises", "raises later", "true", "false", "empty"],
)
async def test_a_guardrail_that_cannot_decide_lets_nothing_through(go, heard, kind, check, reason):
    _, error = await go("chat", kind(check, name="g"), "hi")
    assert reason in str(error)
    assert [event.guardrail for event in heard.trips] == ["g"]


async def test_its_own_error_is_the_cause(go):
    _, error = await go("chat", InputGuardrail(broken), "hi")
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("refusal", [errors.BudgetExhaustedError("b"), errors.CancellationError("c"), errors.StopRun("s")], ids=repr)
async def test_a_limit_that_ends_a_guardrail_stays_a_limit(instrumented, chat, refusal):
    def judge(text):
        raise refusal

    context = chat()
    with pytest.raises(type(refusal)) as raised:
        await MiddlewarePipeline(InputGuardrail(judge)).run_chat(context, None)
    assert raised.value is refusal
    assert context.calls == 0


async def test_a_guardrail_that_asks_a_model_is_charged(stage, ask, heard):
    async def judge(text):
        async with stage.client() as client:
            reply = await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
        return "unfit" if reply.choices[0].message.content == "unfit" else None

    stage.play(Text("unfit", usage=(3, 4)))
    with ravi_otel.run("r") as run, pytest.raises(errors.MiddlewareTermination, match="unfit"):
        await ask(InputGuardrail(judge))
    assert run.stats().total_tokens == 7
    assert stage.sent == 1


PLACES = {
    "the instructions": {"system_instructions": "hunter2"},
    "an earlier message": {"messages": [ChatMessage("user", "hunter2"), ChatMessage("user", "hi")]},
    "a name": {"messages": [ChatMessage("user", "hi", name="hunter2")]},
    "a tool's result": {"messages": [ChatMessage("tool", "hunter2", tool_call_id="1")]},
    "the arguments of a call": {"messages": [ChatMessage("assistant", None, tool_calls=(call('{"q": "hunter2"}'),))]},
    "escaped arguments": {"messages": [ChatMessage("assistant", None, tool_calls=(call('{"q": "\\u0068unter2"}'),))]},
    "arguments that cannot be read": {"messages": [ChatMessage("assistant", None, tool_calls=(call("{hunter2"),))]},
}


@pytest.mark.parametrize("more", PLACES.values(), ids=PLACES)
async def test_every_text_of_a_call_is_looked_at(ask, stage, more):
    with pytest.raises(errors.MiddlewareTermination):
        await ask(InputGuardrail(no_secrets), **more)
    assert stage.sent == 0


async def test_the_tool_calls_of_an_answer_are_looked_at(ask, stage):
    stage.play(ToolCalls([("look", '{"q": "\\u0068unter2"}')]))
    with pytest.raises(errors.MiddlewareTermination):
        await ask(OutputGuardrail(no_secrets))


@pytest.mark.parametrize(
    "arguments", [{"hunter2": 1}, {"a": {"b": [{"c": "hunter2"}]}}, {"a": ["x\n", "hunter2"]}], ids=["key", "deep", "line"]
)
async def test_every_text_of_arguments_is_looked_at(instrumented, tool, arguments):
    context = tool(arguments)
    with pytest.raises(errors.MiddlewareTermination):
        await MiddlewarePipeline(InputGuardrail("hunter2", level="tool")).run_tool(context, None)


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return {"v": value}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (nested(100), "nested deeper than 64"),
        ({"v": "x" * 4_000_001}, "longer than 4000000 characters"),
        ({"v": [0] * 4_000_001}, "longer"),
    ],
    ids=["deep", "long", "wide"],
)
async def test_what_cannot_be_looked_through_is_stopped(instrumented, tool, arguments, reason):
    with pytest.raises(errors.MiddlewareTermination, match=reason):
        await MiddlewarePipeline(InputGuardrail("hunter2", level="tool")).run_tool(tool(arguments), None)


async def test_a_result_that_cannot_be_written_is_stopped(instrumented, tool):
    class Silent:
        def __str__(self):
            raise ValueError

    async def final(context):
        context.result = Silent()

    with pytest.raises(errors.MiddlewareTermination, match="the guardrail itself raised ValueError"):
        await MiddlewarePipeline(OutputGuardrail("x", level="tool")).run_tool(tool(), final)


async def test_the_messages_of_an_agents_input_are_looked_at(instrumented):
    context = AgentRun(agent_name="a", run_id="r", input=[ChatMessage("user", "hi"), ChatMessage("user", "hunter2")])
    with pytest.raises(errors.MiddlewareTermination):
        await MiddlewarePipeline(InputGuardrail(no_secrets, level="agent")).run_agent(context, None)


async def test_a_long_reason_is_cut(go):
    _, error = await go("chat", InputGuardrail(lambda text: "x" * 10_000, name="g"), "hi")
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"check": "("}, "is no regular expression"),
        ({"check": re.compile(b"x")}, "looks for bytes"),
        ({"check": 7}, "InputGuardrail(check=7) must be"),
        ({"check": "x", "level": "llm"}, "InputGuardrail(level)='llm'"),
        ({"check": "x", "name": ""}, "InputGuardrail(name)=''"),
    ],
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(given, said):
    with pytest.raises(errors.ConfigurationError) as refused:
        InputGuardrail(**given)
    assert said in str(refused.value)


async def test_its_name_is_the_functions():
    assert InputGuardrail(no_secrets).name == "no_secrets"
    assert InputGuardrail("x").name == "pattern"


HOSTED = [
    {"type": "mcp_call", "id": "m1", "name": "read", "arguments": "{}", "output": "hunter2"},
    {"type": "mcp_call", "id": "m1", "name": "read", "arguments": '{"for": "hunter\\u0032"}'},
    {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hunter2"}]},
]


@pytest.mark.parametrize("item", HOSTED, ids=["output", "arguments", "reasoning"])
@pytest.mark.parametrize("kind", [InputGuardrail, OutputGuardrail])
async def test_what_an_answer_of_the_responses_api_came_with_is_looked_at_too(instrumented, chat, kind, item):
    message = ResponseMessage("assistant", "fine", items=(item,))

    async def final(context):
        context.response = Generation(message)

    context = chat(messages=[ChatMessage("user", "go"), message]) if kind is InputGuardrail else chat()
    with pytest.raises(errors.MiddlewareTermination):
        await MiddlewarePipeline(kind(no_secrets)).run_chat(context, final)
