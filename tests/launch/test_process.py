"""The launcher's watch over a program: who is told to end, when, and who is killed."""

import os
import sys

import pytest

from ravi_otel._launch import process
from ravi_otel._launch.process import Program

TELLER = """
import json, os, signal, sys, time
def tell(what, at_s=0.0, **more):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid(), "at_ns": int(at_s * 1e9) + 1, "text": what, **more}) + "\\n")
"""


@pytest.fixture
def watch(tmp_path):
    def start(code, *, terminate=True):
        notes = tmp_path / "notes.jsonl"
        return Program([sys.executable, "-c", TELLER + code, str(notes)], os.environ, notes, terminate=terminate).run()

    return start


def test_a_hundred_refusals_end_a_program(watch):
    ended = watch("for _ in range(100): tell('refused')\nsignal.pause()")
    assert (ended.status, ended.refusals, ended.stopped) == (-15, 100, "refused")


def test_ninety_nine_refusals_do_not(watch):
    ended = watch("for _ in range(99): tell('refused')\nsys.exit(3)")
    assert (ended.status, ended.refusals, ended.stopped) == (3, 99, "")


def test_more_than_ten_over_half_a_minute_end_it(watch):
    assert watch("for at in range(11): tell('refused', 3.0 * at)\nsignal.pause()").stopped == "refused"


def test_ten_over_half_a_minute_do_not(watch):
    assert watch("for at in range(10): tell('refused', 5.0 * at)\nsys.exit(0)").stopped == ""


def test_a_program_that_is_only_to_be_refused_goes_on(watch):
    ended = watch("for _ in range(200): tell('refused')\nsys.exit(5)", terminate=False)
    assert (ended.status, ended.refusals, ended.stopped) == (5, 200, "")


def test_one_that_does_not_listen_is_killed(watch, monkeypatch):
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    ended = watch("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor _ in range(100): tell('refused')\nwhile True: time.sleep(9)")
    assert ended.status == -9


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors of Linux")
def test_its_workers_end_with_it(watch, tmp_path):
    code = """
worker = os.fork()
if not worker:
    signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + ".ended", "w").close(), os._exit(0)))
    tell("working")
    while True: time.sleep(9)
while "working" not in open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else True: time.sleep(0.01)
time.sleep(0.3)
for _ in range(100): tell("refused")
os.waitpid(worker, 0)
"""
    watch(code)
    assert (tmp_path / "notes.jsonl.ended").exists()


def test_the_first_process_and_others_are_told_apart(watch):
    ended = watch("tell('uncaught'); tell('uncaught', thread=True); tell('failed'); tell('attached'); tell('working')\nsys.exit(1)")
    assert (ended.uncaught, ended.uncaught_thread, ended.failed) == (True, True, ["failed"])
    assert ended.attached == ended.working == {ended.pid}


def test_a_worker_that_a_refusal_ends_does_not_end_the_program(watch):
    ended = watch("worker = os.fork()\nif not worker:\n    tell('uncaught')\n    os._exit(1)\nos.waitpid(worker, 0)")
    assert (ended.status, ended.uncaught) == (0, False)


def test_handlers_are_as_they_were_afterwards(watch):
    before = [process.signal.getsignal(number) for number in (15, 2, 1, 17)]
    watch("pass")
    assert [process.signal.getsignal(number) for number in (15, 2, 1, 17)] == before
