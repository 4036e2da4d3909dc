"""Gather what the files of a stored run hold, in one pass and in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ravi_otel._telemetry import names
from ravi_otel.local._record import Leaf, What
from ravi_otel.local.store.entries import entry_of
from ravi_otel.local.store.spans import Span, SpanEvent, text_of
from ravi_otel.local.store.sums import Entry, Sums

MOST_SPANS: Final = 500_000
"""Spans of one run whose place is remembered; a tree of more than that hangs flat from its process."""

MOST_GROUPS: Final = 10_000
"""Groups of one run that are told apart."""


class Group(NamedTuple):
    """Say who made a call, with what; None is not known. `tags` are pairs, sorted."""

    agent: str | None
    model: str | None
    session: str | None
    tags: tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """Say where a span stood: the span above it, and what it says itself for when that one was never written."""

    process: str
    parent_id: str | None
    run_id: str | None
    agent_id: str | None
    agent_name: str | None


class FoundScope(NamedTuple):
    """Be the span of a run or an agent."""

    span: Span
    place: Place


def process_of(path: Path) -> str:
    """Name the process that wrote a file: all of its name before the signal's."""
    return path.name.partition(".")[0]


class Gathering:
    """Take spans in any order, each once; keep scopes and the first `most` leaves, and sum the rest.

    A time that is not from `since_ns` to `until_ns` is unknown.
    """

    def __init__(self, most: int, since_ns: int = 0, until_ns: int = 2**63) -> None:
        self._most = most
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._seen: set[int] = set()
        self.above: dict[str, str | None] = {}
        self.scopes: dict[str, FoundScope] = {}
        self.leaves: list[tuple[Place, Leaf]] = []
        self.sums: dict[Place, Sums] = {}
        self.groups: dict[Group, Sums] = {}
        self.events: list[tuple[Place, Leaf | None, SpanEvent]] = []
        self.late: list[tuple[int, str, SpanEvent]] = []
        """Where limits of a scope that had been closed stood when a call in it ended: at what time, of which scope."""
        self.processes: dict[str, tuple[int, int]] = {}
        self.left_out: dict[What, int] = {"scopes": 0, "calls": 0, "tools": 0, "events": 0}

    def take(self, span: Span, process: str) -> None:
        """Take one more span of that process; nothing, when it was taken before."""
        key = hash((span.trace_id, span.span_id))  # an int takes a quarter of the room of the two texts
        if key in self._seen:
            return
        if len(self._seen) < MOST_SPANS:
            self._seen.add(key)
        span = span.within(self._since_ns, self._until_ns)
        if len(self.above) < MOST_SPANS:
            self.above[span.span_id] = span.parent_id
        place = _place(span, process)
        leaf = self._ours(span, place) if span.ours else None
        for event in span.events:
            if event.name != names.STATE_EVENT:
                self._event(place._replace(parent_id=span.span_id), leaf, event)
            elif span.ours and (of := text_of(event.attributes, names.LIMIT_SCOPE_ID)) is not None and len(self.late) < self._most:
                self.late.append((span.end_ns, of, event))

    def _ours(self, span: Span, place: Place) -> Leaf | None:
        known = self.processes.get(place.process, (0, 0))
        starts = [at for at in (known[0], span.start_ns) if at]
        self.processes[place.process] = (min(starts, default=0), max(known[1], span.end_ns))
        if span.text(names.OPERATION_NAME) in (names.INVOKE_WORKFLOW, names.INVOKE_AGENT):
            if len(self.scopes) < self._most:
                self.scopes[span.span_id] = FoundScope(span, place)
            else:
                self.left_out["scopes"] += 1
            self._take_consumed(span, place._replace(parent_id=span.span_id))
            return None
        entry = entry_of(span)
        return None if entry is None else self._leaf(span, place, entry)

    def _take_consumed(self, span: Span, place: Place) -> None:
        tokens, turns = (span.count(name) or 0 for name in (names.CONSUMED_TOKENS, names.CONSUMED_TURNS))
        cost = span.nano(names.CONSUMED_COST) or 0
        if tokens or turns or cost:
            for sums in (self._sums_of(place), self._group_of(span, None)):
                sums.enter_consumed(tokens, cost, turns)

    def _leaf(self, span: Span, place: Place, entry: Entry) -> Leaf | None:
        self._sums_of(place).enter(entry)
        self._group_of(span, entry.leaf.name if entry.leaf.what == "call" else None).enter(entry)
        if len(self.leaves) < self._most:
            self.leaves.append((place, entry.leaf))
            return entry.leaf
        self.left_out["calls" if entry.leaf.what == "call" else "tools"] += 1
        return None

    def _sums_of(self, place: Place) -> Sums:
        found = self.sums.get(place)
        if found is None:
            if len(self.sums) >= MOST_SPANS:
                place = Place(place.process, None, None, None, None)
            found = self.sums.setdefault(place, Sums())
        return found

    def _group_of(self, span: Span, model: str | None) -> Sums:
        tags = sorted((key, str(value)) for key, value in span.attributes.items() if key.startswith(names.TAG_PREFIX))
        cut = tuple((key.removeprefix(names.TAG_PREFIX), value) for key, value in tags)
        group = Group(span.text(names.AGENT_NAME), model, span.text(names.SESSION_ID), cut)
        if group not in self.groups and len(self.groups) >= MOST_GROUPS:
            group = Group(None, None, None, ())
        return self.groups.setdefault(group, Sums())

    def _event(self, place: Place, leaf: Leaf | None, event: SpanEvent) -> None:
        if len(self.events) < self._most:
            self.events.append((place, leaf, event))
        else:
            self.left_out["events"] += 1


def _place(span: Span, process: str) -> Place:
    return Place(process, span.parent_id, span.text(names.RUN_ID), span.text(names.AGENT_ID), span.text(names.AGENT_NAME))
