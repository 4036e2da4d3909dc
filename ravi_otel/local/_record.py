"""Keep what happened in this process as a tree, up to a fixed size, and write it as JSON, or as lines in plain words and figures."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, Protocol

from ravi_otel._enforcement.scope import Scope
from ravi_otel._forksafe import ForkLock
from ravi_otel.errors import RaviError
from ravi_otel.hooks._events import CallRecord, LimitEvent, LimitReading, ScopeView, Spend, Status, ToolRecord, Totals
from ravi_otel.hooks._listeners import Listener
from ravi_otel.local._store import finite, limit_fields
from ravi_otel.local._wording import UNKNOWN, amount, clean, count, milliseconds, money, percent
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import Priority, ScopeFacts
from ravi_otel.policy._usage import Usage

MOST: Final = 5_000
"""Nodes kept unless told otherwise."""

Fields = dict[str, Any]
What = Literal["scopes", "calls", "tools", "events"]

COUNTED_AS: Final[dict[str, What]] = {"call": "calls", "tool": "tools"}
_DROPPED: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT, ScopeKind.BLOCK, ScopeKind.HANDOFF})
"""Scopes that end when nobody refers to them any more."""


@dataclass(slots=True, eq=False)
class Leaf:
    """Be one model call or one tool call.

    `sent` is False for what was refused or failed before a byte left. `usage` and `cost_nano` None are unknown, where
    something was sent and `generative`. `refusal` is our own sentence; what others' errors say may quote a prompt and
    is not kept, only `error_type`. `pending` says that a later look brings what it used.
    """

    what: Literal["call", "tool"]
    name: str | None
    operation: str
    started_ns: int
    stream: bool = False
    generative: bool = False
    status: Status = "open"
    duration_ns: int | None = None
    sent: bool = True
    usage: Usage | None = None
    cost_nano: int | None = None
    cost_source: str | None = None
    retries: int = 0
    decision: str | None = None
    error_type: str | None = None
    limit_kind: str | None = None
    limit_scope: str | None = None
    reason: str | None = None
    refusal: str | None = None
    pending: bool = False
    events: list[LimitEvent] = field(default_factory=list[LimitEvent])
    id: str | None = None

    @property
    def apart(self) -> Usage | None:
        """Return what it used where input and output were told apart: sound and characters are no tokens, and a total has no parts."""
        usage = self.usage
        return None if usage is None or usage.tokenless or usage.total_only else usage

    @property
    def half_told(self) -> bool:
        """Tell whether what it was sent is estimated and what it answered is not known, as of a stream left at its beginning."""
        usage = self.usage
        if usage is None or usage.source != "estimated" or usage.output_tokens or usage.tokenless:
            return False
        return self.operation != "embeddings"

    @property
    def untold(self) -> bool:
        """Tell whether it was sent and is over, and nobody told all it used: a sum that it belongs to is a lower bound."""
        if not self.generative or not self.sent or self.status == "open" or self.pending:
            return False
        return self.usage is None or self.usage.source == "reserved" or self.usage.total_only or self.half_told


class View(Protocol):
    """Show how a scope stands: one of this process does, while it lives, and one that was read."""

    @property
    def status(self) -> Status:
        """Return how it ended, "open" while it lives."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Return why it stopped, None while open."""
        ...

    def readings(self) -> Sequence[LimitReading]:
        """Read every limit it owns."""
        ...

    def spend(self) -> Spend:
        """Read what was used in it."""
        ...


class LiveView:
    """Show a scope of this process, and do not keep it: one that the program drops must be free to go, and to end.

    It shows the scope as it is while it lives, and then as it was when it closed, or when the last call in it ended after that.
    """

    __slots__ = ("_readings", "_scope", "_spend", "status", "stop_reason")

    def __init__(self, scope: Scope) -> None:
        self.status: Status = "open"
        self.stop_reason: str | None = None
        self._scope = weakref.ref(scope)
        self._readings: Sequence[LimitReading] = ()
        self._spend = Spend()

    def close(self, scope: Scope, totals: Totals) -> None:
        """Keep how it ended."""
        self._scope = weakref.ref(scope)  # anew: a collection cuts what refers weakly to what it has found
        self.status, self.stop_reason = scope.status, scope.stop_reason
        self._spend, self._readings = totals.spend, totals.readings

    @property
    def scope(self) -> Scope | None:
        """Return the scope while it lives."""
        return self._scope()

    def readings(self) -> Sequence[LimitReading]:
        """Read every limit it owns."""
        scope = self._scope()
        return self._readings if scope is None else scope.readings()

    def spend(self) -> Spend:
        """Read what was used in it."""
        scope = self._scope()
        return self._spend if scope is None else scope.spend()


