"""What a forked child begins anew: in order, all of it whatever fails, and only what lives."""

import gc
import subprocess
import sys
import threading

import pytest

PROGRAM = """
import os
from ravi_otel import _forksafe

said = []

@_forksafe.renew_in_child
def first():
    said.append("first")

@_forksafe.renew_in_child
def broken():
    raise ValueError("ours")

class Owner:
    def __init__(self, name):
        self.name = name
        _forksafe.renew_while_alive(self, Owner.renew)

    def renew(self):
        said.append(self.name)

lives, gone = Owner("lives"), Owner("gone")
del gone
_forksafe.renew_in_child(lambda: said.append("last"))
_forksafe.around_fork(lambda: said.append("before, outer"), lambda: said.append("parent"))
_forksafe.around_fork(lambda: said.append("before, inner"))
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
print(", ".join(said), flush=True)
"""

ENDING = """
from ravi_otel._forksafe import ForkLock
from ravi_otel._enforcement.usage_counters import Learned
kept = [ForkLock(), Learned()]
kept.append(kept)
"""


def test_all_that_lives_is_renewed_in_order_whatever_fails_and_nothing_else():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    before = "before, inner, before, outer"
    assert done.stdout.splitlines() == [f"{before}, first, lives, last", f"{before}, parent"]
    assert "ValueError: ours" in done.stderr


def test_nothing_is_said_of_what_still_lives_at_the_end_of_the_interpreter():
    done = subprocess.run([sys.executable, "-W", "error", "-c", ENDING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("collected", [True, False])
def test_who_registers_is_free_to_go(collected):
    from ravi_otel import _forksafe

    lock = _forksafe.ForkLock()
    known = len(_forksafe._renewals)
    if collected:
        del lock
        gc.collect()
        assert len(_forksafe._renewals) < known
    else:
        with lock.own:
            lock.renew()
            thread = threading.Thread(target=lock.own.acquire)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
