"""Hold every name that goes out, each defined once, with what it is, its type and unit, how needed it is, who defines it, and what it says.

A constant is a plain string; its row is in `TABLE`, from which the page `docs/semantic-conventions.md` is written. `gen_ai.*`, `openai.*`,
`server.*`, `error.*`, `exception.*` and `http.*` are the OpenTelemetry conventions: in their last release that held the GenAI names
(1.41), or, where a row says so, as the GenAI conventions have them since. `ravi.*` are ours: there is no convention for budgets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

from ravi_otel.policy._checks import environ_choice, switch

SCOPE: Final = "ravi_otel"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
LATEST_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""What the GenAI conventions' own repository states for its main branch."""

GEN_AI: Final = "gen_ai."
"""What every name of the GenAI conventions begins with."""

# Operations whose name we ask for, and values of error.type that no row describes.
INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
EXECUTE_TOOL: Final = "execute_tool"
TOOLS_CALL: Final = "tools/call"
ERROR_TOOL: Final = "tool_error"
"""The `error.type` of a tool call over MCP whose result says of itself that it is an error."""
EMBEDDINGS: Final = "embeddings"
FETCH_RESPONSE: Final = "fetch_response"
ERROR_CANCELLED: Final = "cancelled"
ERROR_OTHER: Final = "_OTHER"

DURATION_BUCKETS: Final = tuple(round(0.01 * 2**k, 2) for k in range(14))
TOKEN_BUCKETS: Final = tuple(float(4**k) for k in range(14))
RUN_BUCKETS: Final = tuple(round(0.1 * 2**k, 1) for k in range(13))
CALL_BUCKETS: Final = tuple(float(2**k) for k in range(8))
RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0)

Kind = Literal["span", "attribute", "event", "histogram", "counter", "up_down_counter", "gauge", "value", "baggage"]
Type = Literal["string", "int", "double", "boolean", "string[]"]
Need = Literal["required", "conditionally_required", "recommended", "opt_in"]
Detail = Literal["default", "full", "on request"]
Spoken = Literal["both", "released", "latest"]
Stability = Literal["stable", "development", "proposed"]


class Name(NamedTuple):
    """Describe one name.

    `type` is that of an attribute's value, and `unit` is UCUM ("" where the value says). `need` is the level of requirement as conventions
    have it, `detail` our own level at which the name is told. `spoken` says under which choice of conventions it goes out.
    """

    kind: Kind
    name: str
    description: str
    source: Source
    type: Type | None = None
    unit: str = ""
    need: Need = "recommended"
    detail: Detail = "default"
    spoken: Spoken = "both"
    buckets: tuple[float, ...] = ()


class _More(TypedDict, total=False):
    need: Need
    detail: Detail
    spoken: Spoken


SECTIONS: Final[dict[str, list[Name]]] = {}
"""The rows of the table, by the title of their section."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who defines names: each method adds a row to the section under way, and returns the name."""

    title: str
    stability: Stability = "development"

    def row(self, kind: Kind, name: str, said: str, **more: Unpack[_More]) -> str:
        """Define what has neither type nor unit."""
        return _add(Name(kind, name, said, self, **more))

    def event(self, name: str, said: str, **more: Unpack[_More]) -> str:
        """Define the name of an event."""
        return _add(Name("event", name, said, self, **more))

    def attribute(self, name: str, said: str, type: Type = "string", unit: str = "", **more: Unpack[_More]) -> str:  # noqa: A002 - the convention's word
        """Define an attribute."""
        return _add(Name("attribute", name, said, self, type, unit, **more))

    def counter(self, name: str, said: str, unit: str, **more: Unpack[_More]) -> str:
        """Define a sum that only grows."""
        return _add(Name("counter", name, said, self, None, unit, **more))

    def up_down_counter(self, name: str, said: str, unit: str, **more: Unpack[_More]) -> str:
        """Define a sum that grows and shrinks."""
        return _add(Name("up_down_counter", name, said, self, None, unit, **more))

    def gauge(self, name: str, said: str, unit: str = "", **more: Unpack[_More]) -> str:
        """Define a value of this moment."""
        return _add(Name("gauge", name, said, self, None, unit, **more))

    def histogram(self, name: str, said: str, unit: str, buckets: tuple[float, ...], **more: Unpack[_More]) -> str:
        """Define a distribution."""
        return _add(Name("histogram", name, said, self, None, unit, buckets=buckets, **more))

    def seconds(self, name: str, said: str, buckets: tuple[float, ...] = DURATION_BUCKETS, **more: Unpack[_More]) -> str:
        """Define a distribution of times."""
        return self.histogram(name, said, "s", buckets, **more)


def _section(title: str) -> None:
    SECTIONS[title] = []


def _add(row: Name) -> str:
    SECTIONS[next(reversed(SECTIONS))].append(row)
    return row.name


_OURS: Final = Source("ravi-otel")
_SPANS: Final = Source("semconv 1.41, gen-ai spans")
_AGENTS: Final = Source("semconv 1.41, gen-ai agent spans")
_OPENAI: Final = Source("semconv 1.41, openai")
_EVENTS: Final = Source("semconv 1.41, gen-ai events")
_METRICS: Final = Source("semconv 1.41, gen-ai metrics")
_GENERAL: Final = Source("semconv 1.41, general", "stable")
_IDENTITY: Final = Source("semconv 1.41, general")
_LATEST: Final = Source("gen-ai conventions, main")
_MCP: Final = Source("semconv 1.41, mcp")
_PROPOSAL: Final = Source("gen-ai conventions, open proposal", "proposed")
_LANGFUSE: Final = Source("Langfuse")

_CONDITIONAL: Final = "conditionally_required"
"""Needed wherever there is something to say."""

# fmt: off

_section("Spans")

_SPANS.row("span", "{operation} {model}", "A model call, its retries inside it; kind CLIENT.", need="required")
_AGENTS.row("span", f"{INVOKE_WORKFLOW} {{run}}", "A run; kind INTERNAL.", need="required")
_AGENTS.row("span", f"{INVOKE_AGENT} {{agent}}", "An agent in a run; kind INTERNAL.", need="required")
_AGENTS.row("span", f"{EXECUTE_TOOL} {{tool}}", "A tool call; kind INTERNAL.", need="required")

