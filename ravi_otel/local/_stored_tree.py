"""Put the rows of one stored run together again as the tree that a live run is, and write its lines."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, cast, get_args

from ravi_otel._runtime.background_calls import FETCHES
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitReading, Spend, Status
from ravi_otel.local._answers import (
    SCOPE_KINDS,
    Json,
    Node,
    RunRow,
    Spent,
    add_consumed,
    event_of,
    int_in,
    list_in,
    object_in,
    objects_in,
    reading_of,
    sentence_in,
    sums_in,
    tags_in,
)
from ravi_otel.local._record import Branch, Leaf, RunRecord, What, leaf_line, scope_line
from ravi_otel.local._store import Sums
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import Priority, ScopeFacts, StopReason, Supervision
from ravi_otel.policy._usage import Usage, UsageSource

_ENDINGS: Final[dict[str, tuple[Status, str | None]]] = {
    "running": ("open", None),
    "ok": ("ok", StopReason.SUCCESS),
    "failed": ("error", StopReason.ERROR),
    "limited": ("stopped", None),
    "store_failed": ("error", StopReason.STORE_FAILED),
    "unattached": ("error", "unattached"),
    "uncovered": ("error", "uncovered"),
    "signal": ("cancelled", StopReason.CANCELLED),
    "lost": ("cancelled", "lost"),
}
_MOST_LIMITS: Final = 1_000
_KINDS: Final = {"launch": ScopeKind.RUN, "process": ScopeKind.PROCESS}
_STATUS_WORDS: Final = frozenset(get_args(Status))
_SOURCES: Final = frozenset(get_args(UsageSource))
_USAGE: Final = frozenset(each.name for each in fields(Usage)) - {"source"}
_PRIORITIES: Final = {each.name.lower(): each for each in Priority}


@dataclass(slots=True, eq=False)
class StoredScope:
    """Show a scope that was read, as a live one shows itself."""

    facts: ScopeFacts
    parent: StoredScope | None = None
    status: Status = "open"
    stop_reason: str | None = None
    error: BaseException | None = None
    began: int = 0
    ended: int = 0
    own: Sums = field(default_factory=Sums)
    sums: Sums = field(default_factory=Sums)
    limits: list[LimitReading] = field(default_factory=list[LimitReading])
    attempt: int | None = None

    @property
    def parent_id(self) -> str | None:
        """Return the enclosing scope's id, None at the root."""
        return None if self.parent is None else self.parent.facts.scope_id

    def readings(self) -> Sequence[LimitReading]:
        """Return where every limit stood that this scope owned, at its end."""
        return list(self.limits)

    def spend(self) -> Spend:
        """Sum what was used in it."""
        return self.sums.spend(max(0, self.ended - self.began) / NANO if self.began else 0.0)

    def upwards(self) -> Iterator[StoredScope]:
        """Give it and the scopes around it."""
        at: StoredScope | None = self
        while at is not None:
            yield at
            at = at.parent

    def reach(self, began: int, ended: int) -> None:
        """Cover what happened in it, as far as it was not seen to end."""
        for view in self.upwards():
            if view.status == "open":
                view.began = min(view.began or began, began)
                view.ended = max(view.ended, ended)


