"""Start the program, pass signals on, and stop it when it swallows refusals for ever."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from ravi_otel._instrumentation.uncovered_hosts import Uncovered, read_uncovered
from ravi_otel._launch.plan import DESCRIPTOR, FREE, Message, Messages

MOST_REFUSALS: Final = 100
MOST_REFUSING_S: Final = 30.0
"""A program that swallows this many refusals, or goes on swallowing them for this long, is terminated."""

GRACE_S: Final = 10.0
"""How long a terminated program has to end before it is killed."""

_UNSAID: Final = "its store could not be used"
_TICK_S: Final = 0.1
_LEAVING_S: Final = 0.3
_FORWARDED: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH") if hasattr(signal, name)
)
_FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH})


@dataclass(slots=True)
class Ended:
    """How the program ended; a negative `status` is the signal that ended it.

    `attached` are the processes that have the plan, `working` those that called a model, `left` those of them that
    ended normally, `survivors` those that still run. `failed` says why the plan does not apply to some, `stopped` is
    the refusal after which the program was terminated. `unkept` is the sentence of the refusal that ended it, if the store
    caused it. `outside` are clients in unsupported versions, `by_process` the model calls past all limits.
    `opened` are the kinds and names of the limits' scopes that the program opened.
    """

    pid: int = 0
    status: int = 0
    attached: set[int] = field(default_factory=set[int])
    working: set[int] = field(default_factory=set[int])
    left: set[int] = field(default_factory=set[int])
    failed: list[str] = field(default_factory=list[str])
    refusals: int = 0
    uncaught: bool = False
    uncaught_thread: bool = False
    uncaught_below: bool = False
    stopped: str = ""
    unkept: str = ""
    survivors: list[int] = field(default_factory=list[int])
    outside: dict[str, None] = field(default_factory=dict[str, None])
    opened: set[str] = field(default_factory=set[str])
    by_process: dict[tuple[int, str], Uncovered] = field(default_factory=dict[tuple[int, str], Uncovered])

    @property
    def uncovered(self) -> list[Uncovered]:
        """The model calls past all limits of all processes, by host, most requests first."""
        sums: dict[str, Uncovered] = {}
        for (_, host), each in self.by_process.items():
            sums[host] = Uncovered(host, each.requests + (sums[host].requests if host in sums else 0))
        return sorted(sums.values(), key=lambda each: (-each.requests, each.host))


class Program:
    """The program while it runs."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], messages: Path, *, terminate: bool) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._messages = Messages(messages)
        self._terminate = terminate
        self._ended = Ended()
        self._first_refusal_ns = 0
        self._deadline: float | None = None
        self._processes: dict[int, int] = {}

    def run(self) -> Ended:
        """Run the program to its end; raise OSError if it cannot be started."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_inheritable(writing, True)  # noqa: FBT003 - the only way to say it
        with os.fdopen(reading, "rb", buffering=0) as said, _wakeups() as (wake, forward):
            environ = {**self._environ, DESCRIPTOR: f"{writing}:{os.fstat(writing).st_ino}"}
            try:
                # The program inherits descriptors that we inherited, such as a socket or a pipe of the shell; our own do not pass on.
                child = subprocess.Popen(self._command, env=environ, close_fds=False)  # noqa: S603 - what the user asked us to run
            finally:
                os.close(writing)
            forward(child)
            while child.poll() is None:
                _readable(wake, _TICK_S)
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 512)
                self._read_messages(child)
            self._ended.status = child.returncode
            self._end_workers(wake)
            self._read_messages(child)
            self._ended.pid = child.pid
            self._ended.attached.update(_pids(said.read() or b""))
        self._ended.survivors = self._survivors()
        for descriptor in self._processes.values():
            os.close(descriptor)
        return self._ended

    def _survivors(self) -> list[int]:
        """Return the processes that outlive the program, not counting those that are just leaving."""
        patience = time.monotonic() + _LEAVING_S
        while True:
            alive = [pid for pid, descriptor in self._processes.items() if not _is_over(descriptor)]
            if not alive or time.monotonic() >= patience:
                return alive
            time.sleep(_TICK_S / 10)

    def _end_workers(self, wake: int) -> None:
        """Kill the processes that outlive a terminated program past the grace period."""
        while self._deadline is not None and not all(map(_is_over, self._processes.values())):
            _readable(wake, _TICK_S / 2)
            if time.monotonic() >= self._deadline:
                self._deadline = None
                for descriptor in self._processes.values():
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    # -- messages of its processes --------------------------------------------------------------------------------

    def _read_messages(self, child: subprocess.Popen[bytes]) -> None:
        for message in self._messages.new():
            self._take(message, child)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            self._signal(child, signal.SIGKILL)

    def _take(self, message: Message, child: subprocess.Popen[bytes]) -> None:
        ended = self._ended
        if message.what == "left":
            ended.left.add(message.pid)
        elif message.what in ("attached", "working"):
            (ended.attached if message.what == "attached" else ended.working).add(message.pid)
            self._keep_handle(message.pid, child.pid)
        elif message.what == "failed":
            ended.failed.append(message.text)
        elif message.what == "uncaught":
            ended.unkept = (message.text or _UNSAID) if message.unkept else ""
            ended.uncaught_below = ended.uncaught_below or (message.pid != child.pid and not message.thread)
            ended.uncaught = ended.uncaught or (message.pid == child.pid and not message.thread)
            ended.uncaught_thread = ended.uncaught_thread or (message.pid == child.pid and message.thread)
        elif message.what == "refused":
            self._refused(message, child)
        elif message.what == "outside":
            ended.outside[message.text] = None
        elif message.what == "opened":
            ended.opened.add(message.text)
        elif message.what == "uncovered":
            found = read_uncovered(message.text)
            if found is not None:
                ended.by_process[message.pid, found.host] = found

    def _refused(self, message: Message, child: subprocess.Popen[bytes]) -> None:
        ended = self._ended
        ended.refusals += 1
        self._first_refusal_ns = self._first_refusal_ns or message.at_ns
        refusing_s = (message.at_ns - self._first_refusal_ns) / 1e9
        swallowed = ended.refusals >= MOST_REFUSALS or (ended.refusals > FREE and refusing_s >= MOST_REFUSING_S)
        if swallowed and self._terminate and not ended.stopped and child.poll() is None:
            ended.stopped = message.text
            ended.unkept = message.text if message.unkept else ""
            self._deadline = time.monotonic() + GRACE_S
            self._signal(child, signal.SIGTERM)

    def _keep_handle(self, pid: int, main: int) -> None:
        """Open a handle on another process of the program, which stays valid even if its pid is reused."""
        if pid != main and pid not in self._processes and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._processes[pid] = os.pidfd_open(pid)

    def _signal(self, child: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            child.send_signal(number)
        for descriptor in self._processes.values():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, number)


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a descriptor is readable; unlike `select`, for descriptors of any number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def _is_over(descriptor: int) -> bool:
    """Whether the process behind a handle has ended: it can be read from then on."""
    return _readable(descriptor, 0)


def occupy_standard_descriptors() -> None:
    """Open the null device for closed standard descriptors, so that no file of ours gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _pids(said: bytes) -> set[int]:
    words = [line.split() for line in said.splitlines()]
    return {int(line[1]) for line in words if len(line) == 2 and line[0] == b"attached" and line[1].isdigit()}  # noqa: PLR2004 - two words


@contextmanager
def _wakeups() -> Generator[tuple[int, Callable[[subprocess.Popen[bytes]], None]]]:
    """Wake a `poll` when a signal comes, and pass signals on to the program once it runs."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def passed(number: int, _frame: FrameType | None) -> None:
        if number in _FROM_TERMINAL and _in_foreground():
            return  # the terminal sent it to the program as well
        if not children:
            early.append(number)
        for child in children:
            with contextlib.suppress(OSError):
                child.send_signal(number)

    def forward(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        while early:
            passed(early.pop(0), None)

    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)
    before = {number: signal.signal(number, passed) for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    ring = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    try:
        yield wake, forward
    finally:
        signal.set_wakeup_fd(ring)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(woken)


def _in_foreground() -> bool:
    """Whether this process belongs to the foreground group of a terminal."""
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            return stream is not None and os.tcgetpgrp(stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            continue
    return False
