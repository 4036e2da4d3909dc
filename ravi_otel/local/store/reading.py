"""Read a stored run back: the tree that its spans were made from, with the figures it had while it lived."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ravi_otel._telemetry import names
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitReading, Spend, Status
from ravi_otel.local._record import MOST, Branch, Leaf, RunRecord
from ravi_otel.local.store.directory import Manifest, StoredRun
from ravi_otel.local.store.entries import budget_of, event_of, state_of, status_of
from ravi_otel.local.store.gathering import Gathering, Group, Place, process_of
from ravi_otel.local.store.pruning import is_running
from ravi_otel.local.store.spans import Span, SpanEvent, Unread, spans_of
from ravi_otel.local.store.sums import Sums
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, Limit, ScopeKind
from ravi_otel.policy._runs import ScopeFacts, StopReason

MOST_STEPS: Final = 10_000
"""Spans that are walked up to find the scope around one."""

_MOST_SECONDS: Final = 2**33
_DAY_NS: Final = 24 * 3600 * NANO
_MOST_LIMITS: Final = 1_000

Told = Callable[[int], object]
_ENDINGS: Final[dict[str, tuple[Status, str | None]]] = {
    "running": ("open", None),
    "ok": ("ok", StopReason.SUCCESS),
    "failed": ("error", StopReason.ERROR),
    "limited": ("stopped", None),
    "store_failed": ("error", StopReason.STORE_FAILED),
    "unattached": ("error", "unattached"),
    "uncovered": ("error", "uncovered"),
    "signal": ("cancelled", StopReason.CANCELLED),
}


@dataclass(slots=True, eq=False)
class StoredScope:
    """Show a scope that was read, as a live one shows itself."""

    facts: ScopeFacts
    parent: StoredScope | None
    status: Status = "open"
    stop_reason: str | None = None
    error: BaseException | None = None
    started_ns: int = 0
    ended_ns: int = 0
    sums: Sums = field(default_factory=Sums)
    limits: list[LimitReading] = field(default_factory=list[LimitReading])

    @property
    def parent_id(self) -> str | None:
        """Give the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    @property
    def depth(self) -> int:
        """Count the scopes around it."""
        return sum(1 for _ in _upwards(self)) - 1

    def readings(self) -> Sequence[LimitReading]:
        """Read every limit this scope owned, as it stood at its end."""
        return list(self.limits)

    def spend(self) -> Spend:
        """Sum what was used in it."""
        return self.sums.spend(max(0, self.ended_ns - self.started_ns) / NANO if self.started_ns else 0.0)

    def span_time(self, started_ns: int, ended_ns: int) -> None:
        """Reach over what happened in it; 0 is unknown."""
        if started_ns:
            self.started_ns = min(self.started_ns or started_ns, started_ns)
        self.ended_ns = max(self.ended_ns, ended_ns)


@dataclass(slots=True)
class Digest:
    """Hold what a run's files say: its tree, the sums of its scopes, and those by who did what with which model."""

    record: RunRecord
    root: StoredScope
    sums: dict[Branch, Sums]
    groups: dict[Group, Sums]


def read_run(run: StoredRun, *, most: int = MOST, told: Told = lambda _: None) -> RunRecord:
    """Give the run's tree, as the live record of the same run has it; `told` hears of the bytes read.

    The root is the run; with several processes each is a child of it. Sums are of all calls, also of those past the
    first `most`, which the record counts in `left_out`. Lines that cannot be read are counted in `unread`. Never raises
    for what a file holds.
    """
    return digest(run, most=most, told=told).record


def digest(run: StoredRun, *, most: int = MOST, told: Told = lambda _: None) -> Digest:
    """Read a run once, for its tree and its sums."""
    started, today = _ns(run.manifest.started), time.time_ns()
    files = Gathering(most, max(0, started - _DAY_NS), today + _DAY_NS)
    unread = Unread()
    for path in run.files("traces"):
        process = process_of(path)
        for span in spans_of(path, unread, told):
            files.take(span, process)
    built = _Tree(run, files, most).built()
    built.record.unread = unread.lines
    built.record.observed = run.manifest.observe
    return built