class Tree:
    """Put the rows of a run into a tree: the caller fills in what it read."""

    def __init__(self, head: RunRow, runs: Sequence[str], most: int, launch: Json | None) -> None:
        self.head = head
        self.runs = runs
        self.launch = None if launch is None else _launch_facts(launch)
        self.parents: Mapping[str, str | None] = {}
        """Each scope's parent, also of those around a run: a session, a tenant."""
        self.run_parents: Mapping[str, str | None] = {}
        self.processes: Mapping[str, int | None] = {}
        """The number of each process."""
        self.scopes: Sequence[sqlite3.Row] = ()
        self.calls: Sequence[sqlite3.Row] = ()
        self.tools: Sequence[sqlite3.Row] = ()
        self.events: Sequence[sqlite3.Row] = ()
        self.summed: list[sqlite3.Row] = []
        """The sums of all calls and tool calls by scope, where they are too many to be added up one by one."""
        self._placed: set[int] = set()
        self._record = RunRecord(most)
        self._most = most
        self._launched = launch
        self._branches: dict[str, Branch] = {}
        self._of_run: dict[str, Branch] = {}
        self._of_process: dict[str, Branch] = {}
        self._told_by: dict[tuple[object, ...], str] = {}
        """The run that tells of a limit which runs share: of those in one process the one that ended last."""

    def record(self, scope: str | None) -> RunRecord:
        """Give the record of the whole run, or of one scope in it."""
        self._read_shared()
        record, root = self._record, self._root()
        self._hang_processes(root)
        self._hang_scopes(root)
        leaves = self._hang_leaves(root)
        for row in self.events:
            event = event_of(row)
            if event is not None:
                record.put_event(event, leaves.get(row["call"] or "") or self._branches.get(row["scope"] or "") or self._place(row, root))
        self._add_up()
        self._close(root)
        for branch in record.branches():
            branch.children.sort(key=_began)
        record.observed = bool(self._launched and self._launched.get("observe"))
        if scope is not None and scope in self._branches:
            record.roots[:] = [self._branches[scope]]
        return record

    # -- scopes -----------------------------------------------------------------------------------------------------

    def _read_shared(self) -> None:
        """Find who tells of the limits of sessions, tenants and processes, which each run in them keeps as they stood at its end."""
        for row in sorted((row for row in self.scopes if row["kind"] == "run"), key=_end_of):
            self._told_by.update((_shared(reading, row), row["scope"]) for reading in _readings(row["limits"]) if _is_shared(reading, row))

    def _limits(self, row: sqlite3.Row) -> list[LimitReading]:
        """Read where the limits of a scope stood, and those around a run unless another run of the tree, or the launch, tells of them."""
        launched = [_shared(reading, None) for reading in _readings((self._launched or {}).get("budgets"))]
        return [
            reading
            for reading in _readings(row["limits"])
            if not _is_shared(reading, row)
            or (self._told_by.get(_shared(reading, row)) == row["scope"] and _shared(reading, None) not in launched)
        ]

    def _root(self) -> Branch:
        head, launch = self.head, self._launched
        row = next((row for row in self.scopes if row["kind"] == "run" and row["run"] == head.run), None)
        kind = _KINDS.get(head.kind, ScopeKind.RUN)
        facts = ScopeFacts(head.run, kind, head.name, head.run, head.name, head.session, head.tenant, head.user, tags=head.tags)
        if row is not None and head.kind == "run":
            facts = _scope_facts(row)
        view = StoredScope(facts, None, began=head.began, ended=head.ended or 0)
        view.limits = [] if row is None else self._limits(row)
        if launch is not None:
            view.limits = _readings(launch.get("budgets")) or _unsettled(launch) or view.limits
        branch = Branch(facts, view)
        self._record.put_scope(branch, None)
        for key in (head.run, facts.scope_id, *([] if row is None else [row["scope"]])):
            self._branches[key] = self._of_run[key] = branch
        return branch

    def _hang_processes(self, root: Branch) -> None:
        """Tell the processes of a launch apart, where several worked."""
        rows = (*self.scopes, *self.calls, *self.tools) if self.head.kind == "launch" else ()
        found = list(dict.fromkeys(row["process"] for row in rows if row["process"] is not None))
        for process in found if len(found) > 1 else ():
            pid = self.processes.get(process)
            facts = ScopeFacts(f"process:{process}", ScopeKind.PROCESS, name=str(pid or process), run_id=self.head.run)
            ended: Status = "open" if self.head.outcome == "running" else "ok"
            branch = Branch(facts, StoredScope(facts, view_of(root), ended, StopReason.SUCCESS))
            times = [(row["began"], _end_of(row)) for row in rows if row["process"] == process]
            view_of(branch).began = min(began for began, _ in times)
            view_of(branch).ended = max(end for _, end in times)
            self._record.put_scope(branch, root)
            self._of_process[process] = branch

    def _hang_scopes(self, root: Branch) -> None:
        rows = {row["scope"]: row for row in self.scopes if row["scope"] not in self._branches}
        for row in rows.values():
            facts = _scope_facts(row)
            status: Status = row["status"] if row["status"] in _STATUS_WORDS else "open"
            view = StoredScope(facts, None, status, row["stop_reason"], None, int_in(row["began"]) or 0, int_in(row["ended"]) or 0)
            view.limits, view.attempt = self._limits(row), int_in(row["attempt"])
            add_consumed(view.own, row["spend"])
            branch = self._branches[row["scope"]] = Branch(facts, view)
            if facts.kind is ScopeKind.RUN:
                self._of_run.setdefault(row["run"], branch)
        hung = {id(root)}
        self._placed = {id(branch) for branch in (root, *self._of_process.values())}
        for scope in rows:
            line: list[str] = []
            at: str | None = scope
            while at is not None and at not in line and id(self._branches.get(at)) not in hung:
                line.append(at)
                at = self._around(at, rows)
            for each in reversed(line):
                self._hang(self._branches[each], rows[each], root if at is None or at in line else self._branches[at], root)
                hung.add(id(self._branches[each]))
                at = each

    def _hang(self, branch: Branch, row: sqlite3.Row, parent: Branch, root: Branch) -> None:
        at = self._of_process.get(row["process"], root) if parent is root else parent
        view_of(branch).parent = view_of(at)
        if len(self._record) < self._most and id(at) in self._placed:
            self._placed.add(id(branch))
            self._record.put_scope(branch, at)
        else:
            self._record.left_out["scopes"] += 1

    def _around(self, scope: str, rows: Mapping[str, sqlite3.Row]) -> str | None:
        """Find the nearest scope around one that is in the tree, up through sessions and tenants; else the run around its run."""
        seen = {scope}
        at = self.parents.get(scope)
        while at is not None and at not in seen:
            if at in self._branches:
                return at
            seen.add(at)
            at = self.parents.get(at)
        row = rows.get(scope)
        run = None if row is None else row["run"] if row["kind"] != "run" else self.run_parents.get(row["run"])
        around = None if run is None else self._of_run.get(run)
        return None if around is None or around.facts.scope_id == scope else around.facts.scope_id

    def _place(self, row: sqlite3.Row, root: Branch) -> Branch:
        """Find the scope that a row belongs to; what names none that is known is its run's, or its process's."""
        found = self._branches.get(row["scope"] or "") or self._of_run.get(row["run"] or "")
        if found is None:
            around = self._around(row["scope"] or "", {})
            found = root if around is None else self._branches[around]
        return self._of_process.get(row["process"], root) if found is root else found

    # -- leaves and sums --------------------------------------------------------------------------------------------

    def _hang_leaves(self, root: Branch) -> dict[str, Leaf]:
        found: dict[str, Leaf] = {}
        number = {"calls": len(self.calls), "tools": len(self.tools)}
        for row in self.summed:
            view_of(self._place(row, root)).own.add(sums_in(row))
        if self.summed:
            number = {what: sum(row["number"] for row in self.summed if row["what"] == what) for what in number}
        kinds: tuple[tuple[What, Sequence[sqlite3.Row], Callable[[sqlite3.Row], Leaf], Callable[[sqlite3.Row], Sums]], ...] = (
            ("calls", self.calls, call_leaf, sums_in),
            ("tools", self.tools, tool_leaf, _tool_sums),
        )
        for what, rows, leaf_of, sums_of in kinds:
            for row in rows:
                branch = self._place(row, root)
                view = view_of(branch)
                if not self.summed:
                    view.own.add(sums_of(row))
                began = int_in(row["began"]) or 0
                view.reach(began, began + (int_in(row["duration"]) or 0))
                if len(self._record) < self._most and id(branch) in self._placed:
                    found[row["call"]] = leaf = leaf_of(row)
                    self._record.put_leaf(leaf, branch)
                    number[what] -= 1
            self._record.left_out[what] += number[what]
        return found

    def _add_up(self) -> None:
        """Charge what was used to the innermost agent, and to every scope around that is no agent's."""
        branches = {id(branch): branch for branch in (*self._branches.values(), *self._of_process.values())}
        for branch in branches.values():
            is_own = True
            for view in view_of(branch).upwards():
                is_agent = view.facts.kind is ScopeKind.AGENT
                if not is_agent or is_own:
                    view.sums.add(view_of(branch).own)
                is_own = is_own and not is_agent

    def _close(self, root: Branch) -> None:
        head, view = self.head, view_of(root)
        if self._launched is None:
            view.status = head.status if head.status in _STATUS_WORDS else "open"  # type: ignore[assignment]  # one of them
            view.stop_reason = head.stop_reason
            if head.status in ("lost", "ended"):
                view.status, view.stop_reason = "cancelled", head.status
            return
        view.status, view.stop_reason = _ENDINGS.get(str(head.outcome), ("error", None))
        if view.status == "stopped":
            worst = max(view.limits, key=lambda each: (each.denied, each.fullness), default=None)
            view.stop_reason = "limit" if worst is None else StopReason.for_kind(worst.limit.kind)
        if head.stop_reason is not None and head.outcome in ("ok", "limited"):  # the program's end is one thing, its run's another
            told = next((row["status"] for row in self.scopes if row["kind"] == "run" and row["run"] == head.run), None)
            if told in _STATUS_WORDS and told != "open":
                view.status, view.stop_reason = cast("Status", told), head.stop_reason


