"""Waiting in line for what others hold: first come first served, bounded, and nothing left behind."""

import asyncio
import threading

import pytest

from ravi_otel._enforcement.ledger.judge import Denied, Grant
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._flow import is_done, run_async, run_sync
from ravi_otel.policy._limits import Kind, Outcome


class Line:
    """Stand in line with tasks or with threads, whichever the test is run with; every wait is bounded."""

    def __init__(self, desk):
        self.desk = desk
        self.answers = {}
        self.order = []

    async def _asked(self, name, *asks, **more):
        self.answers[name] = await run_async(self.desk.flow(*asks, **more))
        self.order.append(name)

    async def stand(self, account, name, *asks, patience=10.0, **more):
        """Start waiting, and come back once the one named is in line."""
        before = len(account.waiters)
        task = asyncio.create_task(self._asked(name, *asks, patience=patience, owner=name, **more))
        while len(account.waiters) == before and not task.done():  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
            await asyncio.sleep(0)
        return task


@pytest.mark.anyio
async def test_a_settle_lets_the_next_in_line_in(desk):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 100))
    task = await line.stand(account, "a", (account, 60))
    desk.settle(holder, {Kind.TOKENS: 30})
    await task
    assert isinstance(line.answers["a"], Grant)
    assert (account.used, account.held, account.waiters) == (30, 60, [])


@pytest.mark.anyio
@pytest.mark.parametrize("freed_by", ["release", "retune", "settle"])
async def test_whatever_frees_room_lets_those_in_line_in(desk, freed_by):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 100))
    task = await line.stand(account, "a", (account, 60))
    {
        "release": lambda: desk.release(holder),
        "retune": lambda: desk.retune(account, 200),
        "settle": lambda: desk.settle(holder, {Kind.TOKENS: 1}),
    }[freed_by]()
    await task
    assert isinstance(line.answers["a"], Grant)


@pytest.mark.anyio
async def test_the_line_is_first_come_first_served(desk):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 100))
    tasks = [await line.stand(account, name, (account, 100)) for name in "abcd"]
    for task, name in zip(tasks, "abcd", strict=True):
        desk.release(holder)
        await task
        assert line.order[-1] == name
        holder = line.answers[name]
    assert line.order == list("abcd")


@pytest.mark.anyio
async def test_a_newcomer_does_not_jump_the_line(desk):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 50))
    task = await line.stand(account, "large", (account, 80))
    small = await line.stand(account, "small", (account, 10))
    assert line.order == []
    assert isinstance(desk.ask((account, 10)), Grant)  # who cannot wait is not turned away while there is room
    desk.release(holder)
    await task
    await small
    assert line.order == ["large", "small"]


@pytest.mark.anyio
async def test_a_wait_ends_when_its_patience_does(desk):
    account, line = desk.tokens(100), Line(desk)
    desk.take((account, 100))
    await (await line.stand(account, "a", (account, 60), patience=0.02))
    denied = line.answers["a"]
    assert (denied.reason, denied.held, account.denied, account.waiters, account.events) == ("contended", 100, 0, [], ())


def test_a_thread_waits_no_longer_than_its_patience(desk):
    account = desk.tokens(100)
    desk.take((account, 100))
    assert desk.ask((account, 60), patience=0.02).reason == "contended"
    assert account.waiters == []


def test_without_patience_nobody_waits(desk):
    account = desk.tokens(100)
    desk.take((account, 100))
    assert desk.ask((account, 60)).reason == "contended"


@pytest.mark.anyio
async def test_half_of_a_guess_will_do_for_who_could_wait(desk):
    account = desk.tokens(100)
    desk.take((account, 60))
    assert isinstance(await run_async(desk.flow((account, 60, 10), owner="me", patience=10.0)), Grant)
    assert account.held == 100


