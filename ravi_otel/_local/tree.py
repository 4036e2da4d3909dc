"""Hold the tree of a run, each scope and call with its sums; write it as JSON, and as lines in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Any, Final, Literal

from ravi_otel._local.answers import Node, Spent, sums_of
from ravi_otel._local.store import Sums, finite, limit_fields
from ravi_otel._local.wording import UNKNOWN, amount, clean, count, milliseconds, money, percent
from ravi_otel.hooks._events import LimitEvent, LimitReading, Status
from ravi_otel.policy._limits import NANO, ScopeKind
from ravi_otel.policy._runs import Priority, ScopeFacts
from ravi_otel.policy._usage import Usage

MOST: Final = 5_000
"""Nodes of a tree for people unless told otherwise."""

Fields = dict[str, Any]
What = Literal["scopes", "calls", "tools", "events"]

_OF_EVENT: Final = (
    *("event", "limit_kind", "scope", "scope_id", "scope_name", "threshold", "used", "held", "remaining", "exceeded_by", "requested"),
    *("ratio", "per", "window", "by", "counted_for", "resets_at", "phase", "decision", "tracker"),
)


@dataclass(slots=True, eq=False)
class Leaf:
    """Be one model call or one tool call.

    `sent` is False for what was refused or failed before a byte left. `usage` and `cost_nano` None are unknown, where
    something was sent and `generative`. `refusal` is our own sentence; what others' errors say may quote a prompt and
    is not kept, only `error_type`. `counted` is what it counts as, in the order of `SUMS`.
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
    events: Sequence[LimitEvent] = ()
    id: str = ""
    counted: Sequence[Any] = ()

    @property
    def sums(self) -> Sums:
        """Return what it counts as."""
        return sums_of(self.counted)

    @property
    def apart(self) -> Usage | None:
        """Return what it used where input and output were told apart: sound and characters are no tokens, and a total has no parts."""
        usage = self.usage
        return None if usage is None or usage.tokenless or usage.total_only else usage

    @property
    def half_told(self) -> bool:
        """Tell whether what it was sent is estimated and what it answered is not known, as of a stream left at its beginning."""
        return self.usage is not None and self.usage.is_half_told(self.operation)

    @property
    def began(self) -> int:
        """Return when it began."""
        return self.started_ns

    def fields(self) -> Fields:
        """Return it as a node of a document."""
        usage, half = self.apart, self.half_told
        told: Fields = {
            "type": self.what,
            "name": self.name,
            "status": self.status,
            "sent": self.sent,
            "duration_ms": _ms(self.duration_ns),
            **{name: getattr(self, name) for name in ("error_type", "decision", "limit_kind", "limit_scope", "reason", "refusal")},
            "events": [event_fields(event) for event in self.events],
        }
        if self.what == "tool":
            return told
        return told | {
            "operation": self.operation,
            "stream": self.stream,
            "input_tokens": None if usage is None else usage.input_tokens,
            "output_tokens": None if usage is None or half else usage.output_tokens,
            "total_tokens": None if self.usage is None or self.usage.tokenless or half else self.usage.total_tokens,
            "cached_input_tokens": None if usage is None else usage.cached_input_tokens,
            "usage_source": None if self.usage is None else self.usage.source,
            "cost_usd": None if self.cost_nano is None else self.cost_nano / NANO,
            "cost_source": self.cost_source,
            "retries": self.retries,
        }


