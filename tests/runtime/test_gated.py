"""A tool call on its way through a gate: what is asked when, what a refusal is, and who is told."""

import asyncio
import contextlib
import inspect
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, ConfigurationError, HookManager, RunLogger, StopRun, ToolDeniedError
from ravi_otel._runtime.state import STATE
from ravi_otel.policy._contracts import GateVerdict

sys.path.insert(0, str(Path(__file__).parent))

from own_gates import END, METHODS, NO, WAYS, YES, AsyncGate, OwnGate, Walked, call


@pytest.fixture(params=WAYS)
def walked(request, instrumented):
    return Walked(*WAYS[request.param])


def test_a_call_is_asked_about_before_at_and_after_it_runs_and_written_down_last(walked, heard):
    gate = walked.gate()
    assert walked(gate) == {"x": 1}
    assert gate.asked == ["before", "admit", "after", "audit"]
    assert [(one.name, one.status, one.decision) for one in heard.tools] == [("act", "ok", "admitted")]
    assert (gate.outcome.status, gate.outcome.result, gate.outcome.error) == ("ok", {"x": 1}, None)
    assert gate.outcome.duration_s >= 0


def test_every_question_is_about_the_same_call(walked, heard):
    gate = walked.gate()
    with ravi_otel.run("desk") as run:
        walked(gate, call_id="call_7")
    assert {one.op_id for one in gate.requests} == {heard.tools[0].op_id}
    assert {(one.tool, one.call_id, one.facts.run_id, one.awaited) for one in gate.requests} == {
        ("act", "call_7", run.id, walked.caller == "async")
    }
    assert heard.tools[0].call_id == "call_7"


def test_what_is_let_through_runs_with_the_effective_arguments(walked):
    gate = walked.gate(before=GateVerdict(allowed=True, arguments={"x": 2}, executed_from="supervisor_revised"))
    assert walked(gate) == {"x": 2}
    assert (gate.outcome.verdict.arguments, gate.outcome.verdict.executed_from) == ({"x": 2}, "supervisor_revised")


@pytest.mark.parametrize("question", ["before", "admit"])
def test_a_refused_call_does_not_run_and_says_why(walked, heard, question):
    gate = walked.gate(**{question: NO})
    with pytest.raises(ToolDeniedError, match=r"tool 'act' was not run: too much \(supervisor_block:over_the_cap\)") as raised:
        walked(gate)
    assert walked.runs == []
    assert (raised.value.tool, raised.value.reason, raised.value.stop_reason, raised.value.ran) == (
        "act",
        "too much",
        "supervisor_block:over_the_cap",
        False,
    )
    assert (gate.outcome.status, gate.outcome.verdict.stop_reason, gate.outcome.error) == (
        "refused",
        "supervisor_block:over_the_cap",
        raised.value,
    )
    assert [(one.status, one.error_type) for one in heard.tools] == [("refused", "ravi.tool_denied")]


@pytest.mark.parametrize("question", ["before", "admit", "after"])
def test_a_refusal_that_ends_the_run_says_so(walked, question):
    with pytest.raises(StopRun) as raised:
        walked(walked.gate(**{question: END}))
    assert (raised.value.reason, raised.value.tool, raised.value.phase) == ("human_rejected", "act", "human_approval")
    assert pickle.loads(pickle.dumps(raised.value)).reason == "human_rejected"


def test_a_refusal_without_a_reason_has_the_stop_reason_of_its_tool(walked):
    with pytest.raises(ToolDeniedError) as raised:
        walked(walked.gate(before=GateVerdict(allowed=False)))
    assert (raised.value.stop_reason, raised.value.reason) == ("tool_denied:act", "tool_denied:act")