@pytest.mark.anyio
async def test_who_can_wait_gets_all_it_wants_or_all_there_is_once_nobody_else_holds_any(desk):
    account, line = desk.tokens(100), Line(desk)
    first, second = desk.take((account, 40)), desk.take((account, 40))
    task = await line.stand(account, "a", (account, 60, 5))
    desk.settle(first, {Kind.TOKENS: 30})
    assert "a" not in line.answers  # 30 are left, and would let one more begin than there is room for
    desk.settle(second, {Kind.TOKENS: 30})
    await task
    assert (account.used, account.held) == (60, 40)


@pytest.mark.anyio
async def test_who_has_waited_long_enough_gets_what_there_is(desk):
    account = desk.tokens(100)
    desk.take((account, 80))
    granted = await run_async(desk.flow((account, 60, 5), owner="me", patience=0.01))
    assert isinstance(granted, Grant)
    assert (account.held, account.waiters) == (100, [])


@pytest.mark.anyio
async def test_leaving_the_line_lets_those_behind_in_where_they_fit(desk):
    account, line = desk.tokens(100), Line(desk)
    desk.take((account, 50))
    large = await line.stand(account, "large", (account, 80))
    small = await line.stand(account, "small", (account, 40))
    large.cancel()
    await small
    assert isinstance(line.answers["small"], Grant)
    with pytest.raises(asyncio.CancelledError):
        await large


@pytest.mark.anyio
async def test_one_that_waited_is_refused_for_good_when_the_others_spent_it(desk):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 100))
    tasks = [await line.stand(account, name, (account, 60)) for name in "ab"]
    desk.settle(holder, {Kind.TOKENS: 90})
    await asyncio.gather(*tasks)
    assert [line.answers[name].reason for name in "ab"] == ["exhausted", "draining"]
    assert [one.event for one in line.answers["a"].crossings] == ["limit_exceeded"]


@pytest.mark.anyio
async def test_a_caller_whose_own_chain_holds_what_it_needs_is_told_at_once(desk):
    account = desk.tokens(100)
    desk.take((account, 100), owner="me")
    denied = await asyncio.wait_for(run_async(desk.flow((account, 60), owner="me", patience=30.0)), 5)
    assert denied.reason == "contended"
    assert account.waiters == []


@pytest.mark.anyio
async def test_a_cancelled_waiter_leaves_nothing_behind(desk):
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 100))
    task = await line.stand(account, "a", (account, 60))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (account.used, account.held, account.waiters) == (0, 100, [])
    desk.release(holder)
    desk.take((account, 100))


@pytest.mark.anyio
async def test_one_cancelled_in_the_moment_it_was_let_in_gives_back_what_it_got(desk):
    account, requests, line = desk.tokens(100), desk.requests(5), Line(desk)
    holder = desk.take((account, 100))
    task = await line.stand(account, "a", (account, 60), (requests, 1))
    desk.release(holder)
    assert account.held == (0 if desk.far else 60)  # far away it asks again by itself
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (account.used, account.held, requests.used, account.waiters) == (0, 0, 0, [])


def test_a_flow_that_is_closed_while_it_waits_leaves_nothing_behind_at_the_next_step(desk):
    """A finaliser may close it, and takes no lock: the next step of anybody clears up."""
    account = desk.tokens(100)
    first = desk.take((account, 100))
    flow = desk.flow((account, 60), patience=10.0)
    step = next(flow)
    while not account.waiters:
        step = flow.send(step.blocking())
    assert len(account.waiters) == 1
    flow.close()
    desk.release(first)
    while desk.far and desk.ledger.debts:  # a caller sends what is owed for some milliseconds, and the thread beside it the rest
        desk.ledger.pay_now()
    assert (account.held, account.waiters) == (0, [])


@pytest.mark.anyio
async def test_a_waiter_is_let_in_only_when_every_account_has_room(desk):
    outer, inner, line = desk.tokens(100), desk.tokens(50, "agent"), Line(desk)
    first, second = desk.take((outer, 100)), desk.take((inner, 50))
    task = await line.stand(outer, "a", (outer, 40), (inner, 40))
    desk.release(first)
    assert not line.answers
    assert outer.held == 0
    desk.release(second)
    await task
    assert (outer.held, inner.held, outer.waiters, inner.waiters) == (40, 40, [], [])


