"""Rules decide: what is refused stays refused, what is corrected is judged again, and what cannot be read does not pass."""

from __future__ import annotations

import copy
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravi_otel.errors import ConfigurationError
from ravi_otel.supervisor import DecisionKind, Rules, RunState, StatedCall, Supervisor, ToolSignature, read_action
from ravi_otel.supervisor.rules import (
    Allow,
    BlockTools,
    BlockValues,
    Cap,
    CapPerRun,
    EscalateAbove,
    FillIn,
    FinalNeeds,
    InOrder,
    MostCalls,
    NeedsFirst,
    NotAfter,
    OnlyValues,
    ReadOnly,
    Required,
    Rule,
)

APPROVE, REVISE, BLOCK, ESCALATE = DecisionKind.APPROVE, DecisionKind.REVISE, DecisionKind.BLOCK, DecisionKind.ESCALATE
TOOL, AMOUNT = "issue_refund", "amount_usd"


def get_context(user_id: int):
    """Look a user up."""


def issue_refund(user_id: int, amount_usd: float, reason: str):
    """Give money back."""


def send_email(user_id: int, text: str):
    """Write to a user."""


SIGNATURES = {fn.__name__: ToolSignature.of(fn) for fn in (get_context, issue_refund, send_email)}


def call(name=TOOL, **args):
    return {"kind": "tool", "name": name, "args": args}


def refund(amount, **more):
    return call(user_id=42, amount_usd=amount, **({"reason": "late"} | more))


def past(*calls):
    return RunState([StatedCall(*each) for each in calls])


def refunded(*amounts, status="ok"):
    return past(*((TOOL, {"user_id": 42, AMOUNT: each, "reason": "late"}, status) for each in amounts))


def decided(rules, action, state=None, **options):
    found = Rules(rules, **options).review(action, RunState() if state is None else state)
    return found.kind, found.reason


def followed(rules, action, state):
    """Follow the corrections as a gate does, each validated and reviewed from the start; give the last decision and its action."""
    for _ in range(4):
        action = read_action(action, SIGNATURES, may_lack={name: rules.may_lack(name) for name in SIGNATURES})
        found = rules.review(action, state)
        if found.kind is not REVISE:
            return found, action
        action = found.revised_action
    pytest.fail("more than three corrections")


DESK = [
    FillIn(TOOL, "reason", "Customer request"),
    CapPerRun(TOOL, AMOUNT, 2_000, otherwise="revise", least=0.01),
    EscalateAbove(TOOL, AMOUNT, 1_000),
]


# -- the hole and its kin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [DESK, DESK[::-1]], ids=["as listed", "the other way round"])
@pytest.mark.parametrize("reason", [{"reason": ""}, {"reason": " \u200b\u3164"}, {}], ids=["empty", "invisible", "left out"])
def test_a_refund_above_the_threshold_does_not_pass_the_person_for_want_of_a_reason(rules, reason):
    action = call(user_id=42, amount_usd=1_200.0, **reason)
    assert Rules(rules).review(action, RunState()).kind is REVISE
    found, effective = followed(Rules(rules), action, RunState())
    assert (found.kind, effective["args"]) == (ESCALATE, {"user_id": 42, "amount_usd": 1_200.0, "reason": "Customer request"})


@pytest.mark.parametrize("rules", [DESK, DESK[::-1]])
def test_what_a_cap_lowers_above_the_threshold_is_for_a_person_still(rules):
    found, effective = followed(Rules(rules), refund(5_000.0), RunState())
    assert (found.kind, effective["args"][AMOUNT]) == (ESCALATE, 2_000.0)


def test_a_person_is_asked_about_the_lowered_amount_and_never_about_one_past_the_cap():
    assert decided(DESK, refund(5_000.0)) == (REVISE, "amount_usd_over_run_cap")


