"""Open runs under limits with windows, and listen to what is told of them; beside the tests of both."""

import uuid
from contextlib import contextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.hooks._listeners import Listener, Listeners
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.testing import ManualClock

DAY = 86_400.0


class Heard(Listener):
    def __init__(self):
        self.told = []

    def limit_event(self, event, at):
        self.told.append((event.event, event.per, event.window, event.by, event.counted_for))


@contextmanager
def engine_over(kind, request, path, clock, heard):
    """Give an engine over the ledger of one kind, a Redis of its own namespace among them."""
    if kind == "memory":
        yield Engine(clock=clock, listeners=Listeners([heard]))
        return
    if kind == "sqlite":
        ledger = SqliteLedger(path / "ledger.db", clock=clock)
    else:
        store = RedisStore(RedisClient(request.getfixturevalue("redis_process").url), namespace=uuid.uuid4().hex, clock=clock)
        ledger = StoreLedger(store, shares=lambda _: True, clock=clock)
    yield Engine(ledger=ledger, clock=clock, listeners=Listeners([heard]))
    ledger.close()


def at(text, tz="UTC"):
    return ManualClock(epoch_s=datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp())


def root_of(engine, *limits, **more):
    return Scope.of_process(engine, [parse_limit(each) for each in limits], **more)


def run_of(parent, *limits, kind=ScopeKind.RUN, **more):
    return Opening(kind=kind, limits=tuple(parse_limit(each) for each in limits), **more).open(parent)


def refuses(scope, amount=1, kind="rows"):
    try:
        scope.charge(kind, amount)
    except BudgetExhaustedError:
        return True
    return False
