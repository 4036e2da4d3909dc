"""Stores of counters for programs of many processes, and what was counted in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import warm_starts

from ravi_otel._enforcement.engine import Engine
from ravi_otel._enforcement.ledger.choosing import open_ledger
from ravi_otel._enforcement.opening import Opening
from ravi_otel._enforcement.scope import Scope
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind

PROGRAMS = Path(__file__).parent / "programs"
MEMORY, SQLITE, REDIS = "memory", "sqlite", "redis"


@dataclass
class Store:
    """Be where programs count. `url` is for them; what they counted is read here by another process, which this one is."""

    kind: str
    url: str

    @property
    def shared(self):
        return self.kind != MEMORY

    def counted(self, limit, **place):
        """Give what is used and held of a limit of the service, or of what `place` names for a run: its session, its tenant."""
        ledger = open_ledger(self.url)
        engine = Engine(ledger=ledger)
        root = Scope.of_process(engine, () if place else (parse_limit(limit),), service="default")
        scope = Opening(kind=ScopeKind.RUN, name="reader", limits=(parse_limit(limit),), **place).open(root).parent if place else root
        (account,) = scope.accounts
        try:
            assert ledger.read(account), f"nothing was counted for {limit}"
            return account.used, account.held
        finally:
            ledger.close()


@dataclass
class Finished:
    status: int
    out: str
    err: str

    @property
    def told(self):
        """Give the limit events by scope, which a program without logging of its own has on standard error."""
        lines = [line for line in self.err.splitlines() if line.startswith('{"event"')]
        events = [json.loads(line) for line in lines]
        return sorted(f"{event['scope']} {event['event']}" for event in events)

    @property
    def noise(self):
        """Give whatever else there is."""
        return [line for line in self.err.splitlines() if not line.startswith('{"event"')]


def environment(store, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAVI_", "OTEL_"))}
    places = filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH")))
    return kept | {"RAVI_LIMIT_LOG": "json", "RAVI_LEDGER": store.url, "PYTHONPATH": os.pathsep.join(places)} | more


def start(store, *command, cwd, fresh=False, **environ):
    """Start a program in a group of its own; a fresh one is a new Python, for what is about how Python itself is started or patched."""
    return (subprocess.Popen if fresh else warm_starts.start)(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(store, **environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(child, timeout_s=90):
    """Wait for its end, and leave none of its group behind."""
    try:
        out, err = child.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return Finished(child.returncode, out, err)


def play(store, program, *arguments, cwd, timeout_s=90, fresh=False, **environ):
    """Run one of the programs to its end."""
    # From Python 3.12 on each fork beside threads is warned of, which is what this is about.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    return finish(start(store, sys.executable, *quiet, PROGRAMS / f"{program}.py", *arguments, cwd=cwd, fresh=fresh, **environ), timeout_s)
