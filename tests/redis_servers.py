"""Real Redis servers on loopback, and what can befall them: paused, killed, started again, and replies that are lost on the way."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOW = "no redis-server on this machine: `sh scripts/servers.sh` installs it"
_READY_WITHIN_S = 20.0
_MOST_PORTS = 20


def found() -> str | None:
    """Give the server's program: the system's, or that beside the Python that runs the tests."""
    beside = Path(sys.executable).with_name("redis-server")
    return shutil.which("redis-server") or (str(beside) if beside.exists() else None)


def require() -> None:
    """Skip where there is no server, but never where everything must run."""
    if found() is None and os.environ.get("CI") != "true":
        pytest.skip(HOW)
    assert found(), HOW


def require_tls() -> None:
    """Skip where the server was built without TLS, as the one in the wheel is."""
    require()
    if b"tls-auth-clients" not in Path(found() or "").read_bytes():
        pytest.skip("this redis-server was built without TLS")


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


def said(port: int, *words: str | bytes, timeout_s: float = 2.0) -> bytes:
    """Say one command to a server in its own protocol; b"" when it does not answer."""
    sent = [word if isinstance(word, bytes) else word.encode() for word in words]
    line = b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in sent)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(line)
            return sock.recv(65_536)
    except OSError:
        return b""


class Server:
    """Be one redis-server, or a sentinel, with a directory of its own."""

    def __init__(self, *arguments: str, program: str | None = None, config: str | None = None, directory: str | None = None):
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
                if said(port, "PING").startswith((b"+PONG", b"-NOAUTH")):
                    self.port = port
                    return
                pause.wait(0.01)
            self.kill()
            assert not self.port, f"the server did not start again on port {port}"
        raise AssertionError("the server did not start")

    def _command(self, port: int) -> list[str]:
        command = [self.program or found() or "redis-server"]
        if self.config is not None:
            path = self.directory / "server.conf"
            if not path.exists():
                path.write_text(self.config)
            command.append(str(path))
        return [*command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.directory), *self.arguments]

    def say(self, *words: str | bytes) -> bytes:
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


FORGETFUL = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
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


class Proxy:
    """Stand between a client and a server, and lose replies: `swallow` leaves the client waiting, `cut` ends its connection.

    Each is how many of the next replies that becomes of; while `passing` is clear all are kept back. `lost` counts them.
    """

    def __init__(self, port: int):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.swallow = self.cut = self.lost = 0
        self.passing = threading.Event()
        self.passing.set()
        self.came = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [self._run(self._accept)]

    @staticmethod
    def _run(act: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=act, name="proxy", daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target), 5)
                except OSError:
                    client.close()
                    continue
                for sock in (client, server):
                    sock.settimeout(None)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.update((client, server))
                self._threads.append(self._run(lambda a=client, b=server: self._pump(a, b, replies=False)))
                self._threads.append(self._run(lambda a=client, b=server: self._pump(b, a, replies=True)))

    def _pump(self, source: socket.socket, target: socket.socket, *, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                fate = self._fate() if replies else "pass"
                if fate == "cut":
                    break
                if fate == "pass":
                    target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _fate(self) -> str:
        self.came.release()
        self.passing.wait()
        with self._lock:
            if self.cut:
                self.cut, self.lost = self.cut - 1, self.lost + 1
                return "cut"
            if self.swallow:
                self.swallow, self.lost = self.swallow - 1, self.lost + 1
                return "swallow"
        return "pass"

    def close(self) -> None:
        self.passing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in tuple(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in tuple(self._sockets):
            sock.close()


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    """A way to that server on which replies are lost."""
    made = Proxy(redis_server.port)
    yield made
    made.close()


class Watched:
    """Be a server, its replica, and a sentinel that names the one that is the master."""

    def __init__(self, stack: contextlib.ExitStack):
        self.master = stack.enter_context(server())
        self.replica = stack.enter_context(server(*FORGETFUL, "--replicaof", "127.0.0.1", str(self.master.port)))
        until(lambda: b"master_link_status:up" in self.replica.say("INFO", "replication"), "the replica did not follow")
        config = (
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds main 10000\nsentinel failover-timeout main 10000\n"
        )
        self.sentinel = Server("--sentinel", config=config)
        stack.callback(self.sentinel.close)
        until(lambda: f"{self.replica.port}".encode() in self.sentinel.say("SENTINEL", "replicas", "main"), "the sentinel knows no replica")

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main?timeout_s=10"

    def catch_up(self) -> None:
        """Wait until the replica has heard of all that the master was told."""
        written = re.compile(rb"(?:master|slave)_repl_offset:(\d+)")

        def offset(node: Server) -> list[bytes]:
            return written.findall(node.say("INFO", "replication"))[:1]

        until(lambda: offset(self.master) == offset(self.replica) != [], "the replica did not catch up")

    def fail_over(self) -> None:
        """Kill the master, and wait until the replica has taken its place."""
        self.master.kill()
        until(lambda: self.sentinel.say("SENTINEL", "failover", "main").startswith(b"+OK"), "the sentinel refused")
        until(lambda: b"role:master" in self.replica.say("INFO", "replication"), "the replica did not take over")
        name = str(self.replica.port).encode()
        until(lambda: name in self.sentinel.say("SENTINEL", "get-master-addr-by-name", "main"), "the sentinel names the old one")


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A server with a replica and a sentinel of its own."""
    with contextlib.ExitStack() as stack:
        yield Watched(stack)


class Cluster:
    """Be three servers that share the slots."""

    def __init__(self, stack: contextlib.ExitStack):
        require()
        self.nodes = [Server(*FORGETFUL, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(3)]
        for node in self.nodes:
            stack.callback(node.close)
        for number, node in enumerate(self.nodes):
            first, last = number * 16_384 // 3, (number + 1) * 16_384 // 3
            assert node.say("CLUSTER", "ADDSLOTS", *map(str, range(first, last))).startswith(b"+OK")
            assert node.say("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)).startswith(b"+OK")
        for node in self.nodes[1:]:
            assert self.nodes[0].say("CLUSTER", "MEET", "127.0.0.1", str(node.port)).startswith(b"+OK")
        for node in self.nodes:
            until(lambda node=node: self._knows_all(node), "the cluster did not come together")

    def _knows_all(self, node: Server) -> bool:
        info = node.say("CLUSTER", "INFO")
        return b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info and b"cluster_known_nodes:3" in info

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}?timeout_s=10"


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[Cluster]:
    """Three servers for all tests of this worker: not to be paused for long or killed."""
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)
