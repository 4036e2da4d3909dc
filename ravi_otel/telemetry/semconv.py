"""Hold every name that goes out, with its unit, instrument, level and source.

`gen_ai.*`, `openai.*`, `server.*`, `error.*`, `exception.*` and `http.*` are the OpenTelemetry conventions in their last
release that held the GenAI names (1.41); `ravi.*` are ours, because there is no convention for budgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

SCOPE: Final = "ravi_otel"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"

# Attributes of a model call.
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_PREVIOUS_RESPONSE: Final = "gen_ai.request.previous_response.id"
REQUEST_REASONING_LEVEL: Final = "gen_ai.request.reasoning.level"
OUTPUT_TYPE: Final = "gen_ai.output.type"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"
USAGE_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - a token of text, not a secret
OPENAI_API_TYPE: Final = "openai.api.type"
OPENAI_REQUEST_TIER: Final = "openai.request.service_tier"
OPENAI_RESPONSE_TIER: Final = "openai.response.service_tier"
OPENAI_FINGERPRINT: Final = "openai.response.system_fingerprint"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
HTTP_STATUS: Final = "http.response.status_code"

# Attributes of agents, workflows and tools.
AGENT_NAME: Final = "gen_ai.agent.name"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
RUN_ID: Final = "ravi.run.id"
SESSION_ID: Final = "ravi.session.id"
TENANT_ID: Final = "ravi.tenant.id"
AGENT_ID: Final = "ravi.agent.id"
AGENT_DEPTH: Final = "ravi.agent.depth"
AGENT_PRIORITY: Final = "ravi.agent.priority"
SCOPE_ID: Final = "ravi.scope.id"
STATUS: Final = "ravi.status"
"""How it ended where that is no plain success: error, refused, cancelled, stopped, paused."""
STOP_REASON: Final = "ravi.stop_reason"
REQUEST_COUNT: Final = "ravi.request.count"
"""Requests that a call paid for, where that is not one: retries are requests, and what never left is none."""
TAG_PREFIX: Final = "ravi.tag."
"""What a run's own tags are put under: `tags={"team": "search"}` is `ravi.tag.team`."""

# Attributes of enforcement.
LIMIT_DECISION: Final = "ravi.limit.decision"
LIMIT_EVENT: Final = "ravi.limit.event"
LIMIT_KIND: Final = "ravi.limit.kind"
LIMIT_SCOPE: Final = "ravi.limit.scope"
LIMIT_SCOPE_ID: Final = "ravi.limit.scope.id"
LIMIT_SCOPE_NAME: Final = "ravi.limit.scope.name"
LIMIT_LABEL: Final = "ravi.limit.label"
LIMIT_REASON: Final = "ravi.limit.reason"
LIMIT_GRANTED: Final = "ravi.limit.granted"
LIMIT_THRESHOLD: Final = "ravi.limit.threshold"
LIMIT_USED: Final = "ravi.limit.used"
LIMIT_HELD: Final = "ravi.limit.held"
LIMIT_REMAINING: Final = "ravi.limit.remaining"
LIMIT_EXCEEDED_BY: Final = "ravi.limit.exceeded_by"
LIMIT_RATIO: Final = "ravi.limit.ratio"
LIMIT_PHASE: Final = "ravi.limit.phase"
LIMIT_ENFORCEMENT: Final = "ravi.limit.enforcement"
USAGE_COST: Final = "ravi.usage.cost_usd"
USAGE_COST_SOURCE: Final = "ravi.usage.cost.source"
USAGE_SOURCE: Final = "ravi.usage.source"
CHARGED_INPUT: Final = "ravi.usage.charged.input_tokens"
"""What limits were charged for a call whose usage nobody told, here and in the next two."""
CHARGED_OUTPUT: Final = "ravi.usage.charged.output_tokens"
CHARGED_COST: Final = "ravi.usage.charged.cost_usd"
BUDGET_TOKENS_LIMIT: Final = "ravi.budget.tokens.limit"
BUDGET_TOKENS_USED: Final = "ravi.budget.tokens.used"
BUDGET_COST_LIMIT: Final = "ravi.budget.cost_usd.limit"
BUDGET_COST_USED: Final = "ravi.budget.cost_usd.used"
BUDGET_TURNS_LIMIT: Final = "ravi.budget.turns.limit"
BUDGET_TURNS_USED: Final = "ravi.budget.turns.used"
BUDGET_DEADLINE_LIMIT: Final = "ravi.budget.deadline_s.limit"
BUDGET_DEADLINE_USED: Final = "ravi.budget.deadline_s.used"
RETRY_COUNT: Final = "ravi.retry.count"
RETRY_ATTEMPT: Final = "ravi.retry.attempt"
RETRY_WAIT: Final = "ravi.retry.wait_s"
SPAWN_OUTCOME: Final = "ravi.spawn.outcome"
DROP_REASON: Final = "ravi.telemetry.reason"