_MCP.row("span", f"{TOOLS_CALL} {{tool}}",
    "A tool call over MCP, where the SDK makes no span that is heard; else what is known is on that one. Kind CLIENT.", need="required")

_section("Attributes of a model call")

OPERATION_NAME: Final = _SPANS.attribute("gen_ai.operation.name",
    "What is done: chat, embeddings, invoke_agent, execute_tool and others.", need="required")
PROVIDER_NAME: Final = _SPANS.attribute("gen_ai.provider.name",
    "Who is asked, from the client, its host, or the program's own map.", need="required")
REQUEST_MODEL: Final = _SPANS.attribute("gen_ai.request.model", "The model that was asked.", need=_CONDITIONAL)
REQUEST_SEED: Final = _SPANS.attribute("gen_ai.request.seed", "As the request has it.", "int", need=_CONDITIONAL)
REQUEST_CHOICE_COUNT: Final = _SPANS.attribute("gen_ai.request.choice.count",
    "How many answers were asked for, where that is not one.", "int", need=_CONDITIONAL)
REQUEST_STREAM: Final = _SPANS.attribute("gen_ai.request.stream", "True of an answer that comes in pieces.", "boolean", need=_CONDITIONAL)
OUTPUT_TYPE: Final = _SPANS.attribute("gen_ai.output.type", "What was asked for: text, json, image, speech.", need=_CONDITIONAL)
CONVERSATION_ID: Final = _SPANS.attribute("gen_ai.conversation.id",
    "The session the run belongs to; on a call whose provider keeps the conversation, that one's id.", need=_CONDITIONAL)
REQUEST_PREVIOUS_RESPONSE: Final = _SPANS.attribute("gen_ai.request.previous_response.id",
    "The answer that this one goes on from.", need=_CONDITIONAL)
REQUEST_TEMPERATURE: Final = _SPANS.attribute("gen_ai.request.temperature", "As the request has it.", "double")
REQUEST_TOP_P: Final = _SPANS.attribute("gen_ai.request.top_p", "As the request has it.", "double")
REQUEST_TOP_K: Final = _SPANS.attribute("gen_ai.request.top_k", "As the request has it.", "int")
REQUEST_STOP_SEQUENCES: Final = _SPANS.attribute("gen_ai.request.stop_sequences", "As the request has it.", "string[]")
REQUEST_FREQUENCY_PENALTY: Final = _SPANS.attribute("gen_ai.request.frequency_penalty", "As the request has it.", "double")
REQUEST_PRESENCE_PENALTY: Final = _SPANS.attribute("gen_ai.request.presence_penalty", "As the request has it.", "double")
REQUEST_REASONING_LEVEL: Final = _SPANS.attribute("gen_ai.request.reasoning.level", "How much the model is asked to reason.")
RESPONSE_ID: Final = _SPANS.attribute("gen_ai.response.id", "The id of the answer.")
RESPONSE_MODEL: Final = _SPANS.attribute("gen_ai.response.model", "The model that answered.")
RESPONSE_FINISH_REASONS: Final = _SPANS.attribute("gen_ai.response.finish_reasons",
    "Why each choice ended; error where a stream ended early.", "string[]")
RESPONSE_FIRST_CHUNK: Final = _SPANS.attribute("gen_ai.response.time_to_first_chunk",
    "From before the request to the first chunk.", "double", "s")
REQUEST_MAX_TOKENS: Final = _SPANS.attribute("gen_ai.request.max_tokens", "What the request allows for the answer.", "int", "{token}")
USAGE_INPUT: Final = _SPANS.attribute("gen_ai.usage.input_tokens", "Tokens of the input, cached ones included.", "int", "{token}")
USAGE_OUTPUT: Final = _SPANS.attribute("gen_ai.usage.output_tokens", "Tokens of the output, reasoning included.", "int", "{token}")
USAGE_CACHE_READ: Final = _SPANS.attribute("gen_ai.usage.cache_read.input_tokens",
    "Of the input, tokens read from a cache.", "int", "{token}")
USAGE_REASONING: Final = _SPANS.attribute("gen_ai.usage.reasoning.output_tokens", "Of the output, tokens used to reason.", "int", "{token}")
USAGE_CACHE_CREATION: Final = _SPANS.attribute("gen_ai.usage.cache_creation.input_tokens",
    "Of the input, tokens written to a cache.", "int", "{token}", spoken="released")
USAGE_CACHE_WRITE: Final = _LATEST.attribute("gen_ai.usage.cache_write.input_tokens",
    "Of the input, tokens written to a cache.", "int", "{token}", spoken="latest")
USAGE_AUDIO_INPUT: Final = _LATEST.attribute("gen_ai.usage.audio.input_tokens", "Of the input, audio.", "int", "{token}", spoken="latest")
USAGE_AUDIO_OUTPUT: Final = _LATEST.attribute("gen_ai.usage.audio.output_tokens",
    "Of the output, audio.", "int", "{token}", spoken="latest")
USAGE_IMAGE_INPUT: Final = _LATEST.attribute("gen_ai.usage.image.input_tokens", "Of the input, images.", "int", "{token}", spoken="latest")
USAGE_IMAGE_OUTPUT: Final = _LATEST.attribute("gen_ai.usage.image.output_tokens",
    "Of the output, images.", "int", "{token}", spoken="latest")
USAGE_IMAGE_CACHE_READ: Final = _LATEST.attribute("gen_ai.usage.image.cache_read.input_tokens",
    "Of the cached input, images.", "int", "{token}", spoken="latest")
TOKEN_TYPE: Final = _METRICS.attribute("gen_ai.token.type", "Of metrics: input or output.", need="required", spoken="released")
TOKEN_MODALITY: Final = _LATEST.attribute("gen_ai.token.modality",
    "Of metrics: audio, image, or unknown where a provider does not tell them apart.", need="required", spoken="latest")
