"""What every ledger promises, asked through the `Ledger` protocol alone."""

import pytest

from ravi_otel._enforcement.ledger.judge import Denied, Grant
from ravi_otel.policy._limits import Admission, Kind, Outcome, ScopeKind

COUNTED = [Kind.REQUESTS, Kind.TURNS, Kind.TOOL_CALLS, "sql_rows"]
HELD = [Kind.TOKENS, Kind.INPUT_TOKENS, Kind.OUTPUT_TOKENS, Kind.COST]


def state(account):
    return account.used, account.held


def events(answer):
    return [crossing.event for crossing in answer.crossings]


# reserve, settle, release


@pytest.mark.parametrize("kind", HELD)
def test_a_reservation_holds_and_settling_replaces_the_hold_by_what_was_used(desk, kind):
    account = desk.account(kind, 1_000)
    grant = desk.take((account, 300, 100))
    assert state(account) == (0, 300)
    desk.settle(grant, {kind: 120})
    assert state(account) == (120, 0)
    assert account.remaining == 880


@pytest.mark.parametrize("kind", HELD)
def test_a_release_gives_everything_back(desk, kind):
    account = desk.account(kind, 1_000)
    desk.release(desk.take((account, 300)))
    assert state(account) == (0, 0)


@pytest.mark.parametrize("actual", [None, {}, {Kind.COST: 5}])
def test_what_is_not_told_settles_at_its_grant(desk, actual):
    account = desk.tokens(1_000)
    desk.settle(desk.take((account, 300)), actual)
    assert state(account) == (300, 0)


def test_each_account_settles_by_its_own_kind(desk):
    tokens, cost, requests = desk.tokens(1_000), desk.account(Kind.COST, 10**9), desk.requests(3)
    grant = desk.take((tokens, 300), (cost, 5_000), (requests, 1))
    desk.settle(grant, {Kind.TOKENS: 10, Kind.COST: 7_000, Kind.REQUESTS: 50})
    assert [state(account) for account in (tokens, cost, requests)] == [(10, 0), (7_000, 0), (1, 0)]


@pytest.mark.parametrize("kind", COUNTED)
def test_counted_kinds_are_charged_at_once_and_never_held(desk, kind):
    account = desk.account(kind, 5)
    grants = [desk.take((account, 1)) for _ in range(5)]
    assert state(account) == (5, 0)
    denied = desk.ask((account, 1), patience=30.0)
    assert isinstance(denied, Denied)
    assert denied.reason == "exhausted"
    for grant in grants:
        desk.settle(grant)
    assert state(account) == (5, 0)


@pytest.mark.parametrize("kind", COUNTED)
def test_a_release_gives_counted_kinds_back_too(desk, kind):
    account = desk.account(kind, 1)
    desk.release(desk.take((account, 1)))
    assert state(account) == (0, 0)
    desk.take((account, 1))


@pytest.mark.parametrize("kind", COUNTED)
def test_a_charge_is_counted_and_over_in_one_step(desk, kind):
    account = desk.account(kind, 4)
    for _ in range(3):
        assert isinstance(desk.charge((account, 1)), Grant)
    assert (state(account), len(desk.ledger)) == ((3, 0), 0)


def test_a_charge_that_crosses_a_threshold_is_over_once_it_is_settled_and_may_be_given_back(desk):
    account = desk.account("requests", 2)
    desk.charge((account, 1))
    desk.release(desk.charge((account, 1)))
    assert (state(account), len(desk.ledger)) == ((1, 0), 0)
    desk.settle(desk.charge((account, 1)))
    denied = desk.charge((account, 1))
    assert (denied.account, denied.reason, events(denied)) == (account, "exhausted", ["limit_exceeded"])
    assert (state(account), len(desk.ledger)) == ((2, 0), 0)


def test_a_charge_is_all_or_nothing(desk):
    wide, full = desk.requests(5), desk.account(Kind.TURNS, 1)
    desk.charge((full, 1))
    assert desk.charge((wide, 1), (full, 1)).account is full
    assert wide.used == 0


def test_a_charge_that_nobody_got_an_answer_to_cannot_be_given_back_twice(desk):
    account, op = desk.requests(5), desk.op()
    desk.charge((account, 1), op=op)
    desk.release(op)
    assert account.used == 1


def test_a_charge_of_what_happened_already_is_never_refused(desk):
    account = desk.requests(1)
    assert isinstance(desk.charge((account, 3), spent=True), Grant)
    assert state(account) == (3, 0)


def test_a_release_below_the_warning_level_ends_draining(desk):
    account = desk.requests(1)
    grant = desk.take((account, 1))
    assert desk.ask((account, 1)).reason == "exhausted"
    assert desk.ask((account, 1)).reason == "draining"
    desk.release(grant)
    desk.take((account, 1))


def test_the_grant_is_the_smaller_of_what_is_wanted_and_what_is_left(desk):
    account = desk.tokens(1_000)
    assert desk.take((account, 700, 1)).granted == 700
    assert desk.take((account, 700, 1)).granted == 300
    assert state(account) == (0, 1_000)