# Events.
EXCEPTION_EVENT: Final = "gen_ai.client.operation.exception"
NEARING_EVENT: Final = "ravi.limit.nearing"
EXCEEDED_EVENT: Final = "ravi.limit.exceeded"
RETRY_EVENT: Final = "ravi.retry"
STATE_EVENT: Final = "ravi.limit.state"

# Metrics (ravi.retry.count, ravi.limit.used, .threshold, .denied and .events are attributes too, under the same name).
CALL_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - a token of text, not a secret
FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
AGENT_INFERENCE_CALLS: Final = "gen_ai.invoke_agent.inference_calls"
AGENT_TOOL_CALLS: Final = "gen_ai.invoke_agent.tool_calls"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
WORKFLOW_DURATION: Final = "gen_ai.invoke_workflow.duration"
COST: Final = "ravi.usage.cost"
LIMIT_FINAL_RATIO: Final = "ravi.limit.final_ratio"
LIMIT_EVENTS: Final = "ravi.limit.events"
LIMIT_DENIED: Final = "ravi.limit.denied"
LIMIT_CONTENDED: Final = "ravi.limit.contended"
LIMIT_OVERAGE: Final = "ravi.limit.overage"
LIMIT_UNPRICED: Final = "ravi.limit.unpriced"
LIMIT_UNSCOPED: Final = "ravi.limit.unscoped"
LIMIT_STORE_ERRORS: Final = "ravi.limit.store_errors"
AGENT_ACTIVE: Final = "ravi.agent.active"
AGENT_PAUSED: Final = "ravi.agent.paused"
SPAWN_EVENTS: Final = "ravi.spawn.events"
DROPPED: Final = "ravi.telemetry.dropped"

# Operations that are ours to name, and values of error.type that are no exception's name.
INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
EXECUTE_TOOL: Final = "execute_tool"
ERROR_LIMIT: Final = "ravi.limit_exceeded"
ERROR_PAUSED: Final = "ravi.agent_paused"
ERROR_CANCELLED: Final = "cancelled"
ERROR_OTHER: Final = "_OTHER"

DURATION_BUCKETS: Final = tuple(round(0.01 * 2**k, 2) for k in range(14))
TOKEN_BUCKETS: Final = tuple(float(4**k) for k in range(14))
RUN_BUCKETS: Final = tuple(round(0.1 * 2**k, 1) for k in range(13))
CALL_BUCKETS: Final = tuple(float(2**k) for k in range(8))
RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0)

Instrument = Literal["attribute", "event", "histogram", "counter", "up_down_counter", "gauge", "value"]
Level = Literal["required", "conditionally_required", "recommended", "opt_in"]

_SPANS: Final = "semconv 1.41, gen-ai spans"
_AGENTS: Final = "semconv 1.41, gen-ai agent spans"
_OPENAI: Final = "semconv 1.41, openai"
_EVENTS: Final = "semconv 1.41, gen-ai events"
_METRICS: Final = "semconv 1.41, gen-ai metrics"
_GENERAL: Final = "semconv 1.41, general"
_OURS: Final = "ravi-otel"


@dataclass(frozen=True, slots=True)
class Name:
    """Describe one name: `instrument` says what it is, `unit` is UCUM ("" where the value says), `source` who defines it."""

    name: str
    instrument: Instrument
    unit: str
    level: Level
    source: str
    description: str = ""
    buckets: tuple[float, ...] = ()


def _attributes(source: str, level: Level, *names: str, unit: str = "") -> Iterator[Name]:
    return (Name(name, "attribute", unit, level, source) for name in names)