def test_a_cap_below_the_threshold_would_keep_everybody_from_being_asked_and_is_refused():
    lowers = Cap(TOOL, AMOUNT, 1_000, otherwise="revise")
    with pytest.raises(ConfigurationError, match="nobody would ever be asked"):
        Rules([lowers, EscalateAbove(TOOL, AMOUNT, 1_000)])
    Rules([Cap(TOOL, AMOUNT, 1_001, otherwise="revise"), EscalateAbove(TOOL, AMOUNT, 1_000)])
    Rules([lowers, EscalateAbove("send_email", AMOUNT, 1_000)])


def test_several_corrections_go_into_one():
    found = Rules(DESK).review(call(user_id=42, amount_usd=9_000.0), RunState())
    assert found.revised_action == call(user_id=42, amount_usd=2_000.0, reason="Customer request")


def test_a_review_changes_neither_the_action_nor_the_state():
    action, state = call(user_id=42, amount_usd=9_000.0), refunded(100.0)
    before = copy.deepcopy(action), state.calls, state.version
    Rules(DESK).review(action, state)
    assert (action, state.calls, state.version) == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-3_000, 6_000) | st.sampled_from([0.1, 1_000.0, 1_000.01, 2_000.0, -0.0]), st.booleans()), max_size=8))
def test_whatever_is_asked_the_run_stays_in_its_cap_and_large_refunds_are_approved_by_a_person(asked):
    rules, state, asked_of_a_person = Rules(DESK), RunState(), 0
    for amount, with_reason in asked:
        found, effective = followed(rules, call(user_id=42, amount_usd=amount, **({"reason": "x"} if with_reason else {})), state)
        if found.kind is BLOCK:
            continue
        asked_of_a_person += found.kind is ESCALATE
        assert (found.kind is ESCALATE) == (effective["args"][AMOUNT] > 1_000)
        state.begin(TOOL, effective["args"])
    assert math.fsum(each.arguments[AMOUNT] for each in state.calls) <= 2_000.000001
    assert all(each.arguments[AMOUNT] > 0 and each.arguments["reason"] for each in state.calls)
    assert asked_of_a_person <= 1


# -- who wins -----------------------------------------------------------------------------------------------------

VOTES = {
    BLOCK: Required(TOOL, "ticket"),
    REVISE: FillIn(TOOL, "note", "none"),
    ESCALATE: EscalateAbove(TOOL, AMOUNT, 10),
    APPROVE: Allow(TOOL),
}
ORDER = list(VOTES)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_strictest_of_rules_that_disagree_wins_whatever_their_order(count, turned):
    for start in range(len(ORDER) - count + 1):
        chosen = ORDER[start : start + count]
        rules = [VOTES[each] for each in (reversed(chosen) if turned else chosen)]
        assert decided(rules, refund(50.0))[0] is chosen[0]


def test_a_rule_about_another_tool_says_nothing():
    assert decided([BlockTools("send_email")], refund(1.0)) == (APPROVE, "no_rule_against")


@pytest.mark.parametrize(
    ("default", "kind", "reason"),
    [("approve", APPROVE, "no_rule_against"), ("block", BLOCK, "no_rule_for"), ("escalate", ESCALATE, "no_rule_for")],
)
def test_a_restriction_that_is_kept_approves_nothing(default, kind, reason):
    assert decided([EscalateAbove(TOOL, AMOUNT, 1_000), BlockValues(TOOL, "reason", ["fraud"])], refund(1.0), default=default) == (
        kind,
        reason,
    )


@pytest.mark.parametrize("rule", [Allow, ReadOnly])
def test_a_tool_that_is_allowed_passes_any_default_but_no_restriction(rule):
    assert decided([rule(TOOL)], refund(1.0), default="block")[0] is APPROVE
    assert decided([rule(TOOL), EscalateAbove(TOOL, AMOUNT, 1_000)], refund(2_000.0), default="block")[0] is ESCALATE


def test_the_read_only_tools_are_listed_for_the_gate():
    assert Rules([ReadOnly(["a", "b"]), Allow("c")]).read_only == {"a", "b"}


@pytest.mark.parametrize(
    "action", [{"kind": "tool"}, {"kind": "Tool", "name": TOOL, "args": {}}, {"kind": "tool", "name": TOOL, "args": []}, {}]
)
def test_what_is_no_action_is_blocked(action):
    assert decided([Allow(TOOL)], action) == (BLOCK, "unknown_action_kind")


