"""Nearing and exceeded: once each, in order, in every ledger."""

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.judge import Grant
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import NANO, Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


def events(answer):
    return [crossing.event for crossing in answer.crossings]


def clocked(desk, account, seconds):
    return [(one.event, one.phase, one.decision) for one in run_sync(desk.ledger.clocked(account, round(seconds * NANO)))]


def test_nearing_comes_once_at_the_warning_level(desk):
    account = desk.tokens(100)
    told = [events(desk.spend(account, amount)) for amount in (79, 1, 5, 15)]
    assert told == [[], ["limit_nearing"], [], []]
    assert account.events == ("limit_nearing",)


def test_the_warning_level_is_the_limits_own(desk):
    account = desk.tokens(100, warn_at=0.5)
    assert [events(desk.spend(account, amount)) for amount in (49, 1)] == [[], ["limit_nearing"]]


def test_one_settle_that_jumps_over_both_tells_both_in_order(desk):
    account = desk.tokens(100)
    settled = desk.settle(desk.take((account, 50)), {Kind.TOKENS: 101})
    assert [(one.event, one.phase, one.used) for one in settled.crossings] == [
        ("limit_nearing", "settle", 101),
        ("limit_exceeded", "settle", 101),
    ]


def test_exactly_the_limit_is_not_exceeded(desk):
    account = desk.tokens(100)
    assert events(desk.spend(account, 100)) == ["limit_nearing"]


def test_exceeded_comes_with_the_first_exhausted_refusal_and_never_again(desk):
    account = desk.requests(1)
    desk.spend(account, 1)
    first = desk.ask((account, 1))
    assert [(one.event, one.phase, one.decision) for one in first.crossings] == [("limit_exceeded", "admission", "denied")]
    assert [events(desk.ask((account, 1))) for _ in range(3)] == [[], [], []]
    assert account.denied == 4


def test_exceeded_by_a_settle_is_not_told_again_by_the_refusal(desk):
    account = desk.tokens(100)
    desk.settle(desk.take((account, 50)), {Kind.TOKENS: 101})
    assert events(desk.ask((account, 1))) == []


def test_counted_kinds_tell_nearing_at_admission(desk):
    account = desk.requests(5)
    told = [events(desk.take((account, 1))) for _ in range(5)]
    assert told == [[], [], [], ["limit_nearing"], []]


def test_raising_the_limit_arms_both_again(desk):
    account = desk.tokens(100)
    desk.settle(desk.take((account, 50)), {Kind.TOKENS: 101})
    desk.retune(account, 200)
    assert [events(desk.spend(account, amount)) for amount in (58, 1)] == [[], ["limit_nearing"]]
    assert events(desk.settle(desk.take((account, 1)), {Kind.TOKENS: 100})) == ["limit_exceeded"]
    assert account.events == ("limit_nearing", "limit_exceeded") * 2


@pytest.mark.parametrize("value", [60, 100])
def test_lowering_the_limit_or_setting_it_again_arms_nothing(desk, value):
    account = desk.tokens(100)
    desk.settle(desk.take((account, 50)), {Kind.TOKENS: 101})
    desk.retune(account, value)
    assert events(desk.settle(desk.take((account, 0, 0), spent=True), {Kind.TOKENS: 5})) == []


def test_raising_the_limit_ends_draining(desk):
    account = desk.tokens(100)
    desk.spend(account, 90)
    assert desk.ask((account, 20)).reason == "exhausted"
    desk.retune(account, 1_000)
    desk.take((account, 20))


def test_raising_the_limit_by_a_little_ends_draining_too(desk):
    account = desk.tokens(100)
    desk.spend(account, 100)
    assert desk.ask((account, 1)).reason == "exhausted"
    desk.retune(account, 110)
    desk.take((account, 10))


@pytest.mark.parametrize("value", [90, 100])
def test_lowering_the_limit_or_setting_it_again_does_not_end_draining(desk, value):
    account = desk.tokens(100)
    desk.spend(account, 100)
    assert desk.ask((account, 1)).reason == "exhausted"
    desk.retune(account, value)
    assert desk.ask((account, 1)).reason == "draining"


def test_a_lower_limit_holds_from_the_next_reservation_on(desk):
    account = desk.tokens(1_000)
    grant = desk.take((account, 300))
    desk.retune(account, 100)
    assert desk.ask((account, 50)).reason == "contended"
    desk.settle(grant, {Kind.TOKENS: 20})
    assert desk.take((account, 500, 10)).granted == 80


def test_a_limit_lowered_to_zero_allows_nothing_more(desk):
    account = desk.requests(5)
    desk.retune(account, 0)
    assert desk.ask((account, 1)).reason == "exhausted"


