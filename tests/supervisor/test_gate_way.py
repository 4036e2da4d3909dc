"""What fails refuses, and what is told, written down and answered is what was decided."""

import asyncio
import threading
from dataclasses import replace

import pytest
from refund_gate import (
    APPROVE,
    BLOCK,
    ESCALATE,
    LARGE,
    NO,
    SMALL,
    YES,
    Desk,
    Person,
    Says,
    SaysLater,
    desk_gate,
    refused,
    through,
)

import ravi_otel
from ravi_otel._runtime.tool_call import ToolCall
from ravi_otel.errors import ConfigurationError, StopRun
from ravi_otel.policy._contracts import ToolGate
from ravi_otel.supervisor import ApprovalAnswer, Decision, DecisionKind, Gate, gate_for
from ravi_otel.supervisor.rules import Allow

pytestmark = pytest.mark.usefixtures("run")


# -- what fails refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "stop_reason"),
    [
        (None, "supervisor_block:invalid_decision"),
        (True, "supervisor_block:invalid_decision"),
        (Decision("sure", "why not"), "supervisor_block:invalid_decision"),
        (BLOCK, "supervisor_block:no_way"),
        (Decision("block", "no_way"), "supervisor_block:no_way"),
        (Decision(DecisionKind.BLOCK, "two\nlines\x1b[2J"), "supervisor_block:two lines [2J"),
    ],
)
def test_a_decision_that_is_none_and_a_block_let_nothing_through(colour, till, said, stop_reason):
    assert refused(colour, desk_gate(till, supervisor=Says(said)), till, SMALL).stop_reason == stop_reason
    assert till.paid == []


def test_a_supervisor_that_fails_lets_nothing_through(colour, till, caplog):
    def fail(*_):
        raise KeyError("amount")

    assert refused(colour, desk_gate(till, supervisor=Says(fail)), till, SMALL).stop_reason == "supervisor_block:review_failed"
    assert till.paid == []
    assert "failed while it reviewed 'refund'" in caplog.text


def test_a_limit_that_stops_the_review_reaches_the_caller(till):
    def spend(*_):
        raise ravi_otel.BudgetExhaustedError("spent")

    with pytest.raises(ravi_otel.BudgetExhaustedError, match="spent"):
        through("sync", desk_gate(till, supervisor=Says(spend)), "refund", till.refund, SMALL)
    assert till.paid == []


class Log:
    def __init__(self, broken_at=None):
        self.lines = []
        self.broken_at = broken_at

    def note(self, what, *, run_id, agent_name, tool, op_id, arguments, **facts):
        if what == self.broken_at:
            raise OSError("disk full")
        self.lines.append((what, tool, None if arguments is None else dict(arguments), facts))


@pytest.mark.parametrize("broken_at", ["proposed", "reviewed", "approved", "effective"])
def test_a_gate_whose_audit_cannot_be_written_executes_nothing(colour, till, broken_at):
    gate = desk_gate(till, Person(YES), audit=Log(broken_at))
    with pytest.raises(StopRun) as caught:
        through(colour, gate, "refund", till.refund, LARGE)
    assert caught.value.reason == "supervisor_block:audit_failed"
    assert till.paid == []
    assert gate.state.begun("refund") == 0


def test_an_end_that_cannot_be_written_ends_the_run(colour, till):
    with pytest.raises(StopRun) as caught:
        through(colour, desk_gate(till, audit=Log("executed")), "refund", till.refund, SMALL)
    assert caught.value.reason == "supervisor_block:audit_failed"


def test_the_audit_tells_proposed_approved_and_effective_apart(colour, till):
    log = Log()
    gate = desk_gate(till, Person(replace(YES, arguments={**LARGE, "amount": 800.0})), audit=log)
    through(colour, gate, "refund", till.refund, LARGE)
    assert [(what, arguments["amount"]) for what, _, arguments, _ in log.lines] == [
        ("proposed", 1200.0),
        ("reviewed", 1200.0),
        ("approved", 800.0),
        ("reviewed", 800.0),
        ("effective", 800.0),
        ("executed", 800.0),
    ]
    assert log.lines[2][3]["asked"] == LARGE


