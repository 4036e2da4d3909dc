"""Put the rows of one stored run together again as the tree that a live run is, and write its lines."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
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
from ravi_otel.local._record import COUNTED_AS, Branch, Leaf, RunRecord, leaf_line, scope_line, walk
from ravi_otel.local._store import SUMS, Sums
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import Priority, ScopeFacts, StopReason, Supervision
from ravi_otel.policy._usage import Usage, UsageSource

_ENDINGS: Final[dict[str, tuple[Status, str | None]]] = {
    "running": ("open", None),
    "ok": ("ok", StopReason.SUCCESS),
    "failed": ("error", StopReason.ERROR),
    "stopped": ("stopped", None),
    "store_failed": ("error", StopReason.STORE_FAILED),
    "unattached": ("error", "unattached"),
    "uncovered": ("error", "uncovered"),
    "signal": ("cancelled", StopReason.CANCELLED),
    "lost": ("cancelled", "lost"),
    "": ("error", None),  # what this version does not know
}
_MOST_LIMITS: Final = 1_000
_KINDS: Final = {"launch": ScopeKind.RUN, "process": ScopeKind.PROCESS}
_STATUS_WORDS: Final = frozenset(get_args(Status))
_SOURCES: Final = frozenset(get_args(UsageSource))
_USAGE: Final = frozenset(each.name for each in fields(Usage)) - {"source"}
IN_RUNS: Final = "run IN (SELECT value FROM json_each(:runs))"
ADDED: Final = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
TOOL_SUMS: Final = {
    "tool_calls": "status != 'refused' AND decision IS NOT NULL",
    "refused": "status = 'refused' AND limit_reason IS NOT 'contended'",
}
"""What a tool call counts as: all other sums of one are 0."""

_SUMMED: Final = tuple(
    f"SELECT scope, run, process, count(*) AS number, '{table}' AS what, {sums} FROM {table} WHERE {IN_RUNS} GROUP BY scope, run, process"
    for table, sums in (("calls", ADDED), ("tools", ", ".join(f"sum({TOOL_SUMS.get(name, '0')}) AS {name}" for name in SUMS)))
)
_PARENTS: Final = f"""
    WITH RECURSIVE up(scope, parent) AS (
        SELECT scope, parent FROM scopes WHERE {IN_RUNS}
        UNION SELECT scopes.scope, scopes.parent FROM up JOIN scopes ON scopes.scope = up.parent)
    SELECT scope, parent FROM up"""
_OF_LEAF: Final = (
    *("name", "error_type", "decision", "stream", "cost_nano", "cost_source", "limit_kind", "limit_scope", "refusal", "retries"),
)
_PRIORITIES: Final = {each.name.lower(): each for each in Priority}


@dataclass(slots=True, eq=False)
class StoredScope(Branch):
    """Be a scope that was read; it shows itself, as a live one is shown by its view."""

    parent: StoredScope | None = None
    status: Status = "open"
    stop_reason: str | None = None
    began: int = 0
    ended: int = 0
    attempt: int | None = None
    limits: list[LimitReading] = field(default_factory=list[LimitReading])
    own: Sums = field(default_factory=Sums)
    sums: Sums = field(default_factory=Sums)

    def __post_init__(self) -> None:
        """Show itself."""
        self.view = self

    def readings(self) -> Sequence[LimitReading]:
        """Return where every limit stood that this scope owned, at its end."""
        return self.limits

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
        for scope in self.upwards():
            if scope.status == "open":
                scope.began = min(scope.began or began, began)
                scope.ended = max(scope.ended, ended)


class Tree:
    """Put the rows of a run into a tree: `rows` asks the store for them, `runs` are the run and those in it."""

    def __init__(self, rows: Callable[[str, Json], list[sqlite3.Row]], head: RunRow, runs: Sequence[str], most: int) -> None:
        place = {"run": head.run, "runs": json.dumps(list(runs))}
        launches = rows("SELECT * FROM launches WHERE launch = :run", place) if head.kind == "launch" else []
        self.head = head
        self._launch = dict(launches[0]) if launches else None
        self._pids = {row["process"]: row["pid"] for row in rows("SELECT process, pid FROM processes", {})}
        self._parents = {row["scope"]: row["parent"] for row in rows(_PARENTS, place)}  # also of those around a run: a session, a tenant
        self._run_parents = {row["run"]: row["parent"] for row in rows(f"SELECT run, parent FROM runs WHERE {IN_RUNS}", place)}
        self._scopes = rows(f"SELECT * FROM scopes WHERE {IN_RUNS} ORDER BY began", place)
        self._own = next((row for row in self._scopes if row["kind"] == "run" and row["run"] == head.run), None)
        self._calls = rows(f"SELECT * FROM calls WHERE {IN_RUNS} ORDER BY began LIMIT {most + 1}", place)
        self._tools = rows(f"SELECT * FROM tools WHERE {IN_RUNS} ORDER BY began LIMIT {most + 1}", place)
        self._events = rows(f"SELECT * FROM events WHERE {IN_RUNS} ORDER BY at LIMIT {most}", place)
        too_many = len(self._calls) + len(self._tools) > most  # to be read one by one: their sums are by scope
        self._summed = [row for statement in _SUMMED for row in rows(statement, place)] if too_many else []
        self._record = RunRecord(most)
        self._branches: dict[str, StoredScope] = {}
        self._of_run: dict[str, StoredScope] = {}
        self._of_process: dict[str, StoredScope] = {}
        runs_by_end = sorted((row for row in self._scopes if row["kind"] == "run"), key=_end_of)
        self._told_by = {
            _shared(reading, row): row["scope"] for row in runs_by_end for reading in _readings(row["limits"]) if _is_shared(reading, row)
        }
        """Which run tells of a limit of a session, tenant or process, that each run in it keeps: of those of one process the last."""
        self._root = self._make_root()

    @property
    def launch(self) -> Json | None:
        """Return what is known of the launch that the run is; None of another run."""
        return None if self._launch is None else launch_facts(self._launch)

    def record(self, scope: str | None) -> RunRecord:
        """Give the record of the whole run, or of one scope in it."""
        record = self._record
        self._hang_processes()
        self._hang_scopes()
        leaves = self._hang_leaves()
        for row in self._events:
            event = event_of(row)
            if event is not None:
                record.put_event(event, leaves.get(row["call"] or "") or self._branches.get(row["scope"] or "") or self._place(row))
        self._add_up()
        self._close()
        for branch in record.branches():
            branch.children.sort(key=_began)
        record.observed = bool(self._launch and self._launch["observe"])
        if scope is not None and scope in self._branches:
            record.roots[:] = [self._branches[scope]]
        return record

    # -- scopes -----------------------------------------------------------------------------------------------------

    def _limits(self, row: sqlite3.Row) -> list[LimitReading]:
        """Read where the limits of a scope stood, and those around a run unless another run of the tree, or the launch, tells of them."""
        launched = [_shared(reading, None) for reading in _readings((self._launch or {}).get("budgets"))]
        return [
            reading
            for reading in _readings(row["limits"])
            if not _is_shared(reading, row)
            or (self._told_by.get(_shared(reading, row)) == row["scope"] and _shared(reading, None) not in launched)
        ]

    def _make_root(self) -> StoredScope:
        head, launch, row = self.head, self._launch, self._own
        kind = _KINDS.get(head.kind, ScopeKind.RUN)
        facts = ScopeFacts(head.run, kind, head.name, head.run, head.name, head.session, head.tenant, head.user, tags=head.tags)
        if row is not None and head.kind == "run":
            facts = _scope_facts(row)
        root = StoredScope(facts, began=head.began, ended=head.ended or 0, limits=[] if row is None else self._limits(row))
        if launch is not None:
            root.limits = _readings(launch["budgets"]) or _unsettled(launch) or root.limits
        self._record.put_scope(root, None)
        for key in (head.run, facts.scope_id, *([] if row is None else [row["scope"]])):
            self._branches[key] = self._of_run[key] = root
        return root

    def _hang_processes(self) -> None:
        """Tell the processes of a launch apart, where several worked."""
        rows = (*self._scopes, *self._calls, *self._tools) if self.head.kind == "launch" else ()
        found = list(dict.fromkeys(row["process"] for row in rows if row["process"] is not None))
        for process in found if len(found) > 1 else ():
            times = [(row["began"], _end_of(row)) for row in rows if row["process"] == process]
            facts = ScopeFacts(f"process:{process}", ScopeKind.PROCESS, name=str(self._pids.get(process) or process), run_id=self.head.run)
            branch = self._of_process[process] = StoredScope(facts, parent=self._root, stop_reason=StopReason.SUCCESS)
            branch.status = "open" if self.head.outcome == "running" else "ok"
            branch.began, branch.ended = min(began for began, _ in times), max(end for _, end in times)
            self._record.put_scope(branch, self._root)

    def _hang_scopes(self) -> None:
        rows = {row["scope"]: row for row in self._scopes if row["scope"] not in self._branches}
        for row in rows.values():
            branch = self._branches[row["scope"]] = StoredScope(
                _scope_facts(row),
                status=status_in(row),
                stop_reason=row["stop_reason"],
                began=int_in(row["began"]) or 0,
                ended=int_in(row["ended"]) or 0,
                attempt=int_in(row["attempt"]),
                limits=self._limits(row),
            )
            add_consumed(branch.own, row["spend"])
            if branch.facts.kind is ScopeKind.RUN:
                self._of_run.setdefault(row["run"], branch)
        for scope in rows:
            line: list[str] = []
            at: str | None = scope
            while at is not None and at not in line and self._branches[at].parent is None and self._branches[at] is not self._root:
                line.append(at)
                at = self._around(at, rows[at])
            around = self._root if at is None or at in line else self._branches[at]
            for each in reversed(line):
                branch = self._branches[each]
                branch.parent = self._of_process.get(rows[each]["process"], around) if around is self._root else around
                self._record.put_scope(branch, branch.parent)
                around = branch

    def _around(self, scope: str, row: sqlite3.Row | None) -> str | None:
        """Find the nearest scope around one that is in the tree, up through sessions and tenants; else the run around its run."""
        seen = {scope}
        at: str | None = self._parents.get(scope)
        while at is not None and at not in seen:
            if at in self._branches:
                return at
            seen.add(at)
            at = self._parents.get(at)
        run = None if row is None else row["run"] if row["kind"] != "run" else self._run_parents.get(row["run"])
        around = None if run is None else self._of_run.get(run)
        return None if around is None or around.facts.scope_id == scope else around.facts.scope_id

    def _place(self, row: sqlite3.Row) -> StoredScope:
        """Find the scope that a row belongs to; what names none that is known is its run's, or its process's."""
        found = self._branches.get(row["scope"] or "") or self._of_run.get(row["run"] or "")
        if found is None:
            around = self._around(row["scope"] or "", None)
            found = self._root if around is None else self._branches[around]
        return self._of_process.get(row["process"], found) if found is self._root else found

    # -- leaves and sums --------------------------------------------------------------------------------------------

    def _hang_leaves(self) -> dict[str, Leaf]:
        found: dict[str, Leaf] = {}
        for row in self._summed:
            self._place(row).own.add(sums_in(row))
            self._record.left_out[row["what"]] += row["number"]
        for rows, leaf_of, sums_of in ((self._calls, call_leaf, sums_in), (self._tools, tool_leaf, _tool_sums)):
            for row in rows:
                scope, leaf = self._place(row), leaf_of(row)
                scope.reach(leaf.started_ns, leaf.started_ns + (leaf.duration_ns or 0))
                if not self._summed:
                    scope.own.add(sums_of(row))
                else:
                    self._record.left_out[COUNTED_AS[leaf.what]] -= 1
                self._record.put_leaf(leaf, scope)
                found[row["call"]] = leaf
        return found

    def _add_up(self) -> None:
        """Charge what was used to the innermost agent, and to every scope around that is no agent's."""
        scopes = {id(scope): scope for scope in (*self._branches.values(), *self._of_process.values())}
        for scope in scopes.values():
            is_own = True
            for around in scope.upwards():
                is_agent = around.facts.kind is ScopeKind.AGENT
                if not is_agent or is_own:
                    around.sums.add(scope.own)
                is_own = is_own and not is_agent

    def _close(self) -> None:
        head, root = self.head, self._root
        if self._launch is None:
            root.status, root.stop_reason = status_in({"status": head.status}), head.stop_reason
            if head.status in ("lost", "ended"):
                root.status = "cancelled"
                root.stop_reason = head.status
            return
        root.status, root.stop_reason = _ENDINGS.get(str(head.outcome), _ENDINGS[""])
        if root.status == "stopped":
            worst = max(root.limits, key=lambda each: (each.denied, each.fullness), default=None)
            root.stop_reason = "limit" if worst is None else StopReason.for_kind(worst.limit.kind)
        if head.stop_reason is not None and head.outcome in ("ok", "stopped"):  # the program's end is one thing, its run's another
            told = None if self._own is None else status_in(self._own)
            if told is not None and told != "open":
                root.status, root.stop_reason = told, head.stop_reason


