"""Write a model call as attributes of the released GenAI convention, at its start and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.util.types import AttributeValue

from ravi_otel.hooks.records import CallRecord
from ravi_otel.policy.limits import NANO
from ravi_otel.policy.usage import Call, Reply, Usage
from ravi_otel.telemetry import semconv
from ravi_otel.telemetry.cardinality import finite, integer, text, word, words

_API_TYPES: Final = {"chat.completions": "chat_completions", "responses": "responses"}

_PARAMETERS: Final[dict[str, tuple[str, Callable[[object], AttributeValue | None]]]] = {
    "max_tokens": (semconv.REQUEST_MAX_TOKENS, integer),
    "temperature": (semconv.REQUEST_TEMPERATURE, finite),
    "top_p": (semconv.REQUEST_TOP_P, finite),
    "top_k": (semconv.REQUEST_TOP_K, integer),
    "frequency_penalty": (semconv.REQUEST_FREQUENCY_PENALTY, finite),
    "presence_penalty": (semconv.REQUEST_PRESENCE_PENALTY, finite),
    "stop_sequences": (semconv.REQUEST_STOP_SEQUENCES, words),
    "seed": (semconv.REQUEST_SEED, integer),
    "reasoning_level": (semconv.REQUEST_REASONING_LEVEL, word),
    "output_type": (semconv.OUTPUT_TYPE, word),
    "conversation_id": (semconv.CONVERSATION_ID, word),
    "service_tier": (semconv.OPENAI_REQUEST_TIER, word),
}
"""The neutral names of `Call.parameters`; a value of another type than the convention's is left out."""


def start_attributes(call: Call) -> dict[str, AttributeValue]:
    """Give what a call's parameters and options add to its span."""
    attributes: dict[str, AttributeValue] = {}
    if call.parameters:
        _add_parameters(attributes, call.parameters)
    if call.stream:
        attributes[semconv.REQUEST_STREAM] = True
    if call.choices != 1:
        attributes[semconv.REQUEST_CHOICE_COUNT] = call.choices
    if call.previous_response_id is not None:
        attributes[semconv.REQUEST_PREVIOUS_RESPONSE] = text(call.previous_response_id)
    return attributes


def _add_parameters(attributes: dict[str, AttributeValue], parameters: Mapping[str, Any]) -> None:
    for neutral, given in parameters.items():
        known = _PARAMETERS.get(neutral)
        if known is not None:
            value = known[1](given)
            if value is not None:
                attributes[known[0]] = value


def api_type(endpoint: str) -> str | None:
    """Give `openai.api.type` for an endpoint's path shape, None for those without one."""
    return next((kind for shape, kind in _API_TYPES.items() if endpoint == shape or endpoint.startswith(f"{shape}.")), None)


def end_attributes(record: CallRecord) -> dict[str, AttributeValue]:
    """Give what is known once a call is over; what is unknown is left out."""
    attributes: dict[str, AttributeValue] = {}
    if record.reply is not None:
        _add_reply(attributes, record.reply)
    if record.first_chunk_ns is not None:
        attributes[semconv.RESPONSE_FIRST_CHUNK] = record.first_chunk_ns / NANO
    if record.usage is not None:
        _add_usage(attributes, record.usage, record.call.operation)
    elif record.charged is not None:
        _add_charged(attributes, record.charged, record.charged_nano)
    if record.retries:
        attributes[semconv.RETRY_COUNT] = len(record.retries)
    paid = record.requests if record.call.generative else int(record.reply is not None)
    if paid != 1 and record.status != "refused":
        attributes[semconv.REQUEST_COUNT] = paid
    if record.granted is not None:
        attributes[semconv.LIMIT_GRANTED] = record.granted
    if record.cost_nano is not None:
        attributes[semconv.USAGE_COST] = record.cost_nano / NANO
    if record.cost_source is not None:
        attributes[semconv.USAGE_COST_SOURCE] = text(record.cost_source)
    return attributes


def _add_reply(attributes: dict[str, AttributeValue], reply: Reply) -> None:
    if reply.id is not None:
        attributes[semconv.RESPONSE_ID] = text(reply.id)
    if reply.model is not None:
        attributes[semconv.RESPONSE_MODEL] = text(reply.model)
    if reply.finish_reasons:
        attributes[semconv.RESPONSE_FINISH_REASONS] = tuple(text(reason) for reason in reply.finish_reasons[:128])
    if reply.service_tier is not None:
        attributes[semconv.OPENAI_RESPONSE_TIER] = text(reply.service_tier)
    if reply.system_fingerprint is not None:
        attributes[semconv.OPENAI_FINGERPRINT] = text(reply.system_fingerprint)
    if reply.conversation_id is not None:
        attributes[semconv.CONVERSATION_ID] = text(reply.conversation_id)


def _add_charged(attributes: dict[str, AttributeValue], charged: Usage, cost_nano: int | None) -> None:
    attributes[semconv.CHARGED_INPUT] = charged.input_tokens
    attributes[semconv.CHARGED_OUTPUT] = charged.output_tokens
    if cost_nano is not None:
        attributes[semconv.CHARGED_COST] = cost_nano / NANO


def _add_usage(attributes: dict[str, AttributeValue], usage: Usage, operation: str) -> None:
    if usage.source != "reported":
        attributes[semconv.USAGE_SOURCE] = usage.source
        if usage.source == "reserved":
            _add_charged(attributes, usage, None)
            return  # the grant was charged, nobody knows what was used
    attributes[semconv.USAGE_INPUT] = usage.input_tokens
    if usage.output_tokens or operation != "embeddings":
        attributes[semconv.USAGE_OUTPUT] = usage.output_tokens
    if usage.cached_input_tokens:
        attributes[semconv.USAGE_CACHE_READ] = usage.cached_input_tokens
    if usage.cache_write_tokens:
        attributes[semconv.USAGE_CACHE_CREATION] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        attributes[semconv.USAGE_REASONING] = usage.reasoning_tokens
