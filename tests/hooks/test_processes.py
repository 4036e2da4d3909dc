"""Hooks at the end of a process, and in a forked one."""

import re
import subprocess
import sys

BEGIN = """
import asyncio, os, sys, threading
from ravi_otel import HookEvent, HookManager
hooks = HookManager()
"""


def program(text, *flags):
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", BEGIN + text], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_callback_under_way_at_the_end_of_the_process_gets_the_rest_of_its_second():
    done = program("""
@hooks.on(HookEvent.FLOW_END)
async def tells(context):
    for _ in range(100):
        await asyncio.sleep(0)
    print("told", flush=True)

hooks.emit(HookEvent.FLOW_END)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_one_that_hangs_does_not_hold_up_the_end_of_the_process():
    done = program(
        """
@hooks.on(HookEvent.FLOW_END)
async def hangs(context):
    await asyncio.Event().wait()

hooks.emit(HookEvent.FLOW_END)
""",
        "-X",
        "dev",
    )
    lines = [line for line in done.stderr.splitlines() if line]
    assert (done.returncode, done.stdout) == (0, "")
    slow = re.compile("Executing <.*> took [0-9.]+ seconds")  # what asyncio says of a busy machine
    assert [line for line in lines if "hook 'hangs' of flow_end was not over after 1 s" not in line and not slow.match(line)] == []


def test_a_forked_child_has_hooks_of_its_own_and_none_of_the_parents_under_way():
    done = program("""
began = threading.Event()

@hooks.on(HookEvent.REVIEW)
async def hears(context):
    print(context["who"], threading.current_thread().name, flush=True)
    began.set()
    if context["who"] == "parent":
        await asyncio.Event().wait()

hooks.emit(HookEvent.REVIEW, {"who": "parent"})
assert began.wait(30)
child = os.fork()
if child == 0:
    began.clear()
    hooks.emit(HookEvent.REVIEW, {"who": "child"})
    os._exit(0 if began.wait(30) else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
os._exit(0)
""", "-W", "ignore::DeprecationWarning")  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (["parent ravi-otel-hooks", "child ravi-otel-hooks", "0"], "")


def test_a_child_forked_while_another_thread_holds_the_managers_lock_can_use_it():
    done = program("""
held, forked = threading.Event(), threading.Event()

def holds():
    with hooks._lock.own:
        held.set()
        forked.wait()

thread = threading.Thread(target=holds)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    hooks.register(HookEvent.REVIEW, lambda context: 1 / 0)
    hooks.emit(HookEvent.REVIEW)
    os._exit(0 if hooks.stats().raised == 1 else 1)
forked.set()
thread.join()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
""", "-W", "ignore::DeprecationWarning")  # fmt: skip
    assert done.stdout == "0\n"


def test_nobody_who_uses_no_hook_gets_a_thread_or_a_loop():
    done = program("""
import ravi_otel
with ravi_otel.run("r", hooks=hooks), ravi_otel.agent("a"):
    hooks.emit(HookEvent.REVIEW)
print(threading.active_count())
""")
    assert (done.stdout, done.stderr) == ("1\n", "")