# -- amounts ------------------------------------------------------------------------------------------------------

EDGES = [(999.99, APPROVE), (1_000, APPROVE), (1_000.0, APPROVE), (math.nextafter(1_000, 2_000), ESCALATE), (1_000.01, ESCALATE)]


@pytest.mark.parametrize(("amount", "kind"), EDGES)
def test_a_threshold_is_passed_by_what_is_more_and_by_nothing_else(amount, kind):
    assert decided([EscalateAbove(TOOL, AMOUNT, 1_000)], refund(amount))[0] is kind
    assert decided([Cap(TOOL, AMOUNT, 1_000, otherwise="escalate")], refund(amount))[0] is kind


UNREADABLE = [
    ({}, "missing_amount_usd"),
    ({AMOUNT: None}, "missing_amount_usd"),
    ({AMOUNT: "5"}, "invalid_amount_usd_type"),
    ({AMOUNT: True}, "invalid_amount_usd_type"),
    ({AMOUNT: [5]}, "invalid_amount_usd_type"),
    ({AMOUNT: {"value": 5}}, "invalid_amount_usd_type"),
    ({AMOUNT: math.nan}, "invalid_amount_usd_type"),
    ({AMOUNT: -math.inf}, "invalid_amount_usd_type"),
    ({AMOUNT: -1}, "invalid_amount_usd"),
    ({AMOUNT: -1_000.0}, "invalid_amount_usd"),
]


@pytest.mark.parametrize(
    "rule", [Cap(TOOL, AMOUNT, 10), CapPerRun(TOOL, AMOUNT, 10), EscalateAbove(TOOL, AMOUNT, 10)], ids=lambda rule: rule.word
)
@pytest.mark.parametrize(("args", "reason"), UNREADABLE, ids=[str(args.get(AMOUNT, "absent")) for args, _ in UNREADABLE])
@pytest.mark.parametrize("allowed", [[], [Allow(TOOL)]], ids=["by default", "allowed"])
def test_an_amount_that_cannot_be_read_is_refused_and_never_passed(rule, args, reason, allowed):
    assert decided([rule, *allowed], call(**args)) == (BLOCK, reason)


@pytest.mark.parametrize("status", ["running", "ok", "error", "cancelled"])
def test_what_was_begun_counts_for_the_run_however_it_ended(status):
    rule = CapPerRun(TOOL, AMOUNT, 2_000)
    assert decided([rule], refund(500.0), refunded(1_500.0, status=status))[0] is APPROVE
    assert decided([rule], refund(500.01), refunded(1_500.0, status=status)) == (BLOCK, "amount_usd_over_run_cap")


def test_what_was_refused_afterwards_makes_room_again():
    state = RunState()
    args = refund(1_500.0)["args"]
    state.begin(TOOL, args)
    state.end(TOOL, args, "refused", None)
    assert decided([CapPerRun(TOOL, AMOUNT, 2_000)], refund(2_000.0), state)[0] is APPROVE


def test_a_negative_amount_that_got_through_makes_no_room_for_another():
    assert decided([CapPerRun(TOOL, AMOUNT, 2_000)], refund(3_000.0), refunded(-1_000.0))[0] is BLOCK
    assert decided([CapPerRun(TOOL, AMOUNT, 2_000)], refund(2_000.0), refunded(-1_000.0))[0] is APPROVE


def test_tenths_add_up_as_they_are_written():
    assert decided([CapPerRun(TOOL, AMOUNT, 0.3)], refund(0.1), refunded(0.1, 0.1))[0] is APPROVE
    assert decided([CapPerRun(TOOL, AMOUNT, 0.3)], refund(0.1000001), refunded(0.1, 0.1))[0] is BLOCK


def test_a_past_call_whose_amount_cannot_be_read_leaves_no_room_at_all():
    assert decided([CapPerRun(TOOL, AMOUNT, 2_000)], refund(1.0), refunded("many")) == (BLOCK, "unreadable_past_amount_usd")


