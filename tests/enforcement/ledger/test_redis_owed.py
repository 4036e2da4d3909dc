"""What could not be told to the store when it happened: who sends it later, and what becomes of it where that cannot be."""

import contextlib
import logging
import re
import subprocess
import sys

import pytest
import redis_servers

from ravi_otel._enforcement.ledger import choosing, store_failures
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.redis import store
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import Done, run_sync
from ravi_otel.errors import BudgetExhaustedError
from ravi_otel.policy._limits import Admission, Kind, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts


def account(scope_id="r"):
    return Account(Limit(kind=Kind.REQUESTS, value=1_000), ScopeFacts(kind=ScopeKind.RUN, scope_id=scope_id), origin="requests=1000")


def ask(ledger, account, *, spent=False):
    op = new_op_id()
    run_sync(ledger.reserve(Reservation(op, [Line(account, 1, 1)], spent=spent)))
    run_sync(ledger.settle(op, None))


def used(ledger):
    found = account()
    ledger.read(found)
    return found.used


@pytest.fixture
def ledger(redis_server):
    made = StoreLedger(RedisStore(RedisClient(f"{redis_server.quick_url}?timeout_s=5")))
    yield made
    redis_server.say("CONFIG", "SET", "min-replicas-to-write", "0")
    made.close()


@pytest.fixture
def refusing(ledger, redis_server):
    """A server that says no to whatever writes, and a ledger that it was told nothing of since."""

    @contextlib.contextmanager
    def refusing():
        redis_server.say("CONFIG", "SET", "min-replicas-to-write", "1")
        yield
        redis_server.say("CONFIG", "SET", "min-replicas-to-write", "0")

    return refusing


def owe(ledger, refusing, calls, account):
    ask(ledger, account)
    with refusing():
        for _ in range(calls):
            ask(ledger, account, spent=True)


def hold(ledger, calls, account):
    """Begin calls that go on; give what ends them."""
    held = [new_op_id() for _ in range(calls)]
    for op in held:
        run_sync(ledger.reserve(Reservation(op, [Line(account, 1, 1)])))

    def end():
        for op in held:
            run_sync(ledger.settle(op, None))

    return end


def test_nothing_owed_is_given_up_while_the_server_takes_nothing(ledger, refusing):
    owe(ledger, refusing, 60, account())
    redis_servers.until(lambda: not ledger.debts, "what is owed was not sent")
    assert (used(ledger), ledger.debts.lost) == (61, 0)


def test_a_call_pays_a_little_of_what_is_owed_and_the_rest_is_sent_beside(ledger, refusing):
    limit = account()
    end = hold(ledger, 100, limit)
    with ledger.pulse.beating:
        with refusing():
            end()
        before = len(ledger.debts)
        ask(ledger, limit)
        assert before - 16 <= len(ledger.debts) < before
    redis_servers.until(lambda: not ledger.debts, "what is owed was not sent")
    assert used(ledger) == 101


def test_what_a_store_has_forgotten_is_given_up_and_refuses_nobody_else(ledger, refusing, redis_server, caplog):
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        with ledger.pulse.beating:
            owe(ledger, refusing, 6, account())
            redis_server.say("FLUSHALL")
        for number in range(20):
            ask(ledger, account(f"another{number}"))
        redis_servers.until(lambda: not ledger.debts, "what is owed was not sent")
    assert ledger.debts.lost == 1  # what is spent of one counter is one debt
    assert [record.message for record in caplog.records if "not all counted" in record.message] == [
        "ravi-otel: what happened while the shared ledger failed is not all counted in it: it has forgotten what was counted in it."
    ]


def test_what_was_under_way_when_a_store_forgot_is_told_though_the_counter_has_begun_anew(ledger, redis_server, caplog):
    limit = Account(Limit(kind=Kind.REQUESTS, value=9, on_store_failure="open"), ScopeFacts(kind=ScopeKind.RUN, scope_id="r"), origin="r")
    end = hold(ledger, 1, limit)
    redis_server.say("FLUSHALL")
    ask(ledger, limit)
    assert ledger.debts.lost == 0
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        end()
    assert ledger.debts.lost == 1
    assert "it has forgotten what was counted in it" in caplog.text


def test_what_the_server_takes_from_nobody_stands_in_nobodys_way(ledger, refusing, redis_server):
    with ledger.pulse.beating:
        owe(ledger, refusing, 1, account())
        redis_server.say("SET", next(iter(ledger._queues)), "something else")
    ask(ledger, account("another"))
    redis_servers.until(lambda: not ledger.debts, "what cannot be sent was kept")
    assert ledger.debts.lost


def test_what_is_too_much_is_given_up_counted_and_told(ledger, refusing, monkeypatch, caplog):
    monkeypatch.setattr(store_failures, "_MOST_ENDS", 10)
    end = hold(ledger, 18, account())
    with caplog.at_level(logging.WARNING, "ravi_otel"), refusing():
        end()
    assert ledger.debts.lost >= 5
    assert "more than 10 of them" in caplog.text
    redis_servers.until(lambda: not ledger.debts, "what is owed was not sent")