@dataclass(slots=True, eq=False)
class Branch:
    """Be one scope; `view` reads its counters and limits live, and is None for a scope that was open before we listened."""

    facts: ScopeFacts
    view: View | None = None
    children: list[Branch | Leaf] = field(default_factory=list["Branch | Leaf"])
    events: list[LimitEvent] = field(default_factory=list[LimitEvent])

    def leaves(self) -> Iterator[Leaf]:
        """Yield what is summed in it: all below it; for an agent, not what the agents below it did."""
        is_agent = self.facts.kind is ScopeKind.AGENT
        waiting: list[Branch | Leaf] = list(self.children)
        while waiting:
            node = waiting.pop()
            if isinstance(node, Leaf):
                yield node
            elif not is_agent or node.facts.kind is not ScopeKind.AGENT:
                waiting.extend(node.children)

    def untold(self, spend: Spend) -> int:
        """Count the calls in it that were sent and whose usage nobody told, or not all; its sums are then a lower bound."""
        return max(spend.unreported_calls, sum(leaf.untold for leaf in self.leaves()))


class RunRecord(Listener):
    """Listen, and keep the first `most` runs, agents, blocks, calls, tools and limit events; the rest is counted.

    Attach it with `instrument().listen(record)`; `report.render` shows it. Safe from any thread; read it at any time.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = ForkLock()
        self._size = 0
        self._branches: dict[str, Branch] = {}
        self.roots: list[Branch] = []
        self.left_out: dict[What, int] = {"scopes": 0, "calls": 0, "tools": 0, "events": 0}
        self.observed: bool = False
        """Whether the whole run was only observed: nothing was refused, and `denied` is what would have been."""

    def __len__(self) -> int:
        return self._size

    def branches(self) -> Iterator[Branch]:
        """Give every scope that was kept, outer ones first."""
        with self._lock.own:
            kept = list(self._branches.values())
        yield from kept

    def limits(self) -> list[tuple[Branch, LimitReading]]:
        """Return every limit of every scope that was kept, the fullest first."""
        found = [(branch, reading) for branch in self.branches() if branch.view is not None for reading in branch.view.readings()]
        return sorted(found, key=lambda pair: (pair[1].fullness, pair[1].denied), reverse=True)

    # -- what is told ---------------------------------------------------------------------------------------------

    def scope_opened(self, scope: ScopeView) -> None:
        """Keep a scope, and the ones around it that were not told: a session, a tenant, the process."""
        chain: list[ScopeView] = []
        at: ScopeView | None = scope
        with self._lock.own:
            while at is not None and ((known := self._branches.get(at.facts.scope_id)) is None or known.view is None):
                chain.append(at)
                at = at.parent
            for view in reversed(chain):
                self._keep_scope(view)

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        """Keep how it ended, with what was used."""
        branch = self._branches.get(scope.facts.scope_id)
        if branch is not None and isinstance(branch.view, LiveView) and isinstance(scope, Scope):
            branch.view.close(scope, totals)

    def call_started(self, record: CallRecord) -> None:
        """Keep a call that begins."""
        call = record.call
        leaf = Leaf("call", call.model, call.operation, record.started_ns, call.stream, call.generative)
        self._keep_leaf(record, leaf)

    def call_ended(self, record: CallRecord) -> None:
        """Write down how it ended."""
        leaf = record.marks.pop(self, None)
        if not isinstance(leaf, Leaf):
            return
        _write_end(leaf, record)
        reply = record.reply
        leaf.name = (None if reply is None else reply.model) or leaf.name
        leaf.pending = reply is not None and reply.pending and record.usage is None
        leaf.generative = record.call.generative or record.usage is not None  # a look, that brought what was used
        leaf.usage, leaf.cost_nano, leaf.cost_source = record.usage, record.cost_nano, record.cost_source
        leaf.retries = len(record.retries)
        # The runtime reads a reply, if only an empty one, for whatever was sent.
        leaf.sent = record.status != "refused" and reply is not None
        self._keep_late(record.facts.scope_id)

    def tool_started(self, record: ToolRecord) -> None:
        """Keep a tool call that begins."""
        self._keep_leaf(record, Leaf("tool", record.name, "tool", record.started_ns))

    def tool_ended(self, record: ToolRecord) -> None:
        """Write down how it ended."""
        leaf = record.marks.pop(self, None)
        if isinstance(leaf, Leaf):
            _write_end(leaf, record)

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        """Keep a limit event with the operation that brought it about, else with the scope that owns the limit."""
        leaf = None if at is None else at.marks.get(self)
        place = leaf if isinstance(leaf, Leaf) else self._branches.get(event.scope_id)
        if place is not None:
            self.put_event(event, place)

    # -- what was stored ------------------------------------------------------------------------------------------

    def put_scope(self, branch: Branch, parent: Branch | None) -> None:
        """Keep a scope that was read somewhere, below one that was put before, or count it."""
        with self._lock.own:
            if self._room("scopes"):
                self._hang(branch, parent)

    def put_leaf(self, leaf: Leaf, parent: Branch) -> None:
        """Keep a call or tool that was read somewhere, or count it."""
        with self._lock.own:
            if self._room(COUNTED_AS[leaf.what]):
                parent.children.append(leaf)

    def put_event(self, event: LimitEvent, place: Branch | Leaf) -> None:
        """Keep a limit event with what it belongs to, or count it."""
        with self._lock.own:
            if self._room("events"):
                place.events.append(event)

    def _keep_late(self, scope_id: str) -> None:
        """Keep what a call that outlived its scope has used there, and in the scopes around that are closed."""
        branch = self._branches.get(scope_id)
        view = None if branch is None else branch.view
        if not isinstance(view, LiveView) or view.status == "open" or view.scope is None:
            return
        for scope in view.scope.upwards():
            around = self._branches.get(scope.facts.scope_id)
            if around is not None and isinstance(around.view, LiveView) and around.view.status != "open":
                around.view.close(scope, scope.totals())

    # -- keeping, under the lock ----------------------------------------------------------------------------------

    def _room(self, what: What) -> bool:
        if self._size >= self._most:
            self.left_out[what] += 1
            return False
        self._size += 1
        return True

    def _keep_scope(self, scope: ScopeView) -> None:
        known, parent = self._branches.get(scope.facts.scope_id), scope.parent
        view = LiveView(scope) if isinstance(scope, Scope) and scope.facts.kind in _DROPPED else scope
        if known is not None:
            known.view = view
        elif self._room("scopes"):
            self._hang(Branch(scope.facts, view), None if parent is None else self._branches.get(parent.facts.scope_id))

    def _hang(self, branch: Branch, parent: Branch | None) -> None:
        self._branches[branch.facts.scope_id] = branch
        (self.roots if parent is None else parent.children).append(branch)

    def _keep_leaf(self, record: CallRecord | ToolRecord, leaf: Leaf) -> None:
        facts = record.facts
        with self._lock.own:
            if facts.scope_id not in self._branches and self._size < self._most:
                self._size += 1
                self._hang(Branch(facts), None)
            branch = self._branches.get(facts.scope_id)
            if self._room(COUNTED_AS[leaf.what]) and branch is not None:  # there is room for none where it has no branch
                branch.children.append(leaf)
                record.marks[self] = leaf


def _write_end(leaf: Leaf, record: CallRecord | ToolRecord) -> None:
    leaf.status, leaf.duration_ns = record.status, record.duration_ns
    leaf.decision, leaf.error_type = record.decision, record.error_type
    leaf.limit_kind, leaf.reason = record.limit_kind, record.limit_reason
    leaf.limit_scope = None if record.limit_scope is None else record.limit_scope.value
    leaf.sent = record.status != "refused"
    if record.status == "refused" and isinstance(record.error, RaviError):
        leaf.refusal = str(record.error)


# -- as JSON ------------------------------------------------------------------------------------------------------


def as_json(record: RunRecord, *, indent: int | None = None) -> str:
    """Give `{"nodes": [...], "limits": [...], "left_out": {...}}` as ASCII text.

    `nodes` are scopes, calls and tools, outer ones first, flat with `id` and `parent` so that depth is no problem for
    any reader. Unknown is null; amounts are in tokens, USD, milliseconds, and a limit's public unit. `limits` are the
    fullest first.
    """
    document = {
        "nodes": _nodes(record),
        "limits": [limit_fields(branch.facts, reading) for branch, reading in record.limits()],
        "left_out": dict(record.left_out),
    }
    return json.dumps(document, allow_nan=False, indent=indent)


def walk(record: RunRecord) -> Iterator[tuple[Branch | Leaf, Branch | None]]:
    """Give every node with the one around it, outer ones first and in the order of time."""
    waiting: list[tuple[Branch | Leaf, Branch | None]] = [(root, None) for root in reversed(list(record.roots))]
    while waiting:
        node, parent = waiting.pop()
        yield node, parent
        if isinstance(node, Branch):
            waiting.extend((child, node) for child in reversed(list(node.children)))


def _nodes(record: RunRecord) -> list[Fields]:
    nodes: list[Fields] = []
    numbers: dict[Branch | Leaf | None, int | None] = {None: None}
    for node, parent in walk(record):
        numbers[node] = len(nodes)
        place: Fields = {"id": len(nodes), "parent": numbers[parent]}
        nodes.append(place | (_scope(node) if isinstance(node, Branch) else _leaf(node)))
    return nodes


def _scope(branch: Branch) -> Fields:
    facts, view = branch.facts, branch.view
    fields: Fields = {"type": facts.kind.value, "name": facts.name, "scope_id": facts.scope_id, "run_id": facts.run_id}
    if view is not None:
        spend = view.spend()
        untold = branch.untold(spend)
        apart = untold or spend.unsplit_tokens
        fields |= {
            "status": view.status,
            "stop_reason": view.stop_reason,
            "duration_ms": _ms(round(spend.duration_s * NANO)),
            "requests": spend.requests,
            "turns": spend.turns,
            "input_tokens": spend.input_tokens if spend.input_tokens or not apart else None,
            "output_tokens": spend.output_tokens if spend.output_tokens or not apart else None,
            "total_tokens": spend.total_tokens if spend.total_tokens or not untold else None,
            "cost_usd": spend.cost_usd if spend.cost_usd or not untold else None,
            "calls_without_usage": untold,
            "unpriced_calls": spend.unpriced_calls,
            "tool_calls": spend.tool_calls,
            "refused": spend.refused,
            "errors": spend.errors,
        }
    return fields | {"events": [event_fields(event) for event in list(branch.events)]}


def _leaf(leaf: Leaf) -> Fields:
    usage = leaf.apart
    total = None if leaf.usage is None or leaf.usage.tokenless or leaf.half_told else leaf.usage.total_tokens
    fields: Fields = {
        "type": leaf.what,
        "name": leaf.name,
        "status": leaf.status,
        "sent": leaf.sent,
        "duration_ms": _ms(leaf.duration_ns),
        "error_type": leaf.error_type,
        "decision": leaf.decision,
        "limit_kind": leaf.limit_kind,
        "limit_scope": leaf.limit_scope,
        "reason": leaf.reason,
        "refusal": leaf.refusal,
        "events": [event_fields(event) for event in list(leaf.events)],
    }
    if leaf.what == "call":
        fields |= {
            "operation": leaf.operation,
            "stream": leaf.stream,
            "input_tokens": None if usage is None else usage.input_tokens,
            "output_tokens": None if usage is None or leaf.half_told else usage.output_tokens,
            "total_tokens": total,
            "cached_input_tokens": None if usage is None else usage.cached_input_tokens,
            "usage_source": None if leaf.usage is None else leaf.usage.source,
            "cost_usd": None if leaf.cost_nano is None else leaf.cost_nano / NANO,
            "cost_source": leaf.cost_source,
            "retries": leaf.retries,
        }
    return fields


def event_fields(event: LimitEvent) -> Fields:
    """Write a limit event."""
    return {
        "event": event.event,
        "limit_kind": event.limit_kind,
        "scope": event.scope.value,
        "scope_id": event.scope_id,
        "scope_name": event.scope_name,
        "threshold": finite(event.threshold),
        "used": finite(event.used),
        "held": finite(event.held),
        "remaining": finite(event.remaining),
        "exceeded_by": finite(event.exceeded_by),
        "requested": finite(event.requested),
        "ratio": finite(event.ratio),
        "per": event.per,
        "window": event.window,
        "by": event.by,
        "counted_for": event.counted_for,
        "resets_at": None if event.resets_at is None else event.resets_at.isoformat(),
        "phase": event.phase,
        "decision": event.decision,
        "tracker": event.tracker,
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6


# -- as lines -----------------------------------------------------------------------------------------------------

Tone = Literal["scope", "call", "tool", "quiet", "warning", "refused", "error"]

FOLD_FROM: Final = 7
"""Like siblings in a row from which on they are folded."""

_REFUSED_FROM: Final = 3
"""The same for refusals by one limit: the first says it all."""

ASSUMED: Final = "assumed"
"""The source of a price that was looked up for a provider we only guess, since its host is none we know."""

_SHOWN: Final = 3
_MOST_SIBLINGS: Final = 30
"""Lines below one scope from which on like ones are folded wherever they stand, and then whatever spent least."""

_UNSEEN: Final = frozenset({"lost", "unattached", "uncovered"})
_MOST_SENTENCE: Final = 400
_MOST_REASON: Final = 60
_TROUBLE: Final[dict[str, Tone]] = {
    "refused": "refused",
    "error": "error",
    "stopped": "refused",
    "paused": "warning",
    "cancelled": "warning",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold what a line says in columns; an empty text is a thing that has no such figure."""

    ms: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Be one line of the tree.

    `guide` says for each level whether more follows there, own level last; `note` is a sentence below the line.
    """

    guide: tuple[bool, ...]
    title: str
    tone: Tone
    figures: Figures = Figures()
    remark: str = ""
    remark_tone: Tone = "quiet"
    notes: tuple[tuple[Tone, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Stand for `nodes`, like siblings that are not shown one by one."""

    nodes: tuple[Branch | Leaf, ...]