def test_several_tools_share_a_cap():
    rule = CapPerRun([TOOL, "send_credit"], AMOUNT, 2_000)
    assert decided([rule], refund(600.0), past(("send_credit", {AMOUNT: 1_500}, "ok")))[0] is BLOCK


def test_a_run_cap_lowers_to_what_is_left_and_refuses_when_nothing_is():
    rule = CapPerRun(TOOL, AMOUNT, 2_000, otherwise="revise", reason="cap_to_remaining", exhausted_reason="exhausted")
    found = Rules([rule]).review(refund(900.0), refunded(1_500.0))
    assert (found.kind, found.reason, found.revised_action) == (REVISE, "cap_to_remaining", refund(500.0))
    assert decided([rule], refund(0.01), refunded(2_000.0)) == (BLOCK, "exhausted")


def test_a_lowered_amount_is_never_more_than_what_is_left_and_is_of_the_same_type():
    rules = Rules([CapPerRun(TOOL, AMOUNT, 10.7, otherwise="revise")])
    whole = rules.review(refund(900), RunState()).revised_action["args"][AMOUNT]
    assert (whole, type(whole)) == (10, int)
    third = Rules([CapPerRun(TOOL, AMOUNT, 1, otherwise="revise")])
    state = refunded(0.1, 0.2, 1e-17)
    lowered = third.review(refund(5.0), state).revised_action
    assert third.review(lowered, state).kind is APPROVE


def test_what_cannot_be_lowered_without_going_under_the_least_is_refused():
    assert decided([CapPerRun(TOOL, AMOUNT, 10, otherwise="revise", least=5)], refund(8), refunded(7))[0] is BLOCK
    assert decided([CapPerRun(TOOL, AMOUNT, 0.5, otherwise="revise")], refund(8))[0] is BLOCK


def test_an_amount_inside_an_object_is_found_and_lowered_there():
    rule = Cap("pay", "order.amount", 10, otherwise="revise")
    found = Rules([rule]).review(call("pay", order={"amount": 50, "id": 1}), RunState())
    assert found.revised_action["args"] == {"order": {"amount": 10, "id": 1}}
    assert decided([rule], call("pay", order=[{"amount": 50}])) == (BLOCK, "missing_order.amount")


def test_calls_are_counted_from_when_they_begin():
    assert decided([MostCalls(TOOL, 2)], refund(1.0), refunded(1.0))[0] is APPROVE
    assert decided([MostCalls(TOOL, 2)], refund(1.0), refunded(1.0, 1.0, status="running")) == (BLOCK, "issue_refund_called_often_enough")
    assert decided([MostCalls(TOOL, 0)], refund(1.0))[0] is BLOCK


# -- order --------------------------------------------------------------------------------------------------------

CONTEXT = NeedsFirst(TOOL, "get_context", same="user_id")
BEFORE = [
    (("get_context", {"user_id": 42}, "ok", {"name": "x"}), APPROVE),
    (("get_context", {"user_id": 42.0}, "ok", {"name": "x"}), APPROVE),
    (("get_context", {"user_id": 43}, "ok", {"name": "x"}), BLOCK),
    (("get_context", {"user_id": "42"}, "ok", {"name": "x"}), BLOCK),
    (("get_context", {}, "ok", {"name": "x"}), BLOCK),
    (("get_context", {"user_id": 42}, "running", None), BLOCK),
    (("get_context", {"user_id": 42}, "error", None), BLOCK),
    (("get_context", {"user_id": 42}, "cancelled", None), BLOCK),
    (("get_context", {"user_id": 42}, "ok", {"error": "context_not_found_for_user:42"}), BLOCK),
    (("get_context", {"user_id": 42}, "ok", {"error": None, "name": "x"}), APPROVE),
    (("send_email", {"user_id": 42}, "ok", {"name": "x"}), BLOCK),
]


@pytest.mark.parametrize(("before", "kind"), BEFORE, ids=range(len(BEFORE)))
def test_what_is_needed_first_must_have_been_done_for_the_same_user(before, kind):
    assert decided([CONTEXT], refund(1.0), past(before))[0] is kind


