"""Lose replies, kill, pause, restart, empty and fail over real Redis servers, and print what became of the counts.

    python tests/enforcement/ledger/redis_faults.py

`RAVI_LONG=1000` loses a thousand replies, kills 2,500 holders, and does the rest as often as that is worth it. Ends with 0 when nothing
was counted wrong, else with 1; times are printed, and judged by whoever reads them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import redis_servers

from ravi_otel._enforcement.clock import SystemClock
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Denied, Grant, Line, Reservation
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

GRANT = 10
HUGE = 2**40
LEASE_S = 0.5
BATCH = 50


class Row(NamedTuple):
    """Say how often something befell, what was then counted wrong, and what there is to tell of it."""

    fault: str
    times: int
    wrong: int
    told: str = ""


def account(scope="faults", value=HUGE, **options):
    facts = ScopeFacts(scope_id=scope, kind=ScopeKind.RUN, run_id=scope)
    return Account(Limit(kind=Kind.TOKENS, value=value, **options), facts, origin=f"tokens={value}")


@contextlib.contextmanager
def opened(url, *, timeout_s=None, **options):
    ledger = StoreLedger(RedisStore(RedisClient(url, timeout_s=timeout_s), **options))
    try:
        yield ledger
    finally:
        ledger.close()


def ask(ledger, one, want=GRANT):
    op = new_op_id()
    return op, run_sync(ledger.reserve(Reservation(op, [Line(one, want, want)])))


def spend(ledger, one, used):
    op, answer = ask(ledger, one)
    assert isinstance(answer, Grant), answer
    run_sync(ledger.settle(op, {"tokens": used}))


def refused(ledger, one):
    """Give the reason for which the store's failure refuses, None when it does not."""
    try:
        op, _ = ask(ledger, one)
    except BudgetExhaustedError as error:
        return error.reason
    run_sync(ledger.release(op))
    return None


def found(url, one):
    """Read, as a process that has just begun, what is used and held; None when the store knows nothing."""
    twin = account(one.facts.scope_id, one.value)
    with opened(url) as ledger:
        return (twin.used, twin.held) if ledger.read(twin) else None


def looked(url, one, seen):
    """Do so where the sentinels may still be changing their minds."""
    with contextlib.suppress(BudgetExhaustedError):
        seen.append(found(url, one))
    return seen


# -- the faults ---------------------------------------------------------------------------------------------------


def lost_replies(times):
    """Lose the reply of one message of an operation, in either way, and settle what was granted."""
    chance, wrong, used, one = random.Random(7), 0, 0, account()
    with redis_servers.server() as server:
        proxy = redis_servers.Proxy(server.port)
        with opened(proxy.url, timeout_s=10) as steady:
            spend(steady, one, 0)
        with opened(proxy.url, timeout_s=0.03) as ledger:
            while proxy.lost < times:
                at, how = chance.choice(("reserve", "settle")), chance.choice(("swallow", "cut"))
                redis_servers.until(lambda: paid(ledger), "what is owed was not taken")
                if at == "reserve":
                    setattr(proxy, how, 1)
                try:
                    op, _ = ask(ledger, one)
                except BudgetExhaustedError:
                    continue  # nothing was sent, and nothing may stay held
                if at == "settle":
                    setattr(proxy, how, 1)
                amount = chance.randrange(2 * GRANT)
                run_sync(ledger.settle(op, {"tokens": amount}))
                used += amount
            redis_servers.until(lambda: paid(ledger), "what is owed was not taken")
        lost = proxy.lost
        proxy.close()
        wrong += found(server.url, one) != (used, 0)
    return Row("lost reply", lost, wrong, "each operation counted once")


def paid(ledger):
    if ledger.debts:
        ledger.pay_now()
    return not ledger.debts and not ledger.client.failing


