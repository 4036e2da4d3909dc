"""Fork while another thread holds every lock that is ours, and work in the child: locked.py LEDGER."""

import gc
import os
import sys
import threading
import time

import ravi_otel

LOCKS = (type(threading.Lock()), type(threading.RLock()))
SESSION = ["session.charge.rows=1000000"]
TRACKER = ravi_otel.ExecutionTracker(max_tokens=1_000)
RETRIES = ravi_otel.RetryPolicy(max_retries=5)


@ravi_otel.tool
def work():
    """Be one thing that is counted."""


def do():
    with ravi_otel.run("r", session_id="s", limits=SESSION), ravi_otel.agent("a"):
        ravi_otel.current_scope().charge("rows", 1)
        work()
    TRACKER.consume(tokens=1)
    assert RETRIES.should_retry("a")


def ours():
    """Give every lock that an object or a module of ours has."""
    for thing in gc.get_objects():
        if str(type(thing).__module__).startswith("ravi_otel"):
            names = [*getattr(thing, "__dict__", ()), *(name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))]
            yield from (getattr(thing, name, None) for name in names)
    for name, module in tuple(sys.modules.items()):
        if name.startswith("ravi_otel"):
            yield from vars(module).values()


def hold(taken, over):
    for each in [each for each in ours() if isinstance(each, LOCKS)]:  # a list: a tuple being made may not be looked at
        each.acquire(blocking=False)
    taken.set()
    over.wait(60)
    os._exit(0)  # with all of them held, nothing in this process would end


def main():
    do()
    taken, over = threading.Event(), threading.Event()
    threading.Thread(target=hold, args=(taken, over)).start()
    assert taken.wait(20)
    child = os.fork()
    if not child:
        do()
        os._exit(0)
    deadline = time.monotonic() + 20
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            print("the child hangs", flush=True)
            break
        time.sleep(0.002)
    over.set()


if __name__ == "__main__":
    ravi_otel.instrument(limits=["tool_calls=1000000000"], ledger=sys.argv[1])
    main()
