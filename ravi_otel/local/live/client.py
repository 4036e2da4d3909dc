"""Ask the processes of a store what they do, and tell them to do otherwise.

Whoever answers is not trusted: no answer is longer, later or of another shape than it may be.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ravi_otel.local.live import place
from ravi_otel.local.live.peers import peer_of
from ravi_otel.local.live.protocol import (
    MOST_ANSWER,
    MOST_SENTENCE,
    VERSION,
    CommandError,
    LiveError,
    ProcessState,
    is_text,
    read_line,
    read_state,
    write_line,
)
from ravi_otel.policy import _checks as checks

TIMEOUT_S: Final = 2.0
_PIECE: Final = 64 * 1024
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Session:
    """Be one process that can be asked, in any thread; each question is a connection of its own.

    Every method raises LiveError when the process is gone or does not answer within `timeout_s` seconds, and CommandError, with
    the process's own sentence, when it refuses. The sentence and all texts of a state may hold anything: clean them before they
    are shown.
    """

    path: Path
    pid: int
    timeout_s: float = TIMEOUT_S

    def state(self) -> ProcessState:
        """Photograph what it has open."""
        return read_state(self._ask("state"))

    def cancel(self, scope_id: str, reason: str | None = None) -> None:
        """Cancel a run or an agent, with all below it; close any other scope."""
        self._ask("cancel", scope_id=scope_id, **({} if reason is None else {"reason": reason}))

    def pause(self, scope_id: str) -> None:
        """Pause an agent: its next call or tool ends it, with what it has."""
        self._ask("pause", scope_id=scope_id)

    def resume(self, scope_id: str) -> None:
        """Let a paused agent go on, as soon as there is a slot."""
        self._ask("resume", scope_id=scope_id)

    def reprioritize(self, scope_id: str, priority: str) -> None:
        """Give an agent another priority: "background", "low", "normal", "high" or "critical"."""
        self._ask("reprioritize", scope_id=scope_id, priority=priority)

    def set_limit(self, scope_id: str, kind: str, value: float) -> None:
        """Set another value on a limit of the scope, in the kind's public unit; `kind` as `LimitState.kind` writes it."""
        self._ask("set_limit", scope_id=scope_id, kind=kind, value=value)

    def _ask(self, op: str, **more: Any) -> dict[str, Any]:
        try:
            answer = read_line(exchange(self.path, write_line({"v": VERSION, "op": op, **more}), self.timeout_s))
        except LiveError as error:
            raise LiveError(f"process {self.pid} cannot be asked: {error}") from error
        except OSError as error:
            why = "it did not answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise LiveError(f"process {self.pid} cannot be asked: {why}.") from error
        if answer.get("ok") is True:
            return answer
        said = answer.get("error")
        if answer.get("ok") is not False or not is_text(said, MOST_SENTENCE):
            raise LiveError(f"process {self.pid} cannot be asked: it answered ok={checks.show(answer.get('ok'))} without a sentence.")
        raise CommandError(str(said))


def exchange(path: Path, request: bytes, timeout_s: float) -> bytes:
    """Send one line and give the one that answers it; OSError and LiveError when there is none, in time and of a fair size."""
    deadline = time.monotonic() + timeout_s
    place.check_socket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, deadline)
        uid = peer_of(connection).uid
        if uid is not None and uid != os.geteuid():
            raise LiveError(f"another user, {uid}, listens there.")
        connection.sendall(request)
        return _line(connection, deadline)


def _connect(connection: socket.socket, path: Path, deadline: float) -> None:
    """Connect, and wait for a place where many do; TimeoutError when none comes free."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        try:
            connection.connect(os.fsencode(path))
        except BlockingIOError:  # as many as may be stand in line; the system tells nobody when that is over
            time.sleep(min(left, _PAUSE_S))
        else:
            return


def _line(connection: socket.socket, deadline: float) -> bytes:
    got = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        piece = connection.recv(_PIECE)
        if not piece:
            raise LiveError("it closed the connection before it answered.")
        end = piece.find(b"\n")
        got += piece if end < 0 else piece[:end]
        if len(got) > MOST_ANSWER:
            raise LiveError(f"its answer is longer than {MOST_ANSWER} bytes.")
        if end >= 0:
            return bytes(got)
    raise TimeoutError


def sweep(store: Path) -> None:
    """Remove what processes that are gone have left; one that lives is not asked."""
    for entry in place.entries(store):
        if entry.is_left_over(young=True):
            try:
                _knock(entry.socket)
            except (ConnectionRefusedError, FileNotFoundError):
                entry.remove()
            except (OSError, LiveError):  # somebody is there, and busy, or it is no socket of ours
                continue


def _knock(path: Path) -> None:
    """Raise as `connect` does when nobody listens, BlockingIOError when too many wait there already; nothing is asked or waited for."""
    place.check_socket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)
        connection.connect(os.fsencode(path))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
