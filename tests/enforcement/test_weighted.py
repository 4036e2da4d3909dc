"""Weighted shares: what is left, split by priority among the agents that live; a promise that holds, and nothing past the limit."""

from __future__ import annotations

import dis
import sys
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ravi_otel import BudgetContendedError, ConfigurationError, Priority, SpawnBudget, SpawnDeniedError
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.errors_text import RefusalErrors
from ravi_otel._enforcement.ledger.account import ShareClaim
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind

LOW, NORMAL, HIGH, CRITICAL = Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.CRITICAL
MODULES = ("_enforcement.shares", "ledger.account")


@pytest.fixture(params=["memory", "sqlite", "all shared"])
def engine(request, tmp_path):
    shares = (lambda _: True) if request.param == "all shared" else (lambda _: False)
    ledger = MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.db", shares=shares)
    yield Engine(ledger=ledger)
    if isinstance(ledger, SqliteLedger):
        ledger.close()


def run_of(engine, *written, **more):
    limits = tuple(parse_limit(one) for one in written)
    return Opening(kind=ScopeKind.RUN, name="r", limits=limits, **more).open(Scope.of_process(engine))


def agent_of(parent, name, *written, **more):
    limits = tuple(parse_limit(one) for one in written)
    return Opening(kind=ScopeKind.AGENT, name=name, agent_id=name, limits=limits, **more).open(parent)


def child_of(parent, priority=NORMAL, *written, name=None):
    return agent_of(parent, name or priority.name.lower(), *written, priority=priority, share="weighted")


def begin(scope, tokens, **more):
    lines = [
        Line(one, tokens, tokens) if one.limit.kind == "tokens" else Line(one, 1, 1) for one in scope.plan.accounts() if one.kind != "cost"
    ]
    op_id = new_op_id()
    answer = run_sync(scope.engine.ledger.reserve(Reservation(op_id, lines, **more)))
    return answer if isinstance(answer, Denied) else op_id


def spend(scope, tokens):
    op_id = begin(scope, tokens)
    assert not isinstance(op_id, Denied), op_id
    scope.engine.settle(op_id, {"tokens": tokens})


def most(scope):
    """Give the most that one call there can get now."""
    fits, too_much = 0, 1 << 20
    while too_much - fits > 1:
        tried = (fits + too_much) // 2
        answer = begin(scope, tried)
        if isinstance(answer, Denied):
            too_much = tried
        else:
            run_sync(scope.engine.ledger.release(answer))
            fits = tried
    return fits


@pytest.fixture
def parent(engine):
    return agent_of(run_of(engine, "tokens=100k"), "p", "tokens=1500")


def test_what_is_left_is_split_by_priority(parent):
    children = [child_of(parent, each) for each in (LOW, NORMAL, HIGH, CRITICAL)]
    assert [most(child) for child in children] == [100, 200, 400, 800]


def test_who_comes_and_goes_has_what_is_left_split_anew(parent):
    first = child_of(parent)
    spend(first, 500)
    second = child_of(parent, HIGH)
    assert (most(first), most(second)) == (333 + 1, 666 + 1)  # what the split leaves over is anybody's
    second.leave(None)
    assert most(first) == 1000
    assert parent.accounts[0].used == 500


def test_the_unused_part_of_one_that_closes_goes_to_the_others(parent):
    a, b, c = (child_of(parent, name=name) for name in "abc")
    spend(a, 500)
    assert isinstance(begin(a, 1), Denied)
    c.leave(ValueError("x"))
    assert (most(a), most(b)) == (500, 500)


def test_a_background_agent_uses_what_nobody_claims_and_claims_nothing(parent):
    background = child_of(parent, Priority.BACKGROUND)
    assert most(background) == 1500
    child = child_of(parent, LOW)
    refusal = begin(background, 1)
    assert refusal.reason == "contended"
    assert str(RefusalErrors(refusal).refused()) == (
        "0 of 1500 tokens used in agent 'p' of run 'r', 1500 promised to agents with a weighted share; this call needs at least 1 more, "
        "and too little came free in time. Lower the concurrency, or raise tokens=1500."
    )
    assert most(child) == 1500
    child.leave(None)
    spend(background, 1500)
    assert begin(background, 1).reason == "exhausted"