COST_AMOUNT: Final = _PROPOSAL.attribute("gen_ai.usage.cost.amount", "What the call cost, in the next one's currency.", "double")
COST_CURRENCY: Final = _PROPOSAL.attribute("gen_ai.usage.cost.currency", "USD.")
COST_SOURCE: Final = _PROPOSAL.attribute("gen_ai.usage.cost.source", "local: it was computed here, from tokens and prices.")
LANGFUSE_COST: Final = _LANGFUSE.attribute("gen_ai.usage.cost", "The same to Langfuse, in place of the three before.", "double", "USD")
OPENAI_API_TYPE: Final = _OPENAI.attribute("openai.api.type", "Of OpenAI, at home and on Azure, alone.")
OPENAI_RESPONSE_TIER: Final = _OPENAI.attribute("openai.response.service_tier", "Of OpenAI, at home and on Azure, alone.")
OPENAI_FINGERPRINT: Final = _OPENAI.attribute("openai.response.system_fingerprint", "Of OpenAI, at home and on Azure, alone.")
OPENAI_REQUEST_TIER: Final = _OPENAI.attribute("openai.request.service_tier", "Of OpenAI, at home and on Azure, alone.", need=_CONDITIONAL)
OWN_REQUEST_TIER: Final = _OURS.attribute("ravi.request.service_tier",
    "The tier that was asked for of any other provider; no convention has a name for it.")
OWN_RESPONSE_TIER: Final = _OURS.attribute("ravi.response.service_tier", "The tier by which any other provider answered.")
SERVER_ADDRESS: Final = _GENERAL.attribute("server.address", "The host that is asked.")
SERVER_PORT: Final = _GENERAL.attribute("server.port", "Its port, always.", "int", need=_CONDITIONAL)
EXCEPTION_TYPE: Final = _GENERAL.attribute("exception.type",
    "Of the event of a call that raised: the class of what was raised, with its module.", need=_CONDITIONAL)
ERROR_TYPE: Final = _GENERAL.attribute("error.type",
    "The class of what was raised, or what a body states; of a retry the status its answer had.", need=_CONDITIONAL)
HTTP_STATUS: Final = _GENERAL.attribute("http.response.status_code",
    "What the last answer had, where a call failed by it; on retries and their counter that of the attempt, where an answer "
    "came.", "int", need=_CONDITIONAL)
RESPONSE_HEADER: Final = _GENERAL.attribute("http.response.header.",
    "Prefix: the request's id and the rate limits of an answer, each by its header's name, as a list; no other header. Of a call "
    "that failed or was asked for again; of every call in full detail.", "string[]")
FIRST_CONTENT: Final = _OURS.attribute("ravi.response.time_to_first_content",
    "From before the request to the first chunk that says something.", "double", "s")
USAGE_AUDIO_LENGTH: Final = _OURS.attribute("ravi.usage.audio.duration_s",
    "Sound that was sent, where that is what is billed.", "double", "s")
REQUEST_CHANGES: Final = _OURS.attribute("ravi.request.changes",
    "What we changed in the request, such as asking for its usage.", "string[]", need=_CONDITIONAL)
USAGE_CACHE_WRITE_1H: Final = _OURS.attribute("ravi.usage.cache_write.one_hour.input_tokens",
    "Of the tokens written to a cache, those kept for an hour.", "int", "{token}", need=_CONDITIONAL)
USAGE_REJECTED: Final = _OURS.attribute("ravi.usage.rejected_prediction.output_tokens",
    "Of the output, predicted tokens that were not used, and are billed.", "int", "{token}", need=_CONDITIONAL)
USAGE_TOTAL: Final = _OURS.attribute("ravi.usage.total_tokens",
    "What a provider told as a total alone, which limits of tokens are charged: input and output are not "
    "known.", "int", "{token}", need=_CONDITIONAL)
CHARGED_INPUT: Final = _OURS.attribute("ravi.usage.charged.input_tokens",
    "What limits were charged for a call whose usage nobody told, or its total only.", "int", "{token}", need=_CONDITIONAL)
CHARGED_OUTPUT: Final = _OURS.attribute("ravi.usage.charged.output_tokens", "The same for the output.", "int", "{token}", need=_CONDITIONAL)
CONSUMED_TOKENS: Final = _OURS.attribute("ravi.usage.consumed.tokens",
    "What the program reported with `consume()` in a run or agent, and in none inside it.", "int", "{token}", need=_CONDITIONAL)
CONSUMED_COST: Final = _OURS.attribute("ravi.usage.consumed.cost_usd", "The same of cost.", "double", "USD", need=_CONDITIONAL)
CONSUMED_TURNS: Final = _OURS.attribute("ravi.usage.consumed.turns", "The same of turns.", "int", "{turn}", need=_CONDITIONAL)
OWN_AUDIO_INPUT: Final = _OURS.attribute("ravi.usage.audio.input_tokens",
    "Of the input, audio; the release has no name for it, here and in the next four.", "int", "{token}", spoken="released")
OWN_AUDIO_OUTPUT: Final = _OURS.attribute("ravi.usage.audio.output_tokens", "Of the output, audio.", "int", "{token}", spoken="released")
OWN_IMAGE_INPUT: Final = _OURS.attribute("ravi.usage.image.input_tokens", "Of the input, images.", "int", "{token}", spoken="released")
OWN_IMAGE_OUTPUT: Final = _OURS.attribute("ravi.usage.image.output_tokens", "Of the output, images.", "int", "{token}", spoken="released")
OWN_IMAGE_CACHE_READ: Final = _OURS.attribute("ravi.usage.image.cache_read.input_tokens",
    "Of the cached input, images.", "int", "{token}", spoken="released")
USAGE_SEARCHES: Final = _OURS.attribute("ravi.usage.searches", "Web searches the provider made.", "int", "{search}", need=_CONDITIONAL)
USAGE_CHARACTERS: Final = _OURS.attribute("ravi.usage.characters",
    "Text to be spoken, where that is what is billed.", "int", "{character}", need=_CONDITIONAL)