Item = Branch | Leaf | Fold


def lines(record: RunRecord, *, calls: bool = True) -> Iterator[Line]:
    """Give the tree from its roots down, like siblings folded; without `calls` only its scopes: runs, agents, blocks."""
    waiting: list[tuple[Item, tuple[bool, ...]]] = [(item, (more,)) for item, more in _with_more(arranged(_roots(record)))]
    waiting.reverse()
    while waiting:
        item, guide = waiting.pop()
        yield _line(item, guide)
        if isinstance(item, Branch):
            shown = arranged([child for child in item.children if calls or isinstance(child, Branch)])
            waiting.extend(reversed([(child, (*guide, more)) for child, more in _with_more(shown)]))


def arranged(nodes: Sequence[Branch | Leaf]) -> list[Item]:
    """Fold long runs of like nodes: the ones that spent most first, then one line for the rest.

    Where that still leaves too many, as when calls and tools take turns, like ones are folded wherever they stand; and
    where nothing is like anything, the ones that spent least are one line.
    """
    kept = list(nodes)
    items = _folded([list(run) for _, run in groupby(kept, key=_likeness)])
    if len(items) <= _MOST_SIBLINGS:
        return items
    alike: dict[object, list[Branch | Leaf]] = {}
    for node in kept:
        alike.setdefault(_likeness(node), []).append(node)
    items = _folded(alike.values())
    if len(items) <= _MOST_SIBLINGS:
        return items
    ranked = sorted(kept, key=_spent, reverse=True)
    return [*ranked[: _MOST_SIBLINGS - 1], Fold(tuple(ranked[_MOST_SIBLINGS - 1 :]))]


