"""Every ledger against a model of its own: random limits over nested scopes, and what must hold after every step."""

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule, run_state_machine_as_test

from ravi_otel._enforcement.ledger.judge import Grant
from ravi_otel.policy._limits import Kind, Outcome

LONG = max(1, int(os.environ.get("RAVI_LONG") or 1))
SCOPES = ("session", "run", "block", "agent")
KINDS = (Kind.TOKENS, Kind.COST, Kind.REQUESTS, Kind.TOOL_CALLS)
COUNTED = (Kind.REQUESTS, Kind.TOOL_CALLS)


@dataclass
class Model:
    """One limit, kept by arithmetic of the model's own."""

    kind: str
    scope: str
    limit: int
    observe: bool
    used: int = 0
    held: int = 0
    draining: bool = False
    near: bool = False
    exceeded: bool = False
    denied: int = 0
    ceiling: int = 0
    told: list = field(default_factory=list)
    since_armed: list = field(default_factory=list)

    @property
    def warn(self):
        return -(-self.limit * 8 // 10)

    def verdict(self, ask, least):
        need = ask if self.kind in COUNTED else least
        if self.draining:
            return "draining"
        if self.used + need > self.limit:
            if self.used < self.limit and (self.scope == "session" or self.used < self.warn):
                return "too_large"
            return "exhausted"
        if self.kind not in COUNTED and self.limit - self.used - self.held < least:
            return "contended"
        return None

    def look(self, *, denied=False):
        if not self.near and self.limit > 0 and self.used >= self.warn:
            self.near = True
            self._tell("limit_nearing")
        if not self.exceeded and (denied or self.used > self.limit):
            self.exceeded = True
            self._tell("limit_exceeded")

    def _tell(self, event):
        self.told.append(event)
        self.since_armed.append(event)


class LedgerMachine(RuleBasedStateMachine):
    new_desk = None
    ops = Bundle("ops")

    @initialize(
        limits=st.lists(
            st.tuples(st.sampled_from(SCOPES), st.sampled_from(KINDS), st.integers(0, 60), st.sampled_from((False, False, False, True))),
            min_size=1,
            max_size=7,
        )
    )
    def open(self, limits):
        self.desk = type(self).new_desk()
        self.live = {}
        self.ended = []
        limits.sort(key=lambda limit: SCOPES.index(limit[0]))
        self.models = [Model(kind, scope, value, observe, ceiling=value) for scope, kind, value, observe in limits]
        self.accounts = [
            self.desk.account(one.kind, one.limit, one.scope, on_exceed=Outcome.OBSERVE if one.observe else Outcome.RAISE)
            for one in self.models
        ]

    @rule(target=ops, depth=st.integers(1, 4), sizes=st.tuples(st.integers(0, 30), st.integers(0, 30)), retold=st.booleans())
    def reserve(self, depth, sizes, retold):
        least, want = sorted(sizes)
        lines, picked = [], []
        for number, (account, model) in enumerate(zip(self.accounts, self.models, strict=True)):
            if SCOPES.index(model.scope) < depth:
                ask = (1, 1) if model.kind in COUNTED else (want, least)
                lines.append((account, *ask))
                picked.append((number, model, *ask))
        op = self.desk.op()
        answer = self.desk.ask(*lines, op=op)
        expected = self._reserve(picked)
        if isinstance(answer, Grant):
            assert expected is None
            self.live[op] = self._grants(picked)
            if retold:
                assert self.desk.ask(*lines, op=op) == answer
        else:
            number, reason = expected
            assert answer.account is self.accounts[number]
            assert answer.reason == reason
        return op

    def _reserve(self, picked):
        for number, model, ask, least in picked:
            reason = model.verdict(ask, least)
            if reason is None or model.observe:
                continue
            if reason != "contended":
                model.denied += 1
            if reason == "exhausted":
                model.draining = model.scope != "session" and model.kind != Kind.TOOL_CALLS
                model.look(denied=True)
            return number, reason
        first = True
        for _, model, ask, least in picked:
            if model.observe and first and model.verdict(ask, least) not in (None, "contended"):
                model.denied += 1
                first = False
        return None

    def _grants(self, picked):
        grants = {}
        for number, model, ask, least in picked:
            if model.kind in COUNTED:
                over = model.used + ask > model.limit
                model.used += ask
                model.look(denied=over)
                grants[number] = ask
            else:
                room = model.limit - model.used - model.held
                grants[number] = ask if model.observe else max(0, min(ask, room))
                model.held += grants[number]
                model.look(denied=model.observe and model.used + least > model.limit)
        return grants

    @rule(op=consumes(ops), tokens=st.none() | st.integers(-5, 50), cost=st.none() | st.integers(0, 50))
    def settle(self, op, tokens, cost):
        actual = {kind: amount for kind, amount in ((Kind.TOKENS, tokens), (Kind.COST, cost)) if amount is not None}
        settled = self.desk.settle(op, actual or None)
        overage = []
        for number, grant in self.live.pop(op, {}).items():
            model = self.models[number]
            if model.kind in COUNTED:
                continue
            amount = max(0, actual.get(model.kind, grant))
            model.held -= grant
            model.used += amount
            model.ceiling += max(0, amount - grant)
            model.look()
            if amount > grant:
                overage.append((self.accounts[number], amount - grant))
        assert list(settled.overage) == overage
        self.ended.append(op)

    @rule(op=consumes(ops))
    def release(self, op):
        self.desk.release(op)
        for number, grant in self.live.pop(op, {}).items():
            model = self.models[number]
            if model.kind in COUNTED:
                model.used -= grant
                model.draining = model.draining and model.used >= model.warn
            else:
                model.held -= grant
        self.ended.append(op)

    @rule(pick=st.integers(0, 6), value=st.integers(0, 90))
    def retune(self, pick, value):
        number = pick % len(self.models)
        model = self.models[number]
        self.desk.retune(self.accounts[number], value)
        if value > model.limit:
            model.draining = model.near = model.exceeded = False
            model.since_armed.clear()
        model.limit = value
        model.ceiling = max(value, model.used + model.held)

    @rule(pick=st.integers(0, 200), settle=st.booleans())
    def end_again(self, pick, settle):
        if self.ended:
            op = self.ended[pick % len(self.ended)]
            self.desk.settle(op, {Kind.TOKENS: 1_000}) if settle else self.desk.release(op)

    @invariant()
    def agrees(self):
        for number, (account, model) in enumerate(zip(self.accounts, self.models, strict=True)):
            shown = account.used, account.held, account.value, account.draining, account.denied, list(account.events)
            assert shown == (model.used, model.held, model.limit, model.draining, model.denied, model.told)
            if model.kind in COUNTED:
                assert account.held == 0
            else:
                assert account.held == sum(grants.get(number, 0) for grants in self.live.values())
            if not model.observe:
                assert account.used + account.held <= model.ceiling
            assert account.used >= 0 <= account.held
            assert len(set(model.since_armed)) == len(model.since_armed)


def test_a_ledger_agrees_with_a_model_that_shares_nothing_with_it(new_desk):
    machine = type("Machine", (LedgerMachine,), {"new_desk": staticmethod(new_desk)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 * LONG,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_itself_refuses_at_zero(kind):
    assert Model(kind, "run", 0, observe=False).verdict(1, 1) == "exhausted"
