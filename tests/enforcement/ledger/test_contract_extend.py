"""Holding more for an operation that goes on: in all its accounts or in none, at once, and never past a limit."""

import asyncio

import pytest

from ravi_otel._enforcement.ledger.judge import Grant, Line, Operation, Reservation, firm_line, settle
from ravi_otel._flow import is_done, run_async, run_sync
from ravi_otel.policy._limits import Kind, Outcome

MORE = {Kind.TOKENS.value: 30}


def extend(desk, grant, more=MORE):
    flow = desk.ledger.extend(grant.op_id, more)
    assert is_done(flow) or desk.far  # it never waits
    return run_sync(flow)


def held(*accounts):
    return [account.held for account in accounts]


def test_it_holds_more_in_every_account_of_the_kind(desk):
    run, agent, requests = desk.tokens(100), desk.tokens(200, "agent"), desk.requests(5)
    grant = desk.take((run, 20), (agent, 20), (requests, 1))
    extended = extend(desk, grant)
    assert (dict(extended.more), extended.short) == (MORE, None)
    assert (held(run, agent), requests.used) == ([50, 50], 1)
    desk.settle(grant, {Kind.TOKENS: 45})
    assert [(one.used, one.held) for one in (run, agent)] == [(45, 0), (45, 0)]


def test_what_is_extended_is_settled_at_its_grant_when_nobody_tells(desk):
    account = desk.tokens(100)
    grant = desk.take((account, 20))
    extend(desk, grant)
    desk.settle(grant)
    assert (account.used, account.held) == (50, 0)


def test_a_release_gives_back_what_was_extended(desk):
    account = desk.tokens(100)
    grant = desk.take((account, 20))
    extend(desk, grant)
    desk.release(grant)
    assert (account.used, account.held) == (0, 0)


def test_it_gives_what_the_fullest_account_has_left(desk):
    run, agent = desk.tokens(100), desk.tokens(30, "agent")
    grant = desk.take((run, 20), (agent, 20))
    assert extend(desk, grant).more == {Kind.TOKENS: 10}
    assert held(run, agent) == [30, 30]


def test_of_several_kinds_it_holds_all_or_none(desk):
    tokens, cost = desk.tokens(100), desk.account(Kind.COST, 50)
    grant = desk.take((tokens, 20), (cost, 50))
    extended = extend(desk, grant, {Kind.TOKENS.value: 30, Kind.COST.value: 10})
    assert (extended.more, extended.short.account, extended.short.reason) == ({}, cost, "exhausted")
    assert held(tokens, cost) == [20, 50]


def test_what_it_fills_by_itself_is_exhausted_and_told_once_nearing_first(desk):
    account = desk.tokens(100)
    grant = desk.take((account, 100))
    extended = extend(desk, grant)
    assert [one.event for one in extended.crossings] == ["limit_nearing", "limit_exceeded"]
    assert [(one.phase, one.used, one.held) for one in extended.crossings] == [("stream", 100, 0)] * 2
    assert extend(desk, grant).short.reason == "draining"
    assert not desk.settle(grant, {Kind.TOKENS: 100}).crossings
    assert account.events == ("limit_nearing", "limit_exceeded")


def test_what_others_hold_is_contended_and_neither_counted_nor_told(desk):
    account = desk.tokens(100)
    grant, _ = desk.take((account, 50)), desk.take((account, 50))
    extended = extend(desk, grant)
    assert (extended.short.reason, tuple(extended.crossings), account.denied, account.events) == ("contended", (), 0, ())


def test_an_observed_account_goes_on_and_says_once_that_it_would_not_have(desk):
    account = desk.tokens(100, observe=True)
    grant = desk.take((account, 100))
    told = [one.event for _ in range(3) for one in extend(desk, grant).crossings]
    assert (told, account.held, account.denied) == (["limit_nearing", "limit_exceeded"], 190, 1)