def test_the_audit_has_an_edit_that_did_not_fit(till):
    log = Log()
    refused("sync", desk_gate(till, Person(replace(YES, arguments={**LARGE, "amount": "abc"}), NO), audit=log), till, LARGE)
    first, second = [(arguments["amount"], facts) for what, _, arguments, facts in log.lines if what == "approved"]
    assert first == ("abc", {"asked": LARGE, "approved": True, "who": "ann", "comment": "fine", "fits": False})
    assert second == (1200.0, {"asked": LARGE, "approved": False, "who": "ann", "comment": "too much"})


def test_a_state_that_fails_at_the_end_lets_nothing_more_through(colour, till, caplog):
    class Forgets:
        def begin(self, tool, arguments):
            pass

        def end(self, tool, arguments, status, result):
            raise RuntimeError("lost count")

        def total(self, tool, field):
            return 0

    gate = desk_gate(till, state=Forgets(), loops=False)
    assert through(colour, gate, "refund", till.refund, SMALL)["status"] == "ok"
    assert refused(colour, gate, till, SMALL).stop_reason == "supervisor_block:state_failed"
    assert len(till.paid) == 1
    assert "lets nothing more through" in caplog.text


def test_a_state_that_fails_at_the_beginning_lets_nothing_through(till):
    class Refuses:
        def begin(self, tool, arguments):
            raise RuntimeError("no room")

        def end(self, tool, arguments, status, result):
            pass

        def total(self, tool, field):
            return 0

    refused("sync", desk_gate(till, state=Refuses()), till, SMALL)
    assert till.paid == []


# -- the way through --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "stop_reason"),
    [
        ("context", {"user_id": 1}, "tool_denied:context"),
        ("transfer", {"user_id": 1}, "tool_missing:transfer"),
        ("refund", "{", "tool_bad_args:refund"),
        ("refund", "[]", "tool_bad_args:refund"),
        ("refund", {**SMALL, "user_id": True}, "tool_bad_args:refund"),
        ("refund", {**SMALL, "amount": float("inf")}, "tool_bad_args:refund"),
        ("refund", {**SMALL, "аmount": 1.0}, "tool_bad_args:refund"),  # noqa: RUF001 - a look-alike is what it is about
        ("refund", {"user_id": 1, "reason": "x"}, "tool_bad_args:refund"),
    ],
)
def test_what_is_not_allowed_not_there_or_badly_written_is_refused_before_any_review(colour, till, name, arguments, stop_reason):
    desk = Desk()
    gate = desk_gate(till, supervisor=desk, allow=["refund"])
    assert refused(colour, gate, till, arguments, name=name).stop_reason == stop_reason
    assert desk.heard == []
    assert till.paid == []


def test_without_a_supervisor_every_valid_call_is_approved(colour, till):
    through(colour, Gate(tools=[till.refund]), "refund", till.refund, SMALL)
    assert len(till.paid) == 1


def test_an_awaited_supervisor_judges_calls_of_async_code(till):
    gate = desk_gate(till, supervisor=SaysLater(APPROVE))
    through("async", gate, "refund", till.refund, SMALL)
    assert len(till.paid) == 1


def test_an_awaited_supervisor_in_synchronous_code_is_an_error_that_says_what_to_do(till):
    with pytest.raises(ConfigurationError, match="is to be awaited"):
        through("sync", desk_gate(till, supervisor=SaysLater(APPROVE)), "refund", till.refund, SMALL)
    assert till.paid == []


def test_a_synchronous_tool_in_an_event_loop_may_wait_for_a_person_who_blocks(till):
    threads = []

    def blocking(request):
        threads.append(threading.current_thread())
        return YES

    async def main():
        return ToolCall("refund", till.refund, LARGE, desk_gate(till, Person(blocking))).run()

    asyncio.run(main())
    assert len(till.paid) == 1
    assert threads[0] is not threading.current_thread()


