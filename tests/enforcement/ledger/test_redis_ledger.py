"""What the ledger in Redis does beyond the contract: leases, lost replies, what the store forgot, and who stands in line elsewhere."""

import asyncio
import re
import struct
import threading
import uuid

import pytest
from redis_servers import until

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, RepeatedGrant, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import SCRIPTS, TOP, Reply, tag_of
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_failures import StoreError
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_async, run_sync
from ravi_otel.errors import BudgetExhaustedError, ConfigurationError
from ravi_otel.policy._limits import Kind, Limit, Outcome, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

TOKENS = Kind.TOKENS.value


@pytest.fixture
def new(redis_server):
    """Make ledgers of processes that share a namespace."""
    namespace, made = uuid.uuid4().hex, []

    def make(url=redis_server.url, shares=lambda _: True, failed=lambda: None, **options):
        made.append(StoreLedger(RedisStore(RedisClient(url), namespace=namespace, **options), shares=shares, failed=failed))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


def twin(scope_id="r", kind=TOKENS, value=100, tenant=None, **limit):
    """Stand for one counter as another process would."""
    facts = ScopeFacts(scope_id=scope_id, kind=ScopeKind.RUN, tenant_id=tenant)
    return Account(Limit(kind=kind, value=value, **limit), facts, origin="the limit")


def ask(ledger, *asks, op=None, **more):
    lines = [Line(account, want, rest[0] if rest else want) for account, want, *rest in asks]
    return run_sync(ledger.reserve(Reservation(op or new_op_id(), lines, **more)))


def settle(ledger, grant, amount):
    return run_sync(ledger.settle(grant.op_id, None if amount is None else {TOKENS: amount}))


def state(ledger, account):
    assert ledger.read(account)
    return account.used, account.held


# several processes


def test_processes_count_in_one_account(new):
    first, second, mine, theirs = new(), new(), twin(), twin()
    grant = ask(first, (mine, 60))
    assert ask(second, (theirs, 60)).reason == "contended"
    settle(first, grant, 30)
    assert isinstance(ask(second, (theirs, 60)), Grant)
    assert (theirs.used, theirs.held) == (30, 60)


def test_events_are_told_by_one_of_them(new):
    first, second, mine, theirs = new(), new(), twin(), twin()
    told = settle(first, ask(first, (mine, 90)), 90).crossings
    assert [one.event for one in told] == ["limit_nearing"]
    assert not settle(second, ask(second, (theirs, 5)), 5).crossings
    assert theirs.events == ("limit_nearing",)


def test_a_limit_that_is_declared_smaller_elsewhere_is_smaller_for_all(new):
    first, second, mine = new(), new(), twin(value=100)
    ask(first, (mine, 10))
    assert ask(second, (twin(value=50), 60)).reason == "too_large"
    assert ask(first, (mine, 60)).reason == "too_large"
    assert mine.value == 50


def test_a_limit_declared_twice_is_asked_once(new):
    ledger = new()
    ask(ledger, (twin(), 40), (twin(), 40))
    assert state(ledger, twin()) == (0, 40)


@pytest.mark.parametrize("tenant", ["a", "}", "{x}", "ü" * 300, "a:b", "", "\n"])
def test_tenants_do_not_meet_whatever_their_names(new, tenant):
    ledger = new()
    ask(ledger, (twin(tenant=tenant), 90))
    assert isinstance(ask(ledger, (twin(tenant="other"), 90)), Grant)
    tag = tag_of("n", tenant)
    assert tag.count("{") == tag.count("}") == 1
    assert tag.isascii()
    assert len(tag) < 80


def test_limits_of_different_tenants_are_refused_on_a_cluster_by_their_names(new):
    ledger = new("redis+cluster://127.0.0.1:1/0")
    with pytest.raises(ConfigurationError, match=r"the limit .* Redis Cluster"):
        ask(ledger, (twin(tenant="a"), 1), (twin("s", tenant="b"), 1))


def test_what_is_beyond_a_double_is_kept_as_the_most_there_is(new):
    ledger, account = new(), twin(value=TOP)
    settle(ledger, ask(ledger, (account, 10)), 2**70)
    assert state(ledger, account) == (TOP, 0)
    assert isinstance(ask(ledger, (account, 2**70, 1)), Denied)


# what is this process's own