def test_a_call_that_does_not_say_for_whom_it_is_does_not_pass_for_anybody():
    assert decided([CONTEXT], call(amount_usd=1.0), past(("get_context", {}, "ok", {}))) == (BLOCK, "get_context_needed_first")
    assert decided([CONTEXT], call(user_id=None), past(("get_context", {"user_id": None}, "ok", {})))[0] is BLOCK


def test_tools_are_taken_in_their_order_and_never_again_after_a_later_one():
    rules = [InOrder(["get_context", TOOL, "send_email"])]
    context, refunds, email = (("get_context", {}, "ok"), (TOOL, {}, "ok"), ("send_email", {}, "running"))
    assert decided(rules, refund(1.0))[0] is BLOCK
    assert decided(rules, refund(1.0), past(context))[0] is APPROVE
    assert decided(rules, call("send_email"), past(context)) == (BLOCK, "send_email_out_of_order")
    assert decided(rules, call("send_email"), past(context, refunds))[0] is APPROVE
    assert decided(rules, refund(1.0), past(context, refunds))[0] is APPROVE
    assert decided(rules, refund(1.0), past(context, refunds, email))[0] is BLOCK


def test_a_tool_is_over_once_another_has_begun():
    assert decided([NotAfter(TOOL, "send_email")], refund(1.0), past(("send_email", {}, "running"))) == (
        BLOCK,
        "issue_refund_after_send_email",
    )
    assert decided([NotAfter(TOOL, "send_email")], refund(1.0))[0] is APPROVE


def test_a_final_answer_needs_what_it_needs_and_no_more():
    final = {"kind": "final", "answer": "Done."}
    rules = [FinalNeeds("get_context", reason="final_requires_context"), BlockTools(TOOL)]
    assert decided(rules, final, default="block") == (BLOCK, "final_requires_context")
    assert decided(rules, final, past(("get_context", {}, "ok", {})), default="block") == (APPROVE, "final_answer")
    assert decided([FinalNeeds(TOOL)], refund(1.0), default="approve")[0] is APPROVE


HISTORY = [CapPerRun(TOOL, AMOUNT, 10), MostCalls(TOOL, 1), CONTEXT, InOrder([TOOL, "send_email"]), NotAfter(TOOL, "send_email")]


@pytest.mark.parametrize("rule", HISTORY, ids=lambda rule: rule.word)
@pytest.mark.parametrize("state", [None, object(), {"calls": ()}])
def test_a_rule_about_what_was_done_refuses_where_that_cannot_be_read(rule, state):
    assert Rules([rule]).review(refund(1.0), state).reason == "state_unreadable"
    assert Rules([FinalNeeds("a")]).review({"kind": "final", "answer": "x"}, state).kind is BLOCK
    assert Rules([Cap(TOOL, AMOUNT, 10)]).review(refund(1.0), state).kind is APPROVE


# -- fields and tools ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", " \n", "\u200b", "\u2800\u00a0", "\x00", None])
def test_a_required_field_with_nothing_to_be_seen_in_it_is_missing(reason):
    assert decided([Required(TOOL, "reason", reason="refund_reason_required")], refund(1.0, reason=reason)) == (
        BLOCK,
        "refund_reason_required",
    )
    assert decided([FillIn(TOOL, "reason", "x")], refund(1.0, reason=reason))[0] is REVISE


@pytest.mark.parametrize("value", ["late", 0, False, [], {}])
def test_a_field_with_something_in_it_is_left_as_it_is(value):
    assert decided([FillIn(TOOL, "reason", "x"), Required(TOOL, "reason")], refund(1.0, reason=value))[0] is APPROVE


def test_only_what_a_rule_fills_in_may_be_absent():
    rules = Rules([*DESK, Required(TOOL, "ticket"), FillIn("send_email", "text", "Hello"), FillIn(TOOL, "order.note", "x")])
    assert (rules.may_lack(TOOL), rules.may_lack("send_email"), rules.may_lack("other")) == ({"reason"}, {"text"}, frozenset())