def _folded(groups: Iterable[list[Branch | Leaf]]) -> list[Item]:
    items: list[Item] = []
    for alike in groups:
        shown, least = (1, _REFUSED_FROM) if _is_refused(alike[0]) else (_SHOWN, FOLD_FROM)
        if len(alike) < least:
            items.extend(alike)
            continue
        ranked = sorted(alike, key=_spent, reverse=True)
        items.extend(ranked[:shown])
        items.append(Fold(tuple(ranked[shown:])))
    return items


def left_out(record: RunRecord) -> str:
    """Say what was too much to keep; empty when all is there."""
    missing = [f"{number:,} {what}" for what, number in record.left_out.items() if number]
    return f"Not shown, past the first {len(record):,} entries: {', '.join(missing)}." if missing else ""


def legend(shown: Sequence[Line]) -> str:
    """Explain the marks that are in use; empty when every figure is exact."""
    return explained("".join("".join(astuple(line.figures)) for line in shown))


def explained(figures: str) -> str:
    """Explain the marks in these figures; empty when there are none."""
    marks = (("~", "estimated, or priced at an assumed provider's rates"), ("≥", "at least"), (UNKNOWN, "unknown"))
    return "   ".join(f"{mark} {meaning}" for mark, meaning in marks if mark in figures)


