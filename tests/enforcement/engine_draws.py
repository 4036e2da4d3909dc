"""Draw limits, calls and answers for the state machine of the engine, and be the desk it plays at."""

import functools
import importlib.util
import random
from pathlib import Path

from hypothesis import strategies as st

from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import make_limit
from ravi_otel.testing import ManualClock


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = load("engine_model")
CENT, Terms = model.CENT, model.Terms

KINDS = (*model.CALL_KINDS, "tokens", "tokens", "cost", "tool_calls", "tool.search", model.OWN_KIND)
VALUES = (0, 2, 10, 30, 50, 60, 90, 120, 200, 400)
AMOUNTS = st.integers(0, 20)
ANY = st.integers(0, 999)


def some_of(make, count=3_000, seed=5):
    """Draw from many that are made beforehand: one choice each is drawn ten times as fast as all that they are made of."""
    chance = random.Random(seed)
    made = [make(chance) for _ in range(count)]
    return st.integers(0, count - 1).map(lambda number: made[number])


def one_limit(chance):
    kind = chance.choice(KINDS)
    places = ("here", "here", "here", "session", "agents", "@a")
    return Terms(
        kind=kind,
        value=chance.choice(VALUES),
        outcome=chance.choice(("raise", "raise", "stop", "observe")),
        warn=chance.choice((80, 80, 50, 100)),
        after=chance.random() < 0.2,
        place=chance.choice(places[:-1] if kind == "messages" else places),  # a conversation is no sum of all agents of a name
    )


def one_call(chance):
    return {
        "given": chance.randint(0, 20),
        "guess": chance.randint(0, 20),
        "cents": (chance.randint(0, 20), chance.randint(0, 20)),
        "turn": chance.random() < 0.7,
        "messages": chance.choice((None, *range(9))),
        "choices": chance.randint(1, 2),
    }


def one_actual(chance):
    told = {
        "tokens": chance.randint(-12, 50),
        "input_tokens": chance.randint(0, 20),
        "output_tokens": chance.randint(0, 40),
        "cost": chance.randint(-8, 40) * CENT,
        "messages": chance.randint(0, 12),
    }
    return {kind: amount for kind, amount in told.items() if chance.random() < 0.8}


TERMS, CALLS, ACTUAL = some_of(one_limit), some_of(one_call), some_of(one_actual)
SOME = st.lists(TERMS, min_size=3, max_size=6)
MORE = st.sampled_from((0, 3, 30, 300, -1))
PLACES = st.tuples(
    ANY, st.sampled_from(("agent", "agent", "agent", "run", "run", "block", "handoff")), st.sampled_from("ab"), SOME, st.booleans()
)


@functools.lru_cache(maxsize=100_000)
def limit_of(terms):
    """Write one limit as a program would."""
    kind, _, tool = terms.kind.partition(".")
    options = {"on_exceed": terms.outcome, "warn_at": terms.warn / 100}
    if terms.after and terms.kind in model.HELD_KINDS:
        options["admission"] = "after"
    if terms.place in ("session", "agents"):
        options["scope"] = terms.place.removesuffix("s") if terms.place == "agents" else terms.place
    return make_limit("tool_calls" if tool else kind, terms.amount, options, detail=tool or None, agent=terms.agent)


class Ears(Listener):
    """Hear what programs are told of their limits."""

    def __init__(self):
        self.heard = []

    def limit_event(self, event, at):
        self.heard.append((event.event, event.scope_id, event.limit_kind, event.threshold))


class Desk:
    """Have one ledger for a whole test, and another process's view of it where it is shared."""

    def __init__(self, path=None):
        self.clock = ManualClock()
        self.steps = 0
        self.examples = 0
        self.begun = []
        self.ledger = MemoryLedger() if path is None else SqliteLedger(path, clock=self.clock)
        self.other = None if path is None else SqliteLedger(path, clock=self.clock)

    def close(self):
        for ledger in (self.ledger, self.other):
            if isinstance(ledger, SqliteLedger):
                ledger.close()


def call_asks(leaf, given, guess, cents, turn, messages, choices):
    """Say what a call asks of each limit, as §3 of the rules has it: what it wants, and the least it can do with."""
    least, most = sorted(cents)
    asks = {
        "tokens": (max(given + guess, given + turn, 1), given + turn or 1),
        "input_tokens": (max(given, 1), max(given, 1)),
        "output_tokens": (max(guess, 1), 1),
        "cost": (most * CENT, least * CENT),
        "requests": (1, 1),
    }
    if turn:
        asks["turns"] = 1, 1
    if messages is not None:
        asks["messages"] = messages + choices, messages + choices
    return [(book, *asks[book.kind]) for book in leaf.chain() if book.kind in asks]
