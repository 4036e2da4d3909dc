"""Describe every name that goes out: what it is, in which unit, how needed, who defines it, and what it says.

The page `docs/semantic-conventions.md` is written from this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ravi_otel._telemetry import semconv

Instrument = Literal["span", "attribute", "event", "histogram", "counter", "up_down_counter", "gauge", "value", "baggage"]
Level = Literal["required", "conditionally_required", "recommended", "opt_in"]
Convention = Literal["both", "released", "latest"]

_SPANS: Final = "semconv 1.41, gen-ai spans"
_AGENTS: Final = "semconv 1.41, gen-ai agent spans"
_OPENAI: Final = "semconv 1.41, openai"
_EVENTS: Final = "semconv 1.41, gen-ai events"
_METRICS: Final = "semconv 1.41, gen-ai metrics"
_GENERAL: Final = "semconv 1.41, general"
_LATEST: Final = "gen-ai conventions, main"
_PROPOSAL: Final = "gen-ai conventions, open proposal"
_OURS: Final = "ravi-otel"


@dataclass(frozen=True, slots=True)
class Name:
    """Describe one name: `instrument` says what it is, `unit` is UCUM ("" where the value says), `source` who defines it.

    `convention` says under which choice of conventions it goes out.
    """

    name: str
    instrument: Instrument
    unit: str
    level: Level
    source: str
    description: str = ""
    buckets: tuple[float, ...] = ()
    convention: Convention = "both"


def _attributes(source: str, level: Level, *names: str, unit: str = "", convention: Convention = "both") -> Iterator[Name]:
    return (Name(name, "attribute", unit, level, source, convention=convention) for name in names)


def _own(level: Level, unit: str, **described: str) -> Iterator[Name]:
    """Give our own attributes, by the name of their constant."""
    return (Name(getattr(semconv, constant), "attribute", unit, level, _OURS, said) for constant, said in described.items())


_CALL_SPANS: Final = (
    Name("{operation} {model}", "span", "", "required", _SPANS, "A model call, its retries inside it; kind CLIENT."),
    Name(f"{semconv.INVOKE_WORKFLOW} {{run}}", "span", "", "required", _AGENTS, "A run; kind INTERNAL."),
    Name(f"{semconv.INVOKE_AGENT} {{agent}}", "span", "", "required", _AGENTS, "An agent in a run; kind INTERNAL."),
    Name(f"{semconv.EXECUTE_TOOL} {{tool}}", "span", "", "required", _AGENTS, "A tool call; kind INTERNAL."),
)

_OPENAI_ROWS: Final[tuple[tuple[str, Level], ...]] = (
    (semconv.OPENAI_API_TYPE, "recommended"),
    (semconv.OPENAI_RESPONSE_TIER, "recommended"),
    (semconv.OPENAI_FINGERPRINT, "recommended"),
    (semconv.OPENAI_REQUEST_TIER, "conditionally_required"),
)

_CALL_ATTRIBUTES: Final = (
    *_attributes(_SPANS, "required", semconv.OPERATION_NAME, semconv.PROVIDER_NAME),
    *_attributes(_SPANS, "conditionally_required", semconv.REQUEST_MODEL, semconv.REQUEST_SEED, semconv.REQUEST_CHOICE_COUNT),
    *_attributes(_SPANS, "conditionally_required", semconv.REQUEST_STREAM, semconv.OUTPUT_TYPE),
    Name(
        semconv.CONVERSATION_ID, "attribute", "", "conditionally_required", _SPANS,
        "The session the run belongs to; on a call whose provider keeps the conversation, that one's id.",
    ),
    *_attributes(_SPANS, "conditionally_required", semconv.REQUEST_PREVIOUS_RESPONSE),
    *_attributes(_SPANS, "recommended", semconv.REQUEST_TEMPERATURE, semconv.REQUEST_TOP_P, semconv.REQUEST_TOP_K),
    *_attributes(_SPANS, "recommended", semconv.REQUEST_STOP_SEQUENCES, semconv.REQUEST_FREQUENCY_PENALTY),
    *_attributes(_SPANS, "recommended", semconv.REQUEST_PRESENCE_PENALTY, semconv.REQUEST_REASONING_LEVEL),
    *_attributes(_SPANS, "recommended", semconv.RESPONSE_ID, semconv.RESPONSE_MODEL, semconv.RESPONSE_FINISH_REASONS),
    *_attributes(_SPANS, "recommended", semconv.RESPONSE_FIRST_CHUNK, unit="s"),
    *_attributes(_SPANS, "recommended", semconv.REQUEST_MAX_TOKENS, semconv.USAGE_INPUT, semconv.USAGE_OUTPUT, unit="{token}"),
    *_attributes(_SPANS, "recommended", semconv.USAGE_CACHE_READ, semconv.USAGE_REASONING, unit="{token}"),
    *_attributes(_SPANS, "recommended", semconv.USAGE_CACHE_CREATION, unit="{token}", convention="released"),
    *_attributes(_LATEST, "recommended", semconv.USAGE_CACHE_WRITE, semconv.USAGE_AUDIO_INPUT, unit="{token}", convention="latest"),
    *_attributes(_LATEST, "recommended", semconv.USAGE_AUDIO_OUTPUT, semconv.USAGE_IMAGE_INPUT, unit="{token}", convention="latest"),
    *_attributes(_LATEST, "recommended", semconv.USAGE_IMAGE_OUTPUT, semconv.USAGE_IMAGE_CACHE_READ, unit="{token}", convention="latest"),
    *_attributes(_METRICS, "required", semconv.TOKEN_TYPE, convention="released"),
    *_attributes(_LATEST, "required", semconv.TOKEN_MODALITY, convention="latest"),
    Name(semconv.COST_AMOUNT, "attribute", "", "recommended", _PROPOSAL, "What the call cost, in the next one's currency."),
    Name(semconv.COST_CURRENCY, "attribute", "", "recommended", _PROPOSAL, "USD."),
    Name(semconv.COST_SOURCE, "attribute", "", "recommended", _PROPOSAL, "local: it was computed here, from tokens and prices."),
    Name(semconv.LANGFUSE_COST, "attribute", "USD", "recommended", "Langfuse", "The same to Langfuse, in place of the three before."),
    *(
        Name(name, "attribute", "", level, _OPENAI, "Of OpenAI, at home and on Azure, alone.")
        for name, level in _OPENAI_ROWS
    ),
    *_own(
        "recommended", "",
        OWN_REQUEST_TIER="The tier that was asked for of any other provider; no convention has a name for it.",
        OWN_RESPONSE_TIER="The tier by which any other provider answered.",
    ),
    *_attributes(_GENERAL, "recommended", semconv.SERVER_ADDRESS),
    *_attributes(_GENERAL, "conditionally_required", semconv.SERVER_PORT, semconv.EXCEPTION_TYPE),
    Name(
        semconv.ERROR_TYPE, "attribute", "", "conditionally_required", _GENERAL,
        "The class of what was raised, or what a body states; of a retry the status its answer had.",
    ),
    Name(
        semconv.HTTP_STATUS, "attribute", "", "conditionally_required", _GENERAL,
        "What the last answer had, where a call failed by it; on retries and their counter that of the attempt, where an answer came.",
    ),
    Name(
        semconv.RESPONSE_HEADER, "attribute", "", "recommended", _GENERAL,
        "Prefix: the request's id and the rate limits of an answer, each by its header's name, as a list; no other header. Of a call "
        "that failed or was asked for again; of every call in full detail.",
    ),
    *_own(
        "recommended", "s",
        FIRST_CONTENT="From before the request to the first chunk that says something.",
        USAGE_AUDIO_LENGTH="Sound that was sent, where that is what is billed.",
    ),
    *_own("conditionally_required", "", REQUEST_CHANGES="What we changed in the request, such as asking for its usage."),
    *_own(
        "conditionally_required", "{token}",
        USAGE_CACHE_WRITE_1H="Of the tokens written to a cache, those kept for an hour.",
        USAGE_REJECTED="Of the output, predicted tokens that were not used, and are billed.",
        USAGE_TOTAL="What a provider told as a total alone, which limits of tokens are charged: input and output are not known.",
        CHARGED_INPUT="What limits were charged for a call whose usage nobody told, or its total only.",
        CHARGED_OUTPUT="The same for the output.",
    ),
    *(
        Name(name, "attribute", "{token}", "recommended", _OURS, said, convention="released")
        for name, said in (
            (semconv.OWN_AUDIO_INPUT, "Of the input, audio; the release has no name for it, here and in the next four."),
            (semconv.OWN_AUDIO_OUTPUT, "Of the output, audio."),
            (semconv.OWN_IMAGE_INPUT, "Of the input, images."),
            (semconv.OWN_IMAGE_OUTPUT, "Of the output, images."),
            (semconv.OWN_IMAGE_CACHE_READ, "Of the cached input, images."),
        )
    ),
    *_own("conditionally_required", "{search}", USAGE_SEARCHES="Web searches the provider made."),
    *_own("conditionally_required", "{character}", USAGE_CHARACTERS="Text to be spoken, where that is what is billed."),
    *_own("recommended", "USD", USAGE_COST="What the call cost; left out where that is not known."),
    *_own("conditionally_required", "USD", CHARGED_COST="What limits were charged for a call whose usage nobody told, or its total only."),
    *_own(
        "conditionally_required", "",
        USAGE_COST_SOURCE="Where the price is from.",
        USAGE_SOURCE="Where tokens are from, if not from the provider: estimated, reserved, pending or unread; of metrics, estimated.",
    ),
    *_own("opt_in", "", USAGE_COST_DATE="The day the price table is of, or the release it came with; in full detail alone."),
    *_own("conditionally_required", "{request}", REQUEST_COUNT="Requests that a call paid for, where that is not one."),
)  # fmt: skip

_CONTENT_ATTRIBUTES: Final = (
    *_attributes(_SPANS, "opt_in", semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS),
    *_attributes(_SPANS, "opt_in", semconv.TOOL_DEFINITIONS),
    *_attributes(_AGENTS, "opt_in", semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT),
)

_RUN_ATTRIBUTES: Final = (
    *_attributes(_AGENTS, "conditionally_required", semconv.AGENT_NAME, semconv.WORKFLOW_NAME),
    *_attributes(_AGENTS, "required", semconv.TOOL_NAME),
    Name(semconv.USER_ID, "attribute", "", "conditionally_required", _GENERAL, "Whom the run is done for: `run(user_id=)`."),
    Name(semconv.GENERAL_SESSION_ID, "attribute", "", "conditionally_required", _GENERAL, "The run's session, as ours says it."),
    *_attributes(_AGENTS, "recommended", semconv.TOOL_TYPE, semconv.TOOL_CALL_ID),
    *_own(
        "conditionally_required", "",
        RUN_ID="The run, on every span of it.",
        SESSION_ID="The session the run belongs to.",
        TENANT_ID="The tenant the run is for.",
        AGENT_ID="The agent in the run.",
        AGENT_DEPTH="How deep the agent is nested.",
        AGENT_PRIORITY="The agent's priority.",
        SCOPE_ID="The run's or agent's own id within the process.",
        TOOL_INFERRED="True of a tool call that nobody saw run: it was asked for, and a later request brought its result.",
        TOOL_ABANDONED="True of a tool call that nobody waits for any more, after its time-out, and that may still run in its thread.",
        STATUS="How it ended where that is no plain success: error, refused, cancelled, stopped, paused; on metrics of ends also ok.",
        STOP_REASON="Why a run or agent stopped: on spans as its result has it, on metrics without what follows the colon.",
    ),
    *_own("opt_in", "", TAG_PREFIX="Prefix: a run's own tags, each by its key."),
    *_own(
        "recommended", "{token}",
        BUDGET_TOKENS_LIMIT="The token budget of an agent.",
        BUDGET_TOKENS_USED="What is used of it.",
    ),
    *_own("recommended", "USD", BUDGET_COST_LIMIT="The cost budget of an agent.", BUDGET_COST_USED="What is used of it."),
    *_own("recommended", "{turn}", BUDGET_TURNS_LIMIT="The turns of an agent.", BUDGET_TURNS_USED="What is used of them."),
    *_own(
        "recommended", "s",
        BUDGET_DEADLINE_LIMIT="The time of an agent.",
        BUDGET_DEADLINE_USED="What is used of it.",
        RETRY_WAIT="The pause before a retry.",
    ),
)  # fmt: skip

_LIMIT_ATTRIBUTES: Final = (
    *_own(
        "conditionally_required", "",
        LIMIT_DECISION="What was decided of a call: admitted, denied, or observed.",
        LIMIT_EVENT="Which event is counted: limit_nearing or limit_exceeded.",
        LIMIT_KIND="What a limit counts.",
        LIMIT_SCOPE="The kind of scope that has the limit.",
        LIMIT_SCOPE_NAME="The name of that scope.",
        LIMIT_PER="How long a window of the limit is: minute, hour, day, week, month, or a time such as 90m.",
        LIMIT_WINDOW="Which window of the calendar it is, such as 2026-01-02 of a day.",
        LIMIT_BY="What the limit counts by: user, model, tenant, or a tag.",
        LIMIT_COUNTED_FOR="Whose part of such a limit it is; on spans and events, never on a metric.",
        LIMIT_RESETS_AT="When a limit with a window is below its warning level again, if nothing more is used: a time in UTC.",
        LIMIT_TRACKER="Whose limit it is instead, of a tracker that the program feeds: the scope is where. Not in ravi.limit.events.",
        LIMIT_SCOPE_ID="The id of that scope.",
        LIMIT_LABEL="The limit as it is written.",
        LIMIT_REASON="Why a call was refused, or limits were set aside.",
        LIMIT_TRUNCATED="True where the answer ended at the output cap that a strict limit put on the request.",
        LIMIT_EVENTS="The events a limit has told, in order.",
        RETRY_COUNT="Attempts after the first.",
        RETRY_ATTEMPT="Which retry it is, from 1.",
        SPAWN_OUTCOME="What became of a request for a slot.",
        SPAWN_MOST="How many agents may be live, where that has a limit.",
        DROP_REASON="Why telemetry was lost.",
        HOOK_FAULT="What a hook did: raised, slow, late, lost.",
        CARRIER_REASON="Why what another process sent was not believed.",
        MIDDLEWARE_EFFECT="What a middleware did: cache_hit, fell_back, rate_limited, redacted, retried.",
        MIDDLEWARE_FALLBACK_FROM="The model that failed before another was asked.",
    ),
    *_own("required", "{agent}", SPAWN_ACTIVE="Agents with a slot after it.", SPAWN_PAUSED="Agents without theirs after it."),
    *_own("conditionally_required", "", LIMIT_REQUESTED="How much more was asked for, at least, and refused."),
    *_own("conditionally_required", "{call}", LIMIT_DENIED="Calls a limit refused."),
    *_own("opt_in", "{token}", LIMIT_GRANTED="Tokens that were held for a call; in full detail alone."),
    *_own(
        "required", "",
        LIMIT_THRESHOLD="The limit's value, in its kind's unit, as the next four.",
        LIMIT_USED="What is used.",
        LIMIT_HELD="What is held by calls under way.",
        LIMIT_REMAINING="What is left.",
        LIMIT_EXCEEDED_BY="What is used beyond it, or would have been with what was asked for.",
        LIMIT_RATIO="Used over limit.",
        LIMIT_PHASE="When it was noticed: admission, settle, stream, timer.",
        LIMIT_ENFORCEMENT="How far it is enforced: in this process.",
    ),
)  # fmt: skip

_LOOP_ATTRIBUTES: Final = (
    *_own(
        "conditionally_required", "",
        REVIEW_DECISION="What the gate decided of a tool call or an answer: approve, revise, block, escalate.",
        REVIEW_REASON="Why, as the supervisor spells it.",
        REVIEW_EXECUTED_FROM="Whose arguments are executed: original, supervisor_revised, human_revised.",
        REVIEW_HUMAN_APPROVED="Whether a person approved, where one was asked.",
        REVIEW_ARGS="SHA-256 of the tool and the arguments that were judged.",
        STEP_NUMBER="Which step of its agent's loop it is, from 1.",
        STEP_PHASE="Whether the step begins or ends: start, end.",
        GUARDRAIL_NAME="Which guardrail stopped it.",
        GUARDRAIL_LEVEL="What it stands around: agent, chat, tool.",
        GUARDRAIL_STAGE="What it read: input, output.",
        HANDOFF_TO="The agent that takes over.",
        HANDOFF_MODE="How: handoff, or delegation by an orchestrator.",
    ),
    *_own("recommended", "", REVIEW_RISK="How risky the supervisor finds it, 0 to 1; nothing depends on it."),
    *_own("opt_in", "", GUARDRAIL_REASON="What the guardrail says of it; it may quote what was said."),
)  # fmt: skip

_EVENT_ROWS: Final = (
    Name(semconv.DETAILS_EVENT, "event", "", "opt_in", _EVENTS, "What a model was asked, and what it said."),
    Name(semconv.EXCEPTION_EVENT, "event", "", "recommended", _EVENTS, "A model call raised."),
    Name(semconv.NEARING_EVENT, "event", "", "required", _OURS, "A limit is near."),
    Name(semconv.EXCEEDED_EVENT, "event", "", "required", _OURS, "A limit is exceeded."),
    Name(semconv.RETRY_EVENT, "event", "", "recommended", _OURS, "A call was tried again, or an agent that crashed."),
    Name(semconv.MIDDLEWARE_EVENT, "event", "", "recommended", _OURS, "A middleware of an agent did something, on the span around it."),
    Name(semconv.SUSPENDED_EVENT, "event", "", "recommended", _OURS, "Limits were set aside for a stretch of auxiliary work."),
    Name(
        semconv.STATE_EVENT,
        "event",
        "",
        "recommended",
        _OURS,
        "Where a limit stood when its run or agent closed, or, on a call, when that ended later.",
    ),
    Name(semconv.ERROR_LIMIT, "value", "", "required", _OURS, "error.type of what a limit refused or cut."),
    Name(semconv.STEP_EVENT, "event", "", "recommended", _OURS, "A step of an agent's loop began or ended, on the agent's span."),
    Name(semconv.REVIEW_EVENT, "event", "", "recommended", _OURS, "The gate decided, on the span of the tool or the agent."),
    Name(semconv.GUARDRAIL_EVENT, "event", "", "recommended", _OURS, "A guardrail stopped something, on the span of that."),
    Name(semconv.HANDOFF_EVENT, "event", "", "recommended", _OURS, "Another agent took over, on the span of who handed over."),
    Name(
        semconv.SPAWN_DENIED_EVENT, "event", "", "recommended", _OURS,
        "An agent got no slot, on the span of who asked; also as a log record.",
    ),
    Name(
        semconv.SPAWN_PREEMPTED_EVENT, "event", "", "recommended", _OURS,
        "An agent lost its slot to more urgent work or an operator, on its span; also as a log record.",
    ),
    Name(semconv.SPAWN_RESUMED_EVENT, "event", "", "recommended", _OURS, "It got one again, on its span; also as a log record."),
    Name(semconv.ERROR_DENIED, "value", "", "required", _OURS, "error.type of a tool call that a gate refused."),
    Name(semconv.ERROR_PAUSED, "value", "", "required", _OURS, "error.type of what ended because its agent was preempted."),
)  # fmt: skip


def _seconds(name: str, level: Level, source: str, said: str, convention: Convention) -> Name:
    return Name(name, "histogram", "s", level, source, said, semconv.DURATION_BUCKETS, convention)


def _tokens(name: str, said: str) -> Name:
    return Name(name, "histogram", "{token}", "recommended", _LATEST, said, semconv.TOKEN_BUCKETS, "latest")


def _count(name: str, said: str) -> Name:
    return Name(name, "counter", "{token}", "recommended", _LATEST, said, convention="latest")


_MARKED: Final = f"what is our own count has `{semconv.USAGE_SOURCE}`"
_EACH: Final = "Time from one chunk to the next; which model answers is not known yet."

_CALL_METRICS: Final = (
    Name(
        semconv.CALL_DURATION, "histogram", "s", "required", _METRICS,
        "Duration of a model call, not of a session of many; in the latest convention of one that generates nothing.",
        semconv.DURATION_BUCKETS,
    ),
    Name(
        semconv.TOKEN_USAGE, "histogram", "{token}", "recommended", _METRICS,
        f"Tokens of a model call; {_MARKED}.", semconv.TOKEN_BUCKETS, "released",
    ),
    _seconds(semconv.FIRST_CHUNK, "recommended", _METRICS, "Time from the request to the first chunk.", "released"),
    _seconds(semconv.EACH_CHUNK, "opt_in", _METRICS, _EACH, "released"),
    _seconds(semconv.INFERENCE_DURATION, "required", _LATEST, "Duration of a call that generates.", "latest"),
    _seconds(semconv.INFERENCE_FIRST_CHUNK, "recommended", _LATEST, "Time from the request to the first chunk.", "latest"),
    _seconds(semconv.INFERENCE_EACH_CHUNK, "opt_in", _LATEST, _EACH, "latest"),
    _seconds(semconv.EMBEDDINGS_DURATION, "recommended", _LATEST, "Duration of an embedding.", "latest"),
    _tokens(semconv.EMBEDDINGS_INPUT, f"Tokens of an embedding; {_MARKED}."),
    _tokens(semconv.INFERENCE_INPUT, f"Input tokens of one call; {_MARKED}."),
    _tokens(semconv.INFERENCE_OUTPUT, f"Output tokens of one call; {_MARKED}."),
    _count(semconv.INPUT_COUNT, f"Input tokens used, cached ones included; {_MARKED}."),
    _count(semconv.OUTPUT_COUNT, f"Output tokens used, reasoning included; {_MARKED}."),
    _count(semconv.CACHE_READ_COUNT, "Of the input, tokens read from a cache."),
    _count(semconv.CACHE_WRITE_COUNT, "Of the input, tokens written to a cache."),
    _count(semconv.REASONING_COUNT, "Of the output, tokens used to reason."),
)  # fmt: skip

_OTHER_METRICS: Final = (
    Name(semconv.AGENT_DURATION, "histogram", "s", "recommended", _LATEST, "Duration of an agent's invocation.", semconv.RUN_BUCKETS),
    Name(
        semconv.AGENT_INFERENCE_CALLS, "histogram", "{inference_call}", "recommended", _LATEST,
        "Model calls an agent made.", semconv.CALL_BUCKETS,
    ),
    Name(semconv.AGENT_TOOL_CALLS, "histogram", "{tool_call}", "recommended", _LATEST, "Tool calls an agent made.", semconv.CALL_BUCKETS),
    Name(semconv.TOOL_DURATION, "histogram", "s", "recommended", _LATEST, "Duration of a tool call.", semconv.DURATION_BUCKETS),
    Name(semconv.WORKFLOW_DURATION, "histogram", "s", "recommended", _LATEST, "Duration of a run.", semconv.RUN_BUCKETS),
    Name(semconv.COST, "counter", "USD", "recommended", _OURS, f"Cost of model calls with a price, which is of tokens; {_MARKED}."),
    Name(semconv.LIMIT_USED, "gauge", "", "recommended", _OURS, "Used of the most used active limit, in the kind's unit."),
    Name(semconv.LIMIT_THRESHOLD, "gauge", "", "recommended", _OURS, "Value of the most used active limit, in the kind's unit."),
    Name(
        semconv.LIMIT_FULLEST_USED, "gauge", "", "recommended", _OURS,
        "Used of the ten fullest active scopes of a process by name, of each scope kind, limit kind and window, in the kind's unit. "
        "A session, whose name is an id, is told without it.",
    ),
    Name(semconv.LIMIT_FULLEST_THRESHOLD, "gauge", "", "recommended", _OURS, "Value of those limits, in the kind's unit."),
    Name(
        semconv.LIMIT_FULLEST_WINDOW, "gauge", "s", "recommended", _OURS,
        "How long a window of those limits lasts, a month 30 days; of limits that have one.",
    ),
    Name(semconv.LIMIT_FINAL_RATIO, "histogram", "", "recommended", _OURS, "Used over limit when a scope closed.", semconv.RATIO_BUCKETS),
    Name(semconv.LIMIT_EVENTS, "counter", "{event}", "required", _OURS, "Limits that came near or were exceeded."),
    Name(semconv.LIMIT_DENIED, "counter", "{call}", "recommended", _OURS, "Refusals by a limit; decision observed: let through."),
    Name(semconv.LIMIT_CONTENDED, "counter", "{call}", "recommended", _OURS, "Waits for held budget that were given up."),
    Name(
        semconv.LIMIT_OVERAGE, "counter", "", "recommended", _OURS,
        "Spend beyond what was granted, in the kind's unit: tokens or USD.",
    ),
    Name(semconv.LIMIT_TRUNCATED, "counter", "{call}", "recommended", _OURS, "Answers that ended at the cap a strict limit put on them."),
    Name(semconv.LIMIT_UNPRICED, "counter", "{call}", "recommended", _OURS, "Calls without a known price."),
    Name(semconv.LIMIT_UNSCOPED, "counter", "{call}", "recommended", _OURS, "Calls outside every scope."),
    Name(semconv.LIMIT_SUSPENDED, "counter", "{block}", "recommended", _OURS, "Blocks in which limits counted and did not refuse."),
    Name(semconv.LIMIT_STORE_ERRORS, "counter", "{error}", "recommended", _OURS, "Failures of the store of counters."),
    Name(semconv.AGENT_ACTIVE, "up_down_counter", "{agent}", "recommended", _OURS, "Agents that hold a slot."),
    Name(semconv.AGENT_PAUSED, "up_down_counter", "{agent}", "recommended", _OURS, "Agents paused for more urgent work or by an operator."),
    Name(semconv.REVIEW_DECISIONS, "counter", "{decision}", "recommended", _OURS, "What a gate decided, by decision, reason and tool."),
    Name(semconv.RUN_ENDS, "counter", "{run}", "recommended", _OURS, "Runs that ended, by status and stop reason."),
    Name(semconv.AGENT_ENDS, "counter", "{agent}", "recommended", _OURS, "Agents that ended, by status and stop reason."),
    Name(semconv.HANDOFF_COUNT, "counter", "{handoff}", "recommended", _OURS, "Handoffs and delegations, by who and to whom."),
    Name(semconv.GUARDRAIL_COUNT, "counter", "{trip}", "recommended", _OURS, "Times a guardrail stopped something, by its name."),
    Name(semconv.STEP_COUNT, "counter", "{step}", "recommended", _OURS, "Steps of agents' loops that ended, by agent and status."),
    Name(semconv.SPAWN_EVENTS, "counter", "{event}", "recommended", _OURS, "What became of requests for a slot."),
    Name(
        semconv.RETRY_COUNT, "counter", "{retry}", "recommended", _OURS,
        "Attempts after the first: of calls by provider and by the status of the answer that was tried again, where one came; of agents.",
    ),
    Name(semconv.DROPPED, "counter", "{item}", "recommended", _OURS, "Telemetry that was lost, by reason."),
    Name(semconv.HOOK_ERRORS, "counter", "{error}", "recommended", _OURS, "Faults of hooks, which change nothing in the run, by fault."),
    Name(semconv.CARRIER_REJECTED, "counter", "{carrier}", "recommended", _OURS, "What others sent and nobody believed, by reason."),
)  # fmt: skip

_BAGGAGE: Final = (
    Name(semconv.CARRIED_ENTRY, "baggage", "", "opt_in", _OURS, "Whose work a request to a listed host is, and what it may use; signed."),
)

SECTIONS: Final[dict[str, tuple[Name, ...]]] = {
    "Spans": _CALL_SPANS,
    "Attributes of a model call": _CALL_ATTRIBUTES,
    "What was said, where it is asked for": _CONTENT_ATTRIBUTES,
    "Attributes of runs, agents and tools": _RUN_ATTRIBUTES,
    "Attributes of limits, retries and slots": _LIMIT_ATTRIBUTES,
    "Attributes of steps, reviews and guardrails": _LOOP_ATTRIBUTES,
    "Events and values": _EVENT_ROWS,
    "Metrics of model calls": _CALL_METRICS,
    "Other metrics": _OTHER_METRICS,
    "Baggage": _BAGGAGE,
}

TABLE: Final[tuple[Name, ...]] = tuple(row for rows in SECTIONS.values() for row in rows)
METRICS: Final[dict[str, Name]] = {row.name: row for row in (*_CALL_METRICS, *_OTHER_METRICS)}