@pytest.mark.parametrize("full", ["own", "shared"])
@pytest.mark.parametrize("own_first", [True, False])
def test_a_refusal_leaves_the_store_and_this_process_alone(new, full, own_first):
    own, shared = twin("own"), twin("shared")
    ledger = new(shares=lambda account: account.facts.scope_id == "shared")
    blocked, free = (own, shared) if full == "own" else (shared, own)
    settle(ledger, ask(ledger, (blocked, 95)), 95)
    asks = [(own, 50), (shared, 50)] if own_first else [(shared, 50), (own, 50)]
    denied = ask(ledger, *asks)
    assert (denied.account, denied.reason) == (blocked, "exhausted")
    assert (free.used, free.held, blocked.held, len(ledger)) == (0, 0, 0, 0)


def test_an_operation_is_extended_and_ended_in_both(new):
    own, shared = twin("own", value=70), twin("shared")
    ledger = new(shares=lambda account: account.facts.scope_id == "shared")
    grant = ask(ledger, (shared, 20), (own, 20))
    extended = run_sync(ledger.extend(grant.op_id, {TOKENS: 60}))
    assert (dict(extended.more), own.held, shared.held) == ({TOKENS: 50}, 70, 70)
    settled = settle(ledger, grant, 90)
    assert [(account, much) for account, much in settled.overage] == [(shared, 20), (own, 20)]
    assert [(one.account, one.event) for one in settled.crossings] == [
        (shared, "limit_nearing"),
        (own, "limit_nearing"),
        (own, "limit_exceeded"),
    ]


@pytest.mark.anyio
async def test_one_waits_for_what_this_process_holds_of_its_own(new):
    own, shared = twin("own"), twin("shared")
    ledger = new(shares=lambda account: account.facts.scope_id == "shared")
    holder = ask(ledger, (own, 100))
    request = Reservation(new_op_id(), [Line(shared, 10, 10), Line(own, 60, 60)], patience_s=10.0)
    task = asyncio.create_task(run_async(ledger.reserve(request)))
    while not own.waiters:  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
        await asyncio.sleep(0)
    assert shared.held == 0
    settle(ledger, holder, 10)
    assert isinstance(await asyncio.wait_for(task, 5), Grant)
    assert (own.held, shared.held) == (60, 10)


# processes that go silent


def test_what_a_silent_process_holds_is_settled_at_its_grant(new):
    dead, living, account = new(), new(), twin()
    ask(dead, (twin(), 60))
    assert living.reap(everybody=True) == 1
    assert state(living, account) == (60, 0)


@pytest.mark.parametrize(("amount", "used"), [(10, 10), (90, 90), (None, 60)])
def test_the_real_amount_corrects_that_later_and_once(new, amount, used):
    asleep, living, account = new(), new(), twin()
    grant = ask(asleep, (twin(), 60))
    living.reap(everybody=True)
    settle(asleep, grant, amount)
    settle(asleep, grant, amount)
    living.reap(everybody=True)
    assert state(living, account) == (used, 0)


def test_what_a_closed_ledger_holds_is_settled_at_its_grant_at_once(new):
    closed, living = new(), new()
    grant = ask(closed, (twin(), 60))
    closed.close()
    assert state(living, twin()) == (60, 0)
    settle(closed, grant, 10)
    assert state(living, twin()) == (10, 0)
    closed.close()


def test_a_slot_comes_back_when_its_process_goes_silent(new):
    dead, living = new(), new()
    grant = ask(dead, (twin(kind="agent_slots", value=1), 1), slot=True)
    assert isinstance(ask(living, (twin(kind="agent_slots", value=1), 1), slot=True), Denied)
    living.reap(everybody=True)
    again = ask(living, (twin(kind="agent_slots", value=1), 1), slot=True)
    assert isinstance(again, Grant)
    run_sync(dead.release(grant.op_id))
    assert state(living, twin(kind="agent_slots", value=1)) == (1, 0)


def test_what_was_thought_dead_is_extended_by_nothing(new):
    asleep, living = new(), new()
    grant = ask(asleep, (twin(), 60))
    living.reap(everybody=True)
    assert dict(run_sync(asleep.extend(grant.op_id, {TOKENS: 10})).more) == {}


def test_a_process_that_was_thought_dead_goes_on_under_another_lease(new):
    asleep, living, account = new(), new(), twin()
    ask(asleep, (account, 10))
    living.reap(everybody=True)
    grant = ask(asleep, (account, 20))
    assert (account.used, account.held) == (10, 20)
    settle(asleep, grant, 5)
    assert (account.used, account.held) == (15, 0)