def test_the_grant_told_is_the_tightest_hold_of_tokens(desk):
    wide, narrow = desk.tokens(1_000), desk.tokens(250, "agent")
    assert desk.take((wide, 400, 10), (narrow, 400, 10)).granted == 250
    assert (wide.held, narrow.held) == (400, 250)


def test_a_reservation_without_token_limits_has_no_grant_to_tell(desk):
    assert desk.take((desk.requests(1), 1)).granted is None


def test_a_reservation_of_nothing_is_admitted(desk):
    grant = desk.take()
    desk.settle(grant)
    desk.settle(grant)


# all or nothing, root to leaf


@pytest.mark.parametrize("full", [0, 1, 2])
def test_a_refused_reservation_holds_and_charges_nothing_anywhere(desk, full):
    accounts = [desk.tokens(100), desk.requests(10, "block"), desk.tokens(100, "agent")]
    blocked = accounts[full]
    desk.spend(blocked, blocked.value)
    before = [state(account) for account in accounts]
    assert isinstance(desk.ask((accounts[0], 50, 20), (accounts[1], 1), (accounts[2], 50, 20)), Denied)
    assert [state(account) for account in accounts] == before


def test_the_outermost_breach_is_the_one_reported(desk):
    outer, middle, inner = desk.tokens(10), desk.requests(0, "block"), desk.tokens(10, "agent")
    asked = ((outer, 20), (middle, 1), (inner, 20))
    assert desk.ask(*asked).account is outer
    assert desk.ask(*asked[1:]).account is middle
    assert desk.ask(*asked[2:]).account is inner


def test_only_the_breached_account_counts_a_denial(desk):
    outer, inner = desk.tokens(10), desk.tokens(10, "agent")
    desk.ask((outer, 20), (inner, 20))
    assert (outer.denied, inner.denied) == (1, 0)


# why it is refused


def test_what_is_spent_is_exhausted_and_then_draining(desk):
    account = desk.tokens(100)
    desk.spend(account, 90)
    reasons = [desk.ask((account, 20)).reason for _ in range(3)]
    assert reasons == ["exhausted", "draining", "draining"]
    assert desk.ask((account, 1)).reason == "draining"
    assert (account.denied, state(account)) == (4, (90, 0))


def test_what_others_hold_is_contended_and_neither_counted_nor_told(desk):
    account = desk.tokens(100)
    holder = desk.take((account, 90))
    denied = desk.ask((account, 20))
    assert (denied.reason, denied.used, denied.held, denied.minimum) == ("contended", 0, 90, 20)
    assert (account.denied, account.draining, account.events, denied.crossings) == (0, False, (), ())
    desk.release(holder)
    desk.take((account, 20))


def test_a_request_larger_than_the_limit_is_refused_alone(desk):
    account = desk.tokens(100)
    denied = desk.ask((account, 101))
    assert (denied.reason, denied.crossings, account.denied, account.events) == ("too_large", (), 1, ())
    desk.take((account, 100))


def test_a_large_request_is_refused_for_good_though_others_hold_everything(desk):
    account = desk.tokens(100)
    desk.take((account, 100))
    assert desk.ask((account, 101), patience=30.0).reason == "too_large"


@pytest.mark.parametrize(("used", "reason"), [(0, "too_large"), (79, "too_large"), (80, "exhausted"), (100, "exhausted")])
def test_a_scope_drains_only_from_its_warning_level_on(desk, used, reason):
    account = desk.tokens(100)
    desk.spend(account, used)
    assert desk.ask((account, 50 if used else 101)).reason == reason
    assert account.draining == (reason == "exhausted")


@pytest.mark.parametrize("scope", [ScopeKind.SESSION, ScopeKind.TENANT])
@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.REQUESTS])
def test_sessions_and_tenants_never_drain(desk, scope, kind):
    account = desk.account(kind, 100, scope)
    desk.spend(account, 90)
    assert [desk.ask((account, 20)).reason for _ in range(2)] == ["too_large", "too_large"]
    assert account.events == ("limit_nearing",)
    desk.spend(account, 10)
    assert [desk.ask((account, 1)).reason for _ in range(2)] == ["exhausted", "exhausted"]
    assert account.events == ("limit_nearing", "limit_exceeded")


@pytest.mark.parametrize("scope", ["process", "run", "block", "handoff", "agent"])
@pytest.mark.parametrize("kind", [Kind.TOKENS, Kind.COST, Kind.REQUESTS, Kind.TURNS])
def test_every_other_scope_drains(desk, scope, kind):
    account = desk.account(kind, 10, scope)
    desk.spend(account, 10)
    assert [desk.ask((account, 1)).reason for _ in range(2)] == ["exhausted", "draining"]


@pytest.mark.parametrize("kind", [Kind.TOOL_CALLS, "sql_rows"])
def test_kinds_of_the_programs_own_and_tools_do_not_drain(desk, kind):
    account = desk.account(kind, 10)
    desk.spend(account, 9)
    assert [desk.ask((account, 2)).reason for _ in range(2)] == ["exhausted", "exhausted"]
    desk.take((account, 1))


