"""Approvers that ask a person through a queue, at the terminal, or with a function of the program."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import termios
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio

from ravi_otel._enforcement.sleeper import on_any_event_loop
from ravi_otel._flow import Flow
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError, RaviError
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy import _checks as checks
from ravi_otel.policy._contracts import Coloured, JsonObject
from ravi_otel.supervisor._sync_async import LONGEST_PAUSE_S, Backoff, raise_if_ended, run_or_await, wall_clock
from ravi_otel.supervisor.approval._queue import (
    EXPIRED,
    QUEUE_VARIABLE,
    WAITS_EVERY_S,
    WAY_OUT,
    QueueBusy,
    StoredRequest,
    current_login,
    fingerprint_flaw,
    open_queue,
    queue_place,
    read_queue_place,
    seal_of,
)
from ravi_otel.supervisor.approval._request import (
    CHANGED,
    NO_TERMINAL,
    NOT_AN_APPROVER,
    ApprovalAnswer,
    ApprovalRequest,
    answer_refusal,
    describe_arguments,
    edit_arguments,
    escape,
    freeze,
    login_identity,
    read_arguments,
    readable,
)

T = TypeVar("T")

_TERMINAL: Final = "/dev/tty"
_LONGEST_LINE_PAUSE_S: Final = 0.1
_MOST_LINE: Final = 65_536
_QUESTION: Final = "Run it? [y]es, [n]o, [e]dit: "
_EDITING: Final = "One change a line, as amount_usd=500 (JSON, else text), or name= to leave one out; an empty line ends it."
_YES: Final = frozenset({"y", "yes"})
_NO: Final = frozenset({"n", "no"})
_EDIT: Final = frozenset({"e", "edit"})
_asked_terminals: dict[tuple[int, str], object] = {}
"""Terminals with an open question of a process: two at once would read each other's answers."""


class _HungUp(Exception):  # noqa: N818 - a state, passed from one function of ours to the next
    """A terminal that is closed or has nobody at it."""


class TerminalApprover:
    """An approver at the controlling terminal, whatever the program's own input and output are; `device` names another terminal.

    It shows exactly the frozen arguments, as JSON with every character but plain ASCII escaped, so that different arguments never look
    alike. It accepts yes, no, or an edit, which is shown and asked about again; input from before the question is discarded. It asks one
    question at a time: other questions of the process wait. `who` is the login of the process's user.
    """

    def __init__(self, device: str = _TERMINAL) -> None:
        if not isinstance(device, str) or not device:  # pyright: ignore[reportUnnecessaryIsInstance]  # a program's own argument
            raise ConfigurationError("TerminalApprover(device) must be the path of a terminal, such as '/dev/tty'.")
        self._device = device

    def __repr__(self) -> str:
        return f"<TerminalApprover {self._device!r}>"

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Ask, and return the answer; where an event loop runs, await the result.

        The comment of a refusal is "no_terminal" if no terminal is there or it hangs up, and "expired" past `expires_at`. Raises what ends
        the scope: its cancellation, its end, or its deadline.
        """
        return run_or_await(partial(self._asking, request))

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Do nothing: a terminal has no use for how the call ended."""

    def _asking(self, request: ApprovalRequest) -> Flow[ApprovalAnswer]:
        arguments: JsonObject = read_arguments(freeze(request.arguments))
        with Backoff(_LONGEST_LINE_PAUSE_S) as backoff, contextlib.ExitStack() as open_ones:
            try:
                while not _take_turn(self._device, open_ones):
                    _raise_if_expired(request)
                    yield from backoff.pause(_seconds_left(request))
                at = _Prompt(open_ones.enter_context(_open_terminal(self._device)), request, backoff)
                return (yield from _ask_until_answered(at, request, arguments))
            except _HungUp:
                return ApprovalAnswer(approved=False, comment=NO_TERMINAL)
            except TimeoutError:
                return EXPIRED


