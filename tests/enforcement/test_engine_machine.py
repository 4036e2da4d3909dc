"""Random trees of real scopes, limits of every kind and shape, and all that may become of an operation, against a model of our own.

`RAVI_LONG=1000000` takes at least so many steps (`-s` prints how many there were).
"""

import importlib.util
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Reservation
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.plan import Estimate
from ravi_otel._enforcement.scope import Scope
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError, CancellationError
from ravi_otel.hooks._listeners import Listeners
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Call


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draws = load("engine_draws")
model = draws.model
CENT, Model, Node, Operation = model.CENT, model.Model, model.Node, model.Operation
ACTUAL, AMOUNTS, ANY, CALLS, MORE = draws.ACTUAL, draws.AMOUNTS, draws.ANY, draws.CALLS, draws.MORE
PLACES, SOME, TERMS = draws.PLACES, draws.SOME, draws.TERMS
Desk, Ears, call_asks, limit_of = draws.Desk, draws.Ears, draws.call_asks, draws.limit_of

LONG = int(os.environ.get("RAVI_LONG") or 0)
MOST_SCOPES = 14


class EngineMachine(RuleBasedStateMachine):
    desk = None

    @initialize(terms=st.lists(TERMS, min_size=1, max_size=4), session=SOME, inside=st.lists(PLACES, min_size=2, max_size=5))
    def begin(self, terms, session, inside):
        for op_id in self.desk.begun:  # by a game that failed
            run_sync(self.desk.ledger.release(op_id))
        self.desk.begun.clear()
        self.desk.examples += 1
        self.ears = Ears()
        self.engine = Engine(ledger=self.desk.ledger, listeners=Listeners([self.ears]), clock=self.desk.clock)
        self.model = Model()
        self.told = Counter()
        terms = self.model.once([one for one in terms if one.place != "session"])
        self.model.add(self.model.root, terms)
        self.model.root.scope = Scope.of_process(self.engine, [limit_of(one) for one in terms])
        self.see(self.model.root)
        self._open(self.model.root, "run", "r", session, session="s1")
        for outer, kind, name, some, pools in inside:
            self._open(self.pick(outer), kind, name, some, pools=pools and kind == "agent")

    # -- scopes -------------------------------------------------------------------------------------------------------

    def pick(self, number):
        return self.model.nodes[-1 - number % len(self.model.nodes)]  # small numbers are drawn more often, and leaves matter most

    def pick_op(self, number):
        return list(self.model.live.values())[number % len(self.model.live)] if self.model.live else None

    @staticmethod
    def see(node):
        """Lay the model's limits beside the real ones, which must be as many and the same."""
        named = [f"{book.kind}@{book.agent}" if book.agent else book.kind for book in node.books]
        assert [account.limit.label for account in node.scope.accounts] == named
        for book, account in zip(node.books, node.scope.accounts, strict=True):
            book.account = account

    @precondition(lambda self: len(self.model.nodes) < MOST_SCOPES)
    @rule(
        outer=ANY,
        kind=st.sampled_from(("run", "agent", "agent", "agent", "block", "handoff")),
        name=st.sampled_from("ab"),
        terms=SOME | st.just([]),
        pools=st.booleans(),
        session=st.sampled_from((None, None, "s1", "s2")),
        tenant=st.sampled_from((None, None, "t1")),
    )
    def open(self, outer, kind, name, terms, pools, session, tenant):
        if kind == "run":
            self._open(self.pick(outer), kind, name, terms, session=session, tenant=tenant)
        else:
            self._open(self.pick(outer), kind, name, terms, pools=pools and kind == "agent")
        self.compare()

    def _open(self, outer, kind, name, terms, *, pools=False, session=None, tenant=None):
        session, tenant = (None if one is None else f"{one}-{self.desk.examples}" for one in (session, tenant))
        under, also, owner = self.model.place(outer, kind, session, tenant)
        enclosing = [*also, *(one for each in (*also, under) for one in each.outwards)]
        # A limit that joins a session while calls are in flight there holds what they hold: tests/runtime/test_who_is_charged.py.
        joins = not self.model.live and any(each.kind == "session" for each in enclosing)
        there = [book.terms for each in enclosing if each.kind == "session" for book in each.books]
        others = {one.counter for one in terms if one.place == "session"} & {one.counter for one in there}
        again = {one.same for one in there}
        terms = [one for one in terms if one.place != "session" or (joins and (one.counter not in others or one.same in again))]
        terms = self.model.once(terms)
        note((kind, terms))
        ask = Opening(
            kind=ScopeKind(kind),
            name=name,
            limits=tuple(limit_of(one) for one in terms),
            session_id=session,
            tenant_id=tenant,
            agent_id=name if kind == "agent" else None,
            share="pool" if pools else "own",
        )
        if any(each.killed for each in enclosing):
            with pytest.raises(BudgetExhaustedError, match="was closed"):
                ask.open(outer.scope)
        else:
            node = Node(kind, name, under, also, pools, owner)
            self.model.add(node, terms)
            node.scope = ask.open(outer.scope)
        for each in self.model.nodes:
            if each.scope is None:
                each.scope = self.engine.joined[f"{each.kind}:{each.tenant!r}", each.name]
            self.see(each)

    @rule(pick=ANY, error=st.sampled_from((None, None, ValueError("x"), BudgetExhaustedError("y"))))
    def close(self, pick, error):
        """Leave a scope, in whatever order."""
        node = self.pick(pick)
        if not node.ended and node.kind not in model.JOINED:
            node.ended = True
            assert not node.scope.leave(error)
        self.compare()

    @rule(pick=ANY, sure=st.integers(0, 7))
    def kill(self, pick, sure):
        """Close for good what is in a scope."""
        node = self.pick(pick)
        if not sure and node is not self.model.root:
            node.killed = True
            node.scope.close()
        self.compare()

    @rule(pick=ANY, sure=st.integers(0, 3))
    def cancel(self, pick, sure):
        node = self.pick(pick)
        if not sure and node.kind == "run":
            node.cancelled = True
            node.scope.cancellation.cancel("enough")
        self.compare()

    @rule(pick=ANY, which=ANY, value=st.integers(0, 120))
    def retune(self, pick, which, value):
        node = self.pick(pick)
        if node.books:
            chosen = node.books[which % len(node.books)]
            same = [book for book in node.books if (book.kind, book.agent) == (chosen.kind, chosen.agent)]
            for book in same:
                book.retune(value * CENT if chosen.kind == "cost" else value)
            at = f"@{chosen.agent}" if chosen.agent else ""
            node.scope.set_limit(f"{chosen.kind}{at}", value / 100 if chosen.kind == "cost" else value)
            self.compare(same)

    # -- operations ---------------------------------------------------------------------------------------------------

    @rule(pick=ANY, call=CALLS, checked=st.booleans(), again=st.booleans())
    def reserve(self, pick, call, checked, again):
        """Ask for a call, before it passed the checkpoint or after; the same message may come twice."""
        leaf = self.pick(pick)
        if checked and not self.may_go_on(leaf):
            return
        request = self.ask(leaf, call)
        if again and request.op_id in self.model.live:
            answer = run_sync(self.engine.ledger.reserve(request))
            assert [hold for _, hold in answer.holds] == [hold for _, _, hold in self.model.live[request.op_id].lines]
            self.compare(self.books())

    @rule(pick=ANY, calls=st.lists(st.tuples(CALLS, MORE, ACTUAL), min_size=1, max_size=4))
    def call(self, pick, calls):
        """Make some calls one after the other."""
        leaf = self.pick(pick)
        for call, more, actual in calls:
            op = self.model.live.get(self.ask(leaf, call).op_id)
            if op is not None:
                self.hold_more(op, {"tokens": more, "cost": more * CENT})
                self.end(op, actual, guessed=more == 3)

    def ask(self, leaf, call):
        note((leaf, call))
        asks = call_asks(leaf, **call)
        least, most = sorted(call["cents"])
        asked = Call(
            operation="chat",
            endpoint="chat.completions",
            turn=call["turn"],
            size=call["given"],
            output_cap=call["guess"],
            choices=call["choices"],
            messages=call["messages"],
        )
        lines = leaf.scope.plan.lines(asked, Estimate(call["given"], call["guess"], most * CENT, least * CENT))
        request = Reservation(new_op_id(), lines)
        self.desk.begun.append(request.op_id)
        answer = run_sync(self.engine.ledger.reserve(request))
        self.engine.emit_crossings(answer.crossings)
        taken, refused, observed = self.model.reserve(leaf, asks)
        if refused is not None:
            assert isinstance(answer, Denied), answer
            assert (answer.account, answer.reason) == (refused[0].account, refused[1])
        else:
            held = [(line.account, line.want, hold) for line, hold in answer.holds]
            assert held == [(book.account, want, hold) for book, want, hold in taken]
            self.model.begin(Operation(request.op_id, leaf, taken, observed))
        self.compare([book for book, _, _ in asks])
        return request

    def end(self, op, actual, *, guessed=False):
        note((op.leaf, actual))
        self.model.settle(op, actual or {}, guessed=guessed)
        self.engine.settle(op.op_id, actual, guessed=guessed)
        self.compare([book for book, _, _ in op.lines])

    def may_go_on(self, leaf):
        stopped = leaf.stopped()
        if stopped is None:
            leaf.scope.checkpoint()
            return True
        with pytest.raises(CancellationError if stopped == "cancelled" else BudgetExhaustedError):
            leaf.scope.checkpoint()
        return False

    @rule(pick=ANY, tool=st.sampled_from(("search", "fetch")))
    def start_tool(self, pick, tool):
        leaf = self.pick(pick)
        asks = [(book, 1, 1) for book in leaf.chain() if book.kind in ("tool_calls", f"tool.{tool}")]
        lines = leaf.scope.plan.tool_lines(tool)
        taken, refused, observed = self.model.reserve(leaf, asks)
        if refused is not None:
            with pytest.raises(BudgetExhaustedError):
                leaf.scope.charge_lines(lines, None, new_op_id())
        else:
            op_id = leaf.scope.charge_lines(lines, None, new_op_id())
            assert (op_id is None) == (not asks)
            if op_id is not None:
                self.model.begin(Operation(op_id, leaf, taken, observed))
        self.compare([book for book, _, _ in asks])

    @rule(pick=ANY, amount=AMOUNTS, named=st.sampled_from((None, None, "once", "twice")))
    def charge(self, pick, amount, named):
        leaf = self.pick(pick)
        asks = [(book, amount, amount) for book in leaf.chain() if book.kind == model.OWN_KIND]
        refused = any(each.killed for each in leaf.outwards)
        if not refused and named not in leaf.memory:
            _, refused, _ = self.model.reserve(leaf, asks)
            if refused is None:
                leaf.memory.update([named] if named else [])
                for each in leaf.path:
                    each.charged += amount
        if refused:
            with pytest.raises(BudgetExhaustedError):
                leaf.scope.charge(model.OWN_KIND, amount, op_id=named)
        else:
            leaf.scope.charge(model.OWN_KIND, amount, op_id=named)
        self.compare([book for book, _, _ in asks])
        assert leaf.scope.stats().charged.get(model.OWN_KIND, 0) == leaf.charged

    @rule(number=ANY, tokens=MORE, output=MORE, cents=MORE)
    def extend(self, number, tokens, output, cents):
        op, more = self.pick_op(number), {"tokens": tokens, "output_tokens": output, "cost": cents * CENT}
        if op is not None:
            self.hold_more(op, more)
        elif self.model.over:
            assert not run_sync(self.engine.ledger.extend(self.model.over[number % len(self.model.over)], more)).more

    def hold_more(self, op, more):
        if any(hold for _, _, hold in op.lines):
            answer = run_sync(self.engine.ledger.extend(op.op_id, more))
            self.engine.emit_crossings(answer.crossings)
            given, reason = self.model.extend(op, more)
            assert (dict(answer.more), answer.short and answer.short.reason) == (given, reason)
            self.compare([book for book, _, _ in op.lines])

    @rule(number=ANY, actual=st.none() | ACTUAL, guessed=st.sampled_from((False, False, False, True)))
    def settle(self, number, actual, guessed):
        op = self.pick_op(number)
        if op is not None:
            self.end(op, actual, guessed=guessed)

    @rule(number=ANY)
    def release(self, number):
        op = self.pick_op(number)
        if op is not None:
            self.model.release(op)
            run_sync(self.engine.ledger.release(op.op_id))
            self.compare([book for book, _, _ in op.lines])

    @precondition(lambda self: self.model.over)
    @rule(number=ANY, settle=st.booleans())
    def end_again(self, number, settle):
        """Nothing comes of what has ended."""
        op_id = self.model.over[number % len(self.model.over)]
        self.engine.settle(op_id, {"tokens": 1_000}) if settle else run_sync(self.engine.ledger.release(op_id))
        self.compare(self.books())

    @precondition(lambda self: self.desk.other is not None)
    @rule(pick=ANY, call=CALLS)
    def expire(self, pick, call):
        """Be thought dead by another process, which settles what is held here at its grants."""
        self.ask(self.pick(pick), call)
        self.model.expire()
        self.desk.other.reap(everybody=True)
        self.desk.clock.advance(10)
        self.compare(self.books(), read=True)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def books(self):
        return [book for node in self.model.nodes for book in node.books]

    def compare(self, books=(), *, read=False):
        """Hold every figure that may have changed against the model's, and what was heard against what should be."""
        self.desk.steps += 1
        held = self.model.held() if books else {}
        for book in books:
            account = book.account
            if read:
                self.desk.ledger.read(account)
            shown = account.used, account.held, account.value, account.draining, account.denied, account.near, account.exceeded
            assert shown == (book.used, book.held, book.limit, book.draining, book.denied, book.near, book.exceeded), book
            assert account.held == held.get(book, 0)
            assert account.used >= 0 <= account.held
            if book.nature in ("held", "counted") and not book.observe:
                assert account.used + account.held <= book.allowed
        if self.ears.heard or self.model.told:
            said = [(event, book.node.scope.facts.scope_id, book.kind, book.threshold) for event, book in self.model.told]
            assert sorted(self.ears.heard) == sorted(said)
            self.told.update(self.model.told)
            assert all(self.told[each] <= each[1].armed for each in self.model.told)
            self.ears.heard.clear()
            self.model.told.clear()

    def teardown(self):
        if not hasattr(self, "model"):
            return
        for op in list(self.model.live.values()):
            self.end(op, None)
        self.desk.begun.clear()
        assert len(self.engine.ledger) == 0
        self.compare(self.books())
        for book in self.books():
            if book.nature != "level" and not (book.late or book.agent):
                below = sum(node.own[book.kind] for node in book.node.payers_below())
                assert book.account.used == below + book.untold, book