def view_of(branch: Branch) -> StoredScope:
    """Return how a stored scope shows itself."""
    assert isinstance(branch.view, StoredScope)
    return branch.view


def _launch_facts(launch: Json) -> Json:
    listed = {name: list_in(launch.get(name)) for name in ("argv", "limits", "uncovered", "notes")}
    known = {name: launch.get(name) for name in ("launch", "name", "outcome", "status", "version", "began", "ended")}
    return {**known, **listed, "observe": bool(launch.get("observe")), "tags": tags_in(launch.get("tags"))}


def _scope_facts(row: sqlite3.Row) -> ScopeFacts:
    kind = ScopeKind(row["kind"]) if row["kind"] in SCOPE_KINDS else ScopeKind.BLOCK
    priority = _PRIORITIES.get(row["priority"] or "", Priority.NORMAL)
    return ScopeFacts(
        scope_id=row["scope"],
        kind=kind,
        name=row["name"],
        run_id=row["run"],
        session_id=row["session"],
        tenant_id=row["tenant"],
        user_id=row["user"],
        agent_name=row["agent"],
        agent_id=row["agent_id"],
        supervision=None if priority is Priority.NORMAL else Supervision(run_id="stored", priority=priority),
        tags=tags_in(row["tags"]),
        attempt=int_in(row["attempt"]),
    )