def test_a_lease_that_runs_out_is_ended_by_whoever_comes_next(new):
    dead, living, account = new(lease_s=0.2), new(lease_s=0.2), twin()
    ask(dead, (twin(), 60))
    dead.pulse.end()  # as if it had been killed
    until(lambda: isinstance(ask(living, (twin("else"), 1)), Grant) and state(living, account) == (60, 0), "nobody ended it")


def test_a_process_that_gives_signs_of_life_keeps_what_it_holds(new):
    holder, living, account = new(lease_s=0.2), new(lease_s=0.2), twin()
    ask(holder, (twin(), 60))
    pause = threading.Event()
    for _ in range(6):
        pause.wait(0.1)
        living.reap()
    assert state(living, account) == (0, 60)


@pytest.mark.parametrize("everybody", [True, False])
def test_all_that_one_of_the_dead_held_is_ended_in_bounded_steps(new, everybody):
    dead, living = new(lease_s=30.0 if everybody else 0.5), new()
    mine = twin(value=10_000)
    for _ in range(450):
        ask(dead, (mine, 1))
    dead.pulse.end()
    until(lambda: living.reap(everybody=everybody) >= 0 and state(living, twin(value=10_000)) == (450, 0), "nobody ended it")


# the line, over processes


@pytest.mark.anyio
async def test_who_came_first_is_served_first_whichever_process_it_waits_in(new):
    ledgers, accounts, order = [new(), new(), new()], [twin() for _ in range(3)], []
    holder = new()
    grant = ask(holder, (twin(), 100))

    async def wait(at):
        request = Reservation(new_op_id(), [Line(accounts[at], 100, 100)], patience_s=20.0)
        answer = await run_async(ledgers[at].reserve(request))
        assert isinstance(answer, Grant)
        order.append(at)
        await run_async(ledgers[at].settle(request.op_id, {TOKENS: 0}))

    tasks = []
    for at in range(3):
        tasks.append(asyncio.create_task(wait(at)))
        while not accounts[at].waiters:  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
            await asyncio.sleep(0)
    await run_async(holder.settle(grant.op_id, {TOKENS: 0}))
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert order == [0, 1, 2]


@pytest.mark.anyio
async def test_a_cancelled_call_holds_nothing_though_it_was_on_its_way(new, proxy):
    ledger, account = new(f"{proxy.url}?timeout_s=10"), twin()
    ask(ledger, (account, 1))
    proxy.passing.clear()
    task = asyncio.create_task(run_async(ledger.reserve(Reservation(new_op_id(), [Line(account, 60, 60)]))))
    other = new()
    while state(other, twin())[1] < 61:  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0)
    proxy.passing.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run_sync(ledger.release(new_op_id()))

    def asks_again():
        run_sync(ledger.release(ask(ledger, (account, 1)).op_id))
        return state(other, twin())[1] < 60

    until(asks_again, "what was granted to nobody is held")


# replies that are lost


@pytest.mark.parametrize("lost", ["cut", "swallow"])
def test_a_reserve_whose_reply_is_lost_counts_once(new, proxy, lost):
    ledger, requests = new(f"{proxy.url}?timeout_s=2"), twin(kind="requests", value=10)
    ask(ledger, (requests, 1))
    setattr(proxy, lost, 1)
    if lost == "cut":
        assert isinstance(ask(ledger, (requests, 1)), Grant)
        used = 2
    else:
        with pytest.raises(BudgetExhaustedError) as refused:
            ask(ledger, (requests, 1))
        assert refused.value.reason == "store_failed"
        used = 1  # it was refused, so it gave back what it had been charged
    assert isinstance(ask(ledger, (requests, 1)), Grant)
    assert state(ledger, requests) == (used + 1, 0)


@pytest.mark.parametrize("lost", ["cut", "swallow"])
def test_a_settle_whose_reply_is_lost_counts_once_and_tells_its_events(new, proxy, lost):
    ledger, account = new(f"{proxy.url}?timeout_s=0.2"), twin()
    grant = ask(ledger, (account, 50))
    setattr(proxy, lost, 1)
    told = list(settle(ledger, grant, 85).crossings)
    run_sync(ledger.debts.pay(for_s=5))
    grant = ask(ledger, (account, 1))
    told += [*grant.crossings, *settle(ledger, grant, 1).crossings]
    assert [one.event for one in told] == ["limit_nearing"]
    assert state(ledger, account) == (86, 0)