@pytest.mark.parametrize("outcome", [Outcome.FINAL, Outcome.DENY_TOOL, Outcome.PAUSE, Outcome.ASK])
def test_outcomes_that_let_work_go_on_do_not_drain(desk, outcome):
    account = desk.requests(1, on_exceed=outcome)
    desk.spend(account, 1)
    assert [desk.ask((account, 1)).reason for _ in range(2)] == ["exhausted", "exhausted"]


@pytest.mark.parametrize("kind", [*HELD, *COUNTED])
@pytest.mark.parametrize("scope", ["run", "session"])
def test_zero_allows_nothing(desk, kind, scope):
    account = desk.account(kind, 0, scope)
    denied = desk.ask((account, 1), patience=30.0)
    assert denied.reason == "exhausted"
    assert events(denied) == ["limit_exceeded"]
    assert state(account) == (0, 0)


# after: counted only


def test_after_holds_nothing_and_refuses_once_it_is_spent(desk):
    account = desk.tokens(100, admission=Admission.AFTER)
    first, second = desk.take((account, 80)), desk.take((account, 80))
    assert state(account) == (0, 0)
    desk.settle(first, {Kind.TOKENS: 99})
    desk.settle(second, {Kind.TOKENS: 99})
    assert state(account) == (198, 0)
    assert desk.ask((account, 1)).reason == "exhausted"


# once each


def test_a_repeated_reservation_gets_the_same_answer_and_holds_nothing_twice(desk):
    tokens, requests = desk.tokens(1_000), desk.requests(5)
    first = desk.take((tokens, 300), (requests, 1), op="same")
    again = desk.take((tokens, 300), (requests, 1), op="same")
    assert again == first
    assert (state(tokens), state(requests)) == ((0, 300), (1, 0))


@pytest.mark.parametrize("first", ["settle", "release"])
@pytest.mark.parametrize("second", ["settle", "release"])
def test_an_operation_ends_once(desk, first, second):
    tokens, requests = desk.tokens(1_000), desk.requests(5)
    grant = desk.take((tokens, 300), (requests, 1))
    getattr(desk, first)(grant)
    after = state(tokens), state(requests)
    answer = getattr(desk, second)(grant)
    assert (state(tokens), state(requests)) == after
    assert answer is None or (not answer.crossings and not answer.overage)


@pytest.mark.parametrize("act", ["settle", "release"])
def test_an_operation_that_was_never_admitted_ends_in_nothing(desk, act):
    account = desk.tokens(10)
    assert isinstance(desk.ask((account, 11), op="refused"), Denied)
    getattr(desk, act)("refused")
    getattr(desk, act)("never seen")
    assert state(account) == (0, 0)


# past the grant


def test_what_passes_the_grant_is_charged_and_told_as_overage(desk):
    wide, narrow = desk.tokens(1_000), desk.tokens(100, "agent")
    settled = desk.settle(desk.take((wide, 300, 10), (narrow, 300, 10)), {Kind.TOKENS: 450})
    assert [(account, amount) for account, amount in settled.overage] == [(wide, 150), (narrow, 350)]
    assert (state(wide), state(narrow)) == ((450, 0), (450, 0))


def test_within_the_grant_there_is_no_overage(desk):
    account = desk.tokens(1_000)
    assert not desk.settle(desk.take((account, 300)), {Kind.TOKENS: 300}).overage


@pytest.mark.parametrize("amount", [-1, -(2**70)])
def test_a_negative_amount_never_lowers_what_was_used(desk, amount):
    account = desk.tokens(1_000)
    desk.spend(account, 200)
    desk.settle(desk.take((account, 300)), {Kind.TOKENS: amount})
    assert state(account) == (200, 0)


def test_an_enormous_amount_is_charged_exactly_and_closes_the_account(desk):
    account = desk.tokens(1_000)
    settled = desk.settle(desk.take((account, 300)), {Kind.TOKENS: 2**63})
    assert (state(account), events(settled)) == ((desk.most, 0), ["limit_nearing", "limit_exceeded"])
    assert desk.ask((account, 1)).reason == "exhausted"


# spent elsewhere


def test_what_was_spent_elsewhere_is_recorded_and_never_refused(desk):
    tokens, requests = desk.tokens(100), desk.requests(1)
    grant = desk.take((tokens, 0), (requests, 3), spent=True)
    settled = desk.settle(grant, {Kind.TOKENS: 500})
    assert (state(tokens), state(requests)) == ((500, 0), (3, 0))
    assert events(grant) == ["limit_nearing", "limit_exceeded"]
    assert events(settled) == ["limit_nearing", "limit_exceeded"]
    assert isinstance(desk.ask((tokens, 1)), Denied)


# levels


def test_a_level_is_where_the_last_operation_left_it(desk):
    account = desk.account(Kind.MESSAGES, 10)
    desk.settle(desk.take((account, 4)), {Kind.MESSAGES: 5})
    assert state(account) == (5, 0)
    desk.take((account, 10))
    assert isinstance(desk.ask((account, 11)), Denied)
    assert isinstance(desk.ask((account, 3)), Grant)
