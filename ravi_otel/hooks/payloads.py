"""Write what the engine tells as the contexts that hooks get."""

from __future__ import annotations

from typing import Any, Final

from ravi_otel.hooks.events import HookEvent
from ravi_otel.hooks.loop_records import GuardrailEvent, HandoffEvent, ReviewEvent, StepEvent
from ravi_otel.hooks.records import CallRecord, LimitEvent, ScopeView, SpawnEvent, ToolRecord
from ravi_otel.policy.facts import ScopeFacts
from ravi_otel.policy.usage import Usage

_NANO: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000

_WHERE: Final = (
    "event", "agent_name", "agent_id", "run_id", "run_name", "session_id", "tenant_id", "scope_id", "trace_id", "span_id",
)  # fmt: skip

Payload = dict[str, Any]
Trace = tuple[str | None, str | None]
"""The ids of a trace and of a span in it, in hex."""

_UNTOLD: Final[Payload] = dict.fromkeys(
    ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "cache_write_tokens", "reasoning_tokens")
)


def where(event: HookEvent, facts: ScopeFacts | None, trace: Trace) -> Payload:
    """Say where something happens; every context has these names."""
    if facts is None:
        return {**dict.fromkeys(_WHERE), "event": event.value, "trace_id": trace[0], "span_id": trace[1]}
    return {
        "event": event.value,
        "agent_name": facts.agent_name,
        "agent_id": facts.agent_id,
        "run_id": facts.run_id,
        "run_name": facts.run_name,
        "session_id": facts.session_id,
        "tenant_id": facts.tenant_id,
        "scope_id": facts.scope_id,
        "trace_id": trace[0],
        "span_id": trace[1],
    }


def opened(event: HookEvent, facts: ScopeFacts, trace: Trace) -> Payload:
    """Say that a run or an agent begins."""
    payload = where(event, facts, trace)
    if event is HookEvent.FLOW_START:
        payload["flow_name"] = facts.name
    elif facts.supervision is not None:
        payload.update(
            depth=facts.supervision.depth,
            parent_id=facts.supervision.parent_id,
            priority=facts.supervision.priority.name.lower(),
            attempt=facts.attempt,
        )
    return payload


def closed(event: HookEvent, scope: ScopeView, trace: Trace) -> Payload:
    """Say how it ended, and what was used in it."""
    payload = where(event, scope.facts, trace)
    if event is HookEvent.FLOW_END:
        payload["flow_name"] = scope.facts.name
    spend = scope.spend()
    error = scope.error
    least = None if spend.unsplit_tokens else 0
    payload.update(
        status=scope.status,
        stop_reason=None if scope.stop_reason is None else str(scope.stop_reason),
        error_type=None if error is None else type(error).__name__,
        duration_ms=spend.duration_s * 1_000,
        usage={
            "input_tokens": spend.input_tokens or least,
            "output_tokens": spend.output_tokens or least,
            "total_tokens": spend.total_tokens,
        },
        cost_usd=spend.cost_usd,
        unpriced_calls=spend.unpriced_calls,
        unreported_calls=spend.unreported_calls,
        requests=spend.requests,
        turns=spend.turns,
        tool_calls=spend.tool_calls,
        attempt=scope.facts.attempt,
    )
    return payload


def call_started(record: CallRecord, trace: Trace) -> Payload:
    """Say that a model call begins, before it is admitted."""
    return _call(HookEvent.LLM_START, record, trace)


def _call(event: HookEvent, record: CallRecord, trace: Trace) -> Payload:
    call = record.call
    payload = where(event, record.facts, trace)
    payload.update(
        call_id=record.op_id,
        operation=call.operation,
        endpoint=call.endpoint,
        provider=call.provider,
        model=call.model,
        stream=call.stream,
    )
    return payload


def call_ended(record: CallRecord, trace: Trace) -> Payload:
    """Say how a model call ended; `cost_usd` None is unknown, and `usage` None was not told."""
    payload = _call(HookEvent.LLM_END, record, trace)
    reply = record.reply
    payload.update(
        model=(reply and reply.model) or record.call.model,
        request_model=record.call.model,
        status=record.status,
        usage=_usage(record.usage),
        cost_usd=_cost_usd(record),
        error_type=record.error_type,
        finish_reasons=() if reply is None else reply.finish_reasons,
        response_id=None if reply is None else reply.id,
        duration_ms=record.duration_ns / _NS_PER_MS,
        requests=record.requests,
        retries=len(record.retries),
        decision=record.decision,
        limit_kind=record.limit_kind,
    )
    return payload