USAGE_COST: Final = _OURS.attribute("ravi.usage.cost_usd", "What the call cost; left out where that is not known.", "double", "USD")
CHARGED_COST: Final = _OURS.attribute("ravi.usage.charged.cost_usd",
    "What limits were charged for a call whose usage nobody told, or its total only.", "double", "USD", need=_CONDITIONAL)
USAGE_COST_SOURCE: Final = _OURS.attribute("ravi.usage.cost.source", "Where the price is from.", need=_CONDITIONAL)
USAGE_SOURCE: Final = _OURS.attribute("ravi.usage.source",
    "Where tokens are from, if not from the provider: estimated, reserved, pending or unread; of metrics, estimated.", need=_CONDITIONAL)
USAGE_COST_DATE: Final = _OURS.attribute("ravi.usage.cost.table_date",
    "The day the price table is of, or the release it came with; in full detail alone.", need="opt_in", detail="full")
REQUEST_COUNT: Final = _OURS.attribute("ravi.request.count",
    "Requests that a call paid for, where that is not one.", "int", "{request}", need=_CONDITIONAL)

_section("What was said, where it is asked for")

INPUT_MESSAGES: Final = _SPANS.attribute("gen_ai.input.messages", "What the model was asked.", need="opt_in", detail="on request")
OUTPUT_MESSAGES: Final = _SPANS.attribute("gen_ai.output.messages", "What it said.", need="opt_in", detail="on request")
SYSTEM_INSTRUCTIONS: Final = _SPANS.attribute("gen_ai.system_instructions", "What it was told to be.", need="opt_in", detail="on request")
TOOL_DEFINITIONS: Final = _SPANS.attribute("gen_ai.tool.definitions", "The tools it was offered.", need="opt_in", detail="on request")
TOOL_CALL_ARGUMENTS: Final = _AGENTS.attribute("gen_ai.tool.call.arguments", "What a tool was given.", need="opt_in", detail="on request")
TOOL_CALL_RESULT: Final = _AGENTS.attribute("gen_ai.tool.call.result", "What it gave.", need="opt_in", detail="on request")

_section("Attributes of runs, agents and tools")

AGENT_NAME: Final = _AGENTS.attribute("gen_ai.agent.name", "The agent that is at work.", need=_CONDITIONAL)
WORKFLOW_NAME: Final = _AGENTS.attribute("gen_ai.workflow.name", "The name of a run.", need=_CONDITIONAL)
TOOL_NAME: Final = _AGENTS.attribute("gen_ai.tool.name", "The tool that is called.", need="required")
USER_ID: Final = _IDENTITY.attribute("user.id", "Whom the run is done for: `run(user_id=)`.", need=_CONDITIONAL)
GENERAL_SESSION_ID: Final = _IDENTITY.attribute("session.id", "The run's session, as ours says it.", need=_CONDITIONAL)
TOOL_TYPE: Final = _AGENTS.attribute("gen_ai.tool.type", "function.")
TOOL_CALL_ID: Final = _AGENTS.attribute("gen_ai.tool.call.id", "The id under which the model asked for it.")
RUN_ID: Final = _OURS.attribute("ravi.run.id", "The run, on every span of it.", need=_CONDITIONAL)
SESSION_ID: Final = _OURS.attribute("ravi.session.id", "The session the run belongs to.", need=_CONDITIONAL)
TENANT_ID: Final = _OURS.attribute("ravi.tenant.id", "The tenant the run is for.", need=_CONDITIONAL)
AGENT_ID: Final = _OURS.attribute("ravi.agent.id", "The agent in the run.", need=_CONDITIONAL)
AGENT_DEPTH: Final = _OURS.attribute("ravi.agent.depth", "How deep the agent is nested.", "int", need=_CONDITIONAL)
AGENT_PRIORITY: Final = _OURS.attribute("ravi.agent.priority", "The agent's priority.", need=_CONDITIONAL)
SCOPE_ID: Final = _OURS.attribute("ravi.scope.id", "The run's or agent's own id within the process.", need=_CONDITIONAL)
TOOL_INFERRED: Final = _OURS.attribute("ravi.tool.inferred",
    "True of a tool call that nobody saw run: it was asked for, and a later request brought its result.", "boolean", need=_CONDITIONAL)
MCP_METHOD: Final = _MCP.attribute("mcp.method.name", "tools/call, of a tool call over MCP.", need="required")
MCP_PROTOCOL: Final = _MCP.attribute("mcp.protocol.version", "The version of MCP that both sides speak.")
MCP_SESSION: Final = _MCP.attribute("mcp.session.id", "The session's id, over HTTP.")
NETWORK_TRANSPORT: Final = _GENERAL.attribute("network.transport", "pipe of a server that was started, tcp of one over HTTP.")
MCP_SERVER: Final = _OURS.attribute("ravi.mcp.server", "What the server of a tool calls itself.", need=_CONDITIONAL)
TOOL_ABANDONED: Final = _OURS.attribute("ravi.tool.abandoned",
    "True of a tool call that nobody waits for any more, after its time-out, and that may still run in its "
    "thread.", "boolean", need=_CONDITIONAL)
STATUS: Final = _OURS.attribute("ravi.status",
    "How it ended where that is no plain success: error, refused, cancelled, stopped, paused; on metrics of ends also "
    "ok.", need=_CONDITIONAL)
STOP_REASON: Final = _OURS.attribute("ravi.stop_reason",
    "Why a run or agent stopped: on spans as its result has it, on metrics without what follows the colon.", need=_CONDITIONAL)