def test_a_refused_result_is_an_error_of_a_tool_that_ran_once(walked, heard):
    gate = walked.gate(after=replace(NO, stop_reason=None))
    with pytest.raises(ToolDeniedError, match="was run, and its result was refused: too much") as raised:
        walked(gate)
    assert walked.runs == [{"x": 1}]
    assert (raised.value.ran, raised.value.stop_reason) == (True, "tool_bad_result:act")
    assert raised.value.as_tool_error()["error"] == "tool_result_refused"
    assert (gate.outcome.status, gate.outcome.result, gate.outcome.verdict.arguments) == ("error", None, {"x": 1})
    assert [one.status for one in heard.tools] == ["error"]


@pytest.mark.parametrize("question", ["before", "admit"])
@pytest.mark.parametrize("answer", [ZeroDivisionError("x"), lambda *_: None, lambda *_: True, lambda *_: replace(YES, allowed="yes")])
def test_a_gate_that_fails_executes_nothing(walked, question, answer):
    gate = walked.gate(**{question: answer})
    with pytest.raises(ToolDeniedError):
        walked(gate)
    assert walked.runs == []
    assert gate.outcome.status == "refused"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "5"])
def test_a_time_that_is_none_executes_nothing(walked, timeout_s):
    with pytest.raises(ToolDeniedError, match="ValueError"):
        walked(walked.gate(before=replace(YES, timeout_s=timeout_s)))
    assert walked.runs == []


def test_what_failed_in_the_gate_is_the_cause(walked):
    with pytest.raises(ToolDeniedError, match=r"its gate failed in before\(\) with ZeroDivisionError") as raised:
        walked(walked.gate(before=ZeroDivisionError("x")))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.stop_reason == "supervisor_block:gate_failed"


def test_a_gate_that_fails_after_a_tool_ran_keeps_its_result_back(walked):
    gate = walked.gate(after=ZeroDivisionError("x"))
    with pytest.raises(ToolDeniedError) as raised:
        walked(gate)
    assert (raised.value.ran, len(walked.runs), gate.outcome.status) == (True, 1, "error")


def test_errors_of_ours_from_a_gate_are_the_callers(walked):
    refused = StopRun("supervisor_block:closed")
    with pytest.raises(StopRun) as raised:
        walked(walked.gate(before=refused))
    assert raised.value is refused


def test_an_error_of_the_tool_is_the_callers_own_and_is_written_down(walked, heard):
    error = KeyError("nobody")

    def fail(**_):
        raise error

    gate = walked.gate()
    with pytest.raises(KeyError) as raised:
        walked(gate, fail)
    assert raised.value is error
    assert gate.asked == ["before", "admit", "audit"]
    assert (gate.outcome.status, gate.outcome.error) == ("error", error)
    assert [(one.status, one.error_type) for one in heard.tools] == [("error", "KeyError")]


def test_what_cannot_be_written_down_ends_the_run_and_its_result_is_kept_back(walked, heard):
    with pytest.raises(StopRun, match="could not be written down") as raised:
        walked(walked.gate(audit=OSError("disk full")))
    assert (raised.value.reason, raised.value.tool, len(walked.runs)) == ("supervisor_block:audit_failed", "act", 1)
    assert isinstance(raised.value.__cause__, OSError)
    assert [one.status for one in heard.tools] == ["error"]


@pytest.mark.parametrize("way", [{"before": NO}, {"after": NO}])
def test_a_refusal_that_cannot_be_written_down_ends_the_run_too(walked, way):
    with pytest.raises(StopRun) as raised:
        walked(walked.gate(audit=OSError("disk full"), **way))
    assert raised.value.reason == "supervisor_block:audit_failed"


def test_a_run_that_ends_anyway_ends_by_its_own_reason(walked, caplog):
    with pytest.raises(StopRun) as raised:
        walked(walked.gate(before=END, audit=OSError("disk full")))
    assert raised.value.reason == "human_rejected"
    assert "could not be written down" in caplog.text


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_gated_call_counts_once(walked):
    with ravi_otel.run("r", limits=["tool_calls=5", "tool.act=5"]) as run:
        walked(walked.gate())
    assert run.stats().tool_calls == 1
    assert [one.used for one in run.limits] == [1, 1]


