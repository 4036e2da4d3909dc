"""Nothing that is lost makes a limit looser: a loan is of every sum around, is used by one process, and is asked for once."""

import os
from contextvars import Context

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, ConfigurationError, continue_run, lend, outbound_headers, take_return
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.ledger.store_failures import unkept
from ravi_otel._flow import run_sync
from ravi_otel._runtime.state import STATE
from ravi_otel.carrier import _lending
from ravi_otel.carrier._outbound import headers_for

URL = "http://b.internal/x"


def spend(amount, kind="tokens", model=None):
    """Do work that takes so much of one model, as a call does; tell whether it was admitted."""
    scope = ravi_otel.current_scope()
    lines = [Line(each, amount, amount) for each in scope.plan.accounts(model) if each.kind == kind]
    op_id = new_op_id()
    if isinstance(run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines))), Denied):
        return False
    run_sync(scope.engine.ledger.settle(op_id, {kind: amount}))
    return True


def spend_all(amount, kind="tokens", model=None, most=1_000):
    """Do such work until it is refused; tell how much it took."""
    for count in range(most):
        if not spend(amount, kind, model):
            return count * amount
    raise AssertionError("nothing ended it")


def held_and_used(run, label):
    return next((each.held, each.used) for each in run.limits if each.limit.label == label)


def lose(clock, loan):
    clock.advance(loan.expires_s)
    _lending.sweep()


def elsewhere(headers, act):
    """Do it in a run of another engine, as in another process with a store of its own."""
    before = (STATE.engine, STATE.limits)
    STATE.install(Engine(clock=STATE.engine.clock), ())

    def go_on():
        with continue_run(headers) as run:
            return act(), run.return_headers()

    try:
        return Context().run(go_on)
    finally:
        STATE.install(*before)


KINDS = {"requests": "requests=30", "turns": "turns=30", "tool_calls": "tool_calls=30", "cost": "cost=0.00003usd", "rows": "charge.rows=30"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["lost", "open"])
def test_what_was_not_asked_for_is_used_within_its_limit_however_many_loans_are_lost(carrying, clock, kind, loss):
    value = 30_000 if kind == "cost" else 30
    with ravi_otel.run(limits=["tokens=10000", KINDS[kind]]) as run:
        used, loans = 0, []
        for _ in range(40):
            loan = lend(tokens=200)
            try:
                headers = outbound_headers(URL, lend=loan)
            except BudgetExhaustedError:
                break
            except BudgetContendedError:
                break
            loans.append(loan)
            used += elsewhere(headers, lambda: spend_all(1, kind, most=value + 1))[0]
            if loss == "lost":
                lose(clock, loan)
        assert 0 < used <= value
        for loan in loans:
            lose(clock, loan) if loss == "open" else None
        held, charged = held_and_used(run, kind)
        assert held == 0
        assert charged * (value / run.limits[1].limit.amount) >= used


