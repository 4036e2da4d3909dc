"""The plan of a scope: whatever is declared, set, set aside, joined or closed holds for the very next charge, wherever it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ravi_otel import BudgetExhaustedError
from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.plan import DEFAULT_RULES, ChargingRules, Plan
from ravi_otel._enforcement.scope import Scope
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import Admission, ScopeKind, formula_of
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.testing import ManualClock

EXAMPLES = int(os.environ.get("RAVI_EXAMPLES", "60"))
DAY_S = 86_400.0
OWN = ("", ":suspend=allow", ":per=day", ":by=user", ":per=day:by=user:suspend=allow", "@a", "@a:suspend=allow")
"""What a limit of a run, an agent or a block may be, besides its number."""
JOINED = {"session": "", "tenant": ":per=day:by=user"}
VALUES = st.integers(0, 5)


@dataclass
class Known:
    """One limit as the rules have it: what is counted, by whom and in which window."""

    how: str
    value: int
    declared: int
    used: dict[tuple[str | None, int | None], int] = field(default_factory=dict)

    @property
    def agent(self) -> str | None:
        return "a" if self.how.startswith("@a") else None

    def counter(self, user: str | None, day: int) -> tuple[str | None, int | None]:
        return user if "by=user" in self.how else None, day if "per=day" in self.how else None


@dataclass
class Place:
    """One scope as the rules have it."""

    kind: str
    agent: str | None
    user: str | None
    around: list[Place]
    limits: list[Known] = field(default_factory=list)
    sets_aside: bool = False
    tenant: str | None = None

    def upwards(self) -> list[Place]:
        return [self, *self.around]

    def charged(self) -> list[Known]:
        """Each scope that is no agent's, and the innermost agent's unless a run with an agent of its own is in between."""
        found, agents = [], [each for each in self.upwards() if each.kind == "agent"]
        for each in self.upwards():
            if each.kind != "agent" or each is agents[0]:
                found += [limit for limit in each.limits if limit.agent in (None, self.agent)]
        return found


class Tree(RuleBasedStateMachine):
    """Open, change and close scopes, and hold each charge to what the rules say of it."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock(epoch_s=1_000 * DAY_S)
        self.engine = Engine(clock=self.clock)
        self.scopes: list[tuple[Scope, Place]] = [(Scope.of_process(self.engine), Place("process", None, None, []))]
        self.joined: dict[str, tuple[Scope, Place]] = {}

    def pick(self, index: int) -> tuple[Scope, Place]:
        return self.scopes[index % len(self.scopes)]

    def opened(self, parent: tuple[Scope, Place], kind: str, limits: dict[str, int], **more: object) -> tuple[Scope, Place]:
        scope, place = parent
        agent = {"agent": more.get("name"), "run": None}.get(kind, place.agent)
        made = Place(kind, agent, more.get("user_id") or place.user, place.upwards(), tenant=place.tenant)
        made.limits = [Known(how, value, value) for how, value in limits.items()]
        asked = tuple(parse_limit(_written(how, value)) for how, value in limits.items())
        if kind == "agent":
            more["agent_id"] = more["name"]
        pair = Opening(kind=ScopeKind(kind), limits=asked, **more).open(scope), made
        self.scopes.append(pair)
        return pair

    @rule(
        index=st.integers(0, 40), limits=st.dictionaries(st.sampled_from(OWN), VALUES, max_size=2), user=st.sampled_from([None, "u", "v"])
    )
    def open_run(self, index: int, limits: dict[str, int], user: str | None) -> None:
        self.opened(self.pick(index), "run", limits, user_id=user)

    @rule(
        index=st.integers(0, 40),
        limits=st.dictionaries(st.sampled_from(OWN), VALUES, max_size=2),
        name=st.sampled_from("ab"),
    )
    def open_agent(self, index: int, limits: dict[str, int], name: str) -> None:
        self.opened(self.pick(index), "agent", limits, name=name)

    @rule(index=st.integers(0, 40), limits=st.dictionaries(st.sampled_from(OWN), VALUES, max_size=2), aside=st.booleans())
    def open_block(self, index: int, limits: dict[str, int], *, aside: bool) -> None:
        kinds = frozenset({"rows"}) if aside else frozenset()
        _, place = self.opened(self.pick(index), "block", limits, suspended=kinds)
        place.sets_aside = aside

    @rule(index=st.integers(0, 40), kind=st.sampled_from(sorted(JOINED)), value=st.none() | VALUES)
    def join(self, index: int, kind: str, value: int | None) -> None:
        """Open a run in a session or a tenant, with or without a limit declared on it."""
        scope, place = self.pick(index)
        limits = () if value is None else (parse_limit(_written(JOINED[kind], value, f"{kind}.")),)
        run = Opening(kind=ScopeKind.RUN, limits=limits, **{f"{kind}_id": kind}).open(scope)
        tenant = kind if kind == "tenant" else place.tenant
        key = f"{kind} of {tenant}"  # the session of a tenant is another one
        if key not in self.joined:
            shared = next(each for each in run.upwards() if each.facts.kind == kind)
            outer = self.joined["tenant of tenant"][1] if kind == "session" and tenant else self.scopes[0][1]
            self.joined[key] = shared, Place(kind, None, None, outer.upwards())
        mine = self.joined[key][1]
        if value is not None and not mine.limits:
            mine.limits.append(Known(JOINED[kind], value, value))
        elif value is not None and value < mine.limits[0].declared:
            mine.limits[0].declared, mine.limits[0].value = value, min(value, mine.limits[0].value)
        around = [*([] if any(each is mine for each in place.upwards()) else [mine]), *place.upwards()]
        self.scopes.append((run, Place("run", None, place.user, around, tenant=tenant)))

    @rule(index=st.integers(0, 40), value=VALUES, agent=st.sampled_from(["", "@a"]))
    def set_or_lift(self, index: int, value: int, agent: str) -> None:
        known = [*self.scopes, *self.joined.values()]
        scope, place = known[index % len(known)]
        named = [limit for limit in place.limits if (limit.agent is None) == (not agent)]
        if named:
            scope.set_limit(f"charge.rows{agent}", value)
            for limit in named:
                limit.value = value

    @rule(index=st.integers(0, 40))
    def close(self, index: int) -> None:
        """Leave a scope; what goes on in it is charged as before, and what it has set aside refuses again."""
        scope, place = self.pick(index)
        if place.kind != "process" and scope.clock.ended_ns is None:
            scope.leave(None)
            place.sets_aside = False

    @rule(days=st.sampled_from([0.5, 1.0]))
    def let_time_pass(self, days: float) -> None:
        self.clock.advance(days * DAY_S)

    @rule(index=st.integers(0, 40))
    def charge(self, index: int) -> None:
        scope, place = self.pick(index)
        day = int(self.clock.time() // DAY_S)
        aside = any(each.sets_aside for each in place.upwards())
        counted = [(limit, limit.counter(place.user, day)) for limit in place.charged()]
        full = [
            limit
            for limit, counter in counted
            if limit.used.get(counter, 0) + 1 > limit.value and not (aside and "suspend=allow" in limit.how)
        ]
        try:
            scope.charge("rows")
        except BudgetExhaustedError:
            assert full
            return
        assert not full
        for limit, counter in counted:
            limit.used[counter] = limit.used.get(counter, 0) + 1

    @invariant()
    def no_plan_is_stale(self) -> None:
        for scope, _ in self.scopes:
            assert scope.plan == scope.compile_plan()
            assert scope.plan.accounts() == scope.compile_plan().accounts()


def _written(how: str, value: int, prefix: str = "") -> str:
    agent, colon, options = how.partition(":")
    return f"{prefix}charge.rows{agent}={value}{colon}{options}"


def test_any_change_of_limits_holds_for_the_very_next_charge() -> None:
    """Compare with the rules, and each plan with one that is compiled anew."""
    few = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Tree, settings=few)