# -- one line -----------------------------------------------------------------------------------------------------


def _line(item: Item, guide: tuple[bool, ...]) -> Line:
    if isinstance(item, Fold):
        return _fold_line(item, guide)
    if isinstance(item, Branch):
        return scope_line(item, guide)
    return leaf_line(item, guide)


def scope_title(branch: Branch, most: int = 80) -> str:
    """Name a scope: `agent researcher`."""
    facts = branch.facts
    name = clean(facts.name, most) or (clean(facts.run_id, 8) if facts.kind is ScopeKind.RUN else "")
    return f"{facts.kind.value} {name}".rstrip()


def scope_line(branch: Branch, guide: tuple[bool, ...] = ()) -> Line:
    """Write a scope as a line."""
    title, view = scope_title(branch), branch.view
    notes = tuple(_event_note(event) for event in branch.events)
    if view is None:
        return Line(guide, title, "scope", notes=notes)
    spend = view.spend()
    remarks = _urgency(branch) + ([_end(view.status, view.stop_reason)] if view.status != "ok" else [])
    if spend.refused:
        remarks.append(f"{spend.refused:,} refused")
    reported = spend.unsplit_tokens - sum(leaf.usage.total_tokens for leaf in branch.leaves() if leaf.usage and leaf.usage.total_only)
    if reported > 0:
        remarks.append(f"{count(reported)} tokens reported by hand")
    tone = _TROUBLE.get(view.status, "refused" if spend.refused else "quiet")
    return Line(guide, title, "scope", _scope_figures(branch, spend), ", ".join(remarks), tone, notes)


