"""What a program reads of limits that other processes count in: as it is now, without a call."""

import datetime as dt
import json
import math
import socket
import sys
import time
from contextlib import contextmanager

import pytest
from recorded import Record, as_json
from redis_servers import Server
from stores import REDIS, SQLITE, Store, finish, start

import ravi_otel
from ravi_otel._enforcement.ledger.account import Account
from ravi_otel._enforcement.ledger.redis.client import RedisClient
from ravi_otel._enforcement.ledger.redis.store import RedisStore
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._enforcement.ledger.store_ledger import StoreLedger
from ravi_otel.testing import Capture, ManualClock

LIMIT = "session.charge.rows=5"
CHILD = """
import sys, ravi_otel
with ravi_otel.instrument(), ravi_otel.run("child", session_id="s", limits=[sys.argv[1]]) as run:
    for _ in range(int(sys.argv[2])):
        run.scope.charge("rows", 1)
"""


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(params=[SQLITE, REDIS])
def place(request, tmp_path):
    if request.param == SQLITE:
        return Store(SQLITE, f"sqlite:{tmp_path / 'ledger.db'}")
    return Store(REDIS, request.getfixturevalue("server").url)


@pytest.fixture
def clock():
    return ManualClock(epoch_s=time.time())  # the other processes go by the machine's, and clear what is old


def opened(place, clock):
    """Open the ledger as `instrument()` does, on a clock that stands still."""
    if place.kind == SQLITE:
        ledger = SqliteLedger(place.url.removeprefix("sqlite:"), shares=Account.is_shareable, clock=clock)
    else:
        ledger = StoreLedger(RedisStore(RedisClient(place.url), clock=clock))
    return ledger


@contextmanager
def reader(place, clock, *, limit=LIMIT):
    ledger = opened(place, clock)
    try:
        with ravi_otel.instrument(ledger=ledger), ravi_otel.run("reader", session_id="s", limits=[limit]) as run:
            yield run
    finally:
        ledger.close()


def spend_elsewhere(place, amount, cwd, limit=LIMIT):
    child = finish(start(place, sys.executable, "-c", CHILD, limit, str(amount), cwd=cwd))
    assert (child.status, child.noise) == (0, []), child


def read(run):
    (reading,) = run.limits
    return reading.used, reading.remaining


def test_what_another_process_used_is_read_without_a_call(place, clock, tmp_path):
    with reader(place, clock) as run:
        run.scope.charge("rows", 1)
        assert read(run) == (1, 4)
        spend_elsewhere(place, 3, tmp_path)
        assert read(run) == (1, 4)  # known for less than a second
        clock.advance(2.5)
        assert read(run) == (4, 1)
        assert run.remaining("charge.rows") == ravi_otel.remaining("charge.rows") == 1
        run.scope.charge("rows", 1)
        assert read(run) == (5, 0)
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            run.scope.charge("rows", 1)


def test_what_is_left_asks_too(place, clock, tmp_path):
    with reader(place, clock) as run:
        run.scope.charge("rows", 1)
        spend_elsewhere(place, 3, tmp_path)
        clock.advance(2.5)
        assert ravi_otel.remaining("charge.rows") == 1


def test_a_program_that_has_made_no_call_reads_what_others_used_before_and_meanwhile(place, clock, tmp_path):
    spend_elsewhere(place, 2, tmp_path)
    with reader(place, clock, limit="session.charge.rows=4") as run:
        assert read(run) == (2, 2)  # the smaller limit, of which the store has not heard yet
        spend_elsewhere(place, 1, tmp_path)
        assert read(run) == (2, 2)
        clock.advance(1.5)
        assert read(run) == (3, 1)
        run.scope.charge("rows", 1)
        with pytest.raises(ravi_otel.BudgetExhaustedError):
            run.scope.charge("rows", 1)
    with reader(place, clock) as run:
        assert read(run) == (4, 0)


def test_a_reading_says_as_of_when_it_is(place, clock, tmp_path):
    with reader(place, clock) as run:
        run.scope.charge("rows", 1)
        clock.advance(2.5)
        (reading,) = run.limits
        assert reading.as_of == dt.datetime.fromtimestamp(clock.time(), dt.UTC)
        assert f"as of {reading.as_of.isoformat(timespec='seconds')}" in repr(reading)
        clock.advance(0.9)
        assert run.limits[0].as_of == reading.as_of
        with ravi_otel.apply_limits(["charge.rows=3"]):
            nearest = ravi_otel.current_scope().readings_around()[0]
        assert nearest.as_of is None  # this process alone counts there