class _Tree:
    """Hang everything where it belongs. Built once."""

    def __init__(self, run: StoredRun, files: Gathering, most: int) -> None:
        self._run = run
        self._manifest = run.manifest
        self._files = files
        self._record = RunRecord(most)
        self._root = _root(run.manifest)
        self._branches: dict[str, Branch] = {}
        self._by_scope: dict[str, Branch] = {}
        self._processes: dict[str, Branch] = {}
        self._lost: dict[tuple[str, ...], Branch] = {}
        self._views: dict[Branch, StoredScope] = {self._root: _view(self._root)}
        self._nearest: dict[str, Branch | None] = {}
        self._told_end: tuple[Status, str | None] | None = None

    def built(self) -> Digest:
        files, record, root = self._files, self._record, _view(self._root)
        record.put_scope(self._root, None)
        self._hang_processes()
        self._make_scopes()
        self._hang_scopes()
        for place, sums in files.sums.items():
            self._charge(self._above(place), sums)
        for place, leaf in sorted(files.leaves, key=lambda pair: pair[1].started_ns):
            branch = self._above(place)
            self._reach(branch, leaf.started_ns, leaf.started_ns + (leaf.duration_ns or 0))
            record.put_leaf(leaf, branch)
        for place, at, event in files.events:
            told = event_of(event)
            if told is not None:
                record.put_event(told, at or self._by_scope.get(told.scope_id) or self._above(place))
        self._close(root)
        for branch in record.branches():
            branch.children.sort(key=_started)
        _add_left_out(record, files)
        return Digest(record, root, {branch: view.sums for branch, view in self._views.items()}, files.groups)

    def _hang_processes(self) -> None:
        self._by_scope[self._manifest.run_id] = self._root
        found = sorted(self._files.processes.items(), key=lambda item: item[1])
        for process, times in found:
            if len(found) == 1:
                self._processes[process] = self._root
                continue
            pid = process.partition("-")[0] or process
            facts = ScopeFacts(f"process:{process}", ScopeKind.PROCESS, name=pid, run_id=self._manifest.run_id)
            view = StoredScope(facts, _view(self._root), self._ended("ok"), StopReason.SUCCESS)
            view.span_time(*times)
            self._processes[process] = self._put(view, self._root)

    def _ended(self, ended: Status) -> Status:
        return "open" if self._manifest.outcome == "running" else ended

    def _make_scopes(self) -> None:
        """Make a branch for every run and agent, to be hung when all are known; the stored run itself is the root."""
        for span_id, (span, place) in self._files.scopes.items():
            facts = _facts(span)
            readings = [found for each in span.events if (found := state_of(each, facts.kind, facts.name)) is not None]
            if facts.kind is ScopeKind.RUN and self._manifest.run_id in (facts.scope_id, facts.run_id):
                at = self._processes.get(place.process, self._root)
                self._branches[span_id] = at
                self._by_scope.setdefault(facts.scope_id, self._root)
                _view(self._root).limits = _view(self._root).limits or readings
                if span.text(names.STOP_REASON) is not None:
                    self._told_end = self._told_end or (status_of(span), span.text(names.STOP_REASON))
                continue
            status = status_of(span)
            reason = span.text(names.STOP_REASON) or (StopReason.SUCCESS if status == "ok" else None)
            view = StoredScope(facts, None, status, reason, None, span.start_ns, span.end_ns, limits=readings)
            self._by_scope[facts.scope_id] = self._branches[span_id] = Branch(facts, view)
        for _, scope_id, event in sorted(self._files.late, key=lambda told: told[0]):
            self._correct(self._by_scope.get(scope_id), event)

    def _correct(self, branch: Branch | None, event: SpanEvent) -> None:
        """Put a later reading of a limit in the place of the one that its scope was closed with; a launched run's are final already."""
        if branch is None or (branch is self._root and self._manifest.budgets):
            return
        limits = _view(branch).limits
        later = state_of(event, branch.facts.kind, branch.facts.name)
        for at, known in enumerate(limits):
            if later is not None and known.title == later.title and known.limit.value == later.limit.value:
                limits[at] = later

    def _hang_scopes(self) -> None:
        """Hang each with what stands above it first; what stands in a circle hangs from its process."""
        for span_id in self._files.scopes:
            line: list[tuple[Branch, Place]] = []
            parent: Branch | None = None
            for at in self._upwards(span_id):
                branch = self._branches.get(at)
                if branch is not None and branch in self._views:
                    parent = branch
                    break
                if branch is not None:
                    line.append((branch, self._files.scopes[at].place))
            for branch, place in reversed(line):
                parent = self._put(_view(branch), parent or self._in(place, branch), branch)

    def _upwards(self, span_id: str | None) -> Iterator[str]:
        seen: set[str] = set()
        while span_id is not None and span_id not in seen and len(seen) < MOST_STEPS:
            seen.add(span_id)
            yield span_id
            span_id = self._files.above.get(span_id)

    def _put(self, view: StoredScope, parent: Branch, branch: Branch | None = None) -> Branch:
        made = branch or Branch(view.facts, view)
        view.parent = _view(parent)
        self._views[made] = view
        self._record.put_scope(made, parent)
        return made

    def _above(self, place: Place) -> Branch:
        """Find the innermost scope around a span, up through the spans of other libraries."""
        start = place.parent_id
        if start is None:
            return self._in(place)
        passed: list[str] = []
        found: Branch | None = None
        for at in self._upwards(start):
            found = self._branches.get(at) or self._nearest.get(at)
            passed.append(at)
            if found is not None or at in self._nearest:
                break
        for at in passed:
            self._nearest[at] = found
        return found or self._in(place)

    def _in(self, place: Place, own: Branch | None = None) -> Branch:
        """Find the scope a span names where none that stands above it was written, as when the process was killed."""
        at = self._processes.get(place.process, self._root)
        inner_run = place.run_id not in (None, self._manifest.run_id)
        if inner_run and not (own is not None and own.facts.kind is ScopeKind.RUN):
            facts = ScopeFacts(f"run:{place.run_id}", ScopeKind.RUN, run_id=place.run_id)
            at = self._lost_scope((place.process, str(place.run_id)), facts, at)
        if place.agent_id is None or own is not None:
            return at
        name = place.agent_name or place.agent_id
        scope_id = f"agent:{place.process}:{place.run_id}:{place.agent_id}"
        facts = ScopeFacts(scope_id, ScopeKind.AGENT, name=name, run_id=place.run_id, agent_name=name, agent_id=place.agent_id)
        return self._lost_scope((place.process, str(place.run_id), place.agent_id), facts, at)

    def _lost_scope(self, key: tuple[str, ...], facts: ScopeFacts, parent: Branch) -> Branch:
        found = self._lost.get(key)
        if found is None:
            if len(self._record) >= MOST:
                return parent
            found = self._lost[key] = self._put(StoredScope(facts, None), parent)
        return found

    def _charge(self, branch: Branch, sums: Sums) -> None:
        """Add to the innermost agent, and to every scope around that is no agent's."""
        own_agent = True
        for view in _upwards(_view(branch)):
            if view.facts.kind is not ScopeKind.AGENT or own_agent:
                view.sums.add(sums)
            own_agent = own_agent and view.facts.kind is not ScopeKind.AGENT

    def _reach(self, branch: Branch, started_ns: int, ended_ns: int) -> None:
        for view in _upwards(_view(branch)):
            if view.status == "open":
                view.span_time(started_ns, ended_ns)

    def _close(self, root: StoredScope) -> None:
        manifest = self._manifest
        if manifest.ended is None:
            root.ended_ns = max([root.ended_ns, *(end for _, end in self._files.processes.values())])
        root.status, root.stop_reason = _ENDINGS[manifest.outcome]
        if root.status == "open" and not is_running(self._run):
            root.status, root.stop_reason = "cancelled", "lost"
        if root.status == "stopped":
            worst = max(root.limits, key=lambda each: (each.denied, each.fullness), default=None)
            root.stop_reason = "limit" if worst is None else StopReason.for_kind(worst.limit.kind)
        if self._told_end is not None and manifest.outcome in ("ok", "limited"):  # the program's end is one thing, its run's another
            root.status, root.stop_reason = self._told_end