def _end(status: str, stop_reason: str | None) -> str:
    """Write how a scope ended: a reason says by itself that it was stopped, or was not seen to end, else it follows the status."""
    reason = clean(stop_reason, _MOST_REASON)
    if reason and (status == "stopped" or reason.startswith("limit_") or reason in _UNSEEN):
        return reason
    return status if reason in ("", status) else f"{status} {reason}"


def _urgency(branch: Branch) -> list[str]:
    node = branch.facts.supervision if branch.facts.kind is ScopeKind.AGENT else None
    return [] if node is None or node.priority is Priority.NORMAL else [node.priority.name.lower()]  # which goes without saying


def _scope_figures(branch: Branch, spend: Spend) -> Figures:
    calls = [leaf for leaf in branch.leaves() if leaf.generative and leaf.sent and leaf.status != "open"]
    rough = spend.estimated_calls > 0 or any(_is_rough(leaf) for leaf in calls)  # what a failed call is charged stands in no leaf
    assumed = any(leaf.cost_source == ASSUMED for leaf in calls)
    partly = branch.untold(spend) > 0
    apart = partly or spend.unsplit_tokens > 0
    if not (spend.requests or calls or spend.total_tokens or spend.cost_usd):
        return Figures(ms=milliseconds(round(spend.duration_s * NANO)))
    nano = None if spend.cost_usd is None else round(spend.cost_usd * NANO)
    return Figures(
        ms=milliseconds(round(spend.duration_s * NANO)),
        tokens_in=_total(count(spend.input_tokens, estimated=rough), bool(spend.input_tokens), partly=apart),
        tokens_out=_total(count(spend.output_tokens, estimated=rough), bool(spend.output_tokens), partly=apart),
        cost=_total(money(nano, estimated=rough or assumed), bool(nano), partly=partly or spend.unpriced_calls > 0),
    )


def _total(shown: str, known: bool, *, partly: bool) -> str:
    """Mark a sum of which a part is unknown: at least so much, or not known at all."""
    if not partly or shown == UNKNOWN:
        return shown
    return f"≥{shown}" if known else UNKNOWN


def leaf_line(leaf: Leaf, guide: tuple[bool, ...] = ()) -> Line:
    """Write a call or tool call as a line."""
    remarks: list[str] = [] if leaf.status == "ok" else [leaf.status]
    if leaf.status == "error" and leaf.error_type:
        remarks.append(clean(leaf.error_type, 40))
    if leaf.decision == "observed":
        remarks.append(f"past its {clean(leaf.limit_kind, 20)} limit, only observed")
    if leaf.retries:
        remarks.append("1 retry" if leaf.retries == 1 else f"{leaf.retries:,} retries")
    if leaf.usage is not None and leaf.usage.total_only:
        remarks.append(f"{count(leaf.usage.total_tokens)} tokens, input and output not told")
    notes = [_event_note(event) for event in leaf.events if not (leaf.refusal and event.event == "limit_exceeded")]
    if leaf.refusal:
        notes.append(("refused", clean(leaf.refusal, _MOST_SENTENCE)))
    tone = _TROUBLE.get(leaf.status, "quiet")
    return Line(guide, _leaf_title(leaf), leaf.what, leaf_figures(leaf), ", ".join(remarks), tone, tuple(notes))


