"""Ways in: how many agents in all, how many under one agent, how deep; all of it or nothing (enforcement §3, §9)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ravi_otel import BudgetExhaustedError, ConfigurationError, Priority, SpawnBudget, SpawnDeniedError
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._enforcement.spawn_limits import AgentAdmission
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import AgentId

AT_ONCE = 32


class Heard(Listener):
    def __init__(self):
        self.events, self.spawns = [], []

    def limit_event(self, event, at):
        self.events.append((event.limit_kind, event.event, event.decision, event.used))

    def spawn_event(self, event):
        if event.outcome == "denied":
            self.spawns.append((event.agent_id, event.priority))


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    ledger = MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "ledger.db")
    yield ledger
    if isinstance(ledger, SqliteLedger):
        ledger.close()


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def engine(ledger, heard):
    listeners = Listeners()
    listeners.add(heard)
    return Engine(ledger=ledger, listeners=listeners)


def limits_of(*written):
    return tuple(parse_limit(one) for one in written)


def opened(kind, parent, name, *written, **more):
    if kind is ScopeKind.AGENT:
        more.setdefault("agent_id", name)
    return Opening(kind=kind, name=name, limits=limits_of(*written), **more).open(parent)


def run_of(engine, *written, **more):
    return opened(ScopeKind.RUN, Scope.of_process(engine), "r", *written, **more)


def agent_of(parent, name="a", *written, **more):
    return opened(ScopeKind.AGENT, parent, name, *written, **more)


def used(scope):
    return {one.limit.label: one.used for one in scope.readings()}


# What is counted


def test_agents_in_all_are_counted_with_the_first_and_never_given_back(engine):
    run = run_of(engine, "agents_total=3")
    root = agent_of(run, "root")
    agent_of(root, "a").leave(None)
    agent_of(root, "a").leave(ValueError("x"))
    with pytest.raises(SpawnDeniedError) as caught:
        agent_of(root, "b")
    assert str(caught.value) == (
        "No room for agent 'b': 3 of 3 agents were entered in run 'r', the first one included. Raise agents_total=3 or leave it out."
    )
    assert (caught.value.agent_id, caught.value.max_agents, caught.value.limit_kind) == ("b", 3, "agents_total")
    assert used(run) == {"agents_total": 3}


def test_agents_of_one_name_are_counted_for_themselves(engine):
    run = run_of(engine, "agents_total@a=1", "agents_total=9")
    agent_of(run, "a").leave(None)
    agent_of(run, "b").leave(None)
    with pytest.raises(SpawnDeniedError, match=r"1 of 1 agents of name 'a' were entered in run 'r'\. Raise agents_total@a=1 or"):
        agent_of(run, "a")
    assert used(run) == {"agents_total@a": 1, "agents_total": 2}


def test_agents_of_a_run_inside_count_for_the_run_around(engine):
    run = run_of(engine, "agents_total=2")
    inner = opened(ScopeKind.RUN, run, "inner", "agents_total=5")
    for _ in range(2):
        agent_of(inner).leave(None)
    with pytest.raises(SpawnDeniedError, match="entered in run 'r'"):
        agent_of(inner)
    assert (used(run), used(inner)) == ({"agents_total": 2}, {"agents_total": 2})


def test_children_are_counted_for_each_parent_while_they_are_open(engine):
    run = run_of(engine, "fan_out=2")
    root = agent_of(run, "root")
    a, b = agent_of(root, "a"), agent_of(root, "b")
    with pytest.raises(SpawnDeniedError) as caught:
        agent_of(root, "c")
    assert str(caught.value) == (
        "No room for agent 'c': 2 of 2 agents live under agent 'root' of run 'r'. "
        "Raise fan_out=2 or leave it out, or end one of them first."
    )
    assert (caught.value.max_agents, caught.value.limit_kind) == (2, "fan_out")
    grandchildren = [agent_of(a, "x"), agent_of(a, "y")]  # a parent of its own
    assert used(run) == {"fan_out": 2}
    b.leave(KeyError("b"))
    agent_of(root, "c").leave(None)
    for scope in (*grandchildren, a, root):
        scope.leave(None)
        scope.leave(None)
    assert (used(run), run.broods) == ({"fan_out": 0}, {})


def test_a_block_between_parent_and_child_changes_nothing_and_counts_its_own(engine):
    root = agent_of(run_of(engine, "fan_out=3"), "root")
    agent_of(root, "before")
    block = opened(ScopeKind.BLOCK, root, "b", "fan_out=1")
    agent_of(block, "inside")
    with pytest.raises(SpawnDeniedError, match="1 of 1 agents live under agent 'root'"):
        agent_of(block, "more")
    agent_of(root, "third")
    with pytest.raises(SpawnDeniedError, match="3 of 3"):
        agent_of(root, "fourth")


def test_a_fan_out_of_a_name_holds_for_parents_of_that_name(engine):
    run = run_of(engine, "fan_out@boss=1")
    boss, other = agent_of(run, "boss"), agent_of(run, "other")
    agent_of(boss, "a")
    with pytest.raises(SpawnDeniedError, match="Raise fan_out@boss=1"):
        agent_of(boss, "b")
    for name in ("boss", "b", "c"):  # a child of that name is not a parent of that name
        agent_of(other, name)
    assert used(run) == {"fan_out@boss": 1}


@pytest.mark.parametrize("how", ["own", "template", "pool"])
def test_an_agents_fan_out_is_not_its_childrens(engine, how):
    run = run_of(engine, *(["agent.boss.fan_out=1"] if how == "template" else []))
    boss = agent_of(run, "boss", *([] if how == "template" else ["fan_out=1"]))
    child = agent_of(boss, "child", share="pool" if how == "pool" else "own")
    with pytest.raises(SpawnDeniedError, match="1 of 1 agents live under agent 'boss'"):
        agent_of(boss, "more")
    agent_of(child, "x")
    agent_of(child, "y")


def test_agents_without_a_parent_agent_in_their_run_are_nobodys_children(engine):
    run = run_of(engine, "fan_out=0")
    agent = agent_of(run, "a")
    agent_of(run, "b")
    agent_of(opened(ScopeKind.RUN, agent, "inner"), "c")
    with pytest.raises(SpawnDeniedError, match="0 of 0 agents live under agent 'a'"):
        agent_of(agent, "d")


def test_nothing_allowed_refuses_the_first(engine):
    with pytest.raises(SpawnDeniedError, match="0 of 0 agents were entered"):
        agent_of(run_of(engine, "agents_total=0"))


@pytest.mark.parametrize("where", ["own", "template"])
def test_agents_in_all_do_not_belong_to_an_agent(engine, where):
    with pytest.raises(ConfigurationError, match=r"agents_total=3' counts the agents entered in a run, .* with fan_out="):
        run_of(engine, "agent.a.agents_total=3") if where == "template" else agent_of(run_of(engine), "a", "agents_total=3")


def test_a_session_counts_the_agents_of_all_its_runs(engine):
    root = Scope.of_process(engine)
    for _ in range(2):
        run = opened(ScopeKind.RUN, root, "r", "session.agents_total=2", session_id="s")
        agent_of(run).leave(None)
        run.leave(None)
    with pytest.raises(SpawnDeniedError, match="2 of 2 agents were entered in session 's'"):
        agent_of(opened(ScopeKind.RUN, root, "r", session_id="s"))


# All or nothing


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (["depth=1", "agents_total=9", "fan_out=9"], BudgetExhaustedError),
        (["depth=9", "agents_total=2", "fan_out=9"], SpawnDeniedError),
        (["depth=9", "agents_total=9", "fan_out@a=0"], SpawnDeniedError),
        (["depth=9", "agents_total=9", "fan_out=9", "agents=2"], SpawnDeniedError),
    ],
)
def test_who_is_refused_by_one_counts_for_none(engine, ledger, limits, error):
    run = run_of(engine, *limits)
    root = agent_of(run, "root")
    parent = agent_of(root, "a")
    held = len(ledger)  # the slots of those two, where other processes take theirs from the same
    for _ in range(3):
        with pytest.raises(error):
            agent_of(parent, "b")
    seen = used(run)
    assert seen["agents_total"] == 2
    assert run.broods == {key: {parent.facts.scope_id} for key in run.broods}
    assert (run.usage.agents, run.spawn.stats().active, len(ledger)) == (2, 2, held)


@pytest.mark.parametrize("step", ["reserve", "settle"])
def test_an_entry_that_is_interrupted_leaves_nothing_behind(engine, ledger, monkeypatch, step):
    run = run_of(engine, "agents_total=9", "fan_out=9", spawn_budget=SpawnBudget(9))
    root = agent_of(run, "root")
    held = len(ledger)
    real = getattr(ledger, step)

    def interrupted(*args, **more):
        answer = real(*args, **more)
        if armed:
            armed.pop()
            raise KeyboardInterrupt
        return answer

    armed = [True]
    monkeypatch.setattr(ledger, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent_of(root, "a")
    assert (run.broods, run.spawn.stats().active, len(ledger)) == ({}, 1, held)
    agent_of(root, "a").leave(None)
    assert used(run)["agents_total"] == (2 if step == "reserve" else 3)  # interrupted once it was settled, it had been let in


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BudgetExhaustedError("the counts cannot be written")])
@pytest.mark.parametrize("after", [False, True])
def test_one_that_is_asked_for_ahead_counts_for_nothing_also_when_asking_fails(engine, ledger, monkeypatch, error, after):
    run = run_of(engine, "agents_total=9", "fan_out=2", spawn_budget=SpawnBudget(9))
    root = agent_of(run, "root")
    children = [agent_of(root, name) for name in "ab"]
    brood = {each.facts.scope_id for each in children}
    real = ledger.reserve

    def fails(request):
        if after:
            real(request)
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "reserve", fails)
        for _ in range(2):
            with pytest.raises(type(error)):
                AgentAdmission.ahead(root, AgentId("w"), Priority.NORMAL, children=True).refuse()
    assert list(run.broods.values()) == [brood]
    assert used(run)["agents_total"] == 3
    for each in children:
        each.leave(None)
    assert run.broods == {}
    agent_of(root, "later")


def test_the_outermost_breach_is_told(engine):
    run = run_of(engine, "agents_total=1")
    root = agent_of(run, "root", "fan_out=0")
    with pytest.raises(SpawnDeniedError, match="entered in run"):
        agent_of(root, "a")
    run.set_limit("agents_total", 5)
    with pytest.raises(SpawnDeniedError, match="live under agent 'root'"):
        agent_of(root, "a")


# Told, changed, watched


def test_near_and_exceeded_are_told_once_and_each_denial_counted(engine, heard):
    run = run_of(engine, "agents_total=5", "fan_out=5:on=ask")
    root = agent_of(run, "root")
    for name in "abcdef":
        with suppress(SpawnDeniedError):
            agent_of(root, name, priority=Priority.HIGH)
    assert heard.events == [
        ("agents_total", "limit_nearing", "admitted", 4),
        ("fan_out", "limit_nearing", "admitted", 4),
        ("agents_total", "limit_exceeded", "denied", 5),
    ]
    assert heard.spawns == [("e", "high"), ("f", "high")]
    assert [(one.denied, one.events) for one in run.readings()] == [(2, ("limit_nearing", "limit_exceeded")), (0, ("limit_nearing",))]
    assert run.spend().refused == 2


def test_a_fan_out_that_refuses_is_told_whichever_agent_was_counted_last(engine, heard):
    root = agent_of(run_of(engine, "fan_out=2"), "root")
    a, _ = agent_of(root, "a"), agent_of(root, "b")
    agent_of(a, "x")
    with pytest.raises(SpawnDeniedError):
        agent_of(root, "c")
    assert heard.events == [("fan_out", "limit_nearing", "admitted", 2), ("fan_out", "limit_exceeded", "denied", 2)]


def test_a_raise_lets_more_in_and_arms_the_events_again(engine, heard):
    run = run_of(engine, "agents_total=1", "fan_out@root=1")
    root = agent_of(run, "root")
    for kind, value in (("agents_total", 9), ("fan_out@root", 3)):
        with pytest.raises(SpawnDeniedError):
            [agent_of(root, name) for name in "ab"]
        run.set_limit(kind, value)
    child = agent_of(root, "c")
    run.set_limit("fan_out@root", 1)
    with pytest.raises(SpawnDeniedError, match=r"2 of 1 agents live .* Raise fan_out@root=1"):
        agent_of(root, "d")
    child.leave(None)
    assert [kind for kind, event, *_ in heard.events if event == "limit_exceeded"] == ["agents_total", "fan_out", "fan_out"]


def test_what_is_watched_lets_everybody_in(engine, heard):
    run = run_of(engine, "agents_total=1:on=observe", "fan_out=0:on=observe")
    root = agent_of(run, "root")
    agent_of(root, "a")
    assert used(run) == {"agents_total": 2, "fan_out": 1}
    assert {(kind, decision) for kind, event, decision, _ in heard.events if event == "limit_exceeded"} == {
        ("agents_total", "observed"),
        ("fan_out", "observed"),
    }
    assert heard.spawns == [("a", "normal")]


def test_limits_that_are_set_aside_count_and_let_in(engine):
    run = run_of(engine, "agents_total=1:suspend=allow", "fan_out=0:suspend=allow")
    root = agent_of(run, "root")
    aside = Opening(kind=ScopeKind.BLOCK, suspended=frozenset({"agents_total", "fan_out"}), reason="judge").open(root)
    judge = agent_of(aside, "judge")
    assert used(run) == {"agents_total": 2, "fan_out": 1}
    judge.leave(None)
    aside.leave(None)
    with pytest.raises(SpawnDeniedError):
        agent_of(root, "a")


def test_a_run_goes_on_counting_from_a_snapshot_and_nobody_lives_in_it_yet(engine):
    run = run_of(engine, "agents_total=3", "fan_out=1")
    root = agent_of(run, "root")
    agent_of(root, "a")
    saved = Snapshot.from_json(run.snapshot().to_json())
    run.leave(None)
    again = run_of(engine, "agents_total=3", "fan_out=1", resume=saved, run_id=saved.run_id)
    assert used(again) == {"agents_total": 2, "fan_out": 0}
    root = agent_of(again, "root")
    with pytest.raises(SpawnDeniedError, match="3 of 3 agents were entered"):
        agent_of(root, "b")
    again.set_limit("agents_total", 9)
    agent_of(root, "b")


def test_a_new_limit_begins_at_what_the_run_had_entered(engine):
    run = run_of(engine)
    for _ in range(4):
        agent_of(run).leave(None)
    saved = run.snapshot()
    run.leave(None)
    with pytest.raises(SpawnDeniedError, match="4 of 4 agents were entered"):
        agent_of(run_of(engine, "agents_total=4", resume=saved, run_id=saved.run_id))


# At once


@pytest.mark.parametrize("limit", ["agents_total=9", "fan_out=8"])
def test_no_more_get_in_than_there_is_room_for_however_many_come_at_once(engine, ledger, limit):
    run = run_of(engine, limit)
    root = agent_of(run, "root")
    start, done = threading.Barrier(AT_ONCE), threading.Barrier(AT_ONCE)

    def child(number):
        start.wait(20)
        scope = None
        with suppress(SpawnDeniedError):
            scope = agent_of(root, f"c{number}")
        done.wait(20)
        if scope is not None:
            scope.leave(None)
        return scope

    with ThreadPoolExecutor(AT_ONCE) as pool:
        got = [scope for scope in pool.map(child, range(AT_ONCE)) if scope is not None]
    assert len(got) == 8
    assert (run.broods, run.spawn.stats().active, len(ledger)) == ({}, 1, 0)
    assert run.readings()[0].denied == AT_ONCE - 8


def test_who_comes_and_goes_is_never_refused_while_there_is_room(engine):
    root = agent_of(run_of(engine, "fan_out=8"), "root")

    def busy(number):
        for _ in range(20):
            agent_of(root, f"c{number}").leave(None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(busy, range(8)))  # each raises what it was refused with
    assert root.parent.broods == {}


def test_processes_share_the_agents_in_all_and_count_children_each_for_itself(tmp_path):
    ledgers = [SqliteLedger(tmp_path / "ledger.db", shares=lambda account: account.facts.surrounding) for _ in range(2)]
    roots = []
    for ledger in ledgers:
        run = run_of(Engine(ledger=ledger), "agents_total=5", "fan_out=1", run_id="program", surrounding=True)
        roots.append(agent_of(run, "root"))
    children = [agent_of(root, "child") for root in roots]
    for root in roots:
        with pytest.raises(SpawnDeniedError, match="1 of 1 agents live"):
            agent_of(root, "more")
    children[0].leave(None)
    agent_of(roots[0], "fifth").leave(None)
    children[1].leave(None)
    with pytest.raises(SpawnDeniedError, match="5 of 5 agents were entered"):
        agent_of(roots[1], "sixth")
    for ledger in ledgers:
        ledger.close()


# Against a model

ACTS = st.lists(st.tuples(st.sampled_from(["open", "close"]), st.integers(0, 9), st.sampled_from(["a", "b"])), max_size=40)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ACTS, st.integers(0, 8), st.integers(0, 3), st.integers(0, 3))
def test_any_tree_is_let_in_as_far_as_the_limits_say(acts, most, fan, fan_of_a):
    engine = Engine()
    run = run_of(engine, f"agents_total={most}", f"fan_out={fan}", f"fan_out@a={fan_of_a}")
    living, parents, entered = [], {}, 0
    for act, which, name in acts:
        if act == "close" and living:
            scope = living.pop(which % len(living))
            scope.leave(None)
            del parents[scope]
            continue
        parent = living[which % len(living)] if living and which else run
        siblings = sum(one is parent for one in parents.values())
        cap = min(fan, fan_of_a if parent is not run and parent.facts.agent_name == "a" else fan)
        allowed = entered < most and (parent is run or siblings < cap)
        scope = None
        with suppress(SpawnDeniedError):
            scope = agent_of(parent, name)
        assert (scope is not None) == allowed
        if scope is not None:
            entered += 1
            living.append(scope)
            parents[scope] = parent
    for scope in living:
        scope.leave(None)
    assert (run.broods, used(run)["agents_total"], len(engine.ledger)) == ({}, entered, 0)
