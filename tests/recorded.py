"""A listener that makes of what it is told the tree that the store makes of its rows: what is shown can be compared with what happened."""

from __future__ import annotations

import json
import threading
import weakref
from typing import Any

from ravi_otel._local.recorder import contribution
from ravi_otel._local.store import Sums
from ravi_otel._local.tree import MOST, Branch, Leaf, RunRecord
from ravi_otel.hooks._events import CallRecord, LimitEvent, ScopeView, Spend, ToolRecord, Totals
from ravi_otel.hooks._listeners import Listener
from ravi_otel.policy._limits import NANO


def as_json(record: RunRecord) -> str:
    return json.dumps(record.as_json(), allow_nan=False)


class Heard(Branch):
    """A scope as it is while it lives, and from its end on as it was told to have been."""

    def __init__(self, view: ScopeView, parent: Branch | None) -> None:
        super().__init__(view.facts, parent)
        self.follow(view)

    def follow(self, view: ScopeView, totals: Totals | None = None) -> None:
        """Refer to it weakly, and anew at its end: a collection cuts what refers weakly to what it has found."""
        self.view = weakref.ref(view)
        self.read(*(() if totals is None else (totals.spend, totals.readings)))

    def read(self, spend: Spend | None = None, readings: Any = None) -> None:
        view = self.view()
        if view is None:
            return
        self.status, self.stop_reason = view.status, view.stop_reason
        spend = view.spend() if spend is None else spend
        self.limits = list(view.readings() if readings is None else readings)
        self.began, self.ended = 1, 1 + round(spend.duration_s * NANO)
        calls = [node for node in _leaves(self) if node.generative and node.sent and node.status != "open"]
        untold = max(spend.unreported_calls, sum(node.sums.untold_calls for node in calls))
        self.sums = Sums(
            **{name: getattr(spend, name) for name in ("requests", "turns", "input_tokens", "output_tokens", "cached_input_tokens")},
            **{name: getattr(spend, name) for name in ("unpriced_calls", "unsplit_tokens", "tool_calls", "refused", "errors")},
            cost_nano=round((spend.cost_usd or 0) * NANO),
            estimated_calls=max(spend.estimated_calls, sum(node.sums.estimated_calls for node in calls)),
            assumed_calls=sum(node.sums.assumed_calls for node in calls),
            untold_calls=untold,
            unsplit_calls=sum(node.sums.unsplit_calls for node in calls),
            uncosted_calls=max(spend.unpriced_calls, untold),
        )
        self.reported = spend.unsplit_tokens - sum(node.sums.unsplit_tokens for node in calls)


def _leaves(branch: Branch) -> list[Leaf]:
    """Give what is summed in a scope: all below it; for an agent, not what the agents below it did."""
    found, waiting = [], list(branch.children)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Leaf):
            found.append(node)
        elif branch.facts.kind != "agent" or node.facts.kind != "agent":
            waiting.extend(node.children)
    return found


class Record(Listener, RunRecord):
    """Listen, and keep the first `most` runs, agents, blocks, calls, tools and limit events."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = threading.RLock()
        self._known: dict[str, Branch] = {}
        super().__init__(most)

    def scope_opened(self, scope: ScopeView) -> None:
        with self._lock:
            if scope.facts.scope_id in self._known:
                return
            if scope.parent is not None:
                self.scope_opened(scope.parent)
            around = None if scope.parent is None else self._known.get(scope.parent.facts.scope_id)
            branch = Heard(scope, around)
            if self.put("scopes", branch, self._roots if around is None else around.children):
                self._known[scope.facts.scope_id] = branch

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:
        with self._lock:
            branch = self._known.get(scope.facts.scope_id)
            if isinstance(branch, Heard):
                branch.follow(scope, totals)

    @property
    def roots(self) -> list[Branch | Leaf]:
        """Read what lives before it is shown."""
        for branch in self._known.values():
            if isinstance(branch, Heard):
                branch.read()
        return self._roots

    @roots.setter
    def roots(self, roots: list[Branch | Leaf]) -> None:
        self._roots = roots

    def call_started(self, record: CallRecord) -> None:
        call = record.call
        self._keep(record, Leaf("call", call.model, call.operation, record.started_ns, call.stream, call.generative))

    def tool_started(self, record: ToolRecord) -> None:
        self._keep(record, Leaf("tool", record.name, "tool", record.started_ns))

    def _keep(self, record: CallRecord | ToolRecord, leaf: Leaf) -> None:
        with self._lock:
            branch = self._known.get(record.facts.scope_id)
            if branch is None and len(self) < self._most and self.put("scopes", made := Branch(record.facts), self._roots):
                branch = self._known[record.facts.scope_id] = made
            if self.put("calls" if leaf.what == "call" else "tools", leaf, [] if branch is None else branch.children):
                record.marks[self] = leaf

    def call_ended(self, record: CallRecord) -> None:
        leaf: Any = record.marks.pop(self, None)
        if leaf is None:
            return
        self._end(leaf, record)
        reply, call = record.reply, record.call
        leaf.name = (None if reply is None else reply.model) or leaf.name
        leaf.generative = call.generative or record.usage is not None
        leaf.usage, leaf.cost_nano, leaf.cost_source = record.usage, record.cost_nano, record.cost_source
        leaf.retries = len(record.retries)
        leaf.sent = record.status != "refused" and reply is not None
        outcome = (record.status, reply, record.usage, record.cost_nano, record.cost_source, record.decision, record.limit_reason)
        pending = reply is not None and reply.pending and record.usage is None
        leaf.counted = contribution(call, *outcome, record.requests, record.charged, record.charged_nano, pending=pending)
        branch = self._known.get(record.facts.scope_id)
        for around in () if branch is None else branch.upwards():  # which may be closed, and soon forgotten
            if isinstance(around, Heard):
                around.read()

    def tool_ended(self, record: ToolRecord) -> None:
        leaf: Any = record.marks.pop(self, None)
        if leaf is not None:
            self._end(leaf, record)
            leaf.sent = record.status != "refused"

    @staticmethod
    def _end(leaf: Leaf, record: CallRecord | ToolRecord) -> None:
        leaf.status, leaf.duration_ns = record.status, record.duration_ns
        leaf.decision, leaf.error_type = record.decision, record.error_type
        leaf.limit_kind, leaf.reason = record.limit_kind, record.limit_reason
        leaf.limit_scope = None if record.limit_scope is None else record.limit_scope.value
        leaf.refusal = str(record.error) if record.status == "refused" and record.error is not None else None

    def limit_event(self, event: LimitEvent, at: CallRecord | ToolRecord | None) -> None:
        leaf: Any = None if at is None else at.marks.get(self)
        place = self._known.get(event.scope_id) if leaf is None else leaf
        if place is not None:
            self.put_event(event, place)
