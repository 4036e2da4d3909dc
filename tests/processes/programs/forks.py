"""Fork again and again while threads and an event loop count, and tell what came of it: forks.py LEDGER FORKS."""

import asyncio
import itertools
import json
import os
import sys
import threading
import time

import ravi_otel

LEDGER, FORKS = sys.argv[1], int(sys.argv[2])
SESSION = ["session.charge.rows=1000000"]


@ravi_otel.tool
def work():
    """Be one thing that is counted."""


@ravi_otel.tool
async def work_async():
    await asyncio.sleep(0)


def in_session():
    with ravi_otel.run("r", session_id="s", limits=SESSION), ravi_otel.agent("a"):
        ravi_otel.current_scope().charge("rows", 1)
        work()


def until(over, act, counted):
    for done in itertools.count():
        if over.is_set():
            counted.append(done)
            return
        act()
        over.wait(0.001)  # a busy thread would only keep the others from their work


def on_a_loop(over, counted):
    async def loop():
        done = 0
        while not over.is_set():
            await asyncio.gather(work_async(), work_async(), asyncio.sleep(0.001))
            done += 2
        counted.append(done)

    asyncio.run(loop())


def be_child(number):
    """Work as a child, and leave in one of the ways there are."""
    assert ravi_otel.current_scope().facts.kind == "process"
    in_session()
    if number % 5:
        os._exit(0)
    sys.exit(0)  # with everything that Python does at an exit


def wait(child):
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        assert time.monotonic() < deadline, "a child hangs"
        time.sleep(0.001)


def main():
    over, sessions, tools, looped = threading.Event(), [], [], []
    threads = [
        threading.Thread(target=until, args=(over, in_session, sessions)),
        threading.Thread(target=until, args=(over, work, tools)),
        threading.Thread(target=on_a_loop, args=(over, looped)),
    ]
    for thread in threads:
        thread.start()
    statuses, parent = [], os.getpid()
    try:
        with ravi_otel.run("around"):
            for number in range(FORKS):
                child = os.fork()
                if not child:
                    be_child(number)
                statuses.append(wait(child))
    finally:
        if os.getpid() == parent:
            over.set()
            for thread in threads:
                thread.join()
    (reading,) = ravi_otel.current_scope().readings()
    told = {"statuses": sorted(set(statuses)), "sessions": sum(sessions), "tools": sum(tools) + sum(looped), "used": reading.used}
    print(json.dumps(told))


if __name__ == "__main__":
    with ravi_otel.instrument(limits=["tool_calls=1000000000"], ledger=LEDGER):
        main()