def test_a_part_beside_weighted_agents_is_one_of_what_nobody_was_promised(parent):
    child_of(parent)
    parent.set_limit("tokens", 1501)
    child_of(parent, name="b")  # promised half of it each, and one is left over
    with pytest.raises(BudgetContendedError) as refusal:
        agent_of(parent, "part", share=0.5)
    assert str(refusal.value) == (
        "1501 of 1501 tokens left in agent 'p' of run 'r', 1500 of them promised to agents with a weighted share; agent 'part' of run 'r' "
        "asks for 750 as its share, which is refused for now. Wait for one of them to close, ask for less, or raise tokens=1501 (set by "
        "set_limit(), instead of tokens=1500)."
    )
    assert parent.accounts[0].held == 0
    with pytest.raises(BudgetContendedError, match="1500 of them promised"):
        agent_of(parent, "number", share=300)


def test_what_is_promised_can_be_read_while_the_agent_lives(parent):
    a = child_of(parent, name="a")
    assert a.promised() == {"tokens": 1500}
    b = child_of(parent, HIGH)
    assert (a.promised(), b.promised()) == ({"tokens": 500}, {"tokens": 1000})
    spend(a, 200)
    assert (a.promised(), b.promised()) == ({"tokens": 300}, {"tokens": 1000})
    b.leave(None)
    assert (a.promised(), b.promised()) == ({"tokens": 1300}, {})


@pytest.mark.parametrize("share", ["own", "pool", 0.5])
def test_an_agent_without_a_weighted_share_is_promised_nothing(parent, share):
    assert agent_of(parent, "x", share=share).promised() == {}


@pytest.mark.parametrize("share", ["own", "pool"])
def test_neither_the_parent_nor_a_pooling_agent_gets_what_is_claimed(parent, share):
    child = child_of(parent)
    other = parent if share == "own" else agent_of(parent, "other", share="pool")
    assert begin(other, 1).reason == "contended"
    with pytest.raises(BudgetContendedError):
        agent_of(parent, "part", share=0.5)
    spend(child, 1500)


def test_what_is_held_when_the_agents_change_is_no_part_of_the_split_and_comes_back_to_whom_it_was(parent):
    a = child_of(parent, name="a")
    flying = begin(a, 500)
    b = child_of(parent, name="b")
    assert (most(a), most(b)) == (500, 500)
    a.engine.settle(flying, {"tokens": 100})
    assert (most(a), most(b)) == (900, 500)


def test_turns_are_split_too(engine):
    parent = agent_of(run_of(engine), "p", "turns=4")
    a, b = child_of(parent, name="a"), child_of(parent, name="b")
    spend(a, 1)
    spend(a, 1)
    assert begin(a, 1).reason == "contended"
    spend(b, 1)
    b.leave(None)
    spend(a, 1)
    assert begin(a, 1).reason == "exhausted"


def test_of_what_is_counted_after_nobody_begins_whose_part_is_used(engine):
    parent = agent_of(run_of(engine), "p", "tokens=100:admission=after")
    a, b = child_of(parent, name="a"), child_of(parent, name="b")
    spend(a, 50)
    assert begin(a, 1).reason == "contended"
    spend(b, 50)
    assert begin(b, 1).reason == "exhausted"


def test_without_a_parent_agent_the_run_is_split_and_agents_inside_use_their_ancestors_part(engine):
    run = run_of(engine, "tokens=1000")
    a, b = child_of(run, name="a"), child_of(run, name="b")
    inside = agent_of(a, "inside")
    spend(inside, 400)
    assert (most(inside), most(a), most(b)) == (100, 100, 500)
    assert run.accounts[0].used == 400


def test_an_agent_with_a_limit_of_its_own_splits_that_and_no_more_than_its_part(parent):
    a, b = child_of(parent, NORMAL, "tokens=900", name="a"), child_of(parent, name="b")
    x, y = child_of(a, name="x"), child_of(a, name="y")
    assert (most(x), most(y), most(b)) == (450, 450, 750)
    spend(x, 450)
    assert (most(y), most(b)) == (300, 750)  # of the 750 that `a` was promised


