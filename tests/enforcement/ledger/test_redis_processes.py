"""Processes that count in one Redis: nothing over, each event once, nothing lost over a fork, and what the killed held."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_starts
from redis_servers import until

from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel._flow import run_sync
from ravi_otel.policy._limits import Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts

CREW = Path(__file__).with_name("crew.py")
TIMES = 40 * max(1, int(os.environ.get("RAVI_LONG") or 1))
FACTS = ScopeFacts(scope_id="shared-run", kind=ScopeKind.RUN, run_id="shared-run")


def forked(url, task, kind, value, times):
    """Let eight forked processes work at once, while their parent does, too."""
    command = [sys.executable, str(CREW), "forked", url, task, kind, str(value), str(times)]
    done = warm_starts.run(command)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def ledger(redis_server):
    opened = StoreLedger(RedisStore(RedisClient(redis_server.url)))
    yield opened
    opened.close()


def seen(ledger, kind, value):
    account = Account(Limit(kind=kind, value=value), FACTS, origin=kind)
    assert ledger.read(account)
    return account


def test_counted_kinds_are_never_passed_and_each_event_is_told_once(redis_server, ledger):
    value = TIMES * 4
    told = forked(redis_server.url, "count", "requests", value, TIMES)
    events = [event for one in told for event in one["events"]]
    assert sum(one["granted"] for one in told) == value
    assert sorted(events) == ["limit_exceeded", "limit_nearing"]
    assert max(one["most"] for one in told) == value
    assert (seen(ledger, "requests", value).used, seen(ledger, "requests", value).held) == (value, 0)


def test_what_is_held_never_passes_the_limit_and_everybody_in_line_is_served(redis_server, ledger):
    times = TIMES // 8
    value = 8 * times + 60  # two or three hold at a time
    told = forked(redis_server.url, "hold", "tokens", value, times)
    assert [one["granted"] for one in told] == [times] * 8
    account = seen(ledger, "tokens", value)
    assert (account.used, account.held) == (8 * times, 0)
    assert max(one["most"] for one in told) <= value


def test_what_a_killed_process_held_is_settled_at_its_grant(redis_server, ledger):
    command = [sys.executable, str(CREW), "killed", redis_server.url, "tokens", "100", "60"]
    with warm_starts.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "ready\n"
        assert seen(ledger, "tokens", 100).held == 60
        worker.send_signal(signal.SIGKILL)
    assert ledger.reap(everybody=True) == 1
    until(lambda: seen(ledger, "tokens", 100).used == 60, "it is not settled")
    assert seen(ledger, "tokens", 100).held == 0
    assert len(ledger) == run_sync(ledger.list_accounts()).processes == 0
