"""One ledger, many processes: what is counted once, what is held by all together, and what the dead leave behind."""

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import warm_starts

from ravi_otel._enforcement.ledger.judge import Denied, Grant
from ravi_otel._enforcement.ledger.sqlite.ledger import SqliteLedger
from ravi_otel._flow import run_sync
from ravi_otel.testing import ManualClock

CREW = Path(__file__).with_name("crew.py")


def load(program):
    spec = importlib.util.spec_from_file_location(program.stem, program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew = load(CREW)
account, ask = crew.account, crew.ask


def start(*arguments):
    command = [sys.executable, str(CREW), *map(str, arguments)]
    return warm_starts.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def spawned(*arguments):
    """Let eight processes that were started afresh work at once."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(start("spawned", *arguments)) for _ in range(8)]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
        assert all(worker.returncode == 0 for worker in workers)
        return told


def forked(*arguments):
    """Let eight children of one process work at once."""
    with start("forked", *arguments) as driver:
        told = [json.loads(line) for line in driver.communicate(timeout=60)[0].splitlines()]
        assert driver.returncode == 0
    return told


CREWS = pytest.mark.parametrize("crew_of", [spawned, forked] if os.environ.get("RAVI_LONG") else [forked])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def opened(path):
    """Open the ledger again and again, each time as another process would."""
    made = []

    def open_ledger(**options):
        made.append(SqliteLedger(path, **options))
        return made[-1]

    yield open_ledger
    for ledger in made:
        ledger.close()


@pytest.mark.parametrize(("crew_of", "kind"), [(spawned, "requests"), (forked, "requests"), (forked, "tool_calls"), (forked, "sql_rows")])
def test_eight_processes_take_three_of_three(path, crew_of, opened, kind):
    told = crew_of(path, "count", kind, 3, 5)
    assert len(told) == 8
    assert sum(one["granted"] for one in told) == 3
    assert max(one["most"] for one in told) == 3
    shared = account(kind, 3)
    assert opened().read(shared)
    assert (shared.used, shared.denied) == (3, 37)


@CREWS
def test_each_crossing_is_told_once_by_all_processes_together(path, crew_of):
    told = crew_of(path, "count", "requests", 50, 20)
    events = sorted(event for one in told for event in one["events"])
    assert events == ["limit_exceeded", "limit_nearing"]


@CREWS
def test_what_all_processes_hold_together_never_passes_the_limit(path, crew_of, opened):
    told = crew_of(path, "hold", "tokens", 1_000, 12)
    assert [one["granted"] for one in told] == [12] * 8
    assert max(one["most"] for one in told) <= 1_000
    shared = account("tokens", 1_000)
    assert opened().read(shared)
    assert (shared.used, shared.held) == (96, 0)


@CREWS
def test_processes_that_want_it_all_are_served_one_after_the_other(path, crew_of, opened):
    told = crew_of(path, "hold", "tokens", 130, 3)
    assert [one["granted"] for one in told] == [3] * 8
    assert max(one["most"] for one in told) <= 130
    shared = account("tokens", 130)
    assert opened().read(shared)
    assert (shared.used, shared.held) == (24, 0)


# the dead


def later(seconds):
    """Give a clock that is so much ahead of the machine's."""
    return ManualClock(monotonic_s=time.monotonic() + seconds)


@pytest.fixture
def doomed(path):
    """Start a process that holds 100 of a limit of 250 tokens and never ends; give what kills it."""
    worker = start("killed", path, "tokens", 250, 100)
    assert worker.stdout.readline() == "ready\n"

    def kill():
        worker.kill()
        worker.communicate(timeout=30)

    yield kill
    kill()


def test_what_a_killed_process_held_is_settled_when_its_lease_is_over(doomed, opened):
    doomed()
    shared = account("tokens", 250)
    before = opened(clock=later(29))
    assert before.reap() == 0
    assert ask(before, shared, 200)[1].reason == "contended"
    assert opened(clock=later(31)).reap() == 1
    assert before.read(shared)
    assert (shared.used, shared.held) == (100, 0)


def test_the_next_reservation_of_anybody_buries_the_dead(doomed, opened):
    doomed()
    shared = account("tokens", 250)
    assert isinstance(ask(opened(clock=later(31)), shared, 10)[1], Grant)
    assert (shared.used, shared.held) == (100, 10)


def test_one_who_waits_for_what_a_killed_process_held_is_answered_after_the_lease(doomed, opened):
    shared, clock = account("tokens", 250), later(0)
    flow = opened(clock=clock).reserve(crew.Reservation("waits", [crew.Line(shared, 160, 160)], None, 30.0))
    step = next(flow)
    doomed()
    clock.advance(31)
    step.blocking()
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    assert end.value.value.reason == "too_large"
    assert (shared.used, shared.held, shared.waiters) == (100, 0, [])


@pytest.fixture
def two(opened):
    """Open the ledger as two processes would, of which the second is far ahead."""
    return opened(clock=ManualClock()), opened(clock=ManualClock(monotonic_s=1_100.0))


@pytest.mark.parametrize(("act", "used"), [("settle", 20), ("release", 0), ("over", 70)])
def test_the_real_end_of_an_operation_corrects_the_provisional_one_once(two, act, used):
    slow, quick = two
    mine, theirs = account("tokens", 100), account("tokens", 100)
    op, _ = ask(slow, mine, 50)
    assert quick.reap() == 1
    assert quick.read(theirs)
    assert (theirs.used, theirs.held) == (50, 0)
    for _ in range(2):
        end = slow.release(op) if act == "release" else slow.settle(op, {"tokens": 20 if act == "settle" else 70})
        run_sync(end)
        assert quick.read(theirs)
        assert (theirs.used, theirs.held) == (used, 0)


def test_a_sign_of_life_does_not_bring_back_what_was_buried(two):
    slow, quick = two
    mine = account("tokens", 100)
    op, _ = ask(slow, mine, 50)
    assert quick.reap() == 1
    slow._clock.advance(20)
    other, _ = ask(slow, mine, 30)
    assert (mine.used, mine.held) == (50, 30)
    assert quick.reap(everybody=True) == 1
    run_sync(slow.settle(op, {"tokens": 1}))
    run_sync(slow.settle(other, {"tokens": 1}))
    assert (mine.used, mine.held) == (2, 0)


def test_a_lease_from_before_a_reboot_is_over(opened):
    before, after = opened(clock=ManualClock(monotonic_s=900_000.0)), opened(clock=ManualClock(monotonic_s=5.0))
    shared = account("tokens", 100)
    ask(before, shared, 50)
    assert after.reap() == 1
    assert after.read(shared)
    assert (shared.used, shared.held) == (50, 0)


def test_closing_settles_what_is_still_held(opened):
    first, second, shared = opened(), opened(), account("tokens", 100)
    ask(first, shared, 50)
    first.close()
    assert second.read(shared)
    assert (shared.used, shared.held) == (50, 0)


def test_one_who_was_thought_dead_in_line_stands_behind_the_others_and_is_served(opened):
    slow, living = opened(clock=ManualClock()), opened(clock=ManualClock())
    mine = account("tokens", 100)
    op, _ = ask(living, mine, 100)
    flow = slow.reserve(crew.Reservation("waits", [crew.Line(account("tokens", 100), 60, 60)], None, 20.0))
    step = next(flow)
    assert living.reap(everybody=True) == 1
    run_sync(living.settle(op, {"tokens": 10}))
    step.blocking()
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    assert isinstance(end.value.value, Grant)


def test_signs_of_life_are_given_while_an_operation_lives(path, opened):
    first, shared = opened(lease_s=0.2), account("tokens", 100)
    op, _ = ask(first, shared, 50)
    signs, pause, until = set(), threading.Event(), time.monotonic() + 60.0
    with contextlib.closing(sqlite3.connect(path)) as file:
        while len(signs) < 4:
            signs.update(file.execute("SELECT seen FROM processes").fetchall())
            assert time.monotonic() < until
            pause.wait(0.01)
    run_sync(first.settle(op, {"tokens": 3}))
    assert shared.used == 3


# one counter


def test_a_message_that_comes_again_in_another_process_holds_nothing_twice(opened):
    first, second = opened(), opened()
    mine, theirs = account("tokens", 100), account("tokens", 100)
    request = crew.Reservation("same", [crew.Line(mine, 30, 30)])
    granted = run_sync(first.reserve(request))
    again = crew.Reservation("same", [crew.Line(theirs, 30, 30)])
    assert run_sync(second.reserve(again)).granted == granted.granted
    run_sync(first.settle("same", {"tokens": 10}))
    assert run_sync(second.reserve(again)).granted == granted.granted
    assert run_sync(first.reserve(request)).granted == granted.granted
    assert second.read(theirs)
    assert (theirs.used, theirs.held) == (10, 0)


def test_a_limit_declared_again_takes_the_smaller_value(opened):
    first, second = opened(), opened()
    large, small = account("requests", 10), account("requests", 2)
    ask(first, large, 1)
    ask(second, small, 1)
    assert ask(first, large, 1)[1].reason == "exhausted"
    assert (large.value, large.used) == (2, 2)


def test_a_limit_declared_again_does_not_undo_one_that_was_set(opened):
    first, second = opened(), opened()
    mine, theirs = account("requests", 2), account("requests", 2)
    ask(first, mine, 1)
    run_sync(first.retune(mine, 5))
    ask(second, theirs, 1)
    assert (theirs.value, theirs.used) == (5, 2)


def test_a_limit_declared_twice_is_asked_once(opened):
    shared, twin = account("requests", 5), account("requests", 3)
    answer = run_sync(opened().reserve(crew.Reservation("one", [crew.Line(shared, 1, 1), crew.Line(twin, 1, 1)])))
    assert isinstance(answer, Grant)
    assert (shared.used, twin.used, shared.value, twin.value) == (1, 1, 3, 3)


def test_limits_that_count_the_same_are_one_whatever_their_options(opened):
    ledger = opened()
    first, second = account("requests", 5), account("requests", 5, warn_at=0.5)
    ask(ledger, first, 1)
    ask(ledger, second, 1)
    assert second.used == 2


def test_an_event_told_by_one_process_is_known_to_the_others(opened):
    first, second = opened(), opened()
    mine, theirs = account("requests", 1), account("requests", 1)
    _, answer = ask(first, mine, 1)
    assert [one.event for one in answer.crossings] == ["limit_nearing"]
    _, refused = ask(second, theirs, 1)
    assert [one.event for one in refused.crossings] == ["limit_exceeded"]
    assert theirs.events == ("limit_nearing", "limit_exceeded")
    assert ask(first, mine, 1)[1].reason == "draining"


# in line


def test_who_waits_in_one_process_is_let_in_by_a_settle_in_another(opened):
    first, second = opened(), opened()
    mine, theirs = account("tokens", 100), account("tokens", 100)
    op, _ = ask(first, mine, 100)
    flow = second.reserve(crew.Reservation("waits", [crew.Line(theirs, 60, 60)], None, 20.0))
    step = next(flow)
    assert ask(first, mine, 10)[1].reason == "contended"
    run_sync(first.settle(op, {"tokens": 10}))
    behind = first.reserve(crew.Reservation("behind", [crew.Line(mine, 60, 60)], None, 20.0))
    next(behind)  # it is the other's turn
    step.blocking()
    with pytest.raises(StopIteration) as end:
        flow.send(None)
    behind.close()
    assert isinstance(end.value.value, Grant)
    assert (theirs.used, theirs.held) == (10, 60)


def test_a_dead_process_in_line_blocks_it_no_longer_than_its_lease(opened):
    dead, living = opened(clock=ManualClock()), opened(clock=ManualClock())
    mine = account("tokens", 100)
    op, _ = ask(living, mine, 100)
    gone = dead.reserve(crew.Reservation("waits", [crew.Line(account("tokens", 100), 60, 60)], None, 20.0))
    next(gone)
    pulse = dead.pulse._thread
    dead.pulse.end()  # it is dead: it must not let itself in when the other settles
    pulse.join()
    living._clock.advance(20)
    run_sync(living.settle(op, {"tokens": 10}))
    behind = living.reserve(crew.Reservation("behind", [crew.Line(mine, 10, 10)], None, 20.0))
    next(behind)
    behind.close()
    living._clock.advance(20)
    assert isinstance(ask(living, mine, 10, patience=20.0)[1], Grant)
    gone.close()


# what is not shared


def test_accounts_that_are_not_shared_never_touch_the_file(path, opened):
    ledger, own = opened(shares=lambda _: False), account("tokens", 100)
    op, _ = ask(ledger, own, 40)
    run_sync(ledger.settle(op, {"tokens": 10}))
    assert own.used == 10
    assert not path.exists()


@pytest.mark.parametrize("full", ["requests", "tokens"])
def test_shared_and_own_accounts_are_charged_together_or_not_at_all(opened, full):
    ledger = opened(shares=lambda one: one.limit.kind == "requests")
    shared, own = account("requests", 1 if full == "requests" else 9), account("tokens", 10 if full == "tokens" else 99)
    lines = [crew.Line(shared, 1, 1), crew.Line(own, 8, 8)]
    assert isinstance(run_sync(ledger.reserve(crew.Reservation("a", lines))), Grant)
    assert isinstance(run_sync(ledger.reserve(crew.Reservation("b", lines))), Denied)
    assert (shared.used, own.held) == (1, 8)


def test_the_file_belongs_to_its_owner_alone(path, opened):
    ask(opened(), account("requests", 1), 1)
    assert {one.stat().st_mode & 0o777 for one in path.parent.iterdir()} == {0o600}
