"""A program that SIGTERM ends tells how its runs ended, and dies of the signal as it would without us."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import warm_starts

from ravi_otel._local import otlp as _otlp
from ravi_otel._local.queries import Queries
from ravi_otel._local.store import Store
from ravi_otel._runtime.stopping import UnderWay, end_under_way

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time
import ravi_otel
from ravi_otel import HookEvent, HookManager

BEFORE
hooks = HookManager()
hooks.register(HookEvent.RUN_END, lambda told: print("end", told["agent_name"], told["status"], told["stop_reason"], flush=True))
ravi_otel.instrument(hooks=hooks)
AFTER
with ravi_otel.run("r"), ravi_otel.agent("outer"), ravi_otel.agent("inner"):
    os.write(1, b"ready\\n")  # a signal must not find this process in the middle of a print
    while True:
        time.sleep(0.01)
"""

CALLS = """
import asyncio, openai, socketserver, threading

class Silent(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(65536)
        os.write(1, b"ready\\n")  # in one step, which no signal comes into
        time.sleep(600)

server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
given = {"base_url": f"http://127.0.0.1:{server.server_address[1]}/v1", "api_key": "k", "max_retries": 0}
question = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "x"}]}

def called():
    openai.OpenAI(**given).chat.completions.create(**question)

def called_in_thread():
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()

def awaited():
    asyncio.run(openai.AsyncOpenAI(**given).chat.completions.create(**question))

@ravi_otel.tool
def tool():
    os.write(1, b"ready\\n")  # in one step, which no signal comes into
    time.sleep(600)

@ravi_otel.tool
async def slow():
    os.write(1, b"ready\\n")  # in one step, which no signal comes into
    await asyncio.sleep(600)

def awaited_tool():
    asyncio.run(slow())

for event in (HookEvent.LLM_END, HookEvent.TOOL_END):
    hooks.register(event, lambda told: print("call", told["status"], told["error_type"], flush=True))
with ravi_otel.run("r", limits=["tokens=1000"]) as run, ravi_otel.agent("outer"), ravi_otel.agent("inner"):
    hooks.register(HookEvent.FLOW_END, lambda told: print("charged", run.stats().requests, run.scope.accounts[0].used > 0, flush=True))
    WORK()
"""