TAG_PREFIX: Final = _OURS.attribute("ravi.tag.", "Prefix: a run's own tags, each by its key.", need="opt_in", detail="on request")
BUDGET_TOKENS_LIMIT: Final = _OURS.attribute("ravi.budget.tokens.limit", "The token budget of an agent.", "int", "{token}")
BUDGET_TOKENS_USED: Final = _OURS.attribute("ravi.budget.tokens.used", "What is used of it.", "int", "{token}")
BUDGET_COST_LIMIT: Final = _OURS.attribute("ravi.budget.cost_usd.limit", "The cost budget of an agent.", "double", "USD")
BUDGET_COST_USED: Final = _OURS.attribute("ravi.budget.cost_usd.used", "What is used of it.", "double", "USD")
BUDGET_TURNS_LIMIT: Final = _OURS.attribute("ravi.budget.turns.limit", "The turns of an agent.", "int", "{turn}")
BUDGET_TURNS_USED: Final = _OURS.attribute("ravi.budget.turns.used", "What is used of them.", "int", "{turn}")
BUDGET_DEADLINE_LIMIT: Final = _OURS.attribute("ravi.budget.deadline_s.limit", "The time of an agent.", "double", "s")
BUDGET_DEADLINE_USED: Final = _OURS.attribute("ravi.budget.deadline_s.used", "What is used of it.", "double", "s")
RETRY_WAIT: Final = _OURS.attribute("ravi.retry.wait_s", "The pause before a retry.", "double", "s")

_section("Attributes of limits, retries and slots")

LIMIT_DECISION: Final = _OURS.attribute("ravi.limit.decision",
    "What was decided of a call: admitted, denied, observed, or ask.", need=_CONDITIONAL)
LIMIT_EVENT: Final = _OURS.attribute("ravi.limit.event", "Which event is counted: limit_nearing or limit_exceeded.", need=_CONDITIONAL)
LIMIT_KIND: Final = _OURS.attribute("ravi.limit.kind", "What a limit counts.", need=_CONDITIONAL)
LIMIT_SCOPE: Final = _OURS.attribute("ravi.limit.scope", "The kind of scope that has the limit.", need=_CONDITIONAL)
LIMIT_SCOPE_NAME: Final = _OURS.attribute("ravi.limit.scope.name", "The name of that scope.", need=_CONDITIONAL)
LIMIT_PER: Final = _OURS.attribute("ravi.limit.per",
    "How long a window of the limit is: minute, hour, day, week, month, or a time such as 90m.", need=_CONDITIONAL)
LIMIT_WINDOW: Final = _OURS.attribute("ravi.limit.window",
    "Which window of the calendar it is, such as 2026-01-02 of a day.", need=_CONDITIONAL)
LIMIT_BY: Final = _OURS.attribute("ravi.limit.by", "What the limit counts by: user, model, tenant, or a tag.", need=_CONDITIONAL)
LIMIT_COUNTED_FOR: Final = _OURS.attribute("ravi.limit.counted_for",
    "Whose part of such a limit it is; on spans and events, never on a metric.", need=_CONDITIONAL)
LIMIT_RESETS_AT: Final = _OURS.attribute("ravi.limit.resets_at",
    "When a limit with a window is below its warning level again, if nothing more is used: a time in UTC.", need=_CONDITIONAL)
LIMIT_TRACKER: Final = _OURS.attribute("ravi.limit.tracker",
    "Whose limit it is instead, of a tracker that the program feeds: the scope is where. Not in ravi.limit.events.", need=_CONDITIONAL)
LIMIT_SCOPE_ID: Final = _OURS.attribute("ravi.limit.scope.id", "The id of that scope.", need=_CONDITIONAL)
LIMIT_LABEL: Final = _OURS.attribute("ravi.limit.label", "The limit as it is written.", need=_CONDITIONAL)
LIMIT_REASON: Final = _OURS.attribute("ravi.limit.reason", "Why a call was refused, or limits were set aside.", need=_CONDITIONAL)
LIMIT_TRUNCATED: Final = _OURS.attribute("ravi.limit.truncated",
    "True where the answer ended at the output cap that a strict limit put on the request.", "boolean", need=_CONDITIONAL)
LIMIT_EVENTS: Final = _OURS.attribute("ravi.limit.events", "The events a limit has told, in order.", "string[]", need=_CONDITIONAL)
RETRY_COUNT: Final = _OURS.attribute("ravi.retry.count", "Attempts after the first.", "int", need=_CONDITIONAL)
RETRY_ATTEMPT: Final = _OURS.attribute("ravi.retry.attempt", "Which retry it is, from 1.", "int", need=_CONDITIONAL)
SPAWN_OUTCOME: Final = _OURS.attribute("ravi.spawn.outcome", "What became of a request for a slot.", need=_CONDITIONAL)
SPAWN_MOST: Final = _OURS.attribute("ravi.spawn.max_agents",
    "How many agents may be live, where that has a limit.", "int", need=_CONDITIONAL)
DROP_REASON: Final = _OURS.attribute("ravi.telemetry.reason", "Why telemetry was lost.", need=_CONDITIONAL)
HOOK_FAULT: Final = _OURS.attribute("ravi.hook.fault", "What a hook did: raised, slow, late, lost.", need=_CONDITIONAL)
CARRIER_REASON: Final = _OURS.attribute("ravi.carrier.reason", "Why what another process sent was not believed.", need=_CONDITIONAL)
MIDDLEWARE_EFFECT: Final = _OURS.attribute("ravi.middleware.effect",
    "What a middleware did: cache_hit, fell_back, rate_limited, redacted, retried.", need=_CONDITIONAL)
MIDDLEWARE_FALLBACK_FROM: Final = _OURS.attribute("ravi.middleware.fallback_from",
    "The model that failed before another was asked.", need=_CONDITIONAL)
SPAWN_ACTIVE: Final = _OURS.attribute("ravi.spawn.active", "Agents with a slot after it.", "int", "{agent}", need="required")
SPAWN_PAUSED: Final = _OURS.attribute("ravi.spawn.paused", "Agents without theirs after it.", "int", "{agent}", need="required")
LIMIT_REQUESTED: Final = _OURS.attribute("ravi.limit.requested",
    "How much more was asked for, at least, and refused.", "double", need=_CONDITIONAL)
LIMIT_DENIED: Final = _OURS.attribute("ravi.limit.denied", "Calls a limit refused.", "int", "{call}", need=_CONDITIONAL)
LIMIT_GRANTED: Final = _OURS.attribute("ravi.limit.granted",
    "Tokens that were held for a call; in full detail alone.", "int", "{token}", need="opt_in", detail="full")