def _leaf_title(leaf: Leaf) -> str:
    return f"{clean(leaf.operation, 30)} {clean(leaf.name)}".rstrip() + (", streamed" if leaf.stream else "")


def leaf_figures(leaf: Leaf) -> Figures:
    """Give the figures of a call or tool; nothing was used where nothing was sent."""
    if not leaf.sent:
        return Figures()
    ms = milliseconds(leaf.duration_ns)
    if not leaf.generative:
        return Figures(ms=ms)
    usage = leaf.apart
    if usage is None:
        return Figures(ms, UNKNOWN, UNKNOWN, money(leaf.cost_nano))
    rough = _is_rough(leaf)
    cost = money(leaf.cost_nano, estimated=rough or leaf.cost_source == ASSUMED)
    if leaf.half_told:
        cost = _total(cost, bool(leaf.cost_nano), partly=True)
    return Figures(ms, count(usage.input_tokens, estimated=rough), count(usage.output_tokens, estimated=rough), cost)


def _is_rough(leaf: Leaf) -> bool:
    return leaf.usage is not None and leaf.usage.source != "reported"


def _event_note(event: LimitEvent) -> tuple[Tone, str]:
    kind, used, of = clean(event.limit_kind, 30), amount(event.limit_kind, event.used), amount(event.limit_kind, event.threshold)
    place = f"{event.scope.value} {clean(event.scope_name)}".rstrip()
    tracker = None if event.tracker is None else clean(event.tracker, 40)
    if event.event == "limit_nearing":
        which = f"the {kind} of {place}" if tracker is None else f"{tracker} in {place}"
        return "warning", f"{percent(event.ratio)} of {which}: {used} of {of}"
    if tracker is not None:
        return "warning", f"{tracker} passed in {place}: {used} of {of} used, consume() raised"
    asked = "" if event.requested is None else f", {amount(event.limit_kind, event.requested)} more asked for"
    return "refused", f"{kind} of {place} exceeded: {used} of {of} used{asked}"


# -- folding ------------------------------------------------------------------------------------------------------


def _likeness(node: Branch | Leaf) -> object:
    if isinstance(node, Branch):
        name = None if node.facts.kind is ScopeKind.PROCESS else node.facts.name
        return (node.facts.kind, name, None if node.view is None else node.view.status) if not node.events else id(node)
    if node.events and not node.refusal:
        return id(node)
    if node.status == "refused":  # by the same limit, in whichever words
        return (node.what, node.status, node.limit_kind, node.limit_scope)
    return (node.what, node.operation, node.name, node.stream, node.status, node.limit_kind, node.error_type)


def _is_refused(node: Branch | Leaf) -> bool:
    return isinstance(node, Leaf) and node.status == "refused"


def _spent(node: Branch | Leaf) -> tuple[float, int, int]:
    """Rank by cost, then tokens, then time; what is unknown comes first, since it may be anything."""
    if isinstance(node, Leaf):
        tokens = 0 if node.usage is None else node.usage.total_tokens
        unknown = node.generative and node.sent and node.usage is None  # one that goes on, too
        return (float("inf") if unknown else node.cost_nano or 0, tokens, 0 if node.generative else node.duration_ns or 0)
    spend = Spend() if node.view is None else node.view.spend()
    return ((spend.cost_usd or 0.0) * NANO, spend.total_tokens, round(spend.duration_s * NANO))


def _fold_line(fold: Fold, guide: tuple[bool, ...]) -> Line:
    first, number = fold.nodes[0], len(fold.nodes)
    if len({_likeness(node) for node in fold.nodes}) > 1:
        return Line(guide, f"… {number:,} more: {_kinds(fold.nodes)}", "quiet")
    if isinstance(first, Branch):
        title = "processes" if first.facts.kind is ScopeKind.PROCESS and number > 1 else scope_title(first, 40)
        return Line(guide, f"… {number:,} more {title}", "quiet")
    what = first.status if first.status != "ok" else _leaf_title(first)
    tone = _TROUBLE.get(first.status, "quiet")
    return Line(guide, f"… {number:,} more {what}", tone, _sum([node for node in fold.nodes if isinstance(node, Leaf)]))