@pytest.mark.anyio
async def test_one_settle_moves_all_its_accounts_before_anybody_is_let_in(desk):
    outer, inner, line = desk.tokens(100), desk.tokens(60, "agent"), Line(desk)
    holder = desk.take((outer, 100), (inner, 5))
    task = await line.stand(outer, "a", (outer, 40), (inner, 40))
    desk.settle(holder, {Kind.TOKENS: 50})
    await asyncio.wait_for(task, 5)
    assert isinstance(line.answers["a"], Denied)
    assert (outer.held, inner.held) == (0, 0)


@pytest.mark.anyio
async def test_a_waiter_that_is_stopped_comes_back_at_once(desk):
    account, line, stops = desk.tokens(100), Line(desk), []

    def on_stop(wake):
        stops.append(wake)
        return lambda: stops.remove(wake)

    desk.take((account, 100))
    task = await line.stand(account, "a", (account, 60), on_stop=on_stop)
    stops[0]()
    await asyncio.wait_for(task, 5)
    assert (line.answers["a"].reason, account.waiters, stops) == ("contended", [], [])


def test_threads_in_line_are_all_served_and_never_hold_too_much(desk):
    account, peak, lock = desk.tokens(300), [0], threading.Lock()
    answers = []

    def work(name):
        grant = run_sync(desk.flow((account, 100), owner=name, patience=10.0))
        answers.append(grant)
        with lock:
            peak[0] = max(peak[0], account.held)
        desk.settle(grant, {Kind.TOKENS: 1})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(isinstance(answer, Grant) for answer in answers)
    assert (len(answers), account.used, account.held, account.waiters) == (16, 16, 0, [])
    assert peak[0] <= 300


# what is granted at once to who could wait


@pytest.mark.parametrize(
    ("spent", "held", "asks", "sure", "outcome", "granted"),
    [
        (0, 55, (80, 10), False, Outcome.RAISE, 45),  # half of a guess will do
        (0, 55, (81, 10), False, Outcome.RAISE, 45),
        (0, 56, (80, 10), False, Outcome.RAISE, None),  # less than half: it waits
        (0, 55, (80, 10), True, Outcome.RAISE, None),  # what was learned is seldom less
        (60, 0, (80, 10), False, Outcome.RAISE, 40),  # all there is, once nobody else holds any
        (60, 0, (80, 10), True, Outcome.RAISE, 40),
        (60, 0, (80, 10), False, Outcome.FINAL, 30),  # but for what is kept back
        (0, 20, (80, 10), True, Outcome.RAISE, 80),
    ],
)
def test_who_can_wait_takes_half_of_a_guess_all_that_was_learned_or_the_whole_rest(desk_of, spent, held, asks, sure, outcome, granted):
    desk = desk_of(MemoryLedger())
    account = desk.tokens(100, on_exceed=outcome)
    if spent:
        desk.spend(account, spent)
    if held:
        desk.take((account, held))
    flow = desk.flow((account, *asks), owner="a", patience=0.5, sure=sure)
    assert (flow.value.granted if is_done(flow) else None) == granted


@pytest.mark.anyio
async def test_a_newcomer_who_could_wait_even_shortly_stands_behind_the_line(desk_of):
    desk = desk_of(MemoryLedger())
    account, line = desk.tokens(100), Line(desk)
    holder = desk.take((account, 50))
    first = await line.stand(account, "first", (account, 80, 80))
    assert not is_done(desk.flow((account, 10, 10), owner="second", patience=0.5))
    assert desk.take((account, 10, 10)).granted == 10  # who cannot wait passes
    desk.release(holder)
    await first
    assert isinstance(line.answers["first"], Grant)
