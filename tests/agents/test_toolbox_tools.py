"""A program's functions become tools: what the model is told of them, how they run, and what it is told of their results."""

from __future__ import annotations

import dataclasses
import json

import pydantic
import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError
from ravi_otel.agents import AgentTool, ReActAgent
from ravi_otel.errors import StopRun
from ravi_otel.policy._contracts import GateVerdict
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.testing import Text, ToolCalls

DONE = Text("done", usage=(10, 5))


def asked(*calls):
    return ToolCalls(calls, usage=(10, 5))


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


async def double_async(x: int) -> int:
    """Double a number, soon."""
    return 2 * x


class Desk:
    def __init__(self):
        self.factor = 2

    def plain(self, x: int) -> int:
        return self.factor * x

    async def awaited(self, x: int) -> int:
        return self.factor * x

    @ravi_otel.tool
    def told(self, x: int) -> int:
        return self.factor * x

    def __call__(self, x: int) -> int:
        return self.factor * x


SPEC = {"type": "function", "function": {"name": "given", "description": "As given.", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "given", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (double, "double"),
        (double_async, "double_async"),
        (Desk().plain, "plain"),
        (Desk().awaited, "awaited"),
        (Desk().told, "told"),
        (Desk(), "Desk"),
        (ravi_otel.tool(double), "double"),
        (ravi_otel.tool(double_async), "double_async"),
        (ravi_otel.tool(double, name="twice"), "twice"),
        (AgentTool(double, name="other"), "other"),
        ((SPEC, double), "given"),
        ((FLAT, double_async), "given"),
    ],
)
def test_whatever_can_be_called_is_a_tool_that_is_counted_once(team, go, tool, name):
    ends = []
    hooks = ravi_otel.HookManager()
    hooks.register("tool_end", lambda ctx: ends.append(ctx["tool_name"]))
    agent = ReActAgent("r", model=team.plays("r", asked((name, {"x": 4})), DONE), tools=[tool], hooks=hooks)
    result = go(agent.run, "go")
    assert team.told("r") == [8]
    assert (result.usage.tool_calls, ends) == (1, [name])


def test_a_model_is_told_the_signature_and_the_docstring(team):
    ReActAgent("r", model=team.plays("r", DONE), tools=[double]).run_blocking("go")
    (tool,) = team.requests("r")[0]["tools"]
    assert (tool["type"], tool["function"]["name"], tool["function"]["description"]) == ("function", "double", "Double a number.")
    assert tool["function"]["parameters"]["required"] == ["x"]


def test_an_openai_tool_is_offered_as_it_was_given(team):
    ReActAgent("r", model=team.plays("r", DONE), tools=[(SPEC, double)]).run_blocking("go")
    assert team.requests("r")[0]["tools"] == [SPEC]


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    x: int


class Unprintable:
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


def cycle():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("text", "text"),
        (None, "null"),
        ({"a": "é"}, '{"a": "é"}'),
        (Point(1), '{"x": 1}'),
        (Model(x=1), '{"x": 1}'),
        ({1}, "[1]"),
        (ValueError("x"), '"x"'),
        (cycle(), "[[...]]"),
        (Unprintable(), '"<Unprintable>"'),
        ("half \ud800", "half ?"),
        (b"bytes", "\"b'bytes'\""),
    ],
)
def test_any_result_is_told_as_text(team, result, told):
    def give():
        return result

    assert ReActAgent("r", model=team.plays("r", asked(("give", {})), DONE), tools=[give]).run_blocking("go").history[2].content == told


def test_a_huge_result_is_cut_with_a_note(team):
    def give():
        return "x" * 10_000_000

    result = ReActAgent("r", model=team.plays("r", asked(("give", {})), DONE), tools=[give]).run_blocking("go")
    content = result.history[2].content
    assert len(content) < 50_000 + 200
    assert "first 50000 of 10000000 characters" in content


def test_a_huge_error_is_cut(team):
    def broken():
        raise ValueError("x" * 1_000_000)

    result = ReActAgent("r", model=team.plays("r", asked(("broken", {})), DONE), tools=[broken]).run_blocking("go")
    assert len(result.history[2].content) < 2_000


def test_of_very_many_calls_in_one_answer_only_so_many_are_run(team):
    result = ReActAgent("r", model=team.plays("r", asked(*[("double", {"x": 1})] * 70), DONE), tools=[double]).run_blocking("go")
    assert result.ok
    assert (result.usage.tool_calls, len(team.told("r"))) == (64, 70)
    assert team.told("r")[-1]["error"] == "too_many_calls"


class Once:
    """Let one call through, with other arguments, and refuse what follows."""

    def __init__(self):
        self.asked, self.audited = [], []

    def before(self, request):
        self.asked.append(request.arguments)
        if len(self.asked) > 1:
            return GateVerdict(False, reason="once", stop_reason=f"tool_denied:{request.tool}")
        return GateVerdict(True, {"x": 5}, "supervisor_revised")

    def admit(self, request, arguments):
        return GateVerdict(True)

    def after(self, request, result):
        return GateVerdict(True)

    def audit(self, request, outcome):
        self.audited.append(outcome.status)


