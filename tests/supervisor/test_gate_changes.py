"""Arguments that change after they were judged change nothing, and two calls at once share one cap."""

import asyncio
import contextvars
import threading
from dataclasses import dataclass, field, replace

import pytest
from refund_gate import (
    APPROVE,
    ESCALATE,
    LARGE,
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
from ravi_otel.errors import ToolDeniedError
from ravi_otel.supervisor import Gate

pytestmark = pytest.mark.usefixtures("run")


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


@dataclass
class Plan:
    to: str
    steps: list[str] = field(compare=False)
    labels: set[str] = field(default_factory=set)


def carry_out(plan: Plan) -> None:
    """Take steps in the order in which they are given."""


def test_an_order_that_the_programs_own_equality_leaves_out_is_not_changed_either(run):
    gate = Gate(tools=[carry_out])
    request = request_for({"plan": {"to": "Ann", "steps": ["check", "pay"]}}, run, tool="carry_out")
    plan = gate.before(request).arguments["plan"]
    plan.steps.reverse()
    assert gate.admit(request, {"plan": plan}).stop_reason == "supervisor_block:arguments_changed"


def test_a_set_may_be_written_in_any_order_wherever_it_is(run):
    gate = Gate(tools=[carry_out, sort_out])
    labels = [f"label {number}" for number in range(40)]
    request = request_for({"plan": {"to": "Ann", "steps": ["check", "pay"], "labels": labels}}, run, tool="carry_out")
    assert gate.admit(request, gate.before(request).arguments).allowed
    request = request_for({"numbers": [300, 2, 17, 64], "named": {"a": [{"in": labels}]}}, run, tool="sort_out")
    assert gate.admit(request, gate.before(request).arguments).allowed


def sort_out(numbers: frozenset[int], named: dict[str, list[dict[str, set[str]]]]) -> None:
    """Take a set, and sets in a list of a dict."""


def test_an_item_of_a_set_that_is_another_is_refused(run):
    gate = Gate(tools=[sort_out])
    request = request_for({"numbers": [1, 2], "named": {"a": [{"in": ["x", "y"]}]}}, run, tool="sort_out")
    gate.before(request)
    changed = {"numbers": frozenset({1, 2}), "named": {"a": [{"in": {"x", "z"}}]}}
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