def test_observing_never_refuses_and_tells_what_would_have_been(desk):
    account = desk.requests(1, on_exceed=Outcome.OBSERVE)
    answers = [desk.take((account, 1)) for _ in range(3)]
    assert [answer.observed for answer in answers] == [None, account, account]
    assert [[(one.event, one.decision) for one in answer.crossings] for answer in answers] == [
        [("limit_nearing", "observed")],
        [("limit_exceeded", "observed")],
        [],
    ]
    assert (account.used, account.denied, account.draining) == (3, 2, False)


@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.COST])
def test_an_observed_hold_is_what_the_call_wants_and_settles_to_what_it_used(desk, kind):
    account = desk.account(kind, 100, observe=True)
    first, second = desk.take((account, 90)), desk.take((account, 90))
    assert (second.observed, account.held) == (None, 180)  # it would wait in line, which is no refusal
    desk.settle(first, {kind: 70})
    settled = desk.settle(second, {kind: 70})
    assert (account.used, account.held, events(settled)) == (140, 0, ["limit_nearing", "limit_exceeded"])
    assert [one.decision for one in settled.crossings] == ["observed", "observed"]


def test_what_is_near_is_told_as_observed_where_its_own_limit_only_observes(desk):
    shadow, real = desk.requests(5, observe=True), desk.requests(5, "agent")
    answers = [desk.ask((shadow, 4), (real, 1)), desk.ask((shadow, 4), (real, 3))]
    told = [[(one.account, one.event, one.decision) for one in answer.crossings] for answer in answers]
    assert told == [
        [(shadow, "limit_nearing", "observed")],
        [(shadow, "limit_exceeded", "observed"), (real, "limit_nearing", "admitted")],
    ]


def test_an_observed_account_never_makes_a_call_wait(desk):
    account = desk.tokens(100, observe=True)
    desk.take((account, 100))
    assert isinstance(desk.ask((account, 50), patience=30.0), Grant)


def test_an_observed_breach_leaves_a_real_one_in_force(desk):
    shadow, real = desk.requests(0, observe=True), desk.requests(1, "agent")
    desk.take((shadow, 1), (real, 1))
    denied = desk.ask((shadow, 1), (real, 1))
    assert denied.account is real
    assert shadow.used == 1


def test_a_clock_tells_nearing_then_exceeded_once_each(desk):
    account = desk.account(Kind.TIME, 10 * NANO)
    told = [clocked(desk, account, seconds) for seconds in (7.9, 8.0, 9.0, 10.0, 11.0)]
    assert told == [[], [("limit_nearing", "timer", "admitted")], [], [("limit_exceeded", "timer", "denied")], []]
    assert (account.used, account.denied) == (11 * NANO, 2)


def test_a_clock_read_late_tells_both_in_order(desk):
    account = desk.account(Kind.TIME, 10 * NANO)
    assert [event for event, _, _ in clocked(desk, account, 25)] == ["limit_nearing", "limit_exceeded"]


def test_a_clock_that_only_observes_says_so_and_a_look_that_refuses_nothing_counts_no_refusal(desk):
    account = desk.account(Kind.TIME, 10 * NANO, observe=True)
    assert clocked(desk, account, 12) == [("limit_nearing", "timer", "observed"), ("limit_exceeded", "timer", "observed")]
    run_sync(desk.ledger.clocked(account, 13 * NANO, refuses=False))
    assert (account.used, account.denied) == (13 * NANO, 1)


def test_what_no_ledger_counts_tells_nearing_then_exceeded_and_counts_refusals_past_the_limit_alone():
    account = Account(Limit(kind=Kind.TOKENS, value=10), ScopeFacts(scope_id="s", kind=ScopeKind.RUN), origin="the limit")
    told = [[(one.event, one.phase, one.decision, one.used) for one in account.rise(used)] for used in (7, 8, 10, 11, 12, 9)]
    assert told == [[], [("limit_nearing", "settle", "admitted", 8)], [], [("limit_exceeded", "settle", "denied", 11)], [], []]
    assert (account.used, account.denied) == (9, 2)


def test_a_clock_never_goes_back(desk):
    account = desk.account(Kind.TIME, 10 * NANO)
    clocked(desk, account, 5)
    clocked(desk, account, 3)
    assert account.used == 5 * NANO


def test_a_crossing_says_where_it_happened_and_how_much_was_used_and_held(desk):
    outer, inner = desk.tokens(1_000), desk.tokens(100, "agent")
    other = desk.take((inner, 10))
    settled = desk.settle(desk.take((outer, 50), (inner, 50)), {Kind.TOKENS: 85})
    (crossing,) = settled.crossings
    assert (crossing.account, crossing.used, crossing.held) == (inner, 85, 10)
    desk.release(other)
