"""Run programs with and without the launcher, each in a directory of its own."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the command beside these tests, which is no test
import warm_starts
from google.protobuf.json_format import MessageToDict

from ravi_otel._local.otlp import request

PROGRAMS = Path(__file__).parent / "programs"
REPORT = "ravi-otel: "


@dataclass
class Finished:
    status: int
    out: str
    err: str
    store: Path

    @property
    def report(self):
        """Give what stands on standard error from our headline on."""
        at = self.err.rfind(REPORT)
        return "" if at < 0 else self.err[at:]

    @property
    def run(self):
        """Read what the store says of the one launch."""
        return launch_in(self.store)


def stored(store, question):
    """Ask a store."""
    connection = sqlite3.connect(store / "runs.db")
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def spans_in(store):
    """Give the spans that are kept for replay, as OTLP's JSON has them."""
    found = [row[0] for row in stored(store, "SELECT data FROM otlp WHERE signal = 'traces'")]
    told = MessageToDict(request("traces", found)) if found else {"resourceSpans": []}
    return [span for each in told["resourceSpans"] for scope in each["scopeSpans"] for span in scope["spans"]]


_JSON = ("argv", "limits", "tags", "budgets", "uncovered", "notes")


def launch_in(store):
    """Read the one launch of a store."""
    connection = sqlite3.connect(store / "runs.db")
    connection.row_factory = sqlite3.Row
    (row,) = connection.execute("SELECT * FROM launches").fetchall()
    connection.close()
    found = {name: json.loads(value) if name in _JSON and value is not None else value for name, value in dict(row).items()}
    return found | {"run_id": found["launch"], "observe": bool(found["observe"])}


class Desk:
    """Run a program with and without us, in a directory of its own."""

    def __init__(self, server, directory):
        self.server = server
        self.directory = directory
        self.store = directory / ".ravi"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_", "PYTHON"))}
        self.environ = kept | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "any", "COLUMNS": "100", "TERM": "dumb"}

    @property
    def sent(self):
        return len(self.server.requests)

    def program(self, name, *args):
        return [sys.executable, str(PROGRAMS / f"{name}.py"), *args]

    def command(self, *flags):
        return [sys.executable, "-m", "ravi_otel", "run", *flags, "--"]

    def alone(self, *command, timeout=60, **environ):
        """Run it as it is."""
        return self._finish(command, timeout, environ)

    def launch(self, *command, flags=(), timeout=90, **environ):
        """Run it under the launcher."""
        whole = [*self.command(*flags), *command]
        done = warm_starts.run(whole, cwd=self.directory, env=self.environ | environ, timeout=timeout, session=True)
        return Finished(done.returncode, done.stdout, done.stderr, self.store)

    def start(self, *command, flags=(), out_and_err_in_one=False, **environ):
        """Start it under the launcher, in a group of its own, and give the process."""
        return self._popen([*self.command(*flags), *command], environ, subprocess.STDOUT if out_and_err_in_one else subprocess.PIPE)

    def _popen(self, command, environ, err=subprocess.PIPE):
        return subprocess.Popen(
            list(command),
            cwd=self.directory,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            start_new_session=True,
        )

    def _finish(self, command, timeout, environ):
        child = self._popen(command, environ)
        try:
            out, err = child.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        return Finished(child.returncode, out, err, self.store)
