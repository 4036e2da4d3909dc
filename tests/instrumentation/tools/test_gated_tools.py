"""A supervisor before the tools of a program that we did not write."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
import types
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ravi_otel
from ravi_otel import ConfigurationError, HookManager, RunLogger, StopRun, ToolDeniedError
from ravi_otel.supervisor import ApprovalAnswer, Decision, DecisionKind, Gate


class Cap:
    """Let refunds through up to 100, ask a person to 500, and none above."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def review(self, action: Any, state: Any, policy: Any) -> Decision:
        self.seen.append((action["name"], action["args"]))
        amount = action["args"].get("amount", 0)
        if amount > 500:
            return Decision(DecisionKind.BLOCK, "over_the_cap")
        return Decision(DecisionKind.ESCALATE, "high") if amount > 100 else Decision(DecisionKind.APPROVE, "low")


class Person:
    def __init__(self, *, approves: bool) -> None:
        self._approves = approves

    def ask(self, request: Any) -> ApprovalAnswer:
        return ApprovalAnswer(self._approves, who="ann")

    def executed(self, request: Any, status: str) -> None:
        pass


class Desk:
    """What a program has: functions, and where it keeps them."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []

        def refund(user: str, amount: int = 50) -> str:
            self.paid.append((user, amount))
            return f"{user}: {amount}"

        async def refund_later(user: str, amount: int = 50) -> dict[str, int]:
            await asyncio.sleep(0)
            self.paid.append((user, amount))
            return {user: amount}

        self.refund, self.refund_later = refund, refund_later


@pytest.fixture
def desk(instrumented: Any) -> Desk:
    return Desk()


def call(fn: Any, *args: Any, **kwargs: Any) -> Any:
    return asyncio.run(fn(*args, **kwargs)) if inspect.iscoroutinefunction(fn) else fn(*args, **kwargs)


@pytest.fixture(params=["refund", "refund_later"])
def tools(request: pytest.FixtureRequest, desk: Desk) -> dict[str, Any]:
    return {"pay": getattr(desk, request.param)}


def test_a_call_is_judged_under_the_name_that_the_program_calls_it_by(desk, tools):
    cap, plain = Cap(), tools["pay"]
    with ravi_otel.instrument_tools(tools, supervisor=cap) as made, ravi_otel.run("r") as run:
        call(tools["pay"], "eve", amount=70)
        assert made.names == ("pay",)
    assert (run.stats().tool_calls, desk.paid) == (1, [("eve", 70)])
    assert {name for name, _ in cap.seen} == {"pay"}
    assert tools["pay"] is plain


def test_what_is_left_to_its_default_is_judged_too(desk, tools):
    cap = Cap()
    with ravi_otel.instrument_tools(tools, supervisor=cap):
        call(tools["pay"], "eve")
    assert cap.seen[-1] == ("pay", {"user": "eve", "amount": 50})


def test_what_the_supervisor_blocks_does_not_run(desk, tools):
    with ravi_otel.instrument_tools(tools, supervisor=Cap()), pytest.raises(ToolDeniedError) as raised:
        call(tools["pay"], "eve", 900)
    assert (raised.value.stop_reason, desk.paid) == ("supervisor_block:over_the_cap", [])


@pytest.mark.parametrize("smuggled", [{"amount": True}, {"amount": "70"}, {"amount": float("nan")}, {"user": "eve", "extra": 1}, {}])
def test_arguments_that_are_not_what_the_signature_says_do_not_run(desk, tools, smuggled):
    with ravi_otel.instrument_tools(tools, supervisor=Cap()), pytest.raises((ToolDeniedError, StopRun)):
        call(tools["pay"], **({"user": "eve"} if "amount" in smuggled else {}), **smuggled)
    assert desk.paid == []


def test_a_person_who_approves_lets_it_run(desk, tools):
    with ravi_otel.instrument_tools(tools, supervisor=Cap(), approver=Person(approves=True)):
        call(tools["pay"], "eve", 300)
    assert desk.paid == [("eve", 300)]


def test_a_person_who_rejects_keeps_it_from_running(desk, tools):
    with (
        ravi_otel.instrument_tools(tools, supervisor=Cap(), approver=Person(approves=False)),
        pytest.raises((ToolDeniedError, StopRun), match="human_rejected"),
    ):
        call(tools["pay"], "eve", 300)
    assert desk.paid == []


def test_a_refusal_can_be_a_result_for_the_model(desk):
    tools = {"text": desk.refund, "json": desk.refund_later}
    with ravi_otel.instrument_tools(tools, supervisor=Cap(), refused="result"):
        text, found = call(tools["text"], "eve", 900), call(tools["json"], "eve", 900)
    assert json.loads(text) == {**found, "tool": "text"}
    assert (found["error"], found["tool"], found["stop_reason"]) == ("tool_denied", "json", "supervisor_block:over_the_cap")
    assert desk.paid == []


def test_a_gate_can_be_given_in_place_of_a_supervisor(desk, tools):
    gate = Gate(Cap(), tools=tools)
    with ravi_otel.instrument_tools(tools, supervisor=gate), pytest.raises(ToolDeniedError):
        call(tools["pay"], "eve", 900)


def test_functions_of_a_module_and_of_a_list_pass_the_gate(desk):
    module = types.ModuleType("desk_tools")
    module.refund = desk.refund
    desk.refund.__module__ = "desk_tools"
    listed = [desk.refund_later]
    with ravi_otel.instrument_tools(module, supervisor=Cap()), ravi_otel.instrument_tools(listed, supervisor=Cap()):
        for fn in (module.refund, listed[0]):
            with pytest.raises(ToolDeniedError):
                call(fn, "eve", 900)
            call(fn, "eve", 9)
    assert desk.paid == [("eve", 9)] * 2


class Till:
    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, amount: int) -> None:
        self.paid.append(amount)

    @classmethod
    def check(cls, amount: int) -> int:
        return amount

    @staticmethod
    def add(amount: int) -> int:
        return amount + 1


def test_methods_pass_the_gate_without_their_object(instrumented):
    cap, till = Cap(), Till()
    with ravi_otel.instrument_tools(Till, supervisor=cap) as made:
        till.pay(5)
        assert (till.check(6), Till.add(7)) == (6, 8)
        for method in (till.pay, Till.check, till.add):
            with pytest.raises(ToolDeniedError):
                method(900)
        assert set(made.names) == {"pay", "check", "add"}
    assert till.paid == [5]
    assert [args for _, args in cap.seen if args == {"amount": 5}]


# -- what is a tool already ------------------------------------------------------------------------------------------------


def test_what_is_a_tool_already_passes_the_gate_too_and_counts_once(desk):
    tools = [ravi_otel.tool(desk.refund, name="pay")]
    before = tools[0]
    with ravi_otel.instrument_tools(tools, supervisor=Cap()) as made, ravi_otel.run("r", limits=["tool.pay=5"]) as run:
        tools[0]("eve", 9)
        with pytest.raises(ToolDeniedError):
            tools[0]("eve", 900)
        assert made.names == ("pay",)
    assert (run.stats().tool_calls, run.limits[0].used) == (1, 1)
    assert tools[0] is before


def test_what_was_instrumented_before_passes_the_gate_too(desk):
    tools = {"pay": desk.refund}
    with ravi_otel.instrument_tools(tools), ravi_otel.instrument_tools(tools, supervisor=Cap()), ravi_otel.run("r") as run:
        tools["pay"]("eve", 9)
        with pytest.raises(ToolDeniedError):
            tools["pay"]("eve", 900)
    assert run.stats().tool_calls == 1
    assert tools["pay"] is desk.refund


def test_what_has_a_gate_keeps_it_and_that_is_said(desk, caplog):
    tools = {"pay": desk.refund}
    with ravi_otel.instrument_tools(tools, supervisor=Cap()):
        again = ravi_otel.instrument_tools(tools, supervisor=Cap())
    assert (again.names, dict(again.skipped)) == ((), {"pay": "a tool already, behind a gate of its own"})
    assert "puts no gate before: pay is a tool already" in caplog.text


def test_a_tool_below_another_decorator_is_refused_and_nothing_is_changed(desk):
    inner = ravi_otel.tool(desk.refund)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    tools = {"first": desk.refund, "pay": outer}
    with pytest.raises(ConfigurationError, match=r"cannot put a gate before 'pay': it is a tool already"):
        ravi_otel.instrument_tools(tools, supervisor=Cap())
    assert tools == {"first": desk.refund, "pay": outer}


def test_what_no_gate_can_stand_before_is_said(desk, caplog):
    def many():
        yield 1

    tools = {"pay": desk.refund, "many": many}
    with ravi_otel.instrument_tools(tools, supervisor=Cap()) as made:
        assert made.names == ("pay",)
    assert "puts no gate before: many is a generator function" in caplog.text


def test_two_tools_of_one_name_are_refused(desk):
    other = functools.partial(desk.refund, amount=1)
    with pytest.raises(ConfigurationError, match=r"two tools called 'refund'"):
        ravi_otel.instrument_tools([desk.refund, other], supervisor=Cap())


# -- what is given wrongly -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"supervisor": object()}, r"instrument_tools\(supervisor=.* is neither a supervisor, .* nor a gate"),
        ({"approver": Person(approves=True)}, r"instrument_tools\(approver=\.\.\.\) says .* Give supervisor= too"),
        ({"refused": "result"}, r"instrument_tools\(refused=\.\.\.\) says .* Give supervisor= too"),
        ({"supervisor": Cap(), "refused": "ignore"}, r"instrument_tools\(refused\)?=?'?"),
    ],
)
def test_what_cannot_be_used_is_an_error_and_changes_nothing(desk, given, words):
    tools = {"pay": desk.refund}
    with pytest.raises(ConfigurationError, match=words):
        ravi_otel.instrument_tools(tools, **given)
    assert tools == {"pay": desk.refund}


def test_uninstrument_takes_the_gate_away(desk):
    tools = {"pay": desk.refund}
    ravi_otel.instrument_tools(tools, supervisor=Cap())
    held = tools["pay"]
    ravi_otel.uninstrument()
    assert tools["pay"] is desk.refund
    assert held("eve", 900) == "eve: 900"


# -- who is told -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported():
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ravi_otel.instrument(tracer_provider=provider):
        yield lambda: [span for span in exporter.get_finished_spans() if span.name == "execute_tool pay"]


@pytest.mark.parametrize("name", ["refund", "refund_later"])
def test_what_was_decided_is_on_the_span_of_the_tool_and_hooks_hear_it(exported, name):
    hooks = HookManager()
    log = RunLogger(hooks)
    tools = {"pay": getattr(Desk(), name)}
    with ravi_otel.instrument_tools(tools, supervisor=Cap()), ravi_otel.run("r", hooks=hooks) as run:
        call(tools["pay"], "eve", 9)
        with pytest.raises(ToolDeniedError):
            call(tools["pay"], "eve", 900)
    let_through, refused = exported()
    assert (let_through.attributes["ravi.review.decision"], let_through.attributes["ravi.review.executed_from"]) == ("approve", "original")
    assert (refused.attributes["ravi.review.decision"], refused.attributes["ravi.review.reason"]) == ("block", "over_the_cap")
    assert (refused.attributes["error.type"], refused.attributes["ravi.status"]) == ("ravi.tool_denied", "refused")
    assert "ravi.limit.decision" not in refused.attributes
    reviews = [one.context for one in log if str(one.event) == "review"]
    assert [(one["decision"], one["tool_name"], one["run_id"]) for one in reviews] == [
        ("approve", "pay", run.id),
        ("block", "pay", run.id),
    ]
    assert all(len(one["args_sha256"]) == 64 for one in reviews)


def test_a_tool_that_was_abandoned_says_so_on_its_span(exported):
    over = threading.Event()
    tools = {"pay": over.wait}
    gate = Gate(tools={"pay": lambda: None}, timeout_s=0.01)
    with ravi_otel.instrument_tools(tools, supervisor=gate), pytest.raises(ravi_otel.ToolTimeoutError):
        tools["pay"]()
    over.set()
    assert exported()[0].attributes["ravi.tool.abandoned"] is True