def test_a_refusing_server_refuses_closed_limits(ledger, refusing):
    with refusing(), pytest.raises(BudgetExhaustedError) as caught:
        ask(ledger, account())
    assert caught.value.reason == "store_failed"


class Ticking:
    """Be a clock that goes on by so much at each look."""

    def __init__(self, step_s):
        self.now, self.step_s = 1_000.0, step_s

    def monotonic(self):
        self.now += self.step_s
        return self.now


def test_the_end_of_a_process_sends_for_a_moment_and_tells_how_much_is_left(refusing, ledger, redis_server, monkeypatch, caplog):
    end = hold(ledger, 40, account())
    ledger.pulse.end()
    monkeypatch.setattr(ledger.pulse, "start", lambda: None)  # its thread does nothing more
    with refusing():
        end()
    monkeypatch.setattr(store_failures, "time", Ticking(0.1))
    with caplog.at_level(logging.WARNING, "ravi_otel"):
        ledger.close()
    monkeypatch.undo()
    (left,) = re.findall(r"is not all counted in it: the process ended, and (\d+) messages could not be sent", caplog.text)
    assert 30 < int(left) < 40
    following = StoreLedger(RedisStore(RedisClient(f"{redis_server.quick_url}?timeout_s=5")))
    assert used(following) == 40  # at their grants
    following.close()


def test_the_end_of_a_process_in_an_outage_names_what_the_store_does_not_hold(caplog):
    facts = ScopeFacts(scope_id="one", kind=ScopeKind.RUN, run_name="triage")
    held, after, cheap = (
        Account(Limit(kind=kind, value=10**12, admission=admission), facts, origin=kind)
        for kind, admission in ((Kind.TOKENS, None), (Kind.OUTPUT_TOKENS, Admission.AFTER), (Kind.COST, None))
    )
    op, used = new_op_id(), {Kind.TOKENS: 70, Kind.OUTPUT_TOKENS: 20, Kind.COST: 5}
    with redis_servers.server() as server:
        ledger = StoreLedger(RedisStore(RedisClient(server.url)))
        run_sync(ledger.reserve(Reservation(op, [Line(held, 50, 50), Line(after, 0, 0), Line(cheap, 10**9, 10**9)])))
        server.kill()
        run_sync(ledger.settle(op, used))
        with caplog.at_level(logging.WARNING, "ravi_otel"):
            ledger.close()
    (said,) = re.findall(r"1 messages could not be sent, and it lacks (.*); what it held counts at its grant", caplog.text)
    assert said == "20 tokens of run 'triage', 20 output_tokens of run 'triage'"


ENDING = """
import sys
from ravi_otel._flow import run_sync
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.judge import Line, Reservation
from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel.policy._runs import ScopeFacts
from ravi_otel.policy._limits import Kind, Limit, ScopeKind
ledger = open_ledger(sys.argv[1])
account = Account(Limit(kind=Kind.TOKENS, value=100), ScopeFacts(scope_id="one", kind=ScopeKind.RUN), origin="tokens=100")
op = new_op_id()
run_sync(ledger.reserve(Reservation(op, [Line(account, 50, 50)])))
print("held", flush=True)
sys.stdin.readline()
run_sync(ledger.settle(op, {"tokens": 30}))
ledger.close()
"""


def test_what_a_process_held_and_could_not_settle_counts_at_its_grant_when_its_lease_is_over(tmp_path):
    with redis_servers.server() as server:
        url = f"{server.url.replace('timeout_s=10', 'timeout_s=0.5')}&lease_s=0.5"
        command = [sys.executable, "-c", ENDING, url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as process:
            assert process.stdout.readline() == "held\n"
            with server.paused():
                _, said = process.communicate("go\n", timeout=60)
            assert process.returncode == 0
        assert "the process ended, and 1 messages could not be sent; what it held counts at its grant." in said
        assert not list(tmp_path.iterdir())
        ledger = choosing.open_ledger(url)
        try:
            found = Account(Limit(kind=Kind.TOKENS, value=100), ScopeFacts(scope_id="one", kind=ScopeKind.RUN), origin="tokens=100")

            def settled():
                ledger.reap()
                ledger.read(found)
                return (found.used, found.held) == (50, 0)

            redis_servers.until(settled, "nobody settled it")
        finally:
            ledger.close()


@pytest.mark.parametrize(("each_s", "steps"), [(0.1, 10), (0.7, 2)])
def test_a_caller_looks_for_the_dead_while_a_quarter_of_its_time_has_not_passed(ledger, monkeypatch, each_s, steps):
    clock, asked = Ticking(0), []
    monkeypatch.setattr(store, "time", clock)

    def call(script, keys, args, **_):
        asked.append(script.name)
        clock.now += each_s
        return Done([16, 200, 1_700_000_000_000])

    monkeypatch.setattr(ledger.client, "call", call)
    run_sync(ledger._reap_tag("{ravi:default}"))
    monkeypatch.undo()
    assert asked == ["reap"] * steps
