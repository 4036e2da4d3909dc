"""The worst case of a call, and the output cap that what was granted covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravi_otel import cost_limit, parse_limit, token_limit
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Reservation
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.plan import LEAST_ASKED, Estimate, Worst
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel._pricing import PriceBook
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Call, Usage

PRICES = PriceBook({"m": {"input": 2, "cached_input": 1, "output": 10, "reasoning": 12}})
CARD = PRICES.card("openai", "m")


def scope_of(*limits):
    engine = Engine(prices=PRICES)
    return Opening(kind=ScopeKind.RUN, name="r", limits=limits).open(Scope.of_process(engine))


def call_of(bound=100, cap=None, choices=1, **more):
    return Call("chat", "chat.completions", model="m", size=30, input_bound=bound, output_cap=cap, choices=choices, **more)


def asked(scope, call, longest=0, window=None):
    """Give what the call asks of each account: kind, want, minimum."""
    lines = scope.plan.lines(call, Estimate.of(call, CARD), Worst.of(call, longest, CARD, window))
    return [(line.account.kind, line.want, line.minimum) for line in lines]


def grant(scope, call):
    """Reserve for real; give the cap of each choice, or None where the call is refused, and the operation."""
    worst, op_id = Worst.of(call, 0, CARD, None), new_op_id()
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, scope.plan.lines(call, Estimate.of(call, CARD), worst))))
    if isinstance(answer, Denied):
        return None, op_id
    found = worst.covered(answer)
    return (call.output_cap if found is None or (call.output_cap or found[0] + 1) <= found[0] else found[0]), op_id


def test_each_kind_asks_its_worst_case_and_needs_one_token_for_each_choice():
    scope = scope_of(
        *(token_limit(10_000, kind, admission="strict") for kind in ("all", "input", "output", "uncached", "2*input+3*reasoning")),
        cost_limit(1, admission="strict"),
    )
    assert asked(scope, call_of(cap=50, choices=2)) == [
        *(("tokens", 200, 102), ("input_tokens", 100, 100), ("output_tokens", 100, 2), ("tokens(uncached)", 200, 102)),
        *(("tokens(2*input+3*reasoning)", 500, 206), ("cost", CARD.worst_nano(100, 100), CARD.worst_nano(100, 2))),
    ]


def test_estimates_in_the_same_chain_keep_their_own_line():
    scope = scope_of(
        token_limit(10_000), token_limit(10_000, "uncached"), token_limit(10_000, admission="strict"), parse_limit("requests=5")
    )
    assert asked(scope, call_of(cap=50)) == [
        ("tokens", 80, 31),
        ("tokens(uncached)", 80, 31),
        ("tokens", 150, 101),
        ("requests", 1, 1),
    ]


@pytest.mark.parametrize(("longest", "cap"), [(0, LEAST_ASKED), (3_000, LEAST_ASKED), (5_000, 5_000)])
def test_without_a_cap_of_the_callers_4096_is_asked_or_the_longest_answer_that_was_seen(longest, cap):
    assert asked(scope_of(token_limit(10**6, admission="strict")), call_of(), longest) == [("tokens", 100 + cap, 101)]


def test_an_api_that_takes_no_smaller_cap_needs_room_for_it():
    scope = scope_of(token_limit(10**6, admission="strict"))
    assert asked(scope, call_of(cap=50, least_cap=16)) == [("tokens", 150, 116)]
    assert asked(scope, call_of(cap=8, least_cap=16)) == [("tokens", 108, 108)]


def test_embeddings_ask_for_no_output():
    scope = scope_of(*(token_limit(10**6, kind, admission="strict") for kind in ("all", "input", "output")))
    assert asked(scope, call_of(cap=0, turn=False)) == [("tokens", 100, 100), ("input_tokens", 100, 100)]


@given(
    st.sampled_from(["all", "output", "uncached", "input+4*output", "2*reasoning+input", "cost"]),
    *(st.integers(1, 3_000) for _ in range(3)),
    st.none() | st.integers(1, 500),
    st.integers(1, 4),
)
def test_whatever_fits_under_the_cap_that_was_granted_fits_in_the_limit(count, limit, used, bound, cap, choices):
    strict = cost_limit(f"{limit * 0.000005:.9f}", admission="strict") if count == "cost" else token_limit(limit, count, admission="strict")
    scope = scope_of(strict)
    (account,) = scope.plan.accounts()
    account.used = min(used, account.value)
    given_cap, _ = grant(scope, call_of(bound, cap, choices))
    if given_cap is None:
        return
    assert given_cap >= 1
    assert cap is None or given_cap <= cap
    made = given_cap * choices
    most = Usage(bound, made, reasoning_tokens=made)
    taken = {
        "cost": CARD.cost_nano(most),
        "tokens": most.total_tokens,
        "output_tokens": made,
        "input_tokens": bound,
    }.get(account.kind)
    if taken is None:
        (formula,) = scope.plan.formulas
        taken = formula.of(most)
    assert account.used + taken <= account.value


def test_the_tightest_of_several_strict_limits_sets_the_cap_and_the_caller_s_own_stays_when_it_is_smaller():
    limits = (token_limit(1_000, admission="strict"), token_limit(300, "output", admission="strict"), token_limit(500))
    assert grant(scope_of(*limits), call_of())[0] == 300
    assert grant(scope_of(*limits), call_of(cap=200))[0] == 200
    assert grant(scope_of(*limits), call_of(choices=2))[0] == 150


def test_what_only_observes_caps_nothing():
    scope = scope_of(token_limit(110, admission="strict", on_exceed="observe"), token_limit(10_000, admission="strict"))
    assert grant(scope, call_of())[0] == LEAST_ASKED


@pytest.mark.parametrize(
    ("option", "window", "least_cap", "refused", "line"),
    [
        *(("refuse", None, 1, True, None), ("refuse", 9_000, 1, True, None), ("window", None, 1, True, None)),
        *(("window", 9_000, 0, True, None), ("window", 9_000, 1, False, ("tokens", 9_050, 9_001))),
        *(("admit", None, 1, False, ("tokens", 80, 31)), ("admit", None, 0, False, ("tokens", 80, 31))),
    ],
)
def test_what_has_no_bound_is_refused_held_at_the_window_or_admitted_as_an_estimate(option, window, least_cap, refused, line):
    scope = scope_of(token_limit(20_000, admission="strict", on_unbounded=option))
    call = call_of(bound=None, cap=50, unbounded="conversation", least_cap=least_cap)
    assert (scope.plan.refuses_unbounded(call, lambda: window) is not None) is refused
    if line is not None:
        assert asked(scope, call, window=window) == [line]


def test_an_estimate_uses_what_was_learned_where_the_caller_states_no_cap():
    assert Estimate.of(call_of(), None, 70).output_tokens == 70
    assert Estimate.of(call_of(cap=5), None, 70).output_tokens == 5
    assert Estimate.of(call_of(), None).output_tokens == 1_024