def test_an_extension_whose_reply_is_lost_counts_once(new, proxy):
    ledger, account = new(f"{proxy.url}?timeout_s=0.5"), twin()
    grant = ask(ledger, (account, 10))
    proxy.cut = 1
    assert dict(run_sync(ledger.extend(grant.op_id, {TOKENS: 20})).more) == {TOKENS: 20}
    assert state(ledger, account) == (0, 30)


def test_an_operation_that_is_over_holds_nothing_again(new):
    ledger, account, op = new(), twin(), new_op_id()
    settle(ledger, ask(ledger, (account, 60), op=op), 10)
    again = ask(ledger, (account, 60, 5), op=op)
    assert isinstance(again, RepeatedGrant)
    assert (again.granted, account.used, account.held) == (5, 10, 0)


def test_another_process_that_repeats_a_message_holds_nothing_twice(new):
    first, second, op = new(), new(), uuid.uuid4().hex
    ask(first, (twin(), 60), op=op)
    assert isinstance(ask(second, (twin(), 60), op=op), RepeatedGrant)
    assert state(second, twin()) == (0, 60)


def test_what_was_spent_while_the_store_failed_is_recorded_later(new, proxy):
    ledger, account = new(f"{proxy.url}?timeout_s=0.2"), twin()
    proxy.swallow = 1
    grant = ask(ledger, (account, 0), spent=True)
    settle(ledger, grant, 40)
    run_sync(ledger.debts.pay(for_s=5))
    assert state(new(), twin()) == (40, 0)


# what the store forgot


def test_a_process_that_has_seen_an_account_refuses_when_it_is_forgotten(new, redis_server):
    ledger, account = new(), twin()
    ask(ledger, (account, 10))
    redis_server.say("FLUSHALL")
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError) as refused:
            ask(ledger, (account, 10))
        assert refused.value.reason == "store_lost"
    assert isinstance(ask(new(), (twin(), 10)), Grant)  # one that has never seen it begins anew
    with pytest.raises(BudgetExhaustedError):
        ask(ledger, (account, 10))


def test_whoever_was_told_of_an_account_elsewhere_refuses_when_it_is_forgotten(new):
    first, second, carried = new(), new(), twin()
    mine = twin()
    ask(first, (mine, 10))
    carried.epoch = mine.epoch
    assert isinstance(ask(second, (carried, 10)), Grant)
    strange = twin("never seen")
    strange.epoch = mine.epoch
    with pytest.raises(BudgetExhaustedError, match=r"emptied|another"):
        ask(second, (strange, 10))


def test_counters_are_kept_for_a_week_after_their_last_use(new, redis_server):
    ledger = new()
    ask(ledger, (twin(), 10))
    (key,) = [key for key in redis_server.say("KEYS", "*:a:*").decode().split("\r\n") if ":a:" in key]
    assert int(redis_server.say("TTL", key)[1:]) > 6 * 86_400


# operators


def test_an_operator_sees_sets_and_closes_what_processes_count(new):
    ledger, account = new(), twin()
    ask(ledger, (account, 30))
    (counter,) = run_sync(ledger.list_accounts()).counters
    assert (counter.key, counter.value, counter.held, counter.declared, counter.epoch) == (account.key, 100, 30, 100, account.epoch)
    assert run_sync(ledger.set_limit(counter, 500)).value == 500
    assert isinstance(ask(ledger, (account, 300)), Grant)
    assert run_sync(ledger.close_scope([counter])) == 1
    assert ask(ledger, (account, 1)).reason in ("draining", "exhausted")
    assert not ask(ledger, (account, 1)).crossings
    run_sync(ledger.set_limit(counter, 600))
    assert isinstance(ask(ledger, (account, 100)), Grant)


# a cluster


@pytest.mark.anyio
async def test_a_cluster_keeps_what_is_one_tenants_together(new, redis_cluster):
    ledger, other = new(redis_cluster.url), new(redis_cluster.url)
    for tenant in (None, "a", "b", "c", "d"):  # of several servers
        run_scope, requests = twin(tenant=tenant), twin(kind="requests", value=10, tenant=tenant)
        grant = ask(ledger, (run_scope, 60), (requests, 1))
        assert dict(run_sync(ledger.extend(grant.op_id, {TOKENS: 40})).more) == {TOKENS: 40}
        request = Reservation(new_op_id(), [Line(twin(tenant=tenant), 50, 50)], patience_s=20.0)
        task = asyncio.create_task(run_async(other.reserve(request)))
        while not request.lines[0].account.waiters:  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
            await asyncio.sleep(0)
        await run_async(ledger.settle(grant.op_id, {TOKENS: 50}))
        assert isinstance(await asyncio.wait_for(task, 20), Grant)
        assert ledger.reap(everybody=True) >= 1
        assert (state(ledger, run_scope), state(ledger, requests)) == ((100, 0), (1, 0))