class Program:
    """Be a program that works in a store until it is told to end."""

    def __init__(self, store: Path, before: str = "", after: str = "", *, greenlets: bool = False, **environ: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
        self.store = store
        program = PROGRAM.replace("BEFORE", before).replace("AFTER", after)
        if greenlets:
            waiting = program.replace("sleep(0.01)", "sleep(600)").replace("os.write(1", "gevent.spawn(os.write, 1")
            program = f"import gevent.monkey\ngevent.monkey.patch_all()\n{waiting}"
        begin = subprocess.Popen if greenlets else warm_starts.start  # threads are made greenlets before anything is imported
        self.process = begin(
            [sys.executable, "-W", "error", "-c", program],
            env={**kept, "PYTHONPATH": str(ROOT), "RAVI_STORE": str(store), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready\n", self.process.communicate()

    def hear(self) -> str:
        """Read one line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[list[str], str, int]:
        """Tell it to end; give what it said meanwhile, and how it ended."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        return out.splitlines(), err, self.process.returncode

    def spans(self) -> dict[str, tuple[Any, Any]]:
        """Give status and stop reason of each span that is kept for a replay."""
        found: dict[str, tuple[Any, Any]] = {}
        kept = _otlp.request("traces", [data for (data,) in self.rows("SELECT data FROM otlp WHERE signal = 'traces'")])
        for span in (each for resource in kept.resource_spans for scope in resource.scope_spans for each in scope.spans):
            said = {each.key: each.value.string_value for each in span.attributes}
            found[span.name] = said.get("ravi.status"), said.get("ravi.stop_reason")
        return found

    def ends(self) -> dict[str, tuple[Any, ...]]:
        """Give how the store says that each run and agent ended, and whether it has seen it end."""
        told = "status, stop_reason, ended IS NOT NULL"
        rows = self.rows(f"SELECT 'run', {told} FROM runs UNION ALL SELECT name, {told} FROM scopes WHERE kind IN ('run', 'agent')")
        assert len(rows) == 4
        return {name: tuple(end) for name, *end in rows}

    def outcome(self) -> tuple[str | None, int | None]:
        """Give what the store says of the process, which has lost nothing and whose end was seen."""
        ((outcome, status, lost, ended),) = self.rows("SELECT outcome, status, lost, ended FROM processes")
        assert lost == 0
        assert (ended is None) == (outcome is None)
        return outcome, status

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """Ask the store's file."""
        with closing(sqlite3.connect(f"file:{self.store / 'runs.db'}?mode=ro", uri=True)) as connection:
            return connection.execute(question).fetchall()


ENDED = dict.fromkeys(["run", "r", "outer", "inner"], ("cancelled", "cancelled", 1))
"""What the store says of all that was open."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start one program, which is killed with the test."""
    begun: list[Program] = []

    def one(*given: str, **environ: Any) -> Program:
        begun.append(Program(tmp_path / "store", *given, **environ))
        return begun[-1]

    yield one
    for each in begun:
        each.process.kill()
        each.process.communicate()


def test_every_run_and_agent_says_how_it_ended_and_the_process_dies_of_the_signal(start: Any) -> None:
    program = start()
    assert program.end() == (["end inner cancelled cancelled", "end outer cancelled cancelled"], "", -signal.SIGTERM)
    assert program.spans() == dict.fromkeys(["invoke_agent inner", "invoke_agent outer", "invoke_workflow r"], ("cancelled", "cancelled"))
    assert program.ends() == ENDED
    assert program.outcome() == ("signal", -signal.SIGTERM)


def test_it_is_told_too_while_all_greenlets_wait(start: Any) -> None:
    pytest.importorskip("gevent")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the end of what is exported is waited for
        program = start(greenlets=True, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
        told, errors, code = program.end()
    assert (told, code) == (["end inner cancelled cancelled", "end outer cancelled cancelled"], -signal.SIGTERM)
    assert "internal error" not in errors
    assert program.ends() == ENDED
    assert program.outcome() == ("signal", -signal.SIGTERM)


@pytest.mark.parametrize("work", ["called", "called_in_thread", "awaited"])
def test_a_model_call_that_is_under_way_is_told_and_charged(start: Any, work: str) -> None:
    program = start("", CALLS.replace("WORK", work))
    said, err, status = program.end()
    assert said[0] == "call cancelled abandoned"
    assert (said[1:], err, status) == (
        ["end inner cancelled cancelled", "end outer cancelled cancelled", "charged 1 True"],
        "",
        -signal.SIGTERM,
    )
    assert program.spans()["chat gpt-4o-mini"] == ("cancelled", None)
    told = "status, error_type, duration > 0, charged IS NOT NULL, requests, input_tokens > 0"
    assert program.rows(f"SELECT {told} FROM calls") == [("cancelled", "abandoned", 1, 1, 1, 1)]
    assert program.rows("SELECT requests, input_tokens > 0 FROM runs") == [(1, 1)]
    assert (program.ends(), program.outcome()) == (ENDED, ("signal", -signal.SIGTERM))


@pytest.mark.parametrize("work", ["tool", "awaited_tool"])
def test_a_tool_that_is_under_way_is_told(start: Any, work: str) -> None:
    program = start("", CALLS.replace("WORK", work))
    said, err, status = program.end()
    assert (said[:3], err, status) == (
        ["call cancelled abandoned", "end inner cancelled cancelled", "end outer cancelled cancelled"],
        "",
        -signal.SIGTERM,
    )
    assert len([name for name in program.spans() if name.startswith("execute_tool ")]) == 1
    assert program.rows("SELECT status, error_type, duration > 0 FROM tools") == [("cancelled", "abandoned", 1)]
    assert (program.ends(), program.outcome()) == (ENDED, ("signal", -signal.SIGTERM))


def test_one_that_hands_the_signal_on_when_it_has_shut_down_is_no_lost_run(start: Any) -> None:
    """As servers do that restore what was there before them."""
    hand_on = "before = signal.signal(signal.SIGTERM, lambda *told: (signal.signal(signal.SIGTERM, before), signal.raise_signal(told[0])))"
    program = start("", hand_on)
    assert program.end()[2] == -signal.SIGTERM
    assert program.outcome() == ("signal", -signal.SIGTERM)
    with Queries(Store.find(program.store)) as ask:
        assert [(run.status, run.stop_reason, run.lost_records) for run in ask.runs().rows] == [("cancelled", "cancelled", 0)]


@pytest.mark.parametrize("which", [0, 1], ids=["before", "after"])
def test_a_handler_of_the_programs_own_is_the_only_one(start: Any, which: int) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), os._exit(7)))"
    program = start(*["", handler][:: 1 if which else -1])
    assert program.end() == (["mine"], "", 7)


def test_switched_off_it_dies_without_a_word(start: Any) -> None:
    program = start(RAVI_SIGTERM="off")
    while len(program.rows("SELECT 1 FROM scopes WHERE kind = 'agent'")) < 2:  # written in a moment, and nothing after that
        time.sleep(0.02)
    assert program.end() == ([], "", -signal.SIGTERM)
    assert program.spans() == {}
    assert program.ends() == dict.fromkeys(ENDED, ("open", None, 0))
    assert program.outcome() == (None, None)


@pytest.mark.parametrize("fault", ["os._exit and 1 / 0", "sys.exit(3)"])
def test_a_callback_that_raises_keeps_it_from_nothing(start: Any, fault: str) -> None:
    program = start("", f"hooks.register(HookEvent.FLOW_END, lambda _: {fault})")
    said, _, status = program.end()
    assert (said[0], status) == ("end inner cancelled cancelled", -signal.SIGTERM)
    assert (program.ends(), program.outcome()) == (ENDED, ("signal", -signal.SIGTERM))


@pytest.mark.parametrize("again", [True, False], ids=["a second signal", "five seconds"])
def test_a_callback_that_hangs_keeps_it_for_five_seconds_at_most(start: Any, again: bool) -> None:
    program = start("", "hooks.register(HookEvent.RUN_END, lambda _: (print('hangs', flush=True), time.sleep(600)))")
    program.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert [program.hear() for _ in range(2)][-1] == "hangs\n"
    if again:
        program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(60) == -signal.SIGTERM
    assert again or time.monotonic() - began > 4


def test_a_forked_child_is_left_to_the_system(start: Any) -> None:
    fork = """
child = os.fork()
if not child:
    os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""
    assert start("", fork).end()[1:] == ("child 0\n", -signal.SIGTERM)


class Call(UnderWay):
    """Be under way; while it ends, everybody else goes on."""

    def __init__(self, others: Callable[[], object]) -> None:
        self._others = others

    def end_with_process(self) -> None:
        self._others()


def test_a_thread_that_goes_on_while_calls_are_ended_comes_to_no_harm() -> None:
    half_made, goes_on = threading.Event(), threading.Event()
    made: list[object] = []

    def numbers() -> Iterator[int]:
        yield 1
        half_made.set()
        goes_on.wait()

    def others() -> None:
        goes_on.set()
        thread.join()

    thread = threading.Thread(target=lambda: made.append(tuple(numbers())))
    thread.start()
    half_made.wait()
    call = Call(others)
    end_under_way()
    del call
    assert made == [(1,)]
