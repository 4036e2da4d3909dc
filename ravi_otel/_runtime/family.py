"""Draw the agents of a run as a tree, the living ones and those that have ended, however many there were.

Nothing here takes a lock: each change is one step of a dict or a deque. What has ended is kept one by one up to a number, then only
counted, so that a run which spawns agents for days stays as small as it was.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from ravi_otel._enforcement.errors_text import named
from ravi_otel._enforcement.scope import Scope
from ravi_otel.hooks._events import Spend
from ravi_otel.policy._limits import NANO, Kind, ScopeKind, format_amount
from ravi_otel.policy._runs import Priority

MOST_ENDED: Final = 100
"""Agents that have ended and are still shown one by one."""

MOST_BELOW: Final = 30
"""Lines below one agent."""

MOST_LINES: Final = 300

WIDTH: Final = 80
"""Columns of a line, unless the tree is deep or the figures are long."""

_SHORTEST: Final = 8
_SHORTEST_ID: Final = 12
_MANY: Final = 10_000
_USUAL: Final = Priority.NORMAL.name.lower()
_TRIES: Final = 4
_DRAWN: Final = frozenset({ScopeKind.RUN, ScopeKind.AGENT})


class Sum:
    """Add up what many spent."""

    __slots__ = ("cost_usd", "estimated", "requests", "statuses", "tokens", "unknown")

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.requests = self.tokens = 0
        self.cost_usd = 0.0
        self.unknown = self.estimated = False

    def add(self, status: str, spend: Spend) -> None:
        """Add one."""
        self.statuses[status] += 1
        self.requests += spend.requests
        self.tokens += spend.total_tokens
        self.cost_usd += spend.cost_usd or 0.0
        self.unknown = self.unknown or _is_partly_unknown(spend)
        self.estimated = self.estimated or spend.estimated_calls > 0

    def take_in(self, other: Sum | None) -> None:
        """Add another sum, if there is one."""
        if other is None:
            return
        self.statuses.update(other.statuses)
        self.requests += other.requests
        self.tokens += other.tokens
        self.cost_usd += other.cost_usd
        self.unknown = self.unknown or other.unknown
        self.estimated = self.estimated or other.estimated

    def __str__(self) -> str:
        number = self.statuses.total()
        how = ", ".join(f"{count:,} {status}" for status, count in sorted(self.statuses.items()))
        return f"… {number:,} more: {how}{_spent(self)}"


class _Family:
    """Who ended last, in the whole tree of one outermost run."""

    __slots__ = ("ended", "turn")

    def __init__(self) -> None:
        self.ended: deque[Node] = deque()
        self.turn = deque([True])  # whoever pops it folds; everybody else leaves it to them


class Node:
    """The place of one run or agent in the tree; how it ended is kept when it has `ended`."""

    __slots__ = ("_scope", "below", "children", "ended", "facts", "family", "folded", "outer", "priority", "spend", "status")

    def __init__(self, scope: Scope, outer: Node | None) -> None:
        self._scope = weakref.ref(scope)  # one that the program drops must be free to go
        self.ended = False
        self.facts = scope.facts
        self.outer = outer
        self.family: _Family = _Family() if outer is None else outer.family
        self.children: dict[Node, None] = {}
        self.below: Sum | None = None  # those below that are only counted; made by the first
        self.folded = False
        self.priority = ""
        self.status = "open"
        self.spend = Spend()

    def read(self) -> tuple[str, str, Spend]:
        """Return status, priority and spend, of now or of the end."""
        scope = self._scope()
        return (self.status, self.priority, self.spend) if scope is None or self.ended else (*self._read_of(scope), scope.spend())

    def _read_of(self, scope: Scope) -> tuple[str, str]:
        """Return status and priority of its scope, as they are now."""
        lease = scope.lease
        status = "paused" if scope.status == "open" and lease is not None and lease.paused else scope.status
        ranked = lease or self.facts.supervision
        return status, "" if ranked is None else ranked.priority.name.lower()

    @classmethod
    def enter(cls, scope: Scope) -> None:
        """Put a run or an agent that was opened into the tree; agents outside any run have none."""
        if scope.facts.kind not in _DRAWN:
            return
        around = scope.parent
        while around is not None and around.node is None:
            around = around.parent
        outer: Node | None = None if around is None else around.node
        while outer is not None and outer.folded:  # it ended long ago, and a task that it left behind goes on
            outer = outer.outer
        if outer is not None or scope.facts.kind is ScopeKind.RUN:
            node = scope.node = cls(scope, outer)
            if outer is not None:
                outer.children[node] = None

    def leave(self, scope: Scope, spend: Spend) -> None:
        """Note how it has ended, and count those that ended long before."""
        if self.ended:
            return
        self.status, self.priority = self._read_of(scope)
        self.spend = spend
        self.ended = True
        if self.outer is not None:
            self.family.ended.append(self)
            if len(self.family.ended) > MOST_ENDED:
                _fold(self.family)


def _fold(family: _Family) -> None:
    try:
        family.turn.pop()
    except IndexError:
        return
    try:
        for _ in range(_TRIES):
            if len(family.ended) <= MOST_ENDED:
                return
            oldest = family.ended.popleft()
            if oldest.children:  # which are still shown, or still live
                family.ended.append(oldest)
            else:
                _fold_one(oldest)
    finally:
        family.turn.append(True)


def _fold_one(node: Node) -> None:
    outer = node.outer
    node.folded = True
    if outer is not None:
        if outer.below is None:
            outer.below = Sum()
        outer.below.add(node.status, node.spend)
        outer.below.take_in(node.below)
        outer.children.pop(node, None)


# -- drawing ------------------------------------------------------------------------------------------------------


def draw(root: Node | None) -> str:
    """Draw the tree below a node, a line each; names that came from outside are quoted."""
    if root is None:
        return ""
    lines = [_line(root, WIDTH)]
    waiting: list[tuple[Node | Sum, str, bool]] = _below(root, "")
    while waiting:
        if len(lines) >= MOST_LINES:
            lines.append("… and more, which is not shown")
            break
        item, guide, last = waiting.pop()
        guided = f"{guide}{'└── ' if last else '├── '}"
        lines.append(f"{guided}{item if isinstance(item, Sum) else _line(item, WIDTH - len(guided))}")
        if isinstance(item, Node):
            waiting.extend(_below(item, f"{guide}{'    ' if last else '│   '}"))
    return "\n".join(lines)


def _below(node: Node, guide: str) -> list[tuple[Node | Sum, str, bool]]:
    """Return what stands below a node, last first: the living before the others where there are too many, and one line for the rest."""
    children = list(node.children)
    rest = Sum()
    rest.take_in(node.below)
    if len(children) > MOST_BELOW:
        ranked = [child for child in children if not child.ended]
        ranked += [child for child in reversed(children) if child.ended]  # the living, then who ended last
        shown_ones, left = set(ranked[: MOST_BELOW - 1]), ranked[MOST_BELOW - 1 :]
        children = [child for child in children if child in shown_ones]
        _add_all(rest, left)
    items: list[Node | Sum] = [*children, *([rest] if rest.statuses else [])]
    return [(item, guide, at == len(items)) for at, item in reversed(list(enumerate(items, 1)))]


def _add_all(rest: Sum, nodes: Iterable[Node]) -> None:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        status, _, spend = node.read()
        rest.add(status, spend)
        rest.take_in(node.below)
        waiting.extend(list(node.children))


def _line(node: Node, room: int) -> str:
    """Write a line, in so many columns where names can be shortened to that."""
    facts = node.facts
    status, priority, spend = node.read()
    own_id = facts.run_id if facts.kind is ScopeKind.RUN else facts.agent_id
    ranked = [] if facts.kind is ScopeKind.RUN or priority in ("", _USUAL) else [priority]
    again = [f"attempt {facts.attempt}"] if facts.attempt is not None and facts.attempt > 1 else []
    told = "".join(f" · {each}" for each in (*ranked, *again, status, f"{spend.duration_s:,.1f} s"))
    alone = Sum()
    alone.add(status, spend)
    told += _spent(alone)
    kind = ["run"] if facts.kind is ScopeKind.RUN else []
    left = room - len(told) - sum(len(word) + 1 for word in kind)
    if own_id is None or own_id == facts.name:
        return " ".join([*kind, _brief(facts.name or "", left)]) + told
    own = _brief(own_id, max(_SHORTEST_ID, left - len(f"{named(facts.name)} (id )")) if facts.name else left - len("(id )"))
    also = f"(id {own})"
    return " ".join([*kind, *([_brief(facts.name, left - len(also) - 1)] if facts.name else []), also]) + told


def _brief(name: str, room: int) -> str:
    """Quote a name in so many columns."""
    quoted, room = named(name), max(_SHORTEST, room)
    name = f"{name[:room]}…"
    while len(quoted) > room and len(name) > 1:
        name = f"{name[:-2]}…"
        quoted = named(name)
    return quoted


def _is_partly_unknown(spend: Spend) -> bool:
    return spend.requests > 0 and (spend.cost_usd is None or spend.unpriced_calls > 0 or spend.unreported_calls > 0)


def _spent(spent: Sum) -> str:
    if not spent.requests:
        return ""
    about = "~" if spent.estimated else ""
    known = f"{'≥ ' if spent.unknown else ''}{about}{format_amount(Kind.COST, round(spent.cost_usd * NANO))}"
    cost = "cost unknown" if not spent.cost_usd and spent.unknown else known
    calls = f"{spent.requests:,} {'call' if spent.requests == 1 else 'calls'}"
    return f" · {calls} · {about}{_rough(spent.tokens)} tokens · {cost}"


def _rough(number: int) -> str:
    """Write a count in few digits: `4200`, `12.3k`, `1.2M`."""
    if number < _MANY:
        return str(number)
    power = min((len(str(number)) - 1) // 3, 4)
    return f"{number / 1000**power:.1f}{' kMGT'[power]}"
