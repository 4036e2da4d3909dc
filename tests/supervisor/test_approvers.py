"""Who may approve what: checked where the answer is applied, in the program's own process, whatever it came through."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from approval_desk import desk, pending, requested
from refund_gate import ESCALATE, LARGE, NO, SMALL, YES, Person, Till, desk_gate, refused, through

import ravi_otel
from ravi_otel import ConfigurationError
from ravi_otel.supervisor import ApprovalAnswer, ApprovalQueue, AuditLog, Gate, QueueError, Rules, ToolGateway
from ravi_otel.supervisor._audit import read_entry, read_lines
from ravi_otel.supervisor.approval._queue import NotAnApproverError, seal_of
from ravi_otel.supervisor.approval._request import LINK, Approvers, answer_refusal, login_identity, sign_in_identity
from ravi_otel.supervisor.rules import EscalateAbove

ANN = replace(YES, who="ann", identity=login_identity("ann"))
BOB_AS_ANN = replace(YES, who="ann", identity=login_identity("bob"))
HOLDER = replace(YES, who="whoever has the link", identity=LINK)


@pytest.fixture
def till():
    return Till()


def asked(approvers=None, *, requester_may_approve=True, user_id=None):
    return requested(approvers=approvers, requester_may_approve=requester_may_approve, user_id=user_id)


@pytest.mark.parametrize(
    ("approvers", "answer", "why"),
    [
        (None, ApprovalAnswer(approved=True), None),
        (("ann",), ANN, None),
        (("ann",), replace(ANN, identity=sign_in_identity("ann")), None),
        (("login:ann",), ANN, None),
        (("ann",), YES, None),
        ((LINK,), HOLDER, None),
        (("ann",), BOB_AS_ANN, "bob may not decide about issue_refund: ann may."),
        (("ann", "jo"), replace(NO, identity=login_identity("bob")), "bob may not decide about issue_refund: ann and jo may."),
        (("ann",), HOLDER, "Whoever has the link may not decide about issue_refund: ann may."),
        (("login:ann",), replace(ANN, identity=sign_in_identity("ann")), "ann may not decide about issue_refund: login:ann may."),
        (
            ("login:ann",),
            replace(ANN, identity=sign_in_identity("login:ann")),
            "login:ann may not decide about issue_refund: login:ann may.",
        ),
        (
            ("sign-in:ann",),
            replace(ANN, identity=login_identity("sign-in:ann")),
            "sign-in:ann may not decide about issue_refund: sign-in:ann may.",
        ),
        ((LINK,), replace(ANN, identity=login_identity(LINK)), "link may not decide about issue_refund: whoever has the link may."),
        ((LINK,), replace(YES, who=LINK), "link may not decide about issue_refund: whoever has the link may."),
        (("ann",), ApprovalAnswer(approved=True), "Somebody whom nobody named may not decide about issue_refund: ann may."),
        (("ann",), replace(YES, identity="ann"), "ann may not decide about issue_refund: ann may."),
    ],
)
def test_only_an_approver_decides_and_nobody_passes_for_one(approvers, answer, why):
    assert answer_refusal(asked(approvers), answer) == why


@pytest.mark.parametrize(
    ("answer", "user_id", "why"),
    [
        (ANN, "bob", None),
        (replace(ANN, approved=False), "ann", None),
        (ANN, "Ann ", "ann requested it, and may not approve it: somebody else must."),
        (replace(ANN, identity=sign_in_identity("ANN")), "ann", "ANN requested it, and may not approve it: somebody else must."),
        (BOB_AS_ANN, "bob", "bob requested it, and may not approve it: somebody else must."),
        (ANN, None, "Nobody knows who requested it, so nobody may approve it: give the run a user."),
        (HOLDER, "bob", "Whoever has the link may be the one who requested it, who may not approve it: somebody who is signed in must."),
    ],
)
def test_who_requested_it_never_approves_it_where_that_is_asked_for(answer, user_id, why):
    assert answer_refusal(asked(requester_may_approve=False, user_id=user_id), answer) == why


# -- at the gate ------------------------------------------------------------------------------------------------------


def test_an_approval_of_somebody_who_may_not_runs_nothing_and_is_spent(till, colour, tmp_path):
    person = Person(BOB_AS_ANN)
    gate = desk_gate(till, person, approvers={"refund": ["ann"]}, audit=AuditLog(tmp_path, content=True))
    with ravi_otel.run("desk", run_id="r-1"):
        denied = refused(colour, gate, till, LARGE)
    assert denied.stop_reason == "supervisor_block:not_an_approver"
    assert "bob may not decide about refund: ann may." in str(denied)
    assert till.paid == []
    assert person.ended == [(person.asked[0].id, "spent")]
    with (tmp_path / "r-1.audit.jsonl").open("rb") as file:
        entries = [read_entry(line) for line in read_lines(file.fileno(), 0, (tmp_path / "r-1.audit.jsonl").stat().st_size)]
    (said,) = [entry for entry in entries if entry["what"] == "approved"]
    assert (said["who"], said["identity"], said["permitted"]) == ("ann", "login:bob", False)


def test_an_approver_approves_and_what_needs_no_person_needs_no_approver(till, colour):
    gate = desk_gate(till, Person(ANN), approvers=["ann"])
    with ravi_otel.run("desk"):
        through(colour, gate, "refund", till.refund, SMALL)
        through(colour, gate, "refund", till.refund, LARGE)
    assert [amount for _, amount, _ in till.paid] == [100.0, 1200.0]


def test_a_no_counts_whoever_says_it(till):
    with ravi_otel.run("desk"):
        denied = refused("sync", desk_gate(till, Person(replace(NO, identity=login_identity("bob"))), approvers=["ann"]), till, LARGE)
    assert denied.stop_reason == "human_rejected"


def instrumented(till, approver, supervisor=None, **people):
    """Give the tools of a till as a program has them that was not written for a gate."""
    tools = dict(till.tools)
    return tools, ravi_otel.instrument_tools(tools, supervisor=supervisor or WantsAPerson(), approver=approver, **people)


class WantsAPerson:
    def review(self, action, state, policy):
        return ESCALATE


@pytest.mark.parametrize("people", [["ann"], {"refund": ["ann"]}, {"*": ["ann"]}])
def test_of_tools_in_place_only_an_approver_approves(till, people):
    for person, ran in ((Person(BOB_AS_ANN), False), (Person(ANN), True)):
        tools, handle = instrumented(till, person, approvers=people)
        with handle, ravi_otel.run("desk"):
            if ran:
                tools["refund"](**LARGE)
            else:
                with pytest.raises(ravi_otel.ToolDeniedError, match="bob may not decide about refund: ann may"):
                    tools["refund"](**LARGE)
    assert len(till.paid) == 1


def test_of_tools_in_place_the_user_of_a_run_never_approves_where_that_is_asked_for(till):
    tools, handle = instrumented(till, Person(ANN), requester_may_approve=False)
    with handle, ravi_otel.run("desk", user_id="ann"), pytest.raises(ravi_otel.ToolDeniedError, match="ann requested it"):
        tools["refund"](**LARGE)
    assert till.paid == []


def test_of_tools_in_place_the_approvers_of_the_rules_hold_unless_others_are_named(till):
    rules = Rules([EscalateAbove("refund", "amount", 1_000)], default="approve", approvers={"refund": ["bob"], "elsewhere": ["ann"]})
    for people, runs in (({}, 0), ({"approvers": ["ann"]}, 1)):
        tools, handle = instrumented(till, Person(ANN), rules, **people)
        with handle, ravi_otel.run("desk"):
            if runs:
                tools["refund"](**LARGE)
            else:
                with pytest.raises(ravi_otel.ToolDeniedError, match="bob may"):
                    tools["refund"](**LARGE)
    assert len(till.paid) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"approvers": {"refnud": ["ann"]}}, "approvers names the tool 'refnud', which there is not, did you mean 'refund'"),
        ({"approvers": {"context": ["ann"]}, "skip": ["context"]}, "approvers names the tool 'context'"),
        ({"approvers": "ann"}, "must be a list of names"),
        ({"requester_may_approve": "no"}, "requester_may_approve"),
        ({"supervisor": None, "approvers": ["ann"]}, r"instrument_tools\(approvers=...\).*Give supervisor= too"),
        ({"supervisor": None, "requester_may_approve": False}, r"instrument_tools\(requester_may_approve=...\).*Give supervisor= too"),
    ],
)
def test_approvers_of_tools_in_place_that_would_hold_for_nothing_are_refused_and_nothing_is_changed(till, given, words):
    tools = dict(till.tools)
    with pytest.raises(ConfigurationError, match=words):
        ravi_otel.instrument_tools(tools, **({"supervisor": WantsAPerson()} | given))
    assert tools == till.tools


def test_a_gate_brings_its_own_approvers(till):
    gate = Gate(WantsAPerson(), tools=till.tools)
    for name, value in (("approvers", ["ann"]), ("requester_may_approve", False), ("approver", Person())):
        with pytest.raises(ConfigurationError, match=rf"{name}= goes with a supervisor.*Gate\(supervisor, {name}={name}\)"):
            ravi_otel.instrument_tools(dict(till.tools), supervisor=gate, **{name: value})


def test_the_user_of_a_run_never_approves_its_calls_where_that_is_asked_for(till):
    with ravi_otel.run("desk", user_id="ann"):
        own = refused("sync", desk_gate(till, Person(ANN), requester_may_approve=False), till, LARGE)
        through(
            "sync",
            desk_gate(till, Person(replace(ANN, identity=login_identity("jo"))), requester_may_approve=False),
            "refund",
            till.refund,
            LARGE,
        )
    assert "ann requested it, and may not approve it" in str(own)
    assert len(till.paid) == 1


def test_where_nobody_knows_who_requested_it_nobody_is_asked(till):
    person = Person(ANN)
    with ravi_otel.run("desk"):
        denied = refused("sync", desk_gate(till, person, requester_may_approve=False), till, LARGE)
    assert (denied.stop_reason, person.asked) == ("supervisor_block:unknown_requester", [])


def test_what_an_approver_changes_in_its_request_changes_nothing_of_who_may(till):
    def cheats(request):
        object.__setattr__(request, "approvers", None)
        return BOB_AS_ANN

    with ravi_otel.run("desk"):
        assert refused("sync", desk_gate(till, Person(cheats), approvers=["ann"]), till, LARGE).stop_reason.endswith("not_an_approver")


@pytest.mark.parametrize("where", ["file", "redis"])
def test_an_answer_that_was_forged_into_the_queue_is_refused_by_the_program(till, where, tmp_path, request):
    place = tmp_path / "desk" / "q.db" if where == "file" else request.getfixturevalue("redis_server").url
    gate = desk_gate(till, ApprovalQueue(place), approvers=["ann"])

    def call():
        with ravi_otel.run("desk"):
            return refused("sync", gate, till, LARGE)

    with ThreadPoolExecutor(1) as program:
        waits = program.submit(call)
        (stored,) = pending(place, time.time)
        nobody = replace(stored, request=replace(stored.request, approvers=None))
        at = desk(place, time.time)
        with pytest.raises(NotAnApproverError, match="bob may not decide about refund: ann may"):
            at.answer(stored, ApprovalAnswer(approved=True, who="ann"), login="bob")
        with pytest.MonkeyPatch.context() as patch:  # a decider that asks nobody whether they may
            patch.setattr("ravi_otel.supervisor.approval._queue.answer_refusal", lambda request, answer: None)
            at.answer(nobody, ApprovalAnswer(approved=True, who="ann"), login="bob")
        denied = waits.result(20)
    assert denied.stop_reason == "supervisor_block:not_an_approver"
    assert till.paid == []


def test_a_row_whose_approvers_were_changed_cannot_be_answered(tmp_path):
    path = tmp_path / "desk" / "q.db"
    request = asked(("ann",))
    shown = desk(path).enter(request, seal_of(request))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE requests SET approvers = NULL")
    file.close()
    with pytest.raises(QueueError, match="somebody wrote to the queue"):
        desk(path).answer(shown, ApprovalAnswer(approved=True), login="bob")


# -- what is written --------------------------------------------------------------------------------------------------


def refund(user_id: int, amount: float) -> str:
    return f"{user_id} {amount}"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"approvers": "ann"}, r"Gate\(approvers\)='ann' must be a list of names"),
        ({"approvers": []}, r"Gate\(approvers\) names nobody"),
        ({"approvers": {"refund": []}}, r"Gate\(approvers\)\['refund'\] names nobody"),
        ({"approvers": {"refunds": ["ann"]}}, r"approvers names the tool 'refunds', which there is not, did you mean 'refund'"),
        ({"approvers": [7]}, "is not text"),
        ({"requester_may_approve": "no"}, r"Gate\(requester_may_approve\)='no' must be True or False"),
    ],
)
def test_what_says_nothing_about_who_may_is_refused_when_the_gate_is_made(more, why):
    with pytest.raises(ConfigurationError, match=why):
        Gate(tools=[refund], **more)


def test_tools_that_are_not_named_go_by_the_star_else_anybody_may():
    assert Approvers.read("x", {"refund": ["jo", "ann"], "*": ["ops"]}).of("mail") == ("ops",)
    assert Approvers.read("x", {"refund": ["jo", "ann"]}).of("refund") == ("ann", "jo")
    assert Approvers.read("x", {"refund": ["jo"]}).of("mail") is None
    assert Approvers.read("x", None).of("mail") is None


@pytest.mark.parametrize(
    "text",
    [
        '[gate]\ndefault = "escalate"\nrequester_may_approve = false\n[gate.approvers]\nrefund = ["ann"]\n',
        '[gate]\ndefault = "escalate"\nrequester_may_approve = false\napprovers = ["ann"]\n',
    ],
)
def test_a_policy_file_says_who_may_and_the_gate_goes_by_it(tmp_path, till, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    rules = Rules.from_file(path)
    for answer, user, reason in ((BOB_AS_ANN, "u1", "not_an_approver"), (ANN, "ann", "not_an_approver"), (ANN, None, "unknown_requester")):
        with ravi_otel.run("desk", user_id=user):
            gate = Gate(rules, tools=till.tools, approver=Person(answer))
            assert refused("sync", gate, till, LARGE).stop_reason == f"supervisor_block:{reason}"
    with ravi_otel.run("desk", user_id="u1"), ToolGateway(till.tools, supervisor=rules, approver=Person(ANN)) as gateway:
        gateway.call("refund", LARGE)
    assert len(till.paid) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('approvers = "ann"', r"policy.toml: gate.approvers='ann' must be a list of names"),
        ("approvers = []", "names nobody"),
        ("requester_may_approve = 1", "must be True or False"),
    ],
)
def test_a_policy_file_that_says_it_wrong_is_told_where(tmp_path, line, why):
    path = tmp_path / "policy.toml"
    path.write_text(f"[gate]\n{line}\n")
    with pytest.raises(ConfigurationError, match=why):
        Rules.from_file(path)
