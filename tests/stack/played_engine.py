"""An engine that a script plays, and servers that answer on loopback as the stack's real ones do."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ravi_otel._cli.entry import commands
from ravi_otel._stack import servers

ANSWERS = {
    "/": '{"status":"Server available","upSince":"2026-01-01T00:00:00Z"}',
    "/-/ready": "Prometheus Server is Ready.\nOK",
    "/status": '{"status":"StatusOK"}',
    "/ready": "ready\n",
    "/api/health": '{"database": "ok"}',
    "/v1/traces": '{"partialSuccess":{}}',
}
PLAYED = """#!/bin/sh
dir=$(dirname "$0")
echo "$(basename "$0") $*" >>"$dir/asked"
case "$*" in
*"version --short") cat "$dir/version" || exit 1 ;;
"version --format"*) [ -e "$dir/down" ] && { echo "Cannot connect to the Docker daemon at unix:///x." >&2; exit 1; }; echo 28.0 ;;
*"ps -a -q") case "$*" in *"-p $(cat "$dir/runs" 2>/dev/null) "*) echo c0ffee ;; esac ;;
*" up "* | *" down "*) env >"$dir/environment"; exit "$(cat "$dir/status" 2>/dev/null || echo 0)" ;;
esac
"""


class Machine:
    """Be a machine with some engines on its PATH and a stack's worth of ports."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.state = root / "state"
        self.env_file = root / "ports.env"
        monkeypatch.setenv("XDG_STATE_HOME", str(self.state))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        self.ports = {name: free_port() for name in (*servers.PORTS, "RAVI_PORT_REDIS")}
        self.env_file.write_text("".join(f"{name}={port}\n" for name, port in self.ports.items()))

    def engine(self, name: str = "docker", version: str | None = "2.40.3") -> None:
        program = self.bin / name
        program.write_text(PLAYED)
        program.chmod(0o755)
        if version is not None:
            (self.bin / "version").write_text(version + "\n")

    def tell(self, name: str, what: str = "") -> None:
        (self.bin / name).write_text(what)

    def asked(self, word: str) -> list[str]:
        told = self.bin / "asked"
        return [line for line in told.read_text().splitlines() if f" {word}" in line] if told.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.bin / "environment").read_text().splitlines() if "=" in line)

    def call(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(commands, ["stack", *arguments, "--env-file", str(self.env_file)], input=answer)


PORTS = iter(range(10_000 + os.getpid() * 53 % 6_000, 18_000))
"""Below those that a kernel gives to whoever connects, so that nobody takes one between two lines of a test."""


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer()

    def answer(self) -> None:
        status, body = self.server.answers.get(self.path, (404, "not here"))  # type: ignore[attr-defined]  # set below
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


class InTurn(dict[str, tuple[int, str]]):
    """Give another answer each time, whatever the path."""

    def __init__(self, answers: list[tuple[int, str]]) -> None:
        super().__init__()
        self._left = iter(answers)

    def get(self, *_: object) -> tuple[int, str]:
        return next(self._left)


def serve(port: int, answers: Mapping[str, tuple[int, str]]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.answers = answers  # type: ignore[attr-defined]  # for the handler
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
