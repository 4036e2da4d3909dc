"""What passes the gate was judged as it runs: no revision, edit, change or old approval is a way around it."""

import asyncio
import contextvars
import threading
from dataclasses import replace

import pytest
from refund_gate import NO, YES, Desk, Person, Policy, Says, SaysLater, Till, revised, through

import ravi_otel
from ravi_otel._flow import run_sync
from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.ledger.contract import new_op_id
from ravi_otel.errors import ConfigurationError, StopRun, ToolDeniedError
from ravi_otel.hooks.listener import Listener, Listeners
from ravi_otel.policy.gate import ToolGate, ToolRequest
from ravi_otel.runtime.gated import walk_gated
from ravi_otel.runtime.state import STATE
from ravi_otel.supervisor.approval.contract import ApprovalAnswer
from ravi_otel.supervisor.decisions import Decision, DecisionKind
from ravi_otel.supervisor.gate import Gate, gate_for
from ravi_otel.testing import ManualClock

APPROVE = Decision(DecisionKind.APPROVE, "fine")
BLOCK = Decision(DecisionKind.BLOCK, "no_way")
ESCALATE = Decision(DecisionKind.ESCALATE, "ask_somebody")
SMALL = {"user_id": 42, "amount": 100.0, "reason": "late"}
LARGE = {"user_id": 42, "amount": 1200.0, "reason": "late"}


@pytest.fixture(params=["sync", "async"])
def colour(request):
    return request.param


@pytest.fixture
def till():
    return Till()


@pytest.fixture
def staged():
    """Put the engine on a clock that stands still, and keep what is told of reviews."""
    told = []

    class Hears(Listener):
        def reviewed(self, event):
            told.append(event)

    before = STATE.engine, STATE.limits
    clock = ManualClock()
    STATE.install(Engine(clock=clock, listeners=Listeners([Hears()])), ())
    yield clock, told
    STATE.install(*before)


@pytest.fixture
def clock(staged):
    return staged[0]


@pytest.fixture
def told(staged):
    return staged[1]


@pytest.fixture(autouse=True)
def run(request):
    if "staged" in request.fixturenames:
        request.getfixturevalue("staged")
    with ravi_otel.run("desk") as run:
        yield run


def desk_gate(till, approver=None, **more):
    return Gate(more.pop("supervisor", None) or Desk(), tools=till.tools, policy=more.pop("policy", Policy()), approver=approver, **more)


def refused(colour, gate, till, arguments, name="refund"):
    with pytest.raises(ToolDeniedError) as caught:
        through(colour, gate, name, till.refund, arguments)
    return caught.value


def request_for(arguments, run, tool="refund"):
    return ToolRequest(tool, arguments, new_op_id(), run.scope.facts)


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
        ({**LARGE, "amount": True}, "tool_bad_args:refund"),
        ({"user_id": 42, "amount": 900.0}, "tool_bad_args:refund"),
        ({**LARGE, "to": "me"}, "tool_bad_args:refund"),
    ],
)
def test_what_a_person_edits_is_validated_and_judged_like_anything_else(colour, till, edit, stop_reason):
    person = Person(replace(YES, arguments=edit))
    assert refused(colour, desk_gate(till, person), till, LARGE).stop_reason == stop_reason
    assert till.paid == []
    assert person.ended == [(person.asked[0].id, "refused")]


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
    assert refused("sync", desk_gate(till), till, LARGE).stop_reason == "supervisor_block:no_approver"


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


def test_a_call_that_was_never_judged_is_not_admitted(till, run):
    gate = desk_gate(till)
    assert gate.admit(request_for(SMALL, run), SMALL).stop_reason == "supervisor_block:not_let_through"


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


@pytest.mark.parametrize("edit", [5, [("amount", 1.0)], {"amount": object()}, {1: 2}])
def test_an_edit_that_is_no_json_object_is_refused_by_name(till, edit):
    assert refused("sync", desk_gate(till, Person(replace(YES, arguments=edit))), till, LARGE).stop_reason == "tool_bad_args:refund"
    assert till.paid == []


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


# -- arguments that change after they were judged --------------------------------------------------------------------------


def test_what_the_caller_changes_meanwhile_changes_nothing(colour, till):
    given = dict(SMALL)

    def change(action, state, policy):
        given["amount"] = 9e9
        return APPROVE

    through(colour, desk_gate(till, supervisor=Says(change)), "refund", till.refund, given)
    assert till.paid == [(42, 100.0, "late")]


def test_what_another_thread_changes_while_a_person_thinks_changes_nothing(colour, till):
    given = dict(LARGE)

    def change(request):
        thread = threading.Thread(target=given.update, kwargs={"amount": 9e9})
        thread.start()
        thread.join()
        return YES

    through(colour, desk_gate(till, Person(change)), "refund", till.refund, given)
    assert till.paid == [(42, 1200.0, "late")]


def test_what_the_supervisor_does_to_its_copy_changes_nothing(colour, till):
    def change(action, state, policy):
        action["args"]["amount"] = 9e9
        action["name"] = "context"
        return APPROVE

    through(colour, desk_gate(till, supervisor=Says(change)), "refund", till.refund, SMALL)
    assert till.paid == [(42, 100.0, "late")]


def test_what_the_supervisor_does_to_its_revision_afterwards_changes_nothing(till):
    mine = revised("less", **{**SMALL, "amount": 50.0})

    def change(action, state, policy):
        mine.revised_action["args"]["amount"] = 9e9
        return APPROVE

    through("sync", desk_gate(till, supervisor=Says(mine, change)), "refund", till.refund, SMALL)
    assert till.paid == [(42, 50.0, "late")]


