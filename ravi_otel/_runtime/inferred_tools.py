"""Remember which tools a model asked for until a request brings their results: what nobody saw run is inferred then.

One entry for each call id that an answer asks for, in the run that was asked in. Some hosts number calls anew in each conversation:
entries of one id are kept side by side, and each request that brings it takes one. A stream that goes on, or was left, is looked
into when results come: its program may have had all that it waited for.

A tool that runs where it is seen (`tool()`, `instrument_tools()`) is noted by its name, and stands for one entry of that name when
the results come: nothing is counted twice. What is known goes with the run, with `uninstrument()`, and the oldest beyond 10,000.
"""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol, cast

from ravi_otel._enforcement.ledger.contract import new_op_id
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.usage_counters import add_counts
from ravi_otel._flow import run_sync
from ravi_otel._forksafe import renew_in_child
from ravi_otel.errors import BudgetError
from ravi_otel.hooks._events import CallRecord, ToolRecord
from ravi_otel.hooks._listeners import swallow
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._usage import Asked as Said
from ravi_otel.policy._usage import Part, ToolUse

MOST_WAITING: Final = 10_000
_MOST_RUNS: Final = 10_000
_MOST_NAMES: Final = 1_000
_MOST_RAN: Final = 1_000
_MOST_STREAMS: Final = 10_000
_MOST_ID: Final = 256
_MOST_NAME: Final = 1_024
_UNNAMED: Final = "unknown"
_OUTSIDE: Final = ""
"""Where the process's own scope keeps what was asked outside any run."""


class Stream(Protocol):
    """An answer that still comes in, or was left before its end."""

    def asks(self) -> tuple[Sequence[ToolUse], int]:
        """List what it asks for until now, and tell when the latest of it came, on the engine's monotonic clock."""
        ...


class Asked:
    """One tool that an answer asked for; times are the engine's monotonic clock's, and one of the wall clock."""

    __slots__ = (
        *(
            "agent",
            "answer",
            "asked_ns",
            "asked_unix_ns",
            "began_ns",
            "call_id",
            "key",
            "name",
            "owed",
            "passed",
            "refused",
            "run",
            "serial",
        ),
    )

    def __init__(self, serial: int, run: str, use: ToolUse, record: CallRecord, asked_ns: int, ago_ns: int) -> None:
        call_id = use.call_id or ""
        self.serial = serial
        self.agent, self.answer = record.facts.agent_name, record.op_id
        self.run = run
        self.key = _key(call_id)
        self.call_id = call_id[:_MOST_ID]
        self.name = (use.name or _UNNAMED)[:_MOST_NAME]
        self.began_ns = record.started_ns  # of the call: a tool may run while its stream goes on
        self.asked_ns = asked_ns
        self.asked_unix_ns = time.time_ns() - ago_ns
        self.passed = False  # it was told and charged, and did not fit
        self.owed = False  # it was told, and could not be charged
        self.refused = False  # it was refused where it was to run, and did not


class _Run:
    """What was asked for in one run, and when which tool ran there."""

    __slots__ = ("asked", "ran")

    def __init__(self) -> None:
        self.asked: dict[str, list[Asked]] = {}
        self.ran: dict[str, list[int]] = {}


class _Open:
    """Follow one stream of a run, and know what of it was noted."""

    __slots__ = ("noted", "record", "run", "stream")

    def __init__(self, run: str, record: CallRecord, stream: Stream) -> None:
        self.run = run
        self.record = record
        self.stream = stream
        self.noted: set[str] = set()