def test_what_is_filled_in_is_there_for_the_rules_that_are_listed_before():
    rules = [Cap(TOOL, AMOUNT, 10), FillIn(TOOL, AMOUNT, 5)]
    assert decided(rules, call(user_id=42))[0] is REVISE
    assert decided([Cap(TOOL, AMOUNT, 4), rules[1]], call(user_id=42)) == (BLOCK, "amount_usd_over_cap")


BLOCKED = ["evil@example.com", "José", 7]
LOOKED_UP = [
    ("evil@example.com", BLOCK),
    ("  EVIL@Example.com", BLOCK),
    ("evil\u200b@example.com", BLOCK),
    ("\uff45vil@example.com", BLOCK),
    ("jose\u0301", BLOCK),
    ("Jose", BLOCK),
    (7, BLOCK),
    (7.0, BLOCK),
    (["good@example.com", "evil@example.com"], BLOCK),
    ("\u0435vil@example.com", ESCALATE),
    (["good@example.com", "\u0435vil@example.com"], ESCALATE),
    ({"to": "evil@example.com"}, BLOCK),
    ([["evil@example.com"]], BLOCK),
    (None, BLOCK),
    ("good@example.com", APPROVE),
    (8, APPROVE),
    ("7", APPROVE),
]


@pytest.mark.parametrize(("value", "kind"), LOOKED_UP, ids=range(len(LOOKED_UP)))
def test_a_block_list_is_not_passed_by_writing_a_value_otherwise(value, kind):
    assert decided([BlockValues("send_email", "to", BLOCKED)], call("send_email", to=value))[0] is kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("EUR", APPROVE),
        ("eur", BLOCK),
        ("EUR ", BLOCK),
        ("", BLOCK),
        (None, BLOCK),
        (["EUR", "XXX"], BLOCK),
        (["EUR"], APPROVE),
        (1, APPROVE),
        (True, BLOCK),
    ],
)
def test_only_listed_values_pass_exactly_as_they_are_written(value, kind):
    assert decided([OnlyValues("pay", "currency", ["EUR", 1])], call("pay", currency=value))[0] is kind


def test_a_blocked_tool_stays_blocked_whoever_allows_it():
    assert decided([Allow(TOOL), BlockTools(TOOL)], refund(1.0)) == (BLOCK, "issue_refund_blocked")


# -- what is written ----------------------------------------------------------------------------------------------

WRONG = [
    (lambda: Cap("", AMOUNT, 1), "tool='' is empty"),
    (lambda: Cap([], AMOUNT, 1), "at least one name"),
    (lambda: Cap(["a", "a"], AMOUNT, 1), "twice"),
    (lambda: Cap(7, AMOUNT, 1), "must be a name"),
    (lambda: Cap(TOOL, "a..b", 1), "empty step"),
    (lambda: Cap(TOOL, AMOUNT, True), "must be a number"),
    (lambda: Cap(TOOL, AMOUNT, "10"), "must be a number"),
    (lambda: Cap(TOOL, AMOUNT, math.nan), "must be a number"),
    (lambda: Cap(TOOL, AMOUNT, -1), "at least 0"),
    (lambda: Cap(TOOL, AMOUNT, 1, otherwise="ask"), "otherwise='ask' is unknown"),
    (lambda: MostCalls(TOOL, 1, otherwise="revise"), "otherwise='revise' is unknown"),
    (lambda: CapPerRun(TOOL, AMOUNT, 1, least=-5), "at least 0"),
    (lambda: MostCalls(TOOL, 1.5), "whole number"),
    (lambda: FillIn(TOOL, "reason", " "), "nothing to fill in"),
    (lambda: FillIn(TOOL, "reason", object()), "JSON does not have"),
    (lambda: BlockValues(TOOL, "reason", []), "at least one value"),
    (lambda: BlockValues(TOOL, "reason", "fraud"), "at least one value"),
    (lambda: NeedsFirst(TOOL, ()), "at least one name"),
    (lambda: Rules(Allow(TOOL)), "must be a list of rules"),
    (lambda: Rules(["allow"]), "which is no rule"),
    (lambda: Rules([], default="yes"), "default='yes' is unknown"),
]


