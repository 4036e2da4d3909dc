"""Whatever becomes of loans, in any order, each is held, spent or back, and never two of these; also with real calls, and over a fork."""

import os
import random

import pytest
from openai import AsyncOpenAI, OpenAI

import ravi_otel
from ravi_otel import BudgetError, BudgetExhaustedError, continue_run, lend, outbound_headers, take_return
from ravi_otel._flow import run_async
from ravi_otel.carrier import _lending
from ravi_otel.carrier._configuration import read_keys
from ravi_otel.carrier._lending import RETURN_HEADER
from ravi_otel.carrier._token import Spent, write_spent
from ravi_otel.testing import ScriptedLLM, Text

URL = "http://b.internal/x"
KEYS = read_keys("k1:0123456789abcdef")
LIMIT = 1_000
CALLS = 4
"""Three take 150 tokens of 170, and one more fits by its estimate: what it takes beyond the loan is charged, too."""
ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}


class Book:
    """Keep the accounts of one run by hand, beside the real ones."""

    def __init__(self, draw, clock):
        self.draw, self.clock = draw, clock
        self.used = 0
        self.open, self.over = {}, []

    def lend(self):
        amount = self.draw.randint(1, 400)
        loan = lend(tokens=amount, expires_s=self.draw.choice((5, 50)))
        room = LIMIT - self.used - sum(self.open.values())
        if amount > room:
            with pytest.raises(BudgetError):
                outbound_headers(URL, lend=loan)
            return
        outbound_headers(URL, lend=loan)
        self.open[loan] = amount

    def come_back(self):
        if self.open:
            loan = self.draw.choice(list(self.open))
            amount = self.open.pop(loan)
            back = self.draw.randint(0, amount)
            assert take_return(URL, {RETURN_HEADER: write_spent(Spent(loan.id, {"tokens": back}), KEYS)})
            self.used += back
            self.over.append(loan)

    def come_again(self):
        if self.over:
            loan = self.draw.choice(self.over)
            assert not take_return(URL, {RETURN_HEADER: write_spent(Spent(loan.id, {"tokens": 0}), KEYS)})

    def forge(self):
        for loan in list(self.open)[:1]:
            false = write_spent(Spent(loan.id, {"tokens": 0}), read_keys("k1:another secret here"))
            assert not take_return(URL, {RETURN_HEADER: false})

    def drop(self):
        if LIMIT - self.used - sum(self.open.values()) > 0:
            with lend(tokens=1):
                pass

    def wait(self):
        self.clock.advance(self.draw.choice((1, 6)))
        _lending.sweep()
        for loan in [each for each in self.open if each.status == "spent"]:
            self.used += self.open.pop(loan)
            self.over.append(loan)


def test_in_any_order_what_is_held_and_used_is_what_a_book_kept_by_hand_says(carrying, clock):
    """`RAVI_LONG=100000` takes so many steps."""
    draw = random.Random(11)
    for _ in range(max(1, int(os.environ.get("RAVI_LONG") or 1_500) // 50)):
        with ravi_otel.run(limits=[f"tokens={LIMIT}"]) as run:
            book = Book(draw, clock)
            for _ in range(50):
                draw.choice((book.lend, book.lend, book.come_back, book.come_again, book.forge, book.drop, book.wait))()
                [reading] = run.limits
                assert (reading.used, reading.held) == (book.used, sum(book.open.values()))
                assert reading.remaining >= 0
            clock.advance(100)
            _lending.sweep()


@pytest.fixture
def model():
    with ScriptedLLM(lambda request: Text("ok", usage=(30, 20))) as server:
        yield server


@pytest.fixture
def lent(monkeypatch):
    """Lend, to real calls: the clock is the machine's."""
    monkeypatch.setenv("RAVI_CARRY_KEYS", "k1:0123456789abcdef")
    monkeypatch.setenv("RAVI_CARRY_TO", "b.internal")
    with ravi_otel.instrument():
        run = ravi_otel.run("caller", limits=["tokens=1000", "requests=50"])
        with run:
            loan = lend(tokens=170, expires_s=600)
            headers = outbound_headers(URL, lend=loan)
        yield run, loan, headers


def check(run, loan, sent, value):
    assert sent == CALLS
    assert take_return(URL, {RETURN_HEADER: value})
    tokens, requests = run.limits
    assert (tokens.used, tokens.held, requests.used) == (50 * sent, 0, sent)
    assert (loan.status, run.stats().requests, run.stats().total_tokens) == ("returned", sent, 50 * sent)


def test_calls_of_a_borrower_are_charged_to_the_lender_and_end_with_the_loan(lent, model):
    run, loan, headers = lent
    with OpenAI(base_url=model.base_url, api_key="any", max_retries=0) as client, continue_run(headers) as there:
        for _ in range(CALLS):
            client.chat.completions.create(**ASK)
        with pytest.raises(BudgetExhaustedError, match=r"lend\(\)"):
            client.chat.completions.create(**ASK)
        value = there.return_headers()[RETURN_HEADER]
    check(run, loan, len(model.requests), value)


@pytest.mark.anyio
async def test_awaited_calls_of_a_borrower_are_charged_to_the_lender_and_end_with_the_loan(lent, model):
    run, loan, headers = lent
    async with AsyncOpenAI(base_url=model.base_url, api_key="any", max_retries=0) as client, continue_run(headers) as there:
        for _ in range(CALLS):
            await client.chat.completions.create(**ASK)
        with pytest.raises(BudgetExhaustedError, match=r"lend\(\)"):
            await client.chat.completions.create(**ASK)
        value = await run_async(there.give_back())
    check(run, loan, len(model.requests), value)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_none_of_its_parents_loans_and_cannot_take_what_comes_back(carrying, clock):
    with ravi_otel.run(limits=["tokens=1000"]) as run:
        loan = lend(tokens=600)
        headers = outbound_headers(URL, lend=loan)
        value = write_spent(Spent(loan.id, {"tokens": 100}), KEYS)
        child = os.fork()
        if child == 0:
            os._exit(int(take_return(URL, {RETURN_HEADER: value})) or len(_lending._open) or 7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert take_return(URL, {RETURN_HEADER: value})
        assert run.limits[0].used == 100
    with continue_run(headers) as there:
        assert there.lent