@pytest.mark.parametrize("share", ["weighted", 0.5, 100])
def test_a_share_of_what_was_promised_to_the_parent_is_an_error(parent, share):
    a = child_of(parent, name="a")
    with pytest.raises(
        ConfigurationError, match=r"agent 'a' of run 'r' around it has a weighted share of the same limit\. Write share=\"po"
    ):
        agent_of(a, "b", share=share)
    assert (most(a), parent.accounts[0].held) == (1500, 0)


def test_a_weighted_share_of_what_nobody_limits_is_an_error(engine):
    with pytest.raises(ConfigurationError, match=r"share='weighted'\): neither the agent around it nor the run has a limit"):
        child_of(run_of(engine), NORMAL)


def test_who_gets_no_slot_claims_nothing(engine):
    run = run_of(engine, spawn_budget=SpawnBudget(1))
    parent = agent_of(run, "p", "tokens=1000")
    with pytest.raises(SpawnDeniedError):
        child_of(parent)
    assert (parent.accounts[0].claims, most(parent)) == ((), 1000)


def test_a_raise_is_split_too(parent):
    a, b = child_of(parent, name="a"), child_of(parent, HIGH, name="b")
    parent.set_limit("tokens", 3000)
    assert (most(a), most(b)) == (1000, 2000)


def test_a_call_that_was_begun_before_its_agent_closed_is_charged(parent):
    a = child_of(parent, name="a")
    flying = begin(a, 700)
    a.leave(None)
    a.leave(None)
    assert (parent.accounts[0].held, parent.accounts[0].claims) == (700, ())
    a.engine.settle(flying, {"tokens": 600})
    assert (parent.accounts[0].used, parent.accounts[0].held) == (600, 0)


def test_who_waits_for_what_others_claim_lets_them_pass_and_is_served_when_they_close(parent):
    child, background = child_of(parent), child_of(parent, Priority.BACKGROUND)
    account, got = parent.accounts[0], []
    thread = threading.Thread(target=lambda: got.append(begin(background, 100, owner="background", patience_s=20.0)))
    thread.start()
    while not (account.waiters or parent.engine.ledger.__dict__.get("_waiters")):
        pass
    flying = begin(child, 1500, owner="child", patience_s=20.0)
    assert not isinstance(flying, Denied)
    child.engine.settle(flying, {"tokens": 1000})
    assert got == []
    child.leave(None)
    thread.join(20)
    assert not isinstance(got[0], Denied)


def test_one_that_asks_for_too_much_does_not_end_the_others(parent):
    spend(parent, 1400)
    a, b = child_of(parent, name="a"), child_of(parent, name="b")
    assert begin(a, 101).reason == "too_large"
    assert (most(a), most(b)) == (50, 50)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "spend", "spend", "spend", "settle", "others"]),
        st.integers(0, 7),
        st.sampled_from(list(Priority)),
        st.integers(1, 400),
    ),
    max_size=60,
)