TABLE: Final[tuple[Name, ...]] = (
    *_attributes(_SPANS, "required", OPERATION_NAME, PROVIDER_NAME),
    *_attributes(_SPANS, "conditionally_required", REQUEST_MODEL, REQUEST_SEED, REQUEST_CHOICE_COUNT, REQUEST_STREAM),
    *_attributes(_SPANS, "conditionally_required", OUTPUT_TYPE, CONVERSATION_ID, REQUEST_PREVIOUS_RESPONSE),
    *_attributes(_SPANS, "recommended", REQUEST_TEMPERATURE, REQUEST_TOP_P, REQUEST_TOP_K, REQUEST_STOP_SEQUENCES),
    *_attributes(_SPANS, "recommended", REQUEST_FREQUENCY_PENALTY, REQUEST_PRESENCE_PENALTY, REQUEST_REASONING_LEVEL),
    *_attributes(_SPANS, "recommended", RESPONSE_ID, RESPONSE_MODEL, RESPONSE_FINISH_REASONS),
    *_attributes(_SPANS, "recommended", RESPONSE_FIRST_CHUNK, unit="s"),
    *_attributes(_SPANS, "recommended", REQUEST_MAX_TOKENS, USAGE_INPUT, USAGE_OUTPUT, unit="{token}"),
    *_attributes(_SPANS, "recommended", USAGE_CACHE_READ, USAGE_CACHE_CREATION, USAGE_REASONING, unit="{token}"),
    *_attributes(_METRICS, "required", TOKEN_TYPE),
    *_attributes(_OPENAI, "recommended", OPENAI_API_TYPE, OPENAI_RESPONSE_TIER, OPENAI_FINGERPRINT),
    *_attributes(_OPENAI, "conditionally_required", OPENAI_REQUEST_TIER),
    *_attributes(_GENERAL, "recommended", SERVER_ADDRESS),
    *_attributes(_GENERAL, "conditionally_required", SERVER_PORT, ERROR_TYPE, EXCEPTION_TYPE, HTTP_STATUS),
    *_attributes(_AGENTS, "conditionally_required", AGENT_NAME, WORKFLOW_NAME),
    *_attributes(_AGENTS, "required", TOOL_NAME),
    *_attributes(_AGENTS, "recommended", TOOL_TYPE, TOOL_CALL_ID),
    *_attributes(_OURS, "conditionally_required", RUN_ID, SESSION_ID, TENANT_ID, AGENT_ID, AGENT_DEPTH, AGENT_PRIORITY),
    *_attributes(_OURS, "conditionally_required", SCOPE_ID, STATUS, STOP_REASON),
    *_attributes(_OURS, "conditionally_required", LIMIT_DECISION, LIMIT_EVENT, LIMIT_KIND, LIMIT_SCOPE, LIMIT_SCOPE_NAME),
    *_attributes(_OURS, "conditionally_required", LIMIT_LABEL, LIMIT_REASON, LIMIT_SCOPE_ID, LIMIT_EVENTS),
    *_attributes(_OURS, "conditionally_required", REQUEST_COUNT, unit="{request}"),
    *_attributes(_OURS, "conditionally_required", LIMIT_DENIED, unit="{call}"),
    *_attributes(_OURS, "conditionally_required", CHARGED_INPUT, CHARGED_OUTPUT, unit="{token}"),
    *_attributes(_OURS, "conditionally_required", CHARGED_COST, unit="USD"),
    *_attributes(_OURS, "recommended", LIMIT_GRANTED, unit="{token}"),
    *_attributes(_OURS, "required", LIMIT_THRESHOLD, LIMIT_USED, LIMIT_HELD, LIMIT_REMAINING, LIMIT_EXCEEDED_BY),
    *_attributes(_OURS, "required", LIMIT_RATIO, LIMIT_PHASE, LIMIT_ENFORCEMENT),
    *_attributes(_OURS, "recommended", USAGE_COST, BUDGET_COST_LIMIT, BUDGET_COST_USED, unit="USD"),
    *_attributes(_OURS, "conditionally_required", USAGE_COST_SOURCE, USAGE_SOURCE),
    *_attributes(_OURS, "recommended", BUDGET_TOKENS_LIMIT, BUDGET_TOKENS_USED, unit="{token}"),
    *_attributes(_OURS, "recommended", BUDGET_TURNS_LIMIT, BUDGET_TURNS_USED, unit="{turn}"),
    *_attributes(_OURS, "recommended", BUDGET_DEADLINE_LIMIT, BUDGET_DEADLINE_USED, RETRY_WAIT, unit="s"),
    *_attributes(_OURS, "conditionally_required", RETRY_COUNT, RETRY_ATTEMPT, SPAWN_OUTCOME, DROP_REASON),
    *_attributes(_OURS, "opt_in", TAG_PREFIX),
    Name(EXCEPTION_EVENT, "event", "", "recommended", _EVENTS, "A model call raised."),
    Name(NEARING_EVENT, "event", "", "required", _OURS, "A limit is near."),
    Name(EXCEEDED_EVENT, "event", "", "required", _OURS, "A limit is exceeded."),
    Name(RETRY_EVENT, "event", "", "recommended", _OURS, "A call was tried again."),
    Name(STATE_EVENT, "event", "", "recommended", _OURS, "Where a limit stood when its run or agent closed."),
    Name(CALL_DURATION, "histogram", "s", "required", _METRICS, "Duration of a model call.", DURATION_BUCKETS),
    Name(TOKEN_USAGE, "histogram", "{token}", "recommended", _METRICS, "Tokens of a model call.", TOKEN_BUCKETS),
    Name(FIRST_CHUNK, "histogram", "s", "recommended", _METRICS, "Time from the request to the first chunk.", DURATION_BUCKETS),
    Name(AGENT_DURATION, "histogram", "s", "recommended", _METRICS, "Duration of an agent's invocation.", RUN_BUCKETS),
    Name(AGENT_INFERENCE_CALLS, "histogram", "{inference_call}", "recommended", _METRICS, "Model calls an agent made.", CALL_BUCKETS),
    Name(AGENT_TOOL_CALLS, "histogram", "{tool_call}", "recommended", _METRICS, "Tool calls an agent made.", CALL_BUCKETS),
    Name(TOOL_DURATION, "histogram", "s", "recommended", _METRICS, "Duration of a tool call.", DURATION_BUCKETS),
    Name(WORKFLOW_DURATION, "histogram", "s", "recommended", _METRICS, "Duration of a run.", RUN_BUCKETS),
    Name(COST, "counter", "USD", "recommended", _OURS, "Known cost of model calls."),
    Name(LIMIT_USED, "gauge", "", "recommended", _OURS, "Used of the most used active limit, in the kind's unit."),
    Name(LIMIT_THRESHOLD, "gauge", "", "recommended", _OURS, "Value of the most used active limit, in the kind's unit."),
    Name(LIMIT_FINAL_RATIO, "histogram", "", "recommended", _OURS, "Used over limit when a scope closed.", RATIO_BUCKETS),
    Name(LIMIT_EVENTS, "counter", "{event}", "required", _OURS, "Limits that came near or were exceeded."),
    Name(LIMIT_DENIED, "counter", "{call}", "recommended", _OURS, "Calls refused by a limit."),
    Name(LIMIT_CONTENDED, "counter", "{call}", "recommended", _OURS, "Waits for held budget that were given up."),
    Name(LIMIT_OVERAGE, "counter", "", "recommended", _OURS, "Spend beyond what was granted, in the kind's inner unit."),
    Name(LIMIT_UNPRICED, "counter", "{call}", "recommended", _OURS, "Calls without a known price."),
    Name(LIMIT_UNSCOPED, "counter", "{call}", "recommended", _OURS, "Calls outside every scope."),
    Name(LIMIT_STORE_ERRORS, "counter", "{error}", "recommended", _OURS, "Failures of the store of counters."),
    Name(AGENT_ACTIVE, "up_down_counter", "{agent}", "recommended", _OURS, "Agents that hold a slot."),
    Name(AGENT_PAUSED, "up_down_counter", "{agent}", "recommended", _OURS, "Agents whose slot went to more urgent work."),
    Name(SPAWN_EVENTS, "counter", "{event}", "recommended", _OURS, "What became of requests for a slot."),
    Name(RETRY_COUNT, "counter", "{retry}", "recommended", _OURS, "Attempts after the first."),
    Name(DROPPED, "counter", "{item}", "recommended", _OURS, "Telemetry that was lost, by reason."),
    Name(ERROR_LIMIT, "value", "", "required", _OURS, "error.type of what a limit refused or cut."),
    Name(ERROR_PAUSED, "value", "", "required", _OURS, "error.type of what ended because its agent was preempted."),
)

METRICS: Final[dict[str, Name]] = {row.name: row for row in TABLE if row.instrument not in {"attribute", "event", "value"}}