def test_every_decision_is_told_and_the_last_one_says_what_runs(till, told):
    through("sync", desk_gate(till, Person(YES)), "refund", till.refund, {"user_id": 1, "amount": 1200.0})
    assert [(each.decision, each.final) for each in told] == [("revise", False), ("escalate", False), ("escalate", True)]
    assert (told[-1].executed_from, told[-1].human_approved, told[-1].risk_score) == ("supervisor_revised", True, 0.9)


def test_a_final_answer_is_judged_revised_and_judged_again(till):
    def judge(action, state, policy):
        if "secret" in action["answer"]:
            return Decision(DecisionKind.REVISE, "no_secrets", {"kind": "final", "answer": action["answer"].replace("secret", "***")})
        return BLOCK if "rude" in action["answer"] else APPROVE

    gate = desk_gate(till, supervisor=Says(judge))
    verdict = gate.review_final_blocking("the secret is out")
    assert (verdict.allowed, verdict.arguments, verdict.executed_from) == (True, {"answer": "the *** is out"}, "supervisor_revised")
    refusal = asyncio.run(gate.review_final("rude secret"))
    assert (refusal.allowed, refusal.stop_reason) == (False, "supervisor_block:no_way")
    assert gate.state.calls == ()


def test_a_final_answer_that_escalates_is_put_to_a_person(till):
    person = Person(replace(YES, arguments={"answer": "Better said."}))
    verdict = asyncio.run(desk_gate(till, person, supervisor=Says(ESCALATE)).review_final("Said."))
    assert verdict.arguments == {"answer": "Better said."}
    assert verdict.executed_from == "human_revised"


def test_a_gate_for_functions_looks_for_no_loops_and_gives_back_what_is_a_gate(till):
    gate = gate_for(Says(APPROVE), till.tools)
    assert isinstance(gate, ToolGate)
    for _ in range(3):
        through("sync", gate, "refund", till.refund, SMALL)
    assert len(till.paid) == 3
    assert gate_for(gate, till.tools) is gate
    with pytest.raises(ConfigurationError, match="approver= goes with a supervisor"):
        gate_for(gate, till.tools, Person())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"supervisor": object()}, "supervisor"),
        ({"supervisor": Desk}, "supervisor"),
        ({"approver": object()}, "approver"),
        ({"tools": [1]}, "cannot be called"),
        ({"tools": len}, r"tools=.*is one function; give it in a list, tools=\[len\]"),
        ({"tools": "refund"}, "tools='refund'.* holds no functions; give them in a list"),
        ({"tools": 5}, "tools=5.* holds no functions; give them in a list"),
        ({"supervisor": [Allow("refund")]}, r"supervisor=.*give supervisor=Rules\(\[\.\.\.\]\)"),
        ({"supervisor": Allow("refund")}, r"supervisor=.*give supervisor=Rules\(\[\.\.\.\]\)"),
        ({"approver": lambda _: True}, r"approver=.*give approver=CallbackApprover\(function\)"),
        ({"tools": [len, len]}, "two tools called 'len'"),
        ({"allow": "refund"}, "one text"),
        ({"expires_s": -1}, "expires_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"read_only_repeat_limit": 0}, "read_only_repeat_limit"),
        ({"per_tool_limit": {"refund": -1}}, "per_tool_limit"),
        ({"state": 3}, "state"),
    ],
)
def test_what_a_gate_cannot_use_is_named(till, wrong, said):
    with pytest.raises(ConfigurationError, match=said):
        Gate(**{"tools": till.tools, **wrong})


def test_an_answer_that_is_used_says_who_gave_it(till):
    gate = desk_gate(till, Person(ApprovalAnswer(approved=True, comment="ok\x1b[2J", who="bob")))
    through("sync", gate, "refund", till.refund, LARGE)
    assert (gate.calls[0].answer.who, gate.calls[0].answer.comment) == ("bob", "ok [2J")
