"""What one call, attempt or tool asks of each limit, and what is written of it afterwards: every kind, with and without a price."""

from __future__ import annotations

import pytest

import ravi_otel
from ravi_otel import BudgetExhaustedError, cost_limit, message_limit, parse_limit, request_limit, token_limit, tool_call_limit, turn_limit
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.judge import Grant
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.plan import OUTPUT_GUESS, Estimate, Worst
from ravi_otel._enforcement.scope import Scope
from ravi_otel._pricing import PriceBook
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Call, Usage

PRICES = PriceBook({"m": {"input": 2, "output": 10}, "gift": {"input": 0, "output": 0}, "heard": {"audio_hour": 0.36}})
CARD = PRICES.card("openai", "m")
EVERY = (
    request_limit(100), turn_limit(100), message_limit(100), token_limit(10_000), token_limit(10_000, "input"),
    token_limit(10_000, "output"), token_limit(10_000, "2*input+3*output"), cost_limit(10),
)  # fmt: skip


def scope_of(*limits, **more):
    return Opening(kind=ScopeKind.RUN, name="r", limits=limits, **more).open(Scope.of_process(Engine(prices=PRICES)))


def call(model="m", size=30, **more):
    return Call(more.pop("operation", "chat"), "any", model=model, size=size, **more)


def lines(scope, called, *, worst=None):
    expected = Estimate.of(called, PRICES.card("openai", called.model))
    return {line.account.kind: (line.want, line.minimum) for line in scope.plan.lines(called, expected, worst)}


def test_a_call_asks_of_every_kind_what_it_is_expected_to_take_and_the_least_it_cannot_do_without():
    assert lines(scope_of(*EVERY), call(output_cap=50, choices=2, messages=4)) == {
        "requests": (1, 1),
        "turns": (1, 1),
        "messages": (6, 6),
        "tokens": (130, 31),
        "input_tokens": (30, 30),
        "output_tokens": (100, 1),
        "tokens(2*input+3*output)": (360, 63),
        "cost": (30 * 2_000 + 100 * 10_000, 30 * 2_000 + 10_000),
    }


def test_a_request_without_words_asks_for_one_token_so_that_a_full_limit_refuses_it():
    assert lines(scope_of(*EVERY), call(size=0, output_cap=0)) == {
        "requests": (1, 1),
        "turns": (1, 1),
        "tokens": (1, 1),
        "input_tokens": (1, 1),
        "output_tokens": (1, 1),
        "tokens(2*input+3*output)": (3, 3),
        "cost": (0, 0),
    }


def test_of_limits_that_count_no_tokens_nothing_need_be_expected():
    assert asked(scope_of(request_limit(9), turn_limit(9)).plan.lines(call())) == [("requests", 1, 1, False), ("turns", 1, 1, False)]


def test_embeddings_ask_for_no_turn_no_answer_and_no_messages():
    assert lines(scope_of(*EVERY), call(operation="embeddings", turn=False)) == {
        "requests": (1, 1),
        "tokens": (30, 30),
        "input_tokens": (30, 30),
        "tokens(2*input+3*output)": (60, 60),
        "cost": (60_000, 60_000),
    }


def test_what_is_no_generation_but_no_embedding_either_asks_for_the_least_of_an_answer():
    asked = lines(scope_of(token_limit(9), token_limit(9, "output"), turn_limit(9)), call(operation="moderation", turn=False, size=0))
    assert asked == {"tokens": (1, 1), "output_tokens": (1, 1)}


def test_what_is_counted_as_nothing_asks_for_nothing():
    assert lines(scope_of(*EVERY), call(generative=False)) == {}


def test_a_model_that_costs_nothing_passes_an_empty_purse():
    assert lines(scope_of(cost_limit(1)), call("gift")) == {"cost": (0, 0)}


@pytest.mark.parametrize("model", ["unknown", "heard"])  # no price at all, and none by tokens
def test_a_cost_limit_refuses_a_model_without_a_price(model):
    with pytest.raises(BudgetExhaustedError) as caught:
        lines(scope_of(cost_limit(1)), call(model))
    assert caught.value.reason == "unpriced_model"
    assert model in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "more", "asked"),
    [
        (cost_limit(1, on_unpriced="warn"), {}, (0, 0)),
        (cost_limit(1, on_unpriced="warn"), {"job": True}, (1, 1)),
        (cost_limit(1), {"unread": True}, (0, 0)),
        (cost_limit(1), {"unread": True, "job": True}, (1, 1)),
        (cost_limit(1, on_exceed="observe"), {}, (0, 0)),
    ],
)
def test_one_without_a_price_is_let_through_where_that_is_allowed_and_a_job_only_while_anything_is_left(limit, more, asked):
    assert lines(scope_of(limit), call("unknown", **more)) == {"cost": asked}


