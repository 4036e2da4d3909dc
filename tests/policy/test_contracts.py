from __future__ import annotations

import dataclasses

import pytest

import ravi_otel.policy
from ravi_otel import policy
from ravi_otel.errors import CancellationError, MiddlewareTermination
from ravi_otel.policy import (
    AgentContextProtocol,
    AgentRunContextProtocol,
    CancellationToken,
    ChatContextProtocol,
    ChatMessage,
    CompactionStrategy,
    FunctionContextProtocol,
    GateVerdict,
    Generation,
    LLMClient,
    Middleware,
    RunContext,
    RunMeta,
    ScopeFacts,
    ScopeKind,
    ToolGate,
    ToolOutcome,
    ToolRequest,
    Usage,
)


class Echo:
    async def generate(self, messages, *, tools=()):
        return Generation(ChatMessage("assistant", messages[-1].content), Usage(3, 4))


class LastOnly:
    async def compact(self, raw_history):
        return raw_history[-1:]


class Memory:
    agent_id = "researcher"

    async def get_prompt_window(self, session_id):
        return [ChatMessage("user", session_id)]


class Run:
    def __init__(self, meta):
        self.meta = meta

    def check(self):
        self.meta.check()


@dataclasses.dataclass
class FunctionContext:
    agent_name: str = "researcher"
    run_id: str = "r1"
    session_id: str | None = None
    system_instructions: str | None = None
    function_name: str = "lookup"
    arguments: dict = dataclasses.field(default_factory=dict)


class Recorder:
    def __init__(self, rows, name, *, go_on=True):
        self.rows, self.name, self.go_on = rows, name, go_on

    async def process(self, context, call_next):
        self.rows.append(f"{self.name} {context.function_name}")
        if self.go_on:
            await call_next()
            self.rows.append(f"{self.name} done")


class Guard:
    async def process(self, context, call_next):
        raise MiddlewareTermination("no")


class OpenGate:
    def before(self, request):
        return GateVerdict(allowed=request.tool == "lookup")

    def admit(self, request, arguments):
        return GateVerdict(allowed=True, arguments=arguments)

    async def after(self, request, result):
        return GateVerdict(allowed=True)

    def audit(self, request, outcome):
        return None


async def chain(middlewares, context, last):
    if not middlewares:
        await last()
        return
    await middlewares[0].process(context, lambda: chain(middlewares[1:], context, last))


@pytest.mark.parametrize(
    ("protocol", "example"),
    [
        (LLMClient, Echo()),
        (CompactionStrategy, LastOnly()),
        (AgentContextProtocol, Memory()),
        (RunContext, Run(RunMeta())),
        (AgentRunContextProtocol, FunctionContext()),
        (ChatContextProtocol, FunctionContext()),
        (FunctionContextProtocol, FunctionContext()),
        (Middleware, Guard()),
        (ToolGate, OpenGate()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_plain_class_keeps_a_contract(protocol, example):
    assert isinstance(example, protocol)
    assert not isinstance(object(), protocol)


@pytest.mark.anyio
async def test_a_client_answers_with_a_message_and_its_usage():
    answer = await Echo().generate([ChatMessage("user", "hello")])

    assert (answer.message.content, answer.usage.total_tokens, answer.finish_reason) == ("hello", 7, None)


@pytest.mark.anyio
async def test_middlewares_wrap_each_other():
    rows = []

    async def last():
        rows.append("called")

    await chain([Recorder(rows, "a"), Recorder(rows, "b")], FunctionContext(), last)

    assert rows == ["a lookup", "b lookup", "called", "b done", "a done"]


@pytest.mark.anyio
async def test_a_middleware_that_goes_not_on_short_circuits():
    rows = []

    async def last():
        rows.append("called")

    await chain([Recorder(rows, "a", go_on=False)], FunctionContext(), last)

    assert rows == ["a lookup"]


@pytest.mark.anyio
async def test_a_middleware_blocks_by_raising():
    with pytest.raises(MiddlewareTermination):
        await chain([Guard()], FunctionContext(), lambda: None)


def test_a_run_context_checks_its_meta():
    token = CancellationToken()
    token.cancel("user")

    with pytest.raises(CancellationError):
        Run(RunMeta(cancellation=token)).check()


def test_a_message_is_written_without_what_is_not_set():
    assert ChatMessage("user", "hello").as_json() == {"role": "user", "content": "hello"}


def test_a_message_is_written_with_what_is_set():
    call = {"id": "c1", "type": "function"}

    assert ChatMessage("assistant", name="desk", tool_calls=(call,)).as_json() == {
        "role": "assistant",
        "content": None,
        "name": "desk",
        "tool_calls": [call],
    }
    assert ChatMessage("tool", "42", tool_call_id="c1").as_json() == {"role": "tool", "content": "42", "tool_call_id": "c1"}


def test_a_gate_is_asked_and_told():
    request = ToolRequest("lookup", {"user_id": 42}, "op1", ScopeFacts("s1", ScopeKind.RUN))
    verdict = OpenGate().before(request)

    assert (verdict.allowed, verdict.arguments, verdict.executed_from, verdict.ends_run) == (True, None, "original", False)
    assert OpenGate().audit(request, ToolOutcome("ok", verdict, result=1)) is None


def test_usage_adds_up_unless_told_otherwise():
    assert Usage(3, 4).total_tokens == 7
    assert Usage(3, 4, total_tokens=9).total_tokens == 9


def test_the_package_names_what_it_gives_sorted():
    assert policy.__all__ == sorted(policy.__all__)
    assert all(hasattr(ravi_otel.policy, name) for name in policy.__all__)