class Inferring:
    """What is waited for, by run and id.

    `runs` that have offered tools, so that those which are seen to run are noted, and `waiting` are read without the lock, to pass by
    quickly. Nothing is waited for where no run has offered any.
    """

    __slots__ = ("_lock", "_serial", "_streams", "_waiting", "runs")

    def __init__(self) -> None:
        # One that may be taken twice by one thread: a signal or a finaliser may come in between.
        self._lock = threading.RLock()
        self.runs: OrderedDict[str, _Run] = OrderedDict()
        self._waiting: OrderedDict[int, Asked] = OrderedDict()  # oldest first
        self._streams: OrderedDict[str, _Open] = OrderedDict()  # by their call, oldest first
        self._serial = 0

    @property
    def waiting(self) -> bool:
        """Whether results are waited for, or may be."""
        return bool(self._waiting or self._streams)

    def __len__(self) -> int:
        """Count what is waited for."""
        return len(self._waiting)

    def offered(self, scope: Scope) -> None:
        """Note that a call in here offers tools: from now on its answer may ask for some."""
        name = self._run_of(scope)
        if name not in self.runs:
            with self._lock:
                self._open(name)

    def follow(self, scope: Scope, record: CallRecord, stream: Stream) -> None:
        """Look into an answer that comes in pieces until it is `asked`; never raises."""
        try:
            with self._lock:
                self._streams[record.op_id] = _Open(self._run_of(scope), record, stream)
                while len(self._streams) > _MOST_STREAMS:
                    self._streams.popitem(last=False)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's stream
            swallow("inferring", error)

    def asked(self, scope: Scope, record: CallRecord) -> None:
        """Note what an answer asks for, that has ended; never raises."""
        try:
            uses: Sequence[ToolUse] = () if record.reply is None else record.reply.tool_uses
            if uses or record.op_id in self._streams:
                self._asked(scope, record, uses)
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            swallow("inferring", error)

    def _asked(self, scope: Scope, record: CallRecord, uses: Sequence[ToolUse]) -> None:
        owner = scope.innermost(ScopeKind.RUN)
        name = _OUTSIDE if owner is None else owner.facts.scope_id
        with self._lock:
            opened = self._streams.pop(record.op_id, None)
            if owner is not None and owner.clock.ended_ns is not None:
                return  # a stream that outlived its run: no request of the run will answer it
            noted: Collection[str] = () if opened is None else opened.noted
            for use in uses:
                if use.call_id is not None and _key(use.call_id) not in noted:
                    self._note(name, use, record, record.started_ns + record.duration_ns)

    def ran(self, scope: Scope, name: str, at_ns: int) -> None:
        """Note that a tool is run where it is seen, or was refused there; never raises."""
        try:
            with self._lock:
                for known in self._runs_around(scope):
                    run = self.runs.get(known)
                    if run is None or (name not in run.ran and len(run.ran) >= _MOST_NAMES):
                        continue
                    times = run.ran.setdefault(name, [])
                    if len(times) >= _MOST_RAN:
                        del times[: _MOST_RAN // 2]
                    insort(times, at_ns)  # it was taken before the lock: another thread's, of later, may be here by now
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's tool
            swallow("inferring", error)

    def refused(self, scope: Scope, name: str) -> None:
        """Have the request refused that brings a result of this tool, which was refused where it was to run; never raises.

        For a framework that makes a text for its model of whatever a tool raises, and would go on. It is so until there is room.
        """
        try:
            with self._lock:
                for run in (run for known in self._runs_around(scope) if (run := self.runs.get(known)) is not None):
                    asked = [one for many in run.asked.values() for one in many if one.name == name and not one.passed]
                    if asked:
                        one = max(asked, key=lambda each: each.serial)
                        one.passed = one.refused = True
                        _was_seen(run, one)  # it was noted as one that ran, and stands for no other
                        return
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's tool
            swallow("inferring", error)

    def take(self, scope: Scope, results: Sequence[str]) -> list[Asked]:
        """Return what the results of these call ids answer and nobody saw run, in the order it was asked for; each once.

        What did not fit before is given again each time, until `release`.
        """
        wanted = {_key(call_id) for call_id in results} if self.waiting else set[str]()
        if not wanted:
            return []
        found: list[Asked] = []
        with self._lock:
            agent, around = scope.facts.agent_name, list(self._runs_around(scope))
            if self._streams:
                self._look(around, wanted, scope.engine.clock.monotonic_ns())
            runs = [run for known in around if (run := self.runs.get(known)) is not None and run.asked]
            for key in wanted:
                run = next((run for run in runs if key in run.asked), None)
                if run is None:
                    continue
                # The latest that this agent asked for; one that did not fit is given when no other is left.
                one = min(reversed(run.asked[key]), key=lambda one: (one.agent != agent, one.passed))
                if not one.passed:
                    self._forget(one)
                if one.passed or one.owed or not _was_seen(run, one):
                    found.append(one)
        return sorted(found, key=lambda one: one.serial)

    def keep(self, one: Asked) -> None:
        """Keep one that did not fit: the next request that brings its result is refused, too, unless there is room by then."""
        one.passed = True
        self.restore((one,))

    def restore(self, ones: Sequence[Asked]) -> None:
        """Wait for the results of these again, which were taken and not charged."""
        with self._lock:
            for one in ones:
                run = self.runs.get(one.run)
                if run is not None and one.serial not in self._waiting:
                    run.asked.setdefault(one.key, []).insert(0, one)
                    self._waiting[one.serial] = one

    def release(self, one: Asked) -> None:
        """Forget one that was kept."""
        with self._lock:
            self._forget(one)

    def closed(self, scope: Scope) -> None:
        """Forget what was asked for in a run that is over."""
        if self.runs or self._streams:
            with self._lock:
                for op_id in [op_id for op_id, opened in self._streams.items() if opened.run == scope.facts.scope_id]:
                    del self._streams[op_id]
                run = self.runs.pop(scope.facts.scope_id, None)
                for many in () if run is None else run.asked.values():
                    for one in many:
                        self._waiting.pop(one.serial, None)

    def forget(self) -> None:
        """Forget everything, with a fresh lock: `uninstrument()`, and a forked child, whose runs are the parent's."""
        self._lock = threading.RLock()
        self.runs, self._waiting, self._streams = OrderedDict(), OrderedDict(), OrderedDict()

    # -- what is answered ---------------------------------------------------------------------------------------------

    def answered(self, scope: Scope, record: CallRecord) -> BudgetError | None:
        """Tell what ran between an answer and this request, charge it, and give what refuses the request; never raises.

        The tools have run: all of them are counted, also what did not fit. The first that did not refuses the request, and each
        later one that brings its result, until the limit allows for what was used.
        """
        refused: BudgetError | None = None
        left: list[Asked] = []
        try:
            left = self.take(scope, record.call.tool_results)
            while left:
                found = self._charged(scope, record, left[0], refuses=refused is None)
                del left[0]
                refused = refused or found
        except BudgetError as error:  # the limits cannot be kept: nothing more is sent on what nobody could charge
            self.restore(left)
            refused = refused or error
        except Exception as error:  # noqa: BLE001 - our own bug never reaches the user's call
            self.restore([one for one in left if one is not left[0] or one.owed])
            swallow("inferred", error)
        return refused

    def _charged(self, scope: Scope, by: CallRecord, one: Asked, *, refuses: bool) -> BudgetError | None:
        # A last call, on what is kept back, is made to end the work: nothing that has run stands in its way.
        refuses = refuses and scope.wrapping is None
        if one.owed or one.passed:
            record = ToolRecord(one.name, scope.facts, new_op_id(), scope.engine.clock.monotonic_ns(), inferred=True)
            return self._again(scope, one, record) if one.passed else self._charge(scope, one, record, refuses=refuses)
        return self._tell(scope, by, one, refuses=refuses)

    def _again(self, scope: Scope, one: Asked, record: ToolRecord) -> BudgetError | None:
        if scope.wrapping is not None:
            return None
        if one.refused:
            return self._still_refused(scope, one, record)
        refused = scope.charge_done(scope.plan.passed_lines(one.name), record, refuses=True)
        if refused is None:
            self.release(one)
        return refused

    def _still_refused(self, scope: Scope, one: Asked, record: ToolRecord) -> BudgetError | None:
        """Return what would refuse a tool now that was refused before; it is charged for nothing, since it did not run."""
        try:
            scope.charge_lines(scope.plan.tool_lines(one.name), record, record.op_id)
        except BudgetError as refused:
            return refused
        run_sync(scope.engine.ledger.release(record.op_id))
        self.release(one)
        return None

    def _charge(self, scope: Scope, one: Asked, record: ToolRecord, *, refuses: bool) -> BudgetError | None:
        """Charge one that was told; BudgetError where that cannot be done, and it is owed."""
        one.owed = True
        refused = scope.charge_done(scope.plan.tool_lines(one.name), record, refuses=refuses)
        one.owed = False
        if refused is not None:
            self.keep(one)
        return refused

    def _tell(self, scope: Scope, by: CallRecord, one: Asked, *, refuses: bool) -> BudgetError | None:
        engine = scope.engine
        record = ToolRecord(one.name, scope.facts, new_op_id(), one.asked_ns, call_id=one.call_id, inferred=True)
        record.began_unix_ns = one.asked_unix_ns
        record.arguments, record.result, record.returned = _said(by.call.content, one.call_id)
        engine.listeners.tool_started(record).leave()
        add_counts(scope.tallies, tool_calls=1)
        try:
            refused = self._charge(scope, one, record, refuses=refuses)
            record.decision = record.decision or "admitted"
            if refused is not None:
                self._deny(record, refused)
        except BudgetError as error:
            self._deny(record, error)
            raise
        finally:
            record.status = "ok"
            record.duration_ns = max(0, by.started_ns - one.asked_ns)
            engine.listeners.tool_ended(record)
        return refused

    def _deny(self, record: ToolRecord, refused: BudgetError) -> None:
        record.decision, record.limit_kind, record.limit_reason = "denied", refused.limit_kind, refused.reason

    # -- under the lock -------------------------------------------------------------------------------------------

    def _open(self, name: str) -> _Run:
        run = self.runs.get(name)
        if run is None:
            run = self.runs[name] = _Run()
            while len(self.runs) > _MOST_RUNS:
                _, oldest = self.runs.popitem(last=False)
                for many in oldest.asked.values():
                    for one in many:
                        self._waiting.pop(one.serial, None)
        return run

    def _forget(self, one: Asked) -> None:
        self._waiting.pop(one.serial, None)
        run = self.runs.get(one.run)
        many = [] if run is None else run.asked.get(one.key, [])
        if one in many:
            many.remove(one)
        if run is not None and not many:
            run.asked.pop(one.key, None)

    def _note(self, name: str, use: ToolUse, record: CallRecord, asked_ns: int, ago_ns: int = 0) -> None:
        run = self._open(name)
        self._serial += 1
        one = Asked(self._serial, name, use, record, asked_ns, ago_ns)
        many = run.asked.setdefault(one.key, [])
        if any(each.answer == one.answer for each in many):
            return  # choices of one answer that number their calls alike: one of them is gone on with
        many.append(one)
        self._waiting[one.serial] = one
        while len(self._waiting) > MOST_WAITING:
            self._forget(next(iter(self._waiting.values())))

    def _look(self, around: Sequence[str], wanted: Collection[str], now_ns: int) -> None:
        """Note what is answered already of the streams that go on; what is not may still come in pieces."""
        for opened in list(self._streams.values()):
            if opened.run in around:
                uses, heard_ns = opened.stream.asks()
                for use in uses:
                    key = "" if use.call_id is None else _key(use.call_id)
                    if key in wanted and key not in opened.noted:
                        opened.noted.add(key)
                        self._note(opened.run, use, opened.record, heard_ns, max(0, now_ns - heard_ns))

    @staticmethod
    def _run_of(scope: Scope) -> str:
        owner = scope.innermost(ScopeKind.RUN)
        return _OUTSIDE if owner is None else owner.facts.scope_id

    @staticmethod
    def _runs_around(scope: Scope) -> Iterator[str]:
        for each in scope.upwards():
            if each.facts.kind is ScopeKind.RUN:
                yield each.facts.scope_id
        yield _OUTSIDE


def _key(call_id: str) -> str:
    """Return what a result is found by: its id, however long."""
    if len(call_id) <= _MOST_ID:
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def _was_seen(run: _Run, one: Asked) -> bool:
    """Whether a tool of its name ran since it was asked for, and stands for no other."""
    times = run.ran.get(one.name)
    at = 0 if times is None else bisect_left(times, one.began_ns)
    if times is None or at >= len(times):
        return False
    del times[at]
    return True


INFERRING: Final = Inferring()
"""The process's one table."""

renew_in_child(INFERRING.forget)


def _said(content: Said | None, call_id: str | None) -> tuple[dict[str, Any] | None, Any, bool]:
    """Find what it was given and what it gave in what the request says; nothing unless that is captured."""
    if content is None or call_id is None:
        return None, None, False
    parts: Sequence[Part] = [part for message in content.messages for part in message.get("parts", ()) if part.get("id") == call_id]
    given = next((part.get("arguments") for part in parts if part.get("type") == "tool_call"), None)
    gave = [part.get("response") for part in parts if part.get("type") == "tool_call_response"]
    arguments = cast("dict[str, Any]", given) if isinstance(given, dict) else None if given is None else {"arguments": given}
    return arguments, (gave[-1] if gave else None), bool(gave)