def test_what_the_approver_does_to_its_copy_changes_nothing(colour, till):
    def change(request):
        request.arguments["amount"] = 9e9
        return YES

    through(colour, desk_gate(till, Person(change)), "refund", till.refund, LARGE)
    assert till.paid == [(42, 1200.0, "late")]


def test_what_the_approver_does_to_its_edit_afterwards_changes_nothing(till):
    edit = {**LARGE, "amount": 800.0}

    def change(action, state, policy):
        edit["amount"] = 9e9
        return ESCALATE

    supervisor = Says(ESCALATE, change)
    through("sync", desk_gate(till, Person(replace(YES, arguments=edit)), supervisor=supervisor), "refund", till.refund, LARGE)
    assert till.paid == [(42, 800.0, "late")]


@pytest.mark.parametrize("changed", [{**SMALL, "amount": 9e9}, {**SMALL, "amount": True}, {**SMALL, "to": "me"}, {"user_id": 42}])
def test_arguments_changed_between_the_verdict_and_the_call_are_refused(till, run, changed):
    gate = desk_gate(till)
    request = request_for(SMALL, run)
    gate.before(request)
    assert gate.admit(request, changed).stop_reason == "supervisor_block:arguments_changed"


# -- two at once --------------------------------------------------------------------------------------------------------


def test_two_refunds_at_once_do_not_both_use_what_is_left_of_a_cap(till):
    both = threading.Barrier(2, timeout=60)
    met = []

    def meet(action, state, policy):
        decision = Desk().review(action, state, policy)
        if len(met) < 2:
            met.append(1)
            both.wait()
        return decision

    gate = desk_gate(till, supervisor=Says(meet), policy=Policy(auto=1500, per_run=2000))
    ended = []

    def pay(user_id):
        try:
            ended.append(through("sync", gate, "refund", till.refund, {"user_id": user_id, "amount": 1500.0, "reason": "late"}))
        except ToolDeniedError as error:
            ended.append(error.stop_reason)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(pay, user_id)) for user_id in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, ended)) == ["supervisor_block:refund_budget_exhausted", "{'status': 'ok', 'amount': 1500.0}"]
    assert len(till.paid) == 1


def test_two_tasks_at_once_do_not_both_use_what_is_left_of_a_cap(till):
    async def both():
        gate = Gate(SlowDesk(), tools={"refund": till.refund_async}, policy=Policy(auto=1500, per_run=2000))
        calls = [ravi_otel.tool(till.refund_async, name="refund", gate=gate)(user, 1500.0, "late") for user in (1, 2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    class SlowDesk(Desk):
        async def review(self, action, state, policy):
            decision = super().review(action, state, policy)
            await asyncio.sleep(0)
            return decision

    ended = asyncio.run(both())
    assert sum(isinstance(each, ToolDeniedError) for each in ended) == 1
    assert len(till.paid) == 1


def test_read_only_calls_meanwhile_cost_no_second_review(till):
    desk = Desk()

    def look(action, state, policy):
        if action["name"] == "refund":
            through("sync", gate, "context", till.context, {"user_id": len(till.looked)})
        return desk.review(action, state, policy)

    supervisor = Says(look)
    gate = desk_gate(till, supervisor=supervisor, read_only=["context"])
    through("sync", gate, "refund", till.refund, SMALL)
    assert [each["name"] for each in supervisor.heard] == ["refund", "context"]


def test_a_gate_that_shares_a_state_sees_what_the_other_lets_through(till):
    class Shared:
        def __init__(self):
            self.paid = 0.0

        def begin(self, tool, arguments):
            self.paid += arguments["amount"]

        def end(self, tool, arguments, status, result):
            pass

        def total(self, tool, field):
            return self.paid

    shared = Shared()
    one, two = (desk_gate(till, state=shared) for _ in range(2))

    def meanwhile(action, state, policy):
        if not till.paid:
            through("sync", two, "refund", till.refund, {**SMALL, "amount": 950.0})
            through("sync", two, "refund", till.refund, {**SMALL, "amount": 951.0})
        return APPROVE if state.total("", "") == 0 else Desk().review(action, state, policy)

    supervisor = Says(lambda *about: APPROVE if meanwhile(*about) is APPROVE and not shared.paid else Desk().review(*about))
    one = desk_gate(till, state=shared, supervisor=supervisor)
    assert refused("sync", one, till, {**SMALL, "amount": 900.0}).stop_reason == "supervisor_block:refund_budget_exhausted"
    assert sum(each[1] for each in till.paid) == 1901.0


def test_each_run_has_a_state_of_its_own(till):
    gate = desk_gate(till)
    for _ in range(3):
        with ravi_otel.run("one"):
            through("sync", gate, "refund", till.refund, {**SMALL, "amount": 900.0})
            through("sync", gate, "refund", till.refund, {**SMALL, "amount": 901.0})
    assert len(till.paid) == 6


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
        ("approved", 1200.0),
        ("reviewed", 800.0),
        ("effective", 800.0),
        ("executed", 800.0),
    ]


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
    gate = desk_gate(till, supervisor=desk, allow=["refund", "transfer"])
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
        return run_sync(walk_gated("refund", till.refund, LARGE, desk_gate(till, Person(blocking))))

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
