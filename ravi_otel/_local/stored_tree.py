"""Put the rows of one stored run together as its tree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal, cast, get_args

from ravi_otel._local.answers import (
    SCOPE_KINDS,
    Json,
    RunRow,
    consumed_in,
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
from ravi_otel._local.store import SUMS, StoredRow
from ravi_otel._local.tree import Branch, Fields, Leaf, RunRecord
from ravi_otel._runtime.background_calls import FETCHES
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import LimitReading, Status
from ravi_otel.policy._grammar import parse_limit
from ravi_otel.policy._limits import ScopeKind
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
_PRIORITIES: Final = {each.name.lower(): each for each in Priority}

IN_RUNS: Final = "run IN (SELECT value FROM json_each(:runs))"
ADDED: Final = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
TOOL_SUMS: Final = {
    "tool_calls": "status != 'refused' AND decision IS NOT NULL",
    "refused": "status = 'refused' AND limit_reason IS NOT 'contended'",
}
"""What a tool call counts as: all other sums of one are 0. One that was inferred too late to be refused counts as one that ran."""

OF_TOOL: Final = {name: TOOL_SUMS.get(name, "0") for name in SUMS}
TOOLS: Final = f"SELECT *, {', '.join(f'{what} AS {name}' for name, what in OF_TOOL.items())} FROM tools"
_OF_LEAF: Final = (
    *("call", "scope", "run", "process", "began", "duration", "status", "decision", "error_type", "limit_kind", "limit_scope"),
    *("limit_reason", "refusal", "operation", "model", "stream", "usage", "cost", "cost_source", "retries", *SUMS),
)
_ROWS: Final = {"calls": f"SELECT {', '.join(_OF_LEAF)} FROM calls", "tools": TOOLS}
_FIRST: Final = f"{{rows}} WHERE rowid IN (SELECT rowid FROM {{table}} WHERE {IN_RUNS} ORDER BY began LIMIT :most) ORDER BY began"
"""The first of them by their time, which an index has without the rows."""

_SUMMED: Final = tuple(
    f"SELECT scope, run, process, count(*) AS number, '{table}' AS what, {ADDED} FROM ({rows}) WHERE {IN_RUNS} GROUP BY scope, run, process"
    for table, rows in _ROWS.items()
)
_SCOPES: Final = f"""
    WITH RECURSIVE up(of, at) AS (
        SELECT scope, parent FROM scopes WHERE {IN_RUNS}
        UNION SELECT of, parent FROM up JOIN scopes ON scope = at WHERE NOT coalesce({IN_RUNS}, 0)),
    around(of, outer_scope) AS (SELECT of, at FROM up JOIN scopes ON scope = at WHERE {IN_RUNS})
    SELECT scopes.*, outer_scope, runs.parent AS outer_run FROM scopes LEFT JOIN around ON of = scopes.scope LEFT JOIN runs USING (run)
    WHERE scopes.{IN_RUNS} ORDER BY scopes.began, scopes.rowid"""
"""Each scope with the nearest one around it that is of these runs too, up through sessions and tenants, and with the run around its own."""


class StoredRecord(RunRecord):
    """Be the record of a stored run, or with `scope` of that one in it: `rows` asks the store, `runs` are the run and those inside."""

    def __init__(
        self, rows: Callable[[str, Json], list[StoredRow]], head: RunRow, runs: Sequence[str], most: int, scope: str | None = None
    ) -> None:
        super().__init__(most)
        place = {"run": head.run, "runs": json.dumps(list(runs))}
        launches = rows("SELECT * FROM launches WHERE launch = :run", place) if head.kind == "launch" else []
        self.head = head
        self._launch = dict(launches[0]) if launches else None
        self._scopes = rows(_SCOPES, place)
        self._own = next((row for row in self._scopes if row["kind"] == "run" and row["run"] == head.run), None)
        calls, tools = (rows(_FIRST.format(rows=rows_of, table=table), {**place, "most": most}) for table, rows_of in _ROWS.items())
        self._branches: dict[str, Branch] = {}
        self._of_run: dict[str, Branch] = {}
        self._of_process: dict[str, Branch] = {}
        runs_by_end = sorted((row for row in self._scopes if row["kind"] == "run"), key=_end_of)
        self._told_by = {
            _shared(reading, row): row["scope"] for row in runs_by_end for reading in _readings(row["limits"]) if _is_shared(reading, row)
        }
        """Which run tells of a limit of a session, tenant or process, that each run in it keeps: of those of one process the last."""
        self._root = self._make_root()
        if head.kind == "launch":
            pids = {row["process"]: row["pid"] for row in rows("SELECT process, pid FROM processes WHERE launch = :run", place)}
            self._put_processes(pids, (*self._scopes, *calls, *tools))
        self._put_scopes()
        for row in (row for statement in _SUMMED for row in rows(statement, place)):
            self._place(row, row["scope"], row["run"]).own.add(sums_in(row))
            self.left_out[row["what"]] += row["number"]
        leaves = self._put_leaves("calls", calls, _call_leaf) | self._put_leaves("tools", tools, _tool_leaf)
        for row in rows(f"SELECT * FROM events WHERE {IN_RUNS} ORDER BY at LIMIT {most}", place):
            event = event_of(row)
            if event is not None:
                self.put_event(event, leaves.get(row["call"] or "") or self._place(row, row["scope"], row["run"]))
        self._add_up()
        self._close()
        for branch in self.branches():
            branch.children.sort(key=lambda node: node.began)
        self.observed = bool(self._launch and self._launch["observe"])
        if scope in self._branches:
            self.roots = [self._branches[scope]]

    @property
    def launch(self) -> Json | None:
        """Return what is known of the launch that the run is; None of another run."""
        return None if self._launch is None else launch_facts(self._launch)

    def _limits(self, row: StoredRow) -> list[LimitReading]:
        """Read where the limits of a scope stood, and those around a run unless another run of the tree, or the launch, tells of them."""
        launched = [_shared(reading, None) for reading in _readings((self._launch or {}).get("budgets"))]
        return [
            reading
            for reading in _readings(row["limits"])
            if not _is_shared(reading, row)
            or (self._told_by.get(_shared(reading, row)) == row["scope"] and _shared(reading, None) not in launched)
        ]

    def _make_root(self) -> Branch:
        head, launch, row = self.head, self._launch, self._own
        kind = _KINDS.get(head.kind, ScopeKind.RUN)
        facts = ScopeFacts(head.run, kind, head.name, head.run, head.name, head.session, head.tenant, head.user, tags=head.tags)
        if row is not None and head.kind == "run":
            facts = _scope_facts(row)
        root = Branch(facts, began=head.began, ended=head.ended or 0, limits=[] if row is None else self._limits(row))
        if launch is not None:
            root.limits = _readings(launch["budgets"]) or _unsettled(launch) or root.limits
        self.put("scopes", root, self.roots)
        for key in (head.run, facts.scope_id, *([] if row is None else [row["scope"]])):
            self._branches[key] = self._of_run[key] = root
        return root

    def _put_processes(self, pids: Mapping[str, Any], rows: Sequence[StoredRow]) -> None:
        """Tell the processes of a launch apart, where several worked."""
        found = list(dict.fromkeys(row["process"] for row in rows if row["process"] is not None))
        for process in found if len(found) > 1 else ():
            times = [(row["began"], _end_of(row)) for row in rows if row["process"] == process]
            facts = ScopeFacts(f"process:{process}", ScopeKind.PROCESS, name=str(pids.get(process) or process), run_id=self.head.run)
            branch = self._of_process[process] = Branch(facts, parent=self._root, stop_reason=StopReason.SUCCESS)
            branch.status = "open" if self.head.outcome == "running" else "ok"
            branch.began, branch.ended = min(began for began, _ in times), max(end for _, end in times)
            self.put("scopes", branch, self._root.children)

    def _put_scopes(self) -> None:
        for row in self._scopes:  # in the order in which they began, so that what is around one is there
            if row["scope"] in self._branches:
                continue
            around = self._place(row, row["outer_scope"], row["outer_run"] if row["kind"] == "run" else row["run"])
            consumed = consumed_in(row["spend"])
            branch = self._branches[row["scope"]] = Branch(
                _scope_facts(row),
                around,
                status=status_in(row),
                stop_reason=row["stop_reason"],
                began=int_in(row["began"]) or 0,
                ended=int_in(row["ended"]) or 0,
                limits=self._limits(row),
                own=consumed,
                consumed=consumed.unsplit_tokens,
            )
            self.put("scopes", branch, around.children)
            if branch.facts.kind is ScopeKind.RUN:
                self._of_run.setdefault(row["run"], branch)

    def _place(self, row: StoredRow, scope: str | None, run: str | None) -> Branch:
        """Find what a row is in: that scope where it is known, else the run, else its process."""
        found = self._branches.get(scope or "") or self._of_run.get(run or "", self._root)
        return self._of_process.get(row["process"], found) if found is self._root else found

    # -- leaves and sums --------------------------------------------------------------------------------------------

    def _put_leaves(
        self, what: Literal["calls", "tools"], rows: Sequence[StoredRow], leaf_of: Callable[[StoredRow], Leaf]
    ) -> dict[str, Leaf]:
        """Put those that there is room for; all of them are counted, and in the sums of their scopes, already."""
        found: dict[str, Leaf] = {}
        for row in rows:
            scope, leaf = self._place(row, row["scope"], row["run"]), leaf_of(row)
            scope.reach(leaf.started_ns, leaf.started_ns + (leaf.duration_ns or 0))
            self.left_out[what] -= 1
            self.put(what, leaf, scope.children)
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
                    around.reported += scope.consumed
                is_own = is_own and not is_agent

    def _close(self) -> None:
        head, root = self.head, self._root
        if self._launch is None:
            lost = head.status in ("lost", "ended")
            root.status, root.stop_reason = ("cancelled", head.status) if lost else (status_in({"status": head.status}), head.stop_reason)
            return
        root.status, root.stop_reason = _ENDINGS.get(str(head.outcome), _ENDINGS[""])
        if root.status == "stopped":
            worst = max(root.limits, key=lambda each: (each.denied, each.fullness), default=None)
            root.stop_reason = "limit" if worst is None else StopReason.for_kind(worst.limit.kind)
        if head.stop_reason is not None and head.outcome in ("ok", "stopped"):  # the program's end is one thing, its run's another
            told = None if self._own is None else status_in(self._own)
            if told is not None and told != "open":
                root.status, root.stop_reason = told, head.stop_reason


def status_in(row: StoredRow | Json) -> Status:
    """Read the status of a scope or call; "open" for a word that is none."""
    return cast("Status", row["status"]) if row["status"] in _STATUS_WORDS else "open"


def launch_facts(launch: Json) -> Json:
    """Read what was launched."""
    listed = {name: list_in(launch[name]) for name in ("argv", "limits", "uncovered", "notes")}
    known = {name: launch[name] for name in ("launch", "name", "outcome", "status", "version", "began", "ended")}
    return {**known, **listed, "observe": bool(launch["observe"]), "tags": tags_in(launch["tags"])}


def _scope_facts(row: StoredRow) -> ScopeFacts:
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


def _is_shared(reading: LimitReading, row: StoredRow) -> bool:
    return row["kind"] == "run" and reading.scope is not ScopeKind.RUN


def _shared(reading: LimitReading, row: StoredRow | None) -> tuple[object, ...]:
    """Name a limit that runs share; of a renewing one whatever its window was."""
    process = None if row is None else row["process"]
    return (process, reading.scope, reading.scope_name, reading.limit.label, reading.counted_for)


def _end_of(row: StoredRow) -> int:
    began = int_in(row["began"]) or 0
    return began + (int_in(row["duration"]) or 0) if "duration" in row.keys() else int_in(row["ended"]) or began  # noqa: SIM118 - of a row


def leaf_of(row: StoredRow) -> Leaf:
    """Read a model call or a tool call."""
    return _call_leaf(row) if "operation" in row.keys() else _tool_leaf(row)  # noqa: SIM118 - of a row


def _call_leaf(row: StoredRow) -> Leaf:
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
        cost_nano=int_in(row["cost"]),
        cost_source=row["cost_source"],
        retries=len(list_in(row["retries"])),
    )


def _tool_leaf(row: StoredRow) -> Leaf:
    return Leaf("tool", row["name"], "tool", **_told_in(row))


def _told_in(row: StoredRow) -> Fields:
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
        "counted": row[-len(SUMS) :],
        **{name: row[name] for name in ("decision", "error_type", "limit_kind", "limit_scope")},
    }


def _usage(written: Any) -> Usage | None:
    known = object_in(written)
    if known is None:
        return None
    counts = {name: value for name, value in known.items() if name in _USAGE and type(value) is int and 0 <= value < 2**63}
    source = known.get("source")
    return Usage(**counts, source=cast("UsageSource", source) if source in _SOURCES else "estimated")


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
