"""Start a program for what it does and not for how it is started: forked from a Python that has imported the client already.

A new Python takes a second to import the client and us, and the tests start hundreds. Here each is a process of its own all the same,
with its own environment, place, streams, main module and end. What a program imports, and when, has to be tested with a new Python:
with RAVI_LONG, and wherever Linux is not, that is what all of them are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    job = _parsed(command)._asdict() | {"env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd()), "session": session}
    status, out, err = _ended(job, timeout, encoding)
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
    text = json.dumps(job).encode() + b"\n"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing, _server() as wire:
        wire.settimeout(timeout)
        socket.send_fds(wire, [text[:1]], [nothing.fileno(), out.fileno(), err.fileno()])
        wire.sendall(text[1:])
        with wire.makefile("r") as said:
            try:
                child = int(said.readline())
            except TimeoutError:
                raise subprocess.TimeoutExpired(job["target"], timeout) from None
            try:
                status = int(said.readline())
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