def play(desk, *, examples, steps):
    machine = type("Machine", (EngineMachine,), {"desk": desk})
    often = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=not LONG,  # the same trees each time; others on demand
    )
    run_state_machine_as_test(machine, settings=often)


@pytest.mark.timeout(0 if LONG else 60)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_any_tree_of_scopes_counts_as_the_model_of_what_it_was_asked(kind, tmp_path):
    desk = Desk(tmp_path / "ledger.db" if kind == "sqlite" else None)
    play(desk, examples=80 if kind == "memory" else 20, steps=40)
    while kind == "memory" and desk.steps < LONG:
        play(desk, examples=2_000, steps=50)
    desk.close()
    print(f"\n{kind}: {desk.steps:,} steps in {desk.examples:,} trees, nothing amiss")


def totals(ledger, order, root, first, inside, charges):
    """Ask for everything in one order, settle it in another, and give what came of it."""
    machine = type("Tree", (EngineMachine,), {"desk": ledger})()
    machine.begin(root, first, inside)
    ops = [(machine.ask(machine.pick(leaf), call).op_id, actual) for leaf, call, actual in charges]
    for number in sorted(range(len(ops)), key=lambda number: order[number]):
        if ops[number][0] in machine.model.live:
            machine.end(machine.model.live[ops[number][0]], ops[number][1])
    told = sorted((event, book.kind, book.limit, count) for (event, book), count in machine.told.items())
    machine.teardown()
    accounts = [account for node in machine.model.nodes for account in node.scope.accounts if account.kind != "messages"]
    return [(account.kind, account.used, account.held) for account in accounts], [one for one in told if one[1] != "messages"]


@settings(max_examples=max(60, LONG // 1_000), deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    root=st.lists(TERMS, max_size=2),
    first=SOME,
    inside=st.lists(PLACES, max_size=4),
    charges=st.lists(st.tuples(ANY, CALLS, ACTUAL), min_size=2, max_size=8),
    order=st.permutations(range(8)),
)
def test_the_order_of_settles_changes_no_total_and_nothing_that_is_told(root, first, inside, charges, order):
    given_order, other = (totals(Desk(), each, root, first, inside, charges) for each in (range(8), order))
    assert given_order == other
