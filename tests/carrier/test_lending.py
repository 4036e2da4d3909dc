"""What is lent is held, used by one request, and back or spent: never both, and never neither."""

import threading
from contextvars import copy_context
from datetime import timedelta

import pytest

import ravi_otel
from ravi_otel import BudgetContendedError, BudgetExhaustedError, ConfigurationError, continue_run, lend, outbound_headers, take_return
from ravi_otel._flow import run_async, run_sync
from ravi_otel.carrier import _lending
from ravi_otel.carrier._configuration import read_keys
from ravi_otel.carrier._inbound import read
from ravi_otel.carrier._lending import RETURN_HEADER, returned
from ravi_otel.carrier._outbound import headers_for
from ravi_otel.carrier._token import Spent, write_spent

URL = "http://b.internal/x"
KEYS = read_keys("k1:0123456789abcdef")

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def answer(loan, **amounts):
    return {RETURN_HEADER: write_spent(Spent(loan.id, amounts), KEYS)}


def state(run, kind="tokens"):
    return next((each.used, each.held) for each in run.limits if each.limit.kind == kind)


def expire(clock, loan):
    clock.advance(loan.expires_s)
    _lending.sweep()


def test_what_is_lent_is_held_until_the_answer_says_what_was_used(carrying):
    with ravi_otel.run(limits=["tokens=1000", "cost=1usd", "requests=9"]) as run:
        with lend(tokens=600, cost=0.25) as loan:
            header = headers_for(URL, None)
            assert (state(run), state(run, "cost"), state(run, "requests")) == ((0, 600), (0, 0.25), (0, 6))
        assert take_return(URL, answer(loan, tokens=250, cost=100_000_000, requests=2, input_tokens=200, output_tokens=50))
        assert (state(run), state(run, "cost"), state(run, "requests")) == ((250, 0), (0.1, 0), (2, 0))
        assert (loan.status, run.stats().total_tokens, run.stats().requests, run.cost_usd) == ("returned", 250, 2, 0.1)
    assert read({"baggage": header}).token.loan.amounts == {"tokens": 600, "cost": 250_000_000, "requests": 6}


async def test_a_loan_is_held_and_comes_back_in_a_task_as_well(carrying):
    async with ravi_otel.run(limits=["tokens=1000"]) as run:
        async with lend(tokens=600) as loan:
            headers_for(URL, None)
            assert state(run) == (0, 600)
        await run_async(returned(URL, answer(loan, tokens=250)[RETURN_HEADER]))
        assert state(run) == (250, 0)