def killed_holders(times):
    """Kill processes that hold something: it is settled at its grant when their lease is over."""
    worst_s = 0.0
    one = account()
    with redis_servers.server() as server, opened(server.url, lease_s=LEASE_S) as ledger:
        spend(ledger, one, 0)
        for done in range(0, times, BATCH):
            count = min(BATCH, times - done)
            kill_holders(server.url, count)
            began = time.monotonic()
            expected = ((done + count) * GRANT, 0)
            redis_servers.until(lambda expected=expected: reaped(ledger, one) == expected, f"not healed: {reaped(ledger, one)}")
            worst_s = max(worst_s, time.monotonic() - began)
        wrong = found(server.url, one) != (times * GRANT, 0)
    return Row("kill -9 of a holder", times, int(wrong), f"healed after {worst_s:.2f} s at most, of {LEASE_S + 1:.1f} s")


def reaped(ledger, one):
    ledger.reap()
    ledger.read(one)
    return one.used, one.held


def kill_holders(url, count):
    with subprocess.Popen([sys.executable, __file__, "hold", url, str(count)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count + 1)]
        os.killpg(next(int(line) for line in lines if line != "held\n"), signal.SIGKILL)
        assert lines.count("held\n") == count


def hold(url, count):
    """Fork so many processes, a group of their own, that hold something, say so, and wait to be killed; give the group."""
    group = 0
    for _ in range(count):
        child = os.fork()
        if child:
            os.setpgid(child, group)
            group = group or child
            continue
        ledger = StoreLedger(RedisStore(RedisClient(url), lease_s=LEASE_S))
        ask(ledger, account())
        os.write(1, b"held\n")
        while True:
            signal.pause()
    return group


def stopped(times):
    """Stop the server: what a call takes that finds it so, and what one takes once it is given up."""
    first_ms, later_ms, wrong = [], [], 0
    with redis_servers.server() as server:
        for _ in range(times):
            one = account(uuid.uuid4().hex)
            with opened(server.quick_url) as ledger:
                redis_servers.until(lambda ledger=ledger, one=one: refused(ledger, one) is None, "it did not answer")
                with server.paused():
                    first_ms += [taken_ms(ledger, one) for _ in range(3)]
                    wrong += not ledger.client.failing
                    later_ms += [taken_ms(ledger, one) for _ in range(100)]
    later_ms.sort()
    told = f"adds {max(first_ms):.1f} ms at most, then {later_ms[len(later_ms) // 2]:.3f} ms (worst {later_ms[-1]:.2f} ms)"
    return Row("SIGSTOP", times, wrong, told)


def taken_ms(ledger, one):
    began = time.perf_counter()
    reason = refused(ledger, one)
    assert reason == "store_failed", reason
    return (time.perf_counter() - began) * 1e3


def started_again(times, *, durable):
    """Kill the server and start it again: on what it wrote down, counting goes on; from nothing, who knew refuses."""
    wrong = 0
    with redis_servers.server(*(redis_servers.DURABLE if durable else redis_servers.FORGETFUL)) as server:
        for _ in range(times):
            one = account(uuid.uuid4().hex)
            with opened(server.url) as ledger:
                spend(ledger, one, 7)
                op, _ = ask(ledger, one)
                server.kill()
                server.start()
                if durable:
                    run_sync(ledger.settle(op, {"tokens": 5}))
                    spend(ledger, one, 1)
                    wrong += found(server.url, one) != (13, 0)
                else:
                    wrong += refused(ledger, one) != "store_lost"
    return Row(f"restart {'with' if durable else 'without'} persistence", times, wrong, "counted on" if durable else "store_lost")


def emptied(times):
    """Empty the store: who knew the scope refuses, and so does who was told of it; a newcomer begins at nothing."""
    wrong = 0
    with redis_servers.server() as server, opened(server.url) as newcomer:
        for _ in range(times):
            one = account(uuid.uuid4().hex)
            with opened(server.url) as ledger:
                spend(ledger, one, 7)
                server.say("FLUSHALL")
                wrong += refused(ledger, one) != "store_lost"
            told = account(one.facts.scope_id)
            told.epoch = one.epoch
            wrong += refused(newcomer, told) != "store_lost"
            wrong += refused(newcomer, account(uuid.uuid4().hex)) is not None
    return Row("FLUSHALL", times, wrong, "store_lost for who knew, and for who was told")


class Jumping(SystemClock):
    """Be a wall clock that somebody sets."""

    def __init__(self):
        self.by_s = 0.0

    def time(self):
        return time.time() + self.by_s


