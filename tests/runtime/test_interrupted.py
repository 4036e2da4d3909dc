"""What ends a call from outside, between any two lines of ours, leaves nothing held and nothing open."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import linecache
import signal
import sys
import threading
from collections import deque
from pathlib import Path

import openai
import openai._base_client as client_module
import pytest

import ravi_otel
from ravi_otel import _flow
from ravi_otel._instrumentation import client_seam
from ravi_otel._instrumentation.client_seam import ClientCall, ClientSeam
from ravi_otel._instrumentation.formats.format import read_events, read_result
from ravi_otel._instrumentation.streams import FollowedStream
from ravi_otel._runtime import tool_call
from ravi_otel._runtime.charging import Attempts
from ravi_otel._runtime.model_call import ModelCall
from ravi_otel._runtime.state import STATE
from ravi_otel.testing import Disconnect, Failure, Text

sys.path.insert(0, str(Path(__file__).parent))

from own_gates import OwnGate

OURS = str(Path(ravi_otel.__file__).parent)
CALL = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}


def test_an_exception_from_a_signal_handler_ends_the_wait_in_line_and_nothing_is_sent(stage):
    def handler(_signum, _frame):
        raise SoftTimeLimitError

    stage.answer = Text("ok", usage=(10, 10))
    stage.server.hold()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with stage.client() as client, ravi_otel.instrument(), ravi_otel.run("r", limits=["tokens=1040"]):
            holder = threading.Thread(target=lambda: client.chat.completions.create(**CALL))
            holder.start()
            stage.wait_for(1)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(SoftTimeLimitError):
                client.chat.completions.create(**CALL, max_tokens=1_020)
            stage.server.release()
            holder.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stage.sent == 1


@pytest.mark.parametrize("raw", [False, True])
def test_an_exception_from_a_signal_handler_while_a_request_is_read_keeps_it_from_being_sent(stage, monkeypatch, raw):
    def handler(_signum, _frame):
        raise SoftTimeLimitError

    line, told = -1, 0
    reading = {each.__code__ for each in (ClientSeam._begin, client_seam._read, ModelCall.start.__func__)}

    def trace(frame, event, _arg):
        nonlocal told
        if event == "line":
            told += 1
            if told == line:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    def begin(frame, _event, _arg):
        return trace if frame.f_code in reading else None

    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)  # with it even what is swallowed is raised
    stage.answer = Text("ok")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with stage.client() as client, ravi_otel.instrument():
            if raw:  # somebody calls what is beneath our wrapper of `request`
                monkeypatch.setattr(type(client), "request", inspect.unwrap(type(client).request))
            for number in range(1, 200):
                line, told, sent = number, 0, stage.sent
                with ravi_otel.run("r") as run:
                    sys.settrace(begin)
                    try:
                        client.chat.completions.create(**CALL)
                    except SoftTimeLimitError:
                        assert (stage.sent, run.stats().requests) == (sent, 0), number
                    else:
                        assert told < line
                        break
                    finally:
                        sys.settrace(None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert 20 < number < 100, "each of the lines was interrupted"


class SoftTimeLimitError(Exception):
    """Be what a worker's soft time limit raises: an ordinary error, from a signal handler."""


class Signalled:
    """Have a signal come at the first line that runs inside one of these functions of ours and is not in `seen`; `line` is which."""

    def __init__(self, inside, seen):
        self.line = None
        self._inside = inside
        self._seen = seen

    def __enter__(self):
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _begin(self, frame, _event, _arg):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        around = frame
        while around is not None and around.f_code not in self._inside:
            around = around.f_back
        return None if around is None else self._trace

    def _trace(self, frame, event, _arg):
        place = (frame.f_code.co_filename, frame.f_lineno)
        # Entering a `try` or a `with` block are told as lines of their own, where no signal is ever handled.
        if event == "line" and place not in self._seen and not linecache.getline(*place).lstrip().startswith(("with ", "try:")):
            self._seen.add(place)
            self.line = place
            signal.raise_signal(signal.SIGUSR1)
        return self._trace


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("error", [SoftTimeLimitError, KeyboardInterrupt])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_a_signal_handler_raises_while_an_answer_is_read_reaches_the_program(stage, monkeypatch, stream, error):
    def handler(_signum, _frame):
        raise error

    monkeypatch.delenv("RAVI_RAISE_BUGS", raising=False)  # with it even what is swallowed is raised
    stage.answer = Text("hello", usage=(10, 10))
    followed = (FollowedStream._add_event, FollowedStream._check_limits, FollowedStream._reply)
    reading = {each.__code__ for each in (ClientCall.read, read_result, read_events, *followed)}
    seen, reached = set(), False
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with stage.client() as client, ravi_otel.instrument():
            while not seen or reached:
                reached = False
                with ravi_otel.run("r", limits=["tokens=1000000", "requests=999"]) as run, Signalled(reading, seen) as signalled:
                    try:
                        answer = client.chat.completions.create(**CALL, **({"stream": True} if stream else {}))
                        if stream:
                            deque(answer, maxlen=0)
                    except error:
                        reached = True
                sys.settrace(None)
                assert reached or signalled.line is None, f"swallowed: {signalled.line}"
                assert run.stats().requests == 1, signalled.line
                assert [each.held for each in run.limits] == [0, 0], signalled.line
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) > 20, "each of the lines was interrupted"