def _readings(stored: object) -> list[LimitReading]:
    return [found for each in objects_in(stored) if (found := reading_of(each)) is not None]


def _is_shared(reading: LimitReading, row: sqlite3.Row) -> bool:
    return row["kind"] == "run" and reading.scope is not ScopeKind.RUN


def _shared(reading: LimitReading, row: sqlite3.Row | None) -> tuple[object, ...]:
    """Name a limit that runs share; of a renewing one whatever its window was."""
    process = None if row is None else row["process"]
    return (process, reading.scope, reading.scope_name, reading.limit.label, reading.counted_for)


def _end_of(row: sqlite3.Row) -> int:
    began = int_in(row["began"]) or 0
    return began + (int_in(row["duration"]) or 0) if "duration" in row.keys() else int_in(row["ended"]) or began  # noqa: SIM118 - of a row


def _began(node: Branch | Leaf) -> int:
    return node.started_ns if isinstance(node, Leaf) else view_of(node).began


def call_leaf(row: sqlite3.Row) -> Leaf:
    """Read a model call."""
    leaf = _leaf(row, Leaf("call", row["model"], row["operation"] or "", int_in(row["began"]) or 0))
    leaf.stream = bool(row["stream"])
    leaf.usage = _usage(row["usage"])
    leaf.generative = leaf.usage is not None or (leaf.operation != FETCHES and " " not in leaf.operation)
    leaf.pending = bool(row["pending"])
    leaf.cost_nano, leaf.cost_source = int_in(row["cost"]), row["cost_source"]
    leaf.retries = len(list_in(row["retries"]))
    if leaf.sent and leaf.generative and leaf.status != "open":
        leaf.sent = leaf.usage is not None or bool(row["requests"])
    return leaf


def tool_leaf(row: sqlite3.Row) -> Leaf:
    """Read a tool call."""
    return _leaf(row, Leaf("tool", row["name"], "tool", int_in(row["began"]) or 0))


def _leaf(row: sqlite3.Row, leaf: Leaf) -> Leaf:
    leaf.id = row["call"]
    leaf.status = row["status"] if row["status"] in _STATUS_WORDS else "open"
    leaf.duration_ns = int_in(row["duration"])
    leaf.sent = leaf.status != "refused"
    leaf.decision, leaf.error_type = row["decision"], row["error_type"]
    leaf.limit_kind, leaf.limit_scope, leaf.reason = row["limit_kind"], row["limit_scope"], row["limit_reason"]
    leaf.refusal = sentence_in(row["refusal"]) if leaf.status == "refused" else None
    return leaf


