"""Each call into a real Redis fails in turn, in each way there is: what reaches the user, what limits do, and what is counted then.

`RAVI_LONG=1` fails all of them; the default takes some of each kind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections import Counter

import pytest
import redis_servers

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, RepeatedGrant, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import Done, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

TOKENS = Kind.TOKENS.value
REPLIES = {
    "refuses": b"-ERR it is broken\r\n",
    "is a number": b":7\r\n",
    "is nothing": b"$-1\r\n",
    "is a list of nothing": b"*0\r\n",
    "is a list of other things": b"*3\r\n$1\r\na\r\n:-1\r\n$-1\r\n",
    "is a list in a list": b"*3\r\n$1\r\n0\r\n:1\r\n*1\r\n*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n",
    "grants of nobody": b"$14\r\nG 9 1,2,3,4,5;\r\n",
    "grants holes": b"$8\r\nG 0 ,,,;\r\n",
    "denies of nobody": b"$19\r\nD 9 exhausted 5,50;\r\n",
    "denies of none": b"$19\r\nD 0 exhausted 5,50;\r\n",
    "cuts of nobody": b"$21\r\nX 9 exhausted 5,50,9;\r\n",
    "crosses what is not there": b"$12\r\nS;99n 1 1;;;\r\n",
    "begins and ends there": b"$1\r\nS\r\n",
    "grants all and shows nothing": b"$5\r\nG 0;;\r\n",
    "grants all and breaks off in a state": b"$9\r\nG 0;;\x01\x02\x03\x04\r\n",
    "shows more than was asked for": b"$9\r\nS;;\x00\x00\x00\x00\x00\x00\r\n",
    "is no word of the protocol": b"\x00garbage\r\n",
}
FATES = ["never comes there", "loses its reply", "is not answered", *REPLIES]
LONG = bool(os.environ.get("RAVI_LONG"))
MOST_PLACES = 40
APART = 10


class OnePlace(redis_servers.Proxy):
    """Stand between a client and a server, and have the call number `at` meet its `fate`; `calls` counts them."""

    def __init__(self, port):
        self.calls, self.at, self.fate = 0, -1, ""
        self.numbers = {}
        super().__init__(port)

    def arm(self, at, fate):
        with self._lock:
            self.calls, self.at, self.fate = 0, at, fate

    def _pump(self, source, target, *, replies):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if replies:
                    data = self._reply(source, data)
                elif self._call(target):
                    break
                if data is None:
                    break
                if data:
                    target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _call(self, server):
        """Count a call; tell whether its connection ends before it comes to the server."""
        with self._lock:
            self.numbers[server] = self.calls
            self.calls += 1
            return self.numbers[server] == self.at and self.fate == FATES[0]

    def _reply(self, server, data):
        with self._lock:
            if self.numbers.get(server) != self.at:
                return data
            self.at = -1  # once
            return {FATES[1]: None, FATES[2]: b""}.get(self.fate) if self.fate in FATES[:3] else REPLIES[self.fate]


@pytest.fixture(scope="module")
def path():
    with redis_servers.server() as redis:
        made = OnePlace(redis.port)
        made.server = redis
        yield made
        made.close()


def limit(mode, kind=TOKENS, value=1_000, scope_id="r"):
    facts = ScopeFacts(scope_id=scope_id, kind=ScopeKind.RUN, run_id=scope_id)
    return Account(Limit(kind=kind, value=value, on_store_failure=mode), facts, origin=f"{kind}={value}")


class Play:
    """Do a little of everything, as a program does that goes on after our errors; `used` is what it then has used, by limit."""

    def __init__(self, ledger, mode):
        self.ledger, self.mode = ledger, mode
        self.tokens, self.requests = limit(mode), limit(mode, Kind.REQUESTS.value)
        self.narrow, self.other = limit(mode, value=10, scope_id="n"), limit(mode, scope_id="o")
        self.used = Counter()
        self.refusals, self.stopped = list[str](), list[int]()

    def tried(self, act):
        """Give what comes of it, None for our refusal; nothing else may come out."""
        try:
            return run_sync(act())
        except BudgetExhaustedError as error:
            self.refusals.append(error.reason)
            return None

    def take(self, *lines, **more):
        op = new_op_id()
        answer = self.tried(lambda: self.ledger.reserve(Reservation(op, [Line(*line) for line in lines], **more)))
        assert answer is None or isinstance(answer, (Grant, Denied, RepeatedGrant)), answer
        return op if isinstance(answer, Grant) else None

    def __call__(self):
        first = self.take((self.tokens, 20, 20), (self.requests, 1, 1))
        if first:
            self.used["requests"] += 1
            more = self.tried(lambda: self.ledger.extend(first, {TOKENS: 10}))
            assert more is None or more.short is None or more.short.account is self.tokens
            run_sync(self.ledger.settle(first, {TOKENS: 25}))
            self.used["tokens"] += 25
        back = self.take((self.tokens, 30, 30))
        if back:
            run_sync(self.ledger.release(back))
        slot = self.take((self.other, 1, 1, False, True), slot=True)
        holds, waits = self.take((self.narrow, 8, 8)), self.take((self.narrow, 8, 8), patience_s=0.004)
        self.stopped += [at for at, op in enumerate((first, back, slot, holds)) if not op]
        for op in (slot, holds, waits):
            if op:
                run_sync(self.ledger.release(op))
        assert self.take((self.requests, 1, 1), spent=True), "what was spent must not fail"
        self.used["requests"] += 1
        self.operate()

    def operate(self):
        run_sync(self.ledger.clocked(limit(self.mode, "time", 60), 1))
        self.tried(lambda: self.ledger.retune(self.other, 900))
        with contextlib.suppress(BudgetExhaustedError):
            self.ledger.reap()
        found = self.tried(self.ledger.list_accounts)
        counters = [each for each in ([] if found is None else found.counters) if "o" in each.key.split("/")[-1:]]
        for each in counters:
            self.tried(lambda each=each: self.ledger.set_limit(each, 800))
            self.tried(lambda each=each: self.ledger.close_scope([each]))
        with contextlib.suppress(BudgetExhaustedError):
            self.ledger.read(self.tokens)


def opened(port, namespace, timeout_s):
    link = RedisClient(f"redis://127.0.0.1:{port}/0", timeout_s=timeout_s)
    return StoreLedger(RedisStore(link, namespace=namespace))


def run_with(path, mode, at, fate):
    """Play once while call `at` meets its fate; give the play and what a new process finds afterwards."""
    namespace = uuid.uuid4().hex
    path.arm(at, fate)
    ledger = opened(path.port, namespace, 0.03 if fate == FATES[2] else 5)
    play = Play(ledger, mode)
    play()
    play.calls = path.calls
    path.arm(-1, "")
    redis_servers.until(lambda: ledger.pay_now() or not ledger.debts, "what is owed was not paid")
    play.lost = ledger.debts.lost
    ledger.close()
    another, found = opened(path.server.port, namespace, 5), {}
    for each in (limit(mode), limit(mode, Kind.REQUESTS.value), limit(mode, value=10, scope_id="n"), limit(mode, scope_id="o")):
        another.read(each)
        found[each.limit.kind, each.facts.scope_id] = (each.used, each.held)
    another.close()
    return play, found


def check(path, mode, at, fate):
    play, found = run_with(path, mode, at, fate)
    assert found[TOKENS, "r"] == (play.used["tokens"], 0), (at, fate, found, play.used)
    assert found["requests", "r"] == (play.used["requests"], 0), (at, fate, found, play.used)
    assert found[TOKENS, "n"] == (0, 0), (at, fate, found)
    assert found[TOKENS, "o"][1] == 0, (at, fate, found)
    assert (play.lost, set(play.refusals) <= {"store_failed"}) == (0, True), (at, fate, play.refusals)
    return play


def test_a_play_that_nothing_befalls_is_counted_as_it_was(path):
    play = check(path, None, -1, "")
    assert (play.used, play.refusals) == ({"tokens": 25, "requests": 2}, [])
    assert play.calls < MOST_PLACES


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("mode", [None, "open"])
def test_whatever_call_fails_nothing_but_our_refusal_comes_out_and_all_is_counted(path, mode, fate):
    for at in range(MOST_PLACES) if LONG else range(FATES.index(fate) % APART, MOST_PLACES, APART):
        play = check(path, mode, at, fate)
        assert mode is None or not play.stopped, (at, fate, play.stopped)


@pytest.mark.parametrize("record", ["", "garbage", "L", "L0|", "L0|nobody 1 0;", "S9|a 1 0;b 2 0;c 3 0;", "R0|", "\xff|\x00"])
def test_an_operation_that_somebody_tampered_with_ends_and_brings_no_other_error_than_ours(path, record):
    path.arm(-1, "")
    namespace = uuid.uuid4().hex
    ledger, another = opened(path.port, namespace, 5), opened(path.server.port, namespace, 5)
    for end in (lambda op: ledger.settle(op, {TOKENS: 5}), ledger.release):
        op = new_op_id()
        request = Reservation(op, [Line(limit(None), 10, 10)])
        run_sync(ledger.reserve(request))
        (operation,) = ledger.store.operations.values()
        path.server.say("HSET", operation.encoded.lease.operations, operation.encoded.named.name, record)
        for act in (lambda op=op: ledger.extend(op, {TOKENS: 5}), lambda one=request: another.reserve(one)):
            with contextlib.suppress(BudgetExhaustedError):
                run_sync(act())
        run_sync(end(op))
    ledger.close()
    another.close()
    assert not ledger.store.operations


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        (b"X 1 exhausted 1,1,0;;", False),
        (b"E 0 1;;", False),
        (b"S;;", False),
        (b"G 0 1;;", True),
        (b"E 0 1;;", True),
        (b"S", True),
        (b"S;;" + bytes(6), True),
    ],
)
def test_an_answer_of_another_script_is_a_failure_of_the_store_and_neither_a_grant_nor_an_end(path, monkeypatch, said, ends):
    namespace, one = uuid.uuid4().hex, limit(None)
    ledger = opened(path.server.port, namespace, 5)
    op = new_op_id()
    request = Reservation(op, [Line(one, 1, 1)])
    if ends:
        run_sync(ledger.reserve(request))
    with monkeypatch.context() as patched:
        patched.setattr(ledger.store.client, "call", lambda *_, **__: Done(said))
        if ends:
            run_sync(ledger.settle(op, {TOKENS: 3}))
            assert ledger.debts
        else:
            with pytest.raises(BudgetExhaustedError, match="no script of ours"):
                run_sync(ledger.reserve(request))
    ledger.close()
    other = opened(path.server.port, namespace, 5)
    seen = limit(None)
    run_sync(other.reserve(Reservation(new_op_id(), [Line(seen, 1, 1)])))
    assert (seen.used, seen.held) == (3 if ends else 0, 1)
    other.close()


def test_who_leaves_a_line_and_cannot_read_the_answer_leaves_again(path, monkeypatch):
    namespace, one = uuid.uuid4().hex, limit(None, value=1)
    ledger = opened(path.server.port, namespace, 5)
    first, second = new_op_id(), new_op_id()
    run_sync(ledger.reserve(Reservation(first, [Line(one, 1, 1)])))
    flow = ledger.reserve(Reservation(second, [Line(one, 1, 1)], patience_s=30.0))
    step = next(flow)
    while not one.waiters:
        step = flow.send(step.blocking())
    call, unread = ledger.store.client.call, [Done(b"E")]
    with ledger.pulse.beating, monkeypatch.context() as patched:
        patched.setattr(ledger.store.client, "call", lambda *words, **more: unread.pop() if unread else call(*words, **more))
        flow.close()
        while ledger.debts:
            ledger.pay_now()
    assert not unread
    assert run_sync(ledger.list_accounts()).waiting == 0
    run_sync(ledger.release(first))
    ledger.close()


def test_a_store_to_which_every_lease_is_over_is_one_that_fails(path, monkeypatch):
    ledger = opened(path.server.port, uuid.uuid4().hex, 5)
    call = ledger.store.client.call
    monkeypatch.setattr(
        ledger.store.client, "call", lambda script, *rest, **more: Done(b"N;") if script.name == "reserve" else call(script, *rest, **more)
    )
    with pytest.raises(BudgetExhaustedError, match="no script of ours"):
        run_sync(ledger.reserve(Reservation(new_op_id(), [Line(limit(None), 1, 1)])))
    monkeypatch.undo()
    ledger.close()