def jumped(times):
    """Set a process's clock to and fro: what it holds stays held, for the store goes by its own."""
    wrong, clock, one = 0, Jumping(), account()
    with redis_servers.server() as server, opened(server.url, clock=clock) as ledger, opened(server.url) as other:
        for number in range(times):
            op, _ = ask(ledger, one)
            clock.by_s = random.Random(number).choice((-1, 1)) * 86_400.0 * number
            other.reap()
            wrong += found(server.url, one) != (number * 5, GRANT)
            run_sync(ledger.settle(op, {"tokens": 5}))
        wrong += found(server.url, one) != (times * 5, 0)
    return Row("clock set by days", times, wrong, "leases and holds untouched")


def failed_over(times):
    """Kill the master: its replica goes on with what it had heard of, and the process with it."""
    wrong = 0
    for _ in range(times):
        with contextlib.ExitStack() as stack:
            watched, one = redis_servers.Watched(stack), account(value=100)
            ledger = stack.enter_context(opened(watched.url))
            spend(ledger, one, 30)
            watched.catch_up()
            watched.fail_over()
            redis_servers.until(lambda ledger=ledger, one=one: refused(ledger, one) is None, "it did not go on")
            seen = []
            redis_servers.until(lambda one=one, seen=seen, url=watched.url: looked(url, one, seen), "it could not be read")
            wrong += seen != [(30, 0)]
            wrong += not isinstance(ask(ledger, one, 71)[1], Denied)
    return Row("failover to a replica", times, wrong, "what the replica had heard of is there")


def reasons_until(ledger, one, reason):
    """Ask until it is refused for this reason, and give all for which it was meanwhile."""
    seen = []
    redis_servers.until(lambda: seen.append(refused(ledger, one)) or seen[-1] == reason, f"it is never {reason}")
    return seen


def failed_over_to_nothing(times):
    """Kill the master, and let a replica take over that is empty: who knew the scope refuses, what was held is told as uncounted."""
    wrong = 0
    for _ in range(times):
        with contextlib.ExitStack() as stack:
            watched, one, opened_limit = redis_servers.Watched(stack), account(value=100), account("open", 100, on_store_failure="open")
            ledger, newcomer = (stack.enter_context(opened(watched.url)) for _ in range(2))
            spend(ledger, one, 30)
            spend(ledger, opened_limit, 30)
            op, _ = ask(ledger, one)
            watched.catch_up()
            watched.replica.say("CONFIG", "SET", "replica-read-only", "no")
            watched.replica.say("FLUSHALL")
            watched.fail_over()
            seen = reasons_until(ledger, one, "store_lost")
            wrong += None in seen
            run_sync(ledger.settle(op, {"tokens": 5}))
            redis_servers.until(lambda ledger=ledger: paid(ledger), "what is owed was not taken")
            wrong += ledger.debts.lost != 1
            wrong += refused(ledger, one) != "store_lost"
            wrong += refused(ledger, opened_limit) is not None or opened_limit.used != 0
            redis_servers.until(lambda newcomer=newcomer: refused(newcomer, account(uuid.uuid4().hex)) is None, "a newcomer is refused")
    return Row("failover to an empty replica", times, wrong, "store_lost for who knew, a newcomer begins at nothing")


def rows(count):
    """Let each fault befall, `count` replies lost and the others in proportion."""
    few = max(1, count // 20)
    yield lost_replies(count)
    yield killed_holders(max(2, count * 5 // 2))
    yield stopped(few)
    yield started_again(few, durable=True)
    yield started_again(few, durable=False)
    yield emptied(few)
    yield jumped(few)
    yield failed_over(max(1, few // 10))
    yield failed_over_to_nothing(max(1, few // 10))


def main():
    print(f"{'fault':<28} {'times':>6} {'wrong':>6}  figures")
    wrong = 0
    for row in rows(int(os.environ.get("RAVI_LONG") or 40)):
        print(f"{row.fault:<28} {row.times:>6,} {row.wrong:>6,}  {row.told}", flush=True)
        wrong += row.wrong
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        os.write(1, f"{hold(sys.argv[2], int(sys.argv[3]))}\n".encode())  # in one piece: its children write there too
        os._exit(0)
    raise SystemExit(main())
