"""Remember which tools a model asked for until a request brings their results: what nobody saw run is inferred then.

One entry for each tool an answer asks for, in the run that was asked in. A tool that runs where it is seen (`tool()`,
`instrument_tools()`) is noted by its name, and stands for one entry of that name when the results come: nothing is counted twice.
What is known goes with the run, with `uninstrument()`, and the oldest beyond 10,000.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from ravi_otel.enforcement.scope import Scope
from ravi_otel.hooks.guard import swallow
from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.limits import ScopeKind
from ravi_otel.policy.usage import ToolUse

MOST_WAITING: Final = 10_000
_MOST_RUNS: Final = 10_000
_MOST_NAMES: Final = 1_000
_MOST_RAN: Final = 1_000
_MOST_ID: Final = 256
_MOST_NAME: Final = 1_024
_UNNAMED: Final = "unknown"
_NOTHING: Final = ToolUse(None, None)
_OUTSIDE: Final = ""
"""Where the process's own scope keeps what was asked outside any run."""


class Asked:
    """Be one tool that an answer asked for; times are the engine's monotonic clock's, and one of the wall clock."""

    __slots__ = ("asked_ns", "asked_unix_ns", "began_ns", "call_id", "key", "name", "passed", "run", "serial")

    def __init__(self, serial: int, run: str, use: ToolUse, record: CallRecord) -> None:
        self.serial = serial
        self.run = run
        self.key = _key(use)
        self.call_id = None if use.call_id is None else use.call_id[:_MOST_ID]
        self.name = (use.name or _UNNAMED)[:_MOST_NAME]
        self.began_ns = record.started_ns  # of the call: a tool may run while its stream goes on
        self.asked_ns = record.started_ns + record.duration_ns
        self.asked_unix_ns = time.time_ns()
        self.passed = False  # it was told and charged, and did not fit


class _Run:
    """Know what was asked for in one run, and when which tool ran there."""

    __slots__ = ("asked", "ran")

    def __init__(self) -> None:
        self.asked: dict[str, list[Asked]] = {}
        self.ran: dict[str, list[int]] = {}