class _Prompt:
    """One question at a terminal, which writes and reads lines without blocking the event loop."""

    def __init__(self, opened: int, request: ApprovalRequest, backoff: Backoff) -> None:
        self._opened = opened
        self._request = request
        self._backoff = backoff
        self._typed = b""

    def write(self, *lines: str, end: str = "\n") -> None:
        """Write lines, in ASCII only."""
        left = memoryview(("\n".join(lines) + end).encode("ascii", "backslashreplace"))
        try:
            while left:
                left = left[os.write(self._opened, left) :]
        except OSError as error:
            raise _HungUp from error

    def read_line(self, question: str) -> Flow[str]:
        """Ask for one line; raise TimeoutError past the request's end."""
        self.write(question, end="")
        while b"\n" not in self._typed:
            if not self._ready():
                _raise_if_expired(self._request, self)
                yield from self._backoff.pause(_seconds_left(self._request), self._wait)
                continue
            try:
                part = os.read(self._opened, 4_096)
            except OSError as error:
                raise _HungUp from error
            self._typed += part
            if not part or len(self._typed) > _MOST_LINE:
                raise _HungUp
        line, _, self._typed = self._typed.partition(b"\n")
        _raise_if_expired(self._request, self)
        return line.decode("utf-8", "replace").strip()

    def _ready(self) -> bool:
        return self._wait(0)

    def _wait(self, longest_s: float) -> bool:
        if not _is_in_foreground(self._opened):
            time.sleep(longest_s)
            return False
        return bool(select.select([self._opened], [], [], longest_s)[0])


def _ask_until_answered(at: _Prompt, request: ApprovalRequest, asked: JsonObject) -> Flow[ApprovalAnswer]:
    """Ask until there is a yes or a no."""
    at.write(*_describe_request(request))
    arguments, now = asked, freeze(asked)
    while True:
        at.write(*(f"  {line}" for line in describe_arguments(arguments)))
        said = (yield from at.read_line(_QUESTION)).lower()
        me = current_login()
        answer = ApprovalAnswer(approved=said in _YES, who=me, identity=login_identity(me))
        if said in _YES:
            wrong = answer_refusal(request, answer)
            if wrong is not None:
                at.write(escape(wrong))
                return ApprovalAnswer(approved=False, comment=NOT_AN_APPROVER, identity=answer.identity)
            return replace(answer, arguments=None if now == freeze(asked) else arguments)
        if said in _NO:
            comment = yield from at.read_line("Why not? (the model is told) ")
            return replace(answer, comment=readable(comment))
        if said in _EDIT:
            arguments = yield from _ask_for_edits(at, arguments)
            now = freeze(arguments)
        else:
            at.write("Please answer y, n or e.")


def _ask_for_edits(at: _Prompt, arguments: JsonObject) -> Flow[JsonObject]:
    """Return the edited arguments, from one change a line; report a line that cannot be read."""
    at.write(_EDITING)
    while True:
        line = yield from at.read_line("> ")
        if not line:
            return arguments
        try:
            fresh = edit_arguments(arguments, [line])
            freeze(fresh)
        except RaviError as error:
            at.write(escape(str(error)))
        else:
            arguments = fresh


def _describe_request(request: ApprovalRequest) -> list[str]:
    """Return the lines that say which agent asks for which tool, and why."""
    by = f", agent {escape(request.agent_name)}" if request.agent_name else ""
    risk = "" if request.risk_score is None else f"  risk {request.risk_score:g}"
    head = f"A call of {escape(request.tool)} needs your approval{by} ({escape(request.reason)}){risk}"
    return ["", head, "It would run with exactly these arguments:"]


def _seconds_left(request: ApprovalRequest) -> float | None:
    return None if request.expires_at is None else request.expires_at - wall_clock()


def _raise_if_expired(request: ApprovalRequest, at: _Prompt | None = None) -> None:
    left_s = _seconds_left(request)
    if left_s is not None and left_s <= 0:
        if at is not None:
            at.write("", "It has expired: nothing is run.")
        raise TimeoutError


def _take_turn(device: str, until: contextlib.ExitStack) -> bool:
    """Reserve a terminal until `until` closes; return False while another question is open there. Atomic, without waiting."""
    key, mine = (os.getpid(), device), object()
    if _asked_terminals.setdefault(key, mine) is not mine:
        return False
    until.callback(_asked_terminals.pop, key, None)
    return True


def _is_in_foreground(opened: int) -> bool:
    """Whether the process may read its terminal: one in the background is stopped when it does."""
    try:
        return os.tcgetpgrp(opened) == os.getpgrp()
    except OSError:  # not the terminal that controls the process: nothing stops it there
        return True