def test_a_counter_that_was_lost_is_read_as_it_was_known_and_is_refused_all_the_same(place, clock, server, tmp_path):
    with reader(place, clock) as run:
        run.scope.charge("rows", 3)
        known = run.limits[0]
        if place.kind == REDIS:
            server.say("FLUSHALL")
        else:
            for file in tmp_path.glob("ledger.db*"):
                file.unlink()
        spend_elsewhere(place, 1, tmp_path)  # a new counter, which is nobody's here
        clock.advance(2.5)
        assert run.limits[0] == known
        assert run.remaining("charge.rows") == 2
        with pytest.raises(ravi_otel.BudgetExhaustedError) as refused:
            run.scope.charge("rows", 1)
        assert refused.value.reason == "store_lost"


def test_a_store_that_hangs_is_asked_once_a_second_and_no_longer_than_its_time_out(server, clock):
    place = Store(REDIS, f"{server.url.partition('?')[0]}?timeout_s=0.3")
    with reader(place, clock) as run:
        run.scope.charge("rows", 1)
        known = run.limits[0]
        server.pause()
        try:
            clock.advance(2.5)
            began = time.monotonic()
            assert run.limits[0] == known
            took_s = time.monotonic() - began
            assert took_s > 0.2
            asked = [run.limits[0] for _ in range(100)] + [run.remaining("charge.rows")]
            assert asked == [known] * 100 + [4]
            assert time.monotonic() - began < 30 * took_s  # a hundred readings waited once
        finally:
            server.go_on()
        assert took_s < 30


def test_a_store_that_is_gone_leaves_what_is_known(server, clock):
    with reader(Store(REDIS, server.url), clock) as run:
        run.scope.charge("rows", 1)
        known = run.limits[0]
        server.kill()
        for _ in range(5):
            clock.advance(2.5)
            assert run.limits[0] == known
        assert run.remaining("charge.rows") == 4


def test_a_reading_of_a_store_that_was_never_reached_is_unknown_and_raises_nothing(clock):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = Store(REDIS, f"redis://127.0.0.1:{nobody.getsockname()[1]}/0")
        with reader(place, clock) as run:
            (reading,) = run.limits
            figures = (reading.used, reading.held, reading.remaining, reading.ratio, run.remaining("charge.rows"))
            assert [math.isnan(each) for each in figures] == [True] * 5
            assert reading.as_of is None
            assert "used=unknown, held=unknown, remaining=unknown" in repr(reading)
            assert run.remaining("requests") is None
            with ravi_otel.apply_limits(["charge.rows=0"]):
                assert ravi_otel.remaining("charge.rows") == 0  # whatever others have used


def test_nothing_is_used_where_the_store_says_that_nobody_has_counted(place, clock):
    with reader(place, clock) as run:
        (reading,) = run.limits
        assert (reading.used, reading.remaining, run.remaining("charge.rows")) == (0, 5, 5)
        assert reading.as_of == dt.datetime.fromtimestamp(clock.time(), dt.UTC)


def test_what_is_unknown_is_unknown_in_the_report_and_the_metrics_too(clock):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ledger = opened(Store(REDIS, f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"), clock)
        record = Record()
        try:
            with Capture() as capture, ravi_otel.instrument(ledger=ledger, meter_provider=capture.meter_provider) as instrumented:
                instrumented.listen(record)
                with ravi_otel.run("reader", limits=["requests=5", "messages=7"]):
                    used = {point.attributes["ravi.limit.kind"]: point.value for point in capture.metric("ravi.limit.used")}
        finally:
            ledger.close()
    assert used == {"messages": 0}
    known = {limit["limit"]: (limit["used"], limit["remaining"], limit["ratio"]) for limit in json.loads(as_json(record))["limits"]}
    assert known == {"messages": (0, 7, 0), "requests": (None, None, None)}


@pytest.mark.anyio
async def test_a_reading_on_an_event_loop_is_as_new(place, clock, tmp_path, anyio_backend):
    ledger = opened(place, clock)
    try:
        with ravi_otel.instrument(ledger=ledger):
            async with ravi_otel.run("reader", session_id="s", limits=[LIMIT]) as run:
                run.scope.charge("rows", 1)
                spend_elsewhere(place, 3, tmp_path)
                clock.advance(2.5)
                assert read(run) == (4, 1)
    finally:
        ledger.close()


@pytest.fixture
def anyio_backend():
    return "asyncio"
