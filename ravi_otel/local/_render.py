"""Show a record on a terminal: the run as a tree with its figures, and its budgets, worst first. The only module that knows `rich`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import IO, Final, Literal

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravi_otel.hooks._events import LimitEvent, LimitReading, Spend
from ravi_otel.local._record import Branch, Leaf, RunRecord
from ravi_otel.local._wording import UNKNOWN, amount, clean, count, milliseconds, money, percent, plain
from ravi_otel.policy._limits import NANO, ScopeKind
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
    sentences = [f"Not shown, past the first {len(record):,} entries: {', '.join(missing)}."] if missing else []
    if record.unread:
        lines = "1 line" if record.unread == 1 else f"{record.unread:,} lines"
        sentences.append(f"{lines} of the stored run could not be read, and {'is' if record.unread == 1 else 'are'} left out.")
    return " ".join(sentences)


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
    if reason and (status == "stopped" or reason in _UNSEEN):
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
    usage = leaf.usage
    if usage is None or usage.tokenless or usage.total_only:  # sound and characters are no tokens, and a total has no parts
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
    exceeded, nearing = "limit_exceeded" in reading.events, "limit_nearing" in reading.events
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
        tone="refused" if exceeded or reading.denied else "warning" if nearing else "quiet",
    )


# -- on a terminal ------------------------------------------------------------------------------------------------

_STYLES: Final[dict[Tone, str]] = {
    "scope": "bold",
    "call": "",
    "tool": "cyan",
    "quiet": "dim",
    "warning": "yellow",
    "refused": "red",
    "error": "magenta",
}
_HEADS: Final = ("ms", "tokens in", "tokens out", "cost")
_SHORT_HEADS: Final = ("ms", "in", "out", "cost")
_STILL_HELD: Final = "Held in what was closed: by calls that had not ended then, and were not heard of since."
_LEAST_NAME: Final = 34
_LEAST_TABLE: Final = 72
_COLUMNS: Final = ("scope", "limit", "allowed", "used", "held", "%", "events", "denied")
_EVENTS: Final = _COLUMNS.index("events")


class _Console(Console):
    """Be a console whose reader may leave: `BrokenPipeError` reaches the caller, whose exit status may mean more than that."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled, where rich would exit the process."""
        raise  # noqa: PLE0704 - called while the error is handled