# nothing shared, and no store


def test_what_is_this_process_s_own_needs_no_store(new):
    ledger = new("redis://127.0.0.1:1/0", shares=lambda _: False)
    account, clock = twin(), twin(kind="time", value=10**9)
    grant = ask(ledger, (account, 20))
    assert dict(run_sync(ledger.extend(grant.op_id, {TOKENS: 5})).more) == {TOKENS: 5}
    assert [one.event for one in settle(ledger, grant, 80).crossings] == ["limit_nearing"]
    run_sync(ledger.release(ask(ledger, (account, 10)).op_id))
    run_sync(ledger.retune(account, 200))
    assert [one.event for one in run_sync(ledger.clocked(clock, 10**9))] == ["limit_nearing", "limit_exceeded"]
    assert (account.used, account.held, account.value, len(ledger)) == (80, 0, 200, 0)
    assert not ledger.spans(account)
    assert ledger.read(account)
    assert dict(run_sync(ledger.extend("never seen", {TOKENS: 5})).more) == {}


@pytest.fixture
def failing(new):
    """A ledger whose store is away, and how often it said so."""
    said = []
    ledger = new("redis://127.0.0.1:1/0", failed=lambda: said.append(1))
    return ledger, said


@pytest.mark.parametrize(
    "act",
    [
        lambda ledger: ask(ledger, (twin(), 1)),
        lambda ledger: run_sync(ledger.retune(twin(), 5)),
        lambda ledger: ledger.read(twin()),
        lambda ledger: ledger.reap(),
        lambda ledger: run_sync(ledger.list_accounts()),
    ],
)
def test_a_step_that_the_store_cannot_take_refuses_and_says_so(failing, act):
    ledger, said = failing
    with pytest.raises(BudgetExhaustedError) as refused:
        act(ledger)
    assert (refused.value.reason, bool(said)) == ("store_failed", True)


def test_what_is_only_observed_goes_on_without_the_store(failing):
    ledger, said = failing
    account = twin(on_exceed=Outcome.OBSERVE)
    assert isinstance(ask(ledger, (account, 1)), Grant)
    assert said


@pytest.mark.parametrize("observed", [True, False])
def test_more_is_held_without_the_store_for_what_is_only_observed(new, proxy, observed):
    ledger = new(f"{proxy.url}?timeout_s=0.2")
    account = twin(on_exceed=Outcome.OBSERVE) if observed else twin()
    grant = ask(ledger, (account, 10))
    proxy.swallow = 1
    if observed:
        assert dict(run_sync(ledger.extend(grant.op_id, {TOKENS: 5})).more) == {TOKENS: 5}
    else:
        with pytest.raises(BudgetExhaustedError):
            run_sync(ledger.extend(grant.op_id, {TOKENS: 5}))


def kept(redis_server):
    (key,) = [key for key in redis_server.say("KEYS", "*:a:*").decode().split("\r\n") if key.startswith("{") and ":a:" in key]
    return key


def packed(epoch, *, version=2, used=50.0, held=0.0, denied=0.0, revision=1.0, events=0):
    """Write a state as the scripts do."""
    return struct.pack("<B13sdddddIHBH", version, epoch.encode(), 100.0, used, held, denied, revision, 0, 0, 0, events)


SPOILT = {
    "is nothing": lambda epoch: b"",
    "is text": lambda epoch: f"{epoch} 100 50 0 0 0 1 0 0 and all that is behind it ............".encode(),
    "is cut off": lambda epoch: packed(epoch)[:-1],
    "is of another version": lambda epoch: packed(epoch, version=3),
    "used no number": lambda epoch: packed(epoch, used=float("nan")),
    "used less than nothing": lambda epoch: packed(epoch, used=-5.0),
    "holds a part of one": lambda epoch: packed(epoch, held=0.5),
    "denied without end": lambda epoch: packed(epoch, denied=float("inf")),
    "was changed before it was there": lambda epoch: packed(epoch, revision=-1.0),
    "tells more than there is": lambda epoch: packed(epoch, events=1),
}