@pytest.mark.parametrize(("learned", "output", "sure"), [(None, OUTPUT_GUESS, False), (7, 7, True)])
def test_an_answer_is_expected_as_long_as_was_learned_else_at_a_guess(learned, output, sure):
    found = Estimate.of(call(choices=3), CARD, learned)
    assert found == Estimate(30, 3 * output, 60_000 + 3 * output * 10_000, 70_000, None, sure)
    assert Estimate.of(call("unknown", choices=3), None, learned) == Estimate(30, 3 * output, None, None, None, sure)
    capped = Estimate.of(call(output_cap=5), CARD, learned)
    assert (capped.output_tokens, capped.sure) == (5, sure)


def test_no_answer_is_expected_of_what_is_no_turn():
    assert Estimate.of(call(turn=False, output_cap=5), CARD) == Estimate(30, 0, 60_000, 60_000)


KNOWN = Usage(40, 20, audio_output_tokens=12, image_output_tokens=8, reasoning_tokens=5, cached_input_tokens=10)


def test_what_an_endpoint_itself_expects_is_taken_over_and_its_least_is_the_same_with_one_token_of_an_answer():
    found = Estimate.of(call(expected=KNOWN, output_cap=3), CARD, 9)
    least = Usage(40, 1, audio_output_tokens=1, image_output_tokens=1, reasoning_tokens=1, cached_input_tokens=10, source="estimated")
    assert found == Estimate(40, 20, CARD.cost_nano(KNOWN), CARD.cost_nano(least), KNOWN)
    assert Estimate.of(call(expected=Usage(40)), CARD) == Estimate(40, 0, 80_000, 80_000, Usage(40))
    assert Estimate.of(call(expected=KNOWN), None) == Estimate(40, 20, None, None, KNOWN)


def test_an_expectation_in_all_tokens_has_no_price_where_a_model_is_not_sold_by_tokens():
    """What is sent of it costs nothing, and that is no price of the whole."""
    found = Estimate.of(call("heard", expected=Usage(total_tokens=5)), PRICES.card("openai", "heard"))
    assert (found.cost, found.usage().total_tokens) == (None, 5)
    scope = scope_of(cost_limit(1, suspend="allow"))
    with pytest.raises(BudgetExhaustedError) as caught:
        scope.plan.lines(call("heard"), found)
    assert caught.value.reason == "unpriced_model"
    assert asked(set_aside(scope, "cost").plan.lines(call("heard"), found)) == [("cost", 0, 0, True)]


@pytest.mark.parametrize("known", [None, KNOWN])
def test_an_estimate_names_the_price_it_goes_by(known):
    assert Estimate.of(call(expected=known), CARD).card is CARD
    assert Estimate.of(call(expected=known), None).card is None


def test_what_was_reserved_and_what_was_sent_are_written_as_a_usage_that_says_so():
    guessed, known = Estimate.of(call(output_cap=5), CARD), Estimate.of(call(expected=KNOWN), CARD)
    assert guessed.usage() == Usage(30, 5, source="reserved")
    assert (known.usage().source, known.usage().total_tokens, known.usage().audio_output_tokens) == ("reserved", 60, 12)
    assert guessed.floor() == Usage(30, source="estimated")
    assert known.floor() == Usage(40, 0, cached_input_tokens=10, source="estimated")


# -- attempts, tools, limits that are set aside ----------------------------------------------------------------------


def asked(found):
    return [(line.account.kind, line.want, line.minimum, line.free) for line in found]


def test_one_more_attempt_asks_for_a_request_and_nothing_else():
    assert asked(scope_of(*EVERY).plan.attempt_lines("m")) == [("requests", 1, 1, False)]


