"""Be what the state machine of the engine believes: plain arithmetic over what it sent and what it was answered.

Nothing in here reads an account, a scope or a ledger. Amounts are whole numbers, those of cost in hundredths of a dollar.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

CENT = 10_000_000
HELD_KINDS = ("tokens", "input_tokens", "output_tokens", "cost")
DRAINING_KINDS = (*HELD_KINDS, "requests", "turns")
CALL_KINDS = (*DRAINING_KINDS, "messages")
OWN_KIND = "sql_rows"
JOINED = ("process", "tenant", "session")


@dataclass(frozen=True)
class Terms:
    """What is written of one limit; `place` is here, session (the enclosing one), agents (of every agent inside), or @NAME."""

    kind: str
    value: int
    outcome: str = "raise"
    warn: int = 80
    after: bool = False
    place: str = "here"

    @property
    def amount(self):
        return self.value * (CENT if self.kind == "cost" else 1)

    @property
    def agent(self):
        return self.place[1:] if self.place.startswith("@") else None

    @property
    def same(self):
        return replace(self, value=0, after=self.nature == "after")

    @property
    def counter(self):
        """Tell apart what counts apart: with other options a limit is the same one, declared again (test_one_counter.py)."""
        return self.kind, self.agent, self.outcome == "observe"

    @property
    def nature(self):
        if self.kind in HELD_KINDS:
            return "after" if self.after else "held"
        return "level" if self.kind == "messages" else "counted"


class Book:
    """One limit on one scope."""

    def __init__(self, terms, node, told, *, used=0, late=False):
        self.terms, self.node, self.told = terms, node, told
        self.kind, self.nature, self.agent = terms.kind, terms.nature, terms.agent
        self.observe = terms.outcome == "observe"
        self.shared = node.kind in ("tenant", "session")
        self.drains = not self.observe and not self.shared and self.kind in DRAINING_KINDS
        self.limit, self.allowed = terms.amount, max(terms.amount, used)
        self.used, self.held, self.denied, self.untold = used, 0, 0, 0
        self.near = self.exceeded = self.draining = False
        self.armed = 1
        self.late = late
        self.account = None  # whose figures are compared with these

    def __repr__(self):
        return f"{self.terms} on {self.node}"

    @property
    def threshold(self):
        return self.limit / (100 * CENT) if self.kind == "cost" else self.limit

    @property
    def warn(self):
        return -(-self.limit * self.terms.warn // 100)

    def over(self, want, least):
        if self.nature == "held":
            return self.used + least > self.limit
        if self.nature == "counted":
            return self.used + want > self.limit
        return self.used >= self.limit if self.nature == "after" else want > self.limit

    def verdict(self, want, least):
        if self.draining:
            return "draining"
        if self.over(want, least):
            return "too_large" if self.used < self.limit and (self.shared or self.used < self.warn) else "exhausted"
        if self.nature == "held" and self.limit - self.used - self.held < least:
            return "contended"
        return None

    def refuse(self, reason):
        self.denied += reason != "contended"
        if reason == "exhausted":
            self.draining = self.drains
            self.look(denied=True)

    def take(self, want, least):
        """Admit it, and give what is held for it."""
        over, hold = self.observe and self.over(want, least), 0
        if self.nature == "counted":
            self.used += want
        elif self.nature == "level":
            self.used = want
        elif self.nature == "held":
            hold = want if self.observe else min(want, self.limit - self.used - self.held)
            self.held += hold
        self.look(denied=over)
        return hold

    def end(self, hold, told, *, guessed):
        """Settle a hold; give what this charged beyond what the operation told it has used."""
        if self.nature == "counted":
            return
        if self.nature == "level":
            self.used = self.used if told is None else told
        else:
            grant = hold if self.nature == "held" else 0
            amount = grant if told is None else max(0, told, grant if guessed else 0)
            self.held -= grant
            self.used += amount
            self.allowed += max(0, amount - grant)
            self.untold += amount - max(0, told or 0)
        self.look()

    def give_back(self, want, hold):
        if self.nature == "counted":
            self.used -= want
            self.draining = self.draining and self.used >= self.warn
        elif self.nature == "held":
            self.held -= hold

    def retune(self, value):
        if value > self.limit:
            self.near = self.exceeded = self.draining = False
            self.armed += 1
        self.limit = value
        self.allowed = max(value, self.used + self.held)

    def look(self, *, denied=False, spent=0):
        if not self.near and self.limit > 0 and self.used + spent >= self.warn:
            self.near = True
            self.told.append(("limit_nearing", self))
        if not self.exceeded and (denied or self.used > self.limit):
            self.exceeded = True
            self.told.append(("limit_exceeded", self))


@dataclass(eq=False)
class Node:
    """One scope of the tree; `own` is what was settled by operations that began right here."""

    kind: str
    name: str | None = None
    parent: object = None
    also: tuple = ()
    pools: bool = False
    tenant: str | None = None
    books: list = field(default_factory=list)
    templates: list = field(default_factory=list)
    inner: list = field(default_factory=list)
    own: Counter = field(default_factory=Counter)
    remembered: set = field(default_factory=set)
    charged: int = 0
    killed: bool = False
    cancelled: bool = False
    ended: bool = False
    began: bool = False
    scope: object = None

    def __post_init__(self):
        for outer in (*self.also, *(() if self.parent is None else (self.parent,))):
            outer.inner.append(self)
        self.outwards = (self, *self.also, *(() if self.parent is None else self.parent.outwards))
        self.ancestors = (self, *(() if self.parent is None else self.parent.ancestors))
        self.path = self._path()

    def __repr__(self):
        return f"{self.kind} {self.name}"

    def _path(self):
        """List, root to leaf, who pays: every scope that is no agent, the innermost agent, and whose tab that one shares."""
        agents = [each for each in self.ancestors if each.kind == "agent"]
        paying = agents[:1]
        for inner, outer in pairwise(agents):
            between = self.ancestors[self.ancestors.index(inner) : self.ancestors.index(outer)]
            if not inner.pools or any(each.kind == "run" for each in between):
                break
            paying.append(outer)
        return [each for each in reversed(self.outwards) if each.kind != "agent" or each in paying]

    @property
    def agent(self):
        for each in self.ancestors:
            if each.kind in ("agent", "run"):
                return each.name if each.kind == "agent" else None
        return None

    @property
    def memory(self):
        return next((each for each in self.outwards if each.kind == "run"), self.outwards[-1]).remembered

    def chain(self):
        agent = self.agent
        return [book for each in self.path for book in each.books if book.agent in (None, agent)]

    def stopped(self):
        if any(each.cancelled for each in self.ancestors):
            return "cancelled"
        return "closed" if any(each.killed for each in self.outwards) else None

    def payers_below(self):
        """Own + children, from here down (the other way than `path`): whose operations are charged to this scope."""
        if self.kind == "agent":
            return {self, *self._tab(crossed=False)}
        return {self}.union(*(child.payers_below() if child.kind != "agent" else child.inside() for child in self.inner))

    def inside(self):
        return {self}.union(*(child.inside() for child in self.inner))

    def _tab(self, *, crossed):
        found = set()
        for child in self.inner:
            if self not in child.ancestors:
                continue
            if child.kind != "agent":
                found |= {child} | child._tab(crossed=crossed or child.kind == "run")
            elif child.pools and not crossed:
                found |= child.payers_below()
        return found


@dataclass(eq=False)
class Operation:
    """What was sent: who asked, and each limit with what was asked of it and what was answered."""

    op_id: str
    leaf: Node
    lines: list
    observed: bool
    expired: bool = False

    def presume(self, sign):
        """Count what it holds as used (1), or as held again (-1)."""
        for book, _, hold in self.lines:
            if book.nature == "held":
                book.held, book.used = book.held - sign * hold, book.used + sign * hold


class Model:
    """The tree, and every operation that holds something."""

    def __init__(self):
        self.told = []
        self.root = Node("process")
        self.nodes = []
        self.named = {}
        self.live = {}
        self.over = []

    # -- the tree -----------------------------------------------------------------------------------------------------

    def place(self, parent, kind, session, tenant):
        """Put a scope where it belongs; a run's session and tenant stand under the process, and are joined."""
        also = ()
        if kind == "run":
            shared = []
            owner = tenant or (parent.tenant if session else None)
            if owner:
                shared.append(self._join("tenant", owner, owner, self.root))
            if session:
                shared.append(self._join("session", owner, session, shared[-1] if shared else self.root))
            if parent is self.root:
                parent = shared[-1] if shared else parent
            else:
                also = tuple(each for each in reversed(shared) if each not in parent.outwards)
        return parent, also, tenant or parent.tenant

    def _join(self, kind, tenant, name, parent):
        key = kind, tenant, name
        if key not in self.named:
            self.named[key] = Node(kind, name, parent, tenant=tenant)
            self.nodes.append(self.named[key])
        return self.named[key]

    def add(self, node, terms):
        """Open a scope with what was written for it; give the books that are new, in order."""
        self.nodes.append(node)
        for one in terms:
            if one.place == "agents" and node.kind != "agent":
                node.templates.append(one)
            else:
                sessions = (each for each in node.outwards if each.kind == "session" and one.place == "session")
                self.declare(next(sessions, node), one)
        for outer in node.outwards[1:]:
            if node.kind == "agent":
                for one in outer.templates:
                    self.declare(node, one)

    def once(self, terms):
        """Leave out what a scope would have twice: a shared ledger keeps one counter for both, and one in memory two."""
        known = {one.counter for node in self.nodes for one in node.templates}
        return list({one.counter: one for one in terms if one.counter not in known}.values())

    def declare(self, node, terms):
        known = [book for book in node.books if (book.kind, book.agent) == (terms.kind, terms.agent)] if node.kind in JOINED else []
        for book in known:
            if book.terms.same == terms.same:
                if terms.amount < book.limit:
                    book.retune(terms.amount)
                return
        late = any(each.began for each in node.inside())
        node.books.append(Book(terms, node, self.told, used=max((book.used for book in known), default=0), late=late))

    # -- what is done in it -------------------------------------------------------------------------------------------

    def reserve(self, leaf, asks):
        """Judge `asks` (book, want, least); give the operation's lines, or the book that refuses and its reason."""
        verdicts = [book.verdict(want, least) for book, want, least in asks]
        for (book, _, _), reason in zip(asks, verdicts, strict=True):
            if reason is not None and not book.observe:
                book.refuse(reason)
                return None, (book, reason), False
        observed = [book for (book, _, _), reason in zip(asks, verdicts, strict=True) if reason not in (None, "contended")]
        leaf.began = True
        lines = [[book, want, book.take(want, least)] for book, want, least in asks]
        for kind, want in {book.kind: want for book, want, _ in asks if book.nature == "counted"}.items():
            leaf.own[kind] += want
        if observed:
            observed[0].denied += 1
        return lines, None, bool(observed)

    def begin(self, op):
        self.live[op.op_id] = op

    def settle(self, op, actual, *, guessed=False):
        del self.live[op.op_id]
        self.over.append(op.op_id)
        op.presume(-1 * op.expired)
        for book, _, hold in op.lines:
            book.end(hold, actual.get(book.kind), guessed=guessed)
        for kind in {book.kind for book, _, _ in op.lines if book.nature in ("held", "after")}:
            op.leaf.own[kind] += max(0, actual.get(kind) or 0)

    def release(self, op):
        del self.live[op.op_id]
        self.over.append(op.op_id)
        op.presume(-1 * op.expired)
        for book, want, hold in op.lines:
            book.give_back(want, hold)
        for kind, want in {book.kind: want for book, want, _ in op.lines if book.nature == "counted"}.items():
            op.leaf.own[kind] -= want

    def extend(self, op, more):
        """Hold more of each kind; give what was given, and the reason when that is nothing."""
        if op is None or op.expired:
            return {}, None
        given = {kind: amount for kind, amount in more.items() if amount > 0}
        asked = [line for line in op.lines if line[0].nature == "held" and line[0].kind in given]
        for book, _, hold in asked:
            left = book.limit - book.used - book.held
            if book.observe:
                if left <= 0 and book.used + hold >= book.limit:
                    book.denied += not op.observed
                    op.observed = True
                    book.look(denied=True, spent=hold)
            elif left <= 0 or book.draining:
                return {}, self._cut(book, hold)
            else:
                given[book.kind] = min(given[book.kind], left)
        for line in asked:
            line[0].held += given[line[0].kind]
            line[2] += given[line[0].kind]
        return given, None

    @staticmethod
    def _cut(book, hold):
        reason = "draining" if book.draining else "exhausted" if book.used + hold >= book.limit else "contended"
        book.denied += reason != "contended"
        if reason == "exhausted":
            book.draining = book.drains
            book.look(denied=True, spent=hold)
        return reason

    def expire(self):
        """Settle whatever is held at its grant, until it is said what it was."""
        for op in self.live.values():
            if op.lines and not op.expired:
                op.expired = True
                op.presume(1)

    def held(self):
        """Add up what is granted to operations that have not ended."""
        held = defaultdict(int)
        for op in self.live.values():
            if not op.expired:
                for book, _, hold in op.lines:
                    if book.nature == "held":
                        held[book] += hold
        return held
