"""The judge by itself, where a ledger seldom brings it: what is kept back, set aside, promised, drains, and ends in two halves."""

import uuid

import pytest

from ravi_otel._enforcement.ledger import judge
from ravi_otel._enforcement.ledger.account import Account, ShareClaim
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel.policy._limits import Admission, Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


def account(value=10, kind=Kind.TOKENS, scope="run", *, used=0, held=0, **limit):
    facts = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind(scope))
    each = Account(Limit(kind=kind, value=value, **limit), facts, origin="the limit")
    each.used, each.held = used, held
    return each


def refusal(line, **more):
    return line.refusal(Reservation("1", [line], **more), newcomer=True)


@pytest.mark.parametrize(
    ("kind", "admission", "used", "want"),
    [
        (Kind.TOKENS, None, 85, 5),
        (Kind.TOKENS, None, 86, 5),
        (Kind.REQUESTS, None, 98, 1),
        (Kind.REQUESTS, None, 99, 1),
        (Kind.TOKENS, Admission.AFTER, 89, 5),
        (Kind.TOKENS, Admission.AFTER, 90, 5),
    ],
)
def test_what_is_kept_back_is_for_the_last_call_alone(kind, admission, used, want):
    each = account(100, kind, used=used, on_exceed=Outcome.FINAL, admission=admission)
    line = Line(each, want, want)
    fits = used in (85, 98, 89)
    assert refusal(line) == (None if fits else "exhausted")
    assert refusal(line, wraps_up=True) is None


def test_a_limit_that_drains_lets_the_last_call_pass_only_where_it_keeps_some_back():
    for keeps, wraps_up, expected in ((True, True, None), (True, False, "draining"), (False, True, "draining"), (False, False, "draining")):
        each = account(on_exceed=Outcome.FINAL if keeps else Outcome.RAISE)
        each.draining = True
        assert refusal(Line(each, 1, 1), wraps_up=wraps_up) == expected


def test_a_refusal_of_what_is_kept_back_exceeds_and_one_that_asks_for_too_much_does_not():
    each = account(100, used=90, on_exceed=Outcome.FINAL)
    assert Line(each, 5, 5).deny("exhausted").reason == "exhausted"
    assert each.exceeded
    each = account(100, used=5, on_exceed=Outcome.FINAL)
    assert Line(each, 95, 95).deny("exhausted").reason == "too_large"
    assert not each.exceeded


@pytest.mark.parametrize(("used", "reason"), [(89, "too_large"), (90, "exhausted"), (95, "exhausted"), (100, "exhausted")])
def test_what_many_share_is_exhausted_once_no_more_than_what_is_kept_back_is_left(used, reason):
    each = account(100, scope="tenant", used=used, on_exceed=Outcome.FINAL)
    denied = Line(each, 20, 15).deny("exhausted")
    assert (denied.account, denied.reason, denied.used, denied.held, denied.minimum) == (each, reason, used, 0, 15)
    assert (each.exceeded, each.denied) == (reason == "exhausted", 1)


@pytest.mark.parametrize(("held", "want", "expected"), [(3, 7, None), (3, 8, "contended"), (0, 10, None)])
def test_what_is_counted_at_once_waits_for_what_is_set_aside(held, want, expected):
    each = account(10, Kind.REQUESTS, held=held)
    assert refusal(Line(each, want, want)) == expected
    assert refusal(Line(each, want, want, carved=True)) == expected


@pytest.mark.parametrize(("granted", "expected"), [(9, None), (10, "contended")])
def test_what_is_counted_after_is_refused_only_where_all_is_promised(granted, expected):
    each = account(10, admission=Admission.AFTER)
    claim = ShareClaim(account(99), 1)
    each.admit(claim)
    claim.granted = granted
    assert refusal(Line(each, 0, 0)) == expected


def test_who_was_promised_enough_passes_those_who_wait_for_something_else():
    each, meter = account(100), account(99)
    each.waiters.append("somebody")
    request = Reservation("1", [line := Line(each, 20, 20), Line(meter, 1, 1)], patience_s=1.0)
    assert line.refusal(request, newcomer=True) == "contended"
    assert line.refusal(request, newcomer=False) is None
    mine, others = ShareClaim(meter, 1), ShareClaim(account(99), 1)
    for claim, granted in ((mine, 20), (others, 30)):
        each.admit(claim)
        claim.granted = granted
    assert line.refusal(request, newcomer=True) is None
    mine.granted = 19
    assert line.refusal(request, newcomer=True) == "contended"


