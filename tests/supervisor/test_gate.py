"""What passes the gate was judged as it runs: no revision, edit or old approval is a way around a person."""

import threading
from dataclasses import replace

import pytest
from refund_gate import (
    APPROVE,
    ESCALATE,
    LARGE,
    NO,
    SMALL,
    YES,
    Desk,
    Person,
    Policy,
    Says,
    desk_gate,
    refused,
    request_for,
    revised,
    through,
)

import ravi_otel
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy._contracts import ToolOutcome
from ravi_otel.supervisor import Decision, DecisionKind
from ravi_otel.supervisor._pending_call import MOST_REVIEWS

pytestmark = pytest.mark.usefixtures("run")


# -- revise is no way around a person ----------------------------------------------------------------------------------


def test_a_large_refund_that_omits_its_reason_does_not_get_past_the_human(colour, till):
    person = Person(NO)
    error = refused(colour, desk_gate(till, person), till, {"user_id": 42, "amount": 1200.0})
    assert error.stop_reason == "human_rejected"
    assert [dict(each.arguments) for each in person.asked] == [{"user_id": 42, "amount": 1200.0, "reason": "not said"}]
    assert till.paid == []


def test_a_small_refund_that_omits_its_reason_is_filled_in_and_reviewed_again(colour, till):
    gate = desk_gate(till)
    through(colour, gate, "refund", till.refund, {"user_id": 42, "amount": 100.0})
    assert till.paid == [(42, 100.0, "not said")]
    assert [each.kind.value for each in gate.calls[0].decisions] == ["revise", "approve"]
    assert gate.calls[0].executed_from == "supervisor_revised"


def test_what_the_supervisor_revises_to_something_that_escalates_goes_to_a_person(colour, till):
    person = Person(NO)
    supervisor = Says(
        revised("more", **{**SMALL, "amount": 5000.0}), lambda action, *_: Desk().review(action, _Nothing(), Policy(per_run=9000))
    )
    refused(colour, desk_gate(till, person, supervisor=supervisor), till, SMALL)
    assert person.asked[0].arguments["amount"] == 5000.0
    assert till.paid == []


class _Nothing:
    def total(self, tool, field):
        return 0


def test_a_supervisor_that_revises_without_end_is_stopped_after_three(colour, till):
    supervisor = Says(lambda action, *_: revised("again", **{**action["args"], "amount": action["args"]["amount"] + 1}))
    error = refused(colour, desk_gate(till, supervisor=supervisor), till, SMALL)
    assert error.stop_reason == "supervisor_block:too_many_revisions"
    assert len(supervisor.heard) == 4
    assert till.paid == []


@pytest.mark.parametrize(
    ("revision", "stop_reason"),
    [
        ({"kind": "tool", "name": "context", "args": {"user_id": 1}}, "supervisor_block:invalid_revision"),
        ({"kind": "final", "answer": "done"}, "supervisor_block:invalid_revision"),
        ({"kind": "tool", "name": "refund", "args": SMALL, "also": 1}, "supervisor_block:invalid_revision"),
        ({"kind": "tool", "name": "refund", "args": {**SMALL, "amount": True}}, "tool_bad_args:refund"),
        ({"kind": "tool", "name": "refund", "args": {"user_id": 1, "amount": 2.0}}, "tool_bad_args:refund"),
        ({"kind": "tool", "name": "refund", "args": {**SMALL, "amount": float("nan")}}, "tool_bad_args:refund"),
        (None, "supervisor_block:invalid_revision"),
    ],
)
def test_a_revision_is_held_to_the_tool_and_its_signature_in_full(till, revision, stop_reason):
    supervisor = Says(Decision(DecisionKind.REVISE, "other", revision), APPROVE)
    assert refused("sync", desk_gate(till, supervisor=supervisor), till, SMALL).stop_reason == stop_reason
    assert till.paid == []


# -- a person -----------------------------------------------------------------------------------------------------------


def test_an_approved_refund_is_reviewed_again_and_paid_once(colour, till):
    person, desk = Person(YES), Desk()
    gate = desk_gate(till, person, supervisor=desk)
    through(colour, gate, "refund", till.refund, LARGE)
    assert till.paid == [(42, 1200.0, "late")]
    assert len(desk.heard) == 2
    assert person.ended == [(person.asked[0].id, "ok")]
    assert gate.calls[0].human_approved is True