def console(stream: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Make a console for `stream` (standard output unless given): colours on a terminal only, and none with NO_COLOR."""
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def render(record: RunRecord, to: Console) -> None:
    """Print the tree, the budget table, and what did not fit."""
    _print_tree(to, list(lines(record)))
    found, more = budgets(record)
    if found:
        to.print()
        _print_budgets(to, found, more, observed=record.observed)
        if any(reading.held > 0 and branch.view is not None and branch.view.status != "open" for branch, reading in record.limits()):
            _print(to, Text(_STILL_HELD, "dim"), wrap=True)
    missing = left_out(record)
    if missing:
        to.print()
        _print(to, Text(missing, "yellow"), wrap=True)


def render_scopes(record: RunRecord, to: Console) -> None:
    """Print the tree of runs, agents and blocks alone: how each ended and what it spent; for many agents with few calls each."""
    _print_tree(to, list(lines(record, calls=False)))


def _print_tree(to: Console, lines: list[Line]) -> None:
    if not lines:
        _print(to, Text("Nothing was recorded.", "dim"))
        return
    _Tree(to, lines).print()
    marks = legend(lines)
    if marks:
        _print(to, Text(marks, "dim"), wrap=True)


def _print(to: Console, text: Text, *, wrap: bool = False) -> None:
    ascii_only = to.options.ascii_only
    if ascii_only:
        text.plain = plain(text.plain)
    to.print(text, no_wrap=not wrap, overflow="fold" if wrap else "crop" if ascii_only else "ellipsis")


# -- the tree -----------------------------------------------------------------------------------------------------


class _Tree:
    """Lay lines out: names at the left, figures in columns at the right, or below the name where there is no room."""

    def __init__(self, to: Console, lines: list[Line]) -> None:
        self._to = to
        self._lines = lines
        self._blank, self._pass, self._turn, self._end = (
            ("   ", "|  ", "|- ", "`- ") if to.options.ascii_only else ("   ", "│  ", "├─ ", "└─ ")
        )
        self._heads, self._widths = self._columns(_HEADS)
        if to.width - self._block < _LEAST_NAME:
            self._heads, self._widths = self._columns(_SHORT_HEADS)
        self._wide = to.width - self._block >= _LEAST_NAME
        room = to.width - (self._block if self._wide else 0)
        self._deepest = max(1, room // 2 // len(self._blank))

    def _columns(self, heads: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        cells = [astuple(line.figures) for line in self._lines]
        self._widths = tuple(max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads))
        return heads, self._widths

    @property
    def _block(self) -> int:
        return sum(self._widths) + 2 * len(self._widths)

    def print(self) -> None:
        if self._wide:
            _print(self._to, Text(" " * (self._to.width - self._block) + self._figures(self._heads), "dim"))
        for line in self._lines:
            for text in self._texts(line):
                _print(self._to, text)

    def _texts(self, line: Line) -> Iterator[Text]:
        before, below = self._guides(line.guide)
        room = self._to.width - (self._block if self._wide else 0) - cell_len(before)
        yield self._title(line, before, room)
        if not self._wide:
            yield from self._below(below, " ", _short(line.figures), "dim")
        if line.remark and not self._fits(line, room):
            yield from self._below(below, " ", line.remark, _STYLES[line.remark_tone])
        for tone, note in line.notes:
            yield from self._below(below, " ! " if tone == "warning" else " x ", note, _STYLES[tone])

    def _title(self, line: Line, before: str, room: int) -> Text:
        title = _cut(line.title, room)
        remark = f"  {line.remark}" if line.remark and self._fits(line, room) else ""
        text = Text.assemble((before, "dim"), (title, _STYLES[line.tone]), (remark, _STYLES[line.remark_tone]))
        if self._wide:
            text.append(" " * (room - cell_len(title) - cell_len(remark)))
            text.append(self._figures(astuple(line.figures)), "dim" if line.tone == "quiet" else "")
        text.rstrip()
        return text

    @staticmethod
    def _fits(line: Line, room: int) -> bool:
        return cell_len(line.title) + 2 + cell_len(line.remark) <= room

    def _figures(self, cells: tuple[str, ...]) -> str:
        return "".join(f"  {cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True))

    def _below(self, below: str, mark: str, words: str, style: str) -> Iterator[Text]:
        room = max(10, self._to.width - cell_len(below) - len(mark))
        for at, part in enumerate(Text(words).wrap(self._to, room) if words else ()):
            yield Text.assemble((below, "dim"), (f"{mark if at == 0 else ' ' * len(mark)}{part.plain.rstrip()}", style))

    def _guides(self, guide: tuple[bool, ...]) -> tuple[str, str]:
        """Give what stands before a line, and before what is below it."""
        if len(guide) == 1:
            return "", ""
        inner, more = guide[1:-1], guide[-1]
        if len(inner) >= self._deepest:
            flat = f"{self._blank * self._deepest}{len(guide) - 1}: "
            return flat, " " * len(flat)
        around = "".join(self._pass if goes_on else self._blank for goes_on in inner)
        return around + (self._turn if more else self._end), around + (self._pass if more else self._blank)


def _short(figures: Figures) -> str:
    """Write the figures as one phrase: `12 ms · 210 in · 80 out · $0.0002`."""
    named = ((figures.ms, "{} ms"), (figures.tokens_in, "{} in"), (figures.tokens_out, "{} out"), (figures.cost, "{}"))
    return " · ".join(form.format(shown) for shown, form in named if shown)


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 1 else ""


# -- the budgets --------------------------------------------------------------------------------------------------


def _print_budgets(to: Console, budgets: list[Budget], more: str, *, observed: bool) -> None:
    if to.width < _LEAST_TABLE:
        for budget in budgets:
            _print(to, Text(f"{budget.scope}: {budget.limit}", _STYLES[budget.tone]), wrap=True)
            _print(to, Text(_phrase(budget, observed=observed)), wrap=True)
    else:
        to.print(_table(to, budgets, observed=observed))
    if observed:
        _print(to, Text("Only observed: what the last column counts was let through.", "yellow"), wrap=True)
    if more:
        _print(to, Text(more, "dim"))


def _phrase(budget: Budget, *, observed: bool) -> str:
    denied = f"{budget.denied} would be denied" if observed else f"{budget.denied} denied"
    parts = [f"{budget.used} of {budget.allowed}", budget.share, f"{budget.held} held", budget.events, denied]
    return "  " + " · ".join(part for part in parts if part)


def _table(to: Console, budgets: list[Budget], *, observed: bool) -> Table:
    columns = (*_COLUMNS[:-1], "would be denied") if observed else _COLUMNS
    rows = [_cells(budget, ascii_only=to.options.ascii_only) for budget in budgets]
    widths = [max(cell_len(head), *(cell_len(row[at]) for row in rows)) for at, head in enumerate(columns)]
    spare = to.width - sum(widths) - 2 * len(widths)
    if spare < 0:
        short = max(widths[_EVENTS] // 2 + 1, len(_COLUMNS[_EVENTS]))  # two of them, one below the other
        spare += widths[_EVENTS] - short
        widths[_EVENTS] = short
    widths[0] = max(10, widths[0] + min(spare, 0))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for at, (head, width) in enumerate(zip(columns, widths, strict=True)):
        names = at in (0, 1, _EVENTS)
        table.add_column(head, width=width, justify="left" if names else "right", no_wrap=at != _EVENTS, overflow="ellipsis")
    for budget, row in zip(budgets, rows, strict=True):
        style = "" if budget.tone == "quiet" else _STYLES[budget.tone]
        table.add_row(
            *(Text(_cut(cell, width) if at == 0 else cell, style) for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        )
    return table


def _cells(budget: Budget, *, ascii_only: bool) -> tuple[str, ...]:
    share = budget.share.removesuffix(" %")
    cells = (budget.scope, budget.limit, budget.allowed, budget.used, budget.held, share, budget.events, budget.denied)
    return tuple(plain(cell) for cell in cells) if ascii_only else cells
