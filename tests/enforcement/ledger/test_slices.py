"""Slices: most calls ask nobody, and the limit holds as if each of them did."""

import asyncio
import itertools
import os
import random
import threading
import time
import uuid

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import Denied, Grant, new_op_id
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis.ledger import RedisLedger
from ravi_otel._enforcement.ledger.redis.link import Link
from ravi_otel._enforcement.ledger.slices.ledger import SlicedLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import Step, run_async, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.limits import Kind, Limit, Outcome, ScopeKind
from ravi_otel.testing import ManualClock
from tests.enforcement.ledger.conftest import Desk

FACTS = ScopeFacts(scope_id="tenant-1", kind=ScopeKind.TENANT, tenant_id="acme")
HOT = 8
"""So many calls make an account hot."""


class Asked(MemoryLedger):
    """Count how often it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0
        self.fails = False

    def reserve(self, request):
        self.asked += 1
        if self.fails:
            raise BudgetExhaustedError("the store is gone", reason="store_failed")
        return super().reserve(request)

    def settle(self, op_id, actual, *, guessed=False):
        self.asked += 1
        return super().settle(op_id, actual, guessed=guessed)


class Slow(Asked):
    """Take a step for each answer, as a store over a network does."""

    def reserve(self, request):
        answer = yield from super().reserve(request)
        yield Step(lambda: None, lambda: asyncio.sleep(0))
        return answer


def is_tenants(account):
    return account.facts.kind is ScopeKind.TENANT


def sliced(inner=None, clock=None, shares=is_tenants):
    return SlicedLedger(Asked() if inner is None else inner, shares=shares, clock=clock or ManualClock())


def tenants(kind, value, **limit):
    return Account(Limit(kind=kind, value=value, **limit), FACTS, origin="the limit")


def spend(desk, account, times=1, amount=1):
    return [desk.spend(account, amount) for _ in range(times)]


def events(answers):
    return [one.event for answer in answers for one in answer.crossings]


def until(true):
    deadline = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # a poll: the thread under test keeps its own time


@pytest.fixture
def desk():
    made = Desk(sliced())
    yield made
    made.ledger.close()


@pytest.fixture(params=["sqlite", "redis"])
def new_store(request, tmp_path):
    """Open the same store again and again, as processes do."""
    if request.param == "sqlite":
        return lambda: SqliteLedger(tmp_path / "ledger.db")
    server, namespace = request.getfixturevalue("redis_server"), uuid.uuid4().hex
    return lambda: RedisLedger(Link(server.url), namespace=namespace)


def heat(desk, account, amount=1):
    """Make a limit hot, and have a slice of it."""
    spend(desk, account, HOT, amount)
    assert desk.ledger.out > 0


def drain(desk, account):
    """Take one after the other, until the store is asked."""
    for granted in itertools.count():
        try:
            desk.take((account, 1))
        except BudgetExhaustedError as error:
            return granted, error
    return None


@pytest.mark.parametrize(("kind", "amount"), [(Kind.REQUESTS, 1), (Kind.TOKENS, 700), (Kind.COST, 12_345_678)])
def test_most_calls_of_a_hot_limit_ask_nobody(desk, kind, amount):
    account = tenants(kind, amount * 1_000_000)
    heat(desk, account, amount)
    before = desk.ledger.inner.asked
    spend(desk, account, 5_000, amount)
    assert desk.ledger.inner.asked - before < 100
    desk.ledger.flush()
    assert (account.used, account.held) == ((5_000 + HOT) * amount, 0)


def test_a_limit_that_is_not_hot_is_asked_for_each_call():
    clock = ManualClock()
    desk = Desk(sliced(clock=clock))
    account = tenants(Kind.REQUESTS, 1_000_000)
    for _ in range(50):
        spend(desk, account)
        clock.advance(0.6)
    assert (desk.ledger.out, account.used) == (0, 50)


@pytest.mark.parametrize("value", [1, 7, 100, 1_000, 20_321])
def test_exactly_the_limit_is_admitted_with_nearing_and_exceeded_once_and_on_time(desk, value):
    account = tenants(Kind.REQUESTS, value)
    told, granted = [], 0
    for _ in range(value + 20):
        answer = desk.ask((account, 1))
        granted += isinstance(answer, Grant)
        told += [(one.event, one.used) for one in answer.crossings]
        told += [(one.event, one.used) for one in desk.settle(f"op-{granted}").crossings] if isinstance(answer, Grant) else []
    assert granted == value
    assert [event for event, _ in told] == ["limit_nearing", "limit_exceeded"]
    assert told[0][1] == account.warn_value  # the slices have shrunk to nothing by then
    assert (account.used, account.held, desk.ledger.out) == (value, 0, 0)


@pytest.mark.parametrize("kind", [Kind.REQUESTS, Kind.TOKENS])
@pytest.mark.parametrize("seed", range(int(os.environ.get("RAVI_LONG") or 1)))
def test_several_processes_never_pass_the_limit_together_and_lose_nothing(new_store, kind, seed):
    dice = random.Random(seed)
    ledgers = [sliced(new_store()) for _ in range(4)]
    desks = [Desk(ledger) for ledger in ledgers]
    accounts = [tenants(kind, 120_000 if kind == Kind.TOKENS else 2_000) for _ in desks]
    limit, used, flying, told, refused = accounts[0].value, 0, [], [], 0
    for number in range(3_000):
        at = dice.choices(range(4), (50, 25, 20, 5))[0]
        want = 1 if kind == Kind.REQUESTS else dice.randint(50, 200)
        answer = desks[at].ask((accounts[at], want), op=f"{seed}-{number}")
        told += [one.event for one in answer.crossings]
        if isinstance(answer, Grant):
            flying.append((at, answer.op_id, want))
            assert used + sum(each[2] for each in flying) <= limit
        refused += isinstance(answer, Denied)
        while len(flying) > dice.randint(0, 12):
            at, op, held = flying.pop(dice.randrange(len(flying)))
            spent = held if kind == Kind.REQUESTS else dice.randint(0, held)
            if dice.random() < 0.05:
                desks[at].release(op)
                continue
            told += [one.event for one in desks[at].settle(op, {kind: spent}).crossings]
            used += spent
    for at, op, held in flying:
        told += [one.event for one in desks[at].settle(op, {kind: held}).crossings]
        used += held
    for ledger in ledgers:
        ledger.flush()
    assert ledgers[0].read(accounts[0])
    assert (accounts[0].used, accounts[0].held) == (used, 0)
    assert refused
    assert told.count("limit_nearing") == 1
    assert told.count("limit_exceeded") <= 1
    for ledger in ledgers:
        ledger.close()


def test_what_is_out_is_held_in_the_shared_ledger_and_never_more_than_half_of_what_is_left(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    for _ in range(4_000):
        spend(desk, account, 1, 200)
        assert desk.ledger.out <= account.held
        assert desk.ledger.out <= (account.value - account.used) // 2


def test_what_a_dead_process_had_out_is_settled_as_used_and_no_more_than_that(new_store):
    lost = sliced(new_store())
    desk, account = Desk(lost), tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    spend(desk, account, 50)
    out, known = lost.out, account.used
    heir, seen = new_store(), tenants(Kind.REQUESTS, 100_000)
    Desk(heir).spend(seen, 0)  # it counts there, too
    heir.reap(everybody=True)
    assert heir.read(seen)
    assert (seen.used, seen.held) == (known + out, 0)
    assert 50 + HOT <= seen.used <= 50 + HOT + out
    spend(desk, account, 10)  # it was asleep only: what it has was counted, and is corrected once
    lost.close()
    assert heir.read(seen)
    assert (seen.used, seen.held) == (60 + HOT, 0)
    heir.close()


def test_an_idle_slice_is_given_back():
    clock = ManualClock()
    desk = Desk(sliced(clock=clock))
    account = tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    clock.advance(4.1)
    until(lambda: desk.ledger.out == 0)
    until(lambda: account.held == 0)
    assert account.used == HOT


def test_closing_gives_every_slice_back(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 100)
    desk.ledger.close()
    assert (account.used, account.held, desk.ledger.out) == (HOT * 100, 0, 0)


def test_what_calls_hold_stays_held_when_a_slice_is_given_back(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 100)
    calls = [desk.take((account, 1_000)) for _ in range(3)]
    desk.ledger.flush()
    assert (account.used, account.held) == (HOT * 100, 3_000)
    desk.settle(calls[0], {Kind.TOKENS: 400})
    desk.release(calls[1])
    assert (account.used, account.held) == (HOT * 100 + 400, 1_000)
    desk.settle(calls[2], {Kind.TOKENS: 1_000})
    assert (account.used, account.held, desk.ledger.out) == (HOT * 100 + 1_400, 0, 0)


def test_a_lower_limit_holds_at_once(desk):
    account = tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    desk.retune(account, HOT + 1)
    desk.take((account, 1))
    assert desk.ask((account, 1)).reason == "exhausted"


def test_a_forked_child_has_none_of_its_parents_slices(desk):
    account = tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    before = desk.ledger.inner.asked
    desk.ledger.reset_after_fork()
    assert desk.ledger.out == 0
    desk.take((account, 1))
    assert desk.ledger.inner.asked == before + 1


def test_what_passes_a_grant_is_told_of_the_account_and_held_before_others_get_it(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 100)
    settled = desk.settle(desk.take((account, 100)), {Kind.TOKENS: 500_000})
    assert settled.overage == [(account, 499_900)]
    assert account.used + account.held >= HOT * 100 + 500_000
    desk.ledger.flush()
    assert account.used == HOT * 100 + 500_000


def test_a_call_that_never_left_is_given_back_though_its_chunk_was_charged(desk):
    account = tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    early = [desk.take((account, 1)) for _ in range(5)]
    desk.ledger.flush()
    assert account.used == HOT + 5
    for each in early:
        desk.release(each)
    desk.ledger.flush()
    assert (account.used, account.held) == (HOT, 0)


def test_a_stream_takes_more_than_its_slice_has(desk):
    account = tenants(Kind.TOKENS, 100_000)
    heat(desk, account, 100)
    grant = desk.take((account, 100))
    have = 100
    while have < 90_000:
        extended = run_sync(desk.ledger.extend(grant.op_id, {Kind.TOKENS: 5_000}))
        assert extended.short is None
        have += extended.more[Kind.TOKENS]
    desk.settle(grant, {Kind.TOKENS: have})
    desk.ledger.flush()
    assert (account.used, account.held) == (HOT * 100 + have, 0)


def test_a_stream_is_cut_where_nothing_is_left(desk):
    account = tenants(Kind.TOKENS, 100_000)
    heat(desk, account, 100)
    grant = desk.take((account, 100))
    have, extended = 100, None
    while extended is None or extended.short is None:
        extended = run_sync(desk.ledger.extend(grant.op_id, {Kind.TOKENS: 5_000}))
        have += extended.more.get(Kind.TOKENS, 0)
    assert extended.short.account is account
    assert have == 100_000 - HOT * 100


def test_calls_go_on_within_the_slice_while_the_store_fails_and_no_further(desk):
    account = tenants(Kind.REQUESTS, 100_000)
    heat(desk, account)
    spare, inner = desk.ledger.out, desk.ledger.inner
    inner.fails = True
    granted, error = drain(desk, account)
    assert (granted, error.reason) == (spare - 1, "store_failed")  # the last of those that made it hot was the first in it
    inner.fails = False
    desk.ledger.flush()
    assert (account.used, account.held) == (HOT + granted, 0)


def test_a_refused_call_holds_nothing_in_any_slice_and_the_outermost_breach_is_told(desk):
    tokens, own, requests = tenants(Kind.TOKENS, 1_000_000), desk.tokens(5_000, "agent"), tenants(Kind.REQUESTS, HOT + 2)
    for _ in range(HOT):
        desk.settle(desk.take((tokens, 100), (requests, 1), (own, 100)), {Kind.TOKENS: 100})
    desk.spend(own, 5_000 - HOT * 100)
    assert desk.ask((tokens, 100), (requests, 1), (own, 100)).account is own
    desk.take((requests, 2))
    assert desk.ask((tokens, 100), (requests, 1), (own, 100)).account is requests
    desk.ledger.flush()
    assert (tokens.used, tokens.held, requests.used, own.used, own.held) == (HOT * 100, 0, HOT + 2, 5_000, 0)


def test_a_grant_is_not_cut_to_what_a_slice_has_left(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 10)
    spare = desk.ledger.out
    assert desk.take((account, spare + 1_000, 1)).granted == spare + 1_000


def test_a_repeated_reservation_holds_nothing_twice(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 10)
    desk.take((account, 10), op="same")
    desk.ledger.flush()
    assert isinstance(desk.ask((account, 10), op="same"), Grant)
    assert account.held == 10


def test_nobody_waits_for_what_the_same_chain_holds_in_a_slice(desk):
    account = tenants(Kind.TOKENS, 10_000)
    heat(desk, account, 10)
    desk.take((account, 50), owner="me")
    answer = desk.ask((account, 10_000 - HOT * 10 - 20), owner="me", patience=3_600.0)
    assert (answer.reason, answer.account) == ("contended", account)


def test_nothing_leaks_when_a_call_is_cut_off_while_a_chunk_is_taken():
    desk = Desk(sliced(Slow()))
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 100)
    for number in range(500):
        flow = desk.flow((account, 5_000), op=f"cut-{number}")
        step = next(iter(flow), None) if not hasattr(flow, "value") else None
        if step is not None:
            flow.close()
        else:
            desk.settle(f"cut-{number}", {Kind.TOKENS: 0})
    desk.ledger.flush()
    until(lambda: account.held == 0)
    assert account.used == HOT * 100
    desk.ledger.close()


@pytest.mark.parametrize("outcome", [Outcome.OBSERVE, Outcome.FINAL])
def test_what_only_observes_or_keeps_something_back_means_the_same(desk, outcome):
    account = tenants(Kind.REQUESTS, 1_000, on_exceed=outcome)
    account.observe = outcome is Outcome.OBSERVE
    told, granted = [], 0
    for _ in range(1_100):
        answer = desk.ask((account, 1))
        granted += isinstance(answer, Grant)
        told += [one.event for one in answer.crossings]
    assert granted == (1_100 if outcome is Outcome.OBSERVE else 999)
    assert told == ["limit_nearing", "limit_exceeded"]


def take_until_refused(desk, account, took):
    """Take one after the other until the limit is reached; who is only in another's way asks again."""
    while True:
        answer = desk.ask((account, 1), op=new_op_id(), patience=30.0)
        if isinstance(answer, Grant):
            desk.settle(answer)
            took.append(1)
        elif answer.reason != "contended":
            return