def _kinds(nodes: Sequence[Branch | Leaf]) -> str:
    """Count by kind: `120 agents, 1 call`."""
    found: dict[str, int] = {}
    for node in nodes:
        kind = node.what if isinstance(node, Leaf) else node.facts.kind.value
        found[kind] = found.get(kind, 0) + 1
    named = (f"{number:,} {kind if number == 1 else 'processes' if kind == 'process' else f'{kind}s'}" for kind, number in found.items())
    return ", ".join(named)


def _sum(leaves: list[Leaf]) -> Figures:
    if not leaves[0].sent:
        return Figures()
    ms = None if any(leaf.duration_ns is None for leaf in leaves) else sum(leaf.duration_ns or 0 for leaf in leaves)
    if not leaves[0].generative:
        return Figures(ms=milliseconds(ms))
    usages = [leaf.usage for leaf in leaves if leaf.usage is not None]
    rough = any(_is_rough(leaf) for leaf in leaves)
    assumed = any(leaf.cost_source == ASSUMED for leaf in leaves)
    partly = any(leaf.untold for leaf in leaves)
    sums = sum(usage.input_tokens for usage in usages), sum(usage.output_tokens for usage in usages)
    costs = [leaf.cost_nano for leaf in leaves if leaf.cost_nano is not None]
    return Figures(
        milliseconds(ms),
        _total(count(sums[0], estimated=rough), bool(sums[0]), partly=partly),
        _total(count(sums[1], estimated=rough), bool(sums[1]), partly=partly),
        _total(money(sum(costs) if costs else None, estimated=rough or assumed), bool(costs), partly=partly or len(costs) < len(leaves)),
    )


# -- walking ------------------------------------------------------------------------------------------------------


def _with_more(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    for at, item in enumerate(items, 1):
        yield item, at < len(items)


def _roots(record: RunRecord) -> list[Branch | Leaf]:
    """Give the roots; a process that only stands around its runs is left away, its limits are in the table."""
    found: list[Branch | Leaf] = []
    for root in list(record.roots):
        bare = root.facts.kind is ScopeKind.PROCESS and not root.events and not any(isinstance(node, Leaf) for node in root.children)
        found.extend(root.children if bare else [root])
    return found


# -- the budgets --------------------------------------------------------------------------------------------------

_MOST_LIMITS: Final = 30


@dataclass(frozen=True, slots=True)
class Budget:
    """Be one line of the budget table."""

    scope: str
    limit: str
    allowed: str
    used: str
    held: str
    share: str
    events: str
    denied: str
    tone: Tone


def budgets(record: RunRecord) -> tuple[list[Budget], str]:
    """Give the table, worst first, and a sentence for what does not fit into it."""
    found = record.limits()
    rest = found[_MOST_LIMITS:]
    more = f"… {len(rest):,} more limits, none above {percent(rest[0][1].ratio)}" if rest else ""
    return [_budget(branch, reading) for branch, reading in found[:_MOST_LIMITS]], more


def _budget(branch: Branch, reading: LimitReading) -> Budget:
    limit = reading.limit
    # A limit around a launched run stands with the run: its session's, or its service's.
    elsewhere = branch.facts.kind is ScopeKind.RUN and reading.scope in (ScopeKind.PROCESS, ScopeKind.TENANT, ScopeKind.SESSION)
    return Budget(
        scope=f"{reading.scope.value} {clean(reading.scope_name, 40)}".rstrip() if elsewhere else scope_title(branch, 40),
        limit=clean(reading.title, 60),
        allowed=amount(limit.kind, limit.amount),
        used=amount(limit.kind, reading.used),
        held=amount(limit.kind, reading.held),
        share=percent(reading.ratio),
        events=", ".join(clean(event.removeprefix("limit_"), 20) for event in dict.fromkeys(reading.events)),
        denied=UNKNOWN if math.isnan(reading.used) and not reading.denied else count(reading.denied),
        tone=tone_of(reading),
    )


def tone_of(reading: LimitReading) -> Tone:
    """Return how loud a limit is: whether it refused something, or is near."""
    if "limit_exceeded" in reading.events or reading.denied:
        return "refused"
    return "warning" if "limit_nearing" in reading.events else "quiet"