def status_in(row: sqlite3.Row | Json) -> Status:
    """Read the status of a scope or call; "open" for a word that is none."""
    return cast("Status", row["status"]) if row["status"] in _STATUS_WORDS else "open"


def launch_facts(launch: Json) -> Json:
    """Read what was launched."""
    listed = {name: list_in(launch[name]) for name in ("argv", "limits", "uncovered", "notes")}
    known = {name: launch[name] for name in ("launch", "name", "outcome", "status", "version", "began", "ended")}
    return {**known, **listed, "observe": bool(launch["observe"]), "tags": tags_in(launch["tags"])}


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
    return node.began if isinstance(node, StoredScope) else node.started_ns if isinstance(node, Leaf) else 0


def call_leaf(row: sqlite3.Row) -> Leaf:
    """Read a model call."""
    usage, operation, told = _usage(row["usage"]), row["operation"] or "", _told_in(row)
    generative = usage is not None or (operation != FETCHES and " " not in operation)
    if told["sent"] and generative and told["status"] != "open":
        told["sent"] = usage is not None or bool(row["requests"])
    return Leaf(
        "call",
        row["model"],
        operation,
        **told,
        stream=bool(row["stream"]),
        generative=generative,
        usage=usage,
        pending=bool(row["pending"]),
        cost_nano=int_in(row["cost"]),
        cost_source=row["cost_source"],
        retries=len(list_in(row["retries"])),
    )