def test_a_tool_asks_of_the_limits_that_count_it():
    plan = scope_of(tool_call_limit(9), tool_call_limit(9, tool="a"), tool_call_limit(9, tool="b"), request_limit(9)).plan
    assert asked(plan.tool_lines("a")) == [("tool_calls", 1, 1, False), ("tool.a", 1, 1, False)]
    assert asked(plan.tool_lines("c")) == asked(plan.tool_lines("")) == [("tool_calls", 1, 1, False)]
    assert asked(plan.passed_lines("b")) == [("tool_calls", 0, 0, False), ("tool.b", 0, 0, False)]


@pytest.mark.parametrize(
    ("limits", "facts"),
    [
        ((), (False, False, False)),
        ((request_limit(9),), (False, False, False)),
        ((cost_limit(9), request_limit(9)), (True, True, False)),
        ((token_limit(9), request_limit(9)), (False, True, False)),
        ((token_limit(9, "input", admission="strict"), request_limit(9)), (False, True, True)),
        ((request_limit(9), cost_limit(9, admission="strict"), token_limit(9)), (True, True, True)),
    ],
)
def test_a_plan_says_whether_cost_is_limited_calls_are_to_be_estimated_and_the_worst_case_is_held(limits, facts):
    plan = scope_of(*limits).plan
    assert (plan.priced, plan.sized, plan.strict) == facts


def set_aside(scope, *kinds):
    scope.change_rules(suspended=frozenset(kinds))
    return scope


def test_a_limit_that_is_set_aside_is_counted_and_refuses_nothing_also_without_a_price():
    scope = set_aside(scope_of(request_limit(1), token_limit(9, suspend="allow"), cost_limit(1, suspend="allow")), "tokens", "cost")
    priced, unpriced = (Estimate.of(call(name), PRICES.card("openai", name)) for name in ("m", "unknown"))
    guess = 30 + OUTPUT_GUESS
    assert asked(scope.plan.lines(call(), priced)) == [
        ("requests", 1, 1, False),
        ("tokens", guess, 31, True),
        ("cost", 60_000 + OUTPUT_GUESS * 10_000, 70_000, True),
    ]
    assert asked(scope.plan.lines(call("unknown"), unpriced)) == [
        ("requests", 1, 1, False),
        ("tokens", guess, 31, True),
        ("cost", 0, 0, True),
    ]
    assert [one.kind for one in scope.plan.in_force()] == ["requests"]


def test_what_is_counted_at_once_is_free_of_a_limit_that_is_set_aside_and_of_no_other():
    limits = tool_call_limit(9, suspend="allow"), tool_call_limit(9, tool="a"), request_limit(9, suspend="allow")
    plan = set_aside(scope_of(*limits), "tool_calls").plan
    assert asked(plan.tool_lines("a")) == [("tool_calls", 1, 1, True), ("tool.a", 1, 1, False)]
    assert asked(plan.attempt_lines("m")) == [("requests", 1, 1, False)]


@pytest.mark.parametrize(("kind", "away"), [("tool.a", True), ("tool_calls", True), ("tool.b", False)])
def test_a_limit_of_one_tool_is_set_aside_by_the_name_of_its_counter_or_its_kind(kind, away):
    scope = set_aside(scope_of(tool_call_limit(9, tool="a", suspend="allow")), kind)
    assert [one.kind for one in scope.plan.in_force()] == ([] if away else ["tool.a"])


def test_a_limit_of_one_tool_of_an_agent_is_set_aside_by_the_name_of_its_counter():
    with ravi_otel.run("r", limits=["tool.a@x=9:suspend=allow", "requests=9"]), ravi_otel.agent("x"):
        with ravi_otel.suspend_limits("audit", kinds=["tool.a"]):
            assert [one.kind for one in ravi_otel.current_scope().plan.in_force()] == ["requests"]
        assert sorted(one.kind for one in ravi_otel.current_scope().plan.in_force()) == ["requests", "tool.a"]


def test_what_is_in_force_counts_limits_of_time_too():
    assert [one.kind for one in scope_of(request_limit(1), parse_limit("time=9s")).plan.in_force()] == ["requests", "time"]


# -- the worst case --------------------------------------------------------------------------------------------------

STRICT = tuple(token_limit(10_000, kind, admission="strict") for kind in ("all", "input", "output", "input", "2*input+3*output"))


def test_the_worst_case_of_nothing_is_one_token_and_no_answer_asks_for_no_output():
    called = call(size=0, input_bound=0, output_cap=0, turn=False)
    assert lines(scope_of(*STRICT[:3]), called, worst=Worst.of(called, 0, CARD, None)) == {"tokens": (1, 1), "input_tokens": (1, 1)}