@pytest.mark.parametrize("question", ["before", "admit"])
def test_what_the_gate_refuses_counts_against_no_limit(walked, question):
    with ravi_otel.run("r", limits=["tool_calls=1"]) as run:
        with pytest.raises(ToolDeniedError):
            walked(walked.gate(**{question: NO}))
        assert [(one.used, one.events) for one in run.limits if one.used] == []
        assert walked(walked.gate()) == {"x": 1}
    assert run.stats().tool_calls == 1


def test_past_a_limit_nothing_runs_and_that_is_written_down(walked):
    gate = walked.gate()
    with ravi_otel.run("r", limits=["tool_calls=0"]), pytest.raises(BudgetExhaustedError):
        walked(gate)
    assert gate.asked == ["before", "audit"]
    assert (gate.outcome.status, gate.outcome.verdict.allowed, walked.runs) == ("refused", False, [])
    assert "0" in gate.outcome.verdict.reason


def test_in_shadow_mode_limits_only_look_on_and_the_gate_still_refuses(walked, settings):
    with settings(observe=True), ravi_otel.run("r", limits=["tool_calls=0"]):
        assert walked(walked.gate()) == {"x": 1}
        with pytest.raises(ToolDeniedError):
            walked(walked.gate(before=NO))


def test_a_run_that_was_cancelled_while_the_gate_was_asked_runs_nothing(walked):
    with ravi_otel.run("r") as run:
        gate = walked.gate(before=lambda _: (run.cancel("by hand"), YES)[1])
        with pytest.raises(ravi_otel.CancellationError):
            walked(gate)
    assert walked.runs == []
    assert gate.asked == ["before", "audit"]


def test_a_run_that_was_cancelled_before_is_not_asked_about_and_is_written_down(walked):
    gate = walked.gate()
    with ravi_otel.run("r") as run:
        run.cancel("by hand")
        with pytest.raises(ravi_otel.CancellationError):
            walked(gate)
    assert gate.asked == ["audit"]
    assert gate.outcome.status == "refused"


def test_what_the_tool_spends_is_its_runs(walked):
    with ravi_otel.run("r", limits=["tool_calls=5"]) as run:
        walked(walked.gate(), lambda **_: ravi_otel.tool(len)("ab"))
    assert run.stats().tool_calls == 2


# -- colours -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_an_async_gate_before_a_sync_tool_is_refused_before_anything_runs(instrumented, method):
    ran = []
    gate = OwnGate()
    setattr(gate, method, getattr(AsyncGate(), method))
    with pytest.raises(ConfigurationError, match=rf"its gate answers {method}\(\) only to code that is"):
        ravi_otel.tool(ran.append, gate=gate)(1)
    assert ran == []


def test_a_gate_that_gives_something_to_await_to_a_sync_call_lets_nothing_through(instrumented):
    async def later():
        return YES

    gate, ran = OwnGate(before=lambda _: later()), []
    with pytest.raises(ConfigurationError, match=r"answers before\(\) only to code that is"):
        ravi_otel.tool(ran.append, gate=gate)(1)
    assert ran == []
    assert gate.outcome.status == "refused"


def test_an_async_tool_called_from_sync_code_is_refused_and_not_begun(instrumented):
    async def act():
        raise AssertionError

    gate = OwnGate()
    with pytest.raises(ConfigurationError, match=r"tool 'act' is async, and was called from code that is not\. Await it"):
        Walked("sync").walk(act, gate, {})
    assert gate.asked == ["audit"]


def test_what_gives_a_coroutine_is_awaited_where_that_can_be(instrumented):
    async def act(x):
        return x

    def begin(x):
        return act(x)

    gate = OwnGate()
    assert Walked("async").walk(begin, gate, {"x": 3}) == 3
    assert gate.outcome.result == 3


