"""Real Redis servers on loopback, and what can befall them: paused, killed, started again, and replies that are lost on the way."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOW = "no redis-server on this machine: `sh scripts/servers.sh` installs it"
_READY_WITHIN_S = 20.0
_MOST_PORTS = 20


def there() -> bool:
    return shutil.which("redis-server") is not None


def require() -> None:
    """Skip where there is no server, but never where everything must run."""
    if not there() and os.environ.get("CI") != "true":
        pytest.skip(HOW)
    assert there(), HOW


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(true: Callable[[], object], what: str, within_s: float = _READY_WITHIN_S) -> None:
    """Wait for something to become true, and say what did not."""
    deadline = time.monotonic() + within_s
    event = threading.Event()
    while not true():
        assert time.monotonic() < deadline, what
        event.wait(0.01)


def said(port: int, *words: str, timeout_s: float = 2.0) -> bytes:
    """Say one command to a server in its own protocol; b"" when it does not answer."""
    line = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(line)
            return sock.recv(65_536)
    except OSError:
        return b""


class Server:
    """Be one redis-server, or a sentinel, with a directory of its own."""

    def __init__(self, *arguments: str, program: str = "redis-server", config: str | None = None, directory: str | None = None):
        self.arguments = arguments
        self.program = program
        self.config = config
        self.directory = Path(directory or tempfile.mkdtemp(prefix="ravi-redis-"))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Give its URL, with a time-out that a busy machine keeps."""
        return f"{self.quick_url}?timeout_s=10"

    @property
    def quick_url(self) -> str:
        """Give its URL with the time-out that users have."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Run it, on the port that it had before; a port that another took meanwhile is left to it."""
        for _ in range(_MOST_PORTS):
            port = self.port or free_port()
            self.process = subprocess.Popen(
                self._command(port), cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            deadline = time.monotonic() + _READY_WITHIN_S
            pause = threading.Event()
            while self.process.poll() is None and time.monotonic() < deadline:
                if said(port, "PING").startswith(b"+PONG"):
                    self.port = port
                    return
                pause.wait(0.01)
            self.kill()
            assert not self.port, f"{self.program} did not start again on port {port}"
        raise AssertionError(f"{self.program} did not start")

    def _command(self, port: int) -> list[str]:
        command = [self.program]
        if self.config is not None:
            path = self.directory / "server.conf"
            if not path.exists():
                path.write_text(self.config)
            command.append(str(path))
        return [*command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.directory), *self.arguments]

    def say(self, *words: str) -> bytes:
        return said(self.port, *words)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


FORGETFUL = ("--save", "", "--appendonly", "no")
DURABLE = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[Server]:
    """Run a server of one's own: one that is to be paused, killed or configured."""
    require()
    running = Server(*(arguments or FORGETFUL))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def redis_process() -> Iterator[Server]:
    """One server for all tests of this worker: not to be paused or killed."""
    with server() as running:
        yield running


@pytest.fixture
def redis_server(redis_process: Server) -> Server:
    """That server, emptied."""
    assert redis_process.say("FLUSHALL").startswith(b"+OK")
    return redis_process