def tool_leaf(row: sqlite3.Row) -> Leaf:
    """Read a tool call."""
    return Leaf("tool", row["name"], "tool", **_told_in(row))


def _told_in(row: sqlite3.Row) -> dict[str, Any]:
    """Read what is told of a model call and of a tool call alike."""
    status = status_in(row)
    return {
        "id": row["call"],
        "started_ns": int_in(row["began"]) or 0,
        "duration_ns": int_in(row["duration"]),
        "status": status,
        "sent": status != "refused",
        "reason": row["limit_reason"],
        "refusal": sentence_in(row["refusal"]) if status == "refused" else None,
        **{name: row[name] for name in ("decision", "error_type", "limit_kind", "limit_scope")},
    }


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
    """Give every node of a stored run's record, outer ones first and in the order of time."""
    for node, around in walk(record):
        if isinstance(node, (Leaf, StoredScope)):
            yield node_of(node, None if around is None else around.facts.scope_id)


def node_of(node: Leaf | StoredScope, parent: str | None) -> Node:
    """Write a scope, a call or a tool call as a line."""
    line, told = (leaf_line(node), _of_leaf(node)) if isinstance(node, Leaf) else (scope_line(node), _of_scope(node))
    return Node(
        **told,
        parent=parent,
        status=node.status,
        title=line.title,
        notes=line.notes,
        remark=line.remark,
        ms_text=line.figures.ms,
        in_text=line.figures.tokens_in,
        out_text=line.figures.tokens_out,
        cost_text=line.figures.cost,
    )


def _of_leaf(leaf: Leaf) -> dict[str, Any]:
    return {
        "id": leaf.id or "",
        "kind": leaf.what,
        "began": leaf.started_ns,
        "duration": leaf.duration_ns,
        "input_tokens": None if leaf.apart is None else leaf.apart.input_tokens,
        "output_tokens": None if leaf.apart is None or leaf.half_told else leaf.apart.output_tokens,
        **{name: getattr(leaf, name) for name in _OF_LEAF},
    }


def _of_scope(scope: StoredScope) -> dict[str, Any]:
    facts, spent = scope.facts, Spent.of(scope.sums)
    return {
        "id": facts.scope_id,
        "kind": facts.kind.value,
        "name": facts.name,
        "began": scope.began,
        "duration": scope.ended - scope.began if scope.ended and scope.status != "open" else None,
        "stop_reason": scope.stop_reason,
        "priority": None if facts.supervision is None else facts.supervision.priority.name.lower(),
        "attempt": scope.attempt,
        "spent": spent,
        **{name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "cost_nano")},
    }


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