# -- one plan by itself ------------------------------------------------------------------------------------------------

FACTS = ScopeFacts(scope_id="s", kind=ScopeKind.RUN)


def plan_of(*limits: str, rules: tuple[ChargingRules, ...] = (), **more: bool) -> Plan:
    admission = Admission.ESTIMATE
    chain = tuple(Account(parse_limit(limit), FACTS, origin="the limit", admission=admission) for limit in limits)
    return Plan.of(FACTS, 7, chain, (), rules, **more)


def test_a_plan_gathers_what_is_set_aside_and_the_parts_of_the_agents_around() -> None:
    """A scope that changes nothing adds nothing."""
    engine = Engine()
    scope = Scope.of_process(engine)
    parts = [Opening(kind=ScopeKind.AGENT, agent_id=name, name=name).open(scope) for name in "ab"]
    rules = (
        DEFAULT_RULES,
        ChargingRules(suspended=frozenset({"rows"}), carved=parts[0]),
        ChargingRules(suspended=frozenset({"cost"})),
        ChargingRules(carved=parts[1]),
    )
    found = plan_of("requests=9", rules=rules)
    assert (found.suspended, found.carved) == (frozenset({"rows", "cost"}), (parts[0], parts[1]))
    assert (found.revision, found.facts, found.clocks, found.counts_agents) == (7, FACTS, (), False)
    assert plan_of("requests=9", counts_agents=True).counts_agents is True


def test_a_plan_counts_by_the_formulas_of_its_limits_and_by_no_other() -> None:
    assert plan_of("tokens=9", "requests=9").formulas == frozenset()
    assert plan_of("tokens=9:count=2*input+3*output", "tokens=9").formulas == {formula_of("2*input+3*output")}


def test_a_plan_is_kept_until_a_limit_changes() -> None:
    """It is compiled anew for another limit, and for nothing else."""
    scope = Opening(kind=ScopeKind.RUN, limits=(parse_limit("charge.rows=2"),)).open(Scope.of_process(Engine()))
    plan = scope.plan
    scope.charge("rows")
    assert scope.plan is plan
    scope.set_limit("agents", 1)
    assert scope.plan is not plan
    assert scope.plan is scope.plan