LIMIT_THRESHOLD: Final = _OURS.attribute("ravi.limit.threshold",
    "The limit's value, in its kind's unit, as the next four.", "double", need="required")
LIMIT_USED: Final = _OURS.attribute("ravi.limit.used", "What is used.", "double", need="required")
LIMIT_HELD: Final = _OURS.attribute("ravi.limit.held", "What is held by calls under way.", "double", need="required")
LIMIT_REMAINING: Final = _OURS.attribute("ravi.limit.remaining", "What is left.", "double", need="required")
LIMIT_EXCEEDED_BY: Final = _OURS.attribute("ravi.limit.exceeded_by",
    "What is used beyond it, or would have been with what was asked for.", "double", need="required")
LIMIT_RATIO: Final = _OURS.attribute("ravi.limit.ratio", "Used over limit.", "double", need="required")
LIMIT_PHASE: Final = _OURS.attribute("ravi.limit.phase", "When it was noticed: admission, settle, stream, timer.", need="required")
LIMIT_ENFORCEMENT: Final = _OURS.attribute("ravi.limit.enforcement", "How far it is enforced: in this process.", need="required")

_section("Attributes of steps, reviews and guardrails")

REVIEW_DECISION: Final = _OURS.attribute("ravi.review.decision",
    "What the gate decided of a tool call or an answer: approve, revise, block, escalate.", need=_CONDITIONAL)
REVIEW_REASON: Final = _OURS.attribute("ravi.review.reason", "Why, as the supervisor spells it.", need=_CONDITIONAL)
REVIEW_EXECUTED_FROM: Final = _OURS.attribute("ravi.review.executed_from",
    "Whose arguments are executed: original, supervisor_revised, human_revised.", need=_CONDITIONAL)
REVIEW_HUMAN_APPROVED: Final = _OURS.attribute("ravi.review.human_approved",
    "Whether a person approved, where one was asked.", "boolean", need=_CONDITIONAL)
REVIEW_ARGS: Final = _OURS.attribute("ravi.review.args_sha256",
    "SHA-256 of the tool and the arguments that were judged.", need=_CONDITIONAL)
STEP_NUMBER: Final = _OURS.attribute("ravi.step.number", "Which step of its agent's loop it is, from 1.", "int", need=_CONDITIONAL)
STEP_PHASE: Final = _OURS.attribute("ravi.step.phase", "Whether the step begins or ends: start, end.", need=_CONDITIONAL)
GUARDRAIL_NAME: Final = _OURS.attribute("ravi.guardrail.name", "Which guardrail stopped it.", need=_CONDITIONAL)
GUARDRAIL_LEVEL: Final = _OURS.attribute("ravi.guardrail.level", "What it stands around: agent, chat, tool.", need=_CONDITIONAL)
GUARDRAIL_STAGE: Final = _OURS.attribute("ravi.guardrail.stage", "What it read: input, output.", need=_CONDITIONAL)
HANDOFF_TO: Final = _OURS.attribute("ravi.handoff.to", "The agent that takes over.", need=_CONDITIONAL)
HANDOFF_MODE: Final = _OURS.attribute("ravi.handoff.mode", "How: handoff, or delegation by an orchestrator.", need=_CONDITIONAL)
REVIEW_RISK: Final = _OURS.attribute("ravi.review.risk_score",
    "How risky the supervisor finds it, 0 to 1; nothing depends on it.", "double")
GUARDRAIL_REASON: Final = _OURS.attribute("ravi.guardrail.reason",
    "What the guardrail says of it; it may quote what was said.", need="opt_in")

_section("Events and values")

DETAILS_EVENT: Final = _EVENTS.event("gen_ai.client.inference.operation.details",
    "What a model was asked, and what it said.", need="opt_in", detail="on request")
EXCEPTION_EVENT: Final = _EVENTS.event("gen_ai.client.operation.exception", "A model call raised.")
NEARING_EVENT: Final = _OURS.event("ravi.limit.nearing", "A limit is near.", need="required")
EXCEEDED_EVENT: Final = _OURS.event("ravi.limit.exceeded", "A limit is exceeded.", need="required")
RETRY_EVENT: Final = _OURS.event("ravi.retry", "A call was tried again, or an agent that crashed.")
MIDDLEWARE_EVENT: Final = _OURS.event("ravi.middleware", "A middleware of an agent did something, on the span around it.")
SUSPENDED_EVENT: Final = _OURS.event("ravi.limit.suspended", "Limits were set aside for a stretch of auxiliary work.")
STATE_EVENT: Final = _OURS.event("ravi.limit.state",
    "Where a limit stood when its run or agent closed, or, on a call, when that ended later.")
ERROR_LIMIT: Final = _OURS.row("value", "ravi.limit_exceeded", "error.type of what a limit refused or cut.", need="required")
STEP_EVENT: Final = _OURS.event("ravi.step", "A step of an agent's loop began or ended, on the agent's span.")
REVIEW_EVENT: Final = _OURS.event("ravi.review", "The gate decided, on the span of the tool or the agent.")
GUARDRAIL_EVENT: Final = _OURS.event("ravi.guardrail.tripped", "A guardrail stopped something, on the span of that.")
HANDOFF_EVENT: Final = _OURS.event("ravi.handoff", "Another agent took over, on the span of who handed over.")
SPAWN_DENIED_EVENT: Final = _OURS.event("ravi.spawn.denied", "An agent got no slot, on the span of who asked; also as a log record.")
SPAWN_PREEMPTED_EVENT: Final = _OURS.event("ravi.spawn.preempted",
    "An agent lost its slot to more urgent work or an operator, on its span; also as a log record.")
SPAWN_RESUMED_EVENT: Final = _OURS.event("ravi.spawn.resumed", "It got one again, on its span; also as a log record.")
ERROR_DENIED: Final = _OURS.row("value", "ravi.tool_denied", "error.type of a tool call that a gate refused.", need="required")
ERROR_PAUSED: Final = _OURS.row("value", "ravi.agent_paused", "error.type of what ended because its agent was preempted.", need="required")

_section("Metrics of model calls")