@pytest.mark.parametrize(
    ("edit", "stop_reason"),
    [
        ({**LARGE, "amount": 9000.0}, "supervisor_block:refund_budget_exhausted"),
        ({**LARGE, "amount": -5.0}, "supervisor_block:refund_budget_exhausted"),
        ({**LARGE, "amount": True}, "supervisor_block:too_many_questions"),
        ({"user_id": 42, "amount": 900.0}, "supervisor_block:too_many_questions"),
        ({**LARGE, "to": "me"}, "supervisor_block:too_many_questions"),
        (5, "supervisor_block:too_many_questions"),
        ([1], "supervisor_block:too_many_questions"),
        ({1: 2}, "supervisor_block:too_many_questions"),
        ({"amount": {1}}, "supervisor_block:too_many_questions"),
    ],
)
def test_what_a_person_edits_is_validated_and_judged_like_anything_else(colour, till, edit, stop_reason):
    person = Person(replace(YES, arguments=edit))
    assert refused(colour, desk_gate(till, person), till, LARGE).stop_reason == stop_reason
    assert till.paid == []
    assert person.ended == [(asked.id, "spent") for asked in person.asked]
    assert len(person.asked) == (3 if stop_reason.endswith("questions") else 1)


def test_an_edit_that_keeps_the_rules_is_what_runs_and_the_others_are_kept_apart(colour, till):
    gate = desk_gate(till, Person(replace(YES, arguments={**LARGE, "amount": 800.0})))
    through(colour, gate, "refund", till.refund, LARGE)
    assert till.paid == [(42, 800.0, "late")]
    call = gate.calls[0]
    assert (call.proposed["amount"], call.approved["amount"], call.effective["amount"]) == (1200.0, 800.0, 800.0)
    assert call.row(1) == {
        "step": 1,
        "tool": "refund",
        "args_hash": call.row(1)["args_hash"],
        "supervisor_decision": "escalate",
        "executed_from": "human_revised",
        "ok": True,
        "human_approved": True,
        "risk_score": 0.9,
    }


def test_what_the_supervisor_makes_of_an_approved_edit_is_not_covered_by_the_approval(till):
    def supervisor(action, state, policy):
        args = action["args"]
        return revised("raise", **{**args, "amount": 1900.0}) if args["amount"] == 1100.0 else ESCALATE

    person = Person(replace(YES, arguments={**LARGE, "amount": 1100.0}), NO)
    refused("sync", desk_gate(till, person, supervisor=Says(supervisor)), till, LARGE)
    assert [each.arguments["amount"] for each in person.asked] == [1200.0, 1900.0]
    assert till.paid == []


@pytest.mark.parametrize("answer", [replace(YES, approved=1), replace(YES, approved="yes"), replace(YES, approved=None), NO])
def test_only_a_real_yes_is_one(till, answer):
    assert refused("sync", desk_gate(till, Person(answer)), till, LARGE).stop_reason == "human_rejected"
    assert till.paid == []


def test_what_is_no_answer_at_all_reaches_the_caller_and_nothing_runs(till):
    with pytest.raises(ConfigurationError, match="must give an ApprovalAnswer"):
        through("sync", desk_gate(till, Person(True)), "refund", till.refund, LARGE)
    assert till.paid == []


def test_without_anybody_to_ask_what_escalates_is_refused(till):
    denied = refused("sync", desk_gate(till), till, LARGE)
    assert denied.stop_reason == "supervisor_block:no_approver"
    assert str(denied.reason).endswith("the gate was given no approver, such as Gate(approver=TerminalApprover()).")


def test_an_answer_that_comes_after_expiry_is_a_rejection(clock, till):
    def late(request):
        clock.advance(3600)
        return YES

    error = refused("sync", desk_gate(till, Person(late)), till, LARGE)
    assert error.stop_reason == "human_rejected"
    assert till.paid == []


def test_an_approval_that_expires_before_it_is_used_is_a_rejection(clock, till):
    def slow(action, state, policy):
        clock.advance(3601)
        return ESCALATE

    assert refused("sync", desk_gate(till, Person(YES), supervisor=Says(slow)), till, LARGE).stop_reason == "human_rejected"
    assert till.paid == []


def test_an_approval_that_expires_while_the_call_waits_to_run_is_a_rejection(clock, till, run):
    gate = desk_gate(till, Person(YES))
    request = request_for(LARGE, run)
    verdict = gate.before(request)
    clock.advance(3600)
    assert gate.admit(request, verdict.arguments).stop_reason == "human_rejected"


def test_an_approval_counts_for_one_execution(till):
    person = Person(YES, NO)
    gate = desk_gate(till, person, policy=Policy(per_run=9000), loops=False)
    through("sync", gate, "refund", till.refund, LARGE)
    assert refused("sync", gate, till, LARGE).stop_reason == "human_rejected"
    assert len(till.paid) == 1


