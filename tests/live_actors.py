"""Processes for the live view that say what a test wants, over real sockets in a real store."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ravi_otel._local.live import client as _client
from ravi_otel._local.live.protocol import LimitState, ProcessState, RunState, ScopeState, as_fields, read_line, write_line


def limit(kind: str = "tokens", used: float = 500, of: float = 1_000, **changes: Any) -> LimitState:
    unit = {"cost": "USD", "time": "s"}.get(kind, f"{{{kind}}}")
    return replace(LimitState(kind, used, 0, of, used / of if of else None, unit), **changes)


def scope(scope_id: str, parent_id: str | None = None, kind: str = "agent", **changes: Any) -> ScopeState:
    known = ScopeState(
        scope_id=scope_id,
        parent_id=parent_id,
        kind=kind,
        name=scope_id,
        agent_id=scope_id if kind == "agent" else None,
        status="open",
        priority="normal" if kind == "agent" else None,
        depth=0,
        age_s=65.0,
        input_tokens=1_200,
        output_tokens=300,
        cost_usd=0.02,
        requests=3,
        tool_calls=1,
        tokens_per_s=12.5,
        last_event="chat gpt-4.1-mini",
        last_event_age_s=2.0,
    )
    return replace(known, **changes)


def run(run_id: str, *scopes: ScopeState, status: str = "open", **changes: Any) -> RunState:
    return RunState(run_id, run_id, status, 65.0, (scope(run_id, kind="run", **changes), *scopes))


class Actor:
    """Listen in a store as a running program does, and answer `state` with what the test says; hear every other request.

    `refusal` is the sentence with which requests other than `state` are refused. After `hush()` nothing is answered until `speak()`.
    """

    def __init__(self, store: Path, *runs: RunState, program: str = "agent.py") -> None:
        self.told = ProcessState(0, program, 1_000.0, runs)
        self.heard: list[dict[str, Any]] = []
        self.refusal: str | None = None
        self.raw: bytes | None = None
        self._news = threading.Condition()
        self._left = False
        self._may_speak = threading.Event()
        self._may_speak.set()
        self.entry = _client.make(store)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.entry.socket))
        self._listener.listen(16)
        self.entry.announce()
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def say(self, *runs: RunState) -> None:
        with self._news:
            self.told = replace(self.told, runs=runs)
            self._news.notify_all()

    def hush(self) -> None:
        self._may_speak.clear()

    def speak(self) -> None:
        self._may_speak.set()

    def leave(self, *, behind: bool = False) -> None:
        """End; with `behind` the socket's file stays, as after SIGKILL."""
        self.speak()
        with self._news:
            self._left = True
            self._news.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        if not behind:
            self.entry.remove()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = connection.makefile("rb").readline()
            self._may_speak.wait()
            request = read_line(line) if line else {}
            while request.get("op") == "follow" and not self._left:
                self._may_speak.wait()
                with self._news:
                    connection.sendall(self._state())
                    self._news.wait(1)
            if line and not self._left:
                connection.sendall(self._said(request))

    def _said(self, request: Mapping[str, Any]) -> bytes:
        if request["op"] == "state":
            return self._state()
        self.heard.append({name: value for name, value in request.items() if name != "v"})
        return write_line({"v": 1, "ok": True} if self.refusal is None else {"v": 1, "ok": False, "error": self.refusal})

    def _state(self) -> bytes:
        known = as_fields(self.told)
        about = {name: known.pop(name) for name in ("pid", "program", "started_unix_s")}
        return self.raw or write_line({"v": 1, "ok": True, "process": about, **known})
