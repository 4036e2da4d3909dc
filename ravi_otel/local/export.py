"""Write a record as JSON: the same facts as the report, for programs."""

from __future__ import annotations

import json
import math
from typing import Any

from ravi_otel.hooks._events import LimitEvent, LimitReading
from ravi_otel.local import outline
from ravi_otel.local.budgets import limits
from ravi_otel.local.record import Branch, Leaf, RunRecord
from ravi_otel.policy._limits import NANO
from ravi_otel.policy._runs import ScopeFacts

Fields = dict[str, Any]


def as_json(record: RunRecord, *, indent: int | None = None) -> str:
    """Give `{"nodes": [...], "limits": [...], "left_out": {...}}` as ASCII text.

    `nodes` are scopes, calls and tools, outer ones first, flat with `id` and `parent` so that depth is no problem for
    any reader. Unknown is null; amounts are in tokens, USD, milliseconds, and a limit's public unit. `limits` are the
    fullest first.
    """
    document = {
        "nodes": _nodes(record),
        "limits": [limit_fields(branch.facts, reading) for branch, reading in limits(record)],
        "left_out": dict(record.left_out) | ({"lines": record.unread} if record.unread else {}),
    }
    return json.dumps(document, allow_nan=False, indent=indent)


def _nodes(record: RunRecord) -> list[Fields]:
    nodes: list[Fields] = []
    waiting: list[tuple[Branch | Leaf, int | None]] = [(root, None) for root in reversed(list(record.roots))]
    while waiting:
        node, parent = waiting.pop()
        place: Fields = {"id": len(nodes), "parent": parent}
        if isinstance(node, Branch):
            waiting.extend((child, len(nodes)) for child in reversed(list(node.children)))
            nodes.append(place | _scope(node))
        else:
            nodes.append(place | _leaf(node))
    return nodes


def _scope(branch: Branch) -> Fields:
    facts, view = branch.facts, branch.view
    fields: Fields = {"type": facts.kind.value, "name": facts.name, "scope_id": facts.scope_id, "run_id": facts.run_id}
    if view is not None:
        spend = view.spend()
        untold = outline.untold(branch, spend)
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
    return fields | {"events": [_event(event) for event in list(branch.events)]}


def _leaf(leaf: Leaf) -> Fields:
    usage = None if leaf.usage is None or leaf.usage.tokenless or leaf.usage.total_only else leaf.usage
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
        "events": [_event(event) for event in list(leaf.events)],
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


def limit_fields(facts: ScopeFacts, reading: LimitReading) -> Fields:
    """Write the reading of one limit of the scope `facts`."""
    limit = reading.limit
    return {
        "scope": reading.scope.value,
        "scope_id": facts.scope_id,
        "scope_name": reading.scope_name,
        "limit": limit.label,
        "threshold": _number(limit.amount),
        "used": _number(reading.used),
        "held": _number(reading.held),
        "remaining": _number(reading.remaining),
        "ratio": _number(reading.ratio),
        "denied": None if math.isnan(reading.used) and not reading.denied else reading.denied,
        "events": list(reading.events),
        **({"per": limit.per, "window": reading.window, "by": limit.by, "counted_for": reading.counted_for} if limit.renews else {}),
    }


def _event(event: LimitEvent) -> Fields:
    return {
        "event": event.event,
        "limit_kind": event.limit_kind,
        "scope": event.scope.value,
        "scope_id": event.scope_id,
        "scope_name": event.scope_name,
        "threshold": _number(event.threshold),
        "used": _number(event.used),
        "held": _number(event.held),
        "remaining": _number(event.remaining),
        "exceeded_by": _number(event.exceeded_by),
        "requested": None if event.requested is None else _number(event.requested),
        "ratio": _number(event.ratio),
        "per": event.per,
        "window": event.window,
        "by": event.by,
        "counted_for": event.counted_for,
        "resets_at": None if event.resets_at is None else event.resets_at.isoformat(),
        "phase": event.phase,
        "decision": event.decision,
        "tracker": event.tracker,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