@pytest.mark.parametrize(("make", "said"), WRONG, ids=range(len(WRONG)))
def test_a_rule_that_cannot_be_meant_is_refused_where_it_is_made(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_rules_about_what_there_is_not_are_found_against_the_tools():
    tools = [get_context, issue_refund, send_email]
    Rules([*DESK, CONTEXT]).check_tools(tools)
    for rule, said in [
        (Cap("issue_refunds", AMOUNT, 1), "'issue_refunds', which there is not, did you mean 'issue_refund'"),
        (Cap(TOOL, "amount", 1), "argument 'amount', which there is not"),
        (NeedsFirst(TOOL, "get_contexts"), "'get_contexts', which there is not"),
        (NeedsFirst(TOOL, "get_context", same="user"), "argument 'user', which there is not"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            Rules([rule]).check_tools({fn.__name__: fn for fn in tools})


def test_the_version_is_that_of_the_rules_and_of_nothing_else():
    assert Rules(DESK).version == Rules(list(DESK)).version
    assert len(Rules([]).version) == 64
    others = [DESK[:2], DESK[::-1], [*DESK[:2], EscalateAbove(TOOL, AMOUNT, 1_001)], [*DESK[:2], Cap(TOOL, AMOUNT, 3_000)]]
    assert len({Rules(each).version for each in [DESK, *others]} | {Rules(DESK, default="block").version}) == 6


def test_the_order_in_a_set_of_names_makes_no_version():
    assert Rules([Allow({"a", "b", "c"})]).version == Rules([Allow(["a", "b", "c"])]).version


def test_rules_are_a_supervisor():
    assert isinstance(Rules([]), Supervisor)


def test_no_review_is_of_two_moments_when_a_call_begins_and_ends_in_the_middle_of_it():
    state = RunState()

    class Meanwhile(Rule):
        """Do something in the middle of the review, as another thread may."""

        word = "meanwhile"

        def judge(self, case):
            if not state.calls:
                state.begin("look", {})
                state.end("look", {}, "ok", None)

    rules = Rules([Allow("pay"), NotAfter("pay", "look"), Meanwhile("pay"), NeedsFirst("pay", "look")])
    assert rules.review(call("pay"), state).kind is BLOCK


def test_a_state_of_ones_own_is_judged_by_the_calls_it_lists():
    class Told(RunState):
        @property
        def calls(self):
            return (StatedCall("pay", {"amount": 90}, "ok"), StatedCall("look", {"user_id": 4}, "ok"))

    rules = Rules([Allow("pay"), CapPerRun("pay", "amount", 100), NeedsFirst("pay", "look", same="user_id"), MostCalls("pay", 2)])
    assert decided_of(rules, Told(), amount=10, user_id=4) is APPROVE
    assert decided_of(rules, Told(), amount=11, user_id=4) is BLOCK
    assert decided_of(rules, Told(), amount=10, user_id=5) is BLOCK


def decided_of(rules, state, **args):
    return rules.review(call("pay", **args), state).kind


def test_a_review_late_in_a_run_does_as_much_as_an_early_one():
    rules = Rules(
        [
            Allow("pay"),
            CapPerRun("pay", "amount", 1e9),
            MostCalls("pay", 10**9),
            NeedsFirst("pay", "look", same="user"),
            InOrder(["look", "pay"]),
        ]
    )
    state = RunState([StatedCall("look", {"user": 1}, "ok", {"name": "x"})])

    def turn():
        assert rules.review(call("pay", amount=1.5, user=1), state).kind is APPROVE
        state.begin("pay", {"amount": 1.5, "user": 1})
        state.end("pay", {"amount": 1.5, "user": 1}, "ok", {"paid": 1.5})

    def called_in_a_turn():
        seen = []
        sys.setprofile(lambda frame, event, arg: seen.append(event))
        try:
            turn()
        finally:
            sys.setprofile(None)
        return len(seen)

    for _ in range(10):
        turn()
    early = called_in_a_turn()
    for _ in range(400):
        turn()
    assert called_in_a_turn() <= early * 1.2  # arithmetic of larger numbers may take a step more