def test_each_kind_asks_the_most_it_can_be_charged():
    called = call(input_bound=100, output_cap=50, choices=2, least_cap=4)
    asked_for = lines(scope_of(*STRICT[:3], STRICT[4], cost_limit(1, admission="strict"), request_limit(5)), called,
                      worst=Worst.of(called, 0, CARD, None))  # fmt: skip
    assert asked_for == {
        "tokens": (200, 108),
        "input_tokens": (100, 100),
        "output_tokens": (100, 8),
        "tokens(2*input+3*output)": (500, 224),
        "cost": (100 * 2_000 + 100 * 10_000, 100 * 2_000 + 8 * 10_000),
        "requests": (1, 1),
    }


@pytest.mark.parametrize(
    ("on_unbounded", "window", "least_cap", "want"),
    [("window", 900, 1, 950), ("window", None, 1, 80), ("window", 900, 0, 80), ("admit", 900, 1, 80)],
)
def test_a_request_whose_size_cannot_be_told_is_held_at_the_models_window_where_the_limit_says_so(on_unbounded, window, least_cap, want):
    called = call(input_bound=100, unbounded="previous_response_id", output_cap=50, least_cap=least_cap)
    scope = scope_of(token_limit(10_000, admission="strict", on_unbounded=on_unbounded))
    assert lines(scope, called, worst=Worst.of(called, 0, CARD, window))["tokens"][0] == want


def cap_covered(held, *limits, **more):
    """Return what cap these holds cover, one for each limit, and the kind of the tightest."""
    called = call(input_bound=100, output_cap=more.pop("output_cap", 50), **more)
    worst = Worst.of(called, 0, CARD, 300)
    granted = scope_of(*limits).plan.lines(called, Estimate.of(called, CARD), worst)
    grant = Grant(op_id="o", lines=granted, held=list(held))
    found = worst.covered(grant)
    return found and (found[0], found[1].kind)


@pytest.mark.parametrize(
    ("held", "limits", "more", "covered"),
    [
        ((160,), STRICT[:1], {}, (60, "tokens")),
        ((161,), STRICT[:1], {"choices": 2}, (30, "tokens")),
        ((90,), STRICT[:1], {}, (0, "tokens")),  # less than its input
        ((100,), STRICT[1:2], {}, None),  # input bounds no output
        ((40,), STRICT[2:3], {}, (40, "output_tokens")),
        ((160, 100, 40), STRICT[:3], {}, (40, "output_tokens")),
        ((130, 100, 40), STRICT[:3], {}, (30, "tokens")),
        ((140, 100, 40), STRICT[:3], {}, (40, "tokens")),  # the first of two that are equally tight
        ((290,), STRICT[4:], {}, (30, "tokens(2*input+3*output)")),
        ((500_000,), (cost_limit(1, admission="strict"),), {}, (30, "cost")),
        ((160,), (token_limit(9_999, admission="strict", on_exceed="observe"),), {}, None),
        ((160,), (token_limit(9_999),), {}, None),
        ((160, 120), (token_limit(9_999, admission="strict", on_exceed="observe"), STRICT[0]), {}, (20, "tokens")),
        ((320,), (token_limit(9_999, admission="strict", on_unbounded="window"),), {"unbounded": "x"}, (20, "tokens")),
        ((160,), STRICT[:1], {"output_cap": 0}, None),
    ],
)
def test_the_cap_of_each_choice_is_what_the_tightest_strict_hold_covers(held, limits, more, covered):
    assert cap_covered(held, *limits, **more) == covered


def test_a_strict_cost_limit_refuses_a_model_without_a_price_or_lets_it_through_unbounded_where_that_is_allowed():
    called = call("unknown", input_bound=100, output_cap=50)
    worst = Worst.of(called, 0, None, None)
    with pytest.raises(BudgetExhaustedError, match="unknown"):
        lines(scope_of(cost_limit(1, admission="strict")), called, worst=worst)
    granted = scope_of(cost_limit(1, admission="strict", on_unpriced="warn")).plan.lines(called, Estimate.of(called, None), worst)
    assert [(line.want, line.minimum) for line in granted] == [(0, 0)]
    assert worst.covered(Grant(op_id="o", lines=granted, held=[0])) is None