def _usage(written: Any) -> Usage | None:
    known = object_in(written)
    if known is None:
        return None
    counts = {name: value for name in _USAGE if (value := int_in(known.get(name))) is not None and 0 <= value < 2**63}
    source = known.get("source")
    return Usage(**counts, source=cast("UsageSource", source) if source in _SOURCES else "estimated")


def _tool_sums(row: sqlite3.Row) -> Sums:
    if row["status"] == "refused":
        return Sums(refused=int(row["limit_reason"] != "contended"))
    ran = row["decision"] is not None  # admitted, only observed, or inferred too late to be refused
    return Sums(tool_calls=int(ran))


# -- its lines ------------------------------------------------------------------------------------------------------


def nodes_of(record: RunRecord) -> Iterator[Node]:
    """Give every node of a record, outer ones first and in the order of time."""
    waiting: list[tuple[Branch | Leaf, str | None]] = [(root, None) for root in reversed(record.roots)]
    while waiting:
        node, parent = waiting.pop()
        if isinstance(node, Leaf):
            yield leaf_node(node, parent)
            continue
        yield _scope_node(node, parent)
        waiting.extend((child, node.facts.scope_id) for child in reversed(node.children))


def leaf_node(leaf: Leaf, parent: str | None) -> Node:
    """Write a call or tool call as a line."""
    line = leaf_line(leaf)
    usage = None if leaf.usage is None or leaf.usage.tokenless or leaf.usage.total_only else leaf.usage
    return Node(
        id=leaf.id or "",
        parent=parent,
        kind=leaf.what,
        name=leaf.name,
        title=line.title,
        began=leaf.started_ns,
        duration=leaf.duration_ns,
        status=leaf.status,
        stop_reason=None,
        error_type=leaf.error_type,
        decision=leaf.decision,
        stream=leaf.stream,
        priority=None,
        attempt=None,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None or leaf.half_told else usage.output_tokens,
        cost_nano=leaf.cost_nano,
        cost_source=leaf.cost_source,
        limit_kind=leaf.limit_kind,
        limit_scope=leaf.limit_scope,
        refusal=leaf.refusal,
        retries=leaf.retries,
        notes=line.notes,
        remark=line.remark,
        spent=None,
        ms_text=line.figures.ms,
        in_text=line.figures.tokens_in,
        out_text=line.figures.tokens_out,
        cost_text=line.figures.cost,
    )


def _scope_node(branch: Branch, parent: str | None) -> Node:
    facts, view = branch.facts, view_of(branch)
    line = scope_line(branch)
    spent = Spent.of(view.sums)
    return Node(
        id=facts.scope_id,
        parent=parent,
        kind=facts.kind.value,
        name=facts.name,
        title=line.title,
        began=view.began,
        duration=view.ended - view.began if view.ended and view.status != "open" else None,
        status=view.status,
        stop_reason=view.stop_reason,
        error_type=None,
        decision=None,
        stream=False,
        priority=None if facts.supervision is None else facts.supervision.priority.name.lower(),
        attempt=view.attempt,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cost_nano=spent.cost_nano,
        cost_source=None,
        limit_kind=None,
        limit_scope=None,
        refusal=None,
        retries=0,
        notes=line.notes,
        remark=line.remark,
        spent=spent,
        ms_text=line.figures.ms,
        in_text=line.figures.tokens_in,
        out_text=line.figures.tokens_out,
        cost_text=line.figures.cost,
    )


def _unsettled(launch: Json) -> list[LimitReading]:
    """Give the limits of a launch that nobody saw end; how full they are is not known."""
    found: list[LimitReading] = []
    for each in objects_in(launch.get("limits"))[:_MOST_LIMITS] if launch.get("outcome") == "running" else ():
        try:
            limit = parse_limit(str(each.get("limit")))
        except RaviError:
            continue
        if limit.scope in (None, ScopeKind.RUN, ScopeKind.SESSION):
            nobody = math.nan
            found.append(LimitReading(limit, limit.scope or ScopeKind.RUN, launch["name"], nobody, nobody, nobody, nobody, 0, ()))
    return found