def test_of_counts_a_quarter_goes_along_and_more_with_a_larger_loan(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000", "requests=41", "cost=1usd"]) as run:
        with lend(tokens=100) as small:
            assert [held_and_used(run, label)[0] for label in ("tokens", "requests", "cost")] == [100, 11, 0.1]
        with lend(tokens=500):
            assert [held_and_used(run, label)[0] for label in ("tokens", "requests", "cost")] == [500, 21, 0.5]
        with lend(tokens=100, requests=3):
            assert held_and_used(run, "requests") == (3, 0)
        assert (small.status, {each.held for each in run.scope.readings()}) == ("released", {0})


def test_of_two_loans_each_has_a_part_and_of_the_last_request_only_one(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000", "requests=1"]) as run, lend(tokens=100):
        with pytest.raises(BudgetContendedError), lend(tokens=100):
            pass
        assert (held_and_used(run, "tokens"), held_and_used(run, "requests")) == ((100, 0), (1, 0))


def test_a_limit_of_an_agent_holds_over_all_loans(carrying, clock):
    with ravi_otel.run(limits=["tokens=10000", "tokens@bob=100"]) as run:
        used = 0
        for lost in (False, True, False):
            loan = lend(tokens=1_000)
            headers = outbound_headers(URL, lend=loan)

            def act():
                with ravi_otel.agent("bob"):
                    return spend_all(20)

            came, back = elsewhere(headers, act)
            used += came
            assert lost or take_return(URL, back)
            lose(clock, loan) if lost else None
        assert used == 100
        assert held_and_used(run, "tokens@bob") == (0, 100)


def test_what_an_agent_did_not_use_of_its_own_limit_is_free_again(carrying, clock):
    with ravi_otel.run(limits=["tokens=10000", "tokens@bob=100"]) as run:
        headers = outbound_headers(URL, lend=lend(tokens=1_000))
        came, back = elsewhere(headers, lambda: spend(50))
        assert came
        assert held_and_used(run, "tokens@bob") == (100, 0)
        assert take_return(URL, back)
        assert (held_and_used(run, "tokens@bob"), held_and_used(run, "tokens")) == ((0, 0), (0, 50))


@pytest.mark.parametrize("lent", [False, True])
def test_a_model_that_is_used_up_here_is_used_up_there_and_another_is_not(carrying, clock, lent):
    with ravi_otel.run(limits=["tokens=200:by=model"]) as run:
        assert spend_all(50, model="one") == 200
        assert spend(50, model="two")
        headers = outbound_headers(URL, lend=lend(tokens=180) if lent else None)
        (one, two, three), back = elsewhere(headers, lambda: [spend_all(10, model=each) for each in ("one", "two", "three")])
        assert (one, two, three) == ((0, 150, 30) if lent else (0, 150, 200))
        if lent:
            assert take_return(URL, back)
            now = {each.counted_for: (each.used, each.held) for each in run.scope.series[0].current()}
            assert now == {"one": (200, 0), "two": (200, 0), "three": (30, 0)}


def test_a_loan_used_inside_of_the_lenders_own_scope_counts_once_in_limits_by_model_and_of_a_day(carrying, clock):
    with ravi_otel.run(tenant_id="t", limits=["tokens=200:by=model", "tenant.tokens=500:per=day"]) as run:
        assert spend(50, model="two")
        headers = outbound_headers(URL, lend=lend(tokens=150))
        with continue_run(headers) as there:
            assert spend_all(10, model="two") == 150
            back = there.return_headers()
        assert take_return(URL, back)
        assert {(each.used, each.held) for each in run.scope.series[0].current()} == {(200, 0)}
        assert [(each.used, each.held) for each in run.scope.parent.series[0].current()] == [(200, 0)]


def test_models_that_were_not_asked_here_share_over_lost_loans_what_one_has(carrying, clock):
    with ravi_otel.run(limits=["tokens=200:by=model"]):
        used = 0
        for at in range(4):
            loan = lend(tokens=150)
            used += elsewhere(outbound_headers(URL, lend=loan), lambda at=at: spend_all(10, model=f"model-{at}"))[0]
            lose(clock, loan)
        assert used == 200


def test_a_request_that_is_sent_again_has_a_loan_of_nothing(carrying, clock):
    with ravi_otel.run(limits=["requests=9", "cost=1usd", "tokens@bob=7"]):
        with lend(tokens=600) as loan:
            first, again = ({"baggage": headers_for(URL, None)} for _ in range(2))
        with continue_run(again) as run:
            assert not run.lent
            assert {each.limit.label: each.limit.value for each in run.scope.readings()} == {
                "tokens": 0,
                "requests": 0,
                "cost": 0,
                "tokens@bob": 0,
            }
            assert not spend(1)
        after = {"baggage": headers_for(URL, None)}
        with continue_run(after) as run:
            assert {each.limit.label: each.limit.value for each in run.scope.readings()} == {
                "requests": 6,
                "cost": 750_000_000,
                "tokens@bob": 0,
            }
        with continue_run(first) as run:
            assert run.lent
        lose(clock, loan)


def test_a_request_that_is_sent_again_may_use_what_both_count_in_one_store(carrying, clock, tmp_path):
    ledger, before = open_ledger(f"sqlite:{tmp_path / 'ledger.db'}"), (STATE.engine, STATE.limits)
    STATE.install(Engine(clock=clock, ledger=ledger), ())
    try:
        with ravi_otel.run(limits=["requests=9"]) as outer:
            with lend(tokens=600, requests=2) as loan:
                again = [{"baggage": headers_for(URL, None)} for _ in range(2)][1]
            with continue_run(again):
                assert (spend_all(1, "requests"), spend(1)) == (7, False)
            assert held_and_used(outer, "requests") == (2, 7)
            lose(clock, loan)
    finally:
        STATE.install(*before)
        ledger.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_no_loan_in_the_block_of_its_parent(carrying, clock):
    def check(fresh):
        with continue_run({"baggage": headers_for(URL, None)}) as run:
            assert (run.lent, [each.limit.value for each in run.limits]) == (False, [0])
        for mine in (loan, fresh):
            with pytest.raises(ConfigurationError, match="belongs to the process"):
                outbound_headers(URL, lend=mine)

    with ravi_otel.run(limits=["tokens=1000"]) as run:
        fresh = lend(tokens=100)
        with lend(tokens=600) as loan:
            child = os.fork()
            if child == 0:
                try:
                    check(fresh)
                    loan.__exit__(None, None, None)
                    os._exit(7 if run.limits[0].held == 600 else 8)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            with continue_run({"baggage": headers_for(URL, None)}) as there:
                assert there.lent
        lose(clock, loan)


@pytest.mark.parametrize("expires_s", [60, 1e-6])
def test_a_loan_that_cannot_be_sent_is_given_back_and_its_error_says_so(carrying, clock, monkeypatch, expires_s):
    with ravi_otel.run(limits=["tokens=1000", "requests=9", "tokens@bob=7", "cost=1usd:by=model"]) as run:
        loan = lend(tokens=600, expires_s=expires_s)
        if expires_s == 60:
            monkeypatch.setattr("ravi_otel.carrier._token.MOST_ENTRY_BYTES", 10)
        with pytest.raises(ConfigurationError, match="given back"):
            outbound_headers(URL, lend=loan)
        assert (loan.status, {each.held for each in run.scope.readings()}) == ("released", {0})


def test_a_store_that_fails_gives_nothing_back_and_raises_nothing(carrying, clock, monkeypatch):
    with ravi_otel.run(limits=["tokens=1000"]):
        loan = lend(tokens=600)
        headers = outbound_headers(URL, lend=loan)
        with continue_run(headers) as there:

            def failing(account, value):
                raise unkept("tokens cannot be kept", "store_unavailable", account)
                yield

            monkeypatch.setattr(there.scope.engine.ledger, "retune", failing)
            assert there.return_headers() == {}
    lose(clock, loan)