def test_one_tracker_holds_over_scopes_that_left_calls_behind(stage):
    stage.answer = Text("ok")
    tracker = ravi_otel.ExecutionTracker(max_turns=3)
    left: list[threading.Event] = []
    threads: list[threading.Thread] = []
    with stage.client() as client, ravi_otel.instrument():

        def leftover(go: threading.Event) -> None:
            go.wait()
            for _ in range(3):
                try:
                    client.chat.completions.create(**CALL)
                except ravi_otel.BudgetExhaustedError:
                    return

        for _ in range(3):
            with ravi_otel.agent("a", budget=tracker):
                left.append(go := threading.Event())
                threads.append(thread := threading.Thread(target=leftover, args=(go,)))
                thread.start()
        for go in left:
            go.set()
        for thread in threads:
            thread.join()
    assert stage.sent == 3
    assert tracker.turns == 3


def test_a_session_in_use_keeps_its_count_however_many_others_come_and_go(stage, monkeypatch):
    monkeypatch.setattr("ravi_otel._enforcement.engine._MOST_JOINED", 20)
    stage.answer = Text("ok")
    with stage.client() as client, ravi_otel.instrument(), ravi_otel.run("one", session_id="victim", limits=["session.requests=1"]):
        client.chat.completions.create(**CALL)
        for number in range(50):
            with ravi_otel.run("other", session_id=f"s{number}"):
                pass
        with ravi_otel.run("two", session_id="victim"), pytest.raises(ravi_otel.BudgetExhaustedError):
            client.chat.completions.create(**CALL)
    assert stage.sent == 1


def test_a_session_limit_declared_again_is_as_strict_as_the_strictest_of_both():
    first = ravi_otel.run("one", session_id="s", limits=["session.requests=100"])
    second = ravi_otel.run("two", session_id="s", limits=["session.requests=3", "session.cost=1usd:unpriced=warn"])
    third = ravi_otel.run("three", session_id="s", limits=["session.requests=50", "session.cost=1usd"])
    with ravi_otel.instrument(), first, second, third:
        session = first.scope.parent
        assert session is not None
        values = {(account.limit.kind, account.limit.on_unpriced): account.value for account in session.accounts}
    assert values["requests", "refuse"] == 3
    assert ("cost", "refuse") in values


def test_a_decorated_plain_wrapper_around_a_coroutine_function_runs_inside_the_run(stage):
    stage.answer = Text("ok")

    def logged(fn):
        @functools.wraps(fn)
        def inner(*args):
            return fn(*args)

        return inner

    with ravi_otel.instrument():

        @ravi_otel.run("job", limits=["requests=1"])
        @logged
        async def job():
            async with stage.async_client() as client:
                for _ in range(3):
                    await client.chat.completions.create(**CALL)

        with pytest.raises(ravi_otel.BudgetExhaustedError):
            asyncio.run(job())
    gc.collect()
    assert stage.sent == 1


def test_stats_can_be_read_while_the_code_that_counts_is_interrupted():
    from ravi_otel._enforcement import usage_counters

    with ravi_otel.run("r") as run, usage_counters._lock.own:
        assert run.stats().requests == 0


class Interruption(BaseException):
    """Be what a signal handler raises."""


ENDS = {method.__code__ for method in (ModelCall.answered, ModelCall.fail, ModelCall._is_settler, Attempts.settle)}
FIRST_IN_FINALLY = ("waiting.over = True",)


def interrupted(moment, act, where=ENDS):
    """Tell whether an exception came between the lines that end a call, or are in `where`, functions or files, at that moment of them."""
    left = moment

    def trace(frame, event, arg):
        nonlocal left
        code = frame.f_code
        if code not in where and (code.co_filename not in where or code.co_name.startswith("<")):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        # Entering a `try` or a `finally` and leaving a `with` block are told as lines of their own, where no signal is ever handled.
        told = event == "line" or (event == "return" and frame.f_code is ModelCall._is_settler.__code__)
        entering = frame.f_code is ModelCall.fail.__code__ and line.startswith("me = ")  # nobody ends what never began to end
        if told and not entering and not line.startswith(("with ", "try:", *FIRST_IN_FINALLY)):
            left -= 1
            if left == 0:
                raise Interruption
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Interruption:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answered at the second attempt and refused at the next"])
def test_what_ends_a_call_holds_nothing_whatever_interrupts_it(stage, monkeypatch, lost):
    monkeypatch.setattr(client_module, "INITIAL_RETRY_DELAY", 0.0)
    monkeypatch.setattr(client_module, "MAX_RETRY_DELAY", 0.0)
    replies = [Disconnect(), Failure(400, "no")] if lost else [Text("ok", usage=(10, 10))]
    with (
        stage.client(max_retries=1) as client,
        ravi_otel.instrument(),
        ravi_otel.run("r", limits=["tokens=1000000", "requests=999"]) as run,
    ):

        def call():
            answers = iter(replies)
            stage.answer = lambda request: next(answers)
            try:
                client.chat.completions.create(**CALL, max_tokens=900)
            except openai.BadRequestError:
                assert lost

        moment = 1
        while interrupted(moment, call):
            assert len(STATE.engine.ledger) == 0, f"something is left at moment {moment}"
            assert [each.held for each in run.limits] == [0, 0]
            moment += 1
    assert moment > 8


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
@pytest.mark.parametrize("behind_a_gate", [False, True], ids=["plain", "behind a gate"])
def test_nobody_is_inside_a_tool_any_more_whatever_interrupts_it(behind_a_gate):
    search = ravi_otel.tool(lambda: None, name="search", gate=OwnGate() if behind_a_gate else None)
    around = {module.__file__ for module in (tool_call, _flow)}
    with ravi_otel.run("r"):
        moment = 1
        while interrupted(moment, search, around):
            assert _flow.around() == (), f"it is still waited for after moment {moment}"
            moment += 1
    assert moment > 8
