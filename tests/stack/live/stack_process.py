"""One server of the stack as a process: started, asked whether it is ready, paused, killed, started again, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
from redis_servers import until

T = TypeVar("T")

READY_WITHIN_S = 60.0
_LOG_TAIL_BYTES = 6_000
_FIRST_PORT, _LAST_PORT = 18_000, 31_000  # below the ports that a kernel gives to whoever connects, so nobody takes them meanwhile

GUARD = """
import os, signal, sys
pids = set()
for line in sys.stdin:
    sign, pid = line[0], int(line[1:])
    pids.add(pid) if sign == "+" else pids.discard(pid)
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Guard:
    """End what a killed run leaves: a process of its own that reads of every start and end, and acts when nobody writes any more."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", GUARD], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip

    def tell(self, sign: str, pid: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sign}{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Ports:
    """Hand out ports of 127.0.0.1 that nobody listens on, each once: to all stacks of this process, also to what is down just now."""

    def __init__(self) -> None:
        self._next = _FIRST_PORT + (os.getpid() * 97) % (_LAST_PORT - _FIRST_PORT)

    def take(self) -> int:
        for _ in range(_LAST_PORT - _FIRST_PORT):
            self._next = self._next + 1 if self._next < _LAST_PORT else _FIRST_PORT
            with socket.socket() as sock, contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", self._next))
                return self._next
        raise AssertionError("no port of 127.0.0.1 is free")


PORTS = Ports()


class ServerProcess:
    """Be one server with a directory of its own; its output goes to `log` there, one file for all its lives."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], directory: Path, ready_url: str, guard: Guard):
        self.name = name
        self.command = command
        self.environment = environment
        self.directory = directory
        self.ready_url = ready_url
        self.log = directory / "log"
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def start(self, wait: bool = True) -> None:
        """Run it where it ran before; with `wait`, return when it says that it is ready."""
        assert self._process is None, f"{self.name} is running already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=_surroundings() | self.environment,
            )  # fmt: skip
        self._guard.tell("+", self._process.pid)
        if wait:
            self.wait_until_ready()

    def is_ready(self) -> bool:
        """Say whether it answers, and raise when it has ended."""
        assert self._process is not None, f"{self.name} is not running"
        ended = self._process.poll()
        assert ended is None, f"{self.name} ended with {ended}:\n{self.tail()}"
        try:
            return httpx.get(self.ready_url, timeout=2, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        pause = threading.Event()
        while not self.is_ready():
            assert time.monotonic() < deadline, f"{self.name} was not ready within {READY_WITHIN_S} s:\n{self.tail()}"
            pause.wait(0.1)

    def pause(self) -> None:
        """Stop it as it is: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end and wait; one that does not within its time is killed, and the test told."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Ask it to end and start it again."""
        self.stop()
        self.start()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Have it killed for a while."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def reload(self) -> None:
        """Have it read its configuration again, as SIGHUP does of Prometheus and Alertmanager."""
        os.kill(self.pid, signal.SIGHUP)

    def tail(self) -> str:
        """Give the end of what it wrote."""
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return ""

    def says(self, words: str, within_s: float = READY_WITHIN_S) -> None:
        """Wait until its log has the words."""
        until(lambda: words in self.log.read_text(errors="replace"), f"{self.name} never wrote {words!r}", within_s)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(READY_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not end within {READY_WITHIN_S} s of {how.name}:\n{self.tail()}") from None
        finally:
            self._guard.tell("-", process.pid)


def _surroundings() -> dict[str, str]:
    """Give what every program needs, and nothing that was meant for the programs under test."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ} | {"GOMAXPROCS": "2"}


def wait_for(ask: Callable[[], T], what: str, within_s: float = READY_WITHIN_S) -> T:
    """Ask until the answer is true, and give it."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s; the last answer was {answer!r}"
        pause.wait(0.2)
    return answer