def test_the_worst_case_of_a_model_that_costs_nothing_passes_an_empty_purse():
    called = call("gift", input_bound=100, output_cap=50)
    worst = Worst.of(called, 0, PRICES.card("openai", "gift"), None)
    assert lines(scope_of(cost_limit(1, admission="strict")), called, worst=worst) == {"cost": (0, 0)}


def test_a_limit_by_model_is_asked_of_its_counter_for_the_model_that_is_called():
    plan = scope_of(request_limit(9, by="model"), token_limit(9, by="model", admission="strict")).plan
    counters = {name: plan.accounts(name) for name in ("m", "gift")}
    assert counters["m"] != counters["gift"]
    for name, (requests, tokens) in counters.items():
        assert [line.account for line in plan.attempt_lines(name)] == [requests]
        assert [line.account for line in plan.lines(call(name))] == [requests, tokens]
        assert plan.refuses_unbounded(call(name, unbounded="x"), lambda: None) is tokens


def test_a_hold_that_is_set_aside_bounds_no_output():
    called = call(input_bound=100, output_cap=50)
    scope = set_aside(scope_of(token_limit(9_999, admission="strict", suspend="allow")), "tokens")
    worst = Worst.of(called, 0, CARD, None)
    granted = scope.plan.lines(called, Estimate.of(called, CARD), worst)
    assert worst.covered(Grant(op_id="o", lines=granted, held=[120])) is None


@pytest.mark.parametrize(
    ("limit", "more", "window", "refused"),
    [
        (token_limit(9, admission="strict"), {}, 900, True),
        (token_limit(9, admission="strict"), {"unbounded": None}, 900, False),
        (token_limit(9), {}, 900, False),
        (token_limit(9, admission="strict", on_exceed="observe"), {}, 900, False),
        (token_limit(9, admission="strict", on_unbounded="admit"), {}, None, False),
        (token_limit(9, admission="strict", on_unbounded="window"), {}, 900, False),
        (token_limit(9, admission="strict", on_unbounded="window"), {}, None, True),
        (token_limit(9, admission="strict", on_unbounded="window"), {"least_cap": 0}, 900, True),
    ],
)
def test_a_strict_limit_refuses_a_size_that_cannot_be_told_unless_it_says_what_to_hold(limit, more, window, refused):
    scope = scope_of(request_limit(9), limit)
    found = scope.plan.refuses_unbounded(call(**({"unbounded": "previous_response_id"} | more)), lambda: window)
    assert (found is scope.accounts[1]) if refused else (found is None)


def test_a_strict_limit_that_is_set_aside_refuses_no_size_and_one_behind_it_does():
    scope = scope_of(token_limit(9, admission="strict", suspend="allow"), token_limit(9, "input", admission="strict"))
    set_aside(scope, "tokens")
    assert scope.plan.refuses_unbounded(call(unbounded="x"), lambda: None) is scope.accounts[1]


# -- what is written afterwards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "cost", "messages", "amounts"),
    [
        (Usage(3, 2), 7, 4, {"tokens": 5, "input_tokens": 3, "output_tokens": 2, "tokens(2*input+3*output)": 12, "cost": 7, "messages": 4}),
        (Usage(3, 0), None, None, {"tokens": 3, "input_tokens": 3, "output_tokens": 0, "tokens(2*input+3*output)": 6}),
        (Usage(0, 2), 0, 0,
         {"tokens": 2, "input_tokens": 0, "output_tokens": 2, "tokens(2*input+3*output)": 6, "cost": 0, "messages": 0}),
        (Usage(total_tokens=9), None, None, {"tokens": 9}),  # nobody told them apart: the rest settles at what was held
        (Usage(audio_ms=5), 7, None, {"cost": 7}),  # not measured in tokens at all
        (Usage(3, 2, total_tokens=0, audio_ms=5), None, None, {}),
        (Usage(), None, None, {"tokens": 0, "input_tokens": 0, "output_tokens": 0, "tokens(2*input+3*output)": 0}),
        (Usage(0, 2, audio_ms=5), None, None, {"tokens": 2, "input_tokens": 0, "output_tokens": 2, "tokens(2*input+3*output)": 6}),
    ],
)  # fmt: skip
def test_what_was_used_is_written_by_kind_and_what_nobody_told_is_left_out(usage, cost, messages, amounts):
    assert scope_of(token_limit(99, "2*input+3*output")).plan.amounts(usage, cost, messages) == amounts