def _root(manifest: Manifest) -> Branch:
    facts = ScopeFacts(manifest.run_id, ScopeKind.RUN, manifest.name or None, manifest.run_id, manifest.name or None, tags=manifest.tags)
    budgets = [found for each in manifest.budgets if (found := budget_of(each)) is not None] or _unsettled(manifest)
    started, ended = _ns(manifest.started), _ns(manifest.ended)
    if ended > time.time_ns() + _DAY_NS:
        ended = 0
    return Branch(facts, StoredScope(facts, None, started_ns=started, ended_ns=max(started, ended), limits=budgets))


def _unsettled(manifest: Manifest) -> list[LimitReading]:
    """Give the limits of a run that nobody saw end; how full they are is not known."""
    if manifest.outcome != "running":
        return []
    found = [limit for each in manifest.limits[:_MOST_LIMITS] if (limit := _parsed(each.get("limit"))) is not None]
    unknown = math.nan
    return [
        LimitReading(limit, limit.scope or ScopeKind.RUN, manifest.name or None, unknown, unknown, unknown, unknown, 0, ())
        for limit in found
        if limit.scope in (None, ScopeKind.RUN, ScopeKind.SESSION)
    ]


def _parsed(spec: object) -> Limit | None:
    try:
        return parse_limit(spec) if isinstance(spec, str) else None
    except RaviError:
        return None


def _ns(seconds: float | None) -> int:
    """Give epoch seconds as ns, 0 for what is no time."""
    return round(seconds * NANO) if seconds is not None and 0 <= seconds < _MOST_SECONDS else 0


def _view(branch: Branch) -> StoredScope:
    assert isinstance(branch.view, StoredScope)
    return branch.view


def _upwards(view: StoredScope) -> Iterator[StoredScope]:
    at: StoredScope | None = view
    while at is not None:
        yield at
        at = at.parent


def _facts(span: Span) -> ScopeFacts:
    is_run = span.text(names.OPERATION_NAME) == names.INVOKE_WORKFLOW
    agent = None if is_run else span.text(names.AGENT_NAME)
    return ScopeFacts(
        scope_id=span.text(names.SCOPE_ID) or span.span_id,
        kind=ScopeKind.RUN if is_run else ScopeKind.AGENT,
        name=span.text(names.WORKFLOW_NAME) if is_run else agent,
        run_id=span.text(names.RUN_ID),
        session_id=span.text(names.SESSION_ID),
        tenant_id=span.text(names.TENANT_ID),
        agent_name=agent,
        agent_id=None if is_run else span.text(names.AGENT_ID),
    )


def _started(node: Branch | Leaf) -> int:
    return node.started_ns if isinstance(node, Leaf) else _view(node).started_ns


def _add_left_out(record: RunRecord, files: Gathering) -> None:
    for what in record.left_out:
        record.left_out[what] += files.left_out[what]
