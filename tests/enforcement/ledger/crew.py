"""Be one worker process, or several: `crew.py PATH TASK KIND LIMIT [COUNT]`; what became of it is printed as JSON, a line a worker.

A worker says `ready` and begins when a line comes in, so that all of them work at once.
"""

import json
import os
import sys
import threading

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Grant, Line, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

FACTS = ScopeFacts(scope_id="shared-run", kind=ScopeKind.RUN, run_id="shared-run")


def opened(path):
    return (
        StoreLedger(RedisStore(RedisClient(path)), shares=lambda _: True)
        if path.startswith("redis://")
        else SqliteLedger(path, busy_s=30.0)
    )


def account(kind, value, **options):
    return Account(Limit(kind=kind, value=value, **options), FACTS, origin=f"{kind}={value}")


def ask(ledger, shared, want, patience=0.0):
    op = new_op_id()
    return op, run_sync(ledger.reserve(Reservation(op, [Line(shared, want, want)], op, patience)))


def count(ledger, shared, times):
    """Take one, as often as asked."""
    granted, events, most = 0, [], 0
    for _ in range(times):
        op, answer = ask(ledger, shared, 1)
        granted += isinstance(answer, Grant)
        events += [one.event for one in answer.crossings]
        events += [one.event for one in run_sync(ledger.settle(op, None)).crossings]
        most = max(most, shared.used + shared.held)
    return {"granted": granted, "events": events, "most": most}


def hold(ledger, shared, times):
    """Hold 30, use 1, as often as asked, waiting in line for it."""
    granted, events, most = 0, [], 0
    for _ in range(times):
        op, answer = ask(ledger, shared, 30, patience=30.0)
        granted += isinstance(answer, Grant)
        events += [one.event for one in answer.crossings]
        most = max(most, shared.used + shared.held)
        events += [one.event for one in run_sync(ledger.settle(op, {shared.limit.kind: 1})).crossings]
    return {"granted": granted, "events": events, "most": most}


TASKS = {"count": count, "hold": hold}


def work(ledger, task, kind, value, times):
    told = json.dumps(TASKS[task](ledger, account(kind, value), times))
    os.write(1, f"{told}\n".encode())  # in one piece: eight write to one pipe


def spawned(path, task, kind, value, times):
    ledger = opened(path)
    print("ready", flush=True)
    sys.stdin.readline()
    work(ledger, task, kind, value, times)
    ledger.close()


def forked(path, task, kind, value, times):
    """Fork eight workers from a process that uses the ledger at that moment, from another thread too."""
    ledger = opened(path)
    other, over = account("turns", 10**9), threading.Event()

    def busy():
        while not over.is_set():
            count(ledger, other, 1)

    thread = threading.Thread(target=busy)
    thread.start()
    children, (hear, go) = [], os.pipe()
    for _ in range(8):
        child = os.fork()
        if not child:
            os.close(go)
            os.read(hear, 1)  # nothing comes: it ends when the parent lets go
            work(ledger, task, kind, value, times)
            os._exit(0)
        children.append(child)
    os.close(go)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    over.set()
    thread.join()
    ledger.close()
    sys.exit(any(statuses))


def killed(path, kind, value, amount):
    """Hold something and never end."""
    ledger = opened(path)
    assert isinstance(ask(ledger, account(kind, value), amount)[1], Grant)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    mode, path, *rest = sys.argv[1:]
    if mode == "killed":
        killed(path, rest[0], int(rest[1]), int(rest[2]))
    else:
        {"spawned": spawned, "forked": forked}[mode](path, rest[0], rest[1], int(rest[2]), int(rest[3]))