def _usage(usage: Usage | None) -> Payload | None:
    if usage is None:
        return None
    if usage.total_only:
        return {**_UNTOLD, "total_tokens": usage.total_tokens, "source": usage.source}
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "source": usage.source,
    }


def _cost_usd(record: CallRecord) -> float | None:
    """Give what it cost: nothing where nothing was sent or billed, None where nobody knows."""
    if record.cost_nano is not None:
        return record.cost_nano / _NANO
    if record.requests == 0 or (not record.call.generative and record.usage is None):
        return 0.0
    failed = record.status not in ("ok", "open")
    return 0.0 if failed and record.usage is None and record.charged is None else None


def tool_started(record: ToolRecord, trace: Trace) -> Payload:
    """Say that a tool call begins, before it is admitted."""
    return _tool(HookEvent.TOOL_START, record, trace)


def _tool(event: HookEvent, record: ToolRecord, trace: Trace) -> Payload:
    payload = where(event, record.facts, trace)
    payload.update(tool_name=record.name, call_id=record.call_id or record.op_id, inferred=record.inferred)
    return payload


def tool_ended(record: ToolRecord, trace: Trace) -> Payload:
    """Say how a tool call ended; "refused" ones never ran."""
    payload = _tool(HookEvent.TOOL_END, record, trace)
    payload.update(
        status=record.status,
        duration_ms=record.duration_ns / _NS_PER_MS,
        error_type=record.error_type,
        decision=record.decision,
        limit_kind=record.limit_kind,
        abandoned=record.abandoned,
    )
    return payload


def step(name: HookEvent, event: StepEvent, trace: Trace) -> Payload:
    """Say that a step of an agent's loop begins, or how it ended."""
    payload = where(name, event.facts, trace)
    payload["step"] = event.step
    if event.what == "end":
        payload["status"] = event.status
    return payload


def handoff(event: HandoffEvent, trace: Trace) -> Payload:
    """Say who hands over to whom."""
    payload = where(HookEvent.HANDOFF, event.facts, trace)
    payload.update(to=event.to, mode=event.mode)
    return payload


def review(event: ReviewEvent, trace: Trace) -> Payload:
    """Say what a gate decided; `tool_name` None is an answer."""
    payload = where(HookEvent.REVIEW, event.facts, trace)
    payload.update(
        tool_name=event.tool,
        decision=event.decision,
        reason=event.reason,
        args_sha256=event.args_sha256,
        final=event.final,
        executed_from=event.executed_from,
        human_approved=event.human_approved,
        risk_score=event.risk_score,
    )
    return payload


def guardrail(event: GuardrailEvent, trace: Trace) -> Payload:
    """Say which guardrail stopped what, and why in its own words."""
    payload = where(HookEvent.GUARDRAIL_TRIP, event.facts, trace)
    payload.update(guardrail=event.guardrail, level=event.level, stage=event.stage, reason=event.reason)
    return payload


def limit(name: HookEvent, event: LimitEvent, trace: Trace) -> Payload:
    """Say that a limit is near or exceeded (enforcement §7); amounts in the kind's public unit."""
    return {
        **where(name, None, trace),
        "agent_name": event.agent_name,
        "agent_id": event.agent_id,
        "run_id": event.run_id,
        "run_name": event.run_name,
        "session_id": event.session_id,
        "tenant_id": event.tenant_id,
        "scope": event.scope.value,
        "scope_name": event.scope_name,
        "scope_id": event.scope_id,
        "limit_kind": event.limit_kind,
        "threshold": event.threshold,
        "used": event.used,
        "held": event.held,
        "remaining": event.remaining,
        "exceeded_by": event.exceeded_by,
        "requested": event.requested,
        "ratio": event.ratio,
        "phase": event.phase,
        "enforcement": event.enforcement,
        "decision": event.decision,
        "per": event.per,
        "window": event.window,
        "by": event.by,
        "counted_for": event.counted_for,
        "resets_at": event.resets_at,
        "tracker": event.tracker,
    }


def spawn(event: HookEvent, told: SpawnEvent, run: ScopeFacts | None, agent_name: str | None, trace: Trace) -> Payload:
    """Say what became of a request for a slot in `run`, or of the agent that had one; the counts are those after it."""
    return {
        **where(event, run, trace),
        "agent_name": agent_name,
        "agent_id": told.agent_id,
        "run_id": told.run_id,
        "priority": told.priority,
        "active": told.active,
        "paused": told.paused,
        "max_agents": told.max_agents,
        "limit_kind": told.limit_kind,
    }