def test_what_gives_a_coroutine_to_a_sync_call_is_an_error_and_its_coroutine_never_begins(instrumented):
    async def act(x):
        raise AssertionError(x)

    def begin(x):
        return act(x)

    gate = OwnGate()
    with pytest.raises(ConfigurationError, match="gave something to await to a call that is not async"):
        Walked("sync").walk(begin, gate, {"x": 3})
    assert gate.outcome.status == "error"


def test_an_object_with_an_async_call_is_a_tool_to_await(instrumented):
    class Act:
        async def __call__(self, x):
            return x

    gated = ravi_otel.tool(Act(), gate=OwnGate(), name="act")
    assert asyncio.run(gated(x=4)) == 4


@pytest.mark.parametrize("error", [StopIteration(3), StopAsyncIteration()], ids=["stop", "async-stop"])
def test_a_sync_tool_may_raise_what_ends_iterations(instrumented, error):
    def act():
        raise error

    gate = OwnGate()
    with pytest.raises(type(error)):
        ravi_otel.tool(act, gate=gate)()
    assert gate.outcome.error is error


# -- the decorator -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sync", "async"])
def adder(request):
    def add(a, b=2):
        """Add."""
        return a + b

    async def add_async(a, b=2):
        """Add."""
        return a + b

    return add if request.param == "sync" else add_async


def is_coroutine_function(fn):
    """Ask in both ways that programs do; from Python 3.14 on the one of asyncio warns."""
    expected = pytest.warns(DeprecationWarning, match="iscoroutinefunction") if sys.version_info >= (3, 14) else contextlib.nullcontext()
    with expected:
        said = asyncio.iscoroutinefunction(fn)
    assert inspect.iscoroutinefunction(fn) == said
    return said


def test_a_decorated_function_stays_what_it_was(instrumented, adder):
    gated = ravi_otel.tool(adder, gate=OwnGate())
    assert (gated.__name__, gated.__doc__) == (adder.__name__, "Add.")
    assert is_coroutine_function(gated) == is_coroutine_function(adder)
    assert call(gated, 1, b=4) == 5


def test_decorated_with_a_name_it_is_asked_about_under_it(instrumented, heard, adder):
    gate = OwnGate()
    assert call(ravi_otel.tool(gate=gate, name="sum")(adder), 1) == 3
    assert {one.tool for one in gate.requests} == {"sum"} == {one.name for one in heard.tools}


def test_it_may_be_called_from_many_threads_at_once(instrumented):
    gate = OwnGate()

    def one(number):
        return number

    async def many():
        gated = ravi_otel.tool(one, gate=gate)
        return await asyncio.gather(*(asyncio.to_thread(gated, number) for number in range(20)))

    assert asyncio.run(many()) == list(range(20))
    assert len({one.op_id for one in gate.requests}) == len(gate.outcomes) == 20


@pytest.mark.parametrize("gate", [object(), "strict", True])
def test_what_is_no_gate_is_refused_where_it_is_given(gate):
    with pytest.raises(ConfigurationError, match=r"tool\(gate\)=.* is no gate"):
        ravi_otel.tool(len, gate=gate)


def test_it_works_before_anything_is_instrumented(adder):
    assert not STATE.instrumented
    gate = OwnGate()
    assert call(ravi_otel.tool(adder, gate=gate), 1) == 3
    assert gate.outcome.status == "ok"


# -- who is told -----------------------------------------------------------------------------------------------------------


def test_hooks_hear_of_a_gated_call_once(walked):
    hooks = HookManager()
    log = RunLogger(hooks)
    with ravi_otel.run("r", hooks=hooks):
        walked(walked.gate())
        with pytest.raises(ToolDeniedError):
            walked(walked.gate(before=NO))
    told = [(str(one.event), one.context.get("status"), one.context.get("error_type")) for one in log if "tool" in str(one.event)]
    assert told == [
        ("tool_start", None, None),
        ("tool_end", "ok", None),
        ("tool_start", None, None),
        ("tool_end", "refused", "ravi.tool_denied"),
    ]
