"""Every ledger there is, and a desk to ask it from: one contract for all of them."""

import uuid

import pytest

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.memory import MemoryLedger
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.messages import TOP
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


class Shelf:
    """Make ledgers of one kind, files and all, and put them away at the end."""

    def __init__(self, kind, directory, server=None):
        self.kind = kind
        self.server = server
        self.directory = directory
        self.made = []

    def __call__(self, **options):
        if self.kind == "memory":
            return MemoryLedger()
        if self.kind == "sqlite":
            ledger = SqliteLedger(self.directory / f"{uuid.uuid4().hex}.db", **options)
        else:
            ledger = StoreLedger(RedisStore(RedisClient(self.server().url), namespace=uuid.uuid4().hex, **options), shares=lambda _: True)
        self.made.append(ledger)
        return ledger

    def close(self):
        for ledger in self.made:
            ledger.close()


LEDGERS = ("memory", "sqlite", "redis")


class Desk:
    """Make accounts, and ask the ledger for them in a few words."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.far = isinstance(getattr(ledger, "store", None), RedisStore)  # each step is a round trip
        self.most = TOP if self.far else 2**63

    @staticmethod
    def account(kind, value, scope="run", *, observe=False, used=0, **limit):
        facts = ScopeFacts(scope_id=uuid.uuid4().hex, kind=ScopeKind(scope))
        return Account(Limit(kind=kind, value=value, **limit), facts, origin="the limit", observe=observe, used=used)

    def tokens(self, value, scope="run", **more):
        return self.account(Kind.TOKENS, value, scope, **more)

    def requests(self, value, scope="run", **more):
        return self.account(Kind.REQUESTS, value, scope, **more)

    def op(self):
        return new_op_id()  # as a program's are: a ledger may know those of its own process

    def request(self, *asks, op=None, owner=None, patience=0.0, **more):
        lines = [Line(account, want, rest[0] if rest else want) for account, want, *rest in asks]
        return Reservation(op or self.op(), lines, owner, patience, **more)

    def flow(self, *asks, **more):
        return self.ledger.reserve(self.request(*asks, **more))

    def ask(self, *asks, **more):
        return run_sync(self.flow(*asks, **more))

    def charge(self, *asks, **more):
        return run_sync(self.ledger.charge(self.request(*asks, **more)))

    def take(self, *asks, **more):
        answer = self.ask(*asks, **more)
        assert isinstance(answer, Grant), answer
        return answer

    def settle(self, op, actual=None):
        return run_sync(self.ledger.settle(op if isinstance(op, str) else op.op_id, actual))

    def release(self, op):
        run_sync(self.ledger.release(op if isinstance(op, str) else op.op_id))

    def retune(self, account, value):
        run_sync(self.ledger.retune(account, value))

    def spend(self, account, amount):
        """Use up so much in one whole operation."""
        return self.settle(self.take((account, amount)), {account.limit.kind: amount})


@pytest.fixture(autouse=True)
def _bugs_raise(monkeypatch):
    monkeypatch.setenv("RAVI_RAISE_BUGS", "1")


@pytest.fixture(params=LEDGERS)
def new_ledger(request, tmp_path):
    shelf = Shelf(request.param, tmp_path, lambda: request.getfixturevalue("redis_process"))
    yield shelf
    shelf.close()


@pytest.fixture
def every_desk(request, tmp_path):
    """A desk at one ledger of each store."""
    stores = ("memory", "sqlite", "redis")
    shelves = {kind: Shelf(kind, tmp_path, lambda: request.getfixturevalue("redis_process")) for kind in stores}
    yield {kind: Desk(shelf()) for kind, shelf in shelves.items()}
    for shelf in shelves.values():
        shelf.close()


@pytest.fixture
def ledger(new_ledger):
    return new_ledger()


@pytest.fixture
def desk(ledger):
    return Desk(ledger)


@pytest.fixture
def desk_of():
    """Give what makes a desk of a ledger that a test has made itself."""
    return Desk


@pytest.fixture
def new_desk(new_ledger):
    return lambda: Desk(new_ledger())


@pytest.fixture
def anyio_backend():
    return "asyncio"