async def test_a_loan_that_no_request_took_is_given_back(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            headers_for("http://c.internal/", None)
        assert (state(run), loan.status) == ((0, 0), "released")
        async with lend(tokens=600):
            pass
        assert state(run) == (0, 0)


def test_only_the_first_request_to_a_listed_host_takes_the_loan(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            loans = [read({"baggage": headers_for(url, None) or ""}).token for url in ("http://c.internal/", URL, URL)]
        assert [None if each is None or each.loan is None else each.loan.id for each in loans] == [None, loan.id, None]
        expire(clock, loan)
        assert state(run) == (600, 0)


def test_what_does_not_come_back_in_time_is_spent_and_what_comes_late_changes_nothing(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600, expires_s=30) as loan:
            headers_for(URL, None)
        clock.advance(30)
        assert take_return(URL, answer(loan, tokens=1))
        assert (state(run), loan.status) == ((600, 0), "spent")
        assert not take_return(URL, answer(loan, tokens=1))
        assert state(run) == (600, 0)
    assert carrying.reasons == ["unknown_loan"]


def test_whoever_comes_next_finds_a_lost_loan_spent(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600, expires_s=30):
            headers_for(URL, None)
        clock.advance(30)
        with ravi_otel.agent("next"):
            assert state(run) == (600, 0)


def test_an_answer_is_taken_once(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            headers_for(URL, None)
        value = answer(loan, tokens=250)
        assert [take_return(URL, value), take_return(URL, value)] == [True, False]
        assert state(run) == (250, 0)


def test_more_than_was_lent_is_charged_too(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            headers_for(URL, None)
        take_return(URL, answer(loan, tokens=700))
        assert state(run) == (700, 0)


FALSE = {
    "another key": lambda loan: {RETURN_HEADER: write_spent(Spent(loan.id, {"tokens": 0}), read_keys("k1:another secret here"))},
    "another loan": lambda loan: {RETURN_HEADER: write_spent(Spent("0" * 32, {"tokens": 0}), KEYS)},
    "no signature": lambda loan: {RETURN_HEADER: "2..e30."},
    "no token": lambda loan: {RETURN_HEADER: "\xff" * 9_000},
    "too many": lambda loan: [("x", "y")] * 20_000,
    "nothing": lambda loan: None,
    "none": lambda loan: {},
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_an_answer_that_is_not_the_callees_gives_nothing_back(carrying, clock, false):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            headers_for(URL, None)
        assert not take_return(URL, false(loan))
        assert state(run) == (0, 600)
        expire(clock, loan)
        assert state(run) == (600, 0)


def test_an_answer_from_a_host_that_is_not_listed_gives_nothing_back(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            headers_for(URL, None)
        assert not take_return("http://c.internal/", answer(loan, tokens=0))
        expire(clock, loan)
        assert state(run) == (600, 0)


def test_more_than_is_left_is_not_lent_and_closes_nothing(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with pytest.raises(BudgetExhaustedError, match="1000") as raised, lend(tokens=1_001):
            pass
        assert (raised.value.reason, state(run)) == ("too_large", (0, 0))
        with lend(tokens=1_000):
            assert state(run) == (0, 1_000)


async def test_what_others_hold_is_waited_for_where_waiting_is_possible(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run, lend(tokens=600):
        with pytest.raises(BudgetContendedError), lend(tokens=600):  # in a task, by the same one: it would wait for itself
            pass
        assert state(run) == (0, 600)


def test_a_thread_waits_for_a_loan_that_comes_back(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as first:
            headers_for(URL, None)
        held, asked = [], threading.Event()

        def borrow():
            asked.set()
            with lend(tokens=600):
                held.append(state(run))

        thread = threading.Thread(target=copy_context().run, args=(borrow,))
        thread.start()
        assert asked.wait(10)
        take_return(URL, answer(first, tokens=100))
        thread.join(10)
        assert held == [(100, 600)]


def test_loans_at_once_never_hold_more_than_there_is(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        taken, lock, start = [], threading.Lock(), threading.Barrier(8)

        def borrow():
            start.wait(10)
            for _ in range(5):
                loan = lend(tokens=70)
                try:
                    outbound_headers(URL, lend=loan)
                except BudgetExhaustedError:
                    continue
                take_return(URL, answer(loan, tokens=60))
                with lock:
                    taken.append(loan)

        threads = [threading.Thread(target=copy_context().run, args=(borrow,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert state(run) == (60 * len(taken), 0)
        assert 900 < 60 * len(taken) <= 1_000


@pytest.mark.parametrize(
    "given",
    [{}, {"tokens": 0}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": "5"}, {"cost": 0}, {"cost": -1}, {"cost": "x"}, {"tokens": 2**60}],
    ids=str,
)
def test_what_cannot_be_lent_is_refused_in_words(given):
    with pytest.raises(ConfigurationError, match=r"lend\("):
        lend(**given)


@pytest.mark.parametrize("given", [2_000, "2000", object, {"tokens": 5}])
def test_what_is_no_loan_is_not_sent_as_one(carrying, given):
    with ravi_otel.run(limits=["tokens=10k"]), pytest.raises(ConfigurationError, match=r"outbound_headers\(lend\)="):
        ravi_otel.outbound_headers(URL, lend=given)


def test_without_a_key_nothing_is_lent(carrying, monkeypatch):
    monkeypatch.setenv("RAVI_CARRY_KEYS", "")
    with ravi_otel.run(limits=["tokens=10"]), pytest.raises(ConfigurationError, match="RAVI_CARRY_KEYS"), lend(tokens=5):
        pass


def test_a_loan_is_for_one_request_and_one_block(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        loan = lend(tokens=600)
        outbound_headers(URL, lend=loan)
        with pytest.raises(ConfigurationError, match="used before"):
            outbound_headers(URL, lend=loan)
        with pytest.raises(ConfigurationError, match="for one request"), loan:
            pass
        with pytest.raises(ConfigurationError, match="RAVI_CARRY_TO"):
            outbound_headers("http://c.internal/", lend=lend(tokens=5))
        assert state(run) == (0, 600)
        expire(clock, loan)


def test_a_loan_that_does_not_fit_into_the_header_stays_with_its_caller(carrying):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        with lend(tokens=600) as loan:
            assert headers_for(URL, "a=" + "x" * 8_150) == "a=" + "x" * 8_150
            assert loan.status == "held"
        assert state(run) == (0, 0)


def test_headers_that_hold_a_loan_already_are_left_alone(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]):
        loan = lend(tokens=600)
        header = outbound_headers(URL, lend=loan)["baggage"]
        assert headers_for(URL, header) is header
        assert headers_for("http://c.internal/", header) is None
        expire(clock, loan)
        assert headers_for(URL, header) != header


def test_a_loan_in_the_context_is_not_taken_twice_by_two_threads(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]), lend(tokens=600) as loan:
        tokens, start = [], threading.Barrier(6)

        def request():
            start.wait(10)
            tokens.append(read({"baggage": headers_for(URL, None)}).token)

        threads = [threading.Thread(target=copy_context().run, args=(request,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(each.loan is not None for each in tokens) == [False] * 5 + [True]
    expire(clock, loan)


# -- on the other side ----------------------------------------------------------------------------------------------------


def borrowed(carrying, **amounts):
    with ravi_otel.run("caller", limits=["tokens=1000", "cost=1usd"]):
        loan = lend(**amounts)
        return loan, outbound_headers(URL, lend=loan)


def test_a_borrower_is_held_to_the_loan_and_to_its_share_of_what_was_not_asked_for(carrying, clock):
    loan, headers = borrowed(carrying, tokens=600)
    with continue_run(headers) as run:
        assert {each.limit.kind: each.remaining for each in run.limits} == {"tokens": 600, "cost": 0.6}
        assert run.lent
    expire(clock, loan)


async def test_a_borrower_gives_back_what_it_used_and_can_use_no_more_of_it(carrying):
    loan, headers = borrowed(carrying, tokens=600)
    async with continue_run(headers) as run:
        run.scope.absorb({"tokens": 250, "requests": 1})
        value = await run_async(run.give_back())
        with pytest.raises(BudgetExhaustedError), lend(tokens=1):
            pass
    assert take_return(URL, [(b"Ravi-Spent", value.encode())])
    assert dict(loan.used)["tokens"] == 250


def test_a_loan_is_good_once(carrying, clock):
    loan, headers = borrowed(carrying, tokens=600)
    with continue_run(headers) as first, continue_run(headers, otherwise=["tokens=1"]) as second:
        assert (first.lent, second.lent, second.rejected) == (True, False, "replayed")
        assert [each.limit.value for each in second.scope.readings()] == [1]
        assert run_sync(second.give_back()) is None
    expire(clock, loan)


async def test_a_loan_is_not_used_again_by_entering_the_same_run_again(carrying, clock):
    loan, headers = borrowed(carrying, tokens=600)
    handle = continue_run(headers)

    @handle
    def work():
        return next(each.limit.value for each in ravi_otel.current_scope().readings() if each.limit.kind == "tokens")

    assert work() == 600
    with pytest.raises(ConfigurationError, match="once a request"):
        work()
    with pytest.raises(ConfigurationError, match="once a request"), handle:
        pass
    with pytest.raises(ConfigurationError, match="once a request"):
        async with continue_run(handle.inbound):
            pass
    expire(clock, loan)


def test_a_loan_is_passed_on_in_parts_and_each_part_comes_out_of_it(carrying):
    loan, headers = borrowed(carrying, tokens=600)
    with continue_run(headers) as run:
        with lend(tokens=400) as inner:
            further = {"baggage": headers_for(URL, None)}
        with continue_run(further) as third:
            third.scope.absorb({"tokens": 300})
            back = run_sync(third.give_back())
        assert take_return(URL, {RETURN_HEADER: back})
        assert (inner.status, state(run)) == ("returned", (300, 0))
        value = run_sync(run.give_back())
    assert take_return(URL, {RETURN_HEADER: value})
    assert dict(loan.used)["tokens"] == 300


def test_a_loan_is_as_careful_as_the_limits_it_came_out_of(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000:admission=strict"]):
        loan = lend(tokens=600)
        headers = outbound_headers(URL, lend=loan)
    with continue_run(headers) as run:
        assert run.scope.plan.strict
    expire(clock, loan)


def test_a_loan_has_an_end_that_cannot_be_put_off(carrying, clock):
    loan, headers = borrowed(carrying, tokens=600)
    expire(clock, loan)
    assert read(headers).rejected == "expired"
    assert timedelta(seconds=loan.expires_s) == timedelta(minutes=1)