CALL_DURATION: Final = _METRICS.seconds("gen_ai.client.operation.duration",
    "Duration of a model call, not of a session of many; in the latest convention of one that generates nothing.", need="required")
TOKEN_USAGE: Final = _METRICS.histogram("gen_ai.client.token.usage",
    f"Tokens of a model call; what is our own count has `{USAGE_SOURCE}`.", "{token}", TOKEN_BUCKETS, spoken="released")
FIRST_CHUNK: Final = _METRICS.seconds("gen_ai.client.operation.time_to_first_chunk",
    "Time from the request to the first chunk.", spoken="released")
EACH_CHUNK: Final = _METRICS.seconds("gen_ai.client.operation.time_per_output_chunk",
    "Time from one chunk to the next; which model answers is not known yet.", need="opt_in", spoken="released", detail="on request")
INFERENCE_DURATION: Final = _LATEST.seconds("gen_ai.client.inference.duration",
    "Duration of a call that generates.", need="required", spoken="latest")
INFERENCE_FIRST_CHUNK: Final = _LATEST.seconds("gen_ai.client.inference.time_to_first_chunk",
    "Time from the request to the first chunk.", spoken="latest")
INFERENCE_EACH_CHUNK: Final = _LATEST.seconds("gen_ai.client.inference.time_per_output_chunk",
    "Time from one chunk to the next; which model answers is not known yet.", need="opt_in", spoken="latest", detail="on request")
EMBEDDINGS_DURATION: Final = _LATEST.seconds("gen_ai.client.embeddings.duration", "Duration of an embedding.", spoken="latest")
EMBEDDINGS_INPUT: Final = _LATEST.histogram("gen_ai.client.embeddings.operation.input_tokens",
    f"Tokens of an embedding; what is our own count has `{USAGE_SOURCE}`.", "{token}", TOKEN_BUCKETS, spoken="latest")
INFERENCE_INPUT: Final = _LATEST.histogram("gen_ai.client.inference.operation.input_tokens",
    f"Input tokens of one call; what is our own count has `{USAGE_SOURCE}`.", "{token}", TOKEN_BUCKETS, spoken="latest")
INFERENCE_OUTPUT: Final = _LATEST.histogram("gen_ai.client.inference.operation.output_tokens",
    f"Output tokens of one call; what is our own count has `{USAGE_SOURCE}`.", "{token}", TOKEN_BUCKETS, spoken="latest")
INPUT_COUNT: Final = _LATEST.counter("gen_ai.client.inference.usage.input_tokens",
    f"Input tokens used, cached ones included; what is our own count has `{USAGE_SOURCE}`.", "{token}", spoken="latest")
OUTPUT_COUNT: Final = _LATEST.counter("gen_ai.client.inference.usage.output_tokens",
    f"Output tokens used, reasoning included; what is our own count has `{USAGE_SOURCE}`.", "{token}", spoken="latest")
CACHE_READ_COUNT: Final = _LATEST.counter("gen_ai.client.inference.usage.cache_read.input_tokens",
    "Of the input, tokens read from a cache.", "{token}", spoken="latest")
CACHE_WRITE_COUNT: Final = _LATEST.counter("gen_ai.client.inference.usage.cache_write.input_tokens",
    "Of the input, tokens written to a cache.", "{token}", spoken="latest")
REASONING_COUNT: Final = _LATEST.counter("gen_ai.client.inference.usage.reasoning.output_tokens",
    "Of the output, tokens used to reason.", "{token}", spoken="latest")

_section("Other metrics")

AGENT_DURATION: Final = _LATEST.seconds("gen_ai.invoke_agent.duration", "Duration of an agent's invocation.", RUN_BUCKETS)
AGENT_INFERENCE_CALLS: Final = _LATEST.histogram("gen_ai.invoke_agent.inference_calls",
    "Model calls an agent made.", "{inference_call}", CALL_BUCKETS)
AGENT_TOOL_CALLS: Final = _LATEST.histogram("gen_ai.invoke_agent.tool_calls", "Tool calls an agent made.", "{tool_call}", CALL_BUCKETS)
TOOL_DURATION: Final = _LATEST.seconds("gen_ai.execute_tool.duration", "Duration of a tool call.")
WORKFLOW_DURATION: Final = _LATEST.seconds("gen_ai.invoke_workflow.duration", "Duration of a run.", RUN_BUCKETS)
COST: Final = _OURS.counter("ravi.usage.cost",
    "Cost of model calls with a price, which is of tokens, by agent, model, provider, tenant and tags; an observable sum. What is our "
    f"own count has `{USAGE_SOURCE}`.", "USD")
_OURS.gauge(LIMIT_USED, "Used of the most used active limit, in the kind's unit.")
_OURS.gauge(LIMIT_THRESHOLD, "Value of the most used active limit, in the kind's unit.")
LIMIT_FULLEST_USED: Final = _OURS.gauge("ravi.limit.fullest.used",
    "Used of the ten fullest active scopes of a process by name, of each scope kind, limit kind and window, in the kind's unit. A "
    "session, whose name is an id, is told without it.")
LIMIT_FULLEST_THRESHOLD: Final = _OURS.gauge("ravi.limit.fullest.threshold", "Value of those limits, in the kind's unit.")
LIMIT_FULLEST_WINDOW: Final = _OURS.gauge("ravi.limit.fullest.window",
    "How long a window of those limits lasts, a month 30 days; of limits that have one.", "s")