def test_who_can_wait_gets_all_there_is_but_what_others_are_promised():
    each = account(100, used=40)
    claim = ShareClaim(account(99), 1)
    each.admit(claim)
    claim.granted = 30
    request = Reservation("1", [line := Line(each, 100, 5)], patience_s=1.0)
    assert line.refusal(request, newcomer=True) is None
    each.held = 1
    assert line.refusal(request, newcomer=True) == "contended"


def test_an_operation_holds_what_is_held_and_no_more():
    one, none = account(), account(admission=Admission.AFTER)
    operation = judge.Operation(Reservation("1", [Line(one, 1, 1), Line(none, 0, 0)], owner="me"))
    assert (operation.holds_of(one), operation.holds_of(none), operation.holds_of(account())) == (True, False, False)


def test_an_operation_is_put_back_as_it_was_read():
    first, second = (Line(account(), want, 1) for want in (5, 6))
    operation = judge.Operation(Reservation("1", [first]))
    operation.restore([first, second], [5, 4], 2, 1, second.account)
    assert (operation.holds, operation.taken, operation.ended) == ([(first, 5), (second, 4)], 2, 1)
    assert operation.observed is second.account


def test_a_repeated_request_that_was_cut_off_is_judged_anew_on_what_it_gave_back():
    first, second, operations = account(), account(), {}
    request = Reservation("1", [Line(first, 10, 10), Line(second, 10, 10)])
    operation = operations["1"] = judge.Operation(request)
    first.held, operation.taken = 10, 1
    granted = judge.reserve(request, operations)
    assert isinstance(granted, judge.Operation)
    assert (first.held, second.held) == (10, 10)


@pytest.mark.parametrize(("observed", "decision"), [(False, "admitted"), (True, "observed")])
def test_what_a_call_crosses_says_when_and_what_was_decided(observed, decision):
    outcome = Outcome.OBSERVE if observed else Outcome.RAISE
    counted, held, operations = account(1, Kind.REQUESTS, on_exceed=outcome), account(on_exceed=outcome), {}
    request = Reservation("1", [Line(counted, 1, 1), Line(held, 9, 9)])
    granted = judge.reserve(request, operations)
    assert [(one.account, one.phase, one.decision) for one in granted.crossings] == [(counted, "admission", decision)]
    settled = judge.settle(operations["1"], {Kind.TOKENS: 8}, guessed=False)
    assert [(one.account, one.phase, one.decision) for one in settled.crossings] == [(held, "settle", decision)]


def test_a_settlement_that_was_cut_off_after_what_is_counted_at_once_goes_on_there():
    class Interrupted(dict):
        def get(self, *_):
            raise KeyboardInterrupt

    requests, tokens = account(10, Kind.REQUESTS), account(10)
    operations = {}
    operation = judge.at_once(Reservation("1", [Line(requests, 1, 1), Line(tokens, 6, 1)]), operations)
    with pytest.raises(KeyboardInterrupt):
        judge.settle(operation, Interrupted(), guessed=False)
    assert operation.ended == 1
    judge.settle(operation, {Kind.TOKENS: 4}, guessed=False)
    assert (requests.used, tokens.used, tokens.held, operation.ended) == (1, 4, 0, 2)


def test_a_release_goes_on_where_it_was_cut_off_and_gives_back_once():
    accounts, operations = [account(), account(10, Kind.REQUESTS), account()], {}
    judge.reserve(Reservation("1", [Line(each, 4, 4) for each in accounts]), operations)
    operation = operations["1"]
    accounts[0].held, operation.ended = 0, 1  # as a signal's exception leaves it
    for _ in range(2):
        judge.release(operation)
        assert [(each.used, each.held) for each in accounts] == [(0, 0)] * 3
        assert operation.ended == 3


@pytest.mark.parametrize(("used", "drains"), [(9, True), (8, False)])
def test_what_is_given_back_ends_draining_below_the_warning_level(used, drains):
    each, held, operations = account(10, Kind.REQUESTS, used=used - 1), account(used=1), {}
    judge.reserve(Reservation("1", [Line(each, 1, 1), Line(held, 2, 2)]), operations)
    each.draining = held.draining = True
    judge.release(operations["1"])
    assert (each.draining, held.draining) == (drains, True)
    assert each.used == used - 1
    each, operations = account(10, Kind.REQUESTS, used=3), {}
    judge.reserve(Reservation("1", [Line(each, 1, 1)]), operations)
    before = each.changes
    judge.release(operations["1"])
    assert each.changes == before  # nothing drains: nothing is written