@pytest.mark.parametrize("tool", [double, ravi_otel.tool(double), double_async])
def test_a_gate_stands_before_every_tool(team, go, tool):
    gate = Once()
    model = team.plays("r", asked((tool.__name__, {"x": 1}), (tool.__name__, '{"x": 1}')), DONE)
    result = go(ReActAgent("r", model=model, tools=[tool], supervisor=gate).run, "go")
    assert result.ok
    refused = [told for told in team.told("r") if told != 10]  # whichever came second
    assert [(told["error"], told["reason"]) for told in refused] == [("tool_denied", "once")]
    assert (sorted(gate.audited), result.usage.tool_calls) == (["ok", "refused"], 1)


class Careful:
    """Let 1 through, halve 4, and block the rest."""

    def review(self, action, state, policy):
        x = action["args"]["x"]
        if x == 4:
            return Decision(DecisionKind.REVISE, "less", {"kind": "tool", "name": "double", "args": {"x": 2}}, risk_score=0.5)
        return Decision(DecisionKind.APPROVE if x <= 2 else DecisionKind.BLOCK, "known")


def test_the_trace_says_what_a_supervisor_decided_and_whose_arguments_ran(team, go):
    model = team.plays("r", asked(("double", {"x": 1}), ("double", {"x": 4}), ("double", {"x": 9})), DONE)
    result = go(ReActAgent("r", model=model, tools=[double], supervisor=Careful()).run, "go")
    assert [(row["supervisor_decision"], row["executed_from"], row["ok"]) for row in result.trace] == [
        ("approve", "original", True),
        ("revise", "supervisor_revised", True),
        ("block", "original", False),
    ]
    assert result.trace[2]["stop_reason"] == "supervisor_block:known"
    assert result.trace[1]["risk_score"] == 0.5
    assert team.told("r")[:2] == [2, 4]


def test_a_tool_with_a_gate_of_its_own_keeps_it(team):
    gate = Once()
    guarded = ravi_otel.tool(double, gate=gate)
    result = ReActAgent("r", model=team.plays("r", asked(("double", {"x": 1})), DONE), tools=[guarded]).run_blocking("go")
    assert (team.told("r"), gate.audited, result.usage.tool_calls) == ([10], ["ok"], 1)


def test_no_gate_is_passed_by(team):
    with pytest.raises(ConfigurationError, match="gate of its own"):
        ReActAgent("r", tools=[ravi_otel.tool(double, gate=Once())], supervisor=Once())


def test_limits_by_name_hold_for_a_named_tool(team):
    model = team.plays("r", asked(("twice", {"x": 1})), asked(("twice", {"x": 1})), DONE)
    result = ReActAgent("r", model=model, tools=[ravi_otel.tool(double, name="twice")], limits=["tool.twice=1"]).run_blocking("go")
    assert (result.stop_reason, type(result.error)) == ("limit_tool_calls", BudgetExhaustedError)


def test_middleware_stands_around_tools_and_may_change_their_arguments(team, go):
    class Add:
        level = "tool"

        async def process(self, context, call_next):
            context.arguments = {"x": context.arguments["x"] + 1}
            await call_next()
            context.result += 100

    agent = ReActAgent("r", model=team.plays("r", asked(("double", {"x": 1})), DONE), tools=[double], middleware=[Add()])
    go(agent.run, "go")
    assert team.told("r") == [104]


def test_a_key_that_is_there_twice_is_refused(team, go):
    agent = ReActAgent("r", model=team.plays("r", asked(("double", '{"x": 4, "x": 5}')), DONE), tools=[double])
    assert json.loads(go(agent.run, "go").history[2].content)["reason"] == "duplicate_key:double"


def generate():
    yield 1


def unnamed(x):
    return x


unnamed.__name__ = "no spaces"


@pytest.mark.parametrize(
    "tools", [[generate], [double, double], [unnamed], [({"type": "function"}, double)], [(SPEC,)], [(SPEC, 3)], {"double": double}, [None]]
)
def test_what_cannot_be_a_tool_is_said_when_the_agent_is_made(tools):
    with pytest.raises(ConfigurationError):
        ReActAgent("r", tools=tools)


def test_the_call_at_which_the_gate_ended_a_run_is_in_its_result(team, go):
    class Never(Once):
        def before(self, request):
            return GateVerdict(False, reason="never", stop_reason="supervisor_block:never", ends_run=True)

    model = team.plays("r", asked(("double", {"x": 1})))
    result = go(ReActAgent("r", model=model, tools=[double], supervisor=Never()).run, "go")
    assert (result.status, result.stop_reason) == ("stopped", "supervisor_block:never")
    assert (result.action, result.raw_action) == ({"kind": "tool", "name": "double", "args": {"x": 1}}, None)


def test_a_run_that_no_gate_ended_has_no_such_call(team, go):
    def stop() -> None:
        raise StopRun("enough")

    result = go(ReActAgent("r", model=team.plays("r", asked(("stop", {}))), tools=[stop]).run, "go")
    assert (result.stop_reason, result.action, result.raw_action) == ("enough", None, None)