@dataclass(slots=True, eq=False)
class Branch:
    """Be one scope with what is in it: `own` is what it used itself, `sums` all that is charged to it.

    `limits` are those that it owned as they stood at its end. Of the tokens `reported` ones were reported by hand, `consumed` in it itself.
    """

    facts: ScopeFacts
    parent: Branch | None = None
    status: Status = "open"
    stop_reason: str | None = None
    began: int = 0
    ended: int = 0
    limits: list[LimitReading] = field(default_factory=list[LimitReading])
    own: Sums = field(default_factory=Sums)
    sums: Sums = field(default_factory=Sums)
    consumed: int = 0
    reported: int = 0
    children: list[Branch | Leaf] = field(default_factory=list["Branch | Leaf"])
    events: Sequence[LimitEvent] = ()

    @property
    def duration_ns(self) -> int:
        """Return how long it took, as far as it was seen."""
        return max(0, self.ended - self.began) if self.began else 0

    def upwards(self) -> Iterator[Branch]:
        """Give it and the scopes around it."""
        at: Branch | None = self
        while at is not None:
            yield at
            at = at.parent

    def reach(self, began: int, ended: int) -> None:
        """Cover what happened in it, as far as it was not seen to end."""
        for scope in self.upwards():
            if scope.status == "open":
                scope.began = min(scope.began or began, began)
                scope.ended = max(scope.ended, ended)

    def fields(self) -> Fields:
        """Return it as a node of a document."""
        facts, sums, spent = self.facts, self.sums, Spent.of(self.sums, beside=False)
        return {
            "type": facts.kind.value,
            "name": facts.name,
            "scope_id": facts.scope_id,
            "run_id": facts.run_id,
            "status": self.status,
            "stop_reason": self.stop_reason,
            "duration_ms": _ms(self.duration_ns),
            **{name: getattr(spent, name) for name in ("requests", "turns", "input_tokens", "output_tokens", "total_tokens")},
            "cost_usd": None if spent.cost_nano is None else spent.cost_nano / NANO,
            "calls_without_usage": sums.untold_calls,
            "unpriced_calls": sums.unpriced_calls,
            "tool_calls": sums.tool_calls,
            "refused": sums.refused,
            "errors": sums.errors,
            "events": [event_fields(event) for event in self.events],
        }


