"""Know the engine in use, the process's root scope, and the runs that are open."""

from __future__ import annotations

import logging
import os
import threading
from typing import cast

from ravi_otel import _current
from ravi_otel.enforcement.engine import Engine
from ravi_otel.enforcement.ledger.memory import MemoryLedger
from ravi_otel.enforcement.opening import process_root
from ravi_otel.enforcement.scope import Scope
from ravi_otel.policy.limits import Limit

_log = logging.getLogger("ravi_otel")


class State:
    """Hold what is one per process."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.limits: tuple[Limit, ...] = ()
        self.root = process_root(self.engine)
        self.lock = threading.Lock()
        self.top_runs: dict[str, Scope] = {}
        self.instrumented = False
        self._warned = False

    def install(self, engine: Engine, limits: tuple[Limit, ...]) -> None:
        """Use `engine` from now on; scopes that are open keep the one they were opened with."""
        root = process_root(engine, limits)
        self.engine, self.limits, self.root = engine, limits, root

    def locate(self) -> tuple[Scope, bool]:
        """Give the scope the running code is in, and whether it was really in one.

        Code outside any scope joins the only open top-level run, unless that is some session's or tenant's; else the
        process's root.
        """
        scope = cast("Scope | None", _current.leaf())
        if scope is not None:
            return scope, True
        if len(self.top_runs) == 1:
            with self.lock:
                runs = list(self.top_runs.values())
            if len(runs) == 1 and runs[0].facts.session_id is None and runs[0].facts.tenant_id is None:
                return runs[0], False
        return self.root, False

    def around(self) -> Scope:
        """Give the scope to open the next one under."""
        scope = cast("Scope | None", _current.leaf())
        return self.root if scope is None else scope

    def entered(self, scope: Scope) -> None:
        """Note a run that was opened outside any other."""
        if scope.parent is None or scope.parent.facts.run_id is None:
            with self.lock:
                self.top_runs[scope.facts.scope_id] = scope

    def left(self, scope: Scope) -> None:
        """Note that a run was closed."""
        with self.lock:
            self.top_runs.pop(scope.facts.scope_id, None)

    def warn_uninstrumented(self) -> None:
        """Say once that limits were set but no client is wrapped."""
        if not self.instrumented and not self._warned:
            self._warned = True
            _log.warning(
                "ravi-otel: limits were set, but ravi_otel.instrument() was not called: model calls are neither counted nor refused."
            )

    def renew_after_fork(self) -> None:
        """Start anew in a forked child: same limits, zero counters, nothing of the parent's in flight."""
        self.lock = threading.Lock()
        self.top_runs = {}
        self.engine.lock = threading.Lock()
        self.engine.joined.clear()
        self.engine.living.clear()
        if isinstance(self.engine.ledger, MemoryLedger):
            self.engine.ledger.reset_after_fork()
        self.root = process_root(self.engine, self.limits)


STATE = State()
os.register_at_fork(after_in_child=STATE.renew_after_fork)