def said(extended):
    return [(one.event, one.phase, one.decision, one.used, one.held) for one in extended.crossings]


def test_a_stream_that_is_cut_says_what_it_has_used_and_each_one_is_a_refusal(desk):
    account = desk.tokens(100)
    first, second = desk.take((account, 50)), desk.take((account, 50))
    desk.settle(first, {Kind.TOKENS: 70})
    cut = extend(desk, second)
    assert said(cut) == [(event, "stream", "denied", 120, 0) for event in ("limit_nearing", "limit_exceeded")]
    assert (cut.short.used, cut.short.held, cut.short.minimum, account.denied) == (70, 50, 0, 1)
    assert (extend(desk, second).short.reason, account.denied) == ("draining", 2)


def test_an_observed_one_says_that_its_stream_would_have_been_cut_once_for_each(desk):
    account = desk.tokens(100, observe=True)
    for counted in (1, 2):
        grant = desk.take((account, 40))
        assert [said(extend(desk, grant)) for _ in range(2)] == [[], []]  # 70 are held, then 100
        assert account.denied == counted - 1
        told = [each for _ in range(2) for each in said(extend(desk, grant))]
        first = [(event, "stream", "observed", 100, 0) for event in ("limit_nearing", "limit_exceeded")]
        assert (told, account.denied) == (first if counted == 1 else [], counted)
        desk.release(grant)


def test_what_others_hold_of_an_observed_one_is_neither_counted_nor_told(desk):
    account = desk.tokens(100, observe=True)
    grant, _ = desk.take((account, 50)), desk.take((account, 50))
    assert (dict(extend(desk, grant).more), account.denied, account.events) == (MORE, 0, ())


def test_one_token_more_is_given(desk):
    account = desk.tokens(100)
    assert dict(extend(desk, desk.take((account, 20)), {Kind.TOKENS.value: 1}).more) == {Kind.TOKENS: 1}
    assert account.held == 21


@pytest.mark.parametrize("wraps_up", [False, True])
def test_a_limit_that_drains_gives_nothing_more_to_what_goes_on(desk, wraps_up):
    account = desk.tokens(100)
    grant = desk.take((account, 10, 10), wraps_up=wraps_up)
    desk.spend(account, 80)
    assert desk.ask((account, 50, 50)).reason == "exhausted"
    extended = extend(desk, grant, {Kind.TOKENS.value: 5})
    assert (dict(extended.more), extended.short.reason, account.denied, account.held) == ({}, "draining", 2, 10)


@pytest.mark.parametrize("end", ["settle", "release"])
def test_an_operation_that_is_over_gets_nothing(desk, end):
    account = desk.tokens(100)
    grant = desk.take((account, 20))
    getattr(desk, end)(grant)
    used = account.used
    extended = extend(desk, grant)
    assert (extended.more, extended.short, account.used, account.held) == ({}, None, used, 0)


def test_an_operation_nobody_knows_gets_nothing(desk):
    desk.take((desk.tokens(100), 1))
    assert run_sync(desk.ledger.extend("never seen", MORE)).more == {}


@pytest.mark.parametrize("amount", [0, -5])
def test_nothing_is_ever_taken_back_by_it(desk, amount):
    account = desk.tokens(100)
    grant = desk.take((account, 20))
    assert extend(desk, grant, {Kind.TOKENS.value: amount}).more == {}
    assert account.held == 20


# the line


@pytest.mark.anyio
async def test_what_goes_on_is_served_before_those_who_have_not_begun(desk):
    account = desk.tokens(100)
    stream = desk.take((account, 60), owner="stream")
    task = asyncio.create_task(run_async(desk.flow((account, 80), owner="next", patience=10.0)))
    while not account.waiters:  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
        await asyncio.sleep(0)
    assert extend(desk, stream).more == MORE
    desk.settle(stream, {Kind.TOKENS: 10})
    assert isinstance(await asyncio.wait_for(task, 5), Grant)
    assert (account.used, account.held) == (10, 80)