@contextmanager
def _open_terminal(device: str) -> Generator[int, None, None]:
    """Open the terminal, and discard what was typed before the question."""
    try:
        opened = os.open(device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _HungUp from error
    try:
        if not os.isatty(opened):
            raise _HungUp
        if _is_in_foreground(opened):
            with contextlib.suppress(termios.error):
                termios.tcflush(opened, termios.TCIFLUSH)
        yield opened
    finally:
        os.close(opened)


Callback: TypeAlias = Callable[[ApprovalRequest], Coloured[ApprovalAnswer | bool]]


class CallbackApprover:
    """An approver that calls `fn(request)`, which returns True, False or an ApprovalAnswer, or an awaitable of one.

    A plain function runs where the call is made and should be quick; an `async def` may take its time, and is cancelled when the
    request expires ("expired") or when something ends the run. `fn` gets a copy of the arguments, and edits them with
    `ApprovalAnswer(True, arguments=...)`. `ask()` raises what `fn` raises, which a gate turns into a ToolDeniedError with that as its
    cause. For any other answer, even one that is truthy, it raises ConfigurationError, which a gate raises as it is. Nothing is executed
    in either case.
    """

    def __init__(self, fn: Callback) -> None:
        if not callable(fn):
            raise ConfigurationError(f"CallbackApprover(fn={checks.show(fn)}) cannot be called; give a function of one ApprovalRequest.")
        self._fn = fn

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Call the function, and return its answer, or an awaitable of it if the function is asynchronous."""
        text = freeze(request.arguments)
        if _has_expired(request):
            return _EXPIRED_ANSWER
        said: object = self._fn(replace(request, arguments=read_arguments(text)))
        if not inspect.isawaitable(said):
            return self._read(said, request)
        if not on_any_event_loop():
            if inspect.iscoroutine(said):
                said.close()
            raise ConfigurationError(
                "CallbackApprover(fn) gave something to await, and the tool is called by synchronous code. "
                "Give a plain function, or call the tool from a coroutine."
            )
        return self._awaited(cast("Awaitable[object]", said), request)

    def executed(self, request: ApprovalRequest, status: str) -> None:
        """Do nothing: a function has no use for how the call ended."""

    async def _awaited(self, said: Awaitable[object], request: ApprovalRequest) -> ApprovalAnswer:
        """Await the function's answer until the request expires; raise what ends the scope."""
        scope, _ = STATE.locate()
        answered: list[object] = []
        failed: list[BaseException] = []

        async def watch() -> None:
            try:
                while not _has_expired(request):
                    raise_if_ended(scope)
                    await anyio.sleep(LONGEST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - raised again outside the task group, which would wrap it
                failed.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            try:
                answered.append(await said)
            except Exception as error:  # noqa: BLE001 - raised again outside the task group, which would wrap it
                failed.append(error)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return self._read(answered[0], request) if answered else _EXPIRED_ANSWER

    def _read(self, said: object, request: ApprovalRequest) -> ApprovalAnswer:
        if _has_expired(request):
            return _EXPIRED_ANSWER
        if isinstance(said, bool):
            return ApprovalAnswer(approved=said)
        if isinstance(said, ApprovalAnswer) and isinstance(cast("Any", said.approved), bool):
            return said
        raise ConfigurationError(
            f"CallbackApprover(fn) answered {checks.show(said)}, which is neither True, False nor an ApprovalAnswer: nothing was executed."
        )


_EXPIRED_ANSWER = ApprovalAnswer(approved=False, comment="expired")


def _has_expired(request: ApprovalRequest) -> bool:
    return request.expires_at is not None and wall_clock() >= request.expires_at


_LOOK_AT_LEAST_EVERY_S: Final = 1.0
_STEP_RETRY_S: Final = 10.0
_END_RETRY_S: Final = 2.0
_WAIT_RETRY_S: Final = 300.0
"""How long the wait for an answer continues while the queue cannot be read, as when its server restarts."""


class ApprovalQueue:
    """An approver with a queue that a person answers with `ravi-otel approvals`, or on the page of `ravi-otel ui`.

    `path` is a file, or a Redis that many machines reach, such as "redis://HOST:6379/0"; None is RAVI_APPROVALS, else `approvals.db` in
    RAVI_STORE, else in `.ravi` of the working directory. A file is made with mode 0600 and refused when others may use it. `clock` returns
    UTC epoch seconds, and is there for tests.

    Safe in threads, processes and forks: nothing stays open, locked or in a transaction during the wait. An approval is issued to one
    caller, once. See docs/approvals.md for what survives which crash.
    """

    def __init__(self, path: str | Path | None = None, *, clock: Callable[[], float] = wall_clock) -> None:
        if path is not None and not isinstance(cast("object", path), (str, os.PathLike)):
            given = checks.show(cast("object", path))
            raise ConfigurationError(
                f"ApprovalQueue(path={given}) must be the path of a file, the URL of a Redis, or None for the default."
            )
        self.path = queue_place() if path is None else read_queue_place(path)
        out = WAY_OUT if path is None else "give ApprovalQueue(path=...) a file in a directory of your own"
        named = QUEUE_VARIABLE if path is None else "ApprovalQueue(path)"
        own = None if clock is wall_clock and not isinstance(self.path, Path) else clock
        self._store = open_queue(self.path, clock=own, create=True, out=out, named=named)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<ApprovalQueue {self._store.shown!r}>"

    def ask(self, request: ApprovalRequest) -> Coloured[ApprovalAnswer]:
        """Return the answer to the request, which is added to the queue if it is new; where an event loop runs, await the result.

        The answer is "expired" past `expires_at`, "arguments_changed" if they were changed meanwhile, and "already_answered" if this very
        request (its id and fingerprint) has taken an approval before. Raises what ends the scope: its cancellation, its end, or its
        deadline; the request then stays in the queue. Raises QueueError when the queue cannot be used.
        """
        return run_or_await(partial(self._asking, request))

    def executed(self, request: ApprovalRequest, status: str) -> Coloured[None]:
        """Record how the call ended; if it never ran ("refused"), its approval can be used until it expires or is rejected.

        Never raises, as the call is over. If this cannot be written, the approval stays "taken", and nothing can use it.
        """
        if isinstance(self.path, Path):
            self._end(request, status)
            return None
        return run_or_await(partial(self._ending, request, status))

    def _ending(self, request: ApprovalRequest, status: str) -> Flow[None]:
        yield from self._store.step(partial(self._end, request, status))

    def _end(self, request: ApprovalRequest, status: str) -> None:
        try:
            self._store.retry(partial(self._store.end, request, status), _END_RETRY_S)
        except RaviError as error:
            swallow("ApprovalQueue.executed", error)

    def _asking(self, request: ApprovalRequest) -> Flow[ApprovalAnswer]:
        seal = seal_of(request)
        if fingerprint_flaw(request) is not None:
            return _ARGUMENTS_CHANGED
        with Backoff() as backoff:
            while True:
                if not _is_unchanged(request, seal):
                    return _ARGUMENTS_CHANGED
                found = yield from self._retry_step(backoff, partial(self._store.enter, request, seal))
                if isinstance(found, ApprovalAnswer):
                    return found
                refused = yield from self._until_answered(found, request, backoff)
                if refused is not None:
                    return refused

    def _until_answered(self, waited: StoredRequest, request: ApprovalRequest, backoff: Backoff) -> Flow[ApprovalAnswer | None]:
        """Wait until somebody answers; return a refusal, or None if there may be an approval to take."""
        mark, looked = (yield from self._mark()), time.monotonic()
        told = looked
        while True:
            left_s = None if request.expires_at is None else request.expires_at - self._clock()
            if left_s is not None and left_s <= 0:
                return EXPIRED
            yield from backoff.pause(left_s)
            if time.monotonic() - told >= WAITS_EVERY_S:
                told = time.monotonic()
                yield from self._retry_step(backoff, partial(self._store.wait, waited.id), _WAIT_RETRY_S)
            now = yield from self._mark()
            if now == mark and time.monotonic() - looked < _LOOK_AT_LEAST_EVERY_S:
                continue
            mark, looked = now, time.monotonic()
            stored = yield from self._retry_step(backoff, partial(self._store.look, waited.id), _WAIT_RETRY_S)
            if stored is None or stored.flaw is not None or stored.state in ("approved", "taken", "expired"):
                return None
            if stored.state == "rejected":
                yield from self._retry_step(backoff, partial(self._store.mark_refusal_read, stored.id))
                return stored.answer()

    def _mark(self) -> Flow[Sequence[object]]:
        return self._store.step(self._store.changed)

    def _retry_step(self, backoff: Backoff, act: Callable[[], T], longest_s: float = _STEP_RETRY_S) -> Flow[T]:
        """Run an operation of the queue as soon as it is possible."""
        until = time.monotonic() + longest_s
        while True:
            try:
                return (yield from self._store.step(act))
            except QueueBusy:
                if time.monotonic() >= until:
                    raise self._store.locked() from None
            yield from backoff.pause()


_ARGUMENTS_CHANGED: Final = ApprovalAnswer(approved=False, comment=CHANGED)


def _is_unchanged(request: ApprovalRequest, seal: str) -> bool:
    """Whether nobody has changed the arguments since they were frozen."""
    try:
        return seal_of(request) == seal
    except RaviError:
        return False