def test_threads_admit_exactly_the_limit_together(desk):
    account, took = tenants(Kind.REQUESTS, 5_000), []
    threads = [threading.Thread(target=take_until_refused, args=(desk, account, took)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    desk.ledger.flush()
    assert (len(took), account.used, account.held) == (5_000, 5_000, 0)


@pytest.mark.anyio
async def test_tasks_admit_exactly_the_limit_together_while_chunks_are_on_their_way():
    desk = Desk(sliced(Slow()))
    account, took = tenants(Kind.REQUESTS, 2_000), []

    async def work():
        while True:
            answer = await run_async(desk.flow((account, 1), op=new_op_id()))
            if isinstance(answer, Grant):
                await run_async(desk.ledger.settle(answer.op_id, None))
                took.append(1)
            elif answer.reason != "contended":
                return

    await asyncio.gather(*(work() for _ in range(40)))
    desk.ledger.flush()
    assert (len(took), account.used, account.held) == (2_000, 2_000, 0)
    desk.ledger.close()


# what is asked of the shared ledger together with what is this process's own


def test_of_a_call_within_own_and_shared_limits_all_or_nothing_is_held_extended_and_given_back(desk):
    shared, own = tenants(Kind.TOKENS, 1_000), desk.tokens(500, "agent")
    grant = desk.take((shared, 100), (own, 100))
    assert (grant.granted, len(desk.ledger)) == (100, 1)
    assert run_sync(desk.ledger.extend(grant.op_id, {Kind.TOKENS: 200})).more == {Kind.TOKENS: 200}
    assert (shared.held, own.held) == (300, 300)
    assert desk.ask((shared, 100), (own, 100), op=grant.op_id) is grant
    desk.release(grant)
    assert (shared.held, own.held, len(desk.ledger)) == (0, 0, 0)


def test_the_limit_that_stops_a_stream_is_told_whichever_ledger_keeps_it(desk):
    shared, own = tenants(Kind.TOKENS, 1_000), desk.tokens(500, "agent")
    grant = desk.take((shared, 500), (own, 500))
    assert run_sync(desk.ledger.extend(grant.op_id, {Kind.TOKENS: 10})).short.account is own
    desk.settle(grant, {Kind.TOKENS: 0})
    wide = desk.tokens(5_000, "agent")
    grant = desk.take((shared, 1_000), (wide, 1_000))
    assert run_sync(desk.ledger.extend(grant.op_id, {Kind.TOKENS: 10})).short.account is shared


def test_only_the_outermost_breach_is_counted_across_both_ledgers(desk):
    shared, own = tenants(Kind.TOKENS, 100), desk.tokens(100, "agent")
    assert desk.ask((shared, 200), (own, 200)).account is shared
    assert (shared.denied, own.denied) == (1, 0)
    assert desk.ask((shared, 50), (own, 200)).account is own
    assert (shared.used, shared.held, own.held) == (0, 0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("blocked", ["own", "shared"])
async def test_a_call_waits_for_what_others_hold_in_either_ledger(desk, blocked):
    shared, own = tenants(Kind.TOKENS, 100), desk.tokens(100, "agent")
    holder = desk.take((own if blocked == "own" else shared, 100), owner="other")
    task = asyncio.create_task(run_async(desk.flow((shared, 50), (own, 50), owner="me", patience=30.0)))
    while not (shared.line or own.line):  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
        await asyncio.sleep(0)
    assert not task.done()
    desk.release(holder)
    assert isinstance(await asyncio.wait_for(task, 5), Grant)
    assert (shared.held, own.held) == (50, 50)


def test_an_own_account_that_others_hold_refuses_at_once_who_cannot_wait(desk):
    shared, own = tenants(Kind.TOKENS, 100), desk.tokens(100, "agent")
    desk.take((own, 100))
    denied = desk.ask((shared, 50), (own, 50))
    assert (denied.account, denied.reason, shared.held) == (own, "contended", 0)


def test_clocks_limits_and_readings_go_to_the_ledger_that_keeps_the_account(desk):
    own, shared = desk.account(Kind.TIME, 10), tenants(Kind.REQUESTS, 5)
    assert [one.event for one in run_sync(desk.ledger.clocked(own, 11))] == ["limit_nearing", "limit_exceeded"]
    desk.retune(own, 100)
    desk.retune(shared, 6)
    assert (own.value, shared.value) == (100, 6)
    assert desk.ledger.read(own)
    assert desk.ledger.read(shared)
    assert not desk.ledger.spans(shared)  # the memory ledger's is this process alone
    assert desk.ledger.clock is desk.ledger.inner.clock
    with pytest.raises(AttributeError):
        _ = desk.ledger.nothing_of_the_kind


def test_what_a_slice_has_stays_when_the_store_fails_while_it_is_given_back(desk):
    account = tenants(Kind.TOKENS, 1_000_000)
    heat(desk, account, 100)
    grant, inner = desk.take((account, 1_000)), desk.ledger.inner
    inner.fails = True
    desk.ledger.flush()
    assert desk.ledger.out > 0
    inner.fails = False
    desk.settle(grant, {Kind.TOKENS: 1_000})
    desk.ledger.flush()
    assert (account.used, account.held) == (HOT * 100 + 1_000, 0)