def test_the_same_approved_call_cannot_be_admitted_twice(till, run):
    gate = desk_gate(till, Person(YES))
    request = request_for(LARGE, run)
    verdict = gate.before(request)
    assert gate.admit(request, verdict.arguments).allowed
    assert gate.admit(request, verdict.arguments).stop_reason == "supervisor_block:not_let_through"


def test_a_call_that_was_never_judged_is_neither_admitted_nor_ended(till, run):
    gate = desk_gate(till)
    request = request_for(SMALL, run)
    refusals = gate.admit(request, SMALL), gate.after(request, {"status": "ok"})
    assert [each.stop_reason for each in refusals] == ["supervisor_block:not_let_through"] * 2
    assert gate.audit(request, ToolOutcome("ok", refusals[0])) is None
    assert gate.calls == ()


def test_an_approval_of_another_policy_is_none(till):
    policy = Policy()

    def change(request):
        policy.auto = 500
        return YES

    person = Person(change, NO)
    refused("sync", desk_gate(till, person, policy=policy), till, LARGE)
    first, second = person.asked
    assert first.fingerprint != second.fingerprint
    assert till.paid == []


def test_a_policy_that_changes_during_the_review_is_reviewed_by_anew(till):
    policy = Policy()

    def tighten(action, state, given):
        policy.auto, policy.per_run = 10, 20
        return APPROVE

    supervisor = Says(tighten, lambda *about: Desk().review(*about))
    assert refused("sync", desk_gate(till, supervisor=supervisor, policy=policy), till, SMALL).stop_reason.endswith(
        "refund_budget_exhausted"
    )
    assert till.paid == []


def test_a_call_whose_policy_changes_in_each_review_is_given_up_and_not_run(till):
    policy = Policy()

    def move(action, state, given):
        policy.per_run += 1
        return APPROVE

    supervisor = Says(move)
    denied = refused("sync", desk_gate(till, supervisor=supervisor, policy=policy), till, SMALL)
    assert denied.stop_reason == "supervisor_block:state_kept_changing"
    assert len(supervisor.heard) == MOST_REVIEWS
    assert till.paid == []


def test_a_policy_that_is_relaxed_during_the_review_and_put_back_was_not_judged_by(till):
    policy = Policy(auto=10)

    def relax(action, state, given):
        policy.auto = 5000
        decision = Desk().review(action, state, given)
        policy.auto = 10
        return decision

    assert refused("sync", desk_gate(till, Person(NO), supervisor=Says(relax), policy=policy), till, SMALL).stop_reason == "human_rejected"
    assert till.paid == []


def test_a_policy_that_cannot_be_copied_is_given_as_it_is(till):
    policy = Policy()
    policy.lock = threading.Lock()
    given = []
    through(
        "sync",
        desk_gate(till, supervisor=Says(lambda *about: given.append(about[2]) or APPROVE), policy=policy),
        "refund",
        till.refund,
        SMALL,
    )
    assert given == [policy]
    assert given[0] is policy


def test_other_arguments_another_run_agent_tool_and_policy_version_have_other_fingerprints(till):
    person = Person(NO)
    prints = set()
    for arguments, run_name, agent, version in [
        (LARGE, "one", "a", "1"),
        ({**LARGE, "amount": 1200.5}, "one", "a", "1"),
        ({**LARGE, "reason": "late "}, "one", "a", "1"),
        (LARGE, "two", "a", "1"),
        (LARGE, "one", "b", "1"),
        (LARGE, "one", "a", "2"),
    ]:
        with ravi_otel.run(run_name, run_id=run_name), ravi_otel.agent(agent):
            refused("sync", desk_gate(till, person, policy_version=version), till, arguments)
        prints.add(person.asked[-1].fingerprint)
    assert len(prints) == 6


def test_a_run_that_was_cancelled_while_a_person_thought_executes_nothing(till, run):
    def cancel(request):
        run.cancel("never mind")
        return YES

    with pytest.raises(ravi_otel.CancellationError):
        through("sync", desk_gate(till, Person(cancel)), "refund", till.refund, LARGE)
    assert till.paid == []


def test_working_time_stands_still_while_a_person_thinks(clock, till):
    def think(request):
        clock.advance(1000)
        return YES

    with ravi_otel.run("other", limits=[ravi_otel.working_limit(10)]) as other:
        through("sync", desk_gate(till, Person(think)), "refund", till.refund, LARGE)
        assert other.stats().waited_s == 1000
    assert len(till.paid) == 1