class Inferring:
    """Keep what is waited for, by run and id. `watching` and `waiting` are read without the lock, to pass by quickly."""

    __slots__ = ("_lock", "_runs", "_serial", "_waiting")

    def __init__(self) -> None:
        # One that may be taken twice by one thread: a signal or a finaliser may come in between.
        self._lock = threading.RLock()
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._waiting: OrderedDict[int, Asked] = OrderedDict()  # oldest first
        self._serial = 0

    @property
    def watching(self) -> bool:
        """Tell that some run has offered tools, so that those that are seen to run are noted."""
        return bool(self._runs)

    @property
    def waiting(self) -> bool:
        """Tell that results are waited for."""
        return bool(self._waiting)

    def __len__(self) -> int:
        """Count what is waited for."""
        return len(self._waiting)

    def offered(self, scope: Scope) -> None:
        """Note that a call in here offers tools: from now on its answer may ask for some."""
        name = _run_of(scope)
        if name not in self._runs:
            with self._lock:
                self._open(name)

    def asked(self, scope: Scope, record: CallRecord) -> None:
        """Note what an answer asks for; never raises."""
        try:
            if record.reply is not None and record.call.offers_tools:
                self._asked(scope, record, record.reply.tool_uses)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("inferring", error)

    def _asked(self, scope: Scope, record: CallRecord, uses: Sequence[ToolUse]) -> None:
        owner = _owner_of(scope)
        name = _OUTSIDE if owner is None else owner.facts.scope_id
        with self._lock:
            if owner is not None and owner.ended_ns is not None:
                return  # a stream that outlived its run: no request of the run will answer it
            run, fresh = self._open(name), set[str]()
            for use in uses:
                if use.call_id is None and use.name is None:
                    continue  # nothing that a result could be found by
                self._serial += 1
                one = Asked(self._serial, name, use, record)
                if one.key not in fresh and use.call_id is not None:
                    self._drop(run, one.key)  # an id that a later answer has again is the later one's
                fresh.add(one.key)
                run.asked.setdefault(one.key, []).append(one)
                self._waiting[one.serial] = one
            while len(self._waiting) > MOST_WAITING:
                self._forget(next(iter(self._waiting.values())))

    def ran(self, scope: Scope, name: str, at_ns: int) -> None:
        """Note that a tool is run where it is seen, or was refused there; never raises."""
        try:
            with self._lock:
                for known in _runs_around(scope):
                    run = self._runs.get(known)
                    if run is None or (name not in run.ran and len(run.ran) >= _MOST_NAMES):
                        continue
                    times = run.ran.setdefault(name, [])
                    if len(times) >= _MOST_RAN:
                        del times[: _MOST_RAN // 2]
                    times.append(at_ns)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's tool
            swallow("inferring", error)

    def take(self, scope: Scope, results: Sequence[ToolUse]) -> list[Asked]:
        """Give what these results answer and nobody saw run, in the order it was asked for; each once.

        What did not fit before is given again each time, until `release`.
        """
        if not self._waiting:
            return []
        found: list[Asked] = []
        with self._lock:
            runs = [run for known in _runs_around(scope) if (run := self._runs.get(known)) is not None and run.asked]
            for key in [_key(use) for use in results if use != _NOTHING]:
                run = next((run for run in runs if key in run.asked), None)
                if run is not None:
                    one = run.asked[key][0]
                    if one.passed:
                        found += [] if one in found else [one]
                        continue
                    self._forget(one)
                    if not _was_seen(run, one):
                        found.append(one)
        return sorted(found, key=lambda one: one.serial)

    def keep(self, one: Asked) -> None:
        """Keep one that did not fit: the next request that brings its result is refused, too, unless there is room by then."""
        with self._lock:
            one.passed = True
            run = self._runs.get(one.run)
            if run is not None:
                run.asked.setdefault(one.key, []).insert(0, one)
                self._waiting[one.serial] = one

    def release(self, one: Asked) -> None:
        """Forget one that was kept."""
        with self._lock:
            self._forget(one)

    def closed(self, scope: Scope) -> None:
        """Forget what was asked for in a run that is over."""
        if self._runs and scope.facts.kind is ScopeKind.RUN:
            with self._lock:
                run = self._runs.pop(scope.facts.scope_id, None)
                for many in () if run is None else run.asked.values():
                    for one in many:
                        self._waiting.pop(one.serial, None)

    def forget(self) -> None:
        """Forget everything, with a fresh lock: `uninstrument()`, and a forked child, whose runs are the parent's."""
        self._lock = threading.RLock()
        self._runs, self._waiting = OrderedDict(), OrderedDict()

    # -- under the lock -------------------------------------------------------------------------------------------

    def _open(self, name: str) -> _Run:
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run()
            while len(self._runs) > _MOST_RUNS:
                _, oldest = self._runs.popitem(last=False)
                for many in oldest.asked.values():
                    for one in many:
                        self._waiting.pop(one.serial, None)
        return run

    def _forget(self, one: Asked) -> None:
        self._waiting.pop(one.serial, None)
        run = self._runs.get(one.run)
        many = None if run is None else run.asked.get(one.key)
        if run is not None and many is not None:
            if one in many:
                many.remove(one)
            if not many:
                del run.asked[one.key]

    def _drop(self, run: _Run, key: str) -> None:
        for one in run.asked.pop(key, ()):
            self._waiting.pop(one.serial, None)


def _key(use: ToolUse) -> str:
    """Give what a result is found by: its id, however long, or its name where it has none."""
    if use.call_id is None:
        return f"\0{(use.name or _UNNAMED)[:_MOST_NAME]}"
    if len(use.call_id) <= _MOST_ID:
        return use.call_id
    return hashlib.sha256(use.call_id.encode("utf-8", "surrogatepass")).hexdigest()


def _was_seen(run: _Run, one: Asked) -> bool:
    """Tell that a tool of its name ran since it was asked for, and stands for no other."""
    times = run.ran.get(one.name)
    at = 0 if times is None else bisect_left(times, one.began_ns)
    if times is None or at >= len(times):
        return False
    del times[at]
    return True


def _owner_of(scope: Scope) -> Scope | None:
    return next((each for each in scope.upwards() if each.facts.kind is ScopeKind.RUN), None)


def _run_of(scope: Scope) -> str:
    owner = _owner_of(scope)
    return _OUTSIDE if owner is None else owner.facts.scope_id


def _runs_around(scope: Scope) -> Iterator[str]:
    for each in scope.upwards():
        if each.facts.kind is ScopeKind.RUN:
            yield each.facts.scope_id
    yield _OUTSIDE


INFERRING: Final = Inferring()
"""The process's one table."""

os.register_at_fork(after_in_child=INFERRING.forget)
