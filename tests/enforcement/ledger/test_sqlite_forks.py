"""Forking at any moment: no lock carried over, no connection shared, and nothing of the parent's ended by the child."""

import sys
from pathlib import Path

import pytest
import warm_starts

PROGRAMS = Path(__file__).parent

HEAD = f"""
import os, sys, threading, time
sys.path.insert(0, {str(PROGRAMS)!r})
from crew import Grant, SqliteLedger, account, ask, count, run_sync

def wait(children, seconds=60):
    until = time.monotonic() + seconds
    for child in children:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, status
                break
            assert time.monotonic() < until, "a child hangs"
            time.sleep(0.005)

ledger = SqliteLedger(sys.argv[1], busy_s=30.0)
"""

STORM = """
shared, over = account("requests", 10**9), threading.Event()
counted = []

def busy():
    mine, done = account("requests", 10**9), 0
    while not over.is_set():
        op, answer = ask(ledger, mine, 1)
        run_sync(ledger.settle(op, None))
        done += 1
    counted.append(done)

threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
forks = int(sys.argv[2])
for _ in range(forks):
    child = os.fork()
    if not child:
        try:
            _, answer = ask(ledger, shared, 1)
            os._exit(0 if isinstance(answer, Grant) else 2)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(3)
    wait([child])
over.set()
for thread in threads:
    thread.join()
assert ledger.read(shared)
assert shared.used == sum(counted) + forks, (shared.used, sum(counted), forks)
ledger.close()
"""

LEFT_ALONE = """
shared = account("tokens", 100)
op, _ = ask(ledger, shared, 40)
child = os.fork()
if not child:
    run_sync(ledger.settle(op, {"tokens": 1}))  # not its own: nothing happens
    mine = account("tokens", 100)
    other, answer = ask(ledger, mine, 50)
    good = isinstance(answer, Grant) and mine.held == 90 and len(ledger) == 1
    run_sync(ledger.settle(other, {"tokens": 5}))
    os._exit(0 if good and (mine.used, mine.held) == (5, 40) else 2)
wait([child])
run_sync(ledger.settle(op, {"tokens": 10}))
assert (shared.used, shared.held, len(ledger)) == (15, 0, 0)
ledger.close()
"""

LOCKED = """
shared = account("requests", 5)
ask(ledger, shared, 1)
taken, over = threading.Event(), threading.Event()

def stay():
    with ledger._lock:  # another thread, in the middle of a step for long
        taken.set()
        over.wait(60)

thread = threading.Thread(target=stay)
thread.start()
taken.wait(60)
child = os.fork()
if not child:
    _, answer = ask(ledger, shared, 1)
    os._exit(0 if isinstance(answer, Grant) else 2)
wait([child])
over.set()
thread.join()
_, answer = ask(ledger, shared, 1)
assert shared.used == 3
ledger.close()
"""

ALIVE = """
import sqlite3
ledger = SqliteLedger(sys.argv[1], lease_s=4.0, busy_s=30.0)
shared = account("tokens", 100)
ask(ledger, shared, 10)
seen, told = os.pipe()
child = os.fork()
if not child:
    other, _ = ask(ledger, account("tokens", 100), 20)
    os.read(seen, 1)
    run_sync(ledger.settle(other, {"tokens": 20}))
    os._exit(0)
signs, until = set(), time.monotonic() + 60
while len({process for process, _ in signs}) < 2 or len(signs) < 6:  # both of them, again and again
    file = sqlite3.connect(sys.argv[1])
    signs.update(file.execute("SELECT id, seen FROM processes"))
    file.close()
    assert time.monotonic() < until, signs
    time.sleep(0.05)
os.write(told, b"!")
wait([child])
assert ledger.read(shared)
assert (shared.used, shared.held) == (20, 10)
ledger.close()
"""

LOST = """
shared = account("requests", 5)
ask(ledger, shared, 1)
os.unlink(sys.argv[1])
child = os.fork()
if not child:
    try:
        ask(ledger, account("requests", 5), 1)
    except Exception as error:
        os._exit(0 if error.reason == "store_lost" and not os.path.exists(sys.argv[1]) else 2)
    os._exit(3)
wait([child])
"""


@pytest.mark.parametrize(
    "program",
    [STORM, LEFT_ALONE, LOCKED, ALIVE, LOST],
    ids=[
        "a-storm-of-forks-under-load-counts-everything-once",
        "a-child-leaves-its-parents-operations-alone",
        "a-lock-held-at-the-fork-stops-nobody",
        "a-child-gives-signs-of-life-of-its-own",
        "a-child-notices-that-the-file-is-gone",
    ],
)
def test_forks(tmp_path, program):
    # From Python 3.12 on each fork beside threads is warned of, which is what this is about.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", HEAD + program, str(tmp_path / "ledger.db"), "40"]
    done = warm_starts.run(command)
    assert (done.returncode, done.stderr) == (0, "")