@pytest.mark.parametrize("state_of_it", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "a newcomer"])
def test_an_account_that_cannot_be_read_is_refused_and_never_begun_anew(new, redis_server, state_of_it, seen):
    ledger, account = new(), twin()
    ask(ledger, (account, 10))
    key, spoilt = kept(redis_server), state_of_it(account.epoch)
    redis_server.say("HSET", key, "s", spoilt)
    for act in (
        lambda one: ask(ledger, (one, 1)),
        lambda one: run_sync(ledger.retune(one, 1_000)),
        ledger.read,
    ):
        with pytest.raises(BudgetExhaustedError, match="cannot be read") as refused:
            act(account if seen else twin())
        assert refused.value.reason == "store_failed"
    assert redis_server.say("HGET", key, "s") == b"$%d\r\n%s\r\n" % (len(spoilt), spoilt)


def test_an_account_without_its_state_is_refused(new, redis_server):
    ledger = new()
    ask(ledger, (twin(), 10))
    redis_server.say("HDEL", kept(redis_server), "s")
    with pytest.raises(BudgetExhaustedError, match="cannot be read"):
        ask(ledger, (twin(), 1))


def test_what_cannot_be_read_does_not_keep_the_others_from_their_end(new, redis_server):
    ledger, other = new(), twin("other")
    spoilt = twin()
    ask(ledger, (spoilt, 1))
    key = kept(redis_server)
    grant = ask(ledger, (spoilt, 10), (other, 10))
    redis_server.say("HSET", key, "s", "nan")
    settle(ledger, grant, 7)
    assert state(ledger, other) == (7, 0)


def test_what_a_later_version_writes_behind_is_kept(new, redis_server):
    ledger, account = new(), twin()
    grant = ask(ledger, (account, 10))
    key = kept(redis_server)
    later = redis_server.say("HGET", key, "s").split(b"\r\n", 1)[1].removesuffix(b"\r\n") + b" 17 later"
    redis_server.say("HSET", key, "s", later)
    settle(ledger, grant, 85)
    assert redis_server.say("HGET", key, "s").endswith(b"n 17 later\r\n")
    assert state(ledger, twin()) == (85, 0)
    assert isinstance(ask(new(), (twin(), 50)), Denied)
    (counter,) = run_sync(ledger.list_accounts()).counters
    assert counter.used == 85


def test_a_use_beyond_all_numbers_is_kept_as_the_most_there_is(new, redis_server):
    ledger, account = new(), twin()
    ask(ledger, (account, 10))
    redis_server.say("HSET", kept(redis_server), "s", packed(account.epoch, used=1e300))
    denied = ask(ledger, (account, 1))
    assert isinstance(denied, Denied)
    assert (denied.reason, denied.used) == ("exhausted", TOP)


def test_that_an_operation_is_over_is_known_for_a_week(new, redis_server):
    ledger, account = new(), twin()
    settle(ledger, ask(ledger, (account, 10)), 5)
    (key,) = [key for key in redis_server.say("KEYS", "*:b:*").decode().split("\r\n") if ":b:" in key]
    assert int(redis_server.say("TTL", key)[1:]) >= 7 * 86_400
    redis_server.say("EXPIRE", key, str(7 * 86_400 - 1))
    settle(ledger, ask(ledger, (account, 10)), 5)
    assert int(redis_server.say("TTL", key)[1:]) >= 7 * 86_400


SOURCES = {name: script.source.decode() for name, script in SCRIPTS.items()}


@pytest.mark.parametrize("name", SOURCES)
def test_a_script_that_is_sent_has_a_number_wherever_it_was_written_with_a_name_for_it(name):
    code = re.sub(r"--.*|'[^']*'", "", SOURCES[name])
    assert set(re.findall(r"\b[A-Z_]{2,}\b", code)) <= {"KEYS", "ARGV", "HEAD"}


@pytest.mark.parametrize(
    "said",
    [
        b"D 1 exhausted inf,0;",
        b"X 1;;",
        b"G 1 x;;",
        b"S 2;",
        b"Z;;",
        b"D 1 ex hausted 1,1;;",
        b"D 1 whatever 1,1;;",
        b"L;;",
        b"X 1 draining 1,;;",
    ],
)
def test_an_answer_that_no_script_of_ours_gives_is_an_error_of_the_store(said):
    with pytest.raises(StoreError, match="no script of ours"):
        Reply(said, "GODLUNSEX", [None])


def test_the_store_says_what_time_it_is(new):
    ledger = new()
    assert ledger.wall_s() > 0
    ask(ledger, (twin(), 1))
    assert ledger.wall_s() > 1_700_000_000