class Family:
    """Do as told, and know what was promised to whom, as docs/limits.md words it."""

    def __init__(self, limit, *, of_run):
        self.engine = Engine()
        run = run_of(self.engine, f"tokens={limit}") if of_run else run_of(self.engine)
        self.parent = run if of_run else agent_of(run, "p", f"tokens={limit}")
        (self.account,) = (one for one in self.parent.accounts if one.kind == "tokens")
        self.living, self.flying, self.promised = [], [], {}

    def open(self, _which, priority, _amount):
        self.living.append((child_of(self.parent, priority), int(priority)))
        if priority:
            self.changed()

    def close(self, which, _priority, _amount):
        if self.living:
            scope, weight = self.living.pop(which % len(self.living))
            scope.leave(None)
            if weight:
                self.changed()

    def changed(self):
        left = 0 if self.account.draining else self.account.value - self.account.used - self.account.held
        total = sum(weight for _, weight in self.living)
        self.promised = {scope: left * weight // total if total else 0 for scope, weight in self.living}

    def spend(self, which, _priority, amount):
        scope = self.living[which % len(self.living)][0] if self.living else self.parent
        op_id = begin(scope, amount)
        if isinstance(op_id, Denied):
            assert amount > self.promised.get(scope, 0)
        else:
            self.took(scope, amount)
            self.flying.append((scope, op_id, amount))

    def others(self, _which, _priority, amount):
        op_id = begin(self.parent, amount)
        if not isinstance(op_id, Denied):
            self.engine.settle(op_id, {"tokens": amount})

    def settle(self, which, _priority, _amount):
        if self.flying:
            scope, op_id, amount = self.flying.pop(which % len(self.flying))
            self.engine.settle(op_id, {"tokens": amount // 2})
            self.took(scope, -(amount - amount // 2))

    def took(self, scope, amount):
        if scope in self.promised:
            self.promised[scope] -= amount


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ACTS, st.integers(0, 1500), st.booleans())
@example(  # who opens without a claim changes no promise
    acts=[
        ("open", 0, Priority.CRITICAL, 1),
        ("open", 0, Priority.NORMAL, 1),
        ("spend", 1, Priority.NORMAL, 147),
        ("open", 0, Priority.BACKGROUND, 1),
        ("spend", 1, Priority.NORMAL, 1),
    ],
    limit=731,
    of_run=False,
)
def test_the_promise_holds_and_the_sum_never_passes_the_parent(acts, limit, of_run):
    family = Family(limit, of_run=of_run)
    account = family.account
    for act, *how in acts:
        getattr(family, act)(*how)
        assert account.used + account.held <= limit
        assert sum(claim.left for claim in account.claims) <= account.remaining
    for _, op_id, amount in family.flying:
        family.engine.settle(op_id, {"tokens": amount})
    for scope, _ in family.living:
        scope.leave(None)
    assert (account.claims, account.held, len(family.engine.ledger)) == ((), 0, 0)
    assert account.used <= limit


# -- what comes in between ----------------------------------------------------------------------------------------


@pytest.fixture
def stepped():
    """Do a thing after the n-th call returned that functions of these names make, where a signal may come; give how many there were."""

    def run(work, at, names, act):
        seen, before = 0, ""

        def each(frame, event, arg):
            nonlocal seen, before
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_name in names and frame.f_globals["__name__"].endswith(MODULES):
                last, before = before, dis.opname[frame.f_code.co_code[frame.f_lasti]]
                seen += last.startswith("CALL")
                if seen == at and last.startswith("CALL"):
                    sys.settrace(None)
                    act()
            return each

        sys.settrace(each)
        try:
            work()
        finally:
            sys.settrace(None)
        return seen

    yield run
    sys.settrace(None)


def test_an_agent_that_a_signals_handler_opens_while_another_comes_or_goes_undoes_nothing(stepped):
    parent = agent_of(run_of(Engine(), "tokens=100k"), "p", "tokens=1500")
    stays, said = child_of(parent), []

    def comes_and_goes():
        child_of(parent, name="other").leave(None)

    def inside():
        inner = child_of(parent, name="inner")
        said.append(inner)

    def steps(at):
        count = stepped(comes_and_goes, at, ("join", "leave", "admit", "forgo"), inside)
        assert len(parent.accounts[0].claims) == 1 + len(said)
        while said:
            said.pop().leave(None)
        assert (len(parent.accounts[0].claims), most(stays)) == (1, 1500)
        return count

    def every():
        for at in range(1, steps(0) + 1):
            steps(at)
        return "over"

    got = []
    thread = threading.Thread(target=lambda: got.append(every()), daemon=True)
    thread.start()
    thread.join(20)
    assert got == ["over"]


@pytest.mark.parametrize("how", ["comes", "goes", "goes last"])
def test_a_split_goes_by_those_who_were_there_when_it_began(stepped, how):
    parent = agent_of(run_of(Engine(), "tokens=100k"), "p", "tokens=1500")
    account = parent.accounts[0]
    child_of(parent, name="a")
    if how == "goes":
        child_of(parent, name="b")
    first = account.claims[-1]

    def changes():
        if how == "comes":
            account.admit(ShareClaim(first.meter, 2))
        else:
            account.forgo(first.meter)

    count = stepped(account.split, 0, ("split", "<genexpr>"), None)
    assert count >= 3
    for at in range(1, count + 1):
        before = account.claims
        stepped(account.split, at, ("split", "<genexpr>"), changes)
        assert sum(claim.granted for claim in account.claims) <= 1500
        account.forgo(first.meter)
        for claim in before:
            if claim not in account.claims:
                account.admit(claim)