class RunRecord:
    """Keep the first `most` scopes, calls, tools and limit events of a run as a tree; the rest is counted."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._size = 0
        self.roots: list[Branch | Leaf] = []
        self.left_out: dict[What, int] = {"scopes": 0, "calls": 0, "tools": 0, "events": 0}
        self.observed: bool = False
        """Whether the whole run was only observed: nothing was refused, and `denied` is what would have been."""

    def __len__(self) -> int:
        return self._size

    def put(self, what: What, node: Any, place: list[Any]) -> bool:
        """Put a node where it belongs, or count it; return whether there was room."""
        if self._size >= self._most:
            self.left_out[what] += 1
            return False
        self._size += 1
        place.append(node)
        return True

    def put_event(self, event: LimitEvent, place: Branch | Leaf) -> None:
        """Put a limit event with what it belongs to, or count it."""
        if self.put("events", event, []):
            place.events = (*place.events, event)

    def walk(self) -> Iterator[tuple[Branch | Leaf, Branch | None]]:
        """Give every node with the one around it, outer ones first and in the order of time."""
        waiting: list[tuple[Branch | Leaf, Branch | None]] = [(root, None) for root in reversed(self.roots)]
        while waiting:
            node, parent = waiting.pop()
            yield node, parent
            if isinstance(node, Branch):
                waiting.extend((child, node) for child in reversed(node.children))

    def branches(self) -> Iterator[Branch]:
        """Give every scope, outer ones first."""
        return (node for node, _ in self.walk() if isinstance(node, Branch))

    def limits(self) -> list[tuple[Branch, LimitReading]]:
        """Return every limit of every scope, the fullest first."""
        found = [(branch, reading) for branch in self.branches() for reading in branch.limits]
        return sorted(found, key=lambda pair: (pair[1].fullness, pair[1].denied), reverse=True)

    def as_json(self) -> Fields:
        """Return `{"nodes": [...], "limits": [...], "left_out": {...}}`.

        `nodes` are scopes, calls and tools, outer ones first, flat with `id` and `parent` so that depth is no problem for
        any reader. Unknown is null; amounts are in tokens, USD, milliseconds, and a limit's public unit. `limits` are the
        fullest first.
        """
        nodes: list[Fields] = []
        numbers: dict[Branch | Leaf | None, int | None] = {None: None}
        for node, parent in self.walk():
            numbers[node] = len(nodes)
            nodes.append({"id": len(nodes), "parent": numbers[parent], **node.fields()})
        limits = [limit_fields(branch.facts, reading) for branch, reading in self.limits()]
        return {"nodes": nodes, "limits": limits, "left_out": dict(self.left_out)}


def event_fields(event: LimitEvent) -> Fields:
    """Write a limit event."""
    told: Fields = {name: getattr(event, name) for name in _OF_EVENT}
    told = {name: finite(value) if isinstance(value, float) else value for name, value in told.items()}
    return told | {"scope": event.scope.value, "resets_at": None if event.resets_at is None else event.resets_at.isoformat()}


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


def lines(record: RunRecord) -> Iterator[Line]:
    """Yield the tree from its roots down, with like siblings folded."""
    waiting: list[tuple[Item, tuple[bool, ...]]] = [(item, (more,)) for item, more in _with_more(arranged(_roots(record)))]
    waiting.reverse()
    while waiting:
        item, guide = waiting.pop()
        yield _line(item, guide)
        if isinstance(item, Branch):
            shown = arranged(item.children)
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


def tone_of(reading: LimitReading) -> Tone:
    """Return how loud a limit is: whether it refused something, or is near."""
    if "limit_exceeded" in reading.events or reading.denied:
        return "refused"
    return "warning" if "limit_nearing" in reading.events else "quiet"


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
    sums, notes = branch.sums, tuple(_event_note(event) for event in branch.events)
    remarks = _urgency(branch) + ([_end(branch.status, branch.stop_reason)] if branch.status != "ok" else [])
    if sums.refused:
        remarks.append(f"{sums.refused:,} refused")
    if branch.reported:
        remarks.append(f"{count(branch.reported)} tokens reported by hand")
    tone = _TROUBLE.get(branch.status, "refused" if sums.refused else "quiet")
    figures = _figures(milliseconds(branch.duration_ns), sums, used=bool(sums.requests or sums.total_tokens or sums.cost_nano))
    return Line(guide, scope_title(branch), "scope", figures, ", ".join(remarks), tone, notes)


def _figures(ms: str, sums: Sums, *, used: bool) -> Figures:
    """Give the figures of what several calls used, none of them where none was made."""
    spent = Spent.of(sums, beside=False)
    return Figures(ms, spent.input_text, spent.output_text, spent.cost_text) if used else Figures(ms)


def _end(status: str, stop_reason: str | None) -> str:
    """Write how a scope ended: a reason says by itself that it was stopped, or was not seen to end, else it follows the status."""
    reason = clean(stop_reason, _MOST_REASON)
    if reason and (status == "stopped" or reason.startswith("limit_") or reason in _UNSEEN):
        return reason
    return status if reason in ("", status) else f"{status} {reason}"


def _urgency(branch: Branch) -> list[str]:
    node = branch.facts.supervision if branch.facts.kind is ScopeKind.AGENT else None
    return [] if node is None or node.priority is Priority.NORMAL else [node.priority.name.lower()]  # which goes without saying


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
    rough = leaf.usage is not None and leaf.usage.source != "reported"
    cost = money(leaf.cost_nano, estimated=rough or leaf.cost_source == ASSUMED)
    if leaf.half_told and cost != UNKNOWN:
        cost = f"≥{cost}" if leaf.cost_nano else UNKNOWN
    return Figures(ms, count(usage.input_tokens, estimated=rough), count(usage.output_tokens, estimated=rough), cost)


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
        return (node.facts.kind, name, node.status) if not node.events else id(node)
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
    return (node.sums.cost_nano, node.sums.total_tokens, node.duration_ns)


def _fold_line(fold: Fold, guide: tuple[bool, ...]) -> Line:
    first, number = fold.nodes[0], len(fold.nodes)
    if len({_likeness(node) for node in fold.nodes}) > 1:
        return Line(guide, f"… {number:,} more: {_kinds(fold.nodes)}", "quiet")
    if isinstance(first, Branch):
        title = "processes" if first.facts.kind is ScopeKind.PROCESS and number > 1 else scope_title(first, 40)
        return Line(guide, f"… {number:,} more {title}", "quiet")
    what = first.status if first.status != "ok" else _leaf_title(first)
    if not first.sent:
        return Line(guide, f"… {number:,} more {what}", _TROUBLE.get(first.status, "quiet"))
    sums = Sums()
    for node in fold.nodes:
        sums.add(node.sums)
    ms = None if any(node.duration_ns is None for node in fold.nodes) else sum(node.duration_ns or 0 for node in fold.nodes)
    return Line(
        guide, f"… {number:,} more {what}", _TROUBLE.get(first.status, "quiet"), _figures(milliseconds(ms), sums, used=first.generative)
    )


def _kinds(nodes: Sequence[Branch | Leaf]) -> str:
    """Count by kind: `120 agents, 1 call`."""
    found: dict[str, int] = {}
    for node in nodes:
        kind = node.what if isinstance(node, Leaf) else node.facts.kind.value
        found[kind] = found.get(kind, 0) + 1
    named = (f"{number:,} {kind if number == 1 else 'processes' if kind == 'process' else f'{kind}s'}" for kind, number in found.items())
    return ", ".join(named)


# -- walking ------------------------------------------------------------------------------------------------------


def _with_more(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    for at, item in enumerate(items, 1):
        yield item, at < len(items)


def _roots(record: RunRecord) -> list[Branch | Leaf]:
    """Give the roots; a process that only stands around its runs is left away, its limits are in the table."""
    found: list[Branch | Leaf] = []
    for root in record.roots:
        bare = isinstance(root, Branch) and root.facts.kind is ScopeKind.PROCESS and not root.events
        children = root.children if bare and isinstance(root, Branch) else [root]
        found.extend([root] if any(isinstance(node, Leaf) for node in children) else children)
    return found


# -- for programs ---------------------------------------------------------------------------------------------------

_OF_NODE: Final = (
    "name",
    "error_type",
    "decision",
    "stream",
    "cost_nano",
    "cost_source",
    "limit_kind",
    "limit_scope",
    "refusal",
    "retries",
)


def nodes_of(record: RunRecord) -> Iterator[Node]:
    """Give every node of a run, outer ones first and in the order of time."""
    for node, around in record.walk():
        yield node_of(node, None if around is None else around.facts.scope_id)


def node_of(node: Leaf | Branch, parent: str | None) -> Node:
    """Write a scope, a call or a tool call as a line."""
    line, told = (leaf_line(node), _of_leaf(node)) if isinstance(node, Leaf) else (scope_line(node), _of_scope(node))
    return Node(
        **told,
        parent=parent,
        began=node.began,
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
        "id": leaf.id,
        "kind": leaf.what,
        "duration": leaf.duration_ns,
        "input_tokens": None if leaf.apart is None else leaf.apart.input_tokens,
        "output_tokens": None if leaf.apart is None or leaf.half_told else leaf.apart.output_tokens,
        **{name: getattr(leaf, name) for name in _OF_NODE},
    }


def _of_scope(scope: Branch) -> dict[str, Any]:
    facts, spent = scope.facts, Spent.of(scope.sums)
    return {
        "id": facts.scope_id,
        "kind": facts.kind.value,
        "name": facts.name,
        "duration": scope.ended - scope.began if scope.ended and scope.status != "open" else None,
        "stop_reason": scope.stop_reason,
        "priority": None if facts.supervision is None else facts.supervision.priority.name.lower(),
        "attempt": facts.attempt,
        "spent": spent,
        **{name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "cost_nano")},
    }
