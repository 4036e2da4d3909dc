"""What a person answered holds for one call, as long as it counts, and is told as what it was."""

from dataclasses import replace

import anyio
import pytest
from refund_gate import BLOCK, ESCALATE, LARGE, NO, YES, Desk, Person, Says, desk_gate, refused, request_for, revised, through

from ravi_otel.supervisor import ApprovalAnswer

pytestmark = pytest.mark.usefixtures("run")


def test_an_edit_that_does_not_fit_is_asked_about_again_with_why_and_the_next_answer_counts(colour, till):
    person = Person(replace(YES, arguments={**LARGE, "amount": "abc"}), replace(YES, arguments={**LARGE, "amount": 800.0}))
    gate = desk_gate(till, person)
    through(colour, gate, "refund", till.refund, LARGE)
    assert till.paid == [(42, 800.0, "late")]
    first, second = person.asked
    assert (second.arguments, second.fingerprint) == (first.arguments, first.fingerprint)
    assert "the edit before did not fit" in second.reason
    assert "amount" in second.reason
    assert person.ended == [(first.id, "spent"), (second.id, "ok")]


def test_a_yes_in_whose_place_something_else_ran_is_spent(colour, till):
    person = Person()

    def supervisor(action, state, policy):
        lower = person.asked and action["args"]["amount"] > 900
        return revised("lowered", **{**LARGE, "amount": 900.0}) if lower else Desk().review(action, state, policy)

    gate = desk_gate(till, person, supervisor=Says(supervisor))
    through(colour, gate, "refund", till.refund, LARGE)
    assert till.paid == [(42, 900.0, "late")]
    assert person.ended == [(person.asked[0].id, "spent")]
    assert gate.calls[0].human_approved is None


def test_a_yes_that_a_second_question_replaced_is_spent_once_the_call_ran(till):
    person = Person()

    def supervisor(action, state, policy):
        lower = person.asked and action["args"]["amount"] > 1100
        return revised("lowered", **{**LARGE, "amount": 1100.0}) if lower else ESCALATE

    through("sync", desk_gate(till, person, supervisor=Says(supervisor)), "refund", till.refund, LARGE)
    asked = [(asked.arguments["amount"], asked.id) for asked in person.asked]
    assert [amount for amount, _ in asked] == [1200.0, 1100.0]
    assert person.ended == [(asked[0][1], "spent"), (asked[1][1], "ok")]


def test_a_call_that_the_rules_block_after_a_persons_yes_says_that_a_person_approved_it(till):
    gate = desk_gate(till, Person(YES), supervisor=Says(ESCALATE, BLOCK))
    refused("sync", gate, till, LARGE)
    assert gate.calls[0].row(1)["human_approved"] is True


@pytest.mark.parametrize(
    ("answer", "stop_reason"),
    [
        (ApprovalAnswer(approved=False, comment="no_terminal"), "supervisor_block:no_approver"),
        (ApprovalAnswer(approved=False, comment="arguments_changed"), "supervisor_block:arguments_changed"),
        (replace(NO, comment="no_terminal"), "human_rejected"),
    ],
)
def test_only_where_somebody_said_no_is_it_a_persons_no(colour, till, answer, stop_reason):
    gate = desk_gate(till, Person(answer))
    assert refused(colour, gate, till, LARGE).stop_reason == stop_reason
    assert gate.calls[0].human_approved is (False if stop_reason == "human_rejected" else None)


def test_the_yes_to_a_final_answer_is_used_once(colour, till):
    person = Person()
    gate = desk_gate(till, person, supervisor=Says(ESCALATE))
    for _ in range(2):
        assert (gate.review_final_blocking("done") if colour == "sync" else anyio.run(gate.review_final, "done")).allowed
    assert person.ended == [(asked.id, "ok") for asked in person.asked]
    assert len(person.ended) == 2


def test_an_approval_that_was_given_to_an_earlier_request_ends_with_that_one(clock, till, run):
    gate = desk_gate(till, Person(replace(YES, expires_at=clock.time() + 10)))
    request = request_for(LARGE, run)
    verdict = gate.before(request)
    clock.advance(10)
    assert gate.admit(request, verdict.arguments).stop_reason == "human_rejected"


def test_a_wall_clock_that_is_set_back_keeps_no_approval_alive(clock, till, run, monkeypatch):
    gate = desk_gate(till, Person(YES))
    request = request_for(LARGE, run)
    verdict = gate.before(request)
    clock.advance(3600)
    monkeypatch.setattr(clock, "time", lambda: 0.0)
    assert gate.admit(request, verdict.arguments).stop_reason == "human_rejected"
