"""Write the tree of a run as lines in plain words and figures, like siblings folded, and its budgets as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import Any, Final, Literal

from ravi_otel.hooks._events import LimitEvent, LimitReading
from ravi_otel.local._answers import Node, Spent
from ravi_otel.local._store import Sums
from ravi_otel.local._tree import Branch, Leaf, RunRecord
from ravi_otel.local._wording import UNKNOWN, amount, clean, count, milliseconds, money, percent
from ravi_otel.policy._limits import ScopeKind
from ravi_otel.policy._runs import Priority

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


# -- for programs ---------------------------------------------------------------------------------------------------

_OF_LEAF: Final = (
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
        **{name: getattr(leaf, name) for name in _OF_LEAF},
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