LIMIT_FINAL_RATIO: Final = _OURS.histogram("ravi.limit.final_ratio", "Used over limit when a scope closed.", "", RATIO_BUCKETS)
_OURS.counter(LIMIT_EVENTS, "Limits that came near or were exceeded.", "{event}", need="required")
_OURS.counter(LIMIT_DENIED, "Refusals by a limit; decision observed: let through.", "{call}")
LIMIT_CONTENDED: Final = _OURS.counter("ravi.limit.contended", "Waits for held budget that were given up.", "{call}")
LIMIT_OVERAGE: Final = _OURS.counter("ravi.limit.overage", "Spend beyond what was granted, in the kind's unit: tokens or USD.", "")
_OURS.counter(LIMIT_TRUNCATED, "Answers that ended at the cap a strict limit put on them.", "{call}")
LIMIT_UNPRICED: Final = _OURS.counter("ravi.limit.unpriced", "Calls without a known price.", "{call}")
LIMIT_UNSCOPED: Final = _OURS.counter("ravi.limit.unscoped", "Calls outside every scope.", "{call}")
LIMIT_SUSPENDED: Final = _OURS.counter(SUSPENDED_EVENT, "Blocks in which limits counted and did not refuse.", "{block}")
LIMIT_STORE_ERRORS: Final = _OURS.counter("ravi.limit.store_errors", "Failures of the store of counters.", "{error}")
AGENT_ACTIVE: Final = _OURS.up_down_counter("ravi.agent.active", "Agents that hold a slot.", "{agent}")
AGENT_PAUSED: Final = _OURS.up_down_counter("ravi.agent.paused", "Agents paused for more urgent work or by an operator.", "{agent}")
REVIEW_DECISIONS: Final = _OURS.counter("ravi.review.decisions", "What a gate decided, by decision, reason and tool.", "{decision}")
RUN_ENDS: Final = _OURS.counter("ravi.run.ends", "Runs that ended, by status and stop reason.", "{run}")
AGENT_ENDS: Final = _OURS.counter("ravi.agent.ends", "Agents that ended, by status and stop reason.", "{agent}")
HANDOFF_COUNT: Final = _OURS.counter("ravi.handoff.count", "Handoffs and delegations, by who and to whom.", "{handoff}")
GUARDRAIL_COUNT: Final = _OURS.counter("ravi.guardrail.count", "Times a guardrail stopped something, by its name.", "{trip}")
STEP_COUNT: Final = _OURS.counter("ravi.step.count", "Steps of agents' loops that ended, by agent and status.", "{step}")
SPAWN_EVENTS: Final = _OURS.counter("ravi.spawn.events", "What became of requests for a slot.", "{event}")
_OURS.counter(RETRY_COUNT,
    "Attempts after the first: of calls by provider and by the status of the answer that was tried again, where one came; of "
    "agents.", "{retry}")
DROPPED: Final = _OURS.counter("ravi.telemetry.dropped", "Telemetry that was lost, by reason.", "{item}")
HOOK_ERRORS: Final = _OURS.counter("ravi.hook.errors", "Faults of hooks, which change nothing in the run, by fault.", "{error}")
CARRIER_REJECTED: Final = _OURS.counter("ravi.carrier.rejected", "What others sent and nobody believed, by reason.", "{carrier}")

_section("Baggage")

CARRIED_ENTRY: Final = _OURS.row("baggage", "ravi.carry",
    "Whose work a request to a listed host is, and what it may use; signed.", need="opt_in", detail="on request")
# fmt: on

TABLE: Final[tuple[Name, ...]] = tuple(row for rows in SECTIONS.values() for row in rows)
METRICS: Final[dict[str, Name]] = {row.name: row for row in TABLE if row.kind in {"histogram", "counter", "up_down_counter", "gauge"}}
"""The rows of metrics, by their names."""


# What is spoken of it, by the environment.

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
TIME_CHUNKS: Final = "RAVI_TIME_PER_OUTPUT_CHUNK"
LIMIT_LOG: Final = "RAVI_LIMIT_LOG"
DETAIL: Final = "RAVI_DETAIL"
DETAILS: Final = ("default", "full")
"""How much is told of a call: what the conventions ask for and dashboards, alerts and commands read, or all that is known."""

_LANGFUSE_PATH: Final = "/api/public/otel"
STEP_SPANS: Final = "RAVI_STEP_SPANS"
_LATEST_OPT_IN: Final = "gen_ai_latest_experimental"
_BOTH_OPT_IN: Final = f"{_LATEST_OPT_IN}/dup"


@dataclass(frozen=True, slots=True)
class Convention:
    """The names of a call's telemetry where conventions differ; made once, read at every call."""

    schema_url: str
    released: bool
    latest: bool


RELEASED: Final = Convention(SCHEMA_URL, released=True, latest=False)
"""The names of semconv 1.41, and ours where it has none."""

LATEST: Final = Convention(LATEST_SCHEMA_URL, released=False, latest=True)
"""The names of the GenAI conventions' main branch."""

BOTH: Final = Convention(LATEST_SCHEMA_URL, released=True, latest=True)
"""Every name of either; the schema is the later one's."""


def chosen_convention(environ: Mapping[str, str] = os.environ) -> Convention:
    """Read `OTEL_SEMCONV_STABILITY_OPT_IN`, a list with commas; what others are to read in it is passed over, both go before one."""
    asked = {part.strip().lower() for part in environ.get(OPT_IN, "").split(",")}
    if _BOTH_OPT_IN in asked:
        return BOTH
    return LATEST if _LATEST_OPT_IN in asked else RELEASED


def times_chunks(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every chunk of a stream is to be timed (`RAVI_TIME_PER_OUTPUT_CHUNK=on`)."""
    return switch(environ, TIME_CHUNKS, default=False, safe=False)


def spans_steps(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether each step of an agent's loop is to have a span of its own (`RAVI_STEP_SPANS=on`)."""
    return switch(environ, STEP_SPANS, default=False, safe=False)


def logs_json(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the lines of the logger `ravi_otel.limits` are JSON (`RAVI_LIMIT_LOG=json`) and not sentences (`text`)."""
    return environ_choice(environ, LIMIT_LOG, ("text", "json")) == "json"


def tells_all(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether all that is known of a call is told (`RAVI_DETAIL=full`), and not only what others read (`default`)."""
    return environ_choice(environ, DETAIL, DETAILS) == "full"


def goes_to_langfuse(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans go to Langfuse, by its endpoint or its key.

    It takes every number under `gen_ai.usage.` but `gen_ai.usage.cost` for a count, and drops all the counts of a call of which one is
    no whole number.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return _LANGFUSE_PATH in endpoint or bool(environ.get("LANGFUSE_PUBLIC_KEY"))