@pytest.mark.parametrize("around", [("caller",), ("someone", "caller")])
def test_whoever_is_enclosed_by_the_holder_is_told_at_once(desk, around):
    account = desk.tokens(100)
    desk.take((account, 100), owner="caller")
    answer = desk.ask((account, 50), owner="tool", patience=30.0, around=around)
    assert (answer.reason, account.waiters) == ("contended", [])


@pytest.mark.anyio
async def test_one_whom_its_own_chain_stands_in_the_way_of_later_is_told_then(desk):
    first, second = desk.tokens(100), desk.tokens(100, "agent")
    blocking = desk.take((first, 100), owner="other")
    desk.take((second, 100), owner="caller")
    task = asyncio.create_task(run_async(desk.flow((first, 50), (second, 50), owner="tool", patience=30.0, around=("caller",))))
    while not first.waiters:  # noqa: ASYNC110 - the line is the ledger's, which has no event for it
        await asyncio.sleep(0)
    desk.release(blocking)
    assert (await asyncio.wait_for(task, 5)).reason == "contended"
    assert (first.waiters, second.waiters, first.held) == ([], [], 0)


# what is counted and never refused, and what is kept back


def test_a_free_line_is_counted_and_never_refused(desk):
    account = desk.tokens(10)
    request = desk.request((account, 50))
    request.lines[0].free = True
    grant = run_sync(desk.ledger.reserve(request))
    assert extend(desk, grant).more == MORE
    desk.settle(grant, {Kind.TOKENS: 70})
    assert (account.used, account.held) == (70, 0)


def test_only_what_wraps_up_uses_what_is_kept_back(desk):
    account = desk.tokens(100, on_exceed=Outcome.FINAL)
    grant = desk.take((account, 90))
    assert extend(desk, grant).short.reason == "exhausted"
    assert desk.ask((account, 10)).reason == "contended"
    last = desk.take((account, 5), wraps_up=True)
    assert extend(desk, last).more == {Kind.TOKENS: 5}
    assert account.held == 100


def test_what_is_kept_back_follows_the_limit(desk):
    account = desk.tokens(100, on_exceed=Outcome.FINAL)
    desk.take((account, 1))
    desk.retune(account, 200)
    assert account.kept_back == 20
    assert desk.take((account, 500, 1)).granted == 179
    assert desk.take((account, 20), wraps_up=True).granted == 20


def test_an_observed_one_that_has_nothing_left_says_so_of_one_token_more(desk):
    account = desk.tokens(100, observe=True)
    cut = extend(desk, desk.take((account, 100)), {Kind.TOKENS.value: 1})
    assert ([one.event for one in cut.crossings], account.denied) == (["limit_nearing", "limit_exceeded"], 1)


def test_where_nothing_can_be_judged_the_first_limit_is_named_that_may_refuse_more(desk):
    observed, requests, first, second = desk.tokens(9, observe=True), desk.requests(9), desk.tokens(9, "agent"), desk.tokens(9, "block")

    def named(*lines):
        return firm_line(Operation(Reservation("op", lines)), MORE).account

    firm = [Line(observed, 1, 1), Line(requests, 1, 1), Line(first, 1, 1, free=True), Line(second, 1, 1), Line(first, 1, 1)]
    assert named(*firm) is second
    assert named(*firm[:3]) is observed
    assert named(Line(desk.account(Kind.COST, 9), 1, 1), Line(first, 1, 1)) is first


def test_what_was_taken_in_part_is_settled_in_part(desk):
    first, second = desk.tokens(100), desk.tokens(100, "agent")
    operation = Operation(Reservation("op", [Line(first, 10, 10), Line(second, 10, 10)]), [10, 10])
    first.held, operation.taken = 10, 1  # a signal came before the second one
    settle(operation, {}, guessed=False)
    assert [(one.used, one.held) for one in (first, second)] == [(10, 0), (0, 0)]
