"""Start a program for what it does and not for how it is started: forked from a Python that has imported the client already.

A new Python takes a second to import the client and us, and the tests start hundreds. Here each is a process of its own all the same,
with its own environment, place, streams, main module and end. What a program imports, and when, has to be tested with a new Python:
with RAVI_LONG, and wherever Linux is not, that is what all of them are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

WARM = sys.platform == "linux" and not os.environ.get("RAVI_LONG")


class _Asked(NamedTuple):
    warnings: list[str]
    kind: str
    target: str
    args: list[str]


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 100,
    check: bool = False,
    encoding: str = "utf-8",
    session: bool = False,
    **usual: Any,
) -> subprocess.CompletedProcess[str]:
    """Run `[sys.executable, …]` to its end as `subprocess.run` would, and give what it printed as text.

    With `session` it leads one of its own, of which nothing is left behind.
    """
    assert set(usual) <= {"capture_output", "text"}, usual
    if not WARM:
        return _cold(command, env, cwd, timeout, check=check, encoding=encoding, session=session)
    status, out, err = _ended(_job(command, env, cwd, session=session), timeout, encoding)
    done = subprocess.CompletedProcess(command, status, out, err)
    if check:
        done.check_returncode()
    return done


def _cold(
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    timeout: float,
    *,
    check: bool,
    encoding: str,
    session: bool,
) -> subprocess.CompletedProcess[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": encoding}
    with subprocess.Popen(command, env=env, cwd=cwd, start_new_session=session, **pipes) as child:
        try:
            out, err = child.communicate(timeout=timeout)
        finally:
            if session or child.poll() is None:
                _kill(child.pid, session=session)
    done = subprocess.CompletedProcess(command, child.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _kill(child: int, *, session: bool) -> None:
    with contextlib.suppress(OSError):
        (os.killpg if session else os.kill)(child, signal.SIGKILL)


def _parsed(command: Sequence[str]) -> _Asked:
    executable, *rest = map(str, command)
    assert executable == sys.executable, command
    actions = []
    while rest[0] == "-W":
        actions.append(rest[1])
        rest = rest[2:]
    if rest[0] in ("-c", "-m"):
        return _Asked(actions, {"-c": "code", "-m": "module"}[rest[0]], rest[1], rest[2:])
    assert not rest[0].startswith("-"), command
    return _Asked(actions, "file", rest[0], rest[1:])


def _ended(job: dict[str, Any], timeout: float, encoding: str) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing, _server() as wire:
        wire.settimeout(timeout)
        try:
            child = _asked_for(wire, job, [nothing.fileno(), out.fileno(), err.fileno()])
        except TimeoutError:
            raise subprocess.TimeoutExpired(job["target"], timeout) from None
        try:
            status = _number(wire)
        except TimeoutError:
            _kill(child, session=False)
            raise subprocess.TimeoutExpired(job["target"], timeout) from None
        finally:
            if job["session"]:
                _kill(child, session=True)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(encoding).replace("\r\n", "\n"))
    return status, texts[0], texts[1]


def _asked_for(wire: socket.socket, job: dict[str, Any], descriptors: list[int]) -> int:
    """Have the server start a program whose standard streams are these, and give its process."""
    text = json.dumps(job).encode() + b"\n"
    socket.send_fds(wire, [text[:1]], descriptors)
    wire.sendall(text[1:])
    return _number(wire)


def _number(wire: socket.socket) -> int:
    """Read one line of the server's: a process, or how it ended."""
    line = b""
    while not line.endswith(b"\n"):
        got = wire.recv(1)
        assert got, "the server of warm starts has gone"
        line += got
    return int(line)


class Program:
    """Be a program that was started and goes on meanwhile, as `subprocess.Popen` is one."""

    def __init__(self, job: dict[str, Any], streams: Sequence[Any], *, encoding: str | None) -> None:
        self.args = job["target"]
        self.returncode: int | None = None
        ours: list[Any] = []
        with contextlib.ExitStack() as theirs:
            descriptors: list[int] = []
            for number, given in enumerate(streams):
                inherited, kept = self._stream(number, given, descriptors, theirs)
                descriptors.append(inherited)
                ours.append(kept)
            self._wire = _server()
            self.pid = _asked_for(self._wire, job, descriptors)
        files: list[Any] = [
            None if each is None else os.fdopen(each, "wb" if number == 0 else "rb", 0 if number == 0 else -1)
            for number, each in enumerate(ours)
        ]
        if encoding is not None:
            files = [each and io.TextIOWrapper(each, encoding=encoding, write_through=True) for each in files]
        self.stdin, self.stdout, self.stderr = files

    @staticmethod
    def _stream(number: int, given: Any, before: list[int], theirs: contextlib.ExitStack) -> tuple[int, int | None]:
        """Give the descriptor that the program has, and the one that we have of the same pipe."""
        if given is None:
            return number, None
        if given == subprocess.STDOUT:
            return before[1], None
        if given == subprocess.DEVNULL:
            return theirs.enter_context(Path(os.devnull).open("r+b", 0)).fileno(), None
        if given != subprocess.PIPE:
            return given if isinstance(given, int) else given.fileno(), None
        reading, writing = os.pipe()
        its, ours = (reading, writing) if number == 0 else (writing, reading)
        theirs.callback(os.close, its)
        return its, ours

    def poll(self) -> int | None:
        """Give how it ended, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise TimeoutExpired when it takes longer."""
        if self.returncode is None:
            if not select.select([self._wire], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = _number(self._wire)
            self._wire.close()
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002 - its name in Popen
        """Give it all that it is to read, and read all that it writes, to its end."""
        read: dict[Any, Any] = {}

        def drain(stream: Any) -> None:
            read[stream] = stream.read()

        readers = [
            threading.Thread(target=drain, args=(each,), daemon=True) for each in (self.stdout, self.stderr) if each and not each.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self._close()
        return read.get(self.stdout), read.get(self.stderr)

    def send_signal(self, number: int) -> None:
        """Send it a signal while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _close(self) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        self.wait()


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    text: bool = False,
    encoding: str | None = None,
    start_new_session: bool = False,
) -> Any:
    """Start `[sys.executable, …]` as `subprocess.Popen` would."""
    encoding = encoding or ("utf-8" if text else None)
    if not WARM:
        more: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "start_new_session": start_new_session}
        return subprocess.Popen(command, env=env, cwd=cwd, encoding=encoding, **more)
    return Program(_job(command, env, cwd, session=start_new_session), (stdin, stdout, stderr), encoding=encoding)


def _job(command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None, *, session: bool) -> dict[str, Any]:
    place = {"env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd()), "session": session}
    return _parsed(command)._asdict() | place


_ONE = threading.Lock()


def _server() -> socket.socket:
    with _ONE:
        address = _started(os.getpid())
    wire = socket.socket(socket.AF_UNIX)
    wire.connect(address)
    return wire


@functools.cache
def _started(_process: int) -> str:
    """Start the Python that forks; it ends with this process, which holds the other end of its standard input."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0ravi-otel-tests-{os.getpid()}-{os.urandom(8).hex()}")
    listener.listen()
    address: str = listener.getsockname().decode()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_", "OPENAI_", "AZURE_", "COV_"))}
    program = [sys.executable, str(Path(__file__).with_name("warm_server.py")), str(listener.fileno())]
    server = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=clean)
    listener.close()

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(10)

    atexit.register(end)
    return address
